"""Where the seconds of a run go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import torch

OF_AN_EPOCH = ("data", "step", "planning", "test")
OF_A_RUN = (*OF_AN_EPOCH, "selection", "setup")


class Clock:
    """The seconds of a run by what they were spent on, and of its running epoch beside them."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = dict.fromkeys(OF_A_RUN, 0.0)
        self.epoch = dict.fromkeys(OF_AN_EPOCH, 0.0)
        """Also what was spent on it before a pause."""

    def now(self) -> float:
        """Once the device is through with what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return perf_counter()

    def spend(self, part: str, seconds: float) -> None:
        self.seconds[part] += seconds
        if part in self.epoch:
            self.epoch[part] += seconds

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        """What is done inside is part of this."""
        start = self.now()
        yield
        self.spend(part, self.now() - start)

    def end_epoch(self) -> dict[str, float]:
        """What it took; the next one starts from nothing."""
        spent, self.epoch = self.epoch, dict.fromkeys(OF_AN_EPOCH, 0.0)
        return _rounded(spent)

    def total(self) -> dict[str, float]:
        return _rounded({**self.seconds, "total": sum(self.seconds.values())})


def _rounded(seconds: dict[str, float]) -> dict[str, float]:
    return {key: round(value, 6) for key, value in seconds.items()}
