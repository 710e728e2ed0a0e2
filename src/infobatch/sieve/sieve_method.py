"""What a method of choosing inside the batch is: a rule that says which rows, and an amount that says how many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, ParamSpec

import torch
from torch import Tensor

from ..errors import InputError, message
from ..methods import Card
from .amount import Amount, Fixed
from .rules import Choice

Arguments = ParamSpec("Arguments")


class Seen(NamedTuple):
    """What a rule may read of a batch.

    >>> import torch
    >>> from infobatch.sieve import Seen
    >>> Seen(losses=torch.tensor([0.1, 2.0]), k=1, generator=None, batch=None).k
    1
    """

    losses: Tensor
    """The losses of the look, shape [batch]; minus infinity for a row that must not be chosen."""
    k: int
    """The number of rows to choose."""
    generator: torch.Generator | None
    """The source of randomness, on the device of the losses; None inside a captured CUDA graph, for torch's own."""
    batch: Any
    """The whole batch."""


Rule = Callable[[Seen], Choice]
"""Returns exactly k rows and their weights. See ``rules.py``."""


@dataclass(frozen=True)
class SieveMethod:
    """A rule with its arguments, as ``Sieve`` uses it.

    To write your own, give it a function that returns rows and weights:

    >>> import torch
    >>> from infobatch.sieve import Choice, Fixed, SieveMethod
    >>> def first(seen):
    ...     return Choice(torch.arange(seen.k), torch.ones(seen.k))
    >>> SieveMethod("first", {"keep": 0.5}, first, lambda: Fixed(0.5))
    first(keep=0.5)
    """

    name: str
    settings: dict[str, Any]
    rule: Rule
    make_amount: Callable[[], Amount]
    valid_tokens: Callable[[Any], Tensor] | None = None
    """Given for methods that choose tokens instead of rows: (batch) -> which tokens count."""
    is_windowed: bool = False
    """Whether it is active in part of the run only, so that the sieve needs ``num_steps``."""
    needs_look: bool = True
    """Whether the rule reads losses."""
    unbiased: bool = False
    """Whether the weights make up for the rows left out, so that the expected gradient is that of the whole batch."""

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.settings.items())})"


SIEVE_METHODS: dict[str, Callable[..., SieveMethod]] = {}
"""Every registered method by name."""
SIEVE_CARDS: dict[str, Card] = {}


def register(card: Card) -> Callable[[Callable[Arguments, SieveMethod]], Callable[Arguments, SieveMethod]]:
    """Register a function that makes a method, under the function's name and with its card.

    Args:
        card: Its row in the table of methods.

    Returns:
        A decorator, which returns the function unchanged.

    >>> from infobatch.sieve import SIEVE_CARDS, SIEVE_METHODS
    >>> "hardest" in SIEVE_METHODS, SIEVE_CARDS["hardest"].leaves_out
    (True, 'the easiest rows')
    """

    def add(make: Callable[Arguments, SieveMethod]) -> Callable[Arguments, SieveMethod]:
        SIEVE_METHODS[make.__name__] = make
        SIEVE_CARDS[make.__name__] = card
        return make

    return add


def with_share(name: str, keep: float, rule: Rule, *, unbiased: bool = False, **settings: Any) -> SieveMethod:
    """Return a method that passes on the same share of every batch."""
    return SieveMethod(name, {"keep": keep, **settings}, rule, lambda: Fixed(keep), unbiased=unbiased)


def check_method(given: Any) -> SieveMethod:
    """Return ``given`` if it is a method. The usual slip is to pass the function without calling it."""
    if not isinstance(given, SieveMethod):
        name = given if isinstance(given, str) and given in SIEVE_METHODS else getattr(given, "__name__", "hardest")
        name = name if name in SIEVE_METHODS else "hardest"
        remedy = f"Take one from infobatch.sieve and call it: infobatch.sieve.{name}()."
        raise InputError(message("a method of infobatch.sieve", repr(given)[:80], remedy))
    return given
