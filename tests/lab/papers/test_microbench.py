"""Measurements: medians taken in turns, the rows that recipes ask for, and a curve known in closed form."""

from __future__ import annotations

import math

import pytest
import torch

from infobatch.lab.papers import microbench as measures
from infobatch.lab.papers import recipe as recipes

SMALL = {"1.28M": 5_000, "14M": 9_000}


def test_works_take_turns_and_the_median_counts() -> None:
    now, order = 0.0, []
    costs = {"a": iter([100.0, 3.0, 1.0, 50.0]), "b": iter([100.0, 7.0, 9.0, 8.0])}

    def work(name: str) -> None:
        nonlocal now
        order.append(name)
        now += next(costs[name])

    took = measures.in_turns({"a": lambda: work("a"), "b": lambda: work("b")}, 3, lambda: now)
    assert took == {"a": 3.0, "b": 8.0}
    assert order == ["a", "b"] * 4


def test_waiting_for_a_device_is_part_of_the_time() -> None:
    now, pending = 0.0, 0.0

    def launch() -> None:
        nonlocal pending
        pending += 2.0

    def wait() -> None:
        nonlocal now, pending
        now, pending = now + pending, 0.0

    assert measures.in_turns({"kernel": launch}, 3, lambda: now, wait) == {"kernel": 2.0}


def test_operations_have_the_rows_of_table_11(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "SIZES", SMALL)
    monkeypatch.setattr(measures, "ROUNDS", 2)
    told: list[str] = []
    rows = measures.operations(tick=told.append)
    wanted = {cell.row for cell in recipes.load("table11").cells if not cell.row.startswith("gpu")}
    assert wanted == {name for name in rows if not name.startswith("gpu")}
    assert all(value > 0 for value in rows.values())
    assert told[0] == "1.28M scores on the CPU"
    assert all(name.endswith("1.28M") for name in measures.operations(quick=True))


def test_one_thread_for_a_while() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with measures.one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_overhead_has_the_rows_that_recipes_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "IMAGENET", 20_000)
    rows = measures.overhead(quick=True)
    asked = {
        cell.row
        for recipe in recipes.all_recipes()
        if recipe.measure == "infobatch.lab.papers.microbench:overhead"
        for cell in recipe.cells
        if cell.row
    }
    assert asked <= rows.keys()
    assert rows["200 epochs, s"] / rows["90 epochs, s"] == pytest.approx(200 / 90)
    assert rows["90 epochs, h"] == pytest.approx(rows["90 epochs, s"] / 3600)
    assert 0 < rows["90 epochs, s"] < 60


def test_onecycle_is_the_published_curve() -> None:
    """Smith's cycle with cosines, by hand: up from 1/25 of the peak, down to 1/10,000 of that."""
    rows = measures.onecycle()
    assert rows["start"] == pytest.approx(1 / 25)
    assert rows["end"] == pytest.approx(1 / 25 / 10_000)
    assert math.isclose(rows["highest at"], 0.3, abs_tol=1e-3)


def test_the_environment_names_no_host() -> None:
    import platform

    told = measures.environment()
    assert told["torch"] == torch.__version__
    assert platform.node() not in str(told)
