"""What a method is: a policy that says which samples to keep, a schedule that says when, and a memory.

Every rule of ``methods/rules/`` is a function that returns a ``Method`` and is registered by ``@register`` together
with its card.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, Literal, NamedTuple, ParamSpec, Protocol

import torch
from torch import Tensor

from ..checks import as_int, is_number
from ..errors import InputError, message
from ..plan import Plan, generator_for
from ..plan import full as full_plan
from .memory import Memory

Arguments = ParamSpec("Arguments")
Recorded = Literal["loss", "batch", "relative"]
"""What an update records of each sample: its loss, the mean loss of its batch, or its loss minus that mean."""


# ---- schedules: when to prune --------------------------------------------------------------------------------------


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


# ---- policies and methods ------------------------------------------------------------------------------------------


class ScoresView(Protocol):
    """What a policy may read: the scores, and what the method remembers per sample."""

    @property
    def scores(self) -> Tensor:
        """The last finite loss per sample; NaN where there is none."""
        ...

    @property
    def planned(self) -> int:
        """The number of samples in the plans of all finished epochs together."""
        ...

    @property
    def memory(self) -> Mapping[str, Tensor]: ...
    @property
    def size(self) -> int: ...


@dataclass(frozen=True, eq=False)
class Seen:
    """Other scores for a policy to read: what a policy that wraps another one shows to it."""

    scores: Tensor
    planned: int
    memory: Mapping[str, Tensor]

    @property
    def size(self) -> int:
        return self.scores.numel()


Policy = Callable[[Any, Moment, torch.Generator], Plan]
"""(scores view, moment, generator) -> Plan."""


def _accept_any(num_epochs: int, schedule: Schedule) -> None:
    del num_epochs, schedule


@dataclass(frozen=True)
class Method:
    """A rule with its arguments, as ``Pruned`` uses it.

    >>> import infobatch
    >>> method = infobatch.methods.infobatch(ratio=0.5)
    >>> method.name, method.unbiased, method.terms
    ('infobatch', True, 'infobatch(ratio=0.5, delta=0.875)')
    """

    name: str
    settings: dict[str, Any]
    policy: Policy
    schedule: Schedule
    rescale: bool = True
    """False sets every weight to 1, whatever the policy returns."""
    unbiased: bool = True
    """Whether the weights make up for the pruned samples, so that the expected gradient is that of all data."""
    check_epochs: Callable[[int, Schedule], None] = _accept_any
    """Raises InputError for a number of epochs in which the method cannot keep its promise."""
    memory: Memory | None = None
    """What it remembers per sample besides the last score."""
    channels: frozenset[str] = frozenset()
    """The score channels that every update must bring; see ``methods.channels``."""
    prunes_first: bool = False
    """Whether it prunes without any score, and so in the first epoch, too."""
    observes_hidden: bool = False
    """Whether it needs the losses of the pruned samples after each epoch; see ``Pruned.hidden``."""
    score: Recorded = "loss"
    """What an update records: the loss of each sample, the mean loss of its batch, or the loss minus that mean."""
    around: tuple[partial[Plan], ...] = ()
    """Applied to every pruned plan, (scores view, plan, generator) -> Plan: first weights, then guards."""
    size: int | None = None
    """The size of the data set it was made for, where it was given labels or indices."""
    labels: str = ""
    """A fingerprint of the labels it was given, if any."""

    @property
    def terms(self) -> str:
        """The text that must be equal on all ranks and in a checkpoint that is resumed."""
        return f"{self!r} with labels {self.labels}" if self.labels else repr(self)

    def draw(self, view: ScoresView, moment: Moment, seed: int) -> Plan:
        """Draw the plan of one epoch: a pure function of the scores, the epoch and the seed.

        Args:
            view: The scores, and what the method remembers about each sample.
            moment: The epoch, and the number of epochs.
            seed: The seed of the run.

        Returns:
            The plan.

        >>> import torch, infobatch
        >>> from infobatch.methods.method import Moment, Seen
        >>> view = Seen(torch.tensor([0.1, 0.2, 0.3, 3.0]), planned=4, memory={})
        >>> infobatch.methods.infobatch(ratio=2 / 3).draw(view, Moment(epoch=1, num_epochs=8), seed=0)
        Plan(epoch=1, kept=2 of 4, saved=50.0%)
        """
        generator = generator_for(seed, moment.epoch, view.scores.device)
        if not self.schedule(moment):
            return full_plan(view.size, moment.epoch, generator)
        plan = self.policy(view, moment._replace(schedule=self.schedule), generator)
        remembers_choice = self.memory is not None and "chosen" in self.memory.columns
        chosen = plan.table != 0 if self.around and remembers_choice else None
        if not self.rescale:
            plan = Plan(plan.epoch, plan.indices, (plan.table != 0).float())
        for change in self.around:
            plan = change(view, plan, generator)
        return Plan(plan.epoch, plan.indices, plan.table, chosen)

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.settings.items())})"


def check_method(given: Any) -> Method:
    """Return ``given`` if it is a method. The usual slip is to pass the function without calling it."""
    if not isinstance(given, Method):
        name = given if isinstance(given, str) and given in METHODS else getattr(given, "__name__", "infobatch")
        remedy = f"Take one from infobatch.methods and call it: infobatch.methods.{name}()."
        raise InputError(message("a method", repr(given), remedy))
    return given


# ---- the registry ----------------------------------------------------------------------------------------------

MEAN, RANK, DRAW = "O(N): a mean and a draw", "O(N): a k-th value and a draw", "O(N): a draw"
SORT = "O(N log N): a sort and a draw"


@dataclass(frozen=True)
class Card:
    """One row of the table of methods.

    >>> import infobatch
    >>> infobatch.methods.CARDS["infobatch"].source
    'the paper, eq. 3'
    """

    source: str
    leaves_out: str
    cost: str = MEAN
    """The cost of a plan for N samples, apart from the shuffle that every epoch needs."""
    weights: str = "unbiased"
    needs: str = "losses"


METHODS: dict[str, Callable[..., Method]] = {}
"""Every registered method by name."""
CARDS: dict[str, Card] = {}


def register(
    card: Card,
) -> Callable[[Callable[Arguments, Method]], Callable[Arguments, Method]]:
    """Register a function that makes a method, under the function's name and with its card.

    Args:
        card: Its row in the table of methods.

    Returns:
        A decorator, which returns the function unchanged.

    >>> from infobatch.methods import CARDS, METHODS
    >>> "infobatch" in METHODS, CARDS["infobatch"].weights
    (True, 'unbiased')
    """

    def add(make: Callable[Arguments, Method]) -> Callable[Arguments, Method]:
        METHODS[make.__name__] = make
        CARDS[make.__name__] = card
        return make

    return add


def published(
    name: str, settings: dict[str, Any], policy: Policy, schedule: Schedule, memory: Memory | None = None, **more: Any
) -> Method:
    """Return a method of another paper as published: it prunes whenever its rule says so, and every weight is 1."""
    return Method(name, settings, policy, schedule, rescale=False, unbiased=False, memory=memory, **more)
