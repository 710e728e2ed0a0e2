"""Train on handwritten digits with full data and with InfoBatch: same network, same seeds, same settings."""

import argparse
import json
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from time import perf_counter

import torch
from rich import print
from rich.progress import Progress
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

import infobatch
from infobatch.lab.compare.verdicts import of_differences

METHODS = {"full data": infobatch.methods.full(), "InfoBatch": infobatch.methods.infobatch(ratio=0.5, delta=0.875)}
torch.set_num_threads(1)  # the network is small, and results then do not depend on the number of cores
images, labels = map(torch.tensor, load_digits(return_X_y=True))
images = images.float().reshape(-1, 1, 8, 8) / 16
train, test = train_test_split(range(len(labels)), test_size=0.3, stratify=labels, random_state=0)
train_set = torch.utils.data.TensorDataset(images[train], labels[train])
BATCH, STEPS, RECORD = 64, -(-len(train) // 64), Path("runs/digits.json")


def train_once(method, seed, num_epochs, tick):
    torch.manual_seed(seed)
    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1)),
        *(nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 4 * 4, 10)),
    )
    data = infobatch.Pruned(train_set, method, num_epochs, seed=seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    scheduler = infobatch.pace(OneCycleLR(optimizer, 0.05, epochs=num_epochs, steps_per_epoch=STEPS), data, STEPS)
    steps, cost, start = 0, 0.0, perf_counter()
    for _ in range(num_epochs):
        for x, y in infobatch.DataLoader(data, batch_size=BATCH):
            losses = nn.functional.cross_entropy(model(x), y, reduction="none")
            before = perf_counter()
            loss = data.update(losses)
            data.plan()  # after the last batch of an epoch: merges its losses and draws the next plan
            cost += perf_counter() - before
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            steps += 1
        tick()
    seconds, samples = perf_counter() - start, sum(epoch.kept for epoch in data.history)
    right = 100 * (model.eval()(images[test]).argmax(1) == labels[test]).double().mean().item()
    return {"accuracy, %": right, "samples": samples, "steps": steps, "seconds": seconds, "pruning, s": cost}


def mean_and_spread(values):
    digits = ",.0f" if mean(values) > 200 else ".2f"
    return f"{mean(values):{digits}}" + (f" ± {stdev(values):{digits}}" if len(values) > 1 else "")


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=40, help="epochs of each run (default 40)")
parser.add_argument("--seeds", type=int, default=3, help="runs of each method, with seeds 0, 1, ... (default 3)")
options, runs = parser.parse_args(), {name: [] for name in METHODS}
with Progress() as bar:
    task = bar.add_task("training", total=options.seeds * len(METHODS) * options.epochs)
    for seed, name in product(range(options.seeds), METHODS):  # alternating, so that a busy machine slows both
        runs[name].append(train_once(METHODS[name], seed, options.epochs, lambda: bar.advance(task)))
table = Table(f"mean ± spread of {options.seeds}", *METHODS)
for row in runs["full data"][0]:
    table.add_row(row, *(mean_and_spread([run[row] for run in runs[name]]) for name in METHODS))
gaps = [b["accuracy, %"] - a["accuracy, %"] for a, b in zip(*runs.values(), strict=True)]
change, _, *ends = of_differences(gaps, 0.95)
interval = "no interval with so few seeds" if None in ends else "95 %: {:+.2f} to {:+.2f}".format(*ends)
RECORD.parent.mkdir(exist_ok=True)
RECORD.write_text(json.dumps({"settings": vars(options), "torch": torch.__version__, "runs": runs}, indent=1))
print(table, f"Accuracy changed by {change:+.2f} points ({interval}; {len(gaps)} paired seeds).", RECORD, sep="\n")
