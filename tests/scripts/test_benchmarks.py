"""The benchmark runs and says what it measured; what it measured is not judged here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_quick_benchmark_prints_every_row_as_json():
    command = [sys.executable, "benchmarks/core.py", "--quick", "--json"]
    answer = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, timeout=60)
    result = json.loads(answer.stdout)
    whats = [row["what"] for row in result["rows"]]
    for start in ("plan a pruned", "plan a full", "draw and walk", "update()", "held between", "held while", "peak"):
        assert any(what.startswith(start) for what in whats), start
    assert all(row["value"] > 0 and row["verdict"] in ("", "ok", "over") for row in result["rows"])
    held = next(row["value"] for row in result["rows"] if row["what"] == "held between epochs")
    assert held <= 16  # bytes do not depend on the machine


@pytest.mark.slow
def test_quick_scale_prints_a_line_a_row():
    command = [sys.executable, "benchmarks/scale.py", "--quick", "--json"]
    answer = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, timeout=60)
    rows = [json.loads(line) for line in answer.stdout.splitlines()]
    assert [row["ranks"] for row in rows] == [1, 2]
    assert all(row["plan_by_mean_s"] > 0 and row["walk_1m_s"] > 0 for row in rows)
    assert all(row["tensors"] < 9.1 for row in rows)  # bytes do not depend on the machine


@pytest.mark.slow
def test_the_gpu_benchmark_is_rehearsed_without_one():
    command = [sys.executable, "benchmarks/gpu.py", "--device", "cpu", "--tiny", "--json"]
    answer = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, timeout=120)
    whats = [json.loads(line)["what"] for line in answer.stdout.splitlines()]
    for start in (
        "planning an epoch",
        "from one epoch",
        "update() with",
        "update() inside",
        "ResNet-18",
        "what update()",
    ):
        assert any(what.startswith(start) for what in whats), start
