"""Whom to keep: functions (book, moment, generator) -> Plan. Each is pure; a sample without a score stays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Literal, Protocol

import torch
from torch import Tensor

from .plan import Plan, Stratum, full, stratified
from .schedules import Moment, Schedule
from .scorebook import below, mean

Rounding = Literal["exact", "paper"]


class Scores(Protocol):
    """What a policy may read of the book."""

    scores: Tensor
    planned: int

    @property
    def size(self) -> int: ...


Policy = Callable[[Scores, Moment, torch.Generator], Plan]


def below_mean(
    book: Scores, moment: Moment, generator: torch.Generator, *, ratio: float, rounding: Rounding = "exact"
) -> Plan:
    """Equation 3: W = {H < mean H}; each of W is left out with probability r."""
    low = below(book.scores, mean(book.scores))
    return _thin([(low, ratio)], book, moment, generator, rounding)


def above_mean(
    book: Scores, moment: Moment, generator: torch.Generator, *, ratio: float, rounding: Rounding = "exact"
) -> Plan:
    """The other side, Table 5: each sample with H > mean H is left out with probability r."""
    high = below(-book.scores, -mean(book.scores))
    return _thin([(high, ratio)], book, moment, generator, rounding)


def below_mean_in_tiers(
    book: Scores,
    moment: Moment,
    generator: torch.Generator,
    *,
    ratio: float,
    low_ratio: float,
    low_share: float,
    rounding: Rounding = "exact",
) -> Plan:
    """As ``below_mean``, with ``low_ratio`` for those of W among the lowest ``low_share`` of all samples."""
    low = below(book.scores, mean(book.scores))
    lowest = low & (book.scores < quantile(book.scores, low_share))
    return _thin([(lowest, low_ratio), (low & ~lowest, ratio)], book, moment, generator, rounding)


def quantile_tiers(
    book: Scores,
    moment: Moment,
    generator: torch.Generator,
    *,
    tiers: Sequence[tuple[float, float]],
    rounding: Rounding = "exact",
) -> Plan:
    """Tiers as (upper quantile, ratio), ascending: [(0.2, 0.75), (0.85, 0.5)] always keeps the top 15 %."""
    groups, above = [], torch.zeros_like(book.scores, dtype=torch.bool)
    for upper, ratio in tiers:
        under = book.scores < quantile(book.scores, upper)
        groups.append((under & ~above, ratio))
        above = above | under
    return _thin(groups, book, moment, generator, rounding)


def uniform(
    book: Scores, moment: Moment, generator: torch.Generator, *, ratio: float, unscored: bool = False
) -> Plan:
    """Leave out any sample with probability r. ``unscored``: those without a score too, so from epoch 0 on."""
    anyone = torch.ones_like(book.scores, dtype=torch.bool) if unscored else ~torch.isnan(book.scores)
    return _thin([(anyone, ratio)], book, moment, generator, "exact")


def spend(
    book: Scores,
    moment: Moment,
    generator: torch.Generator,
    *,
    saving: float,
    ratio: float,
    schedule: Schedule,
) -> Plan:
    """Leave out so many that the whole run ends at ``saving``, evenly over the pruning epochs still to come.

    The count is met by the threshold: of the lowest count/r samples a share r goes, so no weight exceeds
    1/(1-r) while the data set is large enough; after that r rises.
    """
    left = sum(schedule(Moment(epoch, moment.num_epochs)) for epoch in range(moment.epoch, moment.num_epochs))
    spared = moment.epoch * book.size - book.planned
    want = round((saving * moment.num_epochs * book.size - spared) / left)
    known = book.size - int(torch.count_nonzero(torch.isnan(book.scores)))
    want = min(want, known - 1)
    if want <= 0:
        return full(book.size, moment.epoch, generator)
    lowest = book.scores <= _nth(book.scores, min(known, math.ceil(want / ratio)))
    count = int(torch.count_nonzero(lowest))
    stratum = Stratum(lowest, count - want, count / (count - want))  # count > want, since ratio < 1
    return stratified([stratum], book.size, moment.epoch, generator)


def quantile(scores: Tensor, share: float) -> Tensor:
    """The value with a share of the known scores strictly below it (fewer, where scores tie)."""
    known = scores.numel() - int(torch.count_nonzero(torch.isnan(scores)))
    if known == 0:
        return scores.new_tensor(-torch.inf)
    return _nth(scores, min(known, math.floor(Fraction(repr(share)) * known) + 1))


def _nth(scores: Tensor, n: int) -> Tensor:
    """The n-th smallest known score, n from 1."""
    return torch.where(torch.isnan(scores), torch.inf, scores).kthvalue(n).values


def _thin(
    groups: Sequence[tuple[Tensor, float]],
    book: Scores,
    moment: Moment,
    generator: torch.Generator,
    rounding: Rounding,
) -> Plan:
    strata = []
    for members, ratio in groups:
        m = int(torch.count_nonzero(members))
        if m and ratio:
            strata.append(Stratum(members, *_keep(m, ratio, rounding)))
    if not strata:
        return full(book.size, moment.epoch, generator)
    return stratified(strata, book.size, moment.epoch, generator)


def _keep(m: int, ratio: float, rounding: Rounding) -> tuple[int, float]:
    """How many of m stay, and at what weight: k and m/k, so that a plan's weights sum to N exactly."""
    stay = 1 - Fraction(repr(ratio))
    if rounding == "paper":
        return math.floor(stay * m), float(1 / stay)
    k = max(1, round(stay * m))
    return k, m / k
