"""Facility location, greedily: exact, in memory O(N) for N samples.

    f(S) = sum over all i of the largest s_ij, j in S

Each step picks the j that adds most to f. A new pick changes gains only through the samples that are more similar to it
than to any earlier pick, about N/t of them at step t. So all gains are kept up to date: from blocks of similarities
while t is small, and from stored pairs as soon as each sample has at most ``room`` samples (on average) that are more
similar to it than its pick. In total this computes all N x N similarities about log(N / room) + 1 times. Lazy
greedy (Minoux, 1978), which updates a gain only when it matters, took twice as long here.

Of equal gains the first is picked: callers shuffle the samples. Two samples that are similar only to each other always
have the same gain, and rounding must not decide between them, so gains within rounding error count as equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

Rows = Tensor | slice
Similarity = Callable[[Rows, Rows], Tensor]
"""(rows, columns) -> a new tensor of their similarities. It must be symmetric."""

ALL = slice(None)
ROOM = 1024
"""Pairs stored per sample."""
BLOCK = 1 << 23
"""Similarities held at once."""
AHEAD = 64
"""Candidates evaluated together."""
PICKED = -(1 << 62)
"""The gain of picked samples, in integers."""


@dataclass(frozen=True)
class Cover:
    """The picks in order, and for every sample the position among them of the most similar pick."""

    picks: Tensor
    nearest: Tensor

    def sizes(self) -> Tensor:
        """Return how many samples each pick represents; at least itself, even if a duplicate was picked before."""
        nearest = self.nearest.clone()
        nearest[self.picks] = torch.arange(len(self.picks), device=nearest.device)
        return torch.bincount(nearest, minlength=len(self.picks))


def pick_facilities(similar: Similarity, total: Tensor, k: int, *, most: float, room: int = ROOM) -> Cover:
    """Return the first k picks. ``total[j]`` is the sum of s_ij over all i, and ``most`` bounds every abs(s_ij)."""
    near = _NearestPicks(similar, total)
    gains: _Gains | None = None
    attempt = 1.25 * len(total) / room  # about N/t samples are more similar to a sample than the nearest of t picks
    while len(near.picks) < k:
        if len(near.picks) >= attempt:
            pairs = _find_pairs(similar, near.level, room, most)
            if pairs is not None:
                _pick_from_pairs(pairs, near, k)
                break
            attempt = 2 * len(near.picks)
        if gains is None:
            gains = _Gains(similar, near)
        gains.update(*near.take(gains.best()))
    return Cover(torch.tensor(near.picks, device=total.device), near.nearest)


def sum_similarities(similar: Similarity, size: int, device: torch.device) -> Tensor:
    """Return the sum of s_ij over all i, for each j."""
    total = torch.zeros(size, dtype=torch.float64, device=device)
    for rows in _chunks(size, size):
        total += _sum_columns(similar(rows, ALL))
    return total


class _NearestPicks:
    """The picks, and for each sample its most similar pick and the similarity (``level``)."""

    def __init__(self, similar: Similarity, total: Tensor) -> None:
        self.similar = similar
        noise = 16 * torch.finfo(total.dtype).eps
        first = int((total >= total.max() - noise * total.abs().max()).int().argmax())
        self.picks = [first]
        self.level = similar(ALL, slice(first, first + 1))[:, 0].contiguous()
        self.nearest = torch.zeros(len(total), dtype=torch.int64, device=total.device)
        self.noise = 16 * torch.finfo(self.level.dtype).eps
        self.scale = float(self.level.abs().amax())

    def slack(self, gain: float) -> float:
        """Return by how much two gains of this size may differ because of rounding."""
        return self.noise * max(gain, self.scale)

    def take(self, pick: int) -> tuple[Tensor, Tensor, Tensor]:
        """Add a pick. Return the samples that are more similar to it, and their level before and after."""
        column = self.similar(ALL, slice(pick, pick + 1))[:, 0]
        rows = (column > self.level).nonzero().squeeze(1)
        old, new = self.level[rows], column[rows]
        self.level[rows] = new
        self.assign(pick, rows)
        return rows, old, new

    def assign(self, pick: int, rows: Tensor) -> None:
        self.nearest[rows] = len(self.picks)
        self.picks.append(pick)


class _Gains:
    """What each sample would add to f, computed from blocks of similarities."""

    def __init__(self, similar: Similarity, near: _NearestPicks) -> None:
        self.similar = similar
        self.near = near
        size = len(near.level)
        self.gains = torch.zeros(size, dtype=torch.float64, device=near.level.device)
        for rows in _chunks(size, size):  # s_ij = s_ji: half of the similarities are enough
            block, after = similar(rows, slice(rows.start, None)), slice(rows.stop, None)
            others = block[:, rows.stop - rows.start :] - near.level[after]
            self.gains[rows] += (others.clamp_(min=0) @ others.new_ones(others.shape[1])).double()
            self.gains[rows.start :] += _sum_columns(block.sub_(near.level[rows, None]).clamp_(min=0))
        self.drift = near.slack(float(self.gains.max()))

    def best(self) -> int:
        """Return the next pick. Candidates are computed again first, because updates accumulate rounding errors."""
        self.gains[self.near.picks] = -torch.inf
        stale = torch.ones_like(self.gains, dtype=torch.bool)
        while True:
            most = float(self.gains.max())
            if most <= self.near.slack(0.0):  # no pick can add anything
                return int(self.gains.isfinite().int().argmax())
            asked = (stale & (self.gains >= most - self.drift)).nonzero().squeeze(1)
            if not len(asked):
                return int((self.gains >= most - self.near.slack(most)).int().argmax())
            asked = asked[:AHEAD]
            self.gains[asked] = self._exact(asked)
            stale[asked] = False

    def update(self, rows: Tensor, old: Tensor, new: Tensor) -> None:
        """Subtract what the samples between their old and new level no longer contribute."""
        for part in _chunks(len(rows), len(self.gains)):
            block, low = self.similar(rows[part], ALL), old[part, None]
            torch.minimum(torch.maximum(block, low, out=block), new[part, None], out=block)
            self.gains -= _sum_columns(block.sub_(low))

    def _exact(self, columns: Tensor) -> Tensor:
        gains = torch.zeros(len(columns), dtype=torch.float64, device=columns.device)
        for rows in _chunks(len(self.gains), len(columns)):
            gains += _sum_columns(self.similar(rows, columns).sub_(self.near.level[rows, None]).clamp_(min=0))
        return gains


@dataclass
class _Pairs:
    """For each sample, the samples that are more similar to it than its pick; similarities as integers.

    With integers, picks do not depend on the order of summation, on any machine.
    """

    counts: Tensor
    columns: Tensor
    values: Tensor
    unit: float
    """The integer that stands for 1."""

    def __post_init__(self) -> None:
        self.starts = self.counts.cumsum(0) - self.counts

    def of(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the pairs of these rows: columns, values, and the position in ``rows`` of each."""
        counts = self.counts.index_select(0, rows)
        place = torch.repeat_interleave(counts)
        skipped = self.starts.index_select(0, rows) - (counts.cumsum(0) - counts)
        at = skipped.index_select(0, place).add_(torch.arange(len(place), device=rows.device))
        return self.columns.index_select(0, at), self.values.index_select(0, at), place

    def chunks(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """All pairs, some rows at a time: the rows, and ``of`` them."""
        mean = len(self.columns) // len(self.counts)
        for part in _chunks(len(self.counts), 8 * (mean + 1)):
            rows = torch.arange(part.start, part.stop, device=self.counts.device)
            yield rows, *self.of(rows)

    def drop_served(self, level: Tensor) -> None:
        """Drop pairs that cannot add to a gain any more."""
        used = 0
        counts = []
        for rows, columns, values, place in self.chunks():
            alive = (values > level[rows].index_select(0, place)).nonzero().squeeze(1)
            counts.append(torch.bincount(place.index_select(0, alive), minlength=len(rows)))
            end = used + len(alive)
            self.columns[used:end] = columns.index_select(0, alive)
            self.values[used:end] = values.index_select(0, alive)
            used = end
        self.counts, self.columns, self.values = torch.cat(counts), self.columns[:used], self.values[:used]
        self.starts = self.counts.cumsum(0) - self.counts


def _find_pairs(similar: Similarity, level: Tensor, room: int, most: float) -> _Pairs | None:
    """Return all pairs, or None if there are more than ``room`` per sample."""
    size, device, used = len(level), level.device, 0
    unit = 2.0 ** (30 - math.frexp(most)[1])  # so that most is at most 2^30, with room for rounding
    counts = torch.empty(size, dtype=torch.int64, device=device)
    columns = torch.empty(room * size, dtype=torch.int32, device=device)
    values = torch.empty_like(columns)
    for rows in _chunks(size, size):
        block = similar(rows, ALL)
        found = (block > level[rows, None]).view(-1).nonzero().squeeze(1)
        end = used + len(found)
        if end > len(columns):
            return None
        counts[rows] = torch.bincount(found // size, minlength=len(block))
        columns[used:end] = found % size
        values[used:end] = _to_integers(block.view(-1).index_select(0, found), unit)
        used = end
    return _Pairs(counts, columns[:used], values[:used], unit)


def _pick_from_pairs(pairs: _Pairs, near: _NearestPicks, k: int) -> None:
    """Continue to k picks, using only the pairs."""
    size, device = len(near.level), near.level.device
    level = _to_integers(near.level, pairs.unit)
    gains = torch.zeros(size, dtype=torch.int64, device=device)
    for rows, columns, values, place in pairs.chunks():
        gains.index_add_(0, columns, values.sub_(level[rows].index_select(0, place)).long())
    gains[near.picks] = PICKED
    ahead: dict[int, Tensor] = {}
    tidy = 2 * len(near.picks)
    while len(near.picks) < k:
        most = int(gains.max())
        pick = int((gains >= most - int(near.slack(most / pairs.unit) * pairs.unit)).int().argmax())
        if pick not in ahead:
            ranked = gains.argsort(descending=True, stable=True)[:AHEAD]
            soon = torch.cat([ranked, torch.tensor([pick], device=device)])
            ahead = dict(
                zip(soon.tolist(), _to_integers(near.similar(ALL, soon), pairs.unit).T.contiguous(), strict=True)
            )
        rows = (ahead[pick] > level).nonzero().squeeze(1)
        old, new = level[rows], ahead[pick][rows]
        columns, values, place = pairs.of(rows)
        low = old.index_select(0, place)
        lost = torch.minimum(torch.maximum(values, low), new.index_select(0, place)).sub_(low)
        gains.index_add_(0, columns, lost.long().neg_())
        gains[pick] = PICKED
        level[rows] = new
        near.assign(pick, rows)
        if len(near.picks) >= tidy:
            pairs.drop_served(level)
            tidy *= 2


def _sum_columns(block: Tensor) -> Tensor:
    """Return column sums, as a product, which is several times as fast as ``sum(0)``."""
    return (block.new_ones(len(block)) @ block).double()


def _to_integers(values: Tensor, unit: float) -> Tensor:
    return (values * unit).round_().int()


def _chunks(size: int, width: int) -> Iterator[slice]:
    step = max(1, BLOCK // max(1, width))
    return (slice(start, min(start + step, size)) for start in range(0, size, step))
