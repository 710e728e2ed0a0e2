"""Read numbers from run records; anything that is not a finite number becomes None."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from .records import Run

LARGEST = 1e150
"""Numbers whose square overflows are not read: spreads are made of squares."""


def metric_of(run: Run) -> float | None:
    """Return the metric of a finished run; None if it has none or it is not finite."""
    return number((run.end or {}).get("metric"))


def seconds(run: Run) -> float | None:
    """Return the seconds a run took, without setup."""
    parts = table((run.end or {}).get("seconds"))
    total = number(parts.get("total"))
    return None if total is None else total - (number(parts.get("setup")) or 0.0)


def saved(run: Run, full: Run | None) -> float | None:
    """Return the share of full data's samples that a run did not train on.

    Args:
        run: The run.
        full: The run on full data; without it, what the run itself recorded as planned counts.
    """
    end = run.end or {}
    trained, planned = number(end.get("samples")), number(end.get("full_samples"))
    recorded = number(full.end.get("samples")) if full is not None and full.end is not None else None
    full_samples = recorded or planned
    return number(end.get("saved")) if trained is None or not full_samples else 1 - trained / full_samples


def looking(run: Run) -> float | None:
    """Return what looking cost in a run, as a share of the compute of full data; None if its method does not look.

    Compute is counted in FLOPs of forward and backward passes. Sieves look at batches, some methods at pruned samples.
    """
    return number((run.end or {}).get("looking"))


def compute(run: Run, full: Run | None) -> float | None:
    """Return the compute of a run as a share of that of full data: of samples trained on, and of looking.

    Args:
        run: The run.
        full: The run on full data; without it, what the run itself recorded as planned counts.
    """
    share = saved(run, full)
    return None if share is None else 1 - share + (looking(run) or 0.0)


def same_cost_steps(run: Run) -> float | None:
    """Return how many steps on full data cost as much as a run; of older records, the steps it took."""
    end = run.end or {}
    known = number(end.get("same_cost_steps"))
    return number(end.get("steps")) if known is None else known


def device_of(run: Run) -> str:
    """Return the name of the GPU, or else the CPU, that a run used; empty if its record has none."""
    environment = table(run.start.get("environment"))
    return str(environment.get("gpu") or environment.get("cpu") or environment.get("device") or "")


def number(value: Any) -> float | None:
    """Return a finite number as a float, and None for anything else.

    >>> number(3), number(float("nan")), number("3")
    (3.0, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < LARGEST:
        return None
    return float(value)


def mean(values: Iterable[Any]) -> float | None:
    """Return the mean of the values that are numbers; None if there are none."""
    known = [value for value in map(number, values) if value is not None]
    return statistics.fmean(known) if known else None


def table(value: Any) -> dict[str, Any]:
    """Return a dict inside a fact; an empty one if the value is missing or not a dict."""
    return value if isinstance(value, dict) else {}
