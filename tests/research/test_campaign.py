"""The campaign: what is wanted, what is taken next, and that a kill costs only the runs in progress."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from multiprocessing import Array, Value
from pathlib import Path
from typing import Any

import pytest
from launching import Program

from infobatch.errors import InputError
from infobatch.lab.runs import records
from infobatch.lab.runs.records import Run
from infobatch.lab.train.settings import Settings

FOLDER = Path(__file__).resolve().parents[2] / "research" / "campaign"
sys.path.insert(0, str(FOLDER))

import run as campaign  # noqa: E402
import wanted  # noqa: E402


def start(out: Path, *words: str) -> subprocess.Popen[str]:
    """A rehearsal in a process of its own: short runs on digits."""
    command = [sys.executable, str(FOLDER / "run.py"), *words, "--tiny", "--out", str(out)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


FORKED = f"""
import multiprocessing, sys
sys.path.insert(0, {str(FOLDER)!r})
import run
run.mp.get_context = lambda how: multiprocessing.get_context("fork")
run.main()
"""


def rehearse(out: Path, *words: str) -> tuple[int | None, str]:
    """The same to its end, exit code and output, where neither it nor its processes import torch anew."""
    script = out.with_name("forked.py")
    script.write_text(FORKED)
    program = Program(script, *words, "--tiny", "--out", out)
    output, errors = program.communicate(timeout=120)
    return program.returncode, output + errors


def told(path: Path) -> list[tuple[str, int]]:
    return [(one.label, one.settings.seed) for one in records.read_file(path) if one.end is not None]


@pytest.mark.slow
def test_a_campaign_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    out = tmp_path / "new.jsonl"
    with start(out, "screen", "--limit", "3", "--processes", "2") as first:
        assert first.stdout is not None
        for text in first.stdout:
            print(text)
            if text.startswith("{"):  # the first run that is done
                break
        os.killpg(first.pid, signal.SIGKILL)  # as when the machine goes
    before = told(out)
    assert before
    code, output = rehearse(out, "screen", "--limit", str(3 - len(before)), "--processes", "1")
    assert code == 0, output
    assert Counter(told(out)) == Counter((settings_label(one), 0) for one in TRAINED[:3])


@pytest.mark.slow
def test_what_is_pruned_is_run_with_a_short_last_batch_weighed_where_asked(tmp_path: Path) -> None:
    out = tmp_path / "new.jsonl"
    code, output = rehearse(out, "screen", "--limit", "1", "--weighed")
    assert code == 0, output
    assert told(out) == [("infobatch+loss", 0)]


def settings_label(change: dict[str, Any]) -> str:
    return records.label(Settings.of({**wanted.cifar.SCREEN, **change}))


TRAINED = [
    change
    for group in wanted.cifar.SCREENED
    for change in group
    if campaign.is_trainable(Settings.of({**wanted.cifar.SCREEN, **change}))
]
"""Of the first queue, what can still be trained."""


def test_what_is_no_longer_trained_is_left_to_its_records() -> None:
    everything = [change for group in wanted.cifar.SCREENED for change in group]
    dropped = [change for change in everything if change not in TRAINED]
    assert all(
        "ideas" in one or one.get("compensate") == "lr" or one["method"] in ("ramp", "one_walk") for one in dropped
    )
    assert len(everything) == 25
    assert len(dropped) == 15


@pytest.mark.slow
def test_what_has_a_record_of_ours_is_run_again_where_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["screen", "--seeds", "1", "--seconds", "0", "--out", str(tmp_path / "new.jsonl"), "--set", "task=digits"]
    monkeypatch.setattr(campaign.mp, "get_context", lambda how: multiprocessing.get_context("fork"))
    monkeypatch.setattr(campaign, "identity", lambda settings: settings.but(data="", task="cifar100", threads=0).key)
    for again, expected in (([], 7), (["--again"], 10)):  # three of them have a record with seed 0
        monkeypatch.setattr(sys, "argv", ["run.py", *words, *again])
        with pytest.raises(SystemExit, match="0"):
            campaign.main()
        assert f"{expected} runs wanted" in capsys.readouterr().out


def test_what_would_not_end_in_time_gives_way_to_what_does() -> None:
    taken, pace = Array("b", 4), Value("d", 1.0)
    now = time.time()
    assert campaign.take(taken, [900, 50, 900, 60], pace, now + 100) == 1
    assert campaign.take(taken, [900, 50, 900, 60], pace, now + 100) == 3
    assert campaign.take(taken, [900, 50, 900, 60], pace, now + 100) is None
    assert campaign.take(taken, [900, 50, 900, 60], pace, now + 1000) == 0
    assert campaign.take(taken, [900, 50, 900, 60], pace, now + 1000) == 2
    assert campaign.take(taken, [900, 50, 900, 60], pace, now + 1000) is None


def test_one_seed_tells_what_the_others_will_take() -> None:
    runs = [{"method": "a", "seed": 0}, {"method": "b", "seed": 0}, {"method": "a", "seed": 4}]
    steps = Array("q", [900, 900, 900])
    campaign.learn(steps, runs, 0, 500)
    assert list(steps) == [500, 900, 500]


def past(method: str, saved: float, **changes: Any) -> Run:
    settings = Settings.of({"method": method, "model": "conv", "epochs": 10, "batch_size": 100, **changes})
    return Run("past", {"settings": settings.plain()}, end={"saved": saved})


def test_steps_are_foretold_from_runs_like_it() -> None:
    like = Settings.of({"method": "infobatch:ratio=0.5", "model": "conv", "epochs": 10, "batch_size": 100})
    assert campaign.steps_of(like, 950, []) == 100
    runs = [past("infobatch", 0.3), past("infobatch", 0.2, seed=1), past("random", 0.9)]
    assert campaign.steps_of(like, 950, runs) == 80  # the least that any of its kind has saved
    assert campaign.steps_of(like, 950, [*runs, past("infobatch:ratio=0.5", 0.4)]) == 60
    assert campaign.steps_of(like.but(epochs=20), 950, runs) == 200  # another setting tells nothing
    cut = past("full", 0.4, steps=60)
    assert campaign.steps_of(like.but(method="full", steps=77), 950, [*runs, cut]) == 77
    assert campaign.steps_of(like.but(method="full"), 950, [*runs, cut]) == 100  # cut short is not saved


@pytest.mark.parametrize("name", wanted.QUEUES)
def test_no_run_is_wanted_twice(name: str) -> None:
    keys = [campaign.identity(one) for one in wanted.QUEUES[name]()]
    assert len(keys) == len(set(keys)) > 5


@pytest.mark.slow
def test_records_hold_whole_runs_alone() -> None:
    """What a published table rests on: every line is read, every run has its end, its seed and its settings."""
    kept = sorted(campaign.KEPT.glob("*.jsonl"))
    assert kept
    for path in kept:
        runs = list(records.read_file(path))
        assert all(one.end is not None and one.end["metric"] is not None for one in runs)
        assert len({campaign.identity(one.settings) for one in runs}) == len(runs)
        assert sum(1 for line in path.read_text().splitlines() if json.loads(line)["kind"] == "start") == len(runs)


@pytest.mark.slow
def test_a_torn_record_is_set_aside_and_a_run_that_fails_is_told(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "new.jsonl"
    out.parent.mkdir()
    out.write_text('{"kind": "sta')
    code, output = rehearse(out, "screen", "--limit", "2", "--set", "steps=20")
    assert code == 1
    assert "infobatch+loss, 20 steps, seed 0: InputError: expected steps with the method full" in output
    assert output.endswith("1 done, 1 failed, 0 not started\n")
    assert told(out) == [("full, 20 steps", 0)]
    assert out.with_suffix(".torn").read_text() == '{"kind": "sta\n'


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--processes", "0"), "argument --processes: invalid number from 1 value: '0'"),
        (("--limit", "-1"), "argument --limit: invalid number from 0 value: '-1'"),
        (("--set", "lr"), "argument --set: invalid setting value: 'lr'"),
        (("--set", "mdoel=conv"), "Did you mean model"),
        (("--data", "/nowhere"), "/nowhere, which is not a folder"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: Any, complaint: str
) -> None:
    monkeypatch.setattr(campaign, "KEPT", tmp_path / "none")  # reading our records takes seconds
    monkeypatch.setattr(sys, "argv", ["run.py", "headline", "--out", str(tmp_path / "new.jsonl"), *words])
    with pytest.raises(SystemExit, match="2"):
        campaign.main()
    assert complaint in capsys.readouterr().err


def test_a_file_is_one_campaign_s(tmp_path: Path) -> None:
    out = tmp_path / "new" / "new.jsonl"
    with campaign.alone(out):
        assert out.read_text() == ""
        with pytest.raises(InputError, match="no other campaign"), campaign.alone(out):
            pass
    with campaign.alone(out):
        pass
    with pytest.raises(InputError, match="a directory"), campaign.alone(tmp_path):
        pass
