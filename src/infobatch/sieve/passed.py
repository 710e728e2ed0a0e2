"""What a sieve passed on of one batch, and what the losses that come back mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..adapters.per_sample import PerSample


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

    def expand(self, losses: Tensor, known: Tensor | None) -> PerSample:
        """Return the loss and the score of each row of the whole batch; rows left out have the ``known`` score."""
        weighted = self.weigh(losses)
        if self.rows is None:
            return PerSample(weighted, losses.detach())
        unknown = torch.full((self.size,), torch.nan, dtype=losses.dtype, device=losses.device)
        score = unknown if known is None else known.to(losses.dtype, copy=True)
        return PerSample(
            weighted.new_zeros(self.size).index_copy(0, self.rows, weighted),
            score.index_copy(0, self.rows, losses.detach()),
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
