"""Curves are means over seeds, and a line joins only means over the same seeds."""

from __future__ import annotations

import re
from typing import Any

import pytest
from facts import facts, made, run
from reading import drawing, lines_of, table

from infobatch import report
from infobatch.lab.runs.records import Run
from infobatch.lab.train.settings import Settings
from infobatch.report import series
from infobatch.report.series import Study

SMALL: dict[str, Any] = {"epochs": 6, "size": 150}


def untested(lines: list[dict[str, Any]], *epochs: int) -> Run:
    """The run with no metric after these epochs, counted from 1."""
    return made([{**f, "metric": None} if f["kind"] == "epoch" and f["epoch"] + 1 in epochs else f for f in lines])


def pieces(runs: list[Run], label: str = "infobatch") -> list[list[int]]:
    """The epochs of each unbroken piece of the metric's curve."""
    curve = series.all_of(series.fact("metric"))(Study.of(runs), label)
    return [list(curve.epochs[piece]) for piece in curve.pieces]


@pytest.fixture(scope="module")
def shortened() -> list[Run]:
    """Three seeds, of which one has no metric after its fourth epoch."""
    whole = [run("infobatch", seed, **SMALL) for seed in (0, 1)]
    return [*whole, untested(facts("infobatch", 2, **SMALL), 5, 6)]


@pytest.fixture(scope="module")
def page(shortened: list[Run]) -> str:
    return report.html(shortened)


def test_a_line_breaks_where_a_seed_ends_early(shortened: list[Run], page: str) -> None:
    """Without the break the line would jump from the mean of three seeds to the mean of the two that went on."""
    assert pieces(shortened) == [[1, 2, 3, 4], [5, 6]]
    assert [row["n"] for row in table(page, "metric-epochs")] == ["3"] * 4 + ["2"] * 2
    paths = lines_of(drawing(page, "metric-epochs"))
    assert [len(piece) for path in paths for piece in path] == [4, 2]
    assert [len(piece) for path in lines_of(drawing(page, "train-loss")) for piece in path] == [6]


def test_as_many_seeds_are_not_the_same_seeds() -> None:
    first, second = facts("infobatch", 0, **SMALL), facts("infobatch", 1, **SMALL)
    assert pieces([untested(first, 4, 5, 6), untested(second, 1, 2, 3)]) == [[1, 2, 3], [4, 5, 6]]


def test_unfinished_runs_of_different_lengths_are_not_joined() -> None:
    runs = [made(facts("infobatch", seed, stop=stop, **SMALL)) for seed, stop in enumerate((2, 3, 5))]
    assert pieces(runs) == [[1, 2], [3], [4, 5]]
    page = report.html(runs)
    assert [row["n"] for row in table(page, "pruned")] == ["3", "3", "2", "1", "1"]
    svg = drawing(page, "metric-epochs")
    assert sorted(len(piece) for path in lines_of(svg) for piece in path if len(piece) > 1) == [2, 2]
    marks = [use for use in svg.iter("use") if "--line-0" in (use.get("style") or "")]
    assert len(marks) >= 1  # epoch 3 alone is a dot


def test_a_break_splits_the_difference_to_full_data_too() -> None:
    full = [run("full", 0, **SMALL), untested(facts("full", 1, **SMALL), 5, 6)]
    study = Study.of([*full, run("infobatch", 0, **SMALL), run("infobatch", 1, **SMALL)])
    curve = series.gap("metric")(study, "infobatch")
    assert [curve.epochs[piece] for piece in curve.pieces] == [(1, 2, 3, 4), (5, 6)]
    assert curve.n == (2, 2, 2, 2, 1, 1)


def test_bands_break_with_their_lines(page: str) -> None:
    svg = drawing(page, "metric-epochs")
    bands = [one for one in svg.iter() if "fill-opacity: 0.16" in (one.get("style") or "")]
    assert len(bands) == 2


def test_the_number_of_seeds_is_shown(page: str) -> None:
    figure = re.search('<figure id="metric-epochs".*?</figure>', page, re.S)
    assert figure is not None
    (legend,) = re.findall('<ul class="keys">(.*?)</ul>', figure[0], re.S)
    assert "n = 3, then 2" in legend
    shown = ["".join(tip.itertext()) for tip in drawing(page, "metric-epochs").iter("g") if tip.get("class") == "tip"]
    assert [re.findall(r"n = (\d)", text) for text in shown] == [["3"]] * 4 + [["2"]] * 2
    assert "n = 3" in page[page.index('<figure id="train-loss"') :].partition("</figure>")[0]


def test_a_seed_trained_twice_counts_once() -> None:
    """The later run counts, as in the verdicts."""
    early, late = facts("infobatch", 0, **SMALL), facts("infobatch", 0, harm=3.0, **SMALL)
    late[0]["time"] = "2026-02-01T09:00:00Z"
    late[0]["run"] = "again"
    study = Study.of([made(early), made(late)])
    assert [one.name for one in study.shown("infobatch")] == ["again"]


@pytest.mark.parametrize(
    ("counts", "text"), [([3, 3], "3"), ([3, 3, 2, 1], "3, then 2, then 1"), ([1, 2, 1, 2, 1], "1 to 2")]
)
def test_counts_of_seeds_in_words(counts: list[int], text: str) -> None:
    tracks = {seed: {at: (at, 1.0) for at, n in enumerate(counts) if seed < n} for seed in range(3)}
    assert series.averaged(tracks, 99).seeds_in_words == f"n = {text}"


def ended(method: str, seeds: int, reached: float, **settings: Any) -> list[Run]:
    """Runs of which only the ends are known."""
    return [
        Run(
            f"{method}-{seed}",
            {"settings": Settings(method=method, seed=seed, **settings).plain(), "metric": "accuracy, %"},
            end={"metric": reached + seed / 10, "saved": 0.3, "steps": 100, "seconds": {"total": 1.0}},
        )
        for seed in range(seeds)
    ]


def test_rates_with_other_seeds_are_not_joined() -> None:
    full = [run for lr in (0.1, 0.2, 0.4) for run in ended("full", 3, 90 + lr, lr=lr)]
    some = [run for lr, seeds in ((0.1, 3), (0.2, 3), (0.4, 2)) for run in ended("random", seeds, 90 - lr, lr=lr)]
    page = report.html(full + some)
    svg = drawing(page, "rates")
    assert [len(piece) for path in lines_of(svg) for piece in path if len(piece) > 1] == [3, 2]
    assert [row["n"] for row in table(page, "rates")] == ["3"] * 5 + ["2"]
    legend = page[page.index('<figure id="rates"') :].partition("</figure>")[0]
    assert "full, n = 3<" in legend
    assert "random, n = 3, then 2<" in legend
