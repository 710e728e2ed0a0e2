"""Draw a plan from shards: thresholds come from small collectives, and each rank thins its own members of a stratum.

A plan is one byte per place, the level: 0 is left out, the others point into a handful of weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..methods.cuts import Cut, rule_of
from ..methods.method import Method, Moment
from ..plan import SAMPLE, PlanNumbers, choose, generator_for
from .exchange import Ranks, gather_rows, sum_over

BLOCK = 1 << 18  # what is computed along the way is computed for this many samples at a time


@dataclass(frozen=True)
class ShardPlan(PlanNumbers):
    """The numbers of a plan whose samples lie in the shards of the ranks.

    ``weights`` are the weights on this rank by level; level 0 is left out.
    """

    epoch: int
    size: int
    kept: int
    weights: tuple[float, ...]
    weight_sum: float
    effective_size: float
    noise: float

    @property
    def indices(self) -> Tensor:  # type: ignore[override]
        raise AttributeError("with shard_scores=True no rank holds the whole list: iterate over train_data.sampler")


class ShardStats:
    """The stats of scores in shards. Asking is a collective call."""

    def __init__(self, scores: Tensor, size: int, planned: int, ranks: Ranks) -> None:
        self.size = size
        self.planned = planned
        self._scores = scores
        self._ranks = ranks

    @cached_property
    def _known_and_sum(self) -> list[float]:
        known = summed = torch.zeros((), dtype=torch.float64, device=self._scores.device)
        for block in torch.split(self._scores, BLOCK):
            unknown = torch.isnan(block)
            known = known + (block.numel() - torch.count_nonzero(unknown))
            summed = summed + block.masked_fill(unknown, 0.0).sum(dtype=torch.float64)
        both: list[float] = sum_over(self._ranks, torch.stack([known, summed])).tolist()
        return both

    @property
    def known(self) -> int:
        return int(self._known_and_sum[0])

    def mean(self) -> float:
        known, summed = self._known_and_sum
        return summed / known if known else float("nan")

    def nth(self, n: int) -> float:
        """By three histograms, each inside one bin of the last: 11, 11 and 10 bits make a float32, so this is exact."""
        prefix, before = 0, 0
        for shift, bits in ((21, 11), (10, 11), (0, 10)):
            counts = torch.zeros(1 << bits, dtype=torch.int64, device=self._scores.device)
            for block in torch.split(self._scores, BLOCK):
                key = _to_sortable(block)
                if shift == 21:
                    digit = (key >> shift) + 1024  # the sign is in it
                else:
                    digit = (key[key >> (shift + bits) == prefix] >> shift) & ((1 << bits) - 1)
                counts += torch.bincount(digit, minlength=1 << bits)
            up_to = (sum_over(self._ranks, counts).cumsum(0) + before).tolist()
            digit_of_n = next(digit for digit, reached in enumerate(up_to) if reached >= n)
            before = up_to[digit_of_n - 1] if digit_of_n else before
            prefix = digit_of_n - 1024 if shift == 21 else (prefix << bits) | digit_of_n
        return _flip(torch.tensor([prefix], dtype=torch.int32, device="cpu")).view(torch.float32).item()


def _to_sortable(scores: Tensor) -> Tensor:
    """Return integers in the order of the scores, unknown ones last."""
    return _flip(torch.where(torch.isnan(scores), torch.inf, scores).view(torch.int32))


def _flip(bits: Tensor) -> Tensor:
    """Reverse the order of negative floats, which as bits grow away from zero. Its own inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def draw_shard(
    scores: Tensor, level: Tensor, stats: ShardStats, ranks: Ranks, method: Method, moment: Moment, seed: int
) -> tuple[ShardPlan, list[int]]:
    """Draw the plan of one epoch into ``level``; return it and the number of samples on each rank.

    A function of the scores, the epoch, the seed and the number of ranks.
    """
    rule = rule_of(method.policy)
    assert rule is not None
    cuts = rule(stats, moment._replace(schedule=method.schedule)) if method.schedule(moment) else []
    counts = [len(scores), *(int(torch.count_nonzero(cut.members(scores))) for cut in cuts)]
    sizes = gather_rows(ranks, counts)
    shares = divide(sizes, cuts)
    rows = [sum(share) for share in shares]

    level.fill_(1)
    generator = shard_generator(seed, moment.epoch, ranks.rank, scores.device)
    for column, cut in enumerate(cuts, 1):
        if sizes[ranks.rank][column]:
            members = cut.members(scores)
            chosen = choose(members, shares[ranks.rank][column], generator)
            level.sub_(members.view(torch.uint8))  # arithmetic: no branch for the processor to guess
            level.add_(chosen.view(torch.uint8), alpha=column + 1)

    weights = [
        [1.0, *(_weight(*each) if method.rescale else 1.0 for each in zip(cuts, size[1:], share[1:], strict=True))]
        for size, share in zip(sizes, shares, strict=True)
    ]
    pairs = [(k, w) for share, row in zip(shares, weights, strict=True) for k, w in zip(share, row, strict=True)]
    kept, weight_sum = sum(rows), sum(k * w for k, w in pairs)
    mine = (0.0, *weights[ranks.rank])
    plan = ShardPlan(
        moment.epoch,
        stats.size,
        kept,
        mine,
        weight_sum,
        effective_size=weight_sum**2 / sum(k * w**2 for k, w in pairs),
        noise=_estimate_noise(scores, level, mine, ranks, stats.size / kept),
    )
    return plan, rows


def _weight(cut: Cut, m: int, k: int) -> float:
    """The weight of each of the k that stay of a rank's m: as published, or so that they stand for all m."""
    return cut.keep(m)[1] if cut.rounding == "paper" else m / max(k, 1)


def divide(sizes: list[list[int]], cuts: Sequence[Cut]) -> list[list[int]]:
    """Return how many each rank keeps outside the cuts and of each cut, as nearly equally many as possible.

    A row of ``sizes`` is a rank: its number of samples, and how many of them are in each cut. A cut keeps in all what
    one table would keep, except that no rank loses all its members: each member is weighted by its own rank's m/k, so
    the weights sum to N however samples are shifted between ranks.
    """
    shares = [[size[0] - sum(size[1:])] for size in sizes]
    floors = []
    for column, cut in enumerate(cuts, 1):
        members = [size[column] for size in sizes]
        total = sum(members)
        keep = cut.keep(total)[0] if total else 0
        floors.append(0 if cut.rounding == "paper" else 1)
        before = 0
        for share, m in zip(shares, members, strict=True):
            part = keep * (before + m) // total - keep * before // total if m else 0
            share.append(max(part, min(floors[-1], m)))
            before += m
    kept = sum(map(sum, shares))
    goals = [kept // len(shares) + (rank < kept % len(shares)) for rank in range(len(shares))]
    for column in range(len(cuts), 0, -1):
        over = [sum(share) - goal for share, goal in zip(shares, goals, strict=True)]
        give = [max(0, min(o, share[column] - floors[column - 1])) for o, share in zip(over, shares, strict=True)]
        take = [
            max(0, min(-o, size[column] - share[column])) for o, share, size in zip(over, shares, sizes, strict=True)
        ]
        moved = min(sum(give), sum(take))
        for share, less, more in zip(shares, _take_first(give, moved), _take_first(take, moved), strict=True):
            share[column] += more - less
    return shares


def _take_first(amounts: list[int], wanted: int) -> list[int]:
    """Take from each amount in turn until ``wanted`` is reached."""
    taken = []
    for amount in amounts:
        taken.append(min(amount, wanted))
        wanted -= taken[-1]
    return taken


def _estimate_noise(scores: Tensor, level: Tensor, weights: Sequence[float], ranks: Ranks, growth: float) -> float:
    """As ``plan.estimate_noise``, from each rank's first places: any range of places is a fair mix."""
    weight_of = torch.tensor(weights, dtype=torch.float64, device=scores.device)
    some = weight_of[level[:SAMPLE].long()]
    mass = torch.nan_to_num(scores[:SAMPLE].double().square() * some, nan=0.0)
    mean, square = sum_over(ranks, torch.stack([mass.sum(), (mass * some).sum()])).tolist()
    return float(square / mean / growth) if mean > 0 else 1.0


def shard_generator(seed: int, epoch: int, rank: int, device: torch.device) -> torch.Generator:
    return generator_for(generator_for(seed, epoch, torch.device("cpu")).initial_seed(), rank, device)
