"""Policies beyond cuts, against closed forms and brute force."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lots import lot

from infobatch import methods
from infobatch.epoch.scores import ScoreTable
from infobatch.methods.draws import apportion, draw_in_cells, highest, scale_chances
from infobatch.methods.method import Moment
from infobatch.methods.rules.seta import kmeans_1d

numbers = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 7.0, math.nan]), min_size=1, max_size=30)


@given(numbers, st.integers(0, 35), st.integers(0, 5))
def test_highest_is_exact_and_ties_go_by_lot(values: list[float], count: int, seed: int) -> None:
    mask = highest(torch.tensor(values), count, lot(seed))
    assert int(mask.sum()) == min(count, len(values))
    rank = [math.inf if math.isnan(value) else value for value in values]
    inside = [rank[at] for at in range(len(values)) if mask[at]]
    outside = [rank[at] for at in range(len(values)) if not mask[at]]
    if inside and outside:
        assert min(inside) >= max(outside)


def test_ties_are_not_broken_by_position() -> None:
    first = sum(highest(torch.ones(10), 3, lot(seed)).float() for seed in range(2000))
    assert bool((first / 2000 - 0.3).abs().max() < 0.05)


groups_of_chances = st.lists(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=40), min_size=1, max_size=4)


@given(groups_of_chances, st.integers(0, 9))
def test_a_draw_in_cells_has_its_number_and_its_sum_of_weights_in_each_group(
    groups: list[list[float]], seed: int
) -> None:
    sizes = torch.tensor([len(group) for group in groups])
    number = torch.tensor([max(1, round(sum(group))) for group in groups])
    chances = [
        scale_chances(torch.tensor(group).double(), int(n), 0.0) for group, n in zip(groups, number, strict=True)
    ]
    weights = draw_in_cells(torch.cat([each.sort().values for each in chances]), sizes, number, lot(seed))
    for mine, n, size in zip(weights.split(sizes.tolist()), number, sizes, strict=True):
        assert int((mine != 0).sum()) == n
        assert float(mine.sum()) == pytest.approx(int(size))
        assert bool((mine[mine != 0] >= 1 - 1e-12).all())


@pytest.mark.parametrize("total", [30, 200])
def test_the_weights_of_a_draw_in_cells_follow_the_chances(total: int) -> None:
    """With hundreds of entries the weight of each is close to 1/chance."""
    chances = scale_chances(torch.linspace(0.1, 1, 10 * total).double(), total, 0.0)
    size, number = torch.tensor([len(chances)]), torch.tensor([total])
    weights = draw_in_cells(chances, size, number, lot())
    drawn = weights != 0
    torch.testing.assert_close(weights[drawn][8:], 1 / chances[drawn][8:], rtol=0.3, atol=0)
    assert float((chances * weights).sum()) == pytest.approx(total, rel=0.05)


def test_a_cell_gives_each_entry_the_same_chance() -> None:
    """Three cells of eight draws each: frequencies are 8/m, and the expected weight is 1."""
    chances = torch.cat([torch.full((40,), 0.2), torch.full((20,), 0.4), torch.full((8,), 1.0)]).double()
    size, number = torch.tensor([68]), torch.tensor([24])
    drawn = torch.stack([draw_in_cells(chances, size, number, lot(seed)) for seed in range(2000)])
    assert set(drawn[drawn != 0].tolist()) == {5.0, 2.5, 1.0}
    assert float((drawn.mean(0) - 1).abs().max()) < 4.5 * 2 / 2000**0.5


@given(st.lists(st.floats(0.0, 50.0), min_size=2, max_size=40), st.floats(0.05, 0.9), st.floats(0.05, 0.95))
def test_chances_sum_to_the_budget(sizes: list[float], floor: float, part: float) -> None:
    tensor = torch.tensor(sizes, dtype=torch.float64)
    if not bool((tensor > 1e-6).any()):
        return
    total = floor * len(sizes) + part * (1 - floor) * len(sizes)
    chances = scale_chances(tensor, total, floor)
    assert float(chances.sum()) == pytest.approx(total, rel=1e-6, abs=1e-6)
    assert bool(((chances >= floor - 1e-12) & (chances <= 1)).all())
    order = tensor.argsort()
    assert bool((chances[order].diff() >= -1e-12).all()), "a higher score has no smaller chance"


def test_rising_is_unbiased_and_exact() -> None:
    book = ScoreTable(400)
    book.scores.copy_(torch.rand(400, generator=lot()) ** 3)
    method, weights = methods.rising(0.4), torch.zeros(400)
    for seed in range(1000):
        plan = method.draw(book, Moment(1, 10), seed)
        assert plan.kept == 240
        assert float(plan.table.sum()) == pytest.approx(400, rel=1e-5)
        weights += plan.table
    assert float((weights / 1000 - 1).abs().mean()) < 0.04  # each sample's expected weight is 1


def test_rising_may_have_its_floor_for_all() -> None:
    """0.1 is 1 - 0.9, also where floating point finds it a little more."""
    book = ScoreTable(100)
    book.scores.copy_(torch.rand(100, generator=lot()))
    plan = methods.rising(0.9, floor=0.1).draw(book, Moment(1, 10), 0)
    assert plan.kept == 10
    assert plan.weights.tolist() == pytest.approx([10.0] * 10)


def test_rising_has_less_variance_than_uniform() -> None:
    """The point of it: the weighted mean of the scores moves less from draw to draw."""
    book = ScoreTable(500)
    book.scores.copy_(torch.rand(500, generator=lot(1)) ** 4)
    spread = {}
    for method in (methods.rising(0.4), methods.random(0.4), methods.infobatch(0.8)):
        plans = [method.draw(book, Moment(1, 10), seed) for seed in range(200)]
        means = torch.stack([(plan.table * book.scores).sum() / 500 for plan in plans])
        spread[method.name] = float(means.std())
    assert spread["rising"] < spread["infobatch"] < spread["random"]


@pytest.mark.parametrize("seed", range(5))
def test_groups_are_the_best_of_their_kind(seed: int) -> None:
    """Lloyd's groups of well separated numbers are those of brute force."""
    values = torch.cat([torch.rand(4, generator=lot(seed)) + 10 * at for at in range(3)])
    values = values[torch.randperm(12, generator=lot(seed))]

    def cost(cuts: tuple[int, int]) -> float:
        ordered = values.sort().values
        parts = ordered[: cuts[0]], ordered[cuts[0] : cuts[1]], ordered[cuts[1] :]
        return sum(float(((part - part.mean()) ** 2).sum()) for part in parts)

    best = min(itertools.combinations(range(1, 12), 2), key=cost)
    ranks = values.argsort().argsort()
    expected = (ranks >= best[0]).long() + (ranks >= best[1]).long()
    assert torch.equal(kmeans_1d(values, 3), expected)


@given(numbers, st.integers(1, 6))
def test_groups_rise_with_the_values(values: list[float], groups: int) -> None:
    group = kmeans_1d(torch.tensor(values), groups)
    for a, b in itertools.combinations(range(len(values)), 2):
        if values[a] < values[b]:
            assert group[a] <= group[b]
    assert [bool(group[at] == -1) for at in range(len(values))] == [math.isnan(value) for value in values]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 7))
def test_groups_do_not_depend_on_where_zero_is(values: list[int], groups: int) -> None:
    above, below = (kmeans_1d(torch.tensor(values) + shift, groups) for shift in (1.0, -20.0))
    assert torch.equal(above, below)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 9)), min_size=1, max_size=8), st.integers(0, 80))
def test_shares_are_exact(classes: list[tuple[float, int]], total: int) -> None:
    wishes, limits = [wish for wish, _ in classes], [limit for _, limit in classes]
    got = apportion(wishes, limits, total, lot())
    assert sum(got) == min(total, sum(limits))
    assert all(0 <= many <= limit for many, limit in zip(got, limits, strict=True))


def test_shares_go_by_largest_remainders_and_equal_ones_by_lot() -> None:
    """7, 1.5 and 1.5 of ten: what is left over is for one of the two that lack a half."""
    got = {tuple(apportion([70.0, 15.0, 15.0], [99, 99, 99], 10, lot(seed))) for seed in range(20)}
    assert got == {(7, 2, 1), (7, 1, 2)}
    assert apportion([1.0, 1.0, 8.0], [99, 99, 4], 10, lot()) == [3, 3, 4]
