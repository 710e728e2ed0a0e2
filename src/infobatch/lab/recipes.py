"""Recipes: a table or figure of the papers as a file, with the claim, the paper's values and settings to check them.

    recipe = load("table4")
    for cell, settings in runs(recipe, quick=True):
        ...                                            # train each
    print(outcome(recipe, finished, quick=True).summary)

A run belongs to a cell because its settings do, so one run serves every recipe that asks for it. A quick run is a
stand-in: it shows that the recipe works, never that the paper is right.
"""

from __future__ import annotations

import importlib
import inspect
import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from ..errors import InfoBatchError, InputError, StateError, message
from . import records
from .comparison import COST
from .records import Run
from .settings import Settings, near
from .verdicts import WITHOUT_SPREAD, interval

if sys.version_info >= (3, 11):
    import tomllib
else:
    try:
        import tomli as tomllib
    except ImportError as error:
        raise InputError(message("tomli, with Python 3.10", "none", "pip install 'infobatch[lab]'")) from error

Compare = Literal["points", "factor"]
Status = Literal[
    "reproduced", "consistent", "not reproduced", "undecided", "too few seeds", "stand-in", "for comparison",
    "not run", "waits",
]  # fmt: skip

LEVEL = 0.9
"""Of the interval that decides: all of it within the tolerance shows, at 5 %, that ours is the paper's."""
INCIDENTAL = frozenset({*COST, "amp", "seed"})
"""Settings in which a run may differ from its cell."""
RELATIONS = ("lossless", "same", "less", "more")
PROOFS = ("reproduced", "consistent")


# ---- what a recipe is ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One number of a table or figure, and what would produce it."""

    name: str
    paper: float | None = None
    """The paper's value; None where the paper only says how it lies to another."""
    spread: float | None = None
    """The paper's own ±."""
    saved: float | None = None
    """The saving the paper prints beside it, in percent."""
    expect: float | str | None = None
    """Where the paper has no number: one that follows from its text, or how it lies to ``against``."""
    unit: str = ""
    of: str = "metric"
    """Which number of a run it is: see ``VALUES``."""
    row: str = ""
    """Which row of the recipe's measurement it is, where it is measured and not trained."""
    against: str = ""
    """The cell it is held against: then the difference (or the ratio) counts, not the value."""
    compare: Compare = "points"
    tolerance: float = 0.5
    """In points, or as a factor; infinite where the value is shown and not judged."""
    settings: Settings | None = None
    quick: Settings | None = None
    """Its stand-in."""
    waits: str = ""
    """What must be built before it can run."""
    proves: str = "reproduced"
    """What it is called within the tolerance; "consistent" where agreement says little, as that with a default."""
    note: str = ""

    @property
    def target(self) -> float | None:
        return self.paper if self.paper is not None else self.expect if isinstance(self.expect, float) else None


@dataclass(frozen=True)
class Recipe:
    """A table or figure with its claim."""

    name: str
    title: str
    claim: str
    paper: str
    """Which: the paper (ICLR 2024), or its earlier version."""
    place: str
    """Table or figure, section."""
    data: str
    hardware: str
    gpu_hours: float
    """Roughly, for all cells and seeds that can run."""
    seeds: int
    quick_seeds: int
    tolerance_saved: float
    cells: tuple[Cell, ...]
    measure: str = ""
    """MODULE:FUNCTION that measures its rows."""
    notes: tuple[str, ...] = ()

    @property
    def waits(self) -> tuple[str, ...]:
        """What its cells wait for, each kind once: "static selection" for "static selection: Herding"."""
        return tuple(dict.fromkeys(cell.waits.partition(":")[0] for cell in self.cells if cell.waits))

    @property
    def runnable(self) -> bool:
        return any(not cell.waits for cell in self.cells)

    @property
    def stand_in(self) -> str:
        """What the quick version trains in place of the recipe's task; empty where nothing is replaced."""
        swapped = dict.fromkeys(
            f"{cell.quick.task} for {cell.settings.task}" for cell in self.cells if cell.quick and cell.settings
        )
        return f"stand-in: {', '.join(swapped)}" if swapped else ""

    def cell(self, name: str) -> Cell:
        for cell in self.cells:
            if cell.name == name:
                return cell
        raise InputError(
            message(f"a cell of {self.name}", repr(name), near(name, [cell.name for cell in self.cells]))
        )


# ---- reading ---------------------------------------------------------------------------------------------


def folder() -> Path:
    """Where the recipes lie: beside the code in an installed package, else in the checkout."""
    here = Path(__file__).resolve()
    for place in (here.parent / "recipes_files", here.parents[3] / "recipes"):
        if place.is_dir():
            return place
    raise InputError(message("the recipes' folder", "none beside the package", "Install the package again."))


def names() -> list[str]:
    """All recipes: tables, then figures, then those of the earlier version.

    >>> names()[:3]
    ['table1', 'table2', 'table3']
    """
    return sorted((path.stem for path in folder().glob("*.toml")), key=_order)


def load(name: str) -> Recipe:
    """A recipe by name, or a file of your own.

    >>> load("table11").cell("numpy sort, 1.28M").paper
    123.4
    """
    if name.endswith(".toml"):
        return read(Path(name))
    if name not in names():
        raise InputError(message("a recipe", repr(name), near(name, names())))
    return read(folder() / f"{name}.toml")


def all_recipes() -> list[Recipe]:
    return [load(name) for name in names()]


def read(path: Path) -> Recipe:
    """A recipe from a file; what is wrong in it is named."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(message("a recipe's file", str(path), "There is no such file.")) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise InputError(message("a recipe in TOML", f"{path}: {error}", "Mend the file.")) from error
    return _recipe(_Table(table, path.name), path.stem)


T = TypeVar("T")


class _Table:
    """A table of the file. Each key is taken once, with its kind; what nobody took is an unknown key."""

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, dict):
            raise InputError(message(f"a table at {where}", repr(values), "recipes/README.md shows one."))
        self.values, self.where = dict(values), where
        self.known: list[str] = []

    def take(self, key: str, kind: type[T], default: T | None = None) -> T:
        self.known.append(key)
        value = self.values.pop(key, default)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or isinstance(value, bool) or value != value:  # the last is NaN
            got = "nothing" if value is None else repr(value)
            raise InputError(message(f"{key} as {kind.__name__} in {self.where}", got, "See recipes/README.md."))
        return value

    def maybe(self, key: str, kind: type[T]) -> T | None:
        self.known.append(key)
        return self.take(key, kind) if key in self.values else None

    def table(self, key: str) -> _Table:
        return _Table(self.take(key, dict, {}), f"{self.where}, {key}")

    def done(self) -> None:
        for key in self.values:
            raise InputError(message(f"a key of a recipe in {self.where}", repr(key), near(key, self.known)))


def _recipe(table: _Table, name: str) -> Recipe:
    source, needs, quick = table.table("source"), table.table("needs"), table.table("quick")
    parts = {key: _dict(value, f"{table.where}, parts.{key}") for key, value in table.take("parts", dict, {}).items()}
    common = _Common(
        settings=table.take("settings", dict, {}),
        parts=parts,
        quick=quick.take("settings", dict, {}),
        unit=table.take("unit", str, ""),
        of=table.take("of", str, "metric"),
        compare=table.take("compare", str, "points"),
        tolerance=table.take("tolerance", float),
    )
    given = [_Table(cell, f"{table.where}, cell {at + 1}") for at, cell in enumerate(table.take("cell", list))]
    recipe = Recipe(
        name=name,
        title=table.take("title", str),
        claim=table.take("claim", str),
        paper=source.take("paper", str),
        place=source.take("place", str),
        data=needs.take("data", str, "none"),
        hardware=needs.take("hardware", str),
        gpu_hours=needs.take("gpu_hours", float, 0.0),
        seeds=table.take("seeds", int, 1),
        quick_seeds=quick.take("seeds", int, 2),
        tolerance_saved=table.take("tolerance_saved", float, 2.0),
        cells=tuple(_cell(cell, common) for cell in given),
        measure=table.take("measure", str, ""),
        notes=tuple(map(str, table.take("notes", list, []))),
    )
    for each in (table, source, needs, quick):
        each.done()
    longest = max((cell.settings.epochs for cell in recipe.cells if cell.settings), default=1)
    cells = (_with_stand_in(cell, longest, common.quick, table.where) for cell in recipe.cells)
    recipe = replace(recipe, cells=tuple(cells))
    _check(recipe, table.where)
    return recipe


@dataclass(frozen=True)
class _Common:
    """What a file says once for all its cells."""

    settings: dict[str, Any]
    parts: dict[str, dict[str, Any]]
    quick: dict[str, Any]
    unit: str
    of: str
    compare: str
    tolerance: float


def _cell(table: _Table, common: _Common) -> Cell:
    name = table.take("name", str)
    table.where = f"{table.where} ({name})"
    own = dict(common.settings)
    for part in table.take("from", list, []):
        if not isinstance(part, str) or part not in common.parts:
            raise InputError(message(f"a part named in {table.where}", repr(part), near(str(part), common.parts)))
        own |= common.parts[part]
    own |= table.take("settings", dict, {})
    row, waits = table.take("row", str, ""), table.take("waits", str, "")
    relation = isinstance(table.values.get("expect"), str)
    expect: float | str | None = table.maybe("expect", str) if relation else table.maybe("expect", float)
    compare = table.take("compare", str, common.compare)
    if compare not in ("points", "factor"):
        raise InputError(message(f"compare in {table.where}", repr(compare), near(compare, ("points", "factor"))))
    cell = Cell(
        name=name,
        paper=table.maybe("paper", float),
        spread=table.maybe("spread", float),
        saved=table.maybe("saved", float),
        expect=expect,
        unit=table.take("unit", str, common.unit),
        of=table.take("of", str, common.of),
        row=row,
        against=table.take("against", str, ""),
        compare="factor" if compare == "factor" else "points",
        tolerance=table.take("tolerance", float, common.tolerance),
        settings=None if row or waits else _settings(own, table.where),
        waits=waits,
        proves=table.take("proves", str, PROOFS[0]),
        note=table.take("note", str, ""),
    )
    table.done()
    return cell


def _settings(given: Mapping[str, Any], where: str) -> Settings:
    try:
        return Settings.of({"compensate": "loss", **given})  # in the papers the loss grows
    except InputError as error:
        raise InputError(f"in {where}: {error}") from error


def _dict(value: Any, where: str) -> dict[str, Any]:
    return _Table(value, where).values


def _check(recipe: Recipe, where: str) -> None:
    cells = [cell.name for cell in recipe.cells]
    for name, seeds in (("seeds", recipe.seeds), ("quick.seeds", recipe.quick_seeds)):
        if seeds < 1:
            raise InputError(message(f"{name} from 1 on in {where}", str(seeds), "Mend the file."))
    for cell in recipe.cells:
        at = f"{where}, cell {cell.name}"
        if cells.count(cell.name) > 1:
            raise InputError(message(f"one cell of each name in {where}", f"two {cell.name}", "Name them apart."))
        if cell.proves not in PROOFS:
            raise InputError(message(f"proves as one of them in {at}", repr(cell.proves), near(cell.proves, PROOFS)))
        if cell.row and not recipe.measure:
            raise InputError(message(f"measure in {where}", f"a row in {cell.name}", "Name MODULE:FUNCTION."))
        if cell.settings and cell.of not in VALUES:
            raise InputError(message(f"a number of a run as of in {at}", repr(cell.of), near(cell.of, VALUES)))
        if cell.tolerance <= 0 or (cell.compare == "factor" and cell.target is not None and cell.target <= 0):
            expected = f"a tolerance above 0, and a value above 0 where compare is factor, in {at}"
            got = f"tolerance {cell.tolerance:g}, value {cell.target}"
            raise InputError(message(expected, got, "Mend the cell."))
        relations = RELATIONS if cell.compare == "points" else ("less", "more")
        if isinstance(cell.expect, str) and (cell.expect not in relations or not cell.against):
            expected = f"expect as one of {', '.join(relations)}, or a number, and against, in {at}"
            raise InputError(message(expected, repr(cell.expect), "Mend the cell."))
        if cell.against:
            other = recipe.cell(cell.against)
            if cell.target is not None and other.target is None:
                raise InputError(message(f"a value in {cell.against}", "none", f"{at} is held against it."))


def _order(name: str) -> tuple[bool, bool, int, str]:
    number = re.search(r"\d+$", name)
    return name.startswith("early"), "figure" in name, int(number[0]) if number else 0, name


# ---- runs ------------------------------------------------------------------------------------------------

QUICK_EPOCHS = 12
QUICK_LR = {"sgd": 0.05, "adam": 0.003, "adamw": 0.003, "radam": 0.003, "lars": 1.0, "lamb": 0.01}


def stand_in(settings: Settings, longest: int) -> Settings:
    """The same method, optimizer and schedule on digits with a small net: seconds on a CPU.

    ``longest`` is the length of the recipe's longest run, so that those of other lengths keep their proportion.
    """
    return settings.but(
        task="digits",
        data="",
        model="mlp" if settings.model.endswith("resnet18") else "conv",
        epochs=max(4, round(QUICK_EPOCHS * settings.epochs / longest)),
        batch_size=64,
        lr=QUICK_LR.get(settings.optimizer, settings.lr),
        threads=1,
    )


def _with_stand_in(cell: Cell, longest: int, changes: Mapping[str, Any], where: str) -> Cell:
    if cell.settings is None:
        return cell
    try:
        return replace(cell, quick=Settings.of({**stand_in(cell.settings, longest).plain(), **changes}))
    except InputError as error:
        raise InputError(f"in {where}, quick.settings: {error}") from error


def runs(recipe: Recipe, quick: bool = False, seeds: int = 0, **changes: Any) -> list[tuple[Cell, Settings]]:
    """What to train, seed by seed so that a run broken off has as many of each cell; each settings once.

    ``changes`` are such as data, device or amp. Cells whose settings are those of an earlier one are left out.

    >>> [settings.seed for _, settings in runs(load("table12"), quick=True, seeds=2)][:4]
    [0, 0, 0, 0]
    """
    if seeds < 0:
        raise InputError(message("a number of seeds from 1 on", str(seeds), "Leave it out for the recipe's own."))
    allowed = [entry.name for entry in fields(Settings) if entry.name in INCIDENTAL - {"seed"}]
    for name in changes:
        if name not in allowed:
            raise InputError(message("a setting that leaves the recipe what it is", repr(name), near(name, allowed)))
    found: dict[Settings, Cell] = {}
    for seed in range(seeds or (recipe.quick_seeds if quick else recipe.seeds)):
        for cell in recipe.cells:
            settings = cell.quick if quick else cell.settings
            if settings is not None:
                found.setdefault(settings.but(seed=seed, **changes), cell)
    return [(cell, settings) for settings, cell in found.items()]


def run_name(recipe: Recipe, cell: Cell, settings: Settings, quick: bool = False) -> str:
    """A folder for a run, as "table4-quick/r-18-random-star-seed0".

    >>> recipe = load("table12")
    >>> cell, settings = runs(recipe)[0]
    >>> run_name(recipe, cell, settings)
    'table12/infobatch-cifar-10-seed0'
    """
    words = re.sub(r"[^a-z0-9.]+", "-", cell.name.lower().replace("*", " star")).strip("-")
    return f"{recipe.name}{'-quick' if quick else ''}/{words}-seed{settings.seed}"


# ---- measurements ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measurement:
    """Rows that were measured and not trained. They serve every recipe that names the same function."""

    measure: str
    rows: dict[str, float]
    environment: dict[str, Any] = field(default_factory=dict)
    time: str = ""
    quick: bool = False

    def plain(self) -> dict[str, Any]:
        rows = {name: float(f"{value:.4g}") for name, value in self.rows.items()}
        about = {"measure": self.measure, "time": self.time, "quick": self.quick, "environment": self.environment}
        return {"kind": "measure", "format": records.FORMAT, **about, "rows": rows}


def measure(recipe: Recipe, quick: bool = False, tick: Callable[[str], None] | None = None) -> Measurement:
    """Make the recipe's measurement, here and now."""
    from . import measures

    if not recipe.measure:
        raise InputError(message("a recipe that is measured", recipe.name, "It is trained: see runs."))
    where, _, name = recipe.measure.partition(":")
    given = {"quick": quick, "tick": tick or measures.silent}
    try:
        function = getattr(importlib.import_module(where), name)
        inspect.signature(function).bind(**given)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        expected = f"measure as MODULE:FUNCTION, of (quick, tick), in {recipe.name}"
        raise InputError(message(expected, f"{recipe.measure!r} ({error})", "Mend it.")) from error
    environment = measures.environment()
    rows = function(**given)
    time = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Measurement(recipe.measure, rows, environment, time, quick)


# ---- evidence --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    """Finished runs and measurements: what outcomes are made of."""

    runs: tuple[Run, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    unreadable: tuple[str, ...] = ()
    """What could not be read, and why."""


def evidence(*roots: Path | str) -> Evidence:
    """The records kept with the recipes, and those below ``roots``. A damaged file is named, and the rest counts."""
    kept = sorted((folder() / "records").rglob("*.jsonl"))
    own = [path for root in roots for path in sorted(Path(root).rglob("*.jsonl"))]
    found: list[Run] = []
    measured: list[Measurement] = []
    unreadable = []
    for path in [*kept, *own]:
        try:
            kind = _kind(path)
            if kind == "measure":
                measured += _measurements(path)
            elif kind == "start" or path.name == records.FILE:
                for run in records.read_file(path):
                    if run.end is not None:
                        _essence(run.settings)  # a record with settings of another version is found out here
                        found.append(run)
        except (InfoBatchError, OSError) as error:
            unreadable.append(f"{path}: {error}")
    return Evidence(tuple(found), tuple(measured), tuple(unreadable))


def _kind(path: Path) -> str:
    """Of the first line; empty where it is none of ours."""
    with open(path, encoding="utf-8", errors="replace") as file:
        try:
            first = json.loads(file.readline() or "{}")
        except ValueError:
            return ""
    return str(first.get("kind", "")) if isinstance(first, dict) else ""


def _measurements(path: Path) -> Iterator[Measurement]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            fact = json.loads(line)
            rows = {str(name): float(value) for name, value in fact["rows"].items()}
            yield Measurement(fact["measure"], rows, fact["environment"], fact["time"], fact["quick"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StateError(
                message("a measurement", f"{path}, whose line {number} is none ({error})", "Nothing was changed.")
            ) from error


def _number(*path: str, scale: float = 1.0) -> Callable[[Run], float | None]:
    def of(run: Run) -> float | None:
        value: Any = run.end
        for key in path:
            value = (value or {}).get(key)
        return None if value is None else scale * float(value)

    return of


def _distance(which: str) -> Callable[[Run], float | None]:
    """How far a histogram of losses is from that of all samples: half the summed difference of their shares."""

    def of(run: Run) -> float | None:
        found = []
        for epoch in run.epochs:
            losses = epoch.get("losses")
            if losses and sum(losses["after"]) < sum(losses["before"]):
                before, other = losses["before"], losses[which]
                shares = [(a / sum(before), b / sum(other)) for a, b in zip(before, other, strict=True)]
                found.append(50 * sum(abs(a - b) for a, b in shares))
        return statistics.fmean(found) if found else None

    return of


def _pruned(first: float, last: float) -> Callable[[Run], float | None]:
    """The mean saving of the epochs between two shares of a run, in percent."""

    def of(run: Run) -> float | None:
        total = len(run.epochs)
        found = [epoch["saved"] for at, epoch in enumerate(run.epochs) if first <= at / total < last]
        return 100 * statistics.fmean(found) if found else None

    return of


VALUES: dict[str, Callable[[Run], float | None]] = {
    "metric": _number("metric"),
    "saved": _number("saved", scale=100),
    "hours": _number("seconds", "total", scale=1 / 3600),
    "distance_after": _distance("after"),
    "distance_rescaled": _distance("rescaled"),
    "saved_early": _pruned(0, 0.1),
    "saved_middle": _pruned(0.4, 0.6),
    "saved_late": _pruned(0.65, 0.85),
}
"""The numbers of a run that a cell may be about."""


# ---- outcomes --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CellOutcome:
    """A cell beside what was measured here."""

    cell: Cell
    status: Status
    why: str = ""
    """In plain words, where the status leaves a question."""
    ours: float | None = None
    std: float | None = None
    n: int = 0
    saved: float | None = None
    """What our runs saved, in percent."""
    compared: float | None = None
    """Our difference (or ratio) to the cell it is held against."""
    wanted: float | None = None
    """The paper's."""
    where: tuple[str, ...] = ()
    when: str = ""

    @property
    def text(self) -> str:
        return f"waits for {self.cell.waits}" if self.status == "waits" else self.status

    def plain(self) -> dict[str, Any]:
        cell = self.cell
        told = {"cell": cell.name, "paper": cell.paper, "spread": cell.spread, "paper_saved": cell.saved}
        told |= {"expect": cell.expect, "unit": cell.unit, "against": cell.against, "waits": cell.waits}
        own = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "cell"}
        return {**told, **own, "where": list(self.where), "note": cell.note}


@dataclass(frozen=True)
class Outcome:
    """What came of a recipe."""

    recipe: Recipe
    quick: bool
    rows: tuple[CellOutcome, ...]

    @property
    def stand_in(self) -> str:
        """What was trained instead, where this is the quick version; to be shown wherever its numbers are."""
        return self.recipe.stand_in if self.quick else ""

    @property
    def where(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(place for row in self.rows for place in row.where))

    @property
    def when(self) -> str:
        """The latest."""
        return max((row.when for row in self.rows), default="")

    @property
    def summary(self) -> str:
        """As "3 reproduced, 1 not reproduced, 2 wait for method ucb"."""
        counts = {status: sum(row.status == status for row in self.rows) for status in _SHOWN}
        told = [f"{count} {status}" for status, count in counts.items() if count]
        if waiting := sum(row.status == "waits" for row in self.rows):
            told.append(f"{waiting} {'wait' if waiting > 1 else 'waits'}")
        return ", ".join(told)

    def plain(self) -> dict[str, Any]:
        recipe = self.recipe
        about = {"recipe": recipe.name, "title": recipe.title, "claim": recipe.claim, "quick": self.quick}
        rows = [row.plain() for row in self.rows]
        return {
            **about,
            "stand_in": self.stand_in,
            "summary": self.summary,
            "waits": list(recipe.waits),
            "rows": rows,
        }


_SHOWN: tuple[Status, ...] = (
    "reproduced", "consistent", "not reproduced", "undecided", "too few seeds", "stand-in", "for comparison",
    "not run",
)  # fmt: skip


def outcome(
    recipe: Recipe,
    runs: Iterable[Run] = (),
    measurements: Iterable[Measurement] = (),
    quick: bool = False,
) -> Outcome:
    """Compare what was measured with the paper, cell by cell. Runs of other settings are passed over."""
    by_settings: dict[Settings, dict[int, Run]] = {}
    for run in runs:
        if run.end is not None:
            same = by_settings.setdefault(_essence(run.settings), {})
            same[run.settings.seed] = run  # the last one of a seed counts
    mine = (each for each in measurements if each.measure == recipe.measure and each.quick == quick)
    measured = sorted(mine, key=lambda each: each.time)
    found = _Found(recipe, quick, by_settings, measured)
    return Outcome(recipe, quick, tuple(_judge(cell, found) for cell in recipe.cells))


@cache
def _essence(settings: Settings) -> Settings:
    """Settings without what may differ."""
    plain: dict[str, Any] = {entry.name: entry.default for entry in fields(Settings) if entry.name in INCIDENTAL}
    return settings.but(**plain)


@dataclass(frozen=True)
class _Found:
    """The evidence, ready to be asked by cell."""

    recipe: Recipe
    quick: bool
    runs: dict[Settings, dict[int, Run]]
    measured: Sequence[Measurement]

    def of(self, cell: Cell) -> dict[int, Run]:
        settings = cell.quick if self.quick else cell.settings
        return {} if settings is None else self.runs.get(_essence(settings), {})

    def values(self, cell: Cell) -> dict[int, float]:
        """By seed."""
        numbers = {seed: VALUES[cell.of](run) for seed, run in self.of(cell).items()}
        return {seed: value for seed, value in numbers.items() if value is not None}

    def against(self, cell: Cell) -> Cell | None:
        return self.recipe.cell(cell.against) if cell.against else None


def _judge(cell: Cell, found: _Found) -> CellOutcome:
    if cell.waits:
        return CellOutcome(cell, "waits")
    judged = _judge_measured(cell, found) if cell.row else _judge_trained(cell, found)
    weak = judged.status == "reproduced" and cell.proves == "consistent"
    return replace(judged, status="consistent") if weak else judged


def _judge_measured(cell: Cell, found: _Found) -> CellOutcome:
    """By the last measurement that has the row, and the row it is held against."""
    other = found.against(cell)
    rows = {cell.row, other.row} if other else {cell.row}
    last = next((each for each in reversed(found.measured) if rows <= each.rows.keys()), None)
    if last is None:
        return CellOutcome(cell, "not run")
    ours = last.rows[cell.row]
    about = CellOutcome(cell, "for comparison", ours=ours, n=1, where=(_machine(last, cell.row),), when=last.time)
    if other and not last.rows[other.row]:
        return replace(about, status=about.status if found.quick else "undecided", why=_without_ratio(other))
    judged = _by_factor(about, cell, other, ours / last.rows[other.row] if other else ours)
    return replace(judged, status="for comparison") if found.quick else judged


def _judge_trained(cell: Cell, found: _Found) -> CellOutcome:
    values, used = found.values(cell), found.of(cell)
    lost = len(used) - len(values) if cell.of == "metric" else 0
    if lost and not found.quick:  # a verdict from the others would hide just the runs that went wrong
        return CellOutcome(cell, "not reproduced", f"{lost} of {len(used)} runs ended without a finite metric")
    if not values:
        return CellOutcome(cell, "not run")
    saved = [share for run in used.values() if (share := VALUES["saved"](run)) is not None]
    about = CellOutcome(
        cell,
        "for comparison",
        ours=statistics.fmean(values.values()),
        std=statistics.stdev(values.values()) if len(values) > 1 else None,
        n=len(values),
        saved=statistics.fmean(saved) if saved else None,
        where=tuple(dict.fromkeys(_device(run) for run in used.values())),
        when=max(str(run.start.get("time", "")) for run in used.values()),
    )
    other = found.against(cell)
    if other is not None:
        partners = found.values(other)
        values = {seed: value for seed, value in values.items() if seed in partners}
        if cell.compare == "factor" and any(not partners[seed] for seed in values):
            return replace(about, status="stand-in" if found.quick else "undecided", why=_without_ratio(other))
        values = {seed: _apart(cell, value, partners[seed]) for seed, value in values.items()}
        if not values:
            return replace(about, status="too few seeds", why=f"no seed in common with {other.name}")
    compared = statistics.fmean(values.values())
    if found.quick:
        return replace(about, status="stand-in", compared=compared if other else None)
    if cell.compare == "factor":
        judged = _by_factor(about, cell, other, compared)
    else:
        judged = _by_points(about, cell, other, list(values.values()))
    return _and_saved(judged, found.recipe.tolerance_saved)


def _without_ratio(other: Cell) -> str:
    return f"{other.name} is 0 here, and so there is no ratio"


def _apart(cell: Cell, value: float, partner: float) -> float:
    return value / partner if cell.compare == "factor" else value - partner


def _by_factor(about: CellOutcome, cell: Cell, other: Cell | None, compared: float) -> CellOutcome:
    about = replace(about, compared=compared if other else None)
    if isinstance(cell.expect, str):
        return _by_side(about, cell, compared)
    if cell.target is None:
        return about
    wanted = cell.target / other.target if other and other.target else cell.target
    about = replace(about, wanted=wanted if other else None)
    off = max(compared / wanted, wanted / compared) if compared > 0 else math.inf
    text = f"{'ratio' if other else 'value'} {compared:.3g}, paper {wanted:.3g}: a factor of {off:.1f}"
    if math.isinf(cell.tolerance):
        return replace(about, why=text)
    if other and (compared > 1) != (wanted > 1):
        return replace(about, status="not reproduced", why=f"{text}, and the order is the other way round")
    return replace(about, status="reproduced" if off <= cell.tolerance else "not reproduced", why=text)


def _by_side(about: CellOutcome, cell: Cell, compared: float) -> CellOutcome:
    """Of ratios there is less and more alone."""
    good = compared < 1 if cell.expect == "less" else compared > 1
    return replace(about, status="reproduced" if good else "not reproduced", why=f"ratio {compared:.3g}")


def _by_points(about: CellOutcome, cell: Cell, other: Cell | None, values: list[float]) -> CellOutcome:
    """The interval of the mean (of the paired differences, where there is another cell) against the tolerance."""
    middle = statistics.fmean(values)
    about = replace(about, compared=middle if other else None)
    if cell.target is None and cell.expect is None:
        return about
    wanted = 0.0
    if cell.target is not None:
        wanted = cell.target - (other.target or 0.0) if other else cell.target
        about = replace(about, wanted=wanted if other else None)
    if len(values) < 2:
        return replace(about, status="too few seeds", why="one seed proves nothing")
    if len(values) < WITHOUT_SPREAD and max(values) - min(values) < 1e-9:
        return replace(about, status="undecided", why=f"all {len(values)} seeds alike, so no spread to judge by")
    low, high = (bound - wanted for bound in interval(values, LEVEL))
    status = _decide(low, high, cell.tolerance, cell.expect if isinstance(cell.expect, str) else "same")
    what = f"difference to {other.name}" if other else "value"
    why = f"{what} {middle:.2f} ({low + wanted:.2f} to {high + wanted:.2f})"
    return replace(about, status=status, why=why if cell.target is None else f"{why}, paper {wanted:.2f}")


def _decide(low: float, high: float, tolerance: float, relation: str) -> Status:
    """``low`` and ``high`` bound the distance from what is wanted; where they reach to both sides it stays open."""
    edges = {
        "same": (-tolerance, tolerance),
        "lossless": (-tolerance, float("inf")),
        "less": (float("-inf"), 0.0),
        "more": (0.0, float("inf")),
    }
    bottom, top = edges[relation]
    if bottom <= low and high <= top:
        return "reproduced"
    return "not reproduced" if high < bottom or low > top else "undecided"


def _and_saved(judged: CellOutcome, tolerance: float) -> CellOutcome:
    """A cell that prints a saving stands or falls with it too."""
    wanted, ours = judged.cell.saved, judged.saved
    if wanted is None or ours is None or abs(ours - wanted) <= tolerance:
        return judged
    why = f"{judged.why}; saved {ours:.1f} %, paper {wanted:.1f} %".removeprefix("; ")
    return replace(judged, status="not reproduced" if judged.status == "reproduced" else judged.status, why=why)


def _device(run: Run) -> str:
    environment = run.start.get("environment") or {}
    device = str(environment.get("gpu") or environment.get("cpu") or environment.get("device") or "unknown")
    return device if run.settings.amp == "none" else f"{device}, {run.settings.amp}"


def _machine(measurement: Measurement, row: str) -> str:
    return str(measurement.environment.get("gpu" if row.startswith("gpu") else "cpu") or "unknown")


# ---- lists -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """One recipe of the list: what came of it here, and of its quick version."""

    recipe: Recipe
    outcome: Outcome
    quick: Outcome

    def plain(self) -> dict[str, Any]:
        recipe = self.recipe
        return {
            "recipe": recipe.name,
            "title": recipe.title,
            "claim": recipe.claim,
            "outcome": self.outcome.summary,
            "where": list(self.outcome.where),
            "when": self.outcome.when,
            "quick": self.quick.summary if self.quick.when else "not run",
            "stand_in": self.quick.stand_in,
            "waits": list(recipe.waits),
        }


def listing(*roots: Path | str) -> list[Line]:
    """Every recipe with what the records say about it: those kept with the recipes, and those below ``roots``."""
    found = evidence(*roots)
    return [
        Line(recipe, *(outcome(recipe, found.runs, found.measurements, quick) for quick in (False, True)))
        for recipe in all_recipes()
    ]


def index() -> str:
    """The table of all recipes that recipes/README.md shows."""
    lines = ["| recipe | what | from | cells | wait for | needs |", "|---|---|---|---|---|---|"]
    for recipe in all_recipes():
        waiting = sum(bool(cell.waits) for cell in recipe.cells)
        count = f"{len(recipe.cells)}" if not waiting else f"{len(recipe.cells)}, {waiting} wait"
        hours = f", about {recipe.gpu_hours:g} GPU hours" if recipe.gpu_hours else ""
        source = f"{recipe.paper.partition(' (')[0]}, {recipe.place.partition(';')[0].partition(',')[0]}"
        needs = f"{recipe.data}; {recipe.hardware}{hours}"
        waits = "; ".join(recipe.waits)
        lines.append(f"| {recipe.name} | {recipe.title} | {source} | {count} | {waits} | {needs} |")
    return "\n".join(lines)
