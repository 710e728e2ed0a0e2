"""Small data sets as files, in the layouts that the readers know."""

from __future__ import annotations

import gzip
import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from infobatch.errors import InputError

rng = np.random.default_rng(0)


def some_images(count: int, *shape: int) -> np.ndarray:
    return rng.integers(0, 256, (count, *shape), dtype=np.uint8)


def write_idx(path: Path, array: np.ndarray) -> None:
    data = b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)


def idx_folder(root: Path, ending: str = "") -> dict[str, np.ndarray]:
    root.mkdir(parents=True, exist_ok=True)
    made = {}
    for part, count in (("train", 6), ("t10k", 3)):
        made[f"{part}-images-idx3-ubyte"] = some_images(count, 5, 4)
        made[f"{part}-labels-idx1-ubyte"] = np.arange(count, dtype=np.uint8)
    for name, array in made.items():
        write_idx(root / f"{name}{ending}", array)
    return made


def npy_folder(root: Path, train: np.ndarray, test: np.ndarray, classes: int = 3) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for part, images in (("train", train), ("test", test)):
        np.save(root / f"{part}_x.npy", images)
        np.save(root / f"{part}_y.npy", np.arange(len(images)) % classes)


def png(image: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(image).save(out, "PNG")
    return out.getvalue()


def save(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(image))


def refused(call: Any, *words: str) -> str:
    with pytest.raises(InputError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
    return str(caught.value)


def tiny_folder(root: Path) -> dict[str, np.ndarray]:
    made = {}
    for wnid in ("n02", "n01"):
        for number in range(2):
            name = f"train/{wnid}/images/{wnid}_{number}.png"
            made[name] = some_images(1, 8, 8, 3)[0]
    for number in range(3):
        made[f"val/images/val_{number}.png"] = some_images(1, 8, 8, 3)[0]
    for name, image in made.items():
        save(root / name, image)
    lines = [f"val_{number}.png\t{wnid}\t0\t0\t9\t9" for number, wnid in ((2, "n01"), (0, "n02"), (1, "n01"))]
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    (root / "words.txt").write_text("n01\tgoldfish, Carassius auratus\nn02\ttench\nn03\tcrane\n")
    return made


class Trap:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)
