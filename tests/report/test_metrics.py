"""Pages about other metrics than the accuracy: their names, units and decimals, and which direction is better."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from facts import run
from reading import Reader, drawing, section, table

from infobatch import report
from infobatch.lab.metrics import MetricInfo
from infobatch.lab.runs.records import Run
from infobatch.lab.train.settings import Settings
from infobatch.report.figures import figure, frontier
from infobatch.report.series import Study

LOWER = MetricInfo("perplexity", "", higher_is_better=False, margin=0.05)


def measured(one: Run, info: MetricInfo, scale: float = 1.0) -> Run:
    def turned(value: Any) -> Any:
        if isinstance(value, list):
            return [turned(each) for each in value]
        return value if value is None else scale * (100 - value)

    def fact(of: dict[str, Any]) -> dict[str, Any]:
        return {**of, **{name: turned(of[name]) for name in ("metric", "class_metric") if name in of}}

    start = {**one.start, "metric": info.text, "metric_info": info.plain()}
    return replace(one, start=start, epochs=[fact(each) for each in one.epochs], end=fact(one.end or {}))


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    given: dict[str, Any] = {"epochs": 6, "size": 150}
    found = [run(method, seed, **given) for method in ("full", "infobatch") for seed in range(3)]
    found += [run("random", seed, harm=200.0, **given) for seed in range(3)]  # falls apart
    return [measured(one, LOWER) for one in found]


@pytest.fixture(scope="module")
def page(runs: list[Run]) -> str:
    return report.html(runs)


def test_the_page_names_the_metric_and_its_direction(page: str) -> None:
    text = Reader(page).text
    assert "Perplexity against cost" in text
    assert "For perplexity, lower is better." in Reader(section(page, "verdict")).text
    assert "ccuracy" not in text
    assert "points" not in text.replace("the same point", "")
    assert "Down and to the left is better." in text
    assert "reaches a higher mean" not in text


def test_numbers_have_the_decimals_of_the_margin(page: str, runs: list[Run]) -> None:
    mean = sum(one.end["metric"] for one in runs[:3] if one.end) / 3
    assert f"{mean:.3f} ± " in Reader(section(page, "verdict")).text
    rows = {row["method"]: row for row in table(page, "difference")}
    assert float(rows["random"]["difference"] if "difference" in rows["random"] else rows["random"]["mean"]) > 10


def test_what_went_wrong_is_outside_on_the_other_side(page: str) -> None:
    assert "\N{RIGHTWARDS ARROW} +" in page
    assert "\N{LEFTWARDS ARROW}" not in page
    assert "Above the figure: random." in page


def test_the_margin_is_shaded_below_its_edge(page: str) -> None:
    """The shaded area reaches from the left edge of the axes to the margin, right of zero."""

    def across(style: str) -> list[float]:
        """The places on the x axis of the one path with this in its style."""
        (path,) = (each for each in drawing(page, "difference").iter("path") if style in (each.get("style") or ""))
        words = (path.get("d") or "").replace("M", " ").replace("L", " ").replace("z", " ").split()
        return sorted({float(word) for word in words[::2]})

    left, edge = across("opacity: 0.25")
    assert across("stroke-dasharray: 3,3") == [edge]
    (zero,) = across("stroke: var(--muted); stroke-linecap: round")
    assert left < zero < edge


def test_a_frontier_of_costs_runs_down_where_lower_is_better() -> None:
    def of(label: str, cost: float, mean: float) -> frontier.Point:
        return frontier.Point(label, cost, mean, 0.0, 3, higher_is_better=False)

    points = [of("full", 100, 3.0), of("fine", 60, 3.2), of("bad", 70, 3.5), of("good", 90, 3.0)]
    assert [one.label for one in frontier.best(points)] == ["fine", "good"]
    raised = [replace(one, higher_is_better=True) for one in points]
    assert [one.label for one in frontier.best(raised)] == ["fine", "bad"]


def test_no_value_has_bounds_unless_it_is_a_percentage(runs: list[Run]) -> None:
    study = Study.of(runs)
    assert figure.bounds(study) == (float("-inf"), float("inf"))
    assert figure.difference_text(study) == "perplexity"
    assert figure.metric_form(study) == "{:.3f}"
    share = [measured(one, MetricInfo("mean IoU", "%"), 0.5) for one in runs]
    study = Study.of(share)
    assert figure.bounds(study) == (0.0, 100.0)
    assert figure.difference_text(study) == "points"
    assert figure.metric_title(study) == "Mean IoU"
    assert figure.metric_title(Study.of([measured(one, MetricInfo("mAP", "%"), 0.5) for one in runs])) == "mAP"


@pytest.mark.usefixtures("undrawn")
def test_rates_and_hostile_names_are_shown() -> None:
    def ended(method: str, lr: float, metric: float, info: MetricInfo) -> list[Run]:
        start = {"metric": info.text, "metric_info": info.plain()}
        return [
            Run(
                f"{method}-{seed}-{lr}",
                {**start, "settings": Settings(method=method, seed=seed, lr=lr).plain()},
                end={"metric": metric + seed / 10, "saved": 0.3, "steps": 100, "seconds": {"total": 1.0}},
            )
            for seed in range(3)
        ]

    attack = replace(LOWER, name="<script>$x_{$", unit="</svg><b>")
    for info in (LOWER, attack):
        tried = {("full", 0.1): 3.0, ("full", 0.2): 2.0, ("random", 0.1): 2.5, ("random", 0.2): 90.0}
        page = report.html([one for (method, lr), value in tried.items() for one in ended(method, lr, value, info)])
        rows = Reader(section(page, "verdict")).text
        assert [rate in rows for rate in ("full 0.2 3 2.10", "random 0.1 3 2.60")] == [True, True]
        assert "Above the figure: random at 0.2." in page
        assert "<script>$" not in page
        assert "</svg><b>" not in page
