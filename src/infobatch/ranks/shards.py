"""Scores in shards: each rank holds its own, and no rank ever stores a list of indices as long as the data set.

``Spread`` maps the samples to N places; rank r of W owns the r-th range of ceil(N/W) places, the layout of torch's
``Shard(0)``. The order in which a rank goes through its places is computed along the way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from ..checks import describe_unplanned
from ..epoch.scores import Scores, copy_to_cpu, merge_losses
from ..epoch.slice import SKIPPED, UNSEEN, Slice, Where
from ..errors import MisalignedError, message
from ..methods.memory import Memory
from ..methods.method import Method, Moment
from ..plan import Compensation, PlanNumbers, move
from ..state_checks import State, check_shards
from .exchange import Ranks, gather_rows, sum_over
from .permutation import Spread, blocks
from .shard_plan import BLOCK, ShardPlan, ShardStats, draw_shard, shard_generator


class ShardedScores(Scores):
    """This rank's shard of the scores, 9 bytes per sample: its score, its fresh loss, its level in the running plan.

    ``fresh`` and ``level`` have one more cell, for samples of other ranks: what is recorded there is never read, and
    its weight is 0. So no value has to be looked at, and no device waits.
    """

    is_sharded = True
    ranks: Ranks

    @torch.inference_mode(False)
    def __init__(self, size: int, ranks: Ranks) -> None:
        super().__init__()
        each = -(-size // ranks.world)
        self.size = size
        self.ranks = ranks
        self.start = min(ranks.rank * each, size)
        self.stop = min(self.start + each, size)
        self.count = self.stop - self.start
        self._spread = Spread(size)
        self._place_elsewhere = torch.tensor(0 if ranks.rank else each, device="cpu")
        """A place that is not of this shard, for ghosts. On a single rank, it is made so by ``_cells``."""
        self.scores = torch.full((self.count,), torch.nan, dtype=torch.float32, device="cpu")
        self.fresh = torch.full((self.count + 1,), UNSEEN, dtype=torch.float32, device="cpu")
        self.level = torch.zeros(self.count + 1, dtype=torch.uint8, device="cpu")
        self.weights = torch.zeros(256, dtype=torch.float32, device="cpu")
        """The weight of each level."""
        self.named_count = torch.zeros((), dtype=torch.int64, device="cpu")
        self.elsewhere_count = torch.zeros((), dtype=torch.int64, device="cpu")
        """How many of the named indices belong to other ranks."""
        self._rows: list[int] | None = None

    def to(self, device: torch.device) -> None:
        names = ("scores", "fresh", "level", "weights", "named_count", "elsewhere_count", "_place_elsewhere")
        for name in names:
            setattr(self, name, move(getattr(self, name), device))

    def samples(self) -> Tensor:
        return self._spread.sample(torch.arange(self.start, self.stop, device=self.device))

    # ---- an epoch ----------------------------------------------------------------------------------------

    def draw(self, method: Method, moment: Moment, seed: int) -> ShardPlan:
        stats = ShardStats(self.scores, self.size, self.planned, self.ranks)
        plan, self._rows = draw_shard(self.scores, self.level[:-1], stats, self.ranks, method, moment, seed)
        return plan

    def begin(self, plan: ShardPlan, scale: float) -> None:
        self._set_weights(plan, scale)
        self._clear()

    def _set_weights(self, plan: ShardPlan, scale: float) -> None:
        weights = torch.tensor(plan.weights, dtype=torch.float32, device="cpu") * scale
        self.weights[: weights.numel()] = weights.to(self.device)

    def _clear(self) -> None:
        self.fresh.fill_(UNSEEN)
        self.named_count.zero_()
        self.elsewhere_count.zero_()

    def open_slice(self, plan: ShardPlan, seed: int, ranks: Ranks, *, resumed: bool, no_single: int = 0) -> ShardSlice:
        del resumed  # what has a loss is not yielded again
        is_single = no_single > 0 and max(self.rows) % no_single == 1
        if ranks.world == 1:  # in place, as captured graphs read it there
            self._place_elsewhere.fill_(int(self.level[:-1].argmin()) if is_single else self.size)
        return ShardSlice(plan.epoch, self, seed, has_filler=is_single)

    def count_left(self, plan: PlanNumbers, done_before: int, world: int) -> int:
        del plan, done_before, world
        return max(self.rows)

    def count_past(self, plan: PlanNumbers, done_before: int, world: int) -> int:
        del done_before
        return -(-(plan.kept - sum(self.rows)) // world)

    def record(self, indices: Tensor, scores: Tensor) -> None:
        self.fresh.scatter_(0, self._cells(indices), scores.detach().to(self.fresh.dtype))

    def look_up(self, indices: Tensor) -> Tensor:
        if indices.device.type == "cpu" and not torch.compiler.is_compiling():
            low, high = indices.aminmax()
            if low < 0 or high >= self.size:
                raise IndexError
        return self.weights.index_select(0, self.level.index_select(0, self._cells(indices)).long())

    def count_named(self, indices: Tensor) -> None:
        self.named_count.add_(indices.numel())
        self.elsewhere_count.add_(torch.count_nonzero(self._cells(indices) == self.count))

    def skip(self, indices: Tensor) -> None:
        self.fresh.index_fill_(0, self._cells(move(indices, self.device)), SKIPPED)

    def _cells(self, indices: Tensor) -> Tensor:
        places = self._spread.place(indices)
        here = (places >= self.start) & (places < self.stop) & (indices >= 0) & (indices < self.size)
        if self.ranks.world == 1:
            here &= places != self._place_elsewhere
        return torch.where(here, places - self.start, self.count)

    def count_seen(self) -> int:
        return self.count - int(torch.count_nonzero(self.fresh[:-1] == UNSEEN))

    def count_unplanned(self) -> int:
        return int(torch.count_nonzero((self.fresh[:-1] != UNSEEN) & (self.level[:-1] == 0)))

    def close(self, plan: ShardPlan, piece: Slice | None, memory: Memory | None) -> int:
        del plan, piece, memory  # methods that remember need all scores in one table
        not_finite = merge_losses(self.fresh[:-1], self.scores)
        return int(sum_over(self.ranks, torch.tensor([not_finite], device="cpu"))[0])

    def begin_anew(self, planned: int) -> None:
        self.planned = planned
        self._clear()

    def noise(self, plan: ShardPlan) -> float:
        return plan.noise

    def mean(self) -> None:
        return None

    # ---- the order of a pass -----------------------------------------------------------------------------

    @property
    def rows(self) -> list[int]:
        """How many samples each rank has left. After loading, this is a collective call."""
        if self._rows is None:
            self._rows = [row[0] for row in gather_rows(self.ranks, [int(torch.count_nonzero(self._to_come()))])]
        return self._rows

    def shuffled_samples(self, seed: int, epoch: int) -> Iterator[Tensor]:
        """Yield this rank's samples of the plan that have no loss yet, in random order, chunk by chunk."""
        to_come = self._to_come().cpu()  # frozen: losses arrive meanwhile
        key = shard_generator(seed, epoch, self.ranks.rank, torch.device("cpu")).initial_seed()
        for block in blocks(self.count, key):
            yield self._spread.sample(block[to_come[block]] + self.start)

    def ghost(self) -> Tensor:
        """Return a sample to fill up with: one of another rank, or on a single rank one that was left out."""
        return self._spread.sample(self._place_elsewhere.cpu().reshape(1))

    def _to_come(self) -> Tensor:
        return (self.level[:-1] != 0).logical_and_(self.fresh[:-1] == UNSEEN)

    # ---- checkpoints -------------------------------------------------------------------------------------

    def terms(self, done_before: int) -> dict[str, Any]:
        del done_before  # differs between ranks
        return {"number of samples planned so far": self.planned}

    def shard_info(self) -> State:
        return {"shard": {"rank": self.ranks.rank, "world": self.ranks.world, "start": self.start}}

    def save_running(self, plan: ShardPlan, piece: Slice | None, taken_alone: int | None) -> State:
        del piece, taken_alone  # each rank saves its own shard
        return {"level": copy_to_cpu(self.level[:-1]), "fresh": copy_to_cpu(self.fresh[:-1]), **asdict(plan)}

    def check_states(self, state: Any, method: str, compensate: str) -> list[State]:
        states = state if isinstance(state, list) else [state]
        names = set(ShardPlan.__dataclass_fields__)
        check_shards(states, self.size, method, compensate, self.start, self.stop, names)
        return states

    def restore(self, states: Sequence[State], compensate: Compensation) -> ShardPlan | None:
        """Cut this rank's places out of shards that were saved on any number of ranks.

        The levels of different ranks have different weights, so levels are numbered again.
        """
        self._clear()
        self.planned = states[0]["planned"]
        self._rows = None
        levels: dict[float, int] = {0.0: 0}
        for state in states:
            start = state["shard"]["start"]
            low, high = max(start, self.start), min(start + state["scores"].numel(), self.stop)
            if low < high:
                here, there = slice(low - self.start, high - self.start), slice(low - start, high - start)
                self.scores[here] = state["scores"][there].to(self.device)
                if state["running"] is not None:
                    self._restore_running(state["running"], here, there, levels)
        running = states[0]["running"]
        if running is None:
            return None
        facts = {key: value for key, value in running.items() if key not in ("level", "fresh")}
        plan = ShardPlan(**{**facts, "weights": tuple(levels)})
        self._set_weights(plan, plan.scale(compensate))
        return plan

    def _restore_running(self, running: State, here: slice, there: slice, levels: dict[float, int]) -> None:
        self.fresh[here] = running["fresh"][there].to(self.device)
        new = [levels.setdefault(weight, len(levels)) for weight in running["weights"]]
        if len(levels) > 256 and self.level.dtype == torch.uint8:
            self.level = self.level.short()
        if len(levels) > self.weights.numel():
            self.weights = self.weights.new_zeros(len(levels))
        renumbered = torch.tensor(new, dtype=self.level.dtype, device="cpu")
        pairs = zip(torch.split(self.level[here], BLOCK), torch.split(running["level"][there], BLOCK), strict=True)
        for mine, saved in pairs:
            mine.copy_(renumbered[saved.long()])


class ShardSlice(Slice):
    """A slice that is computed along the way and remembers only what may still be asked for.

    Losses and weights are kept with the scores, so samples are named by their indices.
    """

    def __init__(self, epoch: int, scores: ShardedScores, seed: int, *, has_filler: bool = False) -> None:
        self.ranks = scores.ranks
        self.size = max(scores.rows) + has_filler
        self._epoch = epoch
        self._scores = scores
        self._seed = seed
        self._rows = scores.rows
        self.ghost_count = self.size - self._rows[self.ranks.rank]
        """The number of ghosts at the end."""
        self._window: deque[tuple[int, Tensor]] = deque()
        self._reached = 0
        self._ghosts_seen = 0

    def chunks(self, oldest_needed: Callable[[], int]) -> Iterator[Tensor]:
        for chunk in self._scores.shuffled_samples(self._seed, self._epoch):
            if chunk.numel():
                yield self._remember(chunk, oldest_needed())
        if self.ghost_count:
            yield self._remember(self._scores.ghost().expand(self.ghost_count), oldest_needed())

    def _remember(self, chunk: Tensor, oldest: int) -> Tensor:
        while self._window and self._window[0][0] + self._window[0][1].numel() <= oldest:
            self._window.popleft()
        self._window.append((self._reached, chunk))
        self._reached += chunk.numel()
        return chunk

    def at(self, positions: range) -> Tensor:
        parts = [chunk[max(positions.start - at, 0) : max(positions.stop - at, 0)] for at, chunk in self._window]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64, device="cpu")

    def name(self, positions: range) -> Where:
        indices = self.at(positions)
        if indices.numel() != len(positions):
            raise MisalignedError(
                message(
                    "losses soon after their batch was delivered",
                    f"{len(positions)} for samples handed out long before",
                    "Call update() or skip() for each batch as it comes, or pass indices: update(loss, indices).",
                )
            )
        return indices

    def matches(self, positions: range, indices: Tensor) -> bool:  # noqa: ARG002
        return False

    def note(self, where: Where, scores: Tensor, channels: Mapping[str, Tensor]) -> Tensor:
        del channels  # methods that need them keep all scores in one table
        assert isinstance(where, Tensor)
        indices = move(where, scores.device)
        self._scores.record(indices, scores)
        weights = self._scores.look_up(indices)
        self._count_ghosts_in(where)
        return weights

    def skip(self, where: Where) -> None:
        assert isinstance(where, Tensor)
        self._scores.skip(where)
        self._count_ghosts_in(where)

    def _count_ghosts_in(self, where: Tensor) -> None:
        if self.ghost_count:
            self._ghosts_seen += int(torch.count_nonzero(where == self._scores.ghost()))

    def hand_in(self) -> None:
        pass  # the scores have it all

    @property
    def ghosts(self) -> Tensor:
        return self._scores.ghost().expand(self.ghost_count)

    def count_ghosts(self, taken: int) -> int:  # noqa: ARG002
        count = self._ghosts_seen + int(self._scores.elsewhere_count)
        if count > self.ghost_count:
            raise MisalignedError(describe_unplanned(self._epoch))
        return count

    def correction(self, count: int, taken: int) -> float:
        losses = count * self.ranks.world
        real = sum(max(0, min(row, taken) - (taken - count)) for row in self._rows)
        return 1.0 if real == losses else losses / real

    def release(self) -> None:
        self._window.clear()
