"""Warnings about runs that work but probably not as intended. Each is given once per run."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Collection
from typing import Any

from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, ReduceLROnPlateau

from ..errors import plural, warn
from ..methods.method import Method, Moment
from ..plan import EpochSummary, PlanNumbers
from .scores import Scores

GROWTH_BOUND = 2.0
"""|D|/|S| beyond which a growing loss is warned about."""
RISE, ENOUGH = 2.0, 1000
"""A mean loss that rose to RISE times its lowest value over ENOUGH samples is not chance."""


class Advice:
    """Which warnings have been given, and what is needed to decide on the others."""

    def __init__(self, method: Method, *, loss_grows: bool) -> None:
        self._method = method
        self._loss_grows = loss_grows
        """Whether a step of a pruned epoch goes further than one of full data."""
        self._gave_growth = self._gave_hidden = self._gave_rise = self._gave_backward = self._gave_pace = False
        self._had_gradients: dict[bool, int] = {}
        """The first epoch whose losses had a gradient, and the first whose losses had none."""
        self._steps_before: dict[int, int] | None = None
        """How often each scheduler had been stepped before the first pass, by its id."""
        self._first_epoch = 0
        self._is_new = True
        """Whether the first pass began the training, as far as the data know."""
        self._first = self._lowest = math.inf
        """The mean loss after the first epoch, and the lowest since."""

    def check_length(self, num_epochs: int) -> None:
        """Warn if a run is too short to prune at all, or to end on full data as it should."""
        schedule, long = self._method.schedule, 10**6  # if the run were long enough
        last = Moment(num_epochs - 1, num_epochs)
        anneals = not schedule(Moment(long - 1, long))
        first = 0 if self._method.prunes_first else 1
        prunes = any(schedule(Moment(epoch, num_epochs)) for epoch in range(first, num_epochs))
        if not prunes and schedule(Moment(long // 4, long)):
            reason = ": the first epoch always uses all data, because no loss is known yet" if num_epochs == 1 else ""
            warn(
                f"{self._method!r} prunes nothing with num_epochs={num_epochs}{reason}. Train longer, or prune earlier"
            )
        if last.epoch and anneals and schedule(last):
            smaller = min(0.8, 100 * last.epoch // num_epochs / 100)  # then the last epoch uses all data
            other = f", or use a smaller delta, e.g. delta={smaller:g}" if last.epoch > 1 else ""
            warn(
                f"with num_epochs={num_epochs} no epoch on full data is left at the end of {self._method!r}: "
                f"train longer{other}"
            )

    def check_end(
        self, done: EpochSummary, scores: Scores, is_without_backward: bool, had_gradients: bool | None
    ) -> None:
        """Warn about an epoch that has ended: no backward, a rising loss, losses that are not finite."""
        if is_without_backward:
            self._warn_no_backward(done.epoch)
        if had_gradients is not None:
            self._check_gradients(done.epoch, had_gradients=had_gradients)
        self._check_rise(done, scores)
        warn_not_finite(done.epoch, done.not_finite, done.kept)

    def _warn_no_backward(self, epoch: int) -> None:
        """Warn that an epoch ended although backward was called for none of its losses."""
        if not self._gave_backward:
            self._gave_backward = True
            warn(
                f"epoch {epoch} ended, but backward() was called for none of the losses that update() "
                "returned: call it, or load train_data.full() in a pass that does not train"
            )

    def _check_gradients(self, epoch: int, *, had_gradients: bool) -> None:
        """Warn if the losses of an epoch had no gradient, although those of another had: it was no training."""
        self._had_gradients.setdefault(had_gradients, epoch)
        if len(self._had_gradients) == 2 and not self._gave_backward:
            self._gave_backward = True
            warn(
                f"the losses of epoch {self._had_gradients[False]} had no gradient, but those of epoch "
                f"{self._had_gradients[True]} had: a pass that does not train counted as an epoch. Load "
                "train_data.full() in such a pass"
            )

    def check_schedulers(self, plan: PlanNumbers, paced: Collection[Any], *, is_resumed: bool) -> None:
        """Warn if a scheduler counts steps without ``pace``: a pruned epoch has fewer.

        Schedulers are looked for twice: before the first pass, and before the first pruned one. ``is_resumed``: some
        of this epoch was done before this process.
        """
        if self._gave_pace:
            return
        if self._steps_before is None:
            self._steps_before = {id(one): one.last_epoch for one in find_schedulers()}
            self._first_epoch, self._is_new = plan.epoch, plan.epoch == 0 and not is_resumed
        elif plan.kept < plan.size:
            self._gave_pace = True
            epochs = max(plan.epoch - self._first_epoch, 1)
            for one in find_schedulers():
                before = self._steps_before.get(id(one), 0)
                if said := self._judge(one, before, one.last_epoch - before, epochs, paced):
                    warn(said)
                    return

    def _judge(self, scheduler: Any, before: int, steps: int, epochs: int, paced: Any) -> str:
        """Say what is wrong with a scheduler that made this many steps in this many epochs; empty if nothing is."""
        name = type(scheduler).__name__
        if before > 0 and steps and self._is_new:  # in a SequentialLR, those that wait for their turn begin at -1
            return (
                f"{name} had made {plural(before, 'step')} when the data began at epoch 0: if this run was resumed, "
                "save train_data.state_dict() and load it, too"
            )
        if steps > 2 * epochs and unwrap(scheduler.optimizer) not in paced:
            return (
                f"{name} was stepped {steps} times in {plural(epochs, 'epoch')}: it counts steps, of which pruned "
                "epochs have fewer, so if it is stepped in all epochs, it does not reach its end. Wrap it: scheduler = "
                "infobatch.pace(scheduler, train_data, infobatch.full_steps(train_data, batch_size))"
            )
        return ""

    def check_hidden(self, scores: Scores) -> None:
        """Warn if samples were left out and not observed since, though the method needs it."""
        if not self._gave_hidden and bool((scores.memory["held"] == 0).any()):
            self._gave_hidden = True
            warn(f"{self._method!r} needs the losses of the samples it left out after each epoch: see Pruned.hidden")

    def check_growth(self, plan: PlanNumbers) -> None:
        """Warn if the loss grows, and with it each step, far beyond full data (the paper's appendix B.4)."""
        if self._loss_grows and not self._gave_growth and plan.growth > GROWTH_BOUND:
            self._gave_growth = True
            warn(
                f"epoch {plan.epoch}: a step stands for {plan.growth:.2f} steps of full data, because the loss grows, "
                "and the largest safe learning rate shrinks by as much (the paper's appendix B.4). Divide the learning "
                f'rate by up to {plan.growth:.2f}, prune less, or use compensate="none"'
            )

    def _check_rise(self, done: EpochSummary, scores: Scores) -> None:
        """Warn if the loss grows and an epoch seems to have undone what was learned. Small data sets are not judged."""
        if self._gave_rise or not self._loss_grows or scores.size < ENOUGH:
            return
        now = scores.mean()
        if now is None:
            return
        if done.growth > 1 and now > max(self._first, RISE * self._lowest):
            self._gave_rise = True
            warn(
                f"epoch {done.epoch}: the mean loss is {now:.3g}; it was {self._first:.3g} after the first epoch and "
                f"{self._lowest:.3g} since. The loss grows by {done.growth:.2f} in pruned epochs, which may be too "
                'much for this learning rate: lower it, or use compensate="none"'
            )
        if done.epoch == 0:  # a run resumed from a checkpoint has not seen it and does not judge
            self._first = now
        self._lowest = min(now, self._lowest)


def warn_not_finite(epoch: int, count: int, of: int, which: str = "") -> None:
    """Warn if some losses of an epoch were not finite."""
    if count:
        remedy = (
            ". If the weights are not finite either, resume from an earlier checkpoint with a lower learning rate; "
            "else check inputs and criterion"
        )
        warn(
            f"epoch {epoch}: {count} of {of} losses {which}were not finite; those samples keep their old scores"
            f"{remedy if count == of else ''}"
        )


def unwrap(optimizer: Any) -> Any:
    """Return the optimizer inside Accelerate's wrapper."""
    return getattr(optimizer, "optimizer", optimizer)


class _Search:
    """The search for schedulers goes through all objects of the process, so it is not repeated without need.

    Each scheduler holds a reference to its class. If a search found none, there still is none as long as the classes
    have no new references.
    """

    references = -1
    """How many references the classes had when a search found no scheduler."""


def find_schedulers() -> list[LRScheduler]:
    """Return the learning-rate schedulers of this process, except those that do not count steps."""
    references = sum(map(sys.getrefcount, _counting_kinds()))
    if references == _Search.references:
        return []
    kinds = _counting_kinds()
    found = [one for one in gc.get_objects() if type(one) in kinds]
    if not found:
        _Search.references = references
    inner = {id(part) for one in found for part in getattr(one, "_schedulers", ())}  # of a SequentialLR
    return [one for one in found if id(one) not in inner]


def _counting_kinds() -> set[type[LRScheduler]]:
    """Return the classes of schedulers, except those that do not count steps."""
    kinds, new = set(), [LRScheduler]
    while new:
        kind = new.pop()
        kinds.add(kind)
        new += kind.__subclasses__()
    return kinds - {ReduceLROnPlateau, ChainedScheduler}
