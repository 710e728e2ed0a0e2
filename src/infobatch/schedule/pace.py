"""Fewer steps, the same training: schedulers that follow the data, and what grows in the place of steps.

A pruned epoch has |S|/|D| of the steps, so a scheduler that counts steps would end early. ``pace`` makes it count
data. Each step may also go |D|/|S| further, if that is asked for: either the loss grows (the paper: weights sum to
|D|), or the weights have mean 1 and the learning rate grows. Plain SGD cannot tell the two apart but for weight
decay, which only keeps pace with the learning rate; optimizers that normalise the gradient do not see a loss grow.
"""

from __future__ import annotations

import copy
import gc
import math
import warnings
from typing import Any
from weakref import WeakKeyDictionary, ref

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, ReduceLROnPlateau

from ..attribution.views import COPY, Copied
from ..checks import count_of, is_number, whole
from ..dataset import Pruned
from ..errors import InputError, StateError, message, warn
from ..ranks.exchange import find
from ..rates import Rates, are_rates, copied, inner, scale_blind


def full_steps(train_data: Pruned, batch_size: int, *, drop_last: bool = False, accumulate: int = 1) -> int:
    """The optimizer's steps in an epoch of full data, on each rank: what schedulers are built for.

    >>> import infobatch
    >>> train_data = infobatch.InfoBatch(range(100), num_epochs=8)
    >>> full_steps(train_data, 16), full_steps(train_data, 16, drop_last=True)
    (7, 6)
    >>> full_steps(train_data, 16, accumulate=4)
    2
    """
    _check_data(train_data)
    batch_size = count_of("batch_size", batch_size, 1, "That of the loader, on each rank.")
    accumulate = count_of("accumulate", accumulate, 1, "Batches a step; 1 where gradients are not accumulated.")
    samples = math.ceil(len(train_data) / find(train_data.group).world)
    batches = samples // batch_size if drop_last else math.ceil(samples / batch_size)
    if not batches:
        got = f"{samples} samples in batches of {batch_size} with drop_last"
        raise InputError(message("a full epoch of at least one batch", got, "Take smaller batches, or all of them."))
    return math.ceil(batches / accumulate)


def pace(scheduled: LRScheduler | Optimizer, train_data: Pruned, steps_per_epoch: int | None = None) -> Paced:
    """Wrap a scheduler so that it ends where it would on full data; call the wrapper's ``step`` in its place.

    ``steps_per_epoch`` is how often a full epoch would call ``scheduler.step()``; build the scheduler for that,
    as if nothing were pruned. Each optimizer of a training wants a ``pace`` of its own.

    A new scheduler that is paced in mid-training, for a phase of its own, begins there: build it for the epochs left.

    With ``compensate="lr"`` the learning rate grows in pruned epochs, as much as they are shorter, and nothing else
    may set it. That needs a rate with room above it. An optimizer in the place of a scheduler has that growth looked
    after alone, and ``step`` need not be called.

    >>> import torch, infobatch
    >>> data = torch.utils.data.TensorDataset(torch.rand(64, 1))
    >>> train_data = infobatch.InfoBatch(data, num_epochs=5)
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5 * 8)
    >>> scheduler = infobatch.pace(cosine, train_data, steps_per_epoch=8)
    >>> for epoch in range(5):
    ...     for (x,) in infobatch.DataLoader(train_data, batch_size=8):
    ...         loss = train_data.update(x.sum(1))
    ...         optimizer.step()
    ...         scheduler.step()
    >>> cosine.last_epoch, sum(report.kept for report in train_data.history) < 5 * 64
    (40, True)
    """
    return Paced(scheduled, train_data, steps_per_epoch)


class Paced:
    """See :func:`pace`."""

    def __init__(
        self, scheduled: LRScheduler | Optimizer, train_data: Pruned, steps_per_epoch: int | None = None
    ) -> None:
        _check(scheduled, train_data)
        self.scheduler = None if isinstance(scheduled, Optimizer) else scheduled
        self.optimizer: Optimizer = scheduled if isinstance(scheduled, Optimizer) else scheduled.optimizer
        if self.scheduler is None and steps_per_epoch is not None:
            remedy = "They are a scheduler's: pace that in the optimizer's place, or leave them out."
            raise InputError(message("no steps_per_epoch for an optimizer", repr(steps_per_epoch), remedy))
        steps = 1 if self.scheduler is None else whole(steps_per_epoch)
        if steps is None or steps < 1:
            raise InputError(
                message(
                    "steps_per_epoch: how often a full epoch would step the scheduler",
                    repr(steps_per_epoch),
                    "With one step a batch: infobatch.full_steps(train_data, batch_size). Once an epoch: 1.",
                )
            )
        self.train_data = train_data
        self.steps_per_epoch = steps
        self._new = True
        """Whether no epoch has begun, and nothing was stepped or loaded since it was made."""
        self._warned = False
        """Whether it was said that it is not stepped as it should be."""
        self._seen: int | None = None
        """The epoch that began under its eyes."""
        self._calls = 0
        """How often it was stepped since."""
        self._rates = Rates(self.optimizer)
        self._first = list(self._rates.plain)
        """The rates that the scheduler began with, in whatever process."""
        self._stepped = begun = _steps_of(self.scheduler)
        """The scheduler's own count, as it was left here."""
        self._start = copy.deepcopy(self.scheduler.state_dict()) if self.scheduler is not None and not begun else None
        """The scheduler as it began; None where it had been stepped before."""
        self._count = begun
        """Its place in the data, in steps of full epochs: the scheduler's, and those that went by before it began."""
        if begun:
            self._take_up()
        elif self.scheduler is not None:
            self._begin_here()
        self._check_total()
        self._walked = False
        """Whether its place was found without the optimizer's rates, which may still be loaded."""
        self._claim()
        self._grow()
        self._warn_if_blind()
        if self.scheduler is None and self.train_data.compensate == "none":
            warn('nothing grows, so pace has nothing to do here: compensate="lr" lets the learning rate grow')

    def _take_up(self) -> None:
        """The scheduler has begun before: it goes on from where it is."""
        older = self.train_data.paces.get(inner(self.optimizer))
        if isinstance(older, Paced) and older._drives(self.scheduler, self.steps_per_epoch):
            self._count = older._count
            self._first = [*older._first, *self._first[len(older._first) :]]  # groups may have been added
        else:
            self._count = min(self._stepped, self._due())

    def _drives(self, scheduler: LRScheduler | None, steps: int) -> bool:
        return self.scheduler is scheduler and self.steps_per_epoch == steps and self._stepped == _steps_of(scheduler)

    def _begin_here(self) -> None:
        """The scheduler is at its start: what the data have seen before is not its own."""
        self._count = _steps_at(self.train_data.progress, self.steps_per_epoch) if self.train_data.epoch else 0

    def _check_total(self) -> None:
        total = getattr(self.scheduler, "total_steps", None)
        wanted, gone = self.train_data.num_epochs * self.steps_per_epoch, max(self._count - self._stepped, 0)
        if total is not None and total < wanted - gone:
            what = f"num_epochs * steps_per_epoch = {wanted} steps"
            if gone:
                what = f"{wanted - gone} steps, after the {gone} of full data before it"
            remedy = (
                "Build it as for full data. One for the last epochs alone is paced when the data are there: resumed, "
                "after loading their state."
            )
            raise InputError(message(f"a scheduler of at least {what}", f"total_steps={total}", remedy))

    def _claim(self) -> None:
        """The optimizer is looked after from here, for these data."""
        optimizer, data = inner(self.optimizer), self.train_data
        other = _waiting(optimizer, data)
        if other is not None and self._growing:
            raise InputError(
                message("one data set that makes an optimizer's learning rate grow", "a second", ONE_SET)
            )
        if data.epoch and _trained_here(data):
            for each in data.paces.values():
                if isinstance(each, Paced):
                    each._warned = True  # this may be a new phase, in which nobody steps those before
        data.paced = True
        data.paces[optimizer] = self
        if self._growing:
            _LATEST[optimizer] = ref(self)
        elif other is None:
            self._rates.shrink()

    def step(self) -> None:
        """Call after each optimizer step, as you would the scheduler's."""
        if self.train_data.paces.get(inner(self.optimizer)) is not self:
            remedy = "Each optimizer has one: step the latest."
            raise InputError(message("the latest infobatch.pace of this optimizer", "an older one", remedy))
        self._calls += 1
        self._new = False
        if _steps_of(self.scheduler) != self._stepped:
            got = f"one that stands at {_steps_of(self.scheduler)} steps, and not at the {self._stepped} made here"
            remedy = "Call the step() of what pace returned, and not the scheduler's; load its state, too."
            raise InputError(message("a scheduler that pace alone steps", got, remedy))
        if self._growing:
            self._check_untouched()
        else:
            self._rates.plain = self._rates.in_use()
        self._walked = False
        due = self._due()
        if self.scheduler is not None and due > self._count:
            self._set(1.0)  # many schedulers compute the next rate from the last: they must not see it grown
            for _ in range(due - self._count):
                self.scheduler.step()
            self._stepped = _steps_of(self.scheduler)
            self._rates.plain = self._rates.in_use()
        self._count = max(due, self._count)
        self._grow()

    @property
    def growth(self) -> float:
        """How far the learning rates in use have grown."""
        return self._rates.growth

    def get_last_lr(self) -> list[float]:
        """The learning rates in use, growth included."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {
            "count": self._count,
            "growth": self.growth,
            "plain": list(self._rates.plain),
            "first": list(self._first),
            "steps_per_epoch": self.steps_per_epoch,
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a ``state_dict``, also where another batch size or number of ranks makes other steps."""
        if (
            not isinstance(state, dict)
            or set(state) != {"count", "growth", "plain", "first", "steps_per_epoch", "scheduler"}
            or (state["scheduler"] is None) != (self.scheduler is None)
            or not are_rates(state["plain"], len(self.optimizer.param_groups))
            or not are_rates(state["first"], len(self.optimizer.param_groups))
            or not all(map(is_number, (state["count"], state["growth"], state["steps_per_epoch"])))
        ):
            got = repr(sorted(state)) if isinstance(state, dict) else type(state).__name__
            raise StateError(
                message(
                    "the state of a Paced of the same kind and as many parameter groups", got, "Nothing was loaded."
                )
            )
        self._walked = state["steps_per_epoch"] != self.steps_per_epoch
        if self._walked:
            self._walk_to(state)
        else:
            if self.scheduler is not None:
                self.scheduler.load_state_dict(state["scheduler"])
            self._count = state["count"]
            self._rates.plain = copied(state["plain"])
        self._new = False
        self._stepped = _steps_of(self.scheduler)
        self._first = copied(state["first"])
        self._rates.growth = state["growth"]
        if self._growing:
            self._set(self.growth)

    def _walk_to(self, state: dict[str, Any]) -> None:
        """The saved scheduler was made for other steps: this one goes to the same place in the data by itself."""
        if self.scheduler is None or self._start is None:
            raise StateError(
                message(
                    f"a new scheduler, to go on with {self.steps_per_epoch} steps an epoch after "
                    f"{state['steps_per_epoch']}",
                    "one that had been stepped or loaded before infobatch.pace was called",
                    "Build the scheduler and call infobatch.pace, and then load their states.",
                )
            )
        self.scheduler.load_state_dict(copy.deepcopy(self._start))
        self._rates.plain = copied(state["first"])
        self._set(1.0)
        self._count = state["count"] * self.steps_per_epoch // state["steps_per_epoch"]
        made = _steps_in(state["scheduler"], state["count"]) * self.steps_per_epoch // state["steps_per_epoch"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the optimizer has stepped, in another process
            for _ in range(made):
                self.scheduler.step()
        self._rates.plain = self._rates.in_use()

    @property
    def _growing(self) -> bool:
        return self.train_data.compensate == "lr"

    def _due(self) -> int:
        """How many steps the scheduler would have made by now on full data."""
        progress = epoch, done, _ = self.train_data.progress
        start = epoch * self.steps_per_epoch
        if done and (self.steps_per_epoch == 1 or self.train_data.plan().kept == self.train_data.plan().size):
            # A full epoch: one step a call, so that it is the plain scheduler whatever a call stands for. A scheduler
            # of epochs has one in any, also where the loop leaves it early.
            return min(max(start, self._count) + 1, start + self.steps_per_epoch)
        return _steps_at(progress, self.steps_per_epoch)

    def begin(self) -> None:
        """For train_data, when an epoch's plan is known: it may be made after the last step before it."""
        if self.scheduler is not None and not self._over:
            self._watch()
        self._new = False
        if self._walked:
            self._set(self.growth if self._growing else 1.0)  # a rate that was loaded since is that of other steps
        if self._growing and self._over:
            if not self._rates.strange(look=True):  # who has set it since trains something else
                self._grow()
        elif self._growing:
            self._check_untouched(look=True)
            self._grow()

    def _watch(self) -> None:
        """An epoch begins: was the scheduler stepped in the last one, and about as often as was promised?"""
        epoch, done, _ = self.train_data.progress
        if epoch == self._seen:
            return  # once more from where it stands
        text = ""
        if self._new and not self._stepped:
            self._begin_here()  # the data may have been loaded since
            if epoch and not _trained_here(self.train_data):
                text = (
                    f"the data are in epoch {epoch}, the scheduler is at its start: load what pace returned, too, to "
                    "go on with it; without that it begins here, which is right for a new phase of training alone"
                )
        elif self._seen is not None and epoch == self._seen + 1:
            text = self._amiss(self.train_data.history[-1].growth == 1)
        if text and not self._warned:
            self._warned = True
            warn(text)
        self._seen, self._calls = None if done else epoch, 0

    def _amiss(self, full: bool) -> str:
        """What is wrong with how often it was stepped in an epoch."""
        if not self._calls:
            return "a whole epoch went by without a step of the scheduler: call the step() of what pace returned"
        if full and 1.5 * self._calls <= self.steps_per_epoch:
            return (
                f"steps of the scheduler in a full epoch: {self._calls}, and steps_per_epoch={self.steps_per_epoch}; "
                "with gradient accumulation take infobatch.full_steps(..., accumulate=...), for a scheduler that is "
                "stepped once an epoch 1"
            )
        return ""

    @property
    def _over(self) -> bool:
        return self.train_data.epoch >= self.train_data.num_epochs

    def _grow(self) -> None:
        if self._growing:
            self._rates.growth = 1.0 if self._over else self.train_data.plan().growth
            self._set(self.growth)

    def _set(self, growth: float) -> None:
        self._rates.set(growth, note=self._growing)

    def _check_untouched(self, look: bool = False) -> None:
        if _grower(inner(self.optimizer), self.train_data) is not None:
            got = "one that was paced with another data set since"
            raise InputError(message("an optimizer whose learning rate grows for these data", got, ONE_SET))
        strange = self._rates.strange(look=look)
        if strange:
            raise InputError(
                message(
                    f"the learning rate that was set here, {strange[0][1]}",
                    str(strange[0][0]),
                    "It grows in the place of the loss, so nothing else may set it: wrap the scheduler in "
                    "infobatch.pace, and after loading the optimizer load this object's state, too. With "
                    'compensate="loss" or "none" it is left alone.',
                )
            )

    def _warn_if_blind(self) -> None:
        data = self.train_data
        if data.compensate == "loss" and data.method.unbiased and scale_blind(self.optimizer):
            warn(
                f"{type(inner(self.optimizer)).__name__} hardly sees the scale of a gradient, so the growing loss of "
                'a pruned epoch does not make up for its missing steps; compensate="lr" does'
            )


_LATEST: WeakKeyDictionary[Any, ref[Paced]] = WeakKeyDictionary()
"""By optimizer: what made its learning rate grow last, for whatever data."""

ONE_SET = (
    'Pace it with one of them, and pass compensate="none" to the other. For one training after another call '
    "infobatch.pace when its turn comes, or make a new optimizer."
)


def _grower(optimizer: Any, train_data: Pruned) -> Paced | None:
    """What makes its learning rate grow for other data, if these are in training still."""
    latest = _LATEST[optimizer]() if optimizer in _LATEST else None
    if latest is None or latest.train_data is train_data or not latest._growing or latest._over:
        return None
    return latest


def _waiting(optimizer: Any, train_data: Pruned) -> Paced | None:
    """The same, if that training is to begin yet: one that has begun may have been left for this one."""
    found = _grower(optimizer, train_data)
    if found is None or not found._new:
        return None
    del found
    gc.collect()  # a pace and its data hold each other: nobody else may
    return _grower(optimizer, train_data)


def _check(scheduled: Any, train_data: Any) -> None:
    if isinstance(scheduled, ReduceLROnPlateau) or not isinstance(scheduled, (LRScheduler, Optimizer)):
        raise InputError(
            message(
                "a scheduler or an optimizer of torch",
                type(scheduled).__name__,
                "The order is pace(scheduler, train_data, steps_per_epoch). One that follows a metric sets the "
                'rate itself: step it yourself, without pace, and let the loss grow or nothing (compensate="none").',
            )
        )
    _check_data(train_data)


def _check_data(train_data: Any) -> None:
    if isinstance(train_data, Copied):
        raise InputError(COPY)
    if not isinstance(train_data, Pruned):
        raise InputError(
            message(
                "the training data, an infobatch.InfoBatch or Pruned",
                type(train_data).__name__,
                "Steps are counted in its samples.",
            )
        )


def _trained_here(train_data: Pruned) -> bool:
    """Whether the data are where they are by training in this process, and not by a state that was loaded."""
    course = train_data._course
    return course.last is not None and (course.last.epoch < course.epoch or course.done() > 0)


def _steps_of(scheduler: LRScheduler | None) -> int:
    """How many steps it has made; a chain counts none itself."""
    if isinstance(scheduler, ChainedScheduler):
        return max(_steps_of(each) for each in scheduler._schedulers)
    return max(getattr(scheduler, "last_epoch", 0), 0)


def _steps_at(progress: tuple[int, int, int], steps_per_epoch: int) -> int:
    """A place in the data, in steps of full epochs."""
    epoch, done, total = progress
    return epoch * steps_per_epoch + done * steps_per_epoch // total


def _steps_in(saved: dict[str, Any], counted: int) -> int:
    """How many of the counted steps are those of a scheduler that was saved: fewer if it began in mid-training."""
    if "last_epoch" in saved:
        return min(max(int(saved["last_epoch"]), 0), counted)
    return max((_steps_in(each, counted) for each in saved.get("_schedulers", ())), default=counted)
