"""The turn from one epoch to the next: its result is complete before anything changes."""

from __future__ import annotations

from dataclasses import dataclass

from ..attribution.queue import Queue
from ..errors import MisalignedError
from ..plan import EpochSummary, PlanNumbers


@dataclass
class Turn:
    """The end of an epoch: what is known of it before anything changes."""

    plan: PlanNumbers
    queue: Queue | None
    summary: EpochSummary
    planned: int
    """The number of samples in the plans of all epochs up to this one."""
    error: MisalignedError | None = None
    is_merged: bool = False
    is_without_backward: bool = False
    """Whether updates returned losses with a gradient, and backward was called for none of them."""
    had_gradients: bool | None = None
    """Whether losses had a gradient; None if Python has seen none, as in a compiled step."""
