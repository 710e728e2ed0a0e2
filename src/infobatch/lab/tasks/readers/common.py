"""What the readers share: their result, checks that every layout needs, and errors that name the file."""

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
    """What a reader returns."""

    train: Arrays | Dataset[Any]
    test: Arrays | Dataset[Any]
    source: str
    """The files read, with short hashes."""
    classes: tuple[str, ...] = ()
    """Names in the order of the labels; empty if the files do not have them."""


def broken(path: Path | str, expected: str, got: str) -> InputError:
    """Return an error for a file with the wrong content."""
    return InputError(message(f"{expected} in {path}", got, "Nothing was changed; replace that file."))


def absent(path: Path | str, siblings: str) -> InputError:
    """Return an error for a missing file."""
    return InputError(message(f"{path} beside {siblings}", "no such file", "All of them are needed."))


def check_regular(path: Path) -> None:
    """Check that a path is a regular file before it is opened; a missing one is left to ``open``.

    Opening a pipe waits for a writer, and a device may be endless.

    Raises:
        InputError: If it is a pipe, a socket, a device or a folder.
    """
    if path.exists() and not path.is_file():
        remedy = "Pipes, sockets, devices and folders are not read: move it away."
        raise InputError(message(f"a regular file at {path}", "something else", remedy))


def package_missing(package: str, extra: str) -> InputError:
    """Return an error for a package that is not installed."""
    return InputError(message(f"the package {package}", "none installed", installing(extra)))


def arrays(images: npt.NDArray[Any], labels: npt.NDArray[Any], files: tuple[Path, Path]) -> Arrays:
    """Check images and labels and convert them to ``Arrays``.

    Args:
        images: uint8 [N, H, W] or [N, H, W, C].
        labels: Integers [N].
        files: The file of the images and that of the labels, for error messages.

    Raises:
        InputError: If types, shapes or numbers do not fit.
    """
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise broken(files[0], "uint8 images [N, H, W] or [N, H, W, C]", f"{images.dtype} {list(images.shape)}")
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise broken(files[1], "integer labels [N]", f"{labels.dtype} {list(labels.shape)}")
    if len(images) != len(labels):
        raise broken(files[1], f"{len(images)} labels, one for each image of {files[0].name},", f"{len(labels)}")
    if not len(labels):
        raise broken(files[0], "images", "none")
    last = images[..., None] if images.ndim == 3 else images
    first = np.array(last.transpose(0, 3, 1, 2), order="C")
    return Arrays(torch.from_numpy(first), torch.from_numpy(labels.astype(np.int64)))


def fingerprint(paths: Iterable[Path]) -> str:
    """Name files with short hashes, as in "train_x.npy sha256:6cb72fc6430f, train_y.npy ..."."""
    return ", ".join(f"{readable(path.name)} {_short(path)}" for path in paths)


def readable(name: str) -> str:
    """Return a file's name as text; bytes that are not UTF-8 are escaped.

    >>> readable(os.fsdecode(b"caf\\xe9"))
    'caf\\\\xe9'
    """
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _short(path: Path) -> str:
    """Return the hash of a file, or the size of a large one."""
    size = path.stat().st_size
    if size > HASHED:
        return f"{size} bytes"
    return f"sha256:{digest(path, 'sha256')[:12]}"


def digest(path: Path, kind: str) -> str:
    """Hash a file."""
    check_regular(path)
    total = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            total.update(piece)
    return total.hexdigest()
