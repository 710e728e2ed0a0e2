"""Policies beyond cuts, against closed forms and brute force."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import infobatch
from infobatch import choices, methods, selection, variations
from infobatch.choices import draw, highest, kmeans_1d, scaled_to, shares
from infobatch.memory import Memory
from infobatch.plan import Plan
from infobatch.schedules import Moment
from infobatch.scorebook import ScoreBook
from infobatch.values import labels_of

numbers = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 7.0, math.nan]), min_size=1, max_size=30)


def lot(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


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


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=40), st.integers(0, 9))
def test_systematic_draws_have_the_right_number(chances: list[float], seed: int) -> None:
    tensor = torch.tensor(chances, dtype=torch.float64)
    total = round(float(tensor.sum()))
    if bool((tensor * total / tensor.sum() <= 1).all()):
        assert int(draw(tensor, lot(seed)).sum()) == total


def test_systematic_draws_have_the_right_chances() -> None:
    chances = torch.tensor([0.1, 0.9, 0.5, 0.5, 1.0], dtype=torch.float64)
    seen = sum(draw(chances, lot(seed)).double() for seed in range(4000)) / 4000
    torch.testing.assert_close(seen, chances, atol=0.03, rtol=0)


@given(st.lists(st.floats(0.0, 50.0), min_size=2, max_size=40), st.floats(0.05, 0.9), st.floats(0.05, 0.95))
def test_chances_sum_to_the_budget(sizes: list[float], floor: float, part: float) -> None:
    tensor = torch.tensor(sizes, dtype=torch.float64)
    if not bool((tensor > 1e-6).any()):
        return
    total = floor * len(sizes) + part * (1 - floor) * len(sizes)
    chances = scaled_to(tensor, total, floor)
    assert float(chances.sum()) == pytest.approx(total, rel=1e-6, abs=1e-6)
    assert bool(((chances >= floor - 1e-12) & (chances <= 1)).all())
    order = tensor.argsort()
    assert bool((chances[order].diff() >= -1e-12).all()), "a higher score has no smaller chance"


def test_rising_is_unbiased_and_exact() -> None:
    book = ScoreBook(400)
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
    book = ScoreBook(100)
    book.scores.copy_(torch.rand(100, generator=lot()))
    plan = methods.rising(0.9, floor=0.1).draw(book, Moment(1, 10), 0)
    assert plan.kept == 10
    assert plan.weights.tolist() == pytest.approx([10.0] * 10)


def test_rising_has_less_variance_than_uniform() -> None:
    """The point of it: the weighted mean of the scores moves less from draw to draw."""
    book = ScoreBook(500)
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
    got = shares(wishes, limits, total, lot())
    assert sum(got) == min(total, sum(limits))
    assert all(0 <= many <= limit for many, limit in zip(got, limits, strict=True))


def test_shares_go_by_largest_remainders_and_equal_ones_by_lot() -> None:
    """7, 1.5 and 1.5 of ten: what is left over is for one of the two that lack a half."""
    got = {tuple(shares([70.0, 15.0, 15.0], [99, 99, 99], 10, lot(seed))) for seed in range(20)}
    assert got == {(7, 2, 1), (7, 1, 2)}
    assert shares([1.0, 1.0, 8.0], [99, 99, 4], 10, lot()) == [3, 3, 4]


# ---- memory ------------------------------------------------------------------------------------------------


def run(memory: Memory, *losses: list[float], confidence: list[list[float]] | None = None) -> dict[str, list[float]]:
    """Feed epochs of losses (NaN: the sample did not come) and read the columns."""
    book = ScoreBook(len(losses[0]))
    book.keep(memory, ("confidence",) if confidence else ())
    for at, row in enumerate(losses):
        came = [index for index, loss in enumerate(row) if not math.isnan(loss)]
        book.record(torch.tensor(came), torch.tensor([row[index] for index in came]))
        if confidence:
            book.came["confidence"].copy_(torch.tensor(confidence[at]))
        planned = torch.tensor([not math.isnan(loss) for loss in row])
        book.remember(memory, Plan(at, planned.nonzero().squeeze(1), planned.float()))
        book.merge()
    return {name: column.tolist() for name, column in book.memory.items()}


def test_ucb_remembers_what_its_source_says() -> None:
    """v <- (1-a)v + a(l-e)^2 with the old e; e <- (1-a)e + a*l."""
    e, v = 2.0, 0.0
    for loss in (1.0, 3.0):
        v = 0.2 * v + 0.8 * (loss - e) ** 2
        e = 0.2 * e + 0.8 * loss
    memory = methods.ucb().memory
    assert memory is not None
    got = run(memory, [2.0, 5.0], [1.0, math.nan], [3.0, math.nan])
    assert got["average"] == pytest.approx([e, 5.0])
    assert got["spread"] == pytest.approx([v, 0.0])
    assert got["chosen"] == [1.0, 0.0]


def test_ies_remembers_second_differences() -> None:
    memory = methods.ies().memory
    assert memory is not None
    got = run(memory, [5.0], [3.0], [2.0], [1.5], [1.4])
    bends = [abs(2 - 2 * 3 + 5), abs(1.5 - 2 * 2 + 3), abs(1.4 - 2 * 1.5 + 2)]
    assert [got[f"bend{at}"][0] for at in (3, 2, 1)] == pytest.approx(bends, abs=1e-6)


def test_eswp_remembers_what_its_source_says() -> None:
    memory = methods.eswp().memory
    assert memory is not None
    slow = 0.9 * 2.0 + 0.1 * 2.0
    got = run(memory, [2.0], [1.0])
    assert got["weight"] == pytest.approx([0.2 * slow + 0.8 * 1.0])
    assert got["slow"] == pytest.approx([0.9 * slow + 0.1 * 1.0])


def test_bls_needs_the_batch_alone() -> None:
    """H <- 0.9 H + 0.1 * the mean loss of the batch."""
    data = torch.utils.data.TensorDataset(torch.arange(8))
    train = infobatch.Pruned(data, methods.bls(), 4)
    plan = train.plan().indices
    train.update(torch.tensor([1.0, 2.0, 3.0, 6.0]), plan[:4])
    train.update(torch.tensor([0.0, 0.0, 0.0, 4.0]), plan[4:])
    state = train.state_dict()
    expected = torch.empty(8)
    expected[plan[:4]], expected[plan[4:]] = 3.0, 1.0
    assert torch.equal(state["memory"]["batch"], expected)
    assert train.plan().kept == 6  # of the four below the mean, two go


def test_rs2_uses_everyone_before_anyone_twice() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(90))
    train = infobatch.Pruned(data, methods.rs2(0.6), 10)
    visits = torch.zeros(90)
    for epoch in range(10):
        plan = train.plan()
        assert plan.kept == 36
        train.update(torch.rand(36), plan.indices)
        visits[plan.indices] += 1
        assert visits.max() - visits.min() <= 1, epoch


def test_seta_slides_from_easy_to_hard() -> None:
    book = ScoreBook(300)
    book.scores.copy_(torch.arange(300) / 300)
    method = methods.seta(0.1, groups=5, share=0.6)
    means = []
    for epoch in range(1, 7):
        kept = method.draw(book, Moment(epoch, 10), 0).table != 0
        means.append(float(book.scores[kept].mean()))
        assert int(kept.sum()) == pytest.approx(0.9 * 0.6 * 300, rel=0.1)
    assert means[2] < means[0] < means[1]  # epochs 3, 1, 2: the window has three places
    assert means[3:] == pytest.approx(means[:3], abs=0.03)


def test_shares_of_a_run_are_real_numbers() -> None:
    """0.28 of 25 epochs are 7, also where the product of the two is a little more."""
    book = ScoreBook(100)
    book.scores.copy_(torch.arange(100.0))
    seta = methods.seta(0.1, share=0.4, delta=0.28)
    assert [seta.draw(book, Moment(epoch, 25), 0).kept == 90 for epoch in (6, 7)] == [False, True]
    kakurenbo = methods.kakurenbo(0.3, steps=(1.0, 0.5), at=(0.28,))
    book.keep(kakurenbo.memory, ())
    book.memory["confidence"].fill_(1.0)
    assert [kakurenbo.draw(book, Moment(epoch, 25), 0).kept for epoch in (6, 7)] == [70, 85]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("ratio", [0.3, 0.6, 0.99])
def test_kakurenbo_never_hides_everyone(size: int, ratio: float) -> None:
    book = ScoreBook(size)
    method = methods.kakurenbo(ratio)
    book.keep(method.memory, ())
    book.scores.fill_(0.01)
    book.memory["confidence"].fill_(0.99)
    assert method.draw(book, Moment(1, 10), 0).kept >= 1


def test_kakurenbo_hides_the_low_and_sure_alone() -> None:
    book = ScoreBook(100)
    method = methods.kakurenbo(0.3)
    book.keep(method.memory, ())
    book.scores.copy_(torch.arange(100.0))
    book.memory["confidence"].copy_((torch.arange(100) % 2).float())
    hidden = method.draw(book, Moment(1, 100), 0).table == 0
    assert hidden.nonzero().squeeze(1).tolist() == list(range(1, 30, 2))
    late = method.draw(book, Moment(80, 100), 0).table == 0
    assert late.nonzero().squeeze(1).tolist() == list(range(1, 12, 2))


def test_order_dp_takes_the_top_of_some() -> None:
    book = ScoreBook(1000)
    book.scores.copy_(torch.rand(1000, generator=lot()))
    plan = methods.order_dp().draw(book, Moment(1, 10), 0)
    assert plan.kept == 300
    assert float(book.scores[plan.indices].min()) > 0.55


def test_rcap_gives_hard_classes_more() -> None:
    labels = torch.arange(600) % 3
    book = ScoreBook(600)
    book.scores.copy_(torch.tensor([0.05, 0.2, 0.9])[labels] + 0.01 * torch.rand(600, generator=lot()))
    plan = methods.rcap(labels, 0.5).draw(book, Moment(1, 10), 0)
    counts = [int((plan.table[labels == label] != 0).sum()) for label in range(3)]
    wish = [math.sqrt(mean) for mean in (0.055, 0.205, 0.905)]
    assert sum(counts) == 300
    for count, part in zip(counts, wish, strict=True):
        assert count == pytest.approx(min(200, 300 * part / sum(wish)), abs=3)


def test_rcap_keeps_to_its_budget_where_some_are_unknown() -> None:
    labels = torch.arange(600) % 3
    book = ScoreBook(600)
    book.scores.copy_(torch.rand(600, generator=lot()))
    book.scores[labels == 1] = math.nan
    plan = methods.rcap(labels, 0.5).draw(book, Moment(1, 10), 0)
    assert plan.kept == 300
    assert bool((plan.table[labels == 1] == 1).all())


def test_a_plan_costs_no_more_with_many_classes() -> None:
    """As many operations on tensors with 3 classes as with 300, whatever their labels are."""

    class Count(TorchDispatchMode):
        done = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Count.done += 1
            return func(*args, **(kwargs or {}))

    book = ScoreBook(900)
    book.scores.copy_(torch.rand(900, generator=lot()))

    def operations(classes: int, make: Callable[[torch.Tensor], methods.Method]) -> int:
        method = make((torch.arange(900) % classes) * 2**40)
        Count.done = 0
        with Count():
            method.draw(book, Moment(1, 10), 0)
        return Count.done

    for make in (
        lambda labels: methods.rcap(labels, 0.7),
        lambda labels: variations.class_floor(methods.infobatch(0.9), labels, 0.5),
        lambda labels: variations.class_floor(methods.order_dp(), labels, 0.5),
    ):
        assert operations(300, make) < operations(3, make) + 30


# ---- guards and variations -----------------------------------------------------------------------------------


def test_unbiased_makes_the_expected_weight_one() -> None:
    book = ScoreBook(200)
    book.scores.copy_(torch.rand(200, generator=lot()))
    method = variations.unbiased(methods.order_dp(1.0, 0.5), 0.25)
    weights = torch.zeros(200)
    for seed in range(3000):
        plan = method.draw(book, Moment(1, 10), seed)
        assert plan.kept == 100
        weights += plan.table
    assert float((weights / 3000 - 1).abs().max()) < 0.2
    plain = methods.order_dp(1.0, 0.5).draw(book, Moment(1, 10), 0)
    assert bool((plain.table == 0).any()), "without it, half of the samples never count"


def test_the_class_floor_keeps_an_easy_class_alive() -> None:
    """One class is learned at once: the top of the losses would drop it whole."""
    labels = torch.arange(300) % 3
    book = ScoreBook(300)
    book.scores.copy_(torch.where(labels == 0, 0.01, 1.0) + torch.rand(300, generator=lot()))
    book.scores[labels == 0] /= 100
    method = methods.order_dp(1.0, 0.6)
    without = method.draw(book, Moment(1, 10), 0).table != 0
    guarded = variations.class_floor(method, labels, 0.3).draw(book, Moment(1, 10), 0).table != 0
    assert float(without[labels == 0].float().mean()) == 0
    assert float(guarded[labels == 0].float().mean()) == pytest.approx(0.3)
    assert bool((guarded | ~without).all()), "nobody is left out for it"


def test_the_class_floor_leaves_a_class_its_weight() -> None:
    labels = torch.arange(300) % 3
    book = ScoreBook(300)
    book.scores.copy_(torch.where(labels == 0, 0.01, 1.0) + 0.1 * torch.rand(300, generator=lot()))
    method = methods.infobatch(0.9)
    plain, guarded = (
        each.draw(book, Moment(1, 10), 0) for each in (method, variations.class_floor(method, labels, 0.5))
    )
    for label in range(3):
        mine = labels == label
        assert float(guarded.table[mine].sum()) == pytest.approx(float(plain.table[mine].sum()), rel=1e-5)
    assert guarded.kept == plain.kept + 40


MADE_UP_FOR = {
    "infobatch": methods.infobatch(),
    "tiers": methods.tiers(),
    "saving": methods.saving(0.6, delta=1.0),
    "rising": methods.rising(0.6, power=1.0, floor=0.1),
    "unbiased": variations.unbiased(methods.order_dp()),
}


@pytest.mark.parametrize("name", MADE_UP_FOR)
def test_the_class_floor_leaves_the_expected_weight_at_one(name: str) -> None:
    """Also of a class so small that a draw often leaves it out whole, and whatever the floor is for it."""
    labels = torch.tensor([0] * 70 + [1] * 20 + [2] * 7 + [3] * 3)
    book = ScoreBook(100)
    book.scores.copy_(torch.rand(100, generator=lot()) ** 3)
    hard = book.scores > book.scores.median()
    method = variations.class_floor(MADE_UP_FOR[name], labels, 0.6)
    weights = torch.zeros(100)
    for seed in range(250):
        plan = method.draw(book, Moment(1, 10), seed)
        assert float(plan.table.sum()) == pytest.approx(100, rel=1e-5)
        kept = torch.bincount(labels[plan.indices], minlength=4)
        assert bool((kept >= torch.tensor([42, 12, 5, 2])).all())
        weights += plan.table / 250
    groups = [weights[(labels == label) & (hard == side)] for label in range(4) for side in (True, False)]
    for group in groups:
        if len(group):
            assert float(group.mean()) == pytest.approx(1, abs=4 * 1.2 / math.sqrt(250 * len(group)) + 0.02)


def test_the_class_floor_of_a_hundred_is_what_it_says() -> None:
    """7 % of 100 are 7, also where the product of the two is a little more."""
    book = ScoreBook(100)
    book.scores.copy_(torch.arange(100.0))
    guarded = variations.class_floor(methods.order_dp(1.0, 0.01), torch.zeros(100, dtype=torch.int64), 0.07)
    assert guarded.draw(book, Moment(1, 10), 0).kept == 7


@pytest.mark.parametrize("method", [methods.order_dp(1.0, 0.2), methods.infobatch(0.9)])
def test_floors_for_classes_and_groups_hold_together(method: methods.Method) -> None:
    classes, groups = torch.arange(240) % 4, torch.arange(240) // 80
    book = ScoreBook(240)
    book.scores.copy_(torch.rand(240, generator=lot()))
    book.scores[groups == 0] /= 100
    both = variations.class_floor(variations.class_floor(method, classes, 0.4), groups, 0.3)
    for seed in range(20):
        kept = both.draw(book, Moment(1, 10), seed).table != 0
        assert min(float(kept[classes == each].float().mean()) for each in range(4)) >= 0.4
        assert min(float(kept[groups == each].float().mean()) for each in range(3)) >= 0.3


def test_variations_that_meet_again() -> None:
    ucb = methods.ucb()
    assert repr(variations.plain(variations.unbiased(ucb))) == repr(variations.plain(ucb))
    once = variations.unbiased(ucb)
    assert variations.unbiased(once) is once
    late = variations.annealed(variations.annealed(ucb, 0.5), 0.9)
    assert late.settings["annealed"] == 0.5
    book = ScoreBook(50)
    book.keep(ucb.memory, ())
    book.memory["average"].copy_(torch.rand(50, generator=lot()))
    plan = variations.plain(once).draw(book, Moment(1, 10), 0)
    assert plan.kept == 35
    assert bool((plan.weights == 1).all())


@pytest.mark.filterwarnings("ignore::infobatch.InfoBatchWarning")
def test_annealed_saving_ends_where_it_was_asked_to() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(200))
    method = variations.annealed(methods.saving(0.4, delta=1.0), 0.6)
    train = infobatch.Pruned(data, method, 20)
    for epoch in range(20):
        indices = train.plan().indices
        train.update(torch.rand(len(indices), generator=lot(epoch)), indices)
    assert train.history[-1].saved_so_far == pytest.approx(0.4, abs=0.005)
    with pytest.raises(infobatch.InputError, match="at most"):
        infobatch.Pruned(data, variations.annealed(methods.saving(0.6, delta=1.0), 0.6), 20)


def test_an_unbiased_choice_is_held_like_any_other() -> None:
    """In each of the ten epochs that UCB's choice is for, the same samples are those of its own stratum."""
    data, hard = torch.utils.data.TensorDataset(torch.arange(1000)), torch.rand(1000, generator=lot(1))
    best = torch.zeros(1000, dtype=torch.bool).index_fill_(0, hard.topk(700).indices, True)
    train = infobatch.Pruned(data, variations.unbiased(methods.ucb()), 12)
    for epoch in range(10):
        indices = train.plan().indices
        if epoch:
            assert int(best[indices].sum()) == 625  # 75 others come in the place of as many
        train.update(hard[indices], indices)


@pytest.mark.filterwarnings("ignore::infobatch.InfoBatchWarning")
@pytest.mark.parametrize("method", [methods.order_dp(), methods.ucb(0.5, every=1)], ids=["order_dp", "ucb"])
def test_the_noise_guard_suspects_no_more_than_its_share(method: methods.Method) -> None:
    """Suspects are left out, and those who come in their place are not suspected for that."""
    data, hard = torch.utils.data.TensorDataset(torch.arange(500)), torch.rand(500, generator=lot(1))
    train = infobatch.Pruned(data, variations.noise_guard(method, 0.1, 3), 40)
    for epoch in range(40):
        indices = train.plan().indices
        train.update(hard[indices] + 0.05 * torch.rand(len(indices), generator=lot(epoch)), indices)
    suspects = int((train.state_dict()["memory"]["streak"] >= 3).sum())
    assert 10 < suspects < 0.15 * 500


@pytest.mark.filterwarnings("ignore::infobatch.InfoBatchWarning")
def test_the_noise_guard_takes_wrong_labels_no_more_often_than_others() -> None:
    """A made set: a tenth has losses that stay high, as wrong labels have; the rest falls."""
    wrong = torch.arange(400) % 10 == 0
    data = torch.utils.data.TensorDataset(torch.arange(400))

    def share_of_wrong(method: infobatch.methods.Method) -> float:
        train, seen = infobatch.Pruned(data, method, 30), []
        for epoch in range(30):
            indices = train.plan().indices
            noise = 0.2 * torch.rand(len(indices), generator=lot(epoch))
            fall = torch.exp(-0.1 * epoch * (0.5 + (indices % 7) / 7.0))
            train.update(torch.where(wrong[indices], 4.0, 2 * fall) + noise, indices)
            seen.append(float(wrong[indices].float().mean()))
        return sum(seen[10:]) / 20

    without = share_of_wrong(methods.eswp(0.5))
    guarded = share_of_wrong(variations.noise_guard(methods.infobatch(0.5, delta=1.0), 0.1, 5))
    plain = share_of_wrong(methods.infobatch(0.5, delta=1.0))
    assert without > 0.15
    assert plain > 0.13
    assert guarded < 0.105


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: methods.rising(power=-1), "power"),
        (lambda: methods.rising(floor=0), "floor"),
        (lambda: methods.ucb(1.0), "ratio"),
        (lambda: methods.seta(share=1.5), "share"),
        (lambda: methods.seta(groups=0), "groups"),
        (lambda: methods.ies(0), "bound"),
        (lambda: methods.order_dp(0, 0.5), "some"),
        (lambda: methods.rcap(torch.rand(4)), "labels"),
        (lambda: methods.rcap(torch.tensor([0, -1])), "labels from 0"),
        (lambda: methods.dynamic_uncertainty(window=1), "window"),
        (lambda: variations.unbiased(methods.seta(), 0), "floor"),
        (lambda: variations.class_floor(methods.full(), torch.arange(3), 1.5), "floor"),
        (lambda: variations.noise_guard(methods.full(), patience=0), "patience"),
        (lambda: variations.annealed(methods.full(), 2), "delta"),
        (lambda: variations.annealed(methods.full(), "late"), "delta"),
        (lambda: variations.annealed(methods.full(), True), "delta"),
        (lambda: variations.noise_guard(variations.noise_guard(methods.full())), "one noise guard"),
        (lambda: variations.unbiased(methods.seta), "call it"),
        (lambda: variations.plain(3), "a method"),
        (lambda: methods.bls(0.5), "a method"),
        (lambda: methods.rising(0.8), "floor of at most"),
        (lambda: methods.ucb(c="x"), "c as a number"),
        (lambda: methods.ucb(c=math.nan), "c as a number"),
        (lambda: methods.ies(math.inf), "bound"),
        (lambda: methods.kakurenbo(steps=(2.0, 1.0), at=(0.5,)), "steps"),
        (lambda: methods.kakurenbo(steps=1.0), "steps as a tuple"),
        (lambda: methods.kakurenbo(at=(0.6, 0.3, 0.8)), "rising order"),
        (lambda: methods.rcap(["cat", "dog"]), "labels as whole numbers"),
        (lambda: methods.rcap(None), "labels as whole numbers"),
        (lambda: methods.rcap([0, 1], temperature=math.inf), "temperature"),
        (lambda: variations.class_floor(methods.rcap([0, 1, 0]), [0, 1]), "3 labels"),
    ],
)
def test_bad_settings_are_refused(make: object, complaint: str) -> None:
    with pytest.raises(infobatch.InputError, match=complaint):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("kind", ["uint8", "uint16", "int32", "uint64"])
def test_labels_come_in_many_kinds(kind: str) -> None:
    numpy = pytest.importorskip("numpy")
    labels = torch.tensor([3, 0, 3, 7])
    for given_as in (labels.tolist(), labels.numpy().astype(kind), labels.to(getattr(torch, kind))):
        assert labels_of(given_as).tolist() == [1, 0, 1, 2]
    assert labels_of(numpy.array([2**40, 0])).tolist() == [1, 0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: methods.rcap(torch.arange(7) % 2),
        lambda: variations.class_floor(methods.random(), torch.arange(7) % 2),
        lambda: methods.static(selection.Selection(torch.tensor([0, 2]), size=7)),
    ],
)
def test_what_belongs_to_other_samples_is_refused_at_once(make: Callable[[], methods.Method]) -> None:
    with pytest.raises(infobatch.InputError, match="for 10 samples"):
        infobatch.Pruned(list(range(10)), make(), 5)


def test_a_run_goes_on_with_its_own_selection_alone() -> None:
    """As many samples by a method of the same name are not the same choice."""
    one, other = (selection.Selection(torch.tensor(chosen), size=7, method="el2n") for chosen in ([0, 2], [0, 3]))
    heavy = selection.Selection(torch.tensor([0, 2]), 7, torch.tensor([0.5, 1.5]), "el2n")
    data = torch.utils.data.TensorDataset(torch.arange(7))
    state = infobatch.Pruned(data, one, 5).state_dict()
    infobatch.Pruned(data, one, 5).load_state_dict(state)
    for another in (other, heavy):
        with pytest.raises(infobatch.StateError, match="mark"):
            infobatch.Pruned(data, another, 5).load_state_dict(state)


def test_dynamic_uncertainty_keeps_what_moved_most() -> None:
    method = methods.dynamic_uncertainty(0.5, window=4)
    book = ScoreBook(60)
    book.keep(method.memory, ())
    past = torch.rand(4, 60, generator=lot())
    past[:, 40:] = past[0, 40:]  # stood still: equal, and settled by lot
    for at in range(4):
        book.memory[f"p{at}"].copy_(past[at])
    plans = [method.draw(book, Moment(5, 10), seed).indices for seed in range(2)]
    best = set(past.double().std(0).topk(30).indices.tolist())
    assert all(set(plan.tolist()) == best for plan in plans)
    more = [
        set(methods.dynamic_uncertainty(0.2, window=4).draw(book, Moment(5, 10), at).indices.tolist())
        for at in (0, 1)
    ]
    assert more[0] != more[1]


def test_a_window_that_never_fills_is_refused() -> None:
    with pytest.raises(infobatch.InputError, match="more epochs than the window of 10"):
        infobatch.Pruned(list(range(9)), methods.dynamic_uncertainty(), 10)


@pytest.mark.parametrize("scores", [torch.ones(50), torch.zeros(50), torch.full((50,), -2.0)])
@pytest.mark.parametrize("name", ["rising", "ucb", "epsilon_greedy", "eswp", "order_dp", "seta"])
def test_constant_scores_are_no_trouble(scores: torch.Tensor, name: str) -> None:
    method = methods.METHODS[name]()
    book = ScoreBook(50)
    book.keep(method.memory, ())
    book.scores.copy_(scores)
    for key, column in book.memory.items():
        if key != "chosen":
            column.copy_(scores)
    plan = method.draw(book, Moment(1, 10), 0)
    assert 1 <= plan.kept <= 50
    assert choices.budget(50, 0.999) == 1
