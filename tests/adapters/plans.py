"""The expected gradient of a pruned epoch, over all draws that a plan could have made: for tests of adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

import torch
from torch import Tensor, nn

import infobatch


def all_plans(scores: Tensor, ratio: float = 0.5) -> Iterator[Tensor]:
    """Yield the weights of every plan that InfoBatch could draw from these scores, 0 for samples left out.

    Each is as likely as the others: k = round((1 - ratio) m) of the m samples below the mean are kept, with weight m/k.
    """
    below = (scores < scores.nanmean()).nonzero().flatten().tolist()
    k = round((1 - ratio) * len(below))
    assert 0 < k < len(below), "nothing would be drawn"
    for kept in combinations(below, k):
        weights = torch.ones_like(scores)
        weights[below] = 0.0
        weights[list(kept)] = len(below) / k
        yield weights


def gradient(net: nn.Module, loss: Tensor) -> Tensor:
    """Return the gradient of a scalar with respect to all parameters, in one vector."""
    parts = torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)
    return torch.cat(
        [torch.zeros(p.numel()) if g is None else g.flatten() for p, g in zip(net.parameters(), parts, strict=True)]
    )


def expected_gradient(net: nn.Module, losses_of: Callable[[Tensor, Tensor], Tensor], scores: Tensor) -> Tensor:
    """Average, over all plans, the gradient of an epoch in one batch, divided by the size of the data set.

    ``losses_of(indices, weights)`` returns one loss per index, each to be multiplied by its weight.
    """
    total, count = torch.zeros(()), 0
    for table in all_plans(scores):
        kept = table.nonzero().flatten()
        loss = (losses_of(kept, table[kept]) * table[kept]).sum() / len(scores)
        total = total + gradient(net, loss)
        count += 1
    return total / count


def train(data: infobatch.Pruned, batch_size: int, losses_of: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
    """Run one epoch of a data set of indices; ``losses_of(indices)`` returns losses and scores."""
    for indices in infobatch.DataLoader(data, batch_size=batch_size):
        loss, score = losses_of(indices)
        data.update(loss, score=score).backward()
