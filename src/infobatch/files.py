"""Write files that a crash cannot damage, and read checkpoints without trusting them."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import torch

from . import snapshot
from .archive import ArchiveError, check_archive
from .errors import InputError, StateError, message

STALE, QUIET = 3600.0, 60.0
"""A draft that has not changed for so many seconds was left behind by a writer that was killed: STALE if nothing else
is known, QUIET if its writer's lock is gone."""
PREFIX = 100
"""How many bytes of a file's name its drafts carry; file systems allow 255 in all."""


def save(state: Any, path: str | os.PathLike[str]) -> None:
    """Save a checkpoint atomically: whatever happens, ``path`` holds the old checkpoint or the new one.

    Training can continue in another thread: tensors on the CPU are copied first, which takes as much memory as they
    do, and what was written is verified before it replaces the old file. The copies are made one after the other,
    so some may be from before a step and some from after it. If a background thread is to save the state of one exact
    step, give it a ``copy.deepcopy`` made between two steps.

    NumPy scalars are saved as Python numbers.

    Args:
        state: Tensors, numbers and text, and lists, tuples and dicts of them.
        path: The file to write. A pipe or device is written to directly.

    Raises:
        InputError: If ``load`` would refuse the state. Nothing was written.
        StateError: If the file was damaged while it was written. The old file is still there.
        OSError: If the file cannot be written, for example because the disk is full. The old file is still there.

    >>> import os, tempfile, torch, infobatch
    >>> model, train_data = torch.nn.Linear(8, 3), infobatch.InfoBatch(range(100), num_epochs=8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "last.pt")
    ...     infobatch.save({"model": model.state_dict(), "data": train_data.state_dict()}, path)
    ...     sorted(infobatch.load(path))
    ['data', 'model']
    """
    with replacing(path) as file:
        recorder = _ErrorRecorder(file)
        try:
            torch.save(snapshot.copy_containers(state), cast(IO[bytes], recorder), pickle_module=snapshot)
        except RuntimeError as error:
            raise (recorder.error or error) from error
        file.flush()
        _check_written(file.name, path)


def load(path: str | os.PathLike[str], map_location: Any = "cpu") -> Any:
    """Load a checkpoint without executing anything in it (``weights_only``).

    The checksums that torch writes are verified, and a file that would take much more memory than its size suggests is
    refused before any of that memory is allocated.

    Args:
        path: A file written by ``infobatch.save`` or ``torch.save``.
        map_location: Where to load the tensors; see ``torch.load``.

    Returns:
        The state that was saved.

    Raises:
        StateError: If the file is damaged, or holds more than tensors, numbers and text.
        OSError: If there is no such file, or no permission to read it.

    >>> import os, tempfile, infobatch
    >>> train_data = infobatch.InfoBatch(range(100), num_epochs=8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "last.pt")
    ...     infobatch.save({"data": train_data.state_dict()}, path)
    ...     train_data.load_state_dict(infobatch.load(path)["data"])
    """
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise _unreadable(path, "which is not a regular file")  # opening a pipe would wait for a writer
    with open(path, "rb") as file:  # once, since another process may replace it between check and load
        try:
            check_archive(file)
            file.seek(0)
            return torch.load(file, map_location=map_location, weights_only=True)
        except ArchiveError as error:
            raise _unreadable(path, str(error)) from error
        except Exception as error:  # damaged bytes can raise anything
            raise _unreadable(path, f"which cannot be read ({type(error).__name__})") from error


def _unreadable(path: str | os.PathLike[str], why: str) -> StateError:
    return StateError(
        message(
            "a complete checkpoint written by infobatch.save or torch.save",
            f"{os.fspath(path)}, {why}",
            "If it is damaged, load an older one. If it holds more than tensors, numbers and text, convert those to "
            "plain values before saving. torch.load(path, weights_only=False) reads what you trust.",
        )
    )


class _ErrorRecorder:
    """A file that records the OSError of a failed write, such as a full disk; torch hides it behind its own error."""

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


def _check_written(draft: Any, path: str | os.PathLike[str]) -> None:
    """Check that ``load`` will read what was written; a pipe cannot be read back."""
    if not os.path.isfile(draft):
        return
    unsafe = torch.serialization.get_unsafe_globals_in_checkpoint(draft)
    if unsafe:
        raise InputError(
            message(
                "tensors, numbers and text in a checkpoint, and lists and dicts of them",
                ", ".join(sorted(unsafe)),
                "weights_only loads nothing else: convert it, for example by vars(args), dict(x), array.tolist() or "
                "str(path), or allow it with torch.serialization.add_safe_globals. Nothing was written.",
            )
        )
    try:
        with open(draft, "rb") as file:
            check_archive(file)
    except ArchiveError as error:
        raise StateError(
            message(
                f"a checkpoint for {os.fspath(path)} that can be loaded again",
                f"one {error}",
                "Save tensors and not their storages, clone() expanded tensors, and check the disk. Nothing was "
                "replaced.",
            )
        ) from error


@contextlib.contextmanager
def naming(path: str | os.PathLike[str], *others: Path) -> Iterator[None]:
    """Make an OSError that names no file, or one of ``others``, name ``path``, which is what the user passed.

    Args:
        path: The file to name.
        others: Files whose errors are those of ``path``, such as its draft.

    Raises:
        OSError: The one raised inside, with ``path`` as its file name.

    >>> with naming("last.pt"):
    ...     raise OSError(28, "No space left on device")
    Traceback (most recent call last):
    OSError: [Errno 28] No space left on device: 'last.pt'
    """
    try:
        yield
    except OSError as error:
        if not error.errno or error.filename not in (None, *map(str, others)):
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a draft for writing, which replaces ``path`` once it is complete.

    Drafts that killed writers left behind are removed first, so that they do not fill the disk. A pipe or device is
    written to directly.

    Args:
        path: The file to replace. A link is followed.

    Returns:
        A context manager for the open draft. If an exception leaves it, the draft is removed and ``path`` is unchanged.

    Raises:
        OSError: If the file cannot be written; it names ``path``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder, "report.html")) as file:
    ...         _ = file.write(b"<html>")
    ...     Path(folder, "report.html").read_bytes()
    b'<html>'
    """
    direct = os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)
    target = Path(os.path.realpath(path))  # replace what a link points to, not the link
    if not direct and not target.parent.is_dir():
        raise FileNotFoundError(f"no folder {target.parent} to write {target.name} into")
    start = _draft_start(target.name)
    draft = target.with_name(f"{start}{secrets.token_hex(8)}.tmp")
    with naming(path, draft, target):
        if direct:
            with open(path, "wb") as file:
                yield file
            return
        _remove_stale(target.parent, start)
        try:
            with open(draft, "xb") as file:
                _lock(file)
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
    _sync_folder(target.parent)


def _draft_start(name: str) -> str:
    """Return what the drafts of a file begin with. Names are limited in bytes, so the name is cut in bytes.

    >>> _draft_start("last.pt")
    '.last.pt.'
    >>> len(os.fsencode(_draft_start("点" * 80)))
    101
    """
    cut = os.fsencode(name)[:PREFIX]
    whole = name if len(cut) < PREFIX else cut.decode("utf-8", "ignore")  # no half letters: some systems refuse them
    return f".{whole}."


def _remove_stale(folder: Path, start: str) -> None:
    for left in folder.glob(f"{glob.escape(start)}*.tmp"):
        with contextlib.suppress(OSError):  # removed meanwhile, or not ours to remove
            age = time.time() - left.stat().st_mtime
            if age > STALE or (age > QUIET and _is_abandoned(left)):
                left.unlink()


def _lock(file: IO[bytes]) -> bool:
    """Lock a file for as long as it is open in this process; False if another has locked it, or locks are unknown."""
    try:
        import fcntl  # not on Windows

        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


def _is_abandoned(draft: Path) -> bool:
    with open(draft, "r+b") as file:
        return _lock(file)


def _sync_folder(folder: Path) -> None:
    """Make the renaming of a file survive a power failure."""
    with contextlib.suppress(PermissionError):  # a folder may be writable and not readable
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
