"""Beyond the papers: in a setting of theirs, what no cell of theirs asks for, beside what one does.

    for study in beyond(evidence().runs, all_recipes()):
        print(study.name, [row.label for row in study.comparison.rows])

Which runs those are follows from their settings, as it does for the cells: nobody keeps a list of files, and a new
record takes its place by itself. Runs stand in one setting where they agree in all that decides what is learnt (data,
net, epochs, batch, optimizer, schedule, precision and so on) but for what a comparison is about: the method, what
grows, ideas, steps. The learning rate may differ, too, since the paper gives full data and InfoBatch different ones.
A setting is shown where a run in it belongs to a cell of a paper, which makes it the paper's, and another to none,
which makes it go beyond. So thirty epochs of the same net are left out: no paper has them.
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
"""The label of the paper's own rule."""


@dataclass(frozen=True)
class Beyond:
    """The runs in one setting of the papers, compared."""

    common: dict[str, Any]
    """The settings that all runs have."""
    rates: tuple[float, ...]
    comparison: Comparison
    asked: dict[str, tuple[str, ...]]
    """By label, the recipes with a cell that asks for it; none where it is ours."""
    rule: str
    """The label of the paper's own rule; empty where it was not run."""
    to_rule: dict[str, Difference]
    """By label, the difference to that."""
    records: tuple[Path, ...]

    @property
    def name(self) -> str:
        return f"{self.common['task']}, {self.common['model']}, {self.common['epochs']} epochs"


def beyond(runs: Iterable[Run], recipes: Sequence[Recipe]) -> list[Beyond]:
    """Each setting of the papers in which we ran more than they ask for, as the recipes have them."""
    asked = _asked(recipes)
    settings: dict[tuple[tuple[str, Any], ...], list[Run]] = {}
    for run in runs:
        settings.setdefault(tuple(_common(run).items()), []).append(run)
    found = [(members, [asked.get(essence(run.settings), ()) for run in members]) for members in settings.values()]
    shown = [members for members, whose in found if any(whose) and not all(whose)]
    studies = [_study(members, asked) for members in shown]
    order = [recipe.name for recipe in recipes]
    return sorted(studies, key=lambda one: min(order.index(name) for names in one.asked.values() for name in names))


def _asked(recipes: Iterable[Recipe]) -> dict[Settings, tuple[str, ...]]:
    """The recipes that ask for a run with such settings."""
    found: dict[Settings, tuple[str, ...]] = {}
    for recipe in recipes:
        for wanted in dict.fromkeys(essence(cell.settings) for cell in recipe.cells if cell.settings is not None):
            found[wanted] = (*found.get(wanted, ()), recipe.name)
    return found


def _common(run: Run) -> dict[str, Any]:
    return {name: value for name, value in decisive(run).items() if name != "lr"}


def _whose(members: list[Run], asked: dict[Settings, tuple[str, ...]]) -> tuple[str, ...]:
    """Of all members, since two ways to say what grows may have one label."""
    return tuple(dict.fromkeys(name for run in members for name in asked.get(essence(run.settings), ())))


def _study(runs: list[Run], asked: dict[Settings, tuple[str, ...]]) -> Beyond:
    sets = group(runs)
    whose = {name: _whose(members, asked) for name, members in sets.items()}
    rule = next((name for name, members in sets.items() if members[0].label == RULE and whose[name]), "")
    records = tuple(dict.fromkeys(run.file for run in runs if run.file is not None))
    looks = looks_beside(records)
    held = compare(runs, against=rule, looks=looks).rows if rule else ()
    return Beyond(
        common=_common(runs[0]),
        rates=tuple(sorted({run.settings.lr for run in runs})),
        comparison=compare(runs, looks=looks),
        asked=whose,
        rule=rule,
        to_rule={row.label: row.difference for row in held if row.difference is not None},
        records=records,
    )
