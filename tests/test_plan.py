from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from infobatch.plan import Plan, Stratum, choose, full, generator_for, stratified

CPU = torch.device("cpu")
modest = settings(deadline=None, max_examples=80, derandomize=True)


def mask(size: int, members: int) -> Tensor:
    among = torch.zeros(size, dtype=torch.bool)
    among[torch.randperm(size, generator=generator_for(9, size, CPU))[:members]] = True
    return among


def chi_square(counts: Tensor) -> float:
    expected = counts.double().mean()
    return float(((counts - expected) ** 2 / expected).sum())


@st.composite
def groups(draw: st.DrawFn) -> tuple[int, int, int, int]:
    size = draw(st.integers(1, 700))
    members = draw(st.integers(1, size))
    return size, members, draw(st.integers(0, members)), draw(st.integers(0, 2**40))


@modest
@given(groups())
def test_choose_takes_exactly_the_count_and_only_members(group: tuple[int, int, int, int]) -> None:
    size, members, count, seed = group
    among = mask(size, members)
    before = among.clone()
    chosen = choose(among, count, generator_for(seed, 0, CPU))
    assert chosen.dtype == torch.bool
    assert int(chosen.sum()) == count
    assert not (chosen & ~among).any()
    assert torch.equal(among, before)


@modest
@given(groups())
def test_weights_of_a_stratified_plan_sum_to_n(group: tuple[int, int, int, int]) -> None:
    size, members, keep, seed = group
    keep = max(keep, 1)
    stratum = Stratum(mask(size, members), keep, members / keep)
    plan = stratified([stratum], size, 3, generator_for(seed, 3, CPU))
    assert plan.kept == size - members + keep
    assert len(set(plan.indices.tolist())) == plan.kept
    assert plan.table.double().sum().item() == pytest.approx(size, rel=1e-6)
    assert plan.weights.double().sum().item() == pytest.approx(size, rel=1e-6)
    assert torch.equal(plan.table.nonzero().squeeze(1), plan.indices.sort().values)


def test_choose_is_uniform_over_members() -> None:
    """Also across the byte boundaries of its keys, and with more members than keys."""
    size, members, count, draws = 600, 500, 170, 1500
    among = mask(size, members)
    times = torch.zeros(size)
    for draw in range(draws):
        times += choose(among, count, generator_for(1, draw, CPU))
    spread = chi_square(times[among]) / (1 - count / members)  # draws without replacement spread less
    degrees = members - 1
    assert abs(spread - degrees) < 5 * (2 * degrees) ** 0.5


def test_choose_breaks_ties_by_lot() -> None:
    """A few hundred entries share the last byte; were the first of them taken, low positions would come too often."""
    size, draws = 100_000, 100
    among = torch.ones(size, dtype=torch.bool)
    lead = 0
    for draw in range(draws):
        chosen = choose(among, size // 2, generator_for(4, draw, CPU))
        lead += int(chosen[: size // 2].sum()) - size // 4
    one_sigma = (draws * size / 16) ** 0.5
    assert abs(lead) < 4 * one_sigma


def test_choose_is_uniform_over_subsets() -> None:
    """All 20 subsets of 3 out of 6 come equally often: entries are independent, not only equally likely."""
    among = torch.tensor([True, True, False, True, True, True, False, True])
    places = among.nonzero().squeeze(1).tolist()
    times = dict.fromkeys(range(64), 0)
    for draw in range(4000):
        chosen = choose(among, 3, generator_for(2, draw, CPU))
        times[sum(int(chosen[place]) << bit for bit, place in enumerate(places))] += 1
    seen = torch.tensor([count for count in times.values() if count])
    assert len(seen) == 20
    assert chi_square(seen) < 50  # 19 degrees of freedom: 43.8 is passed once in a thousand


def positions(plans: list[Plan], low: Tensor) -> list[float]:
    """The relative place in its epoch of every kept low sample."""
    places = []
    for plan in plans:
        at = low[plan.indices].nonzero().squeeze(1)
        places += ((at + 0.5) / plan.kept).tolist()
    return places


def kolmogorov(places: list[float]) -> float:
    """The largest distance of the places from a uniform distribution, times sqrt(n)."""
    n = len(places)
    distance = max(max((i + 1) / n - x, x - i / n) for i, x in enumerate(sorted(places)))
    return distance * n**0.5


def first_k_of_one_permutation(low: Tensor, k: int, epoch: int) -> Plan:
    """The tempting trick: the right sets, but the wrong order."""
    order = torch.randperm(low.numel(), generator=generator_for(0, epoch, CPU))
    stays = ~low[order] | (low[order].cumsum(0) <= k)
    kept = order[stays]
    return Plan(epoch, kept, torch.zeros(low.numel()).index_fill_(0, kept, 1.0))


def test_a_kept_low_sample_is_equally_likely_anywhere_in_the_epoch() -> None:
    size, members, keep = 400, 240, 120
    low = mask(size, members)
    drawn = [stratified([Stratum(low, keep, 2.0)], size, t, generator_for(0, t, CPU)) for t in range(100)]
    assert kolmogorov(positions(drawn, low)) < 1.95  # passed once in a thousand
    trick = [first_k_of_one_permutation(low, keep, t) for t in range(100)]
    assert kolmogorov(positions(trick, low)) > 10, "this test must see the trick"


def test_order_of_neighbours_is_uniform() -> None:
    """Which of two samples comes first, and by how many steps, says nothing about whether they are low."""
    size = 60
    low = mask(size, 30)
    steps = torch.zeros(45)
    for t in range(600):
        plan = stratified([Stratum(low, 15, 2.0)], size, t, generator_for(5, t, CPU))
        steps += low[plan.indices]
    assert abs(chi_square(steps) / (1 - 15 / 45) - 44) < 5 * 88**0.5


def test_full_plan_has_every_sample_once_at_weight_one() -> None:
    plan = full(1000, 4, generator_for(0, 4, CPU))
    assert torch.equal(plan.indices.sort().values, torch.arange(1000))
    assert not torch.equal(plan.indices, torch.arange(1000))
    assert plan.indices.dtype == torch.int64
    assert torch.equal(plan.weights, torch.ones(1000))
    assert (plan.epoch, plan.kept, plan.size, plan.saved, plan.growth) == (4, 1000, 1000, 0.0, 1.0)
    assert plan.effective_size == 1000


def test_drawing_twice_is_drawing_once() -> None:
    one, two = (stratified([Stratum(mask(300, 200), 100, 2.0)], 300, 7, generator_for(3, 7, CPU)) for _ in range(2))
    assert torch.equal(one.indices, two.indices)
    assert torch.equal(one.table, two.table)


def test_seeds_and_epochs_do_not_mix() -> None:
    """In particular seed + epoch is not the seed: (0, 1) and (1, 0) have nothing in common."""
    seeds = [(seed, epoch) for seed in range(40) for epoch in range(40)]
    states = {generator_for(seed, epoch, CPU).initial_seed() for seed, epoch in seeds}
    assert len(states) == len(seeds)
    zero_one, one_zero = (full(500, epoch, generator_for(seed, epoch, CPU)) for seed, epoch in ((0, 1), (1, 0)))
    agreement = (zero_one.indices == one_zero.indices).sum()
    assert agreement < 10  # by chance: one


def test_neighbouring_seeds_are_uncorrelated() -> None:
    draws = torch.stack([torch.rand(4000, generator=generator_for(seed, 0, CPU)) for seed in range(8)])
    apart = torch.corrcoef(draws) - torch.eye(8)
    assert apart.abs().max() < 5 / 4000**0.5


def test_global_random_state_is_neither_read_nor_written() -> None:
    numpy = pytest.importorskip("numpy")

    def draw() -> Plan:
        return stratified([Stratum(mask(300, 200), 100, 2.0)], 300, 7, generator_for(3, 7, CPU))

    before = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()
    one = draw()
    after = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    with torch.random.fork_rng():
        torch.manual_seed(12345)
        two = draw()
    assert torch.equal(one.indices, two.indices)


def test_effective_size_is_kishs() -> None:
    table = torch.tensor([1.0, 0.0, 2.0, 2.0, 1.0, 0.0])
    plan = Plan(0, torch.tensor([4, 2, 0, 3]), table)
    assert plan.effective_size == pytest.approx(6**2 / (1 + 4 + 4 + 1))
    assert plan.weights.tolist() == [1.0, 2.0, 1.0, 2.0]
    assert plan.growth == 6 / 4
    assert repr(plan) == "Plan(epoch=0, kept=4 of 6, saved=33.3%)"


def test_equal_weights_count_whole() -> None:
    table = torch.tensor([2.0, 0.0, 2.0, 0.0])
    assert Plan(0, torch.tensor([0, 2]), table).effective_size == pytest.approx(2)


def test_a_plan_is_frozen() -> None:
    plan = full(3, 0, generator_for(0, 0, CPU))
    with pytest.raises(AttributeError):
        plan.epoch = 1  # type: ignore[misc]
