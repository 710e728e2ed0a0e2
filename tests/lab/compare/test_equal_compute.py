"""Methods that look at batches: what they cost, and the shorter run that costs as much."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from infobatch.lab.compare.answer import answers_of
from infobatch.lab.compare.comparison import Row, compare
from infobatch.lab.compare.naming import describe, name_among, older_label
from infobatch.lab.compare.tuning import at_best
from infobatch.lab.runs.records import Run
from infobatch.lab.train.settings import Settings

FULL = [90.0, 95.0, 92.0]
NEAR, BELOW = [90.05, 95.0, 92.1], [89.0, 94.1, 90.9]
STEPS = 200


def made(
    method: str, metrics: list[float], share: float = 1.0, looking: float | None = None, **changes: Any
) -> list[Run]:
    """Runs that trained on a share of the samples and spent a share of full data's compute on looking."""
    runs = []
    for seed, metric in enumerate(metrics):
        settings = Settings(method=method, seed=seed, **changes)
        samples = settings.steps * 10 if settings.steps else round(share * STEPS * 10)
        end: dict[str, Any] = {
            "metric": metric, "samples": samples, "full_samples": STEPS * 10, "saved": 1 - samples / (STEPS * 10),
            "steps": settings.steps or STEPS, "seconds": {"total": 20.0},
        }  # fmt: skip
        if looking is not None:
            end |= {"looking": looking, "compute": share + looking, "same_cost_steps": round((share + looking) * STEPS)}
        start = {"settings": settings.plain(), "metric": "accuracy, %"}
        runs.append(Run(f"{method}-{seed}-{changes}", start, end=end))
    return runs


def rows_of(runs: list[Run], **options: Any) -> dict[str, Row]:
    return {row.label: row for row in compare(runs, **options).rows}


def test_the_shorter_run_of_a_sieve_costs_as_much_and_takes_fewer_steps() -> None:
    """The sieve took 200 steps at 60 % of the compute: its shorter run has 120 steps, not 200."""
    ours = made("sieve.hardest", [91.0, 94.0, 93.0], share=0.5, looking=0.1)
    shorter = made("full", [89.0, 92.0, 91.0], steps=120)
    rows = rows_of(made("full", FULL) + ours + shorter)
    assert list(rows) == ["full", "sieve.hardest", "full, cost of sieve.hardest"]
    row, control = rows["sieve.hardest"], rows["full, cost of sieve.hardest"]
    assert row.same_cost is not None
    assert row.same_cost.mean == pytest.approx(2.0)
    assert (row.steps, control.steps) == (200, 120)
    assert row.compute == pytest.approx(0.6)
    assert control.compute == pytest.approx(0.6)
    assert control.verdict.kind == "control"


def test_full_data_of_as_many_steps_is_no_shorter_run_of_a_sieve() -> None:
    """That would be full data itself; and 2 % of the cost is the most that may lie between."""
    ours = made("sieve.hardest", [91.0, 94.0, 93.0], share=0.5, looking=0.1)
    for steps, is_one in ((200, False), (123, False), (122, True), (120, True), (118, True), (117, False)):
        rows = rows_of(made("full", FULL) + ours + made("full", FULL, steps=steps))
        assert (rows["sieve.hardest"].same_cost is not None) is is_one, steps


def test_saved_is_net_of_looking() -> None:
    row = rows_of(made("full", FULL) + made("sieve.hardest", FULL, share=0.5, looking=0.1))["sieve.hardest"]
    assert row.saved == pytest.approx(0.5)
    assert row.looking == pytest.approx(0.1)
    assert row.compute_saved == pytest.approx(0.4)
    dear = rows_of(made("full", FULL) + made("sieve.hardest", FULL, share=0.9, looking=0.3))["sieve.hardest"]
    assert dear.compute_saved == pytest.approx(-0.2)
    for method, looking in (("infobatch", None), ("sieve.random_rows", 0.0)):
        free = rows_of(made("full", FULL) + made(method, FULL, share=0.7, looking=looking))[method]
        assert (free.compute, free.compute_saved) == pytest.approx((0.7, 0.3))
        assert free.looking == looking


def test_the_answer_speaks_of_compute_where_a_method_looks() -> None:
    runs = made("full", FULL) + made("sieve.hardest", [91.0, 94.0, 93.0], share=0.5, looking=0.1)
    runs += made("infobatch", [91.0, 94.0, 93.0], share=0.7) + made("full", FULL, steps=120)
    ours, sieve = answers_of(compare(runs))
    assert "40 % less compute" in sieve
    assert "samples" not in sieve
    assert "had the same accuracy as full data" in sieve.partition("shorter run")[2]
    assert "30 % fewer samples" in ours
    assert "compute" not in ours


def test_older_records_have_the_cost_of_their_steps() -> None:
    """Before sieves, a method and its shorter run took equally many steps, and records hold no other cost."""
    runs = made("full", FULL)
    for run in (old := made("infobatch", FULL, share=0.7)):
        assert run.end is not None
        run.end["steps"] = 140
    rows = rows_of([*runs, *old, *made("full", [89.0, 94.0, 91.0], steps=140)])
    assert rows["infobatch"].same_cost is not None
    assert rows["infobatch"].same_cost.mean == pytest.approx(1.0)
    assert rows["infobatch"].compute == pytest.approx(0.7)
    assert rows["full, cost of infobatch"].n == 3


@pytest.mark.parametrize("method", ["sieve.random_rows", "sieve.random_rows:keep=0.3", "random", "random:ratio=0.4"])
def test_random_choices_are_controls_beside_other_methods(method: str) -> None:
    chance = made(method, BELOW, share=0.5, looking=0.0 if method.startswith("sieve") else None)
    for other in ("sieve.hardest", "infobatch"):
        rows = rows_of(made("full", FULL) + chance + made(other, NEAR, share=0.5, looking=0.1))
        assert rows[method].verdict.kind == "control"
        assert rows[method].difference is not None
        assert rows[other].verdict.kind == "lossless"
    assert rows_of(made("full", FULL) + chance)[method].verdict.kind == "worse"  # alone it is what is asked about
    judged = rows_of(made("full", FULL) + chance + made("infobatch", NEAR, share=0.5), against="full")
    assert judged[method].verdict.kind == "worse"  # and where all rows are compared with one


def test_two_random_choices_are_judged_as_methods() -> None:
    rows = rows_of(made("full", FULL) + made("random", NEAR) + made("sieve.random_rows", NEAR, looking=0.0))
    assert {rows[name].verdict.kind for name in ("random", "sieve.random_rows")} == {"lossless"}


def test_at_the_best_rates_the_shorter_run_is_that_of_equal_cost() -> None:
    runs = []
    for lr, gain in ((0.1, 0.0), (0.2, 1.0)):
        runs += made("full", [value + gain for value in FULL], lr=lr)
        runs += made("sieve.hardest", [value + gain for value in FULL], share=0.5, looking=0.1, lr=lr)
        runs += made("full", [value + gain - 2 for value in FULL], steps=120, lr=lr)
        runs += made("full", [value + gain - 1 for value in FULL], steps=199, lr=lr)  # near the steps it took
    found = compare(runs)
    best = at_best(runs, found)
    assert best is not None
    row = next(one.row for one in best.rows if one.row.label == "sieve.hardest")
    assert row.same_cost is not None
    assert row.same_cost.mean == pytest.approx(2.0)


def test_names_of_shorter_runs() -> None:
    label = "full, cost of sieve.hardest:keep=0.5,net=mlp16"
    name = name_among([label, "full", "full, 900 steps"])
    assert name(label) == "shorter run (cost of sieve.hardest:keep=0.5,net=mlp16)"
    assert name(older_label(label)) == name(label)  # as earlier versions wrote it
    assert describe(older_label(f"{label} · lr=0.2")) == describe(f"{label} · lr=0.2")
    assert older_label("full, 900 steps") == "full, 900 steps"


def test_a_run_without_an_end_has_no_cost() -> None:
    runs = made("full", FULL) + made("full", FULL, steps=120)
    runs += [replace(run, end=None) for run in made("sieve.hardest", FULL, share=0.5, looking=0.1)]
    row = rows_of(runs)["sieve.hardest"]
    assert (row.n, row.compute, row.looking, row.compute_saved, row.same_cost) == (0, None, None, None, None)
