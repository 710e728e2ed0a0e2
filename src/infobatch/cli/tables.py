"""Print results as tables and sentences, on stdout."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..lab.compare.naming import SHORTER_RUN, name_rows
from ..lab.compare.verdicts import NOT_JUDGED
from ..lab.format import format_number, percent
from ..lab.metrics.metric_info import MetricInfo

if TYPE_CHECKING:
    from ..lab.compare.comparison import Comparison, Row
    from ..lab.compare.tuning import AtBest
    from ..lab.compare.verdicts import Difference
    from ..lab.doctor import Diagnosis
    from ..lab.estimate.savings import Estimate
    from ..lab.papers.judge import CellOutcome, Listed, Outcome

PLAIN_WIDTH = 120
"""The width of tables if stdout is not a terminal and the variable COLUMNS is not set."""
ROOMY = 150
"""From this width on, texts such as verdicts are part of the table; below, each gets a line under it."""

MARKS = {"ok": "[ok]", "warning": "[warning]", "problem": "[problem]", "not checkable": "[not checkable]"}
STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red", "not checkable": "dim"}


def console() -> Console:
    is_known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()  # rich reads COLUMNS itself
    return Console(width=None if is_known else PLAIN_WIDTH, highlight=False)


def roomy() -> bool:
    return console().width >= ROOMY


def show(
    columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = (), spare: Sequence[str] = ()
) -> list[str]:
    """Print a table; cells are text, never markup, and empty columns are left out.

    Args:
        columns: The headings.
        rows: The cells of each row.
        right: Headings of columns with numbers, aligned to the right.
        spare: Headings of columns to drop, in this order, if the table is too wide. If it is still too wide, cells
            are folded, never cut; names fold after a colon, a comma or a space.

    Returns:
        The headings of the columns that were dropped.
    """
    rows = list(rows)
    full = [at for at in range(len(columns)) if any(row[at] for row in rows)]
    here, gone = console(), []
    endless = Console(width=100_000)
    for name in (name for name in spare if columns.index(name) in full):
        if endless.measure(_table(columns, rows, full, right)).maximum <= here.width:
            break
        full.remove(columns.index(name))
        gone.append(name)
    here.print(_table(columns, rows, full, right, fold=here.width))
    return gone


def _table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], shown: Sequence[int], right: Sequence[str], fold: int = 0
) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    words = sum(columns[at] not in right for at in shown)
    names = [row[0] for row in rows]
    # a name in one piece is easier to find and copy: other texts fold first, if there are any
    numbers = 2 + sum(3 + max(len(columns[at]), *(len(row[at]) for row in rows)) for at in shown[1:])
    room = (fold // 3 if words > 1 else fold - numbers) if rows else 0
    if room > 0:
        names = [_fold_name(name, room) for name in names]
    is_whole = room >= max((len(line) for name in names for line in name.splitlines()), default=0)
    for at in shown:
        number = columns[at] in right
        no_wrap = number or (at == 0 and is_whole)
        table.add_column(Text(columns[at]), justify="right" if number else "left", no_wrap=no_wrap, overflow="fold")
    for name, row in zip(names, rows, strict=True):
        table.add_row(*(Text(row[at] if at else name) for at in shown))
    return table


def _fold_name(name: str, width: int) -> str:
    """Break a name into lines of at most this width, where possible, after colons, commas and spaces.

    >>> _fold_name("sieve.hardest:keep=0.5,then=infobatch", 24).splitlines()
    ['sieve.hardest:keep=0.5,', 'then=infobatch']
    """
    lines = [""]
    for piece in re.split(r"(?<=[:, ])(?! )", name):
        if lines[-1] and len(lines[-1] + piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


def say(*lines: str) -> None:
    for text in lines:
        console().print(Text(text), soft_wrap=True)


def print_answers(texts: Sequence[str]) -> None:
    """Print the answers in plain sentences, set off from the tables above."""
    for text in texts:
        console().print()
        console().print(Text(f"Answer: {text}", style="bold"), soft_wrap=True)


SHORTER, VERDICT = f"to {SHORTER_RUN}", "verdict"


def print_comparison(found: Comparison, best: AtBest | None = None) -> None:
    found, best = name_rows(found, best)
    info = found.metric_info
    columns = ("method", "n", found.metric, "saved %", "steps", "seconds", "difference", SHORTER, VERDICT)
    _judged(columns, [_compared(row, info) for row in found.rows])
    level = percent(found.interval_level)
    other = found.against or found.baseline
    unit = f", in {info.scale}" if info.scale else ""
    lower = "" if info.higher_is_better else f" For {info.name}, lower is better."
    say(f"difference: compared with {other} at the same seeds{unit} [{level} interval].{lower}")
    if found.rates or any(row.same_cost is not None for row in found.rows):
        rates = found.rates or "at the same learning rate"
        say(f"{SHORTER_RUN}: full data at equal compute, {rates}; {SHORTER}: the difference from that run.")
    if any(row.looking is not None for row in found.rows):
        say("saved: compute (FLOPs, forward and backward) net of looking; in brackets the samples left out.")
    judged = sum(
        row.difference is not None and row.difference.low is not None and row.verdict.kind not in NOT_JUDGED
        for row in found.rows
    )
    if judged:
        say(found.looked)
    if judged > 1:
        say("Verdicts are not corrected for the number of methods compared.")
    say(*(f"Note: {note}" for note in found.notes))
    if best is not None:
        say("", f"{best.title}:")
        rows = [(name, f"{one.rate:g}", *rest) for one in best.rows for name, *rest in [_compared(one.row, info)]]
        _judged((columns[0], "rate", *columns[1:]), rows)
        say(*best.about)


def _judged(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with verdicts; if it is narrow, they go under it."""
    if roomy():
        show(columns, rows, right=columns[1:-2])
        return
    gone = show(columns[:-1], [row[:-1] for row in rows], right=columns[1:-1], spare=("seconds", "steps", SHORTER))
    for row in rows:
        words = dict(zip(columns, row, strict=True))
        apart = f"; difference {SHORTER} {words[SHORTER]}" if SHORTER in gone and words[SHORTER] else ""
        say(f"{words['method']}: {words[VERDICT]}{apart}")


def _compared(row: Row, info: MetricInfo) -> tuple[str, ...]:
    return (
        row.label,
        str(row.n),
        _spread(f"{{:.{info.places}f}}", row.mean, row.std),
        _saved(row),
        f"{row.steps:,.0f}" if row.steps is not None else "-",
        _spread("{:.1f}", row.seconds, row.seconds_std),
        _apart(row.difference, info),
        _apart(row.same_cost, info),
        row.verdict.text,
    )


def _saved(row: Row) -> str:
    """The share of the compute saved, in percent, and that of the samples if it differs."""
    if row.saved is None or row.compute_saved is None:
        return "-"
    compute, samples = (format_number("{:.1f}", 100 * share) for share in (row.compute_saved, row.saved))
    return compute if compute == samples else f"{compute} (samples {samples})"


def _spread(form: str, mean: float | None, std: float | None) -> str:
    if mean is None:
        return "-"
    return format_number(form, mean) + (f" ± {form.format(std)}" if std is not None else "")


def _apart(found: Difference | None, info: MetricInfo) -> str:
    if found is None:
        return ""
    mean, *ends = (info.signed(end) for end in (found.mean, found.low, found.high) if end is not None)
    return f"{mean} [{', '.join(ends)}]" if ends else mean


def print_outcome(found: Outcome) -> None:
    recipe = found.recipe
    say(f"{recipe.name}: {recipe.title}", f"Claim: {recipe.claim}")
    if not recipe.runnable:
        say(f"Nothing can run yet: all {len(recipe.cells)} cells wait for {'; '.join(recipe.waits)}.")
    elif found.quick:
        works = "This shows that the recipe runs, not that the paper is right."
        say(f"Quick, with a {found.stand_in}. {works}" if found.stand_in else "Quick: fewer measurements.")
    wide = roomy()
    for unit in dict.fromkeys(row.cell.unit for row in found.rows):  # one table per unit, which its heading names
        first = f"cell ({unit})" if unit else "cell"
        columns = (first, "paper", "ours", "n", "saved %, paper", "saved %, ours", "outcome")
        show(columns, [_cell(row, wide) for row in found.rows if row.cell.unit == unit], right=columns[1:-1])
    if not wide:
        say(*(f"{row.cell.name}: {row.text}: {row.why}" for row in found.rows if row.why))
        if recipe.waits and recipe.runnable:
            say(f"Waits for {'; '.join(recipe.waits)}.")
    say(*(f"Note: {note}" for note in recipe.notes))
    say(f"Summary: {found.summary}.")


def _cell(row: CellOutcome, wide: bool) -> tuple[str, ...]:
    cell = row.cell
    paper = str(cell.expect or "") if cell.paper is None else f"{cell.paper:g}"
    ours = "" if row.ours is None else format_number("{:.4g}", row.ours)
    words = f"{row.text}: {row.why}" if row.why else row.text
    return (
        cell.name,
        paper + (f" ± {cell.spread:g}" if cell.spread is not None else ""),
        ours + (f" ± {row.std:.2g}" if row.std is not None else ""),
        str(row.n or ""),
        "" if cell.saved is None else f"{cell.saved:.1f}",
        "" if row.saved is None else format_number("{:.1f}", row.saved),
        words if wide else row.status,
    )


OUTCOMES = (
    "wait: cannot be run yet; consistent: agrees, but that proves little; too few seeds: one seed decides nothing; "
    "for comparison: our own control, or a number that depends on the machine."
)


def print_recipes(lines: Iterable[Listed]) -> None:
    columns = ("recipe", "title", "outcome here", "hardware", "quick version")
    rows = []
    for one in lines:
        place = "; ".join(one.outcome.where)
        waits = f"; waits for {', '.join(one.recipe.waits)}" if one.recipe.waits else ""
        quick = one.quick.summary if one.quick.when else "not run"
        rows.append((one.recipe.name, one.recipe.title, one.outcome.summary + waits, place, quick))
    show(columns, rows)
    say(OUTCOMES)


def print_estimates(found: Sequence[Estimate], left_out: Mapping[str, str]) -> None:
    columns = ("method", "saved %", "effective size", "largest noise", "largest weight")
    rows = [
        (
            one.method,
            format_number("{:.1f}", 100 * one.saved) + (f" ± {100 * one.spread:.1f}" if one.spread >= 5e-4 else ""),
            f"{one.effective_size:,.0f}",
            f"{one.noise:.2f}",
            f"{one.largest_weight:.2f}",
        )
        for one in found
    ]
    show(columns, rows, right=columns[1:], spare=columns[-1:])
    say(
        "effective size: how many equally weighted samples would be worth as much; mean over the epochs.",
        "largest noise: squared noise-to-signal ratio of a step compared with full data, in the worst pruned epoch; "
        "the paper (appendix B.3) requires at most 1.",
    )
    reasons = {why: ", ".join(name for name in left_out if left_out[name] == why) for why in left_out.values()}
    if reasons:
        say(f"Left out: {'; '.join(f'{names} ({why})' for why, names in reasons.items())}.")
    say(*(f"Note: {text}" for text in dict.fromkeys(text for one in found for text in one.unknown)))


def print_diagnosis(found: Diagnosis) -> None:
    passes = "1 pass" if found.epochs == 1 else f"{found.epochs} passes"
    say(f"{found.target}: {found.loader}; {found.samples:,} samples, {passes}")
    for check in found.checks:
        console().print(Text(f"{MARKS[check.status]} {check.name}: ", style=STYLES[check.status]), end="")
        say(check.seen)
        say(*(f"    {line}" for text in (check.means, check.fix) for line in text.splitlines()))
    say(found.verdict)
