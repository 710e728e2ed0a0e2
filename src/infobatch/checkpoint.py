"""Checkpoints that a crash cannot spoil."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import time
import zipfile
from pathlib import Path
from typing import Any

import torch

from .errors import StateError, message

STALE = 3600.0  # seconds after which nobody is still writing a draft


def save(state: Any, path: str | os.PathLike[str]) -> None:
    """Write a checkpoint whole or not at all: whatever happens, ``path`` holds the old one or the new one."""
    target = Path(os.path.realpath(path))  # through a link, not over it
    if not target.parent.is_dir():
        raise FileNotFoundError(f"no folder {target.parent} to write {target.name} into")
    draft = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.tmp")
    try:
        with open(draft, "xb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    for left in target.parent.glob(f".{glob.escape(target.name[:100])}.*.tmp"):  # by writers that were killed
        with contextlib.suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > STALE:
                left.unlink()
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
                "It is damaged or holds more than tensors and numbers; take an older one.",
            )
        ) from error
