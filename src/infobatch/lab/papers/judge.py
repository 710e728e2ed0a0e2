"""Judge a recipe: each cell next to what was measured here, and whether the two agree.

    found = outcome(load("table4"), finished, quick=True)
    print(found.summary)

The interval of the mean decides, or that of the paired differences if a cell is compared with another. A quick run
decides nothing.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from ..compare.verdicts import of_differences
from ..metrics.metric_info import MetricInfo
from ..runs.fields import device_of
from ..runs.records import Run
from ..train.settings import Settings, without_whole_last
from .gathered import Evidence, Measurement
from .quantities import VALUES
from .recipe import Cell, Recipe, all_recipes, essence

Status = Literal[
    "reproduced", "consistent", "not reproduced", "undecided", "too few seeds", "stand-in", "for comparison",
    "not run", "waits",
]  # fmt: skip

LEVEL = 0.9
"""The level of the deciding interval: if it lies within the tolerance, the two are equal, tested at 5 %."""


# ---- outcomes --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CellOutcome:
    """A cell next to what was measured here."""

    cell: Cell
    status: Status
    why: str = ""
    """The reason, if the status needs one."""
    ours: float | None = None
    std: float | None = None
    n: int = 0
    saved: float | None = None
    """What our runs saved, in percent."""
    compared: float | None = None
    """Our difference (or ratio) to the cell it is compared with."""
    low: float | None = None
    """The ends of the deciding interval: of ``compared``, or of ``ours`` if it is compared with no cell."""
    high: float | None = None
    wanted: float | None = None
    """The paper's difference (or ratio)."""
    where: tuple[str, ...] = ()
    when: str = ""
    records: tuple[Path, ...] = ()
    """The files that hold our numbers."""
    higher_is_better: bool = True
    """False for a metric of which less is better: then "lossless" bounds it from above."""

    @property
    def text(self) -> str:
        """The status in words."""
        return f"waits for {self.cell.waits}" if self.status == "waits" else self.status

    def plain(self) -> dict[str, Any]:
        cell = self.cell
        described = {"cell": cell.name, "paper": cell.paper, "spread": cell.spread, "paper_saved": cell.saved}
        described |= {"expect": cell.expect, "unit": cell.unit, "against": cell.against, "waits": cell.waits}
        own = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "cell"}
        lists = {"where": list(self.where), "records": list(map(str, self.records))}
        return {**described, **own, **lists, "note": cell.note}


@dataclass(frozen=True)
class Outcome:
    """The outcome of a recipe."""

    recipe: Recipe
    quick: bool
    rows: tuple[CellOutcome, ...]

    @property
    def stand_in(self) -> str:
        """What was trained instead, in a quick version; to be shown with its numbers."""
        return self.recipe.stand_in if self.quick else ""

    @property
    def where(self) -> tuple[str, ...]:
        """The hardware of the runs."""
        return tuple(dict.fromkeys(place for row in self.rows for place in row.where))

    @property
    def when(self) -> str:
        """The time of the latest run."""
        return max((row.when for row in self.rows), default="")

    @property
    def summary(self) -> str:
        """For example "3 reproduced, 1 not reproduced, 2 wait"."""
        counts = Counter(row.status for row in self.rows)
        waiting = counts.pop("waits", 0)
        described = [f"{counts[status]} {status}" for status in get_args(Status) if counts[status]]
        if waiting:
            described.append(f"{waiting} {'wait' if waiting > 1 else 'waits'}")
        return ", ".join(described)

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


# ---- judging ---------------------------------------------------------------------------------------------

_Runs = dict[Settings, dict[int, Run]]
"""By ``essence`` of the settings, and by seed."""


def outcome(
    recipe: Recipe,
    runs: Iterable[Run] = (),
    measurements: Iterable[Measurement] = (),
    quick: bool = False,
) -> Outcome:
    """Compare measured numbers with the paper, cell by cell.

    Args:
        recipe: The recipe.
        runs: Recorded runs; those with other settings are ignored.
        measurements: Recorded measurements; those of other functions are ignored.
        quick: Judge the quick version.
    """
    return _outcome(recipe, _by_settings(runs), measurements, quick)


def _by_settings(runs: Iterable[Run]) -> _Runs:
    found: _Runs = {}
    for run in runs:
        if run.end is not None:
            same = found.setdefault(essence(run.settings), {})
            same[run.settings.seed] = run  # the last run of a seed counts
    return found


def _outcome(recipe: Recipe, runs: _Runs, measurements: Iterable[Measurement], quick: bool) -> Outcome:
    mine = (each for each in measurements if each.measure == recipe.measure and each.quick == quick)
    found = _Found(recipe, quick, runs, sorted(mine, key=lambda each: each.time))
    return Outcome(recipe, quick, tuple(_judge(cell, found) for cell in recipe.cells))


@dataclass(frozen=True)
class _Found:
    """The evidence, arranged by cell."""

    recipe: Recipe
    quick: bool
    runs: _Runs
    measured: Sequence[Measurement]

    def of(self, cell: Cell) -> dict[int, Run]:
        settings = cell.quick if self.quick else cell.settings
        if settings is None:
            return {}
        current = settings.but(ideas=without_whole_last(settings.ideas))  # older records may have ideas=whole_last
        return {**self.runs.get(essence(settings), {}), **self.runs.get(essence(current), {})}

    def values(self, cell: Cell) -> dict[int, float]:
        """Return the cell's number per seed."""
        numbers = {seed: VALUES[cell.of](run) for seed, run in self.of(cell).items()}
        return {seed: value for seed, value in numbers.items() if value is not None}

    def against(self, cell: Cell) -> Cell | None:
        return self.recipe.cell(cell.against) if cell.against else None

    def records(self, cell: Cell) -> tuple[Path, ...]:
        """Return the files of its runs, then of those it is compared with."""
        other = self.against(cell)
        both = [*self.of(cell).values(), *(self.of(other).values() if other else ())]
        return tuple(dict.fromkeys(run.file for run in both if run.file is not None))


def _judge(cell: Cell, found: _Found) -> CellOutcome:
    if cell.waits:
        return CellOutcome(cell, "waits")
    judged = _judge_measured(cell, found) if cell.row else _judge_trained(cell, found)
    weak = judged.status == "reproduced" and cell.proves == "consistent"
    return replace(judged, status="consistent") if weak else judged


def _judge_measured(cell: Cell, found: _Found) -> CellOutcome:
    """Judge by the latest measurement with the row, and the row it is compared with."""
    other = found.against(cell)
    rows = {cell.row, other.row} if other else {cell.row}
    last = next((each for each in reversed(found.measured) if rows <= each.rows.keys()), None)
    if last is None:
        return CellOutcome(cell, "not run")
    ours = last.rows[cell.row]
    about = CellOutcome(
        cell,
        "for comparison",
        ours=ours,
        n=1,
        where=(_machine(last, cell.row),),
        when=last.time,
        records=() if last.file is None else (last.file,),
    )
    if other and not last.rows[other.row]:
        return replace(about, status=about.status if found.quick else "undecided", why=_without_ratio(other))
    judged = _by_factor(about, cell, other, ours / last.rows[other.row] if other else ours)
    return replace(judged, status="for comparison") if found.quick else judged


def _judge_trained(cell: Cell, found: _Found) -> CellOutcome:
    values, used = found.values(cell), found.of(cell)
    lost = len(used) - len(values) if cell.of == "metric" else 0
    if lost and not found.quick:  # a verdict based on the others would hide exactly the runs that went wrong
        why = f"{lost} of {len(used)} runs ended without a finite metric"
        return CellOutcome(cell, "not reproduced", why, records=found.records(cell))
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
        where=tuple(dict.fromkeys(_where(run) for run in used.values())),
        when=max(str(run.start.get("time", "")) for run in used.values()),
        records=found.records(cell),
        higher_is_better=cell.of != "metric" or all(_direction(run) for run in used.values()),
    )
    other = found.against(cell)
    if other is not None:
        partners = found.values(other)
        if not partners:
            return replace(about, status="undecided", why=f"{other.name}, which it is compared with, was not run")
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
    return f"{other.name} is 0 here, so there is no ratio"


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
        return replace(about, status="not reproduced", why=f"{text}, and the order is reversed")
    return replace(about, status="reproduced" if off <= cell.tolerance else "not reproduced", why=text)


def _by_side(about: CellOutcome, cell: Cell, compared: float) -> CellOutcome:
    """Judge a ratio that should be below or above 1."""
    good = compared < 1 if cell.expect == "less" else compared > 1
    return replace(about, status="reproduced" if good else "not reproduced", why=f"ratio {compared:.3g}")


def _by_points(about: CellOutcome, cell: Cell, other: Cell | None, values: list[float]) -> CellOutcome:
    """Compare the interval of the mean, or of the paired differences, with the tolerance."""
    middle, std, low, high = of_differences(values, LEVEL)
    about = replace(about, compared=middle if other else None, low=low, high=high)
    if cell.target is None and cell.expect is None:
        return about
    wanted = 0.0
    if cell.target is not None:
        wanted = cell.target - (other.target or 0.0) if other else cell.target
        about = replace(about, wanted=wanted if other else None)
    if std is None:
        return replace(about, status="too few seeds", why="one seed decides nothing")
    if low is None or high is None:
        return replace(
            about, status="undecided", why=f"all {len(values)} seeds are equal, so there is no spread to judge by"
        )
    status = _decide(low - wanted, high - wanted, edges(about))
    what = f"difference to {other.name}" if other else "value"
    show = f"{{:.{cell.places}f}}".format
    why = f"{what} {show(middle)} ({show(low)} to {show(high)})"
    return replace(about, status=status, why=why if cell.target is None else f"{why}, paper {show(wanted)}")


def _direction(run: Run) -> bool:
    return MetricInfo.of_record(run.start).higher_is_better


def edges(row: CellOutcome) -> tuple[float, float]:
    """Return how far below and above the target an interval in the unit of the value may reach."""
    cell = row.cell
    relation = cell.expect if isinstance(cell.expect, str) else "same"
    return {
        "same": (-cell.tolerance, cell.tolerance),
        "lossless": (-cell.tolerance, math.inf) if row.higher_is_better else (-math.inf, cell.tolerance),
        "less": (-math.inf, 0.0),
        "more": (0.0, math.inf),
    }[relation]


def _decide(low: float, high: float, within: tuple[float, float]) -> Status:
    """Decide by an interval around the target; one that crosses the tolerance leaves it undecided."""
    bottom, top = within
    if bottom <= low and high <= top:
        return "reproduced"
    return "not reproduced" if high < bottom or low > top else "undecided"


def _and_saved(judged: CellOutcome, tolerance: float) -> CellOutcome:
    """Also require the saving that a cell prints."""
    wanted, ours = judged.cell.saved, judged.saved
    if wanted is None or ours is None or abs(ours - wanted) <= tolerance:
        return judged
    why = f"{judged.why}; saved {ours:.1f} %, paper {wanted:.1f} %".removeprefix("; ")
    return replace(judged, status="not reproduced" if judged.status == "reproduced" else judged.status, why=why)


def _where(run: Run) -> str:
    device = device_of(run) or "unknown"
    return device if run.settings.amp == "none" else f"{device}, {run.settings.amp}"


def _machine(measurement: Measurement, row: str) -> str:
    return str(measurement.environment.get("gpu" if row.startswith("gpu") else "cpu") or "unknown")


# ---- lists -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Listed:
    """One recipe of the list: its outcome here, and that of its quick version."""

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


def listing(known: Evidence) -> list[Listed]:
    """Judge every recipe by the evidence."""
    runs = _by_settings(known.runs)
    return [
        Listed(recipe, *(_outcome(recipe, runs, known.measurements, quick) for quick in (False, True)))
        for recipe in all_recipes()
    ]
