"""The batches of one pass over an epoch that wait for their losses.

Losses arrive as a bare vector, and a loader fetches ahead, so something must know which samples they belong to. There
are two strategies: ``Counted`` for stock loaders, whose batches are counted, and ``Carried`` for
``infobatch.DataLoader``, whose batches bring their indices. A caller who passes indices to ``update`` needs neither.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..epoch.slice import Slice, Where
from ..errors import MisalignedError, message, plural

ONE_ITERATOR = "one open iterator over the training data"
FINISH_FIRST = "Finish a pass before you begin the next; for passes that do not train use train_data.full()."
READ_AHEAD = (
    "In a loop that reads ahead let the indices travel with each batch: infobatch.DataLoader(..., with_indices=True), "
    "and update(loss, indices). With Accelerate use infobatch.integrations.accelerate.prepare."
)
STEPPED = message(ONE_ITERATOR, "a step of an older one after a newer one had begun", FINISH_FIRST)


class Queue(ABC):
    """One pass over what remains of an epoch: what was handed out, and which batch the next losses belong to."""

    def __init__(self, epoch: int, piece: Slice, total: int, rivals: list[Rival]) -> None:
        self.epoch = epoch
        self.slice = piece
        self.size = piece.size
        self.total = total
        """How many samples will be delivered: fewer than ``size`` if the loader drops its last batch."""
        self.is_void = False
        """Whether the plan of this pass was dropped."""
        self.rivals = rivals

    taken: int
    """How many samples have had their losses, or were left out."""
    batch_size: int
    is_sized: bool
    """Whether all batches but the last are known to have ``batch_size`` samples."""
    is_superseded: bool

    @abstractmethod
    def take(self, count: int) -> Where:
        """Return the samples that the next ``count`` losses belong to: one whole batch. It waits until ``commit``."""

    @abstractmethod
    def drop(self) -> Where:
        """Return the samples of the oldest waiting batch, which gets no losses. It waits until ``commit``."""

    @abstractmethod
    def commit(self, where: Where) -> None:
        """Count this batch as taken. All or nothing, wherever an interrupt falls."""

    @abstractmethod
    def newest(self) -> Tensor:
        """Return the indices of the batch that was delivered last."""

    @abstractmethod
    def supersede(self) -> None:
        """End this pass because a newer one begins: the next step of its iterator raises."""

    @property
    def is_finished(self) -> bool:
        """Whether every sample that will be delivered has its loss."""
        return self.taken >= self.total

    @property
    @abstractmethod
    def is_exhausted(self) -> bool:
        """Whether it is certain that every batch was delivered."""

    @property
    @abstractmethod
    def may_be_exhausted(self) -> bool: ...

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether an iterator is left that may deliver."""

    @abstractmethod
    def covers(self, done: int) -> bool:
        """Whether ``done`` samples are all that will come: a batch sampler may drop some."""

    @abstractmethod
    def as_rival(self) -> Rival | None:
        """Return this pass as a newer one sees it; None if no loss can be meant for it any more."""

    @abstractmethod
    def front(self) -> list[int]:
        """Return the samples of the oldest waiting batch."""

    def check_rivals(self) -> None:
        """Check that the next losses cannot be meant for a batch of an older iterator."""
        if self.rivals:
            front = None if self.taken else self.front()
            if any(rival.blocks(front) for rival in self.rivals):
                raise rival_error()


class Rival:
    """The iterator of an older pass. While it is open, a loss could be meant for one of its batches."""

    def __init__(
        self,
        holder: weakref.ref[Any],
        first: list[int] | None,
        count_yielded: Callable[[], int] | None = None,
        *,
        is_waiting: bool = True,
    ) -> None:
        self._holder = holder
        self._is_waiting = is_waiting
        """Whether a batch of it had no losses when the newer pass began."""
        self._count_yielded = count_yielded
        self._yielded = count_yielded() if count_yielded else 0
        self._first = first
        """The samples of its first batch, if there was only a peek at that one."""

    @property
    def is_open(self) -> bool:
        return self._holder() is not None

    def blocks(self, front: list[int] | None) -> bool:
        """Whether a loss for the first batch of a newer pass, ``front``, could be meant for this one.

        None for a later batch: then the loop has gone on with the newer pass.
        """
        if not self.is_open:
            return False
        if self._count_yielded is not None and self._count_yielded() != self._yielded:
            return True  # it has delivered a batch since
        return front is not None and self._is_waiting and self._first != front  # the same samples: no matter which


def follow(last: Queue | None) -> list[Rival]:
    """Return the rivals of a new pass that follows ``last``."""
    if last is None:
        return []
    older = [] if last.taken else last.rivals  # once the loop went on with a newer one, older batches were given up
    newest = last.as_rival()
    return [rival for rival in (*older, *([newest] if newest else ())) if rival.is_open]


def rival_error() -> MisalignedError:
    remedy = (
        f"{FINISH_FIRST} Before leaving a loop early, call train_data.skip() for the batch you leave. With an older "
        "iterator kept open, use infobatch.DataLoader or pass indices: update(loss, indices)."
    )
    return MisalignedError(
        message(ONE_ITERATOR, "an older one that is still open and may have a batch waiting", remedy)
    )


def nothing_waits(count: int | None) -> MisalignedError:
    got = f"{plural(count, 'loss')} and no batch" if count else "none"
    remedy = "Call update() once for each batch of the training loader, and only for those."
    return MisalignedError(message("a delivered batch that waits for its losses", got, remedy))


def wrong_size(count: int, expected: int) -> MisalignedError:
    if count < expected:
        remedy = (
            "To update with parts of a batch, pass the indices of each part: update(loss, indices), with indices cut "
            "from train_data.batch_indices. If a sieve chose these rows, call loss, score = sieve.expand(losses), then "
            "update(loss, score=score)."
        )
    elif count % expected:
        remedy = "Call update() once for each batch, with one loss per sample."
    else:
        remedy = (
            "Call update() once for each batch, with one loss per sample. Of losses per token, shape [batch * length], "
            "make one: loss, score = infobatch.per_sample(losses.view(batch_size, -1), mask)."
        )
    return MisalignedError(message(f"all {plural(expected, 'loss')} of the batch that waits", str(count), remedy))


# ---- batches that bring their indices ---------------------------------------------------------------------------


class Carried(Queue):
    """A pass whose batches bring their indices. Takes over from the ``Counted`` pass that hands the samples out."""

    def __init__(self, origin: Queue, holder: Any) -> None:
        super().__init__(origin.epoch, origin.slice, origin.total, origin.rivals)
        self.origin = origin
        self.batch_size, self.is_sized = origin.batch_size, origin.is_sized
        self._batches: list[tuple[Where, int]] = []
        """What was delivered, each batch with the number of samples up to its end."""
        self._head = 0
        """The batch that has waited longest: one number, so that an interrupt finds a batch taken or waiting."""
        self._holder: weakref.ref[Any] = weakref.ref(holder)
        self._is_exhausted = False
        self._next: int | None = 0
        """Where the slice continues, as long as batches come in its order."""

    @property
    def waiting(self) -> list[Where]:
        """The batches without losses, oldest first."""
        return [where for where, _ in self._batches[self._head :]]

    @property
    def delivered(self) -> int:
        """How many samples were delivered."""
        return self._batches[-1][1] if self._batches else 0

    @property
    def taken(self) -> int:  # type: ignore[override]
        return self._batches[self._head - 1][1] if self._head else 0

    def deliver(self, indices: Tensor) -> None:
        """Append a batch. While batches come in the order of the slice, positions stand for indices."""
        end = self.delivered + indices.numel()
        if self._next is not None:
            ahead = range(self._next, self._next + indices.numel())
            if self.slice.matches(ahead, indices):
                self._next = ahead.stop
                self._batches.append((ahead, end))
                return
            self._next = None  # out of order from here on
        self._batches.append((indices, end))

    def exhaust(self) -> None:
        """The loader has no more batches."""
        self._is_exhausted = True

    def take(self, count: int) -> Where:
        self.check_rivals()
        waiting = self.waiting
        if not waiting:
            raise nothing_waits(count)
        if len(waiting) > 1:
            raise MisalignedError(
                message(
                    "losses for every earlier batch before an update",
                    f"{len(waiting)} batches that wait for theirs",
                    f"Call train_data.skip() for a batch you leave out. {READ_AHEAD}",
                )
            )
        if count != len(waiting[0]):
            raise wrong_size(count, len(waiting[0]))
        return waiting[0]

    def drop(self) -> Where:
        self.check_rivals()
        if not self.waiting:
            raise nothing_waits(None)
        return self.waiting[0]

    def commit(self, where: Where) -> None:
        del where
        self._head += 1

    def newest(self) -> Tensor:
        if not self.waiting:
            raise nothing_waits(None)
        where = self.waiting[-1]
        return where if isinstance(where, Tensor) else self.slice.at(where)

    def front(self) -> list[int]:
        if not self.waiting:
            return []
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
    def is_open(self) -> bool:
        return not self._is_exhausted and not self.is_superseded and self._holder() is not None

    def covers(self, done: int) -> bool:
        return done >= self.total or (self._is_exhausted and 0 < self.delivered <= done)

    def as_rival(self) -> Rival | None:
        """A step of an older iterator raises by itself, so only batches that are already waiting matter."""
        if not self.waiting:
            return None
        is_peek = not self.taken and len(self.waiting) == 1
        return Rival(self._holder, self.front() if is_peek else None)
