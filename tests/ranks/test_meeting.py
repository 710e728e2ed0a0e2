"""All ranks get the same answer, and one that saves alone waits only once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from infobatch.ranks import exchange
from infobatch.ranks.exchange import Meeting, Ranks


class Store(dist.HashStore):
    """A store that says when a rank begins to wait, and counts those that waited in vain."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.in_vain = 0

    def wait(self, keys: Sequence[str], patience: timedelta) -> None:
        self.begun.set()
        try:
            super().wait(keys, patience)
        except RuntimeError:
            self.in_vain += 1
            raise


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For ranks that are alone; all others wait for as long as it takes."""
    monkeypatch.setattr(exchange, "PATIENCE", 0.2)


def make(world: int) -> tuple[Store, list[Meeting]]:
    store = Store()
    return store, [Meeting(Ranks(rank, world), store) for rank in range(world)]


def come(ranks: list[Meeting], point: str) -> list[bool]:
    """Let all of these ranks come to a point at once."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(lambda rank: rank.all_come(point), ranks))


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_that_come_together_have_the_same_answer(world: int) -> None:
    store, ranks = make(world)
    for point in ("a", "a", "b"):
        assert come(ranks, point) == [True] * world
    assert store.in_vain == 0


def test_a_rank_that_is_alone_waits_once(impatient: None) -> None:
    store, (first, _) = make(2)
    for point in ("a", "a", "b", "c"):
        assert come([first], point) == [False]
        assert store.in_vain == 1


def test_others_that_came_late_are_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where one rank evaluates before it saves."""
    store, (first, late) = make(2)
    with monkeypatch.context() as patch:
        patch.setattr(exchange, "PATIENCE", 0.2)
        assert come([first], "a") == [False]
    assert come([late], "a") == [False]
    store.begun.clear()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(first.all_come, "b")
        assert store.begun.wait(60)
        assert not answer.done()
        assert late.all_come("b")
        assert answer.result()
    assert store.in_vain == 1


def test_the_answer_is_the_same_on_all_ranks_where_one_does_not_wait(impatient: None) -> None:
    store, ranks = make(3)
    assert come(ranks[:1], "a") == [False]
    assert come(ranks[:1], "b") == [False]  # it did not wait for the others
    assert come(ranks[1:], "b") == [False, False]
    assert store.in_vain == 1


def test_missing_ranks_are_waited_for_once_they_save(impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    store, ranks = make(3)
    assert come(ranks[:1], "a") == [False]
    assert come(ranks[1:], "a") == [False, False]
    monkeypatch.setattr(exchange, "PATIENCE", 60.0)
    assert come(ranks, "b") == [True, True, True]
    assert store.in_vain == 1


def test_two_of_three_ranks_are_alone(impatient: None) -> None:
    store, ranks = make(3)
    for point in ("a", "b"):
        assert come(ranks[1:], point) == [False, False]
        assert store.in_vain == 2
