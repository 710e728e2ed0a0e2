"""Other threads may ask and save while one trains: a watchdog, a dashboard, a save in the background."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import infobatch
from infobatch.snapshot import copy_containers

SIZE, BATCH, EPOCHS = 43, 8, 40


@pytest.fixture(autouse=True)
def switching() -> Iterator[None]:
    """Let Python change between threads as often as it can.

    Garbage is not collected meanwhile: in a process full of other tests' modules, CPython 3.11.7 has crashed in a
    collection that one thread began while the others ran.
    """
    before = sys.getswitchinterval()
    gc.disable()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
    gc.enable()


def a_run() -> infobatch.InfoBatch:
    return infobatch.InfoBatch(range(SIZE), EPOCHS, delta=1.0)


def steps_of(train: infobatch.InfoBatch) -> list[float]:
    """Train to the end; return what each update returned."""
    steps: list[float] = []
    loader = infobatch.DataLoader(train, batch_size=BATCH)
    for _ in range(train.epoch, EPOCHS):
        for x in loader:
            loss: Tensor = train.update((x + 1.0) % 7)
            steps.append(loss.item())
    return steps


ASK: dict[str, Callable[[infobatch.InfoBatch], Any]] = {
    "state_dict": lambda train: train.state_dict(),
    "scores": lambda train: train.scores,
    "progress": lambda train: train.progress,
    "history": lambda train: train.history,
    "len": lambda train: len(train.sampler),
}


@pytest.mark.parametrize("name", ASK)
def test_what_another_thread_asks_changes_nothing(name: str) -> None:
    expected, train = a_run(), a_run()
    found: list[Any] = []
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            try:
                found.append(ASK[name](train))
            except Exception as error:
                found.append(error)
                raise

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        steps = steps_of(train)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert steps == steps_of(expected)
    assert train.history == expected.history
    assert torch.equal(train.scores, expected.scores)
    assert not [one for one in found if isinstance(one, Exception)]
    if name == "state_dict":
        for state in found[:: max(1, len(found) // 50)]:
            resumed = a_run()
            resumed.load_state_dict(state)
            steps_of(resumed)
            assert resumed.history == expected.history
            assert torch.equal(resumed.scores, expected.scores)


@pytest.mark.parametrize("kind", [dict, OrderedDict, Counter])
def test_what_another_thread_adds_to_is_copied_before_it_is_saved(kind: Callable[[], dict[int, int]]) -> None:
    log, is_over = kind(), threading.Event()
    log.update(dict.fromkeys(range(20_000), 1))

    def add() -> None:
        for number in itertools.cycle(range(20_000, 20_100)):
            log[number] = 1
            log.pop(number - 50, None)
            if is_over.is_set():
                return

    thread = threading.Thread(target=add)
    thread.start()
    try:
        for _ in range(20):
            assert 19_000 < len(copy_containers({"log": log})["log"]) < 20_101
    finally:
        is_over.set()
        thread.join()
