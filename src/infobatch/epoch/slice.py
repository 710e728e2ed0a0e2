"""A rank's slice of the plan: which samples it trains on, in order, and where their weights and losses are kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from ..methods.method import Recorded
from ..ranks.exchange import Ranks

# The two marks that stand for a loss in the tables of the running epoch. Both are finite, so that a loss that is not
# finite can be told from them, and larger than any loss that counts. Losses do end up at the largest float32 or
# bfloat16 (clamp, nan_to_num), but not at an odd number in between. So updates need not look for losses that equal a
# mark, which would cost 3 to 5 us each.
SKIPPED = 0xFF5EED * 2.0**104
UNSEEN = -SKIPPED
TOO_LARGE = torch.finfo(torch.bfloat16).max  # a loss of this size or more counts as not finite

Where = range | Tensor
"""Samples of a slice: a range of positions in it, or indices."""


def choose_scores(loss: Tensor, score: Tensor | None, kind: Recorded) -> Tensor:
    """Return what an update records: the losses, or the scores given instead; ``kind`` says what becomes of either.

    A NaN score with a finite loss means that nothing is known of the sample, so it is marked like a skipped one and
    takes no part in a mean. It must not be recorded as NaN, which is counted as a loss that is not finite. Nothing here
    waits for the device.
    """
    if score is None:
        if kind == "batch":
            return loss.detach().mean().expand_as(loss)
        return _subtract_mean(loss.detach()) if kind == "relative" else loss
    unknown = score.isnan().logical_and_(loss.isfinite())
    scores = score.detach().float()  # half precision cannot hold the mark
    if kind == "batch":
        scores = scores.masked_fill(unknown, 0.0).sum() / unknown.logical_not().sum()
    elif kind == "relative":
        scores = _subtract_mean(scores)
    return torch.where(unknown, SKIPPED, scores)


def _subtract_mean(scores: Tensor) -> Tensor:
    """Subtract the mean of the finite scores; the others stay as they are, to be counted as not finite.

    In double precision, where the mean of equal scores is exactly that score; a rounded mean could lie above them all.
    """
    scores = scores.double()
    finite = scores.abs() < TOO_LARGE
    mean = scores.where(finite, 0.0).sum() / finite.sum()
    return torch.where(finite, scores - mean, scores).float()


class Slice(ABC):
    """What a pass over an epoch asks of a rank's slice."""

    ranks: Ranks
    size: int
    """The number of samples on this rank, ghosts included."""

    @abstractmethod
    def chunks(self, oldest_needed: Callable[[], int]) -> Iterator[Tensor]:
        """Yield the samples in order. Positions before ``oldest_needed()`` are not asked for again."""

    @abstractmethod
    def at(self, positions: range) -> Tensor:
        """Return the samples at these positions, as long as they are remembered."""

    @abstractmethod
    def name(self, positions: range) -> Where:
        """Return these positions in the form that ``note`` and ``skip`` take."""

    @abstractmethod
    def matches(self, positions: range, indices: Tensor) -> bool:
        """Whether the samples at these positions are ``indices``, so that the positions may be used for them."""

    @abstractmethod
    def note(self, where: Where, scores: Tensor, channels: Mapping[str, Tensor]) -> Tensor:
        """Record the scores and the score channels of these samples, and return their weights."""

    @abstractmethod
    def skip(self, where: Where) -> None:
        """Record that these samples get no score."""

    @abstractmethod
    def hand_in(self) -> None:
        """Copy what was noted into the scores. Safe to call again."""

    ghost_count: int

    @property
    @abstractmethod
    def ghosts(self) -> Tensor:
        """The samples at the end of this slice that have weight 0 and whose losses are dropped.

        They make this rank as long as the others, and the last batch larger than one sample.
        """

    @abstractmethod
    def count_ghosts(self, taken: int) -> int:
        """Return how many of the first ``taken`` losses belong to ghosts, and forget ghosts that were named."""

    @abstractmethod
    def correction(self, count: int, taken: int) -> float:
        """Return the factor that turns the mean over ranks of the last ``count`` losses into a mean over samples."""

    def to(self, device: torch.device) -> None:  # noqa: B027 (a slice on the CPU has nothing to move)
        """Move the tensors that are used with the losses."""

    @abstractmethod
    def release(self) -> None:
        """Free the memory once the epoch is closed."""
