"""What the readers share: the result, the checks every layout needs, and errors that name the file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from ....errors import InputError, installing, message
from ..task import HASHED, Arrays


@dataclass(frozen=True, eq=False)
class Samples:
    """What a reader brings."""

    train: Arrays | Dataset[Any]
    test: Arrays | Dataset[Any]
    source: str
    """The files read, with short hashes."""
    classes: tuple[str, ...] = ()
    """Names in the order of the labels, where the files tell them."""


def broken(path: Path | str, expected: str, got: str) -> InputError:
    return InputError(message(f"{expected} in {path}", got, "Nothing was changed; replace that file."))


def absent(path: Path | str, siblings: str) -> InputError:
    return InputError(message(f"{path} beside {siblings}", "no such file", "Put it there; all parts are needed."))


def package_missing(package: str, extra: str) -> InputError:
    return InputError(message(f"the package {package}", "none installed", installing(extra)))


def arrays(images: npt.NDArray[Any], labels: npt.NDArray[Any], where: tuple[Path, Path]) -> Arrays:
    """Images [N, H, W] or [N, H, W, C] of bytes, and as many integer labels; where: the file of each."""
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise broken(where[0], "uint8 images [N, H, W] or [N, H, W, C]", f"{images.dtype} {list(images.shape)}")
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise broken(where[1], "integer labels [N]", f"{labels.dtype} {list(labels.shape)}")
    if len(images) != len(labels):
        raise broken(where[1], f"{len(images)} labels, one for each image of {where[0].name},", f"{len(labels)}")
    if not len(labels):
        raise broken(where[0], "images", "none")
    last = images[..., None] if images.ndim == 3 else images
    first = np.array(last.transpose(0, 3, 1, 2), order="C")
    return Arrays(torch.from_numpy(first), torch.from_numpy(labels.astype(np.int64)))


def fingerprint(paths: Iterable[Path]) -> str:
    """As "train_x.npy sha256:6cb72fc6430f, train_y.npy ..."."""
    return ", ".join(f"{readable(path.name)} {_short(path)}" for path in paths)


def readable(name: str) -> str:
    """A file's name as text, which it need not be: bytes that are no UTF-8 are shown by their numbers.

    >>> readable(os.fsdecode(b"caf\\xe9"))
    'caf\\\\xe9'
    """
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _short(path: Path) -> str:
    """The hash of a file; of a large one its size."""
    size = path.stat().st_size
    if size > HASHED:
        return f"{size} bytes"
    return f"sha256:{digest(path, 'sha256')[:12]}"


def digest(path: Path, kind: str) -> str:
    total = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            total.update(piece)
    return total.hexdigest()
