"""What grows in the place of steps, and who makes it grow."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from .errors import InputError, message
from .plan import GROWTHS, Growth, Plan, ShardPlan

Compensate = Literal["auto", Growth]
"""What grows in the place of steps. "auto": the learning rate where ``infobatch.pace`` can grow it, else the loss."""


class Pace(Protocol):
    """What ``infobatch.pace`` makes, as the data see it."""

    @property
    def growth(self) -> float: ...

    def begin(self) -> None:
        """An epoch's plan is known, and its first batch not made yet; also once after the last epoch."""


class Growing:
    """What was asked for, and what it comes to.

    A method with weights 1 (``unbiased`` is False) asks for no growth, so by default it gets none.
    """

    def __init__(self, asked: Compensate, *, unbiased: bool) -> None:
        if asked not in ("auto", *GROWTHS):
            remedy = "See infobatch.pace for what grows."
            raise InputError(message('compensate "auto", "loss", "lr" or "none"', repr(asked), remedy))
        self.asked = asked
        self.settled = asked
        """What was asked for, or what a state that was loaded has settled."""
        self.unbiased = unbiased
        self.paced = False
        """Whether somebody looks after the learning rate."""
        self.paces: dict[Any, Pace] = {}
        """By optimizer: who makes its learning rate grow."""

    @property
    def now(self) -> Growth:
        if self.settled == "auto":
            return "lr" if self.paced and self.unbiased else "loss"
        return self.settled

    @property
    def steps_grow(self) -> bool:
        """Whether a step of a pruned epoch goes further than one of full data."""
        return self.now == "lr" or (self.now == "loss" and self.unbiased)

    @property
    def open(self) -> bool:
        """Whether a pace would still change what grows."""
        return self.settled == "auto" and self.unbiased and not self.paced

    def load(self, settled: Compensate) -> None:
        self.settled = self.asked if settled == "auto" else settled

    def scale(self, plan: Plan | ShardPlan) -> float:
        """Unless the loss grows the weights have mean 1 over the plan, whatever they sum to before."""
        return 1.0 if self.now == "loss" else plan.kept / plan.weight_sum

    def begin(self) -> None:
        for each in self.paces.values():
            each.begin()

    def unattended(self, plan: Plan | ShardPlan) -> bool:
        """Whether the learning rate is to grow in this epoch, and nobody makes it."""
        return plan.growth > 1 and self.now == "lr" and not (self.paces or self.paced)

    def asleep(self, plan: Plan | ShardPlan) -> bool:
        """Whether who looks after the learning rate has another epoch's."""
        return self.now == "lr" and any(each.growth != plan.growth for each in self.paces.values())
