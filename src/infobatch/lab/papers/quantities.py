"""Numbers of a run that a cell of a recipe may refer to."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from ..runs.fields import number, table
from ..runs.records import Run


def _number(*path: str, scale: float = 1.0) -> Callable[[Run], float | None]:
    def of(run: Run) -> float | None:
        value: Any = run.end
        for key in path:
            value = table(value).get(key)
        found = number(value)
        return None if found is None else scale * found

    return of


def _distance(which: str) -> Callable[[Run], float | None]:
    """Return how far a histogram of losses is from that of all samples: half the summed difference of their shares."""

    def of(run: Run) -> float | None:
        found = []
        for epoch in run.epochs:
            losses = table(epoch.get("losses"))
            before, after, other = (_counts(losses.get(name)) for name in ("before", "after", which))
            if len(before) == len(other) and sum(after) < sum(before) and sum(other) > 0:
                shares = [(a / sum(before), b / sum(other)) for a, b in zip(before, other, strict=True)]
                found.append(50 * sum(abs(a - b) for a, b in shares))
        return statistics.fmean(found) if found else None

    return of


def _pruned(first: float, last: float) -> Callable[[Run], float | None]:
    """Return the mean saving of the epochs between two shares of a run, in percent."""

    def of(run: Run) -> float | None:
        total = len(run.epochs)
        shares = [number(epoch.get("saved")) for at, epoch in enumerate(run.epochs) if first <= at / total < last]
        found = [share for share in shares if share is not None]
        return 100 * statistics.fmean(found) if found else None

    return of


def _counts(value: Any) -> list[float]:
    """Return the bars of a histogram; empty if one of them is not a number."""
    bars = [number(each) for each in value] if isinstance(value, list) else []
    return [each for each in bars if each is not None] if None not in bars else []


VALUES: dict[str, Callable[[Run], float | None]] = {
    "metric": _number("metric"),
    "saved": _number("saved", scale=100),
    "hours": _number("seconds", "total", scale=1 / 3600),
    "minutes": _number("seconds", "total", scale=1 / 60),
    "distance_after": _distance("after"),
    "distance_rescaled": _distance("rescaled"),
    "saved_early": _pruned(0, 0.1),
    "saved_middle": _pruned(0.4, 0.6),
    "saved_late": _pruned(0.65, 0.85),
}
"""By the name that a cell gives in ``of``."""
