"""Sharpness-aware minimization: two passes over each batch, which must use the same weights."""

import torch

import infobatch

NUM_EPOCHS, BATCH, RADIUS = 8, 32, 0.05

torch.manual_seed(0)
x = torch.randn(400, 5)
y = x.sum(1) + 0.1 * torch.randn(400)
model = torch.nn.Linear(5, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
train_data = infobatch.InfoBatch(torch.utils.data.TensorDataset(x, y), NUM_EPOCHS)
loader = infobatch.DataLoader(train_data, batch_size=BATCH)
steps = infobatch.full_steps(train_data, BATCH)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=NUM_EPOCHS * steps)
scheduler = infobatch.pace(cosine, train_data, steps)


def losses(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (model(inputs).squeeze(1) - targets).square()


for _ in range(NUM_EPOCHS):
    for inputs, targets in loader:
        optimizer.zero_grad()
        train_data.update(losses(inputs, targets)).backward()  # once per batch: these losses become the scores
        with torch.no_grad():
            gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
            norm = torch.stack([gradient.norm() for gradient in gradients]).norm() + 1e-12
            offsets = [gradient * (RADIUS / norm) for gradient in gradients]
            for parameter, offset in zip(model.parameters(), offsets, strict=True):
                parameter += offset
        optimizer.zero_grad()
        (losses(inputs, targets) * train_data.batch_weights).mean().backward()  # the same weights as in the first pass
        with torch.no_grad():
            for parameter, offset in zip(model.parameters(), offsets, strict=True):
                parameter -= offset
        optimizer.step()
        scheduler.step()

error = losses(x, y).mean().item()
print(f"error {error:.3f} with {train_data.history[-1].saved_so_far:.0%} of the samples left out")
