"""Names that people read: one per row, the same at all rates, and accepted where a row is asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from infobatch.lab.compare.comparison import compare
from infobatch.lab.compare.naming import describe, name_among, name_rows
from infobatch.lab.compare.tuning import at_best
from infobatch.lab.runs.records import Run
from infobatch.lab.train.settings import Settings

KINDS = [
    "full, cost of infobatch", "full, cost of tiers:ratio=0.2", "full+lr, cost of infobatch", "full, 900 steps",
    "full average, 900 steps", "full", "infobatch", "infobatch, 900 steps", "random",
]  # fmt: skip


def made(method: str, took: int = 100, **changes: Any) -> list[Run]:
    runs = []
    for seed, value in enumerate((90.0, 95.0, 92.0)):
        start = {"settings": Settings(method=method, seed=seed, **changes).plain(), "metric": "accuracy, %"}
        end = {"metric": value - len(method), "saved": 0.3, "steps": took, "seconds": {"total": 20.0}}
        runs.append(Run(f"{method}-{seed}-{changes}", start, end=end))
    return runs


def test_names_tell_rows_apart() -> None:
    name = name_among(KINDS)
    names = [name(label) for label in KINDS]
    assert len(set(names)) == len(KINDS)
    assert [one.startswith("shorter run (") for one in names] == [True] * 5 + [False] * 4
    assert names[5:] == KINDS[5:]
    assert [name(one) for one in names] == names  # naming twice changes nothing


def test_a_single_kind_needs_no_number_of_steps() -> None:
    labels = [f"{stem} · lr={rate}" for rate in (0.1, 0.2) for stem in ("full", "full, cost of infobatch")]
    assert list(map(name_among(labels), labels)) == [
        "full · lr=0.1", "shorter run · lr=0.1", "full · lr=0.2", "shorter run · lr=0.2",
    ]  # fmt: skip


def test_rows_are_found_by_name_and_by_label() -> None:
    runs = made("full") + made("infobatch", 70) + made("full", steps=70)
    label, name = "full, cost of infobatch", "shorter run"
    found = compare(runs, against=name)
    assert found == compare(runs, against=label)
    assert found == compare(runs, against="full, steps of infobatch")  # what earlier versions called it
    assert found.against == label
    shown, _ = name_rows(found)
    assert shown.against == name
    assert [row.label for row in shown.rows] == ["full", "infobatch", name]
    assert label in json.dumps(found.plain())  # records and JSON keep labels


def test_notes_and_best_rates_use_names() -> None:
    runs = [
        run
        for lr in (0.1, 0.2)
        for run in made("full", lr=lr) + made("infobatch", 70, lr=lr) + made("full", steps=70, lr=lr)
    ]
    found = compare(runs)
    best = at_best(runs, found)
    assert best is not None
    _, shown = name_rows(found, best)
    assert shown is not None
    assert [one.row.label for one in shown.rows] == ["full", "infobatch", "shorter run"]
    assert set(shown.by_rate) == {"full", "infobatch", "shorter run"}
    assert not any("steps of" in text for text in shown.about)
    place = next(place for place, run in enumerate(runs) if run.settings.steps)
    runs[place] = replace(runs[place], end=None)
    assert any("(shorter run · lr=0.1, seed 0) has not finished" in note for note in compare(runs).notes)


@pytest.mark.parametrize(
    ("label", "described"),
    [
        ("infobatch+loss whole_last · lr=0.2", "InfoBatch, loss grows, lr 0.2 (older last batch)"),
        ("infobatch", "InfoBatch"),
        ("ucb average+whole_last", "ucb (average, older last batch)"),
        ("full · lr=0.05, model=resnet18", "full data, lr 0.05, model resnet18"),
        ("full+lr, 900 steps", "shorter run (900 steps, learning rate grows)"),
        ("static.el2n:share=0.7,then=infobatch+loss", "static.el2n:share=0.7,then=infobatch, loss grows"),
    ],
)
def test_labels_in_words(label: str, described: str) -> None:
    assert describe(label) == described
