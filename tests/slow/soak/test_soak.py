"""The soak scripts, in small: the full counts are for an evening."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from launching import run_ranks

HERE = Path(__file__).parent
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}


def test_killed_at_random_it_ends_the_same() -> None:
    command = [sys.executable, str(HERE / "kill.py"), "--count", "12"]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "12 runs" in done.stdout
    assert "0 ended differently" in done.stdout


def test_many_epochs_grow_nothing_and_drift_nowhere() -> None:
    said = run_ranks(2, HERE / "soak.py", "--epochs", 200).out
    assert said.count("0 ranks drifted") == 2
