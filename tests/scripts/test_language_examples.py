"""The examples of language models and of selection: fewer samples than on full data, and something is learned."""

import json
import math
import random
import re
import runpy
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"
LETTERS = "abcd"


def run(name, folder, *arguments):
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def entropy(counts):
    """The total loss of the best prediction that knows these counts and nothing else, in nats."""
    return -sum(many * math.log(many / counts.total()) for many in counts.values())


# ---- language_model.py -----------------------------------------------------------------------------------------


def write_pairs(folder):
    """Questions of many lengths, each answered by its last letter; return the file and the loss without questions."""
    draw, pairs = random.Random(0), []
    for _ in range(600):
        letter = draw.choice(LETTERS)
        pairs.append({"question": "?" * draw.randrange(7) + letter, "answer": letter})
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    at_place = defaultdict(Counter)
    for pair in pairs[:120]:  # the fifth that is held out
        for place, byte in enumerate(pair["answer"] + "\n"):
            at_place[place][byte] += 1
    return path, sum(map(entropy, at_place.values())) / sum(counts.total() for counts in at_place.values())


def read_runs(said):
    pattern = r"(full data|InfoBatch) +([\d.]+)% of the samples saved, held-out loss ([\d.]+), ([\d.]+)% of the answers"
    return {name: tuple(map(float, numbers)) for name, *numbers in re.findall(pattern, said)}


def check_runs(runs, blind):
    saved, loss, _ = runs["full data"]
    assert saved == 0
    assert loss < blind / 2
    saved, loss, right = runs["InfoBatch"]
    assert 10 < saved < 45
    assert loss < blind / 2
    assert right > 50


@pytest.mark.slow
def test_language_model_padded_and_packed_are_the_same_training(tmp_path):
    path, blind = write_pairs(tmp_path)
    assert 0.65 < blind < math.log(4) / 2  # four letters, and an end of line that is certain
    padded = read_runs(run("language_model.py", tmp_path, "--data", path, "--epochs", 10))
    check_runs(padded, blind)
    packed = read_runs(run("language_model.py", tmp_path, "--data", path, "--epochs", 10, "--packed"))
    for name, numbers in padded.items():
        assert packed[name] == pytest.approx(numbers, abs=0.02)


@pytest.mark.slow
def test_language_model_makes_its_own_sums(tmp_path):
    full, pruned = read_runs(run("language_model.py", tmp_path, "--samples", 300, "--epochs", 8)).values()
    assert full[0] == 0 < 10 < pruned[0]
    assert max(full[1], pruned[1]) < math.log(11)  # ten digits and the end of line, all equally likely


@pytest.mark.slow
def test_language_model_with_low_rank_adapters(tmp_path):
    pytest.importorskip("peft")
    path, blind = write_pairs(tmp_path)
    check_runs(read_runs(run("language_model.py", tmp_path, "--data", path, "--epochs", 10, "--lora")), blind)


# ---- stream_language_model.py ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_stream_counts_its_compute(tmp_path):
    draw = random.Random(0)
    rows = ["".join(draw.choice(["red ", "green ", "blue "]) for _ in range(16))[:48] for _ in range(3000)]
    text = "".join(row + "-" * 48 for row in rows)  # every other row is learned at once
    (tmp_path / "words.txt").write_text(text)
    said = run("stream_language_model.py", tmp_path, "--data", "words.txt")
    rows = re.findall(r"(full data|sieve|shorter run) +([\d.e+]+) FLOPs, +([\d.]+)% .* held-out loss ([\d.]+)", said)
    assert [name for name, *_ in rows] == ["full data", "sieve", "shorter run"]
    flops, shares, losses = ([float(one) for one in column] for column in list(zip(*rows, strict=True))[1:])
    steps, length, batch = len(text) * 9 // 10 // (48 * 32), 48, 32
    weights = 2 * (4 * 64 * 64 + 3 * 64 * 128) + 64 * 256  # of two layers, and of the head
    forward = 2 * weights * length + 2 * 2 * 2 * length * length * 64  # two products of attention in each layer
    assert flops[0] == pytest.approx(3 * forward * steps * batch, rel=1e-3)
    assert shares[0] == 100
    assert 45 < shares[1] < 90
    assert abs(shares[2] - shares[1]) < 60 / steps + 0.11  # equal compute, to half a step and the digits printed
    assert all(loss < entropy(Counter(text)) / len(text) / 2 for loss in losses)


# ---- select_then_prune.py --------------------------------------------------------------------------------------


def test_select_then_prune(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["select_then_prune.py", "--epochs", "3", "--seeds", "1", "--share", "0.5"])
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)  # that of this process is left as it is
    runpy.run_path(str(EXAMPLES / "select_then_prune.py"), run_name="__main__")
    said = capsys.readouterr().out
    rows = re.findall(
        r"(full data|InfoBatch|DQ|DQ, then InfoBatch|shorter run)  +([\d,]+) samples, +([\d,]+) .*?([\d.]+) %", said
    )
    runs = {
        name: (int(size.replace(",", "")), int(used.replace(",", "")), float(right)) for name, size, used, right in rows
    }
    assert list(runs) == ["full data", "InfoBatch", "DQ", "DQ, then InfoBatch", "shorter run"]
    sizes, used, rights = zip(*runs.values(), strict=True)
    assert sizes == (1257, 1257, 628, 628, 1257)
    assert used[0] == 3 * 1257
    assert used[2] == 3 * 628
    assert 0.5 * used[0] < used[1] < used[0]
    assert 0.5 * used[2] < used[3] < used[2]
    assert used[4] == 1257  # one epoch is closest to the samples of the run above
    assert min(rights) > 30  # a tenth by chance
