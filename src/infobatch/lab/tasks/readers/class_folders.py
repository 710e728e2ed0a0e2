"""Images in class folders: train/CLASS/*.jpg and val/CLASS/*.jpg (or test), also with images/ below CLASS.

``read`` brings small images into memory; ``lazy`` reads large ones when they are asked for.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ....errors import InputError, message, warn
from ..task import Arrays
from .common import Samples, readable
from .decode import ENDINGS, Shape, View, centre_view, decode, random_view, stack

WORDS = "train/CLASS/*.jpg and val/CLASS/*.jpg (or test/CLASS/*.jpg; png and others too)"
TESTS = ("val", "test")
UNREAD = (".avif", ".gif", ".heic", ".heif", ".jfif", ".jp2", ".tga")
"""Endings of images that are not read, and told where they lie among those that are."""


@dataclass(frozen=True)
class Listing:
    """Files below ``root`` in a fixed order, and the label of each."""

    root: Path
    names: tuple[str, ...]
    labels: tuple[int, ...]

    @property
    def paths(self) -> list[Path]:
        return [self.root / name for name in self.names]

    @property
    def targets(self) -> Tensor:
        return torch.tensor(self.labels, dtype=torch.int64)

    def __str__(self) -> str:
        digest = hashlib.sha256("\n".join(self.names).encode("utf-8", "surrogateescape")).hexdigest()
        return f"{self.root.name}: {len(self.names)} images, their names sha256:{digest[:12]}"


class ImageFiles(Dataset[tuple[Tensor, Tensor]]):
    """(image as bytes [3, 224, 224], label), each read when asked for. ``labels`` has all of them."""

    def __init__(self, listing: Listing, view: View) -> None:
        self.root, self.view = listing.root, view
        # one array rather than many strings: workers share its memory, while strings are copied as they are counted
        self.names = np.array([os.fsencode(name) for name in listing.names])
        self.labels = listing.targets

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        path = self.root / os.fsdecode(bytes(self.names[index]))
        return decode(path, path, "RGB", self.view), self.labels[index]

    def plain(self) -> ImageFiles:
        """The same images without chance: the centre of each."""
        same = ImageFiles.__new__(ImageFiles)
        same.root, same.names, same.labels, same.view = self.root, self.names, self.labels, centre_view
        return same


def found(folder: Path) -> bool:
    return bool(_folders(folder / "train")) and any((folder / name).is_dir() for name in TESTS)


def read(folder: Path, shape: Shape) -> Samples:
    train, test, classes = lists(folder)
    return in_memory(train, test, shape, classes)


def lazy(folder: Path) -> Samples:
    train, test, classes = lists(folder)
    return Samples(ImageFiles(train, random_view), ImageFiles(test, centre_view), f"{train}; {test}", classes)


def in_memory(train: Listing, test: Listing, shape: Shape, classes: tuple[str, ...]) -> Samples:
    made = [Arrays(stack(listing.paths, shape), listing.targets) for listing in (train, test)]
    return Samples(made[0], made[1], f"{train}; {test}", classes)


def lists(folder: Path) -> tuple[Listing, Listing, tuple[str, ...]]:
    """Training files, test files, and the names of the class folders, as text, in the order of their labels."""
    classes = class_names(folder / "train")
    test = next(folder / name for name in TESTS if (folder / name).is_dir())
    return listing(folder / "train", classes), listing(test, classes), tuple(map(readable, classes))


def class_names(root: Path) -> tuple[str, ...]:
    return tuple(_folders(root))


def listing(root: Path, classes: Sequence[str]) -> Listing:
    """Every image below a class folder of ``root``; classes not among ``classes`` are an error."""
    label = {name: place for place, name in enumerate(classes)}
    left_out = [name for name in _files(root, "", ENDINGS + UNREAD) if (root / name).is_file()]  # of no class
    names: list[str] = []
    labels: list[int] = []
    for folder in _folders(root):
        if folder not in label:
            expected = f"the class folders of the training set ({len(label)}) in {root}"
            raise InputError(message(expected, repr(folder), "Move it away, or give the class training images."))
        below = f"{folder}/images/" if (root / folder / "images").is_dir() else f"{folder}/"
        inside = _files(root, below, ENDINGS)
        left_out += _files(root, below, UNREAD)
        if not inside:
            raise InputError(message(f"images in {root / folder}", "none", f"Endings read: {', '.join(ENDINGS)}."))
        names += inside
        labels += [label[folder]] * len(inside)
    if not names:
        remedy = "Images that lie there without class folders have no labels; sort them into folders first."
        raise InputError(message(f"class folders in {root}", "none", remedy))
    if left_out:
        every, rule = len(names) + len(left_out), f"read are those in class folders that end in {', '.join(ENDINGS)}"
        warn(f"left out: {len(left_out)} of {every} images in {root}, as {readable(left_out[0])}; {rule}")
    return Listing(root, tuple(names), tuple(labels))


def _folders(root: Path) -> list[str]:
    if not root.is_dir():
        return []
    with os.scandir(root) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _files(root: Path, below: str, endings: tuple[str, ...]) -> list[str]:
    with os.scandir(root / below) as entries:
        return sorted(f"{below}{entry.name}" for entry in entries if entry.name.lower().endswith(endings))
