"""Fill the cards' measured parts and table1.md from records.

    python tools/method_tables.py            # from research/records/small_table
    python tools/method_tables.py --check    # changes nothing; names what is out of date, and then ends with 1

Needs infobatch[lab]. What stands outside the marks is left as it is.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from infobatch.lab.compare import comparison, verdicts
from infobatch.lab.compare.grouping import COMPARED, COST, group
from infobatch.lab.compare.verdicts import Difference
from infobatch.lab.runs import fields as readings
from infobatch.lab.runs import records
from infobatch.lab.runs.fields import metric_of
from infobatch.lab.runs.records import Run
from infobatch.lab.train.method_text import STATIC, VARIATIONS, parse_method, parse_static
from infobatch.lab.train.settings import Settings
from infobatch.lab.train.static import PROXY
from infobatch.methods import METHODS
from infobatch.selection import SELECTORS

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "docs" / "methods"
KEPT = ROOT / "research" / "records" / "small_table"
BEGIN, END = "<!-- measured -->", "<!-- /measured -->"
NOTHING = "Not measured yet."
TABLE = "table1.md"
TITLES = {"digits": "digits", "fashion_mnist": "Fashion-MNIST"}
SHARES = (30, 50, 70)
BY_RATIO = (
    *("random", "random_star", "rising", "epsilon_greedy", "ucb"),
    *("dynamic_uncertainty", "rs2", "rcap", "eswp"),
)
"""Methods whose ``ratio`` is the share of all samples that a pruned epoch leaves out."""


@dataclass(frozen=True)
class Line:
    """What was measured of one method at one share of one task."""

    task: str
    card: str
    """The name of its file: ucb, static_el2n."""
    asked: int | None
    """Per cent to leave out; None where the rule itself decides."""
    settings: str
    """What else was set."""
    varied: bool
    accuracy: str
    saved: float | None
    to_full: Difference | None
    to_steps: Difference | None

    @property
    def row(self) -> tuple[str, str]:
        return self.card, self.settings


# ---- from runs to lines --------------------------------------------------------------------------------------


def asked_of(method: str) -> float | None:
    """The share that a method's text asks to leave out; None where its rule decides.

    >>> asked_of("ucb:ratio=0.5"), asked_of("static.el2n:share=0.25"), asked_of("infobatch")
    (0.5, 0.75, None)
    """
    static = parse_static(method)
    if static is not None:
        return None if static.then else 1 - float(static.settings["share"])
    made = parse_method(method)
    own: dict[str, Any] = made.settings
    if made.name in BY_RATIO:
        return float(own["ratio"])
    if made.name == "saving":
        return float(own["share"])
    if made.name == "order_dp":
        return 1 - float(own["some"] * own["best"])
    if made.name == "seta":
        return 1 - float((1 - own["ratio"]) * own["share"])
    return None


def card_of(method: str) -> str:
    """The file a method's numbers belong to."""
    return method.partition(":")[0].replace(STATIC, "static_")


def shown(settings: Settings, more: str) -> str:
    """The settings but for the one that asks for the share."""
    name, _, rest = settings.method.partition(":")
    budget = {"saving": "share", "order_dp": "best"}.get(name, "share" if name.startswith(STATIC) else "ratio")
    if asked_of(settings.method) is None:
        budget = ""
    parts = [part for part in rest.split(",") if part and part.partition("=")[0].strip() != budget]
    if settings.grows != "none":
        parts.append(f"{settings.grows} grows")
    parts += [part for part in (settings.ideas, more) if part]
    return ", ".join(parts)


def lines(runs: Iterable[Run]) -> list[Line]:
    """Every method of every task against full data with the same settings and seeds."""
    tasks: dict[str, list[Run]] = {}
    for run in runs:
        tasks.setdefault(run.settings.task, []).append(run)
    return [line for task, members in tasks.items() for line in _of_task(task, members)]


def _of_task(task: str, runs: list[Run]) -> list[Line]:
    curves = Curves(runs)
    trained = [run for run in runs if not run.settings.steps]
    sets = group(trained)
    found = []
    for row in comparison.compare(trained).rows if trained else ():
        members = sets[row.label]
        settings = members[0].settings
        if not row.n:
            continue
        asked = asked_of(settings.method)
        found.append(
            Line(
                task=task,
                card=card_of(settings.method),
                asked=None if asked is None else round(100 * asked),
                settings=shown(settings, row.label.partition(" · ")[2]),
                varied=any(f"{name}=" in settings.method for name in VARIATIONS),
                accuracy=spread(row.mean, row.std, row.n),
                saved=row.saved,
                to_full=row.difference,
                to_steps=None if settings.method == "full" else curves.difference(members),
            )
        )
    return found + _fewer_steps(task, runs)


def _fewer_steps(task: str, runs: list[Run]) -> list[Line]:
    """Full data that stopped early, against full data that did not."""
    whole = [run for run in runs if run.settings.method == "full"]
    return [
        Line(
            task=task,
            card="full",
            asked=None,
            settings=f"steps={row.steps:.0f}",
            varied=False,
            accuracy=spread(row.mean, row.std, row.n),
            saved=None,
            to_full=row.difference,
            to_steps=None,
        )
        for row in (comparison.compare(whole).rows if whole else ())
        if row.n and row.steps and row.verdict.kind != "baseline"
    ]


class Curves:
    """Full data by its number of steps, seed by seed: what as many steps would have given."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self.points: dict[Any, dict[float, float]] = {}
        for run in runs:
            metric, steps = metric_of(run), readings.number((run.end or {}).get("steps"))
            if run.settings.method == "full" and metric is not None and steps:
                self.points.setdefault(_alike(run), {})[steps] = metric

    def at(self, run: Run) -> float | None:
        """Full data with this run's steps: measured, or on the line between its two neighbours over log(steps)."""
        steps = readings.number((run.end or {}).get("steps"))
        points = sorted(self.points.get(_alike(run), {}).items())
        if not steps:
            return None
        for (low, before), (high, after) in pairwise(points):
            if low <= steps <= high:
                share = math.log(steps / low) / math.log(high / low)
                return before + share * (after - before)
        return dict(points).get(steps)

    def difference(self, runs: Iterable[Run]) -> Difference | None:
        apart: dict[int, float] = {}
        for run in runs:
            mine, theirs = metric_of(run), self.at(run)
            if mine is not None and theirs is not None:
                apart[run.settings.seed] = mine - theirs
        if not apart:
            return None
        seeds, values = zip(*sorted(apart.items()), strict=True)
        if len(values) == 1:
            return Difference(seeds, values[0], None, None, None)
        low, high = verdicts.interval(values, 0.95)
        return Difference(seeds, statistics.fmean(values), statistics.stdev(values), low, high)


def _alike(run: Run) -> tuple[Any, ...]:
    """What two runs must share to be compared: the seed, and all but what is compared and what it costs."""
    plain = run.settings.plain()
    return run.settings.seed, *(str(value) for name, value in plain.items() if name not in COMPARED + COST)


# ---- from lines to text --------------------------------------------------------------------------------------


def spread(mean: float | None, std: float | None, n: int) -> str:
    """mean ± sd (n)."""
    if mean is None:
        return "-"
    return f"{mean:.2f}{'' if std is None else f' ± {std:.2f}'} ({n})"


def interval(found: Difference) -> tuple[float, float] | None:
    """Of a difference; None where few seeds are all alike, which says nothing about the next one."""
    if found.low is None or found.high is None or (not found.std and found.n < verdicts.WITHOUT_SPREAD):
        return None
    return found.low, found.high


def apart(found: Difference | None) -> str:
    """A difference with its interval."""
    if found is None:
        return "-"
    ends = interval(found)
    return f"{found.mean:+.2f}" + ("" if ends is None else f" [{ends[0]:+.2f}, {ends[1]:+.2f}]")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        "|" + "---|" * len(head),
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def measured(found: Sequence[Line], *, named: bool = False) -> list[str]:
    """The measured part of a card; ``named`` says whose each row is."""
    if not found:
        return [NOTHING]
    head = ["task", "asked, %", "left out, %", "accuracy, %", "to full data", "to as many steps", "settings"]
    rows = []
    for line in sorted(found, key=_place):
        row = [
            TITLES.get(line.task, line.task),
            "-" if line.asked is None else str(line.asked),
            "-" if line.saved is None else f"{100 * line.saved:.1f}",
            line.accuracy,
            apart(line.to_full),
            apart(line.to_steps),
            line.settings or "-",
        ]
        rows.append([_link(line.card), *row] if named else row)
    return table(["method", *head] if named else head, rows)


def filled(text: str, body: Sequence[str]) -> str:
    """The page with this between the marks."""
    before, rest = text.split(BEGIN)
    return "\n".join([before + BEGIN, *body, END + rest.split(END)[1]])


def table1(runs: Sequence[Run], found: Sequence[Line]) -> str:
    """The page with all methods side by side."""
    text = [
        "# Table 1, for small data",
        "",
        "Every method of the package on small data, as the paper's Table 1 has them on CIFAR. Written by",
        "`python tools/method_tables.py` from the records in `research/records/small_table`, and by nobody else.",
        "",
    ]
    if not found:
        return "\n".join([*text, NOTHING, ""])
    tasks = [task for task in TITLES if any(line.task == task for line in found)]
    text += [
        "Test accuracy in %: mean ± standard deviation (seeds). The columns are what was asked to be left out; a",
        "method that begins or ends on full data leaves out less of the run, and its card says how much. ▼: the",
        "whole interval at 95 % of the difference to full data, paired by seed, is below 0; ▲: above. With so many",
        "rows some are so by luck. Full data with as few steps: its schedule is pressed into the steps of a run that",
        "leaves out that much. Where it says so the loss grows, as in the paper, or the learning rate; else nothing.",
        "In kakurenbo it is the rate, as in its source.",
        "",
        *(f"- {_setup(task, runs)}" for task in tasks),
        f"- Static methods: a proxy ({PROXY['model']}, {PROXY['epochs']} epochs, {PROXY['runs']} runs, each looked "
        f"at after {PROXY['early']}), then the same net from new weights.",
        "",
        *_side_by_side(tasks, runs, found),
        "",
        "## Against full data with as many steps as were taken",
        "",
        "How many are better, how many worse, and of how many, by whole intervals at 95 %; none is corrected for",
        "their number. Full data stands on the line between its nearest two numbers of steps. Each card has the",
        "differences.",
        "",
        *_counted(tasks, found),
    ]
    own = [line for line in found if line.asked is None and line.card != "full"]
    if own:
        text += ["", "## Methods that decide themselves how many", ""]
        text += measured(own, named=True)
    return "\n".join([*text, ""])


def _side_by_side(tasks: Sequence[str], runs: Sequence[Run], found: Sequence[Line]) -> list[str]:
    cells = {(line.row, line.task, line.asked): line for line in found if line.asked in SHARES}
    columns = [(task, share) for task in tasks for share in SHARES]
    rows = [
        ["full data", *(_full(task, runs, 0) for task, _ in columns)],
        ["full data, as few steps", *(_full(task, runs, share) for task, share in columns)],
    ]
    for row in sorted({key[0] for key in cells}, key=_order):
        name = _link(row[0]) + (f" {row[1]}" if row[1] else "")
        rows.append([name, *(_cell(cells.get((row, *column))) for column in columns)])
    return table(["left out, %", *(f"{TITLES[task]} {share}" for task, share in columns)], rows)


def _counted(tasks: Sequence[str], found: Sequence[Line]) -> list[str]:
    columns = [(task, share) for task in tasks for share in SHARES]

    def count(static: bool, task: str, share: int) -> str:
        there = [line for line in found if (line.task, line.asked) == (task, share)]
        apart = [line.to_steps for line in there if line.card.startswith("static_") == static and line.to_steps]
        ends = [both for each in apart if (both := interval(each)) is not None]
        return f"{sum(low > 0 for low, _ in ends)}, {sum(high < 0 for _, high in ends)}, {len(ends)}"

    kinds = {"dynamic": False, "static": True}
    rows = [
        [f"{name}: better, worse, of", *(count(static, *column) for column in columns)]
        for name, static in kinds.items()
    ]
    return table(["left out, %", *(f"{TITLES[task]} {share}" for task, share in columns)], rows)


def _cell(line: Line | None) -> str:
    if line is None:
        return "-"
    ends = None if line.to_full is None else interval(line.to_full)
    if ends is None:
        return line.accuracy
    return line.accuracy + (" ▼" if ends[1] < 0 else " ▲" if ends[0] > 0 else "")


def _full(task: str, runs: Sequence[Run], share: int) -> str:
    """Full data, or (for a share above 0) full data with as few steps."""
    mine = [run for run in runs if run.settings.task == task and run.settings.method == "full"]
    whole = [run for run in mine if not run.settings.steps and run.end]
    if share and whole:
        wanted = (1 - share / 100) * float((whole[0].end or {})["steps"])
        whole = [run for run in mine if run.settings.steps and abs(run.settings.steps - wanted) <= 0.01 * wanted]
    values = {run.settings.seed: value for run in whole if (value := metric_of(run)) is not None}
    known = list(values.values())
    if not known:
        return "-"
    return spread(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))


def _setup(task: str, runs: Sequence[Run]) -> str:
    run = next(run for run in runs if run.settings.task == task)
    its = run.settings
    where = readings.table(run.start.get("environment"))
    return (
        f"{TITLES[task]}: {run.start.get('size', 0):,} training samples, net {its.model}, {its.epochs} epochs, "
        f"batches of {its.batch_size}, {its.optimizer} with {its.schedule} to {its.lr:g}, on "
        f"{where.get('gpu') or 'a CPU'}."
    )


def _link(card: str) -> str:
    return f"[{card}]({card}.md)"


def _order(row: tuple[str, str]) -> tuple[int, str]:
    """Dynamic methods, then static ones, as their registries have them."""
    cards = [*METHODS, *(f"static_{name}" for name in SELECTORS)]
    return cards.index(row[0]) if row[0] in cards else len(cards), row[1]


def _place(line: Line) -> tuple[Any, ...]:
    tasks = list(TITLES)
    at = tasks.index(line.task) if line.task in tasks else len(tasks)
    return at, line.task, *_order(line.row), line.asked or 0


# ---- files ---------------------------------------------------------------------------------------------------


def pages(folder: Path, runs: Sequence[Run]) -> dict[Path, str]:
    """Every page with measured numbers, as it should be."""
    found = lines(runs)
    made = {folder / TABLE: table1(runs, found)}
    for path in sorted(folder.glob("*.md")):
        text = path.read_text()
        if BEGIN in text:
            mine = [line for line in found if (line.varied if path.stem == "variations" else line.card == path.stem)]
            made[path] = filled(text, measured(mine, named=path.stem == "variations"))
    return made


def read(folder: Path) -> list[Run]:
    """All runs of a folder; none where there is nothing."""
    return [run for file in sorted(folder.glob("*.jsonl")) for run in records.read_file(file)]


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, default=KEPT, help="the folder of the records")
    parser.add_argument("--cards", type=Path, default=HERE, help="the folder of the cards")
    parser.add_argument("--check", action="store_true", help="change nothing")
    args = parser.parse_args(given)
    wanted = pages(args.cards, read(args.records))
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(path)
        if not args.check:
            path.write_text(wanted[path])
    return int(args.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
