"""KAKURENBO (NeurIPS 2023): hide the samples with a low loss that the model gets right with confidence."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ...errors import InputError, message
from ...plan import Plan
from ..arguments import check_fraction, check_fractions, check_ratio
from ..draws import highest, plan_of
from ..memory import Columns, Memory, held
from ..method import RANK, Card, Method, Moment, ScoresView, published, register, until


@register(
    Card(
        "KAKURENBO, NeurIPS 2023",
        "low losses with a confident, right answer",
        RANK,
        "all 1",
        "losses, confidence, losses of the pruned samples",
    )
)
def kakurenbo(
    ratio: float = 0.3,
    *,
    sure: float = 0.7,
    steps: tuple[float, ...] = (1.0, 0.8, 0.6, 0.4),
    at: tuple[float, ...] = (0.3, 0.6, 0.8),
) -> Method:
    """Hide the lowest losses that the model gets right with confidence; ``ratio`` falls in steps.

    ``update`` needs the keyword ``confidence``, and each epoch ends with a pass over the hidden samples: see
    ``Pruned.hidden``, whose example trains with this method. The source also raises the learning rate, which is left to
    you here.

    Args:
        ratio: The largest share hidden.
        sure: The probability of the right class from which a sample may be hidden.
        steps: Factors of ``ratio``, one more than there are values in ``at``.
        at: The shares of the run at which the next factor applies.

    Returns:
        The method, for ``infobatch.Pruned``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import infobatch
    >>> infobatch.methods.kakurenbo(ratio=0.3)
    kakurenbo(ratio=0.3, sure=0.7, steps=(1.0, 0.8, 0.6, 0.4), at=(0.3, 0.6, 0.8))
    """
    ratio, sure = check_ratio(ratio), check_fraction("sure", sure)
    steps, at = check_fractions("steps", steps), check_fractions("at", at)
    if len(steps) != len(at) + 1:
        raise InputError(
            message(
                "one more value in steps than in at",
                f"{len(steps)} and {len(at)}",
                "Each value of at begins the next of steps.",
            )
        )
    if list(at) != sorted(at):
        raise InputError(
            message("the values of at in ascending order", repr(at), "Sort them: they are shares of the run.")
        )
    return published(
        "kakurenbo",
        {"ratio": ratio, "sure": sure, "steps": steps, "at": at},
        partial(hide_confident, ratio=ratio, sure=sure, steps=steps, at=at),
        until(1.0),
        Memory({"confidence": torch.nan}, _last_confidence) | held(),
        channels=frozenset({"confidence"}),
        observes_hidden=True,
    )


def hide_confident(
    view: ScoresView,
    moment: Moment,
    generator: torch.Generator,
    *,
    ratio: float,
    steps: tuple[float, ...],
    at: tuple[float, ...],
    sure: float,
) -> Plan:
    step = sum(not until(place)(moment) for place in at)
    most = min(round(ratio * steps[step] * view.size), view.size - 1)
    unknown = int(torch.count_nonzero(torch.isnan(view.scores)))
    low = ~highest(view.scores, max(view.size - most, unknown), generator)
    hidden = low & (view.memory["confidence"] >= sure)
    return plan_of(~hidden, moment.epoch, generator)


def _last_confidence(columns: Columns, losses: Tensor, context: Columns) -> Columns:
    del columns, losses
    return {"confidence": context["confidence"]}
