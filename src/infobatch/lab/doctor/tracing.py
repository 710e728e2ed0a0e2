"""Find which sample is in which row of a batch, independently of the code under test.

``Marked`` wraps a data set and logs a fingerprint of every field of each fetched sample, in any process; the samples
are passed on unchanged. The rows of a delivered batch are fingerprinted in the same way and looked up.
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
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

ELEMENTS = 1024
"""How many elements of a field enter its fingerprint, evenly spread."""
TRIES = 8
"""How many lengths are tried to recognize a padded row."""

Part = Tensor | bytes
"""A field of a sample: flat numbers, or a text."""
Where = tuple[Any, ...]
"""The path to a field in a sample or batch: keys and positions."""


# ---- fingerprints ----------------------------------------------------------------------------------------------


def parts(thing: Any, where: Where = ()) -> Iterator[tuple[Where, Part]]:
    """Yield everything in a sample that can be recognized again: nested tensors, arrays, numbers and texts."""
    part = _flat(thing)
    if part is not None:
        if len(part):
            yield where, part
        if not isinstance(thing, (list, tuple)) or len(thing) > TRIES:
            return
    for key, inner in _inside(thing) if len(where) < 6 else ():
        yield from parts(inner, (*where, key))


def fingerprint(part: Part) -> int:
    """Return 64 bits that identify a field; equal for equal numbers of another type."""
    if isinstance(part, Tensor):
        size = part.numel()
        part = part[:: -(-size // ELEMENTS)].double().contiguous().numpy().tobytes() + size.to_bytes(8, "little")
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
    """Count the samples in a batch; ``sizes`` are the numbers of samples fetched per batch, most frequent first."""
    firsts, lists = Counter[int](), set[int]()
    _measure(batch, sizes, firsts, lists, 0)
    for size in sizes:
        if size in firsts or size in lists:
            return size
    return firsts.most_common(1)[0][0] if firsts else None


def are_samples(batch: Any, census: Census) -> bool:
    """True if a batch is the list of samples that was fetched, as an identity collate_fn returns it."""
    if not isinstance(batch, list) or not batch:
        return False
    each = [tuple(fingerprint(part) for _, part in parts(one)) for one in batch]
    return all(any(census.keys.get(census.owner.get(key, -1)) == keys for key in keys) for keys in each)


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
    """True if a list holds the fields of a batch, such as [inputs, labels], and not its samples."""
    dims = {getattr(one, "ndim", 1 if isinstance(one, (list, tuple)) else 0) for one in things}
    if 0 in dims or len({len(one) for one in things}) != 1:
        return False
    return len(dims) > 1 or len(things[0]) in sizes


def rows(batch: Any, count: int, where: Where = ()) -> Iterator[tuple[Where, list[Part]]]:
    """Yield each field of a batch as one value per sample. A list may hold samples or columns: both are tried."""
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
    """Fetch samples as a torch loader does."""
    many = getattr(dataset, "__getitems__", None)
    return many(indices) if many else [dataset[index] for index in indices]


class Marked(Dataset[Any]):
    """A data set that logs each fetched sample to ``folder``; it can be sent to workers."""

    def __init__(self, dataset: Any, folder: Path, size: int) -> None:
        self.dataset, self.folder, self.size = dataset, folder, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        sample = self.dataset[index]
        if isinstance(index, (list, tuple)):  # a batch sampler was passed as sampler
            self._log(index, sample)
        else:
            self._log([index], [sample])
        return sample

    def __getitems__(self, indices: Sequence[Any]) -> Any:
        samples = fetch(self.dataset, indices)
        self._log(indices, samples)
        return samples

    def _log(self, indices: Sequence[Any], samples: Any) -> None:
        if isinstance(samples, list):
            each = [[part for _, part in parts(sample)] for sample in samples]
        else:  # __getitems__ returned a batch in another form
            each = [list(row) for row in zip(*(row for _, row in rows(samples, len(indices))), strict=True)]
        words = array("q", [0, len(indices), len(each), *(int(index) for index in indices)])
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
    """Per fetch: how many samples were requested and how many returned."""
    fetched: Counter[int] = field(default_factory=Counter)
    keys: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """The fingerprints of each sample's fields."""
    owner: dict[int, int] = field(default_factory=dict)
    """The first sample that has a fingerprint."""
    lengths: list[int] = field(default_factory=list)

    @property
    def frequent_sizes(self) -> list[int]:
        """The numbers of samples fetched per batch, most frequent first."""
        return [size for size, _ in Counter(requested for requested, _ in self.sizes).most_common()]

    def recognize(self, row: Part) -> int:
        """Return the fingerprint under which a row's content was fetched, with or without padding; 0 if it was not."""
        whole = fingerprint(row)
        if whole in self.owner or isinstance(row, bytes) or len(row) < 2:
            return whole if whole in self.owner else 0
        for line, back in ((row, False), (row.flip(0), True)):  # padded at the end, padded at the start
            content = torch.nonzero(line != line[-1])
            shortest = bisect_left(self.lengths, int(content[-1]) + 1 if len(content) else 1)
            for length in self.lengths[shortest : shortest + TRIES]:
                if length < len(line):
                    found = fingerprint(line[:length].flip(0) if back else line[:length])
                    if found in self.owner:
                        return found
        return 0


class Log:
    """Reads what ``Marked`` has logged so far."""

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
    requested, returned = words[1], words[2]
    indices, at, lengths = words[3 : 3 + requested], 3 + requested, set()
    census.sizes.append((requested, returned))
    census.fetched.update(indices)
    for place in range(returned):
        count = words[at]
        keys = tuple(words[at + 1 : at + 1 + 2 * count : 2])
        lengths |= set(words[at + 2 : at + 2 + 2 * count : 2])
        at += 1 + 2 * count
        if requested == returned:  # otherwise the samples cannot be assigned
            census.keys[indices[place]] = keys
        for key in keys:
            census.owner.setdefault(key, indices[place] if requested == returned else -1)
    return lengths
