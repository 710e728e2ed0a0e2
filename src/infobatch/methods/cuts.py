"""Rules that choose samples by score thresholds: where the thresholds are, and how many samples go between two of them.

Such a rule sees the scores only through ``Stats``, so the same rule draws a plan from one table or from the shards of
many ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cached_property, partial, update_wrapper
from typing import Any, Concatenate, Generic, Literal, NamedTuple, ParamSpec, Protocol

import torch
from torch import Tensor

from ..plan import Plan, Stratum, full, stratified
from .method import Moment, Policy, ScoresView

Rounding = Literal["exact", "paper"]
Settings = ParamSpec("Settings")
BLOCK = 1 << 15  # what torch gives to one thread; larger blocks would wake the other threads for each of them


class Stats(Protocol):
    """What a rule may ask about the scores."""

    @property
    def size(self) -> int: ...
    @property
    def planned(self) -> int: ...
    @property
    def known(self) -> int:
        """The number of samples with a score."""
        ...

    def mean(self) -> float:
        """The mean of the known scores in double precision; NaN if there are none."""
        ...

    def nth(self, n: int) -> float:
        """The n-th smallest known score, with n from 1."""
        ...


class Cut(NamedTuple):
    """Of the samples with low <= H < high a fraction ``ratio`` is pruned, or exactly ``drop`` samples."""

    low: float
    high: float
    ratio: float = 0.0
    drop: int | None = None
    rounding: Rounding = "exact"
    unscored: bool = False
    """Whether samples without a score belong to the cut."""

    def members(self, scores: Tensor) -> Tensor:
        """Return the mask of the samples inside the cut."""
        if self.low == -math.inf:
            inside = scores < self.high
        else:
            inside = (scores >= self.low).logical_and_(scores < self.high)
        return inside.logical_or_(torch.isnan(scores)) if self.unscored else inside

    def keep(self, m: int) -> tuple[int, float]:
        """Return how many of m samples stay and their weight: k and m/k, so that a plan's weights sum to N."""
        if self.drop is not None:
            return m - self.drop, m / (m - self.drop)
        stay = 1 - Fraction(repr(self.ratio))
        if self.rounding == "paper":
            return math.floor(stay * m), float(1 / stay)
        k = max(1, round(stay * m))
        return k, m / k


Rule = Callable[[Stats, Moment], list[Cut]]


class ByCuts(Generic[Settings]):
    """A decorator that turns a rule (stats, moment, **settings) -> cuts into a policy."""

    def __init__(self, rule: Callable[Concatenate[Stats, Moment, Settings], list[Cut]]) -> None:
        self.rule = rule
        update_wrapper(self, rule)

    def __call__(
        self,
        view: ScoresView,
        moment: Moment,
        generator: torch.Generator,
        *args: Settings.args,
        **settings: Settings.kwargs,
    ) -> Plan:
        strata = []
        for cut in self.rule(TableStats(view), moment, *args, **settings):
            members = cut.members(view.scores)
            m = int(torch.count_nonzero(members))
            if m:
                strata.append(Stratum(members, *cut.keep(m)))
        if not strata:
            return full(view.size, moment.epoch, generator)
        return stratified(strata, view.size, moment.epoch, generator)

    def __reduce__(self) -> str:
        return self.rule.__qualname__


def rule_of(policy: Policy) -> Rule | None:
    """Return the rule of a policy with its settings; None if the policy looks at more than cuts."""
    inner: Any = policy.func if isinstance(policy, partial) else policy
    settings = policy.keywords if isinstance(policy, partial) else {}
    return partial(inner.rule, **settings) if isinstance(inner, ByCuts) else None


def nonempty(*cuts: Cut) -> list[Cut]:
    """Drop the cuts that prune nothing. A mean or a bound that is NaN makes its cut empty."""
    return [cut for cut in cuts if cut.ratio and cut.low < cut.high]


def quantile(stats: Stats, share: float) -> float:
    """The value with a fraction ``share`` of the known scores strictly below it (fewer if scores tie)."""
    if stats.known == 0:
        return -math.inf
    return stats.nth(min(stats.known, math.floor(Fraction(repr(share)) * stats.known) + 1))


class TableStats:
    """The stats of scores in one table."""

    def __init__(self, view: ScoresView) -> None:
        self.size = view.size
        self.planned = view.planned
        self._scores = view.scores

    @cached_property
    def known(self) -> int:
        return self.size - int(torch.count_nonzero(torch.isnan(self._scores)))

    def mean(self) -> float:
        return mean_score(self._scores)

    def nth(self, n: int) -> float:
        return float(torch.where(torch.isnan(self._scores), torch.inf, self._scores).kthvalue(n).values)


# ---- numbers on the axis ---------------------------------------------------------------------------------------


def mean_score(scores: Tensor) -> float:
    """Return the mean of the known scores in double precision; NaN if none is known.

    Reads back from the device once if all are known.
    """
    total = _sum(scores)
    if not math.isnan(total):
        return total / scores.numel()
    known = scores[~torch.isnan(scores)]
    return _sum(known) / known.numel() if known.numel() else math.nan


def _sum(values: Tensor) -> float:
    if values.device.type == "cpu" and values.numel() > BLOCK:  # casting the whole array costs more than the sum
        return torch.stack([block.sum(dtype=torch.float64) for block in torch.split(values, BLOCK)]).sum().item()
    return values.sum(dtype=torch.float64).item()


def float32_ceil(bound: float) -> float:
    """Return the smallest float32 number >= bound: a score is below it if and only if it is below the bound.

    >>> float32_ceil(0.5), float32_ceil(0.1) > 0.1
    (0.5, True)
    """
    edge = torch.tensor(bound, dtype=torch.float32, device="cpu")
    return _next_up(edge) if edge.item() < bound else edge.item()


def beyond(bound: float) -> float:
    """Return the smallest float32 number > bound: a score is at or above it if and only if it is above the bound."""
    edge = torch.tensor(bound, dtype=torch.float32, device="cpu")
    return _next_up(edge) if edge.item() <= bound else edge.item()


def _next_up(edge: Tensor) -> float:
    return torch.nextafter(edge, edge.new_tensor(torch.inf)).item()
