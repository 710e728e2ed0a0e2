"""Schedulers that follow the data: where they end, what they do on the way, and what grows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import pytest
import torch
from torch.optim import Optimizer
from torch.optim import lr_scheduler as lrs
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import TensorDataset

import infobatch

SIZE, EPOCHS, BATCH = 100, 8, 8
FULL_STEPS = 13  # of an epoch of 100 in batches of 8
TOTAL = EPOCHS * FULL_STEPS
Maker = Callable[[Optimizer, int], LRScheduler]


def warmed_cosine(optimizer: Optimizer, total: int) -> LRScheduler:
    warm = lrs.LinearLR(optimizer, start_factor=0.1, total_iters=10)
    cosine = lrs.CosineAnnealingLR(optimizer, T_max=total - 10)
    return lrs.SequentialLR(optimizer, [warm, cosine], milestones=[10])


SCHEDULERS: dict[str, Maker] = {
    "OneCycleLR": lambda optimizer, total: lrs.OneCycleLR(optimizer, max_lr=0.5, total_steps=total + 1),
    "CosineAnnealingLR": lambda optimizer, total: lrs.CosineAnnealingLR(optimizer, T_max=total),
    "warmed_cosine": warmed_cosine,
    "StepLR": lambda optimizer, total: lrs.StepLR(optimizer, step_size=17, gamma=0.5),
    "MultiStepLR": lambda optimizer, total: lrs.MultiStepLR(optimizer, milestones=[20, 55, 56], gamma=0.1),
    "ExponentialLR": lambda optimizer, total: lrs.ExponentialLR(optimizer, gamma=0.97),
    "WarmRestarts": lambda optimizer, total: lrs.CosineAnnealingWarmRestarts(optimizer, T_0=20, T_mult=2),
    "LambdaLR": lambda optimizer, total: lrs.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
}
every_scheduler = pytest.mark.parametrize("maker", SCHEDULERS.values(), ids=SCHEDULERS)


class Step(NamedTuple):
    epoch: int
    lr: float
    weight: float


class Run:
    """A training of a made-up model, of which the learning rate of each step is noted."""

    def __init__(
        self,
        maker: Maker | None,
        *,
        ratio: float = 0.5,
        compensate: Any = "loss",
        batch: int = BATCH,
        drop_last: bool = False,
        stock: bool = False,
        every: int = 1,
        flush: bool = True,
        steps: int = FULL_STEPS,
        lr: Any = 0.1,
        method: infobatch.methods.Method | None = None,
    ) -> None:
        x = torch.rand(SIZE, generator=torch.Generator().manual_seed(3)).pow(3)
        method = method or infobatch.methods.infobatch(ratio)
        self.data = infobatch.Pruned(TensorDataset(x), method, EPOCHS, compensate=compensate)
        if stock:
            self.loader: Any = torch.utils.data.DataLoader(
                self.data, batch_size=batch, drop_last=drop_last, sampler=self.data.sampler
            )
        else:
            self.loader = infobatch.DataLoader(self.data, batch_size=batch, drop_last=drop_last)
        self.parameter = torch.nn.Parameter(torch.ones(1))
        self.optimizer = torch.optim.SGD([self.parameter], lr=lr, momentum=0.9)
        self.inner = maker(self.optimizer, EPOCHS * steps) if maker else None
        self.paced = infobatch.pace(self.inner or self.optimizer, self.data, steps_per_epoch=steps)
        self.every, self.flush = every, flush
        self.steps: list[Step] = []

    def train(self, stop_after: int | None = None) -> Run:
        for epoch in range(self.data.epoch, EPOCHS):
            batches = len(self.loader)
            for number, (x,) in enumerate(self.loader, start=1):
                loss = self.data.update(x * self.parameter.detach())
                if number % self.every == 0 or (self.flush and number == batches):
                    self.parameter.grad = torch.zeros(1)
                    self.steps.append(Step(epoch, float(self.optimizer.param_groups[0]["lr"]), float(loss)))
                    self.optimizer.step()
                    self.paced.step()
                if len(self.steps) == stop_after:
                    return self
        return self

    @property
    def rates(self) -> list[float]:
        return [step.lr for step in self.steps]

    @property
    def lr(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])


def plain_rates(maker: Maker, total: int, lr: Any = 0.1) -> list[float]:
    """What the scheduler does alone: the rate before each step, and after the last."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=lr, momentum=0.9)
    scheduler = maker(optimizer, total)
    rates = [float(optimizer.param_groups[0]["lr"])]
    for _ in range(total):
        optimizer.step()
        scheduler.step()
        rates.append(float(optimizer.param_groups[0]["lr"]))
    return rates


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
            applied += losses.grad.sum().item() * len(batch)
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


@pytest.mark.parametrize("spoil", ["missing", "other kind", "no dict", "groups"])
def test_a_wrong_state_is_refused_whole(spoil: str) -> None:
    run = Run(SCHEDULERS["StepLR"]).train(stop_after=20)
    state: Any = run.paced.state_dict()
    if spoil == "missing":
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


# ---- warnings ------------------------------------------------------------------------------------------------


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
        infobatch.pace(optimizer, infobatch.InfoBatch(TensorDataset(torch.rand(SIZE)), EPOCHS))


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


# ---- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [None, 0, -1, True, 2.5, "10"])
def test_steps_per_epoch_must_be_a_count(steps: Any) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    data = infobatch.InfoBatch(TensorDataset(torch.rand(SIZE)), EPOCHS)
    with pytest.raises(infobatch.InputError, match=r"expected steps_per_epoch.*; got .*ceil\("):
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


# ---- what grows unless it is said ----------------------------------------------------------------------------


def test_by_default_the_rate_grows_where_it_is_paced() -> None:
    by_default, asked = (Run(None, compensate=what).train() for what in ("auto", "lr"))
    assert by_default.steps == asked.steps
    assert max(by_default.rates) > 0.1


def test_by_default_the_loss_grows_where_nothing_is_paced() -> None:
    weights, x = [], torch.rand(64).pow(3)
    for what in ("auto", "loss"):
        data = infobatch.InfoBatch(TensorDataset(x), 8, compensate=cast(Any, what))
        passes = (infobatch.DataLoader(data, batch_size=8) for _ in range(8))
        weights.append([float(data.update(losses)) for loader in passes for (losses,) in loader])
        assert data.compensate == "loss"
    assert len(weights[0]) < 64
    assert weights[0] == weights[1]


def test_by_default_nothing_grows_where_all_weights_are_one() -> None:
    run = Run(None, compensate="auto", method=infobatch.methods.rs2(0.3)).train()
    assert set(run.rates) == {0.1}
    asked = Run(None, compensate="lr", method=infobatch.methods.rs2(0.3)).train()
    assert max(asked.rates) > 0.1


def test_too_late_to_pace() -> None:
    data = infobatch.InfoBatch(TensorDataset(torch.rand(64).pow(3)), 8)
    for _ in range(2):
        for (x,) in infobatch.DataLoader(data, batch_size=8):
            data.update(x)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(infobatch.InputError, match="before the first pruned epoch"):
        infobatch.pace(optimizer, data)


@pytest.mark.parametrize("loads_first", [True, False])
def test_a_resumed_run_goes_on_as_it_began(loads_first: bool) -> None:
    def fresh() -> tuple[infobatch.InfoBatch, torch.optim.Optimizer]:
        data = infobatch.InfoBatch(TensorDataset(torch.arange(64.0)), 8)
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


def test_an_optimizer_alone_needs_no_steps_of_the_wrapper() -> None:
    data = infobatch.InfoBatch(TensorDataset(torch.rand(64).pow(3)), 8)
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
