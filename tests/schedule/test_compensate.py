"""What ``compensate`` does to weights, losses and learning rates, and the warnings that belong to it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from paced import (
    BATCH,
    EPOCHS,
    FULL_STEPS,
    SCHEDULERS,
    SIZE,
    Maker,
    Run,
    collect_warnings,
    every_scheduler,
    make_optimizer,
    pruned_rates,
)
from torch.optim import Optimizer
from torch.optim import lr_scheduler as lrs
from torch.utils.data import TensorDataset

import infobatch

METHODS = [
    infobatch.methods.infobatch(0.5),
    infobatch.methods.infobatch(0.7, rounding="paper"),
    infobatch.methods.infobatch(0.5, rescale=False),
    infobatch.methods.saving(0.3),
    infobatch.methods.random_star(0.3),
]

# ---- weights and rates ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["OneCycleLR", "SequentialLR", "ExponentialLR"])
def test_with_loss_the_loss_grows_and_the_rates_stay(name: str) -> None:
    none, loss = (Run(SCHEDULERS[name], compensate=compensate).train() for compensate in ("none", "loss"))
    growth = [summary.growth for summary in loss.data.history]
    assert max(growth) > 1.2
    assert loss.rates == none.rates
    grown = [step.loss * growth[step.epoch] for step in none.steps]
    assert [step.loss for step in loss.steps] == pytest.approx(grown, rel=1e-5)


@pytest.mark.parametrize("compensate", ["none", "loss"])
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_mean_of_the_weights(method: infobatch.methods.Method, compensate: Any) -> None:
    """Measured from outside, as gradients of ``update``: 1 with "none", that of the plan as drawn with "loss"."""
    losses = torch.rand(SIZE, generator=torch.Generator().manual_seed(3)).pow(3)
    data = infobatch.Pruned(TensorDataset(losses), method, EPOCHS, compensate=compensate)
    for _ in range(EPOCHS):
        applied, plan = 0.0, data.plan()
        for (batch,) in infobatch.DataLoader(data, batch_size=BATCH):
            ones = torch.ones(len(batch), requires_grad=True)
            data.update(ones, score=batch).backward()
            assert ones.grad is not None
            # a short last batch of a pruned epoch counts in proportion to its size
            applied += ones.grad.sum().item() * (BATCH if plan.kept < SIZE else len(batch))
        mean = plan.weight_sum / plan.kept if compensate == "loss" else 1
        assert applied / plan.kept == pytest.approx(mean, rel=1e-6)


def test_with_loss_the_weights_of_an_epoch_sum_to_the_size_of_the_data() -> None:
    data = infobatch.InfoBatch(TensorDataset(torch.rand(SIZE).pow(3)), EPOCHS, compensate="loss")
    for (batch,) in infobatch.DataLoader(data, batch_size=BATCH):
        data.update(batch)
    plan, applied = data.plan(), 0.0
    assert plan.kept < SIZE
    for (batch,) in infobatch.DataLoader(data, batch_size=BATCH):
        applied += float(data.update(torch.ones(len(batch)))) * BATCH
    assert applied == pytest.approx(SIZE, rel=1e-6)


def test_by_default_nothing_grows() -> None:
    def train(**settings: Any) -> list[float]:
        data = infobatch.InfoBatch(TensorDataset(losses), 8, **settings)
        epochs = (infobatch.DataLoader(data, batch_size=8) for _ in range(8))
        return [float(data.update(batch)) for loader in epochs for (batch,) in loader]

    losses = torch.rand(64, generator=torch.Generator().manual_seed(3)).pow(3)
    default, none, loss = train(), train(compensate="none"), train(compensate="loss")
    assert default == none
    assert len(none) < 64
    assert sum(loss) > 1.1 * sum(none)


def test_growing_the_learning_rate_is_refused() -> None:
    for wrap in (
        lambda data, **settings: infobatch.InfoBatch(data, EPOCHS, **settings),
        lambda data, **settings: infobatch.Pruned(data, infobatch.methods.infobatch(0.5), EPOCHS, **settings),
    ):
        with pytest.raises(infobatch.InputError, match=r"compensate.*'lr'"):
            wrap(TensorDataset(torch.rand(SIZE)), compensate="lr")


def test_the_settings_of_the_paper() -> None:
    data = infobatch.InfoBatch.paper(TensorDataset(torch.rand(64)), 8)
    assert data.compensate == "loss"
    assert repr(data.method) == repr(infobatch.methods.infobatch(0.5, 0.875, rounding="paper"))


@pytest.mark.slow
@every_scheduler
def test_a_tensor_lr_is_filled_in_place(maker: Maker) -> None:
    lr = torch.tensor(0.1, dtype=torch.float64)
    run = Run(maker, lr=lr).train()
    assert run.optimizer.param_groups[0]["lr"] is lr
    assert run.rates == pytest.approx(pruned_rates(maker), rel=1e-12)


def test_an_integer_is_a_learning_rate() -> None:
    run = Run(SCHEDULERS["StepLR"], lr=1).train(stop_after=5)
    resumed = Run(SCHEDULERS["StepLR"], lr=1)
    resumed.load(run.state())
    assert resumed.train().rates == Run(SCHEDULERS["StepLR"], lr=1.0).train().rates[5:]


def test_parameter_groups_keep_their_own_rates() -> None:
    data = infobatch.InfoBatch(TensorDataset(torch.rand(SIZE).pow(3)), EPOCHS)
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": lr} for lr in (0.1, 0.02)]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    scheduler = infobatch.pace(lrs.ExponentialLR(optimizer, 0.9), data, FULL_STEPS)
    for _ in range(2):
        for (losses,) in infobatch.DataLoader(data, batch_size=BATCH):
            data.update(losses)
            optimizer.step()
            scheduler.step()
    assert data.history[1].growth > 1
    assert scheduler.get_last_lr() == pytest.approx([0.1 * 0.9**26, 0.02 * 0.9**26])


def test_a_rate_set_by_hand_is_left_alone() -> None:
    """Schedulers that compute a rate from the last one go on from it."""
    run = Run(SCHEDULERS["ExponentialLR"]).train(until=2)
    made, steps = run.scheduler.last_epoch, len(run.steps)
    run.optimizer.param_groups[0]["lr"] *= 0.5
    run.train()
    assert run.rates[steps] == pytest.approx(0.5 * 0.1 * 0.97**made)
    assert run.lr == pytest.approx(0.5 * Run(SCHEDULERS["ExponentialLR"]).train().lr)


# ---- warnings ------------------------------------------------------------------------------------------------


def test_large_growth_is_warned_of_only_if_the_loss_grows() -> None:
    def train(method: infobatch.methods.Method, compensate: Any) -> infobatch.Pruned:
        data = infobatch.Pruned(TensorDataset(torch.rand(64) + 1), method, 8, compensate=compensate)
        for _ in range(2):
            for (losses,) in infobatch.DataLoader(data, batch_size=8):
                data.update(losses)
        assert data.history[1].growth > 4
        return data

    assert collect_warnings(lambda: train(infobatch.methods.random(0.8), "none")) == []
    assert collect_warnings(lambda: train(infobatch.methods.random_star(0.8), "none")) == []
    (text,) = collect_warnings(lambda: train(infobatch.methods.random(0.8), "loss"))
    assert "a step stands for 4.9" in text


@pytest.mark.parametrize("compensate", ["none", "loss"])
def test_a_rate_too_large_for_a_growing_loss_is_warned_of(compensate: Any) -> None:
    """A linear fit with a learning rate that converges on full data, and diverges at twice the loss."""
    x = torch.randn(2000, generator=torch.Generator().manual_seed(0))
    y = 3 * x + 0.1 * torch.randn(2000, generator=torch.Generator().manual_seed(1))
    data = infobatch.Pruned(TensorDataset(x, y), infobatch.methods.random(0.5), 8, compensate=compensate)
    slope = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([slope], lr=0.75)

    def train() -> None:
        for _ in range(8):
            for a, b in infobatch.DataLoader(data, batch_size=100):
                optimizer.zero_grad()
                data.update((slope * a - b).square()).backward()  # type: ignore[no-untyped-call]
                optimizer.step()

    found = [text for text in collect_warnings(train) if "learning rate: lower it" in text]
    if compensate == "loss":
        assert len(found) == 1
    else:
        assert found == []
        assert abs(slope.item() - 3) < 0.2


def test_a_resumed_run_does_not_judge_by_a_first_epoch_it_has_not_seen() -> None:
    """The mean loss falls and rises again, but not above that of the first epoch."""
    factors = [3.0, 0.5, 0.1, 1.0, 1.0, 1.0, 1.0, 1.0]

    def train(data: infobatch.InfoBatch, epochs: range) -> None:
        for epoch in epochs:
            for (losses,) in infobatch.DataLoader(data, batch_size=100):
                data.update(losses * factors[epoch])

    def make_data() -> infobatch.InfoBatch:
        return infobatch.InfoBatch(TensorDataset(torch.linspace(0.9, 1.1, 2000)), 8, compensate="loss")

    uninterrupted, resumed = make_data(), make_data()
    train(uninterrupted, range(2))
    resumed.load_state_dict(uninterrupted.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(uninterrupted, range(2, 8))
        train(resumed, range(2, 8))


class LAMB(torch.optim.SGD):
    """Scale-blind by name."""


class MyAdam(torch.optim.Adam):
    """Scale-blind by inheritance."""


SCALE_BLIND = [
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.Adagrad,
    torch.optim.RMSprop,
    LAMB,
    MyAdam,
]


@pytest.mark.parametrize("kind", SCALE_BLIND)
def test_scale_blind_optimizers_are_warned_of_if_the_loss_grows(kind: type[Optimizer]) -> None:
    def make_data(compensate: Any) -> infobatch.InfoBatch:
        return infobatch.InfoBatch(TensorDataset(torch.rand(SIZE)), EPOCHS, compensate=compensate)

    optimizer = kind([torch.nn.Parameter(torch.ones(1))], lr=0.1)  # type: ignore[call-arg]
    scheduler = lrs.ExponentialLR(optimizer, 0.9)
    with pytest.warns(infobatch.InfoBatchWarning, match=kind.__name__) as caught:
        infobatch.pace(scheduler, make_data("loss"), FULL_STEPS)
    assert [each.filename for each in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        infobatch.pace(scheduler, make_data("none"), FULL_STEPS)


def test_sgd_is_not_scale_blind() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Run(SCHEDULERS["StepLR"], compensate="loss")


def test_a_biased_method_does_not_warn_of_scale_blind_optimizers() -> None:
    """Its loss does not grow as in the paper, so nothing is lost on the optimizer."""
    method = infobatch.methods.infobatch(0.5, rescale=False)
    assert not method.unbiased
    data = infobatch.Pruned(TensorDataset(torch.rand(SIZE)), method, EPOCHS, compensate="loss")
    optimizer = torch.optim.Adam(make_optimizer().param_groups[0]["params"])
    assert collect_warnings(lambda: infobatch.pace(lrs.ExponentialLR(optimizer, 0.9), data, FULL_STEPS)) == []
