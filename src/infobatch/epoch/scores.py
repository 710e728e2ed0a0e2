"""The book of scores: the only numbers that change during training."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..methods.memory import Memory
from ..plan import Plan, moved

TOO_LARGE = torch.finfo(torch.bfloat16).max  # from here on a loss counts as not finite
# What a sample has to show for the running epoch. Both marks are finite, so that a loss that is not can be told from
# them, and larger than any that counts. Losses do end up at the end of float32 or bfloat16 (clamp, nan_to_num), but
# not at an odd number in between. So none is looked at: keeping each off the marks would cost an update 3 to 5 us.
SKIPPED = 0xFF5EED * 2.0**104
UNSEEN = -SKIPPED
BLOCK = 1 << 15  # as much as torch gives one thread: larger ones wake the others up for each block


class ScoreBook:
    """The scores H of N samples, and beside them what the running epoch has brought so far.

    ``scores`` hold still during an epoch; NaN says that nothing is known of a sample. ``fresh`` takes the
    epoch's own scores and ``merge`` moves them over. ``weights`` is the running plan's table. The three buffers
    keep their place in memory, so compiled steps and captured graphs go on reading the right one.
    """

    @torch.inference_mode(False)
    def __init__(self, size: int, device: torch.device | str = "cpu") -> None:
        self.scores = torch.full((size,), torch.nan, dtype=torch.float32, device=device)
        self.fresh = torch.full((size,), UNSEEN, dtype=torch.float32, device=device)
        self.weights = torch.ones(size, dtype=torch.float32, device=device)
        self.recorded = torch.zeros((), dtype=torch.int64, device=device)
        self.planned = 0
        """How many samples the plans of all finished epochs held together."""
        self.memory: dict[str, Tensor] = {}
        """What the method remembers besides, by name."""
        self.came: dict[str, Tensor] = {}
        """What else this epoch's updates brought, by name."""

    @torch.inference_mode(False)
    def keep(self, memory: Memory | None, brought: Iterable[str]) -> None:
        """Make room for what a method remembers, and for what it wants brought with each loss."""
        for name, first in (memory.columns if memory else {}).items():
            self.memory[name] = torch.full_like(self.scores, first)
        self.came = {name: torch.full_like(self.scores, torch.nan) for name in brought}

    @property
    def size(self) -> int:
        return self.scores.numel()

    def samples(self) -> Tensor:
        """The samples whose scores lie here, in the order of ``scores``: all."""
        return torch.arange(self.size, device=self.device)

    @property
    def device(self) -> torch.device:
        return self.scores.device

    @torch.inference_mode(False)
    def to(self, device: torch.device) -> None:
        for name in ("scores", "fresh", "weights", "recorded"):
            setattr(self, name, moved(getattr(self, name), device))
        for columns in (self.memory, self.came):
            for name, column in columns.items():
                columns[name] = moved(column, device)

    def load(self, scores: Tensor, planned: int) -> None:
        """Start from these scores, with nothing seen."""
        self.scores.copy_(scores)
        self.fresh.fill_(UNSEEN)
        self.recorded.zero_()
        self.planned = planned

    def begin(self, plan: Plan, scale: float = 1.0) -> None:
        """Open an epoch: its weights in, nothing seen yet."""
        self.weights.copy_(plan.table)
        if scale != 1.0:
            self.weights.mul_(scale)
        self.fresh.fill_(UNSEEN)
        self.recorded.zero_()

    def exclude(self, indices: Tensor) -> None:
        """These samples are other ranks' business: their weight is 0 here."""
        self.weights.index_fill_(0, indices, 0.0)

    def record(self, indices: Tensor, scores: Tensor) -> None:
        """Note the scores of these samples. Nothing here waits for the device."""
        scores = scores.detach()
        self.fresh.scatter_(0, indices, scores if scores.dtype == self.fresh.dtype else scores.to(self.fresh.dtype))

    def note(self, indices: Tensor, scores: Tensor) -> Tensor:
        """Record, and return the weights."""
        self.record(indices, scores)
        return self.look_up(indices)

    def look_up(self, indices: Tensor) -> Tensor:
        """The weights of these samples. On the CPU an index out of range raises IndexError."""
        return self.weights.index_select(0, indices)

    def named(self, indices: Tensor) -> None:
        """The caller brought these indices along: nobody else counts them."""
        self.recorded.add_(indices.numel())

    def skip(self, indices: Tensor) -> None:
        self.fresh.index_fill_(0, indices, SKIPPED)

    def unseen(self, indices: Tensor) -> Tensor:
        """Those of ``indices`` that still wait, in their order."""
        return indices[self.fresh.index_select(0, indices) == UNSEEN]

    def forget(self, index: Tensor) -> int:
        """Take one sample's mark back; returns whether there was one."""
        marked = int(self.fresh[index] != UNSEEN)
        self.fresh[index] = UNSEEN
        return marked

    def seen(self) -> int:
        return self.size - int(torch.count_nonzero(self.fresh == UNSEEN))

    def strangers(self) -> int:
        """How many samples got a score in this epoch without being in its plan."""
        return int(torch.count_nonzero((self.fresh != UNSEEN) & (self.weights == 0)))

    @torch.inference_mode(False)
    def remember(self, memory: Memory | None, plan: Plan | None) -> None:
        """The method's columns take in what arrived, and the plan, where it came by one. Before ``merge``."""
        if memory is None:
            return
        arrived = self.fresh.abs() < TOO_LARGE
        came = {**self.came, "arrived": arrived.float(), "scores": self.scores}
        for name, new in memory.on_loss(self.memory, self.fresh, came).items():
            self.memory[name] = torch.where(arrived, new, self.memory[name])
        if plan is not None:
            planned = plan.table != 0
            self.memory |= memory.on_plan(self.memory, planned, planned if plan.chosen is None else plan.chosen)
        for column in self.came.values():
            column.fill_(torch.nan)

    def merge(self) -> int:
        """Close an epoch: the last finite loss becomes the score. Returns how many losses were not finite."""
        not_finite = merge(self.fresh, self.scores)
        self.recorded.zero_()
        return not_finite


def merge(fresh: Tensor, scores: Tensor) -> int:
    """Move what arrived over to the scores, where it is finite; returns how many were not."""
    not_finite = torch.zeros((), dtype=torch.int64, device=scores.device)
    for new, old in zip(torch.split(fresh, 1 << 20), torch.split(scores, 1 << 20), strict=True):
        size = new.abs()
        finite = size < TOO_LARGE  # no mark is, nor NaN
        torch.where(finite, new, old, out=old)
        not_finite += torch.count_nonzero(finite.logical_or_(size == SKIPPED).logical_not_())
    fresh.fill_(UNSEEN)
    return int(not_finite)


def bring(came: dict[str, Tensor], indices: Tensor, confidence: Tensor | None) -> None:
    """Note what came beside the losses of these samples."""
    for column in came.values():
        assert confidence is not None
        column.scatter_(0, moved(indices, column.device), confidence.detach().to(column.dtype))
