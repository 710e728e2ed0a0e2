"""The soak in small, always with the same cases: `python -m tests.soak.attack --minutes 60` is for an evening."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launching import run_ranks

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "words", [("--cases", "150"), ("--cases", "12", "--only", "kill")], ids=["all kinds", "kill -9"]
)
def test_random_trainings_hold_or_are_refused(words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "tests.soak.attack", "--seed", "0", *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert f"{words[1]} tried" in done.stdout


def test_many_epochs_grow_nothing_and_drift_nowhere() -> None:
    said = run_ranks(2, ROOT / "tests" / "soak" / "growth.py", "--epochs", 200).out
    assert said.count("0 ranks drifted") == 2
