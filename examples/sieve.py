"""Train on handwritten digits with full data, with a sieve, and with a shorter run of the sieve's compute."""

import argparse
from statistics import mean, stdev

import torch
from rich import print
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

import infobatch
from infobatch.lab.compare.verdicts import of_differences

torch.set_num_threads(1)  # the networks are small, and results then do not depend on the number of cores
images, labels = map(torch.tensor, load_digits(return_X_y=True))
images = images.float().reshape(-1, 1, 8, 8) / 16
train, test = train_test_split(range(len(labels)), test_size=0.3, stratify=labels, random_state=0)
train_set = torch.utils.data.TensorDataset(images[train], labels[train])
criterion = nn.CrossEntropyLoss(reduction="none")  # one loss per sample
BATCH, STEPS = 64, len(train) // 64


def make_net(first, second):
    return nn.Sequential(
        *(nn.Conv2d(1, first, 3, padding=1), nn.BatchNorm2d(first), nn.ReLU()),
        *(nn.Conv2d(first, second, 3, padding=1), nn.BatchNorm2d(second), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(second * 4 * 4, 10)),
    )


def train_once(seed, num_steps, use_sieve=False):
    """Train for a number of steps; return the accuracy and the FLOPs, looking included."""
    torch.manual_seed(seed)
    model = make_net(32, 64)
    flops = infobatch.sieve.count_flops(model, images[:8])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    scheduler = OneCycleLR(optimizer, 0.05, total_steps=num_steps)
    loader = torch.utils.data.DataLoader(train_set, BATCH, shuffle=True, drop_last=True)
    batches = (batch for _ in range(-(-num_steps // STEPS)) for batch in loader)
    proxy = infobatch.sieve.Proxy(make_net(10, 20), criterion)  # a tenth of the model's FLOPs
    sieve = infobatch.Sieve(proxy, num_steps=num_steps, seed=seed)  # the default method: adaptive
    for _, (x, y) in zip(range(num_steps), batches, strict=False):
        if use_sieve:
            x, y, _ = sieve(x, y)
            loss = sieve.reduce(criterion(model(x), y))
        else:
            loss = criterion(model(x), y).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    right = (model.eval()(images[test]).argmax(1) == labels[test]).double().mean().item()
    compute = sieve.summary(flops).compute if use_sieve else 1.0
    return 100 * right, flops.step * num_steps * BATCH * compute


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=20, help="epochs of full data (default 20)")
parser.add_argument("--seeds", type=int, default=5, help="runs of each kind, with seeds 0, 1, ... (default 5)")
options = parser.parse_args()
full, sieved, shorter = runs = [], [], []
for seed in track(range(options.seeds), "training"):
    full.append(train_once(seed, options.epochs * STEPS))
    sieved.append(train_once(seed, options.epochs * STEPS, use_sieve=True))
    shorter.append(train_once(seed, round(options.epochs * STEPS * sieved[-1][1] / full[-1][1])))
table = Table(f"mean ± spread of {options.seeds}", "compute", "accuracy, %")
for name, run in zip(("full data", "sieve", "shorter run"), runs, strict=True):
    rights, costs = zip(*run, strict=True)
    spread = f" ± {stdev(rights):.2f}" if len(rights) > 1 else ""
    table.add_row(name, f"{sum(costs) / sum(cost for _, cost in full):.1%}", f"{mean(rights):.2f}{spread}")
change, _, *ends = of_differences([a - b for (a, _), (b, _) in zip(sieved, shorter, strict=True)], 0.95)
interval = "no interval with so few seeds" if None in ends else "95 %: {:+.2f} to {:+.2f}".format(*ends)
print(table, f"The sieve compared with the shorter run: {change:+.2f} points ({interval}).", sep="\n")
