#!/usr/bin/env python3
"""Pack image data without loss into pieces of a limited size, for machines that are reached by small uploads.

  pack.py NPY_DIR OUT_DIR                 # every .npy of the folder, as OUT_DIR/NAME.00.pack, NAME.01.pack, ...
  pack.py --unpack PIECES... NPY_DIR      # all of the pieces, in any order: the same .npy files, byte for byte

CIFAR packs to 53 % of its size. Of an image (uint8, N x H x W x 3) green is kept, red and blue become their differences
from green, and each pixel its difference from what its left, upper and upper left neighbours foretell. That is packed
with xz; arrays of other shapes are packed as they are. Needs numpy only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROWS = 1000
"""Images that are packed together."""
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 4, "pb": 0, "nice_len": 273, "dict_size": 4096}]
"""Hardly a look for repetitions, since differences do not repeat, but at the size of the byte before."""

Array = Any


class Chunk(NamedTuple):
    """A part of an array, packed."""

    head: dict[str, Any]
    """Name, type, shape and digest of the array; first row, rows, size of ``body``, whether they are foretold; names of
    all arrays."""
    body: bytes


def foretell(left: Array, up: Array, corner: Array) -> Array:
    """Return what a pixel is likely to be: along an edge its neighbour on the same side, otherwise on their plane."""
    low, high = np.minimum(left, up), np.maximum(left, up)
    return np.clip(left + up - corner, low, high)


def filter_images(x: Array) -> Array:
    """Return N x H x W x 3 images as differences, one byte each, 3 x H x W x N."""
    green = x[..., 1].astype(np.int16)
    planes = np.stack([green, (x[..., 0] - green) & 255, (x[..., 2] - green) & 255])
    # signed, so that small differences are near to each other in the prediction, too
    planes[1:] = (planes[1:] + 128) & 255
    planes = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
    guess = np.full_like(planes, 128)
    guess[:, 1:, 0] = planes[:, :-1, 0]
    guess[:, 0, 1:] = planes[:, 0, :-1]
    guess[:, 1:, 1:] = foretell(planes[:, 1:, :-1], planes[:, :-1, 1:], planes[:, :-1, :-1])
    signed = (planes - guess).astype(np.int8).astype(np.int16)
    return ((signed << 1) ^ (signed >> 7)).astype(np.uint8)  # 0, -1, 1, -2, ...: small ones have small bytes


def restore_images(differences: Array) -> Array:
    """Return the images of ``filter_images``: pixel after pixel, of all images at once."""
    folded = differences.astype(np.int16)
    rest = (folded >> 1) ^ -(folded & 1)
    planes = np.empty_like(rest)
    _, height, width, _ = rest.shape
    for row in range(height):
        for column in range(width):
            if row and column:
                guess = foretell(planes[:, row, column - 1], planes[:, row - 1, column], planes[:, row - 1, column - 1])
            else:
                guess = planes[:, row - 1, 0] if row else planes[:, 0, column - 1] if column else np.int16(128)
            planes[:, row, column] = (rest[:, row, column] + guess) & 255
    green = planes[0]
    colours = [(planes[1] - 128 + green) & 255, green, (planes[2] - 128 + green) & 255]
    return np.stack(colours, -1).astype(np.uint8).transpose(2, 0, 1, 3)


def pack_rows(rows: Array, is_foretold: bool) -> bytes:
    """Pack some rows of an array."""
    if is_foretold:  # image after image, plane after plane: neighbours have differences of like size
        rows = filter_images(rows).transpose(3, 0, 1, 2)
    return lzma.compress(np.ascontiguousarray(rows).tobytes(), lzma.FORMAT_XZ, lzma.CHECK_CRC32, filters=FILTERS)


def unpack_rows(chunk: Chunk) -> Array:
    """Return the rows of a chunk."""
    count, shape = chunk.head["rows"], chunk.head["shape"][1:]
    flat = np.frombuffer(lzma.decompress(chunk.body), np.dtype(chunk.head["dtype"]))
    if not chunk.head["is_foretold"]:
        return flat.reshape(count, *shape)
    height, width, _ = shape
    return restore_images(np.ascontiguousarray(flat.reshape(count, 3, height, width).transpose(1, 2, 3, 0)))


def chunks_of(name: str, array: Array) -> Iterator[Chunk]:
    """Yield the chunks of an array, in order; they are packed on all cores."""
    is_foretold = array.dtype == np.uint8 and array.ndim == 4 and array.shape[-1] == 3
    same = {"name": name, "dtype": array.dtype.str, "shape": array.shape, "is_foretold": bool(is_foretold)}
    same["sha256"] = hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
    starts = range(0, len(array), ROWS if is_foretold else max(len(array), 1))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = [array[start : start + starts.step] for start in starts]
        bodies = pool.map(lambda one: pack_rows(one, is_foretold), parts)
        for start, part, body in zip(starts, parts, bodies, strict=True):
            yield Chunk({**same, "start": start, "rows": len(part), "size": len(body)}, body)


def write_pieces(folder: Path, out: Path, limit: float) -> list[Path]:
    """Pack every .npy of a folder into pieces of at most ``limit`` bytes."""
    arrays = sorted(folder.glob("*.npy"))
    if not arrays:
        raise SystemExit(f"no .npy file in {folder}")
    out.mkdir(parents=True, exist_ok=True)
    made: list[list[bytes]] = [[]]
    size = 0
    for path in arrays:
        for chunk in chunks_of(path.stem, np.load(path)):
            head = json.dumps({**chunk.head, "names": [one.stem for one in arrays]}).encode() + b"\n"
            if made[-1] and size + len(head) + len(chunk.body) > limit:
                made.append([])
                size = 0
            made[-1] += [head, chunk.body]
            size += len(head) + len(chunk.body)
    paths = [out / f"{folder.name}.{number:02d}.pack" for number in range(len(made))]
    for path, parts in zip(paths, made, strict=True):
        path.write_bytes(b"".join(parts))
    return paths


def read_piece(path: Path) -> Iterator[Chunk]:
    """Yield the chunks of a piece."""
    with path.open("rb") as file:
        while line := file.readline():
            head = json.loads(line)
            yield Chunk(head, file.read(head["size"]))


def unpack(pieces: list[Path], folder: Path) -> list[Path]:
    """Write the .npy files of some pieces; refuse to write any of them unless all pieces are there and whole."""
    chunks = [chunk for path in pieces for chunk in read_piece(path)]
    arrays = {one.head["name"]: np.empty(one.head["shape"], np.dtype(one.head["dtype"])) for one in chunks}
    missing = {name: len(array) for name, array in arrays.items()}
    absent = {name for one in chunks for name in one.head["names"]} - set(arrays)
    if absent:
        raise SystemExit(f"{', '.join(sorted(absent))}: not in these pieces; pass all pieces, each once")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for chunk, rows in zip(chunks, pool.map(unpack_rows, chunks), strict=True):
            name, start = chunk.head["name"], chunk.head["start"]
            arrays[name][start : start + len(rows)] = rows
            missing[name] -= len(rows)
    for chunk in chunks:
        name = chunk.head["name"]
        if missing.pop(name, 0):
            raise SystemExit(f"{name}: not all of its rows are in these pieces; pass all pieces, each once")
        if hashlib.sha256(arrays[name].data).hexdigest() != chunk.head["sha256"]:
            raise SystemExit(f"{name}: the pieces are damaged, or of different data sets")
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return [folder / f"{name}.npy" for name in arrays]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("paths", nargs="+", type=Path)
    p.add_argument("--unpack", action="store_true")
    p.add_argument("--limit", type=float, default=24, help="size of a piece at most, in MiB")
    args = p.parse_args()
    if len(args.paths) < 2 or (len(args.paths) > 2 and not args.unpack):
        p.error("expected NPY_DIR OUT_DIR, or --unpack PIECES... NPY_DIR")
    *sources, target = args.paths
    done = unpack(sources, target) if args.unpack else write_pieces(sources[0], target, args.limit * 2**20)
    for path in done:
        print(f"{path} {path.stat().st_size / 2**20:.2f} MiB")
    print(f"{sum(path.stat().st_size for path in done) / 2**20:.1f} MiB in all", file=sys.stderr)


if __name__ == "__main__":
    main()
