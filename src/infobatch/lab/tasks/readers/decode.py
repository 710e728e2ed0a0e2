"""Encoded images (PNG, JPEG, ...) to bytes [C, H, W], with Pillow."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .common import broken, package_missing

if TYPE_CHECKING:
    from PIL.Image import Image

View = Callable[["Image"], Tensor]
Shape = tuple[int, int, int]
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")


def pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise package_missing("Pillow", "lab") from error
    return Image


def decode(file: Path | bytes, name: Path | str, mode: str, view: View) -> Tensor:
    """``view`` of one image in ``mode`` ("L" or "RGB"); ``name`` is what an error calls it."""
    library = pillow()
    try:
        with library.open(io.BytesIO(file) if isinstance(file, bytes) else file) as image:
            return view(image.convert(mode))
    except Exception as error:  # whatever Pillow's many decoders make of bytes that are damaged
        raise broken(name, "a readable image", f"{type(error).__name__}: {error}") from error


def whole(file: Path | bytes, name: Path | str, shape: Shape) -> Tensor:
    """One image that must have ``shape`` [C, H, W], one channel or three."""
    image = decode(file, name, "L" if shape[0] == 1 else "RGB", pixels)
    if image.shape != shape:
        size = f"{image.shape[2]} x {image.shape[1]}"
        raise broken(name, f"an image of {shape[2]} x {shape[1]} pixels", size)
    return image


def stack(files: Sequence[Path], shape: Shape) -> Tensor:
    """All images of ``files`` in one tensor. Pillow decodes outside of Python's lock, so threads help."""
    out = torch.empty((len(files), *shape), dtype=torch.uint8)

    def put(place: int) -> None:
        out[place] = whole(files[place], files[place], shape)

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for _ in pool.map(put, range(len(files))):
            pass
    return out


def pixels(image: Image) -> Tensor:
    array = np.array(image)
    return torch.from_numpy(array).reshape(image.height, image.width, -1).permute(2, 0, 1).contiguous()


def random_view(image: Image, size: int = 224) -> Tensor:
    """A random part (8 to 100 % of the area, sides 3:4 to 4:3) at ``size`` x ``size``, flipped half of the time.

    Chance is torch's, which differs between a loader's workers and epochs.
    """
    left, top, width, height = _part(image.width, image.height)
    box = (left, top, left + width, top + height)
    view = pixels(image.resize((size, size), pillow().Resampling.BILINEAR, box=box))
    return view.flip(2) if torch.rand(()).item() < 0.5 else view


def centre_view(image: Image, size: int = 224, edge: int = 256) -> Tensor:
    """The centre of the image once its shorter side has ``edge`` pixels."""
    scale = edge / min(image.width, image.height)
    width, height = (max(edge, int(side * scale)) for side in (image.width, image.height))
    left, top = round((width - size) / 2), round((height - size) / 2)
    small = image.resize((width, height), pillow().Resampling.BILINEAR)
    return pixels(small.crop((left, top, left + size, top + size)))


def _part(width: int, height: int) -> tuple[int, int, int, int]:
    """Left, top, width and height of a random part; the largest central one where ten draws do not fit."""
    for _ in range(10):
        share, tilt = torch.rand(2).tolist()
        area = width * height * (0.08 + 0.92 * share)
        ratio = math.exp((2 * tilt - 1) * math.log(4 / 3))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            left, top = (int(torch.randint(free + 1, ()).item()) for free in (width - wide, height - high))
            return left, top, wide, high
    wide, high = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    return (width - wide) // 2, (height - high) // 2, wide, high
