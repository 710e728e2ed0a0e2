"""Build the page that shows our tables beside the papers': the outcome of every recipe, and runs beyond them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

from ..lab.compare.comparison import Row
from ..lab.compare.naming import describe
from ..lab.compare.verdicts import Difference
from ..lab.format import percent
from ..lab.papers.extensions import RULE, Extension, find_extensions
from ..lab.papers.gathered import Evidence
from ..lab.papers.judge import LEVEL, CellOutcome, Outcome, Status
from ..lab.papers.recipe import Cell, Recipe, folder
from ..lab.runs.records import FILE
from . import shell
from .figures import svg
from .figures.figure import format_value, interval_text, mean_and_std, signed
from .figures.paper_gap import differences
from .series import FORBIDDEN

TITLE = "Our tables beside the papers'"
STATUSES: tuple[Status, ...] = tuple(status for status in get_args(Status) if status != "stand-in")


@dataclass(frozen=True)
class Link:
    text: str
    href: str
    """Relative to the page; empty if the file does not exist."""


@dataclass(frozen=True)
class Line:
    """A cell as text."""

    name: str
    note: str
    paper: str
    ours: str
    n: str
    saved: str
    paper_saved: str
    difference: str
    interval: str
    paper_difference: str
    status: str
    why: str
    records: tuple[Link, ...]


@dataclass(frozen=True)
class Group:
    """Cells of one unit, and which optional columns they need."""

    unit: str
    lines: tuple[Line, ...]

    @property
    def saved(self) -> bool:
        return any(line.saved or line.paper_saved for line in self.lines)

    @property
    def difference(self) -> bool:
        return any(line.difference or line.paper_difference for line in self.lines)


@dataclass(frozen=True)
class RecipeText:
    """A recipe as text: cells that were run as tables, the others as a list."""

    name: str
    anchor: str
    title: str
    claim: str
    source: str
    needs: str
    summary: str
    notes: tuple[str, ...]
    file: Link
    groups: tuple[Group, ...]
    open: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    """Cells that were not run or cannot be run yet, by heading: the name and the paper's value."""


def page(outcomes: Sequence[Outcome], known: Evidence, target: Path) -> str:
    """Render the whole page. The same outcomes and evidence give the same page if records and page move together."""
    with svg.page_style():
        figures = differences(list(outcomes))
    statuses = Counter(row.status for outcome in outcomes for row in outcome.rows)
    parts = [_part(outcome, target) for outcome in outcomes]
    ours = sum(len(group.lines) for part in parts for group in part.groups)
    same = [row for outcome in outcomes for row in outcome.rows if row.status == "reproduced"]
    trained = sum(row.cell.settings is not None for row in same)
    text = shell.render(
        "papers.html",
        ("style.css", "papers.css"),
        title=TITLE,
        subtitle=f"{len(outcomes)} tables and figures, {statuses.total()} cells; {ours} were run or measured here. "
        f"{len(same)} are reproduced: {trained} with trained networks, {len(same) - trained} measurements of overhead.",
        rules=_link("how a cell is judged", folder() / "README.md", target, "how-a-cell-is-judged"),
        level=percent(LEVEL),
        counts=[(status, statuses[status]) for status in STATUSES],
        unreadable=known.unreadable,
        beyond=[_study(one, target) for one in find_extensions(known.runs, [outcome.recipe for outcome in outcomes])],
        rule=describe(RULE),
        figures=figures,
        parts=parts,
    )
    return FORBIDDEN.sub("", text)


# ---- a recipe --------------------------------------------------------------------------------------------


def _part(outcome: Outcome, target: Path) -> RecipeText:
    recipe = outcome.recipe
    run = [row for row in outcome.rows if row.status not in ("not run", "waits")]
    return RecipeText(
        name=recipe.name,
        anchor=_anchor(recipe.name),
        title=recipe.title,
        claim=recipe.claim,
        source=f"{recipe.paper[:1].upper()}{recipe.paper[1:]}, {recipe.place}",
        needs=_needs(recipe),
        summary=outcome.summary,
        notes=recipe.notes,
        file=_link(recipe.name, folder() / f"{recipe.name}.toml", target),
        groups=tuple(
            Group(unit, tuple(_line(row, target) for row in run if row.cell.unit == unit))
            for unit in dict.fromkeys(row.cell.unit for row in run)
        ),
        open=_open(outcome),
    )


def _needs(recipe: Recipe) -> str:
    hours = f", about {recipe.gpu_hours:g} GPU hours" if recipe.gpu_hours else ""
    data = "" if recipe.data == "none" else f"{recipe.data}; "
    return f"{data}{recipe.hardware}{hours}"


def _open(outcome: Outcome) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    units = {row.cell.unit for row in outcome.rows} - {""}
    found: dict[str, list[tuple[str, str]]] = {}
    for row in outcome.rows:
        if row.status in ("not run", "waits"):
            kind = row.cell.waits.partition(":")[0]
            found.setdefault(kind, []).append((row.cell.name, _printed(row.cell, len(units) > 1)))
    return tuple((_heading(len(cells), kind), tuple(cells)) for kind, cells in found.items())


def _heading(many: int, kind: str) -> str:
    """Head a list of cells that wait for something, or that have not been run."""
    return f"{many} {'waits' if many == 1 else 'wait'} for {kind}" if kind else f"{many} not run"


def _printed(cell: Cell, with_unit: bool) -> str:
    """Format the paper's value of a cell on one line."""
    unit = f" {cell.unit}" if with_unit and cell.target is not None else ""
    saved = f", {cell.saved:g} % saved" if cell.saved is not None else ""
    return f"{_paper(cell)}{unit}{saved}"


def _line(row: CellOutcome, target: Path) -> Line:
    cell = row.cell
    return Line(
        name=cell.name,
        note=cell.note,
        paper=_paper(cell),
        ours="" if row.ours is None else _with_spread(format_value("{:.4g}", row.ours), row.std),
        n=f"n = {row.n}" if row.n else "",
        saved="" if row.saved is None else format_value("{:.1f} %", row.saved),
        paper_saved="" if cell.saved is None else f"{cell.saved:.1f} %",
        difference=_apart(cell, row.compared),
        interval=interval_text(row.low, row.high, cell.places) if cell.against else "",
        paper_difference=_apart(cell, row.wanted),
        status=row.status,
        why=row.why,
        records=tuple(_record(path, target) for path in row.records),
    )


def _paper(cell: Cell) -> str:
    value = cell.paper if cell.paper is not None else cell.expect
    if value is None or isinstance(value, str):
        return value or ""
    return _with_spread(format_value("{:g}", value), cell.spread)


def _with_spread(text: str, spread: float | None) -> str:
    return text if spread is None else f"{text} ± {spread:.2g}"


def _apart(cell: Cell, value: float | None) -> str:
    if value is None:
        return ""
    return f"{format_value('{:.3g}', value)} times" if cell.compare == "factor" else signed(value, cell.places)


# ---- beyond the papers -----------------------------------------------------------------------------------


def _study(study: Extension, target: Path) -> dict[str, Any]:
    return {
        "name": study.name,
        "settings": _settings(study),
        "metric": study.comparison.metric,
        "interval": percent(study.comparison.interval_level),
        "rule": describe(study.rule),
        "notes": study.comparison.notes,
        "looked": study.comparison.looked,
        "records": [_record(path, target) for path in study.records],
        "rows": [_compared(row, study) for row in study.comparison.rows],
    }


def _settings(study: Extension) -> str:
    common, rates = study.common, " or ".join(f"{rate:g}" for rate in study.rates)
    parts = [
        f"Batch {common['batch_size']}",
        common["optimizer"],
        f"{common['schedule']} to {rates}",
        f"weight decay {common['weight_decay']:g}",
        f"label smoothing {common['label_smoothing']:g}",
        "" if common["amp"] == "none" else common["amp"],
    ]
    return f"{', '.join(part for part in parts if part)}."


def _compared(row: Row, study: Extension) -> dict[str, Any]:
    places = study.comparison.metric_info.places
    return {
        "label": describe(row.label),
        "asked": [(name, _anchor(name)) for name in study.asked[row.label]],
        "n": row.n,
        "mean": mean_and_std(row.mean, row.std, places),
        "saved": "" if row.compute_saved is None else format_value("{:.1f} %", 100 * row.compute_saved),
        "difference": _ends(row.difference, places),
        "to_rule": _ends(study.to_rule.get(row.label), places),
        "verdict": row.verdict,
    }


def _ends(found: Difference | None, places: int) -> tuple[str, str]:
    return ("", "") if found is None else (signed(found.mean, places), interval_text(found.low, found.high, places))


# ---- links -----------------------------------------------------------------------------------------------


def _anchor(name: str) -> str:
    """Link to the section of a recipe, whose id is its name."""
    return quote(FORBIDDEN.sub("", name))


def _record(path: Path, page: Path) -> Link:
    """Link to a record by the name of its file, or of its folder if all records have the same file name."""
    return _link(path.parent.name if path.name == FILE else path.name, path, page)


def _link(text: str, path: Path, page: Path, anchor: str = "") -> Link:
    """Link from the page to a file by a relative path, so that both can move together; no link if it is missing."""
    if not path.is_file():
        return Link(text, "")
    relative = os.path.relpath(os.path.realpath(path), os.path.dirname(os.path.realpath(page)))
    return Link(text, quote(os.fsencode(relative)) + (f"#{anchor}" if anchor else ""))
