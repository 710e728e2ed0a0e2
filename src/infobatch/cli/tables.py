"""Tables for people, on stdout."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from ..lab.comparison import Comparison, Difference, Row
    from ..lab.doctor import Diagnosis
    from ..lab.estimate import Estimate
    from ..lab.recipes import CellOutcome, Line, Outcome

PLAIN_WIDTH = 200
"""Of a line where stdout is no terminal: nobody has to see it at once."""

MARKS = {"ok": "[ok]", "warning": "[warning]", "problem": "[problem]", "not checkable": "[not checkable]"}
STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red", "not checkable": "dim"}


def console() -> Console:
    return Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False)


def show(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    """A table; columns named in ``right`` hold numbers, and empty ones are left out. Cells are text, never markup."""
    rows = list(rows)
    full = [at for at in range(len(columns)) if any(row[at] for row in rows)]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for at in full:
        numbers = columns[at] in right
        table.add_column(Text(columns[at]), justify="right" if numbers else "left", no_wrap=numbers)
    for row in rows:
        table.add_row(*(Text(row[at]) for at in full))
    console().print(table)


def say(*lines: str) -> None:
    for text in lines:
        console().print(Text(text), soft_wrap=True)


def comparison(found: Comparison) -> None:
    columns = ("method", "n", found.metric, "saved %", "steps", "seconds", "difference", "at equal steps", "verdict")
    show(columns, map(_compared, found.rows), right=columns[1:-2])
    level = f"{100 * found.level:g} %"
    say(f"Differences are to {found.baseline} with the same seeds, in points, with intervals at {level}.")
    say(*(f"Note: {note}" for note in found.notes))


def _compared(row: Row) -> tuple[str, ...]:
    spread = f" ± {row.std:.2f}" if row.std is not None else ""
    return (
        row.label,
        str(row.n),
        f"{row.mean:.2f}{spread}" if row.mean is not None else "-",
        f"{100 * row.saved:.1f}" if row.saved is not None else "-",
        f"{row.steps:,.0f}" if row.steps is not None else "-",
        f"{row.seconds:.1f}" if row.seconds is not None else "-",
        _apart(row.difference),
        _apart(row.same_steps),
        row.verdict.text,
    )


def _apart(found: Difference | None) -> str:
    if found is None:
        return ""
    interval = f" [{found.low:+.2f}, {found.high:+.2f}]" if found.low is not None and found.high is not None else ""
    return f"{found.mean:+.2f}{interval}"


def outcome(found: Outcome) -> None:
    recipe = found.recipe
    say(f"{recipe.name}: {recipe.title}", f"Claim: {recipe.claim}")
    if found.quick:
        works = "It shows that the recipe works, never that the paper is right."
        say(f"Quick, with a {found.stand_in}. {works}" if found.stand_in else "Quick: fewer measurements.")
    columns = ("cell", "paper", "ours", "n", "saved %, paper", "saved %, ours", "outcome")
    show(columns, map(_cell, found.rows), right=columns[1:-1])
    say(*(f"Note: {note}" for note in recipe.notes))
    say(f"In all: {found.summary}.")


def _cell(row: CellOutcome) -> tuple[str, ...]:
    cell = row.cell
    paper = str(cell.expect or "") if cell.paper is None else f"{cell.paper:g}"
    ours = "" if row.ours is None else f"{row.ours:.4g}"
    return (
        f"{cell.name}, {cell.unit}" if cell.unit else cell.name,
        paper + (f" ± {cell.spread:g}" if cell.spread is not None else ""),
        ours + (f" ± {row.std:.2g}" if row.std is not None else ""),
        str(row.n or ""),
        "" if cell.saved is None else f"{cell.saved:.1f}",
        "" if row.saved is None else f"{row.saved:.1f}",
        f"{row.text}: {row.why}" if row.why else row.text,
    )


def recipes(lines: Iterable[Line]) -> None:
    columns = ("recipe", "what", "outcome here", "where", "quick version")
    rows = []
    for one in lines:
        place = "; ".join(one.outcome.where)
        waits = f"; waits for {', '.join(one.recipe.waits)}" if one.recipe.waits else ""
        quick = one.quick.summary if one.quick.when else "not run"
        rows.append((one.recipe.name, one.recipe.title, one.outcome.summary + waits, place, quick))
    show(columns, rows)


def estimates(found: Sequence[Estimate]) -> None:
    columns = ("method", "saved %", "effective size", "noise, at most", "largest weight")
    rows = [
        (
            one.method,
            f"{100 * one.saved:.1f}" + (f" ± {100 * one.spread:.1f}" if one.spread >= 5e-4 else ""),
            f"{one.effective_size:,.0f}",
            f"{one.noise:.2f}",
            f"{one.largest_weight:.2f}",
        )
        for one in found
    ]
    show(columns, rows, right=columns[1:])
    say(*(f"Note: {text}" for text in dict.fromkeys(text for one in found for text in one.unknown)))


def diagnosis(found: Diagnosis) -> None:
    say(f"{found.target}: {found.loader}; {found.samples:,} samples, {found.epochs} passes")
    for check in found.checks:
        console().print(Text(f"{MARKS[check.status]} {check.name}: ", style=STYLES[check.status]), end="")
        say(check.seen)
        say(*(f"    {line}" for text in (check.means, check.mend) for line in text.splitlines()))
    say(found.verdict)
