"""The sampler: a plan, walked."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch.utils.data import Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .ledger import Pass, asking_loader


class PlanSampler(Sampler[int]):
    """Hands out the kept indices of the epoch that is due.

    Torch calls ``iter`` on a sampler more often than it walks it, so nothing happens before the first ``next``.
    """

    def __init__(self, begin: Callable[[_BaseDataLoaderIter | None], Pass], length: Callable[[], int]) -> None:
        self._begin = begin
        self._length = length

    def __iter__(self) -> Iterator[int]:
        run = self._begin(asking_loader())
        for chunk in run.hand_out():
            yield from chunk

    def __len__(self) -> int:
        return self._length()
