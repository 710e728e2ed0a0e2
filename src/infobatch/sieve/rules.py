"""Which rows of a batch to pass on: pure functions of its losses.

Each takes losses of shape [batch] and the number k of rows to keep, and returns exactly k rows with their weights. A
loss of minus infinity marks a row that must not be chosen; it fills up only if the other rows are fewer than k. All
other losses are finite. Nothing is read back from the device, and shapes depend on k alone, so these functions can be
compiled and captured.

``weight`` is the factor of a row in ``sum(weight * loss) / batch size``. With weights 1/p this is an unbiased estimate
of the mean loss of the whole batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .lots import draw_in_proportion, draw_rows, exact_dtype, fill_up, set_chances


class Choice(NamedTuple):
    """The rows of a batch that are passed on, in ascending order, and their weights.

    >>> import torch
    >>> from infobatch.sieve import Choice
    >>> Choice(rows=torch.tensor([1, 3]), weights=torch.ones(2))
    Choice(rows=tensor([1, 3]), weights=tensor([1., 1.]))
    """

    rows: Tensor
    weights: Tensor


def choose_hardest(losses: Tensor, k: int) -> Choice:
    """Keep the k rows of the highest losses, at weight 1.

    Args:
        losses: The losses, shape [batch].
        k: The number of rows.

    Returns:
        The rows and their weights.

    >>> import torch
    >>> from infobatch.sieve import rules
    >>> rules.choose_hardest(torch.tensor([0.1, 3.0, 0.2, 1.0]), 2)
    Choice(rows=tensor([1, 3]), weights=tensor([1., 1.]))
    """
    return _with_ones(losses.topk(k, sorted=False).indices)


def choose_easiest(losses: Tensor, k: int) -> Choice:
    """Keep the k rows of the lowest losses, at weight 1.

    Args:
        losses: The losses, shape [batch].
        k: The number of rows.

    Returns:
        The rows and their weights.

    >>> import torch
    >>> from infobatch.sieve import rules
    >>> rules.choose_easiest(torch.tensor([0.1, 3.0, 0.2, 1.0]), 2)
    Choice(rows=tensor([0, 2]), weights=tensor([1., 1.]))
    """
    rank = torch.where(losses > -torch.inf, -losses, -torch.inf)
    return _with_ones(rank.topk(k, sorted=False).indices)


def choose_band(losses: Tensor, k: int, skip: int) -> Choice:
    """Leave out the ``skip`` rows of the highest losses, and keep the k highest of the others, at weight 1.

    Args:
        losses: The losses, shape [batch].
        k: The number of rows.
        skip: The number of rows left out, or fewer if too few would remain.

    Returns:
        The rows and their weights.

    >>> import torch
    >>> from infobatch.sieve import rules
    >>> rules.choose_band(torch.tensor([0.1, 3.0, 0.2, 1.0]), 2, skip=1).rows
    tensor([2, 3])
    """
    order = losses.argsort(descending=True, stable=True)
    spare = ((losses > -torch.inf).sum() - k).clamp(min=0, max=skip)
    return _with_ones(order[spare + torch.arange(k, device=losses.device)])


def choose_by_lot(losses: Tensor, k: int, generator: torch.Generator | None, floor: float) -> Choice:
    """Sample k rows at random, with chances that rise with the loss, at weight 1/chance.

    Args:
        losses: The losses; if some are negative, the chances rise with the distance from the lowest.
        k: The number of rows.
        generator: The source of randomness, on the device of the losses; None for torch's own.
        floor: The least chance of a row, as a share of the mean chance.

    Returns:
        The rows and their weights.

    >>> import torch
    >>> from infobatch.sieve import rules
    >>> choice = rules.choose_by_lot(torch.tensor([1.0, 2.0, 3.0, 2.0]), 2, None, floor=0.0)  # at 0.25, 0.5, 0.75, 0.5
    >>> len(choice.rows)
    2
    """
    losses, finite = losses.to(exact_dtype(losses.device)), losses > -torch.inf
    lowest = torch.where(finite, losses, 0).amin().clamp(max=0)
    sizes = (losses - lowest).clamp(max=torch.finfo(losses.dtype).max)
    return _drawn(set_chances(torch.where(finite, sizes, -1.0), k, floor), k, generator)


def choose_below_mean(losses: Tensor, k: int, generator: torch.Generator | None, floor: float) -> Choice:
    """Keep the rows at or above the mean, and fill up with a random sample of those below; weight 1/chance.

    This is the rule of InfoBatch inside one batch, with k in place of the share pruned. If more than k rows are at or
    above the mean, they are sampled at random, too, and those below keep the least chance.

    Args:
        losses: The losses, shape [batch].
        k: The number of rows.
        generator: The source of randomness, on the device of the losses; None for torch's own.
        floor: The least chance of a row below the mean, as a share of the mean chance.

    Returns:
        The rows and their weights.

    >>> import torch
    >>> from infobatch.sieve import rules
    >>> rules.choose_below_mean(torch.tensor([0.1, 2.0, 0.1, 1.0]), 3, None, floor=0.25).weights.sum()
    tensor(4.)
    """
    losses, finite = losses.to(exact_dtype(losses.device)), losses > -torch.inf
    count = finite.sum()
    mean = torch.where(finite, losses, 0).sum() / count.clamp(min=1)
    is_high = finite & (losses >= mean)
    high = is_high.sum()
    low, wanted = count - high, count.clamp(max=k).to(losses.dtype)
    least = floor * wanted / count.clamp(min=1)
    chance_low = torch.maximum((wanted - high) / low.clamp(min=1), least)
    chance_high = (wanted - low * chance_low) / high.clamp(min=1)
    return _drawn(fill_up(torch.where(is_high, chance_high, chance_low), finite, k), k, generator)


def choose_by_percentile(losses: Tensor, k: int, generator: torch.Generator | None, power: float) -> Choice:
    """Sample k rows without replacement in proportion to percentile ** power, at weight 1.

    The percentile of the row of rank r, counted from 0 for the lowest loss, is (r + 0.5) / batch size.

    Args:
        losses: The losses, shape [batch].
        k: The number of rows.
        generator: The source of randomness, on the device of the losses; None for torch's own.
        power: 0 treats all rows alike; a higher one favors the hardest.

    Returns:
        The rows and their weights.

    >>> import torch
    >>> from infobatch.sieve import rules
    >>> rules.choose_by_percentile(torch.tensor([0.1, 3.0, 0.2, 1.0]), 2, None, power=1.0).weights
    tensor([1., 1.])
    """
    percentile = (losses.argsort().argsort() + 0.5) / len(losses)
    return _with_ones(draw_in_proportion(power * percentile.log(), losses > -torch.inf, k, generator))


def choose_in_proportion(losses: Tensor, k: int, generator: torch.Generator | None) -> Choice:
    """Sample k rows without replacement in proportion to their losses, at weight 1; a negative loss counts as 0.

    Args:
        losses: The losses, shape [batch].
        k: The number of rows.
        generator: The source of randomness, on the device of the losses; None for torch's own.

    Returns:
        The rows and their weights.

    >>> import torch
    >>> from infobatch.sieve import rules
    >>> rules.choose_in_proportion(torch.tensor([0.0, 3.0, 0.0, 1.0]), 2, None).rows
    tensor([1, 3])
    """
    sizes = losses.to(exact_dtype(losses.device)).clamp(min=0)
    return _with_ones(draw_in_proportion(sizes.log(), losses > -torch.inf, k, generator))


def choose_random(losses: Tensor, k: int, generator: torch.Generator | None) -> Choice:
    """Sample k rows with equal chances, at weight 1.

    Args:
        losses: The losses, shape [batch].
        k: The number of rows.
        generator: The source of randomness, on the device of the losses; None for torch's own.

    Returns:
        The rows and their weights.

    >>> import torch
    >>> from infobatch.sieve import rules
    >>> rules.choose_random(torch.tensor([0.1, 3.0, 0.2, 1.0]), 2, None).weights
    tensor([1., 1.])
    """
    noise = torch.rand(len(losses), generator=generator, device=losses.device)
    return _with_ones(torch.where(losses > -torch.inf, noise, -1.0).topk(k, sorted=False).indices)


def choose_hardest_with_floor(losses: Tensor, k: int, labels: Tensor, share: float) -> Choice:
    """Keep the k rows of the highest losses, but of each class at least ``share`` of its rows, at weight 1.

    If the classes together are promised more than k rows, the highest losses among the promised rows are kept.

    Args:
        losses: The losses, shape [batch].
        k: The number of rows.
        labels: The class of each row.
        share: The share of the rows of each class to keep at least.

    Returns:
        The rows and their weights.

    >>> import torch
    >>> from infobatch.sieve import rules
    >>> labels = torch.tensor([0, 1, 0, 1])
    >>> rules.choose_hardest_with_floor(torch.tensor([0.1, 3.0, 0.2, 1.0]), 2, labels, share=0.5).rows
    tensor([1, 2])
    """
    order = losses.argsort(descending=True, stable=True)
    order = order[labels[order].argsort(stable=True)]  # by class, and by falling loss inside each class
    sorted_labels = labels[order]
    first = torch.searchsorted(sorted_labels, sorted_labels)
    count = torch.searchsorted(sorted_labels, sorted_labels, right=True) - first
    place = torch.arange(len(labels), device=labels.device) - first
    promised = torch.empty_like(labels, dtype=torch.bool)
    least = share * count.to(exact_dtype(losses.device))
    promised[order] = place < (least - 1e-6).ceil()  # 0.1 * 10 is 1, also where rounding makes it more
    promised &= losses > -torch.inf
    rank = losses.argsort(descending=True, stable=True).argsort()
    return _with_ones((rank - len(labels) * promised).topk(k, largest=False).indices)


def choose_tokens(losses: Tensor, valid: Tensor, keep: float) -> Tensor:
    """Return weights of 1 for the hardest share ``keep`` of the valid tokens of a batch, and 0 for the others.

    Args:
        losses: The losses of all tokens, shape [batch, length]; minus infinity for those that must not be chosen.
        valid: Which tokens count.
        keep: The share of the valid tokens.

    >>> import torch
    >>> from infobatch.sieve import rules
    >>> losses = torch.tensor([[0.1, 2.0], [1.0, 0.0]])
    >>> rules.choose_tokens(losses, losses > 0, keep=2 / 3)
    tensor([[0., 1.],
            [1., 0.]])
    """
    flat = torch.where(valid, losses, -torch.inf).flatten()
    rank = flat.argsort(descending=True).argsort()
    wanted = (keep * valid.sum()).round().clamp(min=1)
    return ((rank < wanted) & (flat > -torch.inf)).float().view_as(losses)


def _with_ones(rows: Tensor) -> Choice:
    return Choice(rows.sort().values, torch.ones(len(rows), dtype=torch.float32, device=rows.device))


def _drawn(chances: Tensor, k: int, generator: torch.Generator | None) -> Choice:
    rows = draw_rows(chances, k, generator)
    return Choice(rows, (1 / chances[rows]).float())
