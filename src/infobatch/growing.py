"""What grows in the place of steps, and who makes it grow."""

from __future__ import annotations

from typing import Any, Protocol

from .errors import InputError, message
from .plan import GROWTHS, Growth, Plan, ShardPlan


class Pace(Protocol):
    """What ``infobatch.pace`` makes, as the data see it."""

    @property
    def growth(self) -> float: ...

    def begin(self) -> None:
        """An epoch's plan is known, and its first batch not made yet; also once after the last epoch."""


class Growing:
    """What was asked for, and who looks after it."""

    def __init__(self, what: Growth, *, unbiased: bool) -> None:
        if what not in GROWTHS:
            remedy = "See infobatch.pace for what grows."
            raise InputError(message('compensate "none", "lr" or "loss"', repr(what), remedy))
        self.what = what
        self.unbiased = unbiased
        """Whether the method's weights make up for those left out; else they are 1, and no loss grows."""
        self.paced = False
        """Whether somebody looks after the learning rate."""
        self.paces: dict[Any, Pace] = {}
        """By optimizer: who makes its learning rate grow."""

    @property
    def steps_grow(self) -> bool:
        """Whether a step of a pruned epoch goes further than one of full data."""
        return self.what == "lr" or (self.what == "loss" and self.unbiased)

    def scale(self, plan: Plan | ShardPlan) -> float:
        """Unless the loss grows the weights have mean 1 over the plan, whatever they sum to before."""
        return 1.0 if self.what == "loss" else plan.kept / plan.weight_sum

    def begin(self) -> None:
        for each in self.paces.values():
            each.begin()

    def unattended(self, plan: Plan | ShardPlan) -> bool:
        """Whether the learning rate is to grow in this epoch, and nobody makes it."""
        return plan.growth > 1 and self.what == "lr" and not (self.paces or self.paced)

    def asleep(self, plan: Plan | ShardPlan) -> bool:
        """Whether who looks after the learning rate has another epoch's."""
        return self.what == "lr" and any(each.growth != plan.growth for each in self.paces.values())
