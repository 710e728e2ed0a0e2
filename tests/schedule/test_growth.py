"""What grows in the place of steps: the rate, the loss or nothing; the usual choice; and who does not see it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from paced import BATCH, EPOCHS, FULL_STEPS, SCHEDULERS, SIZE, TOTAL, Maker, Run, every_scheduler, plain_rates
from torch.optim import Optimizer
from torch.optim import lr_scheduler as lrs
from torch.utils.data import TensorDataset

import infobatch

# ---- what grows ----------------------------------------------------------------------------------------------


@every_scheduler
def test_lr_grows_by_the_epochs_growth_in_each_step(maker: Maker) -> None:
    """And nothing of it reaches the scheduler: many compute the next rate from the last."""
    grown, paced = (Run(maker, compensate=what).train() for what in ("lr", "loss"))
    growth = [report.growth for report in grown.data.history]
    assert max(growth) > 1.2
    assert [step.epoch for step in grown.steps] == [step.epoch for step in paced.steps]
    for one, other in zip(grown.steps, paced.steps, strict=True):
        assert one.lr == other.lr * growth[one.epoch]
    assert grown.lr == plain_rates(maker, TOTAL)[-1]


@every_scheduler
def test_with_none_neither_rate_nor_loss_grows(maker: Maker) -> None:
    still, grown, paced = (Run(maker, compensate=what).train() for what in ("none", "lr", "loss"))
    assert still.rates == paced.rates
    assert [step.weight for step in still.steps] == [step.weight for step in grown.steps]
    assert still.rates != grown.rates


@every_scheduler
def test_a_tensor_lr_is_filled_in_place_and_grows_the_same(maker: Maker) -> None:
    lr = torch.tensor(0.1, dtype=torch.float64)
    run = Run(maker, compensate="lr", lr=lr).train()
    assert isinstance(run.optimizer.param_groups[0]["lr"], torch.Tensor)
    plain = Run(maker, compensate="lr", lr=0.1).train()
    assert run.rates == pytest.approx(plain.rates, rel=1e-12)


def test_a_tensor_lr_without_growth() -> None:
    run = Run(SCHEDULERS["ExponentialLR"], lr=torch.tensor(0.1, dtype=torch.float64)).train()
    assert run.rates == pytest.approx(Run(SCHEDULERS["ExponentialLR"]).train().rates, rel=1e-12)


def test_a_whole_number_is_a_learning_rate() -> None:
    run = Run(None, compensate="lr", lr=1).train()
    growth = [report.growth for report in run.data.history]
    assert run.rates == [growth[step.epoch] for step in run.steps]


@pytest.mark.parametrize(
    "method",
    [
        infobatch.methods.infobatch(0.5),
        infobatch.methods.infobatch(0.7, rounding="paper"),
        infobatch.methods.infobatch(0.5, rescale=False),
        infobatch.methods.saving(0.3),
        infobatch.methods.random_star(0.3),
    ],
    ids=repr,
)
@pytest.mark.parametrize("compensate", ["lr", "none"])
@pytest.mark.filterwarnings("ignore:nothing grows")
def test_unless_the_loss_grows_weights_have_mean_one(method: infobatch.methods.Method, compensate: Any) -> None:
    """Seen from outside: with every loss 1, what update returns, averaged over the epoch, is 1."""
    x = torch.rand(SIZE, generator=torch.Generator().manual_seed(3)).pow(3)
    data = infobatch.Pruned(TensorDataset(x), method, EPOCHS, compensate=compensate)
    paced = infobatch.pace(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1), data)
    for _ in range(EPOCHS):
        applied, kept = 0.0, data.plan().kept
        for (batch,) in infobatch.DataLoader(data, batch_size=BATCH):
            losses = torch.ones(len(batch), requires_grad=True)
            data.update(losses, score=batch).backward()
            assert losses.grad is not None
            applied += losses.grad.sum().item() * (BATCH if kept < SIZE else len(batch))
        assert applied / kept == pytest.approx(1, rel=1e-6)
        paced.step()


def test_rates_grow_from_the_first_step_where_the_first_epoch_is_pruned() -> None:
    run = Run(None, compensate="lr", method=infobatch.methods.random_star(0.3)).train()
    assert run.rates == pytest.approx([0.1 / 0.7] * len(run.steps))


def test_an_optimizer_in_place_of_a_scheduler() -> None:
    run = Run(None, compensate="lr").train()
    growth = [report.growth for report in run.data.history]
    assert run.rates == [0.1 * growth[step.epoch] for step in run.steps]
    assert run.lr == 0.1
    assert set(Run(None).train().rates) == {0.1}


def test_groups_keep_their_own_rates() -> None:
    data = infobatch.InfoBatch(TensorDataset(torch.rand(SIZE).pow(3)), EPOCHS, compensate="lr")
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": lr} for lr in (0.1, 0.02)]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    scheduler = infobatch.pace(lrs.ExponentialLR(optimizer, 0.9), data, FULL_STEPS)
    for (x,) in infobatch.DataLoader(data, batch_size=BATCH):
        data.update(x)
        optimizer.step()
        scheduler.step()
    growth = data.plan().growth
    assert growth > 1
    assert scheduler.get_last_lr() == pytest.approx([0.1 * 0.9**13 * growth, 0.02 * 0.9**13 * growth])


def test_what_others_do_to_the_rate_is_left_alone_where_nothing_grows() -> None:
    """pace(optimizer) under compensate="loss" has nothing to do, so it must do nothing."""
    data = infobatch.InfoBatch(TensorDataset(torch.rand(SIZE).pow(3)), EPOCHS, compensate="loss")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    other = lrs.ExponentialLR(optimizer, 0.5)
    scheduler = infobatch.pace(optimizer, data)
    for _ in range(EPOCHS):
        for (x,) in infobatch.DataLoader(data, batch_size=BATCH):
            data.update(x)
            optimizer.step()
            scheduler.step()
        other.step()
    assert optimizer.param_groups[0]["lr"] == 0.1 * 0.5**EPOCHS


@pytest.mark.filterwarnings("ignore:nothing grows")
def test_what_another_training_left_grown_is_taken_back() -> None:
    first = Run(None, compensate="lr", lr=1.0).train(stop_after=20)
    assert first.lr > 1.2
    still = infobatch.InfoBatch(TensorDataset(torch.rand(SIZE).pow(3)), EPOCHS, compensate="none")
    infobatch.pace(first.optimizer, still)
    assert first.lr == 1.0
    assert "infobatch_growth" not in first.optimizer.param_groups[0]


def test_a_second_hand_on_a_growing_rate_is_refused() -> None:
    run = Run(None, compensate="lr").train(stop_after=20)
    run.optimizer.param_groups[0]["lr"] *= 0.1
    with pytest.raises(infobatch.InputError, match=r"expected the learning rate .*; got .*infobatch.pace"):
        run.paced.step()


# ---- what grows unless it is said ----------------------------------------------------------------------------


@pytest.mark.parametrize("paced", [False, True])
@pytest.mark.filterwarnings("ignore:nothing grows")
def test_by_default_nothing_grows(paced: bool) -> None:
    results, x = [], torch.rand(64).pow(3)
    for how in ({}, {"compensate": "none"}, {"compensate": "loss"}):
        data = infobatch.InfoBatch(TensorDataset(x), 8, **how)  # type: ignore[arg-type]
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        if paced:
            infobatch.pace(optimizer, data)
        passes = (infobatch.DataLoader(data, batch_size=8) for _ in range(8))
        results.append([float(data.update(losses)) for loader in passes for (losses,) in loader])
        assert optimizer.param_groups[0]["lr"] == 0.1
    by_default, none, loss = results
    assert by_default == none
    assert len(none) < 64
    assert sum(loss) > 1.1 * sum(none)


def test_an_optimizer_alone_needs_no_steps_of_the_wrapper() -> None:
    data = infobatch.InfoBatch(TensorDataset(torch.rand(64).pow(3)), 8, compensate="lr")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    infobatch.pace(optimizer, data)
    for _ in range(8):
        for (x,) in infobatch.DataLoader(data, batch_size=8):
            assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * data.plan().growth)
            data.update(x)


def test_the_rate_of_an_epoch_that_is_planned_after_a_look_at_the_left_out() -> None:
    data = infobatch.Pruned(TensorDataset(torch.rand(64)), infobatch.methods.kakurenbo(), 8, compensate="lr")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    paced, grown = infobatch.pace(optimizer, data), set()
    for _ in range(8):
        for (x,) in infobatch.DataLoader(data, batch_size=8):
            rate = optimizer.param_groups[0]["lr"]
            assert rate == pytest.approx(0.1 * data.plan().growth)
            grown.add(rate)
            data.update(x, confidence=1 - x)
            optimizer.step()
            paced.step()
        for (x,), indices in data.hidden(batch_size=8):
            data.observe(x, indices, confidence=1 - x)
    assert len(grown) > 2


def test_the_papers_setting_is_one_word_away() -> None:
    data = infobatch.InfoBatch.paper(TensorDataset(torch.rand(64)), 8)
    infobatch.pace(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1), data)
    assert data.compensate == "loss"
    assert repr(data.method) == repr(infobatch.methods.infobatch(0.5, 0.875, rounding="paper"))


def test_no_word_of_far_steps_where_none_goes_further() -> None:
    data = infobatch.Pruned(TensorDataset(torch.rand(64)), infobatch.methods.random_star(0.8), 8)
    next(iter(infobatch.DataLoader(data, batch_size=8)))  # at weights 1 a step is a step
    still = infobatch.Pruned(TensorDataset(torch.rand(64)), infobatch.methods.random(0.8), 8, compensate="none")
    for _ in range(2):
        for (x,) in infobatch.DataLoader(still, batch_size=8):
            still.update(x)
    assert still.history[1].growth > 4
    grown = infobatch.Pruned(TensorDataset(torch.rand(64)), infobatch.methods.random_star(0.8), 8, compensate="lr")
    infobatch.pace(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1), grown)
    with pytest.warns(infobatch.InfoBatchWarning, match="a step stands for 4.9"):
        next(iter(infobatch.DataLoader(grown, batch_size=8)))


@pytest.mark.parametrize(("compensate", "rises"), [("lr", True), ("loss", True), ("none", False)])
@pytest.mark.filterwarnings("ignore:nothing grows")
def test_a_rate_without_room_is_told_of(compensate: str, rises: bool) -> None:
    """A line through points, at a rate that full data and fewer steps bear, and twice of it nobody."""
    x = torch.randn(2000, generator=torch.Generator().manual_seed(0))
    y = 3 * x + 0.1 * torch.randn(2000, generator=torch.Generator().manual_seed(1))
    method = infobatch.methods.random(0.5)
    data = infobatch.Pruned(TensorDataset(x, y), method, 8, compensate=compensate)  # type: ignore[arg-type]
    slope = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([slope], lr=0.75)
    infobatch.pace(optimizer, data)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(8):
            for a, b in infobatch.DataLoader(data, batch_size=100):
                optimizer.zero_grad()
                data.update((slope * a - b).square()).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    said = [str(each.message) for each in caught if "no room" in str(each.message)]
    assert len(said) == rises
    assert abs(slope.item() - 3) < 0.2 or rises


# ---- who does not see it -------------------------------------------------------------------------------------


class LAMB(torch.optim.SGD):
    """Blind by name."""


class MyAdam(torch.optim.Adam):
    """Blind by descent."""


@pytest.mark.parametrize(
    "kind",
    [
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.Adamax,
        torch.optim.Adagrad,
        torch.optim.RMSprop,
        LAMB,
        MyAdam,
    ],
)
def test_optimizers_that_do_not_see_a_loss_grow(kind: type[Optimizer]) -> None:
    data = infobatch.InfoBatch(TensorDataset(torch.rand(SIZE)), EPOCHS, compensate="loss")
    optimizer = kind([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.warns(infobatch.InfoBatchWarning, match=rf'{kind.__name__} .*compensate="lr"') as caught:
        infobatch.pace(optimizer, data)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        infobatch.pace(optimizer, infobatch.InfoBatch(TensorDataset(torch.rand(SIZE)), EPOCHS, compensate="lr"))


def test_an_optimizer_that_nothing_grows_for_is_told_of() -> None:
    data = infobatch.InfoBatch(TensorDataset(torch.rand(SIZE)), EPOCHS)
    with pytest.warns(infobatch.InfoBatchWarning, match='nothing to do here: compensate="lr"') as caught:
        infobatch.pace(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1), data)
    assert [each.filename for each in caught] == [__file__]


def test_sgd_sees_it() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Run(SCHEDULERS["StepLR"])


def test_lr_without_pace_warns_once() -> None:
    data = infobatch.InfoBatch(TensorDataset(torch.rand(SIZE).pow(3)), EPOCHS, compensate="lr")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(EPOCHS):
            for (x,) in infobatch.DataLoader(data, batch_size=BATCH):
                data.update(x)
    assert [str(warning.message)[:17] for warning in caught] == ["the learning rate"]


def test_who_goes_on_from_a_checkpoint_does_not_judge_by_a_first_epoch_it_did_not_see() -> None:
    """Losses that go up and down again: the whole run says nothing, and the rest of it nothing untrue."""
    losses = [3.0, 0.5, 0.1, 1.0, 1.0, 1.0, 1.0, 1.0]

    def train(data: infobatch.InfoBatch, epochs: range) -> None:
        for epoch in epochs:
            for (x,) in infobatch.DataLoader(data, batch_size=100):
                data.update(x * losses[epoch])

    def a_run() -> infobatch.InfoBatch:
        return infobatch.InfoBatch(TensorDataset(torch.linspace(0.9, 1.1, 2000)), 8, compensate="loss")

    whole, rest = a_run(), a_run()
    train(whole, range(2))
    rest.load_state_dict(whole.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(whole, range(2, 8))
        train(rest, range(2, 8))
