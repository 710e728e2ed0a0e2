"""``infobatch`` with methods that choose inside the batch: lists, tables, Ctrl-C."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from shell import numbers, start

from infobatch.lab.compare.naming import name_among
from infobatch.lab.runs.records import read, read_many
from infobatch.lab.train.method_text import parse_sieve
from infobatch.sieve import SIEVE_CARDS

HALF, FEW = "sieve.hardest:keep=0.5,net=mlp16", "sieve.random_rows:keep=0.3"


def test_methods_lists_both_engines(say: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    told = json.loads(say("methods", "--json")[1])
    assert [one["name"] for one in told["sieve"]] == [f"sieve.{name}" for name in SIEVE_CARDS]
    shown = " ".join(say("methods")[1].split())
    for one in told["sieve"]:
        assert all(one[key] for key in ("source", "leaves_out", "weights", "look"))
        assert one["name"] in shown
        assert one["source"] in shown
        if one["by_text"]:
            assert parse_sieve(one["name"]) is not None
        else:
            assert f"{one['name']} needs" in shown
    example = shown.partition("then=METHOD: ")[2].split()[0]
    sieved = parse_sieve(example)
    assert sieved is not None
    assert sieved.then == "infobatch"


def test_a_run_says_what_compute_it_saved(say: Any, place: Path) -> None:
    words = ("train", "--task", "toy:make", "--method", f"{HALF},then=infobatch", "--name", "mine")
    code, out, err = say(*words)
    assert code == 0, err
    (run,) = read_many(place / "runs" / "mine")
    assert run.end is not None
    assert run.end["looking"] > 0
    assert f"{100 * (run.end['saved'] - run.end['looking']):.1f} % of the compute saved" in err + out
    told = json.loads(say(*words[:-1], "again", "--json")[1])
    assert told["label"] == f"{HALF},then=infobatch"
    assert told["end"]["compute"] == run.end["compute"]


@pytest.mark.usefixtures("blank")
def test_the_table_of_a_comparison_is_about_compute(say: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("compare", "--task", "toy:make", "--methods", HALF, FEW, "--seeds", "2", "--epochs", "4")
    told = json.loads(say(*words, "--name", "mine", "--json")[1])
    rows = {row["label"]: row for row in told["comparison"]["rows"]}
    assert set(rows) == {"full", HALF, f"full, cost of {HALF}", FEW, f"full, cost of {FEW}"}
    ours, shorter = rows[HALF], rows[f"full, cost of {HALF}"]
    assert ours["compute"] == pytest.approx(shorter["compute"], abs=20 / 800)  # to a batch
    assert ours["same_cost"]["seeds"] == [0, 1]
    assert rows[FEW]["verdict"]["kind"] == "control"
    name_of = name_among(rows)
    cell = f"{100 * (ours['saved'] - ours['looking']):.1f} (samples {100 * ours['saved']:.1f})"
    for width in (70, 100, 200):
        monkeypatch.setattr("infobatch.cli.tables.PLAIN_WIDTH", width)
        code, out, _ = say("report", "runs/mine", "-o", "page.html")
        assert code == 0
        assert "…" not in out
        assert all(len(line) <= width for line in out.splitlines() if "±" in line)
        assert "net of looking" in out
        assert "full data at equal compute" in out
        assert "less compute than full data" in out
        if width == 200:
            assert cell in out
        for label in rows:
            assert "".join(name_of(label).split())[:12] in "".join(out.split())


@pytest.mark.parametrize("method", ["sieve.hardes", "sieve.hardest:net=mlp17", "sieve.hardest:keep=2", "sieve.tokens"])
def test_a_bad_sieve_starts_nothing(say: Any, place: Path, method: str) -> None:
    for words in (("train", "--method"), ("compare", "--methods")):
        code, out, err = say(words[0], "--task", "toy:make", words[1], method, "--name", "mine")
        assert (code, out) == (2, "")
        assert "expected" in err
        assert "Traceback" not in err
        assert not list(place.rglob("record.jsonl")), words


@pytest.mark.slow
@pytest.mark.parametrize("method", [f"{HALF},then=infobatch", "sieve.adaptive:look=own"])
def test_ctrl_c_and_resume_with_a_sieve(say: Any, place: Path, method: str) -> None:
    """The record of a run stopped by a signal, continued in another process, is that of an undisturbed run."""
    words = ("train", "--task", "toy:slow", "--epochs", "30", "--method", method)
    process = start(*words, "--name", "mine")
    deadline = time.monotonic() + 60
    while (
        not list(place.glob("runs/mine/*/record.jsonl"))
        or sum(path.read_text().count("\n") for path in place.glob("runs/mine/*/record.jsonl")) < 5
    ):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    (folder,) = place.glob("runs/mine/*")
    assert read(folder).end is None
    code, _, err = say("train", "--resume", str(folder))
    assert code == 0, err
    assert say(*words, "--name", "whole")[0] == 0
    (whole,) = place.glob("runs/whole/*")
    assert numbers(read(folder)) == numbers(read(whole))
