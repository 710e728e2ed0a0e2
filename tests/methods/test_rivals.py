"""The rivals, as their sources say: what they remember, and whom they take."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lots import lot
from torch.utils._python_dispatch import TorchDispatchMode

import infobatch
from infobatch import methods, variations
from infobatch.epoch.scores import ScoreTable
from infobatch.methods.draws import budget, highest
from infobatch.methods.memory import Memory
from infobatch.methods.method import Moment
from infobatch.methods.rules.seta import kmeans_1d
from infobatch.plan import Plan


def run(memory: Memory, *losses: list[float], confidence: list[list[float]] | None = None) -> dict[str, list[float]]:
    """Feed epochs of losses (NaN: the sample did not come) and read the columns."""
    book = ScoreTable(len(losses[0]))
    book.make_columns(memory, ("confidence",) if confidence else ())
    for at, row in enumerate(losses):
        came = [index for index, loss in enumerate(row) if not math.isnan(loss)]
        book.record(torch.tensor(came), torch.tensor([row[index] for index in came]))
        if confidence:
            book.channels["confidence"].copy_(torch.tensor(confidence[at]))
        planned = torch.tensor([not math.isnan(loss) for loss in row])
        book.close(Plan(at, planned.nonzero().squeeze(1), planned.float()), None, memory)
        book.begin_anew(0)
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
    book = ScoreTable(300)
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
    book = ScoreTable(100)
    book.scores.copy_(torch.arange(100.0))
    seta = methods.seta(0.1, share=0.4, delta=0.28)
    assert [seta.draw(book, Moment(epoch, 25), 0).kept == 90 for epoch in (6, 7)] == [False, True]
    kakurenbo = methods.kakurenbo(0.3, steps=(1.0, 0.5), at=(0.28,))
    book.make_columns(kakurenbo.memory, ())
    book.memory["confidence"].fill_(1.0)
    assert [kakurenbo.draw(book, Moment(epoch, 25), 0).kept for epoch in (6, 7)] == [70, 85]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("ratio", [0.3, 0.6, 0.99])
def test_kakurenbo_never_hides_everyone(size: int, ratio: float) -> None:
    book = ScoreTable(size)
    method = methods.kakurenbo(ratio)
    book.make_columns(method.memory, ())
    book.scores.fill_(0.01)
    book.memory["confidence"].fill_(0.99)
    assert method.draw(book, Moment(1, 10), 0).kept >= 1


def test_kakurenbo_hides_the_low_and_sure_alone() -> None:
    book = ScoreTable(100)
    method = methods.kakurenbo(0.3)
    book.make_columns(method.memory, ())
    book.scores.copy_(torch.arange(100.0))
    book.memory["confidence"].copy_((torch.arange(100) % 2).float())
    hidden = method.draw(book, Moment(1, 100), 0).table == 0
    assert hidden.nonzero().squeeze(1).tolist() == list(range(1, 30, 2))
    late = method.draw(book, Moment(80, 100), 0).table == 0
    assert late.nonzero().squeeze(1).tolist() == list(range(1, 12, 2))


def test_order_dp_takes_the_top_of_some() -> None:
    book = ScoreTable(1000)
    book.scores.copy_(torch.rand(1000, generator=lot()))
    plan = methods.order_dp().draw(book, Moment(1, 10), 0)
    assert plan.kept == 300
    assert float(book.scores[plan.indices].min()) > 0.55


def test_rcap_gives_hard_classes_more() -> None:
    labels = torch.arange(600) % 3
    book = ScoreTable(600)
    book.scores.copy_(torch.tensor([0.05, 0.2, 0.9])[labels] + 0.01 * torch.rand(600, generator=lot()))
    plan = methods.rcap(labels, 0.5).draw(book, Moment(1, 10), 0)
    counts = [int((plan.table[labels == label] != 0).sum()) for label in range(3)]
    wish = [math.sqrt(mean) for mean in (0.055, 0.205, 0.905)]
    assert sum(counts) == 300
    for count, part in zip(counts, wish, strict=True):
        assert count == pytest.approx(min(200, 300 * part / sum(wish)), abs=3)


def test_rcap_keeps_to_its_budget_where_some_are_unknown() -> None:
    labels = torch.arange(600) % 3
    book = ScoreTable(600)
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

    book = ScoreTable(900)
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


def test_dynamic_uncertainty_keeps_what_moved_most() -> None:
    method = methods.dynamic_uncertainty(0.5, window=4)
    book = ScoreTable(60)
    book.make_columns(method.memory, ())
    past = torch.rand(4, 60, generator=lot())
    past[:, 40:] = past[0, 40:]  # stood still: equal, and settled by lot
    for at in range(4):
        book.memory[f"p{at}"].copy_(past[at])
    plans = [method.draw(book, Moment(5, 10), seed).indices for seed in range(2)]
    best = set(past.double().std(0).topk(30).indices.tolist())
    assert all(set(plan.tolist()) == best for plan in plans)
    more = [
        set(methods.dynamic_uncertainty(0.2, window=4).draw(book, Moment(5, 10), at).indices.tolist()) for at in (0, 1)
    ]
    assert more[0] != more[1]


def test_a_window_that_never_fills_is_refused() -> None:
    with pytest.raises(infobatch.InputError, match="window of 10"):
        infobatch.Pruned(list(range(9)), methods.dynamic_uncertainty(), 10)
    with pytest.raises(infobatch.InputError, match="window of 10"):  # the last ten are full
        infobatch.Pruned(list(range(9)), infobatch.variations.annealed(methods.dynamic_uncertainty(), 0.5), 20)


@pytest.mark.parametrize("scores", [torch.ones(50), torch.zeros(50), torch.full((50,), -2.0)])
@pytest.mark.parametrize("name", ["rising", "ucb", "epsilon_greedy", "eswp", "order_dp", "seta"])
def test_constant_scores_are_no_trouble(scores: torch.Tensor, name: str) -> None:
    method = methods.METHODS[name]()
    book = ScoreTable(50)
    book.make_columns(method.memory, ())
    book.scores.copy_(scores)
    for key, column in book.memory.items():
        if key != "chosen":
            column.copy_(scores)
    plan = method.draw(book, Moment(1, 10), 0)
    assert 1 <= plan.kept <= 50
    assert budget(50, 0.999) == 1


@pytest.mark.slow
def test_groups_of_more_than_float32_can_count() -> None:
    group = kmeans_1d(torch.zeros(2**24 + 3), 5, rounds=1)
    assert len(group) == 2**24 + 3
    assert int(group.min()) == int(group.max())


def test_the_unknown_come_before_what_is_too_large_to_tell() -> None:
    """Losses near the end of float32 make an infinite bound: it is no reason to leave out who was never seen."""
    values = torch.tensor([torch.inf] * 9 + [torch.nan])
    for seed in range(20):
        assert highest(values, 1, torch.Generator().manual_seed(seed))[9]
