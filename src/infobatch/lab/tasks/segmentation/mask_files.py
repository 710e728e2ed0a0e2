"""Folders of images and masks of the same names: ADE20K as published, and images/train, masks/train, images/val, ..."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ....errors import InputError, message
from ..readers.class_names import ADE20K
from ..readers.common import Samples, broken, check_regular, readable
from ..readers.decode import ENDINGS, pillow, pixels
from ..task import Arrays
from .crops import IGNORED

if TYPE_CHECKING:
    from PIL.Image import Image

ADE20K_DESCRIPTION = (
    "images/training/*.jpg, annotations/training/*.png, images/validation/*.jpg and annotations/validation/*.png "
    "(as in ADEChallengeData2016; 0 does not count)"
)
PLAIN_DESCRIPTION = (
    "images/train, masks/train, images/val and masks/val with files of the same names (masks as png; 255 does not "
    "count), and classes.txt with a name per line or without it"
)
IMAGES, MASKS = ("images",), ("masks", "annotations", "labels")
TRAIN, TEST = ("train", "training"), ("val", "validation", "test")

SIDE = 512
"""The most pixels of the shorter side of an image; larger images are scaled down."""
TALLEST = 4
"""How many times as long the longer side of a test image may be before it is scaled down further."""
ROOM = 1.5
"""Sides of the square that training images of several sizes lie in, as a multiple of their shorter side."""
IN_MEMORY = 1 << 28
"""Images of one size are loaded into memory if they take at most this many bytes."""
FILL = (124, 116, 104)
"""What surrounds images in their square: the mean, which is near 0 after normalization."""


@dataclass(frozen=True)
class Folders:
    """Images and masks of one part of a set."""

    images: Path
    masks: Path


class Pairs:
    """Files of images and of their masks, in the order of their names.

    Raises:
        InputError: If there are none, or an image has no mask, or a mask no image.
    """

    def __init__(self, folders: Folders) -> None:
        self.folders = folders
        images, masks = _by_stem(folders.images), _by_stem(folders.masks)
        for have, lack, what, where in (
            (images, masks, "mask", folders.masks),
            (masks, images, "image", folders.images),
        ):
            missing = [have[stem] for stem in sorted(have) if stem not in lack]
            if missing:
                got = f"none for {len(missing)} of {len(have)}, such as {readable(missing[0])}"
                other = "image" if what == "mask" else "mask"
                remedy = (
                    "Files belong together by their names without the ending. Add what is missing, or move it away."
                )
                raise InputError(message(f"a {what} in {where} for each {other}", got, remedy))
        if not images:
            remedy = f"Endings read: {', '.join(ENDINGS)}."
            raise InputError(message(f"images in {folders.images}", "none", remedy))
        stems = sorted(images)
        # arrays, not many strings: workers share them, while reference counts would make them copy strings
        self.images = np.array([os.fsencode(images[stem]) for stem in stems])
        self.masks = np.array([os.fsencode(masks[stem]) for stem in stems])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Path, Path]:
        image, mask = os.fsdecode(bytes(self.images[index])), os.fsdecode(bytes(self.masks[index]))
        return self.folders.images / image, self.folders.masks / mask

    def __iter__(self) -> Any:
        return (self[index] for index in range(len(self)))

    def __str__(self) -> str:
        digest = hashlib.sha256(b"\n".join([*map(bytes, self.images), *map(bytes, self.masks)])).hexdigest()
        return f"{self.folders.images.name}: {len(self)} images and masks, their names sha256:{digest[:12]}"


class MaskedImages(Dataset[tuple[Tensor, Tensor]]):
    """A data set of (image as bytes [3, H, W], mask as bytes [H, W]) that reads both files on access.

    Args:
        pairs: The files.
        table: The class of each label in the files; see ``label_table``.
        side: The length that the shorter side of an image is scaled to.
        canvas: Height and width that images are brought to, scaled down and surrounded with pixels that do not count;
            None for images of their own sizes, with masks as large as in their files.
    """

    def __init__(
        self, pairs: Pairs, table: npt.NDArray[np.int16], side: int, canvas: tuple[int, int] | None = None
    ) -> None:
        self.pairs, self.table, self.side, self.canvas = pairs, table, side, canvas

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        path, mask_path = self.pairs[index]
        image, labels = _open(path).convert("RGB"), read_mask(mask_path, self.table)
        if labels.shape != (image.height, image.width):
            got = f"{labels.shape[1]} x {labels.shape[0]}"
            raise broken(mask_path, f"a mask of {image.width} x {image.height} pixels, as its image has,", got)
        shorter = self.side / min(image.size)
        if self.canvas is None:
            scale = min(shorter, TALLEST * self.side / max(image.size))
            return pixels(_scaled(image, scale, "BILINEAR")), torch.from_numpy(labels)
        height, width = self.canvas
        scale = min(shorter, height / image.height, width / image.width)
        image = _scaled(image, scale, "BILINEAR")
        mask = _scaled(pillow().fromarray(labels), scale, "NEAREST")
        framed = pillow().new("RGB", (width, height), FILL)
        framed.paste(image)
        framed_mask = pillow().new("L", (width, height), IGNORED)
        framed_mask.paste(mask)
        return pixels(framed), pixels(framed_mask)[0]


# ---- layouts ---------------------------------------------------------------------------------------------


def has_ade20k(folder: Path) -> bool:
    """True if the folder holds ADE20K."""
    return all((folder / kind / part).is_dir() for kind in ("images", "annotations") for part in (TRAIN[1], TEST[1]))


def read_ade20k(folder: Path) -> Samples:
    """List ADE20K's files; each is read on access, scaled so that its shorter side has 512 pixels.

    Raises:
        InputError: If an image or a mask is missing.
    """
    train, test = (
        Pairs(Folders(folder / "images" / part, folder / "annotations" / part)) for part in (TRAIN[1], TEST[1])
    )
    table = label_table(len(ADE20K), first=1)
    room = round(ROOM * SIDE)
    return Samples(
        MaskedImages(train, table, SIDE, (room, room)), MaskedImages(test, table, SIDE), f"{train}; {test}", ADE20K
    )


def has_plain(folder: Path) -> bool:
    """True if the folder holds images and masks of both parts."""
    return _folders(folder, TRAIN) is not None and _folders(folder, TEST) is not None


def read_plain(folder: Path) -> Samples:
    """Read images and masks: into memory if all are small and of one size, otherwise on access.

    Raises:
        InputError: If an image or a mask is missing or broken, or classes.txt is.
    """
    found = _folders(folder, TRAIN), _folders(folder, TEST)
    assert found[0] is not None
    assert found[1] is not None
    train, test = Pairs(found[0]), Pairs(found[1])
    classes = _class_names(folder, train)
    table = label_table(len(classes))
    sizes = _sizes(train), _sizes(test)
    side = min(SIDE, round(median(min(size) for size in sizes[0])))
    each = set(sizes[0])
    room = round(ROOM * side)
    width, height = next(iter(each)) if len(each) == 1 else (room, room)
    scale = min(1.0, side / min(width, height))
    canvas = round(height * scale), round(width * scale)
    sets = MaskedImages(train, table, side, canvas), MaskedImages(test, table, side)
    source = f"{train}; {test}"
    is_small = 4 * width * height * (len(train) + len(test)) <= IN_MEMORY
    if is_small and scale == 1 and each == set(sizes[1]) and len(each) == 1:
        return Samples(_in_memory(sets[0]), _in_memory(sets[1]), source, classes)
    return Samples(*sets, source, classes)


def label_table(classes: int, first: int = 0) -> npt.NDArray[np.int16]:
    """Return the class of each label of a mask, 255 for labels that do not count and -1 for those that are none.

    Args:
        classes: The number of classes.
        first: The label of the first class; lower ones do not count.

    >>> label_table(150, first=1)[[0, 1, 150, 151, 255]].tolist()
    [255, 0, 149, -1, 255]
    """
    table = np.full(256, -1, dtype=np.int16)
    table[first : first + classes] = np.arange(classes)
    table[:first] = table[IGNORED] = IGNORED
    return table


def read_mask(path: Path, table: npt.NDArray[np.int16]) -> npt.NDArray[np.uint8]:
    """Read the classes of an image's pixels, [H, W].

    Raises:
        InputError: If the file is broken, has colours instead of labels, or has a label that is none.
    """
    labels = _labels(path)
    found: npt.NDArray[np.int16] = table[labels]
    if (found < 0).any():
        wrong = np.unique(labels[found < 0])
        allowed = np.flatnonzero((table >= 0) & (table != IGNORED))
        raise broken(
            path,
            f"labels from {allowed.min()} to {allowed.max()}, or {IGNORED} for pixels that do not count,",
            f"{int(wrong[0])} in {int((found < 0).sum())} pixels",
        )
    return found.astype(np.uint8)


# ---- parts -----------------------------------------------------------------------------------------------


def _folders(root: Path, parts: Iterable[str]) -> Folders | None:
    for part in parts:
        images = [root / name / part for name in IMAGES if (root / name / part).is_dir()]
        masks = [root / name / part for name in MASKS if (root / name / part).is_dir()]
        if images and masks:
            return Folders(images[0], masks[0])
    return None


def _by_stem(folder: Path) -> dict[str, str]:
    """Return the names of images in a folder, by their names without the ending."""
    found: dict[str, str] = {}
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.name.lower().endswith(ENDINGS))
    for name in names:
        stem = os.path.splitext(name)[0]
        if name.startswith("."):
            continue
        if stem in found:
            got = f"{readable(found[stem])} and {readable(name)}"
            raise InputError(message(f"one file for each name in {folder}", got, "Move one of them away."))
        found[stem] = name
    return found


def _class_names(folder: Path, train: Pairs) -> tuple[str, ...]:
    """Return the names of classes.txt; without it, a number for each label up to the largest in the training masks."""
    path = folder / "classes.txt"
    if path.exists():
        check_regular(path)
        try:
            names = tuple(line.strip() for line in path.read_text("utf-8").splitlines() if line.strip())
        except UnicodeDecodeError as error:
            raise broken(path, "UTF-8 text", str(error)) from error
        if not 2 <= len(names) <= IGNORED or len(set(names)) < len(names):
            got = f"{len(names)} lines, {len(set(names))} of them different"
            raise broken(path, f"2 to {IGNORED} different names of classes, one per line,", got)
        return names
    largest = max(_each(_largest_label, [mask for _, mask in train]))
    if largest < 1:
        remedy = f"Masks hold numbers of classes, and {IGNORED} for pixels that do not count."
        raise InputError(message(f"at least two classes in {train.folders.masks}", f"labels up to {largest}", remedy))
    return tuple(map(str, range(largest + 1)))


def _largest_label(path: Path) -> int:
    labels = _labels(path)
    valid = labels[labels != IGNORED]
    return int(valid.max()) if valid.size else -1


def _labels(path: Path) -> npt.NDArray[np.uint8]:
    image = _open(path)
    if image.mode not in ("L", "P", "1"):
        expected = "a mask with one number of at most 8 bits per pixel (grey or with a palette)"
        raise broken(path, expected, f"an image of mode {image.mode}")
    return np.array(image, dtype=np.uint8)  # of a palette the numbers, not the colours


def _open(path: Path) -> Image:
    """Read an image in full."""
    library = pillow()
    check_regular(path)
    try:
        with library.open(path) as image:
            image.load()
            whole: Image = image.copy()
            return whole
    except Exception as error:  # Pillow's decoders can raise anything for damaged bytes
        raise broken(path, "a readable image", f"{type(error).__name__}: {error}") from error


def _scaled(image: Image, scale: float, how: str) -> Image:
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    return image if size == image.size else image.resize(size, pillow().Resampling[how])


def _sizes(pairs: Pairs) -> list[tuple[int, int]]:
    """Return width and height of each image, from its first bytes."""

    def size(path: Path) -> tuple[int, int]:
        check_regular(path)
        try:
            with pillow().open(path) as image:
                return image.width, image.height
        except Exception as error:  # as in _open
            raise broken(path, "a readable image", f"{type(error).__name__}: {error}") from error

    return _each(size, [image for image, _ in pairs])


def _each(function: Callable[[Path], Any], paths: list[Path]) -> list[Any]:
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return list(pool.map(function, paths))


def _in_memory(samples: MaskedImages) -> Arrays:
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        images, masks = zip(*pool.map(samples.__getitem__, range(len(samples))), strict=True)
    return Arrays(torch.stack(images), torch.stack(masks))
