"""Images of a person's own: what a set's name would tell (shape, classes, mean, spread) is taken from the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..task import Arrays
from . import class_folders as folders
from . import npy, parquet
from .common import Samples, broken
from .decode import Shape, decode, pillow, pixels

LOOKED_AT = 256
"""How many images decide mean and spread where they are too large for memory."""
LARGEST = 64
"""Sides up to so many pixels are kept in memory; larger images, or such of several sizes, are read when asked for."""


def read_folder(folder: Path) -> Samples:
    """In memory where all are small and of one size; else as ImageNet is read, at 224 x 224."""
    train, test, classes = folders.lists(folder)
    seen = {_header(path) for path in [*train.paths, *test.paths]}
    sizes, modes = {size for size, _ in seen}, {mode for _, mode in seen}
    if len(sizes) > 1 or max(max(size) for size in sizes) > LARGEST:
        return folders.lazy(folder)
    ((width, height),) = sizes
    return folders.in_memory(train, test, (1 if modes <= {"1", "L"} else 3, height, width), classes)


def read_parquet(folder: Path) -> Samples:
    return parquet.read(folder, parquet.first_shape(folder))


def mean_and_std(part: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of each channel, with bytes as 0 to 1."""
    inputs: Tensor
    if isinstance(part, Arrays):
        inputs = part.inputs
    else:
        every = np.linspace(0, len(part) - 1, min(LOOKED_AT, len(part))).astype(int).tolist()
        same = part.plain() if hasattr(part, "plain") else part  # without chance
        inputs = torch.stack([same[place][0] for place in every])
    counts = [torch.bincount(inputs[:, at].flatten(), minlength=256).double() for at in range(inputs.shape[1])]
    values = torch.arange(256, dtype=torch.float64) / 255  # exact, and without a copy of all images as floats
    means = [float((count * values).sum() / count.sum()) for count in counts]
    spreads = [
        float((count * (values - mean) ** 2).sum() / count.sum()) ** 0.5
        for count, mean in zip(counts, means, strict=True)
    ]
    return tuple(means), tuple(max(spread, 1 / 255) for spread in spreads)


def peek_npy(folder: Path) -> tuple[Shape, int] | None:
    """Shape and number of classes, without reading the images; None where that cannot be told."""
    try:
        images, labels = npy.values(folder / "train_x.npy"), npy.values(folder / "train_y.npy")
        height, width, channels = (*images.shape[1:], 1)[:3]
        return (channels, height, width), len(np.unique(labels))
    except (ValueError, OSError):
        return None


def peek_folder(folder: Path) -> tuple[Shape, int] | None:
    try:
        train, _, classes = folders.lists(folder)
        first = train.paths[0]
        height, width = decode(first, first, "L", pixels).shape[1:]
        return (1 if _header(first)[1] in ("1", "L") else 3, height, width), len(classes)
    except (ValueError, OSError):
        return None


def _header(path: Path) -> tuple[tuple[int, int], str]:
    """Size and mode, without decoding the image."""
    library = pillow()
    try:
        with library.open(path) as image:
            return (image.width, image.height), str(image.mode)
    except Exception as error:  # as in decode
        raise broken(path, "a readable image", f"{type(error).__name__}: {error}") from error
