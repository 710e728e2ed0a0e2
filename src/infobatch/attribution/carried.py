"""Batches of ``infobatch.DataLoader``: each brings its indices, so the loader's order and workers do not matter."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

from torch import Tensor

from ..epoch.slice import Where
from ..errors import MisalignedError, message, plural
from .counted import Counted
from .queue import Queue, Rival, nothing_waits, rival_error, wrong_size


class Carried(Queue):
    """A pass whose batches bring their indices. Takes over from the ``Counted`` pass that hands the samples out."""

    def __init__(self, origin: Counted, holder: Any, lookahead: int) -> None:
        super().__init__(origin.epoch, origin.slice, origin.total, origin.rivals)
        self.origin = origin
        self.batch_size, self.is_sized, self.is_persistent = origin.batch_size, origin.is_sized, False
        self.lookahead = lookahead
        self.waiting: deque[Where] = deque()
        self.delivered = 0
        """How many samples were delivered."""
        self.unsure: list[Where] = []
        self._holder: weakref.ref[Any] = weakref.ref(holder)
        self._is_exhausted = False
        self._next: int | None = 0
        """Where the slice goes on, as long as batches come in its order."""

    def deliver(self, indices: Tensor) -> None:
        """Append a batch. In the order of the slice, positions stand for indices."""
        self.delivered += indices.numel()
        if self._next is not None:
            ahead = range(self._next, self._next + indices.numel())
            if self.slice.matches(ahead, indices):
                self._next = ahead.stop
                self.waiting.append(ahead)
                return
            self._next = None  # out of order from here on
        self.waiting.append(indices)

    def exhaust(self) -> None:
        """The loader has no more batches."""
        self._is_exhausted = True

    def take(self, count: int) -> Where:
        self._check_rivals()
        waiting = len(self.waiting)
        if not waiting:
            raise nothing_waits(count)
        expected = max(self.lookahead, 1) if self._is_exhausted else self.lookahead + 1
        if waiting > expected or (waiting < expected and not self._is_exhausted):
            raise MisalignedError(
                message(
                    f"{plural(expected, 'delivered batch')} waiting for losses at an update",
                    str(waiting),
                    "Call train_data.skip() for a batch you leave out; a loop that reads ahead needs "
                    "infobatch.DataLoader(..., lookahead=n); a collate_fn must not drop samples.",
                )
            )
        if count != len(self.waiting[0]):
            raise wrong_size(count, len(self.waiting[0]))
        where = self._pop()
        if self.lookahead > 1 and self._is_exhausted and self.waiting:
            self.unsure.append(where)  # which of the batches at hand it was shows when all have had their losses
        return where

    def _pop(self) -> Where:
        where = self.waiting.popleft()
        self.taken += len(where)
        if not self.waiting:
            self.unsure = []
        return where

    def put_back(self, where: Where) -> None:
        self.taken -= len(where)
        self.waiting.appendleft(where)
        if self.unsure and self.unsure[-1] is where:
            self.unsure.pop()

    def drop(self) -> Where:
        self._check_rivals()
        if not self.waiting:
            raise nothing_waits(None)
        return self._pop()

    def newest(self) -> Tensor:
        if not self.waiting:
            raise nothing_waits(None)
        where = self.waiting[-1]
        return where if isinstance(where, Tensor) else self.slice.at(where)

    def _check_rivals(self) -> None:
        for rival in self.rivals:
            if rival.is_open and (rival.went_on or (not self.taken and rival.first != self._front())):
                raise rival_error()

    def _front(self) -> list[int] | None:
        """The samples of the oldest waiting batch."""
        if not self.waiting:
            return None
        where = self.waiting[0]
        samples: list[int] = (where if isinstance(where, Tensor) else self.slice.at(where)).tolist()
        return samples

    def supersede(self) -> None:
        self.origin.supersede()

    # ---- ends --------------------------------------------------------------------------------------------

    @property
    def is_superseded(self) -> bool:  # type: ignore[override]
        return self.origin.is_superseded

    @property
    def is_finished(self) -> bool:
        return self.taken >= self.total or (self._is_exhausted and not self.waiting)

    @property
    def is_exhausted(self) -> bool:
        return self._is_exhausted

    @property
    def may_be_exhausted(self) -> bool:
        return self._is_exhausted

    @property
    def is_over(self) -> bool:
        return self._is_exhausted

    @property
    def is_open(self) -> bool:
        return not self._is_exhausted and not self.is_superseded and self._holder() is not None

    def covers(self, done: int) -> bool:
        return done >= self.total or (self._is_exhausted and 0 < self.delivered <= done)

    def as_rival(self) -> Rival | None:
        """A step of an older iterator raises by itself, so only batches that wait already matter."""
        if not self.waiting:
            return None
        is_look = not self.taken and len(self.waiting) == 1
        return Rival(self._holder, self._front() if is_look else None)

    def check_complete(self) -> None:
        if self.unsure:
            lost = sum(len(where) for where in self.unsure)
            while self.unsure:
                self.slice.skip(self.unsure.pop())
            raise MisalignedError(
                message(
                    "losses for every batch that was read ahead",
                    f"{plural(lost, 'loss')} and then no more, in epoch {self.epoch}; they were dropped",
                    "Call update() or train_data.skip() for every batch.",
                )
            )
