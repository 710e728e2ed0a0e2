"""The course of training: which epoch runs, its plan, the pass over it, and what has come back so far."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .. import checks
from ..attribution.queue import Pass
from ..attribution.stock_loader import Asker
from ..errors import MisalignedError, RankError, message, warn
from ..methods.channels import CHANNELS
from ..methods.cuts import mean_score as mean
from ..methods.memory import Memory
from ..plan import Plan, ShardPlan
from ..ranks.exchange import Ranks, agree, gather
from ..ranks.shards import ShardBook, ShardWalk
from .scores import UNSEEN, ScoreBook, bring
from .slice import PlanWalk, Walk
from .summary import EpochReport, report

BOTH = message("indices with every update of a pass or with none", "both", "Choose one of the two.")
STRAYS = 3
"""Passes without an update, in a run, that cannot be looks at a first batch any more."""


class Course:
    """The running epoch. Who owns this says when a pass begins and when an epoch is to be closed."""

    def __init__(self, book: ScoreBook | ShardBook) -> None:
        self.book = book
        self.epoch = 0
        self.plan: Plan | ShardPlan | None = None
        self.last: Pass | None = None
        """The latest pass, of this epoch or of one before."""
        self.ranks: Ranks | None = None
        """Who shares it, once they have met."""
        self.before = 0
        """How many samples of the epoch had come back before this process took it up."""
        self.named = 0
        """How many samples came back by name, as far as Python saw; what graphs saw is in ``book.recorded``."""
        self.ask_book = isinstance(book, ShardBook)
        """Whether the book counts those that come back by name: Python cannot in a graph, nor tell whose they are."""
        self.begun = False
        """Whether some of the epoch had come back on any rank before."""
        self.told = False
        """Whether who makes the learning rate grow knows that the epoch begins."""
        self.seen = 0
        """How many losses the largest update of this epoch brought, all ranks together; 0 before the first."""
        self.usual = 0
        """The same of the epoch before."""
        self.idle = 0
        """How many whole passes went by without a loss, in this epoch."""
        self.strays = 0
        """The same, in all epochs."""

    # ---- how far it is -----------------------------------------------------------------------------------

    @property
    def running(self) -> Pass | None:
        """The latest pass, if it belongs to the running epoch."""
        last = self.last
        return last if last is not None and last.epoch == self.epoch and not last.void else None

    def done(self) -> int:
        """How many samples of the running epoch have come back to this process."""
        run = self.running
        if run is not None and run.taken:
            return run.taken  # then none came by name, and the device need not be asked
        return self.named + (int(self.book.recorded) if self.ask_book else 0)

    def finished(self) -> bool:
        """The last batch of the running epoch has had its update."""
        if self.plan is None:
            return False
        run = self.running
        if run is None and isinstance(self.plan, ShardPlan):
            return False  # who comes is known to the walk alone
        left = self.plan.kept - self.before if run is None else run.total
        done = self.done()
        if run is None:
            return done >= left
        return done >= left or run.finished or (run.exhausted and 0 < run.brought <= done)  # a sampler may drop some

    def left(self, world: int) -> int:
        """How many samples the next pass over the plan has for one of ``world`` ranks, ghosts included."""
        if isinstance(self.book, ShardBook):
            return max(self.book.rows)
        assert self.plan is not None
        return -(-(self.plan.kept - self.before) // world)

    def past(self, world: int) -> int:
        """How many of the plan's samples each rank had before that pass: of all ranks, in equal parts."""
        assert self.plan is not None
        done = self.plan.kept - sum(self.book.rows) if isinstance(self.book, ShardBook) else self.before
        return -(-done // world)

    def resumed(self, *, persistent: bool) -> bool:
        """Whether another process began the epoch that the next pass takes up; ``persistent``: or any before it."""
        if self.last is not None:
            return False
        finished = self.finished()
        return (bool(self.before) and not finished) or (persistent and self.epoch + finished > 0)

    def through(self) -> bool:
        """Nobody walks the latest pass any more, as far as that can be seen: a length is of what comes next.

        Persistent workers keep its iterator, and samples that come back by name are not counted there.
        """
        last = self.last
        if last is None or last.over or last.void:
            return True
        return last.asker.persistent and not last.carried and (self.running is None or self.finished())

    # ---- ranks -------------------------------------------------------------------------------------------

    @property
    def alone(self) -> bool:
        """No ranks to talk to, so an epoch can be closed whenever somebody asks."""
        return self.ranks is None or self.ranks.world == 1

    def meet(self, ranks: Ranks, terms: dict[str, Any]) -> None:
        """These share it from now on, if they share the terms of training, too."""
        book = self.book
        known = book.ranks if isinstance(book, ShardBook) else self.ranks
        if known is not None and (ranks.rank, ranks.world) != (known.rank, known.world):
            raise RankError(
                message(
                    f"{known}, as in the passes before",
                    str(ranks),
                    "Ranks may change between processes: save a state_dict, restart, and load it.",
                )
            )
        if self.ranks is not None:
            return
        facts = {
            "length of the data set": book.size,
            **terms,
            "shard_scores": isinstance(book, ShardBook),
            "epoch": self.epoch,
        }
        if isinstance(book, ShardBook):
            facts["number of samples planned so far"] = book.planned
        else:
            facts["number of samples done in it"] = self.before
            facts["mean of scores"] = repr(mean(book.scores))
        agree(ranks, facts)
        self.ranks = ranks

    # ---- a pass ------------------------------------------------------------------------------------------

    def check_idle(self) -> None:
        """No loss has come in this epoch: was the last pass a look at a first batch, or a whole one?"""
        last = self.running
        if last is None or last.handed != last.size or last.superseded:
            return
        if last.whole or (self.idle and not last.carried):
            raise MisalignedError(
                message(
                    "an update() for each batch",
                    f"a whole pass of {last.size} samples without one",
                    "Call update() in the loop; for passes that are no training use .full().",
                )
            )
        self.idle += not last.carried  # or a look at the first batch: small sets are fetched whole at once
        self.strays += not last.carried
        if self.strays == STRAYS:
            warn(
                f"{STRAYS} passes over the pruned data without an update, each of the kept samples alone: to "
                "evaluate, load train_data.full()"
            )

    def walk(self, seed: int, sampler: Sampler[int], loader: _BaseDataLoaderIter | None, ranks: Ranks) -> Pass:
        """Begin a pass over what remains of the plan."""
        book, plan = self.book, self.plan
        way: Walk
        if isinstance(book, ShardBook):
            way = ShardWalk(self.epoch, book, seed)
        else:
            assert isinstance(plan, Plan)
            way = PlanWalk(book.unseen(plan.indices) if self.before else plan.indices, ranks, book)
        run = Pass(self.epoch, way, Asker(loader, sampler), self.last)
        if self.last is not None:
            self.last.supersede()
        self.last = run
        if run.total == 0 and run.size:
            warn(f"epoch {self.epoch} trains nothing: with drop_last, {run.size} kept samples are less than a batch")
        return run

    def opened(self, came: str) -> Pass:
        """The pass that waits for what came."""
        run = self.running
        if run is None:
            raise MisalignedError(
                message(
                    "a batch from train_data's loader that waits for its losses",
                    f"{came} without one",
                    "Load with infobatch.DataLoader or sampler=train_data.sampler (no DistributedSampler: ours "
                    "shares out to ranks, too), and update() each batch once.",
                )
            )
        return run

    # ---- what comes back ---------------------------------------------------------------------------------

    def note(self, scores: Tensor, confidence: Tensor | None) -> tuple[Tensor, float]:
        """Scores of the batch that has waited longest. Returns its weights, and the correction of its mean."""
        run, count = self.opened("losses"), scores.shape[0]
        if self.named:
            raise MisalignedError(BOTH)
        where = run.take(count)
        try:
            weights = run.walk.note(where, scores)
        except BaseException:
            run.put_back(where)
            raise
        run.walk.took(where)
        if self.book.came:
            assert isinstance(run.walk, PlanWalk)
            bring(self.book.came, run.walk.named(where), confidence)
        share = self._share(count, last=run.taken >= run.total, of=run.of)
        return weights, run.walk.correction(count, run.taken) if share is None else share

    def count_named(self, indices: Tensor) -> tuple[Tensor, float]:
        """Samples that the caller names. As ``note``; looks at values, so on the CPU only."""
        run = self.running
        weights = checks.check_members(indices, self.book, self.epoch, None if run is None else run.walk.ghost)
        return weights, self._count(indices)

    def count_unseen(self, indices: Tensor) -> tuple[Tensor, float]:
        """Samples that the caller names, on a device or in a graph: no look at values, and no wait for them."""
        if in_graph(indices):
            self.ask_book = True
        correction = self._count(indices)
        return self.book.look_up(indices), correction

    def _count(self, indices: Tensor) -> float:
        count = indices.numel()
        if self.ask_book:
            self.book.named(indices)
        else:
            self.named += count
        if torch.compiler.is_compiling():
            return 1.0  # one graph is for all sizes, and is not told which is the last
        if self.ask_book and indices.device.type != "cpu":  # which is not asked how many came: graphs have whole ones
            short = self._everyones(count) < (self.seen or self.usual)
            return self._share(count, last=short and not in_graph(indices)) or 1.0
        return self._share(count, last=self.finished()) or 1.0

    def _share(self, count: int, *, last: bool, of: int = 0) -> float | None:
        """What lets each sample of a pruned epoch count alike: an update's losses, over those of a whole one.

        Such epochs have a short batch of any size. As the mean of its losses, one sample would step as far as a
        whole batch, and that kicks. None in full epochs, which are as without pruning, and in those of one batch.
        ``of``: how many the loader's batch has, where that is known, since an update may bring a part of it.
        """
        plan = self.plan
        everyone, batch = self._everyones(count), self._everyones(of or count)
        if everyone == self.seen >= self.usual and plan is not None and batch < plan.kept:
            return None if plan.kept == plan.size else 1.0  # a whole one again, as nearly always
        run = self.running
        whole = self._whole(run, count, of=of, last=last)
        if not last or everyone >= (self.seen or self.usual):
            self.seen = max(self.seen, everyone)
        if plan is None or plan.kept == plan.size:  # a graph may be captured before there is a plan
            return None
        in_one = batch >= plan.kept and (run is None or run.size <= (of or count))
        return None if in_one else everyone / whole

    def _whole(self, run: Pass | None, count: int, *, of: int, last: bool) -> int:
        """How many losses a whole update brings."""
        loaded = self._everyones(run.asker.batch_size) if run is not None and run.asker.sized else 0
        taken = 0 if run is None else run.taken
        come, unknown = self.before + self._everyones(taken + self.named), self.ask_book and not taken
        return whole_update(
            self._everyones(count),
            self.seen,
            self.usual,
            loaded,
            first=not self.seen if unknown else come <= (loaded or self._everyones(of)),
            entire=count == of if of else None,
            last=last,
        )

    def _everyones(self, count: int) -> int:
        """So many on each rank."""
        return count * (1 if self.ranks is None else self.ranks.world)

    def leave_out_doubtful(self) -> None:
        """Losses of a batch that never came whole: whose they are is not certain, so they must not become scores."""
        run = self.running
        if run is not None:
            while run.doubtful:
                run.walk.skip(run.doubtful.pop())

    def hand_in(self) -> None:
        if self.running is not None:
            self.running.walk.hand_in()

    def _shared(self) -> PlanWalk | None:
        """The walk of the running epoch, where other ranks have parts of its plan whose losses belong here, too."""
        walk = None if self.running is None else self.running.walk
        return walk if isinstance(walk, PlanWalk) and walk.ranks.world > 1 else None

    def losses_of_all(self, purpose: str, *, sure: bool = False) -> Tensor:
        """This epoch's losses of all ranks; ``sure``: without those of batches that are not complete."""
        walk, run, fresh = self._shared(), self.running, self.book.fresh
        if sure and run is not None and run.unsure:
            assert isinstance(run.walk, PlanWalk)
            fresh = fresh.index_fill(
                0, torch.cat([run.walk.named(where).to(fresh.device) for where in run.unsure]), UNSEEN
            )
        if walk is None:
            return fresh
        parts = fresh.index_select(0, walk.indices)
        if walk.ghost is not None:
            parts[-1] = UNSEEN
        return self._gathered(walk, fresh, parts, purpose)

    def came_of_all(self, purpose: str) -> dict[str, Tensor]:
        """What came beside this epoch's losses, of all ranks."""
        walk = self._shared()
        if walk is None:
            return self.book.came
        return {
            name: self._gathered(walk, column, column.index_select(0, walk.indices), purpose)
            for name, column in self.book.came.items()
        }

    def _gathered(self, walk: PlanWalk, column: Tensor, parts: Tensor, purpose: str) -> Tensor:
        whole = gather(walk.ranks, parts, walk.remaining.numel(), purpose, self.epoch)
        return column.index_copy(0, walk.remaining, whole)

    # ---- the end of an epoch -----------------------------------------------------------------------------

    def close(self, memory: Memory | None) -> tuple[EpochReport, MisalignedError | None]:
        """The epoch is over: its losses become the scores, and the next one is due. With ranks, they talk here.

        Where they cannot be told apart none does, and why comes with the report: the next epoch can go on.
        """
        plan, run, book = self.plan, self.running, self.book
        assert plan is not None
        self.leave_out_doubtful()
        came = self.before + (0 if run is None else run.taken) + self.named + int(book.recorded)
        if run is not None:
            came -= run.walk.ghosts_came(run.taken)
        self.hand_in()
        now = report(plan, book.scores, book.planned)
        amiss: MisalignedError | None = None
        try:
            checks.check_attribution(book, came, self.epoch)
        except MisalignedError as error:
            amiss = error
            book.fresh.fill_(UNSEEN)
        else:
            now = replace(now, not_finite=self._take_in(plan, memory))
        book.planned += plan.kept
        self._next(run)
        return now, amiss

    def _take_in(self, plan: Plan | ShardPlan, memory: Memory | None) -> int:
        """This epoch's losses, of all ranks, become the scores. Returns how many were not finite."""
        book = self.book
        if self._shared() is not None:
            book.fresh.copy_(self.losses_of_all("closes"))
            for name, column in self.came_of_all("closes").items():
                book.came[name].copy_(column)
        if isinstance(book, ScoreBook) and isinstance(plan, Plan):
            self._warn_of_confidences()
            book.remember(memory, plan)
        return book.merge()

    def _warn_of_confidences(self) -> None:
        """On a device nobody looked at them before."""
        odd = sum(CHANNELS[name].count_outside(column) for name, column in self.book.came.items())
        if odd:
            warn(f"epoch {self.epoch}: {odd} confidences were no probabilities; pass softmax, not logits")

    def _next(self, run: Pass | None) -> None:
        self._stand_before(self.epoch + 1)
        self.book.recorded.zero_()
        if run is not None:
            run.walk.release()

    def drop_plan(self) -> None:
        """Whom the coming epoch keeps is open again; a look at its first batch was at what is not to be."""
        if self.running is not None:
            self.running.supersede()
            self.running.void = True
        self.plan, self.told = None, False

    def restart(self, epoch: int) -> None:
        """Go on from here, whatever ran."""
        if self.last is not None:
            self.last.supersede()
        self._stand_before(epoch)
        self.last = self.ranks = None

    def _stand_before(self, epoch: int) -> None:
        self.epoch, self.plan = epoch, None
        self.begun = self.told = False
        self.before = self.named = self.idle = 0
        self.usual, self.seen = self.seen or self.usual, 0

    def to(self, device: torch.device) -> None:
        self.book.to(device)
        if isinstance(self.plan, Plan):
            self.plan = self.plan.to(device)
        if self.last is not None:
            self.last.walk.to(device)


def whole_update(
    everyone: int, seen: int, usual: int, loaded: int, *, first: bool, entire: bool | None, last: bool
) -> int:
    """How many losses a whole update brings, where this one brings those of ``everyone``.

    As many as the largest that was ``seen`` in the epoch. While its ``first`` batch comes in parts, the largest of
    them may be still to come: then as many as was ``usual`` in the epoch before. (Parts that have become smaller
    since are taken for short ones, in that one batch.) Where an ``entire`` batch that is short comes first of all, as
    many as the loader's have, ``loaded``. Where batches may be of any size (``loaded`` is 0) none is short but the
    last.
    """
    if entire is False or (entire is None and everyone < loaded):
        return max(seen, usual if first else 0, everyone)
    if not loaded:
        return max(seen or usual, everyone) if last else everyone
    return max(seen or min(usual or loaded, loaded), everyone)


def in_graph(indices: Tensor) -> bool:
    """Whether this is a rehearsal: Python sees it once, and a graph does it ever after."""
    return torch.compiler.is_compiling() or (indices.is_cuda and torch.cuda.is_current_stream_capturing())
