"""Ranks for the tests, in processes that have torch already: importing it would be most of what they take.

``run_ranks`` is torchrun in small, with the same environment and a store that belongs to no rank. What torchrun
itself does, restarts and several hosts, is tested with the real one: ``torchrun``.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing import connection, forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest import mock

import torch.distributed as dist

IMPORTED = [
    "infobatch.integrations.dcp",
    "torch._dynamo",  # which the first optimizer of a process imports
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.nn.parallel",
]
"""By the server once, for all that it forks."""


@dataclass(frozen=True)
class Ended:
    codes: list[int | None]
    """As of ``Popen.returncode``, by rank."""
    out: str
    """What all of them printed, one after the other."""
    err: str


def torchrun(*words: object) -> list[str]:
    """The command, for a shell."""
    return [sys.executable, "-m", "torch.distributed.run", *map(str, words)]


def run_ranks(world: int, script: Path, *arguments: object, timeout: float = 180, check: bool = True) -> Ended:
    """Ranks of a script; where ``world`` is 1, the script alone, with no word of ranks.

    One that fails ends all, as with torchrun, and the test; without ``check`` each is left to end by itself.
    """
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False) if world > 1 else None
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    with mock.patch.dict(os.environ, OMP_NUM_THREADS="1"), tempfile.TemporaryDirectory() as folder:
        forkserver.ensure_running()
        files = [(Path(folder, f"{rank}.out"), Path(folder, f"{rank}.err")) for rank in range(world)]
        words = [str(script), *map(str, arguments)]
        started = []
        for rank in range(world):
            environment = {**os.environ, **(_as_torchrun_says(rank, world, store.port) if store else {})}
            started.append(context.Process(target=_perform, args=(words, environment, files[rank])))
        try:
            for process in started:
                process.start()
            _wait(started, timeout, check)
        finally:
            for process in started:
                if process.is_alive():
                    process.kill()
                    process.join()
        out, err = ("".join(path.read_text() for path in some if path.exists()) for some in zip(*files, strict=True))
    ended = Ended([process.exitcode for process in started], out, err)
    assert not check or ended.codes == [0] * world, f"{ended.codes}\n{out[-2000:]}\n{err[-4000:]}"
    return ended


def _wait(started: list[BaseProcess], timeout: float, check: bool) -> None:
    """Until all have ended or, with ``check``, one has failed; those that take too long will be killed."""
    deadline = time.monotonic() + timeout
    while running := [process.sentinel for process in started if process.is_alive()]:
        ended = connection.wait(running, max(0.0, deadline - time.monotonic()))
        if not ended or (check and any(process.exitcode for process in started)):
            return


def _as_torchrun_says(rank: int, world: int, port: int) -> dict[str, str]:
    said = {
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
    return {name: str(value) for name, value in said.items()}


def _perform(words: list[str], environment: dict[str, str], files: tuple[Path, Path]) -> None:
    """In the new process: what ``python`` does with a script and its arguments."""
    for number, path in enumerate(files, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    multiprocessing.set_start_method(None, force=True)  # as ever for its own children, not as for this one
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = words
    sys.path.insert(0, str(Path(words[0]).parent))
    runpy.run_path(words[0], run_name="__main__")
