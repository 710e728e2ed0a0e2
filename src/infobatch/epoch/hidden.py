"""A look at the samples that an epoch left out: a forward pass without training, between two epochs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ..attribution.views import View
from ..errors import InputError, MisalignedError, message
from ..methods.method import Method
from ..ranks.exchange import Ranks, gather, share
from .scores import UNSEEN, ScoreBook, bring


class Look:
    """Which samples were left out, and what was seen of them so far."""

    def __init__(self, book: ScoreBook, method: Method, ranks: Ranks, epoch: int) -> None:
        self._book, self._method, self._ranks, self._epoch = book, method, ranks, epoch
        self._all = (book.memory["held"] == 0).nonzero().squeeze(1)
        self._mine = share(self._all, ranks)
        book.fresh.fill_(UNSEEN)

    @property
    def size(self) -> int:
        """How many were left out, of all ranks."""
        return self._all.numel()

    def batches(self, dataset: Any, batch_size: int, loader: dict[str, Any]) -> Iterator[tuple[Any, Tensor]]:
        some = self._mine.cpu()
        if not some.numel():
            return
        batches = DataLoader(View(dataset), batch_size=batch_size, sampler=some.tolist(), **loader)
        for batch, indices in zip(batches, torch.split(some, batch_size), strict=True):
            yield batch, indices.to(self._book.device)

    def note(self, loss: Tensor, indices: Tensor, confidence: Tensor | None) -> None:
        if indices.device.type == "cpu":  # elsewhere a look at values would wait
            low, high = (int(end) for end in indices.aminmax())
            if low < 0 or high >= self._book.size:
                expected = f"indices from 0 to {self._book.size - 1}"
                raise InputError(message(expected, f"{low} to {high}", "Pass the loop's indices."))
        self._book.record(indices, loss)
        bring(self._book.came, indices, confidence)

    @torch.inference_mode(False)
    def close(self) -> int:
        """What was seen becomes scores and memory, and nobody waits for a look; ranks tell each other first.

        Returns how many losses were not finite.
        """
        book = self._book
        seen = int((book.fresh[self._mine] != UNSEEN).sum())
        strangers = int((book.fresh != UNSEEN).sum()) - seen
        if strangers:
            raise MisalignedError(
                message("losses of samples that were left out", f"{strangers} of others", "Pass the loop's indices.")
            )
        if seen < self._mine.numel():
            got = f"none for {self._mine.numel() - seen} of {self._mine.numel()} samples"
            raise MisalignedError(message("an observe() for each batch", got, "Call it in the loop over hidden()."))
        if self._ranks.world > 1 and self._all.numel():
            for column in (book.fresh, *book.came.values()):
                parts = column.index_select(0, self._mine)
                whole = gather(self._ranks, parts, self._all.numel(), "looks at the left-out of", self._epoch)
                column.index_copy_(0, self._all, whole)
        book.remember(self._method.memory, None)
        book.memory["held"].fill_(1.0)
        return book.merge()

    def forget(self) -> None:
        """Nothing of an unfinished look stays."""
        self._book.fresh.fill_(UNSEEN)
        for column in self._book.came.values():
            column.fill_(torch.nan)
