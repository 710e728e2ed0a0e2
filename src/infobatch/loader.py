"""A loader that knows whose batch it delivers."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
import torch.utils.data
from torch.utils.data import default_collate, default_convert
from torch.utils.data._utils.pin_memory import pin_memory

from .attribution.queue import STEPPED, Pass
from .attribution.views import COPY, Copied, Fetched
from .checks import check_count
from .dataset import Pruned
from .errors import InputError, MisalignedError, message
from .plan import generator_for

WORKERS = 0x10AD  # so that what workers draw has nothing in common with plans


class Carried:
    """A batch on its way from collate to delivery, with its indices beside it.

    Nobody but ``Delivery`` should ever meet one. A framework that builds a loader of its own from the parts of ours
    would hand it to the loop: whatever is then done with it raises, and says what to do.
    """

    __slots__ = ("batch", "indices")

    def __init__(self, indices: Any, batch: Any) -> None:
        self.indices = indices
        self.batch = batch

    def __reduce__(self) -> tuple[type[Carried], tuple[Any, Any]]:
        return Carried, (self.indices, self.batch)  # from a worker

    def pin_memory(self) -> Carried:
        return Carried(self.indices, pin_memory(self.batch))  # type: ignore[no-untyped-call]

    @classmethod
    def _refuse(cls, *_: Any) -> NoReturn:
        raise MisalignedError(
            message(
                "the batches of infobatch.DataLoader itself",
                "one of a loader that was rebuilt from its parts, with the indices still on it",
                "Keep the loader as it is: it shares out to ranks by itself. With Accelerate call "
                "infobatch.integrations.accelerate.prepare in the place of accelerator.prepare; elsewhere leave the "
                "loader out of what the framework prepares.",
            )
        )

    __iter__ = __getitem__ = __len__ = __torch_function__ = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)  # what Python itself looks for
        self._refuse()


class Carry:
    """Collates as before and puts the indices beside the batch. Runs in the workers."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, fetched: Any) -> Carried:
        indices = array("q", fetched.indices) if isinstance(fetched, Fetched) else None
        return Carried(indices, self.collate(fetched))


class DataLoader(torch.utils.data.DataLoader[Any]):
    """``torch.utils.data.DataLoader`` for a pruned data set: same arguments, same batches, exact attribution.

    Each batch's indices travel with it and are taken off on delivery, so order, workers and batch samplers do not
    matter. ``lookahead`` is for a loop that fetches batches before it updates the current one: how many.
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
                    "no shuffle and no sampler but train_data.sampler",
                    "shuffle=True" if shuffle else type(sampler).__name__,
                    "The plan says who comes and is shuffled already; a batch_sampler may stand around it.",
                )
            )
        self.lookahead = check_count(
            "lookahead", lookahead, 0, "As many batches as the loop reads ahead; 0 for an ordinary one."
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
            Carry(collate),
            *args,
            **kwargs,
        )

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        resumed = self.generator is None and self._data._course.resumed(persistent=self.persistent_workers)
        state = torch.get_rng_state() if resumed else None
        delivery = Delivery(self, self.lookahead)
        if state is not None:  # each iterator draws a number for its workers, and a resumed run has one more
            torch.set_rng_state(state)
        return delivery

    def seed_workers(self) -> None:
        """Before a pass: what its workers draw comes from (seed, epoch).

        Else each pass takes a number from torch's global generator, and a resumed epoch is one pass more: dropout
        would go on with others.
        """
        self.generator = generator_for(self._data.seed ^ WORKERS, self._data.epoch, torch.device("cpu"))

    def state_dict(self) -> dict[str, Any]:
        """For frameworks that save their loaders: where training is. The position itself is train_data's to save."""
        return self._data.sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Checks that ``train_data.load_state_dict`` has been called: it is what brings the position back."""
        self._data.sampler.load_state_dict(state)

    @property
    def _data(self) -> Pruned:
        return self.dataset  # type: ignore[return-value]

    def _torch_iter(self) -> Iterator[Carried]:
        return super().__iter__()


class Delivery:
    """One pass: takes the indices off each batch and tells the pass they belong to."""

    def __init__(self, loader: DataLoader, lookahead: int = 0) -> None:
        self._data = loader._data
        self._lookahead = lookahead
        self._length = _length(loader)
        self._pass: Pass | None = None
        self._before = self._data._course.last
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
            carried = next(self._batches)
        except StopIteration:
            self._bind()
            if self._pass is not None:
                self._pass.exhausted = True
            raise
        self._bind()
        run = self._pass
        if run is None:
            raise MisalignedError(
                message(
                    "a batch_sampler that draws from train_data.sampler",
                    "a batch that does not come from it",
                    "Build it around train_data.sampler: it decides who comes.",
                )
            )
        if run is not self._data._course.last:
            raise MisalignedError(STEPPED)
        if carried.indices is None:  # batch_size=None, or a data set whose __getitems__ makes no list: in order
            run.deliver(run.latest())
        else:
            run.deliver(torch.frombuffer(carried.indices, dtype=torch.int64))
        return carried.batch

    def _bind(self) -> None:
        """The sampler opens a pass at its first step: with workers while the iterator is made, else at ``next``."""
        run = self._data._course.last
        if self._pass is None and run is not None and run is not self._before and run.asker.iterator is self._batches:
            self._pass = run
            run.carry(self, self._lookahead)


def _length(loader: DataLoader) -> int | None:
    """How many batches come, where the batch sampler tells."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None
