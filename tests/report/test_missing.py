"""What the page says about missing, damaged, mixed or very many records."""

from __future__ import annotations

import time
from typing import Any

import pytest
from facts import facts, made, run
from reading import Reader, table

from infobatch import report
from infobatch.lab.runs.records import Run

pytestmark = pytest.mark.usefixtures("undrawn")

SMALL: dict[str, Any] = {"epochs": 6, "size": 150}


def without(lines: list[dict[str, Any]], kind: str, *names: str) -> list[dict[str, Any]]:
    """The same facts less some parts of one kind, or less the kind."""
    kept = [fact for fact in lines if names or fact["kind"] != kind]
    return [{k: v for k, v in fact.items() if fact["kind"] != kind or k not in names} for fact in kept]


SHORT = facts("infobatch", **SMALL)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (without(SHORT, "samples"), ["no verdict: no full data to compare with", "No samples: no pruning run"]),
        (without(without(SHORT, "end"), "epoch", "losses"), ["finished: 6 of 6 epochs", "No run has a histogram"]),
        ([SHORT[0], SHORT[-1]], ["These records hold no epochs"]),
        (SHORT[:1], ["No epoch has been recorded yet", "No run has finished", "No samples"]),
        (facts("infobatch", stop=2, **SMALL), ["has not finished: 2 of 6 epochs", "no run has finished"]),
        (facts("infobatch", classes=None, **SMALL), ["No numbers by class"]),
        (without(SHORT, "epoch", "weights", "metric", "test_loss", "lr", "noise", "seconds", "kept"), ["0.1.0"]),
        (without(SHORT, "end", "seconds", "saved", "samples", "class_kept", "metric"), ["without a finite metric"]),
        (without(SHORT, "start", "environment", "classes", "source", "time", "metric", "size"), ["resnet18"]),
        (facts("full", epochs=1, size=150), ["1 epoch", "No run left anything out"]),
    ],
)  # fmt: skip
def test_what_is_missing_is_said(lines: list[dict[str, Any]], words: list[str]) -> None:
    text = Reader(report.html([made(lines)])).text
    assert [one for one in words if one not in text] == []


@pytest.mark.parametrize("wrong", ["text", [None]])
def test_parts_of_the_wrong_kind_are_left_out(wrong: Any) -> None:
    parts = {
        "start": ("environment", "source", "time", "metric", "size"), "epoch": ("weights", "losses", "seconds"),
        "samples": ("least",), "end": ("seconds", "class_size", "steps"),
    }  # fmt: skip
    lines = [{**fact, **dict.fromkeys(parts[fact["kind"]], wrong)} for fact in SHORT]
    assert "Kept most" in report.html([made(lines)])


def test_epochs_told_by_an_end_are_shown() -> None:
    end = {**SHORT[-1], "kept_by_epoch": [150, 100, 90, 80, 150, 150], "metric_by_epoch": {"1": 50.0, "5": 90.0}}
    page = report.html([made([SHORT[0], end])])
    assert [row["samples"] for row in table(page, "pruned")] == ["0", "50", "60", "70", "0", "0"]
    assert float(table(page, "saved")[3]["% of all samples"]) == pytest.approx(100 * 180 / 600)
    assert [(row["epoch"], row["accuracy, %"]) for row in table(page, "metric-epochs")] == [("2", "50"), ("6", "90")]
    alone = report.html([made([SHORT[0], {**SHORT[-1], "metric_by_epoch": {"5": 90.0}}])])
    assert 'id="metric-epochs"' not in alone
    assert "These records hold no epochs" in Reader(alone).text


def test_one_unfinished_run_among_finished_ones_is_named_and_not_averaged() -> None:
    runs = [run("full", **SMALL), run("infobatch", **SMALL), made(facts("infobatch", 1, stop=3, **SMALL))]
    page = report.html(runs)
    assert {row["n"] for row in table(page, "pruned") if row["method"] == "infobatch"} == {"1"}
    assert "infobatch-1 (infobatch, seed 1) has not finished: 3 of 6 epochs" in Reader(page).text


def test_different_settings_are_named() -> None:
    page = report.html([run("full", lr=0.1, **SMALL), run("infobatch", lr=0.2, **SMALL)])
    text = Reader(page).text
    assert "The runs differ in lr (0.1, 0.2)" in text
    assert "no verdict: no full data to compare with" in text


def test_other_classes_are_named() -> None:
    page = report.html([run("full", **SMALL), run("infobatch", classes=["a", "b"], task="other", **SMALL)])
    assert "Of other classes, so not shown: infobatch · task=other" in Reader(page).text


@pytest.mark.slow
def test_many_runs_make_no_long_page() -> None:
    """200 runs of 200 epochs, eight methods."""
    methods = ("full", "infobatch", "random", "tiers", "author_tiers", "saving", "random_star", "above_mean")
    base = {method: facts(method, epochs=200, size=300) for method in methods}
    runs = []
    for seed in range(25):
        for method, lines in base.items():
            settings = {**lines[0]["settings"], "seed": seed}
            start = {**lines[0], "settings": settings, "run": f"{method}-{seed}"}
            end = {**lines[-1], "metric": lines[-1]["metric"] + 0.01 * seed}
            runs.append(Run(start["run"], start, lines[1:-2], lines[-2], end))
    began = time.process_time()
    size = len(report.html(runs).encode())
    assert size < 3_000_000
    assert time.process_time() - began < 15  # four seconds on the machine it was written on
