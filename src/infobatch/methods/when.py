"""When to prune: functions of the moment, made by the small constructors below."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import NamedTuple

from ..checks import as_int, is_number
from ..errors import InputError, message


def _always(moment: Moment) -> bool:
    del moment
    return True


class Moment(NamedTuple):
    """Epoch ``epoch`` (counted from 0) of ``num_epochs``, and the schedule of the method in use."""

    epoch: int
    num_epochs: int
    schedule: Callable[[Moment], bool] = _always

    @property
    def pruning_left(self) -> int:
        """The number of epochs that prune, from this one on."""
        later = range(self.epoch, self.num_epochs)
        return sum(self.schedule(Moment(epoch, self.num_epochs)) for epoch in later)


Schedule = Callable[[Moment], bool]


def until(delta: float) -> Schedule:
    """Prune while t < delta * C (equation 10), compared as real numbers: 0.28 * 25 is 7 here."""
    if not is_number(delta) or not 0 <= delta <= 1:
        raise InputError(message("delta in [0, 1]", repr(delta), "The papers use 0.875; 1 turns annealing off."))
    return partial(_until, delta=float(delta))


def _until(moment: Moment, delta: float) -> bool:
    return moment.epoch < Fraction(repr(delta)) * moment.num_epochs


def after(warmup: int) -> Schedule:
    """Prune from epoch ``warmup`` on."""
    epochs = as_int(warmup)
    if epochs is None or epochs < 0:
        raise InputError(message("warmup as a number of epochs", repr(warmup), "0 means no warm-up."))
    return partial(_after, warmup=epochs)


def _after(moment: Moment, warmup: int) -> bool:
    return moment.epoch >= warmup


def all_of(*schedules: Schedule) -> Schedule:
    """Prune when every one of these schedules does."""
    return partial(_all_of, schedules=schedules)


def _all_of(moment: Moment, schedules: tuple[Schedule, ...]) -> bool:
    return all(schedule(moment) for schedule in schedules)
