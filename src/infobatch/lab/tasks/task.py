"""A task: data, the net it is usually trained with, and how an answer is judged."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from ... import checks
from ...errors import InputError, message

Loss = Callable[[Any, Tensor, float], Tensor]
Score = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Arrays:
    """Samples that fit into memory: inputs [N, ...], images as uint8 [N, C, H, W], and labels [N]."""

    inputs: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        for name, value in (("inputs", self.inputs), ("labels", self.labels)):
            if not isinstance(value, Tensor) or not value.dim():
                remedy = "Arrays(inputs, labels), with one row a sample; torch.from_numpy makes tensors of arrays."
                raise InputError(message(f"{name} as a tensor [N, ...]", type(value).__name__, remedy))
        if len(self.inputs) != len(self.labels):
            got = f"{len(self.inputs)} inputs and {len(self.labels)} labels"
            raise InputError(message("as many labels as inputs", got, "Row i of both is one sample."))

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
    """Where the data are from, for the record: names and hashes of the files. Else a hash of what is in memory."""

    def __post_init__(self) -> None:
        for name, part in (("training", self.train), ("test", self.test)):
            where = f"the {name} set of {self.name}"
            if hasattr(part, "__len__") and not len(part):
                raise InputError(message(f"samples in {where}", "none", "Each set needs at least one."))
            if self.classes and isinstance(part, Arrays):
                check_labels(part.labels, len(self.classes), where)
        checks.check_dataset(self.train)

    @cached_property
    def data(self) -> dict[str, Any]:
        """What tells its data from others, for the record. An empty source says that nothing is known."""
        return {
            "size": len(cast(Sized, self.train)),
            "classes": list(self.classes),
            "source": self.source or _hashed(train=self.train, test=self.test),
        }


def check_labels(labels: Any, classes: int, where: str) -> None:
    """A label beyond the classes would stop a GPU without a word."""
    expected = f"labels from 0 to {classes - 1} in {where}, as int64 [N]"
    remedy = "They are places in the task's classes; leave classes empty where labels are no classes."
    if not isinstance(labels, Tensor) or labels.dtype != torch.int64 or labels.dim() != 1:
        got = f"{labels.dtype} {list(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
        raise InputError(message(expected, got, remedy))
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise InputError(message(expected, f"{low} to {high}", remedy))


ROUNDING = 1e-2
"""How far a score may lie beyond its range: a metric in low precision does, and one in percent lies farther."""


def check_scores(scores: Any, count: int) -> Tensor:
    """What a task's own ``score`` returned for a batch. Its values are not looked at, so a device need not wait."""
    if isinstance(scores, Tensor) and scores.shape == (count,) and not scores.is_complex():
        return scores
    remedy = "Reduce every dimension but the first: score.flatten(1).mean(1)."
    if not isinstance(scores, Tensor):
        remedy = "Return a tensor, as (outputs.argmax(1) == labels).float()."
    elif not scores.dim():
        remedy = "Leave the mean out, as in (outputs.argmax(1) == labels).float(): the lab takes it over all."
    expected = f"one score a sample from the task's score, shape [{count}]"
    raise InputError(message(expected, checks.describe(scores), remedy))


def check_range(scores: Tensor) -> Tensor:
    """What is not finite is let through: a net that diverged may give it, and then there is no metric."""
    if not scores.numel():
        return scores
    known = scores.double()
    low, high = (float(end) for end in torch.where(known.isfinite(), known, 0.5).aminmax())
    if low < -ROUNDING or high > 1 + ROUNDING:
        remedy = "The metric is 100 times their mean: divide by the largest there can be, or clamp."
        raise InputError(message("scores in [0, 1] from the task's score", f"{low:.4g} to {high:.4g}", remedy))
    return scores


def differences(known: dict[str, Any], mine: dict[str, Any]) -> list[str]:
    """Where a record's data are others than a task's. What either does not tell is not held against it.

    >>> differences({"size": 9, "source": ""}, {"size": 10, "classes": ["a"], "source": "x"})
    ['size 9, not 10']
    """
    unknown = (None, "")
    told = [key for key in mine if known.get(key) not in unknown and mine[key] not in unknown]
    return [f"{key} {known[key]!r}, not {mine[key]!r}" for key in told if known[key] != mine[key]]


HASHED = 1 << 28
"""Bytes: a hash of more would delay the start. Of larger tensors every so many rows are hashed."""


def _hashed(**parts: Any) -> str:
    """As "train sha256:6cb72fc6430f, test ..."; empty where not all of it lies in memory."""
    told = []
    for name, part in parts.items():
        if not isinstance(part, Arrays):
            return ""
        total = hashlib.sha256()
        for tensor in (part.inputs, part.labels):
            step = -(-tensor.nbytes // HASHED) or 1
            total.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
            total.update(tensor[::step].detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data)
        told.append(f"{name} sha256:{total.hexdigest()[:12]}")
    return ", ".join(told)
