"""He et al. 2023: prune the samples whose confidence moved least over a window of epochs."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ...errors import InputError, message
from ...plan import Plan
from ..arguments import check_positive, check_ratio
from ..draws import keep_highest, plan_of
from ..memory import Columns, Memory
from ..method import Card, Method, Moment, Schedule, ScoresView, after, published, register

COST = "O(JN): J epochs' spread, a k-th value and a draw"


@register(
    Card("He et al. 2023", "samples whose confidence changed least over a window", COST, "all 1", "losses, confidence")
)
def dynamic_uncertainty(ratio: float = 0.3, *, window: int = 10) -> Method:
    """Prune the lowest spread of the right class's probability over a window of epochs.

    ``update`` needs the keyword ``confidence``.

    Args:
        ratio: The share pruned.
        window: The number of epochs; nothing is pruned before it is full.

    Returns:
        The method, for ``infobatch.Pruned``.

    Raises:
        InputError: If an argument is out of its range; from ``Pruned``, if a run is not longer than the window.

    >>> import infobatch
    >>> infobatch.methods.dynamic_uncertainty(ratio=0.3, window=10)
    dynamic_uncertainty(ratio=0.3, window=10)
    """
    ratio, window = check_ratio(ratio), check_positive("window", window, 2)
    columns = dict.fromkeys((f"p{age}" for age in range(window)), torch.nan)
    return published(
        "dynamic_uncertainty",
        {"ratio": ratio, "window": window},
        partial(keep_uncertain, ratio=ratio, window=window),
        after(window),
        Memory(columns, partial(_shift_window, window=window)),
        channels=frozenset({"confidence"}),
        check_epochs=partial(_check_window, window=window),
    )


def keep_uncertain(view: ScoresView, moment: Moment, generator: torch.Generator, *, ratio: float, window: int) -> Plan:
    past = [view.memory[f"p{age}"] for age in range(window)]
    newest, spread = past[0], torch.zeros_like(view.scores)
    # relative to the newest, so that a constant window has spread exactly 0
    mean = sum((each - newest for each in past), spread) / window
    for each in past:
        spread += (each - newest - mean).square()
    return plan_of(keep_highest(spread, ratio, generator), moment.epoch, generator)


def _shift_window(columns: Columns, losses: Tensor, context: Columns, *, window: int) -> Columns:
    """Keep the last ``window`` probabilities of the right class, the newest in p0."""
    del losses
    older = {f"p{age + 1}": columns[f"p{age}"] for age in range(window - 1)}
    return {"p0": context["confidence"], **older}


def _check_window(num_epochs: int, schedule: Schedule, window: int) -> None:
    if not any(schedule(Moment(epoch, num_epochs)) for epoch in range(window, num_epochs)):
        remedy = "Nothing is pruned before the window is full: train longer, or use a smaller one."
        expected = f"more epochs than the window of {window}, and some of them to prune in"
        raise InputError(message(expected, f"{num_epochs} epochs", remedy))
