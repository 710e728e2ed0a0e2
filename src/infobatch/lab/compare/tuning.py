"""Each at its best of the learning rates tried. At a rate too small for full data nearly anything looks lossless.

    found = compare(runs)
    best = at_best(runs, found)
    for one in best.rows if best else ():
        print(one.row.label, one.rate, one.row.verdict.text)

Whoever was not tried at each rate that full data were is left out: a choice of rates is an advantage. The rate is
picked by the very runs that are then compared, by the mean over the seeds that all rates have.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..runs.fields import mean, metric_of
from ..runs.records import Run
from .comparison import (
    FULL,
    SAME_STEPS,
    Comparison,
    Row,
    by_seed,
    decisive,
    differing,
    group,
    is_control,
    paired,
    row_of,
    to_the_best,
    usable,
    verdict_of,
)
from .verdicts import Difference, Verdict

Rates = Mapping[float, list[Run]]
"""Runs that differ in their seed and in the learning rate alone, by that."""
Controls = Mapping[str, list[Run]]
"""By label: full data, stopped after a number of steps, at their best rate."""


@dataclass(frozen=True)
class Best:
    rate: float
    row: Row
    """Against full data at their best; at equal steps, against such controls at theirs."""


@dataclass(frozen=True)
class Point:
    """A row's runs at one rate."""

    rate: float
    mean: float
    std: float
    n: int


@dataclass(frozen=True)
class AtBest:
    rates: tuple[float, ...]
    """Those that all were tried at: where full data have more than a first seed."""
    rows: tuple[Best, ...]
    left_out: tuple[str, ...]
    """Labels that were not tried at each."""
    by_rate: dict[str, tuple[Point, ...]]
    """All labels that were tried at two rates or more."""

    @property
    def at_an_end(self) -> tuple[Best, ...]:
        """Those whose best rate is the smallest or the largest tried: one beyond may be better."""
        return tuple(one for one in self.rows if one.rate in (self.rates[0], self.rates[-1]))

    @property
    def full_alone(self) -> bool:
        """Nothing else was tried at each rate."""
        return len(self.rows) == 1

    @property
    def title(self) -> str:
        if self.full_alone:
            return "Full data at their best learning rate"
        return "Each at its best learning rate, against full data at theirs"

    @property
    def about(self) -> tuple[str, ...]:
        """What a reader must know."""
        texts = [
            f"Tried at {', '.join(f'{rate:g}' for rate in self.rates)}. The rate is picked by the test results of "
            "these very runs, over the seeds that all rates have, which favours a little who varies more."
        ]
        if self.at_an_end:
            which = {self.rates[0]: "the smallest", self.rates[-1]: "the largest"}
            ends = ", ".join(f"{one.row.label} ({one.rate:g}, {which[one.rate]})" for one in self.at_an_end)
            texts.append(f"Best at an end of what was tried, so that a rate beyond may be better: {ends}.")
        if any(one.row.same_steps is not None for one in self.rows):
            texts.append("At equal steps: to full data for as many steps, at the best rate for that.")
        if self.left_out and self.full_alone:
            texts.append("Nothing else was tried at each rate.")
        elif self.left_out:
            texts.append(f"Not tried at each rate, so left out: {', '.join(self.left_out)}.")
        return tuple(texts)

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def at_best(runs: Iterable[Run], found: Comparison) -> AtBest | None:
    """By the rules of a comparison of these runs. None where full data have one rate, or more than rates differ."""
    runs = list(runs)
    if set(differing([decisive(run) for run in runs])) != {"lr"}:
        return None
    kinds = _by_rate(runs)
    full = {rate: len(_good(members)) for rate, members in kinds.get(FULL, {}).items()}
    rates = tuple(sorted(rate for rate, seeds in full.items() if seeds > 1 or max(full.values()) == seeds == 1))
    if len(rates) < 2:
        return None
    chosen = {name: _pick(tried, rates) for name, tried in kinds.items()}
    picked = {name: (rate, kinds[name][rate]) for name, rate in chosen.items() if rate is not None}
    if FULL not in picked:
        return None
    controls = {name: _good(members) for name, (_, members) in picked.items() if is_control(members[0])}
    rows = [
        Best(rate, _held(name, members, picked[FULL][1], controls, found)) for name, (rate, members) in picked.items()
    ]
    lines = {name: line for name, tried in kinds.items() if len(line := _line(tried)) > 1}
    return AtBest(rates, tuple(rows), tuple(name for name in kinds if name not in picked), lines)


def _line(tried: Rates) -> tuple[Point, ...]:
    metrics = {rate: [value for run in _good(tried[rate]) if (value := metric_of(run)) is not None] for rate in tried}
    return tuple(
        Point(rate, statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0, len(values))
        for rate, values in sorted(metrics.items())
        if values
    )


def _by_rate(runs: list[Run]) -> dict[str, Rates]:
    kinds: dict[str, dict[float, list[Run]]] = {}
    for name, members in group(runs).items():
        rate = members[0].settings.lr
        kinds.setdefault(name.removesuffix(f" · lr={rate}"), {})[rate] = members
    return dict(kinds)


def _good(members: list[Run]) -> list[Run]:
    return usable("", members)[0]


def _pick(tried: Rates, rates: tuple[float, ...]) -> float | None:
    """The best of them; None where some was not tried, or with other seeds alone."""
    ended = {rate: [run for run in tried.get(rate, ()) if run.end is not None] for rate in rates}
    seeds = set.intersection(*({run.settings.seed for run in runs} for runs in ended.values()))

    def reached(rate: float) -> float:
        if any(metric_of(run) is None for run in ended[rate]):
            return -math.inf  # whoever diverges there, if only at times, does not do best
        return mean(metric_of(run) for run in _good(ended[rate]) if run.settings.seed in seeds) or 0.0

    return max(rates, key=reached) if seeds else None


def _held(name: str, members: list[Run], full: list[Run], controls: Controls, found: Comparison) -> Row:
    good, level, partner = _good(members), found.interval_level, by_seed(_good(full))
    names = tuple(run.name for run in good)
    if name == FULL:
        return replace(row_of(name, good, partner, None, None, Verdict("baseline", "the baseline")), runs=names)
    difference = paired(good, partner, level)
    look = max(1, len(found.looks or ()))
    verdict = verdict_of(members, full, difference, found.margin, found.level, look, "")
    same = None if is_control(members[0]) else _same_steps(name, good, controls, level)
    return replace(row_of(name, good, partner, difference, same, verdict), runs=names)


def _same_steps(name: str, good: list[Run], controls: Controls, level: float) -> Difference | None:
    """To full data with its own steps, or else with a number near them; of two such, to the better one."""
    took = _steps(good)
    own = [runs for control, runs in controls.items() if control.endswith(f", steps of {name}")]
    round_ones = [runs for control, runs in controls.items() if ", steps of " not in control]
    near = own or [runs for runs in round_ones if abs(_steps(runs) - took) <= SAME_STEPS * took]
    return to_the_best(paired(good, by_seed(some), level) for some in near)


def _steps(runs: list[Run]) -> float:
    return mean((run.end or {}).get("steps") for run in runs) or 0.0
