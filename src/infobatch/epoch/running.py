"""The running epoch: its plan, the pass over it, and what has come back so far."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .. import checks
from ..attribution.counted import Counted, StockLoader
from ..attribution.queue import Carried, Queue
from ..errors import InputError, MisalignedError, RankError, message, warn
from ..methods.memory import Memory
from ..plan import PlanNumbers, move, summarize
from ..ranks.exchange import Meeting, Ranks, agree
from .scores import Scores
from .turn import Turn

BOTH = message("indices with every update of a pass or with none", "both", "Choose one of the two.")
MANY_IDLE = 3
"""So many passes without an update cannot all be peeks at a first batch."""


class EpochListener(Protocol):
    """What ``infobatch.pace`` registers with the data."""

    def begin(self) -> None:
        """Called when the plan of an epoch is known, before its first batch."""


class RunningEpoch:
    """The epoch in progress: its plan, the pass over it, and the counts; one object for all epochs of a run.

    Its owner says when a pass begins and when an epoch is to be closed.
    """

    def __init__(self, scores: Scores) -> None:
        self.scores = scores
        self.device = scores.device
        self.lock = threading.RLock()
        self.epoch = 0
        self.plan: PlanNumbers | None = None
        self.last: Queue | None = None
        """The latest pass, of this epoch or an earlier one."""
        self.ranks: Ranks | None = None
        """The ranks that train together, once they have met."""
        self._meeting: Meeting | None = None
        self.done_before = 0
        """How many samples of the epoch were done before this process resumed it."""
        self.is_resumed = False
        """Whether part of the epoch was done before this process resumed it, on any rank."""
        self.named = 0
        """How many samples came with indices, where Python counts them."""
        self.counts_on_device = scores.is_sharded
        """Whether the device counts them instead: in a graph, or where only it knows which of them are on this rank."""
        self.turn: Turn | None = None
        """The turn to the next epoch, from its beginning until the owner has taken its result."""
        self.is_plan_asked = False
        """Whether ``plan()`` was called, so that ``len`` is that of the coming pass."""
        self.is_announced = False
        """Whether the beginning of the epoch was announced to schedulers."""
        self.largest_here = 0
        """The number of losses of the largest update in this epoch and process, all ranks together; 0 before it."""
        self.largest_before = 0
        """The same of an earlier epoch, or of the process that was resumed."""
        self.latest: tuple[Tensor, float | Tensor] | None = None
        """The weights of the batch that was updated last, and the factor on its mean."""
        self.has_ghosts = False
        """Whether that batch may hold ghosts."""
        self.had_backward = False
        """Whether a loss of this epoch has reached backward."""
        self.watched = 0
        """How many losses of this epoch were watched for that."""
        self.unreached = 0
        """How many losses of earlier epochs were watched since backward last reached one."""
        self.had_bare = False
        """Whether an update of this epoch had losses without a gradient."""
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
        """Whether the next pass resumes an epoch that another process began.

        With ``persistent`` workers it is enough that another process trained an earlier epoch.
        """
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
            self.ranks, self._meeting = ranks, None if ranks.world == 1 else Meeting(ranks)

    def check_all_close(self) -> None:
        """Before an epoch is closed in order to save, check that all ranks do so where shards must talk for it."""
        if self.scores.is_sharded and not self._all_come():
            remedy = "Call state_dict() outside of any `if rank == 0` or `if is_main_process`, and save each shard."
            raise RankError(message("state_dict() on all ranks: each has a shard", f"{self.ranks} alone", remedy))

    def all_save(self) -> bool:
        """Whether all ranks save at this point, so that each state can hold the losses of all.

        If they do not, warn: this rank saves what it knows.
        """
        ranks = self.ranks
        if self.scores.is_sharded or self._all_come():
            return True
        warn(
            f"state_dict() was called on {ranks} while others did not call it: inside an epoch it holds the new losses "
            "of this rank only, and other samples keep their scores. Call it on all ranks, outside of any "
            "`if rank == 0` or `if is_main_process`; write the file on one"
        )
        return False

    def _all_come(self) -> bool:
        """Whether all ranks come to this point of the training."""
        queue, meeting = self.queue, self._meeting
        return meeting is None or meeting.all_come(f"{self.epoch}/{queue.taken if queue else 0}/{self.named}")

    def _over_ranks(self, count: int) -> int:
        return count * (1 if self.ranks is None else self.ranks.world)

    # ---- a pass ------------------------------------------------------------------------------------------

    def check_idle(self) -> None:
        """Check, if no loss has come in this epoch, that its latest pass was not a complete one."""
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
        self.idle_passes += 1  # or a peek at the first batch: small data sets are fetched at once
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
        loader = StockLoader.of(iterator, sampler)
        no_single = loader.batch_size if self._must_fill(loader, ranks.world) else 0
        piece = self.scores.open_slice(self.plan, seed, ranks, resumed=bool(self.done_before), no_single=no_single)
        if loader.drop_last and piece.size < loader.batch_size and not self.is_resumed:  # then only a rest is dropped
            raise InputError(
                message(
                    f"at least one batch of {loader.batch_size} samples in epoch {self.epoch}, with drop_last=True",
                    f"{piece.size} samples to train on",
                    "Use smaller batches, or drop_last=False.",
                )
            )
        queue = Counted(self.epoch, piece, loader, self.last)
        if self.last is not None:
            self.last.supersede()
        self.last, self._expected = queue, None
        return queue

    def _must_fill(self, loader: StockLoader, world: int) -> bool:
        """Whether a last batch of one sample must be avoided because full data would not have one.

        BatchNorm refuses such a batch, and ``squeeze()`` in a script would drop its dimension.
        """
        plan, size = self.plan, loader.batch_size
        if plan is None or plan.kept == plan.size or not loader.is_sized or loader.drop_last or size == 1:
            return False
        return -(-plan.size // world) % size != 1

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
                    "update() once after each batch of train_data's own loader",
                    f"{what}, although no such batch waits",
                    "Use infobatch.DataLoader(train_data, ...), or torch's DataLoader with sampler=train_data.sampler: "
                    "no shuffle, and no DistributedSampler, because this sampler divides the plan between ranks, too.",
                )
            )
        return queue

    def skip(self) -> None:
        """Leave out the oldest batch that waits."""
        queue = self.expect("a skip")
        if self.done() > queue.taken:
            remedy = "Where updates have indices, leave the batch out without skip()."
            raise MisalignedError(message("no skip() in a pass with update(loss, indices)", "one", remedy))
        where = queue.drop()
        queue.slice.skip(where)
        queue.commit(where)

    # ---- losses ------------------------------------------------------------------------------------------

    def note(self, scores: Tensor, channels: Mapping[str, Tensor]) -> tuple[Tensor, float]:
        """Record the scores of the batch that has waited longest; return its weights and a factor on its mean."""
        queue, count = self.expect("losses"), scores.shape[0]
        if self.named:
            raise MisalignedError(BOTH)
        where = queue.take(count)
        weights = queue.slice.note(where, scores, channels)
        queue.commit(where)  # last: after an interrupt before it, the batch waits, and the call may be repeated
        ghosts = queue.slice.ghost_count
        self.has_ghosts = ghosts > 0 and queue.taken > queue.total - ghosts
        factor = self._batch_factor(queue, count)
        return weights, queue.slice.correction(count, queue.taken) if factor is None else factor

    def note_named(
        self, indices: Tensor, scores: Tensor, channels: Mapping[str, Tensor], *, may_read: bool
    ) -> tuple[Tensor, float | Tensor]:
        """Record the scores of samples that came with indices; return their weights and a factor on their mean.

        Without ``may_read`` no value is read, so no device waits, and a graph may hold all of it.
        """
        if may_read:
            ghosts = None if self.queue is None else self.queue.slice.ghosts
            weights = checks.check_members(indices, self.scores, self.epoch, ghosts)
        elif is_in_graph(indices):
            self.counts_on_device = True
        self.scores.record_channels(indices, channels)
        self.scores.record(indices, scores)
        if self.counts_on_device:  # counted last, as in note
            self.scores.count_named(indices)
        else:
            self.named += indices.numel()
        factor = 1.0 if torch.compiler.is_compiling() else self._named_factor(indices)
        return weights if may_read else self.scores.look_up(indices), factor

    def is_short(self, count: int) -> bool:
        """Whether a batch of ``count`` samples is shorter than the others."""
        queue = self.queue
        whole = queue.batch_size if queue is not None and queue.is_sized else self.largest_here or self.largest_before
        return count < whole

    def latest_weights(self) -> Tensor:
        """Return the weights of the batch that was updated last, its factor included."""
        if self.latest is None:
            remedy = "Ask after an update(), outside of torch.compile."
            raise MisalignedError(message("a batch that has had its update", "none", remedy))
        weights, factor = self.latest
        return weights * factor

    def watch_backward(self, mean: Tensor) -> None:
        """Notice when backward reaches this loss. Until it has reached one of the epoch, each is watched."""
        if not mean.requires_grad:
            self.had_bare = True
        elif not self.had_backward:
            self.watched += 1
            mean.register_hook(self._note_backward)  # type: ignore[no-untyped-call]

    def _note_backward(self, gradient: Tensor) -> None:
        del gradient
        self.had_backward = True

    # Pruned epochs end with a short batch of any size. As the mean of its losses, a single sample would step as far as
    # a whole batch. So the mean over a batch of b samples counts b/B, B being the size of a whole one. Full epochs stay
    # as without pruning, and so do epochs of a single batch.

    def _batch_factor(self, queue: Queue, count: int) -> float | None:
        """Return b/B for a batch of b = ``count`` samples; None where it stays as without pruning."""
        plan = self.plan
        if queue.is_sized and count == queue.batch_size < queue.size and plan is not None:
            return None if plan.kept == plan.size else 1.0  # as nearly always
        size, whole = self._over_ranks(count), self._note_size(count)
        if self._is_whole(count):
            return None
        if queue.is_sized:
            return min(count / queue.batch_size, 1.0)
        return min(size / whole, 1.0) if queue.is_finished else 1.0

    def _named_factor(self, indices: Tensor) -> float | Tensor:
        """Return b/B for samples that came with indices, in whole batches or in parts of b samples together.

        Each part counts as its batch does, so the parts of a batch, each times its share of the batch, add up to the
        batch.
        """
        count = indices.numel()
        size, whole = self._over_ranks(count), self._note_size(count)
        queue = self.queue
        self.has_ghosts = queue is not None and queue.slice.ghost_count > 0
        if is_in_graph(indices):
            return 1.0
        if self._is_whole(count):
            return 1.0 if queue is None else queue.slice.correction(count, count)
        if queue is not None and queue.is_sized:
            if self.plan is not None and not self.done_before and self.plan.kept <= self._over_ranks(queue.batch_size):
                return queue.slice.correction(queue.size, queue.size)
            rest = queue.total % queue.batch_size
            return _factor_in_rest(queue, indices, rest) if 0 < count <= rest else 1.0
        if self.counts_on_device and indices.device.type != "cpu":
            is_last = size < whole  # the device is not asked how many have come; graphs have full-sized updates
        else:
            is_last = self.is_finished()
        return min(size / whole, 1.0) if is_last else 1.0

    def _is_whole(self, count: int) -> bool:
        """Whether an update stays as without pruning: in a full epoch, or as the only one of its epoch."""
        plan, queue = self.plan, self.queue
        if plan is None or plan.kept == plan.size:  # a graph may be captured before there is a plan
            return True
        return self._over_ranks(count) >= plan.kept and (queue is None or count >= queue.size)

    def _note_size(self, count: int) -> int:
        """Take note of an update of ``count`` losses; return the size of a whole one, as far as updates show it."""
        size = self._over_ranks(count)
        whole = self.largest_here or self.largest_before or size
        is_sized = self.queue is not None and self.queue.is_sized  # then the loader says it
        is_rest = size < whole and not self.counts_on_device and self.is_finished()  # it may be all a resumed run sees
        if not is_sized and not is_rest:
            self.largest_here = max(self.largest_here, size)
        return whole

    # ---- the end of an epoch -----------------------------------------------------------------------------

    def close(self, memory: Memory | None) -> Turn:
        """Merge the losses of the epoch into the scores and go on to the next. With ranks, they talk here.

        Losses that cannot be attributed are dropped, and the error comes with the result: the next epoch can begin. If
        an interrupt comes, calling this again completes it: each step may be repeated, and what later steps need is
        put aside first. The owner sets ``turn`` to None when it has taken the result.
        """
        if self.turn is None:
            self.turn = self._account()
        turn, scores = self.turn, self.scores
        if turn.error is None and not turn.is_merged:
            not_finite = scores.close(turn.plan, None if turn.queue is None else turn.queue.slice, memory)
            turn.summary = replace(turn.summary, not_finite=not_finite)
            turn.is_merged = True
        if self.latest is not None:  # a view into the weights of the whole epoch
            with torch.inference_mode(False):
                self.latest = self.latest[0].clone(), self.latest[1]
        scores.begin_anew(turn.planned)
        self._stand_before(turn.summary.epoch + 1)
        if turn.queue is not None:
            turn.queue.slice.release()
        return turn

    def _account(self) -> Turn:
        """Check the losses of the epoch before they become scores."""
        plan, queue, scores = self.plan, self.queue, self.scores
        assert plan is not None
        received = self.done_before + (0 if queue is None else queue.taken) + self.named + int(scores.named_count)
        if queue is not None:
            received -= queue.slice.count_ghosts(queue.taken)
            queue.slice.hand_in()
        turn = Turn(plan, queue, summarize(plan, scores.noise(plan), scores.planned), scores.planned + plan.kept)
        # a single loss may still be on its way to backward
        turn.is_without_backward = self.unreached + self.watched > 1 and not self.had_backward
        turn.had_gradients = bool(self.watched) or (False if self.had_bare else None)
        try:
            checks.check_attribution(received, scores.count_seen(), scores.count_unplanned(), self.epoch)
        except MisalignedError as found:
            turn.error = found
        return turn

    def drop_plan(self) -> None:
        """Drop the plan of an epoch that has not begun, to draw it again; a peek at its first batch is void."""
        queue, has_begun = self.queue, self.done() or self.done_before
        if has_begun or (queue is not None and queue.is_open):
            got = "one inside an epoch" if has_begun else "one with a loader's iterator open"
            remedy = "Take it after the last update of an epoch and before the next iter(loader)."
            raise MisalignedError(message("a pass over the hidden samples between two epochs", got, remedy))
        if queue is not None:
            queue.supersede()
            queue.is_void = True
        self.plan, self.is_announced, self.is_plan_asked = None, False, False

    def restart(self, epoch: int) -> None:
        """Go on from the start of this epoch, whatever was running."""
        if self.last is not None:
            self.last.supersede()
        self._stand_before(epoch)
        self.last = self.ranks = self.turn = self.latest = None
        self.unreached = 0

    def _stand_before(self, epoch: int) -> None:
        self.epoch, self.plan = epoch, None
        self.is_resumed = self.is_announced = self.is_plan_asked = False
        self.unreached = 0 if self.had_backward else self.unreached + self.watched
        self.done_before = self.named = self.idle_passes = self.watched = 0
        self.had_backward = self.had_bare = False
        self.largest_before, self.largest_here = self.largest_here or self.largest_before, 0

    def to(self, device: torch.device) -> None:
        self.scores.to(device)
        self.device = self.scores.device
        if self.plan is not None:
            self.plan = self.plan.to(device)
        if self.last is not None:
            self.last.slice.to(device)


def _factor_in_rest(queue: Queue, indices: Tensor, rest: int) -> float | Tensor:
    """Return b/B if these samples are from the short last batch of b = ``rest`` samples, else 1.

    Batches with indices may be updated in any order, and some left out, so only the samples tell. On a device the
    answer stays there: nothing waits.
    """
    last = queue.slice.at(range(queue.total - rest, queue.total))
    is_rest = (move(last, indices.device) == indices[:1]).any()
    factor = rest / queue.batch_size
    if indices.device.type == "cpu":
        return factor if is_rest else 1.0
    return torch.where(is_rest, factor, 1.0)


def is_in_graph(indices: Tensor) -> bool:
    """Whether this call is being compiled or captured: Python runs once, and a graph repeats it."""
    return torch.compiler.is_compiling() or (indices.is_cuda and torch.cuda.is_current_stream_capturing())


def weighted_mean(loss: Tensor, weights: Tensor, factor: float | Tensor, *, has_ghosts: bool = False) -> Tensor:
    """Return ``(loss * weights).mean() * factor``, in one kernel where there is one."""
    if has_ghosts:  # their losses must not matter even if they are not finite
        loss = loss.masked_fill(weights == 0, 0.0)
    if loss.device.type == "cpu" and loss.dtype == weights.dtype:
        mean = torch.dot(loss, weights) / loss.shape[0]  # half the time of a product and a mean
    else:
        mean = (loss * weights).mean()
    return mean if isinstance(factor, float) and factor == 1.0 else mean * factor
