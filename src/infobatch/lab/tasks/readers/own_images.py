"""A user's own images: shape, classes, mean and standard deviation are taken from the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..task import Arrays
from . import class_folders, npy, parquet
from .common import Samples, broken, check_regular
from .decode import Shape, decode, pillow, pixels

SAMPLED = 256
"""How many images give mean and standard deviation if the images are not in memory."""
LARGEST = 64
"""Images with sides up to this many pixels are loaded into memory; larger or differing ones are read on access."""


def read_folder(folder: Path) -> Samples:
    """Load images that are small and of one size into memory; read others on access, at 224 x 224 like ImageNet."""
    train, test, classes = class_folders.list_sets(folder)
    seen = {_header(path) for path in [*train.paths, *test.paths]}
    sizes, modes = {size for size, _ in seen}, {mode for _, mode in seen}
    if len(sizes) > 1 or max(max(size) for size in sizes) > LARGEST:
        return class_folders.read_lazily(folder)
    ((width, height),) = sizes
    return class_folders.load(train, test, (1 if modes <= {"1", "L"} else 3, height, width), classes)


def read_parquet(folder: Path) -> Samples:
    """Read parquet files; all images must have the shape of the first."""
    return parquet.read(folder, parquet.first_shape(folder))


def mean_and_std(part: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Compute mean and standard deviation per channel, with bytes scaled to [0, 1]."""
    inputs: Tensor
    if isinstance(part, Arrays):
        inputs = part.inputs
    else:
        places = np.linspace(0, len(part) - 1, min(SAMPLED, len(part))).astype(int).tolist()
        fixed = part.without_augmentation() if hasattr(part, "without_augmentation") else part
        inputs = torch.stack([fixed[place][0] for place in places])
    counts = [torch.bincount(inputs[:, at].flatten(), minlength=256).double() for at in range(inputs.shape[1])]
    values = torch.arange(256, dtype=torch.float64) / 255  # exact, and needs no copy of the images as floats
    means = [float((count * values).sum() / count.sum()) for count in counts]
    spreads = [
        float((count * (values - mean) ** 2).sum() / count.sum()) ** 0.5
        for count, mean in zip(counts, means, strict=True)
    ]
    return tuple(means), tuple(max(spread, 1 / 255) for spread in spreads)


def peek_npy(folder: Path) -> tuple[Shape, int] | None:
    """Return shape and number of classes without reading the images; None if that fails."""
    try:
        images, labels = npy.values(folder / "train_x.npy"), npy.values(folder / "train_y.npy")
        height, width, channels = (*images.shape[1:], 1)[:3]
        return (channels, height, width), len(np.unique(labels))
    except (ValueError, OSError):
        return None


def peek_folder(folder: Path) -> tuple[Shape, int] | None:
    """Return shape and number of classes from the first image; None if that fails."""
    try:
        train, _, classes = class_folders.list_sets(folder)
        first = train.paths[0]
        height, width = decode(first, first, "L", pixels).shape[1:]
        return (1 if _header(first)[1] in ("1", "L") else 3, height, width), len(classes)
    except (ValueError, OSError):
        return None


def _header(path: Path) -> tuple[tuple[int, int], str]:
    """Return size and mode without decoding the image."""
    library = pillow()
    check_regular(path)
    try:
        with library.open(path) as image:
            return (image.width, image.height), str(image.mode)
    except Exception as error:  # as in decode
        raise broken(path, "a readable image", f"{type(error).__name__}: {error}") from error
