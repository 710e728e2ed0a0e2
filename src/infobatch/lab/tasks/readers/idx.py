"""The four idx files of MNIST and Fashion-MNIST, plain or gzipped.

Bytes 0, 0, 8 (the values are bytes) and the number of dimensions; each dimension as big-endian uint32; the values.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO, cast

import numpy as np
import numpy.typing as npt

from ..task import Arrays
from .common import Samples, absent, arrays, broken, fingerprint

DESCRIPTION = (
    "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte, or each as .gz"
)
PARTS = ("train-images", "train-labels", "t10k-images", "t10k-labels")
LIMIT = 1 << 32
"""A header that promises more bytes than this is broken."""


def is_present(folder: Path) -> bool:
    """True if the folder holds files in this layout."""
    return any(_path(folder, part) for part in PARTS)


def read(folder: Path) -> Samples:
    """Read the samples; raise InputError that names a missing or broken file."""
    paths = []
    for part in PARTS:
        path = _path(folder, part)
        if path is None:
            raise absent(folder / _names(part)[0], "the other idx files")
        paths.append(path)
    return Samples(_pair(paths[0], paths[1]), _pair(paths[2], paths[3]), fingerprint(paths))


def values(path: Path) -> npt.NDArray[np.uint8]:
    """Read the array of one file."""
    try:
        with _opened(path) as file:
            return _values(file, path)
    except (EOFError, OSError, zlib.error) as error:
        raise broken(path, "a complete idx file", str(error) or type(error).__name__) from error


def _opened(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _values(file: IO[bytes], path: Path) -> npt.NDArray[np.uint8]:
    magic = file.read(4)
    if len(magic) < 4 or magic[:3] != b"\0\0\x08" or not 1 <= magic[3] <= 4:
        raise broken(path, "an idx file of bytes (it begins with 00 00 08)", magic.hex(" ") or "nothing")
    sizes = file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise broken(path, f"{magic[3]} sizes after the first four bytes", "the end of the file")
    shape = struct.unpack(f">{magic[3]}I", sizes)
    count = math.prod(shape)
    body = file.read(min(count, LIMIT) + 1)
    if len(body) != count:
        raise broken(path, f"{count} values (its header says {list(shape)})", _amount(len(body), count))
    return np.frombuffer(body, np.uint8).reshape(shape)


def _amount(got: int, count: int) -> str:
    return f"{got}, so it is truncated" if got < count else "more"


def _pair(images: Path, labels: Path) -> Arrays:
    return arrays(values(images), values(labels), (images, labels))


def _names(part: str) -> list[str]:
    """Both spellings in use, each plain and gzipped."""
    dimensions = 3 if part.endswith("images") else 1
    plain = [f"{part}{mark}idx{dimensions}-ubyte" for mark in "-."]
    return [*plain, *(f"{name}.gz" for name in plain)]


def _path(folder: Path, part: str) -> Path | None:
    return next((folder / name for name in _names(part) if (folder / name).is_file()), None)
