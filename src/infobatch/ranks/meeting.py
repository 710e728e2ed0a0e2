"""Whether all ranks come to the same point of the training, asked where nobody waits forever."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .exchange import Ranks

PATIENCE = 30.0
"""How many seconds a rank waits for the others, the first time."""
NUMBERS = itertools.count()
"""Numbers the meetings of this process, in the same order on all ranks."""


class Meeting:
    """The ranks of one training, at the points where they save.

    Scripts call ``state_dict`` on the main process alone, where a collective would wait forever. A rank that found
    itself alone does not wait a second time, unless the others came later.
    """

    def __init__(self, ranks: Ranks, store: Any = None) -> None:
        group: Any = None if store is not None else dist.group.WORLD if ranks.group is None else ranks.group
        self._ranks = ranks
        self._store = dist.distributed_c10d._get_default_store() if store is None else store
        self._name = f"infobatch/{'' if group is None else group.group_name}/{next(NUMBERS) if store is None else 0}"
        self._latest = ("", 0)
        """The latest point, and how often this rank came there."""
        self._was_alone = ""
        """The latest point at which others were missing."""

    def all_come(self, point: str) -> bool:
        """Whether all ranks come to this point; the same answer on all."""
        before, times = self._latest
        self._latest = (point, times + 1 if point == before else 1)
        name = f"{self._name}/{point}/{self._latest[1]}"
        self._store.set(f"{name}/{self._ranks.rank}", "here")
        answer = "alone" if self._was_alone and not self._have_come(self._was_alone) else self._wait(name)
        answer = self._store.compare_set(f"{name}/answer", "", answer).decode()  # the first answer holds for all
        self._was_alone = name if answer == "alone" else ""
        return bool(answer == "together")

    def _wait(self, name: str) -> str:
        try:
            self._store.wait(self._signs(name), timedelta(seconds=PATIENCE))
        except RuntimeError:  # the time is over
            return "alone"
        return "together"

    def _have_come(self, name: str) -> bool:
        return bool(self._store.check(self._signs(name)))

    def _signs(self, name: str) -> list[str]:
        return [f"{name}/{rank}" for rank in range(self._ranks.world)]
