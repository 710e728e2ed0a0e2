"""Schedulers that follow the data: fewer steps, the same schedule.

A pruned epoch has |S|/|D| of the steps, so a scheduler that counts steps would end early. ``pace`` makes it count data:
after each step it stands where it would stand on full data.
"""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, ReduceLROnPlateau

from ..attribution.views import check_wrapped
from ..checks import check_count, is_count, is_number
from ..dataset import Pruned
from ..epoch.advice import unwrap
from ..errors import InputError, StateError, message, plural, warn
from ..ranks.exchange import find

SCALE_BLIND = frozenset(
    {
        "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamP", "AdamW", "Adamax", "AdaBelief", "DAdaptAdam", "LAMB",
        "LARS", "Lamb", "Lars", "Lion", "Muon", "NAdam", "Prodigy", "RAdam", "RMSprop", "Ranger", "Rprop", "SignSGD",
        "SOAP", "Shampoo", "SparseAdam",
    }
)  # fmt: skip
"""Optimizers, by class name, whose step hardly depends on the scale of the gradient."""
FIELDS = {"count", "first_rates", "rates", "steps_per_epoch", "scheduler"}


def full_steps(train_data: Pruned, batch_size: int, *, drop_last: bool = False, accumulate: int = 1) -> int:
    """Return the number of optimizer steps per rank in an epoch of full data: what schedulers are built for.

    Args:
        train_data: The pruned data set.
        batch_size: The batch size of the loader, per rank.
        drop_last: Whether the loader drops its last batch.
        accumulate: The number of batches per step.

    Raises:
        InputError: If an argument has the wrong type, or an epoch has not even one batch.

    >>> import infobatch
    >>> train_data = infobatch.InfoBatch(range(100), num_epochs=8)
    >>> full_steps(train_data, 16), full_steps(train_data, 16, drop_last=True)
    (7, 6)
    >>> full_steps(train_data, 16, accumulate=4)
    2
    """
    check_wrapped(train_data)
    batch_size = check_count("batch_size", batch_size, 1, "Pass that of the loader, per rank.")
    accumulate = check_count("accumulate", accumulate, 1, "It is the number of batches per step.")
    samples = math.ceil(len(train_data) / find(train_data.group).world)
    batches = samples // batch_size if drop_last else math.ceil(samples / batch_size)
    if not batches:
        got = f"{samples} samples in batches of {batch_size} with drop_last"
        raise InputError(message("a full epoch of at least one batch", got, "Use smaller batches, or keep the last."))
    return math.ceil(batches / accumulate)


def pace(scheduler: LRScheduler, train_data: Pruned, steps_per_epoch: int) -> Paced:
    """Wrap a scheduler so that it ends where it would on full data; call the wrapper's ``step`` instead of its own.

    Build the scheduler as if nothing were pruned. Each optimizer needs its own ``pace``. A new scheduler that is
    wrapped in the middle of training begins there: build it for the remaining epochs.

    Args:
        scheduler: Any scheduler of torch except ReduceLROnPlateau.
        train_data: The pruned data set.
        steps_per_epoch: How often a full epoch calls ``scheduler.step()``: ``full_steps(...)``, or 1.

    Returns:
        The wrapped scheduler.

    Raises:
        InputError: If an argument has the wrong type, or the scheduler ends before the training does.

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
    >>> cosine.last_epoch, sum(summary.kept for summary in train_data.history) < 5 * 64
    (40, True)
    """
    return Paced(scheduler, train_data, steps_per_epoch)


class Paced:
    """A scheduler that follows the data; ``pace`` makes it.

    Args:
        scheduler, train_data, steps_per_epoch: As for ``pace``.

    Raises:
        InputError: If an argument has the wrong type, or the scheduler ends before the training does.

    >>> import torch, infobatch
    >>> train_data = infobatch.InfoBatch(range(64), num_epochs=8)
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> linear = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=8 * 8)
    >>> scheduler = infobatch.Paced(linear, train_data, steps_per_epoch=8)
    >>> scheduler.get_last_lr()
    [1.0]
    """

    def __init__(self, scheduler: LRScheduler, train_data: Pruned, steps_per_epoch: int) -> None:
        _check(scheduler, train_data)
        remedy = "With one step per batch pass infobatch.full_steps(train_data, batch_size); with one per epoch, 1."
        steps = check_count("steps_per_epoch", steps_per_epoch, 1, remedy)
        self.scheduler = scheduler
        self.optimizer: Optimizer = scheduler.optimizer
        self.train_data = train_data
        self.steps_per_epoch = steps
        self._is_new = True
        """Whether no epoch has begun, and nothing was stepped or loaded, since it was made."""
        self._has_warned = False
        self._watched_epoch: int | None = None
        """The last epoch that began while this object existed."""
        self._calls = 0
        """How often ``step`` was called since then."""
        self._first_rates = self._rates()
        """The learning rates the scheduler began with, even if that was in another process."""
        self._stepped = made = _count_steps(scheduler)
        """The scheduler's own count after the last step here."""
        self._start = None if made else copy.deepcopy(scheduler.state_dict())
        """The scheduler's state at its start; None if it had been stepped before."""
        self._count = made
        """The position in the data, in steps of full epochs: the scheduler's, plus those before it began."""
        if made:
            self._take_over()
        else:
            self._begin_here()
        self._check_total()
        self._replayed: list[Any] | None = None
        """The learning rates after ``_replay``, until the loop continues: the optimizer's may still be loaded."""
        if train_data.epoch and _has_trained_here(train_data):
            for other in train_data.listeners.values():
                if isinstance(other, Paced):
                    other._has_warned = True  # this may be a new phase, in which the others are not stepped
        train_data.listeners[unwrap(self.optimizer)] = self
        self._warn_if_scale_blind()

    def step(self) -> None:
        """Advance the scheduler to where the data are. Call it after each optimizer step.

        Raises:
            InputError: If the optimizer has a newer ``pace``, or the scheduler was stepped directly.

        >>> import torch, infobatch
        >>> train_data = infobatch.InfoBatch(range(64), num_epochs=8)
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        >>> linear = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=8 * 8)
        >>> scheduler = infobatch.pace(linear, train_data, steps_per_epoch=8)
        >>> for x in infobatch.DataLoader(train_data, batch_size=8):
        ...     loss = train_data.update(x / 64)  # then backward
        ...     optimizer.step()
        ...     scheduler.step()
        >>> print(f"{scheduler.get_last_lr()[0]:.3f}")  # after one of eight epochs
        0.875
        """
        if self.train_data.listeners.get(unwrap(self.optimizer)) is not self:
            remedy = "Step the latest. To use two, join them with SequentialLR or ChainedScheduler, and pace that."
            raise InputError(message("the latest infobatch.pace of this optimizer", "an older one", remedy))
        if _count_steps(self.scheduler) != self._stepped:
            got = f"one that made {_count_steps(self.scheduler)} steps, {self._stepped} of them through pace"
            remedy = "Call step() of what pace returned instead of the scheduler's own, and load its state, too."
            raise InputError(message("a scheduler stepped only through pace", got, remedy))
        self._calls += 1
        self._is_new, self._replayed = False, None
        due = self._due()
        for _ in range(due - self._count):
            self.scheduler.step()
        self._stepped = _count_steps(self.scheduler)
        self._count = max(due, self._count)

    def get_last_lr(self) -> list[float]:
        """Return the current learning rates, one per parameter group; ``step`` has an example."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue from here, including the state of the scheduler.

        Returns:
            Plain numbers, lists and dicts, which ``infobatch.save`` writes; ``load_state_dict`` has an example.
        """
        return {
            "count": self._count,
            "first_rates": list(self._first_rates),
            "rates": self._rates(),
            "steps_per_epoch": self.steps_per_epoch,
            "scheduler": self.scheduler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a ``state_dict``, even if the batch size or the number of ranks has changed.

        Args:
            state: What ``state_dict`` returned.

        Raises:
            StateError: If it is not the state of a paced scheduler with as many parameter groups.

        >>> import torch, infobatch
        >>> train_data = infobatch.InfoBatch(range(64), num_epochs=8)
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        >>> linear = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=8 * 8)
        >>> scheduler = infobatch.pace(linear, train_data, steps_per_epoch=8)
        >>> scheduler.load_state_dict(scheduler.state_dict())
        """
        groups = len(self.optimizer.param_groups)
        if (
            not isinstance(state, dict)
            or set(state) != FIELDS
            or not _are_rates(state["first_rates"], groups)
            or not _are_rates(state["rates"], groups)
            or not is_count(state["count"], 0)
            or not is_count(state["steps_per_epoch"], 1)
            or not isinstance(state["scheduler"], dict)
        ):
            got = repr(sorted(state)) if isinstance(state, dict) else type(state).__name__
            expected = "the state of a paced scheduler with as many parameter groups"
            raise StateError(
                message(expected, got, "Load what state_dict() of a paced scheduler returned. Nothing was loaded.")
            )
        if state["steps_per_epoch"] == self.steps_per_epoch:
            self.scheduler.load_state_dict(state["scheduler"])
            self._count = state["count"]
            self._replayed = None
        else:
            self._replay(state)
        self._is_new = False
        self._stepped = _count_steps(self.scheduler)
        self._first_rates = _copy(state["first_rates"])

    def begin(self) -> None:
        """Called by the training data when the plan of an epoch is known."""
        if self.train_data.epoch < self.train_data.num_epochs:
            self._watch()
        self._is_new = False
        if self._replayed is not None:
            self._set_rates(self._replayed)  # an optimizer loaded since brought the rates of the other steps

    # ---- where the scheduler stands ----------------------------------------------------------------------

    def _due(self) -> int:
        """Return how many steps the scheduler would have made by now on full data."""
        progress = epoch, done, _ = self.train_data.progress
        start = epoch * self.steps_per_epoch
        if done and (self.steps_per_epoch == 1 or self.train_data.plan().kept == self.train_data.plan().size):
            # In a full epoch every call is one step, as without pruning. A scheduler of epochs steps once in any epoch,
            # even if the loop leaves it early.
            return min(max(start, self._count) + 1, start + self.steps_per_epoch)
        return _steps_at(progress, self.steps_per_epoch)

    def _take_over(self) -> None:
        """Continue with a scheduler that has been stepped before."""
        older = self.train_data.listeners.get(unwrap(self.optimizer))
        if isinstance(older, Paced) and older._drives(self.scheduler, self.steps_per_epoch):
            self._count = older._count
            self._first_rates = [*older._first_rates, *self._first_rates[len(older._first_rates) :]]  # groups added
        else:
            self._count = min(self._stepped, self._due())

    def _drives(self, scheduler: LRScheduler, steps: int) -> bool:
        is_same = self.scheduler is scheduler and self.steps_per_epoch == steps
        return is_same and self._stepped == _count_steps(scheduler)

    def _begin_here(self) -> None:
        """Let a new scheduler begin where the data are."""
        self._count = _steps_at(self.train_data.progress, self.steps_per_epoch) if self.train_data.epoch else 0

    def _check_total(self) -> None:
        total = getattr(self.scheduler, "total_steps", None)
        wanted, gone = self.train_data.num_epochs * self.steps_per_epoch, max(self._count - self._stepped, 0)
        if total is not None and total < wanted - gone:
            what = f"num_epochs * steps_per_epoch = {wanted} steps"
            if gone:
                what = f"{wanted - gone} steps, after the {gone} of full data before it"
            remedy = (
                "Build it as for full data. A scheduler for the last epochs only is paced once the data are there: "
                "when resuming, after loading their state."
            )
            raise InputError(message(f"a scheduler of at least {what}", f"total_steps={total}", remedy))

    def _replay(self, state: dict[str, Any]) -> None:
        """Step a new scheduler to the position of a saved one that was built for other steps."""
        if self._start is None:
            saved = state["steps_per_epoch"]
            raise StateError(
                message(
                    f"a new scheduler, to continue with {self.steps_per_epoch} steps per epoch after {saved}",
                    "one that had been stepped or loaded before infobatch.pace was called",
                    "Build the scheduler, call infobatch.pace, and then load their states.",
                )
            )
        self.scheduler.load_state_dict(copy.deepcopy(self._start))
        self._set_rates(_copy(state["first_rates"]))
        self._count = state["count"] * self.steps_per_epoch // state["steps_per_epoch"]
        steps = _saved_steps(state["scheduler"], state["count"]) * self.steps_per_epoch // state["steps_per_epoch"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the optimizer has stepped, but in another process
            for _ in range(steps):
                self.scheduler.step()
        self._replayed = self._rates()

    def _rates(self) -> list[Any]:
        return _copy([group["lr"] for group in self.optimizer.param_groups])

    def _set_rates(self, rates: list[Any]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=False):  # groups added since keep theirs
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)  # in place: captured graphs read it there
            else:
                group["lr"] = rate

    # ---- warnings ----------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """At the beginning of an epoch, check that the scheduler was stepped as often as expected in the last one."""
        progress = epoch, done, _ = self.train_data.progress
        if epoch == self._watched_epoch:
            return  # another pass over the same epoch
        text, ahead = "", self._count - _steps_at(progress, self.steps_per_epoch)
        if self._is_new and not self._stepped:
            self._begin_here()  # the data may have been loaded since
            if epoch and not _has_trained_here(self.train_data):
                text = (
                    f"the data are in epoch {epoch}, but the scheduler is at its start: to continue with it, load the "
                    "state of what pace returned, too; otherwise it begins here, which is right only for a new phase"
                )
        elif self._watched_epoch is None and ahead > 1:  # 1: batches need not divide an epoch evenly
            text = (
                f"the scheduler is {ahead} steps ahead of the data, which are in epoch {epoch}: load the state of the "
                "training data, too; otherwise the rate stays as it is until they have caught up"
            )
        elif self._watched_epoch is not None and epoch == self._watched_epoch + 1:
            text = self._describe_missing(self.train_data.history[-1].growth == 1)
        if text and not self._has_warned:
            self._has_warned = True
            warn(text)
        self._watched_epoch, self._calls = None if done else epoch, 0

    def _describe_missing(self, was_full: bool) -> str:
        """Say what is wrong with the number of steps in an epoch; empty if nothing is."""
        if not self._calls:
            return (
                "an epoch went by without a step of the scheduler: call step() of what pace returned, unless it is "
                "finished"
            )
        is_rest = self._calls == self.steps_per_epoch - 1  # the loop steps after whole groups of batches only
        if was_full and 1.5 * self._calls <= self.steps_per_epoch and not is_rest:
            return (
                f"the scheduler was stepped {plural(self._calls, 'time')} in a full epoch, with steps_per_epoch="
                f"{self.steps_per_epoch}: with gradient accumulation pass infobatch.full_steps(..., accumulate=...), "
                "for a scheduler stepped once per epoch pass steps_per_epoch=1"
            )
        return ""

    def _warn_if_scale_blind(self) -> None:
        data, optimizer = self.train_data, type(unwrap(self.optimizer))
        is_blind = not SCALE_BLIND.isdisjoint(kind.__name__ for kind in optimizer.__mro__)
        if data.compensate == "loss" and data.method.unbiased and is_blind:
            warn(
                f"{optimizer.__name__} hardly depends on the scale of a gradient, so the growing loss of a pruned "
                "epoch does not make up for its missing steps"
            )


def _check(scheduler: Any, train_data: Any) -> None:
    if isinstance(scheduler, ReduceLROnPlateau):
        remedy = "It follows a metric, not steps: step it yourself, without pace."
        raise InputError(message("a scheduler that counts steps or epochs", "ReduceLROnPlateau", remedy))
    if not isinstance(scheduler, LRScheduler):
        remedy = (
            "The order is pace(scheduler, train_data, steps_per_epoch). Give a schedule that is not torch's to a "
            "torch.optim.lr_scheduler.LambdaLR, as a function of the step, and pace that."
        )
        raise InputError(message("a scheduler of torch", type(scheduler).__name__, remedy))
    check_wrapped(train_data)


def _has_trained_here(train_data: Pruned) -> bool:
    """Whether the data are where they are by training in this process, and not by loading a state."""
    epoch = train_data._epoch
    return epoch.last is not None and (epoch.last.epoch < epoch.epoch or epoch.done() > 0)


def _count_steps(scheduler: LRScheduler) -> int:
    """Return how many steps a scheduler has made; a chain does not count itself."""
    if isinstance(scheduler, ChainedScheduler):
        return max(_count_steps(each) for each in scheduler._schedulers)
    return max(getattr(scheduler, "last_epoch", 0), 0)


def _saved_steps(saved: dict[str, Any], counted: int) -> int:
    """Return how many of the counted steps a saved scheduler made: fewer if it began in the middle of training."""
    if "last_epoch" in saved:
        return min(max(int(saved["last_epoch"]), 0), counted)
    return max((_saved_steps(each, counted) for each in saved.get("_schedulers", ())), default=counted)


def _steps_at(progress: tuple[int, int, int], steps_per_epoch: int) -> int:
    """Return a position in the data in steps of full epochs."""
    epoch, done, total = progress
    return epoch * steps_per_epoch + done * steps_per_epoch // total


def _copy(rates: list[Any]) -> list[Any]:
    return [rate.clone() if isinstance(rate, Tensor) else rate for rate in rates]


def _are_rates(found: Any, count: int) -> bool:
    if not isinstance(found, list) or len(found) != count:
        return False
    return all(is_number(rate.item() if isinstance(rate, Tensor) and rate.numel() == 1 else rate) for rate in found)
