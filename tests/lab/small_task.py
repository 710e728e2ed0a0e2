"""A small task of images, and all that a run on it tells."""

from __future__ import annotations

from typing import Any

import torch

from infobatch.lab.runs.records import Fact
from infobatch.lab.tasks.task import Arrays, Task
from infobatch.lab.train import loop
from infobatch.lab.train.settings import Settings

QUICK: dict[str, Any] = {"epochs": 8, "batch_size": 16, "lr": 0.05, "threads": 1, "model": "mlp", "gallery": 2}


def made(size: int = 150, **given: Any) -> Task:
    """Small images whose class is where they are bright."""
    draw = torch.Generator().manual_seed(1)

    def some(count: int) -> Arrays:
        labels = torch.randint(3, (count,), generator=draw)
        images = torch.randint(0, 120, (count, 1, 6, 6), generator=draw, dtype=torch.uint8)
        for label in range(3):
            images[labels == label, :, 2 * label : 2 * label + 2] += 60
        return Arrays(images, labels)

    return Task("made", some(size), some(60), ("a", "b", "c"), **{"mean": (0.3,), "std": (0.2,), **given})


def facts(task: Task | None = None, **given: Any) -> list[Fact]:
    return list(loop.run(Settings.of({**QUICK, **given}), task=task or made()))
