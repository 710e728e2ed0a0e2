"""Read logged losses of a normal run, from arrays, tables or JSON lines, as one matrix."""

from __future__ import annotations

import itertools
import json
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...checks import describe
from ...errors import InputError, message, plural, warn
from ..format import suggest

LINES = 1 << 18
"""How many lines of a table are read at a time."""
LARGEST_EXPANDED = 1 << 20
"""A table may have this many losses although fewer are stored."""
COLUMNS = ("epoch", "index", "loss")
DAMAGED = "The file is damaged, truncated, or holds something else; nothing was read."
_CSV = "Name the columns, or leave the header out and write one line per epoch."


def read(path: str | Path) -> Tensor:
    """Read the losses in a file, without ever running code from it.

    .npy, .npz, .pt    a matrix [epochs, samples], named "losses" if there are several
    .csv               lines epoch,index,loss below such a header; or, without a header, one line per epoch
    .jsonl             lines {"epoch": 0, "index": 17, "loss": 0.5}, where index and loss may be lists;
                       or {"epoch": 0, "losses": [...]}

    Epochs count from 0 or 1, samples from 0. A matrix in .npy or .pt is memory-mapped.

    Args:
        path: The file; its suffix decides the format.

    Returns:
        The losses, [epochs, samples], with NaN for a sample that an epoch did not use.

    Raises:
        InputError: If there is no such file, or it does not hold losses in one of these forms.
    """
    path = Path(path)
    if path.suffix not in READERS:
        raise InputError(message("a file of losses", str(path), f"Its name must end in {', '.join(READERS)}."))
    if not path.is_file():
        names = [other.name for other in path.parent.glob("*")] if path.parent.is_dir() else []
        if path.exists():
            raise InputError(
                message("a file of losses", f"{path}, which is not a file", "Name a file in it, or next to it.")
            )
        raise InputError(message("a file of losses", f"{path}, which does not exist", suggest(path.name, names)))
    try:
        losses = READERS[path.suffix](path)
    except InputError:
        raise
    except Exception as broken:  # a damaged file can make the readers raise anything
        why = re.sub(r"\x1b\[[0-9;]*m", "", str(broken).split("\n")[0]).split("This file can still be")[0].strip()
        why = why[:200] or type(broken).__name__
        raise InputError(message(f"{path} as a complete {path.suffix} file of numbers", why, DAMAGED)) from broken
    check_table(losses, str(path))
    return losses


def _read_npy(path: Path) -> Tensor:
    return _tensor(np.load(path, mmap_mode="c", allow_pickle=False))


def _read_npz(path: Path) -> Tensor:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        if set(COLUMNS) <= set(arrays):
            rows = LossRows()
            rows.put(*(arrays[name] for name in COLUMNS))
            return rows.table(path)
        return _tensor(arrays[_choose_name(list(arrays), path)])


def _read_pt(path: Path) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about files it did not write; they are refused below
        found: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    if isinstance(found, dict):
        found = found[_choose_name(list(found), path)]
    if isinstance(found, (list, tuple)):
        rows = [torch.as_tensor(epoch) for epoch in found]
        for row in rows:
            check_stored(row, str(path))
        found = torch.stack(rows)
    if not isinstance(found, Tensor):
        raise InputError(message(f"a matrix of losses in {path}", type(found).__name__, "Save only the tensor."))
    if found.layout != torch.strided or found.is_nested or found.is_meta or found.is_quantized or found.is_complex():
        got = f"a tensor of {found.dtype}, {found.layout}" + (" without values" if found.is_meta else "")
        raise InputError(message(f"a dense matrix of losses in {path}", got, "Save losses.float().cpu()."))
    check_stored(found, str(path))
    return found if found.is_floating_point() else found.float()


def _read_csv(path: Path) -> Tensor:
    with path.open(encoding="utf-8-sig") as lines:
        first = lines.readline()
        names = [name.strip().strip('"').lower() for name in first.split(",")]
        if not set(COLUMNS) <= set(names):
            if any(name.isidentifier() and name not in ("nan", "inf") for name in names):
                raise InputError(message(f"a header epoch,index,loss in {path}", repr(first.strip()[:80]), _CSV))
            return _matrix(path, itertools.chain([first], lines))
        rows, at = LossRows(), 2
        columns = [names.index(name) for name in COLUMNS]
        while some := list(itertools.islice(lines, LINES)):
            rows.put(*_columns(some, columns, path, at).T)
            at += len(some)
        return rows.table(path)


def _matrix(path: Path, lines: Iterable[str]) -> Tensor:
    epochs: list[np.ndarray[Any, Any]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            epochs.append(np.array([cell.strip() or "nan" for cell in line.split(",")], dtype=np.float32))
        except ValueError as broken:
            raise InputError(message(f"numbers in line {number} of {path}", str(broken)[:80], DAMAGED)) from broken
        if epochs[-1].shape != epochs[0].shape:
            got = f"{epochs[-1].size} in line {number}"
            raise InputError(message(f"{epochs[0].size} losses in each line of {path}", got, DAMAGED))
    if not epochs:
        raise InputError(message(f"losses in {path}", "an empty file", DAMAGED))
    return _tensor(np.stack(epochs))


def _columns(lines: list[str], columns: list[int], path: Path, at: int) -> np.ndarray[Any, Any]:
    filled = [line for line in lines if line.strip()]
    if not filled:
        return np.empty((0, len(columns)))
    try:
        return np.loadtxt(filled, delimiter=",", usecols=columns, ndmin=2, quotechar='"')
    except ValueError as broken:
        if len(lines) == 1:
            expected = f"epoch,index,loss in line {at} of {path}"
            raise InputError(message(expected, repr(lines[0].strip()[:80]), DAMAGED)) from broken
        half = len(lines) // 2  # bisect for the broken line only once there is one
        _columns(lines[:half], columns, path, at)
        _columns(lines[half:], columns, path, at + half)
        raise


def _read_jsonl(path: Path) -> Tensor:
    rows = LossRows()
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                rows.put(*_entry(json.loads(line)))
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as broken:
                expected = f'{{"epoch", "index", "loss"}} or {{"epoch", "losses"}} in line {number} of {path}'
                raise InputError(message(expected, repr(line.strip()[:80]), DAMAGED)) from broken
    return rows.table(path)


def _entry(found: dict[str, Any]) -> tuple[Any, Any, Any]:
    many = found["losses"] if "losses" in found else found["loss"]
    losses = np.atleast_1d(np.array(many, dtype=np.float32))
    indices = np.atleast_1d(np.array(found.get("index", range(len(losses))) if "losses" in found else found["index"]))
    if losses.shape != indices.shape:
        raise ValueError("as many losses as indices")
    return np.full(len(losses), found["epoch"]), indices, losses


READERS: dict[str, Callable[[Path], Tensor]] = {
    ".npy": _read_npy, ".npz": _read_npz, ".pt": _read_pt, ".csv": _read_csv, ".jsonl": _read_jsonl,
}  # fmt: skip


class LossRows:
    """Losses collected in any order, one growing row per epoch: a log of 100 million lines is never held as text.

    An index may be up to 64 times the number of losses so far, or a million. A higher one is deferred, since more
    losses may follow; it takes no memory for the samples below it. If it is still too high at the end, the file is
    damaged.
    """

    def __init__(self) -> None:
        self._rows: dict[int, np.ndarray[Any, Any]] = {}
        self._size = self._count = self._count_at_retry = self._highest_index = 0
        self._deferred: list[tuple[Any, Any, Any]] = []
        self._replaced = 0
        """How many losses replaced an earlier one of the same sample and epoch."""

    def put(self, epochs: Any, indices: Any, losses: Any) -> None:
        epochs, indices, losses = _as_indices("epoch", epochs), _as_indices("index", indices), np.asarray(losses)
        if not epochs.shape == indices.shape == losses.shape or epochs.ndim != 1:
            raise ValueError("columns epoch, index and loss are not of equal length")
        self._count += len(epochs)
        if len(indices) == 0:
            return
        if int(epochs.max()) > 1 << 16:
            raise ValueError(f"epoch {epochs.max()}: epochs count from 0 or 1")
        if self._count >= 2 * self._count_at_retry:  # so that deferred losses are retried a few times, not at each line
            self._retry_deferred()
        self._place_or_defer(epochs, indices, losses)

    def _retry_deferred(self) -> None:
        """Retry deferred losses now that there are more; in their order, because the last loss of a sample counts."""
        self._count_at_retry, self._highest_index = self._count, max(1 << 20, 64 * self._count)
        deferred, self._deferred = self._deferred, []
        for some in deferred:
            self._place_or_defer(*some)

    def _place_or_defer(self, epochs: Any, indices: Any, losses: Any) -> None:
        far = indices > self._highest_index
        if far.any():
            self._deferred.append((epochs[far], indices[far], losses[far]))
            epochs, indices, losses = epochs[~far], indices[~far], losses[~far]
        if len(indices):
            self._place(epochs, indices, losses)

    def _place(self, epochs: Any, indices: Any, losses: Any) -> None:
        self._size = max(self._size, int(indices.max()) + 1)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            row = self._rows.get(epoch, np.empty(0, dtype=np.float32))
            if len(row) < self._size:
                grown = np.full(max(self._size, 2 * len(row)), np.nan, dtype=np.float32)
                grown[: len(row)] = row
                row = self._rows[epoch] = grown
            places = indices[here]
            self._replaced += int(np.count_nonzero(~np.isnan(row[places]))) + len(places) - len(np.unique(places))
            row[places] = losses[here]

    def table(self, path: Path) -> Tensor:
        self._retry_deferred()
        if self._deferred:
            epochs, indices, _ = self._deferred[0]
            got = f"index {indices[0]} in epoch {epochs[0]}, and {self._count} losses in total"
            raise InputError(message(f"indices that count from 0 in {path}", got, DAMAGED))
        if not self._rows:
            raise InputError(message(f"losses in {path}", "none", "Log epoch,index,loss per sample."))
        first, last = min(self._rows), max(self._rows)
        if first > 1:
            raise InputError(
                message(f"a log that starts at the first epoch in {path}", f"epochs {first} to {last}", DAMAGED)
            )
        shape = last - first + 1, self._size
        if shape[0] * shape[1] > max(1 << 26, 64 * self._count):
            got = f"{self._count} losses for {shape[0]} epochs and {shape[1]} samples"
            raise InputError(message(f"losses of most samples in most epochs in {path}", got, DAMAGED))
        if self._replaced:
            warn(
                f"{path} has {plural(self._replaced, 'loss')} of a sample that had one in the same epoch: the last one "
                "counts, as after a restart"
            )
        table = np.full(shape, np.nan, dtype=np.float32)
        for epoch in sorted(self._rows):
            row = self._rows.pop(epoch)[: self._size]
            table[epoch - first, : len(row)] = row
        return torch.from_numpy(table)


def _as_indices(name: str, values: Any) -> np.ndarray[Any, Any]:
    values = np.asarray(values)
    if values.dtype.kind not in "iuf":
        raise ValueError(f"{name} as {values.dtype}, expected whole numbers from 0")
    with np.errstate(invalid="ignore"):  # of NaN, which is refused below
        indices: np.ndarray[Any, Any] = values.astype(np.int64)
    wrong = (indices != values) | (indices < 0)
    if wrong.any():
        raise ValueError(f"{name} {values[wrong][0]:g}, expected whole numbers from 0")
    return indices


def _choose_name(names: list[str], path: Path) -> str:
    if "losses" in names:
        return "losses"
    if len(names) != 1:
        raise InputError(
            message(f'"losses" in {path}', ", ".join(map(str, names)) or "nothing", "Use that name for the matrix.")
        )
    return names[0]


def _tensor(array: np.ndarray[Any, Any]) -> Tensor:
    if array.dtype.kind not in "fiu":
        raise ValueError(f"an array of {array.dtype}")
    native = array.dtype.newbyteorder("=")
    if array.dtype.kind != "f" or array.dtype != native or array.dtype.itemsize > 8:
        array = array.astype(np.float32)
    return torch.from_numpy(array)


def check_stored(losses: Tensor, name: str) -> None:
    """Raise InputError if a tensor repeats few stored numbers to make a great many, as ``expand`` does.

    Such a tensor takes no memory until it is worked with, and then more than there is.
    """
    if losses.layout != torch.strided or losses.is_meta or losses.is_nested:
        return
    stored = losses.untyped_storage().nbytes() // losses.element_size()
    if losses.numel() > max(stored, LARGEST_EXPANDED):
        got = f"{losses.numel()} that repeat {stored}"
        raise InputError(message(f"{name} with a loss of its own per epoch and sample", got, "Save the losses logged."))


def check_table(losses: Any, name: str) -> None:
    """Raise InputError unless losses are a matrix [epochs, samples] with a finite number in it.

    They must be stored, rather than repeated by ``expand``, unless they are few.
    """
    floating = isinstance(losses, Tensor) and losses.is_floating_point()
    if not floating or losses.ndim != 2 or 0 in losses.shape:
        raise InputError(message(f"{name} as a matrix [epochs, samples]", describe(losses), "Use one row per epoch."))
    check_stored(losses, name)
    epochs, samples = losses.shape
    if epochs > samples and epochs >= 1000:
        raise InputError(message(f"{name} as [epochs, samples]", f"[{epochs}, {samples}]", "Transpose it."))
    if not any(torch.isfinite(row).any() for row in losses):
        raise InputError(message(f"{name} with losses", "no finite number", "Check that losses were logged."))
