"""Starts runs of train.py, alone or as ranks, and reads back what they wrote."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import run_ranks, torchrun

SCRIPT = Path(__file__).with_name("train.py")


class Launcher:
    def __init__(self, folder: Path, script: Path = SCRIPT) -> None:
        self.folder = folder
        self.script = script

    def __call__(self, world: int, runs: list[dict[str, Any]], *, restarts: int = 0) -> dict[str, list[Any]]:
        """All runs in one go on ``world`` ranks; for each, the results by rank (None where none was written).

        With ``restarts`` by torchrun itself, which starts all ranks again so often when one fails.
        """
        wanted = self.folder / f"runs-{world}.json"
        wanted.write_text(json.dumps(runs))
        if restarts:
            how = ["--standalone", f"--nproc-per-node={world}", f"--max-restarts={restarts}"]
            command = torchrun(*how, self.script, wanted, self.folder)
            done = subprocess.run(command, capture_output=True, text=True, timeout=180)
            assert done.returncode == 0, done.stderr[-4000:]
        else:
            run_ranks(world, self.script, wanted, self.folder)
        return {run["name"]: [self._read(run["name"], world, rank) for rank in range(world)] for run in runs}

    def _read(self, name: str, world: int, rank: int) -> Any:
        path = self.folder / f"{name}.{world}.{rank}"
        return torch.load(path, weights_only=True) if path.exists() else None


@pytest.fixture
def launch(tmp_path: Path) -> Launcher:
    return Launcher(tmp_path)


@pytest.fixture(scope="module")
def launch_once(tmp_path_factory: pytest.TempPathFactory) -> Launcher:
    return Launcher(tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def launch_sharded(tmp_path_factory: pytest.TempPathFactory) -> Launcher:
    return Launcher(tmp_path_factory.mktemp("sharded"), SCRIPT.with_name("sharded.py"))
