"""Who asks the sampler: the iterator of a stock loader, as far as it can be seen.

A sampler is never introduced to its loader, and a loader that reorders or reads ahead would shift every loss in
silence. So, once a pass, the sampler looks up the stack. Everything is read and nothing is changed.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from torch.utils.data import BatchSampler, Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter


class Asker:
    """What can be known of the loader's iterator that walks a pass. It may be gone, or never have been seen."""

    def __init__(self, iterator: _BaseDataLoaderIter | None, sampler: Sampler[int]) -> None:
        self.ref: weakref.ref[Any] | None = None
        self.batch_size = 1
        self.sized = False
        """Whether its batches are known to be of that size, but for one."""
        self.drop_last = False
        self.workers = 0
        self.lead = 0
        """How many batches it asks for before it delivers the first."""
        self.persistent = False
        """Its workers, and it with them, outlive the pass."""
        self.unseen = "no loader that could be seen"
        """Why counting its batches proves nothing; empty where they come in the order of the sampler."""
        if iterator is not None:
            self._look(iterator, sampler)

    def _look(self, iterator: Any, sampler: Sampler[int]) -> None:
        self.ref = weakref.ref(iterator)
        self.workers = iterator._num_workers
        if self.workers:
            self.lead = self.workers * iterator._prefetch_factor
            self.persistent = bool(iterator._persistent_workers)
        batches = inner = iterator._index_sampler
        if isinstance(batches, BatchSampler) and type(batches).__module__.startswith(("torch.", "torchdata.")):
            inner, self.batch_size, self.drop_last = batches.sampler, batches.batch_size, batches.drop_last
            self.sized = True
        self.unseen = "" if inner is sampler else f"a {type(inner).__name__} around it"
        if self.workers and not getattr(iterator, "_in_order", True):
            self.unseen = "in_order=False"
        if getattr(iterator, "_snapshot_interval", 1) > 1:  # torchdata: a resumed loader drops batches unseen
            self.unseen = "snapshot_every_n_steps above 1"

    @property
    def iterator(self) -> Any:
        return None if self.ref is None else self.ref()

    def batches(self, samples: int) -> int:
        """How many batches so many samples make, the last one perhaps a smaller one."""
        return -(-samples // self.batch_size)

    def delivers(self, samples: int) -> int:
        """How many of so many samples it will deliver."""
        return samples // self.batch_size * self.batch_size if self.drop_last else samples

    def delivered(self, handed: int) -> int | None:
        """How many batches it has delivered of the samples handed out to it, those lost to an error included.

        None where it is gone; of a first batch it is known all the same.
        """
        iterator = self.iterator
        if iterator is None and (self.workers or handed > self.batch_size):
            return None
        return self.batches(handed) if not self.workers else int(iterator._rcvd_idx)

    def yielded(self) -> int:
        """How many batches came out of it; those lost to an error did not."""
        iterator = self.iterator
        return 1 if iterator is None else int(iterator._num_yielded)  # gone: then only a first batch gets this far


def half_made(iterator: Any) -> bool:
    """Whether this is an iterator with workers that is being made: it asks once more, and drops the first answer."""
    return iterator is not None and iterator._num_workers > 0 and not hasattr(iterator, "_prefetch_factor")


def asking_loader() -> _BaseDataLoaderIter | None:
    """The stock loader's iterator on whose behalf the sampler is being asked, or None.

    Where nothing is found, the caller has to bring the indices.
    """
    frame = sys._getframe(1)
    for _ in range(32):
        if frame.f_back is None:
            return None
        frame = frame.f_back
        # only loaders' own frames: to read a frame's variables is to hold on to them until that frame ends
        if not str(frame.f_globals.get("__name__")).startswith(("torch.utils.data.", "torchdata.")):
            continue
        owner = frame.f_locals.get("self")
        if isinstance(owner, _BaseDataLoaderIter):
            return owner
    return None
