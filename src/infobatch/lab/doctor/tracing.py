"""Which sample is in which row of a batch, found out without a word to anybody.

``Marked`` stands around a data set and notes a fingerprint of every part of each sample that is fetched, in whatever
process that happens; the samples themselves go on untouched. The rows of a delivered batch are fingerprinted in the
same way and looked up. So the truth about a batch does not come from the machinery that is to be checked.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

LOOKED_AT = 1024
"""So many elements of a part are looked at, evenly spread over it."""
TRIES = 8
"""So many lengths are tried to see through padding."""

Part = Tensor | bytes
"""A part of a sample: flat numbers, or a text."""
Where = tuple[Any, ...]
"""The place of a part in a sample or batch: keys and positions on the way down."""


# ---- fingerprints ----------------------------------------------------------------------------------------------


def parts(thing: Any, where: Where = ()) -> Iterator[tuple[Where, Part]]:
    """Everything in a sample that can be recognised again: tensors, arrays, numbers and texts, however they nest."""
    part = _flat(thing)
    if part is not None:
        if len(part):
            yield where, part
        if not isinstance(thing, (list, tuple)) or len(thing) > TRIES:
            return
    for key, inner in _inside(thing) if len(where) < 6 else ():
        yield from parts(inner, (*where, key))


def fingerprint(part: Part) -> int:
    """64 bits of a part; the same for the same numbers in another type."""
    if isinstance(part, Tensor):
        size = part.numel()
        part = part[:: -(-size // LOOKED_AT)].double().contiguous().numpy().tobytes() + size.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(part, digest_size=8).digest(), "little", signed=True)


def _flat(thing: Any) -> Part | None:
    if isinstance(thing, Tensor):
        if thing.layout != torch.strided or thing.is_nested or thing.is_meta:
            return None
        flat = thing.detach().cpu().reshape(-1)
        return torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    if isinstance(thing, np.ndarray):
        return torch.from_numpy(thing.astype(np.float64).reshape(-1)) if thing.dtype.kind in "fiub" else None
    if isinstance(thing, (bool, int, float, np.number, np.bool_)):
        return torch.tensor([float(thing)], dtype=torch.float64)
    if isinstance(thing, (str, bytes)):
        return thing.encode() if isinstance(thing, str) else thing
    if isinstance(thing, (list, tuple)) and thing and all(type(one) in (int, float, bool) for one in thing):
        return torch.tensor(thing, dtype=torch.float64)
    return None


def _inside(thing: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(thing, Mapping):
        yield from thing.items()
    elif isinstance(thing, (list, tuple)):
        yield from enumerate(thing)
    elif hasattr(thing, "__dict__") and not isinstance(thing, (type, Tensor, np.ndarray)) and not callable(thing):
        yield from vars(thing).items()


# ---- rows ------------------------------------------------------------------------------------------------------


def count_rows(batch: Any, sizes: Sequence[int]) -> int | None:
    """How many samples a batch holds; ``sizes`` are those that were fetched for one, likeliest first."""
    firsts, lists = Counter[int](), set[int]()
    _measure(batch, sizes, firsts, lists, 0)
    for size in sizes:
        if size in firsts or size in lists:
            return size
    return firsts.most_common(1)[0][0] if firsts else None


def _measure(thing: Any, sizes: Sequence[int], firsts: Counter[int], lists: set[int], depth: int) -> None:
    if isinstance(thing, (Tensor, np.ndarray)):
        if thing.ndim:
            firsts[len(thing)] += 1
    elif not isinstance(thing, (str, bytes)) and depth < 6:
        if isinstance(thing, (list, tuple)) and not _are_columns(thing, sizes):
            lists.add(len(thing))
        for _, inner in _inside(thing):
            _measure(inner, sizes, firsts, lists, depth + 1)


def _are_columns(things: Sequence[Any], sizes: Sequence[int]) -> bool:
    """Whether a list is of the parts of a batch, as [inputs, labels], and not of its samples."""
    dims = {getattr(one, "ndim", 1 if isinstance(one, (list, tuple)) else 0) for one in things}
    if 0 in dims or len({len(one) for one in things}) != 1:
        return False
    return len(dims) > 1 or len(things[0]) in sizes


def rows(batch: Any, count: int, where: Where = ()) -> Iterator[tuple[Where, list[Part]]]:
    """Each part of a batch as one part a sample. A list may be one of samples or of columns: both are tried."""
    if isinstance(batch, (Tensor, np.ndarray)):
        flat = [_flat(one) for one in batch] if batch.ndim and len(batch) == count else []
        if flat and all(one is not None and len(one) for one in flat):
            yield where, flat  # type: ignore[misc]
        return
    if isinstance(batch, (list, tuple)) and len(batch) == count:
        each = [dict(parts(one)) for one in batch]
        for inner in each[0]:
            if all(inner in one for one in each):
                yield (*where, "*", *inner), [one[inner] for one in each]
    for key, inside in _inside(batch) if len(where) < 6 else ():
        yield from rows(inside, count, (*where, key))


# ---- what was fetched ------------------------------------------------------------------------------------------


def fetch(dataset: Any, indices: Sequence[Any]) -> Any:
    """As torch's loaders do it."""
    many = getattr(dataset, "__getitems__", None)
    return many(indices) if many else [dataset[index] for index in indices]


class Marked(Dataset[Any]):
    """The data set as it is, with a note in ``folder`` of each sample that is fetched. Travels to workers."""

    def __init__(self, dataset: Any, folder: Path, size: int) -> None:
        self.dataset, self.folder, self.size = dataset, folder, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        began = perf_counter_ns()
        sample = self.dataset[index]
        took = perf_counter_ns() - began
        if isinstance(index, (list, tuple)):  # a batch sampler in the place of a sampler
            self._note(index, sample, took)
        else:
            self._note([index], [sample], took)
        return sample

    def __getitems__(self, indices: Sequence[Any]) -> Any:
        began = perf_counter_ns()
        samples = fetch(self.dataset, indices)
        self._note(indices, samples, perf_counter_ns() - began)
        return samples

    def _note(self, indices: Sequence[Any], samples: Any, nanoseconds: int) -> None:
        if isinstance(samples, list):
            each = [[part for _, part in parts(sample)] for sample in samples]
        else:  # a whole batch in a form of its own
            each = [list(row) for row in zip(*(row for _, row in rows(samples, len(indices))), strict=True)]
        words = array("q", [0, len(indices), len(each), nanoseconds, *(int(index) for index in indices)])
        for sample in each:
            words.append(len(sample))
            for part in sample:
                words.extend((fingerprint(part), len(part)))
        words[0] = len(words)
        with (self.folder / str(os.getpid())).open("ab", buffering=0) as notes:
            notes.write(words.tobytes())


@dataclass
class Census:
    """The samples fetched in one pass."""

    sizes: list[tuple[int, int]] = field(default_factory=list)
    """Of each fetch: how many were asked for, how many came."""
    fetched: Counter[int] = field(default_factory=Counter)
    keys: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """The fingerprints of each sample's parts."""
    owner: dict[int, int] = field(default_factory=dict)
    """The first sample that has a fingerprint."""
    lengths: list[int] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def likely(self) -> list[int]:
        """How many samples are fetched for a batch, the usual number first."""
        return [size for size, _ in Counter(asked for asked, _ in self.sizes).most_common()]

    def recognise(self, row: Part) -> int:
        """The fingerprint under which the content of a row was fetched; 0 if it was not. Sees through padding."""
        whole = fingerprint(row)
        if whole in self.owner or isinstance(row, bytes) or len(row) < 2:
            return whole if whole in self.owner else 0
        for line, back in ((row, False), (row.flip(0), True)):  # padded behind, padded in front
            content = torch.nonzero(line != line[-1])
            shortest = bisect_left(self.lengths, int(content[-1]) + 1 if len(content) else 1)
            for length in self.lengths[shortest : shortest + TRIES]:
                if length < len(line):
                    found = fingerprint(line[:length].flip(0) if back else line[:length])
                    if found in self.owner:
                        return found
        return 0


class Log:
    """Reads what ``Marked`` has noted, as far as it is written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def read(self, census: Census) -> None:
        known = set(census.lengths)
        for path in sorted(self._folder.iterdir()):
            with path.open("rb") as notes:
                notes.seek(self._read.get(path, 0))
                raw = notes.read()
            words = array("q", raw[: len(raw) // 8 * 8])
            at = 0
            while at < len(words) and at + words[at] <= len(words):
                known |= _take(words[at : at + words[at]], census)
                at += words[at]
            self._read[path] = self._read.get(path, 0) + 8 * at
        census.lengths = sorted(known)


def _take(words: array[int], census: Census) -> set[int]:
    asked, came = words[1], words[2]
    indices, at, lengths = words[4 : 4 + asked], 4 + asked, set()
    census.seconds += words[3] / 1e9
    census.sizes.append((asked, came))
    census.fetched.update(indices)
    for place in range(came):
        count = words[at]
        keys = tuple(words[at + 1 : at + 1 + 2 * count : 2])
        lengths |= set(words[at + 2 : at + 2 + 2 * count : 2])
        at += 1 + 2 * count
        if asked == came:  # else nobody knows whose they are
            census.keys[indices[place]] = keys
        for key in keys:
            census.owner.setdefault(key, indices[place] if asked == came else -1)
    return lengths
