"""The learning rate of each step, on full data and on what is left of them."""

from __future__ import annotations

import math

import torch

from .ideas import combine
from .optimizers import make_scheduler
from .settings import Settings


def rate_table(settings: Settings, total_steps: int, growth: float = 1.0) -> list[float]:
    """The learning rate of each step of a run on full data, as torch's own scheduler gives it, times ``growth``."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=settings.lr)
    scheduler = make_scheduler(optimizer, settings, total_steps)
    rates = []
    for _ in range(total_steps):
        rates.append(growth * float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        if len(rates) < total_steps:
            scheduler.step()
    return rates


def epoch_rates(
    table: list[float], epoch: int, steps: int, kept: int, size: int, settings: Settings, full_steps: int
) -> list[float]:
    """The rates of an epoch's steps: each stands where its data stand in a full epoch, as with ``infobatch.pace``."""
    start, batch = epoch * full_steps, settings.batch_size
    idea = combine(settings.ideas)
    growth = (size / kept) ** idea.growth_power if settings.grows == "lr" else 1.0
    bound = max(table) if idea.within_peak else math.inf
    places = (at if kept == size else at * batch * full_steps // kept for at in range(steps))
    return [min(table[min(start + place, len(table) - 1)] * growth, bound) for place in places]
