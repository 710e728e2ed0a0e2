"""Each at its best learning rate, against full data at theirs."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from scipy import stats
from test_comparison import made, many

from infobatch.lab.compare.comparison import compare
from infobatch.lab.compare.tuning import AtBest, at_best
from infobatch.lab.runs.records import Run

FULL = {0.1: [90.0, 91.0, 90.2], 0.2: [92.0, 91.4, 92.3], 0.4: [89.0, 89.1, 89.2]}
PRUNED = {0.1: [91.0, 91.3, 91.1], 0.2: [90.0, 90.1, 90.0], 0.4: [88.0, 88.1, 89.0]}
FEWER = {0.1: [90.0, 90.3, 90.1], 0.2: [90.0, 90.1, 90.0], 0.4: [90.9, 91.0, 91.5]}


def at_rates(method: str, metrics: dict[float, list[float]], **changes: Any) -> list[Run]:
    return [run for lr, values in metrics.items() for run in many(method, values, lr=lr, **changes)]


def best_of(runs: list[Run], **rules: Any) -> AtBest:
    found = at_best(runs, compare(runs, **rules))
    assert found is not None
    return found


def test_at_one_rate_a_loss_may_be_hidden_and_at_the_best_ones_it_shows() -> None:
    runs = at_rates("full", FULL) + at_rates("infobatch", PRUNED, took=70, saved=0.3)
    small = next(row for row in compare(runs).rows if row.label == "infobatch · lr=0.1")
    assert small.difference is not None
    assert small.difference.mean > 0.6
    found = best_of(runs)
    assert found.rates == (0.1, 0.2, 0.4)
    assert [(one.row.label, one.rate) for one in found.rows] == [("full", 0.2), ("infobatch", 0.1)]
    difference = found.rows[1].row.difference
    paired = stats.ttest_rel(PRUNED[0.1], FULL[0.2]).confidence_interval(0.95)
    assert difference is not None
    assert (difference.low, difference.high) == pytest.approx((paired.low, paired.high))
    assert found.rows[0].row.verdict.kind == "baseline"
    assert found.rows[1].row.saved == pytest.approx(0.3)


def test_as_many_steps_are_at_their_own_best_rate() -> None:
    runs = at_rates("full", FULL) + at_rates("infobatch", PRUNED, took=70, saved=0.3)
    runs += at_rates("full", FEWER, steps=70, took=70) + at_rates("full", FULL, steps=50, took=50)
    found = {one.row.label: one for one in best_of(runs).rows}
    assert found["full, cost of infobatch"].rate == 0.4
    same = found["infobatch"].row.same_cost
    assert same is not None
    assert same.mean == pytest.approx(statistics.fmean(PRUNED[0.1]) - statistics.fmean(FEWER[0.4]))
    assert found["full, 50 steps"].row.same_cost is None


def test_who_was_not_tried_at_each_rate_is_left_out() -> None:
    runs = at_rates("full", FULL) + at_rates("random", {lr: PRUNED[lr] for lr in (0.1, 0.2)})
    runs += [made("tiers", seed, 95.0, lr=lr) for seed, lr in enumerate(FULL)]  # each rate with another seed
    found = best_of(runs)
    assert [one.row.label for one in found.rows] == ["full"]
    assert found.left_out == ("random", "tiers")
    assert found.full_alone
    assert "every rate" in found.about[-1]
    both = best_of(runs + at_rates("infobatch", PRUNED))
    assert not both.full_alone
    assert both.about[-1].endswith("random, tiers.")
    tried = {name: [point.rate for point in line] for name, line in found.by_rate.items()}
    assert tried == {"full": list(FULL), "random": [0.1, 0.2], "tiers": list(FULL)}


def test_each_is_held_against_as_many_steps_of_its_own() -> None:
    runs = at_rates("full", FULL) + at_rates("infobatch", PRUNED, took=70) + at_rates("tiers", PRUNED, took=69)
    runs += at_rates("full", FEWER, steps=70, took=70) + at_rates("full", FULL, steps=69, took=69)  # better, and tiers'
    found = {one.row.label: one.row for one in best_of(runs).rows}
    for name, control in (("infobatch", FEWER[0.4]), ("tiers", FULL[0.2])):
        same = found[name].same_cost
        assert same is not None
        assert same.mean == pytest.approx(statistics.fmean(PRUNED[0.1]) - statistics.fmean(control))
    assert found["infobatch"].runs == ("infobatch-0", "infobatch-1", "infobatch-2")


def test_who_is_best_at_an_end_is_told() -> None:
    runs = at_rates("full", FULL) + at_rates("infobatch", PRUNED) + at_rates("random", {**PRUNED, 0.4: [99.0] * 3})
    told = " ".join(best_of(runs).about)
    assert "may be better: infobatch (0.1, the smallest), random (0.4, the largest)." in told


def test_the_rate_is_picked_by_seeds_that_all_have() -> None:
    runs = at_rates("full", {0.1: [90.0, 90.0], 0.2: [89.0, 89.0, 99.0, 99.0]})
    assert best_of(runs).rows[0].rate == 0.1


def test_a_rate_at_which_a_run_went_wrong_is_not_the_best() -> None:
    runs = at_rates("full", FULL) + at_rates("random", PRUNED)
    runs += many("tiers", [90.0, 90.1, 90.2], lr=0.1) + many("tiers", [80.0, 80.1, 80.2], lr=0.2)
    runs += [made("tiers", seed, metric, lr=0.4) for seed, metric in enumerate([99.0, None, 99.0])]
    runs += [made("saving", seed, None, lr=lr) for seed in range(3) for lr in FULL]
    rows = {one.row.label: one for one in best_of(runs).rows}
    assert rows["tiers"].rate == 0.1
    assert rows["saving"].row.verdict.kind == "failed"


def test_a_rate_that_was_tried_with_one_seed_is_no_rate_of_the_others() -> None:
    runs = at_rates("full", {**FULL, 0.8: [99.0]}) + at_rates("random", PRUNED)
    assert best_of(runs).rates == (0.1, 0.2, 0.4)
    assert [one.rate for one in best_of([run for run in runs if run.settings.seed == 0]).rows] == [0.8]


@pytest.mark.parametrize(
    "runs",
    [
        many("full", [90.0, 91.0]) + many("random", [90.0, 91.0]),
        many("full", [90.0, 91.0], lr=0.1) + many("random", [90.0, 91.0], lr=0.2),
        many("full", [90.0, 91.0], lr=0.1) + many("full", [90.0, 91.0], lr=0.2, batch_size=32),
        at_rates("random", PRUNED),
        [made("full", seed, 90.0, lr=lr, finished=False) for seed in (0, 1) for lr in (0.1, 0.2)],
    ],
    ids=["one rate", "one rate of full data", "more differs", "no full data", "nothing finished"],
)
def test_where_there_is_nothing_to_pick(runs: list[Run]) -> None:
    assert at_best(runs, compare(runs)) is None


def test_looks_widen_these_intervals_too() -> None:
    runs = at_rates("full", FULL) + at_rates("infobatch", PRUNED)
    once, twice = (best_of(runs, looks=looks).rows[1].row.difference for looks in ((3,), (2, 3)))
    assert once is not None
    assert twice is not None
    assert twice.low is not None
    assert once.low is not None
    assert twice.low < once.low
