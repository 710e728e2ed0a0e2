"""Tiny-ImageNet as published: train/WNID/images/*.JPEG, val/images/*.JPEG and val/val_annotations.txt."""

from __future__ import annotations

from pathlib import Path

from . import class_folders
from .common import Samples, broken, readable
from .decode import Shape

DESCRIPTION = "train/WNID/images/*.JPEG, val/images/*.JPEG and val/val_annotations.txt (as in tiny-imagenet-200)"


def is_present(folder: Path) -> bool:
    """True if the folder holds files in this layout."""
    return (folder / "train").is_dir() and (folder / "val" / "val_annotations.txt").is_file() and _flat(folder)


def read(folder: Path, shape: Shape) -> Samples:
    """Read the samples; raise InputError that names a missing or broken file."""
    wnids = class_folders.class_names(folder / "train")
    train = class_folders.list_images(folder / "train", wnids)
    return class_folders.load(
        train, list_annotated(folder / "val", wnids), shape, class_words(folder / "words.txt", wnids)
    )


def list_annotated(root: Path, wnids: tuple[str, ...]) -> class_folders.Listing:
    """List the images in val_annotations.txt with their labels; a line is FILE, WNID and a box, separated by tabs."""
    path = root / "val_annotations.txt"
    label = {wnid: place for place, wnid in enumerate(wnids)}
    names, labels = [], []
    for number, line in enumerate(_text(path).splitlines(), 1):
        parts = line.split("\t")
        if len(parts) < 2 or parts[1] not in label or "/" in parts[0]:
            raise broken(path, "a file name, a tab and a class of the training set", f"{line[:80]!r} in line {number}")
        names.append(f"images/{parts[0]}")
        labels.append(label[parts[1]])
    if not names:
        raise broken(path, "a line for each image", "none")
    return class_folders.Listing(root, tuple(names), tuple(labels))


def class_words(path: Path, wnids: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first word for each class; the wnid if it has none, and both if two classes share a word."""
    if not path.is_file():
        return tuple(map(readable, wnids))
    known = dict(line.split("\t", 1) for line in _text(path).splitlines() if "\t" in line)
    first = [known.get(wnid, readable(wnid)).split(",")[0].strip() for wnid in wnids]
    return tuple(f"{word} ({wnid})" if first.count(word) > 1 else word for word, wnid in zip(first, wnids, strict=True))


def _flat(folder: Path) -> bool:
    """False if val/ was sorted into class folders; the annotations may still be there."""
    return (folder / "val" / "images").is_dir()


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise broken(path, "UTF-8 text", str(error)) from error
