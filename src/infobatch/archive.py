"""Checks of a checkpoint file before torch reads it.

torch.load verifies no checksums, and it trusts what the file declares: a record may unpack to a thousand times its
size, a storage may be declared larger than its record (torch then reads beyond the end of its memory), and a tensor of
one number may be expanded to a billion. None of this is needed in a checkpoint, so such files are refused here.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import re
import zipfile
from functools import partial
from typing import IO, Any

from torch.serialization import StorageType

LARGEST_EXPANDED = 1 << 24
"""A tensor may have this many elements although its storage has fewer."""
LARGEST_REPEATED = 1 << 20
"""A tuple may hold this many values, those of the tuples in it counted as often as they occur: hashing visits each."""
TUPLES = (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3)
ALLOCATORS = re.compile(r"torch\.((cuda|sparse|storage)\.)?\w*(Storage|Tensor)|(builtins|__builtin__)\.bytearray")
"""Classes that allocate as many elements as their arguments say. Saved tensors are rebuilt by functions instead."""


class ArchiveError(Exception):
    """A file that torch.load should not see; the text completes "got FILE, "."""


def check_archive(file: IO[bytes]) -> None:
    """Check that a file is a complete checkpoint, and that reading it takes no more memory than its size suggests.

    It takes an open file, so that the one that is read is the one that was checked.

    Raises:
        ArchiveError: If it is not.
        zipfile.BadZipFile: If it is damaged so much that its contents cannot be listed. Damaged bytes can raise other
            exceptions too.
    """
    file.seek(0)
    if file.read(4) != b"PK\3\4":
        raise ArchiveError("which is not a zip archive as torch.save has written since version 1.6")
    total = os.fstat(file.fileno()).st_size
    with zipfile.ZipFile(file) as archive:
        sizes = _check_records(archive, total)
        damaged = archive.testzip()
        if damaged is not None:
            raise ArchiveError(f"in which {damaged} does not match its checksum")
        prefix = archive.namelist()[0].split("/")[0]
        content = archive.read(f"{prefix}/data.pkl")
    folder = f"{prefix}/data/"
    storages = {name[len(folder) :]: size for name, size in sizes.items() if name.startswith(folder)}
    _DryRun(content, storages).load()


def _check_records(archive: zipfile.ZipFile, total: int) -> dict[str, int]:
    """Return the sizes of the records by name, after checking that they take no more space than the file has."""
    records = archive.infolist()
    sizes = {record.filename: record.file_size for record in records}
    if not records or len(sizes) < len(records) or min(record.header_offset for record in records):
        raise ArchiveError("which was not written by torch.save")
    packed = any(record.compress_type != zipfile.ZIP_STORED for record in records)
    if packed or sum(sizes.values()) > total:
        raise ArchiveError(f"of {total} bytes, which unpacks to {sum(sizes.values())}; torch.save does not compress")
    return sizes


class _Inert:
    """A stand-in for whatever a checkpoint would build: it takes items and attributes and does nothing."""

    name: str
    run: _DryRun

    def __new__(cls, *args: Any, **_: Any) -> _Inert:
        cls.run.check_call(cls.name, args)
        return object.__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def __setstate__(self, _: Any) -> None: ...
    def __setitem__(self, _: Any, __: Any) -> None: ...
    def append(self, _: Any) -> None: ...
    def extend(self, _: Any) -> None: ...
    def add(self, _: Any) -> None: ...


class _Stored:
    """A stand-in for a storage."""

    def __init__(self, numel: int) -> None:
        self.numel = numel


class _Tuple(tuple[Any, ...]):
    """A tuple that hashes at once, as a key, however deep it is; ``visits`` is how many values a hash visits."""

    visits: int
    __hash__ = object.__hash__


def _close_tuple(opcode: int, run: Any) -> None:
    """Make a tuple, and check that tuples of the same tuples again and again do not amount to very many values."""
    pickle._Unpickler.dispatch[opcode](run)
    made = _Tuple(run.stack[-1])
    made.visits = 1 + sum(part.visits if isinstance(part, _Tuple) else 1 for part in made)
    if made.visits > max(run.total, LARGEST_REPEATED):
        raise ArchiveError("with a tuple that repeats its parts endlessly")
    run.stack[-1] = made


class _DryRun(pickle._Unpickler):
    """Unpickle with stand-ins for everything but plain values, and check what would be allocated.

    Python's own unpickler, and not the faster one in C, because that one allocates what the file declares.
    """

    def __init__(self, content: bytes, storages: dict[str, int]) -> None:
        super().__init__(io.BytesIO(content))
        self.total = len(content)
        self.storages = storages
        """The sizes of the records with storages, in bytes."""
        self._classes: dict[str, type[_Inert]] = {}

    dispatch = pickle._Unpickler.dispatch | {code[0]: partial(_close_tuple, code[0]) for code in TUPLES}

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full not in self._classes:
            self._classes[full] = type("_Named", (_Inert,), {"name": full, "run": self})
        return self._classes[full]

    def persistent_load(self, pid: Any) -> _Stored:
        _, kind, key, _, numel = pid
        name = kind.name.rpartition(".")[2]
        itemsize = 1 if name == "UntypedStorage" else StorageType(name).dtype.itemsize  # type: ignore[no-untyped-call]
        if not 0 <= numel * itemsize <= self.storages.get(str(key), -1):
            raise ArchiveError(f"which declares a storage of {numel} elements, more than it holds")
        return _Stored(numel)

    def check_call(self, name: str, args: tuple[Any, ...]) -> None:
        """Check a call of a class or function that unpickling would make."""
        if name == "torch._tensor._rebuild_from_type_v2":  # calls another one
            self.check_call(args[0].name, args[2])
        elif args and isinstance(args[0], _Stored):  # (storage, offset, size, stride, ...)
            numel = math.prod(args[2])
            if numel > max(args[0].numel, LARGEST_EXPANDED):
                raise ArchiveError(f"with a tensor that repeats {args[0].numel} stored numbers to make {numel}")
        elif ALLOCATORS.fullmatch(name) and not all(map(_is_text, args)):
            raise ArchiveError(f"which calls {name} to allocate memory")


def _is_text(arg: Any) -> bool:
    """Whether an argument is text or bytes, as those of a saved bytearray are."""
    return isinstance(arg, str) or (isinstance(arg, _Inert) and arg.name == "_codecs.encode")
