"""The batches of one pass over an epoch that wait for their losses.

A loss arrives as a bare vector, and a loader fetches ahead, so something must know which samples it belongs to. There
are two strategies: ``Counted`` for stock loaders, whose batches are counted, and ``Carried`` for
``infobatch.DataLoader``, whose batches bring their indices. A caller who passes indices to ``update`` needs neither.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ..epoch.slice import Slice, Where
from ..errors import MisalignedError, message, plural

ONE_ITERATOR = "one open iterator over the training data"
FINISH_FIRST = "Finish a pass before you begin the next; for passes that do not train use train_data.full()."
STEPPED = message(ONE_ITERATOR, "a step of an older one after a newer one had begun", FINISH_FIRST)


class Queue(ABC):
    """One pass over what remains of an epoch: what was handed out, and which batch the next losses belong to."""

    unsure: Sequence[Where] = ()
    """Samples whose losses are trusted only once the pass is complete."""

    def __init__(self, epoch: int, piece: Slice, total: int, rivals: list[Rival]) -> None:
        self.epoch = epoch
        self.slice = piece
        self.size = piece.size
        self.total = total
        """How many samples will be delivered: fewer than ``size`` if the loader drops its last batch."""
        self.taken = 0
        self.is_void = False
        """Whether the plan of this pass was dropped."""
        self.rivals = rivals

    batch_size: int
    is_sized: bool
    """Whether all batches but the last are known to have ``batch_size`` samples."""
    is_superseded: bool
    is_persistent: bool
    """Whether the iterator outlives the pass because its workers persist."""

    @abstractmethod
    def take(self, count: int) -> Where:
        """Return the samples that the next ``count`` losses belong to: one whole batch."""

    @abstractmethod
    def put_back(self, where: Where) -> None:
        """Let the batch that was taken last wait again."""

    @abstractmethod
    def drop(self) -> Where:
        """Return the samples of the oldest waiting batch, which gets no losses."""

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
        """Whether every batch was certainly delivered."""

    @property
    @abstractmethod
    def may_be_exhausted(self) -> bool: ...

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether the iterator is finished, so that ``len`` may speak of the next epoch."""

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

    def check_complete(self) -> None:  # noqa: B027 (most passes have nothing in doubt)
        """At the end of a pass, check that no losses are in doubt."""


class Rival:
    """The iterator of an older pass. While it is open, a loss could be meant for one of its batches."""

    def __init__(
        self, holder: weakref.ref[Any], first: list[int] | None, count_yielded: Callable[[], int] | None = None
    ) -> None:
        self._holder = holder
        self._count_yielded = count_yielded
        self._yielded = count_yielded() if count_yielded else 0
        self.first = first
        """The samples of its first batch, if nothing but that one was looked at."""

    @property
    def is_open(self) -> bool:
        return self._holder() is not None

    @property
    def went_on(self) -> bool:
        """Whether it has delivered a batch since the newer pass began."""
        return self._count_yielded is not None and self._count_yielded() != self._yielded


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
            "from train_data.batch_indices."
        )
    else:
        remedy = "Call update() once for each batch, with one loss per sample."
    return MisalignedError(message(f"all {plural(expected, 'loss')} of the batch that waits", str(count), remedy))
