"""The benchmark runs and says what it measured; what it measured is not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_tiny_benchmark_prints_a_line_a_row() -> None:
    command = [sys.executable, "benchmarks/selection.py", "facility_location", "--tiny", "--json", "--data=noise"]
    answer = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, timeout=60)
    (row,) = [json.loads(line) for line in answer.stdout.splitlines()]
    assert (row["method"], row["data"], row["size"], row["width"]) == ("facility_location", "noise", 400, 16)
    assert row["seconds"] > 0
    assert row["bytes_a_sample"] >= 0
