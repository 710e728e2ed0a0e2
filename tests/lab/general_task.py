"""A small task of masks: two kinds of blobs in an image, of which one pixel in ten does not count."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from infobatch.adapters.per_sample import PerSample, per_sample
from infobatch.lab.metrics import MeanIoU
from infobatch.lab.tasks.task import Arrays, Task

IGNORED = 255
SETTINGS: dict[str, Any] = {"epochs": 6, "batch_size": 8, "lr": 0.2, "threads": 1, "model": "task", "gallery": 2}


def per_pixel(outputs: Tensor, masks: Tensor, label_smoothing: float) -> PerSample:
    losses = F.cross_entropy(
        outputs, masks.long(), reduction="none", ignore_index=IGNORED, label_smoothing=label_smoothing
    )
    return per_sample(losses, masks != IGNORED)


def masks(size: int = 60, **given: Any) -> Task:
    draw = torch.Generator().manual_seed(2)

    def some(count: int) -> Arrays:
        truth = torch.zeros(count, 8, 8, dtype=torch.uint8)
        for each in truth:
            row, column = torch.randint(0, 5, (2,), generator=draw).tolist()
            each[row : row + 3, column : column + 3] = 1 + int(torch.randint(2, (), generator=draw))
        images = torch.randint(0, 60, (count, 1, 8, 8), generator=draw, dtype=torch.uint8) + 80 * truth[:, None]
        truth[torch.rand(count, 8, 8, generator=draw) < 0.1] = IGNORED
        return Arrays(images, truth)

    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1))

    own = {"mean": (0.3,), "std": (0.2,), "loss": per_pixel, "metric": MeanIoU(3, IGNORED), "make_model": make}
    return Task("blobs", some(size), some(20), ("ground", "low", "high"), **{**own, **given})
