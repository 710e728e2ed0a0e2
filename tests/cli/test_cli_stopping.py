"""``infobatch`` with Ctrl-C and a machine that dies."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launching import Program
from shell import TOY, numbers, start

from infobatch.lab.runs.records import read, read_many
from infobatch.lab.train.loop import Training


def until(true: Callable[[], Any], process: Program) -> None:
    for _ in range(6000):
        if true():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    raise AssertionError("it never came")


def lines_of(folder: Path) -> int:
    path = folder / "record.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


@pytest.mark.slow
def test_killed_in_mid_run_and_resumed_it_ends_as_an_undisturbed_run(say: Any, place: Path) -> None:
    folder = place / "runs" / "mine" / "infobatch-seed0"
    words = ("train", "--task", "toy:slow", "--epochs", "30", "--name", "mine")
    process = start(*words)
    until(lambda: lines_of(folder) > 7 and (folder / "checkpoint.pt").exists(), process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert read(folder).end is None
    code, out, _ = say("train", "--resume", str(folder))
    assert (code, out) == (0, f"Recorded in {folder}\n")
    assert '"resume"' in (folder / "record.jsonl").read_text()
    assert say(*words[:-1], "whole")[0] == 0
    assert numbers(read(folder)) == numbers(read("runs/whole/infobatch-seed0"))


@pytest.mark.slow
def test_ctrl_c_leaves_a_run_that_goes_on(say: Any, place: Path) -> None:
    folder = place / "runs" / "mine" / "infobatch-seed0"
    process = start("train", "--task", "toy:slow", "--epochs", "60", "--name", "mine", "--json")
    until(lambda: lines_of(folder) > 2, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Ctrl-C again" in err
    assert "To continue: infobatch train --resume runs/mine/infobatch-seed0" in err
    assert "Traceback" not in err
    assert "\x1b" not in err
    assert json.loads(out)["finished"] is False
    assert (folder / "checkpoint.pt").exists()
    code, out, err = say("train", "--resume", "runs/mine/infobatch-seed0", "--json")
    assert code == 0, err
    assert json.loads(out)["end"]["epochs"] == 60
    assert not (folder / "checkpoint.pt").exists()


@pytest.mark.slow
def test_a_comparison_that_is_terminated_goes_on(say: Any, place: Path) -> None:
    words = ("compare", "--task", "toy:slow", "--methods", "full", "infobatch", "--seeds", "2")
    process = start(*words, "--name", "mine")
    until(lambda: lines_of(place / "runs/mine/infobatch-seed0") > 3, process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, ""), err
    assert "To continue: infobatch compare --resume runs/mine" in err
    code, out, err = say("compare", "--resume", "runs/mine", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert told["finished"] is True
    code, out, _ = say(*words, "--name", "whole")
    assert code == 0
    mine, whole = read_many("runs/mine"), read_many("runs/whole")
    assert len(whole) == 6
    assert [numbers(run) for run in mine] == [numbers(run) for run in whole]
    # what a person sees, and what a machine does
    rows = {row["label"]: row for row in told["comparison"]["rows"]}
    assert list(rows) == ["full", "infobatch", "full, cost of infobatch"]
    full = [run.end["metric"] for run in whole if run.end and run.label == "full"]
    assert rows["full"]["mean"] == pytest.approx(np.mean(full))
    shown = f"{np.mean(full):.2f} ± {np.std(full, ddof=1):.2f}"
    assert shown in out
    assert "Report:     runs/whole/report.html" in out
    assert (place / "runs/whole/report.html").read_text().lower().startswith("<!doctype html>")


@pytest.mark.slow
def test_a_second_signal_ends_even_a_long_call_into_c(place: Path) -> None:
    (place / "toy.py").write_text(TOY.replace("time.sleep(60)", "time.sleep(2), sum(range(10**12))"))
    folder = place / "runs" / "mine" / "infobatch-seed0"
    process = start("train", "--task", "toy:stuck", "--name", "mine")
    until(lambda: lines_of(folder) == 1, process)
    process.send_signal(signal.SIGTERM)
    time.sleep(3)  # inside the sum by now, in which Python sees no signal
    process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGTERM


def test_two_processes_never_write_to_one_folder_and_the_second_ctrl_c_ends(say: Any, place: Path) -> None:
    folder = place / "runs" / "mine" / "infobatch-seed0"
    process = start("train", "--task", "toy:stuck", "--name", "mine")
    until(lambda: lines_of(folder) == 1, process)
    before = (folder / "record.jsonl").read_bytes()
    for words in (("--resume", str(folder)), ("--task", "toy:stuck", "--name", "mine")):
        code, out, err = say("train", *words)
        assert (code, out) == (2, "")
        assert "no other run writes to" in err
    process.send_signal(signal.SIGINT)
    until(lambda: "again" in process.errors(), process)  # it goes on, and waits for the batch at hand
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT  # a shell calls it 130
    assert "Traceback" not in err
    assert (folder / "record.jsonl").read_bytes() == before


def test_a_damaged_checkpoint_is_named(say: Any, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = place / "runs" / "mine" / "infobatch-seed0"
    with monkeypatch.context() as patch:
        patch.setattr(Training, "end", _lights_out)
        patch.setattr("infobatch.lab.train.loop.CHECKPOINT_SECONDS", 0.0)
        assert say("train", "--task", "toy:make", "--name", "mine")[0] == 2
    checkpoint = folder / "checkpoint.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    code, out, err = say("train", "--resume", str(folder))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert f"mv {checkpoint} {checkpoint}.damaged" in err


def _lights_out(training: Any) -> Any:
    raise OSError("no space left on device")
