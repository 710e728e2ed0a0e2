"""Draws: chances that sum to k, and rows that are drawn with just these chances."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import example, given
from lots import lot

from infobatch.sieve.lots import draw_rows, set_chances

SIZES = st.lists(
    st.one_of(st.floats(0, 10), st.just(0.0), st.just(1.0), st.just(-1.0), st.floats(0, 1e300), st.floats(0, 1e-300)),
    min_size=1,
    max_size=16,
)


def fill_from_the_top(sizes: list[float], k: int, floor: float) -> list[float]:
    """The same chances by bisection: least + (1 - least) * min(1, c * size), with the c for which they sum to k.

    Sizes are whole multiples of 2**-40 of the largest, at least one.
    """
    count = len(sizes)
    least = floor * k / count
    largest = max(sizes) or 1.0
    scaled = [max(round(size / largest * 2.0**40), 1) / 2.0**40 for size in sizes]
    low, high = 0.0, 2.0**41
    for _ in range(400):
        middle = (low + high) / 2
        total = sum(least + (1 - least) * min(1.0, middle * size) for size in scaled)
        low, high = (middle, high) if total < k else (low, middle)
    return [least + (1 - least) * min(1.0, high * size) for size in scaled]


@given(SIZES, st.data(), st.sampled_from([0.0, 0.1, 0.25, 0.9, 1.0]))
@example([1.0, 0.0, 0.0], None, 0.0)
@example([5e-324, 1.0], None, 0.25)
@example([0.0, 0.0, -1.0], None, 0.9)
@example([-1.0, -1.0, -1.0], None, 0.0)
@example([0.0, 1.19e-7, 391.0], None, 0.0)
@example([0.0, 0.0, 5e-324], None, 0.0)
def test_chances_rise_with_the_sizes_and_sum_to_k(sizes: list[float], data: st.DataObject | None, floor: float) -> None:
    k = 2 if data is None else data.draw(st.integers(1, len(sizes)))
    chances = set_chances(torch.tensor(sizes, dtype=torch.float64), k, floor)
    assert float(chances.sum()) == pytest.approx(k, rel=1e-9)
    assert 0 <= float(chances.min()) <= float(chances.max()) <= 1
    valid = [row for row, size in enumerate(sizes) if size >= 0]
    wanted = min(k, len(valid))
    assert float(chances[valid].sum()) == pytest.approx(wanted, rel=1e-9)
    for row in valid:
        assert float(chances[row]) >= floor * wanted / len(valid) - 1e-12
        for other in valid:
            assert sizes[row] < sizes[other] or chances[row] >= chances[other] - 1e-12
    if wanted:
        expected = fill_from_the_top([sizes[row] for row in valid], wanted, floor)
        torch.testing.assert_close(chances[valid], torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0)


@given(SIZES, st.data(), st.integers(0, 2**30))
def test_exactly_k_different_rows(sizes: list[float], data: st.DataObject, seed: int) -> None:
    k = data.draw(st.integers(1, len(sizes)))
    rows = draw_rows(set_chances(torch.tensor(sizes), k, 0.0), k, lot(seed))
    assert sorted(set(rows.tolist())) == rows.tolist()
    assert len(rows) == k


@pytest.mark.parametrize("short", [0.0, 1e-9, 0.05])
def test_different_rows_also_where_rounding_makes_the_line_short(short: float) -> None:
    """Points at distance 1 and rows of chance 1: the last point may lie behind the line's end."""
    for seed in range(300):
        chances = torch.ones(9, dtype=torch.float64) - short
        assert draw_rows(chances, 9, lot(seed)).tolist() == list(range(9))


@pytest.mark.parametrize(
    "chances",
    [[0.5, 0.5, 1.0, 0.25, 0.75], [0.9, 0.8, 0.2, 0.1], [1.0, 1.0, 0.0, 0.0], [1 / 3] * 3, [0.999, 0.001]],
)
def test_each_row_comes_as_often_as_its_chance_says(chances: list[float]) -> None:
    k, draws, generator = round(sum(chances)), 6000, lot(1)
    expected = torch.tensor(chances, dtype=torch.float64)
    counts = torch.zeros(len(chances), dtype=torch.float64)
    for _ in range(draws):
        counts[draw_rows(expected, k, generator)] += 1
    slack = 4.5 * (expected * (1 - expected) / draws).sqrt() + 1e-9
    assert bool(((counts / draws - expected).abs() <= slack).all()), counts / draws


def test_every_pair_can_come() -> None:
    """The rows are laid out in a new order each time; in a fixed order, neighbours would exclude each other."""
    size, generator = 5, lot()
    chances = torch.full((size,), 2 / size, dtype=torch.float64)
    pairs = {tuple(draw_rows(chances, 2, generator).tolist()) for _ in range(300)}
    assert len(pairs) == size * (size - 1) // 2
