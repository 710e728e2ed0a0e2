"""The mean average precision of boxes, as COCO defines it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...errors import InputError, message
from .metric import NothingMeasuredError
from .metric_info import MARGIN, PERCENT

THRESHOLDS = tuple(0.5 + 0.05 * step for step in range(10))
"""The overlaps from which a box counts as found."""
RECALLS = 101
MOST = 100
"""Detections per image and class; the surest ones count."""

Boxes = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class _Found:
    """Detections of one class in one image, the surest first: what each is worth at every threshold."""

    scores: Tensor
    hits: Tensor
    """[thresholds, detections]."""


class MeanAveragePrecision:
    """The precision averaged over recalls, overlaps from 0.5 to 0.95 and classes, in percent.

    Detections and targets are one dict per image, or one dict of padded tensors per batch: ``boxes`` [N, n, 4] as
    (left, top, right, bottom), ``labels`` [N, n], and for detections ``scores`` [N, n]. Rows with a negative label are
    padding. There are no crowds, and areas are not told apart. Recalls are compared exactly; pycocotools rounds them,
    so that its values may differ by a few hundredths of a point.

    Args:
        thresholds: The overlaps from which a box counts as found.
        margin: How many points may be lost.

    >>> from infobatch.lab.metrics import MeanAveragePrecision
    >>> box = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    >>> metric = MeanAveragePrecision(thresholds=(0.5,))
    >>> found = {"boxes": box + 1, "labels": torch.tensor([0]), "scores": torch.tensor([0.9])}
    >>> metric.update([found], [{"boxes": box, "labels": torch.tensor([0])}])
    >>> round(metric.compute(), 6)
    100.0
    """

    name, unit, higher_is_better = "mAP", PERCENT, True

    def __init__(self, thresholds: Sequence[float] = THRESHOLDS, margin: float = MARGIN) -> None:
        self.thresholds, self.margin = torch.tensor(thresholds, dtype=torch.float64), margin
        self.reset()

    def reset(self) -> None:
        """See Metric."""
        self._found: dict[int, list[_Found]] = defaultdict(list)
        self._targets: dict[int, int] = defaultdict(int)

    def update(self, outputs: Any, targets: Any) -> None:
        """See Metric.

        Raises:
            InputError: If there is not one set of boxes per image on both sides.
        """
        theirs, ours = _images(outputs, "scores"), _images(targets)
        if len(theirs) != len(ours):
            remedy = "Return one dict per image, or padded tensors; rows with a negative label are padding."
            raise InputError(message(f"detections in {len(ours)} images", f"in {len(theirs)}", remedy))
        for detected, wanted in zip(theirs, ours, strict=True):
            for label in {*detected["labels"].tolist(), *wanted["labels"].tolist()}:
                boxes = wanted["boxes"][wanted["labels"] == label]
                of_class = detected["labels"] == label
                scores, order = detected["scores"][of_class].sort(descending=True, stable=True)
                overlaps = overlap(detected["boxes"][of_class][order[:MOST]], boxes)
                self._targets[label] += len(boxes)
                self._found[label].append(_Found(scores[:MOST], match(overlaps, self.thresholds)))

    def compute(self) -> float:
        """See Metric.

        Raises:
            InputError: If there was no box to find.
        """
        found = [value for label in self._targets if (value := self._of(label)) is not None]
        if not found:
            raise NothingMeasuredError(
                message("boxes to find in the test set", "none", "Add images with objects to it.")
            )
        return 100 * sum(found) / len(found)

    def by_class(self, classes: int) -> list[float | None] | None:
        """Return the average precision per class, in percent; None for a class without boxes."""
        known = [self._of(label) for label in range(classes)]
        return [None if value is None else round(100 * value, 4) for value in known]

    def _of(self, label: int) -> float | None:
        count = self._targets.get(label, 0)
        if not count:
            return None
        images = self._found[label]
        scores = torch.cat([each.scores for each in images])
        order = scores.argsort(descending=True, stable=True)
        hits = torch.cat([each.hits for each in images], dim=1)[:, order]
        return sum(average_precision(row, count) for row in hits) / len(self.thresholds)


def overlap(boxes: Tensor, others: Tensor) -> Tensor:
    """Return the intersection over union of each pair of boxes, [n, m].

    >>> overlap(torch.tensor([[0.0, 0.0, 2.0, 2.0]]), torch.tensor([[1.0, 0.0, 3.0, 2.0]])).tolist()
    [[0.3333333432674408]]
    """
    start = torch.maximum(boxes[:, None, :2], others[:, :2])
    both = (torch.minimum(boxes[:, None, 2:], others[:, 2:]) - start).clamp(min=0).prod(-1)
    areas = [(each[:, 2:] - each[:, :2]).prod(-1) for each in (boxes, others)]
    return both / (areas[0][:, None] + areas[1] - both).clamp(min=1e-12)


def match(overlaps: Tensor, thresholds: Tensor) -> Tensor:
    """Give each detection, the surest first, the free box that it overlaps most, if by at least the threshold.

    Args:
        overlaps: [detections, boxes].
        thresholds: Several overlaps.

    Returns:
        Whether each detection has found a box, [thresholds, detections].
    """
    hits = torch.zeros(len(thresholds), len(overlaps), dtype=torch.bool)
    if not overlaps.numel():
        return hits
    for row, threshold in enumerate(thresholds.tolist()):
        free = overlaps.double().clone()
        for detection in range(len(free)):
            best, box = free[detection].max(0)
            if float(best) >= threshold:
                hits[row, detection] = True
                free[:, box] = -1.0
    return hits


def average_precision(hits: Tensor, count: int) -> float:
    """Return the precision averaged over 101 recalls, each at the best precision of that recall or a higher one.

    Args:
        hits: Whether each detection found a box, over all images, the surest first.
        count: How many boxes there are to find.
    """
    found = hits.double().cumsum(0)
    precision = found / torch.arange(1, len(hits) + 1, dtype=torch.float64)
    best = precision.flip(0).cummax(0).values.flip(0) if len(hits) else precision
    # the recalls that each number of found boxes reaches; exact, as k / count >= i / 100 is 100 k >= i count
    at = torch.searchsorted(100 * found, torch.arange(RECALLS, dtype=torch.float64) * count)
    return float(torch.cat([best, best.new_zeros(1)])[at].mean())


def _images(batch: Any, *more: str) -> list[dict[str, Tensor]]:
    """Return one dict per image, without padding, on the CPU."""
    names = ("boxes", "labels", *more)
    images: Any = batch
    if isinstance(batch, Mapping):
        _check_names(batch, names)
        images = [dict(zip(names, row, strict=True)) for row in zip(*(batch[name] for name in names), strict=True)]
    found = []
    for image in images:
        _check_names(image, names)
        known = image["labels"] >= 0
        found.append({name: image[name][known].detach().cpu() for name in names})
    return found


def _check_names(image: Any, names: tuple[str, ...]) -> None:
    missing = [name for name in names if not isinstance(image, Mapping) or not isinstance(image.get(name), Tensor)]
    if missing:
        remedy = "Return these names with one row per box; see MeanAveragePrecision."
        raise InputError(message(f"boxes as a dict of {', '.join(names)}", f"no {missing[0]}", remedy))
