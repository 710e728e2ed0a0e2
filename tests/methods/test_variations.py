"""Variations of methods: what each promises holds for the methods it is put around."""

from __future__ import annotations

import math

import pytest
import torch
from lots import lot

import infobatch
from infobatch import methods, variations
from infobatch.epoch.scores import ScoreTable
from infobatch.methods.method import Moment


def test_unbiased_makes_the_expected_weight_one() -> None:
    book = ScoreTable(200)
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
    book = ScoreTable(300)
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
    book = ScoreTable(300)
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
    book = ScoreTable(100)
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


@pytest.mark.parametrize("name", ["random_star", "rs2", "order_dp"])
@pytest.mark.parametrize("known", [0.0, 0.05, 1.0])
def test_unbiased_weights_stay_small_also_where_nothing_is_known(name: str, known: float) -> None:
    """Those methods leave out who has no score, too: then the left-out are made up for as ever."""
    book = ScoreTable(1000)
    book.scores[: int(1000 * known)] = 0.5
    book.make_columns(methods.METHODS[name]().memory, ())
    plan = variations.unbiased(methods.METHODS[name]()).draw(book, Moment(0, 10), 0)
    assert float(plan.table.sum()) == pytest.approx(1000, rel=1e-5)
    assert float(plan.table.max()) < 5
    plain = methods.METHODS[name]().draw(book, Moment(0, 10), 0)
    assert plan.kept == plain.kept


@pytest.mark.filterwarnings("ignore:.*a step stands for:infobatch.InfoBatchWarning")
def test_unbiased_weights_stay_small_in_every_epoch() -> None:
    """RS2 goes through the data in turns: at times nearly all of a plan have no score, and nobody else."""
    train = infobatch.Pruned(range(2000), variations.unbiased(methods.rs2(0.7)), 12, compensate="loss")
    for _ in range(12):
        plan = train.plan()
        assert float(plan.table.sum()) == pytest.approx(2000, rel=1e-5)
        assert float(plan.table.max()) < 5
        train.update(torch.rand(plan.kept), plan.indices)


def test_unbiased_weights_where_little_is_known() -> None:
    """Of 1,000 all but 20 have no score and stay; of the others seta leaves some out, and they are made up for."""
    book = ScoreTable(1000)
    book.scores[:20] = torch.rand(20, generator=lot())
    method = variations.unbiased(methods.seta(0.5))
    for seed in range(20):
        plan = method.draw(book, Moment(1, 10), seed)
        assert bool((plan.table[20:] == 1).all())
        assert float(plan.table.sum()) == pytest.approx(1000, rel=1e-5)
        assert float(plan.table.max()) <= 20


@pytest.mark.parametrize("name", ["infobatch", "tiers", "saving"])
@pytest.mark.parametrize("floor", [0.01, 0.6])
def test_the_class_floor_takes_nobody_who_was_sure_to_stay(name: str, floor: float) -> None:
    """High losses and samples without one, whether a class would fall short or not."""
    labels = torch.arange(60) % 6
    book = ScoreTable(60)
    book.scores.copy_(torch.rand(60, generator=lot()))
    book.scores[7] = torch.nan
    plain = [MADE_UP_FOR[name].draw(book, Moment(1, 10), seed).table for seed in range(200)]
    sure = (torch.stack(plain) == 1).all(0)
    assert bool(sure[7])
    method = variations.class_floor(MADE_UP_FOR[name], labels, floor)
    for seed in range(100):
        assert bool((method.draw(book, Moment(1, 10), seed).table[sure] == 1).all())


def test_the_class_floor_of_a_hundred_is_what_it_says() -> None:
    """7 % of 100 are 7, also where the product of the two is a little more."""
    book = ScoreTable(100)
    book.scores.copy_(torch.arange(100.0))
    guarded = variations.class_floor(methods.order_dp(1.0, 0.01), torch.zeros(100, dtype=torch.int64), 0.07)
    assert guarded.draw(book, Moment(1, 10), 0).kept == 7


@pytest.mark.parametrize("method", [methods.order_dp(1.0, 0.2), methods.infobatch(0.9)])
def test_floors_for_classes_and_groups_hold_together(method: methods.Method) -> None:
    classes, groups = torch.arange(240) % 4, torch.arange(240) // 80
    book = ScoreTable(240)
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
    book = ScoreTable(50)
    book.make_columns(ucb.memory, ())
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
