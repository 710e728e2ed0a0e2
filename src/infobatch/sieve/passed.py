"""What a sieve passed on of one batch, and what the losses that come back mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..adapters.per_sample import PerSample
from ..errors import MisalignedError, message, plural

MOST_WAITING = 16
"""How many batches without losses are remembered; a loop that applies the weights itself brings none back."""


@dataclass(frozen=True)
class Passed:
    """The rows passed on of one batch, with their weights."""

    size: int
    """The number of rows of the whole batch."""
    rows: Tensor | None
    """The rows passed on; None for all."""
    weights: Tensor
    """One for each loss that comes back."""
    losses: Tensor | None = None
    """The losses of the look, if it was needed."""
    is_measured: bool = False
    """Whether the model's losses are to be compared with those of the look."""
    valid: Tensor | None = None
    """Which tokens count, where tokens are chosen instead of rows."""

    def count(self) -> Tensor | int:
        """Return what a sum of losses is divided by: the rows of the whole batch, or its valid tokens."""
        return self.size if self.valid is None else self.valid.sum().clamp(min=1)

    def weigh(self, losses: Tensor) -> Tensor:
        """Return weight * loss; 0 where the weight is 0, also if the loss is not finite."""
        return torch.where(self.weights != 0, losses * self.weights, 0.0)

    def expand(self, losses: Tensor, score: Tensor | None = None, *, known: Tensor | None) -> PerSample:
        """Return the loss and the score of each row of the whole batch; rows left out have the ``known`` score."""
        weighted, score = self.weigh(losses), losses.detach() if score is None else score.detach()
        if self.rows is None:
            return PerSample(weighted, score)
        unknown = torch.full((self.size,), torch.nan, dtype=score.dtype, device=losses.device)
        scores = unknown if known is None else known.to(score.dtype, copy=True)
        return PerSample(
            weighted.new_zeros(self.size).index_copy(0, self.rows, weighted),
            scores.index_copy(0, self.rows, score),
        )

    def observed(self) -> Passed:
        """Return the same after its measurement."""
        return replace(self, is_measured=False)

    def to(self, device: torch.device) -> Passed:
        """Return the same on another device."""
        tensors = {name: getattr(self, name) for name in ("rows", "weights", "losses", "valid")}
        return replace(self, **{name: one.to(device) for name, one in tensors.items() if one is not None})

    def tensors(self) -> list[Tensor]:
        """Return all tensors in it."""
        return [one for one in (self.rows, self.weights, self.losses, self.valid) if one is not None]


class Waiting:
    """The batches that were passed on and have no losses yet.

    Losses do not show which batch they are from, so only one may wait, unless its weights come with the losses.
    """

    def __init__(self) -> None:
        self._batches: list[Passed] = []
        self._answered: Passed | None = None

    @property
    def latest(self) -> Passed | None:
        """The batch that was passed on last, unless it was left out."""
        return self._batches[-1] if self._batches else self._answered

    def add(self, passed: Passed) -> None:
        self._batches = [*self._batches[1 - MOST_WAITING :], passed]
        self._answered = None

    def find(self, weight: Tensor | None) -> Passed:
        """Return the batch that losses belong to: with these weights, or the only one that waits."""
        known = [*self._batches, *([] if self._answered is None else [self._answered])]
        if weight is not None:
            known = [one for one in known if one.weights is weight]
            if not known:
                got = "other weights, or those of a batch that has had its losses"
                remedy = f"Pass the tensor itself; the last {MOST_WAITING} batches without losses are remembered."
                raise MisalignedError(message("the weights that the sieve returned with these rows", got, remedy))
        elif not known:
            remedy = "Call sieve(x, y) first."
            raise MisalignedError(message("a batch from the sieve before its losses", "none", remedy))
        elif len(self._batches) > 1:
            expected = "losses for every earlier batch before those of the next"
            remedy = (
                "Call sieve.skip() for a batch you leave out. In a loop that reads ahead, pass the weights of the "
                "batch, too: sieve.reduce(losses, weight)."
            )
            got = f"{plural(len(self._batches), 'batch')} of the sieve that wait for theirs"
            raise MisalignedError(message(expected, got, remedy))
        return known[0]

    def answer(self, found: Passed, answered: Passed) -> None:
        """Let a batch wait no longer; ``answered`` is what it is from now on."""
        self._batches = [one for one in self._batches if one is not found]
        self._answered = answered

    def clear(self) -> None:
        """Expect no losses any more."""
        self._batches, self._answered = [], None


def leaves_of(losses: Tensor) -> Iterator[Tensor]:
    """Yield the parameters to which ``backward`` on these losses brings a gradient.

    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> next(leaves_of((2 * weight).exp())) is weight
    True
    """
    waiting, seen = [losses.grad_fn], {losses.grad_fn}
    while waiting:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)  # of a node that accumulates a gradient
        if leaf is not None:
            yield leaf
        following = {one for one, _ in getattr(node, "next_functions", ())} - seen
        seen |= following
        waiting += following
