"""What a comparison must know of a metric is said, or asked for; metrics of torchmetrics work as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from infobatch.errors import InputError
from infobatch.lab.metrics import Accuracy, MeanIoU, MeanScore, MetricInfo, Named, Perplexity
from infobatch.lab.metrics.metric import by_class, check_metric, info_of, value_of

LOWER = MetricInfo("p", "nats", higher_is_better=False, margin=0.01)


class Plain:
    """A metric with nothing but its value."""

    def __init__(self, value: Any = 1.0) -> None:
        self.value = value

    def update(self, outputs: Any, targets: Any) -> None:
        self.seen = outputs, targets

    def compute(self) -> Any:
        return self.value

    def reset(self) -> None:
        pass


def test_the_labs_own_say_all() -> None:
    assert info_of(Accuracy()) == MetricInfo("accuracy", "%", True, 0.3)
    assert info_of(MeanIoU(3)) == MetricInfo("mean IoU", "%", True, 0.3)
    assert info_of(Perplexity(0.1)) == MetricInfo("perplexity", "", False, 0.1)
    assert info_of(Perplexity(0.1), margin=0.2).margin == 0.2


def test_what_is_not_said_is_asked_for() -> None:
    with pytest.raises(InputError, match=r"whether a higher Plain is better.*Named\(Plain"):
        info_of(Plain(), margin=0.1)
    with pytest.raises(InputError, match="margin above 0 for the metric error"):
        info_of(Named(Plain(), "error", higher_is_better=False))
    for wrong in (0.0, -1.0, float("nan"), float("inf"), True):
        with pytest.raises(InputError, match="margin above 0"):
            info_of(Accuracy(), margin=wrong)
    assert info_of(Named(Plain(), "hits", unit="%", higher_is_better=True)).margin == 0.3


@pytest.mark.parametrize(
    ("metric", "complaint"),
    [
        (Accuracy, r"the class Accuracy.*Accuracy\(...\)"),
        (object(), "object without update, compute, reset"),
        (lambda outputs, targets: 1.0, "MeanScore"),
    ],
)
def test_what_is_no_metric_is_refused(metric: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        check_metric(metric)


@pytest.mark.parametrize("value", [2, 2.0, torch.tensor(2), torch.tensor([2.0]), torch.tensor(2.0).numpy()])
def test_one_number_is_a_value(value: Any) -> None:
    assert value_of(Plain(value)) == 2.0


@pytest.mark.parametrize("value", [None, {"map": 1.0}, torch.zeros(3), [1.0], torch.tensor(1j), "best"])
def test_anything_else_is_not(value: Any) -> None:
    with pytest.raises(InputError, match=r"one number from Plain.compute\(\)"):
        value_of(Plain(value))


def test_a_named_metric_scales_and_prepares() -> None:
    def prepare(outputs: dict[str, Tensor], targets: Tensor) -> tuple[Tensor, Tensor]:
        return outputs["logits"], targets

    metric = Named(Accuracy(), "errors", higher_is_better=False, margin=0.01, scale=0.01, prepare=prepare)
    metric.update({"logits": torch.eye(3)}, torch.tensor([0, 1, 1]))
    assert metric.compute() == pytest.approx(2 / 3)
    assert by_class(metric, 3) == pytest.approx([1.0, 0.5, None])
    assert by_class(metric, 0) is by_class(Plain(), 3) is None
    metric.reset()
    metric.update({"logits": torch.eye(3)}, torch.arange(3))
    assert metric.compute() == 1.0


def test_metrics_of_torchmetrics_need_a_margin_alone() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    logits = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(30) % 4
    theirs = torchmetrics.classification.MulticlassAccuracy(4, average="micro")
    check_metric(theirs)
    info = info_of(theirs, margin=0.003)
    assert (info.text, info.higher_is_better, info.places) == ("MulticlassAccuracy", True, 4)
    ours = Accuracy()
    for metric in (ours, theirs):
        metric.update(logits[:20], labels[:20])
        metric.update(logits[20:], labels[20:])
    assert value_of(ours) == pytest.approx(100 * value_of(theirs))
    assert not info_of(torchmetrics.MeanSquaredError(), margin=0.1).higher_is_better
    each = torchmetrics.classification.MulticlassAccuracy(4, average="none")
    each.update(logits, labels)
    with pytest.raises(InputError, match=r"shape \[4\]"):
        value_of(each)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ({}, MetricInfo()),
        ({"metric": "close, %"}, MetricInfo("close", "%")),
        ({"metric": "mean IoU"}, MetricInfo("mean IoU", "")),
        ({"metric": "a", "metric_info": "b"}, MetricInfo("a", "")),
        ({"metric_info": {"name": 3, "unit": None, "margin": "x"}}, MetricInfo()),
        ({"metric_info": {"margin": -1.0, "higher_is_better": None}}, MetricInfo()),
        ({"metric": "p", "metric_info": LOWER.plain()}, LOWER),
    ],
)
def test_any_record_says_what_its_metric_is(start: dict[str, Any], expected: MetricInfo) -> None:
    assert MetricInfo.of_record(start) == expected


@pytest.mark.parametrize(
    ("margin", "shown"),
    [(30.0, "1.23"), (0.3, "1.23"), (0.05, "1.235"), (0.003, "1.2346"), (1e-9, "1.234568")],
)
def test_decimals_follow_the_margin(margin: float, shown: str) -> None:
    info = MetricInfo("x", "", margin=margin)
    assert info.value(1.23456789) == shown
    assert info.signed(-0.0) == info.value(0.0)
    assert info.amount(1.23456789) == shown
    assert MetricInfo("x", "%", margin=margin).amount(1.23456789) == f"{shown} points"


def test_a_title_alone_is_a_mean_of_scores() -> None:
    metric = MeanScore(lambda outputs, targets: (outputs == targets).float(), "same", "%")
    assert info_of(metric).text == "same, %"
