"""RCAP: a budget for each class, and within a class a draw by the softmax of the clipped loss."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from ...errors import InputError, message
from ...plan import Plan
from ..arguments import check_labels, check_number, check_ratio, fingerprint_labels
from ..draws import apportion, budget, first_of_each, gumbel_noise, plan_of, sum_by_class
from ..method import SORT, Card, Method, Moment, ScoresView, published, register, until


@register(Card("RCAP, UAI 2025", "low losses, by class", SORT, "all 1", "losses, labels"))
def rcap(labels: Tensor, ratio: float = 0.3, *, temperature: float = 1.0) -> Method:
    """Draw from each class c a budget ~ sqrt(L_c * n_c / N), with chances ~ softmax(l / b), losses clipped to log K.

    L_c is the mean clipped loss of the class. The authors' code has another quantity there: see the card.

    Args:
        labels: The class of each sample.
        ratio: The share pruned.
        temperature: The b of the softmax.

    Returns:
        The method, for ``infobatch.Pruned``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import torch, infobatch
    >>> infobatch.methods.rcap(labels=torch.arange(100) % 10, ratio=0.3)
    rcap(ratio=0.3, temperature=1.0)
    """
    ratio, labels = check_ratio(ratio), check_labels(labels)
    temperature = check_number("temperature", temperature, "1 is the default.")
    if temperature <= 0:
        raise InputError(message("a temperature above 0", repr(temperature), "1 is the default."))
    return published(
        "rcap",
        {"ratio": ratio, "temperature": temperature},
        partial(keep_by_class, ratio=ratio, labels=labels, temperature=temperature),
        until(1.0),
        size=len(labels),
        labels=fingerprint_labels(labels),
    )


def keep_by_class(
    view: ScoresView, moment: Moment, generator: torch.Generator, *, ratio: float, labels: Tensor, temperature: float
) -> Plan:
    labels = labels.to(view.scores.device)
    sizes = torch.bincount(labels)
    losses = view.scores.double().clamp(max=math.log(max(len(sizes), 2)))
    unknown = torch.isnan(losses)
    known = (~unknown).nonzero().squeeze(1)
    count = torch.bincount(labels[known], minlength=len(sizes))
    total = sum_by_class(labels[known], losses[known].clamp(min=0), len(sizes))
    wish = (total / count.clamp(min=1) * sizes / view.size).sqrt()
    left = max(budget(view.size, ratio) - int(unknown.sum()), 0)
    quota = apportion(wish.tolist(), count.tolist(), left, generator)
    known = known[torch.randperm(len(known), generator=generator, device=known.device)]
    key = losses[known] / temperature + gumbel_noise(len(known), generator)
    drawn = first_of_each(known[key.argsort(descending=True)], labels, quota)
    return plan_of(unknown.index_fill(0, drawn, True), moment.epoch, generator)
