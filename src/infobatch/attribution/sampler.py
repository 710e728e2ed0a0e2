"""The sampler: hands out the indices of the plan, for any loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from torch.utils.data import Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..errors import InputError, StateError, message
from .counted import Counted, find_iterator, is_under_construction


class PlanSampler(Sampler[int]):
    """Hand out the kept indices of the current epoch.

    Torch calls ``iter`` on a sampler more often than it iterates, so nothing happens before the first ``next``.
    """

    def __init__(
        self,
        begin: Callable[[_BaseDataLoaderIter | None], Counted],
        length: Callable[[], int],
        where: Callable[[], tuple[int, int]],
    ) -> None:
        self._begin = begin
        self._length = length
        self._where = where

    def __iter__(self) -> Iterator[int]:
        if is_under_construction(find_iterator()):  # for a batch sampler that makes all its batches at once
            yield from range(self._length())
            return
        queue = self._begin(find_iterator())  # found again: a variable here would keep the iterator alive
        for chunk in queue.hand_out():
            yield from chunk

    def __len__(self) -> int:
        return self._length()

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
