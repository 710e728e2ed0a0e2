"""The scores: the only numbers that change during training, and their interface to a running epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import warn
from ..methods.channels import CHANNELS
from ..methods.cuts import mean_score
from ..methods.memory import Memory
from ..methods.method import Method, Moment
from ..plan import Compensation, Plan, PlanNumbers, estimate_noise, move
from ..ranks.exchange import Ranks, gather, ghosts, take_slice
from ..state_checks import State, check_state
from .slice import SKIPPED, TOO_LARGE, UNSEEN, Slice, Where

CHUNK = 1 << 16


class Scores(ABC):
    """The scores of all samples and the losses of the running epoch, in one table or in shards.

    ``scores`` do not change during an epoch; NaN means that nothing is known of a sample. ``fresh`` takes the losses of
    the running epoch, and ``close`` merges them. The buffers keep their place in memory, so compiled steps and
    captured graphs go on reading the right ones.
    """

    is_sharded: bool
    size: int
    scores: Tensor
    fresh: Tensor
    named_count: Tensor
    """How many samples came with indices, where the device counts them."""

    def __init__(self) -> None:
        self.planned = 0
        """The number of samples in the plans of all finished epochs together."""
        self.memory: dict[str, Tensor] = {}
        """The columns that the method remembers, by name."""
        self.channels: dict[str, Tensor] = {}
        """The score channels that came with the losses of this epoch, by name."""

    @property
    def device(self) -> torch.device:
        return self.scores.device

    @abstractmethod
    def to(self, device: torch.device) -> None: ...

    @abstractmethod
    def samples(self) -> Tensor:
        """Return the indices of the samples whose scores are here, in the order of ``scores``."""

    # ---- an epoch ----------------------------------------------------------------------------------------

    @abstractmethod
    def draw(self, method: Method, moment: Moment, seed: int) -> PlanNumbers:
        """Draw the plan of an epoch. For shards this is a collective call."""

    @abstractmethod
    def begin(self, plan: Any, scale: float) -> None:
        """Open an epoch with the weights of the plan times ``scale``, and no losses."""

    @abstractmethod
    def open_slice(self, plan: Any, seed: int, ranks: Ranks, *, resumed: bool, no_single: int = 0) -> Slice:
        """Return this rank's slice of what remains of the plan.

        With ``no_single``, the size of the batches, a ghost is added where a single sample would be left for the last.
        """

    @abstractmethod
    def count_left(self, plan: PlanNumbers, done_before: int, world: int) -> int:
        """Return the number of samples of the next pass on one of ``world`` ranks, ghosts included."""

    @abstractmethod
    def count_past(self, plan: PlanNumbers, done_before: int, world: int) -> int:
        """Return the number of samples per rank before that pass, of all ranks in equal parts."""

    @abstractmethod
    def record(self, indices: Tensor, scores: Tensor) -> None:
        """Record the scores of these samples. Nothing here waits for the device."""

    @abstractmethod
    def look_up(self, indices: Tensor) -> Tensor:
        """Return the weights of these samples; raise IndexError on the CPU if an index is out of range."""

    @abstractmethod
    def count_named(self, indices: Tensor) -> None:
        """Count samples that came with indices."""

    @abstractmethod
    def skip(self, indices: Tensor) -> None: ...

    def record_channels(self, indices: Tensor, given: Mapping[str, Tensor]) -> None:
        """Record the score channels of these samples."""
        for name, column in self.channels.items():
            column.scatter_(0, move(indices, column.device), given[name].detach().to(column.dtype))

    @abstractmethod
    def count_seen(self) -> int:
        """Return the number of samples with a loss or a skip in this epoch."""

    @abstractmethod
    def count_unplanned(self) -> int:
        """Return the number of samples that got a loss in this epoch without being in its plan."""

    @abstractmethod
    def close(self, plan: Any, piece: Slice | None, memory: Memory | None) -> int:
        """Merge the losses of all ranks into the scores; return how many were not finite. Safe to repeat."""

    @abstractmethod
    def begin_anew(self, planned: int) -> None:
        """After ``close``: nothing is fresh, and ``planned`` samples were planned so far. Safe to repeat."""

    @abstractmethod
    def noise(self, plan: Any) -> float:
        """Return the noise-to-signal ratio of a step under this plan; see ``EpochSummary.noise``."""

    @abstractmethod
    def mean(self) -> float | None:
        """Return the mean score; None if this rank holds only a shard of them."""

    # ---- ranks and checkpoints ---------------------------------------------------------------------------

    ranks: Ranks | None = None
    """The ranks this object was made for, if it cannot change them."""

    @abstractmethod
    def terms(self, done_before: int) -> dict[str, Any]:
        """Return what must be equal on all ranks before they train together."""

    @abstractmethod
    def save_running(self, plan: Any, piece: Slice | None, taken_alone: int | None) -> State:
        """Return the plan and the losses of the running epoch.

        ``taken_alone`` is None where all ranks save together. Otherwise it is how many losses this rank has, and each
        of the others as many: those samples are done, but have no new score.
        """

    def shard_info(self) -> State:
        """Return which shard this is, as an entry of a state; nothing for a table."""
        return {}

    @abstractmethod
    def check_states(self, state: Any, method: str, compensate: str) -> list[State]:
        """Return the states to load as a list; raise StateError unless they can be loaded completely."""

    @abstractmethod
    def restore(self, states: Sequence[State], compensate: Compensation) -> PlanNumbers | None:
        """Load scores and memory, and the running plan with its losses; return that plan, if the states have one."""


class ScoreTable(Scores):
    """All scores in one table, the same on every rank: 12 bytes per sample."""

    is_sharded = False

    @torch.inference_mode(False)
    def __init__(self, size: int, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.size = size
        self.scores = torch.full((size,), torch.nan, dtype=torch.float32, device=device)
        self.fresh = torch.full((size,), UNSEEN, dtype=torch.float32, device=device)
        self.weights = torch.ones(size, dtype=torch.float32, device=device)
        self.named_count = torch.zeros((), dtype=torch.int64, device=device)
        self._next_memory: dict[str, Tensor] | None = None
        """The columns of the next epoch, while the turn to it is not complete."""

    @torch.inference_mode(False)
    def make_columns(self, memory: Memory | None, channels: Iterable[str]) -> None:
        """Allocate the columns of a method's memory and of its score channels."""
        for name, first in (memory.columns if memory else {}).items():
            self.memory[name] = torch.full_like(self.scores, first)
        self.channels = {name: torch.full_like(self.scores, torch.nan) for name in channels}

    @torch.inference_mode(False)
    def to(self, device: torch.device) -> None:
        for name in ("scores", "fresh", "weights", "named_count"):
            setattr(self, name, move(getattr(self, name), device))
        for columns in (self.memory, self.channels):
            for name, column in columns.items():
                columns[name] = move(column, device)

    def samples(self) -> Tensor:
        return torch.arange(self.size, device=self.device)

    def draw(self, method: Method, moment: Moment, seed: int) -> Plan:
        return method.draw(self, moment, seed)

    def begin(self, plan: Plan, scale: float = 1.0) -> None:
        self.weights.copy_(plan.table)
        if scale != 1.0:
            self.weights.mul_(scale)
        self.fresh.fill_(UNSEEN)
        self.named_count.zero_()

    def open_slice(self, plan: Plan, seed: int, ranks: Ranks, *, resumed: bool, no_single: int = 0) -> TableSlice:
        del seed  # the plan is in order already
        remaining = plan.indices
        if resumed:
            remaining = remaining[self.fresh.index_select(0, remaining) == UNSEEN]
        filler = None
        if no_single and -(-remaining.numel() // ranks.world) % no_single == 1:
            filler = (plan.table == 0).nonzero()[0]  # left out, so its weight is 0
        return TableSlice(remaining, ranks, self, filler)

    def count_left(self, plan: PlanNumbers, done_before: int, world: int) -> int:
        return -(-(plan.kept - done_before) // world)

    def count_past(self, plan: PlanNumbers, done_before: int, world: int) -> int:
        del plan
        return -(-done_before // world)

    def record(self, indices: Tensor, scores: Tensor) -> None:
        scores = scores.detach()
        self.fresh.scatter_(0, indices, scores if scores.dtype == self.fresh.dtype else scores.to(self.fresh.dtype))

    def look_up(self, indices: Tensor) -> Tensor:
        return self.weights.index_select(0, indices)

    def count_named(self, indices: Tensor) -> None:
        self.named_count.add_(indices.numel())

    def skip(self, indices: Tensor) -> None:
        self.fresh.index_fill_(0, move(indices, self.device), SKIPPED)

    def count_seen(self) -> int:
        return self.size - int(torch.count_nonzero(self.fresh == UNSEEN))

    def count_unplanned(self) -> int:
        return int(torch.count_nonzero((self.fresh != UNSEEN) & (self.weights == 0)))

    def close(self, plan: Plan, piece: Slice | None, memory: Memory | None) -> int:
        for name, column in self._gather("closes", plan.epoch, piece, self.fresh):
            (self.fresh if name is None else self.channels[name]).copy_(column)
        for name, column in self.channels.items():
            outside = CHANNELS[name].count_outside(column)
            if outside:  # on a device, they are first looked at here
                warn(
                    f"epoch {plan.epoch}: {outside} values of {name} were outside their range. {CHANNELS[name].remedy}"
                )
        if self._next_memory is None and memory is not None:
            self._next_memory = self._remember(memory, plan)
        return merge_losses(self.fresh, self.scores)

    def close_hidden(self, memory: Memory | None) -> None:
        """Update the method's columns from losses that were observed without a plan, and count nothing as hidden."""
        if memory is not None:
            self.memory = self._remember(memory, None)
        self.memory["held"].fill_(1.0)

    @torch.inference_mode(False)
    def _remember(self, memory: Memory, plan: Plan | None) -> dict[str, Tensor]:
        """Return the method's columns after the losses that arrived, and after the plan they came from, if any."""
        columns = dict(self.memory)
        arrived = self.fresh.abs() < TOO_LARGE
        context = {**self.channels, "arrived": arrived.float(), "scores": self.scores}
        for name, new in memory.on_loss(columns, self.fresh, context).items():
            columns[name] = torch.where(arrived, new, columns[name])
        if plan is not None:
            planned = plan.table != 0
            columns |= memory.on_plan(columns, planned, planned if plan.chosen is None else plan.chosen)
        return columns

    def begin_anew(self, planned: int) -> None:
        if self._next_memory is not None:
            self.memory = self._next_memory
        self.planned = planned
        for column in self.channels.values():
            column.fill_(torch.nan)
        self.fresh.fill_(UNSEEN)
        self.named_count.zero_()
        self._next_memory = None

    def noise(self, plan: Plan) -> float:
        return estimate_noise(plan, self.scores)

    def mean(self) -> float:
        return mean_score(self.scores)

    # ---- ranks and checkpoints ---------------------------------------------------------------------------

    def _gather(
        self, purpose: str, epoch: int, piece: Slice | None, fresh: Tensor
    ) -> Iterator[tuple[str | None, Tensor]]:
        """Yield the losses of all ranks (under the name None) and their channels, if there are several ranks."""
        if not isinstance(piece, TableSlice) or piece.ranks.world == 1:
            return
        columns: dict[Any, Tensor] = {None: fresh, **self.channels}
        for name, column in columns.items():
            mine = column.index_select(0, piece.indices)
            if name is None:
                mine[piece.size - piece.ghost_count :] = UNSEEN
            values = gather(piece.ranks, mine, piece.remaining.numel(), purpose, epoch)
            yield name, column.index_copy(0, piece.remaining, values)

    def terms(self, done_before: int) -> dict[str, Any]:
        return {"number of samples done in it": done_before, "mean of scores": repr(self.mean())}

    def save_running(self, plan: Plan, piece: Slice | None, taken_alone: int | None) -> State:
        if piece is not None:
            piece.hand_in()
        columns: dict[Any, Tensor] = {None: self.fresh, **self.channels}
        if taken_alone is None:
            columns |= dict(self._gather("saves in", plan.epoch, piece, self.fresh))
        else:
            assert isinstance(piece, TableSlice)
            fresh = self.fresh.clone()
            fresh[piece.ghosts] = UNSEEN
            done = piece.remaining[: taken_alone * piece.ranks.world]
            fresh[done] = torch.where(fresh[done] == UNSEEN, SKIPPED, fresh[done])
            columns[None] = fresh
        return {
            "indices": copy_to_cpu(plan.indices),
            "table": None if bool((plan.table == 1).all()) else copy_to_cpu(plan.table),
            "chosen": None if plan.chosen is None else copy_to_cpu(plan.chosen),
            "fresh": copy_to_cpu(columns.pop(None)),
            "channels": {str(name): copy_to_cpu(column) for name, column in columns.items()},
        }

    def check_states(self, state: Any, method: str, compensate: str) -> list[State]:
        check_state(state, self.size, method, compensate, self.memory, self.channels)
        return [state]

    def restore(self, states: Sequence[State], compensate: Compensation) -> Plan | None:
        (state,) = states
        self.scores.copy_(state["scores"])
        self.fresh.fill_(UNSEEN)
        self.named_count.zero_()
        self.planned = state["planned"]
        for name, column in state["memory"].items():
            self.memory[name].copy_(column)
        running, device = state["running"], self.device
        if running is None:
            return None
        table, chosen = running["table"], running.get("chosen")
        if table is None:
            table = torch.ones(1, dtype=torch.float32, device="cpu").expand(self.size)
        plan = Plan(
            state["epoch"],
            running["indices"].to(device, copy=True),
            table.to(device, copy=True),
            None if chosen is None else chosen.to(device, copy=True),
        )
        self.begin(plan, plan.scale(compensate))
        self.fresh.copy_(running["fresh"])
        for name, column in running["channels"].items():
            self.channels[name].copy_(column)
        return plan


class TableSlice(Slice):
    """A rank's slice of a plan as a list, with weights and losses beside it in the same order."""

    def __init__(self, remaining: Tensor, ranks: Ranks, table: ScoreTable, filler: Tensor | None = None) -> None:
        self.remaining = remaining
        """The remaining samples of the plan, of all ranks together."""
        self.ranks = ranks
        mine = take_slice(remaining, ranks)
        self.indices = mine if filler is None else torch.cat([mine, filler])
        self.size = self.indices.numel()
        self._table = table
        self._ghosts_everywhere = self.size * ranks.world - remaining.numel()
        self._ghosts_came = 0
        self._real = mine.numel()
        if ranks.rank >= ranks.world - ghosts(remaining.numel(), ranks.world):
            self._real -= 1
        self.ghost_count = self.size - self._real
        self._host = self.indices.cpu()
        with torch.inference_mode(False):  # these outlive the mode in which a batch happens to be fetched
            if ranks.world > 1:
                table.weights.index_fill_(0, self._others(), 0.0)
            self.weights = table.weights.index_select(0, self.indices)
            self.losses = torch.full((self.size,), UNSEEN, dtype=torch.float32, device=self.indices.device)

    def chunks(self, oldest_needed: Callable[[], int]) -> Iterator[Tensor]:  # noqa: ARG002
        yield from torch.split(self._host, CHUNK)

    def at(self, positions: range) -> Tensor:
        return self._host[positions.start : positions.stop]

    def name(self, positions: range) -> Where:
        return positions

    def matches(self, positions: range, indices: Tensor) -> bool:
        return torch.equal(self.at(positions), indices)

    def note(self, where: Where, scores: Tensor, channels: Mapping[str, Tensor]) -> Tensor:
        if isinstance(where, Tensor):
            indices = move(where, scores.device)
            self._table.record_channels(indices, channels)
            self._table.record(indices, scores)
            return self._table.look_up(indices)
        if channels:  # before the scores: where an interrupt leaves a score, its channels are there, too
            self._table.record_channels(self.indices[where.start : where.stop], channels)
        self.losses[where.start : where.stop].copy_(scores.detach())
        return self.weights[where.start : where.stop]

    def skip(self, where: Where) -> None:
        if isinstance(where, Tensor):
            self._table.skip(where)
        else:
            self.losses[where.start : where.stop] = SKIPPED

    def hand_in(self) -> None:
        self.losses[self._real :] = UNSEEN
        seen = self.losses != UNSEEN
        self._table.fresh.index_copy_(0, self.indices[seen], self.losses[seen])

    def to(self, device: torch.device) -> None:
        for name in ("remaining", "indices", "weights", "losses"):
            setattr(self, name, move(getattr(self, name), device))

    def release(self) -> None:
        self.indices = self.remaining = self._host = self._host.new_empty(0)
        self.weights = self.losses = self.weights.new_empty(0)

    # ---- ranks -------------------------------------------------------------------------------------------

    def _others(self) -> Tensor:
        """The samples of other ranks."""
        position = torch.arange(self.remaining.numel(), device=self.remaining.device)
        return self.remaining[position % self.ranks.world != self.ranks.rank]

    @property
    def ghosts(self) -> Tensor:
        return self.indices[self._real :]

    def count_ghosts(self, taken: int) -> int:
        # they come last, so the number of losses says whether they came; those that were named are taken back
        fresh, ghosts = self._table.fresh, self.ghosts
        named = int(torch.count_nonzero(fresh[ghosts] != UNSEEN))
        self._ghosts_came = max(self._ghosts_came, named, taken - self._real)
        fresh.index_fill_(0, ghosts, UNSEEN)
        return self._ghosts_came

    def correction(self, count: int, taken: int) -> float:
        if not self._ghosts_everywhere or taken < self.size:
            return 1.0
        losses = count * self.ranks.world
        return losses / (losses - self._ghosts_everywhere)


def merge_losses(fresh: Tensor, scores: Tensor) -> int:
    """Copy the finite losses to the scores; return how many losses were not finite."""
    not_finite = torch.zeros((), dtype=torch.int64, device=scores.device)
    for new, old in zip(torch.split(fresh, 1 << 20), torch.split(scores, 1 << 20), strict=True):
        size = new.abs()
        finite = size < TOO_LARGE  # neither a mark nor NaN is
        torch.where(finite, new, old, out=old)
        not_finite += torch.count_nonzero(finite.logical_or_(size == SKIPPED).logical_not_())
    return int(not_finite)


def copy_to_cpu(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)
