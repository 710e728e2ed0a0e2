"""A task: its data, its default net, its loss and its metric."""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from ... import checks
from ...errors import InputError, message
from ..metrics.mean_score import MeanScore, Score, right
from ..metrics.metric import Metric, check_metric, info_of
from ..metrics.metric_info import MARGIN, MetricInfo, is_margin
from .nested import count_rows, take, tensors_of

Loss = Callable[[Any, Any, float], Any]
Augment = Callable[[Any, Any, torch.Generator], tuple[Any, Any]]
Confidence = Callable[[Any, Any], Tensor]
Features = Callable[[int, torch.device], Tensor]


@dataclass(frozen=True, eq=False)
class Arrays:
    """Samples that fit into memory: inputs [N, ...], images as uint8 [N, C, H, W], and labels [N] or [N, ...].

    Either may be a dict or list of tensors, one row per sample in each.

    >>> import torch
    >>> from infobatch.lab.tasks.task import Arrays
    >>> Arrays(torch.zeros(8, 3, 4, 4), {"mask": torch.zeros(8, 4, 4), "depth": torch.zeros(8)})[0][1]["depth"]
    tensor(0.)
    """

    inputs: Any
    labels: Any

    def __post_init__(self) -> None:
        remedy = "Arrays(inputs, labels) needs one row per sample; torch.from_numpy converts arrays."
        for name, value in (("inputs", self.inputs), ("labels", self.labels)):
            found = tensors_of(value)
            if not found or any(not isinstance(each, Tensor) or not each.dim() for each in found):
                raise InputError(message(f"{name} as a tensor [N, ...]", type(value).__name__, remedy))
            counts = sorted({len(each) for each in found})
            if len(counts) > 1:
                got = f"{name} with {' and '.join(map(str, counts))} rows"
                raise InputError(message("one row per sample in each tensor", got, remedy))
        if count_rows(self.inputs) != count_rows(self.labels):
            got = f"{count_rows(self.inputs)} inputs and {count_rows(self.labels)} labels"
            raise InputError(message("as many labels as inputs", got, "Row i of both is one sample."))

    def __len__(self) -> int:
        return count_rows(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return take(self.inputs, index), take(self.labels, index)

    @property
    def class_labels(self) -> Tensor | None:
        """The class of each sample, [N]; None if the labels are something else, such as masks."""
        return self.labels if isinstance(self.labels, Tensor) and self.labels.dim() == 1 else None


def cross_entropy(outputs: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
    """Return the cross entropy per sample."""
    return F.cross_entropy(outputs.float(), labels, reduction="none", label_smoothing=label_smoothing)


def confidence_in_class(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the probability of each sample's class; of soft targets [N, classes], the mean weighted by them.

    Raises:
        InputError: If the targets are not classes.
    """
    if isinstance(outputs, Tensor) and outputs.dim() == 2 and isinstance(targets, Tensor):
        probabilities = outputs.detach().float().softmax(1)
        if targets.dim() == 1 and targets.dtype == torch.int64:
            return probabilities.gather(1, targets[:, None]).squeeze(1)
        if targets.is_floating_point() and targets.shape == outputs.shape:
            return (probabilities * targets).sum(1)
    got = f"outputs as {checks.describe(outputs)} and targets as {checks.describe(targets)}"
    remedy = "Give the task confidence=function(outputs, targets), one number in [0, 1] per sample."
    raise InputError(
        message("outputs [N, classes] and one class per sample, for a method with confidences", got, remedy)
    )


def split_losses(found: Any) -> tuple[Tensor, Tensor | None]:
    """Return the losses, and the scores if the task's ``loss`` returned both.

    Raises:
        InputError: If it is neither a tensor nor a pair of them.

    >>> import torch
    >>> split_losses((torch.ones(2), torch.zeros(2)))
    (tensor([1., 1.]), tensor([0., 0.]))
    """
    if isinstance(found, Tensor):
        return found, None
    if isinstance(found, tuple) and len(found) == 2 and all(isinstance(each, Tensor) for each in found):
        return found[0], found[1].detach()
    remedy = "Return losses of shape [batch], or what an adapter of infobatch.adapters returns."
    raise InputError(message("a tensor, or (loss, score), from the task's loss", type(found).__name__, remedy))


def known_losses(losses: Tensor, score: Tensor | None) -> Tensor:
    """Leave out samples of which nothing is known: their score is NaN beside a finite loss."""
    return losses if score is None else losses[~(score.isnan() & losses.isfinite())]


@dataclass(frozen=True, eq=False)
class Task:
    """What to learn. ``train`` and ``test`` are ``Arrays``, or data sets of (input, target) that a loader reads.

    Targets are classes, or any tensor [N, ...], or a dict or list of tensors; below, labels are targets that are
    classes.

    Raises:
        InputError: If a set is empty, is a pair (inputs, labels) or has labels outside of ``classes``, if the metric
            does not say which direction is better or how much may be lost, or if ``loss``, ``augment`` or
            ``make_model`` cannot be called as described.
    """

    name: str
    train: Arrays | Dataset[Any]
    test: Arrays | Dataset[Any]
    classes: tuple[str, ...]
    """Names of the classes of samples or, if targets are masks, of pixels; empty if targets are not classes."""
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
    """(outputs, targets, label_smoothing) -> one loss per sample, or (loss, score) as from ``infobatch.adapters``."""
    score: Score = right
    """(outputs, targets) -> one number in [0, 1] per sample, for a metric that is a title."""
    metric: str | Metric = "accuracy, %"
    """What is measured on the test set: an object with update, compute and reset, as in torchmetrics; or the title of
    100 times the mean of ``score``, of which more is better."""
    texts: Callable[[int], str] | None = None
    """Returns the text of a training sample, for samples that are not images."""
    make_model: Callable[[], torch.nn.Module] | None = None
    """Builds the task's own net, used unless another model is named."""
    source: str = ""
    """Where the data come from, for the record: names and hashes of files. If empty, data in memory are hashed."""
    features: Features | None = None
    """(seed, device) -> features [N, d] of the training samples, for static methods that need no more than these, such
    as static.dq; by default those of a proxy, which needs classes."""
    augment: Augment | None = None
    """(inputs, targets, generator) -> both, for training batches on the device, after crops, flips and ``mean``; all
    its random numbers come from the generator."""
    confidence: Confidence | None = None
    """(outputs, targets) -> the confidence per sample, for methods that need it; by default that in the class."""
    margin: float | None = None
    """How much of the metric may be lost without harm, in its unit. By default what the metric says, or 0.3 points of a
    percentage."""
    test_batch: int = 0
    """The most test samples in a batch, for large outputs; 1 if inputs differ in size. By default hundreds."""

    def __post_init__(self) -> None:
        for name, part in (("training", self.train), ("test", self.test)):
            where = f"the {name} set of {self.name}"
            check_set(part, where)
            if hasattr(part, "__len__") and not len(part):
                raise InputError(message(f"samples in {where}", "none", "Each set needs at least one."))
            if self.classes and isinstance(part, Arrays):
                check_labels(part.labels, len(self.classes), where)
            self._check_masks(part, where)
        checks.check_dataset(self.train)
        if self.test_batch:
            checks.check_count("test_batch", self.test_batch, 1, "Leave it out for the lab's own size.")
        check_call(self.loss, "loss", ("outputs", "labels", "label_smoothing"), LOSS)
        for name, arguments in (
            ("augment", ("inputs", "targets", "generator")),
            ("confidence", ("outputs", "targets")),
            ("features", ("seed", "device")),
        ):
            if getattr(self, name) is not None:
                check_call(getattr(self, name), name, arguments, "Give its other arguments defaults.")
        if isinstance(self.make_model, torch.nn.Module):
            remedy = (
                "Build it in the function, as in make_model=lambda: nn.Linear(4, 3): each run starts from new weights."
            )
            raise InputError(message("a function that builds the net", type(self.make_model).__name__, remedy))
        _ = self.metric_info

    def _check_masks(self, part: Any, where: str) -> None:
        is_mask = isinstance(part, Arrays) and isinstance(part.labels, Tensor) and part.labels.dim() > 2
        if is_mask and (self.pad or self.flip):
            remedy = "Crop and flip both in augment; it may change targets."
            raise InputError(message("pad=0 and flip=False with masks", f"{where}, whose masks would not move", remedy))

    @cached_property
    def metric_info(self) -> MetricInfo:
        """The metric's name, unit, direction and margin, as records hold them."""
        if not isinstance(self.metric, str):
            check_metric(self.metric)
            return info_of(self.metric, self.margin)
        if self.margin is not None and not is_margin(self.margin):
            raise InputError(message("a margin above 0, in points", repr(self.margin), "0.3 is common."))
        return replace(MetricInfo.of_text(self.metric), margin=MARGIN if self.margin is None else self.margin)

    def make_metric(self) -> Metric:
        """Return a metric of its own for one run."""
        if not isinstance(self.metric, str):
            return copy.deepcopy(self.metric)
        return MeanScore(self.score, self.metric_info.name, self.metric_info.unit, self.metric_info.margin)

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


LOSS = (
    'Use infobatch.lab.tasks.task.cross_entropy, or wrap a criterion with reduction="none": '
    "loss=lambda outputs, labels, _: criterion(outputs, labels)."
)


def check_call(function: Any, what: str, arguments: tuple[str, ...], remedy: str) -> None:
    """Refuse a function that cannot be called with these arguments, such as a criterion of torch as the loss.

    Raises:
        InputError: If it takes other arguments.
    """
    try:
        called = function.forward if isinstance(function, torch.nn.Module) else function
        inspect.signature(called).bind(*arguments)
    except ValueError:  # a built-in function without a signature
        return
    except TypeError:
        is_module = isinstance(function, torch.nn.Module)
        name = type(function).__name__ if is_module else getattr(function, "__name__", repr(function))
        raise InputError(message(f"{what} as a function ({', '.join(arguments)})", name, remedy)) from None


def check_labels(labels: Any, classes: int, where: str) -> None:
    """Refuse labels that are not classes: on a GPU they would crash without a message.

    Masks and nested targets are left to loss and metric: pixels that do not count may have any label.

    Raises:
        InputError: If the labels are not int64 [N] in [0, classes).
    """
    if isinstance(labels, (dict, list)) or (isinstance(labels, Tensor) and labels.dim() > 1 and labels[0].numel() > 1):
        return
    expected = f"labels from 0 to {classes - 1} in {where}, as int64 [N]"
    remedy = "They are positions in the task's classes; leave classes empty if labels are not classes."
    if not isinstance(labels, Tensor) or labels.dtype != torch.int64 or labels.dim() != 1:
        got = f"{labels.dtype} {list(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
        raise InputError(message(expected, got, remedy))
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise InputError(message(expected, f"{low} to {high}", remedy))


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
        for tensor in tensors_of([part.inputs, part.labels]):
            step = -(-tensor.nbytes // HASHED) or 1
            total.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
            total.update(tensor[::step].detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data)
        hashes.append(f"{name} sha256:{total.hexdigest()[:12]}")
    return ", ".join(hashes)
