"""Pacing when a training is under way: a new phase with a scheduler of its own, new groups, a second data set."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from paced import BATCH, EPOCHS, FULL_STEPS, SCHEDULERS, SIZE, Maker, every_scheduler, plain_rates
from torch.optim import SGD
from torch.optim import lr_scheduler as lrs
from torch.utils.data import TensorDataset

import infobatch

LOSSES = torch.linspace(0, 1, SIZE).pow(3)
PHASE = 3
"""The epoch in which the second phase begins."""
LEFT = (EPOCHS - PHASE) * FULL_STEPS


def some(**how: Any) -> infobatch.InfoBatch:
    return infobatch.InfoBatch(TensorDataset(LOSSES), EPOCHS, **{"compensate": "lr", **how})


def fresh(lr: float = 0.1) -> SGD:
    return SGD([torch.nn.Parameter(torch.ones(1))], lr=lr, momentum=0.9)


def train(data: infobatch.Pruned, paced: infobatch.Paced, until: int, batch: int = BATCH) -> list[list[float]]:
    """The rates of each epoch's steps, as the scheduler has them."""
    rates: list[list[float]] = []
    for _ in range(data.epoch, until):
        rates.append([])
        for (x,) in infobatch.DataLoader(data, batch_size=batch):
            data.update(x)
            rates[-1].append(float(paced.state_dict()["plain"][0]))
            paced.optimizer.step()
            paced.step()
    return rates


def epoch_of(data: infobatch.Pruned) -> None:
    for (x,) in infobatch.DataLoader(data, batch_size=BATCH):
        data.update(x)


def phase_two(data: infobatch.Pruned, maker: Maker, steps: int = FULL_STEPS) -> infobatch.Paced:
    return infobatch.pace(maker(fresh(), (EPOCHS - PHASE) * steps), data, steps)


def after_phase_one(**how: Any) -> infobatch.InfoBatch:
    data = some(**how)
    train(data, infobatch.pace(SCHEDULERS["OneCycleLR"](fresh(), EPOCHS * FULL_STEPS), data, FULL_STEPS), PHASE)
    return data


def told(training: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", infobatch.InfoBatchWarning)
        training()
    return [str(one.message) for one in caught if issubclass(one.category, infobatch.InfoBatchWarning)]


# ---- a new phase ---------------------------------------------------------------------------------------------


@every_scheduler
@pytest.mark.parametrize("compensate", ["lr", "none"])
def test_a_scheduler_of_a_new_phase_begins_at_its_start_and_ends_in_time(maker: Maker, compensate: Any) -> None:
    data = after_phase_one(compensate=compensate)
    paced, plain = phase_two(data, maker), plain_rates(maker, LEFT)
    rates = train(data, paced, EPOCHS)
    assert [each[0] for each in rates] == pytest.approx(plain[:-1:FULL_STEPS])
    assert paced.state_dict()["plain"] == pytest.approx([plain[-1]])
    assert paced.scheduler is not None
    assert paced.scheduler.last_epoch == LEFT


def test_a_new_phase_is_nothing_to_be_told_of() -> None:
    """Neither that the scheduler is at its start, nor that nobody steps the one before."""
    data = some()
    first = infobatch.pace(SCHEDULERS["StepLR"](fresh(), EPOCHS * FULL_STEPS), data, FULL_STEPS)
    train(data, first, PHASE)
    assert told(lambda: train(data, phase_two(data, SCHEDULERS["CosineAnnealingLR"]), EPOCHS)) == []
    assert first.scheduler is not None
    assert first.scheduler.last_epoch == PHASE * FULL_STEPS


def test_a_phase_that_begins_inside_an_epoch() -> None:
    data = after_phase_one()
    at, optimizer = data.plan().kept // BATCH // 2, fresh()
    cosine = SCHEDULERS["CosineAnnealingLR"](optimizer, LEFT)
    for number, (x,) in enumerate(infobatch.DataLoader(data, batch_size=BATCH)):
        if number == at:
            paced = infobatch.pace(cosine, data, FULL_STEPS)
        data.update(x)
        if number >= at:
            optimizer.step()
            paced.step()
            assert cosine.last_epoch <= 2 * (number - at + 1)
    train(data, paced, EPOCHS)
    assert LEFT - FULL_STEPS < cosine.last_epoch < LEFT


@every_scheduler
@pytest.mark.parametrize("where", [PHASE, PHASE + 2, "inside"])
@pytest.mark.parametrize("order", ["data first", "data last"])
def test_a_new_phase_goes_on_from_a_checkpoint(maker: Maker, where: Any, order: str) -> None:
    if maker is SCHEDULERS["OneCycleLR"] and order == "data last":
        pytest.skip("it looks too short for the training before the data are loaded")
    data = after_phase_one()
    paced = phase_two(data, maker)
    if where == "inside":
        train(data, paced, PHASE + 1)
        for (x,) in infobatch.DataLoader(data, batch_size=BATCH):
            data.update(x)
            paced.optimizer.step()
            paced.step()
            if data.progress[1] > SIZE // 3:
                break
    else:
        train(data, paced, where)
    state, optimizer, rates = data.state_dict(), paced.optimizer.state_dict(), paced.state_dict()
    then = some()
    if order == "data first":
        then.load_state_dict(state)
    again = phase_two(then, maker)
    if order == "data last":
        then.load_state_dict(state)
    again.optimizer.load_state_dict(optimizer)
    again.load_state_dict(rates)
    if where == "inside":  # or the uninterrupted one would close an epoch that was left early
        data.load_state_dict(state)
    assert train(then, again, EPOCHS) == train(data, paced, EPOCHS)
    assert again.get_last_lr() == paced.get_last_lr()


@pytest.mark.parametrize("chain", [False, True])
def test_a_new_phase_goes_on_with_another_batch_size(chain: bool) -> None:
    def maker(optimizer: Any, total: int) -> lrs.LRScheduler:
        one = lrs.ExponentialLR(optimizer, 0.5 ** (1 / total))
        return lrs.ChainedScheduler([one]) if chain else one

    data = after_phase_one()
    paced = phase_two(data, maker)
    train(data, paced, PHASE + 2)
    then = some()
    then.load_state_dict(data.state_dict())
    again = phase_two(then, maker, steps=20)
    again.load_state_dict(paced.state_dict())
    assert again.state_dict()["plain"] == pytest.approx(paced.state_dict()["plain"])
    train(then, again, EPOCHS, batch=5)
    assert again.state_dict()["plain"] == pytest.approx([0.05])


def test_a_scheduler_too_short_for_what_is_left_is_refused() -> None:
    data = after_phase_one()
    with pytest.raises(infobatch.InputError, match=r"at least 65 steps, after the 39 .*; got total_steps=60"):
        infobatch.pace(lrs.OneCycleLR(fresh(), max_lr=0.5, total_steps=60), data, FULL_STEPS)


@pytest.mark.parametrize("look", [False, True])
def test_a_resumed_scheduler_that_was_not_loaded_begins_anew_and_that_is_told(look: bool) -> None:
    """Nothing tells it from that of a new phase that begins right after a checkpoint."""
    data = some(compensate="none")
    data.load_state_dict(after_phase_one(compensate="none").state_dict())
    if look:
        next(iter(infobatch.DataLoader(data, batch_size=BATCH)))
    paced = phase_two(data, SCHEDULERS["LambdaLR"])
    rates: list[list[float]] = []
    (text,) = told(lambda: rates.extend(train(data, paced, EPOCHS)))
    assert "the data are in epoch 3, the scheduler is at its start: load what pace returned, too, to go on" in text
    assert "it begins here, which is right for a new phase" in text
    assert [each[0] for each in rates] == plain_rates(SCHEDULERS["LambdaLR"], LEFT)[:-1:FULL_STEPS]


# ---- new groups ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [False, True])
def test_with_a_new_group_it_is_paced_again(phase: bool) -> None:
    """From where it stands, also in a second phase, whose scheduler has made fewer steps than the data."""
    data = after_phase_one() if phase else some()
    optimizer = fresh()
    total, until = (LEFT, PHASE + 2) if phase else (EPOCHS * FULL_STEPS, PHASE)
    maker = SCHEDULERS["CosineAnnealingLR"]
    cosine = maker(optimizer, total)
    paced = infobatch.pace(cosine, data, FULL_STEPS)
    train(data, paced, until)
    made = cosine.last_epoch
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], "lr": 0.02})
    with pytest.raises(
        infobatch.InputError, match=r"the 1 parameter groups .*; got 2\. .* call infobatch\.pace again"
    ):
        train(data, paced, EPOCHS)
    paced = infobatch.pace(cosine, data, FULL_STEPS)
    assert data.plan().growth > 1
    assert paced.get_last_lr()[1] == pytest.approx(0.02 * data.plan().growth)
    assert paced.state_dict()["first"] == [0.1, 0.02]
    plain = plain_rates(maker, total)
    assert [each[0] for each in train(data, paced, EPOCHS)] == pytest.approx(plain[made:-1:FULL_STEPS])
    assert cosine.last_epoch == total
    assert paced.state_dict()["plain"] == pytest.approx([0.0, 0.0])


def test_with_a_new_group_and_no_scheduler_it_is_paced_again() -> None:
    data, optimizer = some(), fresh()
    train(data, infobatch.pace(optimizer, data), PHASE)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], "lr": 0.02})
    with pytest.raises(infobatch.InputError, match=r"call infobatch\.pace again"):
        epoch_of(data)
    paced = infobatch.pace(optimizer, data)
    assert data.plan().growth > 1
    assert paced.get_last_lr() == pytest.approx([0.1 * data.plan().growth, 0.02 * data.plan().growth])
    train(data, paced, EPOCHS)
    assert paced.get_last_lr() == [0.1, 0.02]


def test_a_scheduler_made_for_fewer_groups_is_followed_by_a_new_one() -> None:
    data, optimizer = some(), fresh()
    train(data, infobatch.pace(SCHEDULERS["LambdaLR"](optimizer, 0), data, FULL_STEPS), PHASE)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], "lr": 0.02})
    paced = infobatch.pace(SCHEDULERS["LambdaLR"](optimizer, 0), data, FULL_STEPS)
    train(data, paced, EPOCHS)
    assert paced.get_last_lr() == pytest.approx([0.1 / (1 + LEFT), 0.02 / (1 + LEFT)])


# ---- a second data set ---------------------------------------------------------------------------------------


def test_two_data_sets_do_not_make_one_rate_grow() -> None:
    optimizer, one, other = fresh(), some(), some(seed=1)
    paced = infobatch.pace(optimizer, one)
    with pytest.raises(infobatch.InputError, match=r'a second.*compensate="none"'):
        infobatch.pace(optimizer, other)
    assert not other.paced
    assert not other.paces
    train(one, paced, EPOCHS)


@pytest.mark.filterwarnings("ignore:nothing grows")
@pytest.mark.parametrize("swapped", [False, True])
def test_of_two_data_sets_one_makes_the_rate_grow(swapped: bool) -> None:
    """Also where it grows from the first epoch on: the other takes nothing back."""
    optimizer, still = fresh(), some(compensate="none")
    grown = infobatch.Pruned(TensorDataset(LOSSES), infobatch.methods.random_star(0.3), EPOCHS, compensate="lr")
    for data in (still, grown) if swapped else (grown, still):
        infobatch.pace(optimizer, data)
    for _ in range(EPOCHS):
        for (x,), (y,) in zip(
            *(infobatch.DataLoader(data, batch_size=BATCH) for data in (grown, still)), strict=False
        ):
            assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * grown.plan().growth)
            grown.update(x)
            still.update(y)
    assert grown.history[0].growth > 1.3


@pytest.mark.parametrize("how", ["ended", "dropped", "left"])
def test_a_training_that_is_over_does_not_keep_the_optimizer(how: str) -> None:
    optimizer, data = fresh(), some()
    if how == "dropped":
        infobatch.pace(optimizer, some())  # and nobody has it: it holds itself alone
    else:
        before = some(seed=1)
        train(before, infobatch.pace(optimizer, before), EPOCHS if how == "ended" else PHASE)
    paced = infobatch.pace(optimizer, data)
    train(data, paced, EPOCHS)
    assert paced.get_last_lr() == [0.1]


@pytest.mark.parametrize("steps", [False, True])
def test_a_training_that_was_taken_for_left_is_told_who_has_the_rate(steps: bool) -> None:
    optimizer, left, data = fresh(), some(seed=1), some()
    older = infobatch.pace(optimizer, left)
    train(left, older, PHASE)
    train(data, infobatch.pace(optimizer, data), 1)
    with pytest.raises(infobatch.InputError, match="paced with another data set since"):
        older.step() if steps else epoch_of(left)
    train(left, infobatch.pace(optimizer, left), PHASE + 1)  # as it says
