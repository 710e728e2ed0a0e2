"""Images in class folders: train/CLASS/*.jpg and val/CLASS/*.jpg (or test), also with images/ below CLASS.

``read`` loads small images into memory; ``read_lazily`` reads large ones on access.
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

DESCRIPTION = "train/CLASS/*.jpg and val/CLASS/*.jpg (or test/CLASS/*.jpg; png and others too)"
TESTS = ("val", "test")
UNREAD = (".avif", ".gif", ".heic", ".heif", ".jfif", ".jp2", ".tga")
"""Endings of images that are not read; a warning names them if they lie among those that are."""


@dataclass(frozen=True)
class Listing:
    """Image files below ``root`` in a fixed order, and their labels."""

    root: Path
    names: tuple[str, ...]
    labels: tuple[int, ...]

    @property
    def paths(self) -> list[Path]:
        """The files."""
        return [self.root / name for name in self.names]

    @property
    def targets(self) -> Tensor:
        """The labels as a tensor."""
        return torch.tensor(self.labels, dtype=torch.int64)

    def __str__(self) -> str:
        digest = hashlib.sha256("\n".join(self.names).encode("utf-8", "surrogateescape")).hexdigest()
        return f"{self.root.name}: {len(self.names)} images, their names sha256:{digest[:12]}"


class ImageFiles(Dataset[tuple[Tensor, Tensor]]):
    """A data set of (image as bytes [3, 224, 224], label) that reads images on access; ``labels`` holds all labels."""

    def __init__(self, listing: Listing, view: View) -> None:
        self.root, self.view = listing.root, view
        # one array, not many strings: workers share it, while reference counts would make them copy strings
        self.names = np.array([os.fsencode(name) for name in listing.names])
        self.labels = listing.targets

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        path = self.root / os.fsdecode(bytes(self.names[index]))
        return decode(path, path, "RGB", self.view), self.labels[index]

    def without_augmentation(self) -> ImageFiles:
        """Return the same images with a fixed crop: the centre of each."""
        same = ImageFiles.__new__(ImageFiles)
        same.root, same.names, same.labels, same.view = self.root, self.names, self.labels, centre_view
        return same


def is_present(folder: Path) -> bool:
    """True if the folder holds files in this layout."""
    return bool(_folders(folder / "train")) and any((folder / name).is_dir() for name in TESTS)


def read(folder: Path, shape: Shape) -> Samples:
    """Read the samples; raise InputError that names a missing or broken file."""
    train, test, classes = list_sets(folder)
    return load(train, test, shape, classes)


def read_lazily(folder: Path) -> Samples:
    """Return data sets that read and crop each image on access."""
    train, test, classes = list_sets(folder)
    return Samples(ImageFiles(train, random_view), ImageFiles(test, centre_view), f"{train}; {test}", classes)


def load(train: Listing, test: Listing, shape: Shape, classes: tuple[str, ...]) -> Samples:
    """Load listed images into memory; all must have ``shape``."""
    made = [Arrays(stack(listing.paths, shape), listing.targets) for listing in (train, test)]
    return Samples(made[0], made[1], f"{train}; {test}", classes)


def list_sets(folder: Path) -> tuple[Listing, Listing, tuple[str, ...]]:
    """Return the training files, the test files, and the class names in the order of the labels."""
    classes = class_names(folder / "train")
    test = next(folder / name for name in TESTS if (folder / name).is_dir())
    return list_images(folder / "train", classes), list_images(test, classes), tuple(map(readable, classes))


def class_names(root: Path) -> tuple[str, ...]:
    """Return the names of the class folders."""
    return tuple(_folders(root))


def list_images(root: Path, classes: Sequence[str]) -> Listing:
    """List every image in a class folder of ``root``.

    Raises:
        InputError: If there are no images, or a class folder that is not among ``classes``.
    """
    label = {name: place for place, name in enumerate(classes)}
    skipped = _files(root, "", ENDINGS + UNREAD)[0]  # outside of class folders
    names: list[str] = []
    labels: list[int] = []
    for folder in _folders(root):
        if folder not in label:
            expected = f"the class folders of the training set ({len(label)}) in {root}"
            raise InputError(message(expected, repr(folder), "Move it away, or give the class training images."))
        below = f"{folder}/images/" if (root / folder / "images").is_dir() else f"{folder}/"
        inside, special = _files(root, below, ENDINGS)
        skipped += _files(root, below, UNREAD)[0] + special
        if not inside:
            raise InputError(message(f"images in {root / folder}", "none", f"Endings read: {', '.join(ENDINGS)}."))
        names += inside
        labels += [label[folder]] * len(inside)
    if not names:
        remedy = "Images outside of class folders have no labels; sort them into folders first."
        raise InputError(message(f"class folders in {root}", "none", remedy))
    if skipped:
        total = len(names) + len(skipped)
        rule = f"only regular files in class folders that end in {', '.join(ENDINGS)} are read"
        warn(f"skipped {len(skipped)} of {total} images in {root}, for example {readable(skipped[0])}: {rule}")
    return Listing(root, tuple(names), tuple(labels))


def _folders(root: Path) -> list[str]:
    if not root.is_dir():
        return []
    with os.scandir(root) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _files(root: Path, below: str, endings: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return the regular files with these endings, and what is none: pipes, sockets, devices, folders.

    A link to nowhere counts as a file, so that reading it fails and names it.
    """
    regular: list[str] = []
    special: list[str] = []
    with os.scandir(root / below) as entries:
        for entry in entries:
            if entry.name.lower().endswith(endings):
                found = regular if entry.is_file() or not os.path.exists(entry) else special
                found.append(f"{below}{entry.name}")
    return sorted(regular), sorted(special)
