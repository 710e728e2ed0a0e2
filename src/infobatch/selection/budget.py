"""How many samples to keep, overall and per class: exact counts, with ties settled by the seed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..checks import check_count, is_number
from ..errors import InputError, message
from ..plan import generator_for
from .evidence import Evidence

CPU = torch.device("cpu")


def count_kept(size: int, share: float) -> int:
    """Return k, the number of samples kept: ``round(share * size)``, at least 1.

    >>> count_kept(50000, 0.3), count_kept(7, 0.01)
    (15000, 1)
    """
    if not is_number(share) or not 0 < share <= 1:
        remedy = "It is the fraction that is kept: 0.3 keeps 30 %."
        raise InputError(message("a share above 0 and up to 1", repr(share), remedy))
    return max(1, round(share * size))


def make_generator(seed: int, stream: int = 0) -> torch.Generator:
    """Return the generator of a selection. It is on the CPU, so that a seed has the same effect on any device."""
    return generator_for(check_count("seed", seed, 0, "Pass seed=0."), stream, CPU)


def divide_by_class(sizes: list[int], k: int, generator: torch.Generator) -> list[int]:
    """Divide k equally among the classes; a class with fewer samples gives all, and the others share the remainder.

    If k cannot be divided evenly, classes chosen at random give one more.

    >>> divide_by_class([100, 100, 2], 20, make_generator(0))
    [9, 9, 2]
    """
    if k > sum(sizes):
        raise InputError(message(f"at most {sum(sizes)} samples", str(k), "There are no more."))
    if k < len(sizes):
        remedy = "Keep a larger share, or leave balanced out."
        raise InputError(message(f"at least one sample per class, {len(sizes)} in all", f"{k} samples", remedy))
    level, left, todo = 0, k, len(sizes)
    for size in sorted(sizes):  # raise the level of all open classes until k is spent or a class is full
        rise = min(size - level, left // todo)
        level, left = level + rise, left - rise * todo
        if level < size:
            break
        todo -= 1
    given = [min(size, level) for size in sizes]
    open_ = [place for place, size in enumerate(sizes) if size > level]
    for winner in torch.randperm(len(open_), generator=generator, device=CPU)[:left].tolist():
        given[open_[winner]] += 1
    return given


def split_by_class(
    evidence: Evidence, share: float, balanced: bool, generator: torch.Generator
) -> Iterator[tuple[Tensor, int]]:
    """Yield (positions, k): all samples at once, or the samples of each class, and how many to keep of them."""
    k = count_kept(evidence.size, share)
    if not isinstance(balanced, bool):
        raise InputError(message("balanced as True or False", repr(balanced), "True keeps the same number per class."))
    if not balanced:
        yield torch.arange(evidence.size, device=evidence.device), k
        return
    (labels,) = evidence.need("labels")
    order = labels.argsort(stable=True)
    sizes = torch.unique(labels, return_counts=True)[1].tolist()
    for members, quota in zip(torch.split(order, sizes), divide_by_class(sizes, k, generator), strict=True):
        if quota:
            yield members, quota


def find_largest(scores: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Return the positions of the k largest scores in ascending order; ties for the last place are settled at random.

    >>> find_largest(torch.tensor([3.0, 1.0, 2.0]), 2, make_generator(0)).tolist()
    [0, 2]
    """
    check_scores(scores)
    last = scores.kthvalue(scores.numel() - k + 1).values
    above = scores > last
    tied = (scores == last).nonzero().squeeze(1)
    draw = torch.randperm(tied.numel(), generator=generator, device=CPU)[: k - int(above.sum())]
    above[tied[draw.to(tied.device)]] = True
    return above.nonzero().squeeze(1)


def check_scores(scores: Any) -> None:
    """Refuse scores by which samples cannot be ordered."""
    if bool(scores.isnan().any()):
        raise InputError(message("a score for every sample", "NaN", "Check the evidence that it was computed from."))
