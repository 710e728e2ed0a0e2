"""Pacing when the surroundings change: other steps per epoch, a second optimizer, schedulers that are not stepped."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch
from paced import EPOCHS, FULL_STEPS, SCHEDULERS, SIZE, Maker, Run, collect_warnings, make_optimizer, unpaced_rates
from torch.optim import lr_scheduler as lrs
from torch.utils.data import TensorDataset

import infobatch

LOSSES = torch.linspace(0, 1, SIZE).pow(3)


def halve_per_epoch(optimizer: Any, total: int) -> lrs.LRScheduler:
    return lrs.ExponentialLR(optimizer, gamma=0.5 ** (EPOCHS / total))


def chain(optimizer: Any, total: int) -> lrs.LRScheduler:
    """A scheduler that does not count its own steps."""
    warmup = lrs.LinearLR(optimizer, start_factor=0.1, total_iters=10)
    return lrs.ChainedScheduler([warmup, halve_per_epoch(optimizer, total)])


MAKERS: dict[str, Maker] = {
    "cosine": SCHEDULERS["CosineAnnealingLR"],
    "onecycle": SCHEDULERS["OneCycleLR"],
    "lambda": lambda optimizer, total: lrs.LambdaLR(optimizer, lambda step: 1 - step / total),
    "exponential": halve_per_epoch,
}
every_maker = pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)


class SizedRun(Run):
    """A run whose steps per epoch follow from its batch size."""

    def __init__(self, maker: Maker, batch: int, **settings: Any) -> None:
        super().__init__(maker, batch=batch, steps=math.ceil(SIZE / batch), lr=settings.pop("lr", 1.0), **settings)

    def train_epochs(self, first: int, last: int) -> list[float]:
        """Train, and return the learning rate at the end of each epoch."""
        rates = []
        for epoch in range(first, last):
            self.train(until=epoch + 1)
            rates.append(self.lr)
        return rates


@cache
def uninterrupted_rates(maker: Maker) -> list[float]:
    """Return the learning rate of each step in batches of 10, and after the last one."""
    run = SizedRun(maker, 10).train()
    return [*run.rates, run.lr]


def epoch_rates(maker: Maker, batch: int) -> list[float]:
    """Return the learning rate that a full run has at the end of each epoch."""
    steps = math.ceil(SIZE / batch)
    return unpaced_rates(maker, EPOCHS * steps, lr=1.0)[steps::steps]


# ---- other steps per epoch -----------------------------------------------------------------------------------


@every_maker
@pytest.mark.parametrize("batch", [5, 20])
def test_another_batch_size_goes_on_where_the_data_are(maker: Maker, batch: int) -> None:
    """As with another number of ranks, an epoch has other steps."""
    expected, first = epoch_rates(maker, batch), SizedRun(maker, 10)
    first.train_epochs(0, 3)
    resumed = SizedRun(maker, batch)
    resumed.load(first.state())
    assert resumed.paced.get_last_lr() == pytest.approx([expected[2]])
    assert resumed.train_epochs(3, EPOCHS) == pytest.approx(expected[3:], abs=1e-9)
    assert resumed.scheduler.last_epoch == EPOCHS * math.ceil(SIZE / batch)


@pytest.mark.parametrize("order", ["optimizer first", "optimizer last", "twice"])
@pytest.mark.parametrize(("name", "momentum"), [*((name, 0.9) for name in MAKERS), ("cosine", 0.0)])
def test_other_steps_with_states_loaded_in_any_order(name: str, order: str, momentum: float) -> None:
    maker = MAKERS[name]
    expected, first = epoch_rates(maker, 20), SizedRun(maker, 10, momentum=momentum)
    first.train_epochs(0, 2)
    older = first.state()
    first.train_epochs(2, 3)
    state = first.state()
    early = state["optimizer"] if order == "optimizer first" else None
    resumed = SizedRun(maker, 20, momentum=momentum, optimizer_state=early)
    if order == "optimizer last":
        resumed.data.load_state_dict(state["data"])
        resumed.paced.load_state_dict(state["paced"])
        resumed.optimizer.load_state_dict(state["optimizer"])
    else:
        resumed.load(state)
        if order == "twice":  # back to an older checkpoint
            resumed.load(older)
            assert resumed.train_epochs(2, 3) == pytest.approx(expected[2:3])
    assert resumed.train_epochs(3, EPOCHS) == pytest.approx(expected[3:], abs=1e-9)


def test_a_state_of_equal_steps_after_one_of_other_steps() -> None:
    """The rates found for the other steps must not outlive it."""
    other, same = SizedRun(MAKERS["cosine"], 10), SizedRun(MAKERS["cosine"], 20)
    other.train_epochs(0, 5)
    same.train_epochs(0, 2)
    resumed = SizedRun(MAKERS["cosine"], 20)
    resumed.load(other.state())
    resumed.load(same.state())
    expected = epoch_rates(MAKERS["cosine"], 20)
    resumed.train(stop_after=1)
    assert resumed.rates == [pytest.approx(expected[1])]


def test_other_steps_fill_a_tensor_lr_in_place() -> None:
    first = SizedRun(MAKERS["exponential"], 10)
    first.train_epochs(0, 3)
    lr = torch.tensor(1.0, dtype=torch.float64)
    resumed = SizedRun(MAKERS["exponential"], 20, lr=lr)
    resumed.data.load_state_dict(first.data.state_dict())
    resumed.paced.load_state_dict(first.paced.state_dict())
    assert resumed.optimizer.param_groups[0]["lr"] is lr
    assert float(lr) == pytest.approx(0.5**3)
    lr.fill_(7.0)  # as an optimizer's state of the other steps might
    resumed.train(stop_after=1)
    assert resumed.rates == [pytest.approx(0.5**3)]


def test_a_parameter_group_added_after_loading_other_steps() -> None:
    first = SizedRun(MAKERS["exponential"], 10)
    first.train_epochs(0, 3)
    resumed = SizedRun(MAKERS["exponential"], 20)
    resumed.load(first.state())
    resumed.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], "lr": 0.02})
    next(iter(resumed.loader))
    assert resumed.paced.get_last_lr() == pytest.approx([0.5**3, 0.02])


def test_other_steps_need_a_new_scheduler() -> None:
    first, second = SizedRun(MAKERS["cosine"], 10), SizedRun(MAKERS["cosine"], 20)
    first.train_epochs(0, 2)
    second.train_epochs(0, 1)
    again = infobatch.pace(second.scheduler, second.data, 5)
    before = again.state_dict()
    with pytest.raises(infobatch.StateError, match=r"a new scheduler.* 5 steps per epoch after 10"):
        again.load_state_dict(first.paced.state_dict())
    assert again.state_dict() == before


# ---- who moves the scheduler ---------------------------------------------------------------------------------


def test_a_scheduler_paced_again_goes_on_where_it_is() -> None:
    run = SizedRun(MAKERS["cosine"], 10)
    run.train_epochs(0, 3)
    run.paced = infobatch.pace(run.scheduler, run.data, 10)
    assert run.train_epochs(3, EPOCHS) == pytest.approx(epoch_rates(MAKERS["cosine"], 10)[3:], abs=1e-9)
    assert run.scheduler.last_epoch == EPOCHS * 10


@pytest.mark.parametrize("stop", [4, 10, 13])
@pytest.mark.parametrize("maker", [SCHEDULERS["CosineAnnealingLR"], chain], ids=["cosine", "chain"])
def test_a_scheduler_that_was_loaded_is_paced_from_where_it_is(maker: Maker, stop: int) -> None:
    """In the full first epoch of 10 steps, right after it, and in a pruned one."""
    first, expected = SizedRun(maker, 10).train(stop_after=stop), uninterrupted_rates(maker)
    resumed = SizedRun(maker, 10)
    resumed.data.load_state_dict(first.data.state_dict())
    resumed.optimizer.load_state_dict(first.optimizer.state_dict())
    resumed.scheduler.load_state_dict(first.scheduler.state_dict())
    resumed.paced = infobatch.pace(resumed.scheduler, resumed.data, 10)
    resumed.train()
    assert [*resumed.rates, resumed.lr] == pytest.approx(expected[stop:])


@pytest.mark.parametrize("how", ["stepped", "loaded"])
def test_a_scheduler_moved_outside_of_pace_is_refused(how: str) -> None:
    run = SizedRun(MAKERS["cosine"], 10)
    run.train(stop_after=3)
    if how == "stepped":
        run.scheduler.step()
    else:
        other = SizedRun(MAKERS["cosine"], 10).train(stop_after=7)
        run.scheduler.load_state_dict(other.scheduler.state_dict())
    made = run.scheduler.last_epoch
    with pytest.raises(infobatch.InputError, match=f"{made} steps, 3 of them"):
        run.paced.step()


def update_by_index(data: infobatch.Pruned, stop: int | None = None) -> None:
    """Train on the rest of the plan, or up to ``stop``, without a loader."""
    indices = data.plan().indices[data.progress[1] : stop]
    data.update(LOSSES[indices], indices)


@pytest.mark.filterwarnings("ignore:.*at its start:infobatch.InfoBatchWarning")
@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("attribute", ["progress", "length", "plan"])
def test_pace_after_the_plan_was_read(attribute: str, resumed: bool) -> None:
    data = infobatch.InfoBatch(TensorDataset(LOSSES), EPOCHS)
    update_by_index(data)
    if resumed:
        state, data = data.state_dict(), infobatch.InfoBatch(TensorDataset(LOSSES), EPOCHS)
        data.load_state_dict(state)
    _ = {"progress": lambda: data.progress, "length": lambda: len(data.sampler), "plan": data.plan}[attribute]()
    scheduler = MAKERS["cosine"](make_optimizer(), (EPOCHS - 1) * 10)
    paced = infobatch.pace(scheduler, data, 10)
    assert data.plan().growth > 1.2
    for (losses,) in infobatch.DataLoader(data, batch_size=10):
        data.update(losses)
        paced.optimizer.step()
        paced.step()
    assert scheduler.last_epoch == 10


def test_pace_in_the_first_epoch_forgets_no_loss() -> None:
    data = infobatch.InfoBatch(TensorDataset(LOSSES), EPOCHS)
    update_by_index(data, stop=10)
    infobatch.pace(lrs.StepLR(make_optimizer(), 4), data, 1)
    assert data.progress[1] == 10
    update_by_index(data)
    assert torch.equal(data.scores, LOSSES)


def test_of_two_paces_of_one_optimizer_only_the_latest_may_step() -> None:
    data, optimizer = infobatch.InfoBatch(TensorDataset(LOSSES), EPOCHS), make_optimizer()
    older, latest = (infobatch.pace(lrs.StepLR(optimizer, 4), data, 8) for _ in range(2))
    assert list(data.listeners.values()) == [latest]
    latest.step()
    with pytest.raises(infobatch.InputError, match="the latest"):
        older.step()


@pytest.mark.parametrize("swapped", [False, True])
def test_every_optimizer_has_its_own_pace(swapped: bool) -> None:
    data = infobatch.InfoBatch(TensorDataset(LOSSES), EPOCHS)
    pair = [halve_per_epoch(make_optimizer(lr), EPOCHS * 10) for lr in (1.0, 2.0)]
    paced = [infobatch.pace(scheduler, data, 10) for scheduler in (pair[::-1] if swapped else pair)]

    def train() -> None:
        for _ in range(EPOCHS):
            for (losses,) in infobatch.DataLoader(data, batch_size=10):
                data.update(losses)
                for each in paced:
                    each.optimizer.step()
                    each.step()

    assert collect_warnings(train) == []
    assert max(summary.growth for summary in data.history) > 1.3
    assert [scheduler.last_epoch for scheduler in pair] == [EPOCHS * 10] * 2
    assert [scheduler.get_last_lr()[0] for scheduler in pair] == pytest.approx([0.5**EPOCHS, 2 * 0.5**EPOCHS])


# ---- warnings ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stock", [False, True], ids=["infobatch", "stock"])
def test_a_scheduler_stepped_too_seldom_is_warned_of(stock: bool) -> None:
    """With gradient accumulation, or once per epoch: it would jump at each epoch's end, or run far too fast."""

    def train(**settings: Any) -> list[str]:
        return collect_warnings(Run(SCHEDULERS["CosineAnnealingLR"], stock=stock, **settings).train)

    (text,) = train(accumulate=4)
    assert "stepped 4 times" in text
    assert "steps_per_epoch=13" in text
    (text,) = train(accumulate=FULL_STEPS)
    assert "stepped 1 time " in text
    assert train(accumulate=4, steps=4) == []
    assert train(accumulate=FULL_STEPS, steps=1) == []
    assert train(drop_last=True) == []  # 12 of 13
    assert train(accumulate=9, steps=2, steps_on_remainder=False) == []  # 9 of 13 batches make a step, the rest none


def test_a_state_of_pace_that_was_not_loaded_is_warned_of() -> None:
    maker = SCHEDULERS["LambdaLR"]
    first, unloaded, loaded = Run(maker).train(stop_after=30), Run(maker), Run(maker)
    unloaded.data.load_state_dict(first.data.state_dict())
    (text,) = collect_warnings(lambda: unloaded.train(stop_after=1))
    assert "in epoch 2" in text
    assert "at its start" in text
    loaded.load(first.state())
    assert collect_warnings(loaded.train) == []


@pytest.mark.parametrize("stop_after", [5, 30])
def test_a_state_of_pace_without_that_of_the_data_is_warned_of(stop_after: int) -> None:
    maker = SCHEDULERS["LambdaLR"]
    first, alone = Run(maker).train(stop_after=stop_after), Run(maker)
    alone.paced.load_state_dict(first.paced.state_dict())
    (text,) = collect_warnings(lambda: alone.train(stop_after=40))
    assert f"{first.paced.state_dict()['count']} steps ahead" in text


def test_a_scheduler_that_is_never_stepped_is_warned_of_once() -> None:
    run = Run(SCHEDULERS["CosineAnnealingLR"], accumulate=1000, steps_on_remainder=False)
    (text,) = collect_warnings(run.train)
    assert "without a step of the scheduler" in text
