"""Parquet files of Hugging Face data sets: encoded images and labels in columns.

train-00000-of-00002.parquet, ..., test-00000-of-00001.parquet, or train/*.parquet and test/*.parquet
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ....errors import InputError
from ..task import Arrays
from .common import Samples, absent, broken, check_regular, fingerprint, package_missing
from .decode import Shape, decode, decode_exact, pillow, pixels

DESCRIPTION = "train-*.parquet and test-*.parquet of Hugging Face (columns image or img, and label or fine_label)"
TESTS = ("test", "validation", "valid", "val")
IMAGES = ("image", "img")
LABELS = ("fine_label", "label")


def is_present(folder: Path) -> bool:
    """True if the folder holds files in this layout."""
    return bool(_shards(folder, "train"))


def read(folder: Path, shape: Shape) -> Samples:
    """Read the samples; raise InputError that names a missing or broken file."""
    train = _shards(folder, "train")
    test = next((shards for part in TESTS if (shards := _shards(folder, part))), [])
    if not test:
        raise absent(folder / "test-*.parquet", "the training files")
    for shards in (train, test):
        _check_complete(shards)
    return Samples(_join(train, shape), _join(test, shape), fingerprint([*train, *test]), class_names(train[0]))


def first_shape(folder: Path) -> Shape:
    """Return the shape of the first training image; all others must have it too."""
    path = _shards(folder, "train")[0]
    file = _open(path)
    column = _column(file, IMAGES, path)
    with _naming_file(path):
        first = next(file.iter_batches(batch_size=1, columns=[column]), None)
        if first is None or not first.num_rows:
            raise broken(path, "rows", "none")
        data = _encoded(first.to_pydict()[column][0], f"{path}, row 0")
    grey = decode(data, path, "L", pixels)
    with pillow().open(io.BytesIO(data)) as image:
        return 1 if image.mode in ("1", "L") else 3, grey.shape[1], grey.shape[2]


def class_names(path: Path) -> tuple[str, ...]:
    """Return the class names in the file's metadata, where Hugging Face writes them; () if there are none."""
    file = _open(path)
    column = _column(file, LABELS, path)
    try:
        notes = json.loads((file.schema_arrow.metadata or {})[b"huggingface"])
        return tuple(map(str, notes["info"]["features"][column]["names"]))
    except (KeyError, TypeError, ValueError, RecursionError):
        return ()


def values(path: Path, shape: Shape) -> tuple[Tensor, Tensor]:
    """Read images and labels of one file."""
    file = _open(path)
    columns = [_column(file, IMAGES, path), _column(file, LABELS, path)]
    labels: list[int] = []
    with _naming_file(path):
        out = torch.empty((file.metadata.num_rows, *shape), dtype=torch.uint8)
        for batch in file.iter_batches(batch_size=1024, columns=columns):
            rows = batch.to_pydict()
            for image, label in zip(rows[columns[0]], rows[columns[1]], strict=True):
                where = f"{path}, row {len(labels)}"
                out[len(labels)] = decode_exact(_encoded(image, where), where, shape)
                if type(label) is not int or not -(2**63) <= label < 2**63:
                    raise broken(where, "a whole number as label", repr(label))
                labels.append(label)
        if len(labels) != len(out):
            raise broken(path, f"{len(out)} rows", f"{len(labels)}")
    return out, torch.tensor(labels, dtype=torch.int64)


def _encoded(value: Any, where: str) -> bytes:
    data = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(data, bytes):
        raise broken(where, "an encoded image", "none" if data is None else type(data).__name__)
    return data


@contextmanager
def _naming_file(path: Path) -> Iterator[None]:
    """Turn any error of pyarrow or torch for a damaged file into one that names the file."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise broken(path, "a complete parquet file", f"{type(error).__name__}: {error}") from error


def _join(paths: list[Path], shape: Shape) -> Arrays:
    parts = [values(path, shape) for path in paths]
    images, labels = (torch.cat(side) for side in zip(*parts, strict=True))
    if not len(labels):
        raise broken(paths[0], "rows", "none")
    return Arrays(images, labels)


def _open(path: Path) -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise package_missing("pyarrow", "parquet") from error
    check_regular(path)
    with _naming_file(path):
        return parquet.ParquetFile(path)


def _column(file: Any, wanted: tuple[str, ...], path: Path) -> str:
    there: list[str] = file.schema_arrow.names
    name = next((name for name in wanted if name in there), None)
    if name is None:
        raise broken(path, f"a column {' or '.join(wanted)}", f"the columns {', '.join(there) or '(none)'}")
    return name


def _shards(folder: Path, part: str) -> list[Path]:
    beside = [*folder.glob(f"{part}-*.parquet"), *folder.glob(f"{part}.parquet")]
    return sorted(beside or folder.glob(f"{part}/*.parquet"))


def _check_complete(paths: list[Path]) -> None:
    """Raise InputError if a file is missing; the names say how many there are."""
    marks = [re.search(r"-(\d+)-of-(\d+)", path.stem) for path in paths]
    there = {int(mark[1]) for mark in marks if mark}
    for mark in marks:
        if mark and (missing := set(range(int(mark[2]))) - there):
            name = f"{paths[0].name.split('-')[0]}-{min(missing):0{len(mark[1])}d}-of-{mark[2]}.parquet"
            raise absent(paths[0].with_name(name), paths[0].name)
