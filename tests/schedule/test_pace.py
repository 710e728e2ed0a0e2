"""Schedulers that follow the data: where they end, what they do on the way, and going on from a checkpoint."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from paced import BATCH, EPOCHS, FULL_STEPS, SCHEDULERS, SIZE, TOTAL, Maker, Run, every_scheduler, plain_rates
from torch.optim import lr_scheduler as lrs
from torch.utils.data import TensorDataset

import infobatch

# ---- where it ends -------------------------------------------------------------------------------------------


@every_scheduler
@pytest.mark.parametrize("stock", [False, True], ids=["infobatch", "stock"])
def test_under_pruning_it_makes_the_steps_of_a_full_run(maker: Maker, stock: bool) -> None:
    run = Run(maker, stock=stock).train()
    assert len(run.steps) < TOTAL - 10
    assert run.inner is not None
    assert run.inner.last_epoch == TOTAL
    assert run.lr == plain_rates(maker, TOTAL)[-1]


@every_scheduler
def test_at_every_epoch_it_stands_where_the_full_run_does(maker: Maker) -> None:
    run = Run(maker).train()
    plain = plain_rates(maker, TOTAL)
    for epoch in range(EPOCHS):
        first = next(step for step in run.steps if step.epoch == epoch)
        assert first.lr == plain[epoch * FULL_STEPS]


@every_scheduler
@pytest.mark.parametrize("stock", [False, True], ids=["infobatch", "stock"])
@pytest.mark.parametrize(
    ("batch", "drop_last", "every", "flush", "steps"),
    [
        (8, False, 1, True, 13),
        (8, True, 1, True, 12),
        (100, False, 1, True, 1),
        (7, False, 1, True, 15),
        (7, True, 1, True, 14),
        (5, False, 4, True, 5),
        (8, False, 4, True, 4),  # 13 batches by fours, and the rest at the end
        (8, False, 4, False, 3),  # 13 batches by fours, and the rest into the next step
        (9, True, 4, False, 2),
        (30, False, 3, False, 1),
    ],
)
def test_with_nothing_pruned_it_is_the_plain_scheduler(
    maker: Maker, stock: bool, batch: int, drop_last: bool, every: int, flush: bool, steps: int
) -> None:
    run = Run(
        maker, ratio=0.0, batch=batch, drop_last=drop_last, stock=stock, every=every, flush=flush, steps=steps
    ).train()
    plain = plain_rates(maker, EPOCHS * steps)
    assert run.rates == plain[:-1]
    assert run.lr == plain[-1]


@pytest.mark.parametrize(("every", "steps"), [(1, 13), (2, 7), (3, 5)])
def test_pruning_with_gradient_accumulation(every: int, steps: int) -> None:
    run = Run(SCHEDULERS["CosineAnnealingLR"], every=every, steps=steps).train()
    assert run.inner is not None
    assert run.inner.last_epoch == EPOCHS * steps


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("compensate", ["loss", "lr", "none"])
def test_an_epoch_that_is_left_early_is_a_step_of_a_scheduler_of_epochs(compensate: Any, named: bool) -> None:
    """And one alone, however often it is called; what is saved before it or after goes on the same."""

    def fresh() -> tuple[infobatch.InfoBatch, Any]:
        data = infobatch.InfoBatch(TensorDataset(torch.arange(64.0), torch.arange(64)), 8, compensate=compensate)
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
        return data, infobatch.pace(lrs.StepLR(optimizer, 1, 0.5), data, 1)

    def batches(data: infobatch.InfoBatch, stop: int) -> None:
        for number, (x, indices) in enumerate(infobatch.DataLoader(data, batch_size=8), start=1):
            data.update(x, indices if named else None)
            if number == stop:
                break

    data, paced = fresh()
    for epoch in range(8):
        batches(data, 4)
        before = [each.state_dict() for each in (data, paced.optimizer, paced)]
        paced.optimizer.step()
        paced.step()
        assert paced.scheduler.last_epoch == epoch + 1
        assert paced.state_dict()["plain"] == [0.5 ** (epoch + 1)]
        paced.step()
        assert paced.scheduler.last_epoch == epoch + 1
        for state in (before, [before[0], paced.optimizer.state_dict(), paced.state_dict()]):
            then, again = fresh()
            for each, its in zip((then, again.optimizer, again), state, strict=True):
                each.load_state_dict(its)
            batches(then, 1)
            again.optimizer.step()
            again.step()
            assert again.state_dict()["plain"] == [0.5 ** (epoch + 1)]


def test_indices_given_by_the_caller() -> None:
    data = infobatch.InfoBatch(TensorDataset(torch.rand(SIZE).pow(3)), EPOCHS)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    inner = SCHEDULERS["CosineAnnealingLR"](optimizer, TOTAL)
    scheduler = infobatch.pace(inner, data, FULL_STEPS)
    for _ in range(EPOCHS):
        for indices in data.plan().indices.split(BATCH):
            data.update(torch.rand(len(indices)), indices)
            optimizer.step()
            scheduler.step()
    assert data.history[-1].saved_so_far > 0.1
    assert inner.last_epoch == TOTAL


def test_the_rate_grows_in_a_loop_over_the_plan_alone() -> None:
    """No pass over the sampler says that an epoch begins, and nobody calls a step."""
    losses = torch.rand(SIZE, generator=torch.Generator().manual_seed(0)).pow(3)
    data = infobatch.InfoBatch(TensorDataset(losses), EPOCHS, compensate="lr")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    infobatch.pace(optimizer, data)
    for _ in range(EPOCHS):
        growth = data.plan().growth
        for indices in data.plan().indices.split(BATCH):
            data.update(losses[indices], indices)
            assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * growth)
    assert max(report.growth for report in data.history) > 1.2


def said_in_a_graph(data: infobatch.Pruned, losses: torch.Tensor, *, eager: int = 0, paced: Any = None) -> list[str]:
    """What a loop over the plan is told whose updates are compiled, but for those of the first epochs."""
    fast = torch.compile(lambda loss, indices: data.update(loss, indices), backend="eager", dynamic=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", infobatch.InfoBatchWarning)
        for epoch in range(EPOCHS):
            for indices in data.plan().indices.split(BATCH):
                (data.update if epoch < eager else fast)(losses[indices], indices)
                if paced is not None:
                    paced.step()
        assert data.epoch == EPOCHS
    return [str(each.message) for each in caught if issubclass(each.category, infobatch.InfoBatchWarning)]


def test_a_graph_tells_nobody_that_an_epoch_begins_and_that_is_told() -> None:
    losses = torch.rand(SIZE, generator=torch.Generator().manual_seed(0)).pow(3)

    def fresh() -> tuple[infobatch.Pruned, Any]:
        data = infobatch.InfoBatch(TensorDataset(losses), EPOCHS, compensate="lr")
        return data, torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)

    data, optimizer = fresh()
    infobatch.pace(optimizer, data)
    (said,) = said_in_a_graph(data, losses)
    assert said.startswith("epoch 1 was not trained at its learning rate")
    data, optimizer = fresh()
    infobatch.pace(optimizer, data)
    (said,) = said_in_a_graph(data, losses, eager=2)  # as many are kept in the others: the rate is theirs
    assert said.startswith("epoch 7 was not trained at its learning rate")
    data, optimizer = fresh()
    assert said_in_a_graph(data, losses, paced=infobatch.pace(optimizer, data)) == []
    (said,) = said_in_a_graph(fresh()[0], losses)
    assert "nothing makes it grow" in said


def test_a_first_batch_that_was_refused_tells_of_its_epoch_again() -> None:
    losses = torch.rand(SIZE, generator=torch.Generator().manual_seed(0)).pow(3)
    data = infobatch.InfoBatch(TensorDataset(losses), EPOCHS, compensate="lr")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    infobatch.pace(optimizer, data)
    data.update(losses, data.plan().indices)
    first = data.plan().indices[:BATCH]
    optimizer.param_groups[0]["lr"] = 0.3
    with pytest.raises(infobatch.errors.InputError):
        data.update(losses[first], first)
    optimizer.param_groups[0]["lr"] = 0.1
    data.update(losses[first], first)
    assert data.plan().growth > 1
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * data.plan().growth)


@pytest.mark.parametrize(
    ("batch_size", "options"),
    [(0, {}), (-3, {}), (2.5, {}), (True, {}), (None, {}), (8, {"accumulate": 0}), (1000, {"drop_last": True})],
)
def test_full_steps_of_what_is_none(batch_size: Any, options: dict[str, Any]) -> None:
    data = infobatch.InfoBatch(range(100), EPOCHS, compensate="lr")
    with pytest.raises(infobatch.errors.InputError, match="expected"):
        infobatch.full_steps(data, batch_size, **options)
    with pytest.raises(infobatch.errors.InputError, match="the training data"):
        infobatch.full_steps(range(100), 8)  # type: ignore[arg-type]


# ---- checkpoints ---------------------------------------------------------------------------------------------


@every_scheduler
@pytest.mark.parametrize("compensate", ["loss", "lr", "none"])
@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1, dtype=torch.float64)], ids=["float", "tensor"])
def test_state_dict_in_the_middle_of_an_epoch(maker: Maker, compensate: str, lr: Any, tmp_path: Any) -> None:
    copy = (lambda: lr.clone()) if isinstance(lr, torch.Tensor) else (lambda: lr)
    whole = Run(maker, compensate=compensate, lr=copy()).train()
    for stop in (3, FULL_STEPS, 20, 40):
        first = Run(maker, compensate=compensate, lr=copy()).train(stop_after=stop)
        infobatch.save(
            {
                "data": first.data.state_dict(),
                "optimizer": first.optimizer.state_dict(),
                "paced": first.paced.state_dict(),
            },
            tmp_path / "last.pt",
        )
        state = infobatch.load(tmp_path / "last.pt")
        second = Run(maker, compensate=compensate, lr=copy())
        second.data.load_state_dict(state["data"])
        second.optimizer.load_state_dict(state["optimizer"])
        second.paced.load_state_dict(state["paced"])
        second.train()
        assert first.rates + second.rates == whole.rates
        assert second.lr == whole.lr


def test_loading_sets_the_rate_in_use() -> None:
    """Also where the optimizer was loaded before the scheduler was built, which resets the rate."""
    first = Run(SCHEDULERS["OneCycleLR"], compensate="lr").train(stop_after=30)
    second = Run(SCHEDULERS["OneCycleLR"], compensate="lr")
    second.data.load_state_dict(first.data.state_dict())
    second.paced.load_state_dict(first.paced.state_dict())
    assert second.lr == first.lr


def test_a_state_does_not_change_afterwards() -> None:
    run = Run(SCHEDULERS["StepLR"], compensate="lr", lr=torch.tensor(0.1))
    run.train(stop_after=20)
    state = run.paced.state_dict()
    plain = [float(rate) for rate in state["plain"]]
    for (x,) in run.loader:
        run.data.update(x)
        run.optimizer.step()
        run.paced.step()
    assert [float(rate) for rate in run.paced.state_dict()["plain"]] != plain
    assert [float(rate) for rate in state["plain"]] == plain


WRONG = {"rates": {"plain": ["x"]}, "first": {"first": 3}, "count": {"count": None}, "growth": {"growth": "1"}}


@pytest.mark.parametrize("spoil", ["missing", "other kind", "no dict", "groups", *WRONG])
def test_a_wrong_state_is_refused_whole(spoil: str) -> None:
    run = Run(SCHEDULERS["StepLR"]).train(stop_after=20)
    state: Any = run.paced.state_dict()
    if spoil in WRONG:
        state |= WRONG[spoil]
    elif spoil == "missing":
        del state["count"]
    elif spoil == "other kind":
        state["scheduler"] = None
    elif spoil == "no dict":
        state = 7
    else:
        state["plain"] = [0.1, 0.2]
    before = run.paced.state_dict()
    with pytest.raises(infobatch.StateError, match=r"expected .*; got .*Nothing was loaded"):
        run.paced.load_state_dict(state)
    assert run.paced.state_dict() == before


@pytest.mark.parametrize("loads_first", [True, False])
def test_a_resumed_run_goes_on_as_it_began(loads_first: bool) -> None:
    def fresh() -> tuple[infobatch.InfoBatch, torch.optim.Optimizer]:
        data = infobatch.InfoBatch(TensorDataset(torch.arange(64.0)), 8, compensate="lr")
        return data, torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)

    def train(data: infobatch.InfoBatch, paced: Any, epochs: int) -> None:
        for _ in range(epochs):
            for (x,) in infobatch.DataLoader(data, batch_size=8):
                data.update(x)
                paced.optimizer.step()
                paced.step()

    data, optimizer = fresh()
    paced = infobatch.pace(optimizer, data)
    train(data, paced, 2)
    state, rates = data.state_dict(), paced.state_dict()
    assert state["compensate"] == "lr"
    data, optimizer = fresh()
    if loads_first:
        data.load_state_dict(state)
        paced = infobatch.pace(optimizer, data)
    else:
        paced = infobatch.pace(optimizer, data)
        data.load_state_dict(state)
    paced.load_state_dict(rates)
    assert data.compensate == "lr"
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * data.plan().growth)
    assert data.plan().growth > 1
    unpaced, _ = fresh()
    unpaced.load_state_dict(state)
    with pytest.warns(infobatch.InfoBatchWarning, match=r"wrap the scheduler .* in infobatch\.pace"):
        next(iter(infobatch.DataLoader(unpaced, batch_size=8)))


# ---- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [None, 0, -1, True, 2.5, "10"])
def test_steps_per_epoch_must_be_a_count(steps: Any) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    data = infobatch.InfoBatch(TensorDataset(torch.rand(SIZE)), EPOCHS)
    with pytest.raises(infobatch.InputError, match=r"expected steps_per_epoch.*; got .*full_steps\("):
        infobatch.pace(lrs.StepLR(optimizer, 3), data, steps)


def test_only_schedulers_and_optimizers_can_be_paced() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    data = infobatch.InfoBatch(TensorDataset(torch.rand(SIZE)), EPOCHS)
    wrong: Any
    for wrong in ("cosine", None, torch.nn.Linear(1, 1)):
        with pytest.raises(infobatch.InputError, match="expected a scheduler or an optimizer of torch; got"):
            infobatch.pace(wrong, data, 10)
    with pytest.raises(infobatch.InputError, match="ReduceLROnPlateau"):
        infobatch.pace(lrs.ReduceLROnPlateau(optimizer), data, 10)
    for wrong in (TensorDataset(torch.rand(3)), None):
        with pytest.raises(infobatch.InputError, match="expected the training data"):
            infobatch.pace(optimizer, wrong, 10)
    assert not data.paced


def test_a_scheduler_too_short_for_the_run_is_refused_at_once() -> None:
    train_data = infobatch.InfoBatch(torch.utils.data.TensorDataset(torch.zeros(8)), 4)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=7)
    with pytest.raises(
        infobatch.InputError, match=r"at least num_epochs \* steps_per_epoch = 8 steps; got total_steps=7"
    ):
        infobatch.pace(cycle, train_data, 2)


def test_a_scheduler_that_nobody_steps_is_noticed_once() -> None:
    data = infobatch.InfoBatch(TensorDataset(torch.rand(64).pow(3)), 8)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    infobatch.pace(lrs.CosineAnnealingLR(optimizer, 64), data, steps_per_epoch=8)

    def epoch() -> None:
        for (x,) in infobatch.DataLoader(data, batch_size=8):
            data.update(x)

    epoch()
    with pytest.warns(infobatch.InfoBatchWarning, match=r"without a step of the scheduler"):
        epoch()
    epoch()
