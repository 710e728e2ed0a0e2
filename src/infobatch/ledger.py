"""Which samples still wait for their loss: the books of one pass over an epoch.

A loss arrives as a bare vector, and a loader fetches ahead, so someone must know whose losses these are. A
``Pass`` is told in one of three ways.

* A stock loader takes indices from the sampler and says nothing more. The sampler counts what it hands out and
  ``take`` gives the oldest. Delivery itself is out of sight, so the counts are held against each other: what is
  left over from before must be the same at every delivery.
* ``infobatch.DataLoader`` brings each batch's indices along (``deliver``).
* The caller carries them; then nothing is taken from here.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Iterator
from operator import length_hint
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .distributed import Ranks, ghosts, share
from .errors import InputError, MisalignedError, message

CHUNK = 1 << 16
ALONE = Ranks()


class Pass:
    """One walk over (what remains of) an epoch: what was handed out, what came back."""

    def __init__(
        self, epoch: int, remaining: Tensor, loader: _BaseDataLoaderIter | None = None, ranks: Ranks = ALONE
    ) -> None:
        self.epoch = epoch
        self.remaining = remaining
        """What is left of the plan, for all ranks together."""
        self.ranks = ranks
        self.indices = share(remaining, ranks)
        """This rank's part of it."""
        self.size = self.indices.numel()
        self._ghosts = ghosts(remaining.numel(), ranks.world)
        self.total = self.size
        """How many samples will be delivered: fewer than ``size`` where the loader drops its last batch."""
        self.taken = 0
        self.updates = 0
        self._last_count = 0
        self.superseded = False
        self.closed = False

        self._chunk: list[int] = []
        self._hand: Iterator[int] = iter(())
        self._behind = 0
        self._handed_then = 0
        self._lag: int | None = None

        self.carried = False
        self.lookahead = 0
        self.exhausted = False
        self.delivered = 0
        self.waiting: deque[Tensor] = deque()

        self.batch_size: int | None = None
        self._loader: weakref.ref[Any] | None = None
        self._persistent = False
        self._reorders = ""
        if loader is not None:
            self._meet(loader)

    # ---- handing out -------------------------------------------------------------------------------------

    def hand_out(self) -> Iterator[int]:
        """The indices one by one. The list's own iterator does the walking, so counting costs nothing."""
        try:
            for chunk in torch.split(self.indices.cpu(), CHUNK):
                self._chunk = chunk.tolist()
                self._behind += len(self._chunk)
                self._hand = iter(self._chunk)
                yield from self._hand
                if self.superseded:
                    raise MisalignedError(
                        message(
                            "one open iterator over the training data",
                            "a step of an older one after a newer one had begun",
                            "Finish a pass before you begin the next; for passes that are no training use .full().",
                        )
                    )
        finally:
            self.closed = True

    @property
    def handed(self) -> int:
        return self._behind - length_hint(self._hand)

    def supersede(self) -> None:
        """A newer pass has begun: let this one's iterator run dry, so that its next step raises."""
        if not self.superseded and not self.closed:
            self.superseded = True
            self._chunk.clear()

    def deliver(self, indices: Tensor) -> None:
        self.waiting.append(indices)
        self.delivered += indices.numel()

    def to(self, device: torch.device) -> None:
        self.remaining = self.remaining.to(device, non_blocking=True)
        self.indices = self.indices.to(device, non_blocking=True)

    # ---- taking back -------------------------------------------------------------------------------------

    def take(self, count: int) -> Tensor:
        """The samples that the next ``count`` losses belong to."""
        indices = self._from_front(count) if self.carried else self._by_count(count)
        self.taken += count
        self.updates += 1
        self._last_count = count
        return indices

    @property
    def ghost(self) -> Tensor | None:
        """The sample this rank repeats without weight, to be as long as the others; or None."""
        return self.remaining[0] if self.ranks.rank >= self.ranks.world - self._ghosts else None

    @property
    def others(self) -> Tensor:
        """What other ranks take."""
        position = torch.arange(self.remaining.numel(), device=self.remaining.device)
        return self.remaining[position % self.ranks.world != self.ranks.rank]

    @property
    def correction(self) -> float:
        """What makes the mean over ranks of the last batch a mean over its samples: ghosts are not counted."""
        if not self._ghosts or self.taken < self.size:
            return 1.0
        together = self._last_count * self.ranks.world
        return together / (together - self._ghosts)

    def drop(self, count: int | None) -> Tensor:
        """The samples of the batch in front, or of its first ``count``: they will get no loss."""
        if self.carried:
            if not self.waiting:
                raise MisalignedError(_nothing_waits(0))
            indices = self._from_front(len(self.waiting[0]) if count is None else count)
        else:
            indices = self._by_count(self._in_front() if count is None else count)
        self.taken += indices.numel()
        return indices

    def _from_front(self, count: int) -> Tensor:
        if not self.waiting:
            raise MisalignedError(_nothing_waits(count))
        ahead = len(self.waiting) - 1
        if ahead > self.lookahead or (ahead < self.lookahead and not self.exhausted):
            raise MisalignedError(
                message(
                    f"{self.lookahead + 1} delivered batch(es) waiting for losses at an update",
                    f"{ahead + 1} (the oldest still lacks {len(self.waiting[0])} losses)",
                    "A batch you leave out wants train_data.skip(); a loop that reads ahead wants "
                    "infobatch.DataLoader(..., lookahead=n); a collate_fn must not drop samples.",
                )
            )
        front = self.waiting[0]
        if count > len(front):
            raise MisalignedError(
                message(
                    f"at most {len(front)} losses, what the batch in front still waits for",
                    str(count),
                    "Call update() once for each batch, with one loss a sample.",
                )
            )
        if count == len(front):
            return self.waiting.popleft()
        self.waiting[0] = front[count:]
        return front[:count]

    def _by_count(self, count: int) -> Tensor:
        if self._reorders:
            raise MisalignedError(
                message(
                    "a loader that delivers in the order of train_data.sampler",
                    self._reorders,
                    "Use infobatch.DataLoader, which carries the indices, or pass them: update(loss, indices).",
                )
            )
        handed = self.handed
        if handed != self._handed_then:
            left = self._handed_then - self.taken
            if self._handed_then == 0:
                self._lag = self._first_lag(handed)
            elif self._lag is None:
                self._lag = left
            elif left != self._lag:
                raise MisalignedError(
                    message(
                        f"{self._lag} samples still without a loss from before this batch",
                        f"{left} (handed out {handed}, losses for {self.taken})",
                        "A batch you leave out wants train_data.skip(); update() wants every batch once and whole; "
                        "infobatch.DataLoader lets you mix them freely.",
                    )
                )
            self._handed_then = handed
        at_hand = handed if self._lag is None or handed == self.size else handed - self._lag
        if self.taken + count > at_hand:
            raise MisalignedError(
                message(
                    f"at most {at_hand - self.taken} losses, what was delivered and still waits",
                    f"{count} (handed out {handed}, losses for {self.taken})",
                    "Call update() once for each batch, with one loss a sample.",
                )
            )
        return self.indices[self.taken : self.taken + count]

    def _first_lag(self, handed: int) -> int | None:
        """How far the loader runs ahead, told from the first delivery; None while that cannot be told."""
        return None if self.batch_size is None or handed == self.size else handed - self.batch_size

    def _in_front(self) -> int:
        """The size of the batch that waits, as far as counts can tell."""
        handed = self.handed
        lag = self._lag
        if self._handed_then == 0:
            lag = self._first_lag(handed)
        if lag is not None and handed != self.size:
            return handed - lag - self.taken
        if self.batch_size is None:
            raise InputError(
                message(
                    "a loader whose batch size can be seen",
                    "a foreign one",
                    "Say how many samples to skip: skip(count).",
                )
            )
        return min(self.batch_size, handed - self.taken)

    # ---- ends --------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Every sample that will be delivered has its loss."""
        return self.taken >= self.total or (self.carried and self.exhausted and not self.waiting)

    @property
    def over(self) -> bool:
        """The loader's own iterator is through, as far as that can be seen; ``len`` may speak of the next epoch."""
        if self._loader is not None and not self.carried:
            return self._loader() is None or (self.finished and self._persistent)
        return self.exhausted if self.carried else self.closed

    def check_end(self) -> None:
        """At the end of a pass with updates: nothing may be left that could have shifted the rest."""
        if self.carried or not self.updates or self._lag == 0 or self.handed < self.size:
            return
        left, batch = self.size - self.taken, self.batch_size or 1
        if left >= batch and self.taken < self.total:
            raise MisalignedError(
                message(
                    f"a loss for every sample of the last pass but a rest smaller than a batch ({batch})",
                    f"{left} without one, among the last the loader had fetched",
                    "A batch you leave out wants train_data.skip(); with workers, a break near the end of an epoch "
                    "looks the same: infobatch.DataLoader can tell them apart.",
                )
            )

    # ---- the loader that asks ----------------------------------------------------------------------------

    def _meet(self, loader: _BaseDataLoaderIter) -> None:
        asking: Any = loader
        self._loader = weakref.ref(asking)
        self._persistent = bool(asking._persistent_workers) and asking._num_workers > 0
        batches = asking._index_sampler
        if isinstance(batches, BatchSampler) and type(batches).__module__.startswith(("torch.", "torchdata.")):
            self.batch_size = batches.batch_size
            if batches.drop_last:
                self.total = self.size // batches.batch_size * batches.batch_size
        elif not asking._auto_collation:
            self.batch_size = 1
        else:
            self._reorders = f"a {type(batches).__name__} around it"
        if asking._num_workers > 0 and not getattr(asking, "_in_order", True):
            self._reorders = "in_order=False"
        if getattr(asking, "_snapshot_interval", 1) > 1:  # torchdata: a resumed loader drops batches unseen
            self._reorders = "snapshot_every_n_steps above 1"


def asking_loader() -> _BaseDataLoaderIter | None:
    """The stock loader's iterator on whose behalf the sampler is being asked, or None.

    A sampler is never introduced to its loader, and a loader that reorders would go unnoticed. So, once a pass,
    look up the stack. Reading only; where nothing is found, counting alone has to do.
    """
    frame = sys._getframe(1)
    for _ in range(8):
        if frame.f_back is None:
            return None
        frame = frame.f_back
        owner = frame.f_locals.get("self")
        if isinstance(owner, _BaseDataLoaderIter):
            return owner
    return None


def _nothing_waits(count: int) -> str:
    return message(
        "a delivered batch that waits for its losses",
        f"{count} losses and no batch" if count else "none",
        "Call update() once for each batch of the training loader, and only for those.",
    )
