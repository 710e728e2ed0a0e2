"""A look at the samples that an epoch left out: a forward pass without training, between two epochs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .distributed import Ranks, gather, share
from .errors import MisalignedError, message
from .method import Method
from .scorebook import UNSEEN, ScoreBook


class Look:
    """Which samples were left out, and what was seen of them so far."""

    def __init__(self, book: ScoreBook, method: Method, ranks: Ranks, epoch: int) -> None:
        self._book, self._method, self._ranks, self._epoch = book, method, ranks, epoch
        self._all = (book.memory["held"] == 0).nonzero().squeeze(1)
        self._mine = share(self._all, ranks)
        book.fresh.fill_(UNSEEN)

    def batches(self, dataset: Any, batch_size: int, loader: dict[str, Any]) -> Iterator[tuple[Any, Tensor]]:
        some = self._mine.cpu()
        if not some.numel():
            return
        data = _Some(dataset, some.tolist())
        for at, batch in enumerate(DataLoader(data, batch_size=batch_size, **loader)):
            yield batch, some[at * batch_size : (at + 1) * batch_size].to(self._book.device)

    def note(self, loss: Tensor, indices: Tensor, confidence: Tensor | None) -> None:
        self._book.record(indices, loss)
        for column in self._book.came.values():
            assert confidence is not None
            column.scatter_(0, indices, confidence.detach().to(column.dtype))

    def close(self) -> None:
        """What was seen becomes scores and memory; ranks tell each other first."""
        book = self._book
        strangers = int((book.fresh != UNSEEN).sum()) - int((book.fresh[self._mine] != UNSEEN).sum())
        if strangers:
            raise MisalignedError(
                message("losses of samples that were left out", f"{strangers} of others", "Pass the loop's indices.")
            )
        if self._ranks.world > 1 and self._all.numel():
            for column in (book.fresh, *book.came.values()):
                parts = column.index_select(0, self._mine)
                whole = gather(self._ranks, parts, self._all.numel(), "looks at the left-out of", self._epoch)
                column.index_copy_(0, self._all, whole)
        book.remember(self._method.memory, None)
        book.merge()

    def forget(self) -> None:
        """Nothing of an unfinished look stays."""
        self._book.fresh.fill_(UNSEEN)
        for column in self._book.came.values():
            column.fill_(torch.nan)


class _Some(Dataset[Any]):
    def __init__(self, dataset: Any, indices: list[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, at: int) -> Any:
        return self.dataset[self.indices[at]]
