"""torch's DataLoader, with the indices carried beside each batch."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.utils.data
from torch import Tensor
from torch.utils.data._utils.pin_memory import pin_memory

from .attribution.counted import Counted
from .attribution.queue import STEPPED, Carried
from .attribution.views import Fetched, WithIndices, check_wrapped
from .dataset import Pruned
from .errors import InputError, MisalignedError, message
from .plan import generator_for

WORKERS = 0x10AD  # so that what workers draw has nothing in common with plans


class IndexedBatch:
    """A batch on its way from collate to delivery, with its indices beside it; ``Delivery`` takes them apart."""

    __slots__ = ("batch", "indices")

    def __init__(self, indices: Any, batch: Any) -> None:
        self.indices = indices
        self.batch = batch

    def pin_memory(self) -> IndexedBatch:
        return IndexedBatch(self.indices, pin_memory(self.batch))  # type: ignore[no-untyped-call]


class CarryIndices:
    """Collate as before and attach the indices to the batch. Runs in the workers."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, fetched: Any) -> IndexedBatch:
        if not isinstance(fetched, Fetched):  # batch_size=None, or a data set whose __getitems__ returns no list
            return IndexedBatch(None, self.collate(fetched))
        return IndexedBatch(array("q", fetched.indices), self.collate(list(fetched)))


class PairWithIndices(CarryIndices):
    """Collate to a pair of the batch and its indices as a tensor."""

    def __call__(self, fetched: Any) -> Any:
        carried = super().__call__(fetched)
        if carried.indices is None:
            got = f"a {type(fetched).__name__}"
            remedy = "Leave with_indices out, or let its __getitems__ return a list."
            raise InputError(message("for with_indices=True a data set that returns a list of samples", got, remedy))
        return carried.batch, torch.tensor(carried.indices, dtype=torch.int64)


class DataLoader(torch.utils.data.DataLoader[Any]):
    """``torch.utils.data.DataLoader`` for a pruned data set: same arguments, same batches, exact attribution.

    The indices of a batch travel with it and are taken off on delivery, so order, workers and batch samplers do not
    matter. Each batch needs an ``update``: before a ``continue`` that leaves one out, call ``train_data.skip()``.

    Args:
        dataset: The ``InfoBatch`` or ``Pruned`` data set.
        with_indices: Yield pairs ``(batch, indices)``, for loops and wrappers that read ahead or reorder batches: there
            the indices must travel with the batch, to ``update(loss, indices)``. They are in the order of fetching: if
            ``collate_fn`` reorders the samples of a batch, return indices from the data set instead.

    The other arguments are those of torch's DataLoader, without ``shuffle`` and ``sampler``: the plan is shuffled.

    Raises:
        InputError: If an argument cannot work with pruned data.

    >>> import infobatch
    >>> train_data = infobatch.InfoBatch(range(8), num_epochs=8)
    >>> loader = infobatch.DataLoader(train_data, batch_size=4)
    >>> loader
    DataLoader(InfoBatch(infobatch(ratio=0.5, delta=0.875), 8 samples, 0 of 8 epochs done), batch_size=4, num_workers=0)
    >>> len(loader)
    2
    >>> for x in loader:
    ...     if x.max() == 7:
    ...         train_data.skip()
    ...         continue
    ...     loss = train_data.update(x / 8)
    >>> int(train_data.scores.isnan().sum())  # of the batch without losses
    4
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
        with_indices: bool = False,
        **kwargs: Any,
    ) -> None:
        check_wrapped(dataset, "Wrap it first; for other data use torch.utils.data.DataLoader.")
        if shuffle or (sampler is not None and sampler is not dataset.sampler):
            raise InputError(
                message(
                    "no shuffle, and no sampler other than train_data.sampler",
                    "shuffle=True" if shuffle else type(sampler).__name__,
                    "The plan is shuffled already; a batch_sampler may be built around train_data.sampler.",
                )
            )
        auto = batch_size is not None or batch_sampler is not None
        if not auto and num_workers and not kwargs.get("in_order", True):
            raise InputError(
                message(
                    "in_order=True where batch_size=None",
                    "in_order=False",
                    "Leave in_order out: single samples carry no indices, so they are counted in order.",
                )
            )
        if with_indices and not auto:
            remedy = "Give it a batch_size; without one, samples come in the order of train_data.sampler."
            raise InputError(message("batches, for with_indices=True", "batch_size=None", remedy))
        self.with_indices = with_indices
        super().__init__(
            dataset,
            batch_size,
            None,
            None if batch_sampler is not None else dataset.sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            *args,
            **kwargs,
        )

    def __repr__(self) -> str:
        own = None if self.batch_size is not None else self.batch_sampler
        batches = f"batch_size={self.batch_size}" if own is None else f"batch_sampler={type(own).__name__}"
        return f"{type(self).__name__}({self.dataset!r}, {batches}, num_workers={self.num_workers})"

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        make_iterator = self._torch_iter if self.with_indices else partial(Delivery, self)
        iterator: Iterator[Any] = self._begin_pass(make_iterator)
        return iterator

    def read_ahead(self) -> Delivery:
        """Begin a pass that fetches one batch ahead; only what is delivered waits for its losses.

        Returns:
            The iterator of the pass, with ``is_last`` and ``peek``.

        >>> import infobatch
        >>> train_data = infobatch.InfoBatch(range(8), num_epochs=8)
        >>> batches = infobatch.DataLoader(train_data, batch_size=4).read_ahead()
        >>> for x in batches:
        ...     loss = train_data.update(x / 8)
        ...     print(batches.is_last)
        False
        True
        """
        delivery: Delivery = self._begin_pass(partial(Delivery, self, ahead=1))
        return delivery

    def _begin_pass(self, make_iterator: Callable[[], Any]) -> Any:
        resumed = self.generator is None and self._data._epoch.is_resumed_by_loader(persistent=self.persistent_workers)
        state = torch.get_rng_state() if resumed else None
        before = self._data._epoch.last
        iterator = make_iterator()
        if state is not None:  # each iterator draws a number for its workers, and a resumed run has one more iterator
            torch.set_rng_state(state)
        if self._data._epoch.last is before:  # workers begin the pass at once
            self._data._epoch.expect_pass(iterator)
        return iterator

    def count_batches(self) -> int:
        """Return the number of batches of the coming pass; ``len(loader)`` is that of the latest one.

        For frameworks, which ask before they begin a pass. With several ranks, call it on all of them or on none.

        >>> import infobatch
        >>> train_data = infobatch.InfoBatch(range(8), num_epochs=8)
        >>> loader = infobatch.DataLoader(train_data, batch_size=4)
        >>> loader.count_batches()
        2
        """
        return self._data.sampler.count_batches(self)

    def seed_workers(self) -> None:
        """Before a pass, make what its workers draw depend on (seed, epoch) alone.

        Otherwise each pass takes a number from torch's global generator, and a resumed epoch is one more pass: dropout
        would continue with different numbers.

        >>> import infobatch
        >>> train_data = infobatch.InfoBatch(range(8), num_epochs=8)
        >>> loader = infobatch.DataLoader(train_data, batch_size=4)
        >>> loader.seed_workers()
        """
        self.generator = generator_for(self._data.seed ^ WORKERS, self._data.epoch, torch.device("cpu"))

    def state_dict(self) -> dict[str, Any]:
        """Return the position of training, for frameworks that save their loaders; train_data saves the rest.

        >>> import infobatch
        >>> train_data = infobatch.InfoBatch(range(8), num_epochs=8)
        >>> loader = infobatch.DataLoader(train_data, batch_size=4)
        >>> loader.load_state_dict(loader.state_dict())
        """
        return self._data.sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Check that ``train_data.load_state_dict`` has been called, which restores the position.

        Args:
            state: What ``state_dict`` returned.

        Raises:
            StateError: If training stands somewhere else.

        >>> import infobatch
        >>> train_data = infobatch.InfoBatch(range(8), num_epochs=8)
        >>> loader = infobatch.DataLoader(train_data, batch_size=4)
        >>> state = {"data": train_data.state_dict(), "loader": loader.state_dict()}
        >>> train_data.load_state_dict(state["data"])
        >>> loader.load_state_dict(state["loader"])
        """
        self._data.sampler.load_state_dict(state)

    @property
    def _data(self) -> Pruned:
        return self.dataset  # type: ignore[return-value]

    def _get_iterator(self) -> Any:
        """Attach the indices where torch fetches and collates. Torch is shown a copy: this loader stays as it is."""
        carry = PairWithIndices if self.with_indices else CarryIndices
        shown = object.__new__(type(self))
        shown.__dict__ = self.__dict__ | {"collate_fn": carry(self.collate_fn), "dataset": WithIndices(self.dataset)}
        return super(DataLoader, shown)._get_iterator()

    def _torch_iter(self) -> Any:
        return super().__iter__()


class Delivery:
    """The iterator of one pass: takes the indices off each batch and queues them for their losses.

    Args:
        loader: The loader.
        ahead: How many more batches to fetch before a batch is delivered, so that ``is_last`` is known.
    """

    def __init__(self, loader: DataLoader, ahead: int = 0) -> None:
        self._data = loader._data
        self._ahead = ahead
        self._length = _length(loader)
        self._queue: Carried | None = None
        self._before = self._data._epoch.last
        self._fetched: deque[tuple[Any, Tensor]] = deque()
        self._is_drained = False
        self._batches = loader._torch_iter()
        self._bind()

    def __iter__(self) -> Delivery:
        return self

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("the batch sampler has no length")
        return self._length

    @property
    def is_last(self) -> bool:
        """Whether the batch that was delivered last is the last one of the pass; needs ``ahead``."""
        return self._is_drained and not self._fetched

    def __next__(self) -> Any:
        while len(self._fetched) <= self._ahead and not self._is_drained:
            self._fetch()
        if not self._fetched:
            if self._queue is not None:
                self._end(self._queue)
            raise StopIteration
        queue = self._queue
        if queue is None or queue is not self._data._epoch.last:
            raise MisalignedError(STEPPED)
        batch, indices = self._fetched.popleft()
        queue.deliver(indices)
        return batch

    def peek(self) -> Any:
        """Return the next batch without delivering it; raise StopIteration if there is none. Needs ``ahead``."""
        if not self._fetched:
            raise StopIteration
        return self._fetched[0][0]

    def _end(self, queue: Carried) -> None:
        """Note that there are no more batches; refuse an epoch that had none, which would train nothing."""
        if not queue.delivered and not self._data._epoch.is_resumed:  # of a resumed epoch a rest may be dropped
            raise InputError(
                message(
                    f"at least one batch in epoch {queue.epoch}",
                    f"none from the batch sampler for {queue.size} samples to train on",
                    "Let it keep a batch that is not full, or make smaller ones.",
                )
            )
        queue.exhaust()

    def _fetch(self) -> None:
        try:
            carried = next(self._batches)
        except StopIteration:
            self._is_drained = True
        finally:
            self._bind()  # also if the first batch cannot be read
        if self._is_drained:
            return
        queue = self._queue
        if queue is None:
            raise MisalignedError(
                message(
                    "a batch_sampler that draws from train_data.sampler",
                    "a batch that does not come from it",
                    "Build it around train_data.sampler, which decides which samples come.",
                )
            )
        is_carried = carried.indices is not None  # otherwise batches come in order, and are counted
        indices = torch.frombuffer(carried.indices, dtype=torch.int64) if is_carried else queue.origin.newest()
        self._fetched.append((carried.batch, indices))

    def _bind(self) -> None:
        """Take over the pass that the sampler opened: with workers in the iterator's constructor, else at ``next``."""
        opened = self._data._epoch.last
        if (
            self._queue is None
            and isinstance(opened, Counted)
            and opened is not self._before
            and opened.iterator is self._batches
        ):
            self._queue = self._data._epoch.carry(self)


def _length(loader: DataLoader) -> int | None:
    """Return the number of batches of the coming pass, if the batch sampler knows it."""
    try:
        return loader.count_batches()
    except (TypeError, NotImplementedError):
        return None
