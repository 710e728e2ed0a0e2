"""The speedrun on a rented GPU, rehearsed on a CPU: packed data, where the time of a step goes, and its commands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

FOLDER = Path(__file__).resolve().parents[2] / "research" / "speedrun"
sys.path.insert(0, str(FOLDER))

import data as images  # noqa: E402
import nets  # noqa: E402
import pack  # noqa: E402
import profile_steps  # noqa: E402
import speedrun  # noqa: E402
import training  # noqa: E402


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images of all kinds, with their labels."""
    made = {name: array.numpy() for name, array in images.make_up(10, 2600).items()}
    made["test_x"][:300] = np.random.default_rng(0).integers(0, 256, (300, 32, 32, 3))
    made["test_x"][300], made["test_x"][301] = 0, 255
    (tmp_path / "cifar10").mkdir()
    for name, array in made.items():
        np.save(tmp_path / "cifar10" / f"{name}.npy", array)
    return tmp_path


def use_pack(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["pack.py", *map(str, words)])
    pack.main()


def test_packed_data_come_back_byte_for_byte(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    use_pack(monkeypatch, folder / "cifar10", folder / "packed", "--limit", "4")
    pieces = sorted((folder / "packed").iterdir())
    assert [one.name for one in pieces] == [f"cifar10.{number:02d}.pack" for number in range(len(pieces))]
    assert len(pieces) >= 2
    assert all(one.stat().st_size <= 4 * 2**20 for one in pieces)
    use_pack(monkeypatch, "--unpack", *reversed(pieces), folder / "back")
    for path in (folder / "cifar10").iterdir():
        assert path.read_bytes() == (folder / "back" / path.name).read_bytes()


def test_pieces_that_are_missing_or_damaged_are_refused(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    use_pack(monkeypatch, folder / "cifar10", folder / "packed", "--limit", "4")
    first, *rest = sorted((folder / "packed").iterdir())
    for pieces in (rest, [first]):
        with pytest.raises(SystemExit, match="pass all pieces"):
            use_pack(monkeypatch, "--unpack", *pieces, folder / "back")
    chunks = list(pack.read_piece(first))
    head = chunks[0].head
    other = pack.pack_rows(np.zeros((head["rows"], *head["shape"][1:]), head["dtype"]), head["is_foretold"])
    chunks[0] = pack.Chunk({**head, "size": len(other)}, other)
    first.write_bytes(b"".join(json.dumps(one.head).encode() + b"\n" + one.body for one in chunks))
    with pytest.raises(SystemExit, match="damaged"):
        use_pack(monkeypatch, "--unpack", first, *rest, folder / "back")
    assert not (folder / "back").exists()
    with pytest.raises(SystemExit, match=r"no \.npy file"):
        use_pack(monkeypatch, folder / "packed", folder / "again")


def test_images_pack_well_where_neighbours_are_alike() -> None:
    random = np.random.default_rng(0)
    slope = np.arange(32)[None, :, None, None] * 3 + np.arange(32)[None, None, :, None] * 2
    grey = slope + random.integers(0, 64, (50, 1, 1, 3)) + random.integers(0, 16, (50, 32, 32, 1))
    assert len(pack.pack_rows(grey.astype(np.uint8), True)) < 0.8 * len(pack.pack_rows(grey.astype(np.uint8), False))


def test_a_profile_has_a_line_for_each_method(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (images, nets, speedrun, training):
        monkeypatch.setattr(module, "BATCH", 32)
    monkeypatch.setattr(profile_steps, "make_up", lambda classes, count: images.make_up(classes, 330))
    path = tmp_path / "profile.jsonl"
    words = ["--tiny", "--device", "cpu", "--steps", "4", "--records", str(path)]
    monkeypatch.setattr(sys, "argv", ["profile_steps.py", *words])
    limit = torch._dynamo.config.recompile_limit
    profile_steps.main()
    torch._dynamo.config.recompile_limit = limit
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    printed = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in printed if line.startswith("{")] == lines
    assert [line["ahead"] for line in lines] == [True, True, False, True, False]
    full, *sieves = lines
    assert (full["rows"], full["look_ms"], full["busy"], full["steps"]) == (32, 0, None, 4)
    for line in sieves:
        assert 16 <= line["rows"] < 32
        assert 0 < line["look_ms"] < line["ms"] >= line["host_ms"] > 0
        assert 0 < line["model_ms"] < line["ms"]


def test_kernels_that_overlap_count_once() -> None:
    assert profile_steps.busy_ms([(5000, 6000), (0, 1000), (500, 2000), (600, 700)]) == 3.0


def gpu(folder: Path, *steps: str, expected: int = 0, **environment: str) -> str:
    """Run a copy of gpu.sh, as on a machine to which the repository was copied."""
    variables = {
        **os.environ,
        "RUNS": str(folder / "runs"),
        "OUT": str(folder / "out"),
        "PYTHON": sys.executable,
        "WORKERS": "2",
        **environment,
    }
    script = folder / "tree" / "research" / "speedrun" / "gpu.sh"
    ran = subprocess.run(["bash", str(script), *steps], env=variables, capture_output=True, text=True, timeout=240)
    assert ran.returncode == expected, ran.stdout + ran.stderr
    return ran.stdout


def copy_tree(folder: Path) -> None:
    ours = shutil.ignore_patterns("__pycache__")
    shutil.copytree(FOLDER, folder / "tree" / "research" / "speedrun", ignore=ours)
    shutil.copytree(FOLDER.parents[1] / "src", folder / "tree" / "src", ignore=ours)
    (folder / "tree" / "carry").mkdir()


def test_a_command_brings_back_what_there_is_although_a_step_fails(tmp_path: Path) -> None:
    copy_tree(tmp_path)
    (tmp_path / "tree" / "carry" / "records.jsonl").write_text("{}\n")
    assert "store" in gpu(tmp_path)
    gpu(tmp_path, "store", "unpack:cifar10", "queue", expected=1)
    assert (tmp_path / "out" / "records.jsonl").read_text() == "{}\n"
    assert not (tmp_path / "runs" / "pids").exists()
    gpu(tmp_path, "stroe", expected=2)


@pytest.mark.slow
def test_the_commands_for_a_rented_gpu_work_one_after_the_other(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_tree(folder)
    (folder / "queue.txt").write_text("--seeds 0-1 --budget 0.5\n--dataset cifar100 --budget 0.5 --seeds 0\n")
    (folder / "alone.txt").write_text("--budget 0.5\n--method 'adaptive(threshold=0.4, every=2)' --budget 0.5\n")
    use_pack(monkeypatch, folder / "cifar10", folder / "packed", "--limit", "4")
    pieces, carry = sorted((folder / "packed").iterdir()), folder / "tree" / "carry"
    same = {"EXTRA": "--tiny --device cpu", "QUEUE": str(folder / "queue.txt"), "ALONE": str(folder / "alone.txt")}

    shutil.copy(pieces[0], carry)  # one call
    gpu(folder, "store", **same)
    (carry / pieces[0].name).unlink()
    for piece in pieces[1:]:  # and the next
        shutil.copy(piece, carry)
    gpu(folder, "store", "unpack:cifar10", "alone", "queue", **same)
    assert len((folder / "out" / "alone.jsonl").read_text().splitlines()) == 2
    unpacked = folder / "runs" / "data" / "cifar10" / "train_x.npy"
    assert unpacked.read_bytes() == (folder / "cifar10" / "train_x.npy").read_bytes()
    printed = gpu(folder, "store", "wait:120", "summary", **same)
    assert "0 processes run, 3 records" in printed
    assert "tiny-cifar100" in printed
    assert len((folder / "out" / "records.jsonl").read_text().splitlines()) == 3

    for path in (folder / "out").glob("*.jsonl"):  # on a fresh machine, with the records that came back
        shutil.copy(path, carry)
    shutil.rmtree(folder / "runs")
    gpu(folder, "store", "queue", "wait:120", **same)
    assert len((folder / "out" / "records.jsonl").read_text().splitlines()) == 3
