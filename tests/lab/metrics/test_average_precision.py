"""The mean average precision is that of its definition, written with loops."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch

from infobatch.errors import InputError
from infobatch.lab.metrics import MeanAveragePrecision

Image = dict[str, torch.Tensor]


def area(box: list[float]) -> float:
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def iou(a: list[float], b: list[float]) -> float:
    both = area([max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])])
    return both / (area(a) + area(b) - both)


def literally(detected: list[Image], wanted: list[Image], label: int, threshold: float) -> float | None:
    """For each recall of 101, the best precision at that recall or beyond; None without boxes of the class."""
    rows: list[tuple[float, bool]] = []
    count = 0
    for found, truth in zip(detected, wanted, strict=True):
        boxes = [b for b, c in zip(truth["boxes"].tolist(), truth["labels"].tolist(), strict=True) if c == label]
        count += len(boxes)
        mine = zip(found["scores"].tolist(), found["boxes"].tolist(), found["labels"].tolist(), strict=True)
        ours = sorted(((score, box) for score, box, c in mine if c == label), key=lambda one: -one[0])[:100]
        taken: set[int] = set()
        for score, box in ours:
            free = [(iou(box, other), at) for at, other in enumerate(boxes) if at not in taken]
            best = max(free, default=(0.0, -1), key=lambda one: one[0])
            if best[0] >= threshold:
                taken.add(best[1])
            rows.append((score, best[0] >= threshold))
    if not count:
        return None
    rows.sort(key=lambda one: -one[0])
    points = []
    for end in range(1, len(rows) + 1):
        hits = sum(hit for _, hit in rows[:end])
        points.append((Fraction(hits, count), Fraction(hits, end)))
    best_at = [max((p for r, p in points if r >= Fraction(at, 100)), default=Fraction(0)) for at in range(101)]
    return float(sum(best_at) / 101)


def drawn(seed: int, images: int = 6) -> tuple[list[Image], list[Image]]:
    draw = torch.Generator().manual_seed(seed)
    detected, wanted = [], []
    for _ in range(images):
        many = int(torch.randint(0, 5, (), generator=draw))
        corner = 20 * torch.rand(many, 2, generator=draw)
        boxes = torch.cat([corner, corner + 5 + 10 * torch.rand(many, 2, generator=draw)], 1)
        labels = torch.randint(0, 3, (many,), generator=draw)
        wanted.append({"boxes": boxes, "labels": labels})
        near = boxes.repeat(2, 1) + 1.5 * torch.randn(2 * many, 4, generator=draw)  # two for each, one of them wrong
        near[:, 2:] = torch.maximum(near[:, 2:], near[:, :2] + 1)
        guess = labels.repeat(2)
        wrong = torch.rand(2 * many, generator=draw) < 0.2
        guess[wrong] = torch.randint(0, 4, (int(wrong.sum()),), generator=draw)
        detected.append({"boxes": near, "labels": guess, "scores": torch.rand(2 * many, generator=draw)})
    return detected, wanted


@pytest.mark.parametrize("seed", range(5))
def test_it_is_that_of_a_loop(seed: int) -> None:
    detected, wanted = drawn(seed)
    metric = MeanAveragePrecision()
    metric.update(detected[:2], wanted[:2])
    metric.reset()
    metric.update(detected[:1], wanted[:1])
    metric.update(detected[1:], wanted[1:])
    thresholds = [0.5 + 0.05 * step for step in range(10)]
    by_class = [[literally(detected, wanted, label, one) for one in thresholds] for label in range(4)]
    known = [sum(filter(None, row)) / 10 for row in by_class if row[0] is not None]
    assert metric.compute() == pytest.approx(100 * sum(known) / len(known))
    assert by_class[3][0] is None  # detections of a class without boxes do not count
    assert metric.by_class(4) == pytest.approx([*(100 * value for value in known), None], abs=1e-4)


def padded(images: list[Image]) -> dict[str, torch.Tensor]:
    most = max(len(each["labels"]) for each in images) + 1
    found: dict[str, Any] = {}
    for name in images[0]:
        fill = -1 if name == "labels" else 0
        rows = [each[name] for each in images]
        found[name] = torch.stack(
            [torch.cat([row, torch.full((most - len(row), *row.shape[1:]), fill, dtype=row.dtype)]) for row in rows]
        )
    return found


def test_padded_tensors_serve_as_well() -> None:
    detected, wanted = drawn(7)
    one, other = MeanAveragePrecision(), MeanAveragePrecision()
    one.update(detected, wanted)
    other.update(padded(detected), padded(wanted))
    assert other.compute() == one.compute() > 0


def test_of_many_detections_the_surest_hundred_count() -> None:
    box = torch.tensor([[0.0, 0.0, 4.0, 4.0]])
    wanted = [{"boxes": box, "labels": torch.zeros(1).long()}]
    many = torch.cat([box + 50 + torch.arange(100)[:, None], box])
    detected = {"boxes": many, "labels": torch.zeros(101).long(), "scores": torch.linspace(1, 0, 101)}
    metric = MeanAveragePrecision()
    metric.update([detected], wanted)
    assert metric.compute() == 0.0


def test_what_does_not_fit_is_refused() -> None:
    detected, wanted = drawn(0)
    metric = MeanAveragePrecision()
    with pytest.raises(InputError, match="detections in 6 images; got in 5"):
        metric.update(detected[:5], wanted)
    with pytest.raises(InputError, match="boxes, labels, scores; got no scores"):
        metric.update(wanted, wanted)
    with pytest.raises(InputError, match="got no labels"):
        metric.update({"boxes": torch.zeros(1, 2, 4), "scores": torch.zeros(1, 2)}, wanted[:1])
    metric.update([{**each, "scores": torch.zeros(0)} for each in _empty()], _empty())
    with pytest.raises(InputError, match="boxes to find"):
        metric.compute()


def _empty() -> list[Image]:
    return [{"boxes": torch.zeros(0, 4), "labels": torch.zeros(0).long()}]
