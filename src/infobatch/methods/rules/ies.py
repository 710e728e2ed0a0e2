"""IES (ICLR 2025): a sample rests while its loss moves in a straight line."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ...checks import is_number
from ...errors import InputError, message
from ...plan import Plan
from ..draws import highest, plan_of
from ..memory import Columns, Memory, held
from ..method import Card, Method, Moment, ScoresView, published, register, until


@register(
    Card(
        "IES, ICLR 2025",
        "samples whose loss changes at a constant rate",
        "O(N)",
        "all 1",
        "losses, losses of the pruned samples",
    )
)
def ies(bound: float = 1e-3) -> Method:
    """Let a sample rest while the mean of its last three second differences is below ``bound``.

    Each epoch ends with a pass over the resting samples (``Pruned.hidden`` and ``Pruned.observe``), or they would
    never come back.

    Args:
        bound: The source uses 1e-3 on CIFAR-10 and 2e-3 on CIFAR-100.

    Returns:
        The method, for ``infobatch.Pruned``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import infobatch
    >>> infobatch.methods.ies(bound=2e-3)
    ies(bound=0.002)
    """
    if not is_number(bound) or bound <= 0:
        remedy = "The source uses 1e-3 on CIFAR-10 and 2e-3 on CIFAR-100."
        raise InputError(message("a bound above 0", repr(bound), remedy))
    columns = dict.fromkeys(("loss1", "loss2", "bend1", "bend2", "bend3"), torch.nan)
    return published(
        "ies",
        {"bound": float(bound)},
        partial(rest_straight, bound=float(bound)),
        until(1.0),
        Memory(columns, _shift_bends) | held(),
        observes_hidden=True,
    )


def rest_straight(view: ScoresView, moment: Moment, generator: torch.Generator, *, bound: float) -> Plan:
    bend = (view.memory["bend1"] + view.memory["bend2"] + view.memory["bend3"]) / 3
    awake = ~(bend < bound)
    if not bool(awake.any()):  # all would rest: the sample that moves most is trained on
        awake = highest(bend, 1, generator)
    return plan_of(awake, moment.epoch, generator)


def _shift_bends(columns: Columns, losses: Tensor, context: Columns) -> Columns:
    """Keep the last two losses and the last three |l_t - 2 l_{t-1} + l_{t-2}|."""
    del context
    bend = (losses - 2 * columns["loss1"] + columns["loss2"]).abs()
    return {
        "bend3": columns["bend2"],
        "bend2": columns["bend1"],
        "bend1": bend,
        "loss2": columns["loss1"],
        "loss1": losses,
    }
