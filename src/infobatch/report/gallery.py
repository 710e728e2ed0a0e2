"""Show the samples a run kept most and least often: images as small inline PNG files, texts as text."""

from __future__ import annotations

import base64
import binascii
import math
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..lab.runs.fields import number
from ..lab.runs.records import Fact
from . import series
from .figures.figure import format_value
from .figures.svg import clip
from .series import Study

MOST_LABELS = 8
SIDES = (64, 48, 32, 24)
BUDGET = 900_000
"""Bytes for all images of a page; they are shrunk until they fit."""
LETTERS = 240


@dataclass(frozen=True)
class Sample:
    name: str
    """The name of its class; empty if it has none."""
    index: str
    """Its index in the data set."""
    kept: str
    loss: str
    picture: str | None
    """A PNG as a data URL; None if there is no image or it cannot be read."""
    text: str


@dataclass(frozen=True)
class Gallery:
    label: str
    run: str
    most: tuple[Sample, ...]
    least: tuple[Sample, ...]


def galleries(study: Study) -> list[Gallery]:
    """Collect one gallery per method that pruned anything, from its run with the lowest seed."""
    chosen = []
    for label in study.sets:
        run = study.first(label)
        if run.samples is not None and study.prunes(label):
            chosen.append((label, run, run.samples))
    chosen = chosen[:MOST_LABELS]
    for side in SIDES:
        found = []
        for label, run, samples in chosen:
            names = series.class_names([run])
            epochs = len(run.epochs)
            both = [
                tuple(_sample(one, names, epochs, side) for one in _listed(samples.get(which)))
                for which in ("most", "least")
            ]
            if any(both):
                found.append(Gallery(label, f"from the run with seed {run.settings.seed}", *both))
        if _weight(found) <= BUDGET:
            break
    return found


def _listed(value: Any) -> list[Fact]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _weight(found: list[Gallery]) -> int:
    return sum(len(one.picture or "") for gallery in found for one in gallery.most + gallery.least)


def _sample(fact: Fact, names: list[str], epochs: int, side: int) -> Sample:
    label, kept, loss = fact.get("label"), number(fact.get("kept")), number(fact.get("loss"))
    if isinstance(label, int) and 0 <= label < len(names):
        label = names[label]
    text = str(fact.get("text") or "")
    return Sample(
        name="" if label is None else str(label),
        index=f"#{fact.get('index')}",
        kept="" if kept is None else f"kept {kept:.0f}/{epochs}",
        loss="" if loss is None else f"loss {_short(loss)}",
        picture=_picture(fact.get("image"), side),
        text=clip(text, LETTERS) if text else "",
    )


def _short(loss: float) -> str:
    """Format a loss briefly enough to fit under an image."""
    return "< 0.001" if 0 < loss < 0.001 else format_value("{:.2g}", loss)


def _picture(image: Any, side: int) -> str | None:
    if not isinstance(image, dict):
        return None
    pixels = decoded(image)
    if pixels is None:
        return None
    return "data:image/png;base64," + base64.b64encode(png(shrunk(pixels, side))).decode()


def decoded(image: dict[str, Any]) -> NDArray[np.uint8] | None:
    """Decode an image of a record from [C, H, W] bytes to [H, W, 1 or 3]; None if shape and bytes do not match."""
    shape = image.get("shape")
    if not (isinstance(shape, list) and len(shape) == 3 and all(type(size) is int and size > 0 for size in shape)):
        return None
    try:
        raw = base64.b64decode(image.get("bytes") or "", validate=True)
    except (binascii.Error, ValueError, TypeError):
        return None
    if len(raw) != math.prod(shape):
        return None
    pixels = np.frombuffer(raw, np.uint8).reshape(shape).transpose(1, 2, 0)
    return pixels[:, :, :3] if shape[0] >= 3 else pixels[:, :, :1]


def shrunk(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Shrink an image by averaging blocks until no side is longer than ``side``."""
    block = math.ceil(max(pixels.shape[:2]) / side)
    if block == 1:
        return pixels
    high, wide = (max(1, size // block) for size in pixels.shape[:2])
    cut = pixels[: high * block, : wide * block]
    parts = cut.reshape(high, cut.shape[0] // high, wide, cut.shape[1] // wide, -1)
    return np.asarray(parts.mean((1, 3)).round(), np.uint8)


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Encode [H, W, 1 or 3] bytes as a PNG file."""
    high, wide, channels = pixels.shape
    lines = np.concatenate([np.zeros((high, 1), np.uint8), pixels.reshape(high, wide * channels)], 1)
    head = struct.pack(">IIBBBBB", wide, high, 8, 2 if channels == 3 else 0, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    framed = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)
