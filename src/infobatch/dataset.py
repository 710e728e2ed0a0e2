"""``Pruned``: the wrapped data set, its sampler, and ``update``, which takes back the losses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info
from torch.utils.data.dataloader import _BaseDataLoaderIter

from . import checks
from .attribution.counted import Counted, PlanSampler, has_new_iterator
from .attribution.views import COPY, Copied, FullView, Owner, View, locking
from .epoch.advice import Advice, warn_not_finite
from .epoch.hidden import HiddenPass
from .epoch.running import BOTH, EpochListener, RunningEpoch, is_in_graph, weighted_mean
from .epoch.scores import ScoreTable
from .epoch.slice import choose_scores
from .errors import InputError, MisalignedError, message
from .methods.channels import check_channels
from .methods.method import Method, Moment
from .methods.rules.fixed import fit_method
from .plan import Compensation, EpochSummary, PlanNumbers
from .ranks.exchange import Ranks, find
from .state import make_scores, make_state, restore


class Pruned(Owner):
    """A data set that yields in each epoch only the samples that the method keeps, and weights their losses.

    Args:
        dataset: A map-style data set.
        method: One of ``infobatch.methods``, or a selection of ``infobatch.selection``.
        num_epochs: The number of epochs of the whole run, which decides when pruning ends.
        seed: Plans are a function of the scores, the epoch and this seed.
        compensate: "none", or "loss" to let the loss of a pruned epoch grow by |D|/|S| as in the paper.
        group: The process group that trains together; None for the default one, if any.
        shard_scores: Keep only a shard of the scores on each rank. The process group must be initialized first.
        in_batch_loss: Whether a loss depends on the other samples of its batch, as contrastive losses do. Then a batch
            shorter than the others gives no scores, because all of its losses are smaller.

    Raises:
        InputError: If an argument cannot be right, or the method does not fit the data or the number of epochs.
        RankError: If ``shard_scores`` finds no process group although the process was launched as one of several.

    >>> import infobatch
    >>> train_data = infobatch.Pruned(range(100), infobatch.methods.random(ratio=0.5), num_epochs=8)
    >>> for epoch in range(train_data.epoch, 8):
    ...     for x in infobatch.DataLoader(train_data, batch_size=10):
    ...         loss = train_data.update(x / 100)
    >>> [summary.kept for summary in train_data.history]
    [100, 50, 50, 50, 50, 50, 50, 100]
    """

    OWN = View.OWN | {"method", "num_epochs", "seed", "compensate", "group", "shard_scores", "in_batch_loss"}
    OWN |= {"listeners", "_scores", "_epoch", "_hidden", "_summaries", "_sampler", "_advice"}

    def __init__(
        self,
        dataset: Any,
        method: Method | Any,
        num_epochs: int,
        *,
        seed: int = 0,
        compensate: Compensation = "none",
        group: Any = None,
        shard_scores: bool = False,
        in_batch_loss: bool = False,
    ) -> None:
        checks.check_dataset(dataset)
        num_epochs = checks.check_epochs(num_epochs)
        seed = checks.check_count("seed", seed, 0, "Any value will do; 0 is the default.")
        if isinstance(dataset, View):
            twice = message("a plain data set", "one that is already wrapped", "Wrap it only once.")
            raise InputError(COPY if isinstance(dataset, Copied) else twice)
        method = fit_method(method, len(dataset), num_epochs)
        checks.check_options(compensate, shard_scores)
        scores = make_scores(len(dataset), method, group, shard=shard_scores)
        super().__init__(dataset)
        self.method = method
        self.num_epochs = num_epochs
        self.seed = seed
        self.compensate = compensate
        self.group = group
        self.shard_scores = shard_scores
        self.in_batch_loss = in_batch_loss
        self.listeners: dict[Any, EpochListener] = {}  # by optimizer: what is called when an epoch begins
        self._scores = scores
        self._epoch = RunningEpoch(scores)
        self._hidden: HiddenPass | None = None
        self._summaries: list[EpochSummary] = []
        self._sampler = PlanSampler(self._begin_pass, self._length, self._position)
        self._advice = Advice(method, loss_grows=compensate == "loss" and method.unbiased)
        self._advice.check_length(num_epochs)

    # ---- the training loop -------------------------------------------------------------------------------
    @property
    def sampler(self) -> PlanSampler:
        """The sampler for ``torch.utils.data.DataLoader(train_data, sampler=train_data.sampler)``."""
        return self._sampler

    @locking
    def update(
        self, loss: Tensor, indices: Tensor | None = None, *, score: Tensor | None = None, **channels: Tensor | None
    ) -> Tensor:
        """Record one loss per sample, and return the weighted mean to call ``backward`` on.

        Each batch needs one call: in a loop that leaves a batch out with ``continue``, call ``skip`` before it. A short
        last batch of a pruned epoch counts in proportion to its size, so that all samples count alike.

        Args:
            loss: The losses of a whole batch, shape [batch], as from a criterion with ``reduction="none"``.
            indices: The samples they belong to; without them, the oldest batch still without losses. With them, the
                order of the loader does not matter, and a batch may come in parts.
            score: What to record instead of the loss. If it is NaN and the loss is finite, nothing is known of this
                sample, and it keeps the score it had. ``infobatch.per_sample`` returns such scores.
            channels: What some methods need with every loss, such as ``confidence``; see ``methods.channels``.

        Returns:
            A scalar: the mean of the losses, each times its weight.

        Raises:
            InputError: If an argument has the wrong shape, type or device.
            MisalignedError: If the losses cannot be shown to belong to the waiting batch.

        >>> import infobatch
        >>> train_data = infobatch.InfoBatch(range(8), num_epochs=8)
        >>> for x in infobatch.DataLoader(train_data, batch_size=4):
        ...     loss = train_data.update(x / 8)  # then backward, and the optimizer's step
        """
        checks.check_loss(loss)
        if not torch.is_grad_enabled():
            checks.check_grad_mode(loss)
        if score is not None:
            checks.check_score(score, loss)
        if self.in_batch_loss and self._epoch.is_short(loss.shape[0]):
            score = torch.full_like(loss, torch.nan)
        given = check_channels(self.method, loss, channels) if channels or self.method.channels else {}
        epoch = self._epoch
        if loss.device != epoch.device:
            self.to(loss.device)
        kind = self.method.score
        scores = loss if kind == "loss" and score is None else choose_scores(loss, score, kind)
        compiling = torch.compiler.is_compiling()
        if indices is None:
            note = torch.compiler.disable(epoch.note) if compiling else epoch.note  # type: ignore[no-untyped-call]
            weights, factor = note(scores, given)
        else:
            weights, factor = self._note_named(indices, loss, scores, given)
        mean = weighted_mean(loss, weights, factor, has_ghosts=not compiling and epoch.has_ghosts)
        epoch.latest = None if compiling else (weights, factor)
        if not (compiling or epoch.had_backward):
            epoch.watch_backward(mean)
        if not (compiling or epoch.is_alone):
            self._settle_together()
        return mean

    @property
    def batch_weights(self) -> Tensor:
        """The weights of the last ``update``, for optimizers that evaluate a batch twice: SAM, LBFGS.

        >>> import infobatch
        >>> train_data = infobatch.InfoBatch(range(8), num_epochs=8)
        >>> for x in infobatch.DataLoader(train_data, batch_size=4):
        ...     loss = train_data.update(x / 8)  # backward, and the step to the worst point nearby
        ...     again = (x / 8 * train_data.batch_weights).mean()  # backward there, and the optimizer's step
        """
        return self._epoch.latest_weights()

    @property
    def batch_indices(self) -> Tensor:
        """The indices of the batch that was delivered last, on the CPU: what ``update`` needs for parts of a batch.

        >>> import infobatch
        >>> train_data = infobatch.InfoBatch(range(8), num_epochs=8)
        >>> for x in infobatch.DataLoader(train_data, batch_size=4):
        ...     for part, indices in zip(x.split(2), train_data.batch_indices.split(2)):
        ...         loss = train_data.update(part / 8, indices)
        """
        return self._epoch.expect("a call for indices").newest()

    def skip(self) -> None:
        """Leave out the oldest batch still without losses, as before ``continue``: its samples keep their scores.

        Raises:
            MisalignedError: If no batch waits, or updates have indices: there leave a batch out without it.

        >>> import infobatch
        >>> train_data = infobatch.InfoBatch(range(8), num_epochs=8)
        >>> for x in infobatch.DataLoader(train_data, batch_size=4):
        ...     train_data.skip()
        ...     print(train_data.progress)
        (0, 4, 8)
        (1, 0, 8)
        """
        self._epoch.skip()
        self._settle_together()

    def hidden(self, batch_size: int, **loader: Any) -> Iterator[tuple[Any, Tensor]]:
        """Yield the samples that the last epoch left out as (batch, indices), for a forward pass between two epochs.

        Call ``observe`` for each batch. Only for methods that need it, and on all ranks: each goes through its slice.

        Args:
            batch_size: The batch size per rank.
            loader: Other arguments of torch's DataLoader.

        Raises:
            InputError: If the method needs no such pass, or an argument would reorder or drop samples.
            MisalignedError: Inside an epoch, or if a batch had no ``observe``.

        >>> import infobatch
        >>> train_data = infobatch.Pruned(range(40), infobatch.methods.kakurenbo(), num_epochs=8)
        >>> for x in infobatch.DataLoader(train_data, batch_size=8):
        ...     loss = train_data.update(x / 40, confidence=1 - x / 40)
        >>> for x, indices in train_data.hidden(batch_size=8):
        ...     train_data.observe(x / 40, indices, confidence=1 - x / 40)
        """
        batch_size = checks.check_count("batch_size", batch_size, 1, "Use that of training.")
        checks.check_hidden(repr(self.method), self.method.observes_hidden, loader)
        self._settle()
        self._epoch.drop_plan()  # it depends on what is observed now
        assert isinstance(self._scores, ScoreTable)
        self._hidden = hidden = HiddenPass(self._scores, self.method, self._meet_ranks(), self._epoch.epoch)
        try:
            yield from hidden.batches(self.full(), batch_size, loader)
            not_finite = hidden.close()
            if self._summaries:
                warn_not_finite(self._summaries[-1].epoch, not_finite, hidden.size, "observed after it ")
        finally:
            if self._hidden is hidden:
                hidden.forget()
                self._hidden = None

    def observe(self, loss: Tensor, indices: Tensor, **channels: Tensor | None) -> None:
        """Record the losses of hidden samples without training on them; see the example of ``hidden``.

        Args:
            loss, indices, channels: As for ``update``, with the indices that ``hidden`` yielded.

        Raises:
            InputError: If an argument has the wrong shape, type or device.
            MisalignedError: Outside of a loop over ``hidden``.
        """
        checks.check_loss(loss)
        checks.check_indices(indices, loss)
        if self._hidden is None:
            expected = "observe() inside a loop over train_data.hidden()"
            raise MisalignedError(message(expected, "a call outside of one", "See Pruned.hidden."))
        self._hidden.note(loss, indices, check_channels(self.method, loss, channels))

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to."""
        if self._epoch.is_alone:
            self._settle()
        return self._epoch.epoch + self._epoch.is_finished()

    def plan(self) -> PlanNumbers:
        """Return the plan of the current epoch, or of the next one once the last batch has had its update.

        With ``shard_scores`` the plan has only its numbers, and asking for a new one is a collective call.

        >>> import infobatch
        >>> train_data = infobatch.InfoBatch(range(8), num_epochs=8)
        >>> train_data.plan()
        Plan(epoch=0, kept=8 of 8, saved=0.0%)
        """
        plan = self._draw()
        self._epoch.is_plan_asked = True
        return plan

    @locking
    def _draw(self) -> PlanNumbers:
        self._settle()
        checks.check_not_observing(self._hidden)
        epoch, scores = self._epoch, self._scores
        if epoch.plan is None:
            if scores.is_sharded:
                self._meet_ranks()
            plan: Any = scores.draw(self.method, Moment(epoch.epoch, self.num_epochs), self.seed)
            scores.begin(plan, plan.scale(self.compensate))
            epoch.plan = plan  # last: until then an interrupted call is repeated, and draws the same plan
        return epoch.plan

    def to(self, device: torch.device | str) -> Pruned:
        """Move the scores to a device, as the first ``update`` does; call this if that one is compiled or captured.

        Args:
            device: That of the losses.

        >>> import infobatch
        >>> train_data = infobatch.InfoBatch(range(8), num_epochs=8).to("cpu")
        """
        self._epoch.to(torch.device(device))
        return self

    def full(self) -> FullView:
        """Return all samples, for passes that do not train: evaluation, or a pass that updates BatchNorm.

        >>> import infobatch
        >>> train_data = infobatch.InfoBatch(range(8), num_epochs=8)
        >>> len(train_data.full())  # as many in a pruned epoch
        8
        """
        return FullView(self, self.seed)

    # ---- facts -------------------------------------------------------------------------------------------
    @property
    @locking
    def scores(self) -> Tensor:
        """A copy of the score of each sample; NaN if nothing is known. With ``shard_scores``, those of ``owned``."""
        self._settle()
        return self._scores.scores.clone()

    @property
    def owned(self) -> Tensor:
        """The indices of the samples whose scores this process holds, in the order of ``scores``."""
        return self._scores.samples()

    @property
    def history(self) -> tuple[EpochSummary, ...]:
        """A summary of each finished epoch; with several ranks, of each whose losses were exchanged."""
        if self._epoch.is_alone:
            self._settle()
        return tuple(self._summaries)

    @property
    @locking
    def progress(self) -> tuple[int, int, int]:
        """(epoch, samples done, samples in all) of the epoch of the next batch, as in the example of ``skip``.

        With ranks, of this rank's slice; (epoch, 0, 1) while the next plan waits for other ranks or ``hidden``.
        """
        world, epoch = find(self.group).world, self._epoch
        if self._hidden is not None or (world > 1 and (epoch.plan is None or epoch.is_finished())):
            return self.epoch, 0, 1
        plan, queue = self._draw(), epoch.queue
        before = self._scores.count_past(plan, epoch.done_before, world)
        left = self._scores.count_left(plan, epoch.done_before, world) if queue is None else queue.total
        return epoch.epoch, before + epoch.done(), before + left

    # ---- checkpoints -------------------------------------------------------------------------------------
    @locking
    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to resume training, as plain tensors, numbers and text.

        With several ranks, call it on all: inside an epoch it gathers their losses. The result is the same on each, and
        any number of ranks can resume from it. A rank that waits 30 seconds for the others warns and saves without
        their new losses. With ``shard_scores`` it saves its shard; any number of ranks can resume from all shards.

        >>> import infobatch
        >>> train_data = infobatch.InfoBatch(range(8), num_epochs=8)
        >>> state = train_data.state_dict()  # infobatch.save writes it beside those of the model and the optimizer
        """
        if get_worker_info() is not None:
            return {}  # some loaders ask the copies in their workers, which know nothing
        if self._must_close():
            self._epoch.check_all_close()
            self._close()
        settings: dict[str, Any] = {"compensate": self.compensate, "num_epochs": self.num_epochs, "seed": self.seed}
        return make_state(self._epoch, method=self.method.terms, summaries=self._summaries, **settings)

    def load_state_dict(self, state: dict[str, Any] | list[dict[str, Any]]) -> None:
        """Resume from a ``state_dict``: the same remaining samples, the same later plans.

        The seed comes with it; ``num_epochs`` stays as given here. All of it is checked before anything changes.

        Args:
            state: What ``state_dict`` returned. With ``shard_scores`` the state this rank saved or, from any number of
                ranks, the list of all their states.

        Raises:
            StateError: If it cannot be loaded here. Nothing was changed.

        >>> import infobatch
        >>> train_data, resumed = (infobatch.InfoBatch(range(8), num_epochs=8) for _ in range(2))
        >>> resumed.load_state_dict(train_data.state_dict())
        """
        if get_worker_info() is not None:
            return
        states = self._scores.check_states(state, self.method.terms, self.compensate)
        first = states[0]
        self._epoch.restart(first["epoch"])
        self.seed = first["seed"]
        self._summaries = [EpochSummary(**summary) for summary in first["summaries"]]
        if first["device"] == "cuda" and torch.cuda.is_available():
            self.to("cuda")  # the next plan is drawn where the uninterrupted run would draw it
        restore(self._epoch, states, self.compensate)

    # ---- epochs ------------------------------------------------------------------------------------------
    @locking
    def _begin_pass(self, iterator: _BaseDataLoaderIter | None) -> Counted:
        """Begin a pass. Called by the sampler at its first step."""
        checks.check_loaded(getattr(iterator, "_dataset", None), self.dataset, self, self._scores.size)
        epoch, ranks = self._epoch, self._meet_ranks(iterator)
        self._end_pass()
        epoch.check_idle()
        checks.check_epochs_left(epoch.epoch, self.num_epochs)
        self._announce()
        self._advice.check_schedulers(self._draw(), self.listeners, is_resumed=epoch.is_resumed)
        return epoch.open_pass(self.seed, self._sampler, iterator, ranks)

    def _announce(self, *, may_read: bool = True) -> None:
        """Tell the listeners that an epoch begins; without ``may_read`` no value is read, so no device waits."""
        epoch, plan = self._epoch, self._draw()
        for listener in self.listeners.values():
            listener.begin()
        epoch.is_announced = True
        self._advice.check_growth(plan)
        if may_read and self.method.observes_hidden and not (epoch.done_before or epoch.done()):
            self._advice.check_hidden(self._scores)

    def _meet_ranks(self, iterator: _BaseDataLoaderIter | None = None) -> Ranks:
        """Return the ranks; the first time, check that all of them were given the same arguments."""
        ranks = find(self.group)
        batches = getattr(iterator, "_index_sampler", None)
        terms: dict[str, Any] = {"method": self.method.terms, "num_epochs": self.num_epochs, "seed": self.seed}
        terms |= {"compensate": self.compensate, "batch size": getattr(batches, "batch_size", None)}
        terms |= {"drop_last": getattr(batches, "drop_last", None)}
        self._epoch.meet(ranks, terms)
        return ranks

    @locking
    def _length(self, asked_ahead: bool) -> int:
        """Return the number of samples of the latest pass; if a new one is certain to come, that of the new one."""
        epoch = self._epoch
        is_planned = epoch.plan is not None and epoch.queue is None and epoch.is_plan_asked
        is_next = asked_ahead or is_planned
        is_next = is_next or (not epoch.is_pass_open() and (epoch.is_expecting() or has_new_iterator()))
        if epoch.last is not None and not epoch.last.is_void and not is_next:
            return epoch.last.size
        if not epoch.is_pass_open():
            self._end_pass()
        return self._scores.count_left(self._draw(), epoch.done_before, find(self.group).world)

    def _position(self) -> tuple[int, int]:
        """The epoch that the next batch belongs to, and how many samples of it have come back."""
        epoch = self._epoch
        return self.epoch, 0 if epoch.is_finished() else epoch.done_before + epoch.done()

    def _end_pass(self) -> None:
        """Close the epoch of the last pass: a new pass is the next epoch, even if the loop left the last one early."""
        self._settle()
        if self._epoch.queue is not None and self._epoch.done():
            self._close()

    def _settle(self) -> None:
        """Close the running epoch if it is finished."""
        with self._epoch.lock:
            if self._must_close():
                self._close()

    def _must_close(self) -> bool:
        return self._epoch.turn is not None or self._epoch.is_finished()

    def _settle_together(self) -> None:
        """With ranks, close the epoch at its last update, which all reach, unless a device would have to be asked."""
        epoch = self._epoch
        if not epoch.is_alone and not epoch.counts_on_device and epoch.is_finished():
            self._close()

    def _close(self) -> None:
        epoch = self._epoch
        if epoch.turn is None and epoch.queue is None:
            checks.check_undivided(find(self.group).world)
        turn = epoch.close(self.method.memory)
        summary = turn.summary
        if not self._summaries or self._summaries[-1].epoch < summary.epoch:
            self._summaries.append(summary)
        epoch.turn = None
        if turn.error is not None:
            raise turn.error
        self._advice.check_end(summary, self._scores, turn.is_without_backward, turn.had_gradients)

    def _note_named(
        self, indices: Tensor, loss: Tensor, scores: Tensor, given: dict[str, Tensor]
    ) -> tuple[Tensor, float | Tensor]:
        """Record the scores of samples that the caller names; return their weights and the factor on their mean."""
        checks.check_indices(indices, loss)
        epoch = self._epoch
        if epoch.last is not None and epoch.last.taken:
            if not torch.compiler.is_compiling():
                self._settle()  # the epoch of that pass may have ended unnoticed
            if epoch.last.epoch == epoch.epoch:
                raise MisalignedError(BOTH)
        is_visible = not is_in_graph(indices)
        may_read = is_visible and indices.device.type == "cpu"  # elsewhere the end of the epoch checks the values
        if may_read:
            self._draw()
        if is_visible and not epoch.is_announced:  # no pass over the sampler has begun: these samples are from plan()
            self._announce(may_read=may_read)
        return epoch.note_named(indices, scores, given, may_read=may_read)

    def __repr__(self) -> str:
        done = self._epoch.epoch + self._epoch.is_finished()  # without closing it
        return f"{type(self).__name__}({self.method!r}, {len(self)} samples, {done} of {self.num_epochs} epochs done)"
