"""A method: whom to keep, when to ask, what to remember."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from ..errors import InputError, message
from ..plan import Plan, generator_for
from ..plan import full as full_plan
from .cuts import Policy
from .draws import Book
from .memory import Memory
from .when import Moment, Schedule


def _any_number(num_epochs: int, schedule: Schedule) -> None:
    del num_epochs, schedule


@dataclass(frozen=True)
class Method:
    """A policy that says whom to keep, and a schedule that says when to ask it."""

    name: str
    settings: dict[str, Any]
    policy: Policy
    schedule: Schedule
    rescale: bool = True
    """False: every weight is 1, whatever the policy says."""
    unbiased: bool = True
    """Whether the weights make up for those left out, so that each step of a pruned epoch goes further."""
    fits: Callable[[int, Schedule], None] = _any_number
    """Refuses a number of epochs, and when of them it prunes, under which it cannot do what it promises."""
    memory: Memory | None = None
    """What it remembers of each sample besides the last score."""
    needs: frozenset[str] = frozenset()
    """What it needs besides losses: "confidence" with each update, "hidden" for a look at those left out."""
    score: Literal["loss", "batch"] = "loss"
    """What an update records: each sample's loss, or the mean loss of its batch."""
    around: tuple[partial[Plan], ...] = ()
    """What is done to each pruned plan, (book, plan, generator) -> Plan: weights for those left out, then guards."""
    size: int | None = None
    """How many samples it is for, where it was given their labels or places."""
    labels: str = ""
    """A mark of the labels it was given, if any."""

    @property
    def terms(self) -> str:
        """What training agreed on: no run goes on with another one, and no rank has one of its own."""
        return f"{self!r} with labels {self.labels}" if self.labels else repr(self)

    def check(self, num_epochs: int) -> None:
        """An InputError where it cannot do what it promises in so many epochs."""
        self.fits(num_epochs, self.schedule)

    def draw(self, book: Book, moment: Moment, seed: int) -> Plan:
        """The plan of one epoch: a pure function of the scores, the epoch and the seed."""
        generator = generator_for(seed, moment.epoch, book.scores.device)
        if not self.schedule(moment):
            return full_plan(book.size, moment.epoch, generator)
        plan = self.policy(book, moment._replace(schedule=self.schedule), generator)
        remembered = self.memory is not None and "chosen" in self.memory.columns
        chosen = plan.table != 0 if self.around and remembered else None
        if not self.rescale:
            plan = Plan(plan.epoch, plan.indices, (plan.table != 0).float())
        for change in self.around:
            plan = change(book, plan, generator)
        return Plan(plan.epoch, plan.indices, plan.table, chosen)

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.settings.items())})"


def method_of(given: Any) -> Method:
    """A method in the place of one; the usual slip is its function."""
    if not isinstance(given, Method):
        remedy = "Take one from infobatch.methods, and call it: methods.infobatch()."
        raise InputError(message("a method", repr(given), remedy))
    return given
