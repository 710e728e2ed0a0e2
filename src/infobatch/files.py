"""Checkpoints, and other files, that a crash cannot spoil."""

from __future__ import annotations

import contextlib
import copy
import glob
import os
import secrets
import stat
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import torch

from .errors import InputError, StateError, message

STALE = 3600.0  # seconds after which nobody is still writing a draft


class _Watched:
    """A file that keeps the system's own error, as of a full disk: torch speaks of its zip file instead."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()


def save(state: Any, path: str | os.PathLike[str]) -> None:
    """Write a checkpoint whole or not at all: whatever happens, ``path`` holds the old one or the new one.

    What ``load`` would refuse is refused here, while there is something to save; numbers of numpy become plain ones.
    """
    with replacing(path) as file:
        watched = _Watched(file)
        try:
            with contextlib.suppress(RecursionError):  # a list that holds itself: as it is
                state = _plain(state)
            torch.save(state, cast(IO[bytes], watched))
        except RuntimeError as error:
            raise (watched.error or error) from error
        file.flush()
        _check_readable(file.name)


def _plain(value: Any) -> Any:
    """The same with numpy's numbers as Python's: schedulers come by them, and ``load`` takes none."""
    if isinstance(value, dict):
        changed = {key: new for key, old in value.items() if (new := _plain(old)) is not old}
        if not changed:
            return value
        made = copy.copy(value)  # of its kind, as a model's state
        made.update(changed)
        return made
    if type(value) in (list, tuple):
        items = [_plain(old) for old in value]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else type(value)(items)
    number = type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0 and hasattr(value, "item")
    return value.item() if number else value


def _check_readable(written: Any) -> None:
    """Torch tells since 2.6 what it would not read; a pipe cannot be looked at."""
    tell = getattr(torch.serialization, "get_unsafe_globals_in_checkpoint", None)
    unread = tell(written) if tell is not None and os.path.isfile(written) else []
    if unread:
        raise InputError(
            message(
                "tensors, numbers and text in a checkpoint, and lists and dicts of them",
                ", ".join(sorted(unread)),
                "Nothing else is read back (weights_only): turn it into those, as vars(args) does, or allow it by "
                "torch.serialization.add_safe_globals. Nothing was written.",
            )
        )


@contextlib.contextmanager
def naming(path: str | os.PathLike[str], *others: Path) -> Iterator[None]:
    """What the system has against a file, as a full disk, told of ``path``: also if it names none or ``others``."""
    try:
        yield
    except OSError as error:
        if not error.errno or error.filename not in (None, *map(str, others)):
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A draft to write to, which takes the place of ``path`` once it is whole.

    A device or a pipe is written to itself. What the system has against the draft is said of ``path``.
    """
    device = os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)
    target = Path(os.path.realpath(path))  # through a link, not over it
    if not device and not target.parent.is_dir():
        raise FileNotFoundError(f"no folder {target.parent} to write {target.name} into")
    draft = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.tmp")
    with naming(path, draft, target):
        if device:
            with open(path, "wb") as file:
                yield file
            return
        try:
            with open(draft, "xb") as file:
                if target.is_file():
                    os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, target)
        except BaseException:
            with contextlib.suppress(OSError):  # the first error says more
                draft.unlink()
            raise
    _settle(target)


def _settle(target: Path) -> None:
    """Drafts of writers that were killed go, and the folder reaches the disk."""
    for left in target.parent.glob(f".{glob.escape(target.name[:100])}.*.tmp"):
        with contextlib.suppress(OSError):  # it is gone, or another's
            if time.time() - left.stat().st_mtime > STALE:
                left.unlink()
    with contextlib.suppress(PermissionError):  # a folder to write into and not to read
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def load(path: str | os.PathLike[str], map_location: Any = "cpu") -> Any:
    """Read a checkpoint; nothing in it is executed (``weights_only``)."""
    with open(path, "rb"):
        pass  # no such file, no permission: these speak for themselves
    try:
        if zipfile.is_zipfile(path):  # torch writes checksums but does not read them
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()
            if damaged is not None:
                raise ValueError(f"{damaged} has changed since it was written")
        return torch.load(path, map_location=map_location, weights_only=True)
    except Exception as error:  # damaged bytes can raise anything
        raise StateError(
            message(
                "a whole checkpoint written by infobatch.save or torch.save",
                f"{os.fspath(path)}, which cannot be read ({type(error).__name__})",
                "It is damaged, or holds more than tensors and numbers, which torch.load(path, weights_only=False) "
                "reads; take an older one, or save those as plain values.",
            )
        ) from error
