"""Choose part of the data before training by dataset quantization (DQ), then train on that part with InfoBatch."""

import argparse
from statistics import mean, stdev

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import infobatch
from infobatch import methods, selection

torch.set_num_threads(1)  # the networks are small, and results then do not depend on the number of cores
images, labels = map(torch.tensor, load_digits(return_X_y=True))
images = images.float().reshape(-1, 1, 8, 8) / 16
rows = train_test_split(range(len(labels)), test_size=0.3, stratify=labels, random_state=0)
train_set, test_set = (torch.utils.data.TensorDataset(images[part], labels[part]) for part in rows)
BATCH = 64


def choose(share, seed):
    """Return the samples that DQ chooses by the features of a small network, trained for a few epochs."""
    torch.manual_seed(seed)
    small = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    evidence = selection.gather(small, train_set, epochs=5, batch_size=BATCH, seed=seed)
    return selection.dq(evidence, share, seed=seed)  # of any other model: selection.Evidence(N, features=...)


def train_once(data, method, num_epochs, seed):
    """Return the accuracy, and how many samples were trained on, those of all epochs together."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1)),
        *(nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 4 * 4, 10)),
    )
    train_data = infobatch.Pruned(data, method, num_epochs, seed=seed)
    steps = infobatch.full_steps(train_data, BATCH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=num_epochs * steps)
    scheduler = infobatch.pace(rates, train_data, steps)
    for _ in range(num_epochs):
        for x, y in infobatch.DataLoader(train_data, batch_size=BATCH):
            optimizer.zero_grad()
            train_data.update(nn.functional.cross_entropy(model(x), y, reduction="none")).backward()
            optimizer.step()
            scheduler.step()
    x, y = test_set.tensors
    right = (model.eval()(x).argmax(1) == y).double().mean().item()
    return 100 * right, sum(epoch.kept for epoch in train_data.history)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--share", type=float, default=0.7, help="the share of the samples that DQ keeps (default 0.7)")
parser.add_argument("--epochs", type=int, default=20, help="epochs of each run, 8 or more (default 20)")
parser.add_argument("--seeds", type=int, default=3, help="runs of each kind, with seeds 0, 1, ... (default 3)")
options, runs = parser.parse_args(), {}
for seed in range(options.seeds):
    part = torch.utils.data.Subset(train_set, choose(options.share, seed))
    for name, data, method in (
        ("full data", train_set, methods.full()),
        ("InfoBatch", train_set, methods.infobatch()),
        ("DQ", part, methods.full()),
        ("DQ, then InfoBatch", part, methods.infobatch()),
    ):
        runs.setdefault(name, []).append((len(data), *train_once(data, method, options.epochs, seed)))
    used = runs["DQ, then InfoBatch"][-1][2]  # the shorter run has as many samples in all
    epochs = max(1, round(used / len(train_set)))
    runs.setdefault("shorter run", []).append((len(train_set), *train_once(train_set, methods.full(), epochs, seed)))
print(f"accuracy: mean ± spread of {options.seeds}; to choose, DQ trained a small network for 5 epochs")
for name, found in runs.items():
    sizes, rights, trained = zip(*found, strict=True)
    spread = f" ± {stdev(rights):.2f}" if len(rights) > 1 else ""
    print(f"{name:18}  {sizes[0]:5,} samples, {mean(trained):8,.0f} trained on, {mean(rights):.2f} %{spread}")
