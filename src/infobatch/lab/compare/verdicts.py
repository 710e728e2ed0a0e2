"""Judge a paired difference. Only its interval decides, never its mean:

    the interval lies above -margin                       lossless (and better, if it lies above 0)
    it lies below 0, and its lower end below -margin      worse
    otherwise                                             not enough seeds

With a number of seeds fixed in advance, a harmless method is called worse in at most (1 - level) / 2 of all
comparisons, and one that loses the full margin is called lossless just as rarely. Judging, adding seeds and judging
again gives more chances to be wrong, so intervals get wider with each interim analysis: ``level_at``. However many
there are, a wrong verdict is shown in at most 1 - level of all comparisons. That is arithmetic if the numbers of seeds
are set in advance; if each analysis adds the seeds that the last verdict asked for,
tests/lab/compare/test_verdicts.py measures it.
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
from ..metrics.metric_info import MetricInfo

Kind = Literal["baseline", "control", "lossless", "better", "worse", "undecided", "one seed", "failed", "alone"]
NOT_JUDGED: tuple[Kind, ...] = ("baseline", "control")
"""Rows that others are compared with; nothing is claimed about them."""

FEWEST = 3
"""Two differences may lie close together by chance, and then their interval is too narrow."""
WITHOUT_SPREAD = 4
"""Equal differences have no spread to judge by. Accuracies are counts, so two or three equal ones are common."""


@dataclass(frozen=True)
class Difference:
    """Method minus baseline, in the unit of the metric, over the seeds that both have."""

    seeds: tuple[int, ...]
    mean: float
    std: float | None
    low: float | None
    """The ends of the interval are None with one seed, and with a few equal differences, which have no spread."""
    high: float | None

    @property
    def n(self) -> int:
        return len(self.seeds)

    def gain(self, info: MetricInfo) -> Difference:
        """Return it so that more is better: where lower is better, baseline minus method.

        >>> lower = MetricInfo("error", "%", higher_is_better=False)
        >>> Difference((0, 1), mean=0.5, std=0.1, low=0.25, high=0.75).gain(lower)
        Difference(seeds=(0, 1), mean=-0.5, std=0.1, low=-0.75, high=-0.25)
        """
        if info.higher_is_better:
            return self
        low, high = (None if end is None else -end for end in (self.high, self.low))
        return Difference(self.seeds, -self.mean, self.std, low, high)


@dataclass(frozen=True)
class Verdict:
    """What an interval shows, or why there is nothing to show."""

    kind: Kind
    text: str
    more: int | None = None
    """About how many more seeds would decide; None if seeds are not what is missing."""


def level_at(level: float, look: int) -> float:
    """Return the level of the intervals at an interim analysis, which counts from 1.

    On either side the k-th one may err in (1 - level) / (k (k + 1)) of all comparisons: half of 1 - level at the
    first, 1 - level over all of them. Halving the error at each instead would leave late ones undecided.

    >>> [round(level_at(0.95, look), 4) for look in (1, 2, 3)]
    [0.95, 0.9833, 0.9917]
    """
    return 1 - 2 * (1 - level) / (look * (look + 1))


def interval(differences: Sequence[float], level: float) -> tuple[float, float]:
    """Return Student's interval of the mean.

    >>> low, high = interval([1.0, 2.0, 3.0, 4.0], 0.95)
    >>> print(f"{low:.4f} {high:.4f}")
    0.4457 4.5543
    """
    n = len(differences)
    middle = statistics.fmean(differences)
    half = student(n - 1, level) * statistics.stdev(differences) / math.sqrt(n)
    return middle - half, middle + half


def of_differences(values: Sequence[float], level: float) -> tuple[float, float | None, float | None, float | None]:
    """Return the mean, the spread and the ends of the interval.

    >>> of_differences([0.5, 0.5], 0.95)
    (0.5, 0.0, None, None)
    """
    if len(values) == 1:
        return values[0], None, None, None
    mean, std = statistics.fmean(values), statistics.stdev(values)
    if std < 1e-9 and len(values) < WITHOUT_SPREAD:
        return mean, std, None, None
    return mean, std, *interval(values, level)


def judge(
    difference: Difference,
    margin: float,
    level: float,
    look: int = 1,
    word: str = "lossless",
    info: MetricInfo = MetricInfo(),  # noqa: B008 - frozen
) -> Verdict:
    """Say what the interval of a difference shows.

    Args:
        difference: A difference whose interval has the level of this analysis.
        margin: How much may be lost, in the unit of the metric.
        level: The level over all interim analyses.
        look: Which interim analysis this is, from 1. The number of seeds still needed is the one for the next.
        word: What to call a method that is shown not to be worse; compared with full data, "lossless".
        info: The metric. Where lower is better, a negative difference is a gain.
    """
    difference = difference.gain(info)
    if difference.std is None:
        return Verdict("one seed", "one seed: no verdict")
    if difference.low is None or difference.high is None:
        more = WITHOUT_SPREAD - difference.n
        return Verdict(
            "undecided",
            f"not enough seeds: the differences are equal, so there is no interval; {more} more needed",
            more,
        )
    mean, low, high = difference.mean, difference.low, difference.high
    if difference.n >= FEWEST:
        if low > 0:
            text = f"better by {info.amount(mean)} ({info.value(low)} to {info.value(high)}), so {word}"
            return Verdict("better", text)
        if low > -margin:
            return Verdict("lossless", f"{word} within {info.with_scale(f'{margin:g}')} at {percent(level)}")
        if high < 0:
            return Verdict("worse", f"worse by {info.amount(-mean)} ({info.value(-high)} to {info.value(-low)})")
    more = more_seeds(mean, difference.std, difference.n, margin, level_at(level, look + 1))
    return Verdict("undecided", f"not enough seeds: about {more} more needed", more)


def more_seeds(mean: float, std: float, n: int, margin: float, level: float) -> int:
    """Estimate how many seeds beyond ``n`` decide, if mean and spread stay what they are.

    The interval decides once half its width is below the distance to -margin from above or to 0 from below.
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
    """Return the two-sided quantile of Student's t.

    >>> round(student(4, 0.95), 4)
    2.7764
    """
    try:
        from scipy.special import stdtrit
    except ImportError as error:
        text = message("scipy for Student's t", "an environment without it", installing("lab"))
        raise InputError(text) from error
    return float(stdtrit(freedom, (1 + level) / 2))
