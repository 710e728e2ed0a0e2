"""Some rows of a batch, whatever its structure."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from ..checks import describe
from ..errors import InputError, message

ATOMS = (str, bytes, int, float, complex, bool, type(None))
REMEDY = "Leave it out of the batch, or pass Sieve(..., select=your_function(batch, rows))."


def count_rows(batch: Any) -> int:
    """Return the number of rows of a batch: the first dimension of its first tensor.

    >>> import torch
    >>> count_rows({"ids": torch.zeros(4, 7), "labels": torch.zeros(4)})
    4
    """
    for tensor in tensors_of(batch):
        if tensor.ndim:
            return len(tensor)
    expected = "a batch with at least one tensor of shape [batch, ...]"
    raise InputError(message(expected, describe(batch), REMEDY))


def select_rows(batch: Any, rows: Tensor, size: int) -> Any:
    """Return a batch of the same structure with some of its rows.

    Tensors, tuples, lists, dicts, dataclasses and what behaves like a dict may be nested. Lists of ``size`` other
    objects, such as texts or images of different shapes, lose the same rows; that reads ``rows`` back from the device.
    Numbers, texts and tensors without a dimension stay.

    Args:
        batch: The batch.
        rows: The positions to keep, int64.
        size: The number of rows of the batch.

    Raises:
        InputError: If a tensor has another number of rows, or an object is of a kind that cannot be told to have any.

    >>> import torch
    >>> select_rows({"x": torch.arange(3), "name": ["a", "b", "c"], "scale": 2.0}, torch.tensor([0, 2]), 3)
    {'x': tensor([0, 2]), 'name': ['a', 'c'], 'scale': 2.0}
    """
    if isinstance(batch, Tensor):
        return _select_tensor(batch, rows, size)
    if isinstance(batch, ATOMS):
        return batch
    if isinstance(batch, Mapping):
        return _rebuild(batch, {key: select_rows(value, rows, size) for key, value in batch.items()})
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = [field.name for field in dataclasses.fields(batch) if field.init]
        return dataclasses.replace(batch, **{name: select_rows(getattr(batch, name), rows, size) for name in fields})
    if isinstance(batch, (list, tuple)):
        if _is_list_of_rows(batch, size):
            kept = [batch[row] for row in rows.tolist()]
        else:
            kept = [select_rows(value, rows, size) for value in batch]
        return type(batch)(*kept) if hasattr(batch, "_fields") else type(batch)(kept)
    raise InputError(message("a batch of tensors, lists and dicts", f"a {type(batch).__name__} in it", REMEDY))


def _select_tensor(tensor: Tensor, rows: Tensor, size: int) -> Tensor:
    if tensor.ndim == 0:
        return tensor
    if len(tensor) != size:
        expected, got = f"{size} rows in every tensor of the batch, as many as the look has losses", describe(tensor)
        raise InputError(message(expected, got, REMEDY))
    return tensor.index_select(0, rows if rows.device == tensor.device else rows.to(tensor.device))


def _is_list_of_rows(values: Sequence[Any], size: int) -> bool:
    """Whether a list holds one object per row. A list whose tensors all have ``size`` rows holds columns instead."""
    if len(values) != size or hasattr(values, "_fields"):
        return False
    inside = [tensor for tensor in tensors_of(values) if tensor.ndim]
    return not inside or any(len(tensor) != size for tensor in inside)


def tensors_of(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors_of(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from tensors_of(value)
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        for field in dataclasses.fields(batch):
            yield from tensors_of(getattr(batch, field.name))


def _rebuild(mapping: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """Return a mapping of the same kind, such as Hugging Face's BatchEncoding, with other values."""
    if type(mapping) is dict:
        return items
    try:
        rebuilt = copy.copy(mapping)
        for key, value in items.items():
            rebuilt[key] = value  # type: ignore[index]
    except TypeError as error:
        raise InputError(message("a dict that can be changed", type(mapping).__name__, REMEDY)) from error
    return rebuilt
