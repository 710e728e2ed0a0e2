"""Runs beyond the papers: in a setting of theirs, methods that none of their cells ask for.

    for study in find_extensions(evidence().runs, all_recipes()):
        print(study.name, [row.label for row in study.comparison.rows])

Their settings decide which runs these are, as for the cells, so a new record needs no list of files. Runs share a
setting if they agree in everything that decides what is learned (data, net, epochs, batch size, optimizer, schedule,
precision and so on) except for what a comparison varies: the method, what grows, ideas, steps. The learning rate may
differ, too, since the paper gives full data and InfoBatch different ones. A setting is shown if one of its runs belongs
to a cell of a paper and another does not. Thirty epochs of the same net are therefore left out: no paper has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..compare.comparison import Comparison, compare
from ..compare.grouping import decisive, group
from ..compare.verdicts import Difference
from ..runs.records import Run, label, looks_beside
from ..train.settings import Settings
from .recipe import Recipe, essence

RULE = label(Settings(method="infobatch", compensate="loss", ideas="whole_last"))
"""The label of the paper's own rule, as recorded."""


@dataclass(frozen=True)
class Extension:
    """The runs in one setting of the papers, compared."""

    common: dict[str, Any]
    """The settings that all runs share."""
    rates: tuple[float, ...]
    comparison: Comparison
    asked: dict[str, tuple[str, ...]]
    """By label, the recipes with a cell that asks for it; empty if the row is ours."""
    rule: str
    """The label of the paper's own rule; empty if it was not run."""
    to_rule: dict[str, Difference]
    """By label, the difference to that row."""
    records: tuple[Path, ...]

    @property
    def name(self) -> str:
        """A heading."""
        return f"{self.common['task']}, {self.common['model']}, {self.common['epochs']} epochs"


def find_extensions(runs: Iterable[Run], recipes: Sequence[Recipe]) -> list[Extension]:
    """Find the settings of the papers in which we ran more than they ask for, in the order of the recipes."""
    asked = _recipes_by_settings(recipes)
    settings: dict[tuple[tuple[str, Any], ...], list[Run]] = {}
    for run in runs:
        settings.setdefault(tuple(_common(run).items()), []).append(run)
    found = [(members, [asked.get(essence(run.settings), ()) for run in members]) for members in settings.values()]
    shown = [members for members, whose in found if any(whose) and not all(whose)]
    studies = [_compare_setting(members, asked) for members in shown]
    order = [recipe.name for recipe in recipes]
    return sorted(studies, key=lambda one: min(order.index(name) for names in one.asked.values() for name in names))


def _recipes_by_settings(recipes: Iterable[Recipe]) -> dict[Settings, tuple[str, ...]]:
    """Map settings to the recipes that ask for them."""
    found: dict[Settings, tuple[str, ...]] = {}
    for recipe in recipes:
        for wanted in dict.fromkeys(essence(cell.settings) for cell in recipe.cells if cell.settings is not None):
            found[wanted] = (*found.get(wanted, ()), recipe.name)
    return found


def _common(run: Run) -> dict[str, Any]:
    return {name: value for name, value in decisive(run).items() if name != "lr"}


def _recipes_of(members: list[Run], asked: dict[Settings, tuple[str, ...]]) -> tuple[str, ...]:
    """Consider all members, since different settings of compensate may share a label."""
    return tuple(dict.fromkeys(name for run in members for name in asked.get(essence(run.settings), ())))


def _compare_setting(runs: list[Run], asked: dict[Settings, tuple[str, ...]]) -> Extension:
    sets = group(runs)
    whose = {name: _recipes_of(members, asked) for name, members in sets.items()}
    rule = next((name for name, members in sets.items() if members[0].label == RULE and whose[name]), "")
    records = tuple(dict.fromkeys(run.file for run in runs if run.file is not None))
    looks = looks_beside(records)
    held = compare(runs, against=rule, looks=looks).rows if rule else ()
    return Extension(
        common=_common(runs[0]),
        rates=tuple(sorted({run.settings.lr for run in runs})),
        comparison=compare(runs, looks=looks),
        asked=whose,
        rule=rule,
        to_rule={row.label: row.difference for row in held if row.difference is not None},
        records=records,
    )
