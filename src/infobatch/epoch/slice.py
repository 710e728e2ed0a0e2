"""The way a pass goes: who comes in which order on this rank, and where their weights and losses lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from ..plan import moved
from ..ranks.exchange import Ranks, ghosts, share
from .scores import SKIPPED, UNSEEN, ScoreBook

CHUNK = 1 << 16
Where = range | Tensor
"""Whose losses these are: a range of places on the way, or indices."""


class Walk(Protocol):
    """What a pass, and the epoch it belongs to, ask of a walk."""

    ranks: Ranks
    size: int
    """How many samples it has for this rank, ghosts included."""

    def chunks(self, needed: Callable[[], int]) -> Iterator[Tensor]:
        """The samples, in order. What lies before the place ``needed()`` is not asked for again."""
        ...

    def at(self, places: range) -> Tensor:
        """The samples at these places, as far as the walk goes and is remembered."""
        ...

    def whose(self, places: range) -> Where:
        """How to name the samples at these places."""
        ...

    def holds(self, places: range, indices: Tensor) -> bool:
        """Whether these samples lie at these places, and the places will do to name them."""
        ...

    def note(self, where: Where, scores: Tensor) -> Tensor:
        """Write the scores down and return the weights."""
        ...

    def skip(self, where: Where) -> None:
        """Write down that these get no score."""
        ...

    def hand_in(self) -> None:
        """What was noted here goes into the book. May be done again."""
        ...

    @property
    def ghost(self) -> Tensor | None:
        """The sample this rank repeats without weight, to be as long as the others; or None."""
        ...

    def took(self, where: Where) -> None:
        """These samples are not waiting any more."""
        ...

    def ghosts_came(self, taken: int) -> int:
        """How many of the losses that came were a ghost's, with so many taken. One that was named is forgotten."""
        ...

    def correction(self, count: int, taken: int) -> float:
        """What makes the mean over ranks of the last ``count`` losses a mean over samples: ghosts are not counted."""
        ...

    def to(self, device: torch.device) -> None: ...

    def release(self) -> None:
        """The epoch is closed: nothing is asked for any more."""
        ...


class PlanWalk:
    """A rank's part of a plan, as a list. Weights and losses lie beside it in its order."""

    def __init__(self, remaining: Tensor, ranks: Ranks, book: ScoreBook) -> None:
        self.remaining = remaining
        """What is left of the plan, for all ranks together."""
        self.ranks = ranks
        self.indices = share(remaining, ranks)
        """This rank's part of it."""
        self.size = self.indices.numel()
        self._book = book
        self._ghosts = ghosts(remaining.numel(), ranks.world)
        self._host = self.indices.cpu()
        with torch.inference_mode(False):  # they outlive the mode a batch happens to be fetched in
            if ranks.world > 1:
                book.exclude(self._others())
            self.weights = book.weights.index_select(0, self.indices)
            self.losses = torch.full((self.size,), UNSEEN, dtype=torch.float32, device=self.indices.device)

    def chunks(self, needed: Callable[[], int]) -> Iterator[Tensor]:  # noqa: ARG002
        yield from torch.split(self._host, CHUNK)

    def at(self, places: range) -> Tensor:
        return self._host[places.start : places.stop]

    def whose(self, places: range) -> Where:
        return places

    def holds(self, places: range, indices: Tensor) -> bool:
        return torch.equal(self.at(places), indices)

    # ---- weights and losses ------------------------------------------------------------------------------

    def note(self, where: Where, scores: Tensor) -> Tensor:
        if isinstance(where, Tensor):
            return self._book.note(moved(where, scores.device), scores)
        self.losses[where.start : where.stop].copy_(scores.detach())
        return self.weights[where.start : where.stop]

    def skip(self, where: Where) -> None:
        if isinstance(where, Tensor):
            self._book.skip(moved(where, self._book.device))
        else:
            self.losses[where.start : where.stop] = SKIPPED

    def named(self, where: Where) -> Tensor:
        """These samples by their indices."""
        return where if isinstance(where, Tensor) else self.indices[where.start : where.stop]

    def hand_in(self) -> None:
        if self.ghost is not None:
            self.losses[-1] = UNSEEN
        seen = self.losses != UNSEEN
        self._book.fresh.index_copy_(0, self.indices[seen], self.losses[seen])

    def to(self, device: torch.device) -> None:
        for name in ("remaining", "indices", "weights", "losses"):
            setattr(self, name, moved(getattr(self, name), device))

    def release(self) -> None:
        self.indices = self.remaining = self._host = self._host.new_empty(0)
        self.weights = self.losses = self.weights.new_empty(0)

    # ---- ranks -------------------------------------------------------------------------------------------

    def _others(self) -> Tensor:
        """What other ranks take."""
        position = torch.arange(self.remaining.numel(), device=self.remaining.device)
        return self.remaining[position % self.ranks.world != self.ranks.rank]

    @property
    def ghost(self) -> Tensor | None:
        return self.remaining[0] if self.ranks.rank >= self.ranks.world - self._ghosts else None

    def took(self, where: Where) -> None:
        pass  # a ghost comes last: how many were taken says whether it came

    def ghosts_came(self, taken: int) -> int:
        return 0 if self.ghost is None else int(taken == self.size or self._book.forget(self.ghost))

    def correction(self, count: int, taken: int) -> float:
        if not self._ghosts or taken < self.size:
            return 1.0
        together = count * self.ranks.world
        return together / (together - self._ghosts)
