"""Decode images (PNG, JPEG, ...) to bytes [C, H, W], with Pillow."""

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

from .common import broken, check_regular, package_missing

if TYPE_CHECKING:
    from PIL.Image import Image

View = Callable[["Image"], Tensor]
Shape = tuple[int, int, int]
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")


def pillow() -> Any:
    """Return Pillow's Image module; raise InputError if Pillow is not installed."""
    try:
        from PIL import Image
    except ImportError as error:
        raise package_missing("Pillow", "lab") from error
    return Image


def decode(file: Path | bytes, name: Path | str, mode: str, view: View) -> Tensor:
    """Decode one image.

    Args:
        file: A path, or the encoded bytes.
        name: What an error calls it.
        mode: "L" or "RGB".
        view: Turns the image into a tensor.

    Raises:
        InputError: If it cannot be decoded, or is no regular file.
    """
    library = pillow()
    if isinstance(file, Path):
        check_regular(file)
    try:
        with library.open(io.BytesIO(file) if isinstance(file, bytes) else file) as image:
            return view(image.convert(mode))
    except Exception as error:  # Pillow's decoders can raise anything for damaged bytes
        raise broken(name, "a readable image", f"{type(error).__name__}: {error}") from error


def decode_exact(file: Path | bytes, name: Path | str, shape: Shape) -> Tensor:
    """Decode one image that must have ``shape`` [C, H, W], with one channel or three."""
    image = decode(file, name, "L" if shape[0] == 1 else "RGB", pixels)
    if image.shape != shape:
        size = f"{image.shape[2]} x {image.shape[1]}"
        raise broken(name, f"an image of {shape[2]} x {shape[1]} pixels", size)
    return image


def stack(files: Sequence[Path], shape: Shape) -> Tensor:
    """Decode files into one tensor. Pillow releases Python's lock while it decodes, so threads help."""
    out = torch.empty((len(files), *shape), dtype=torch.uint8)

    def store(place: int) -> None:
        out[place] = decode_exact(files[place], files[place], shape)

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for _ in pool.map(store, range(len(files))):
            pass
    return out


def pixels(image: Image) -> Tensor:
    """Convert an image to a tensor [C, H, W]."""
    array = np.array(image)
    return torch.from_numpy(array).reshape(image.height, image.width, -1).permute(2, 0, 1).contiguous()


def random_view(image: Image, size: int = 224) -> Tensor:
    """Crop at random (8 to 100 % of the area, sides 3:4 to 4:3), scale to ``size`` x ``size``, flip half of the time.

    Draws from torch's generator, which differs between a loader's workers and epochs.
    """
    left, top, width, height = _random_box(image.width, image.height)
    box = (left, top, left + width, top + height)
    view = pixels(image.resize((size, size), pillow().Resampling.BILINEAR, box=box))
    return view.flip(2) if torch.rand(()).item() < 0.5 else view


def centre_view(image: Image, size: int = 224, edge: int = 256) -> Tensor:
    """Scale the shorter side to ``edge`` pixels and crop the centre."""
    scale = edge / min(image.width, image.height)
    width, height = (max(edge, int(side * scale)) for side in (image.width, image.height))
    left, top = round((width - size) / 2), round((height - size) / 2)
    small = image.resize((width, height), pillow().Resampling.BILINEAR)
    return pixels(small.crop((left, top, left + size, top + size)))


def _random_box(width: int, height: int) -> tuple[int, int, int, int]:
    """Draw left, top, width and height of a crop; the largest central one if ten draws do not fit."""
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
