"""Starts runs of train.py alone or with torchrun, and reads back what they wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).with_name("train.py")


class Launcher:
    def __init__(self, folder: Path, script: Path = SCRIPT) -> None:
        self.folder = folder
        self.script = script

    def __call__(
        self, world: int, runs: list[dict[str, Any]], *, restarts: int = 0, fails: bool = False
    ) -> dict[str, list[Any]]:
        """All runs in one go on ``world`` ranks; for each, the results by rank (None where none was written)."""
        wanted = self.folder / f"runs-{world}.json"
        wanted.write_text(json.dumps(runs))
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
        launch = [*torchrun, f"--max-restarts={restarts}"] if world > 1 else []
        done = subprocess.run(
            [sys.executable, *launch, str(self.script), str(wanted), str(self.folder)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert fails == (done.returncode != 0), done.stderr[-4000:]
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
