"""What deserves a look while training goes on: said once in a run, but for losses that are not finite."""

from __future__ import annotations

import math

from ..errors import warn
from ..growing import Growing
from ..methods.cuts import mean_score as mean
from ..methods.method import Method
from ..methods.when import Moment
from ..plan import Plan, ShardPlan
from ..ranks.shards import ShardBook
from .scores import ScoreBook
from .summary import EpochReport, report

GROWTH_BOUND = 2.0
RISE, MANY = 2.0, 1000
"""So many times the lowest, above that of the first epoch, and over so many samples, a mean loss is no chance."""


class Cautions:
    """What was said already, and what it takes to say more."""

    def __init__(self, method: Method) -> None:
        self._method = method
        self._bounds = False
        self._judged = -1
        """The last epoch that was held against the bounds."""
        self._noisy = 0
        """How many epochs in a row a step was noisier than the paper vouches for."""
        self._unlooked = False
        self._first = self._lowest = math.inf
        """The mean loss after the first epoch, and the lowest since."""
        self._risen = False
        self._unattended = False
        self._asleep = False

    def of_the_end(self, num_epochs: int) -> None:
        """A run that is to end on all data, or to prune at all, may be too short for that."""
        schedule, long = self._method.schedule, 10**6  # were the run long enough
        last = Moment(num_epochs - 1, num_epochs)
        ends = not schedule(Moment(long - 1, long))
        prunes = any(schedule(Moment(epoch, num_epochs)) for epoch in range(1, num_epochs))
        if last.epoch and not prunes and schedule(Moment(long // 4, long)):
            warn(f"{self._method!r} leaves out nothing in any of {num_epochs} epochs: train longer, or prune earlier")
        if last.epoch and ends and schedule(last):
            smaller = min(0.8, 100 * last.epoch // num_epochs / 100)  # with it the last epoch has all data
            other = f", or take a smaller delta, e.g. delta={smaller:g}" if last.epoch > 1 else ""
            warn(
                f"with num_epochs={num_epochs} no epoch is left for all data at the end of {self._method!r}: "
                f"train longer{other}"
            )

    def of_looks(self, book: ScoreBook | ShardBook) -> None:
        """Some were left out, and nobody looked at them since."""
        if not self._unlooked and bool((book.memory["held"] == 0).any()):
            self._unlooked = True
            warn(
                f"{self._method!r} wants a look at those it left out, after each epoch, and nobody took one: see "
                "Pruned.hidden"
            )

    def of_bounds(self, plan: Plan | ShardPlan, book: ScoreBook | ShardBook, growing: Growing) -> None:
        """A plan that is trained may leave the region that the paper's appendix B vouches for."""
        told = self._bounds or plan.epoch == self._judged
        if told or not (growing.unbiased or growing.what == "lr"):  # then no step goes further
            return
        self._judged = plan.epoch
        now = report(plan, book.scores, book.planned)
        self._noisy = self._noisy + 1 if now.noisy else 0
        text = near_bounds(now, grows=growing.steps_grow)
        if text and self._noisy != 1:  # one noisy epoch is no news: the first losses are
            self._bounds = True
            warn(text)

    def of_rise(self, done: EpochReport, book: ScoreBook | ShardBook, growing: Growing) -> None:
        """An epoch whose steps went further may have undone all that was learnt; a few or a part cannot tell."""
        if self._risen or not growing.steps_grow or book.size < MANY or isinstance(book, ShardBook):
            return
        now = mean(book.scores)
        if done.growth > 1 and now > max(self._first, RISE * self._lowest):
            self._risen = True
            what = "learning rate" if growing.what == "lr" else "loss"
            warn(
                f"epoch {done.epoch}: the mean loss is {now:.3g}, and was {self._first:.3g} after the first epoch, "
                f"{self._lowest:.3g} since. The {what} grows by {done.growth:.2f}, and there may be no room for it: "
                'lower the learning rate, or let nothing grow (compensate="none")'
            )
        if done.epoch == 0:  # whoever goes on from a checkpoint did not see it, and does not judge
            self._first = now
        self._lowest = min(now, self._lowest)

    def of_rates(self, plan: Plan | ShardPlan, growing: Growing) -> None:
        if not self._unattended and growing.unattended(plan):
            self._unattended = True
            warn(
                "the learning rate is to grow in the place of the loss, and nothing makes it grow: "
                "wrap the scheduler (or the optimizer) in infobatch.pace"
            )

    def of_sleep(self, plan: Plan | ShardPlan, growing: Growing) -> None:
        """In a loop over ``plan()`` an ``update`` inside a graph told nobody that the epoch began."""
        if not self._asleep and growing.asleep(plan):
            self._asleep = True
            warn(
                f"epoch {plan.epoch} was not trained at its learning rate, as an update inside a graph cannot say "
                "that an epoch begins: call the step() of what infobatch.pace returned, too"
            )


def warn_of_odd(epoch: int, count: int, of: int, which: str = "") -> None:
    """Some losses of an epoch were not finite."""
    if count:
        warn(f"epoch {epoch}: {count} of {of} losses {which}were not finite; those samples keep the scores they had")


def near_bounds(now: EpochReport, *, grows: bool = True) -> str:
    """How an epoch leaves the region that the paper's appendix B vouches for, if it does; ``grows``: its steps do."""
    if now.noisy:
        return (
            f"epoch {now.epoch}: noise-to-signal of a step is {now.noise:.2f} times that of full data; the paper "
            "(appendix B.3) wants at most 1. Prune small losses, not large ones, or lower the ratio"
        )
    if grows and now.growth > GROWTH_BOUND:
        return (
            f"epoch {now.epoch}: a step stands for {now.growth:.2f} steps of full data, and the largest safe "
            "learning rate shrinks by as much (the paper's appendix B.4). Prune less, or lower the rate if the loss "
            "rises"
        )
    return ""
