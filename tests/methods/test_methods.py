from __future__ import annotations

import inspect
import math
from collections.abc import Callable

import pytest
import torch
from torch.utils.data import TensorDataset

import infobatch
from infobatch import methods
from infobatch.epoch.scores import ScoreTable
from infobatch.methods import METHODS, Method
from infobatch.methods.method import Moment, until
from infobatch.methods.rules.saving import MOST

FAMILY = ("full", "infobatch", "tiers", "author_tiers", "above_mean", "random", "random_star", "saving", "rising")
every_method = pytest.mark.parametrize("maker", [METHODS[name] for name in FAMILY], ids=FAMILY)
C = 10


def book_of(scores: torch.Tensor, epoch: int = 1) -> ScoreTable:
    """After so many epochs of full data."""
    book = ScoreTable(scores.numel())
    book.scores.copy_(scores)
    book.planned = epoch * scores.numel()
    return book


SCORES = torch.rand(200, generator=torch.Generator().manual_seed(0)).pow(3)


def kept(method: Method, epoch: int, scores: torch.Tensor = SCORES) -> int:
    return method.draw(book_of(scores, epoch), Moment(epoch, C), seed=0).kept


@every_method
def test_annealing_epochs_are_full(maker: Callable[..., Method]) -> None:
    if "delta" not in inspect.signature(maker).parameters:
        pytest.skip("has no annealing")
    method = maker(delta=0.7)
    assert [kept(method, t) == 200 for t in range(1, C)] == [t >= 7 for t in range(1, C)]
    plan = method.draw(book_of(SCORES), Moment(7, C), seed=0)
    assert torch.equal(plan.table, torch.ones(200))


@every_method
def test_delta_one_turns_annealing_off(maker: Callable[..., Method]) -> None:
    if "delta" not in inspect.signature(maker).parameters:
        pytest.skip("has no annealing")
    assert all(kept(maker(delta=1.0), t) < 200 for t in range(1, C))
    assert all(kept(maker(delta=1), t) < 200 for t in range(1, C))


@every_method
def test_warmup_epochs_are_full(maker: Callable[..., Method]) -> None:
    if "warmup" not in inspect.signature(maker).parameters:
        pytest.skip("has no warm-up")
    assert [kept(maker(warmup=4), t) == 200 for t in range(1, 8)] == [t < 4 for t in range(1, 8)]


@every_method
def test_the_first_epoch_is_full_because_nothing_is_known(maker: Callable[..., Method]) -> None:
    expected = 140 if maker is methods.random_star else 200
    assert kept(maker(), 0, torch.full((200,), math.nan)) == expected


@every_method
def test_drawn_twice_the_same_and_by_seed_and_epoch(maker: Callable[..., Method]) -> None:
    method = maker()
    book = book_of(SCORES)
    one, two = (method.draw(book, Moment(1, C), seed=3) for _ in range(2))
    assert torch.equal(one.indices, two.indices)
    assert torch.equal(one.table, two.table)
    others = [method.draw(book, Moment(t, C), seed=seed) for seed, t in ((4, 1), (3, 2), (1, 3))]
    assert not any(torch.equal(one.indices[:50], other.indices[:50]) for other in others)
    zero_one, one_zero = (method.draw(book, Moment(t, C), seed=seed) for seed, t in ((0, 1), (1, 0)))
    assert not torch.equal(zero_one.indices[:50], one_zero.indices[:50])


@every_method
def test_every_method_bears_its_name(maker: Callable[..., Method]) -> None:
    assert maker().name == maker.__name__
    assert repr(maker()).startswith(maker.__name__ + "(")
    assert repr(maker()) == repr(maker())


def test_settings_that_change_plans_are_written() -> None:
    made = {
        repr(methods.infobatch()),
        repr(methods.infobatch(0.4)),
        repr(methods.infobatch(delta=0.5)),
        repr(methods.infobatch(warmup=2)),
        repr(methods.infobatch(rescale=False)),
        repr(methods.infobatch(rounding="paper")),
        repr(methods.tiers(low_ratio=0.8)),
        repr(methods.tiers(low_share=0.3)),
        repr(methods.saving(0.3)),
        repr(methods.saving(0.3, ratio=0.6)),
        repr(methods.saving(0.3, warmup=1)),
    }
    assert len(made) == 11


def test_rescale_off_keeps_the_sets_and_weighs_all_the_same() -> None:
    book, moment = book_of(SCORES), Moment(1, C)
    on = methods.infobatch().draw(book, moment, seed=0)
    off = methods.infobatch(rescale=False).draw(book, moment, seed=0)
    assert torch.equal(on.indices, off.indices)
    assert on.weights.max() > 1
    assert torch.equal(off.weights, torch.ones(off.kept))
    assert torch.equal(off.table == 0, on.table == 0)


def test_random_star_is_the_tables_baseline() -> None:
    plan = methods.random_star(0.3).draw(book_of(SCORES), Moment(C - 1, C), seed=0)
    assert plan.kept == 140
    assert torch.equal(plan.weights, torch.ones(140))


def test_full_never_prunes() -> None:
    assert [kept(methods.full(), t) for t in range(C)] == [200] * C


def test_author_tiers_counts() -> None:
    plan = methods.author_tiers().draw(book_of(torch.arange(200.0)), Moment(1, C), seed=0)
    assert plan.kept == 10 + 65 + 30


def test_the_face_hands_its_arguments_on() -> None:
    data = TensorDataset(torch.zeros(10))
    assert repr(infobatch.InfoBatch(data, 10).method) == repr(methods.infobatch())
    assert repr(infobatch.InfoBatch(data, 10, 0.3, 0.5, warmup=2, rescale=False).method) == repr(
        methods.infobatch(0.3, 0.5, warmup=2, rescale=False)
    )
    assert repr(infobatch.InfoBatch(data, 10, rounding="paper").method) == repr(methods.infobatch(rounding="paper"))
    assert repr(infobatch.InfoBatch(data, 10, saving=0.3, warmup=1).method) == repr(methods.saving(0.3, warmup=1))


@pytest.mark.parametrize(("share", "warmup"), [(0.4, 0), (0.15, 3), (0.6, 0)])
@pytest.mark.filterwarnings("ignore:epoch:infobatch.InfoBatchWarning")
def test_saving_ends_where_it_was_asked_to(share: float, warmup: int) -> None:
    data = TensorDataset(torch.rand(300, generator=torch.Generator().manual_seed(1)))
    train_data = infobatch.InfoBatch(data, 12, saving=share, warmup=warmup)
    for epoch in range(12):
        for (x,) in infobatch.DataLoader(train_data, batch_size=64):
            train_data.update(x.pow(2) * 0.9**epoch)
    assert train_data.history[-1].saved_so_far == pytest.approx(share, abs=0.01)
    assert all(report.saved == 0 for report in train_data.history[: max(1, warmup)])


@pytest.mark.parametrize("num_epochs", [2, 5, 10, 90])
def test_the_largest_saving_that_is_promised_is_kept(num_epochs: int) -> None:
    """The refusal names a bound; what lies just below it must be met."""
    schedule_epochs = sum(until(0.875)(Moment(t, num_epochs)) for t in range(1, num_epochs))
    most = MOST * schedule_epochs / num_epochs
    method = methods.saving(math.floor(most * 1000) / 1000)
    method.check_epochs(num_epochs, method.schedule)
    greedy = methods.saving(min(0.999, most + 0.002))
    with pytest.raises(infobatch.InputError, match="at most"):
        greedy.check_epochs(num_epochs, greedy.schedule)
    book = ScoreTable(500)
    for t in range(num_epochs):
        plan = method.draw(book, Moment(t, num_epochs), seed=0)
        book.begin(plan)
        book.record(plan.indices, SCORES.repeat(3)[plan.indices])
        book.close(plan, None, None)
        book.begin_anew(book.planned + plan.kept)
    assert 1 - book.planned / (500 * num_epochs) == pytest.approx(most, abs=0.01)
