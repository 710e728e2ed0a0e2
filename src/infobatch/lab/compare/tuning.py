"""Compare each method at its best learning rate: at a rate too small for full data, nearly anything looks lossless.

    found = compare(runs)
    best = at_best(runs, found)
    for one in best.rows if best else ():
        print(one.row.label, one.rate, one.row.verdict.text)

A method that was not tried at every rate of full data is left out, because a choice of rates is an advantage. The rate
is picked from the same runs that are then compared, by the mean over the seeds that all rates have.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..metrics.metric_info import MetricInfo
from ..runs.fields import mean, metric_of, same_cost_steps
from ..runs.records import Run
from .comparison import (
    BASELINE,
    CONTROL,
    SAME_COST,
    Comparison,
    Row,
    by_seed,
    paired,
    row_of,
    to_the_best,
    verdict_of,
)
from .grouping import FULL, control_labels, decisive, differing, group, is_shorter_run, usable
from .verdicts import Difference

Rates = Mapping[float, list[Run]]
"""Runs that differ only in the seed and the learning rate, by the latter."""
ShorterRuns = Mapping[str, list[Run]]
"""Full data stopped after a number of steps, at its best rate, by label."""


@dataclass(frozen=True)
class Best:
    """A row at its best learning rate."""

    rate: float
    row: Row
    """Compared with full data at its best rate, and with a shorter run at its best rate."""


@dataclass(frozen=True)
class Point:
    """A row's runs at one rate."""

    rate: float
    mean: float
    std: float
    n: int


@dataclass(frozen=True)
class AtBest:
    """All rows at their best learning rate."""

    rates: tuple[float, ...]
    """The rates that every row was tried at: those at which full data has more than a first seed."""
    rows: tuple[Best, ...]
    left_out: tuple[str, ...]
    """Labels that were not tried at every rate."""
    by_rate: dict[str, tuple[Point, ...]]
    """All labels that were tried at two rates or more."""

    @property
    def at_an_end(self) -> tuple[Best, ...]:
        """Rows whose best rate is the smallest or the largest tried: one beyond it may be better."""
        return tuple(one for one in self.rows if one.rate in (self.rates[0], self.rates[-1]))

    @property
    def full_alone(self) -> bool:
        """True if only full data was tried at every rate."""
        return len(self.rows) == 1

    @property
    def title(self) -> str:
        """A heading."""
        if self.full_alone:
            return "Full data at its best learning rate"
        return "Each method at its best learning rate, compared with full data at its best"

    @property
    def about(self) -> tuple[str, ...]:
        """What a reader must know."""
        texts = [
            f"Tried at {', '.join(f'{rate:g}' for rate in self.rates)}. The rate is picked by the test results of "
            "these same runs, over the seeds that all rates have, which slightly favours methods that vary more."
        ]
        if self.at_an_end:
            which = {self.rates[0]: "the smallest", self.rates[-1]: "the largest"}
            ends = ", ".join(f"{one.row.label} ({one.rate:g}, {which[one.rate]})" for one in self.at_an_end)
            texts.append(f"Best at an end of the range tried, so a rate beyond it may be better: {ends}.")
        if any(one.row.same_cost is not None for one in self.rows):
            texts.append("A shorter run is taken at the learning rate that is best for it.")
        if self.left_out and self.full_alone:
            texts.append("No method was tried at every rate.")
        elif self.left_out:
            texts.append(f"Left out, because not tried at every rate: {', '.join(self.left_out)}.")
        return tuple(texts)

    def plain(self) -> dict[str, Any]:
        """Return the rows as values that JSON can hold."""
        return asdict(self)


def at_best(runs: Iterable[Run], found: Comparison) -> AtBest | None:
    """Compare each label at its best learning rate.

    Args:
        runs: The recorded runs.
        found: A comparison of these runs, whose rules apply here, too.

    Returns:
        The rows; None if full data has only one rate, or if other settings differ as well.
    """
    runs = list(runs)
    if set(differing([decisive(run) for run in runs])) != {"lr"}:
        return None
    kinds = _group_by_rate(runs)
    full = {rate: len(_usable(members)) for rate, members in kinds.get(FULL, {}).items()}
    rates = tuple(sorted(rate for rate, seeds in full.items() if seeds > 1 or max(full.values()) == seeds == 1))
    if len(rates) < 2:
        return None
    chosen = {name: _pick_rate(tried, rates, found.metric_info) for name, tried in kinds.items()}
    picked = {name: (rate, kinds[name][rate]) for name, rate in chosen.items() if rate is not None}
    if FULL not in picked:
        return None
    at_rate = {name: members for name, (_, members) in picked.items()}
    shorter = {name: _usable(members) for name, members in at_rate.items() if is_shorter_run(members[0])}
    controls = control_labels(at_rate)
    rows = []
    for name, (rate, members) in picked.items():
        row = _judge_row(name, members, at_rate[FULL], shorter, found)
        rows.append(Best(rate, replace(row, verdict=CONTROL) if name in controls else row))
    lines = {name: points for name, tried in kinds.items() if len(points := _points(tried)) > 1}
    return AtBest(rates, tuple(rows), tuple(name for name in kinds if name not in picked), lines)


def _points(tried: Rates) -> tuple[Point, ...]:
    metrics = {rate: [value for run in _usable(tried[rate]) if (value := metric_of(run)) is not None] for rate in tried}
    return tuple(
        Point(rate, statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0, len(values))
        for rate, values in sorted(metrics.items())
        if values
    )


def _group_by_rate(runs: list[Run]) -> dict[str, Rates]:
    kinds: dict[str, dict[float, list[Run]]] = {}
    for name, members in group(runs).items():
        rate = members[0].settings.lr
        kinds.setdefault(name.removesuffix(f" · lr={rate}"), {})[rate] = members
    return dict(kinds)


def _usable(members: list[Run]) -> list[Run]:
    return usable("", members)[0]


def _pick_rate(tried: Rates, rates: tuple[float, ...], info: MetricInfo) -> float | None:
    """Return the best rate; None if one was not tried, or if the rates have no seed in common."""
    ended = {rate: [run for run in tried.get(rate, ()) if run.end is not None] for rate in rates}
    seeds = set.intersection(*({run.settings.seed for run in runs} for runs in ended.values()))

    def mean_gain(rate: float) -> float:
        if any(metric_of(run) is None for run in ended[rate]):
            return -math.inf  # a rate at which some runs diverge is not the best one
        return info.gain(mean(metric_of(run) for run in _usable(ended[rate]) if run.settings.seed in seeds) or 0.0)

    return max(rates, key=mean_gain) if seeds else None


def _judge_row(name: str, members: list[Run], full: list[Run], shorter: ShorterRuns, found: Comparison) -> Row:
    good, level, partner = _usable(members), found.interval_level, by_seed(_usable(full))
    names = tuple(run.name for run in good)
    if name == FULL:
        return replace(row_of(name, good, partner, None, None, BASELINE), runs=names)
    difference = paired(good, partner, level)
    look = max(1, len(found.looks or ()))
    info = found.metric_info
    verdict = verdict_of(members, full, difference, info, found.level, look, "")
    same = None if is_shorter_run(members[0]) else _to_shorter_run(name, good, shorter, level, info)
    return replace(row_of(name, good, partner, difference, same, verdict), runs=names)


def _to_shorter_run(
    name: str, good: list[Run], shorter: ShorterRuns, level: float, info: MetricInfo
) -> Difference | None:
    """Compare with full data at the method's own cost, or else at about that; of two such, with the better one."""
    cost = _mean_cost(good)
    own = [runs for label, runs in shorter.items() if label.endswith(f", cost of {name}")]
    unowned = [runs for label, runs in shorter.items() if ", cost of " not in label]
    near = own or [runs for runs in unowned if abs(_mean_cost(runs) - cost) <= SAME_COST * cost]
    return to_the_best((paired(good, by_seed(some), level) for some in near), info)


def _mean_cost(runs: list[Run]) -> float:
    """Return how many steps on full data cost as much."""
    return mean(map(same_cost_steps, runs)) or 0.0
