"""What a run cost, and the run on full data that costs as much."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_task import QUICK, facts, made

from infobatch.lab.compare.answer import answer_of, facts_of
from infobatch.lab.compare.comparison import compare
from infobatch.lab.runs import fields
from infobatch.lab.runs.facts import cost_of
from infobatch.lab.runs.many_runs import Series, compare_into, shorter_run
from infobatch.lab.runs.records import Run
from infobatch.lab.train.settings import Settings

FULL_STEPS = 80  # 8 epochs of 150 samples in batches of 16


def recorded(method: str, **end: Any) -> Run:
    settings = Settings.of({**QUICK, "method": method})
    return Run("one", {"settings": settings.plain()}, end={"saved": 0.5, "steps": FULL_STEPS, **end})


@given(
    samples=st.integers(1, 10**7),
    full=st.integers(1, 10**7),
    steps=st.integers(1, 10**5),
    looking=st.none() | st.floats(0, 3),
)
def test_what_a_run_cost(samples: int, full: int, steps: int, looking: float | None) -> None:
    samples = min(samples, full)
    cost = cost_of(samples, full, steps, looking)
    assert cost["full_samples"] == full
    assert cost["saved"] == pytest.approx(1 - samples / full)
    assert cost["compute"] == pytest.approx(samples / full + (looking or 0.0))
    assert ("looking" in cost) is (looking is not None)
    if looking is None:
        assert cost["same_cost_steps"] == steps
    else:
        assert cost["same_cost_steps"] >= 1
        assert (
            abs(cost["same_cost_steps"] / steps - cost["compute"])
            <= max(0.5, 1 - cost["compute"] * steps) / steps + 1e-9
        )
    run = recorded("sieve.hardest", samples=samples, **cost)
    assert fields.looking(run) == looking
    assert fields.compute(run, None) == pytest.approx(cost["compute"])
    assert fields.same_cost_steps(run) == cost["same_cost_steps"]


def test_a_shorter_run_has_the_steps_of_equal_cost() -> None:
    settings = Settings.of(
        {**QUICK, "method": "sieve.hardest:keep=0.5,then=infobatch", "compensate": "loss", "seed": 3}
    )
    run = recorded(settings.method, **cost_of(600, 1200, FULL_STEPS, looking=0.05), samples=600)
    assert shorter_run(settings, run) == settings.but(method="full", compensate="none", steps=44)


@pytest.mark.parametrize("looking", [0.5, 0.8])
def test_a_sieve_whose_looks_cost_what_it_saves_has_no_shorter_run(looking: float) -> None:
    run = recorded("sieve.hardest", **cost_of(600, 1200, FULL_STEPS, looking=looking), samples=600)
    assert shorter_run(run.settings, run) is None


def test_what_never_has_a_shorter_run() -> None:
    assert shorter_run(Settings(method="full"), recorded("full")) is None
    assert shorter_run(Settings(), recorded("infobatch", saved=0.0)) is None
    assert shorter_run(Settings(), replace(recorded("infobatch"), end=None)) is None


def test_older_records_have_the_steps_that_they_took() -> None:
    run = recorded("infobatch", steps=57)
    found = shorter_run(run.settings, run)
    assert found is not None
    assert found.steps == 57
    assert fields.looking(run) is None


@pytest.mark.parametrize(
    ("method", "looks"),
    [
        ("sieve.hardest:keep=0.5,net=mlp16", True),
        ("sieve.lot:keep=0.4,then=infobatch", True),
        ("sieve.adaptive:threshold=0.3,look=own", True),
        ("sieve.random_rows:keep=0.4", True),
        ("kakurenbo", True),
        ("infobatch", False),
    ],
)
def test_a_shorter_run_costs_as_much_to_a_batch(method: str, looks: bool) -> None:
    """Counted in samples trained on, of which looking costs its share. A method that takes no look is matched by steps,
    of which the last one of each of its epochs is smaller."""
    end = facts(method=method)[-1]
    settings = Settings.of({**QUICK, "method": method})
    shorter = shorter_run(settings, Run("one", {"settings": settings.plain()}, end=end))
    assert shorter is not None
    other = facts(**{key: value for key, value in shorter.plain().items() if value != Settings().plain()[key]})[-1]
    apart = (other["compute"] - end["compute"]) * 1200
    assert abs(apart) <= (16 if looks else 8 * 16)
    assert other["full_samples"] == end["full_samples"] == 1200


def test_a_comparison_of_sieves_end_to_end(tmp_path: Path) -> None:
    """Two sieves and the control beside full data, with shorter runs of equal compute; stopped, and continued.

    That a run goes on bit for bit is tested where it is trained.
    """
    methods = ("sieve.hardest:keep=0.4,net=mlp64", "sieve.random_rows:keep=0.4", "sieve.hardest:keep=0.9,look=own")
    series = Series(Settings.of({**QUICK, "epochs": 4}), methods, (0, 1))
    series.begin(tmp_path / "new")
    calls = iter(range(10**6))
    first = list(compare_into(tmp_path / "new", series, task=made(), stop=lambda: next(calls) >= 60))
    assert [run.end is None for run in first] == [False, True]  # in the second epoch of the first sieve
    runs = list(compare_into(tmp_path / "new", Series.load(tmp_path / "new"), task=made()))
    found = compare(runs)
    rows = {row.label: row for row in found.rows}
    hardest, chance, dear = methods
    assert set(rows) == {"full", *methods, f"full, cost of {hardest}", f"full, cost of {chance}"}
    for method in (hardest, chance):
        row, control = rows[method], rows[f"full, cost of {method}"]
        assert row.same_cost is not None
        assert row.same_cost.seeds == (0, 1)
        assert row.steps == 40
        assert control.steps is not None
        assert control.steps < 0.6 * 40
        assert row.compute == pytest.approx(control.compute, abs=16 / 600)
        assert control.verdict.kind == "control"
    assert rows[dear].same_cost is None
    assert rows[dear].compute_saved is not None
    assert rows[dear].compute_saved < 0
    assert rows[chance].verdict.kind == "control"
    assert rows[hardest].verdict.kind not in ("control", "baseline")
    answers = {one.method: answer_of(one) for one in facts_of(found)}
    assert set(answers) == {hardest, dear}
    assert "less compute" in answers[hardest]
    assert "shorter run" in answers[hardest]
    assert "more compute" in answers[dear]
