"""Variations on trial: what might close the gap to full data. Each has a hypothesis; records say what came of it.

An idea changes the loop (``Settings.ideas``); a trial is a method that is not yet one of the library's
(``Settings.method``). What proves itself moves into the library; the rest stays here with its result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial

import torch

from .. import policies
from ..errors import InputError, message
from ..method import Method
from ..plan import Plan
from ..policies import ByCuts, Cut, Scores, Stats
from ..schedules import Moment, until
from ..scorebook import at_least


@dataclass(frozen=True)
class Idea:
    """What differs from the plain loop."""

    growth_power: float = 1.0
    """With compensate="lr": the rate grows by (|D|/|S|) to this power."""
    normalise: bool = False
    """The weights of a batch are divided by their mean, so that no batch steps further than another."""
    score_average: float = 0.0
    """H becomes a*H + (1-a)*loss in place of the loss."""
    recalibrate: int = 0
    """Before a test, batch norm's statistics are taken anew from so many batches of all data."""


IDEAS: dict[str, tuple[Idea, str]] = {
    "sqrt_growth": (Idea(growth_power=0.5), "a rate grown in full is too large for the noise of fewer samples"),
    "no_growth": (Idea(growth_power=0.0), "the growth is not needed: fewer steps alone cost little"),
    "normalise": (Idea(normalise=True), "batches with many heavy samples step too far"),
    "average": (Idea(score_average=0.5), "one loss is too noisy a score"),
    "slow_average": (Idea(score_average=0.8), "one loss is too noisy a score, by far"),
    "recalibrate": (Idea(recalibrate=100), "batch norm sees the wrong mix of samples"),
}


def combine(names: str) -> Idea:
    """
    >>> combine("sqrt_growth+average").growth_power
    0.5
    """
    changed, plain = {}, Idea()
    for name in filter(None, names.split("+")):
        if name not in IDEAS:
            raise InputError(message("ideas of the lab", repr(name), f"There are {', '.join(IDEAS)}."))
        idea = IDEAS[name][0]
        for entry in fields(Idea):
            value = getattr(idea, entry.name)
            if value != getattr(plain, entry.name):
                changed[entry.name] = value
    return Idea(**changed)


# ---- methods on trial --------------------------------------------------------------------------------------


def one_walk(ratio: float = 0.5, delta: float = 0.875) -> Method:
    """The paper's rule drawn by one permutation: walk it, keep the others and the first k prunable.

    The same sets, but the kept low-loss samples are used up early, and the end of an epoch sees high losses alone.
    """
    policy = partial(_one_walk, ratio=ratio)
    return Method("one_walk", {"ratio": ratio, "delta": delta}, policy, until(delta))


def _one_walk(book: Scores, moment: Moment, generator: torch.Generator, *, ratio: float) -> Plan:
    plan = policies.below_mean(book, moment, generator, ratio=ratio)
    low = book.scores < float(torch.nanmean(book.scores.double()))
    walk = torch.randperm(book.size, generator=generator, device=generator.device)
    prunable = low[walk]
    keep = int((low & (plan.table != 0)).sum())
    kept = walk[~prunable | (prunable.cumsum(0) <= keep)]
    table = torch.zeros_like(plan.table)
    table[kept] = torch.where(low[kept], float(low.sum()) / max(keep, 1), 1.0)
    return Plan(moment.epoch, kept, table)


def ramp(ratio: float = 0.5, start: float = 0.6, delta: float = 0.95) -> Method:
    """The paper's rule, with a ratio that falls to nothing between ``start`` and ``delta`` of the run."""
    policy = partial(_ramp, ratio=ratio, start=start, delta=delta)
    return Method("ramp", {"ratio": ratio, "start": start, "delta": delta}, policy, until(delta))


@ByCuts
def _ramp(stats: Stats, moment: Moment, *, ratio: float, start: float, delta: float) -> list[Cut]:
    part = moment.epoch / moment.num_epochs
    now = ratio * min(1.0, max(0.0, (delta - part) / (delta - start)))
    return [Cut(-math.inf, at_least(stats.mean()), round(now, 6))] if now > 0.005 and stats.known else []


TRIALS: dict[str, Callable[..., Method]] = {"one_walk": one_walk, "ramp": ramp}
