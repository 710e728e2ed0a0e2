"""What a run did, as JSON lines in a folder of its own: append-only, safe against crashes, read back whole.

A line is written by one ``write`` and reaches the disk before the run goes on. A crash can tear the last line only;
the reader leaves a torn last line out, and the writer sets it aside before it appends. Anything else that cannot be
read is named, with its line; so is a first line, without which there is no run.
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
from ..train.settings import Settings, as_before, makes_up

try:
    import fcntl
except ModuleNotFoundError as missing:
    remedy = "On Windows run them inside WSL; the rest of the package needs no such system."
    expected = "a POSIX system for the lab and the command line, as Linux or macOS"
    raise ModuleNotFoundError(message(expected, sys.platform, remedy), name=missing.name) from missing

FORMAT = 2
"""Of runs. In 1 a short last batch counted as a whole one."""
FILE = "record.jsonl"
CHECKPOINT = "checkpoint.pt"
KINDS = ("start", "epoch", "samples", "pause", "resume", "end")
DAMAGED = "damaged"

Fact = dict[str, Any]


def now() -> str:
    """The time of a fact."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


@dataclass(frozen=True, eq=False)
class Run:
    """One run as recorded. ``end`` is None where it has not finished."""

    name: str
    start: Fact
    epochs: list[Fact] = field(default_factory=list)
    samples: Fact | None = None
    end: Fact | None = None
    file: Path | None = None
    """Where it was read from, if it was."""

    @cached_property
    def settings(self) -> Settings:
        plain = self.start["settings"]
        if self.start.get("format") == 1:
            plain = {**plain, "ideas": as_before(plain.get("method", ""), plain.get("ideas", ""))}
        if plain.get("compensate") == "auto":  # as it was once: the rate grew where a loss would
            plain = {**plain, "compensate": "lr" if makes_up(plain.get("method", "")) else "none"}
        return Settings.of(plain)

    @property
    def label(self) -> str:
        return label(self.settings)


def label(settings: Settings) -> str:
    """What tells the runs of a comparison apart, but for the seed."""
    grows = f"+{settings.grows}" if settings.grows != "none" else ""
    ideas = f" {settings.ideas}" if settings.ideas else ""
    return settings.method + grows + ideas + (f", {settings.steps} steps" if settings.steps else "")


_locks: WeakSet[TextIO] = WeakSet()


def _let_go() -> None:
    """In a forked process, as a loader's worker is: it may outlive the run, and must not hold its lock."""
    for lock in _locks:
        lock.close()  # this process's share of it alone


os.register_at_fork(after_in_child=_let_go)


class Recorder:
    """Appends facts to a run's folder. One process at a time; the lock goes when the process does.

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
                    "a folder no other run writes to", str(self.folder), "Wait for that run, or take another name."
                )
            ) from None
        path = self.folder / FILE
        try:
            if path.exists() and path.stat().st_size and not resume:
                go_on = f"infobatch train --resume {shlex.quote(str(self.folder))}"
                remedy = f"Take another name, or go on: {go_on}"
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
        try:
            with naming(self.folder / FILE):
                self._file.close()
        finally:
            self._lock.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()


def line(fact: Fact) -> str:
    """One line of standard JSON in UTF-8: what is not finite becomes null, half a pair of characters its number."""
    text = json.dumps(_finite(fact), ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n"
    return text.encode("utf-8", "backslashreplace").decode()


def read(path: str | os.PathLike[str]) -> Run:
    """The run in a folder, or in a file that holds one."""
    runs = list(read_file(_record_of(Path(path))))
    if not runs:
        raise StateError(message("the record of a run", f"{path}, which is empty", "Train it anew."))
    if len(runs) > 1:
        remedy = "Name one run; infobatch report and records.read_many take several."
        raise StateError(message("the record of one run", f"{path}, which holds {len(runs)} runs", remedy))
    return runs[0]


def read_many(*paths: str | os.PathLike[str]) -> list[Run]:
    """All runs in the folders and files given, and in the folders below them.

    A file that is named must be whole; one that is found below a folder and is not is left out, with a warning.
    """
    found, damaged = sift(*paths)
    for error in damaged:
        warn(f"left out: {error}")
    return found


def sift(*paths: str | os.PathLike[str]) -> tuple[list[Run], list[Exception]]:
    """As ``read_many``, with what is wrong with the files that were left out in the place of warnings."""
    found: list[Run] = []
    damaged: list[Exception] = []
    named = set(map(Path, paths))
    for file in files(*paths):
        try:
            found += list(read_file(file))
        except (StateError, InputError, OSError) as error:
            if file in named:
                raise
            damaged.append(error)
    if damaged and not found:
        raise damaged[0]
    return found, damaged


def files(*paths: str | os.PathLike[str]) -> list[Path]:
    """The records among the folders and files given, and in the folders below them."""
    found: list[Path] = []
    for path in map(Path, paths):
        here = list(filter(holds_runs, sorted(path.rglob("*.jsonl")))) if path.is_dir() else [path]
        if not here:
            raise InputError(message(f"folders with a {FILE}", f"{path}, which has none", "Train something first."))
        found += here
    return found


def holds_runs(path: Path) -> bool:
    """By its name or its first line; a file whose first line is damaged may have held some."""
    if not path.is_file():
        return path.is_symlink() and not path.exists()  # one that leads nowhere is told, when it is read
    return path.name == FILE or kind_of(path) in (*KINDS, DAMAGED)


LOOKS = "looks.json"
"""Beside records of many runs: by file name, the numbers of seeds at which they were looked at on the way."""


def looks_beside(kept: Iterable[Path]) -> tuple[int, ...] | None:
    """The looks that were noted for these records, or for those of them with most; None where none are."""
    noted = []
    for file in dict.fromkeys(kept):
        beside = file.parent / LOOKS
        if beside.is_file():
            try:
                seeds = json.loads(beside.read_bytes()).get(file.name, [])
                if not isinstance(seeds, list) or not all(is_count(each, 1) for each in seeds):
                    raise ValueError(seeds)
                noted.append(tuple(seeds))
            except (ValueError, TypeError, AttributeError) as error:
                remedy = 'It is as {"runs.jsonl": [3]}: looked at when there were three seeds.'
                raise StateError(message("numbers of seeds by file name", str(beside), remedy)) from error
    return max(noted, key=len, default=()) or None


def kind_of(path: Path) -> str:
    """What the first line of a file is; empty where nobody says."""
    try:
        with open(path, "rb") as file:
            first = file.readline()
        fact = json.loads(first or b"{}")
    except (ValueError, RecursionError, OSError):
        return DAMAGED
    return str(fact.get("kind", "")) if isinstance(fact, dict) else ""


def read_file(path: str | os.PathLike[str]) -> Iterator[Run]:
    """The runs of one file: each begins with a ``start``."""
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
            del run.epochs[epoch:]  # a run resumed from an older checkpoint goes over some epochs again
            run.epochs.append(fact)
        elif kind in ("samples", "end"):
            object.__setattr__(run, kind, fact)  # a copy would have to read its settings once more
    if run is not None:
        yield run


def _begin(fact: Fact, path: Path, number: int) -> Run:
    if fact.get("format") not in (1, FORMAT):
        raise _damaged(path, number, f"has format {fact.get('format')!r}, and this version reads {FORMAT}")
    if not isinstance(fact.get("settings"), dict):
        raise _damaged(path, number, "has no settings")
    run = Run(str(fact.get("run", path.parent.name)), fact, file=path)
    try:
        run.settings  # noqa: B018 - what is wrong with them is said here, where the file is known
    except InputError as error:
        raise _damaged(path, number, f"has settings that this version does not take ({error})") from error
    return run


def _record_of(path: Path) -> Path:
    found = path / FILE if path.is_dir() else path
    if not found.is_file():
        raise InputError(message(f"a run's folder, with a {FILE}", str(path), "infobatch train makes one."))
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
    """So that the next line begins a new one; what is torn goes beside, into a file of its own."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data) and _is_fact(data[whole:]):
        with naming(path), open(path, "ab") as file:
            file.write(b"\n")
    elif whole < len(data):
        beside = path.with_suffix(".torn")
        with naming(beside), open(beside, "ab") as torn:
            torn.write(data[whole:] + b"\n")
            os.fsync(torn.fileno())
        os.truncate(path, whole)


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
