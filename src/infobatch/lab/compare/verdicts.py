"""What a paired difference proves. Its interval alone decides, never its mean:

    whole interval above -margin                          lossless (and better, where it is above 0)
    whole interval below 0, its lower end below -margin   worse
    else                                                  not enough seeds

With a number of seeds fixed beforehand, a method that does no harm is called worse in at most (1 - level) / 2 of all
comparisons, and one that loses the whole margin is called lossless as seldom. Whoever looks, adds seeds and looks
again has more chances to be wrong, so intervals get wider with each look: ``level_at``. However often one looks, such
a verdict is shown in at most 1 - level of all comparisons. That is arithmetic where numbers of seeds are set
beforehand; where each look adds the seeds that the last verdict asked for, tests/lab/test_verdicts.py measures it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from ...errors import InputError, installing, message
from ..format import percent

Kind = Literal["baseline", "lossless", "better", "worse", "undecided", "one seed", "failed", "alone"]


FEWEST = 3
"""Two differences may lie close together by chance, and then their interval says more than it knows."""
WITHOUT_SPREAD = 4
"""Differences all alike have no spread to judge by. Accuracies are counts, so two or three alike are common."""


@dataclass(frozen=True)
class Difference:
    """Method minus full data, in points, over the seeds both have."""

    seeds: tuple[int, ...]
    mean: float
    std: float | None
    low: float | None
    """The ends of the interval are None with one seed, and with so few alike that they have no spread."""
    high: float | None

    @property
    def n(self) -> int:
        return len(self.seeds)


@dataclass(frozen=True)
class Verdict:
    kind: Kind
    text: str
    more: int | None = None
    """About how many more seeds would decide; None where that is not the question."""


def level_at(level: float, look: int) -> float:
    """The level of the intervals of a look, from 1 on.

    On either side the k-th look may err in (1 - level) / (k (k + 1)) of all comparisons: half of 1 - level in the
    first, 1 - level in all of them together, and late looks still decide, which they would not if errors were halved.

    >>> [round(level_at(0.95, look), 4) for look in (1, 2, 3)]
    [0.95, 0.9833, 0.9917]
    """
    return 1 - 2 * (1 - level) / (look * (look + 1))


def interval(differences: Sequence[float], level: float) -> tuple[float, float]:
    """Student's interval of the mean.

    >>> low, high = interval([1.0, 2.0, 3.0, 4.0], 0.95)
    >>> print(f"{low:.4f} {high:.4f}")
    0.4457 4.5543
    """
    n = len(differences)
    middle = statistics.fmean(differences)
    half = student(n - 1, level) * statistics.stdev(differences) / math.sqrt(n)
    return middle - half, middle + half


def of_differences(values: Sequence[float], level: float) -> tuple[float, float | None, float | None, float | None]:
    """Mean, spread and the ends of the interval.

    >>> of_differences([0.5, 0.5], 0.95)
    (0.5, 0.0, None, None)
    """
    if len(values) == 1:
        return values[0], None, None, None
    mean, std = statistics.fmean(values), statistics.stdev(values)
    if std < 1e-9 and len(values) < WITHOUT_SPREAD:
        return mean, std, None, None
    return mean, std, *interval(values, level)


def judge(difference: Difference, margin: float, level: float, look: int = 1, word: str = "lossless") -> Verdict:
    """What the interval of a difference, as it is at this look, proves. Seeds still needed are those of the next.

    ``word`` is for what is shown not to be worse: a method beside full data is lossless.
    """
    if difference.std is None:
        return Verdict("one seed", "one seed: no verdict")
    if difference.low is None or difference.high is None:
        more = WITHOUT_SPREAD - difference.n
        return Verdict("undecided", f"not enough seeds: all differ alike, so no interval; {more} more needed", more)
    mean, low, high = difference.mean, difference.low, difference.high
    if difference.n >= FEWEST:
        if low > 0:
            return Verdict("better", f"better by {mean:.2f} points ({low:.2f} to {high:.2f}), so {word}")
        if low > -margin:
            return Verdict("lossless", f"{word} within {margin:g} points at {percent(level)}")
        if high < 0:
            return Verdict("worse", f"worse by {-mean:.2f} points ({-high:.2f} to {-low:.2f})")
    more = more_seeds(mean, difference.std, difference.n, margin, level_at(level, look + 1))
    return Verdict("undecided", f"not enough seeds: about {more} more needed", more)


def more_seeds(mean: float, std: float, n: int, margin: float, level: float) -> int:
    """How many seeds beyond ``n`` until the interval decides, should mean and spread stay what they are.

    The interval decides once its half is below the nearer of two distances: to -margin from above, to 0 from below.
    """
    room = max(margin + mean, -mean)

    def decides(seeds: int) -> bool:
        return student(seeds - 1, level) * std / math.sqrt(seeds) < room

    low, high = n, n + 1
    while not decides(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high - n


@cache
def student(freedom: int, level: float) -> float:
    """The two-sided quantile of Student's t.

    >>> round(student(4, 0.95), 4)
    2.7764
    """
    try:
        from scipy.special import stdtrit
    except ImportError as error:
        text = message("scipy for Student's t", "none installed", installing("lab"))
        raise InputError(text) from error
    return float(stdtrit(freedom, (1 + level) / 2))
