"""An interrupt at any line of an update, or of the turn to the next epoch, changes nothing if the call is repeated."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from interrupting import Interrupt

import infobatch
from infobatch import methods

SIZE, EPOCHS = 12, 6
METHODS: dict[str, Callable[[], methods.Method]] = {
    "infobatch": methods.infobatch,
    "with a memory": methods.ucb,
    "with channels": methods.kakurenbo,
}


def at_the_turn(name: str) -> infobatch.Pruned:
    """Return a training whose third epoch has had its last update and is not closed."""
    train = infobatch.Pruned(range(SIZE), METHODS[name](), EPOCHS)
    for epoch in range(3):
        for x in infobatch.DataLoader(train, batch_size=4):
            losses = (x.float() - 4 * epoch).abs()
            given = {"confidence": 1 / (1 + losses)} if name == "with channels" else {}
            train.update(losses, **given)
    return train


def facts(train: infobatch.Pruned) -> list[Any]:
    plan: Any = train.plan()
    state = train.state_dict()
    memory = {key: column.tolist() for key, column in state["memory"].items()}
    scores = train.scores.nan_to_num(-1.0).tolist()
    return [scores, memory, plan.indices.tolist(), plan.table.tolist(), train.history, train.epoch, state["planned"]]


ASK: dict[str, Callable[[infobatch.Pruned], Any]] = {
    "scores": lambda train: train.scores,
    "plan": lambda train: train.plan(),
    "state": lambda train: train.state_dict(),
    "epoch": lambda train: train.epoch,
}


@pytest.mark.filterwarnings("ignore:.*needs the losses of the samples it left out")
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("ask", ASK)
def test_an_interrupt_at_any_line_of_the_turn_loses_nothing(name: str, ask: str) -> None:
    expected = facts(at_the_turn(name))
    for number in itertools.count(1):
        train = at_the_turn(name)
        try:
            with Interrupt(number):
                ASK[ask](train)
        except KeyboardInterrupt:
            assert facts(train) == expected, f"interrupted at line {number}"
        else:
            break
    assert number > 60  # the turn was traced
    assert facts(train) == expected


def updated(kind: str, number: int) -> tuple[list[float], bool]:
    """Train two epochs, the second update interrupted at this line; return the scores, and whether it was."""
    train, count, was_interrupted = infobatch.InfoBatch(range(SIZE), EPOCHS), 0, False
    for _ in range(2):
        if kind == "stock":
            loader: Any = torch.utils.data.DataLoader(train, batch_size=4, sampler=train.sampler)
        else:
            loader = infobatch.DataLoader(train, batch_size=4)
        for x in loader:
            count += 1
            given = (train.batch_indices,) if kind == "with indices" else ()
            done = train.progress
            try:
                with Interrupt(number if count == 2 else 0):
                    train.update(x + 1.0, *given)
            except KeyboardInterrupt:
                was_interrupted = True
                if train.progress == done:  # else it was counted, and only its result is lost
                    train.update(x + 1.0, *given)
    return train.scores.tolist(), was_interrupted


@pytest.mark.parametrize("kind", ["ours", "stock", "with indices"])
def test_an_interrupt_at_any_line_of_an_update_loses_no_score(kind: str) -> None:
    for number in itertools.count(1):
        scores, was_interrupted = updated(kind, number)
        assert scores == [x + 1.0 for x in range(SIZE)], f"interrupted at line {number}"
        if not was_interrupted:
            break
    assert number > 20


LOADERS: dict[str, Callable[[infobatch.Pruned], Any]] = {
    "ours": lambda train: infobatch.DataLoader(train, batch_size=4),
    "stock": lambda train: torch.utils.data.DataLoader(train, batch_size=4, sampler=train.sampler),
    "pairs": lambda train: infobatch.DataLoader(train, batch_size=4, with_indices=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOADERS)
def test_after_an_interrupt_at_any_line_of_a_pass_the_same_loader_trains(kind: str) -> None:
    """As a cell of a notebook that is run again."""

    def run_epoch() -> None:
        for batch in loader:
            x, *indices = batch if kind == "pairs" else (batch,)
            train.update(x + 1.0, *indices)

    for number in itertools.count(1):
        train = infobatch.InfoBatch(range(SIZE), 3, delta=0.5)
        loader = LOADERS[kind](train)
        own, finished = loader.collate_fn, False
        try:
            with Interrupt(number):
                run_epoch()
                run_epoch()
                finished = True
        except KeyboardInterrupt:
            pass
        assert loader.collate_fn is own
        assert loader.dataset is train
        with contextlib.suppress(infobatch.EpochError):
            while True:
                run_epoch()
        assert train.scores.tolist() == [x + 1.0 for x in range(SIZE)], f"interrupted at line {number}"
        assert [entry.epoch for entry in train.history] == [0, 1, 2]
        if finished:
            break
    assert number > 300
