"""Two ranks of a script beside these tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def two_ranks() -> Callable[..., None]:
    def launch(script: str, *arguments: str) -> None:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        done = subprocess.run(
            [sys.executable, *torchrun, str(Path(__file__).with_name(script)), *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert done.returncode == 0, done.stderr[-4000:]

    return launch
