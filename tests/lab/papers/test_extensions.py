"""Which runs go beyond the papers, and what they are held against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infobatch.lab.compare.comparison import compare
from infobatch.lab.papers.extensions import find_extensions
from infobatch.lab.papers.recipe import all_recipes, load
from infobatch.lab.runs.records import Run
from infobatch.lab.train.settings import Settings

ALL = all_recipes()


def paper(**changes: Any) -> Settings:
    """Full data of the control cells: the paper's setting, at the rate of InfoBatch."""
    settings = load("table1").cell("Control: full at the rate of InfoBatch, CIFAR-100").settings
    assert settings is not None
    return settings.but(**changes)


def runs(settings: Settings, *metrics: float, saved: float = 0.0, file: str = "a.jsonl") -> list[Run]:
    """One a seed."""
    found = []
    for seed, metric in enumerate(metrics):
        start = {"settings": settings.but(seed=seed).plain(), "metric": "accuracy, %", "time": "2026"}
        end = {"metric": metric, "saved": saved, "samples": 1000 * (1 - saved), "full_samples": 1000, "steps": 100}
        found.append(Run(f"{settings.key}-{seed}", start, end=end, file=Path(file)))
    return found


LAST = {"ideas": "whole_last"}  # as in the papers
FULL = runs(paper(), 78.5, 78.6, 78.4)
RULE = runs(paper(**LAST, method="infobatch", compensate="loss"), 78.3, 78.1, 78.3, saved=0.33)
OURS = runs(paper(**LAST, method="infobatch", compensate="lr"), 78.8, 78.7, 78.8, saved=0.32, file="b.jsonl")


def test_what_no_cell_asks_for_stands_beside_what_one_does() -> None:
    (study,) = find_extensions([*FULL, *RULE, *OURS], ALL)
    assert study.name == "cifar100, resnet18, 200 epochs"
    assert study.comparison == compare([*FULL, *RULE, *OURS])
    assert study.asked["infobatch+lr whole_last"] == ()
    assert study.asked["full"][:2] == study.asked["infobatch+loss whole_last"][:2] == ("table1", "table4")
    assert study.rule == "infobatch+loss whole_last"
    assert study.to_rule["infobatch+lr whole_last"].mean == pytest.approx(1.6 / 3)
    assert study.to_rule["full"].mean == pytest.approx(0.8 / 3)
    assert "infobatch+loss whole_last" not in study.to_rule
    assert study.records == (Path("a.jsonl"), Path("b.jsonl"))


@pytest.mark.parametrize(
    "found",
    [
        [*FULL, *RULE],
        runs(paper(epochs=30), 70.0) + runs(paper(epochs=30, **LAST, method="infobatch", compensate="lr"), 70.0),
        runs(paper(weight_decay=0.01), 70.0) + OURS,
        [],
    ],
    ids=["only what papers ask for", "a setting of no paper", "only ours", "nothing"],
)
def test_what_does_not_go_beyond_a_paper_is_left_out(found: list[Run]) -> None:
    assert find_extensions(found, ALL) == []


def test_another_rate_stands_in_the_same_setting_and_is_named() -> None:
    faster = runs(paper(lr=0.075, steps=52_200), 78.6, 78.9, 78.9)
    (study,) = find_extensions([*FULL, *RULE, *faster], ALL)
    assert study.rates == (0.05, 0.075)
    assert study.rule == "infobatch+loss whole_last · lr=0.05"
    rows = {row.label: row for row in study.comparison.rows}
    assert rows["full, 52200 steps · lr=0.075"].difference is None  # no full data at its own rate
    assert study.to_rule["full, 52200 steps · lr=0.075"].mean == pytest.approx(1.7 / 3)


def test_data_and_precision_part_settings_and_hardware_does_not() -> None:
    elsewhere = runs(paper(**LAST, method="infobatch", compensate="lr", device="cuda:1", workers=3), 78.8)
    assert len(find_extensions([*FULL, *RULE, *elsewhere], ALL)) == 1
    coarser = runs(paper(**LAST, method="infobatch", compensate="lr", amp="bf16"), 78.8)
    assert find_extensions([*FULL, *RULE, *coarser], ALL) == []


def test_without_the_paper_s_rule_there_is_none_to_hold_against() -> None:
    (study,) = find_extensions([*FULL, *OURS], ALL)
    assert (study.rule, study.to_rule) == ("", {})


def test_settings_come_in_the_order_of_the_recipes() -> None:
    cell = load("table7").cells[0]
    assert cell.settings is not None
    other = runs(cell.settings, 95.0) + runs(cell.settings.but(method="rising:ratio=0.3"), 95.1)
    names = [study.comparison.rows[0].runs[0] for study in find_extensions([*other, *FULL, *OURS], ALL)]
    assert names == [FULL[0].name, other[0].name]
