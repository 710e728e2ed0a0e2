"""Some rows of a batch, whatever its structure."""

from __future__ import annotations

import copy
import ctypes
import dataclasses
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..checks import describe
from ..errors import InputError, message

ATOMS = (str, bytes, int, float, complex, bool, type(None), torch.Size, torch.dtype, torch.device)
REMEDY = "Leave it out of the batch, or pass Sieve(..., select=your_function(batch, rows))."
UNREDUCED = (
    'Give the criterion reduction="none". For losses per token or pixel, or a network that returns its loss, pass '
    "losses=function(net, batch), which ends with infobatch.per_sample(losses, mask).loss."
)


def select_rows(batch: Any, rows: Tensor, size: int) -> Any:
    """Return a batch of the same structure with some of its rows.

    Tensors, NumPy arrays, tuples, lists, dicts, dataclasses and what behaves like a dict may be nested. Lists of
    ``size`` other objects, such as texts or images of different shapes, lose the same rows. For lists and arrays,
    ``rows`` is read back from the device. Numbers, texts, and tensors and arrays without a dimension stay.

    Args:
        batch: The batch. A list or tuple is read as its columns, as in ``[x, y]``, if all of them have ``size`` rows,
            and as its rows otherwise.
        rows: The positions to keep, int64.
        size: The number of rows of the batch.

    Raises:
        InputError: If a tensor has another number of rows, an object is of a kind that cannot be told to have any, or a
            list inside the batch can be read both as its rows and as columns.

    >>> import torch
    >>> select_rows({"x": torch.arange(3), "name": ["a", "b", "c"], "scale": 2.0}, torch.tensor([0, 2]), 3)
    {'x': tensor([0, 2]), 'name': ['a', 'c'], 'scale': 2.0}
    """
    if _is_list(batch) and (len(batch) != size or _has_columns(batch, size)):
        return type(batch)(select_column(value, rows, size) for value in batch)
    return select_column(batch, rows, size)


def select_column(column: Any, rows: Tensor, size: int) -> Any:
    """Return a part of a batch with some of its rows: as ``select_rows``, but a list must be the one or the other."""
    if isinstance(column, Tensor):
        return _select_tensor(column, rows, size)
    if _is_array(column):
        return _select_of_array(column, rows, size)
    if _is_atom(column):
        return column
    if _is_list(column) and len(column) == size:
        if _has_columns(column, size):
            got = f"a {type(column).__name__} of {size} with {size} rows each, which may be its rows or columns"
            remedy = "Pass Sieve(..., select=your_function(batch, rows))."
            raise InputError(message("a list that holds one object per row", got, remedy))
        return type(column)(column[row] for row in rows.tolist())
    members = _members(column)
    rebuilt = _rebuild(column, {name: select_column(value, rows, size) for name, value in members.items()})
    if len(getattr(column, "_encodings", None) or ()) == size:  # of a tokenizer, from which BatchEncoding.tokens reads
        rebuilt._encodings = RowsOf(column._encodings, rows)
    return rebuilt


class RowsOf(Sequence[Any]):
    """Some items of a list. Which ones is read back from the device only where one is asked for.

    >>> list(RowsOf(["a", "b", "c"], torch.tensor([0, 2])))
    ['a', 'c']
    """

    def __init__(self, items: Sequence[Any], rows: Tensor) -> None:
        self.items, self.rows = items, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self.items[row] for row in self.rows[place].tolist()]
        return self.items[int(self.rows[place])]


def count_rows(batch: Any, *, are_parts: bool = False) -> int:
    """Return the number of rows of a batch.

    Args:
        batch: The batch.
        are_parts: Whether it is a tuple of parts, as in ``sieve(x, y)``, which is not to be read as rows.

    >>> import torch
    >>> count_rows({"ids": torch.zeros(4, 7), "labels": torch.zeros(4)})
    4
    """
    counts = possible_counts(batch, are_parts=True)
    if not counts and _is_list(batch) and not are_parts:
        return len(batch)
    if len(counts) != 1:
        expected = "a batch whose parts have the same number of rows"
        remedy = f"Give it a tensor of shape [batch, ...], such as labels. {REMEDY}"
        raise InputError(message(expected, _show_counts(batch), remedy))
    return counts.pop()


def possible_counts(batch: Any, *, are_parts: bool = False) -> set[int]:
    """Return the numbers of rows that a batch may be read to have; none if its parts disagree or nothing tells."""
    parts = batch if _is_list(batch) else [batch]
    found = _agreed(map(_counts, parts))
    if found is None:  # then lists of texts or numbers tell
        found = set(_lengths(parts))
    return found | {len(batch)} if _is_list(batch) and not are_parts else found


def check_rows(batch: Any, size: int, *, are_parts: bool) -> None:
    """Check that all parts of a batch have as many rows as the look has losses, so that rows can be selected."""
    if size not in possible_counts(batch, are_parts=are_parts):
        expected = f"{size} rows in every part of the batch, as many as the look has losses"
        raise InputError(message(expected, _show_counts(batch), REMEDY))


def check_losses(losses: Any, *, by_token: bool = False) -> int:
    """Check that a look returned floating-point losses of shape [batch], or [batch, ...] per token; count the rows."""
    is_shaped = isinstance(losses, Tensor) and (losses.ndim > 1 if by_token else losses.ndim == 1)
    if not is_shaped or not losses.is_floating_point():
        per, shape = ("token", "[batch, length]") if by_token else ("row", "[batch]")
        expected = f"a look that returns one floating-point loss per {per}, shape {shape}"
        raise InputError(message(expected, describe(losses), UNREDUCED))
    return len(losses)


def check_alike(losses: Any, others: Any) -> None:
    """Check that two looks at a batch returned equally many losses: a single one would be broadcast to all rows."""
    for one in (losses, others):
        if not isinstance(one, Tensor) or not one.is_floating_point() or not one.ndim:
            check_losses(one)
    if losses.shape != others.shape:
        expected = f"from each of two looks one floating-point loss per row, here in shape {list(losses.shape)}"
        raise InputError(message(expected, describe(others), UNREDUCED))


def check_valid(valid: Any, losses: Tensor | None) -> Tensor:
    """Return which tokens count as a mask, after checking that it has the shape of the losses."""
    expected = "valid(batch) as a mask of the tokens" if losses is None else f"a mask of shape {list(losses.shape)}"
    if not isinstance(valid, Tensor) or valid.ndim < 2 or (losses is not None and valid.shape != losses.shape):
        remedy = "The look returns one loss per token, in the shape of valid(batch)."
        raise InputError(message(expected, describe(valid), remedy))
    return valid != 0


def tensors_of(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, (Mapping, list, tuple)) or _is_dataclass(batch):
        for value in _members(batch).values():
            yield from tensors_of(value)


def device_of(batch: Any) -> torch.device:
    """Return the device of the first tensor of a batch; the CPU if it has none."""
    return next((tensor.device for tensor in tensors_of(batch)), torch.device("cpu"))


# ---- structure -------------------------------------------------------------------------------------------------


def _is_list(value: Any) -> bool:
    """Whether this is a plain list or tuple, which may hold rows as well as columns."""
    return isinstance(value, (list, tuple)) and not hasattr(value, "_fields") and not isinstance(value, torch.Size)


def _is_array(value: Any) -> bool:
    """Whether this is an array of NumPy, as from WebDataset's ``batched`` and Hugging Face's "numpy" format."""
    numpy = sys.modules.get("numpy")  # not imported for this: without it there is no array
    return numpy is not None and isinstance(value, numpy.ndarray)


def _is_atom(value: Any) -> bool:
    """Whether this has no rows: a text, a number, also of NumPy, or a setting."""
    numpy = sys.modules.get("numpy")
    return isinstance(value, ATOMS) or (numpy is not None and isinstance(value, numpy.generic))


def _is_leaf(value: Any) -> bool:
    return _is_array(value) or _is_atom(value)


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _members(value: Any) -> dict[Any, Any]:
    """Return the parts of an object by name or place."""
    if isinstance(value, Mapping):
        return dict(value.items())
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    if _is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
    raise InputError(message("a batch of tensors, lists and dicts", f"a {type(value).__name__} in it", REMEDY))


def _rebuild(value: Any, members: dict[Any, Any]) -> Any:
    """Return an object of the same kind, such as Hugging Face's BatchEncoding, with other parts."""
    if type(value) is dict:
        return members
    if isinstance(value, Mapping):
        try:
            rebuilt = copy.copy(value)
            for key, member in members.items():
                rebuilt[key] = member  # type: ignore[index]
        except TypeError as error:
            raise InputError(message("a dict that can be changed", type(value).__name__, REMEDY)) from error
        return rebuilt
    if isinstance(value, (list, tuple)):
        return type(value)(*members.values()) if hasattr(value, "_fields") else type(value)(members.values())
    return dataclasses.replace(value, **members)


def mark_of(batch: Any) -> int:
    """Return a checksum of the tensors and arrays of a batch, or else of its texts and numbers.

    By it the batch is recognized after a restart.

    >>> import torch
    >>> mark_of([torch.zeros(3), "a"]) == mark_of([torch.zeros(3), "b"]) != mark_of([torch.ones(3), "a"])
    True
    """
    found, mark = list(_leaves(batch)), 0
    values = [one for one in found if not _is_atom(one)] or [repr(one).encode() for one in found]
    for value in values:
        if isinstance(value, Tensor):
            if value.layout == torch.strided:
                dense = value.detach().cpu().contiguous()
                mark = zlib.crc32(ctypes.string_at(dense.data_ptr(), dense.nbytes) if dense.nbytes else b"", mark)
        else:
            if not isinstance(value, bytes):  # an array of objects would show where these are in memory
                value = repr(value.tolist()).encode() if value.dtype.hasobject else value.tobytes()
            mark = zlib.crc32(value, mark)
    return mark


def _leaves(batch: Any) -> Iterator[Any]:
    """Yield the tensors, arrays, texts and numbers of a batch."""
    if isinstance(batch, Tensor) or _is_array(batch) or _is_atom(batch):
        yield batch
    elif isinstance(batch, (Mapping, list, tuple)) or _is_dataclass(batch):
        for value in _members(batch).values():
            yield from _leaves(value)


# ---- the number of rows ----------------------------------------------------------------------------------------


def _select_tensor(tensor: Tensor, rows: Tensor, size: int) -> Tensor:
    if tensor.ndim == 0:
        return tensor
    if tensor.size(0) != size:
        raise InputError(message(f"{size} rows in every tensor of the batch", describe(tensor), REMEDY))
    rows = rows.to(tensor.device)
    if tensor.layout == torch.sparse_coo:
        return tensor.index_select(0, rows)
    if tensor.layout != torch.strided or tensor.is_nested:
        got = f"a nested tensor or one of layout {tensor.layout}"
        raise InputError(message("dense or sparse COO tensors in the batch", got, REMEDY))
    return tensor.index_select(0, rows) if tensor.is_contiguous() else tensor[rows]  # keeps channels_last


def _select_of_array(array: Any, rows: Tensor, size: int) -> Any:
    if array.ndim == 0:
        return array
    if len(array) != size:
        got = f"an array of shape {list(array.shape)}"
        raise InputError(message(f"{size} rows in every array of the batch", got, REMEDY))
    return array[rows.tolist()]


def _has_columns(values: Any, size: int) -> bool:
    """Whether what is in a list may be columns: all of it has ``size`` rows."""
    lengths = list(_lengths(values))
    return bool(lengths) and all(length == size for length in lengths)


def _lengths(values: Any) -> Iterator[int]:
    """Yield the lengths of all tensors, and of all lists of texts or numbers, in a list."""
    for value in values:
        if isinstance(value, Tensor) or _is_array(value):
            if value.ndim:
                yield value.shape[0] if _is_array(value) else value.size(0)
        elif _is_list(value) and all(map(_is_atom, value)):
            yield len(value)
        elif isinstance(value, (Mapping, list, tuple)) or _is_dataclass(value):
            yield from _lengths(_members(value).values())


def _counts(value: Any) -> set[int] | None:
    """Return the numbers of rows that a part of a batch may have by its tensors; None if it has none."""
    if isinstance(value, Tensor):
        return {value.size(0)} if value.ndim else None
    if _is_array(value):
        return {len(value)} if value.ndim else None
    if _is_atom(value):
        return None
    if _is_list(value) and not all(isinstance(one, (Tensor, Mapping, list, tuple)) or _is_leaf(one) for one in value):
        return {len(value)}  # of objects that have no rows
    inner = _agreed(map(_counts, _members(value).values()))
    return inner if inner is None or not _is_list(value) else inner | {len(value)}


def _agreed(counts: Iterable[set[int] | None]) -> set[int] | None:
    """Return the numbers that are in all sets; None if there is no set."""
    told = [one for one in counts if one is not None]
    return set.intersection(*told) if told else None


def _show_counts(batch: Any) -> str:
    lengths = [*dict.fromkeys(_lengths([batch]))]
    return f"{describe(batch)} with {', '.join(map(str, lengths[:8]))} rows" if lengths else describe(batch)
