"""ESWP: a draw in proportion to an evolved weight of each sample."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ...plan import Plan
from ..arguments import check_fraction, check_ratio
from ..draws import gumbel_noise, keep_highest, plan_of
from ..memory import Columns, Memory
from ..method import RANK, Card, Method, Moment, ScoresView, published, register, until


@register(Card("ESWP", "any sample, more likely the lower its average loss", RANK, "all 1"))
def eswp(ratio: float = 0.3, *, b1: float = 0.2, b2: float = 0.9) -> Method:
    """Draw in proportion to w = b1*s + (1-b1)*l, with s the slow average of the losses.

    Args:
        ratio: The share pruned.
        b1: The weight of the slow average.
        b2: How slowly it moves: s <- b2*s + (1-b2)*l.

    Returns:
        The method, for ``infobatch.Pruned``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import infobatch
    >>> infobatch.methods.eswp(ratio=0.3)
    eswp(ratio=0.3, b1=0.2, b2=0.9)
    """
    ratio, b1, b2 = check_ratio(ratio), check_fraction("b1", b1), check_fraction("b2", b2)
    memory = Memory({"slow": torch.nan, "weight": torch.nan}, partial(_evolve, b1=b1, b2=b2))
    policy = partial(keep_by_weight, ratio=ratio)
    return published("eswp", {"ratio": ratio, "b1": b1, "b2": b2}, policy, until(1.0), memory)


def keep_by_weight(view: ScoresView, moment: Moment, generator: torch.Generator, *, ratio: float) -> Plan:
    key = view.memory["weight"].double().clamp(min=1e-30).log() + gumbel_noise(view.size, generator)
    return plan_of(keep_highest(key, ratio, generator), moment.epoch, generator)


def _evolve(columns: Columns, losses: Tensor, context: Columns, *, b1: float, b2: float) -> Columns:
    """Both columns start from the first loss."""
    del context
    slow = torch.where(torch.isnan(columns["slow"]), losses, columns["slow"])
    return {"weight": b1 * slow + (1 - b1) * losses, "slow": b2 * slow + (1 - b2) * losses}
