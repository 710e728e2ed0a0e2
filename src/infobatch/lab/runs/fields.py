"""Numbers out of records. A record may come from anywhere, so what is no finite number is none."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from .records import Run

LARGEST = 1e150


def metric_of(run: Run) -> float | None:
    """The metric of the finished run; None where there is none or it is not finite."""
    return number((run.end or {}).get("metric"))


def seconds(run: Run) -> float | None:
    """What a run took, without setup."""
    parts = table((run.end or {}).get("seconds"))
    total = number(parts.get("total"))
    return None if total is None else total - (number(parts.get("setup")) or 0.0)


def saved(run: Run, full: Run | None) -> float | None:
    """The share of full data's samples that a run did without; of full data as recorded, else as planned."""
    end = run.end or {}
    done, planned = number(end.get("samples")), number(end.get("full_samples"))
    instead = number(full.end.get("samples")) if full is not None and full.end is not None else None
    most = instead or planned
    return number(end.get("saved")) if done is None or not most else 1 - done / most


def device_of(run: Run) -> str:
    """What a run ran on, by the name of the GPU or else the CPU; empty where its record does not tell."""
    environment = table(run.start.get("environment"))
    return str(environment.get("gpu") or environment.get("cpu") or environment.get("device") or "")


def number(value: Any) -> float | None:
    """A finite number, or None. One whose square is none is none here: spreads are made of squares."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < LARGEST:
        return None
    return float(value)


def mean(values: Iterable[Any]) -> float | None:
    """Of those that are numbers; None where none is."""
    known = [value for value in map(number, values) if value is not None]
    return statistics.fmean(known) if known else None


def table(value: Any) -> dict[str, Any]:
    """A part of a fact that has parts; empty where there is none."""
    return value if isinstance(value, dict) else {}
