"""Resume a run that was killed in the middle of an epoch: it continues at the next batch, with identical results."""

import tempfile
from pathlib import Path

import torch

import infobatch

NUM_EPOCHS, BATCH, SAVE_EVERY = 8, 32, 3


class KilledError(Exception):
    """Simulates a crash."""


def train(path: Path, die_at: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Train and save every few batches; resume from ``path`` if it exists. ``die_at`` counts batches."""
    torch.manual_seed(0)
    x = torch.randn(400, 5)
    y = x.sum(1) + 0.1 * torch.randn(400)
    model = torch.nn.Sequential(torch.nn.Dropout(0.1), torch.nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    train_data = infobatch.InfoBatch(torch.utils.data.TensorDataset(x, y), NUM_EPOCHS)
    loader = infobatch.DataLoader(train_data, batch_size=BATCH)
    full_steps = infobatch.full_steps(train_data, BATCH)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=NUM_EPOCHS * full_steps)
    scheduler = infobatch.pace(cosine, train_data, full_steps)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "train_data": train_data}

    batches = 0
    if path.exists():
        saved = infobatch.load(path)
        batches = saved["batches"]
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        torch.set_rng_state(saved["random_state"])  # dropout continues with the same numbers
        epoch, done, total = train_data.progress
        print(f"resumed in epoch {epoch}, after {done} of its {total} samples")

    for _ in range(train_data.epoch, NUM_EPOCHS):  # the current epoch, and the remaining ones
        for inputs, targets in loader:  # in a resumed epoch only its remaining samples
            loss = train_data.update((model(inputs).squeeze(1) - targets).square())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            batches += 1
            if batches % SAVE_EVERY == 0:  # after scheduler.step(): model, scheduler and data are at the same step
                states = {name: part.state_dict() for name, part in parts.items()}
                random_state = torch.get_rng_state()  # on a GPU also torch.cuda.get_rng_state()
                state = {"batches": batches, "random_state": random_state, **states}
                infobatch.save(state, path)  # atomic: a crash leaves the previous file
            if batches == die_at:
                raise KilledError
    return model[1].weight.detach(), train_data.scores


with tempfile.TemporaryDirectory() as folder:
    expected = train(Path(folder, "uninterrupted.pt"))
    try:
        train(Path(folder, "killed.pt"), die_at=17)
    except KilledError:
        print("killed after 17 batches; the last checkpoint was saved after batch 15")
    resumed = train(Path(folder, "killed.pt"))
    same = all(torch.equal(a, b) for a, b in zip(expected, resumed, strict=True))
    print("same weights and same scores as an uninterrupted run:", same)
