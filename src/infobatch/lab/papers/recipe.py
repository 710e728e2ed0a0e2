"""Recipes: a table or figure of the papers as a file, with its claim, its values and the settings to check them.

    recipe = load("table4")
    for cell, settings in runs(recipe, quick=True):
        ...                                            # train each; judge.py compares the results

A run belongs to a cell if their settings match, so one run serves every recipe that needs it. A quick run is a
stand-in: it shows that the recipe runs, not that the paper is right.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

from ...errors import InputError, installing, message
from ..compare.grouping import COST
from ..format import suggest
from ..metrics.metric_info import places_for
from ..train.settings import Settings, with_whole_last
from .quantities import VALUES

if sys.version_info >= (3, 11):
    import tomllib
else:
    try:
        import tomli as tomllib
    except ImportError as error:
        raise InputError(message("tomli, with Python 3.10", "an environment without it", installing("lab"))) from error

Compare = Literal["points", "factor"]
INCIDENTAL = frozenset({*COST, "amp", "seed"})
"""Settings in which a run may differ from its cell."""
RELATIONS = ("lossless", "same", "less", "more")
PROOFS = ("reproduced", "consistent")


# ---- what a recipe is ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One number of a table or figure, and the settings that should produce it."""

    name: str
    paper: float | None = None
    """The paper's value; None if the paper only relates it to another one."""
    spread: float | None = None
    """The paper's own ±."""
    saved: float | None = None
    """The saving that the paper prints next to it, in percent."""
    expect: float | str | None = None
    """If the paper has no number: one that follows from its text, or the relation to ``against``."""
    unit: str = ""
    of: str = "metric"
    """Which number of a run it is: see ``quantities.VALUES``."""
    row: str = ""
    """The row of the recipe's measurement, if the cell is measured instead of trained."""
    against: str = ""
    """The cell it is compared with: then the difference (or the ratio) counts, not the value."""
    compare: Compare = "points"
    tolerance: float = 0.5
    """In points, or as a factor; infinite if the value is shown but not judged."""
    settings: Settings | None = None
    quick: Settings | None = None
    """The settings of its stand-in."""
    waits: str = ""
    """What is missing before it can run."""
    proves: str = "reproduced"
    """Its status within the tolerance; "consistent" if agreement says little, for example about a default."""
    note: str = ""

    @property
    def target(self) -> float | None:
        """The number to reach, if there is one."""
        return self.paper if self.paper is not None else self.expect if isinstance(self.expect, float) else None

    @property
    def places(self) -> int:
        """Decimals of its differences."""
        return places_for(self.tolerance)


@dataclass(frozen=True)
class Recipe:
    """A table or figure with its claim."""

    name: str
    title: str
    claim: str
    paper: str
    """The paper (ICLR 2024), or its earlier version."""
    place: str
    """Table or figure, section."""
    data: str
    hardware: str
    gpu_hours: float
    """An estimate for all cells and seeds that can run."""
    seeds: int
    quick_seeds: int
    tolerance_saved: float
    cells: tuple[Cell, ...]
    measure: str = ""
    """MODULE:FUNCTION that measures its rows."""
    notes: tuple[str, ...] = ()

    @property
    def waits(self) -> tuple[str, ...]:
        """What its cells wait for, without details: "static selection" for "static selection: Herding"."""
        return tuple(dict.fromkeys(cell.waits.partition(":")[0] for cell in self.cells if cell.waits))

    @property
    def runnable(self) -> bool:
        """True if at least one cell can run."""
        return any(not cell.waits for cell in self.cells)

    @property
    def stand_in(self) -> str:
        """What the quick version trains instead of the recipe's task; empty if nothing is replaced."""
        swapped = dict.fromkeys(
            f"{cell.quick.task} for {cell.settings.task}" for cell in self.cells if cell.quick and cell.settings
        )
        return f"stand-in: {', '.join(swapped)}" if swapped else ""

    def cell(self, name: str) -> Cell:
        """Return a cell by name."""
        for cell in self.cells:
            if cell.name == name:
                return cell
        raise InputError(
            message(f"a cell of {self.name}", repr(name), suggest(name, [cell.name for cell in self.cells]))
        )


# ---- reading ---------------------------------------------------------------------------------------------


def folder() -> Path:
    """Return the folder of the recipes: next to the code in an installed package, otherwise in the checkout."""
    here = Path(__file__).resolve()
    for place in (here.parents[2] / "recipes", here.parents[4] / "recipes"):
        if place.is_dir():
            return place
    raise InputError(message("the recipes' folder", "none next to the package", "Reinstall the package."))


def names() -> list[str]:
    """List all recipes: tables, then figures, then those of the earlier version.

    >>> names()[:3]
    ['table1', 'table2', 'table3']
    """
    return sorted((path.stem for path in folder().glob("*.toml")), key=_order)


def load(name: str) -> Recipe:
    """Load a recipe by name, or from a file that ends in .toml.

    >>> load("table11").cell("numpy sort, 1.28M").paper
    123.4
    """
    if name.endswith(".toml"):
        return read(Path(name))
    if name not in names():
        raise InputError(message("a recipe", repr(name), suggest(name, names())))
    return read(folder() / f"{name}.toml")


def all_recipes() -> list[Recipe]:
    """Load all recipes."""
    return [load(name) for name in names()]


def read(path: Path) -> Recipe:
    """Read a recipe from a file.

    Raises:
        InputError: If there is no such file, or something in it is wrong; the message says where.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(message("a recipe's file", str(path), "There is no such file.")) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise InputError(message("a recipe in TOML", f"{path}: {error}", "Fix the file.")) from error
    return _recipe(_Table(table, path.name), path.stem)


T = TypeVar("T")


class _Table:
    """A table of the file. Each known key is taken once, with its type; any key left over is unknown."""

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, dict):
            raise InputError(message(f"a table at {where}", repr(values), "recipes/README.md shows an example."))
        self.values, self.where = dict(values), where
        self.known: list[str] = []

    def take(self, key: str, kind: type[T], default: T | None = None) -> T:
        self.known.append(key)
        value = self.values.pop(key, default)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or isinstance(value, bool) or value != value:  # NaN is not equal to itself
            got = "nothing" if value is None else repr(value)
            raise InputError(message(f"{key} as {kind.__name__} in {self.where}", got, "See recipes/README.md."))
        return value

    def maybe(self, key: str, kind: type[T]) -> T | None:
        if key in self.values:
            return self.take(key, kind)
        self.known.append(key)
        return None

    def table(self, key: str) -> _Table:
        return _Table(self.take(key, dict, {}), f"{self.where}, {key}")

    def done(self) -> None:
        for key in self.values:
            raise InputError(message(f"a key of a recipe in {self.where}", repr(key), suggest(key, self.known)))


def _recipe(table: _Table, name: str) -> Recipe:
    source, needs, quick = table.table("source"), table.table("needs"), table.table("quick")
    parts = {key: _dict(value, f"{table.where}, parts.{key}") for key, value in table.take("parts", dict, {}).items()}
    common = _Shared(
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
class _Shared:
    """What a file states once for all its cells."""

    settings: dict[str, Any]
    parts: dict[str, dict[str, Any]]
    quick: dict[str, Any]
    unit: str
    of: str
    compare: str
    tolerance: float


def _cell(table: _Table, common: _Shared) -> Cell:
    name = table.take("name", str)
    table.where = f"{table.where} ({name})"
    own = dict(common.settings)
    for part in table.take("from", list, []):
        if not isinstance(part, str) or part not in common.parts:
            raise InputError(message(f"a part named in {table.where}", repr(part), suggest(str(part), common.parts)))
        own |= common.parts[part]
    own |= table.take("settings", dict, {})
    row, waits = table.take("row", str, ""), table.take("waits", str, "")
    relation = isinstance(table.values.get("expect"), str)
    expect: float | str | None = table.maybe("expect", str) if relation else table.maybe("expect", float)
    compare = table.take("compare", str, common.compare)
    if compare not in get_args(Compare):
        raise InputError(message(f"compare in {table.where}", repr(compare), suggest(compare, get_args(Compare))))
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
        compare=cast(Compare, compare),
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
        as_published = {"compensate": "loss", "ideas": with_whole_last(given.get("method", ""), "")}
        return Settings.of({**as_published, **given})
    except InputError as error:
        raise InputError(f"in {where}: {error}") from error


def _dict(value: Any, where: str) -> dict[str, Any]:
    return _Table(value, where).values


def _check(recipe: Recipe, where: str) -> None:
    cells = [cell.name for cell in recipe.cells]
    for name, seeds in (("seeds", recipe.seeds), ("quick.seeds", recipe.quick_seeds)):
        if seeds < 1:
            raise InputError(message(f"{name} of at least 1 in {where}", str(seeds), "Fix the file."))
    for cell in recipe.cells:
        at = f"{where}, cell {cell.name}"
        if cells.count(cell.name) > 1:
            raise InputError(message(f"unique cell names in {where}", f"two cells {cell.name}", "Rename one."))
        if cell.proves not in PROOFS:
            raise InputError(
                message(f"a known value of proves in {at}", repr(cell.proves), suggest(cell.proves, PROOFS))
            )
        if cell.row and not recipe.measure:
            raise InputError(message(f"measure in {where}", f"a row in {cell.name}", "Name MODULE:FUNCTION."))
        if cell.settings and cell.of not in VALUES:
            raise InputError(message(f"a known value of `of` in {at}", repr(cell.of), suggest(cell.of, VALUES)))
        if cell.tolerance <= 0 or (cell.compare == "factor" and cell.target is not None and cell.target <= 0):
            expected = f"a tolerance above 0, and a value above 0 where compare is factor, in {at}"
            got = f"tolerance {cell.tolerance:g}, value {cell.target}"
            raise InputError(message(expected, got, "Fix the cell."))
        relations = RELATIONS if cell.compare == "points" else ("less", "more")
        if isinstance(cell.expect, str) and (cell.expect not in relations or not cell.against):
            expected = f"expect as one of {', '.join(relations)}, or a number, and against, in {at}"
            raise InputError(message(expected, repr(cell.expect), "Fix the cell."))
        if cell.against:
            other = recipe.cell(cell.against)
            if cell.target is not None and other.target is None:
                raise InputError(message(f"a value in {cell.against}", "none", f"{at} is compared with it."))


def _order(name: str) -> tuple[bool, bool, int, str]:
    number = re.search(r"\d+$", name)
    return name.startswith("early"), "figure" in name, int(number[0]) if number else 0, name


# ---- runs ------------------------------------------------------------------------------------------------

QUICK_EPOCHS = 12
QUICK_LR = {"sgd": 0.05, "adam": 0.003, "adamw": 0.003, "radam": 0.003, "lars": 1.0, "lamb": 0.01}


SEGMENTED = ("ade20k", "segmentation")
"""Tasks whose stand-in is segmentation, too."""


def stand_in(settings: Settings, longest: int) -> Settings:
    """Return the same method, optimizer and schedule on small data with a small net: seconds on a CPU.

    The data are digits, and for segmentation made shapes. ``longest`` is the length of the recipe's longest run, so
    that runs of other lengths keep their proportion.
    """
    segments = settings.task in SEGMENTED
    classifier = "mlp" if settings.model.endswith("resnet18") else "conv"
    return settings.but(
        task="shapes" if segments else "digits",
        data="",
        model="fpn8" if segments else classifier,
        epochs=max(4, round(QUICK_EPOCHS * settings.epochs / longest)),
        batch_size=16 if segments else 64,
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
    """List what to train: seed by seed, so that an interrupted recipe has as many runs per cell; no settings twice.

    ``changes`` may be settings such as data, device or amp. Cells with the settings of an earlier one are left out.

    >>> [settings.seed for _, settings in runs(load("table12"), quick=True, seeds=2)][:4]
    [0, 0, 0, 0]
    """
    if seeds < 0:
        raise InputError(message("at least 1 seed", str(seeds), "Leave it out for the recipe's own number."))
    allowed = [entry.name for entry in fields(Settings) if entry.name in INCIDENTAL - {"seed"}]
    for name in changes:
        if name not in allowed:
            raise InputError(message("a setting that does not change the recipe", repr(name), suggest(name, allowed)))
    found: dict[Settings, Cell] = {}
    for seed in range(seeds or (recipe.quick_seeds if quick else recipe.seeds)):
        for cell in recipe.cells:
            settings = cell.quick if quick else cell.settings
            if settings is not None:
                found.setdefault(settings.but(seed=seed, **changes), cell)
    return [(cell, settings) for settings, cell in found.items()]


@cache
def essence(settings: Settings) -> Settings:
    """Reset the settings in which a run may differ from its cell."""
    plain: dict[str, Any] = {entry.name: entry.default for entry in fields(Settings) if entry.name in INCIDENTAL}
    return settings.but(**plain)


def run_name(recipe: Recipe, cell: Cell, settings: Settings, quick: bool = False) -> str:
    """Name the folder of a run, for example "table4-quick/r-18-random-star-seed0".

    >>> recipe = load("table12")
    >>> cell, settings = runs(recipe)[0]
    >>> run_name(recipe, cell, settings)
    'table12/infobatch-cifar-10-seed0'
    """
    words = re.sub(r"[^a-z0-9.]+", "-", cell.name.lower().replace("*", " star")).strip("-")
    return f"{recipe.name}{'-quick' if quick else ''}/{words}-seed{settings.seed}"


# ---- all of them ----------------------------------------------------------------------------------------


def index() -> str:
    """Write the table of all recipes in recipes/README.md."""
    lines = ["| recipe | title | source | cells | waits for | needs |", "|---|---|---|---|---|---|"]
    for recipe in all_recipes():
        waiting = sum(bool(cell.waits) for cell in recipe.cells)
        count = f"{len(recipe.cells)}" if not waiting else f"{len(recipe.cells)}, {waiting} wait"
        hours = f", about {recipe.gpu_hours:g} GPU hours" if recipe.gpu_hours else ""
        source = f"{recipe.paper.partition(' (')[0]}, {recipe.place.partition(';')[0].partition(',')[0]}"
        needs = f"{recipe.data}; {recipe.hardware}{hours}"
        waits = "; ".join(recipe.waits)
        lines.append(f"| {recipe.name} | {recipe.title} | {source} | {count} | {waits} | {needs} |")
    return "\n".join(lines)
