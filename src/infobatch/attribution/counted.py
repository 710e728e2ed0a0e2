"""Stock loaders: batches are counted as the loader's iterator delivers them.

A sampler does not know its loader, and a loader that reorders or reads ahead would silently shift every loss. So, once
per pass, the sampler looks up the call stack for the iterator that consumes it. Nothing is changed there.
Batches are counted only where that shows one plain iterator; otherwise ``update`` asks for ``infobatch.DataLoader`` or
indices.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import length_hint
from typing import Any, NoReturn

from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..epoch.slice import Slice, Where
from ..errors import InputError, MisalignedError, StateError, message
from .queue import READ_AHEAD, STEPPED, Queue, Rival, follow, nothing_waits, rival_error, wrong_size


@dataclass(frozen=True)
class StockLoader:
    """What can be learned about the stock iterator that consumes the sampler."""

    ref: weakref.ref[Any] | None = None
    batch_size: int = 1
    is_sized: bool = False
    drop_last: bool = False
    workers: int = 0
    lead: int = 0
    """How many batches it asks for before it delivers the first."""
    is_persistent: bool = False
    problem: str = "no loader that could be seen"
    """Why its batches cannot be counted; empty if they come in the order of the sampler."""

    @classmethod
    def of(cls, iterator: Any, sampler: Sampler[int]) -> StockLoader:
        if iterator is None:
            return cls()
        workers = iterator._num_workers
        batches = inner = iterator._index_sampler
        size, drop_last, is_sized = 1, False, False
        if isinstance(batches, BatchSampler) and type(batches).__module__.startswith(("torch.", "torchdata.")):
            inner, size, drop_last, is_sized = batches.sampler, batches.batch_size, batches.drop_last, True
        problem = "" if inner is sampler else f"a {type(inner).__name__} around it"
        if workers and not getattr(iterator, "_in_order", True):
            problem = "in_order=False"
        if getattr(iterator, "_snapshot_interval", 1) > 1:  # torchdata: a resumed loader drops batches unseen
            problem = "snapshot_every_n_steps above 1"
        return cls(
            weakref.ref(iterator),
            size,
            is_sized,
            drop_last,
            workers,
            workers * iterator._prefetch_factor if workers else 0,
            bool(workers and iterator._persistent_workers),
            problem,
        )


class Counted(Queue):
    """A pass of a stock loader. It also hands the samples out, for every kind of loader."""

    def __init__(self, epoch: int, piece: Slice, loader: StockLoader, last: Queue | None) -> None:
        self.loader = loader
        self.batch_size, self.is_sized = loader.batch_size, loader.is_sized
        total = piece.size // self.batch_size * self.batch_size if loader.drop_last else piece.size
        is_reused = isinstance(last, Counted) and loader.is_persistent and last.iterator is self.iterator
        self.taken = 0
        super().__init__(epoch, piece, total, last.rivals if is_reused and last else follow(last))
        self._left_behind = is_reused and isinstance(last, Counted) and last._was_left_waiting(epoch)
        self.is_superseded = False
        self.is_closed = False
        self._is_handed_out = False
        self._chunk: list[int] = []
        self._hand: Iterator[int] = iter(())
        self._behind = 0
        self._seen_at_update = (0, 0)
        """At the last update: how many batches were counted, and how many the iterator had yielded."""

    # ---- handing out -------------------------------------------------------------------------------------

    def hand_out(self) -> Iterator[Iterator[int]]:
        """Yield the indices chunk by chunk. The list's own iterator does the stepping, so counting costs nothing."""
        try:
            for chunk in self.slice.chunks(self._oldest_needed):
                self._chunk = chunk.tolist()
                self._behind += len(self._chunk)
                self._hand = iter(self._chunk)
                yield self._hand
                if self.is_superseded:
                    raise MisalignedError(STEPPED)
            self._is_handed_out = True
        finally:
            self.is_closed = True

    @property
    def handed(self) -> int:
        return self._behind - length_hint(self._hand)

    def _oldest_needed(self) -> int:
        """A loader runs ahead by what it prefetches; samples further back than that have had their losses."""
        return max(self.taken, self._behind - (self.loader.lead + 2) * self.batch_size)

    def supersede(self) -> None:
        if not self.is_superseded and not self.is_closed:
            self.is_superseded = True
            self._chunk.clear()

    # ---- taking back -------------------------------------------------------------------------------------

    def take(self, count: int) -> Where:
        batches = self._delivered()
        if self._left_behind:
            raise rival_error()
        self.check_rivals()
        behind = (batches - 1) * self.batch_size - self.taken
        if behind > 0:
            raise MisalignedError(
                message(
                    "losses for every earlier batch before an update",
                    f"{behind} samples that have none (of batch {batches}, after losses for {self.taken} samples)",
                    f"Call train_data.skip() for a batch you leave out or lose to an error. {READ_AHEAD}",
                )
            )
        left, yielded = self._waiting(batches), self._yielded()
        is_lost = batches > self._seen_at_update[0] and yielded == self._seen_at_update[1]  # an error came instead
        if left <= 0 or is_lost:
            raise nothing_waits(count)
        if count != left:
            raise wrong_size(count, left)
        self._seen_at_update = (batches, yielded)
        return self._next(count)

    def drop(self) -> Where:
        batches = self._delivered()
        if self._left_behind:
            raise rival_error()
        self.check_rivals()
        left = self._waiting(batches)
        if left <= 0:
            raise nothing_waits(None)
        self._seen_at_update = (batches, self._yielded())
        return self._next(left)

    def _next(self, count: int) -> Where:
        return self.slice.name(range(self.taken, self.taken + count))

    def commit(self, where: Where) -> None:
        self.taken += len(where)

    def front(self) -> list[int]:
        samples: list[int] = self.slice.at(range(self.taken, min(self.taken + self.batch_size, self.total))).tolist()
        return samples

    def newest(self) -> Tensor:
        end = self._delivered() * self.batch_size
        return self.slice.at(range(end - self.batch_size, min(end, self.total)))

    def _waiting(self, batches: int) -> int:
        """How many samples of the oldest waiting batch have no loss yet."""
        return min(self.batch_size, min(batches * self.batch_size, self.total) - self.taken)

    # ---- what the iterator says --------------------------------------------------------------------------

    @property
    def iterator(self) -> Any:
        return None if self.loader.ref is None else self.loader.ref()

    def _delivered(self) -> int:
        """How many batches the iterator has delivered, those lost to an error included."""
        if self.loader.problem:
            raise MisalignedError(
                message(
                    "a loader that delivers in the order of train_data.sampler",
                    self.loader.problem,
                    "Use infobatch.DataLoader, which carries the indices, or pass them: update(loss, indices).",
                )
            )
        if self.taken >= self.total:
            return self._batches(self.total)
        delivered = self._count_delivered()
        if delivered is None:
            raise MisalignedError(
                message(
                    "losses while the loader's iterator is open",
                    f"losses after it was gone ({self.total - self.taken} of {self.total} samples have none)",
                    "Update inside the loop, keep the iterator (batches = iter(loader)), or use infobatch.DataLoader.",
                )
            )
        return min(delivered, self._batches(self.total))

    def _count_delivered(self) -> int | None:
        """Return how many batches came; None if the iterator is gone, unless no more than the first was asked for."""
        iterator, handed = self.iterator, self.handed
        if iterator is None and (self.loader.workers or handed > self.batch_size):
            return None
        return int(iterator._rcvd_idx) if self.loader.workers else self._batches(handed)

    def _yielded(self) -> int:
        """How many batches came out of the iterator; those lost to an error did not."""
        iterator = self.iterator
        return 1 if iterator is None else int(iterator._num_yielded)  # gone: then only a first batch gets this far

    def _batches(self, samples: int) -> int:
        return -(-samples // self.batch_size)

    def _was_left_waiting(self, epoch: int) -> bool:
        """Whether persistent workers start over while a batch of theirs may still wait for its losses.

        Their counters start over, too, so only what was handed out tells how many batches came.
        """
        delivered = self.handed // self.batch_size - self.loader.lead if self.handed < self.size else None
        is_waiting = not self.is_finished and (delivered is None or delivered * self.batch_size > self.taken)
        is_first_peek = epoch == self.epoch and self.taken == 0 and (delivered == 1 or self._batches(self.total) == 1)
        return is_waiting and not is_first_peek

    # ---- ends --------------------------------------------------------------------------------------------

    @property
    def is_exhausted(self) -> bool:
        if self.loader.workers:  # a peek at the only batch does not count
            return 1 < self._batches(self.total) <= (self._count_delivered() or 0)
        return self._is_handed_out and self.size > self.batch_size

    @property
    def may_be_exhausted(self) -> bool:
        return self.handed == self.size

    @property
    def is_open(self) -> bool:
        if self.is_superseded or self.loader.is_persistent:  # persistent workers keep the iterator for all passes
            return False
        return not self.is_closed if self.loader.ref is None else self.iterator is not None

    def covers(self, done: int) -> bool:
        return done >= self.total

    def as_rival(self) -> Rival | None:
        if self.loader.ref is None or self.is_finished:
            return None
        batches, yielded = self._seen_at_update
        is_waiting = self._yielded() > yielded or self.taken < min(batches * self.batch_size, self.total)
        is_peek = self.taken == 0 and self._yielded() == 1
        return Rival(self.loader.ref, self.front() if is_peek else None, self._yielded, is_waiting=is_waiting)


def find_iterator() -> Any:
    """Return the stock loader's iterator on whose behalf the sampler is being asked, if it is on the call stack."""
    return find_frame_owner(_BaseDataLoaderIter)


def find_frame_owner(kind: type) -> Any:
    """Return the ``self`` of the nearest frame of torch's or torchdata's loaders that is of this kind; None if none."""
    frame = sys._getframe(1)
    for _ in range(32):
        if frame.f_back is None:
            return None
        frame = frame.f_back
        # only the loaders' own frames: reading the variables of a frame keeps them alive until it ends
        if not str(frame.f_globals.get("__name__")).startswith(("torch.utils.data.", "torchdata.")):
            continue
        owner = frame.f_locals.get("self")
        if isinstance(owner, kind):
            return owner
    return None


def has_new_iterator() -> bool:
    """Whether the loader that asks for the length has a stock iterator that has not begun its pass.

    Without workers such an iterator asks the sampler for nothing until its first step, so it is looked for among the
    objects that refer to the loader's batch sampler.
    """
    asking = find_iterator()
    if asking is not None:
        return not getattr(asking, "_num_yielded", 0)
    loader = find_frame_owner(DataLoader)
    if loader is None or loader.num_workers:
        return False
    batches = loader._index_sampler
    owners = gc.get_referrers(batches)
    iterators = [one for one in owners if isinstance(one, _BaseDataLoaderIter)]
    iterators += [one for owner in owners if isinstance(owner, dict) for one in gc.get_referrers(owner)]
    return any(isinstance(one, _BaseDataLoaderIter) and not getattr(one, "_num_yielded", 0) for one in iterators)


def is_under_construction(iterator: Any) -> bool:
    """Whether this is a multi-worker iterator in its constructor: it calls ``iter`` again and drops the first one."""
    return iterator is not None and iterator._num_workers > 0 and not hasattr(iterator, "_prefetch_factor")


class PlanSampler(Sampler[int]):
    """Hand out the kept indices of the current epoch.

    Torch calls ``iter`` on a sampler more often than it iterates, so nothing happens before the first ``next``.
    """

    def __init__(
        self,
        begin: Callable[[_BaseDataLoaderIter | None], Counted],
        length: Callable[[bool], int],
        where: Callable[[], tuple[int, int]],
    ) -> None:
        self._begin = begin
        self._length = length
        self._where = where
        self._is_asked_ahead = False
        """Whether the length that is asked for is that of the coming pass."""

    def __iter__(self) -> Iterator[int]:
        if is_under_construction(find_iterator()):  # for a batch sampler that makes all its batches at once
            yield from range(self._length(True))
            return
        queue = self._begin(find_iterator())  # found again: a variable here would keep the iterator alive
        for chunk in queue.hand_out():
            yield from chunk

    def __len__(self) -> int:
        """The number of samples of the latest pass, so that ``running_loss / len(loader)`` is right after a loop.

        From ``iter(loader)`` on it is that of the new pass; before the first pass, that of the coming one.
        """
        return self._length(self._is_asked_ahead)

    def count_batches(self, loader: Any) -> int:
        """Return the number of batches of the coming pass of a loader that draws from this sampler."""
        self._is_asked_ahead = True
        try:
            return len(loader)
        finally:
            self._is_asked_ahead = False

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: loops call this for a DistributedSampler, but train_data counts its own epochs."""

    def __reduce__(self) -> NoReturn:
        remedy = "Make the loader where it is used, from a data set that has loaded the state_dict() of this one."
        raise InputError(message("one owner of the plan", "a copy of its sampler, or of a loader that has it", remedy))

    def state_dict(self) -> dict[str, Any]:
        """Return the position of training, for loaders that save the state of their sampler.

        It is only checked on loading: the position itself comes back with ``train_data.load_state_dict``. A loader with
        workers asks for this when it requests a batch, before its losses are known.
        """
        epoch, done = self._where()
        return {"epoch": epoch, "done": done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not isinstance(state, dict) or not all(isinstance(state.get(name), int) for name in ("epoch", "done")):
            remedy = "Load what state_dict() of this sampler, or of its loader, returned."
            raise StateError(message("the position of training: an epoch and samples done", repr(state), remedy))
        epoch, done = self._where()
        if (epoch, done) < (state["epoch"], state["done"]):
            raise StateError(
                message(
                    f"train_data at epoch {state['epoch']} with at least {state['done']} samples done",
                    f"epoch {epoch} with {done}",
                    "Save and load train_data.state_dict() beside the loader's, and load it first.",
                )
            )
