"""Variations on trial: what might close the gap to full data. Each has a hypothesis; records say what came of it.

An idea changes the loop (``Settings.ideas``); a trial is a method that is not yet one of the library's
(``Settings.method``). What proves itself moves into the library; the rest stays here with its result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...epoch.scores import at_least
from ...errors import InputError, message
from ...methods import cuts as policies
from ...methods.cuts import ByCuts, Cut, Scores, Stats
from ...methods.method import Method
from ...methods.when import Moment, until
from ...plan import Plan

if TYPE_CHECKING:
    from .settings import Settings


@dataclass(frozen=True)
class Idea:
    """What differs from the plain loop."""

    growth_power: float = 1.0
    """With compensate="lr": the rate grows by (|D|/|S|) to this power."""
    within_peak: bool = False
    """With compensate="lr": the rate grows no further than the largest rate of its schedule."""
    normalise: bool = False
    """The weights of a batch get the mean that the epoch's have, so that no batch steps further than another."""
    whole_last: bool = False
    """The last batch of a pruned epoch counts as a whole one, however short it is: what others do, and we did."""
    score_average: float = 0.0
    """H becomes a*H + (1-a)*loss in place of the loss."""
    recalibrate: int = 0
    """Before a test, batch norm's statistics are taken anew from so many batches of all data."""
    weigh_norms: bool = False
    """Batch norm's statistics of a batch are those of its samples at their weights."""
    grow_decay: bool = False
    """The weight decay grows by |D|/|S|, in step with a growing loss."""
    shrink_momentum: bool = False
    """The momentum is taken to the power |D|/|S|: a batch that stands for more data forgets more."""
    weight_average: float = 0.0
    """Tests are made with a moving average of the weights, which forgets in step with data as the momentum does."""

    @property
    def looks_up(self) -> bool:
        """Whether it asks the book for a batch's scores or weights, or the feed for other batches."""
        return self.normalise or self.score_average > 0 or self.recalibrate > 0 or self.weigh_norms

    @property
    def steers(self) -> bool:
        """Whether it sets what a captured step holds fast."""
        return self.grow_decay or self.shrink_momentum or self.weight_average > 0


IDEAS: dict[str, tuple[Idea, str]] = {
    "sqrt_growth": (Idea(growth_power=0.5), "a rate grown in full is too large for the noise of fewer samples"),
    "peak": (Idea(within_peak=True), "a rate grown beyond its schedule's largest is too large"),
    "no_growth": (Idea(growth_power=0.0), "the growth is not needed: fewer steps alone cost little"),
    "normalise": (Idea(normalise=True), "batches with many heavy samples step too far"),
    "whole_last": (Idea(whole_last=True), "a last batch of a few samples may step as far as a whole one"),
    "average": (Idea(score_average=0.5), "one loss is too noisy a score"),
    "slow_average": (Idea(score_average=0.8), "one loss is too noisy a score, by far"),
    "recalibrate": (Idea(recalibrate=100), "batch norm sees the wrong mix of samples"),
    "weighted_norm": (Idea(weigh_norms=True), "batch norm sees the wrong mix of samples, in training already"),
    "decay": (Idea(grow_decay=True), "a growing loss leaves the weight decay behind, and that is all it lacks"),
    "momentum": (Idea(shrink_momentum=True), "with fewer steps the momentum reaches too far back"),
    "ema": (Idea(weight_average=0.98), "larger steps end further from where they lead; an average does not"),
}


@cache
def combine(names: str) -> Idea:
    """
    >>> combine("sqrt_growth+average").growth_power
    0.5
    """
    changed: dict[str, Any] = {}
    plain = Idea()
    for name in names.split("+") if names else ():
        if name not in IDEAS:
            raise InputError(message("ideas of the lab", repr(name), f"There are {', '.join(IDEAS)}."))
        idea = IDEAS[name][0]
        for entry in fields(Idea):
            value = getattr(idea, entry.name)
            if value != getattr(plain, entry.name):
                if entry.name in changed:
                    raise InputError(message("ideas that differ in what they change", repr(names), f"Drop {name}."))
                changed[entry.name] = value
    return Idea(**changed)


def idle(idea: Idea, norms: Sequence[nn.Module], settings: Settings) -> list[str]:
    """What of an idea does nothing in a run of a net with these batch norms, and why."""
    grows = idea.growth_power != 1.0 or idea.within_peak
    steady = settings.optimizer not in ("sgd", "lars") or not settings.momentum
    reasons = (
        (grows and settings.grows != "lr", "the learning rate does not grow"),
        (idea.weigh_norms and not any(isinstance(each, nn.BatchNorm2d) for each in norms), "no BatchNorm2d"),
        (idea.recalibrate > 0 and not norms, "no batch norm"),
        (idea.grow_decay and not settings.weight_decay, "no weight decay"),
        (idea.shrink_momentum and steady, "no momentum of that kind"),
    )
    return [why for applies, why in reasons if applies]


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
