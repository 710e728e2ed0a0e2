"""The sampler: a plan, walked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from torch.utils.data import Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..errors import InputError, StateError, message
from .queue import Pass
from .stock_loader import asking_loader, half_made


class PlanSampler(Sampler[int]):
    """Hands out the kept indices of the epoch that is due.

    Torch calls ``iter`` on a sampler more often than it walks it, so nothing happens before the first ``next``.
    """

    def __init__(
        self,
        begin: Callable[[_BaseDataLoaderIter | None], Pass],
        length: Callable[[], int],
        where: Callable[[], tuple[int, int]],
    ) -> None:
        self._begin = begin
        self._length = length
        self._where = where

    def __iter__(self) -> Iterator[int]:
        if half_made(asking_loader()):  # by way of a batch sampler that makes all its batches at once
            yield from range(self._length())
            return
        run = self._begin(asking_loader())  # asked again: whoever held on to it would keep it alive
        for chunk in run.hand_out():
            yield from chunk

    def __len__(self) -> int:
        return self._length()

    def set_epoch(self, epoch: int) -> None:
        """For loops that tell a DistributedSampler: there is nothing to tell, train_data counts its epochs."""

    def __reduce__(self) -> NoReturn:
        remedy = "Make the loader where it is used, from a data set that has loaded the state_dict() of this one."
        raise InputError(message("one owner of the plan", "a copy of its sampler, or of a loader with it", remedy))

    def state_dict(self) -> dict[str, Any]:
        """For loaders that save their sampler's state: where training is, to be checked on the way back.

        The position itself comes back with ``train_data.load_state_dict``. A loader with workers asks for this when
        it sends a batch off, before anyone knows its losses.
        """
        epoch, done = self._where()
        return {"epoch": epoch, "done": done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not isinstance(state, dict) or not all(isinstance(state.get(name), int) for name in ("epoch", "done")):
            remedy = "Load what state_dict() of this sampler, or of its loader, returned."
            raise StateError(message("where training was: an epoch and samples done", repr(state), remedy))
        epoch, done = self._where()
        if (epoch, done) < (state["epoch"], state["done"]):
            raise StateError(
                message(
                    f"train_data at epoch {state['epoch']} with at least {state['done']} samples done",
                    f"epoch {epoch} with {done}",
                    "Save and load train_data.state_dict() beside the loader's, and load it first.",
                )
            )
