"""Measure what the seconds of a run are spent on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import torch

PER_EPOCH = ("data", "step", "planning", "test")
PER_RUN = (*PER_EPOCH, "selection", "setup")


class Clock:
    """The seconds of a run by activity, and those of its current epoch."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = dict.fromkeys(PER_RUN, 0.0)
        self.epoch = dict.fromkeys(PER_EPOCH, 0.0)
        """Of the current epoch, including what was spent before a pause."""

    def now(self) -> float:
        """Return the time once the device has finished its queued work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return perf_counter()

    def spend(self, activity: str, seconds: float) -> None:
        """Add seconds to an activity."""
        self.seconds[activity] += seconds
        if activity in self.epoch:
            self.epoch[activity] += seconds

    @contextmanager
    def on(self, activity: str) -> Iterator[None]:
        """Add the time spent in the block to an activity."""
        start = self.now()
        yield
        self.spend(activity, self.now() - start)

    def end_epoch(self) -> dict[str, float]:
        """Return the seconds of the epoch and start the next one at zero."""
        spent, self.epoch = self.epoch, dict.fromkeys(PER_EPOCH, 0.0)
        return _rounded(spent)

    def total(self) -> dict[str, float]:
        """Return the seconds of the whole run, by activity and in total."""
        return _rounded({**self.seconds, "total": sum(self.seconds.values())})


def _rounded(seconds: dict[str, float]) -> dict[str, float]:
    return {key: round(value, 6) for key, value in seconds.items()}
