"""Whom to keep: functions (book, moment, generator) -> Plan. Each is pure; a sample without a score stays.

Those here are written as rules: where to cut the axis of scores, and how many go between two cuts. A rule sees the
scores through their ``Stats`` alone, so the same rule draws a plan from one table or from the parts of many ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cached_property, partial, update_wrapper
from typing import Any, Concatenate, Generic, Literal, NamedTuple, ParamSpec, Protocol

import torch
from torch import Tensor

from ..epoch.scores import at_least, beyond, mean
from ..plan import Plan, Stratum, full, stratified
from .when import Moment

Rounding = Literal["exact", "paper"]
MOST = 0.9  # of those with a score may go in an epoch: weights above 10 would make each step a lottery
Settings = ParamSpec("Settings")


class Scores(Protocol):
    """What a rule's policy reads of the book."""

    scores: Tensor
    planned: int

    @property
    def size(self) -> int: ...


Policy = Callable[[Any, Moment, torch.Generator], Plan]
"""(book, moment, generator) -> Plan. A book has ``scores``, ``planned``, ``size``, and ``memory`` where asked for."""


class Stats(Protocol):
    """What a rule may ask about the scores."""

    @property
    def size(self) -> int: ...
    @property
    def planned(self) -> int: ...
    @property
    def known(self) -> int:
        """How many samples have a score."""
        ...

    def mean(self) -> float:
        """Of the known scores, in double precision; NaN when none is known."""
        ...

    def nth(self, n: int) -> float:
        """The n-th smallest known score, n from 1."""
        ...


class Cut(NamedTuple):
    """Of the samples with low <= H < high a share ``ratio`` goes, or exactly ``drop``."""

    low: float
    high: float
    ratio: float = 0.0
    drop: int | None = None
    rounding: Rounding = "exact"
    unscored: bool = False
    """Whether those without a score are among them."""

    def members(self, scores: Tensor) -> Tensor:
        if self.low == -math.inf:
            inside = scores < self.high
        else:
            inside = (scores >= self.low).logical_and_(scores < self.high)
        return inside.logical_or_(torch.isnan(scores)) if self.unscored else inside

    def keep(self, m: int) -> tuple[int, float]:
        """How many of m stay, and at what weight: k and m/k, so that a plan's weights sum to N exactly."""
        if self.drop is not None:
            return m - self.drop, m / (m - self.drop)
        stay = 1 - Fraction(repr(self.ratio))
        if self.rounding == "paper":
            return math.floor(stay * m), float(1 / stay)
        k = max(1, round(stay * m))
        return k, m / k


Rule = Callable[[Stats, Moment], list[Cut]]


class ByCuts(Generic[Settings]):
    """A rule as a policy."""

    def __init__(self, rule: Callable[Concatenate[Stats, Moment, Settings], list[Cut]]) -> None:
        self.rule = rule
        update_wrapper(self, rule)

    def __call__(
        self,
        book: Scores,
        moment: Moment,
        generator: torch.Generator,
        *args: Settings.args,
        **settings: Settings.kwargs,
    ) -> Plan:
        strata = []
        for cut in self.rule(Whole(book), moment, *args, **settings):
            members = cut.members(book.scores)
            m = int(torch.count_nonzero(members))
            if m:
                strata.append(Stratum(members, *cut.keep(m)))
        if not strata:
            return full(book.size, moment.epoch, generator)
        return stratified(strata, book.size, moment.epoch, generator)

    def __reduce__(self) -> str:
        return self.rule.__qualname__


def rule_of(policy: Policy) -> Rule | None:
    """The rule that a policy follows, with its settings; None for a policy that looks at more than cuts."""
    inner: Any = policy.func if isinstance(policy, partial) else policy
    settings = policy.keywords if isinstance(policy, partial) else {}
    return partial(inner.rule, **settings) if isinstance(inner, ByCuts) else None


@ByCuts
def below_mean(stats: Stats, moment: Moment, *, ratio: float, rounding: Rounding = "exact") -> list[Cut]:
    """Equation 3: W = {H < mean H}; each of W is left out with probability r."""
    del moment
    return _cuts(Cut(-math.inf, at_least(stats.mean()), ratio, rounding=rounding))


@ByCuts
def above_mean(stats: Stats, moment: Moment, *, ratio: float) -> list[Cut]:
    """The other side, Table 5: each sample with H > mean H is left out with probability r."""
    del moment
    return _cuts(Cut(beyond(stats.mean()), math.inf, ratio))


@ByCuts
def below_mean_in_tiers(
    stats: Stats, moment: Moment, *, ratio: float, low_ratio: float, low_share: float
) -> list[Cut]:
    """As ``below_mean``, with ``low_ratio`` for those of W among the lowest ``low_share`` of all samples."""
    del moment
    edge = at_least(stats.mean())
    low = min(edge, quantile(stats, low_share))
    return _cuts(Cut(-math.inf, low, low_ratio), Cut(low, edge, ratio))


@ByCuts
def quantile_tiers(stats: Stats, moment: Moment, *, tiers: Sequence[tuple[float, float]]) -> list[Cut]:
    """Tiers as (upper quantile, ratio), ascending: [(0.2, 0.75), (0.85, 0.5)] always keeps the top 15 %."""
    del moment
    cuts, low = [], -math.inf
    for upper, ratio in tiers:
        high = max(low, quantile(stats, upper))
        cuts.append(Cut(low, high, ratio))
        low = high
    return _cuts(*cuts)


@ByCuts
def uniform(stats: Stats, moment: Moment, *, ratio: float, unscored: bool = False) -> list[Cut]:
    """Leave out any sample with probability r. ``unscored``: those without a score too, so from epoch 0 on."""
    del stats, moment
    return _cuts(Cut(-math.inf, math.inf, ratio, unscored=unscored))


@ByCuts
def spend(stats: Stats, moment: Moment, *, saving: float, ratio: float) -> list[Cut]:
    """Leave out so many that the whole run ends at ``saving``, evenly over the pruning epochs still to come.

    The count is met by the threshold: of the lowest count/r samples a share r goes, so no weight exceeds
    1/(1-r) while the data set is large enough; after that r rises.
    """
    spared = moment.epoch * stats.size - stats.planned
    want = round((saving * moment.num_epochs * stats.size - spared) / moment.pruning_left)
    want = min(want, math.floor(MOST * stats.known))  # what is not known yet is made up for later
    if want <= 0:
        return []
    highest = stats.nth(min(stats.known, math.ceil(want / ratio)))
    return [Cut(-math.inf, beyond(highest), drop=want)]  # ratio < 1, so more lie below than go


def _cuts(*cuts: Cut) -> list[Cut]:
    """Those of the cuts between which something can go. A mean or a bound that is NaN cuts nothing."""
    return [cut for cut in cuts if cut.ratio and cut.low < cut.high]


def quantile(stats: Stats, share: float) -> float:
    """The value with a share of the known scores strictly below it (fewer, where scores tie)."""
    if stats.known == 0:
        return -math.inf
    return stats.nth(min(stats.known, math.floor(Fraction(repr(share)) * stats.known) + 1))


class Whole:
    """The stats of scores that lie in one table."""

    def __init__(self, book: Scores) -> None:
        self.size = book.size
        self.planned = book.planned
        self._scores = book.scores

    @cached_property
    def known(self) -> int:
        return self.size - int(torch.count_nonzero(torch.isnan(self._scores)))

    def mean(self) -> float:
        return mean(self._scores)

    def nth(self, n: int) -> float:
        return float(torch.where(torch.isnan(self._scores), torch.inf, self._scores).kthvalue(n).values)
