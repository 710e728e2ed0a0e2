"""What ``infobatch`` shows while it works."""

from __future__ import annotations

import re
from io import StringIO

import pytest
from rich.console import Console

from infobatch.cli.screen import EVERY, Bars, Count, Lines, duration
from infobatch.lab.runs.records import Run
from infobatch.lab.train.settings import Settings


def test_durations() -> None:
    assert [duration(one) for one in (0.04, 59.9, 60, 3599, 3660)] == [
        "0.0 s", "59.9 s", "1 min 0 s", "59 min 59 s", "1 h 01 min",
    ]  # fmt: skip


def test_time_left_counts_work_alone() -> None:
    count, settings = Count(4, 80), Settings(epochs=20)
    count.begin(settings, 20)  # there already: never ticks
    count.end()
    assert count.total == 60
    count.begin(settings, 20)  # resumed in its tenth epoch
    assert count.tick(9.5) == 0.5
    assert count.total == 51
    assert count.tick(20.0) == 11
    count.end()
    count.begin(settings.but(method="full", steps=70), 7)  # a control, planned as a whole run
    assert count.total == 38
    assert count.tick(1.0) == 12
    count.end()
    count.begin(settings, 20)
    count.tick(0.1)
    assert count.tick(20.0) == 11 + 7 + 20 == count.total


def test_plain_lines_tell_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([0.0, 0.0, 0.0, 0.1, EVERY - 1, EVERY, EVERY + 1])
    screen = Lines(2, 40, now=lambda: next(clock))
    tick = screen.watch(Settings(epochs=20), 20)
    tick(0.1)
    tick(4.0)
    tick(5.0)
    tick(6.0)
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "infobatch, seed 0: epoch 6 of 20, 45.0 s left; run 1 of 2, 1 min 45 s left in total"


def test_bars_on_a_terminal() -> None:
    out = StringIO()
    run = Run("mine", {"settings": Settings().plain(), "metric": "accuracy, %"})
    with Bars(Console(file=out, force_terminal=True, width=100), 2, 80) as screen:
        tick = screen.watch(Settings(method="infobatch:ratio=0.5"), 40)
        tick(10.0)
        screen.progress.refresh()
        screen.done(run)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    assert "infobatch:ratio=0.5, seed 0" in text
    assert "epoch 11/40" in text
    assert "run 1/2" in text
    assert "infobatch, seed 0: paused in epoch 1" in text
