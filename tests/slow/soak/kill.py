"""Kill a training run with SIGKILL at random moments, resume it, and compare with a run left in peace.

    python tests/soak/kill.py --count 200

Each point is one run: killed once or more, at moments drawn over its whole length, writing included. It must end with
a model and scores equal to the uninterrupted run's, to the bit.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import infobatch

EPOCHS, SIZE, BATCH, EVERY = 3, 64, 8, 3


def train(checkpoint: Path, result: Path) -> None:
    """A run that saves every few batches and goes on from what it finds."""
    noise = torch.Generator().manual_seed(1)
    x = torch.randn(SIZE, 4, generator=noise)
    y = x.sum(1, keepdim=True).sin() + 0.3 * torch.randn(SIZE, 1, generator=noise)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    train_data = infobatch.InfoBatch(TensorDataset(x, y), EPOCHS, seed=2)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * (SIZE // BATCH))
    scheduler = infobatch.pace(cosine, train_data, SIZE // BATCH)
    parts = {"model": model, "optimizer": optimizer, "data": train_data, "scheduler": scheduler}
    if checkpoint.exists():
        for name, state in infobatch.load(checkpoint).items():
            parts[name].load_state_dict(state)
    loader = infobatch.DataLoader(train_data, batch_size=BATCH)
    for _ in range(train_data.epoch, EPOCHS):
        for step, (xs, ys) in enumerate(loader):
            loss = train_data.update((model(xs) - ys).square().squeeze(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            if step % EVERY == 0:
                infobatch.save({name: part.state_dict() for name, part in parts.items()}, checkpoint)
    infobatch.save({"model": model.state_dict(), "scores": train_data.scores}, result)


def start(checkpoint: Path, result: Path) -> int:
    """Fork: the child trains; the parent gets its id. Importing torch anew for every attempt would take longer."""
    child = os.fork()
    if child:
        return child
    try:
        train(checkpoint, result)
        os._exit(0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def left_in_peace(checkpoint: Path, result: Path) -> float:
    """Seconds that a whole run takes."""
    began = time.perf_counter()
    os.waitpid(start(checkpoint, result), 0)
    return time.perf_counter() - began


def same(one: Path, other: Path) -> bool:
    a, b = infobatch.load(one), infobatch.load(other)
    models = all(torch.equal(a["model"][key], b["model"][key]) for key in a["model"])
    return models and torch.equal(a["scores"], b["scores"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="runs to kill")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.optim.SGD(nn.Linear(1, 1).parameters())  # the first makes torch import for a second: not in every child
    lot = random.Random(args.seed)
    kills = different = 0
    with tempfile.TemporaryDirectory() as folder:
        reference = Path(folder) / "reference.pt"
        length = min(left_in_peace(Path(folder) / f"unused-{turn}.pt", reference) for turn in range(3))
        for point in range(args.count):
            checkpoint, result = Path(folder) / f"{point}.pt", Path(folder) / f"{point}.result.pt"
            while not result.exists():
                child = start(checkpoint, result)
                time.sleep(lot.uniform(0.02, 1.2) * length)
                os.kill(child, signal.SIGKILL)
                _, status = os.waitpid(child, 0)
                kills += os.WIFSIGNALED(status)
                if os.WIFEXITED(status) and os.WEXITSTATUS(status):
                    print(f"run {point} could not resume")
                    return 1
            different += not same(reference, result)
            for left in Path(folder).glob(f".{point}.pt.*.tmp"):
                left.unlink()  # what a killed writer leaves is never read
    print(f"{args.count} runs, {kills} kills, {different} ended differently from the uninterrupted run")
    return int(different > 0)


if __name__ == "__main__":
    raise SystemExit(main())
