"""torch's DataLoader, with the indices carried beside each batch."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
import torch.utils.data
from torch.utils.data import default_collate, default_convert
from torch.utils.data._utils.pin_memory import pin_memory

from .attribution.counted import Counted
from .attribution.queue import STEPPED, Carried
from .attribution.views import COPY, Copied, Fetched
from .checks import check_count
from .dataset import Pruned
from .errors import InputError, MisalignedError, message
from .plan import generator_for

WORKERS = 0x10AD  # so that what workers draw has nothing in common with plans


class IndexedBatch:
    """A batch on its way from collate to delivery, with its indices beside it.

    ``Delivery`` takes the indices off. A framework that builds its own loader from the parts of ours would pass one of
    these to the training loop: whatever is then done with it raises, and says what to do.
    """

    __slots__ = ("batch", "indices")

    def __init__(self, indices: Any, batch: Any) -> None:
        self.indices = indices
        self.batch = batch

    def __reduce__(self) -> tuple[type[IndexedBatch], tuple[Any, Any]]:
        return IndexedBatch, (self.indices, self.batch)  # from a worker

    def pin_memory(self) -> IndexedBatch:
        return IndexedBatch(self.indices, pin_memory(self.batch))  # type: ignore[no-untyped-call]

    @classmethod
    def _refuse(cls, *_: Any) -> NoReturn:
        raise MisalignedError(
            message(
                "the batches of infobatch.DataLoader itself",
                "one of a loader that was rebuilt from its parts, with the indices still attached",
                "Keep the loader as it is: it divides the plan between ranks itself. With Accelerate call "
                "infobatch.integrations.accelerate.prepare instead of accelerator.prepare; elsewhere leave the loader "
                "out of what the framework prepares.",
            )
        )

    __iter__ = __getitem__ = __len__ = __torch_function__ = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)  # what Python itself looks for
        self._refuse()


class CarryIndices:
    """Collate as before and attach the indices to the batch. Runs in the workers."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, fetched: Any) -> IndexedBatch:
        indices = array("q", fetched.indices) if isinstance(fetched, Fetched) else None
        return IndexedBatch(indices, self.collate(fetched))


class DataLoader(torch.utils.data.DataLoader[Any]):
    """``torch.utils.data.DataLoader`` for a pruned data set: same arguments, same batches, exact attribution.

    The indices of a batch travel with it and are taken off on delivery, so order, workers and batch samplers do not
    matter.

    Args:
        dataset: The ``InfoBatch`` or ``Pruned`` data set.
        lookahead: How many more batches the loop fetches before it updates the current one; 0 for an ordinary loop.

    The other arguments are those of torch's DataLoader, without ``shuffle`` and ``sampler``: the plan is shuffled.

    >>> import torch, infobatch
    >>> train_data = infobatch.InfoBatch(torch.utils.data.TensorDataset(torch.rand(8)), num_epochs=3)
    >>> len(infobatch.DataLoader(train_data, batch_size=4))
    2
    """

    def __init__(
        self,
        dataset: Pruned,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        *args: Any,
        lookahead: int = 0,
        **kwargs: Any,
    ) -> None:
        if isinstance(dataset, Copied):
            raise InputError(COPY)
        if not isinstance(dataset, Pruned):
            raise InputError(
                message(
                    "an infobatch.InfoBatch or Pruned data set",
                    type(dataset).__name__,
                    "Wrap it first; for other data use torch.utils.data.DataLoader.",
                )
            )
        if shuffle or (sampler is not None and sampler is not dataset.sampler):
            raise InputError(
                message(
                    "no shuffle, and no sampler other than train_data.sampler",
                    "shuffle=True" if shuffle else type(sampler).__name__,
                    "The plan is shuffled already; a batch_sampler may be built around train_data.sampler.",
                )
            )
        self.lookahead = check_count(
            "lookahead", lookahead, 0, "It is the number of batches the loop reads ahead; 0 for an ordinary one."
        )
        auto = batch_size is not None or batch_sampler is not None
        if not auto and num_workers and not kwargs.get("in_order", True):
            raise InputError(
                message(
                    "in_order=True where batch_size=None",
                    "in_order=False",
                    "Single samples carry no indices.",
                )
            )
        collate = collate_fn or (default_collate if auto else default_convert)
        super().__init__(
            dataset,
            batch_size,
            None,
            None if batch_sampler is not None else dataset.sampler,
            batch_sampler,
            num_workers,
            CarryIndices(collate),
            *args,
            **kwargs,
        )

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        resumed = self.generator is None and self._data._epoch.is_resumed_by_loader(persistent=self.persistent_workers)
        state = torch.get_rng_state() if resumed else None
        delivery = Delivery(self, self.lookahead)
        if state is not None:  # each iterator draws a number for its workers, and a resumed run has one more iterator
            torch.set_rng_state(state)
        return delivery

    def seed_workers(self) -> None:
        """Before a pass, let what its workers draw depend on (seed, epoch) only.

        Otherwise each pass takes a number from torch's global generator, and a resumed epoch is one more pass: dropout
        would continue with different numbers.
        """
        self.generator = generator_for(self._data.seed ^ WORKERS, self._data.epoch, torch.device("cpu"))

    def state_dict(self) -> dict[str, Any]:
        """Return the position of training, for frameworks that save their loaders; train_data saves the rest."""
        return self._data.sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Check that ``train_data.load_state_dict`` has been called: that restores the position."""
        self._data.sampler.load_state_dict(state)

    @property
    def _data(self) -> Pruned:
        return self.dataset  # type: ignore[return-value]

    def _torch_iter(self) -> Iterator[IndexedBatch]:
        return super().__iter__()


class Delivery:
    """The iterator of one pass: takes the indices off each batch and queues them for their losses."""

    def __init__(self, loader: DataLoader, lookahead: int = 0) -> None:
        self._data = loader._data
        self._lookahead = lookahead
        self._length = _length(loader)
        self._queue: Carried | None = None
        self._before = self._data._epoch.last
        self._batches = loader._torch_iter()
        self._bind()

    def __iter__(self) -> Delivery:
        return self

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("the batch sampler has no length")
        return self._length

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            self._bind()
            if self._queue is not None:
                self._queue.exhaust()
            raise
        self._bind()
        queue = self._queue
        if queue is None:
            raise MisalignedError(
                message(
                    "a batch_sampler that draws from train_data.sampler",
                    "a batch that does not come from it",
                    "Build it around train_data.sampler, which decides which samples come.",
                )
            )
        if queue is not self._data._epoch.last:
            raise MisalignedError(STEPPED)
        if batch.indices is None:  # batch_size=None, or a data set whose __getitems__ returns no list: in order
            queue.deliver(queue.origin.newest())
        else:
            queue.deliver(torch.frombuffer(batch.indices, dtype=torch.int64))
        return batch.batch

    def _bind(self) -> None:
        """Take over the pass that the sampler opened: with workers in the iterator's constructor, else at ``next``."""
        opened = self._data._epoch.last
        if (
            self._queue is None
            and isinstance(opened, Counted)
            and opened is not self._before
            and opened.iterator is self._batches
        ):
            self._queue = self._data._epoch.carry(self, self._lookahead)


def _length(loader: DataLoader) -> int | None:
    """Return the number of batches, if the batch sampler knows it."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None
