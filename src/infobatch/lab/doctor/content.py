"""What the samples themselves show: whether an item belongs to its index, and whether items overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .tracing import ELEMENTS, Part, Where, fetch, fingerprint, parts

MOST = 64
"""How many samples are fetched twice."""
SHARED = 512
"""How many values of an item are looked up in others."""
FEWEST = 8
"""With fewer samples, nothing can be said about their likeness."""

Fields = dict[Where, list[Part]]
"""Per field that all samples have: its value in each of them."""


def fields_of(samples: Sequence[Any]) -> Fields:
    each = [dict(parts(sample)) for sample in samples]
    return {where: [one[where] for one in each] for where in each[0] if all(where in one for one in each)}


def distinct(values: Sequence[Any]) -> bool:
    """True if most values differ from each other, as pictures do and labels do not."""
    return 2 * len(set(values)) > len(values)


def moved_indices(before: Mapping[int, tuple[int, ...]], after: Mapping[int, tuple[int, ...]]) -> int:
    """Count samples whose content belonged to other indices in the pass before.

    Args:
        before: The fingerprints of each sample's fields in one pass.
        after: The same in the next pass.
    """
    if len({len(keys) for keys in (*before.values(), *after.values())}) != 1:
        before, after = ({index: (hash(keys),) for index, keys in one.items()} for one in (before, after))
    columns = list(zip(*before.values(), strict=True))
    telling = [at for at, column in enumerate(columns) if distinct(column)]
    known = [set(columns[at]) for at in telling]
    return sum(
        all(keys[at] != before[index][at] and keys[at] in seen for at, seen in zip(telling, known, strict=True))
        for index, keys in after.items()
        if telling and index in before
    )


def follows_index(dataset: Any, size: int) -> bool:
    """True if two fetches of an index are visibly more alike than fetches of two indices with the same label.

    Augmentation keeps some of a sample's content; items drawn at random have nothing to do with their index. False
    also where nothing can be seen, as with very strong augmentation.
    """
    indices = list(range(0, size, -(-size // MOST)))
    if len(indices) < FEWEST:
        return False
    try:
        before, after = (fields_of(list(fetch(dataset, indices))) for _ in range(2))
    except (Exception, SystemExit):
        return False
    keys = {where: [fingerprint(part) for part in before[where]] for where in before.keys() & after.keys()}
    content = [where for where in keys if distinct(keys[where])]
    content = [where for where in content if len(before[where][0]) > 1] or content  # a bare number may be the index
    labels = [torch.tensor(keys[where]) for where in keys if not distinct(keys[where])]
    peers = ~torch.eye(len(indices), dtype=torch.bool)
    same_label = peers.clone()
    for label in labels:
        same_label &= label[:, None] == label
    peers = torch.where(same_label.any(1, keepdim=True), same_label, peers)
    return any(_are_alike(before[where], after[where], peers) for where in content)


def _are_alike(before: list[Part], after: list[Part], peers: Tensor) -> bool:
    """Compare each item with its second fetch, and with second fetches of its peers."""
    least = 0.5 + 4 * (12 * len(before)) ** -0.5  # four standard deviations above what unrelated items give
    ours, theirs = ([_thin(_numbers(part)) for part in side] for side in (before, after))
    quantiles = [torch.stack([_quantiles(part) for part in side]) for side in (ours, theirs)]
    evidence = [torch.cdist(quantiles[0], quantiles[1]), -_count_shared(before, after)]
    if len({len(part) for part in (*ours, *theirs)}) == 1:
        evidence.append(torch.cdist(torch.stack(ours), torch.stack(theirs)))
    for distances in evidence:
        own = distances.diagonal()[:, None]
        closer = (distances > own).double() + 0.5 * (distances == own).double()
        if ((closer * peers).sum(1) / peers.sum(1)).mean() > least:
            return True
    return False


def _numbers(part: Part) -> Tensor:
    return (part if isinstance(part, Tensor) else torch.tensor(list(part))).double().nan_to_num()


def _thin(flat: Tensor) -> Tensor:
    return flat[:: -(-len(flat) // ELEMENTS)]


def _count_shared(before: list[Part], after: list[Part]) -> Tensor:
    """Count the values that each item shares with each second fetch: crops, flips and masks keep many of them.

    Of large items the same pseudo-random choice of values is compared, wherever they are.
    """
    ours, theirs = ([_some_values(part) for part in side] for side in (before, after))
    return torch.tensor([[len(one & other) for other in theirs] for one in ours]).double()


def _some_values(part: Part) -> set[float]:
    flat = _numbers(part)
    return set(flat[(flat.sin() * 1e4).frac().topk(min(len(flat), SHARED)).indices].tolist())


def _quantiles(part: Tensor) -> Tensor:
    """Describe numbers whatever their order, so that flips, shifts and most crops change little."""
    return part.quantile(torch.linspace(0, 1, 17, dtype=torch.float64))


def overlap(samples: Sequence[Any]) -> bool:
    """True if each sample begins with the last half or more of the one before, as sliding windows do."""
    for values in fields_of(samples).values():
        lines = [value for value in values if isinstance(value, Tensor) and 8 <= len(value) <= 2**16]
        pairs = list(pairwise(lines))
        if len(pairs) < 3 or len({len(line) for line in lines}) > 1:
            continue
        for shift in range(1, min(len(lines[0]) // 2, ELEMENTS) + 1):
            if all(torch.equal(one[shift:], other[:-shift]) and len(set(other.tolist())) > 3 for one, other in pairs):
                return True
    return False


def is_batch(sample: Any) -> bool:
    """True if an item has several fields of equally many rows, or is too large for one sample."""
    tensors = [one for one in (sample.values() if isinstance(sample, dict) else sample) if hasattr(one, "shape")]
    lengths = [int(one.shape[0]) if len(one.shape) else 1 for one in tensors]
    same = len(lengths) > 1 and len(set(lengths)) == 1 and lengths[0] > 1
    return same or any(len(part) > 2**24 for _, part in parts(sample))
