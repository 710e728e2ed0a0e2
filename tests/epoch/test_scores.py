from __future__ import annotations

import math
import struct
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from infobatch.epoch.scores import ScoreTable, merge_losses
from infobatch.epoch.slice import SKIPPED, UNSEEN
from infobatch.methods.cuts import BLOCK, beyond, float32_ceil
from infobatch.methods.cuts import mean_score as mean
from infobatch.methods.memory import average
from infobatch.plan import Plan
from infobatch.ranks.exchange import Ranks

modest = settings(deadline=None, max_examples=150, derandomize=True)
floats = st.floats(-(2.0**100), 2.0**100, width=32)


def merge(book: ScoreTable) -> int:
    """Close an epoch without a plan; return how many losses were not finite."""
    not_finite = merge_losses(book.fresh, book.scores)
    book.begin_anew(0)
    return not_finite


def next_float(value: float, steps: int = 1) -> float:
    bits = struct.unpack("<i", struct.pack("<f", value))[0]
    return float(struct.unpack("<f", struct.pack("<i", bits + steps))[0])


def below(scores: Tensor, bound: float) -> Tensor:
    return scores < float32_ceil(bound)


def exact_mean(scores: list[float]) -> Fraction:
    return sum(map(Fraction, scores), Fraction()) / len(scores)


def test_a_new_book_knows_nothing() -> None:
    book = ScoreTable(5)
    assert book.size == 5
    assert torch.isnan(book.scores).all()
    assert torch.equal(book.weights, torch.ones(5))
    assert book.count_seen() == 0
    assert book.planned == 0
    assert book.device == torch.device("cpu")


def test_scores_hold_still_until_merge() -> None:
    book = ScoreTable(4)
    book.scores.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    book.begin(Plan(1, torch.tensor([2, 0]), torch.tensor([2.0, 0.0, 1.0, 0.0])))
    book.record(torch.tensor([2, 0]), torch.tensor([0.5, 0.25], requires_grad=True))
    assert book.weights.tolist() == [2.0, 0.0, 1.0, 0.0]
    assert not book.fresh.requires_grad
    assert book.scores.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert book.count_seen() == 2
    assert merge(book) == 0
    assert book.scores.tolist() == [0.25, 2.0, 0.5, 4.0]
    assert book.count_seen() == 0


def test_buffers_keep_their_place() -> None:
    book = ScoreTable(3)
    places = [book.scores.data_ptr(), book.fresh.data_ptr(), book.weights.data_ptr(), book.named_count.data_ptr()]
    for epoch in range(3):
        book.begin(Plan(epoch, torch.arange(3), torch.ones(3)), scale=0.5)
        book.record(torch.arange(3), torch.rand(3))
        merge(book)
    assert places == [
        book.scores.data_ptr(),
        book.fresh.data_ptr(),
        book.weights.data_ptr(),
        book.named_count.data_ptr(),
    ]
    assert book.weights.tolist() == [0.5, 0.5, 0.5]


def test_what_is_not_finite_is_counted_and_left_out() -> None:
    book = ScoreTable(5)
    book.scores[1] = 7.0
    book.record(torch.arange(4), torch.tensor([1.0, math.nan, math.inf, -math.inf]))
    assert merge(book) == 3
    assert book.scores[:2].tolist() == [1.0, 7.0]
    assert torch.isnan(book.scores[2:]).all()
    assert merge(book) == 0


def test_a_skipped_sample_is_seen_and_keeps_its_score() -> None:
    book = ScoreTable(3)
    book.scores.fill_(2.0)
    book.skip(torch.tensor([1]))
    assert book.count_seen() == 1
    plan = Plan(0, torch.tensor([2, 1, 0]), torch.ones(3))
    assert book.open_slice(plan, 0, Ranks(), resumed=True).indices.tolist() == [2, 0]
    assert merge(book) == 0
    assert book.scores.tolist() == [2.0, 2.0, 2.0]


def test_unplanned_samples_are_those_outside_the_plan() -> None:
    book = ScoreTable(4)
    book.begin(Plan(1, torch.tensor([0, 3]), torch.tensor([2.0, 0.0, 0.0, 2.0])))
    book.record(torch.tensor([0, 1]), torch.ones(2))
    assert book.count_unplanned() == 1
    book.skip(torch.tensor([2]))
    assert book.count_unplanned() == 2


def test_the_marks_are_finite_and_apart() -> None:
    assert math.isfinite(UNSEEN)
    assert math.isfinite(SKIPPED)
    assert UNSEEN != SKIPPED


@pytest.mark.parametrize("mark", [UNSEEN, SKIPPED])
def test_no_loss_comes_to_be_a_mark(mark: float) -> None:
    """Losses do come to be the largest number of their type; smaller types have no number like the marks."""
    assert torch.tensor(mark).item() == mark
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        assert abs(mark) != torch.finfo(dtype).max
        if dtype != torch.float32:
            assert torch.tensor(mark).to(dtype).float().item() != mark


@pytest.mark.parametrize("value", [torch.finfo(torch.float32).max, torch.finfo(torch.float32).min])
def test_a_loss_at_the_end_of_float32_is_not_remembered(value: float) -> None:
    book, memory = ScoreTable(3), average(0.5)
    book.make_columns(memory, ())
    book.record(torch.arange(2), torch.tensor([value, 2.0]))
    assert book.count_seen() == 2
    book.memory = book._remember(memory, None)
    assert str(book.memory["average"].tolist()) == "[nan, 2.0, nan]"
    assert merge(book) == 1
    assert str(book.scores.tolist()) == "[nan, 2.0, nan]"


@modest
@given(st.lists(st.one_of(floats, st.just(math.nan)), min_size=1, max_size=60))
def test_mean_is_that_of_the_known(scores: list[float]) -> None:
    known = [score for score in scores if not math.isnan(score)]
    got = mean(torch.tensor(scores, dtype=torch.float32))
    if not known:
        assert math.isnan(got)
    else:
        room = 1e-14 * max(map(abs, known)) * len(known)
        assert abs(Fraction(got) - exact_mean(known)) <= room


def test_mean_of_many_goes_by_blocks() -> None:
    scores = torch.rand(3 * BLOCK + 17, generator=torch.Generator().manual_seed(0)) + 1000
    assert mean(scores) == pytest.approx(math.fsum(scores.tolist()) / len(scores), rel=1e-14)
    scores[5] = math.nan
    known = [score for score in scores.tolist() if not math.isnan(score)]
    assert mean(scores) == pytest.approx(math.fsum(known) / len(known), rel=1e-14)


@modest
@given(st.floats(2**-60, 2**60, width=32), st.integers(1, 200_000))
def test_mean_of_equal_scores_is_that_score(score: float, size: int) -> None:
    assert mean(torch.full((size,), score)) == score


@modest
@given(st.lists(floats, min_size=1, max_size=30), st.floats(-(2.0**100), 2.0**100))
def test_below_compares_as_real_numbers(scores: list[float], bound: float) -> None:
    got = below(torch.tensor(scores, dtype=torch.float32), bound)
    assert got.tolist() == [Fraction(score) < Fraction(bound) for score in scores]


@modest
@given(st.floats(2**-100, 2**100, width=32), st.integers(-2, 2), st.floats(-0.9, 0.9))
def test_below_at_adjacent_floats(score: float, ulps: int, part: float) -> None:
    """Bounds between two neighbours of float32, where a rounded bound would take the wrong side."""
    gap = next_float(score) - score
    bound = next_float(score, ulps) + part * gap
    got = below(torch.tensor([score]), bound).item()
    assert got == (Fraction(score) < Fraction(bound))
    assert (score >= beyond(bound)) == (Fraction(score) > Fraction(bound))


def test_nan_is_never_below() -> None:
    scores = torch.tensor([math.nan, 0.0])
    assert below(scores, 1.0).tolist() == [False, True]
    assert below(scores, math.nan).tolist() == [False, False]


@modest
@given(st.floats(0.125, 2.0**40, width=32), st.integers(1, 40), st.integers(1, 40))
def test_two_neighbours_are_parted_by_their_mean(low: float, lows: int, highs: int) -> None:
    """The mean lies between two adjacent floats, where float32 has nothing: it would round to one of them."""
    scores = torch.tensor([low] * lows + [next_float(low)] * highs)
    assert below(scores, mean(scores)).tolist() == [True] * lows + [False] * highs
