"""Ranks: which slice of a plan each takes, the one exchange per epoch, and whether all ranks save together.

Every rank draws the same plan from the same scores. Rank r of W takes its entries r, r+W, r+2W, ...; so after s samples
on each rank exactly the first s*W entries are done, for any W. In this order the losses of an epoch need no indices
beside them: one gather of floats brings them together.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import RankError, message

# one operation under two names: the new one, and the one of torch before 2.13
_all_gather: Any = getattr(dist, "all_gather_single", None) or getattr(dist, "all_gather_into_tensor", None)

PURPOSES = ("closes", "saves in", "observes the hidden samples of")
PATIENCE = 30.0
"""How many seconds a rank waits for the others before it saves alone, the first time."""
NUMBERS = itertools.count()
"""Numbers the meetings of this process, in the same order on all ranks."""


@dataclass(frozen=True)
class Ranks:
    """The processes that share one plan, and which of them this is."""

    rank: int = 0
    world: int = 1
    group: Any = None

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world}"


def find(group: Any = None) -> Ranks:
    """Return the ranks of ``group``, or of the default group if one is initialized; else this process alone."""
    if not dist.is_available() or not dist.is_initialized():
        launched = int(os.environ.get("WORLD_SIZE") or "1")  # some launchers leave it empty
        if group is not None or launched > 1:
            raise RankError(
                message(
                    "an initialized process group",
                    f"none (WORLD_SIZE={launched})" if group is None else "none, or a destroyed one",
                    "Call torch.distributed.init_process_group() before the first batch; destroy it after the last.",
                )
            )
        return Ranks()
    rank = dist.get_rank(group)
    if rank < 0:
        raise RankError(
            message(
                "a process group this process belongs to",
                f"a group without global rank {dist.get_rank()}",
                "Pass the data-parallel group of this rank, as mesh['dp'].get_group().",
            )
        )
    return Ranks(rank, dist.get_world_size(group), group)


def take_slice(indices: Tensor, ranks: Ranks) -> Tensor:
    """Return this rank's slice of a plan, equally long on all ranks.

    If the plan does not divide evenly, the last ranks get a ghost: the plan's first sample again. It belongs to rank 0,
    so here its weight is 0 and its loss is dropped; every sample is trained once, with its own weight.
    """
    mine = indices[ranks.rank :: ranks.world]
    if ghosts(indices.numel(), ranks.world) >= ranks.world - ranks.rank:
        mine = torch.cat([mine, indices[:1]])
    return mine


def ghosts(count: int, world: int) -> int:
    """Return how many ranks get a ghost when ``count`` samples are divided: always the last ones, never rank 0."""
    return -count % world


def agree(ranks: Ranks, facts: dict[str, Any]) -> None:
    """Check that all ranks were given the same data and settings; raise on every rank, and name what differs."""
    if ranks.world == 1:
        return
    gathered: list[Any] = [None] * ranks.world
    with _together(ranks, "compare settings"):
        dist.all_gather_object(gathered, facts, group=ranks.group)
    for name in facts:
        values = [others.get(name) for others in gathered]
        if len({repr(value) for value in values if value is not None}) > 1:  # None: cannot say yet
            got = ", ".join(f"rank {rank} has {value!r}" for rank, value in enumerate(values))
            raise RankError(message(f"the same {name} on every rank", got, "Give all ranks the same arguments."))


def gather(ranks: Ranks, mine: Tensor, count: int, purpose: str, epoch: int) -> Tensor:
    """Put the ranks' parts of ``count`` numbers back into one tensor, in the order of the plan.

    Each part starts with its purpose: otherwise a rank that saves while another one closes its epoch would get numbers
    of the right length and the wrong meaning.
    """
    if ranks.world == 1:
        return mine
    home = mine.device
    mine = mine.to(_exchange_device(ranks))
    heading = mine.new_tensor([PURPOSES.index(purpose), epoch, count >> 22, count & 0x3FFFFF])
    part = torch.cat([heading, mine])
    every = part.new_empty(ranks.world * part.numel())
    with _together(ranks, "exchange the epoch's losses"):
        _all_gather(every, part, group=ranks.group)
    rows = every.view(ranks.world, -1)
    headings: list[list[float]] = rows[:, :4].tolist()
    if any(other != headings[0] for other in headings):
        got = ", ".join(
            f"rank {rank} {PURPOSES[int(about[0])]} epoch {int(about[1])}" for rank, about in enumerate(headings)
        )
        raise RankError(
            message(
                "all ranks at the same point of training",
                got,
                "Call state_dict() on all ranks or none, at the same step; between two epochs also plan(), len() and "
                "scores. Load a checkpoint on every rank.",
            )
        )
    return rows[:, 4:].T.reshape(-1)[:count].to(home)


def sum_over(ranks: Ranks, mine: Tensor) -> Tensor:
    """Return the sum of a few numbers over the ranks."""
    if ranks.world == 1:
        return mine
    summed = mine.to(_exchange_device(ranks), copy=True)
    with _together(ranks, "plan an epoch"):
        dist.all_reduce(summed, group=ranks.group)
    return summed.to(mine.device)


def gather_rows(ranks: Ranks, mine: list[int]) -> list[list[int]]:
    """Return a few counts of every rank, one row per rank."""
    if ranks.world == 1:
        return [mine]
    row = torch.tensor(mine, device=_exchange_device(ranks))
    rows = row.new_empty(ranks.world * len(mine))
    with _together(ranks, "plan an epoch"):
        _all_gather(rows, row, group=ranks.group)
    counts: list[list[int]] = rows.view(ranks.world, -1).tolist()
    return counts


def _exchange_device(ranks: Ranks) -> torch.device:
    """Return the device on which the ranks exchange numbers: NCCL takes them only from a GPU.

    Torch has no public way to ask what a group accepts.
    """
    group: Any = dist.group.WORLD if ranks.group is None else ranks.group
    kinds = {device.type for device in group._device_types}
    if "cpu" in kinds:
        return torch.device("cpu")
    return torch.device(min(kinds), torch.accelerator.current_device_index())


@contextmanager
def _together(ranks: Ranks, purpose: str) -> Iterator[None]:
    """Turn the failure of a collective into an error that says which one, and what to look for."""
    try:
        yield
    except RuntimeError as error:
        raise RankError(
            message(
                f"all {ranks.world} ranks to {purpose}",
                f"a failure on {ranks} ({error})",
                "Another rank has died or did not arrive within the process group's timeout: see its own log. Call "
                "state_dict() on all ranks or none; between two epochs also plan(), len() and scores.",
            )
        ) from error


# ---- saving: whether all ranks come to the same point, asked where none waits forever -----------------------------


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
