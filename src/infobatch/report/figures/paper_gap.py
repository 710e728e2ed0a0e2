"""Draw the differences of a recipe: ours with its interval, the paper's, and the range that counts as reproduced."""

from __future__ import annotations

import math

from ...lab.format import percent
from ...lab.papers.judge import LEVEL, CellOutcome, Outcome, edges
from ..series import FORBIDDEN
from .bars import Rows
from .figure import Figure, Key, csv_link, dot, patch, signed, swatch, with_interval
from .svg import INK, LINES, MUTED, PARTS, Style

OURS, PAPER, WITHIN = Style(LINES[0]), Style(INK, marker="D"), PARTS[5]
HEAD = ["recipe", "cell", "against", "n", "ours", "low", "high", "paper", "expected", "from", "to", "outcome"]


def differences(outcomes: list[Outcome]) -> list[Figure]:
    """Draw one figure per recipe with cells that are compared with another in points and were trained here."""
    found = [(outcome, [row for row in outcome.rows if _drawn(row)]) for outcome in outcomes]
    shown = [(outcome, rows) for outcome, rows in found if rows]
    return [_figure(f"differences-{place}", outcome, rows) for place, (outcome, rows) in enumerate(shown)]


def _drawn(row: CellOutcome) -> bool:
    trained = row.cell.settings is not None and row.cell.compare == "points"
    return trained and bool(row.cell.against) and row.compared is not None


def within(row: CellOutcome) -> tuple[float, float]:
    """Return the range that must contain the whole interval to count as reproduced; infinite if there is none."""
    if row.wanted is None and row.cell.expect is None:
        return -math.inf, math.inf
    bottom, top = edges(row)
    return (row.wanted or 0.0) + bottom, (row.wanted or 0.0) + top


def _figure(key: str, outcome: Outcome, rows: list[CellOutcome]) -> Figure:
    recipe = outcome.recipe
    plot, units = Rows(len(rows), each=60, folded=True), dict.fromkeys(row.cell.unit for row in rows)
    low, high = _scale(rows)
    unit = FORBIDDEN.sub("", next(iter(units)))
    plot.scale(low, high, f"points of {unit.partition(',')[0]}" if len(units) == 1 and unit else "points")
    plot.axes.axvline(0, color=MUTED, linewidth=1)
    for place, row in enumerate(rows):
        _row(plot, place, row)
    title = f"{recipe.name}: {recipe.title}"
    return Figure(
        key,
        title,
        plot.svg(key, FORBIDDEN.sub("", f"{title}: our differences beside the paper's, {len(rows)} of its cells")),
        f"The dot is our mean over pairs of runs with the same seed, and the line is its {percent(LEVEL)} interval.",
        (
            Key(swatch(OURS), "ours"),
            Key(dot(PAPER), "the paper's, where it has a number"),
            Key(patch(WITHIN), "counts as reproduced if the whole line is inside"),
        ),
        csv_link(HEAD, [_line(recipe.name, row) for row in rows]),
    )


def _scale(rows: list[CellOutcome]) -> tuple[float, float]:
    ends = [
        0.0,
        *(
            end
            for row in rows
            for end in (row.compared, row.low, row.high, row.wanted, *within(row))
            if end is not None
        ),
    ]
    known = [end for end in ends if math.isfinite(end)]
    pad = 0.06 * (max(known) - min(known)) or 1.0
    return min(known) - pad, max(known) + pad


def _row(plot: Rows, place: int, row: CellOutcome) -> None:
    y, (left, right) = plot.middle(place), plot.axes.get_xlim()
    bottom, top = within(row)
    if math.isfinite(bottom) or math.isfinite(top):
        start, end = max(bottom, left), min(top, right)
        plot.axes.barh(y, end - start, left=start, height=0.3, color=WITHIN, alpha=0.4, linewidth=0)
    if row.low is not None and row.high is not None:
        plot.axes.plot([row.low, row.high], [y, y], color=OURS.colour, linewidth=2.4)
    assert row.compared is not None
    if row.wanted is not None:
        plot.axes.plot([row.wanted], [y], PAPER.marker, color=PAPER.colour, markersize=6)
    plot.axes.plot([row.compared], [y], OURS.marker, color=OURS.colour, markersize=7)
    theirs = str(row.cell.expect or "none") if row.wanted is None else signed(row.wanted, row.cell.places)
    texts = [
        (OURS.colour, f"ours {with_interval(row.compared, row.low, row.high, row.cell.places)}"),
        (PAPER.colour, f"paper {theirs}"),
        (None, row.text),
    ]
    plot.row(place, FORBIDDEN.sub("", row.cell.name), lines=texts)


def _line(recipe: str, row: CellOutcome) -> list[object]:
    ends = [end if math.isfinite(end) else None for end in within(row)]
    cell, ours = row.cell, [row.compared, row.low, row.high]
    return [recipe, cell.name, cell.against, row.n, *ours, row.wanted, cell.expect, *ends, row.status]
