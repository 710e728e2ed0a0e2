"""OrderDP (ICLR 2026): a random part of the data, and of that the highest losses."""

from __future__ import annotations

from functools import partial

import torch

from ...plan import Plan, choose
from ..arguments import check_fraction
from ..draws import highest, plan_of
from ..method import RANK, Card, Method, Moment, ScoresView, published, register, until


@register(Card("OrderDP, ICLR 2026", "all but the highest losses of a random part", RANK, "all 1"))
def order_dp(some: float = 0.8, best: float = 0.375) -> Method:
    """Draw a random share ``some`` of all samples, and keep the share ``best`` of it with the highest losses.

    Args:
        some: The share drawn at random.
        best: The share of the drawn samples that is kept.

    Returns:
        The method, for ``infobatch.Pruned``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import infobatch
    >>> infobatch.methods.order_dp(some=0.8, best=0.375)
    order_dp(some=0.8, best=0.375)
    """
    some, best = check_fraction("some", some), check_fraction("best", best)
    policy = partial(keep_top, some=some, best=best)
    return published("order_dp", {"some": some, "best": best}, policy, until(1.0), prunes_first=True)


def keep_top(view: ScoresView, moment: Moment, generator: torch.Generator, *, some: float, best: float) -> Plan:
    drawn = choose(torch.ones_like(view.scores, dtype=torch.bool), max(1, round(some * view.size)), generator)
    count = max(1, round(best * some * view.size))
    scores = torch.where(torch.isnan(view.scores), torch.inf, view.scores)
    unknown = int((torch.isnan(view.scores) & drawn).sum())
    top = highest(torch.where(drawn, scores, -torch.inf), max(count, unknown), generator)
    return plan_of(top & drawn, moment.epoch, generator)
