"""What every method is compared with: all data, and samples pruned at random."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch

from ...plan import Plan
from ..arguments import check_ratio
from ..cuts import ByCuts, Cut, Stats, nonempty
from ..draws import budget, highest, plan_of
from ..memory import visits
from ..method import DRAW, RANK, Card, Method, Moment, ScoresView, published, register, until
from .infobatch import annealed_method


@ByCuts
def uniform(stats: Stats, moment: Moment, *, ratio: float, unscored: bool = False) -> list[Cut]:
    """Prune any sample with probability r; with ``unscored`` those without a score, too, so from epoch 0 on."""
    del stats, moment
    return nonempty(Cut(-math.inf, math.inf, ratio, unscored=unscored))


@register(Card("baseline", "none", "none", "all 1", "nothing"))
def full() -> Method:
    """Use every sample in every epoch: the baseline, through the same code.

    Returns:
        The method, for ``infobatch.Pruned``.

    >>> import infobatch
    >>> infobatch.methods.full()
    full()
    """
    return Method("full", {}, partial(uniform, ratio=0.0), until(0.0))


@register(Card("the paper, Table 5", "any sample", DRAW))
def random(ratio: float = 0.3, delta: float = 0.875, *, warmup: int = 0) -> Method:
    """Prune a random share of all samples, with rescaling and annealing: the control of the paper's Table 5.

    Args:
        ratio: The share pruned.
        delta: Prune while epoch < delta * num_epochs.
        warmup: The number of full epochs at the start, beyond the first.

    Returns:
        The method, for ``infobatch.Pruned``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import infobatch
    >>> infobatch.methods.random(ratio=0.3)
    random(ratio=0.3, delta=0.875)
    """
    ratio = check_ratio(ratio)
    return annealed_method("random", partial(uniform, ratio=ratio), delta, warmup, ratio=ratio)


@register(Card("the paper, Table 1", "any sample, from the first epoch to the last", DRAW, "all 1", "nothing"))
def random_star(ratio: float = 0.3) -> Method:
    """Draw a random subset in each epoch, the first included, without rescaling or annealing: Random* of Table 1.

    Args:
        ratio: The share pruned.

    Returns:
        The method, for ``infobatch.Pruned``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import infobatch
    >>> infobatch.methods.random_star(ratio=0.3)
    random_star(ratio=0.3, delta=1.0, rescale=False)
    """
    ratio = check_ratio(ratio)
    policy = partial(uniform, ratio=ratio, unscored=True)
    return replace(annealed_method("random_star", policy, 1.0, 0, False, ratio=ratio), prunes_first=True)


@register(Card("RS2, ICLR 2024", "samples already used in this round", RANK, "all 1", "nothing"))
def rs2(ratio: float = 0.3) -> Method:
    """Go through a shuffled list in blocks of (1-ratio)N per epoch, and shuffle it again when it is used up (RS2).

    Args:
        ratio: The share left out of each epoch.

    Returns:
        The method, for ``infobatch.Pruned``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import infobatch
    >>> infobatch.methods.rs2(ratio=0.3)
    rs2(ratio=0.3)
    """
    ratio = check_ratio(ratio)
    policy = partial(keep_least_visited, ratio=ratio)
    return published("rs2", {"ratio": ratio}, policy, until(1.0), visits(), prunes_first=True)


def keep_least_visited(view: ScoresView, moment: Moment, generator: torch.Generator, *, ratio: float) -> Plan:
    kept = highest(-view.memory["visits"], budget(view.size, ratio), generator)
    return plan_of(kept, moment.epoch, generator)
