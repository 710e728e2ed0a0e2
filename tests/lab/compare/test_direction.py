"""Where lower is better, everything is as in the mirror: verdicts, best rates, the better of two shorter runs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_comparison import many

from infobatch.errors import InputError
from infobatch.lab.compare.answer import answers_of
from infobatch.lab.compare.comparison import Comparison, compare
from infobatch.lab.compare.tuning import AtBest, at_best
from infobatch.lab.compare.verdicts import Difference
from infobatch.lab.metrics import MetricInfo
from infobatch.lab.runs.records import Run

HIGHER, LOWER = MetricInfo("hits", "%"), MetricInfo("misses", "%", higher_is_better=False)
SUM = 200.0


def measured(runs: list[Run], info: MetricInfo) -> list[Run]:
    return [replace(run, start={**run.start, "metric": info.text, "metric_info": info.plain()}) for run in runs]


def mirrored(runs: list[Run]) -> list[Run]:
    """The same runs, of which what is missing to ``SUM`` was measured."""
    turned = []
    for run in measured(runs, LOWER):
        metric = None if run.end is None else run.end["metric"]
        turned.append(run if metric is None else replace(run, end={**(run.end or {}), "metric": SUM - metric}))
    return turned


def turned_back(found: Difference | None) -> tuple[float, ...] | None:
    if found is None:
        return None
    ends = () if found.low is None or found.high is None else (-found.high, -found.low)
    return (-found.mean, found.std or 0.0, *ends)


def flat(found: Difference | None) -> tuple[float, ...] | None:
    if found is None:
        return None
    return (found.mean, found.std or 0.0, *(end for end in (found.low, found.high) if end is not None))


def are_mirrored(ours: Any, theirs: Any) -> None:
    assert ours.label == theirs.label
    assert ours.verdict.kind == theirs.verdict.kind
    assert ours.verdict.more == theirs.verdict.more
    assert ours.verdict.text == theirs.verdict.text
    for one, other in ((ours.difference, theirs.difference), (ours.same_cost, theirs.same_cost)):
        assert flat(one) == (None if other is None else pytest.approx(turned_back(other)))


def both(runs: list[Run], **rules: Any) -> tuple[Comparison, Comparison, AtBest | None, AtBest | None]:
    one, other = measured(runs, HIGHER), mirrored(runs)
    found, turned = compare(one, **rules), compare(other, **rules)
    return found, turned, at_best(one, found), at_best(other, turned)


values = st.lists(st.integers(8800, 9200).map(lambda n: n / 100), min_size=3, max_size=5)


@given(full=values, ours=values, shorter=values)
def test_verdicts_are_mirrored(full: list[float], ours: list[float], shorter: list[float]) -> None:
    runs = many("full", full) + many("infobatch", ours, took=70, saved=0.3) + many("full", shorter, steps=70, took=70)
    found, turned, *_ = both(runs)
    for one, other in zip(found.rows, turned.rows, strict=True):
        are_mirrored(one, other)


def test_each_kind_of_verdict_has_its_mirror() -> None:
    full = [90.0, 91.0, 90.5, 90.2]
    moves = {"infobatch": 1.0, "tiers": -1.0, "ucb": 0.001, "seta": math.nan}
    runs = many("full", full)
    for method, move in moves.items():
        runs += many(method, [value + move + at * 0.01 for at, value in enumerate(full)])
    runs += many("rcap", [90.0, 95.0, 86.0, 91.0])
    found, turned, *_ = both(runs)
    kinds = {row.label: row.verdict.kind for row in turned.rows}
    expected = ["better", "worse", "lossless", "failed"]
    assert [kinds[method] for method in moves] == expected
    assert kinds["rcap"] == "undecided"
    for one, other in zip(found.rows, turned.rows, strict=True):
        are_mirrored(one, other)


def test_the_best_rate_is_that_of_the_lowest_mean() -> None:
    tried = {0.1: [90.0, 91.0, 90.2], 0.2: [92.0, 91.4, 92.3], 0.4: [89.0, 89.1, math.nan]}
    runs = [run for lr, metrics in tried.items() for run in many("full", metrics, lr=lr)]
    runs += [run for lr, metrics in tried.items() for run in many("infobatch", metrics[::-1], lr=lr)]
    *_, best, turned = both(runs)
    assert best is not None
    assert turned is not None
    assert [one.rate for one in turned.rows] == [one.rate for one in best.rows] == [0.2, 0.2]
    for one, other in zip(best.rows, turned.rows, strict=True):
        are_mirrored(one.row, other.row)


@pytest.mark.parametrize("growing", [88.0, 92.0])
def test_of_two_shorter_runs_the_better_one_counts(growing: float) -> None:
    runs = many("full", [90.0, 91.0, 90.5]) + many("infobatch", [90.1, 91.0, 90.4], took=70)
    runs += many("full", [89.0, 90.0, 89.5], steps=70, took=70)
    runs += many("full", [growing, growing + 1, growing], steps=70, took=70, compensate="lr")
    found, turned, *_ = both(runs)
    for one, other in zip(found.rows, turned.rows, strict=True):
        are_mirrored(one, other)
    assert len({row.same_cost.mean for row in turned.rows if row.same_cost is not None}) == 1


# ---- margins and units -------------------------------------------------------------------------------------------

PERPLEXITY = MetricInfo("perplexity", "", higher_is_better=False, margin=0.05)


def lost(by: float) -> list[Run]:
    full = [12.1, 12.4, 12.2, 12.3]
    ours = [value + by + at % 2 * 0.002 for at, value in enumerate(full)]
    return measured(many("full", full) + many("infobatch", ours, saved=0.3, seconds=5.0), PERPLEXITY)


@pytest.mark.parametrize(
    ("by", "margin", "kind"),
    [(0.03, None, "lossless"), (0.03, 0.02, "worse"), (0.08, None, "worse"), (0.08, 0.1, "lossless")],
)
def test_the_margin_is_the_recorded_one_unless_another_is_asked_for(by: float, margin: float | None, kind: str) -> None:
    found = compare(lost(by), margin=margin)
    assert found.rows[1].verdict.kind == kind
    assert found.margin == found.metric_info.margin == (margin or 0.05)
    assert compare(many("full", [90.0])).margin == 0.3  # of records that state none


def test_answers_say_which_direction_is_better() -> None:
    (worse,) = answers_of(compare(lost(0.08)))
    start = "InfoBatch used 30 % fewer samples than full data and its perplexity (lower is better) was 0.081 higher"
    assert worse.startswith(start)
    assert "chance alone does not explain the loss" in worse
    assert "points" not in worse
    (better,) = answers_of(compare(lost(-0.08)))
    assert "its perplexity (lower is better) was 0.079 lower" in better
    assert "chance alone does not explain the gain" in better
    (fine,) = answers_of(compare(lost(0.03)))
    assert "a loss of more than 0.05 can be excluded" in fine
    (open_,) = answers_of(compare(lost(0.03)[:2] + lost(0.03)[4:6]))
    assert "perplexity" in open_


def test_what_cannot_be_excluded_is_a_rise() -> None:
    full, ours = [12.0, 12.5, 12.2], [12.1, 12.4, 12.3]
    runs = measured(many("full", full) + many("infobatch", ours), PERPLEXITY)
    found = compare(runs)
    difference = found.rows[1].difference
    assert difference is not None
    assert difference.high is not None
    (text,) = answers_of(found)
    assert f"cannot exclude a loss of up to {difference.high:.3f}." in text


def test_a_unit_follows_the_numbers() -> None:
    metres = MetricInfo("error", "m", higher_is_better=False, margin=0.004)
    runs = measured(many("full", [0.5, 0.6, 0.55]) + many("infobatch", [0.52, 0.6201, 0.5702]), metres)
    found = compare(runs)
    assert found.metric == "error, m"
    assert found.rows[1].verdict.text.startswith("worse by 0.0201 m (0.01")
    assert "within 0.1 m at 95 %" in compare(runs, margin=0.1).rows[1].verdict.text


def test_metrics_that_cannot_be_compared_are_refused() -> None:
    accuracy, wide = MetricInfo(), MetricInfo(margin=1.0)
    for other in (LOWER, PERPLEXITY, MetricInfo("accuracy", "")):
        with pytest.raises(InputError, match=r"metrics of one unit and one direction.*Report them apart"):
            compare(measured(many("full", [90.0]), accuracy) + measured(many("infobatch", [90.0]), other))
    mixed = measured(many("full", [90.0]), accuracy) + measured(many("infobatch", [90.0]), wide)
    with pytest.raises(InputError, match=r"metrics of one margin.*accuracy, % .*margin 0.3.*margin 1\).*--margin"):
        compare(mixed)
    assert compare(mixed, margin=0.5).margin == 0.5


def test_runs_of_another_metric_are_no_partners() -> None:
    runs = measured(many("full", [90.0, 91.0]), MetricInfo("top 1", "%"))
    runs += measured(many("infobatch", [97.0, 98.0]), MetricInfo("top 5", "%"))
    found = compare(runs)
    assert found.metric == "top 1, top 5, %"
    assert {row.label: row.verdict.kind for row in found.rows} == {
        "full · metric=top 1, %": "baseline",
        "infobatch · metric=top 5, %": "alone",
    }


def test_older_records_without_a_metric_are_accuracies() -> None:
    bare = [replace(run, start={"settings": run.start["settings"]}) for run in many("full", [90.0, 91.0])]
    found = compare(bare + many("infobatch", [90.0, 91.0]))
    assert (found.metric, found.rows[1].verdict.kind) == ("accuracy, %", "undecided")
