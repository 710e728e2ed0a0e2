"""Every example runs as a newcomer runs it, and stays short enough to be read."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
LIMITS = {"digits.py": 80, "resume.py": 80, "three_lines.py": 50}


def run(name, folder, *arguments):
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_digits(tmp_path):
    said = run("digits.py", tmp_path, "--epochs", "2", "--seeds", "1")
    assert "1 paired seeds" in " ".join(said.split())
    runs = json.loads((tmp_path / "runs" / "digits.json").read_text())["runs"]
    (full,), (pruned,) = runs["full data"], runs["InfoBatch"]
    assert pruned["samples"] < full["samples"] == 2 * 1257
    assert pruned["steps"] < full["steps"]
    assert 0 < pruned["pruning, s"] < pruned["seconds"]


@pytest.mark.slow
def test_sieve(tmp_path):
    said = run("sieve.py", tmp_path, "--epochs", "6", "--seeds", "1")
    rows = re.findall(r"(full data|sieve|shorter run) +│ +([\d.]+)% +│ +([\d.]+)", said)
    assert [name for name, *_ in rows] == ["full data", "sieve", "shorter run"]
    full, sieved, shorter = (float(compute) for _, compute, _ in rows)
    assert full == 100
    assert 50 < sieved < 95
    assert abs(sieved - shorter) <= 100 / (6 * 19)  # equal compute, to a step
    assert all(float(accuracy) > 90 for *_, accuracy in rows)


def test_three_lines(tmp_path):
    said = run("three_lines.py", tmp_path)
    assert "epoch  0: 2000 of 2000" in said
    assert "epoch 15: 2000 of 2000" in said


@pytest.mark.slow
def test_resume(tmp_path):
    said = run("resume.py", tmp_path)
    assert "resumed in epoch 1" in said
    assert said.rstrip().endswith("True")


@pytest.mark.slow
def test_amp_accumulation(tmp_path):
    said = run("amp_accumulation.py", tmp_path)
    epochs = re.findall(r"epoch \d: (\d+) samples, (\d+) steps, learning rate ([\d.]+)", said)
    assert len(epochs) == 8
    for samples, steps, _ in epochs:
        assert int(steps) == -(-int(samples) // (32 * 4))  # the last group of a pruned epoch is smaller
    assert int(epochs[3][0]) < 2000 == int(epochs[7][0])
    assert float(epochs[7][2]) == 0  # the schedule reached its end
    assert float(re.search(r"([\d.]+)% right", said)[1]) > 90


@pytest.mark.slow
def test_own_task(tmp_path):
    metric, saved = map(float, re.findall(r"[\d.]+(?=; saved| % of)", run("own_task.py", tmp_path)))
    assert 50 < metric <= 100
    assert 10 < saved < 50


@pytest.mark.parametrize("name", [path.name for path in sorted(EXAMPLES.glob("*.py"))])
def test_is_short(name):
    assert len((EXAMPLES / name).read_text().splitlines()) <= LIMITS.get(name, 80)
