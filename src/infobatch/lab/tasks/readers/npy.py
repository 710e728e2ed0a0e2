"""Four npy files: train_x, train_y, test_x, test_y."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..task import Arrays
from .common import Samples, absent, arrays, broken, check_regular, fingerprint

DESCRIPTION = (
    "train_x.npy, train_y.npy, test_x.npy, test_y.npy (images as uint8 [N, H, W, C] or [N, H, W], labels as integers)"
)
PARTS = ("train_x", "train_y", "test_x", "test_y")


def is_present(folder: Path) -> bool:
    """True if the folder holds files in this layout."""
    return any((folder / f"{part}.npy").is_file() for part in PARTS)


def read(folder: Path) -> Samples:
    """Read the samples; raise InputError that names a missing or broken file."""
    paths = [folder / f"{part}.npy" for part in PARTS]
    for path in paths:
        if not path.is_file():
            raise absent(path, "the other npy files")
    return Samples(_pair(paths[0], paths[1]), _pair(paths[2], paths[3]), fingerprint(paths))


def values(path: Path) -> npt.NDArray[Any]:
    """Map the array of one file, so that a header that promises more than the file holds allocates nothing."""
    check_regular(path)
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy can raise anything for a damaged header
        raise broken(path, "a complete npy array of plain numbers", str(error) or type(error).__name__) from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise broken(path, "one npy array", "an archive of several")
    return array


def _pair(images: Path, labels: Path) -> Arrays:
    return arrays(values(images), values(labels), (images, labels))
