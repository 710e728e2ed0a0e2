"""Write the measured part of each method card, and table1.md, from records.

    python tools/method_tables.py            # from research/records/small_table
    python tools/method_tables.py --check    # writes nothing; lists outdated files and exits with 1 if there are any

Needs infobatch[lab]. Text outside the marks stays as it is.
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
from infobatch.lab.runs import fields, records
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
"""Methods whose ``ratio`` is the share of all samples that is pruned in an epoch."""


@dataclass(frozen=True)
class Line:
    """The measurements of one method at one share on one task."""

    task: str
    card: str
    """The name of its file: ucb, static_el2n."""
    asked: int | None
    """The percentage to prune; None if the method itself decides."""
    settings: str
    """The other settings."""
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
    """Return the share that a method is asked to prune; None if the method itself decides.

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
    """Return the name of the card that a method's numbers belong to."""
    return method.partition(":")[0].replace(STATIC, "static_")


def shown(settings: Settings, more: str) -> str:
    """List the settings except the one that sets the share."""
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
    """Compare every method on every task with full data of the same settings and seeds."""
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
    return found + _shorter_runs(task, runs)


def _shorter_runs(task: str, runs: list[Run]) -> list[Line]:
    """Compare shorter runs on full data with full data at full length."""
    full = [run for run in runs if run.settings.method == "full"]
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
        for row in (comparison.compare(full).rows if full else ())
        if row.n and row.steps and row.verdict.kind != "baseline"
    ]


class Curves:
    """The metric of full data by number of steps and seed: what a shorter run would have reached."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self.points: dict[Any, dict[float, float]] = {}
        for run in runs:
            metric, steps = metric_of(run), fields.number((run.end or {}).get("steps"))
            if run.settings.method == "full" and metric is not None and steps:
                self.points.setdefault(_alike(run), {})[steps] = metric

    def at(self, run: Run) -> float | None:
        """Return the metric of full data after this run's steps, if need be interpolated linearly in log(steps)."""
        steps = fields.number((run.end or {}).get("steps"))
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
    """Return what two runs must share to be compared: the seed, and all settings that affect the result."""
    plain = run.settings.plain()
    return run.settings.seed, *(str(value) for name, value in plain.items() if name not in COMPARED + COST)


# ---- from lines to text --------------------------------------------------------------------------------------


def spread(mean: float | None, std: float | None, n: int) -> str:
    """mean ± sd (n)."""
    if mean is None:
        return "-"
    return f"{mean:.2f}{'' if std is None else f' ± {std:.2f}'} ({n})"


def interval(found: Difference) -> tuple[float, float] | None:
    """Return the interval of a difference; None for few identical seeds, whose spread says nothing about the next."""
    if found.low is None or found.high is None or (not found.std and found.n < verdicts.WITHOUT_SPREAD):
        return None
    return found.low, found.high


def apart(found: Difference | None) -> str:
    """Format a difference with its interval."""
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
    """Return the measured part of a card; if ``named``, each row starts with its method."""
    if not found:
        return [NOTHING]
    head = ["task", "asked, %", "pruned, %", "accuracy, %", "to full data", "to a shorter run", "settings"]
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
    """Return the page with ``body`` between the marks."""
    before, rest = text.split(BEGIN)
    return "\n".join([before + BEGIN, *body, END + rest.split(END)[1]])


def table1(runs: Sequence[Run], found: Sequence[Line]) -> str:
    """Return the page with all methods side by side."""
    text = [
        "# Table 1, for small data",
        "",
        "Every method of the package on small data, like the paper's Table 1 on CIFAR. Generated by",
        "`python tools/method_tables.py` from the records in `research/records/small_table`; do not edit.",
        "",
    ]
    if not found:
        return "\n".join([*text, NOTHING, ""])
    tasks = [task for task in TITLES if any(line.task == task for line in found)]
    text += [
        "Test accuracy in %: mean ± standard deviation (seeds). The columns give the share that a method was asked to",
        "prune; one that starts or ends on full data prunes less over the run, and its card says how much. ▼: the",
        "whole 95 % interval of the difference to full data, paired by seed, is below 0; ▲: above 0. With this many",
        "rows, some are marked by chance. A shorter run is full data with its schedule compressed to the number of",
        "steps of a run that prunes that share. A row says if the loss or (in older records) the learning rate grew",
        "to compensate for fewer steps; in kakurenbo it is the learning rate, as in its source.",
        "",
        *(f"- {_setup(task, runs)}" for task in tasks),
        f"- Static methods: a proxy ({PROXY['model']}, {PROXY['epochs']} epochs, {PROXY['runs']} runs, each read "
        f"after {PROXY['early']}), then the same network from new weights.",
        "",
        *_side_by_side(tasks, runs, found),
        "",
        "## Compared with a shorter run",
        "",
        "How many methods are better, how many are worse, and how many there are, judged by whole 95 % intervals",
        "without correction for their number. The shorter run is interpolated between the two nearest numbers of",
        "steps. Each card lists the differences.",
        "",
        *_counted(tasks, found),
    ]
    own = [line for line in found if line.asked is None and line.card != "full"]
    if own:
        text += ["", "## Methods that decide themselves how many samples to prune", ""]
        text += measured(own, named=True)
    return "\n".join([*text, ""])


def _side_by_side(tasks: Sequence[str], runs: Sequence[Run], found: Sequence[Line]) -> list[str]:
    cells = {(line.row, line.task, line.asked): line for line in found if line.asked in SHARES}
    columns = [(task, share) for task in tasks for share in SHARES]
    rows = [
        ["full data", *(_full(task, runs, 0) for task, _ in columns)],
        ["shorter run", *(_full(task, runs, share) for task, share in columns)],
    ]
    for row in sorted({key[0] for key in cells}, key=_order):
        name = _link(row[0]) + (f" {row[1]}" if row[1] else "")
        rows.append([name, *(_cell(cells.get((row, *column))) for column in columns)])
    return table(["pruned, %", *(f"{TITLES[task]} {share}" for task, share in columns)], rows)


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
    return table(["pruned, %", *(f"{TITLES[task]} {share}" for task, share in columns)], rows)


def _cell(line: Line | None) -> str:
    if line is None:
        return "-"
    ends = None if line.to_full is None else interval(line.to_full)
    if ends is None:
        return line.accuracy
    return line.accuracy + (" ▼" if ends[1] < 0 else " ▲" if ends[0] > 0 else "")


def _full(task: str, runs: Sequence[Run], share: int) -> str:
    """Format the accuracy of full data or, for a share above 0, of a shorter run."""
    full = [run for run in runs if run.settings.task == task and run.settings.method == "full"]
    chosen = [run for run in full if not run.settings.steps and run.end]
    if share and chosen:
        steps = (1 - share / 100) * float((chosen[0].end or {})["steps"])
        chosen = [run for run in full if run.settings.steps and abs(run.settings.steps - steps) <= 0.01 * steps]
    values = {run.settings.seed: value for run in chosen if (value := metric_of(run)) is not None}
    known = list(values.values())
    if not known:
        return "-"
    return spread(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))


def _setup(task: str, runs: Sequence[Run]) -> str:
    run = next(run for run in runs if run.settings.task == task)
    settings = run.settings
    machine = fields.table(run.start.get("environment"))
    return (
        f"{TITLES[task]}: {run.start.get('size', 0):,} training samples, network {settings.model}, "
        f"{settings.epochs} epochs, batches of {settings.batch_size}, {settings.optimizer} with {settings.schedule} "
        f"to {settings.lr:g}, on {machine.get('gpu') or 'a CPU'}."
    )


def _link(card: str) -> str:
    return f"[{card}]({card}.md)"


def _order(row: tuple[str, str]) -> tuple[int, str]:
    """Order dynamic methods before static ones, each as in their registry."""
    cards = [*METHODS, *(f"static_{name}" for name in SELECTORS)]
    return cards.index(row[0]) if row[0] in cards else len(cards), row[1]


def _place(line: Line) -> tuple[Any, ...]:
    tasks = list(TITLES)
    at = tasks.index(line.task) if line.task in tasks else len(tasks)
    return at, line.task, *_order(line.row), line.asked or 0


# ---- files ---------------------------------------------------------------------------------------------------


def pages(folder: Path, runs: Sequence[Run]) -> dict[Path, str]:
    """Return the up-to-date text of every page with measured numbers."""
    found = lines(runs)
    made = {folder / TABLE: table1(runs, found)}
    for path in sorted(folder.glob("*.md")):
        text = path.read_text()
        if BEGIN in text:
            mine = [line for line in found if (line.varied if path.stem == "variations" else line.card == path.stem)]
            made[path] = filled(text, measured(mine, named=path.stem == "variations"))
    return made


def read(folder: Path) -> list[Run]:
    """Read all runs of a folder."""
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
