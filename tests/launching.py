"""Programs and ranks for the tests, in processes that have torch already: importing it is most of what they take.

``run_ranks`` is torchrun in small, with the same environment and a store that belongs to no rank. What torchrun
itself does, restarts and several hosts, is tested with the real one: ``torchrun``.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import runpy
import shutil
import signal
import sys
import tempfile
import time
import weakref
from dataclasses import dataclass
from multiprocessing import connection, forkserver
from multiprocessing.context import set_spawning_popen
from pathlib import Path
from typing import Any
from unittest import mock

import torch.distributed as dist

IMPORTED = [
    "infobatch.cli.app",
    "infobatch.integrations.dcp",
    "infobatch.lab.runs.many_runs",
    "torch._dynamo",  # which the first optimizer of a process imports
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.nn.parallel",
]
"""By the server once, for all that it forks."""


def torchrun(*words: object) -> list[str]:
    """The command, for a shell."""
    return [sys.executable, "-m", "torch.distributed.run", *map(str, words)]


class Program:
    """``python`` with these words, a script or ``-m`` and a module first; used as ``subprocess.Popen`` is.

    It is new, but forked from a server that has done nothing but import: what a cold start does is not tested so.
    """

    def __init__(self, *words: object, **environment: object) -> None:
        folder = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._files = Path(folder, "out"), Path(folder, "err")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED)
        with mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "1", **_texts(environment)}):
            forkserver.ensure_running()
            self._process = context.Process(target=_perform, args=([*map(str, words)], {**os.environ}, self._files))
            self._process.start()
        self.sentinel = self._process.sentinel

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """With whatever it has started itself."""
        if self._process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()

    def errors(self) -> str:
        """What it has printed to stderr so far."""
        path = self._files[1]
        return path.read_text() if path.exists() else ""

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it printed, once it has ended."""
        self._process.join(timeout)
        if self.poll() is None:
            raise TimeoutError(f"still running after {timeout} s")
        out, err = (path.read_text() if path.exists() else "" for path in self._files)
        return out, err


def _perform(words: list[str], environment: dict[str, str], files: tuple[Path, Path]) -> None:
    """In the new process: what ``python`` does with its words."""
    os.setsid()
    for number, path in enumerate(files, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    multiprocessing.set_start_method(None, force=True)  # as ever for its own children, not as for this one
    os.environ.clear()
    os.environ.update(environment)
    if words[0] == "-m":
        sys.argv[:] = words[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = words
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")


@dataclass(frozen=True)
class Ended:
    codes: list[int | None]
    """As of ``Popen.returncode``, by rank."""
    out: str
    """What all of them printed, one after the other."""


def run_ranks(world: int, script: Path, *arguments: object, timeout: float = 180, check: bool = True) -> Ended:
    """Ranks of a script; where ``world`` is 1, the script alone, with no word of ranks.

    One that fails ends all, as with torchrun, and the test; without ``check`` each is left to end by itself.
    """
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False) if world > 1 else None
    environments = [_as_torchrun_says(rank, world, store.port) if store else {} for rank in range(world)]
    ranks = [Program(script, *arguments, **environment) for environment in environments]
    try:
        _wait(ranks, time.monotonic() + timeout, check)
    finally:
        for rank in ranks:
            rank.kill()
        out, err = map("".join, zip(*(rank.communicate() for rank in ranks), strict=True))
    codes = [rank.returncode for rank in ranks]
    assert not check or codes == [0] * world, f"{codes}\n{out[-2000:]}\n{err[-4000:]}"
    return Ended(codes, out)


def _wait(ranks: list[Program], deadline: float, check: bool) -> None:
    """Until all have ended or, with ``check``, one has failed; those that take too long will be killed."""
    while running := [rank.sentinel for rank in ranks if rank.poll() is None]:
        ended = connection.wait(running, max(0.0, deadline - time.monotonic()))
        if not ended or (check and any(rank.poll() for rank in ranks)):
            return


def _as_torchrun_says(rank: int, world: int, port: int) -> dict[str, object]:
    return {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "ROLE_RANK": rank,
        "GROUP_RANK": 0,
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": world,
        "ROLE_WORLD_SIZE": world,
        "GROUP_WORLD_SIZE": 1,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": port,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_RUN_ID": "tests",
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }


def _texts(values: dict[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items()}


def as_spawned(thing: Any) -> Any:
    """What another process would get of it, were it started with it."""
    set_spawning_popen(object())
    try:
        return pickle.loads(pickle.dumps(thing))
    finally:
        set_spawning_popen(None)
