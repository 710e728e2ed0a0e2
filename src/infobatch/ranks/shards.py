"""Scores in parts: each rank holds its own, and no rank ever writes an index list as long as the data set.

``Spread`` deals the samples out to N places; rank r of W owns the r-th run of ceil(N/W) places, the layout of
torch's ``Shard(0)``. A plan is one byte a place, the level: 0 is left out, the others point into a handful of
weights. Thresholds come from small collectives, each rank thins its own members of a stratum, and its walk over its
places is computed as it goes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..checks import stranger
from ..epoch.scores import SKIPPED, UNSEEN, merge
from ..epoch.slice import Where
from ..epoch.summary import SAMPLE
from ..errors import MisalignedError, message
from ..methods.cuts import Cut, rule_of
from ..methods.method import Method
from ..methods.when import Moment
from ..plan import ShardPlan, choose, generator_for, moved
from .exchange import Ranks, table, total
from .permutation import Spread, blocks

BLOCK = 1 << 18  # what is computed on the way is computed for so many samples at a time


class ShardBook:
    """This rank's part of the scores, 9 bytes a sample: its score, its fresh one, its level in the running plan.

    ``fresh`` and ``level`` have one cell more, for samples of other ranks: whatever is recorded there is not read,
    and the weight there is 0. So nothing needs to be looked at, and no device waits.
    """

    @torch.inference_mode(False)
    def __init__(self, size: int, ranks: Ranks, device: torch.device | str = "cpu") -> None:
        each = -(-size // ranks.world)
        self.size = size
        self.ranks = ranks
        self.start = min(ranks.rank * each, size)
        self.stop = min(self.start + each, size)
        self.count = self.stop - self.start
        self._spread = Spread(size)
        self._abroad = 0 if ranks.rank else each
        self.scores = torch.full((self.count,), torch.nan, dtype=torch.float32, device=device)
        self.fresh = torch.full((self.count + 1,), UNSEEN, dtype=torch.float32, device=device)
        self.level = torch.zeros(self.count + 1, dtype=torch.uint8, device=device)
        self.weights = torch.zeros(256, dtype=torch.float32, device=device)
        """The weight of each level."""
        self.recorded = torch.zeros((), dtype=torch.int64, device=device)
        self.stray = torch.zeros((), dtype=torch.int64, device=device)
        """How many of the named indices are not of this rank."""
        self.planned = 0
        self.memory: dict[str, Tensor] = {}
        """Nothing: methods that remember want all scores in one table."""
        self.came: dict[str, Tensor] = {}
        self._rows: list[int] | None = None

    @property
    def device(self) -> torch.device:
        return self.scores.device

    def to(self, device: torch.device) -> None:
        for name in ("scores", "fresh", "level", "weights", "recorded", "stray"):
            setattr(self, name, moved(getattr(self, name), device))

    def samples(self) -> Tensor:
        """The samples whose scores lie here, in the order of ``scores``."""
        return self._spread.sample(torch.arange(self.start, self.stop, device=self.device))

    # ---- an epoch ----------------------------------------------------------------------------------------

    def begin(self, plan: ShardPlan, scale: float = 1.0) -> None:
        """Open an epoch that was drawn here: nothing seen yet."""
        self.weigh(plan, scale)
        self.fresh.fill_(UNSEEN)
        self.recorded.zero_()
        self.stray.zero_()

    def weigh(self, plan: ShardPlan, scale: float) -> None:
        """Set the weights of the plan's levels."""
        weights = torch.tensor(plan.weights, dtype=torch.float32, device="cpu") * scale
        self.weights[: weights.numel()] = weights.to(self.device)

    def note(self, indices: Tensor, scores: Tensor) -> Tensor:
        """Record the scores and return the weights. Nothing here waits for the device."""
        cells = self._cells(indices)
        self.fresh.scatter_(0, cells, scores.detach().to(self.fresh.dtype))
        return self._weights_at(cells)

    def record(self, indices: Tensor, scores: Tensor) -> None:
        self.note(indices, scores)

    def named(self, indices: Tensor) -> None:
        """The caller brought these indices along: nobody else counts them."""
        self.recorded.add_(indices.numel())
        self.stray.add_(torch.count_nonzero(self._cells(indices) == self.count))

    def skip(self, indices: Tensor) -> None:
        self.fresh.index_fill_(0, self._cells(indices), SKIPPED)

    def look_up(self, indices: Tensor) -> Tensor:
        if indices.device.type == "cpu" and not torch.compiler.is_compiling():
            low, high = indices.aminmax()
            if low < 0 or high >= self.size:
                raise IndexError
        return self._weights_at(self._cells(indices))

    def _cells(self, indices: Tensor) -> Tensor:
        places = self._spread.place(indices)
        here = (places >= self.start) & (places < self.stop) & (indices >= 0) & (indices < self.size)
        return torch.where(here, places - self.start, self.count)

    def _weights_at(self, cells: Tensor) -> Tensor:
        return self.weights.index_select(0, self.level.index_select(0, cells).long())

    def seen(self) -> int:
        return self.count - int(torch.count_nonzero(self.fresh[:-1] == UNSEEN))

    def fresh_without(self, some: Sequence[Where]) -> Tensor:
        """This epoch's losses but for these samples'."""
        fresh = self.fresh.clone()
        for where in some:
            assert isinstance(where, Tensor)
            fresh.index_fill_(0, self._cells(where.to(self.device)), UNSEEN)
        return fresh[:-1]

    def strangers(self) -> int:
        """How many samples got a score in this epoch without being in its plan."""
        return int(torch.count_nonzero((self.fresh[:-1] != UNSEEN) & (self.level[:-1] == 0)))

    def merge(self) -> int:
        """Close an epoch: the last finite loss becomes the score. Returns how many, on all ranks, were not finite."""
        not_finite = merge(self.fresh[:-1], self.scores)
        self.recorded.zero_()
        self.stray.zero_()
        return int(total(self.ranks, torch.tensor([not_finite], device="cpu"))[0])

    # ---- the walk ----------------------------------------------------------------------------------------

    @property
    def rows(self) -> list[int]:
        """How many samples each rank has still to come. After loading, the ranks tell each other."""
        if self._rows is None:
            self._rows = [row[0] for row in table(self.ranks, [int(torch.count_nonzero(self._to_come()))])]
        return self._rows

    def walk(self, seed: int, epoch: int) -> Iterator[Tensor]:
        """This rank's samples of the plan that have no loss yet, in random order, chunk by chunk."""
        to_come = self._to_come().cpu()  # frozen: losses arrive while the walk goes on
        key = _generator(seed, epoch, self.ranks.rank, torch.device("cpu")).initial_seed()
        for block in blocks(self.count, key):
            yield self._spread.sample(block[to_come[block]] + self.start)

    def ghost(self) -> Tensor:
        """A sample of another rank, to fill up with."""
        return self._spread.sample(torch.tensor(self._abroad, device="cpu"))

    def _to_come(self) -> Tensor:
        return (self.level[:-1] != 0).logical_and_(self.fresh[:-1] == UNSEEN)

    # ---- checkpoints -------------------------------------------------------------------------------------

    def load(self, parts: Sequence[dict[str, Any]]) -> tuple[float, ...]:
        """Cut this rank's places out of parts that were saved on any number of ranks.

        Returns the weights of the levels. Those of different ranks differ, so levels are counted anew.
        """
        self.fresh.fill_(UNSEEN)
        self.recorded.zero_()
        self.stray.zero_()
        self.planned = parts[0]["planned"]
        self._rows = None
        levels: dict[float, int] = {0.0: 0}
        for part in parts:
            start = part["part"]["start"]
            low, high = max(start, self.start), min(start + part["scores"].numel(), self.stop)
            running = part["running"]
            if low >= high:
                continue
            here, there = slice(low - self.start, high - self.start), slice(low - start, high - start)
            self.scores[here] = part["scores"][there].to(self.device)
            if running is not None:
                self.fresh[here] = running["fresh"][there].to(self.device)
                anew = [levels.setdefault(weight, len(levels)) for weight in running["weights"]]
                if len(levels) > 256 and self.level.dtype == torch.uint8:
                    self.level = self.level.short()
                if len(levels) > self.weights.numel():
                    self.weights = self.weights.new_zeros(len(levels))
                renamed = torch.tensor(anew, dtype=self.level.dtype, device="cpu")
                for mine, theirs in zip(
                    torch.split(self.level[here], BLOCK), torch.split(running["level"][there], BLOCK), strict=True
                ):
                    mine.copy_(renamed[theirs.long()])
        return tuple(levels)


# ---- drawing -------------------------------------------------------------------------------------------------


class Parts:
    """The stats of scores that lie in parts on the ranks. Asking is for all ranks or none."""

    def __init__(self, book: ShardBook) -> None:
        self.size = book.size
        self.planned = book.planned
        self._book = book

    @cached_property
    def _known_and_sum(self) -> list[float]:
        known = summed = torch.zeros((), dtype=torch.float64, device=self._book.device)
        for block in torch.split(self._book.scores, BLOCK):
            unknown = torch.isnan(block)
            known = known + (block.numel() - torch.count_nonzero(unknown))
            summed = summed + block.masked_fill(unknown, 0.0).sum(dtype=torch.float64)
        both: list[float] = total(self._book.ranks, torch.stack([known, summed])).tolist()
        return both

    @property
    def known(self) -> int:
        return int(self._known_and_sum[0])

    def mean(self) -> float:
        known, summed = self._known_and_sum
        return summed / known if known else float("nan")

    def nth(self, n: int) -> float:
        """By histograms, each inside one bin of the last: 11, 11 and 10 bits make a float32, so this is exact."""
        prefix, before = 0, 0
        for shift, bits in ((21, 11), (10, 11), (0, 10)):
            counts = torch.zeros(1 << bits, dtype=torch.int64, device=self._book.device)
            for block in torch.split(self._book.scores, BLOCK):
                key = _sortable(block)
                if shift == 21:
                    digit = (key >> shift) + 1024  # the sign is in it
                else:
                    digit = (key[key >> (shift + bits) == prefix] >> shift) & ((1 << bits) - 1)
                counts += torch.bincount(digit, minlength=1 << bits)
            upto = (total(self._book.ranks, counts).cumsum(0) + before).tolist()
            digit_of_n = next(digit for digit, reached in enumerate(upto) if reached >= n)
            before = upto[digit_of_n - 1] if digit_of_n else before
            prefix = digit_of_n - 1024 if shift == 21 else (prefix << bits) | digit_of_n
        return _flipped(torch.tensor([prefix], dtype=torch.int32, device="cpu")).view(torch.float32).item()


def _sortable(scores: Tensor) -> Tensor:
    """Integers in the order of the scores, the unknown last."""
    return _flipped(torch.where(torch.isnan(scores), torch.inf, scores).view(torch.int32))


def _flipped(bits: Tensor) -> Tensor:
    """Negative numbers grow towards zero as floats, away from it as bits. Done twice it leads back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def draw(book: ShardBook, method: Method, moment: Moment, seed: int) -> ShardPlan:
    """The plan of one epoch, into the book's levels: a function of scores, epoch, seed and number of ranks."""
    rule, ranks = rule_of(method.policy), book.ranks
    assert rule is not None
    cuts = rule(Parts(book), moment._replace(schedule=method.schedule)) if method.schedule(moment) else []
    sizes = table(ranks, [book.count, *(int(torch.count_nonzero(cut.members(book.scores))) for cut in cuts)])
    shares = share_out(sizes, cuts)
    book._rows = [sum(row) for row in shares]

    level, generator = book.level[:-1].fill_(1), _generator(seed, moment.epoch, ranks.rank, book.device)
    for column, cut in enumerate(cuts, 1):
        if sizes[ranks.rank][column]:
            members = cut.members(book.scores)
            chosen = choose(members, shares[ranks.rank][column], generator)
            level.sub_(members.view(torch.uint8))  # arithmetic: no branch for the processor to guess
            level.add_(chosen.view(torch.uint8), alpha=column + 1)

    weights = [
        [1.0, *(_weight(*each) if method.rescale else 1.0 for each in zip(cuts, size[1:], share[1:], strict=True))]
        for size, share in zip(sizes, shares, strict=True)
    ]
    counted = [(k, w) for share, row in zip(shares, weights, strict=True) for k, w in zip(share, row, strict=True)]
    kept, weight_sum = sum(book._rows), sum(k * w for k, w in counted)
    mine = (0.0, *weights[ranks.rank])
    return ShardPlan(
        moment.epoch,
        book.size,
        kept,
        mine,
        weight_sum,
        effective_size=weight_sum**2 / sum(k * w**2 for k, w in counted),
        noise=_noise(book, mine, book.size / kept),
    )


def _weight(cut: Cut, m: int, k: int) -> float:
    """Of each of the k that stay of a rank's m: as it is written down, or so that they stand for all m."""
    return cut.keep(m)[1] if cut.rounding == "paper" else m / max(k, 1)


def share_out(sizes: list[list[int]], cuts: Sequence[Cut]) -> list[list[int]]:
    """How many each rank keeps, of those outside the cuts and of each cut: as near to equally many as can be.

    A row of ``sizes`` is a rank: how many samples it has, and how many of them are in each cut. What a cut keeps in
    all is what one table would keep, but that no rank's members go altogether: each is weighed by its own rank's
    m/k, so weights sum to N whatever is shifted between ranks.
    """
    shares = [[size[0] - sum(size[1:])] for size in sizes]
    floors = []
    for column, cut in enumerate(cuts, 1):
        members = [size[column] for size in sizes]
        everyone = sum(members)
        keep = cut.keep(everyone)[0] if everyone else 0
        floors.append(0 if cut.rounding == "paper" else 1)
        upto = 0
        for share, m in zip(shares, members, strict=True):
            part = keep * (upto + m) // everyone - keep * upto // everyone if m else 0
            share.append(max(part, min(floors[-1], m)))
            upto += m
    whole = sum(map(sum, shares))
    goals = [whole // len(shares) + (rank < whole % len(shares)) for rank in range(len(shares))]
    for column in range(len(cuts), 0, -1):
        over = [sum(share) - goal for share, goal in zip(shares, goals, strict=True)]
        give = [max(0, min(o, share[column] - floors[column - 1])) for o, share in zip(over, shares, strict=True)]
        take = [
            max(0, min(-o, size[column] - share[column])) for o, share, size in zip(over, shares, sizes, strict=True)
        ]
        moved = min(sum(give), sum(take))
        for share, less, more in zip(shares, _first(give, moved), _first(take, moved), strict=True):
            share[column] += more - less
    return shares


def _first(amounts: list[int], wanted: int) -> list[int]:
    """As much of each amount, in turn, as it takes to have ``wanted``."""
    taken = []
    for amount in amounts:
        taken.append(min(amount, wanted))
        wanted -= taken[-1]
    return taken


def _noise(book: ShardBook, weights: Sequence[float], growth: float) -> float:
    """As ``telemetry.noise``, from each rank's first places: any run of places is a fair mix."""
    table_of = torch.tensor(weights, dtype=torch.float64, device=book.device)
    some = table_of[book.level[:-1][:SAMPLE].long()]
    mass = torch.nan_to_num(book.scores[:SAMPLE].double().square() * some, nan=0.0)
    mean, square = total(book.ranks, torch.stack([mass.sum(), (mass * some).sum()])).tolist()
    return float(square / mean / growth) if mean > 0 else 1.0


def _generator(seed: int, epoch: int, rank: int, device: torch.device) -> torch.Generator:
    return generator_for(generator_for(seed, epoch, torch.device("cpu")).initial_seed(), rank, device)


# ---- a walk --------------------------------------------------------------------------------------------------


class ShardWalk:
    """A walk that is computed on the way. It remembers what was handed out and may still be asked for.

    Losses and weights lie in the book, at the samples' own places, so samples are named by their indices.
    """

    def __init__(self, epoch: int, book: ShardBook, seed: int) -> None:
        self.ranks = book.ranks
        self.size = max(book.rows)
        self._epoch = epoch
        self._book = book
        self._seed = seed
        self._rows = book.rows
        self._missing = self.size - self._rows[self.ranks.rank]
        """How many ghosts make this rank as long as the longest."""
        self._window: deque[tuple[int, Tensor]] = deque()
        self._reached = 0
        self._came = 0

    def chunks(self, needed: Callable[[], int]) -> Iterator[Tensor]:
        for chunk in self._book.walk(self._seed, self._epoch):
            if chunk.numel():
                yield self._remember(chunk, needed())
        if self._missing:
            yield self._remember(self._book.ghost().expand(self._missing), needed())

    def _remember(self, chunk: Tensor, oldest: int) -> Tensor:
        while self._window and self._window[0][0] + self._window[0][1].numel() <= oldest:
            self._window.popleft()
        self._window.append((self._reached, chunk))
        self._reached += chunk.numel()
        return chunk

    def at(self, places: range) -> Tensor:
        parts = [chunk[max(places.start - at, 0) : max(places.stop - at, 0)] for at, chunk in self._window]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64, device="cpu")

    def whose(self, places: range) -> Where:
        indices = self.at(places)
        if indices.numel() != len(places):
            raise MisalignedError(
                message(
                    "losses while the loader's batch is still known",
                    f"{len(places)} for samples handed out long before",
                    "Call update() or skip() for each batch as it comes, or pass indices: update(loss, indices).",
                )
            )
        return indices

    def holds(self, places: range, indices: Tensor) -> bool:  # noqa: ARG002
        return False

    def note(self, where: Where, scores: Tensor) -> Tensor:
        assert isinstance(where, Tensor)
        return self._book.note(moved(where, scores.device), scores)

    def skip(self, where: Where) -> None:
        assert isinstance(where, Tensor)
        self._book.skip(moved(where, self._book.device))

    def hand_in(self) -> None:
        pass  # it is all in the book

    @property
    def ghost(self) -> Tensor | None:
        return self._book.ghost() if self._missing else None

    def took(self, where: Where) -> None:
        assert isinstance(where, Tensor)
        if self._missing:
            self._came += int(torch.count_nonzero(where == self._book.ghost()))

    def ghosts_came(self, taken: int) -> int:  # noqa: ARG002
        came = self._came + int(self._book.stray)
        if came > self._missing:
            raise MisalignedError(stranger(self._epoch))
        return came

    def correction(self, count: int, taken: int) -> float:
        together = count * self.ranks.world
        real = sum(max(0, min(row, taken) - (taken - count)) for row in self._rows)
        return 1.0 if real == together else together / real

    def to(self, device: torch.device) -> None:
        pass  # the walk is on the CPU

    def release(self) -> None:
        self._window.clear()
