"""The running epoch: its plan, the pass over it, and what has come back so far."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .. import checks
from ..attribution.counted import Counted, StockLoader
from ..attribution.queue import Carried, Queue
from ..errors import MisalignedError, RankError, message, warn
from ..methods.memory import Memory
from ..plan import Plan, PlanNumbers
from ..ranks.exchange import Ranks, agree
from .scores import Scores, TableSlice
from .slice import UNSEEN
from .summary import EpochSummary, summarize

BOTH = message("indices with every update of a pass or with none", "both", "Choose one of the two.")
MANY_IDLE = 3
"""Passes without an update from which on they cannot be looks at a first batch any more."""


class RunningEpoch:
    """One epoch after another. Its owner says when a pass begins and when an epoch is to be closed."""

    def __init__(self, scores: Scores) -> None:
        self.scores = scores
        self.device = scores.device
        self.epoch = 0
        self.plan: PlanNumbers | None = None
        self.last: Queue | None = None
        """The latest pass, of this epoch or an earlier one."""
        self.ranks: Ranks | None = None
        """The ranks that train together, once they have met."""
        self.done_before = 0
        """How many samples of the epoch were done before this process resumed it."""
        self.is_resumed = False
        """Whether some of the epoch was done before on any rank."""
        self.named = 0
        """How many samples came with indices, as counted by Python."""
        self.counts_on_device = scores.is_sharded
        """Whether the device counts them instead: Python cannot inside a graph, nor tell which rank they belong to."""
        self.is_announced = False
        """Whether the beginning of the epoch was announced to schedulers."""
        self.largest_update = 0
        """The number of losses of this epoch's largest update, all ranks together; 0 before the first."""
        self.previous_largest = 0
        """The same, of the epoch before."""
        self.idle_passes = 0
        """The number of complete passes without a loss in this epoch."""
        self.all_idle_passes = 0
        self._expected: weakref.ref[Any] | None = None

    # ---- progress ----------------------------------------------------------------------------------------

    @property
    def queue(self) -> Queue | None:
        """The latest pass, if it belongs to the running epoch."""
        last = self.last
        return last if last is not None and last.epoch == self.epoch and not last.is_void else None

    def done(self) -> int:
        """Return how many samples of the running epoch have come back to this process."""
        queue = self.queue
        if queue is not None and queue.taken:
            return queue.taken  # then none came with indices, and the device need not be asked
        return self.named + (int(self.scores.named_count) if self.counts_on_device else 0)

    def is_finished(self) -> bool:
        """Whether the last batch of the running epoch has had its update."""
        queue = self.queue
        if self.plan is None or (queue is None and self.scores.is_sharded):
            return False  # only a pass knows which samples of a shard come
        if queue is None:
            return self.done() >= self.plan.kept - self.done_before
        return queue.is_finished or queue.covers(self.done())

    def is_resumed_by_loader(self, *, persistent: bool) -> bool:
        """Whether the next pass resumes an epoch that another process began; ``persistent``: or any before it."""
        if self.last is not None:
            return False
        finished = self.is_finished()
        return (bool(self.done_before) and not finished) or (persistent and self.epoch + finished > 0)

    def is_pass_open(self) -> bool:
        """Whether the latest pass goes on: its iterator may deliver, and losses are missing."""
        return self.queue is not None and self.queue.is_open and not self.is_finished()

    def expect_pass(self, iterator: Any) -> None:
        """Take note of an iterator that will begin a pass at its first step."""
        self._expected = weakref.ref(iterator)

    def is_expecting(self) -> bool:
        """Whether there is an iterator that has not begun its pass yet."""
        return self._expected is not None and self._expected() is not None

    # ---- ranks -------------------------------------------------------------------------------------------

    @property
    def is_alone(self) -> bool:
        """Whether there is no other rank to talk to, so that an epoch can be closed at any time."""
        return self.ranks is None or self.ranks.world == 1

    def meet(self, ranks: Ranks, terms: dict[str, Any]) -> None:
        """Train with these ranks from now on, after checking that they agree on the terms of training."""
        known = self.scores.ranks or self.ranks
        if known is not None and (ranks.rank, ranks.world) != (known.rank, known.world):
            remedy = "Ranks may change between processes: save a state_dict, restart, and load it."
            raise RankError(message(f"{known}, as in the passes before", str(ranks), remedy))
        if self.ranks is None:
            facts = {"length of the data set": self.scores.size, **terms, "shard_scores": self.scores.is_sharded}
            agree(ranks, {**facts, "epoch": self.epoch, **self.scores.terms(self.done_before)})
            self.ranks = ranks

    def _over_ranks(self, count: int) -> int:
        return count * (1 if self.ranks is None else self.ranks.world)

    # ---- a pass ------------------------------------------------------------------------------------------

    def check_idle(self) -> None:
        """Check, where no loss has come in this epoch, that the last pass was not a complete one."""
        last = self.queue
        if last is None or last.is_superseded or not last.may_be_exhausted:
            return
        if last.is_exhausted or self.idle_passes:
            raise MisalignedError(
                message(
                    "an update() for each batch",
                    f"a complete pass over {last.size} samples without one",
                    "Call update() in the loop; for passes that do not train use train_data.full().",
                )
            )
        self.idle_passes += 1  # or a look at the first batch: small data sets are fetched at once
        self.all_idle_passes += 1
        if self.all_idle_passes == MANY_IDLE:
            warn(
                f"{MANY_IDLE} passes over the pruned data without an update, each over the kept samples only: to "
                "evaluate, load train_data.full()"
            )

    def open_pass(
        self, seed: int, sampler: Sampler[int], iterator: _BaseDataLoaderIter | None, ranks: Ranks
    ) -> Counted:
        """Begin a pass over what remains of the plan."""
        piece = self.scores.open_slice(self.plan, seed, ranks, resumed=bool(self.done_before))
        queue = Counted(self.epoch, piece, StockLoader.of(iterator, sampler), self.last)
        if self.last is not None:
            self.last.supersede()
        self.last, self._expected = queue, None
        if queue.total == 0 and queue.size:
            warn(f"epoch {self.epoch} trains nothing: with drop_last, {queue.size} kept samples are less than a batch")
        return queue

    def carry(self, holder: Any) -> Carried:
        """Let the batches of the latest pass bring their indices from now on."""
        assert isinstance(self.last, Counted)
        self.last = queue = Carried(self.last, holder)
        return queue

    def expect(self, what: str) -> Queue:
        """Return the pass that waits for losses."""
        queue = self.queue
        if queue is None:
            raise MisalignedError(
                message(
                    "a batch from train_data's loader that waits for its losses",
                    f"{what} without one",
                    "Load with infobatch.DataLoader or sampler=train_data.sampler (not a DistributedSampler: this "
                    "sampler divides the plan between ranks, too), and call update() once per batch.",
                )
            )
        return queue

    def skip(self) -> None:
        """Leave out the oldest batch that waits."""
        queue = self.expect("a skip")
        queue.slice.skip(queue.drop())

    # ---- losses ------------------------------------------------------------------------------------------

    def note(self, scores: Tensor, channels: Mapping[str, Tensor]) -> tuple[Tensor, float]:
        """Record the scores of the batch that has waited longest; return its weights and a factor on its mean."""
        queue, count = self.expect("losses"), scores.shape[0]
        if self.named:
            raise MisalignedError(BOTH)
        where = queue.take(count)
        try:
            weights = queue.slice.note(where, scores)
        except BaseException:
            queue.put_back(where)
            raise
        if self.scores.channels:
            assert isinstance(queue.slice, TableSlice)
            self.scores.record_channels(queue.slice.indices_of(where), channels)
        factor = self._size_factor(count, is_last=queue.taken >= queue.total, is_batch=True)
        return weights, queue.slice.correction(count, queue.taken) if factor is None else factor

    def note_named(self, indices: Tensor, *, look: bool) -> tuple[Tensor, float]:
        """Count samples that came with indices; return their weights and a factor on their mean.

        Without a ``look`` no value is read, so no device waits, and a graph may hold all of it.
        """
        if look:
            ghost = None if self.queue is None else self.queue.slice.ghost
            weights = checks.check_members(indices, self.scores, self.epoch, ghost)
        elif is_in_graph(indices):
            self.counts_on_device = True
        factor = self._count_named(indices)
        return weights if look else self.scores.look_up(indices), factor

    def _count_named(self, indices: Tensor) -> float:
        count = indices.numel()
        if self.counts_on_device:
            self.scores.count_named(indices)
        else:
            self.named += count
        if torch.compiler.is_compiling():
            return 1.0  # one graph serves all sizes, and does not know which update is the last
        if self.counts_on_device and indices.device.type != "cpu":  # it is not asked: graphs have full-sized updates
            is_short = self._over_ranks(count) < (self.largest_update or self.previous_largest)
            return self._size_factor(count, is_last=is_short and not is_in_graph(indices), is_batch=False) or 1.0
        return self._size_factor(count, is_last=self.is_finished(), is_batch=False) or 1.0

    def _size_factor(self, count: int, *, is_last: bool, is_batch: bool) -> float | None:
        """Return the losses of an update over those of a full-sized one, so that all samples of an epoch count alike.

        Pruned epochs end with a short batch of any size. As the mean of its losses, a single sample would step as far
        as a whole batch. None in full epochs, which stay as without pruning, and in epochs of one batch. Without
        ``is_batch`` the update may hold a part of a batch.
        """
        plan, size = self.plan, self._over_ranks(count)
        if size == self.largest_update >= self.previous_largest and plan is not None and size < plan.kept:
            return None if plan.kept == plan.size else 1.0  # another full-sized update, as nearly always
        queue = self.queue
        loaded = self._over_ranks(queue.batch_size) if queue is not None and queue.is_sized else 0
        is_first = False
        if not is_batch:
            taken = 0 if queue is None else queue.taken
            so_far = self.done_before + self._over_ranks(taken + self.named)
            is_first = not self.largest_update if self.counts_on_device and not taken else so_far <= loaded
        full = full_update_size(
            size,
            self.largest_update,
            self.previous_largest,
            loaded,
            is_batch=is_batch,
            is_first=is_first,
            is_last=is_last,
        )
        if not is_last or size >= (self.largest_update or self.previous_largest):
            self.largest_update = max(self.largest_update, size)
        if plan is None or plan.kept == plan.size:  # a graph may be captured before there is a plan
            return None
        is_whole_epoch = size >= plan.kept and (queue is None or queue.size <= count)
        return None if is_whole_epoch else size / full

    # ---- the end of an epoch -----------------------------------------------------------------------------

    def close(self, memory: Memory | None) -> tuple[EpochSummary, MisalignedError | None]:
        """Merge the losses of the epoch into the scores and go on to the next. With ranks, they talk here.

        Losses that cannot be attributed are dropped, and the error is returned with the summary: the next epoch can
        begin.
        """
        plan, queue, scores = self.plan, self.queue, self.scores
        assert plan is not None
        came = self.done_before + (0 if queue is None else queue.taken) + self.named + int(scores.named_count)
        if queue is not None:
            came -= queue.slice.count_ghosts(queue.taken)
            queue.slice.hand_in()
        summary, error = summarize(plan, scores.noise(plan), scores.planned), None
        try:
            checks.check_attribution(scores, came, self.epoch)
        except MisalignedError as found:
            error = found
            scores.fresh.fill_(UNSEEN)
        else:
            not_finite = scores.close(plan, None if queue is None else queue.slice, memory)
            summary = replace(summary, not_finite=not_finite)
        scores.planned += plan.kept
        self._stand_before(self.epoch + 1)
        scores.named_count.zero_()
        if queue is not None:
            queue.slice.release()
        return summary, error

    def drop_plan(self) -> None:
        """Let the next epoch be planned again; a pass over its first batch is void."""
        queue = self.queue
        if queue is not None:
            queue.supersede()
            queue.is_void = True
        self.plan, self.is_announced = None, False

    def restart(self, epoch: int) -> None:
        """Go on from the start of this epoch, whatever was running."""
        if self.last is not None:
            self.last.supersede()
        self._stand_before(epoch)
        self.last = self.ranks = None

    def _stand_before(self, epoch: int) -> None:
        self.epoch, self.plan = epoch, None
        self.is_resumed = self.is_announced = False
        self.done_before = self.named = self.idle_passes = 0
        self.previous_largest, self.largest_update = self.largest_update or self.previous_largest, 0

    def to(self, device: torch.device) -> None:
        self.scores.to(device)
        self.device = self.scores.device
        if isinstance(self.plan, Plan):
            self.plan = self.plan.to(device)
        if self.last is not None:
            self.last.slice.to(device)


def full_update_size(
    size: int, largest: int, previous: int, loaded: int, *, is_batch: bool, is_first: bool, is_last: bool
) -> int:
    """Return how many losses a full-sized update brings, given one that brings ``size``, over all ranks.

    The largest one of the epoch. While the ``is_first`` batch comes in parts, the largest part may still be to come:
    then that of the previous epoch. If a short batch comes first of all, the loader's batch size, ``loaded``. If
    batches may have any size (``loaded`` is 0), only the last one can be short.
    """
    if not is_batch and size < loaded:
        return max(largest, previous if is_first else 0, size)
    if not loaded:
        return max(largest or previous, size) if is_last else size
    return max(largest or min(previous or loaded, loaded), size)


def is_in_graph(indices: Tensor) -> bool:
    """Whether Python runs only once here, and a graph will repeat it."""
    return torch.compiler.is_compiling() or (indices.is_cuda and torch.cuda.is_current_stream_capturing())


def weighted_mean(loss: Tensor, weights: Tensor, factor: float) -> Tensor:
    """Return ``(loss * weights).mean() * factor``, in one kernel where there is one."""
    if loss.device.type == "cpu" and loss.dtype == weights.dtype:
        mean = torch.dot(loss, weights) / loss.shape[0]  # half the time of a product and a mean
    else:
        mean = (loss * weights).mean()
    return mean if factor == 1.0 else mean * factor
