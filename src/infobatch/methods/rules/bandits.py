"""Raju et al. 2021: pruning as a bandit, by a moving average of the loss."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ...plan import Plan, choose
from ..arguments import check_fraction, check_number, check_open_fraction, check_positive, check_ratio
from ..draws import budget, highest, keep_highest, plan_of
from ..memory import average, chosen
from ..method import RANK, Card, Method, Moment, ScoresView, published, register, until


@register(Card("Raju et al. 2021", "the lowest average losses, except for a tenth at random", RANK, "all 1"))
def epsilon_greedy(ratio: float = 0.3, *, epsilon: float = 0.1, share: float = 0.8, every: int = 10) -> Method:
    """Keep the highest average losses, and a share ``epsilon`` of the budget at random; chosen every ten epochs.

    Args:
        ratio: The share pruned.
        epsilon: The share of the kept samples that is drawn at random.
        share: The weight of the newest loss in the moving average.
        every: The number of epochs a choice holds.

    Returns:
        The method, for ``infobatch.Pruned``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import infobatch
    >>> infobatch.methods.epsilon_greedy(ratio=0.3)
    epsilon_greedy(ratio=0.3, epsilon=0.1, share=0.8, every=10)
    """
    ratio, epsilon = check_ratio(ratio), check_open_fraction("epsilon", epsilon)
    share, every = check_fraction("share", share), check_positive("every", every)
    policy = partial(keep_greedily, ratio=ratio, epsilon=epsilon, every=every)
    settings = {"ratio": ratio, "epsilon": epsilon, "share": share, "every": every}
    return published("epsilon_greedy", settings, policy, until(1.0), average(share) | chosen())


def keep_greedily(
    view: ScoresView, moment: Moment, generator: torch.Generator, *, ratio: float, epsilon: float, every: int
) -> Plan:
    if (held := _last_choice(view, moment, every)) is not None:
        return plan_of(held, moment.epoch, generator)
    average = view.memory["average"]
    unknown = int(torch.count_nonzero(torch.isnan(average)))
    count = max(budget(view.size, ratio), unknown)
    best = highest(average, max(count - round(epsilon * count), unknown), generator)
    return plan_of(best | choose(~best, count - int(best.sum()), generator), moment.epoch, generator)


@register(Card("Raju et al. 2021", "the lowest average loss plus spread, for ten epochs at a time", RANK, "all 1"))
def ucb(ratio: float = 0.3, *, c: float = 1.0, share: float = 0.8, every: int = 10) -> Method:
    """Keep the highest average loss plus ``c`` times its spread; chosen every ten epochs.

    Args:
        ratio: The share pruned.
        c: The factor of the spread.
        share: The weight of the newest loss in the moving averages.
        every: The number of epochs a choice holds.

    Returns:
        The method, for ``infobatch.Pruned``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import infobatch
    >>> infobatch.methods.ucb(ratio=0.3)
    ucb(ratio=0.3, c=1.0, share=0.8, every=10)
    """
    ratio, share = check_ratio(ratio), check_fraction("share", share)
    c, every = check_number("c", c, "1 is the default."), check_positive("every", every)
    policy = partial(keep_upper_bound, ratio=ratio, c=c, every=every)
    settings = {"ratio": ratio, "c": c, "share": share, "every": every}
    return published("ucb", settings, policy, until(1.0), average(share, spread=True) | chosen())


def keep_upper_bound(
    view: ScoresView, moment: Moment, generator: torch.Generator, *, ratio: float, c: float, every: int
) -> Plan:
    if (held := _last_choice(view, moment, every)) is not None:
        return plan_of(held, moment.epoch, generator)
    value = view.memory["average"] + c * view.memory["spread"]
    return plan_of(keep_highest(value, ratio, generator), moment.epoch, generator)


def _last_choice(view: ScoresView, moment: Moment, every: int) -> Tensor | None:
    """Return the last choice if it still holds in this epoch."""
    chosen = view.memory["chosen"] != 0
    return chosen if moment.epoch % every and not bool(chosen.all()) else None
