"""A task: data, the net it is usually trained with, and how an answer is judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

Loss = Callable[[Any, Tensor, float], Tensor]
Score = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Arrays:
    """Samples that fit into memory: inputs [N, ...], images as uint8 [N, C, H, W], and labels [N]."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.labels[index]


def cross_entropy(outputs: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
    return F.cross_entropy(outputs.float(), labels, reduction="none", label_smoothing=label_smoothing)


def right(outputs: Tensor, labels: Tensor) -> Tensor:
    """1 where the largest output is the label's."""
    return (outputs.argmax(1) == labels).float()


@dataclass(frozen=True, eq=False)
class Task:
    """What to learn. ``train`` and ``test`` are ``Arrays``, or data sets of (input, label) that a loader reads.

    The metric is 100 times the mean of ``score`` over the test set; more is better.
    """

    name: str
    train: Arrays | Dataset[Any]
    test: Arrays | Dataset[Any]
    classes: tuple[str, ...]
    """Names of the classes; empty where labels are no classes."""
    defaults: dict[str, Any] = field(default_factory=dict)
    """Settings that suit it, where a person gives none: model, epochs, lr, ..."""
    mean: Sequence[float] = ()
    std: Sequence[float] = ()
    """Of each channel, for images as bytes: inputs become (x / 255 - mean) / std on the device."""
    pad: int = 0
    """Random crops out of images padded by so much with black; 0 for none."""
    flip: bool = False
    """Left and right are alike."""
    loss: Loss = cross_entropy
    """(outputs, labels, label_smoothing) -> one loss a sample."""
    score: Score = right
    """(outputs, labels) -> one number in [0, 1] a sample."""
    metric: str = "accuracy, %"
    texts: Callable[[int], str] | None = None
    """The text of a training sample, where samples are no images."""
    make_model: Callable[[], torch.nn.Module] | None = None
    """The task's own net, taken where no other model is named."""
    source: str = ""
    """Where the data are from, for the record: names and hashes of the files."""
