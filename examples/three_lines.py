"""A few lines add InfoBatch to an ordinary training loop: linear regression on noisy points."""

import torch
from torch import nn

import infobatch

NUM_EPOCHS = 16
torch.manual_seed(0)
x = torch.randn(2000, 5)
y = (x @ torch.tensor([3.0, -2.0, 1.0, 0.0, 4.0]) + 0.5 * torch.randn(2000)).unsqueeze(1)
train_data = torch.utils.data.TensorDataset(x, y)
model = nn.Linear(5, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

train_data = infobatch.InfoBatch(train_data, NUM_EPOCHS, ratio=0.5, delta=0.875)  # wrap the data
loader = torch.utils.data.DataLoader(train_data, batch_size=50, sampler=train_data.sampler)  # its sampler
criterion = nn.MSELoss(reduction="none")  # one loss per sample

for epoch in range(NUM_EPOCHS):
    for inputs, targets in loader:
        loss = train_data.update(criterion(model(inputs), targets).squeeze(1))  # losses back
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    summary = train_data.history[-1]
    print(f"epoch {epoch:2}: {summary.kept} of {len(train_data)} samples, {summary.saved_so_far:.1%} saved so far")

print("weights:", [round(weight, 2) for weight in model.weight[0].tolist()], "(true values: 3, -2, 1, 0, 4)")
