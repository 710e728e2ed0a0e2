"""Exactly k rows sampled at random, each with a chance of its own; nothing here waits for the device.

Chances are added up as integers: the sums are exact and the same on every device, and torch has no deterministic
``cumsum`` of floating-point numbers on a GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

ONE = 1 << 32
"""The chance 1 as an integer."""
LARGEST = 1 << 40
"""The largest size of a batch as an integer."""


def draw_rows(chances: Tensor, k: int, generator: torch.Generator | None) -> Tensor:
    """Draw exactly k different rows, row i with probability ``chances[i]``; return them in ascending order.

    The chances are laid end to end, in random order, on a line of length k, and k points at distance 1 with one random
    offset choose the rows (systematic sampling). Since no chance is above 1, no row is chosen twice.

    Args:
        chances: The probability of each row, at most 1; they sum to k.
        k: The number of rows.
        generator: The source of randomness, on the device of the chances; None for torch's own.
    """
    device, size = chances.device, len(chances)
    order = torch.rand(size, generator=generator, device=device).argsort()
    ends = (chances[order] * ONE).round().long().cumsum(0)
    offset = torch.randint(ONE, (1,), generator=generator, device=device)
    places = torch.searchsorted(ends, torch.arange(k, device=device) * ONE + offset, right=True)
    last = torch.arange(size - k, size, device=device)  # rounding may leave the last point just behind the line
    return order[torch.minimum(places, last)].sort().values


def set_chances(sizes: Tensor, k: int, floor: float) -> Tensor:
    """Return chances that rise with the sizes, are at most 1, and sum to k.

    Args:
        sizes: What the chances are proportional to, at least 0; negative for a row that must not be drawn.
        k: The number of rows to draw.
        floor: The least chance of a row, as a share of the mean chance, in [0, 1].

    Returns:
        The chances in float64. Rows that must not be drawn have chances only if the other rows are fewer than k.

    >>> import torch
    >>> set_chances(torch.tensor([1.0, 1.0, 2.0, 0.0]), 2, floor=0.0).round(decimals=3)
    tensor([0.5000, 0.5000, 1.0000, 0.0000], dtype=torch.float64)
    """
    sizes = sizes.to(exact_dtype(sizes.device))  # in float32, the chances of a large batch would not sum to k
    is_valid = sizes >= 0
    count = is_valid.sum()
    wanted = count.clamp(max=k).to(sizes.dtype)
    least = floor * wanted / count.clamp(min=1)
    rest = (1 - least).clamp(min=1e-9)
    scaled = _cap_at_one(sizes, is_valid, (wanted - count * least) / rest)
    return fill_up(least + rest * scaled, is_valid, k)


def fill_up(chances: Tensor, is_valid: Tensor, k: int) -> Tensor:
    """Return the chances of the valid rows, at most 1, and equal chances of the others, so that all sum to k."""
    count = is_valid.sum()
    spare = (k - count.clamp(max=k)).to(chances.dtype) / (len(chances) - count).clamp(min=1)
    return torch.where(is_valid, chances.clamp(max=1), spare)


def exact_dtype(device: torch.device) -> torch.dtype:
    """Return the widest floating-point type of a device."""
    return torch.float32 if device.type == "mps" else torch.float64


def _cap_at_one(sizes: Tensor, is_valid: Tensor, total: Tensor) -> Tensor:
    """Return min(1, c * size) with the c for which the result sums to ``total``."""
    largest = torch.where(is_valid, sizes, 0).amax()
    largest = torch.where(largest > 0, largest, 1.0)
    units = (sizes / largest * LARGEST).round().long().clamp(min=1)  # at least 1: size 0 fills what the others leave
    units = torch.where(is_valid, units, 0)
    falling = units.sort(descending=True).values
    tail = units.sum() - falling.cumsum(0) + falling  # what each place and those after it hold together
    place = torch.arange(len(units), device=units.device)
    capped = ((total - place) * falling > tail).sum()  # the largest sizes reach 1
    capped = torch.minimum(capped, is_valid.sum() - 1).clamp(min=0)  # where all do, the last one tells the factor
    factor = (total - capped) / tail.gather(0, capped[None]).clamp(min=1)
    return torch.where(is_valid, (factor * units).clamp(max=1), 0)


def draw_in_proportion(log_sizes: Tensor, is_valid: Tensor, k: int, generator: torch.Generator | None) -> Tensor:
    """Draw k rows one after the other without replacement, each time in proportion to exp(log_sizes).

    Adding Gumbel noise and taking the k largest is the same draw. Rows of size 0 are drawn only if the others are fewer
    than k, and rows that are not valid only if those are too few as well; then all of them are equally likely.

    Args:
        log_sizes: The logarithms of the sizes.
        is_valid: Which rows may be drawn.
        k: The number of rows.
        generator: The source of randomness, on the device of the sizes; None for torch's own.
    """
    waiting = torch.empty_like(log_sizes, dtype=torch.float32).exponential_(generator=generator)
    noise = -waiting.clamp(min=1e-30).log()
    log_sizes = torch.where(is_valid, log_sizes.float().clamp(min=-1e4), -2e4)
    return (log_sizes + noise).topk(k).indices.sort().values
