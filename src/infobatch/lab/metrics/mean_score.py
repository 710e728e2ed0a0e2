"""Metrics that are the mean of one number per sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ... import checks
from ...errors import InputError, message
from .metric import NothingMeasuredError
from .metric_info import MARGIN, PERCENT

Score = Callable[[Any, Any], Tensor]

ROUNDING = 1e-2
"""How far a score may lie outside its range because of low precision; one in percent lies further outside."""


def right(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return 1 per sample if the largest output is that of its label, else 0."""
    return (outputs.argmax(1) == labels).float()


class MeanScore:
    """100 times the mean of one number in [0, 1] per sample; higher is better.

    Args:
        score: (outputs, targets) -> one number in [0, 1] per sample.
        name: What to call it.
        unit: Its unit.
        margin: How many points may be lost.

    >>> from infobatch.lab.metrics import MeanScore
    >>> close = MeanScore(lambda outputs, targets: ((outputs - targets).abs() < 0.5).float(), "close")
    >>> close.update(torch.tensor([1.0, 2.0]), torch.tensor([1.2, 3.0]))
    >>> close.compute()
    50.0
    """

    higher_is_better = True

    def __init__(self, score: Score, name: str = "accuracy", unit: str = PERCENT, margin: float = MARGIN) -> None:
        self.score, self.name, self.unit, self.margin = score, name, unit, margin
        self.reset()

    def reset(self) -> None:
        """See Metric."""
        self._scores: list[Tensor] = []
        self._labels: list[Tensor] = []

    def update(self, outputs: Any, targets: Any) -> None:
        """See Metric.

        Raises:
            InputError: If the score is not one number per sample.
        """
        scores = self.score(outputs, targets)
        self._scores.append(check_scores(scores, _count(targets, scores)))
        if isinstance(targets, Tensor) and targets.dim() == 1 and not targets.is_floating_point():
            self._labels.append(targets)

    def compute(self) -> float:
        """See Metric.

        Raises:
            InputError: If a score lies outside of [0, 1], or there is none.
        """
        if not self._scores:
            raise NothingMeasuredError(message(f"samples to measure the {self.name} of", "none", "Call update first."))
        return 100 * float(check_range(self._all()).double().mean())

    def by_class(self, classes: int) -> list[float | None] | None:
        """Return 100 times the mean per class: None for one without samples, or if the targets are not classes."""
        if not self._labels or len(self._labels) != len(self._scores):
            return None
        scores, labels = self._all().double(), torch.cat(self._labels)
        counts = torch.bincount(labels, minlength=classes)
        totals = torch.zeros_like(counts, dtype=torch.float64).index_add_(0, labels, scores)
        pairs = zip(totals.tolist(), counts.tolist(), strict=True)
        return [round(100 * total / count, 4) if count else None for total, count in pairs]

    def _all(self) -> Tensor:
        scores = torch.cat(self._scores)
        return scores.to(self._labels[0].device) if self._labels else scores


class Accuracy(MeanScore):
    """The share of samples whose largest output is that of their class, in percent.

    >>> from infobatch.lab.metrics import Accuracy
    >>> accuracy = Accuracy()
    >>> accuracy.update(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
    >>> accuracy.compute(), accuracy.by_class(2)
    (50.0, [None, 50.0])
    """

    def __init__(self, margin: float = MARGIN) -> None:
        super().__init__(right, "accuracy", PERCENT, margin)


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


def _count(targets: Any, scores: Any) -> int:
    """Return the number of samples in a batch; where the targets do not say it, the scores must."""
    while isinstance(targets, (dict, list, tuple)) and targets:
        targets = next(iter(targets.values())) if isinstance(targets, dict) else targets[0]
    if isinstance(targets, Tensor) and targets.dim():
        return len(targets)
    return len(scores) if isinstance(scores, Tensor) and scores.dim() == 1 else 1
