"""Collect the evidence for recipes: finished runs and measurements."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import InfoBatchError, InputError, StateError, message
from ..runs import records
from ..runs.records import Run
from .recipe import Recipe, essence, folder

# ---- measurements ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measurement:
    """Rows that were measured instead of trained; they serve every recipe that names the same function."""

    measure: str
    rows: dict[str, float]
    environment: dict[str, Any] = field(default_factory=dict)
    time: str = ""
    quick: bool = False
    file: Path | None = field(default=None, compare=False)
    """The file it was read from, if any."""

    def plain(self) -> dict[str, Any]:
        """Return the measurement as values that JSON can hold."""
        rows = {name: float(f"{value:.4g}") for name, value in self.rows.items()}
        about = {"measure": self.measure, "time": self.time, "quick": self.quick, "environment": self.environment}
        return {"kind": "measure", "format": records.FORMAT, **about, "rows": rows}


def measure(recipe: Recipe, quick: bool = False, tick: Callable[[str], None] | None = None) -> Measurement:
    """Make the recipe's measurement on this machine.

    Args:
        recipe: A recipe with ``measure``.
        quick: Measure less.
        tick: Called with a line of text as the work proceeds.

    Raises:
        InputError: If the recipe has no such function.
    """
    from . import microbench

    if not recipe.measure:
        raise InputError(message("a recipe with a measurement", recipe.name, "This one is trained: see `runs`."))
    where, _, name = recipe.measure.partition(":")
    given = {"quick": quick, "tick": tick or microbench.silent}
    try:
        function = getattr(importlib.import_module(where), name)
        inspect.signature(function).bind(**given)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        expected = f"measure as MODULE:FUNCTION with arguments (quick, tick) in {recipe.name}"
        raise InputError(message(expected, f"{recipe.measure!r} ({error})", "Fix the recipe.")) from error
    environment = microbench.environment()
    rows = function(**given)
    return Measurement(recipe.measure, rows, environment, records.now(), quick)


FORMER_MODULES = {"infobatch.lab.measures": "infobatch.lab.papers.microbench"}
"""Where older records say their function was."""


# ---- evidence --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    """Finished runs and measurements: what outcomes are based on."""

    runs: tuple[Run, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    unreadable: tuple[str, ...] = ()
    """Files that could not be read, and why."""


def kept_records() -> list[Path]:
    """List the records of the checkout; an installed package has none."""
    return sorted((folder().parent / "research" / "records").rglob("*.jsonl"))


def evidence(*roots: Path | str) -> Evidence:
    """Read the records of the checkout (research/records) and those below ``roots``; damaged files are listed."""
    own = [path for root in roots for path in sorted(Path(root).rglob("*.jsonl"))]
    found: list[Run] = []
    measured: list[Measurement] = []
    unreadable = []
    for path in [*kept_records(), *own]:
        try:
            if records.holds_runs(path):
                done = [run for run in records.read_file(path) if run.end is not None]
                for run in done:
                    essence(run.settings)  # raises for settings of another version
                found += done
            elif not path.is_dir() and records.kind_of(path) == "measure":
                measured += list(_measurements(path))
        except (InfoBatchError, OSError, RecursionError) as error:
            unreadable.append(f"{path}: {error}")
    return Evidence(tuple(found), tuple(measured), tuple(unreadable))


def _measurements(path: Path) -> Iterator[Measurement]:
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            fact = json.loads(line)
            rows = {str(name): float(value) for name, value in fact["rows"].items()}
            module, colon, function = fact["measure"].partition(":")
            name = FORMER_MODULES.get(module, module) + colon + function
            yield Measurement(name, rows, dict(fact["environment"]), str(fact["time"]), fact["quick"], path)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StateError(
                message("a measurement", f"{path}, whose line {number} is not one ({error})", "Nothing was changed.")
            ) from error
