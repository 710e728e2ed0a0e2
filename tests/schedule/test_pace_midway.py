"""Pacing in the middle of a training run: a new phase with its own scheduler, and new parameter groups."""

from __future__ import annotations

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
    collect_warnings,
    every_scheduler,
    make_optimizer,
    unpaced_rates,
)
from torch.optim import lr_scheduler as lrs
from torch.utils.data import TensorDataset

import infobatch

LOSSES = torch.linspace(0, 1, SIZE).pow(3)
PHASE = 3
"""The epoch in which the second phase begins."""
REMAINING = (EPOCHS - PHASE) * FULL_STEPS


def make_data(compensate: Any = "none") -> infobatch.InfoBatch:
    return infobatch.InfoBatch(TensorDataset(LOSSES), EPOCHS, compensate=compensate)


def train(data: infobatch.Pruned, paced: infobatch.Paced, until: int, batch: int = BATCH) -> list[list[float]]:
    """Train, and return the learning rates of each epoch's steps."""
    rates: list[list[float]] = []
    for _ in range(data.epoch, until):
        rates.append([])
        for (losses,) in infobatch.DataLoader(data, batch_size=batch):
            data.update(losses)
            rates[-1].append(paced.get_last_lr()[0])
            paced.optimizer.step()
            paced.step()
    return rates


def begin_phase_two(data: infobatch.Pruned, maker: Maker, steps: int = FULL_STEPS) -> infobatch.Paced:
    return infobatch.pace(maker(make_optimizer(), (EPOCHS - PHASE) * steps), data, steps)


def finish_phase_one(compensate: Any = "none") -> infobatch.InfoBatch:
    data = make_data(compensate)
    cycle = SCHEDULERS["OneCycleLR"](make_optimizer(), EPOCHS * FULL_STEPS)
    train(data, infobatch.pace(cycle, data, FULL_STEPS), PHASE)
    return data


# ---- a new phase ---------------------------------------------------------------------------------------------


@every_scheduler
def test_a_scheduler_of_a_new_phase_begins_at_its_start_and_ends_in_time(maker: Maker) -> None:
    data = finish_phase_one()
    paced, expected = begin_phase_two(data, maker), unpaced_rates(maker, REMAINING)
    rates = train(data, paced, EPOCHS)
    assert [epoch[0] for epoch in rates] == pytest.approx(expected[:-1:FULL_STEPS])
    assert paced.get_last_lr() == pytest.approx([expected[-1]])
    assert paced.scheduler.last_epoch == REMAINING


@pytest.mark.parametrize("compensate", ["none", "loss"])
def test_a_new_phase_gives_no_warning(compensate: Any) -> None:
    """Neither that the scheduler is at its start, nor that the previous one is not stepped any more."""
    data = make_data(compensate)
    first = infobatch.pace(SCHEDULERS["StepLR"](make_optimizer(), EPOCHS * FULL_STEPS), data, FULL_STEPS)
    train(data, first, PHASE)
    second = begin_phase_two(data, SCHEDULERS["CosineAnnealingLR"])
    assert collect_warnings(lambda: train(data, second, EPOCHS)) == []
    assert first.scheduler.last_epoch == PHASE * FULL_STEPS


def test_a_phase_that_begins_inside_an_epoch() -> None:
    data = finish_phase_one()
    begin, optimizer = data.plan().kept // BATCH // 2, make_optimizer()
    cosine = SCHEDULERS["CosineAnnealingLR"](optimizer, REMAINING)
    for number, (losses,) in enumerate(infobatch.DataLoader(data, batch_size=BATCH)):
        if number == begin:
            paced = infobatch.pace(cosine, data, FULL_STEPS)
        data.update(losses)
        if number >= begin:
            optimizer.step()
            paced.step()
            assert cosine.last_epoch <= 2 * (number - begin + 1)
    train(data, paced, EPOCHS)
    assert REMAINING - FULL_STEPS < cosine.last_epoch < REMAINING


@pytest.mark.parametrize("name", ["OneCycleLR", "SequentialLR", "ExponentialLR"])
@pytest.mark.parametrize("stop", [PHASE, PHASE + 2, "inside"])
@pytest.mark.parametrize("order", ["data first", "data last"])
def test_a_new_phase_goes_on_from_a_checkpoint(name: str, stop: Any, order: str) -> None:
    if name == "OneCycleLR" and order == "data last":
        pytest.skip("before the data are loaded it looks too short for the run")
    maker, data = SCHEDULERS[name], finish_phase_one()
    paced = begin_phase_two(data, maker)
    train(data, paced, PHASE + 1 if stop == "inside" else stop)
    if stop == "inside":
        for (losses,) in infobatch.DataLoader(data, batch_size=BATCH):
            data.update(losses)
            paced.optimizer.step()
            paced.step()
            if data.progress[1] > SIZE // 3:
                break
    state, optimizer_state, paced_state = data.state_dict(), paced.optimizer.state_dict(), paced.state_dict()
    resumed_data = make_data()
    if order == "data first":
        resumed_data.load_state_dict(state)
    resumed = begin_phase_two(resumed_data, maker)
    if order == "data last":
        resumed_data.load_state_dict(state)
    resumed.optimizer.load_state_dict(optimizer_state)
    resumed.load_state_dict(paced_state)
    if stop == "inside":
        data.load_state_dict(state)  # otherwise a new loader would close the epoch that was left early
    assert train(resumed_data, resumed, EPOCHS) == train(data, paced, EPOCHS)
    assert resumed.get_last_lr() == paced.get_last_lr()


@pytest.mark.parametrize("chained", [False, True])
def test_a_new_phase_goes_on_with_another_batch_size(chained: bool) -> None:
    def maker(optimizer: Any, total: int) -> lrs.LRScheduler:
        scheduler = lrs.ExponentialLR(optimizer, 0.5 ** (1 / total))
        return lrs.ChainedScheduler([scheduler]) if chained else scheduler

    data = finish_phase_one()
    paced = begin_phase_two(data, maker)
    train(data, paced, PHASE + 2)
    resumed_data = make_data()
    resumed_data.load_state_dict(data.state_dict())
    resumed = begin_phase_two(resumed_data, maker, steps=20)
    resumed.load_state_dict(paced.state_dict())
    assert resumed.get_last_lr() == pytest.approx(paced.get_last_lr())
    train(resumed_data, resumed, EPOCHS, batch=5)
    assert resumed.get_last_lr() == pytest.approx([0.05])


def test_a_scheduler_too_short_for_the_remaining_epochs_is_refused() -> None:
    data = finish_phase_one()
    with pytest.raises(infobatch.InputError, match=r"65 steps, after the 39 .*; got total_steps=60"):
        infobatch.pace(lrs.OneCycleLR(make_optimizer(), max_lr=0.5, total_steps=60), data, FULL_STEPS)


@pytest.mark.parametrize("opens_loader", [False, True])
def test_a_resumed_scheduler_that_was_not_loaded_begins_anew_with_a_warning(opens_loader: bool) -> None:
    """It cannot be told from that of a new phase that begins right after a checkpoint."""
    data = make_data()
    data.load_state_dict(finish_phase_one().state_dict())
    if opens_loader:
        next(iter(infobatch.DataLoader(data, batch_size=BATCH)))
    paced = begin_phase_two(data, SCHEDULERS["LambdaLR"])
    rates: list[list[float]] = []
    (text,) = collect_warnings(lambda: rates.extend(train(data, paced, EPOCHS)))
    assert "in epoch 3" in text
    assert "new phase" in text
    assert [epoch[0] for epoch in rates] == unpaced_rates(SCHEDULERS["LambdaLR"], REMAINING)[:-1:FULL_STEPS]


# ---- new parameter groups ------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_phase_two", [False, True])
def test_after_adding_a_group_it_can_be_paced_again(in_phase_two: bool) -> None:
    """It goes on where it is, also in a second phase, whose scheduler has made fewer steps than the data."""
    data, optimizer = finish_phase_one() if in_phase_two else make_data(), make_optimizer()
    total, until = (REMAINING, PHASE + 2) if in_phase_two else (EPOCHS * FULL_STEPS, PHASE)
    maker = SCHEDULERS["CosineAnnealingLR"]
    cosine = maker(optimizer, total)
    train(data, infobatch.pace(cosine, data, FULL_STEPS), until)
    made = cosine.last_epoch
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], "lr": 0.02})
    paced = infobatch.pace(cosine, data, FULL_STEPS)
    assert data.plan().growth > 1
    assert paced.get_last_lr()[1] == 0.02
    assert paced.state_dict()["first_rates"] == [0.1, 0.02]
    expected = unpaced_rates(maker, total)
    rates = train(data, paced, EPOCHS)
    assert [epoch[0] for epoch in rates] == pytest.approx(expected[made:-1:FULL_STEPS])
    assert cosine.last_epoch == total
    assert paced.get_last_lr() == pytest.approx([0.0, 0.0])


def test_a_scheduler_built_for_fewer_groups_is_followed_by_a_new_one() -> None:
    data, optimizer = make_data(), make_optimizer()
    train(data, infobatch.pace(SCHEDULERS["LambdaLR"](optimizer, 0), data, FULL_STEPS), PHASE)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], "lr": 0.02})
    paced = infobatch.pace(SCHEDULERS["LambdaLR"](optimizer, 0), data, FULL_STEPS)
    train(data, paced, EPOCHS)
    assert paced.get_last_lr() == pytest.approx([0.1 / (1 + REMAINING), 0.02 / (1 + REMAINING)])
