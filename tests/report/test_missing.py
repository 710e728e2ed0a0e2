"""What the page says about missing, damaged, mixed or very many records."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from facts import facts, made, run
from markupsafe import Markup
from reading import Reader, section, table

from infobatch import report
from infobatch.lab.compare.comparison import compare
from infobatch.lab.runs.records import Run

pytestmark = pytest.mark.usefixtures("undrawn")

SMALL: dict[str, Any] = {"epochs": 6, "size": 150}


def without(lines: list[dict[str, Any]], kind: str, *names: str) -> list[dict[str, Any]]:
    """The same facts less some parts of one kind, or less the kind."""
    kept = [fact for fact in lines if names or fact["kind"] != kind]
    return [{k: v for k, v in fact.items() if fact["kind"] != kind or k not in names} for fact in kept]


SHORT = facts("infobatch", **SMALL)


@pytest.mark.parametrize(
    ("lines", "empty", "kind"),
    [
        (without(SHORT, "samples"), "samples", "alone"),
        (without(without(SHORT, "end"), "epoch", "losses"), "cost losses classes", "alone"),
        ([SHORT[0], SHORT[-1]], "curves pruning losses weighting classes samples", "alone"),
        (SHORT[:1], "cost curves pruning losses time weighting classes samples", "alone"),
        (facts("infobatch", stop=2, **SMALL), "cost classes samples", "alone"),
        (facts("infobatch", classes=None, **SMALL), "classes", "alone"),
        (
            without(SHORT, "epoch", "weights", "metric", "test_loss", "lr", "noise", "seconds", "kept"),
            "losses weighting classes samples",
            "alone",
        ),
        (without(SHORT, "end", "seconds", "saved", "samples", "class_kept", "metric"), "cost classes", "failed"),
        (without(SHORT, "start", "environment", "classes", "source", "time", "metric", "size"), "classes", "alone"),
        (facts("full", epochs=1, size=150), "answer losses weighting classes samples", "baseline"),
    ],
)
def test_sections_without_numbers_say_so(lines: list[dict[str, Any]], empty: str, kind: str) -> None:
    page = report.html([made(lines)])
    keys = [one["id"] or "" for one in Reader(page).all("section")]
    assert [key for key in keys if 'class="missing"' in section(page, key)] == empty.split()
    assert re.findall(r'<span class="verdict ([\w-]+)">', section(page, "verdict")) == [kind]


@pytest.mark.parametrize("wrong", ["text", [None]])
def test_parts_of_the_wrong_kind_are_left_out(wrong: Any) -> None:
    parts = {
        "start": ("environment", "source", "time", "metric", "size"), "epoch": ("weights", "losses", "seconds"),
        "samples": ("least",), "end": ("seconds", "class_size", "steps"),
    }  # fmt: skip
    lines = [{**fact, **dict.fromkeys(parts[fact["kind"]], wrong)} for fact in SHORT]
    assert "Kept most" in report.html([made(lines)])


def test_epochs_of_compact_records_are_shown() -> None:
    end = {**SHORT[-1], "kept_by_epoch": [150, 100, 90, 80, 150, 150], "metric_by_epoch": {"1": 50.0, "5": 90.0}}
    page = report.html([made([SHORT[0], end])])
    assert [row["samples"] for row in table(page, "pruned")] == ["0", "50", "60", "70", "0", "0"]
    assert float(table(page, "saved")[3]["% of all samples"]) == pytest.approx(100 * 180 / 600)
    assert [(row["epoch"], row["accuracy, %"]) for row in table(page, "metric-epochs")] == [("2", "50"), ("6", "90")]
    alone = report.html([made([SHORT[0], {**SHORT[-1], "metric_by_epoch": {"5": 90.0}}])])
    assert 'id="metric-epochs"' not in alone
    assert 'class="missing"' in section(alone, "curves")


def test_an_unfinished_run_is_named_and_not_averaged() -> None:
    runs = [run("full", **SMALL), run("infobatch", **SMALL), made(facts("infobatch", 1, stop=3, **SMALL))]
    page = report.html(runs)
    assert {row["n"] for row in table(page, "pruned") if row["method"] == "infobatch"} == {"1"}
    assert [row for row in compare(runs).notes if "infobatch-1" in row and "3 of 6 epochs" in row]
    assert all(Markup.escape(note) in page for note in compare(runs).notes)


def test_different_settings_are_named() -> None:
    page = report.html([run("full", lr=0.1, **SMALL), run("infobatch", lr=0.2, **SMALL)])
    assert "lr (0.1, 0.2)" in Reader(section(page, "verdict")).text
    assert 'class="verdict alone"' in section(page, "verdict")


def test_other_classes_are_named() -> None:
    page = report.html([run("full", **SMALL), run("infobatch", classes=["a", "b"], task="other", **SMALL)])
    text = Reader(section(page, "classes")).text
    assert "infobatch · task=other" in text


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
