"""All ranks get the same answer, and one that saves alone waits only once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from infobatch.ranks import meeting
from infobatch.ranks.exchange import Ranks
from infobatch.ranks.meeting import Meeting

PATIENCE = 0.5


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "PATIENCE", PATIENCE)


def make(world: int) -> list[Meeting]:
    store = dist.HashStore()
    return [Meeting(Ranks(rank, world), store) for rank in range(world)]


def come(ranks: list[Meeting], point: str, late: float = 0.0) -> list[bool]:
    """Let all of these ranks come to a point, the last of them ``late`` seconds after the others."""

    def one(rank: Meeting) -> bool:
        if late and rank is ranks[-1]:
            time.sleep(late)
        return rank.all_come(point)

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(one, ranks))


def seconds(ranks: list[Meeting], point: str, answer: bool) -> float:
    begun = time.perf_counter()
    assert come(ranks, point) == [answer] * len(ranks)
    return time.perf_counter() - begun


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_that_come_together_do_not_wait(world: int) -> None:
    ranks = make(world)
    for point in ("a", "a", "b"):
        assert seconds(ranks, point, True) < PATIENCE


def test_a_rank_that_is_alone_waits_once() -> None:
    first, _ = make(2)
    assert seconds([first], "a", False) >= PATIENCE
    for point in ("a", "b", "c"):
        assert seconds([first], point, False) < PATIENCE / 2


def test_others_that_came_late_are_waited_for_again() -> None:
    """As where one rank evaluates before it saves."""
    ranks = make(2)
    assert come(ranks, "a", late=1.5 * PATIENCE) == [False, False]
    assert come(ranks, "b", late=0.5 * PATIENCE) == [True, True]


def test_the_answer_is_the_same_on_all_ranks_where_one_does_not_wait() -> None:
    ranks = make(3)
    assert come(ranks[:1], "a") == [False]
    assert seconds(ranks, "b", False) < PATIENCE  # the first rank did not wait for the others
    assert seconds(ranks, "c", True) < PATIENCE  # but now knows that they save


def test_two_of_three_ranks_are_alone() -> None:
    ranks = make(3)
    assert seconds(ranks[1:], "a", False) >= PATIENCE
    assert seconds(ranks[1:], "b", False) < PATIENCE
