"""What every method is compared with: all data, and samples pruned at random."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ...plan import Plan
from ..arguments import check_ratio
from ..cuts import ByCuts, Cut, Stats, nonempty
from ..draws import budget, highest, plan_of
from ..memory import Columns, Memory
from ..method import DRAW, RANK, Card, Method, Moment, ScoresView, published, register, until
from .infobatch import annealed_method


@ByCuts
def uniform(stats: Stats, moment: Moment, *, ratio: float, unscored: bool = False) -> list[Cut]:
    """Prune any sample with probability r; with ``unscored`` those without a score, too, so from epoch 0 on."""
    del stats, moment
    return nonempty(Cut(-math.inf, math.inf, ratio, unscored=unscored))


@register(Card("baseline", "none", "none", "all 1", "nothing"))
def full() -> Method:
    """Every sample in every epoch: the baseline, through the same code."""
    return Method("full", {}, partial(uniform, ratio=0.0), until(0.0))


@register(Card("the paper, Table 5", "any sample", DRAW))
def random(ratio: float = 0.3, delta: float = 0.875, *, warmup: int = 0) -> Method:
    """Table 5's control: prune any sample with probability ``ratio``, with rescaling and annealing."""
    ratio = check_ratio(ratio)
    return annealed_method("random", partial(uniform, ratio=ratio), delta, warmup, ratio=ratio)


@register(Card("the paper, Table 1", "any sample, from the first epoch to the last", DRAW, "all 1", "nothing"))
def random_star(ratio: float = 0.3) -> Method:
    """Table 1's Random*: a fresh random subset in every epoch including the first; no rescaling, no annealing."""
    ratio = check_ratio(ratio)
    policy = partial(uniform, ratio=ratio, unscored=True)
    return replace(annealed_method("random_star", policy, 1.0, 0, False, ratio=ratio), prunes_first=True)


@register(Card("RS2, ICLR 2024", "samples already used in this round", RANK, "all 1", "nothing"))
def rs2(ratio: float = 0.3) -> Method:
    """RS2 (ICLR 2024): a shuffled list in blocks of (1-ratio)N per epoch, shuffled again when it is used up."""
    ratio = check_ratio(ratio)
    visits = Memory({"visits": 0.0}, on_plan=_count_visits)
    policy = partial(keep_least_visited, ratio=ratio)
    return published("rs2", {"ratio": ratio}, policy, until(1.0), visits, prunes_first=True)


def keep_least_visited(view: ScoresView, moment: Moment, generator: torch.Generator, *, ratio: float) -> Plan:
    kept = highest(-view.memory["visits"], budget(view.size, ratio), generator)
    return plan_of(kept, moment.epoch, generator)


def _count_visits(columns: Columns, planned: Tensor, chosen: Tensor) -> Columns:
    del chosen
    return {"visits": columns["visits"] + planned}
