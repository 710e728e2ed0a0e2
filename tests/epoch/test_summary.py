from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import infobatch
from infobatch.plan import Plan, estimate_noise, generator_for, summarize

CPU = torch.device("cpu")


def pruned(size: int = 100) -> Plan:
    """Of the first half one in two stays, at weight 2."""
    table = torch.ones(size)
    table[: size // 2] = torch.tensor([0.0, 2.0]).repeat(size // 4)
    kept = table.nonzero().squeeze(1)
    return Plan(2, kept[torch.randperm(len(kept), generator=generator_for(0, 0, CPU))], table)


def summarized(plan: Plan, scores: torch.Tensor, planned: int) -> infobatch.EpochSummary:
    return summarize(plan, estimate_noise(plan, scores), planned)


def test_summary_counts() -> None:
    now = summarized(pruned(), torch.ones(100), planned=200)
    assert (now.epoch, now.kept, now.saved, now.growth) == (2, 75, 0.25, 100 / 75)
    assert now.saved_so_far == pytest.approx(1 - 275 / 300)
    assert now.effective_size == pytest.approx(100**2 / (25 * 4 + 50))
    assert now.not_finite == 0


def test_noise_is_equation_18() -> None:
    """The mean of G²/(1-P) over D, against |D|/|S| times the mean of G², from the kept alone where G is even."""
    scores = torch.cat([torch.full((50,), 0.5), torch.full((50,), 3.0)])
    literal = (50 * 0.5**2 / 0.5 + 50 * 3.0**2) / (50 * 0.5**2 + 50 * 3.0**2) / (100 / 75)
    assert estimate_noise(pruned(), scores) == pytest.approx(literal)
    assert estimate_noise(pruned(), scores) < 1


def test_pruning_large_gradients_is_noisier_than_full_data() -> None:
    scores = torch.cat([torch.full((50,), 3.0), torch.full((50,), 0.5)])
    assert estimate_noise(pruned(), scores) > 1


def test_uniform_pruning_has_the_noise_of_the_bound() -> None:
    table = torch.tensor([0.0, 2.0]).repeat(50)
    plan = Plan(1, table.nonzero().squeeze(1), table)
    assert estimate_noise(plan, torch.rand(100, generator=generator_for(0, 1, CPU))) == pytest.approx(1)


def test_nothing_known_is_no_alarm() -> None:
    assert estimate_noise(pruned(), torch.full((100,), math.nan)) == 1
    assert estimate_noise(pruned(), torch.zeros(100)) == 1
    some = torch.full((100,), math.nan)
    some[60:] = 1.0
    assert estimate_noise(pruned(), some) == pytest.approx(75 / 100)  # the known ones all have weight 1


def fit(train: infobatch.Pruned, loss: Callable[[torch.Tensor], torch.Tensor], epochs: int) -> None:
    for _ in range(epochs):
        for (x,) in infobatch.DataLoader(train, batch_size=10):
            train.update(loss(x))


@pytest.mark.parametrize(
    "method", [infobatch.methods.above_mean(), infobatch.methods.tiers()], ids=lambda each: each.name
)
def test_noise_is_a_number_and_no_warning(recwarn: pytest.WarningsRecorder, method: infobatch.methods.Method) -> None:
    """Nobody can act on it: it belongs to the rule and the losses, and a third of all scripts exceeded the bound."""
    train = infobatch.Pruned(TensorDataset(torch.linspace(0, 1, 100)), method, 8)
    fit(train, lambda x: x.pow(3), 4)
    assert not recwarn.list
    if method.name == "above_mean":
        assert max(now.noise for now in train.history) > 1.05


@pytest.mark.parametrize(("ratio", "compensate", "said"), [(0.9, "loss", 1), (0.9, "none", 0), (0.4, "loss", 0)])
def test_growth_is_warned_of_only_where_the_loss_grows_beyond_the_bound(
    recwarn: pytest.WarningsRecorder, ratio: float, compensate: Any, said: int
) -> None:
    train = infobatch.Pruned(TensorDataset(torch.rand(100)), infobatch.methods.random(ratio), 8, compensate=compensate)
    fit(train, lambda x: x, 3)
    assert [each.category for each in recwarn] == [infobatch.InfoBatchWarning] * said
    for each in recwarn:
        assert re.search("learning rate.*compensate", str(each.message)), "it says what to do"


def test_a_run_warns_once() -> None:
    train_data = infobatch.InfoBatch(TensorDataset(torch.rand(100).pow(8)), 6, ratio=0.95, delta=1.0, compensate="loss")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(6):
            for (x,) in infobatch.DataLoader(train_data, batch_size=10):
                train_data.update(x)
    assert [warning.category for warning in caught] == [infobatch.InfoBatchWarning]


def test_a_loop_over_the_plan_alone_is_warned_too() -> None:
    losses = torch.rand(100).pow(8)
    train_data = infobatch.InfoBatch(range(100), 6, ratio=0.95, delta=1.0, compensate="loss")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(6):
            for indices in train_data.plan().indices.split(10):
                train_data.update(losses[indices], indices)
    assert [warning.category for warning in caught] == [infobatch.InfoBatchWarning]


def test_history_tells_the_run() -> None:
    train_data = infobatch.InfoBatch(TensorDataset(torch.rand(100).pow(3)), 8)
    for _ in range(8):
        for (x,) in infobatch.DataLoader(train_data, batch_size=16):
            train_data.update(x)
    history = train_data.history
    assert [now.epoch for now in history] == list(range(8))
    assert [now.saved > 0 for now in history] == [False] + [True] * 6 + [False]
    left_out = sum(100 - now.kept for now in history)
    assert history[-1].saved_so_far == pytest.approx(left_out / 800)
    assert all(now.growth == 100 / now.kept for now in history)
    assert all(now.noise <= 1 for now in history)


def test_a_warning_as_an_error_comes_once_too() -> None:
    train_data = infobatch.InfoBatch(TensorDataset(torch.rand(100).pow(8)), 6, ratio=0.95, delta=1.0, compensate="loss")
    raised = 0
    for _ in range(6):
        for _ in range(2):
            try:
                for (x,) in infobatch.DataLoader(train_data, batch_size=10):
                    train_data.update(x)
                break
            except infobatch.InfoBatchWarning:
                raised += 1
    assert raised == 1
    assert train_data.epoch == 6


def test_a_plan_that_is_not_to_be_is_not_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    """The last step of a pace asks for the coming plan; then the left-out are looked at, and it is drawn anew."""
    method = infobatch.methods.kakurenbo(ratio=0.6, steps=(1.0, 1.0, 1.0, 1.0))
    data = infobatch.Pruned(TensorDataset(torch.arange(100)), method, 6)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    paced = infobatch.pace(torch.optim.lr_scheduler.StepLR(optimizer, 100), data, 10)
    for epoch in range(3):
        known = torch.zeros(100, dtype=torch.bool)
        known[45 * (epoch > 0) : 45 + 10 * (epoch > 0)] = True
        loss, confidence = torch.where(known, 0.01, 3.0), torch.where(known, 0.99, 0.01)
        for (at,) in infobatch.DataLoader(data, batch_size=10):
            data.update(loss[at], confidence=confidence[at])
            optimizer.step()
            paced.step()
        for _, at in data.hidden(batch_size=10):
            data.observe(loss[at], at, confidence=confidence[at])
    assert max(report.growth for report in data.history) < 2
    assert not recwarn.list
