"""The lab's loop against a plain one written out here, and with every kind of setting."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from small_task import QUICK, facts, made
from torch import nn
from torch.nn import functional as F

import infobatch
from infobatch.lab.tasks.nets import make_net
from infobatch.lab.tasks.task import Arrays, Task
from infobatch.lab.train import loop
from infobatch.lab.train.optimizers import epoch_rates, make_optimizer, make_scheduler, rate_table
from infobatch.lab.train.settings import Settings


def test_the_loop_is_the_plain_loop() -> None:
    """Three lines, pace and a loader, written out: the same losses, weights, rates and answers."""
    task, settings = made(), Settings.of({**QUICK, "compensate": "loss", "label_smoothing": 0.1})
    assert isinstance(task.train, Arrays)
    assert isinstance(task.test, Arrays)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = make_net("mlp", (1, 6, 6), 3)
    data = infobatch.InfoBatch(task.train, 8, compensate="loss")
    optimizer = make_optimizer(model, settings)
    steps = math.ceil(150 / 16)
    scheduler = infobatch.pace(make_scheduler(optimizer, settings, 8 * steps), data, steps)
    rates, plans = [], []
    for _ in range(8):
        plans.append(data.plan())
        for images, labels in infobatch.DataLoader(data, batch_size=16):
            rates.append(scheduler.get_last_lr()[0])
            x = (images.float() - 0.3 * 255) * (1 / (torch.tensor([0.2]).reshape(-1, 1, 1) * 255))
            loss = data.update(F.cross_entropy(model(x), labels, reduction="none", label_smoothing=0.1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
    x = (task.test.inputs.float() - 0.3 * 255) / (0.2 * 255)
    metric = 100 * (model(x).argmax(1) == task.test.labels).double().mean().item()

    kept = [plan.kept for plan in plans]
    assert min(kept) < 150
    told = list(loop.run(settings, task=task))
    assert [fact["kept"] for fact in told if fact["kind"] == "epoch"] == kept
    assert told[-1]["metric"] == pytest.approx(metric)
    assert told[-1]["samples"] == sum(kept)
    lab = loop.Training(settings, task)
    table = rate_table(settings, 8 * steps)
    mine = []
    for plan in plans:
        mine += epoch_rates(table, plan, math.ceil(plan.kept / 16), 16, steps)
    assert mine == pytest.approx(rates)
    assert lab.full_steps == steps


@pytest.mark.parametrize("feed", ["resident", "loader"])
def test_a_last_batch_of_one_trains_with_batch_norm(feed: str) -> None:
    """Of the layers that would see one value, only the statistics are used; the others do as ever."""
    layers = [
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.Flatten(),
        nn.Linear(64, 8),
        nn.BatchNorm1d(8),
        nn.Linear(8, 3),
    ]
    told = facts(made(145, make_model=lambda: nn.Sequential(*layers)), model="task", method="full", feed=feed)
    assert told[-1]["samples"] == 8 * 145
    assert told[-1]["steps"] == 8 * 10
    assert int(layers[1].num_batches_tracked) == 80  # type: ignore[arg-type]
    assert int(layers[4].num_batches_tracked) == 72  # type: ignore[arg-type]
    assert told[-1]["metric"] > 60


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        {"optimizer": "adam", "lr": 0.001},
        {"optimizer": "adamw", "lr": 0.001},
        {"optimizer": "radam", "lr": 0.001},
        {"optimizer": "lars", "lr": 0.5},
        {"optimizer": "lamb", "lr": 0.01},
        {"schedule": "cosine"},
        {"schedule": "step"},
        {"schedule": "constant"},
        {"amp": "bf16", "model": "conv", "channels_last": True},
        {"nesterov": True},
        {"method": "rising:ratio=0.3"},
        {"method": "kakurenbo", "compensate": "loss"},
        {"method": "ies:bound=0.05"},
        {"method": "rcap:class_floor=0.5"},
        {"method": "bls:inner=seta,unbiased=0.3,annealed=0.9"},
        {"method": "dynamic_uncertainty:window=3,noise_guard=0.1"},
        {"method": "infobatch:averaged=0.3"},
    ],
    ids=str,
)
def test_every_setting_trains(given: dict[str, Any]) -> None:
    told = facts(**{**given, "epochs": 10})
    assert told[-1]["metric"] > 60, told[-1]["metric"]
    assert math.isfinite(told[-1]["test_loss"])


def test_a_task_of_floats_without_classes_and_with_its_own_net() -> None:
    inputs = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
    data = Arrays(inputs, inputs.sum(1))
    task = Task(
        "line",
        data,
        data,
        (),
        loss=lambda outputs, targets, smoothing: (outputs.squeeze(1) - targets).square(),
        score=lambda outputs, targets: ((outputs.squeeze(1) - targets).abs() < 0.5).float(),
        make_model=lambda: torch.nn.Linear(4, 1),
        metric="close, %",
        texts=lambda index: f"row {index}",
    )
    told = facts(task, model="task", epochs=20, lr=0.03)
    assert told[-1]["metric"] > 90
    assert told[-1]["class_metric"] is None
    assert told[-2]["most"][0]["text"].startswith("row ")
    assert "image" not in told[-2]["most"][0]


@pytest.mark.filterwarnings("ignore:.*not finite:infobatch.InfoBatchWarning")
def test_a_loss_that_is_not_finite_is_counted() -> None:
    def odd(outputs: torch.Tensor, labels: torch.Tensor, smoothing: float) -> torch.Tensor:
        losses = F.cross_entropy(outputs, labels, reduction="none")
        return torch.where(torch.arange(len(labels)) == 0, torch.nan, losses) if torch.is_grad_enabled() else losses

    told = facts(made(loss=odd), method="full", epochs=1)
    assert told[1]["not_finite"] == told[-1]["not_finite"] == 10  # one a batch
