"""Killed at any step and resumed, a training with a sieve is bit for bit the same; damaged states change nothing."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from launching import Program
from sieved_training import BATCH, BESIDE, LOOKS, METHODS, STEPS, Training, train

from infobatch.testing import _flatten, assert_resumable, first_difference

CASES = [
    *((look, method, memory, False) for memory in (False, True) for look in LOOKS for method in METHODS),
    *((look, method, memory, True) for memory in (False, True) for look in BESIDE for method in METHODS),
    *(("remembered", method, True, False) for method in METHODS),
]


def name(case: tuple[str, str, bool, bool]) -> str:
    look, method, memory, ahead = case
    return f"{look}, {method}{', memory' * memory}{', ahead' * ahead}"


def make(case: tuple[str, str, bool, bool]) -> Training:
    look, method, memory, ahead = case
    return Training(look, method, memory=memory, ahead=ahead)


@pytest.mark.parametrize("case", CASES[::5], ids=name)
def test_resumed_after_some_steps(case: tuple[str, str, bool, bool]) -> None:
    assert_resumable(partial(make, case), stops=6)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=name)
def test_resumed_after_any_step(case: tuple[str, str, bool, bool]) -> None:
    assert_resumable(partial(make, case), stops=STEPS + 1)


@pytest.mark.parametrize("case", CASES, ids=name)
def test_these_trainings_use_what_they_test(case: tuple[str, str, bool, bool]) -> None:
    """Batches pass whole and in part, and a share that is measured changes."""
    torch.manual_seed(0)
    training = make(case)
    shares = {len(weight) / BATCH for _, weight in training}
    assert min(shares) < 1
    if "adaptive" in case or "windowed" in case:
        assert 1 in shares
    if "adaptive" in case:
        assert len(shares) > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "kills"),
    [
        (("proxy", "adaptive", "memory", "ahead"), (0, 5, 6)),
        (("proxy", "by lot", "stream", "ahead"), (1, 8)),
        (("reference of own", "windowed", "memory"), (4,)),
        (("remembered", "by lot", "memory"), (3, 7)),
    ],
)
def test_killed_and_resumed_in_other_processes(words: tuple[str, ...], kills: tuple[int, ...], tmp_path: Path) -> None:
    script, file = Path(__file__).with_name("sieved_training.py"), tmp_path / "state.pt"
    for kill in kills:
        program = Program(script, file, kill, *words)
        said = program.communicate(120)
        assert program.returncode == -signal.SIGKILL, said
        assert (torch.load(file, weights_only=True)["steps"] if kill else file.exists()) == kill
    program = Program(script, file, -1, *words)
    said = program.communicate(120)
    assert program.returncode == 0, said

    train(tmp_path / "whole.pt", -1, look=words[0], method=words[1], memory="memory" in words, ahead="ahead" in words)
    right, wrong = (_flatten(torch.load(one, weights_only=True)) for one in (tmp_path / "whole.pt", file))
    assert first_difference(right, wrong) is None
