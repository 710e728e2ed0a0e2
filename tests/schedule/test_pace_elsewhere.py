"""Pacing when the surroundings change: another batch size, a second optimizer, the time after training."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from paced import EPOCHS, FULL_STEPS, SCHEDULERS, SIZE, Maker, Run
from torch.optim import SGD, Adam
from torch.optim import lr_scheduler as lrs
from torch.utils.data import TensorDataset

import infobatch

LOSSES = torch.linspace(0, 1, SIZE).pow(3)

MAKERS: dict[str, Maker] = {
    "cosine": SCHEDULERS["CosineAnnealingLR"],
    "onecycle": SCHEDULERS["OneCycleLR"],
    "lambda": lambda optimizer, total: lrs.LambdaLR(optimizer, lambda step: 1 - step / total),
    "exponential": lambda optimizer, total: lrs.ExponentialLR(optimizer, gamma=0.5 ** (EPOCHS / total)),
}


class Training(Run):
    def __init__(self, maker: Maker, batch: int, compensate: Any, **more: Any) -> None:
        super().__init__(maker, batch=batch, compensate=compensate, steps=math.ceil(SIZE / batch), lr=1.0, **more)

    def epochs(self, first: int, last: int) -> list[float]:
        """Train; the plain rate at the end of each epoch."""
        rates = []
        for epoch in range(first, last):
            self.train(until=epoch + 1)
            rates.append(float(self.paced.state_dict()["plain"][0]))
        return rates

    def state(self) -> dict[str, Any]:
        parts = {"data": self.data, "optimizer": self.optimizer, "paced": self.paced}
        return {name: part.state_dict() for name, part in parts.items()}

    def load(self, state: dict[str, Any]) -> None:
        self.data.load_state_dict(state["data"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.paced.load_state_dict(state["paced"])


@pytest.mark.parametrize("compensate", ["lr", "loss", "none"])
@pytest.mark.parametrize("batch", [5, 20])
@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_another_batch_size_goes_on_where_the_data_are(maker: Any, batch: int, compensate: Any) -> None:
    """What other ranks make of a checkpoint, too: an epoch has other steps, and the same place in the data."""
    whole = Training(maker, batch, compensate).epochs(0, EPOCHS)
    first = Training(maker, 10, compensate)
    first.epochs(0, 3)
    then = Training(maker, batch, compensate)
    then.load(first.state())
    growth = then.data.plan().growth if compensate == "lr" else 1.0
    assert then.paced.get_last_lr() == pytest.approx([whole[2] * growth])
    assert then.epochs(3, EPOCHS) == pytest.approx(whole[3:], abs=1e-9)
    assert then.inner.last_epoch == EPOCHS * math.ceil(SIZE / batch)


@pytest.mark.parametrize("compensate", ["lr", "loss", "none"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("order", ["optimizer first", "optimizer last", "twice"])
@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_other_steps_in_whatever_order_states_are_loaded(
    maker: Any, order: str, momentum: float, compensate: Any
) -> None:
    if maker is MAKERS["onecycle"] and not momentum:
        pytest.skip("it cycles the momentum")
    whole = Training(maker, 20, compensate, momentum=momentum).epochs(0, EPOCHS)
    first = Training(maker, 10, compensate, momentum=momentum)
    first.epochs(0, 2)
    older = first.state()
    first.epochs(2, 3)
    state = first.state()
    then = Training(
        maker, 20, compensate, momentum=momentum, loaded=state["optimizer"] if order == "optimizer first" else None
    )
    if order == "optimizer last":
        then.data.load_state_dict(state["data"])
        then.paced.load_state_dict(state["paced"])
        then.optimizer.load_state_dict(state["optimizer"])
    else:
        then.load(state)
        if order == "twice":  # the newest checkpoint was not the one that was wanted
            then.load(older)
            assert then.epochs(2, 3) == pytest.approx(whole[2:3])
    assert then.epochs(3, EPOCHS) == pytest.approx(whole[3:], abs=1e-9)


def test_other_steps_want_a_scheduler_that_has_not_begun() -> None:
    first = Training(MAKERS["cosine"], 10, "lr")
    first.epochs(0, 2)
    then = Training(MAKERS["cosine"], 20, "lr")
    then.epochs(0, 1)
    again = infobatch.pace(then.inner, then.data, 5)
    with pytest.raises(infobatch.StateError, match="a new scheduler, to go on with 5 steps an epoch after 10"):
        again.load_state_dict(first.paced.state_dict())


def test_a_scheduler_paced_again_goes_on_where_it_is() -> None:
    training = Training(MAKERS["cosine"], 10, "lr")
    training.epochs(0, 3)
    training.paced = infobatch.pace(training.inner, training.data, 10)
    assert training.epochs(3, EPOCHS) == pytest.approx(Training(MAKERS["cosine"], 10, "lr").epochs(0, EPOCHS)[3:])
    assert training.inner.last_epoch == EPOCHS * 10


def chained(optimizer: Any, total: int) -> lrs.LRScheduler:
    warm = lrs.LinearLR(optimizer, start_factor=0.1, total_iters=10)
    return lrs.ChainedScheduler([warm, lrs.ExponentialLR(optimizer, gamma=0.5 ** (EPOCHS / total))])


@pytest.mark.parametrize("stop", [4, 10, 13])
@pytest.mark.parametrize("maker", [SCHEDULERS["CosineAnnealingLR"], chained], ids=["cosine", "chained"])
def test_a_scheduler_that_was_loaded_is_paced_from_where_it_is(maker: Maker, stop: int) -> None:
    """In a full epoch (4 of its 10 steps), after it, and in a pruned one; a chain does not count its steps itself."""
    whole, first = Training(maker, 10, "lr").train(), Training(maker, 10, "lr").train(stop_after=stop)
    then = Training(maker, 10, "lr")
    then.data.load_state_dict(first.data.state_dict())
    then.optimizer.load_state_dict(first.optimizer.state_dict())
    then.inner.load_state_dict(first.inner.state_dict())
    then.paced = infobatch.pace(then.inner, then.data, 10)
    assert then.train().rates == pytest.approx(whole.rates[stop:])
    assert then.paced.get_last_lr() == pytest.approx(whole.paced.get_last_lr())


@pytest.mark.parametrize("compensate", ["loss", "none"])
@pytest.mark.parametrize("how", ["stepped", "loaded"])
def test_a_scheduler_that_others_move_is_refused(how: str, compensate: Any) -> None:
    """Where the rate grows it shows by the rate; here it would end elsewhere, without a word."""
    training = Training(MAKERS["cosine"], 10, compensate)
    training.train(stop_after=3)
    if how == "stepped":
        training.inner.step()
    else:
        other = Training(MAKERS["cosine"], 10, compensate).train(stop_after=7)
        training.inner.load_state_dict(other.inner.state_dict())
    with pytest.raises(infobatch.InputError, match="expected a scheduler that pace alone steps"):
        training.paced.step()


def test_an_optimizer_alone_has_no_steps() -> None:
    data = infobatch.InfoBatch(TensorDataset(LOSSES), EPOCHS, compensate="lr")
    optimizer = SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    with pytest.raises(infobatch.InputError, match="no steps_per_epoch for an optimizer"):
        infobatch.pace(optimizer, data, 4)


def an_epoch(data: infobatch.Pruned, stop: int | None = None) -> None:
    """By name, and no pass of the sampler."""
    indices = data.plan().indices[data.progress[1] : stop]
    data.update(LOSSES[indices], indices)


def paced(data: infobatch.Pruned) -> SGD:
    optimizer = SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    infobatch.pace(optimizer, data)
    return optimizer


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("look", ["progress", "length", "plan"])
def test_a_plan_that_was_looked_at_before_is_paced_all_the_same(look: str, resumed: bool) -> None:
    data = infobatch.InfoBatch(TensorDataset(LOSSES), EPOCHS, compensate="lr")
    an_epoch(data)
    if resumed:
        other = infobatch.InfoBatch(TensorDataset(LOSSES), EPOCHS, compensate="lr")
        other.load_state_dict(data.state_dict())
        data = other
    _ = {"progress": lambda: data.progress, "length": lambda: len(data.sampler), "plan": data.plan}[look]()
    optimizer, growth = paced(data), data.plan().growth
    assert growth > 1.2
    (x,) = next(iter(infobatch.DataLoader(data, batch_size=data.plan().kept)))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(growth)
    assert float(data.update(torch.ones(len(x)))) == pytest.approx(1.0)


def test_pace_in_the_first_epoch_forgets_no_loss() -> None:
    data = infobatch.InfoBatch(TensorDataset(LOSSES), EPOCHS, compensate="lr")
    an_epoch(data, stop=10)
    paced(data)
    assert data.progress[1] == 10
    an_epoch(data)
    assert torch.equal(data.scores, LOSSES)


def test_of_two_paces_of_one_optimizer_the_older_one_does_not_step() -> None:
    data = infobatch.InfoBatch(TensorDataset(LOSSES), EPOCHS, compensate="lr")
    optimizer = SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    older, latest = (infobatch.pace(lrs.StepLR(optimizer, 4), data, 8) for _ in range(2))
    latest.step()
    with pytest.raises(infobatch.InputError, match="the latest"):
        older.step()


@pytest.mark.parametrize("swapped", [False, True])
def test_every_optimizer_of_a_training_grows(swapped: bool) -> None:
    data = infobatch.InfoBatch(TensorDataset(LOSSES), EPOCHS, compensate="lr")
    body, head = (SGD([torch.nn.Parameter(torch.ones(1))], lr=lr) for lr in (1.0, 2.0))
    for optimizer in (head, body) if swapped else (body, head):
        infobatch.pace(optimizer, data)
    for _ in range(EPOCHS):
        for (x,) in infobatch.DataLoader(data, batch_size=10):
            growth = data.plan().growth
            assert [one.param_groups[0]["lr"] for one in (body, head)] == [growth, 2 * growth]
            data.update(x)
    assert max(report.growth for report in data.history) > 1.3


def test_an_optimizer_paced_anew_has_one_pace() -> None:
    data = infobatch.InfoBatch(TensorDataset(LOSSES), EPOCHS, compensate="lr")
    optimizer = SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    infobatch.pace(optimizer, data)
    infobatch.pace(optimizer, data)
    assert len(data.paces) == 1


def test_another_scheduler_beside_a_tensor_lr_is_noticed() -> None:
    data = infobatch.InfoBatch(TensorDataset(LOSSES), EPOCHS, compensate="lr")
    optimizer = Adam([torch.nn.Parameter(torch.ones(1))], lr=torch.tensor(1.0))
    infobatch.pace(optimizer, data)
    other = lrs.StepLR(optimizer, 1, gamma=0.1)

    def train() -> None:
        for _ in range(EPOCHS):
            for (x,) in infobatch.DataLoader(data, batch_size=10):
                data.update(x)
                optimizer.step()
            other.step()

    with pytest.raises(infobatch.InputError, match="nothing else may set it"):
        train()


def pruned_to_the_end() -> tuple[infobatch.InfoBatch, SGD]:
    data = infobatch.InfoBatch(TensorDataset(LOSSES), 3, delta=1.0, compensate="lr")
    optimizer = SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    infobatch.pace(optimizer, data)
    for _ in range(3):
        for (x,) in infobatch.DataLoader(data, batch_size=10):
            data.update(x)
    assert optimizer.param_groups[0]["lr"] > 1.3
    return data, optimizer


def test_after_training_the_rate_is_plain_again() -> None:
    data, optimizer = pruned_to_the_end()
    assert len(data.history) == 3
    assert optimizer.param_groups[0]["lr"] == 1.0


def test_a_rate_that_was_set_after_training_stays() -> None:
    data, optimizer = pruned_to_the_end()
    optimizer.param_groups[0]["lr"] = 0.01
    assert len(data.history) == 3
    assert optimizer.param_groups[0]["lr"] == 0.01


def told(training: Any) -> list[str]:
    """What a training warns of, once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", infobatch.InfoBatchWarning)
        training()
    return [str(one.message) for one in caught if issubclass(one.category, infobatch.InfoBatchWarning)]


@pytest.mark.parametrize("stock", [False, True])
def test_a_scheduler_that_is_stepped_too_seldom_is_told_of(stock: bool) -> None:
    """By gradients that are accumulated, or once an epoch: it would jump at each epoch's end, or run far too fast."""
    (text,) = told(Run(SCHEDULERS["CosineAnnealingLR"], every=4, stock=stock).train)
    assert "steps of the scheduler in a full epoch: 4, and steps_per_epoch=13; with gradient accumulation" in text
    (text,) = told(Run(SCHEDULERS["CosineAnnealingLR"], every=FULL_STEPS, stock=stock).train)
    assert "full epoch: 1, and" in text
    assert told(Run(SCHEDULERS["CosineAnnealingLR"], every=4, steps=4, stock=stock).train) == []
    assert told(Run(SCHEDULERS["CosineAnnealingLR"], every=FULL_STEPS, steps=1, stock=stock).train) == []
    assert told(Run(SCHEDULERS["CosineAnnealingLR"], drop_last=True, stock=stock).train) == []  # one of 13


def test_a_state_of_pace_that_was_not_loaded_is_told_of() -> None:
    first, then = Run(SCHEDULERS["LambdaLR"]).train(stop_after=30), Run(SCHEDULERS["LambdaLR"])
    then.data.load_state_dict(first.data.state_dict())
    (text,) = told(lambda: then.train(stop_after=1))
    assert "the data are in epoch 2, the scheduler is at its start: load what pace returned" in text
    again = Run(SCHEDULERS["LambdaLR"])
    again.data.load_state_dict(first.data.state_dict())
    again.optimizer.load_state_dict(first.optimizer.state_dict())
    again.paced.load_state_dict(first.paced.state_dict())
    assert told(again.train) == []


def test_a_scheduler_that_nobody_steps_is_told_of() -> None:
    run = Run(SCHEDULERS["CosineAnnealingLR"], every=1000, flush=False)
    (text,) = told(run.train)
    assert "a whole epoch went by without a step of the scheduler" in text
