"""Schedulers that follow the data: where they end, what happens on the way, checkpoints and refusals."""

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
    TOTAL,
    Maker,
    Run,
    collect_warnings,
    every_scheduler,
    make_optimizer,
    unpaced_rates,
)
from torch.optim import lr_scheduler as lrs
from torch.utils.data import TensorDataset

import infobatch

both_loaders = pytest.mark.parametrize("stock", [False, True], ids=["infobatch", "stock"])

# ---- where a scheduler stands --------------------------------------------------------------------------------


@every_scheduler
@both_loaders
def test_under_pruning_it_makes_the_steps_of_a_full_run(maker: Maker, stock: bool) -> None:
    run, unpaced = Run(maker, stock=stock).train(), unpaced_rates(maker, TOTAL)
    assert len(run.steps) < TOTAL - 10
    assert run.scheduler.last_epoch == TOTAL
    assert run.lr == unpaced[-1]
    for epoch in range(EPOCHS):
        first = next(step for step in run.steps if step.epoch == epoch)
        assert first.lr == unpaced[epoch * FULL_STEPS]


@both_loaders
@pytest.mark.parametrize(
    ("name", "batch", "drop_last", "accumulate", "steps_on_remainder", "steps"),
    [
        ("OneCycleLR", 8, False, 1, True, 13),
        ("CosineAnnealingLR", 8, True, 1, True, 12),
        ("ExponentialLR", 100, False, 1, True, 1),
        ("SequentialLR", 7, False, 1, True, 15),
        ("MultiStepLR", 7, True, 1, True, 14),
        ("StepLR", 5, False, 4, True, 5),
        ("WarmRestarts", 8, False, 4, True, 4),  # 13 batches, four per step, and a step for the last one
        ("LambdaLR", 8, False, 4, False, 3),  # 13 batches, four per step, and the last one belongs to the next step
        ("ExponentialLR", 9, True, 4, False, 2),
        ("LambdaLR", 30, False, 3, False, 1),
    ],
)
def test_without_pruning_it_is_as_without_pace(
    name: str, stock: bool, batch: int, drop_last: bool, accumulate: int, steps_on_remainder: bool, steps: int
) -> None:
    maker = SCHEDULERS[name]
    run = Run(
        maker,
        ratio=0.0,
        batch=batch,
        drop_last=drop_last,
        stock=stock,
        accumulate=accumulate,
        steps_on_remainder=steps_on_remainder,
        steps=steps,
    ).train()
    assert [*run.rates, run.lr] == unpaced_rates(maker, EPOCHS * steps)


@pytest.mark.parametrize(("accumulate", "steps"), [(1, 13), (2, 7), (3, 5)])
def test_pruning_with_gradient_accumulation(accumulate: int, steps: int) -> None:
    run = Run(SCHEDULERS["CosineAnnealingLR"], accumulate=accumulate, steps=steps).train()
    assert run.scheduler.last_epoch == EPOCHS * steps


@pytest.mark.parametrize("with_indices", [False, True])
@pytest.mark.parametrize("compensate", ["loss", "none"])
def test_an_epoch_left_early_is_one_step_of_a_scheduler_of_epochs(compensate: Any, with_indices: bool) -> None:
    """However often ``step`` is called; and a state saved before the step or after it goes on alike."""

    def make() -> tuple[infobatch.InfoBatch, infobatch.Paced]:
        data = infobatch.InfoBatch(TensorDataset(torch.arange(64.0), torch.arange(64)), 8, compensate=compensate)
        return data, infobatch.pace(lrs.StepLR(make_optimizer(1.0), 1, 0.5), data, 1)

    def train(data: infobatch.InfoBatch, batches: int) -> None:
        for number, (losses, indices) in enumerate(infobatch.DataLoader(data, batch_size=8), start=1):
            data.update(losses, indices if with_indices else None)
            if number == batches:
                break

    data, paced = make()
    for epoch in range(8):
        train(data, 4)
        before = [data.state_dict(), paced.optimizer.state_dict(), paced.state_dict()]
        paced.optimizer.step()
        for _ in range(2):
            paced.step()
            assert paced.scheduler.last_epoch == epoch + 1
            assert paced.get_last_lr() == [0.5 ** (epoch + 1)]
        for states in (before, [before[0], paced.optimizer.state_dict(), paced.state_dict()]):
            resumed_data, resumed = make()
            for owner, state in zip((resumed_data, resumed.optimizer, resumed), states, strict=True):
                owner.load_state_dict(state)
            train(resumed_data, 1)
            resumed.optimizer.step()
            resumed.step()
            assert resumed.get_last_lr() == [0.5 ** (epoch + 1)]


@pytest.mark.parametrize("compiled", [False, True])
def test_updates_with_indices_and_no_loader(compiled: bool) -> None:
    """A compiled update cannot announce that an epoch begins, and ``step`` does without."""
    losses = torch.rand(SIZE, generator=torch.Generator().manual_seed(0)).pow(3)
    data = infobatch.InfoBatch(TensorDataset(losses), 3, delta=0.7)
    scheduler = SCHEDULERS["CosineAnnealingLR"](make_optimizer(), 3 * FULL_STEPS)
    paced = infobatch.pace(scheduler, data, FULL_STEPS)
    update: Any = data.update
    if compiled:
        update = torch.compile(lambda loss, indices: data.update(loss, indices), backend="eager", dynamic=True)

    def train() -> None:
        for _ in range(3):
            for indices in data.plan().indices.split(BATCH):
                update(losses[indices], indices)
                paced.optimizer.step()
                paced.step()

    assert collect_warnings(train) == []
    assert data.history[-1].saved_so_far > 0.1
    assert scheduler.last_epoch == 3 * FULL_STEPS


def test_a_pass_over_the_hidden_samples_between_epochs() -> None:
    data = infobatch.Pruned(TensorDataset(torch.rand(64)), infobatch.methods.kakurenbo(), 8)
    scheduler = SCHEDULERS["CosineAnnealingLR"](make_optimizer(), 64)
    paced = infobatch.pace(scheduler, data, 8)
    for epoch in range(8):
        for (losses,) in infobatch.DataLoader(data, batch_size=8):
            data.update(losses, confidence=1 - losses)
            paced.optimizer.step()
            paced.step()
        for (losses,), indices in data.hidden(batch_size=8):
            data.observe(losses, indices, confidence=1 - losses)
        assert scheduler.last_epoch == 8 * (epoch + 1)
    assert data.history[-1].saved_so_far > 0


@pytest.mark.parametrize(
    ("batch_size", "options", "steps"),
    [(8, {}, 13), (8, {"drop_last": True}, 12), (8, {"accumulate": 4}, 4), (100, {}, 1), (1000, {}, 1)],
)
def test_full_steps(batch_size: int, options: dict[str, Any], steps: int) -> None:
    assert infobatch.full_steps(infobatch.InfoBatch(range(100), EPOCHS), batch_size, **options) == steps


@pytest.mark.parametrize(
    ("batch_size", "options", "word"),
    [
        (0, {}, "batch_size"),
        (-3, {}, "batch_size"),
        (2.5, {}, "batch_size"),
        (True, {}, "batch_size"),
        (None, {}, "batch_size"),
        (8, {"accumulate": 0}, "accumulate"),
        (1000, {"drop_last": True}, "drop_last"),
    ],
)
def test_full_steps_refuses_bad_input(batch_size: Any, options: dict[str, Any], word: str) -> None:
    data = infobatch.InfoBatch(range(100), EPOCHS)
    with pytest.raises(infobatch.InputError, match=word):
        infobatch.full_steps(data, batch_size, **options)
    with pytest.raises(infobatch.InputError, match="range"):
        infobatch.full_steps(range(100), 8)  # type: ignore[arg-type]


# ---- checkpoints ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, "float") for name in SCHEDULERS), ("OneCycleLR", "tensor"), ("ExponentialLR", "tensor")],
)
def test_state_dict_in_the_middle_of_an_epoch(name: str, kind: str, tmp_path: Any) -> None:
    """And saving it does not disturb the run."""

    def make() -> Run:
        lr = torch.tensor(0.1, dtype=torch.float64) if kind == "tensor" else 0.1
        return Run(SCHEDULERS[name], compensate="loss" if kind == "tensor" else "none", lr=lr)

    def save(steps: int) -> None:
        if steps in stops:
            infobatch.save(run.state(), tmp_path / f"{steps}.pt")

    stops, run = (3, FULL_STEPS, 20, 50), make()
    run.on_step = save
    run.train()
    assert run.lr == unpaced_rates(SCHEDULERS[name], TOTAL)[-1]
    for stop in stops:
        resumed = make()
        resumed.load(infobatch.load(tmp_path / f"{stop}.pt"))
        resumed.train(until=EPOCHS if stop == max(stops) else resumed.data.epoch + 1)
        assert resumed.rates == run.rates[stop:][: len(resumed.rates)]
    assert len(resumed.rates) == len(run.rates) - stop
    assert resumed.lr == run.lr


def test_a_state_does_not_change_afterwards() -> None:
    run = Run(SCHEDULERS["StepLR"], lr=torch.tensor(0.1)).train(until=1)
    state = run.paced.state_dict()
    rates, first_rates = ([float(rate) for rate in state[name]] for name in ("rates", "first_rates"))
    run.train(until=3)
    assert [float(rate) for rate in run.paced.state_dict()["rates"]] != rates
    assert [float(rate) for rate in state["rates"]] == rates
    assert [float(rate) for rate in state["first_rates"]] == first_rates == [pytest.approx(0.1)]


WRONG_FIELDS: dict[str, dict[str, Any]] = {
    "rates are text": {"rates": ["x"]},
    "other number of groups": {"rates": [0.1, 0.2]},
    "first rates are a number": {"first_rates": 3},
    "first rates are a tensor": {"first_rates": torch.ones(2)},
    "no count": {"count": None},
    "negative count": {"count": -1},
    "no steps": {"steps_per_epoch": 0},
    "no scheduler": {"scheduler": None},
    "unknown field": {"growth": 1.0},
}


@pytest.mark.parametrize("wrong", ["missing field", "no dict", *WRONG_FIELDS])
def test_a_wrong_state_changes_nothing(wrong: str) -> None:
    run = Run(SCHEDULERS["StepLR"]).train(stop_after=20)
    before = run.paced.state_dict()
    state: Any = 7
    if wrong != "no dict":
        state = run.paced.state_dict() | WRONG_FIELDS.get(wrong, {})
    if wrong == "missing field":
        del state["count"]
    with pytest.raises(infobatch.StateError, match=r"expected .*; got .*Nothing was loaded"):
        run.paced.load_state_dict(state)
    assert run.paced.state_dict() == before


@pytest.mark.parametrize("data_first", [True, False])
def test_data_may_be_loaded_before_or_after_pace_is_called(data_first: bool) -> None:
    maker = SCHEDULERS["CosineAnnealingLR"]
    uninterrupted, first = Run(maker).train(), Run(maker).train(until=2)
    state = first.state()
    resumed = Run(maker, data_state=state["data"] if data_first else None)
    if not data_first:
        resumed.data.load_state_dict(state["data"])
    resumed.optimizer.load_state_dict(state["optimizer"])
    resumed.paced.load_state_dict(state["paced"])
    assert resumed.data.plan().growth > 1
    assert first.rates + resumed.train().rates == uninterrupted.rates
    assert resumed.lr == uninterrupted.lr


# ---- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [None, 0, -1, True, 2.5, "10"])
def test_steps_per_epoch_must_be_a_count(steps: Any) -> None:
    data = infobatch.InfoBatch(TensorDataset(torch.rand(SIZE)), EPOCHS)
    with pytest.raises(infobatch.InputError, match=r"steps_per_epoch.*full_steps\("):
        infobatch.pace(lrs.StepLR(make_optimizer(), 3), data, steps)
    assert not data.listeners


def test_only_schedulers_can_be_paced() -> None:
    optimizer = make_optimizer()
    data = infobatch.InfoBatch(TensorDataset(torch.rand(SIZE)), EPOCHS)
    wrong: Any
    for wrong in ("cosine", None, torch.nn.Linear(1, 1), optimizer, lrs.ReduceLROnPlateau(optimizer)):
        with pytest.raises(infobatch.InputError, match=f"a scheduler.*{type(wrong).__name__}"):
            infobatch.pace(wrong, data, 10)
    for wrong in (TensorDataset(torch.rand(3)), None):
        with pytest.raises(infobatch.InputError, match=f"the training data.*{type(wrong).__name__}"):
            infobatch.pace(lrs.StepLR(optimizer, 3), wrong, 10)
    assert not data.listeners


def test_a_scheduler_too_short_for_the_run_is_refused() -> None:
    data = infobatch.InfoBatch(TensorDataset(torch.zeros(8)), 4)
    cycle = lrs.OneCycleLR(make_optimizer(), max_lr=0.1, total_steps=7)
    with pytest.raises(infobatch.InputError, match=r"8 steps; got total_steps=7"):
        infobatch.pace(cycle, data, 2)
    assert not data.listeners


def test_an_epoch_without_a_step_is_warned_of_once() -> None:
    data = infobatch.InfoBatch(TensorDataset(torch.rand(64).pow(3)), 8)
    infobatch.pace(lrs.CosineAnnealingLR(make_optimizer(), 64), data, steps_per_epoch=8)

    def train_epoch() -> None:
        for (losses,) in infobatch.DataLoader(data, batch_size=8):
            data.update(losses)

    assert collect_warnings(train_epoch) == []
    (text,) = collect_warnings(train_epoch)
    assert "without a step of the scheduler" in text
    assert collect_warnings(train_epoch) == []
