"""The turn from one epoch to the next: its result is complete before anything changes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch

from ..attribution.queue import Queue
from ..errors import MisalignedError
from ..plan import EpochSummary, PlanNumbers

Call = TypeVar("Call", bound=Callable[..., Any])


def locking(method: Call) -> Call:
    """Let no other thread change the epoch while this method of its owner runs.

    Scripts save in the background and show the progress from a thread, and whoever asks may turn the epoch.
    """

    @functools.wraps(method)
    def locked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return method(self, *args, **kwargs)
        with self._epoch.lock:
            return method(self, *args, **kwargs)

    return cast("Call", locked)


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
