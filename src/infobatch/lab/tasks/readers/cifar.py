"""CIFAR-10 and CIFAR-100 as published: Python pickles, in the folders that torchvision creates.

A pickle can run code. A file is therefore opened only if its md5 is the published one, with an unpickler that accepts
only plain values and arrays of bytes. The class names are in class_names.py, so the pickles with them are not needed.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ....errors import InputError, message
from ..task import Arrays
from .common import Samples, absent, broken, digest

CIFAR10_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
CIFAR100_MD5 = {
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
}


def is_present(folder: Path, published: Mapping[str, str]) -> bool:
    """True if the folder holds files in this layout."""
    return any((folder / name).is_file() for name in published)


def read(folder: Path, published: Mapping[str, str]) -> Samples:
    """Read the files of ``published`` (name -> md5); those whose name begins with "test" are the test set.

    Raises:
        InputError: If a file is missing, has another md5 or is broken.
    """
    for name in published:
        if not (folder / name).is_file():
            raise absent(folder / name, "the other batches")
    for name, md5 in published.items():
        _check_md5(folder / name, md5)
    train = [name for name in published if not name.startswith("test")]
    test = [name for name in published if name.startswith("test")]
    source = ", ".join(f"{name} md5:{md5[:12]}" for name, md5 in published.items())
    return Samples(_join(folder, train), _join(folder, test), source)


def unpickle(data: bytes) -> Any:
    """Load dictionaries, lists, numbers, byte strings and arrays of bytes; refuse anything else before it runs."""
    return _SafeUnpickler(io.BytesIO(data), encoding="bytes").load()


def _check_md5(path: Path, md5: str) -> None:
    got = digest(path, "md5")
    if got != md5:
        remedy = "It was not opened, since it is not the published file. Download it again; use npy for your own data."
        raise InputError(message(f"{path} with the published md5 {md5}", got, remedy))


def _join(folder: Path, names: list[str]) -> Arrays:
    parts = [_batch(folder / name) for name in names]
    images = np.concatenate([images for images, _ in parts])
    labels = [label for _, labels in parts for label in labels]
    return Arrays(torch.from_numpy(images), torch.tensor(labels, dtype=torch.int64))


def _batch(path: Path) -> tuple[npt.NDArray[np.uint8], list[int]]:
    try:
        content = unpickle(path.read_bytes())
        images = content[b"data"].array.reshape(-1, 3, 32, 32)
        labels = content[b"fine_labels" if b"fine_labels" in content else b"labels"]
        if len(images) != len(labels) or any(type(label) is not int for label in labels):
            raise ValueError(f"{len(images)} images and {len(labels)} labels")
    except Exception as error:  # a broken pickle can raise anything here
        raise broken(path, "a batch of CIFAR", f"{type(error).__name__}: {error}") from error
    return images, labels


class _Array:
    """A stand-in for numpy's array that only accepts its state."""

    array: npt.NDArray[np.uint8]

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, raw = state
        if not isinstance(kind, _Bytes) or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("an array that is not of bytes")
        self.array = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")


class _Bytes:
    """A stand-in for numpy's dtype; uint8 only."""

    def __init__(self, kind: Any, *_: Any) -> None:
        if kind != b"u1":
            raise pickle.UnpicklingError(f"an array of {kind!r}, not of bytes")

    def __setstate__(self, state: Any) -> None:
        """Ignore byte order and the like, which bytes do not have."""


def _reconstruct(*_: Any) -> _Array:
    return _Array()


_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Bytes,
}


class _SafeUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which no CIFAR file needs")
        return _KNOWN[module, name]
