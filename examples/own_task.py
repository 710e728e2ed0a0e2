"""Your own task for the lab: data, net, loss and metric in one function.

    cd examples
    infobatch compare --task own_task:make --methods infobatch random --seeds 3
    infobatch train --task own_task:make --data some/folder --model mlp

Run as a script, it trains once and prints the result.
"""

import torch
from torch import nn
from torch.nn import functional as F

from infobatch.lab.tasks.task import Arrays, Task


def squared(outputs, labels, label_smoothing):
    """Return one loss per sample."""
    del label_smoothing  # there are no classes to smooth
    return F.mse_loss(outputs[:, 0], labels, reduction="none")


def make(data=""):
    """Build the task; called with the folder of --data. The data here are synthetic: a noisy sum of ten numbers."""
    generator = torch.Generator().manual_seed(0)

    def some(count):
        inputs = torch.rand(count, 10, generator=generator)
        return Arrays(inputs, inputs.sum(1) + 0.1 * torch.randn(count, generator=generator))

    train = some(2000)
    return Task(
        name="sums",
        train=train,  # Arrays that fit into memory, or any data set of (input, label)
        test=some(500),
        classes=(),  # labels are not classes here
        defaults={"epochs": 16, "batch_size": 50, "lr": 0.02, "threads": 1},  # used for settings that are not given
        loss=squared,
        score=lambda outputs, labels: ((outputs[:, 0] - labels).abs() < 0.2).float(),  # in [0, 1], more is better
        metric="within 0.2, %",
        texts=lambda index: " ".join(f"{value:.1f}" for value in train.inputs[index]),  # what the report shows
        make_model=lambda: nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)),
        source=data or "synthetic, seed 0",
    )


if __name__ == "__main__":
    from infobatch.lab.train.loop import run
    from infobatch.lab.train.settings import Settings

    task = make()
    *_, end = run(Settings.of({"task": "own_task:make", "method": "infobatch"}, task.defaults), task=task)
    print(f"{task.metric}: {end['metric']:.1f}; saved {100 * end['saved']:.1f} % of the samples")
