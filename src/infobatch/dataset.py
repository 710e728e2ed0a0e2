"""The face of the package: a data set in front, a sampler inside, ``update`` behind."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.context import get_spawning_popen
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info
from torch.utils.data.dataloader import _BaseDataLoaderIter

from . import checks, methods
from .attribution.queue import Pass
from .attribution.sampler import PlanSampler
from .attribution.views import COPY, Copied, FullView, View
from .epoch.advice import Cautions, warn_of_odd
from .epoch.hidden import Look
from .epoch.running import BOTH, Course, in_graph
from .epoch.scores import ScoreBook, bring
from .epoch.summary import EpochReport
from .errors import EpochError, InputError, MisalignedError, RankError, message
from .growing import Growing, Pace
from .methods.channels import check_channels
from .methods.cuts import rule_of
from .methods.method import Method, check_method
from .methods.when import Moment
from .plan import Growth, Plan, ShardPlan
from .ranks.exchange import Ranks, find
from .ranks.shards import ShardBook, draw
from .state import checked, restore, state_of

ORDER = "The order is InfoBatch(data, num_epochs, ratio, delta) and Pruned(data, method, num_epochs)."


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
        compensate: Growth = "none",
        group: Any = None,
        shard_scores: bool = False,
    ) -> None:
        checks.check_dataset(dataset)
        num_epochs = checks.check_count("num_epochs", num_epochs, 1, ORDER)
        seed = checks.check_count("seed", seed, 0, "Any will do; 0 is the default.")
        if isinstance(dataset, View):
            twice = message("a plain data set", "one that is wrapped already", "Wrap it once.")
            raise InputError(COPY if isinstance(dataset, Copied) else twice)
        method = _fitting(method, len(dataset), num_epochs)
        growing = Growing(compensate, unbiased=method.unbiased)
        if not isinstance(shard_scores, bool):
            raise InputError(message("shard_scores as True or False", repr(shard_scores), "False keeps one table."))
        if shard_scores:
            by_cuts = rule_of(method.policy) is not None and method.memory is None and not method.around
            checks.check_shardable(len(dataset), repr(method), by_cuts)
        super().__init__(dataset)
        self.method = method
        self.num_epochs = num_epochs
        self.seed = seed
        self._growing = growing
        self.group = group
        """The process group that shares the data; None for the default one, if any."""
        self.shard_scores = shard_scores
        """Whether each rank holds its part of the scores alone."""
        self._book: ScoreBook | ShardBook
        if shard_scores:
            self._book = ShardBook(len(dataset), find(group))
        else:
            self._book = ScoreBook(len(dataset))
            self._book.keep(method.memory, method.channels)
        self._course = Course(self._book)
        self._latest: tuple[Tensor, float] | None = None
        """The weights of the batch that was updated last, and the correction of its mean."""
        self._look: Look | None = None
        """The look at those left out, while there is one."""
        self._reports: list[EpochReport] = []
        self._sampler = PlanSampler(self._begin, self._length, self._where)
        self._cautions = Cautions(method)
        self._cautions.of_the_end(num_epochs)

    # ---- what a training loop uses -----------------------------------------------------------------------

    @property
    def compensate(self) -> Growth:
        """What grows when steps get fewer: "none", the learning rate ("lr") or the "loss"."""
        return self._growing.what

    @property
    def paced(self) -> bool:
        """Whether somebody looks after the learning rate: ``infobatch.pace``, or a loop of its own that says so."""
        return self._growing.paced

    @paced.setter
    def paced(self, paced: bool) -> None:
        self._growing.paced = paced

    @property
    def paces(self) -> dict[Any, Pace]:
        """By optimizer: who makes its learning rate grow."""
        return self._growing.paces

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

        A short last batch of a pruned epoch counts for what it holds, and not as a whole one.
        """
        checks.check_loss(loss)
        if score is not None:
            checks.check_score(score, loss)
        channels = {} if confidence is None else {"confidence": confidence}
        if self.method.channels:
            check_channels(repr(self.method), self.method.channels, loss, channels)
        if loss.device != self._book.device:
            self.to(loss.device)
        scores, correction = loss if score is None else score, 1.0
        if self.method.score == "batch":
            scores = scores.detach().mean().expand_as(scores)
        compiling = torch.compiler.is_compiling()
        if indices is None:
            note = self._course.note
            if compiling:
                note = torch.compiler.disable(note)  # type: ignore[no-untyped-call]  # Python keeps the books
            weights, correction = note(scores, confidence)
        else:
            weights, correction = self._weights_of(indices, loss)
            self._book.record(indices, scores)
            bring(self._book.came, indices, confidence)
        self._latest = None if compiling else (weights, correction)
        return _weighted_mean(loss, weights, correction)

    @property
    def batch_weights(self) -> Tensor:
        """The weights of the losses that ``update`` took last, for optimizers that go over a batch again: SAM, LBFGS.

        >>> import torch, infobatch
        >>> train_data = infobatch.InfoBatch(torch.utils.data.TensorDataset(torch.rand(8)), num_epochs=3)
        >>> for (x,) in infobatch.DataLoader(train_data, batch_size=4):
        ...     loss = train_data.update(x)  # backward, and to the worst point nearby
        ...     again = (x * train_data.batch_weights).mean()  # backward there, and the step
        """
        if self._latest is None:
            remedy = "Ask after an update(), outside of torch.compile."
            raise MisalignedError(message("a batch that has had its update", "none", remedy))
        weights, correction = self._latest
        return weights * correction

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
        batch_size = checks.check_count("batch_size", batch_size, 1, "As for training.")
        checks.check_look(loader)
        self._settle()
        if not self.method.observes_hidden:
            raise InputError(
                message("a method that wants a look at the left-out", repr(self.method), "Only those need it.")
            )
        run, got = self._course.running, ""
        if self._course.done() or self._course.before:
            got = "one inside an epoch"
        elif run is not None and run.open:
            got = "one with a loader's iterator open"  # it has a plan that is not to be
        if got:
            remedy = "Take it after an epoch's last update and before the next iter(loader)."
            raise MisalignedError(message("a look at the left-out between two epochs", got, remedy))
        self._course.drop_plan()  # whom it keeps depends on what is seen now
        assert isinstance(self._book, ScoreBook)
        self._look = look = Look(self._book, self.method, self._meet_ranks(), self._course.epoch)
        try:
            yield from look.batches(self.dataset, batch_size, loader)
            odd = look.close()
            if self._reports:
                warn_of_odd(self._reports[-1].epoch, odd, look.size, "seen after it ")
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
        if self.method.channels:
            check_channels(repr(self.method), self.method.channels, loss, {"confidence": confidence})
        self._look.note(loss, indices, confidence)

    def skip(self, count: int | None = None) -> None:
        """Leave out the batch that waits (or its first ``count`` samples): it will get no loss."""
        if count is not None:
            count = checks.check_count("count", count, 1, "Leave it out to skip the whole batch.")
        run = self._course.opened("a skip")
        run.walk.skip(run.drop(count))

    @property
    def epoch(self) -> int:
        """The epoch the next batch belongs to."""
        if self._course.alone:
            self._settle()
        return self._course.epoch + self._course.finished()

    def plan(self) -> Plan | ShardPlan:
        """The plan of the current epoch, or of the coming one once the last batch has had its update.

        With ``shard_scores`` its numbers alone; then asking for a new one is for all ranks or none.
        """
        self._settle()
        if self._look is not None:
            remedy = "Whom it keeps depends on what is seen there: go through train_data.hidden() to its end first."
            raise MisalignedError(message("no plan inside a look at the left-out", "a call for one", remedy))
        course, book = self._course, self._book
        if course.plan is None:
            moment = Moment(course.epoch, self.num_epochs)
            if isinstance(book, ShardBook):
                self._meet_ranks()
                course.plan = draw(book, self.method, moment, self.seed)
            else:
                course.plan = self.method.draw(book, moment, self.seed)
            book.begin(course.plan, self._growing.scale(course.plan))  # type: ignore[arg-type]  # each kind has its own
        return course.plan

    def to(self, device: torch.device | str) -> Pruned:
        """Move the scores. The first ``update`` does so, too; call this where that one is compiled or captured."""
        self._course.to(torch.device(device))
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
        return self._book.samples()

    @property
    def history(self) -> tuple[EpochReport, ...]:
        """One report for each epoch behind us; with ranks, up to the last one whose losses were exchanged."""
        if self._course.alone:
            self._settle()
        return tuple(self._reports)

    @property
    def progress(self) -> tuple[int, int, int]:
        """(epoch, samples of it done, samples of it in all) for the epoch the next batch belongs to.

        With ranks: of this rank's part, and (epoch, 0, 1) while the coming plan waits for the others' losses, or for
        a look at the left-out.
        """
        world, course = find(self.group).world, self._course
        if self._look is not None or (world > 1 and (course.plan is None or course.finished())):
            return self.epoch, 0, 1
        self.plan()
        run, before = course.running, course.past(world)
        return course.epoch, before + course.done(), before + (course.left(world) if run is None else run.total)

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
        self._course.leave_out_doubtful()
        return state_of(
            self._course,
            method=self.method.terms,
            compensate=self.compensate,
            num_epochs=self.num_epochs,
            seed=self.seed,
            reports=self._reports,
        )

    def load_state_dict(self, state: dict[str, Any] | list[dict[str, Any]]) -> None:
        """Go on from a ``state_dict``: the same remaining samples, the same later plans.

        The seed comes with it; ``num_epochs`` stays as promised here. Checked as a whole before anything changes.
        With ``shard_scores``: the state this rank saved or, from any number of ranks, the list of all their states.
        """
        if get_worker_info() is not None:
            return
        parts = checked(self._course, state, self.method.terms, self.compensate)
        first = parts[0]
        self._course.restart(first["epoch"])
        self.seed, self._latest = first["seed"], None
        self._reports = [EpochReport(**report) for report in first["reports"]]
        if first["device"] == "cuda" and torch.cuda.is_available():
            self.to("cuda")  # the coming plan is drawn where the uninterrupted run would draw it
        restore(self._course, parts, self._growing.scale)

    # ---- epochs ------------------------------------------------------------------------------------------

    def _begin(self, loader: _BaseDataLoaderIter | None) -> Pass:
        """A pass begins. Called by the sampler at its first step."""
        checks.check_loaded(getattr(loader, "_dataset", None), self.dataset, self, self._book.size)
        course, ranks = self._course, self._meet_ranks(loader)
        self._settle()
        if course.running is not None and course.done():
            course.running.check_end()
            self._close()
        else:
            course.check_idle()
        if course.epoch >= self.num_epochs:
            raise EpochError(
                message(
                    f"at most the num_epochs={self.num_epochs} promised",
                    f"a pass for epoch {course.epoch} (counted from 0)",
                    "Promise more: the last epochs run on full data, so pruning must know where the end is. For "
                    "passes that are no training load train_data.full().",
                )
            )
        self._enter()
        return course.walk(self.seed, self._sampler, loader, ranks)

    def _enter(self, *, look: bool = True) -> None:
        """The first batch of an epoch, or of what is left of it, is coming: the rate of its steps is due.

        Without a ``look`` at values: a device would wait for one.
        """
        course, plan = self._course, self.plan()
        self._growing.begin()
        course.told = True
        self._cautions.of_rates(plan, self._growing)
        if look:
            self._cautions.of_bounds(plan, self._book, self._growing)
            if self.method.observes_hidden and not (course.before or course.done()):
                self._cautions.of_looks(self._book)

    def _meet_ranks(self, loader: _BaseDataLoaderIter | None = None) -> Ranks:
        """The ranks as they are now; at first sight, make sure that all of them mean the same training."""
        ranks = find(self.group)
        terms = {
            "method": self.method.terms,
            "num_epochs": self.num_epochs,
            "seed": self.seed,
            "compensate": self.compensate,
            "batch size": getattr(getattr(loader, "_index_sampler", None), "batch_size", None),
        }
        self._course.meet(ranks, terms)
        return ranks

    def _length(self) -> int:
        last = self._course.last
        if last is not None and not self._course.through():
            return last.size
        self.plan()
        return self._course.left(find(self.group).world)

    def _where(self) -> tuple[int, int]:
        """The epoch that the next batch belongs to, and how many samples of it have come back."""
        course = self._course
        return self.epoch, 0 if course.finished() else course.before + course.done()

    def _settle(self) -> None:
        """Move on if the running epoch is finished. With ranks this is where they talk."""
        if self._course.finished():
            self._close()

    def _close(self) -> None:
        """The epoch is over: its losses become the scores."""
        if self._course.running is None and find(self.group).world > 1:
            raise RankError(
                message(
                    "a pass over train_data.sampler, which shares a plan out to the ranks",
                    "losses of samples taken from plan() alone",
                    "Load with infobatch.DataLoader or sampler=train_data.sampler.",
                )
            )
        course = self._course
        if course.plan is not None and course.done():
            self._cautions.of_bounds(course.plan, self._book, self._growing)
            if not course.told:
                self._cautions.of_rates(course.plan, self._growing)
                self._cautions.of_sleep(course.plan, self._growing)
        done, amiss = course.close(self.method.memory)
        if self._latest is not None:  # which holds the weights of the whole epoch
            with torch.inference_mode(False):
                self._latest = self._latest[0].clone(), self._latest[1]
        self._reports.append(done)
        if amiss is not None:
            raise amiss
        self._cautions.of_rise(done, self._book, self._growing)
        warn_of_odd(done.epoch, done.not_finite, done.kept)
        if course.epoch >= self.num_epochs:
            self._growing.begin()

    def _weights_of(self, indices: Tensor, loss: Tensor) -> tuple[Tensor, float]:
        """The weights of samples that the caller names, and the correction of their mean; an error where they cannot
        be named.
        """
        checks.check_indices(indices, loss)
        last = self._course.last
        if last is not None and last.taken:
            if not torch.compiler.is_compiling():
                self._settle()  # the epoch of that pass may be through, and nobody has asked since
            if last.epoch == self._course.epoch:
                raise MisalignedError(BOTH)
        seen = not in_graph(indices)
        looked_at = seen and indices.device.type == "cpu"  # elsewhere that would wait: the epoch's end has a look
        if looked_at:
            self.plan()
        if seen and not self._course.told:  # no pass over the sampler has begun: these samples are from plan()
            self._enter(look=looked_at)
        if looked_at:
            return self._course.count_named(indices)
        return self._course.count_unseen(indices)

    def __deepcopy__(self, memo: Any) -> Pruned:
        raise InputError(
            message("one owner of the scores", "a copy", "Make a new one and load the state_dict() of this one.")
        )

    def __copy__(self) -> Pruned:
        return self.__deepcopy__(None)

    def __reduce__(self) -> tuple[type[Copied], tuple[Any]]:
        if get_spawning_popen() is None:
            remedy = "Save its state_dict(), and load that into a new one around the same data."
            raise InputError(message("one owner of the scores", "a pickled copy, which has none", remedy))
        return Copied, (self.dataset,)  # what a spawned worker needs

    def __repr__(self) -> str:
        epoch = self._course.epoch + self._course.finished()  # without closing it
        about = f"{len(self)} samples, epoch {epoch} of {self.num_epochs}"
        return f"{type(self).__name__}({self.method!r}, {about})"


def _fitting(given: Method | Any, size: int, num_epochs: int) -> Method:
    """The method, or a selection in its place, if it can do what it promises for so many samples and epochs."""
    if hasattr(given, "indices") and hasattr(given, "weights"):
        checks.check_selection(given, size)
        given = methods.static(given)
    method = check_method(given)
    checks.check_size(method.size, size, repr(method))
    method.check_epochs(num_epochs, method.schedule)
    return method


def _weighted_mean(loss: Tensor, weights: Tensor, correction: float) -> Tensor:
    if loss.device.type == "cpu" and loss.dtype == weights.dtype:
        mean = torch.dot(loss, weights) / loss.shape[0]  # half the time of a product and a mean
    else:
        mean = (loss * weights).mean()
    return mean if correction == 1.0 else mean * correction
