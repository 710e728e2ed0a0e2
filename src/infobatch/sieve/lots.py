"""Exactly k rows by lot, each with a chance of its own; nothing here waits for the device."""

from __future__ import annotations

import torch
from torch import Tensor


def draw_rows(chances: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Draw exactly k different rows, row i with probability ``chances[i]``; return them in ascending order.

    The chances are laid end to end, in random order, on a line of length k, and k points at distance 1 with one random
    offset choose the rows (systematic sampling). Since no chance is above 1, no row is chosen twice.

    Args:
        chances: The probability of each row, at most 1; they sum to k.
        k: The number of rows.
        generator: The source of randomness, on the device of the chances.
    """
    device = chances.device
    order = torch.rand(len(chances), generator=generator, device=device).argsort()
    ends = chances[order].cumsum(0)
    ends = ends * (k / ends[-1])
    points = torch.arange(k, device=device) + torch.rand(1, generator=generator, device=device, dtype=ends.dtype)
    places = torch.searchsorted(ends, points, right=True).clamp(max=len(chances) - 1)
    return order[places].sort().values


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
    sizes = sizes.to(torch.float32 if sizes.device.type == "mps" else torch.float64)
    is_valid = sizes >= 0
    count, valid = len(sizes), is_valid.sum()
    wanted = valid.clamp(max=k)
    least = floor * wanted / valid.clamp(min=1)
    rest = (1 - least).clamp(min=1e-9)
    scaled = _cap_at_one(sizes.clamp(min=0), is_valid, (wanted - valid * least) / rest)
    spare = (k - wanted) / (count - valid).clamp(min=1)
    return torch.where(is_valid, (least + rest * scaled).clamp(max=1), spare)


def _cap_at_one(sizes: Tensor, is_valid: Tensor, total: Tensor) -> Tensor:
    """Return min(1, c * size) with the c for which the result sums to ``total``."""
    tiny = sizes.sum() / len(sizes) * 1e-9 + 1e-30  # so that rows of size 0 fill what the others leave
    sizes = torch.where(is_valid, sizes + tiny, 0)
    falling = sizes.sort(descending=True).values
    tail = falling.flip(0).cumsum(0).flip(0)
    place = torch.arange(len(sizes), device=sizes.device)
    capped = ((total - place) * falling > tail).sum().clamp(max=len(sizes) - 1)  # the largest sizes reach 1
    factor = (total - capped) / tail.gather(0, capped[None]).clamp(min=1e-300 if tail.dtype == torch.float64 else 1e-30)
    return torch.where(is_valid, (factor * sizes).clamp(max=1), 0)


def draw_in_proportion(log_sizes: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Draw k rows one after the other without replacement, each time in proportion to exp(log_sizes).

    Adding Gumbel noise and taking the k largest is the same draw. Rows at minus infinity come last.
    """
    uniform = torch.rand(len(log_sizes), generator=generator, device=log_sizes.device)
    noise = -(-uniform.clamp(min=1e-30).log()).clamp(min=1e-30).log()
    return (log_sizes.float() + noise).topk(k).indices.sort().values
