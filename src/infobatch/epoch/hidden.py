"""A pass over the samples that an epoch left out: forward only, between two epochs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ..attribution.views import FullView
from ..checks import check_range
from ..errors import MisalignedError, message
from ..methods.method import Method
from ..ranks.exchange import Ranks, gather, take_slice
from .scores import ScoreTable, merge_losses
from .slice import UNSEEN


class HiddenPass:
    """The samples that were left out, and the losses observed of them so far."""

    def __init__(self, table: ScoreTable, method: Method, ranks: Ranks, epoch: int) -> None:
        self._table, self._method, self._ranks, self._epoch = table, method, ranks, epoch
        self._all = (table.memory["held"] == 0).nonzero().squeeze(1)
        self._mine = take_slice(self._all, ranks)
        table.fresh.fill_(UNSEEN)

    @property
    def size(self) -> int:
        """The number of samples left out, on all ranks."""
        return self._all.numel()

    def batches(self, view: FullView, batch_size: int, loader: dict[str, Any]) -> Iterator[tuple[Any, Tensor]]:
        """Yield the batches of this rank as pairs (batch, indices)."""
        mine = self._mine.cpu()
        if not mine.numel():
            return
        batches = DataLoader(view, batch_size=batch_size, sampler=mine.tolist(), **loader)
        for batch, indices in zip(batches, torch.split(mine, batch_size), strict=True):
            yield batch, indices.to(self._table.device)

    def note(self, loss: Tensor, indices: Tensor, channels: Mapping[str, Tensor]) -> None:
        """Record the losses of these samples."""
        if indices.device.type == "cpu":  # elsewhere, reading values would wait for the device
            check_range(indices, self._table.size, "Pass the indices of the loop.")
        self._table.record(indices, loss)
        self._table.record_channels(indices, channels)

    @torch.inference_mode(False)
    def close(self) -> int:
        """Turn what was observed on all ranks into scores and memory; return how many losses were not finite."""
        table = self._table
        seen = int((table.fresh[self._mine] != UNSEEN).sum())
        outside = int((table.fresh != UNSEEN).sum()) - seen
        if outside:
            expected, remedy = "losses of samples that were left out", "Pass the indices of the loop."
            raise MisalignedError(message(expected, f"{outside} of others", remedy))
        if seen < self._mine.numel():
            got = f"none for {self._mine.numel() - seen} of {self._mine.numel()} samples"
            raise MisalignedError(message("an observe() for each batch", got, "Call it in the loop over hidden()."))
        if self._ranks.world > 1 and self._all.numel():
            for column in (table.fresh, *table.channels.values()):
                mine = column.index_select(0, self._mine)
                purpose = "observes the hidden samples of"
                column.index_copy_(0, self._all, gather(self._ranks, mine, self.size, purpose, self._epoch))
        table.close_hidden(self._method.memory)
        not_finite = merge_losses(table.fresh, table.scores)
        self.forget()
        return not_finite

    def forget(self) -> None:
        """Drop what was observed in an unfinished pass."""
        self._table.fresh.fill_(UNSEEN)
        for column in self._table.channels.values():
            column.fill_(torch.nan)
