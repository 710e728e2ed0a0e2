"""Small folders of images and masks, in both layouts that the lab reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

Size = tuple[int, int]


def pair(images: Path, masks: Path, name: str, size: Size, labels: Sequence[int], ending: str = "jpg") -> np.ndarray:
    """Write an image, and a mask of vertical stripes with these labels; the image is as grey as the label."""
    width, height = size
    mask = np.asarray(labels, dtype=np.uint8)[np.arange(width) * len(labels) // width][None].repeat(height, 0)
    for folder in (images, masks):
        folder.mkdir(parents=True, exist_ok=True)
    grey = (60 + 40 * (mask % 4)).astype(np.uint8)
    Image.fromarray(np.stack([grey] * 3, 2)).save(images / f"{name}.{ending}")
    Image.fromarray(mask).save(masks / f"{name}.png")
    return mask


def ade20k(root: Path, train: int = 4, test: int = 2) -> None:
    """ADE20K's layout, with images of several sizes and masks from 0 (does not count) to 150."""
    for part, count in (("training", train), ("validation", test)):
        for at in range(count):
            folders = root / "images" / part, root / "annotations" / part
            pair(*folders, f"ADE_{part}_{at:08}", (60 + 4 * at, 40), (0, 1, 2, 150))


def plain(root: Path, train: int = 12, test: int = 4, size: Size = (24, 16), **names: str) -> None:
    """The plain layout, with three classes and pixels that do not count."""
    masks, val = names.get("masks", "masks"), names.get("val", "val")
    for part, count in (("train", train), (val, test)):
        for at in range(count):
            folders = root / "images" / part, root / masks / part
            pair(*folders, str(at), size, ((0, 1, 2, 255), (2, 0, 1), (0, 1))[at % 3], "png")
