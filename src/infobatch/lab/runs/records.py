"""Record runs as JSON lines, one folder per run: append-only, safe against crashes.

Each line is written by one ``write`` and synced to disk before the run continues. A crash can therefore tear only the
last line: readers ignore a torn last line, and a writer moves it to a separate file before it appends. Anything else
that cannot be read raises an error that names the line, and so does a damaged first line, without which there is no
run.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO
from weakref import WeakSet

from ...checks import is_count
from ...errors import InputError, StateError, message, warn
from ...files import naming
from ..train.settings import Settings

try:
    import fcntl
except ModuleNotFoundError as error:
    remedy = "On Windows use WSL; the rest of the package works without it."
    expected = "a POSIX system, such as Linux or macOS, for the lab and the command line"
    raise ModuleNotFoundError(message(expected, sys.platform, remedy), name=error.name) from error

FORMAT = 2
"""The format of records. In format 1 a short last batch counted as much as a full one."""
FILE = "record.jsonl"
CHECKPOINT = "checkpoint.pt"
KINDS = ("start", "epoch", "samples", "pause", "resume", "end")
DAMAGED = "damaged"

Fact = dict[str, Any]


def now() -> str:
    """Return the current time, as facts hold it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


@dataclass(frozen=True, eq=False)
class Run:
    """A recorded run; ``end`` is None if it has not finished."""

    name: str
    start: Fact
    epochs: list[Fact] = field(default_factory=list)
    samples: Fact | None = None
    end: Fact | None = None
    file: Path | None = None
    """The file it was read from, if any."""

    @cached_property
    def settings(self) -> Settings:
        """Its settings; those of an older record may no longer be trainable."""
        return Settings.from_record(self.start)

    @property
    def label(self) -> str:
        """Its name in a comparison."""
        return label(self.settings)


def label(settings: Settings) -> str:
    """Name a run in a comparison: everything that distinguishes it there, except the seed.

    Of older records "+lr" marks a learning rate that grew in pruned epochs; their ``ideas`` follow.

    >>> label(Settings(method="random:ratio=0.5", compensate="loss")), label(Settings(method="full", steps=900))
    ('random:ratio=0.5+loss', 'full, 900 steps')
    """
    grows = f"+{settings.grows}" if settings.grows != "none" else ""
    ideas = f" {settings.ideas}" if settings.ideas else ""
    return settings.method + grows + ideas + (f", {settings.steps} steps" if settings.steps else "")


_locks: WeakSet[TextIO] = WeakSet()


def _release_locks() -> None:
    """In a forked process, such as a loader's worker: it may outlive the run and must not hold its lock."""
    for lock in _locks:
        lock.close()  # closes this process's copy; the parent keeps the lock


os.register_at_fork(after_in_child=_release_locks)


class Recorder:
    """Append facts to a run's folder, from one process at a time; the lock is released when the process ends.

    Args:
        folder: The folder of the run; it is created if needed.
        resume: Append to a record that is there already.

    Raises:
        InputError: If another process writes to the folder, or it has a record and ``resume`` is false.

    >>> import tempfile
    >>> with Recorder(tempfile.mkdtemp() + "/run") as record:
    ...     record({"kind": "start"})
    """

    def __init__(self, folder: str | os.PathLike[str], *, resume: bool = False) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = open(self.folder / "lock", "a")  # noqa: SIM115 - held as long as this object
        _locks.add(self._lock)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise InputError(
                message(
                    "a folder that no other run writes to", str(self.folder), "Wait for it, or choose another name."
                )
            ) from None
        path = self.folder / FILE
        try:
            if path.exists() and path.stat().st_size and not resume:
                command = f"infobatch train --resume {shlex.quote(str(self.folder))}"
                remedy = f"Choose another name, or continue it: {command}"
                raise InputError(message("a folder without a record", f"{path}", remedy))
            set_torn_line_aside(path)
            self._file: TextIO = open(path, "a", encoding="utf-8")  # noqa: SIM115
        except BaseException:
            self._lock.close()
            raise

    def __call__(self, fact: Fact) -> None:
        with naming(self.folder / FILE):
            self._file.write(line(fact))
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file and release the lock."""
        try:
            with naming(self.folder / FILE):
                self._file.close()
        finally:
            self._lock.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def line(fact: Fact) -> str:
    """Format a fact as one line of standard JSON; numbers that are not finite become null, lone surrogates escapes."""
    text = json.dumps(_finite(fact), ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n"
    return text.encode("utf-8", "backslashreplace").decode()


def read(path: str | os.PathLike[str]) -> Run:
    """Read the run in a folder, or in a file that holds one run.

    Raises:
        InputError: If there is no record.
        StateError: If the record is empty, damaged, or holds several runs.
    """
    runs = list(read_file(_record_of(Path(path))))
    if not runs:
        raise StateError(message("the record of a run", f"{path}, which is empty", "Train it again."))
    if len(runs) > 1:
        remedy = "Name one run; infobatch report and records.read_many accept several."
        raise StateError(message("the record of one run", f"{path}, which holds {len(runs)} runs", remedy))
    return runs[0]


def read_many(*paths: str | os.PathLike[str]) -> list[Run]:
    """Read all runs in these files and folders, and in the folders below them.

    A damaged file found below a folder is skipped with a warning.

    Raises:
        InputError: If a path holds no records.
        StateError: If a file named here is damaged, or no file can be read.
    """
    found, damaged = sift(*paths)
    for error in damaged:
        warn(f"skipped: {error}")
    return found


def sift(*paths: str | os.PathLike[str]) -> tuple[list[Run], list[Exception]]:
    """Like ``read_many``, but return the errors of the skipped files instead of warning about them."""
    found: list[Run] = []
    damaged: list[Exception] = []
    named_paths = set(map(Path, paths))
    for file in files(*paths):
        try:
            found += list(read_file(file))
        except (StateError, InputError, OSError) as error:
            if file in named_paths:
                raise
            damaged.append(error)
    if damaged and not found:
        raise damaged[0]
    return found, damaged


def files(*paths: str | os.PathLike[str]) -> list[Path]:
    """List the record files among these paths, and in the folders below them.

    Raises:
        InputError: If a folder holds none.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        records = list(filter(holds_runs, sorted(path.rglob("*.jsonl")))) if path.is_dir() else [path]
        if not records:
            raise InputError(message(f"folders with a {FILE}", f"{path}, which has none", "Train a run first."))
        found += records
    return found


def holds_runs(path: Path) -> bool:
    """True if a file holds runs, by its name or its first line; one with a damaged first line may."""
    if not path.is_file():
        return path.is_symlink() and not path.exists()  # reading a broken link raises an error that names it
    return path.name == FILE or kind_of(path) in (*KINDS, DAMAGED)


LOOKS = "looks.json"
"""A file beside records of many runs: by file name, the numbers of seeds at which verdicts were looked at."""


def looks_beside(records: Iterable[Path]) -> tuple[int, ...] | None:
    """Return the looks noted for these records (the longest list among them), or None.

    Raises:
        StateError: If a file of looks is damaged.
    """
    noted = []
    for file in dict.fromkeys(records):
        beside = file.parent / LOOKS
        if beside.is_file():
            try:
                seeds = json.loads(beside.read_bytes()).get(file.name, [])
                if not isinstance(seeds, list) or not all(is_count(each, 1) for each in seeds):
                    raise ValueError(seeds)
                noted.append(tuple(seeds))
            except (ValueError, TypeError, AttributeError) as error:
                remedy = 'For example {"runs.jsonl": [3]}: looked at with three seeds.'
                raise StateError(message("numbers of seeds by file name", str(beside), remedy)) from error
    return max(noted, key=len, default=()) or None


def kind_of(path: Path) -> str:
    """Return the kind of the first fact of a file; "" if it has none, DAMAGED if it cannot be read."""
    try:
        with open(path, "rb") as file:
            first = file.readline()
        fact = json.loads(first or b"{}")
    except (ValueError, RecursionError, OSError):
        return DAMAGED
    return str(fact.get("kind", "")) if isinstance(fact, dict) else ""


def read_file(path: str | os.PathLike[str]) -> Iterator[Run]:
    """Yield the runs of one file; each begins with a ``start``.

    Raises:
        InputError: If there is no such file.
        StateError: If it is damaged.
    """
    run: Run | None = None
    path = Path(path)
    for number, fact in _facts(path):
        kind = fact.get("kind")
        if kind == "start":
            if run is not None:
                yield run
            run = _begin(fact, path, number)
        elif run is None:
            raise _damaged(path, number, "comes before any start")
        elif kind == "epoch":
            epoch = fact.get("epoch")
            known = len(run.epochs)
            if not isinstance(epoch, int) or not 0 <= epoch <= known:
                raise _damaged(path, number, f"has epoch {epoch!r} after {known} epochs")
            del run.epochs[epoch:]  # a run resumed from an older checkpoint repeats some epochs
            run.epochs.append(fact)
        elif kind in ("samples", "end"):
            object.__setattr__(run, kind, fact)  # a copy would have to parse its settings again
    if run is not None:
        yield run


def _begin(fact: Fact, path: Path, number: int) -> Run:
    if fact.get("format") not in (1, FORMAT):
        raise _damaged(path, number, f"has format {fact.get('format')!r}, and this version reads {FORMAT}")
    if not isinstance(fact.get("settings"), dict):
        raise _damaged(path, number, "has no settings")
    run = Run(str(fact.get("run", path.parent.name)), fact, file=path)
    try:
        run.settings  # noqa: B018 - checked here, where the file is known
    except InputError as error:
        raise _damaged(path, number, f"has settings that this version cannot read ({error})") from error
    return run


def _record_of(path: Path) -> Path:
    found = path / FILE if path.is_dir() else path
    if not found.is_file():
        raise InputError(message(f"a run's folder, with a {FILE}", str(path), "infobatch train creates one."))
    return found


def _facts(path: Path) -> Iterator[tuple[int, Fact]]:
    if not path.is_file():
        raise InputError(message("a record", str(path), "There is no such file."))
    with open(path, "rb") as file:
        for number, raw in enumerate(file, 1):
            try:
                fact = json.loads(raw.decode("utf-8"))
                if not isinstance(fact, dict):
                    raise ValueError("not an object")
            except (ValueError, RecursionError) as error:
                if number > 1 and not raw.endswith(b"\n"):
                    return  # torn by a crash while it was written
                raise _damaged(path, number, f"is not a JSON object ({error})") from error
            yield number, fact


def _damaged(path: str | os.PathLike[str], number: int, what: str) -> StateError:
    return StateError(message("a record of the lab", f"{path}, whose line {number} {what}", "Nothing was changed."))


def set_torn_line_aside(path: Path) -> None:
    """Move a torn last line to a separate file, so that the next line starts a new one."""
    if not path.exists():
        return
    data = path.read_bytes()
    complete = data.rfind(b"\n") + 1
    if complete < len(data) and _is_fact(data[complete:]):
        with naming(path), open(path, "ab") as file:
            file.write(b"\n")
    elif complete < len(data):
        beside = path.with_suffix(".torn")
        with naming(beside), open(beside, "ab") as torn:
            torn.write(data[complete:] + b"\n")
            os.fsync(torn.fileno())
        os.truncate(path, complete)


def _is_fact(raw: bytes) -> bool:
    try:
        return isinstance(json.loads(raw.decode("utf-8")), dict)
    except ValueError:
        return False


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
