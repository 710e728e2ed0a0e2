"""A task: its data, its default net, its loss and its metric."""

from __future__ import annotations

import hashlib
import inspect
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
                remedy = "Arrays(inputs, labels) needs one row per sample; torch.from_numpy converts arrays."
                raise InputError(message(f"{name} as a tensor [N, ...]", type(value).__name__, remedy))
        if len(self.inputs) != len(self.labels):
            got = f"{len(self.inputs)} inputs and {len(self.labels)} labels"
            raise InputError(message("as many labels as inputs", got, "Row i of both is one sample."))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.labels[index]


def cross_entropy(outputs: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
    """Return the cross entropy per sample."""
    return F.cross_entropy(outputs.float(), labels, reduction="none", label_smoothing=label_smoothing)


def right(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return 1 per sample if the largest output is that of its label, else 0."""
    return (outputs.argmax(1) == labels).float()


@dataclass(frozen=True, eq=False)
class Task:
    """What to learn. ``train`` and ``test`` are ``Arrays``, or data sets of (input, label) that a loader reads.

    The metric is 100 times the mean of ``score`` over the test set; higher is better.

    Raises:
        InputError: If a set is empty, is a pair (inputs, labels) or has labels outside of ``classes``, or if ``loss``
            or ``make_model`` cannot be called as described.
    """

    name: str
    train: Arrays | Dataset[Any]
    test: Arrays | Dataset[Any]
    classes: tuple[str, ...]
    """Names of the classes; empty if labels are not classes."""
    defaults: dict[str, Any] = field(default_factory=dict)
    """Settings used unless the user gives others: model, epochs, lr, ..."""
    mean: Sequence[float] = ()
    std: Sequence[float] = ()
    """Per channel, for images as bytes: inputs become (x / 255 - mean) / std on the device."""
    pad: int = 0
    """Random crops from images padded with this many black pixels; 0 for none."""
    flip: bool = False
    """Flip images left to right at random."""
    loss: Loss = cross_entropy
    """(outputs, labels, label_smoothing) -> one loss per sample."""
    score: Score = right
    """(outputs, labels) -> one number in [0, 1] per sample."""
    metric: str = "accuracy, %"
    texts: Callable[[int], str] | None = None
    """Returns the text of a training sample, for samples that are not images."""
    make_model: Callable[[], torch.nn.Module] | None = None
    """Builds the task's own net, used unless another model is named."""
    source: str = ""
    """Where the data come from, for the record: names and hashes of files. If empty, data in memory are hashed."""

    def __post_init__(self) -> None:
        for name, part in (("training", self.train), ("test", self.test)):
            where = f"the {name} set of {self.name}"
            check_set(part, where)
            if hasattr(part, "__len__") and not len(part):
                raise InputError(message(f"samples in {where}", "none", "Each set needs at least one."))
            if self.classes and isinstance(part, Arrays):
                check_labels(part.labels, len(self.classes), where)
        checks.check_dataset(self.train)
        check_loss(self.loss)
        if isinstance(self.make_model, torch.nn.Module):
            remedy = (
                "Build it in the function, as in make_model=lambda: nn.Linear(4, 3): each run starts from new weights."
            )
            raise InputError(message("a function that builds the net", type(self.make_model).__name__, remedy))

    @cached_property
    def data(self) -> dict[str, Any]:
        """What identifies its data in a record. An empty source means that nothing is known."""
        return {
            "size": len(cast(Sized, self.train)),
            "classes": list(self.classes),
            "source": self.source or _hashed(train=self.train, test=self.test),
        }


def check_set(part: Any, where: str) -> None:
    """Refuse a pair (inputs, labels): as a data set it would be two samples.

    Raises:
        InputError: If it is such a pair.
    """
    if isinstance(part, (tuple, list)) and len(part) == 2 and all(hasattr(one, "shape") for one in part):
        expected = f"Arrays or a data set of (input, label) as {where}"
        remedy = "Write Arrays(inputs, labels); torch.from_numpy converts arrays."
        raise InputError(message(expected, f"a {type(part).__name__} of two arrays", remedy))


def check_loss(loss: Any) -> None:
    """Refuse a loss that cannot be called with (outputs, labels, label_smoothing), such as a criterion of torch.

    Raises:
        InputError: If it takes other arguments.
    """
    try:
        inspect.signature(loss.forward if isinstance(loss, torch.nn.Module) else loss).bind(None, None, 0.0)
    except ValueError:  # a built-in function without a signature
        return
    except TypeError:
        name = type(loss).__name__ if isinstance(loss, torch.nn.Module) else getattr(loss, "__name__", repr(loss))
        remedy = (
            'Use infobatch.lab.tasks.task.cross_entropy, or wrap a criterion with reduction="none": '
            "loss=lambda outputs, labels, _: criterion(outputs, labels)."
        )
        raise InputError(message("a loss (outputs, labels, label_smoothing)", name, remedy)) from None


def check_labels(labels: Any, classes: int, where: str) -> None:
    """Refuse labels that are not classes: on a GPU they would crash without a message.

    Raises:
        InputError: If the labels are not int64 [N] in [0, classes).
    """
    expected = f"labels from 0 to {classes - 1} in {where}, as int64 [N]"
    remedy = "They are positions in the task's classes; leave classes empty if labels are not classes."
    if not isinstance(labels, Tensor) or labels.dtype != torch.int64 or labels.dim() != 1:
        got = f"{labels.dtype} {list(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
        raise InputError(message(expected, got, remedy))
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise InputError(message(expected, f"{low} to {high}", remedy))


ROUNDING = 1e-2
"""How far a score may lie outside its range because of low precision; one in percent lies further outside."""


def check_scores(scores: Any, count: int) -> Tensor:
    """Check the shape of what a task's ``score`` returned for a batch, without reading values from the device.

    Raises:
        InputError: If it is not a real tensor [count].
    """
    if isinstance(scores, Tensor) and scores.shape == (count,) and not scores.is_complex():
        return scores
    remedy = "Reduce every dimension but the first: infobatch.per_sample(score, mask).score."
    if not isinstance(scores, Tensor):
        remedy = "Return a tensor, for example (outputs.argmax(1) == labels).float()."
    elif not scores.dim():
        remedy = "Leave out the mean, as in (outputs.argmax(1) == labels).float(): the lab averages over all samples."
    expected = f"one score per sample from the task's score, shape [{count}]"
    raise InputError(message(expected, checks.describe(scores), remedy))


def check_range(scores: Tensor) -> Tensor:
    """Check that scores lie in [0, 1]; scores that are not finite pass, since a diverged net may produce them.

    Raises:
        InputError: If a score lies outside.
    """
    if not scores.numel():
        return scores
    known = scores.double()
    low, high = (float(end) for end in torch.where(known.isfinite(), known, 0.5).aminmax())
    if low < -ROUNDING or high > 1 + ROUNDING:
        remedy = "The metric is 100 times their mean: divide by the largest possible score, or clamp."
        raise InputError(message("scores in [0, 1] from the task's score", f"{low:.4g} to {high:.4g}", remedy))
    return scores


def differences(known: dict[str, Any], mine: dict[str, Any]) -> list[str]:
    """List where the data of a record differ from those of a task; what either does not know is skipped.

    >>> differences({"size": 9, "source": ""}, {"size": 10, "classes": ["a"], "source": "x"})
    ['size 9, not 10']
    """
    unknown = (None, "")
    shared = [key for key in mine if known.get(key) not in unknown and mine[key] not in unknown]
    return [f"{key} {known[key]!r}, not {mine[key]!r}" for key in shared if known[key] != mine[key]]


HASHED = 1 << 28
"""The most bytes of a tensor to hash, so that runs start quickly; of larger ones only every n-th row is hashed."""


def _hashed(**parts: Any) -> str:
    """Hash data in memory, as in "train sha256:6cb72fc6430f, test ..."; "" if a part is not in memory."""
    hashes = []
    for name, part in parts.items():
        if not isinstance(part, Arrays):
            return ""
        total = hashlib.sha256()
        for tensor in (part.inputs, part.labels):
            step = -(-tensor.nbytes // HASHED) or 1
            total.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
            total.update(tensor[::step].detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data)
        hashes.append(f"{name} sha256:{total.hexdigest()[:12]}")
    return ", ".join(hashes)
