"""Exact counts, fair quotas, and lots for ties."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infobatch.errors import InputError
from infobatch.selection import Evidence, budget

SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=8)


def dealt(sizes: list[int], k: int) -> list[int]:
    """Deal one by one, each to a class that has least and can give one more."""
    given_ = [0] * len(sizes)
    for _ in range(k):
        least = min((place for place, size in enumerate(sizes) if given_[place] < size), key=lambda c: given_[c])
        given_[least] += 1
    return given_


@settings(max_examples=200, deadline=None)
@given(SIZES.flatmap(lambda sizes: st.tuples(st.just(sizes), st.integers(len(sizes), sum(sizes)))), st.integers(0, 9))
def test_quotas_are_those_of_dealing(case: tuple[list[int], int], seed: int) -> None:
    sizes, k = case
    given_ = budget.divide_by_class(sizes, k, budget.make_generator(seed))
    assert sum(given_) == k
    assert all(some <= size for some, size in zip(given_, sizes, strict=True))
    assert sorted(given_) == sorted(dealt(sizes, k))


def test_who_gives_one_more_is_drawn_by_lot() -> None:
    winners = Counter(tuple(budget.divide_by_class([9, 9, 9], 4, budget.make_generator(seed))) for seed in range(60))
    assert set(winners) == {(2, 1, 1), (1, 2, 1), (1, 1, 2)}
    assert min(winners.values()) > 8


@pytest.mark.parametrize(("sizes", "k", "words"), [([2, 2], 5, "at most 4"), ([5, 5, 5], 2, "per class")])
def test_quotas_that_cannot_be(sizes: list[int], k: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        budget.divide_by_class(sizes, k, budget.make_generator(0))


def test_classes_need_not_be_numbered_in_a_row() -> None:
    evidence = Evidence(9, labels=torch.tensor([7, 2, 7, 2, 2, 7, 40, 40, 40]))
    parts = list(budget.split_by_class(evidence, 0.67, True, budget.make_generator(0)))
    assert [(members.tolist(), k) for members, k in parts] == [([1, 3, 4], 2), ([0, 2, 5], 2), ([6, 7, 8], 2)]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([0.0, 1.0, 2.0, -1.0, float("inf"), float("-inf")]), min_size=1), st.data())
def test_largest_are_largest(values: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(values)))
    chosen = budget.find_largest(torch.tensor(values), k, budget.make_generator(data.draw(st.integers(0, 99)))).tolist()
    assert chosen == sorted(set(chosen))
    assert sorted(values[i] for i in chosen) == sorted(values)[-k:]


def test_lots_are_fair() -> None:
    """Two places for five at the threshold: each wins two times in five."""
    values = torch.tensor([1.0, 5.0, 1.0, 1.0, 0.0, 1.0, 1.0])
    wins = Counter(
        i for seed in range(500) for i in budget.find_largest(values, 3, budget.make_generator(seed)).tolist()
    )
    assert wins[1] == 500
    assert wins[4] == 0
    assert all(abs(wins[i] - 200) < 45 for i in (0, 2, 3, 5, 6))  # four standard deviations


def test_no_score_no_place() -> None:
    with pytest.raises(InputError, match="NaN"):
        budget.find_largest(torch.tensor([1.0, float("nan")]), 1, budget.make_generator(0))


def test_counts() -> None:
    assert [budget.count_kept(50000, share) for share in (0.1, 0.3, 0.7, 1)] == [5000, 15000, 35000, 50000]
    assert budget.count_kept(3, 1e-9) == 1
