"""A queue of runs that several processes share: which run is whose, in which order, and what is done already."""

from __future__ import annotations

import fcntl
import functools
import json
import os
import shlex
import time
from argparse import Namespace as Job
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from summary import read
from training import identity

Line = tuple[int, Job]
"""The number of a line, and its options."""


class Claims:
    """Runs that processes have taken. A claim is a lock on a file: whatever ends a process, its claims end with it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.refused = 0
        """Runs that others had taken."""
        self._held: dict[tuple[int, int], int] = {}

    def take(self, number: int, seed: int) -> bool:
        """Take the run of a line with a seed; True for exactly one of all claims on it."""
        place = os.open(f"{self.path}.{number}.{seed}.claim", os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(place)
            self.refused += 1
            return False
        self._held[number, seed] = place
        return True

    def release(self, number: int, seed: int) -> None:
        """Let others take a run that this process has taken."""
        os.close(self._held.pop((number, seed)))

    def close(self) -> None:
        """Release everything."""
        for key in list(self._held):
            self.release(*key)


class Clock:
    """Says when to stop: while another run, as long as the longest one so far, would not end in time."""

    def __init__(self, minutes: float, now: Callable[[], float] = time.monotonic) -> None:
        self.limit, self.now = 60 * minutes, now
        self.began = self.latest = now()
        self.longest = 0.0

    def is_over(self) -> bool:
        """Note that a run has ended, compilation included; return whether none may begin any more."""
        now = self.now()
        self.longest = max(self.longest, now - self.latest)
        self.latest = now
        return now - self.began + self.longest > self.limit


def read_jobs(path: Path, parse: Callable[[list[str]], Job]) -> list[list[Line]]:
    """Return the sections of a job file, which empty lines and comments divide.

    All of it is read at once, so that a bad line is seen before the first run.
    """
    sections: list[list[Line]] = [[]]
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        words = shlex.split(line, comments=True)
        if words:
            sections[-1].append((number, parse(words)))
        elif sections[-1]:
            sections.append([])
    return [section for section in sections if section]


def in_turn(section: list[Line], worker: tuple[int, int]) -> list[Line]:
    """Return the lines of a section in the order of one of several processes, each of which begins at another line.

    So they do not all compile the same at the same time.
    """
    index, count = worker
    first = (index - 1) * len(section) // count
    return section[first:] + section[:first]


def open_runs(sections: list[list[Line]], worker: tuple[int, int], claims: Claims) -> Iterator[tuple[Job, int, int]]:
    """Take one run after the other that nobody has taken and no record holds; yield its options, line and seed."""
    for section in sections:
        for number, job in in_turn(section, worker):
            for seed in job.seeds:
                if is_done(job, seed) or not claims.take(number, seed):
                    continue
                if is_done(job, seed):  # meanwhile
                    claims.release(number, seed)
                else:
                    yield job, number, seed


def is_done(job: Job, seed: int) -> bool:
    """Whether the records hold this run."""
    if not job.records.exists():
        return False
    wanted = identity(job, seed).items()
    state = job.records.stat()
    return any(wanted <= one.items() for one in _records(job.records, state.st_size, state.st_mtime_ns))


@functools.lru_cache(maxsize=4)
def _records(path: Path, *state: int) -> list[dict[str, Any]]:
    """Return the records of a file in this state."""
    del state
    return [one for one in read([path]) if "format" in one]


def append(path: Path, record: dict[str, Any]) -> None:
    """Append a line, whole, whatever other processes write and whatever a killed one has left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        is_torn = False
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            is_torn = file.read(1) != b"\n"
        file.write(b"\n" * is_torn + json.dumps(record).encode() + b"\n")


def parse_worker(text: str) -> tuple[int, int]:
    """Return (1, 4) of ``1/4``."""
    index, _, count = text.partition("/")
    if not 1 <= int(index) <= int(count):
        raise ValueError(f"expected a number such as 1/4, from 1/4 to 4/4; got {text}")
    return int(index), int(count)
