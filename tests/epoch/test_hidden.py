"""A look at those left out, between two epochs: whose losses these are, and what wrong use says."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import infobatch
from infobatch import methods

SIZE = 60


def fresh(method: methods.Method | None = None) -> infobatch.Pruned:
    return infobatch.Pruned(TensorDataset(torch.arange(SIZE)), method or methods.kakurenbo(), 12)


def epoch(train: infobatch.Pruned, shift: float = 0.0) -> None:
    indices = train.plan().indices
    train.update(indices / SIZE + shift, indices, confidence=torch.full((len(indices),), 0.9))


def look(train: infobatch.Pruned, shift: float = 0.0, **loader: Any) -> int:
    seen = 0
    for (x,), indices in train.hidden(batch_size=7, **loader):
        train.observe(x / SIZE + shift, indices, confidence=torch.full((len(x),), 0.9))
        seen += len(x)
    return seen


@pytest.fixture
def after_hiding() -> infobatch.Pruned:
    """Two epochs on: the lowest 30 % were left out of the second."""
    train = fresh()
    epoch(train)
    epoch(train, 10.0)
    return train


@pytest.mark.filterwarnings("ignore:.*needs the losses of the samples it left out")
def test_no_look_while_an_iterator_is_open(after_hiding: infobatch.Pruned) -> None:
    """With workers, making one draws from the plan, which a look would change."""
    batches = iter(infobatch.DataLoader(after_hiding, batch_size=7, num_workers=1))
    with pytest.raises(infobatch.MisalignedError, match="iterator open"):
        look(after_hiding)
    del batches
    assert look(after_hiding) == 18


@pytest.mark.filterwarnings("ignore:.*needs the losses of the samples it left out")
def test_a_look_after_one_at_a_first_batch(after_hiding: infobatch.Pruned) -> None:
    """Torch's loader keeps the iterator of workers that persist, though the loop let it go."""
    loader = torch.utils.data.DataLoader(
        after_hiding, batch_size=7, sampler=after_hiding.sampler, num_workers=1, persistent_workers=True
    )
    next(iter(loader))
    assert look(after_hiding) == 18


def test_losses_of_a_look_that_are_not_finite_are_told(after_hiding: infobatch.Pruned) -> None:
    before = after_hiding.scores
    with pytest.warns(infobatch.InfoBatchWarning, match="epoch 1: 18 of 18 losses"):
        look(after_hiding, torch.nan)
    assert torch.equal(after_hiding.scores, before)


@pytest.mark.parametrize("name", ["kakurenbo", "ucb"])
def test_inference_mode_leaves_no_trace(name: str) -> None:
    """Made, asked for its history between epochs, looked at and loaded in it; used outside."""
    with torch.inference_mode():
        train = fresh(methods.METHODS[name]())
    for number in range(3):
        epoch(train, float(number))
        with torch.inference_mode():
            assert len(train.history) == number + 1
            if name == "kakurenbo":
                look(train)
    with torch.inference_mode():
        train.load_state_dict(train.state_dict())
    for number in range(3, 5):
        epoch(train, float(number))
        if name == "kakurenbo":
            look(train)
    assert train.epoch == 5


@pytest.mark.parametrize("loader", [{}, {"num_workers": 1}, {"collate_fn": torch.utils.data.default_collate}])
def test_each_loss_reaches_its_sample(after_hiding: infobatch.Pruned, loader: dict[str, Any]) -> None:
    assert look(after_hiding, 20.0, **loader) == 18
    hidden = torch.arange(SIZE) < 18
    assert torch.equal(after_hiding.scores, torch.arange(SIZE) / SIZE + torch.where(hidden, 20.0, 10.0))


class Shifted(infobatch.Pruned):
    def __getitem__(self, index: int) -> Any:
        return tuple(part + SIZE for part in super().__getitem__(index))


def test_a_subclass_decides_what_a_hidden_sample_is() -> None:
    train = Shifted(TensorDataset(torch.arange(SIZE)), methods.kakurenbo(), 12)
    epoch(train)
    epoch(train, 10.0)
    assert look(train, 20.0) == 18
    assert torch.equal(train.scores[:18], torch.arange(18) / SIZE + 21.0)


@pytest.mark.parametrize(
    "loader",
    [
        {"shuffle": True},
        {"drop_last": True},
        {"sampler": range(18)},
        {"batch_sampler": [[0]]},
        {"num_workers": 2, "in_order": False},
    ],
)
def test_a_loader_that_changes_the_order_is_refused(after_hiding: infobatch.Pruned, loader: dict[str, Any]) -> None:
    with pytest.raises(infobatch.InputError, match="keeps the order"):
        look(after_hiding, **loader)


def test_a_batch_without_observe_is_an_error(after_hiding: infobatch.Pruned) -> None:
    with pytest.raises(infobatch.MisalignedError, match="none for 18 of 18"):
        list(after_hiding.hidden(batch_size=7))
    assert look(after_hiding) == 18, "and the look can be taken still"


@pytest.mark.parametrize("shift", [SIZE, -SIZE])
def test_indices_outside_are_refused(after_hiding: infobatch.Pruned, shift: int) -> None:
    for (x,), indices in after_hiding.hidden(batch_size=30):
        with pytest.raises(infobatch.InputError, match="indices from 0 to 59"):
            after_hiding.observe(x / SIZE, indices + shift, confidence=torch.ones(len(x)))
        after_hiding.observe(x / SIZE, indices, confidence=torch.ones(len(x)))


def test_a_second_look_finds_nobody() -> None:
    """Or a sample's last losses would be counted twice."""
    train = fresh(methods.ies(bound=0.5))
    for at in range(6):
        epoch(train, 0.01 * at)
        look(train, 0.01 * at)
    before = train.state_dict()["memory"]
    assert look(train, 0.06) == 0
    for name, column in train.state_dict()["memory"].items():
        assert torch.equal(column, before[name]), name


def test_no_plan_is_drawn_while_looking(after_hiding: infobatch.Pruned) -> None:
    looking = after_hiding.hidden(batch_size=7)
    next(looking)
    with pytest.raises(infobatch.MisalignedError, match="hidden samples"):
        after_hiding.plan()
    assert after_hiding.progress == (2, 0, 1)
    assert look(after_hiding, 20.0) == 18, "a new look takes the place of one that was not ended"
    indices = after_hiding.plan().indices
    after_hiding.update(indices[:20] / SIZE, indices[:20], confidence=torch.ones(20))
    looking.close()
    assert after_hiding.progress[1] == 20, "the old one touches nothing any more"


@pytest.mark.parametrize("own_loader", [True, False])
def test_a_look_that_nobody_takes_is_missed(after_hiding: infobatch.Pruned, own_loader: bool) -> None:
    loader = infobatch.DataLoader(after_hiding, batch_size=7)
    begin: Callable[[], Any] = partial(next, iter(loader)) if own_loader else partial(epoch, after_hiding)
    with pytest.warns(infobatch.InfoBatchWarning, match="left out"):
        begin()


def test_only_methods_that_want_a_look_have_one() -> None:
    train = fresh(methods.ucb())
    epoch(train)
    with pytest.raises(infobatch.InputError, match="needs the hidden samples"):
        look(train)


def test_logits_are_no_confidences() -> None:
    train = fresh()
    indices = train.plan().indices[:3]
    for wrong in (torch.tensor([0.2, 1.5, 0.3]), torch.tensor([-0.1, 0.5, 0.5])):
        with pytest.raises(infobatch.InputError, match="confidence from 0 to 1"):
            train.update(torch.rand(3), indices, confidence=wrong)
    train.update(torch.rand(3), indices, confidence=torch.tensor([0.0, 1.0, torch.nan]))


@pytest.mark.filterwarnings("ignore:.*needs the losses of the samples it left out", "ignore:.*a step stands for")
def test_a_peek_before_a_look_is_forgotten_with_its_plan() -> None:
    """Its pass is over a plan that the look lets be drawn anew."""
    method = infobatch.methods.kakurenbo(ratio=0.6, steps=(1.0, 1.0, 1.0, 1.0))
    data = infobatch.Pruned(TensorDataset(torch.arange(100)), method, 6)
    for epoch in range(3):
        known = torch.zeros(100, dtype=torch.bool)
        known[45 * (epoch > 0) : 45 + 10 * (epoch > 0)] = True
        loss, confidence = torch.where(known, 0.01, 3.0), torch.where(known, 0.99, 0.01)
        plan = data.plan()
        assert len(data.sampler) == data.progress[2] == plan.kept
        for at in plan.indices.split(10):
            assert data.epoch == epoch
            data.update(loss[at], at, confidence=confidence[at])
        next(iter(infobatch.DataLoader(data, batch_size=4)))
        for _, at in data.hidden(batch_size=10):
            data.observe(loss[at], at, confidence=confidence[at])
    assert [report.kept for report in data.history] == [100, 55, 90]
