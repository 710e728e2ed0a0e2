"""A task of your own for the lab: data, net, loss and metric in one function.

    cd examples
    infobatch compare --task own_task:make --methods infobatch random --seeds 3
    infobatch train --task own_task:make --data some/folder --model mlp

Run as a script, it trains once and prints what came of it.
"""

import torch
from torch import nn
from torch.nn import functional as F

from infobatch.lab.tasks.task import Arrays, Task


def squared(outputs, labels, label_smoothing):
    """One loss a sample."""
    del label_smoothing  # there are no classes to smooth
    return F.mse_loss(outputs[:, 0], labels, reduction="none")


def make(data=""):
    """Called with the folder of --data. Here the data are made up: the sum of ten numbers, from noisy readings."""
    draw = torch.Generator().manual_seed(0)

    def some(count):
        inputs = torch.rand(count, 10, generator=draw)
        return Arrays(inputs, inputs.sum(1) + 0.1 * torch.randn(count, generator=draw))

    train = some(2000)
    return Task(
        name="sums",
        train=train,  # Arrays that fit into memory, or any data set of (input, label)
        test=some(500),
        classes=(),  # labels are no classes here
        defaults={"epochs": 16, "batch_size": 50, "lr": 0.02, "threads": 1},  # where a person gives no other
        loss=squared,
        score=lambda outputs, labels: ((outputs[:, 0] - labels).abs() < 0.2).float(),  # in [0, 1], more is better
        metric="within 0.2, %",
        texts=lambda index: " ".join(f"{value:.1f}" for value in train.inputs[index]),  # what the report shows
        make_model=lambda: nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)),
        source=data or "made up, seed 0",
    )


if __name__ == "__main__":
    from infobatch.lab.train.loop import run
    from infobatch.lab.train.settings import Settings

    task = make()
    *_, end = run(Settings.of({"task": "own_task:make", "method": "infobatch"}, task.defaults), task=task)
    print(f"{task.metric}: {end['metric']:.1f}; saved {100 * end['saved']:.1f} % of the samples")
