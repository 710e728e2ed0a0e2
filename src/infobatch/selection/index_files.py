"""Read and check published lists of indices."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import files as checkpoint
from ..errors import InputError, message

NAMES = ("indices", "index", "idx")
"""Names of a column, an array or a key that holds indices."""
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_indices(indices: Any, size: int) -> Tensor:
    """Return indices as int64 on the CPU, in the given order, if each is a position and occurs once."""
    is_dense = isinstance(indices, Tensor) and indices.layout == torch.strided and not indices.is_meta
    if not is_dense or indices.ndim != 1 or indices.dtype not in INTEGERS:
        got = type(indices).__name__
        if isinstance(indices, Tensor):
            got = f"{indices.dtype} of shape {list(indices.shape)} on {indices.device}, {indices.layout}"
        remedy = "Floating-point numbers cannot hold every position. For a mask, pass mask.nonzero().squeeze(1)."
        raise InputError(message("indices as a one-dimensional integer tensor", got, remedy))
    row: Tensor = indices.detach().to("cpu", torch.int64)
    if not row.numel():
        raise InputError(message("at least one index", "none", "Nothing can be trained on an empty selection."))
    low, high = (int(end) for end in row.aminmax())
    if low < 0 or high >= size:
        remedy = "They are positions in the data set, counted from 0."
        raise InputError(message(f"indices from 0 to {size - 1}", f"{low} to {high}", remedy))
    repeated = row.numel() - torch.unique(row).numel()
    if repeated:
        remedy = "To give a sample more influence, raise its weight."
        raise InputError(message("each index once", f"{repeated} repeated", remedy))
    return row


def read_indices(path: Path) -> Tensor:
    """Return the indices in a file, unchecked."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        remedy = f"Supported are {', '.join(READERS)}."
        raise InputError(message("a file with a known ending", path.name, remedy))
    found = reader(path)
    if isinstance(found, Tensor):
        return found
    if not isinstance(found, list) or not all(type(value) is int and abs(value) < 2**62 for value in found):
        raise _file_error(path, "other values")
    return torch.tensor(found, dtype=torch.int64, device="cpu")


def _read_numpy(path: Path) -> Tensor:
    try:
        import numpy as np
    except ImportError as error:
        raise InputError(message("NumPy to read this file", "none installed", "pip install numpy")) from error
    try:
        found = np.load(path, allow_pickle=False)
        if path.suffix.lower() == ".npz":
            with found:
                found = found[_find_name(path, list(found))]
        return torch.from_numpy(found.astype(np.int64) if found.dtype.kind in "iu" else found)
    except (FileNotFoundError, InputError):
        raise
    except Exception as error:  # damaged bytes can raise anything
        raise _file_error(path, f"unreadable data ({type(error).__name__})") from error


def _read_torch(path: Path) -> Any:
    found = checkpoint.load(path)
    return found[_find_name(path, list(found))] if isinstance(found, dict) else found


def _read_json(path: Path) -> Any:
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise _file_error(path, "invalid JSON") from error
    return found[_find_name(path, list(found))] if isinstance(found, dict) else found


def _read_text(path: Path) -> list[int]:
    """Read one or more indices per line, separated by blanks or commas; a # starts a comment."""
    lines = (line.split("#")[0] for line in _read_lines(path))
    return [_parse_integer(path, word) for line in lines for word in line.replace(",", " ").split()]


def _read_csv(path: Path) -> list[int]:
    """Read the column with a known name, or the only column."""
    try:
        rows = [row for row in csv.reader(_read_lines(path)) if row]
    except csv.Error as error:
        raise _file_error(path, f"an invalid table ({error})") from error
    if not rows:
        return []
    head = [word.strip().lower() for word in rows[0]]
    if not any(_is_integer(word) for word in head):
        column = head.index(_find_name(path, head))
        rows = rows[1:]
    elif len(head) == 1:
        column = 0
    else:
        raise _file_error(path, f"{len(head)} columns without names")
    short = any(len(row) <= column for row in rows)
    if short:
        raise _file_error(path, "a row that is too short")
    return [_parse_integer(path, row[column]) for row in rows]


READERS: dict[str, Callable[[Path], Any]] = {
    ".npy": _read_numpy,
    ".npz": _read_numpy,
    ".pt": _read_torch,
    ".pth": _read_torch,
    ".txt": _read_text,
    ".csv": _read_csv,
    ".json": _read_json,
}


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()  # some editors write a byte order mark
    except UnicodeDecodeError as error:
        raise _file_error(path, "a file that is not text") from error


def _find_name(path: Path, names: list[str]) -> str:
    known = [name for name in NAMES if name in names]
    if known:
        return known[0]
    if len(names) == 1:
        return names[0]
    raise _file_error(path, f"several entries, {', '.join(map(str, names[:8]))}")


def _is_integer(word: str) -> bool:
    return re.fullmatch(r"\s*[+-]?\d{1,18}\s*", word) is not None


def _parse_integer(path: Path, word: str) -> int:
    if not _is_integer(word):
        raise _file_error(path, repr(word[:40]))
    return int(word)


def _file_error(path: Path, got: str) -> InputError:
    remedy = f"Name the indices one of {', '.join(NAMES)}, or store nothing else in the file."
    return InputError(message(f"integer indices in {path.name}", got, remedy))
