"""How policies draw: the highest values, given chances, shares per class.

Budgets are exact: a fraction ``ratio`` of the N samples is pruned, or less if more than (1 - ratio) N have no score.
Ties are settled at random, with the generator passed in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..plan import Plan, choose, shuffled_members

UNIT = 1 << 32
"""The number 1 as an integer. Sums of integers are exact, so devices, ranks and threads all draw the same plan."""
CELL = 8
"""About how many entries are drawn of a cell. With more, the entries of a cell are less alike; with fewer, their number
follows the chances less closely."""


def budget(size: int, ratio: float) -> int:
    """Return how many of ``size`` samples stay: at least one."""
    return max(1, size - round(ratio * size))


def plan_of(mask: Tensor, epoch: int, generator: torch.Generator) -> Plan:
    """Return the plan of these samples, shuffled, each with weight 1."""
    return Plan(epoch, shuffled_members(mask, generator), mask.float())


def highest(values: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return the mask of exactly the ``count`` highest values, in O(N). NaN counts as the highest of all."""
    largest = torch.finfo(values.dtype).max  # what a method computes from huge losses may be infinite, too
    values = torch.where(torch.isnan(values), torch.inf, values.clamp(max=largest))
    if count >= values.numel():
        return torch.ones_like(values, dtype=torch.bool)
    if count <= 0:
        return torch.zeros_like(values, dtype=torch.bool)
    edge = values.kthvalue(values.numel() - count + 1).values
    above = values > edge
    return above | choose(values == edge, count - int(above.sum()), generator)


def keep_highest(values: Tensor, ratio: float, generator: torch.Generator) -> Tensor:
    """Return the mask of all but the lowest fraction ``ratio``; samples with an unknown value always stay."""
    unknown = int(torch.count_nonzero(torch.isnan(values)))
    return highest(values, max(budget(values.numel(), ratio), unknown), generator)


# ---- chances ---------------------------------------------------------------------------------------------------


def draw_in_cells(chances: Tensor, sizes: Tensor, number: Tensor, generator: torch.Generator) -> Tensor:
    """Draw exactly ``number[g]`` entries of each group g with about these chances; return their weights, 0 elsewhere.

    With weights of 1/chance their sum would vary from draw to draw, and scaling it to a fixed one would bias them all.
    So the entries of a group are divided, in their order, into cells of about ``CELL`` expected draws, and of the m
    entries of a cell exactly k are drawn, with equal chances and weight m/k. The expected weight of each entry is then
    exactly 1, and the weights of a group sum to its size in every draw.

    Args:
        chances: In (0, 1], group after group. Those of a group sum to its number, and rise or fall within it, so that
            the entries of a cell have similar ones.
        sizes: The number of entries of each group, at least 1.
        number: How many to draw of each group: from 1 to its size.
    """
    units, last = to_units(chances), sizes.cumsum(0) - 1
    ends = units.cumsum(0)
    ends -= torch.cat([ends.new_zeros(1), ends[last[:-1]]]).repeat_interleave(sizes)
    # An entry lies at the middle of its chance. No two neighbours are more than 1 apart, so none of the unit slots that
    # make up the sum is empty, and a cell of k slots has at least k entries.
    slots = (2 * ends - units).sub_(1).floor_divide_(2 * UNIT).clamp_(min=0)
    wanted, cells = number.repeat_interleave(sizes), -(-number // CELL)
    slots = slots.minimum(wanted - 1)
    in_group = ((slots + 1) * cells.repeat_interleave(sizes) - 1) // wanted
    cell = in_group + (cells.cumsum(0) - cells).repeat_interleave(sizes)
    total = int(cells.sum())
    m = torch.bincount(cell, minlength=total)
    k = _per_cell(number, cells)
    shuffle = torch.randperm(len(chances), generator=generator, device=generator.device)
    chosen = first_of_each(shuffle, cell, k.tolist())
    return torch.zeros_like(chances).index_copy_(0, chosen, (m.to(chances.dtype) / k)[cell[chosen]])


def _per_cell(number: Tensor, cells: Tensor) -> Tensor:
    """Divide the number of each group among its cells, as evenly as integers can."""
    first = (cells.cumsum(0) - cells).repeat_interleave(cells)
    at = torch.arange(len(first), device=cells.device) - first
    number, cells = number.repeat_interleave(cells), cells.repeat_interleave(cells)
    return number * (at + 1) // cells - number * at // cells


def to_units(chances: Tensor) -> Tensor:
    return (chances.double() * UNIT).round_().long()


def scale_chances(sizes: Tensor, total: float, floor: float) -> Tensor:
    """Return chances c * size, held between ``floor`` and 1, with c such that they sum to ``total``.

    The sum is a piecewise linear, rising function of c, so Newton's step inside a bracket finds it.
    """
    sizes = sizes.clamp(min=1e-9 * float(sizes.max()))  # every sample has a chance
    low, high = 0.0, 2.0 / float(sizes.min())
    scale = total / float(sizes.sum())
    for _ in range(100):
        chances = (sizes * scale).clamp(floor, 1.0)
        error = float(chances.sum()) - total
        if abs(error) < 1e-9 * max(total, 1.0) or high - low <= 1e-15 * high:
            break
        low, high = (low, scale) if error > 0 else (scale, high)
        free = float(sizes[(chances > floor) & (chances < 1.0)].sum())
        scale = scale - error / free if free > 0 else (low + high) / 2
        if not low < scale < high:
            scale = (low + high) / 2
    return (sizes * round_digits(scale)).clamp(floor, 1.0)


def sort_rising(chances: Tensor, generator: torch.Generator) -> Tensor:
    """Return the order in which the chances rise, with ties in random order."""
    shuffle = torch.randperm(len(chances), generator=generator, device=generator.device)
    return shuffle[chances[shuffle].argsort()]


def round_digits(number: float) -> float:
    """Round to ten digits: the last digits of a sum depend on the number of threads."""
    return float(f"{number:.9e}")


def gumbel_noise(count: int, generator: torch.Generator) -> Tensor:
    """Noise that turns a ranking into a draw: the highest v + noise are drawn without replacement ~ softmax(v)."""
    noise = torch.rand(count, generator=generator, device=generator.device, dtype=torch.float64)
    return -(-noise.clamp(1e-12, 1 - 1e-12).log()).log()


# ---- classes ---------------------------------------------------------------------------------------------------


def sum_by_class(labels: Tensor, values: Tensor, classes: int) -> Tensor:
    """Return the sum of the values of each class, exactly."""
    total = torch.zeros(classes, dtype=torch.int64, device=labels.device)
    return total.index_add_(0, labels, to_units(values)).double() / UNIT


def first_of_each(order: Tensor, labels: Tensor, counts: Sequence[int]) -> Tensor:
    """Return the first ``counts[c]`` samples of each class c in this order."""
    of = labels[order]
    by_class = of.argsort(stable=True)
    sizes = torch.bincount(of, minlength=len(counts))
    rank = torch.arange(len(order), device=order.device) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    wanted = torch.tensor(counts, device=order.device).repeat_interleave(sizes)
    return order[by_class[rank < wanted]]


def apportion(wishes: Sequence[float], limits: Sequence[int], total: int, generator: torch.Generator) -> list[int]:
    """Return integers that sum to ``total``, in proportion to the wishes, none above its limit.

    By largest remainders, ties at random; what exceeds a limit is divided among the others.
    """
    got, left = [0] * len(wishes), min(total, sum(limits))
    open_ = list(range(len(wishes)))
    parts = dict.fromkeys(open_, 0.0)
    while open_:
        mass = sum(max(wishes[at], 0.0) for at in open_)
        parts = {at: left * (max(wishes[at], 0.0) / mass if mass > 0 else 1 / len(open_)) for at in open_}
        filled = [at for at in open_ if parts[at] >= limits[at]]
        if not filled:
            break
        for at in filled:
            got[at] = limits[at]
        left = max(left - sum(limits[at] for at in filled), 0)
        open_ = [at for at in open_ if got[at] < limits[at]]
    for at in open_:
        got[at] = math.floor(parts[at])
    shuffle = torch.randperm(len(open_), generator=generator, device=generator.device).tolist()
    shuffled = sorted(zip(shuffle, open_, strict=True))
    behind = sorted((at for _, at in shuffled), key=lambda at: got[at] - parts[at])
    for at in behind[: left - sum(got[at] for at in open_)]:
        got[at] += 1
    return got
