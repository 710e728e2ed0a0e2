"""Inputs and targets: a tensor, or dicts, lists and tuples of tensors, with one row per sample in each.

>>> import torch
>>> batch = {"mask": torch.arange(4), "boxes": [torch.arange(4) * 10]}
>>> take(batch, torch.tensor([2, 0]))
{'mask': tensor([2, 0]), 'boxes': [tensor([20,  0])]}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def tensors_of(value: Any) -> list[Any]:
    """List what is inside, in order; for a tensor, itself."""
    if isinstance(value, dict):
        return [each for inner in value.values() for each in tensors_of(inner)]
    if isinstance(value, (list, tuple)):
        return [each for inner in value for each in tensors_of(inner)]
    return [value]


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to each tensor inside; tuples become lists."""
    if isinstance(value, dict):
        return {key: mapped(function, inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [mapped(function, inner) for inner in value]
    return function(value)


def count_rows(value: Any) -> int:
    """Return the number of samples."""
    return len(tensors_of(value)[0])


def take(value: Any, rows: int | slice | Tensor) -> Any:
    """Return the row, or the rows, of each tensor inside."""
    if isinstance(rows, Tensor):
        return mapped(lambda tensor: tensor.index_select(0, rows), value)
    return mapped(lambda tensor: tensor[rows], value)


def is_nested(value: Any) -> bool:
    """True if it consists of tensors alone, each with a first dimension."""
    found = tensors_of(value)
    return bool(found) and all(isinstance(each, Tensor) and each.dim() for each in found)
