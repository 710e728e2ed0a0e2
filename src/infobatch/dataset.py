"""The face of the package: a data set in front, a sampler inside, ``update`` behind."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import get_worker_info
from torch.utils.data.dataloader import _BaseDataLoaderIter

from . import checks, methods
from .distributed import Ranks, agree, find, gather
from .errors import EpochError, InfoBatchWarning, InputError, MisalignedError, RankError, message
from .ledger import Pass, Where
from .looking import Look
from .method import Method
from .plan import Plan, ShardPlan
from .policies import Rounding, rule_of
from .sampler import PlanSampler
from .schedules import Moment
from .scorebook import UNSEEN, ScoreBook, mean
from .sharding import ShardBook, ShardPass, draw
from .telemetry import EpochReport, report, warn_near_bounds
from .views import FullView, View

Compensate = Literal["auto", "loss", "lr"]
"""What grows in the place of steps. "auto": the learning rate where ``infobatch.pace`` can grow it, else the loss."""


ORDER = "The order is InfoBatch(data, num_epochs, ratio, delta) and Pruned(data, method, num_epochs)."
STRAYS = 3
"""Passes without an update, in a run, that cannot be looks at a first batch any more."""


class Pruned(View):
    """A data set that shows each epoch only the samples a method keeps, and weighs their losses.

    >>> import torch, infobatch
    >>> data = torch.utils.data.TensorDataset(torch.randn(100, 3))
    >>> train = infobatch.Pruned(data, infobatch.methods.random(ratio=0.5), num_epochs=4)
    >>> for epoch in range(train.epoch, 4):
    ...     for (x,) in infobatch.DataLoader(train, batch_size=10):
    ...         loss = train.update(x.square().sum(1))
    >>> [report.kept for report in train.history]
    [100, 50, 50, 50]
    """

    def __init__(
        self,
        dataset: Any,
        method: Method | Any,
        num_epochs: int,
        *,
        seed: int = 0,
        compensate: Compensate = "auto",
        group: Any = None,
        shard_scores: bool = False,
    ) -> None:
        checks.check_dataset(dataset)
        checks.check_count("num_epochs", num_epochs, 1, ORDER)
        checks.check_count("seed", seed, 0, "Any will do; 0 is the default.")
        if isinstance(dataset, View):
            raise InputError(message("a plain data set", "one that is wrapped already", "Wrap it once."))
        if compensate not in ("auto", "loss", "lr"):
            remedy = "See infobatch.pace for what grows."
            raise InputError(message('compensate "auto", "loss" or "lr"', repr(compensate), remedy))
        if hasattr(method, "indices") and hasattr(method, "weights"):
            checks.check_selection(method, len(dataset))
            method = methods.static(method)
        if not isinstance(method, Method):
            raise InputError(
                message("a method", repr(method), "Take one from infobatch.methods, as methods.infobatch().")
            )
        checks.check_size(method.size, len(dataset), repr(method))
        method.check(num_epochs)
        if not isinstance(shard_scores, bool):
            raise InputError(message("shard_scores as True or False", repr(shard_scores), "False keeps one table."))
        if shard_scores:
            by_cuts = rule_of(method.policy) is not None and method.memory is None and not method.around
            checks.check_shardable(len(dataset), repr(method), by_cuts)
        super().__init__(dataset)
        self.method = method
        self.num_epochs = num_epochs
        self.seed = seed
        self._compensate: Compensate = compensate
        self.paced = False
        """Whether somebody looks after the learning rate: ``infobatch.pace``, or a loop of its own that says so."""
        self.at_begin: Callable[[], None] | None = None
        """Called when an epoch's plan is known and before its first batch: the learning rate grows there."""
        self.group = group
        """The process group that shares the data; None for the default one, if any."""
        self.shard_scores = shard_scores
        """Whether each rank holds its part of the scores alone."""
        self._ranks: Ranks | None = None
        self._book = ShardBook(len(dataset), find(group)) if shard_scores else ScoreBook(len(dataset))
        if isinstance(self._book, ScoreBook):
            self._book.keep(method.memory, method.needs & {"confidence"})
        self._look: Look | None = None
        """The look at those left out, while there is one."""
        self._epoch = 0
        self._plan: Plan | ShardPlan | None = None
        self._pass: Pass | None = None
        self._before = 0
        """How many samples of the running epoch had come back before this process took it up."""
        self._named = 0
        """How many samples came back by name; those counted on a device are in ``_book.recorded``."""
        self._begun = False
        """Whether some of the running epoch had come back on any rank before."""
        self._idle = 0
        """How many whole passes went by without a loss, in this epoch."""
        self._strays = 0
        """The same, in all epochs."""
        self._reports: list[EpochReport] = []
        self._warned = False
        self._unlooked = False
        """Whether it was said that a look at the left-out is missing."""
        self._sampler = PlanSampler(self._begin, self._length, lambda: (self.epoch, self._before + self._done()))

    # ---- what a training loop uses -----------------------------------------------------------------------

    @property
    def compensate(self) -> Literal["loss", "lr"]:
        """What grows when steps get fewer. A method with weights 1 asks for no growth, so by default it gets none."""
        if self._compensate == "auto":
            return "lr" if self.paced and self.method.unbiased else "loss"
        return self._compensate

    @property
    def loss_has_grown(self) -> bool:
        """Whether it is too late for "auto" to let the learning rate grow."""
        undecided = self._compensate == "auto" and not self.paced and self.method.unbiased
        running = self._pass is not None and self._plan is not None and self._plan.growth > 1
        return undecided and (running or any(report.growth > 1 for report in self._reports))

    @property
    def sampler(self) -> PlanSampler:
        """For ``torch.utils.data.DataLoader(train_data, sampler=train_data.sampler)``."""
        return self._sampler

    def update(
        self,
        loss: Tensor,
        indices: Tensor | None = None,
        *,
        score: Tensor | None = None,
        confidence: Tensor | None = None,
    ) -> Tensor:
        """Take one loss a sample; return the weighted mean to call ``backward`` on.

        Without ``indices`` the losses belong to the batch that has waited longest. With them they belong to those
        samples, and the order and look-ahead of the loader do not matter. ``score`` is recorded in place of the
        loss. ``confidence`` is the probability the model gives the right answer, for methods that need it.
        """
        checks.check_loss(loss)
        if score is not None:
            checks.check_score(score, loss)
        if self.method.needs:
            checks.check_brought(repr(self.method), self.method.needs, loss, confidence)
        if loss.device != self._book.device:
            self.to(loss.device)
        scores, correction = loss if score is None else score, 1.0
        if self.method.score == "batch":
            scores = scores.detach().mean().expand_as(scores)
        if indices is None:
            run = self._open_pass("losses")
            if self._named:
                raise MisalignedError(_BOTH)
            where = run.take(loss.shape[0])
            try:
                if isinstance(where, range):
                    weights = run.note(where, scores)
                else:
                    weights = self._book.note(where.to(loss.device, non_blocking=True), scores)
            except BaseException:
                run.put_back(where)
                raise
            if self._book_came:
                self._bring(run.indices[where.start : where.stop] if isinstance(where, range) else where, confidence)
            correction = run.correction(loss.shape[0])
        else:
            weights = self._weights_of(indices, loss)
            self._book.record(indices, scores)
            if self._book_came:
                self._bring(indices, confidence)
        mean = _weighted_mean(loss, weights)
        return mean if correction == 1.0 else mean * correction

    def hidden(self, batch_size: int, **loader: Any) -> Iterator[tuple[Any, Tensor]]:
        """The samples the last epoch left out, as (batch, indices), for a look without training.

        Call ``observe`` for each batch. For methods that want to know how the left-out fare; between two epochs.
        ``loader`` takes the other arguments of torch's DataLoader. With ranks each looks at its part, and all must.

        >>> import torch, infobatch
        >>> data = torch.utils.data.TensorDataset(torch.rand(40, 1))
        >>> train = infobatch.Pruned(data, infobatch.methods.kakurenbo(), num_epochs=4)
        >>> for (x,) in infobatch.DataLoader(train, batch_size=8):
        ...     loss = train.update(x.sum(1), confidence=1 - x.sum(1))
        >>> for (x,), indices in train.hidden(batch_size=8):
        ...     train.observe(x.sum(1), indices, confidence=1 - x.sum(1))
        """
        checks.check_count("batch_size", batch_size, 1, "As for training.")
        checks.check_look(loader)
        self._settle()
        if "hidden" not in self.method.needs:
            raise InputError(
                message("a method that wants a look at the left-out", repr(self.method), "Only those need it.")
            )
        if self._done() or self._before:
            raise MisalignedError(
                message("a look at the left-out between two epochs", "one inside an epoch", "Do it after the epoch.")
            )
        self._plan = None  # whom it keeps depends on what is seen now
        assert isinstance(self._book, ScoreBook)
        self._look = look = Look(self._book, self.method, self._meet_ranks(), self._epoch)
        try:
            yield from look.batches(self.dataset, batch_size, loader)
            look.close()
        finally:
            if self._look is look:
                look.forget()
                self._look = None

    def observe(self, loss: Tensor, indices: Tensor, *, confidence: Tensor | None = None) -> None:
        """How a sample that was left out fares; see ``hidden``. Nothing to call ``backward`` on."""
        checks.check_loss(loss)
        checks.check_indices(indices, loss)
        if self._look is None:
            raise MisalignedError(
                message("observe inside a loop over train_data.hidden()", "one outside", "See Pruned.hidden.")
            )
        if self.method.needs:
            checks.check_brought(repr(self.method), self.method.needs, loss, confidence)
        self._look.note(loss, indices, confidence)

    def skip(self, count: int | None = None) -> None:
        """Leave out the batch that waits (or its first ``count`` samples): it will get no loss."""
        if count is not None:
            checks.check_count("count", count, 1, "Leave it out to skip the whole batch.")
        run = self._open_pass("a skip")
        self._leave_out(run, run.drop(count))

    @property
    def epoch(self) -> int:
        """The epoch the next batch belongs to."""
        if self._alone:
            self._settle()
        return self._epoch + self._finished()

    def plan(self) -> Plan | ShardPlan:
        """The plan of the current epoch, or of the coming one once the last batch has had its update.

        With ``shard_scores`` its numbers alone; then asking for a new one is for all ranks or none.
        """
        self._settle()
        if self._look is not None:
            remedy = "Whom it keeps depends on what is seen there: go through train_data.hidden() to its end first."
            raise MisalignedError(message("no plan inside a look at the left-out", "a call for one", remedy))
        if self._plan is None:
            moment, book = Moment(self._epoch, self.num_epochs), self._book
            if isinstance(book, ShardBook):
                self._meet_ranks()
                drawn = draw(book, self.method, moment, self.seed)
                book.begin(drawn, self._scale(drawn))
                self._plan = drawn
            else:
                self._plan = plan = self.method.draw(book, moment, self.seed)
                book.begin(plan, self._scale(plan))
        return self._plan

    def to(self, device: torch.device | str) -> Pruned:
        """Move the scores. The first ``update`` does so, too; call this where that one is compiled or captured."""
        device = torch.device(device)
        self._book.to(device)
        if isinstance(self._plan, Plan):
            self._plan = self._plan.to(device)
        if self._pass is not None:
            self._pass.to(device)
        return self

    def full(self) -> FullView:
        """An unpruned view for passes that are no training."""
        return FullView(self.dataset, self.seed)

    # ---- what a person wants to know ---------------------------------------------------------------------

    @property
    def scores(self) -> Tensor:
        """A copy of the scores, one a sample; NaN where nothing is known yet. With ``shard_scores``, of ``owned``."""
        self._settle()
        return self._book.scores.clone()

    @property
    def owned(self) -> Tensor:
        """The samples whose scores this process holds, in the order of ``scores``."""
        book = self._book
        return book.samples() if isinstance(book, ShardBook) else torch.arange(book.size, device=book.device)

    @property
    def history(self) -> tuple[EpochReport, ...]:
        """One report for each epoch behind us; with ranks, up to the last one whose losses were exchanged."""
        if self._alone:
            self._settle()
        return tuple(self._reports)

    @property
    def progress(self) -> tuple[int, int, int]:
        """(epoch, samples of it done, samples of it in all) for the epoch the next batch belongs to.

        With ranks: of this rank's part, and (epoch, 0, 1) while the coming plan waits for the others' losses, or for
        a look at the left-out.
        """
        world = find(self.group).world
        if self._look is not None or (world > 1 and (self._plan is None or self._finished())):
            return self.epoch, 0, 1
        left, done = self.plan().kept - self._before, self._before
        if isinstance(self._book, ShardBook):
            left, done = max(self._book.rows), self.plan().kept - sum(self._book.rows)
        run, before = self._running, -(-done // world)
        return self._epoch, before + self._done(), before + (left if run is None else run.total)

    # ---- checkpoints -------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on from here, as plain tensors, numbers and text.

        The running plan is saved as drawn, not as a seed: it must be the same on another device, too, and
        random numbers are not. With ranks, for all of them or none: it brings their losses together. The result is
        the same on each, for any number of ranks to go on from. With ``shard_scores`` it is this rank's part, and all
        parts together are for any number of ranks to go on from.
        """
        if get_worker_info() is not None:
            return {}  # some loaders ask the copies in their workers, which know nothing
        self._settle()
        self._leave_out_doubtful()
        running: dict[str, Any] | None = None
        done, part, plan = 0, {}, self._plan
        if isinstance(self._book, ShardBook):
            ranks = self._book.ranks
            part = {"part": {"rank": ranks.rank, "world": ranks.world, "start": self._book.start}}
            if isinstance(plan, ShardPlan) and (self._begun or self._done()):
                done = self._book.seen()
                tables = {"level": _saved(self._book.level[:-1]), "fresh": _saved(self._book.fresh[:-1])}
                running = {**tables, **asdict(plan)}
        elif isinstance(plan, Plan) and (self._before or self._done()):
            self._hand_in()
            fresh = _saved(self._together("saves in"))
            if self._running is not None:  # parts of a batch that is not complete: they come again
                for where in self._running.unsure:
                    fresh[
                        where if isinstance(where, Tensor) else self._running.indices[where.start : where.stop].cpu()
                    ] = UNSEEN
            done = int(fresh.ne(UNSEEN).count_nonzero())
            table = None if bool((plan.table == 1).all()) else _saved(plan.table)
            came = {name: _saved(column) for name, column in self._came_together("saves in").items()}
            chosen = None if plan.chosen is None else _saved(plan.chosen)
            running = {
                "indices": _saved(plan.indices),
                "table": table,
                "chosen": chosen,
                "fresh": fresh,
                "came": came,
            }
        return {
            "format": checks.FORMAT,
            "size": self._book.size,
            "method": repr(self.method),
            "compensate": self.compensate,
            "device": self._book.device.type,
            "num_epochs": self.num_epochs,
            "seed": self.seed,
            "epoch": self._epoch,
            "planned": self._book.planned,
            "scores": _saved(self._book.scores),
            "memory": {name: _saved(column) for name, column in self._memory.items()},
            "reports": [asdict(report) for report in self._reports],
            "done": done,
            "running": running,
            **part,
        }

    def load_state_dict(self, state: dict[str, Any] | list[dict[str, Any]]) -> None:
        """Go on from a ``state_dict``: the same remaining samples, the same later plans.

        The seed comes with it; ``num_epochs`` stays as promised here. Checked as a whole before anything changes.
        With ``shard_scores``: the state this rank saved or, from any number of ranks, the list of all their states.
        """
        if get_worker_info() is not None:
            return
        book = self._book
        parts: list[dict[str, Any]] = []
        if isinstance(book, ShardBook):
            parts = state if isinstance(state, list) else [state]
            checks.check_parts(parts, book.size, repr(self.method), self._compensate, book.start, book.stop)
            state = parts[0]
        else:
            checks.check_state(state, book.size, repr(self.method), self._compensate, self._memory, self._book_came)
        assert isinstance(state, dict)
        running = state["running"]
        if self._pass is not None:
            self._pass.supersede()
        self.seed, self._epoch, self._compensate = state["seed"], state["epoch"], state["compensate"]
        self._plan, self._pass, self._before, self._named, self._idle = None, None, 0, 0, 0
        self._begun = False
        self._reports = [EpochReport(**report) for report in state["reports"]]
        self._ranks = None
        if state["device"] == "cuda" and torch.cuda.is_available():
            self.to("cuda")  # the coming plan is drawn where the uninterrupted run would draw it
        if isinstance(book, ShardBook):
            weights = book.load(parts)
            if running is not None:
                facts = {key: value for key, value in running.items() if key not in ("level", "fresh")}
                self._plan = drawn = ShardPlan(**{**facts, "weights": weights})
                book.weigh(drawn, self._scale(drawn))
                self._before, self._begun = book.seen(), True
            return
        book.load(state["scores"], state["planned"])
        for name, column in state["memory"].items():
            book.memory[name].copy_(column)
        device = book.device
        if running is not None:
            table = (
                torch.ones(1, dtype=torch.float32, device="cpu").expand(state["size"])
                if running["table"] is None
                else running["table"]
            )
            chosen = running.get("chosen")
            self._plan = plan = Plan(
                self._epoch,
                running["indices"].to(device, copy=True),
                table.to(device, copy=True),
                None if chosen is None else chosen.to(device, copy=True),
            )
            book.begin(plan, self._scale(plan))
            book.fresh.copy_(running["fresh"])
            for name, column in running["came"].items():
                book.came[name].copy_(column)
            self._before = book.seen()

    @property
    def _memory(self) -> dict[str, Tensor]:
        return self._book.memory if isinstance(self._book, ScoreBook) else {}

    @property
    def _book_came(self) -> dict[str, Tensor]:
        return self._book.came if isinstance(self._book, ScoreBook) else {}

    def _bring(self, indices: Tensor, confidence: Tensor | None) -> None:
        """Note what came beside the losses."""
        assert confidence is not None
        column = self._book_came["confidence"]
        column.scatter_(0, indices.to(column.device, non_blocking=True), confidence.detach().to(column.dtype))

    def _came_together(self, purpose: str) -> dict[str, Tensor]:
        """What came beside this epoch's losses, of all ranks."""
        run, came = self._running, self._book_came
        if run is None or run.ranks.world == 1:
            return came
        whole = {}
        for name, column in came.items():
            parts = column.index_select(0, run.indices)
            gathered = gather(run.ranks, parts, run.remaining.numel(), purpose, self._epoch)
            whole[name] = column.index_copy(0, run.remaining, gathered)
        return whole

    # ---- epochs ------------------------------------------------------------------------------------------

    @property
    def _alone(self) -> bool:
        """No ranks to talk to, so an epoch can be settled whenever somebody asks."""
        return self._ranks is None or self._ranks.world == 1

    @property
    def _running(self) -> Pass | None:
        """The latest pass, if it belongs to the running epoch."""
        return self._pass if self._pass is not None and self._pass.epoch == self._epoch else None

    def _is_running(self, run: Pass) -> bool:
        """Also where the epoch of that pass is through and nobody has asked since."""
        if not torch.compiler.is_compiling():
            self._settle()
        return run.epoch == self._epoch

    def _open_pass(self, came: str) -> Pass:
        run = self._running
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

    def _begin(self, loader: _BaseDataLoaderIter | None) -> Pass:
        """A pass begins. Called by the sampler at its first step."""
        ranks = self._meet_ranks(loader)
        self._settle()
        last = self._running
        if last is not None and self._done():
            last.check_end()
            self._close()
        elif last is not None and last.handed == last.size and not last.superseded:
            if last.whole or (self._idle and not last.carried):
                raise MisalignedError(
                    message(
                        "an update() for each batch",
                        f"a whole pass of {last.size} samples without one",
                        "Call update() in the loop; for passes that are no training use .full().",
                    )
                )
            self._idle += not last.carried  # or a look at the first batch: small sets are fetched whole at once
            self._strays += not last.carried
            if self._strays == STRAYS:
                warnings.warn(
                    f"{STRAYS} passes over the pruned data without an update, each of the kept samples alone: to "
                    "evaluate, load train_data.full()",
                    InfoBatchWarning,
                    stacklevel=2,
                )
        if self._epoch >= self.num_epochs:
            raise EpochError(
                message(
                    f"at most the num_epochs={self.num_epochs} promised",
                    f"a pass for epoch {self._epoch} (counted from 0)",
                    "Promise more: the last epochs run on full data, so pruning must know where the end is.",
                )
            )
        self._warn_of_looks()
        plan = self.plan()
        if not self._warned and (self.method.unbiased or self.compensate == "lr"):  # else no step goes further
            self._warned = warn_near_bounds(report(plan, self._book.scores, self._book.planned))
        if self.at_begin is not None:
            self.at_begin()
        elif plan.growth > 1 and self.compensate == "lr" and not self.paced:
            self.paced = True
            warnings.warn(
                "the learning rate is to grow in the place of the loss, and nothing makes it grow: "
                "wrap the scheduler (or the optimizer) in infobatch.pace",
                InfoBatchWarning,
                stacklevel=2,
            )
        run: Pass
        if isinstance(self._book, ShardBook):
            run = ShardPass(self._epoch, self._book, self.seed, self._sampler, loader, self._pass)
        else:
            remaining = self._book.unseen(plan.indices) if self._before else plan.indices
            run = Pass(self._epoch, remaining, self._sampler, loader, self._pass, ranks)
            run.open(self._book)
        if self._pass is not None:
            self._pass.supersede()
        self._pass = run
        if run.total == 0 and run.size:
            warnings.warn(
                f"epoch {self._epoch} trains nothing: with drop_last, {run.size} kept samples are less than a batch",
                InfoBatchWarning,
                stacklevel=2,
            )
        return run

    def _meet_ranks(self, loader: _BaseDataLoaderIter | None = None) -> Ranks:
        """The ranks as they are now; at first sight, make sure that all of them mean the same training."""
        ranks = find(self.group)
        known = self._book.ranks if isinstance(self._book, ShardBook) else self._ranks
        if known is not None and (ranks.rank, ranks.world) != (known.rank, known.world):
            raise RankError(
                message(
                    f"{known}, as in the passes before",
                    str(ranks),
                    "Ranks may change between processes: save a state_dict, restart, and load it.",
                )
            )
        if self._ranks is None:
            facts = {
                "length of the data set": self._book.size,
                "method": repr(self.method),
                "num_epochs": self.num_epochs,
                "seed": self.seed,
                "compensate": self.compensate,
                "batch size": getattr(getattr(loader, "_index_sampler", None), "batch_size", None),
                "shard_scores": isinstance(self._book, ShardBook),
                "epoch": self._epoch,
            }
            if isinstance(self._book, ShardBook):
                facts["number of samples planned so far"] = self._book.planned
            else:
                facts["number of samples done in it"] = self._before
                facts["mean of scores"] = repr(float(mean(self._book.scores)))
            agree(ranks, facts)
            self._ranks = ranks
        return ranks

    def _length(self) -> int:
        if self._pass is not None and not self._pass.over:
            return self._pass.size
        if isinstance(self._book, ShardBook):
            self.plan()
            return max(self._book.rows)
        return -(-(self.plan().kept - self._before) // find(self.group).world)

    def _done(self) -> int:
        """How many samples of the running epoch have come back to this process."""
        run = self._running
        return (run.taken if run is not None else 0) or self._named or int(self._book.recorded)

    def _finished(self) -> bool:
        """The last batch of the running epoch has had its update."""
        if self._plan is None:
            return False
        run = self._running
        if run is None and isinstance(self._plan, ShardPlan):
            return False  # who comes is known to the walk alone
        left = self._plan.kept - self._before if run is None else run.total
        return self._done() >= left or (run is not None and run.finished)

    def _settle(self) -> None:
        """Move on if the running epoch is finished. With ranks this is where they talk."""
        if self._finished():
            self._close()

    def _together(self, purpose: str) -> Tensor:
        """This epoch's losses of all ranks."""
        run, book = self._running, self._book
        assert isinstance(book, ScoreBook)
        if run is None or run.ranks.world == 1:
            return book.fresh
        parts = book.fresh.index_select(0, run.indices)
        if run.ghost is not None:
            parts[-1] = UNSEEN
        whole = gather(run.ranks, parts, run.remaining.numel(), purpose, self._epoch)
        return book.fresh.index_copy(0, run.remaining, whole)

    def _close(self) -> None:
        """The epoch is over: its losses become the scores."""
        plan = self._plan
        assert plan is not None
        run = self._running
        if run is None and find(self.group).world > 1:
            raise RankError(
                message(
                    "a pass over train_data.sampler, which shares a plan out to the ranks",
                    "losses of samples taken from plan() alone",
                    "Load with infobatch.DataLoader or sampler=train_data.sampler.",
                )
            )
        self._leave_out_doubtful()
        came = self._before + (0 if run is None else run.taken) + self._named + int(self._book.recorded)
        if run is not None:
            came -= run.ghosts_came(self._book)
        self._hand_in()
        try:
            checks.check_attribution(self._book, came, self._epoch)
        except MisalignedError:
            self._book.fresh.fill_(UNSEEN)  # none of these losses becomes a score, and the next epoch can go on
            self._next_epoch(run)
            raise
        if run is not None and run.ranks.world > 1 and isinstance(self._book, ScoreBook):
            self._book.fresh.copy_(self._together("closes"))
            for name, column in self._came_together("closes").items():
                self._book.came[name].copy_(column)
        now = report(plan, self._book.scores, self._book.planned)
        if isinstance(self._book, ScoreBook) and isinstance(plan, Plan):
            self._warn_of_confidences()
            self._book.remember(self.method.memory, plan)
        not_finite = self._book.merge()
        self._book.planned += plan.kept
        self._reports.append(replace(now, not_finite=not_finite))
        self._next_epoch(run)
        if not_finite:
            warnings.warn(
                f"epoch {plan.epoch}: {not_finite} of {plan.kept} losses were not finite; "
                "those samples keep the scores they had",
                InfoBatchWarning,
                stacklevel=2,
            )

    def _warn_of_confidences(self) -> None:
        """On a device nobody looked at them before."""
        odd = sum(checks.not_chances(column) for column in self._book_came.values())
        if odd:
            warnings.warn(
                f"epoch {self._epoch}: {odd} confidences were no probabilities; pass softmax, not logits",
                InfoBatchWarning,
                stacklevel=3,
            )

    def _warn_of_looks(self) -> None:
        """Some were left out, and nobody looked at them since."""
        if "hidden" not in self.method.needs or self._unlooked or self._before or self._done():
            return
        if bool((self._memory["held"] == 0).any()):
            self._unlooked = True
            warnings.warn(
                f"{self.method!r} wants a look at those it left out, after each epoch, and nobody took one: see "
                "Pruned.hidden",
                InfoBatchWarning,
                stacklevel=3,
            )

    def _next_epoch(self, run: Pass | None) -> None:
        self._epoch, self._plan, self._before, self._named, self._idle = self._epoch + 1, None, 0, 0, 0
        self._begun = False
        self._book.recorded.zero_()
        if run is not None:
            run.release()

    def _leave_out_doubtful(self) -> None:
        """Losses of a batch that never came whole: whose they are is not certain, so they must not become scores."""
        run = self._running
        if run is not None:
            while run.doubtful:
                self._leave_out(run, run.doubtful.pop())

    def _leave_out(self, run: Pass, where: Where) -> None:
        if isinstance(where, range):
            run.skip(where)
        else:
            self._book.skip(where.to(self._book.device, non_blocking=True))

    def _hand_in(self) -> None:
        if self._running is not None and isinstance(self._book, ScoreBook):
            self._running.hand_in(self._book)

    def _scale(self, plan: Plan | ShardPlan) -> float:
        """Under "lr" the weights have mean 1 over the plan, whatever they sum to before."""
        return 1.0 if self.compensate == "loss" else plan.kept / plan.weight_sum

    def _weights_of(self, indices: Tensor, loss: Tensor) -> Tensor:
        """Whether the caller may name these samples."""
        checks.check_indices(indices, loss)
        if self._pass is not None and self._pass.taken and self._is_running(self._pass):
            raise MisalignedError(_BOTH)
        if indices.device.type != "cpu" or torch.compiler.is_compiling():
            self._book.named(indices)  # counted where a captured graph counts, too
            return self._book.look_up(indices)  # a look at values would wait: the epoch's end has one
        self._warn_of_looks()
        self.plan()
        run = self._running
        weights = checks.check_members(indices, self._book, self._epoch, None if run is None else run.ghost)
        if isinstance(self._book, ShardBook):
            self._book.named(indices)
        else:
            self._named += loss.shape[0]
        return weights

    def __deepcopy__(self, memo: Any) -> Pruned:
        raise InputError(
            message("one owner of the scores", "a copy", "Make a new one and load the state_dict() of this one.")
        )

    def __copy__(self) -> Pruned:
        return self.__deepcopy__(None)

    def __reduce__(self) -> tuple[type[View], tuple[Any]]:
        return View, (self.dataset,)  # what a spawned worker needs; scores stay here, state_dict() carries them

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.method!r}, {len(self)} samples, epoch {self._epoch} of {self.num_epochs})"
        )


class InfoBatch(Pruned):
    """The paper's method around a data set; the arguments in the order of the poster.

    >>> import torch, infobatch
    >>> data = torch.utils.data.TensorDataset(torch.randn(100, 3))
    >>> train_data = infobatch.InfoBatch(data, 10, 0.5, 0.875)
    >>> loader = torch.utils.data.DataLoader(train_data, batch_size=20, sampler=train_data.sampler)
    >>> for (x,) in loader:
    ...     loss = train_data.update(x.square().sum(1))
    >>> train_data.plan().kept < 100
    True

    ``saving=0.4`` asks for 40 % of the whole run in place of a fixed threshold. ``rescale``, ``warmup`` and
    ``rounding`` are those of ``infobatch.methods.infobatch``. ``compensate`` says what grows when steps get fewer:
    ``"loss"``, as in the paper; ``"lr"``, the learning rate; by default the learning rate where ``infobatch.pace``
    can grow it, else the loss. ``shard_scores=True`` leaves each rank of the group its part of the scores and of
    the plan, for data sets that are too large for every rank to hold them; the process group must be initialised by
    then.
    """

    def __init__(
        self,
        dataset: Any,
        num_epochs: int,
        ratio: float = 0.5,
        delta: float = 0.875,
        *,
        seed: int = 0,
        saving: float | None = None,
        warmup: int = 0,
        rescale: bool = True,
        rounding: Rounding = "exact",
        compensate: Compensate = "auto",
        group: Any = None,
        shard_scores: bool = False,
    ) -> None:
        checks.check_count("num_epochs", num_epochs, 1, ORDER)  # before the ratio: the two are swapped most often
        if saving is None:
            method = methods.infobatch(ratio, delta, warmup=warmup, rescale=rescale, rounding=rounding)
        elif rescale is True and rounding == "exact":
            method = methods.saving(saving, delta, ratio=ratio, warmup=warmup)
        else:
            raise InputError(
                message(
                    "saving with exact, rescaled weights",
                    f"rescale={rescale!r}, rounding={rounding!r}",
                    "Leave these two at their defaults, or leave saving out.",
                )
            )
        super().__init__(
            dataset,
            method,
            num_epochs,
            seed=seed,
            compensate=compensate,
            group=group,
            shard_scores=shard_scores,
        )

    @classmethod
    def paper(
        cls,
        dataset: Any,
        num_epochs: int,
        ratio: float = 0.5,
        delta: float = 0.875,
        *,
        seed: int = 0,
        group: Any = None,
    ) -> InfoBatch:
        """The rule as published: the loss grows, and of m prunable samples int((1-r)m) stay, at weight 1/(1-r)."""
        return cls(dataset, num_epochs, ratio, delta, seed=seed, rounding="paper", compensate="loss", group=group)


_BOTH = message("indices with every update of a pass or with none", "both", "Choose one of the two.")


def _weighted_mean(loss: Tensor, weights: Tensor) -> Tensor:
    if loss.device.type == "cpu" and loss.dtype == weights.dtype:
        return torch.dot(loss, weights) / loss.shape[0]  # half the time of a product and a mean
    return (loss * weights).mean()


def _saved(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)
