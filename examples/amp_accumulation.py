"""Mixed precision and gradient accumulation: one optimizer step for every four batches, in torch.amp."""

import torch
from torch import nn

import infobatch

NUM_EPOCHS, BATCH, ACCUMULATE = 8, 32, 4
device = "cuda" if torch.cuda.is_available() else "cpu"
half = torch.float16 if device == "cuda" else torch.bfloat16

torch.manual_seed(0)
x = torch.randn(2000, 10)
y = x[:, :3].argmax(1)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
criterion = nn.CrossEntropyLoss(reduction="none")  # one loss per sample
scaler = torch.amp.GradScaler(device, enabled=device == "cuda")  # bfloat16 needs no scaling

train_data = infobatch.InfoBatch(torch.utils.data.TensorDataset(x, y), NUM_EPOCHS)
loader = infobatch.DataLoader(train_data, batch_size=BATCH)
full_steps = infobatch.full_steps(train_data, BATCH, accumulate=ACCUMULATE)  # optimizer steps of an unpruned epoch
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=NUM_EPOCHS * full_steps)
scheduler = infobatch.pace(cosine, train_data, full_steps)

for epoch in range(NUM_EPOCHS):
    steps = 0
    for batch, (inputs, targets) in enumerate(loader, start=1):
        inputs, targets = inputs.to(device), targets.to(device)
        with torch.autocast(device, dtype=half):
            outputs = model(inputs)
        loss = train_data.update(criterion(outputs.float(), targets))  # once per batch, before the division
        # Divide by ACCUMULATE in the last group, too: if it has fewer batches, it counts for the samples it holds.
        scaler.scale(loss / ACCUMULATE).backward()
        if batch % ACCUMULATE and batch < len(loader):  # inside the loop, len(loader) is the length of this epoch
            continue
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scheduler.step()  # once per optimizer step
        steps += 1
    summary = train_data.history[-1]
    print(f"epoch {epoch}: {summary.kept} samples, {steps} steps, learning rate {scheduler.get_last_lr()[0]:.4f}")

with torch.no_grad():
    right = (model(x.to(device)).argmax(1).cpu() == y).double().mean().item()
print(f"{right:.1%} right, with {train_data.history[-1].saved_so_far:.0%} of the samples left out")
