"""A small training run that records the learning rate of every step, and the schedulers it is used with."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch.optim import SGD, Optimizer
from torch.optim import lr_scheduler as lrs
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import TensorDataset

import infobatch

SIZE, EPOCHS, BATCH = 100, 8, 8
FULL_STEPS = 13  # steps of an epoch of 100 samples in batches of 8
TOTAL = EPOCHS * FULL_STEPS
Maker = Callable[[Optimizer, int], LRScheduler]
"""Builds a scheduler for an optimizer and a total number of steps."""


def warm_up_then_cosine(optimizer: Optimizer, total: int) -> LRScheduler:
    warmup = lrs.LinearLR(optimizer, start_factor=0.1, total_iters=10)
    cosine = lrs.CosineAnnealingLR(optimizer, T_max=total - 10)
    return lrs.SequentialLR(optimizer, [warmup, cosine], milestones=[10])


SCHEDULERS: dict[str, Maker] = {
    "OneCycleLR": lambda optimizer, total: lrs.OneCycleLR(optimizer, max_lr=0.5, total_steps=total + 1),
    "CosineAnnealingLR": lambda optimizer, total: lrs.CosineAnnealingLR(optimizer, T_max=total),
    "SequentialLR": warm_up_then_cosine,
    "StepLR": lambda optimizer, total: lrs.StepLR(optimizer, step_size=17, gamma=0.5),
    "MultiStepLR": lambda optimizer, total: lrs.MultiStepLR(optimizer, milestones=[20, 55, 56], gamma=0.1),
    "ExponentialLR": lambda optimizer, total: lrs.ExponentialLR(optimizer, gamma=0.97),
    "WarmRestarts": lambda optimizer, total: lrs.CosineAnnealingWarmRestarts(optimizer, T_0=20, T_mult=2),
    "LambdaLR": lambda optimizer, total: lrs.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
}
every_scheduler = pytest.mark.parametrize("maker", SCHEDULERS.values(), ids=SCHEDULERS)


def make_optimizer(lr: Any = 0.1, momentum: float = 0.9) -> SGD:
    return SGD([torch.nn.Parameter(torch.ones(1))], lr=lr, momentum=momentum)


class Step(NamedTuple):
    epoch: int
    lr: float
    loss: float


class Run:
    """A training run with gradients of zero that records every step."""

    def __init__(
        self,
        maker: Maker,
        *,
        ratio: float = 0.5,
        compensate: Any = "none",
        batch: int = BATCH,
        drop_last: bool = False,
        stock: bool = False,
        accumulate: int = 1,
        steps_on_remainder: bool = True,
        steps: int = FULL_STEPS,
        lr: Any = 0.1,
        momentum: float = 0.9,
        data_state: dict[str, Any] | None = None,
        optimizer_state: dict[str, Any] | None = None,
    ) -> None:
        """The states are loaded before the scheduler is built and paced."""
        losses = torch.rand(SIZE, generator=torch.Generator().manual_seed(3)).pow(3)
        method = infobatch.methods.infobatch(ratio)
        self.data = infobatch.Pruned(TensorDataset(losses), method, EPOCHS, compensate=compensate)
        if data_state is not None:
            self.data.load_state_dict(data_state)
        if stock:
            self.loader: Any = torch.utils.data.DataLoader(
                self.data, batch_size=batch, drop_last=drop_last, sampler=self.data.sampler
            )
        else:
            self.loader = infobatch.DataLoader(self.data, batch_size=batch, drop_last=drop_last)
        self.optimizer = make_optimizer(lr, momentum)
        if optimizer_state is not None:
            self.optimizer.load_state_dict(optimizer_state)
        self.scheduler = maker(self.optimizer, EPOCHS * steps)
        self.paced = infobatch.pace(self.scheduler, self.data, steps)
        self.accumulate, self.steps_on_remainder = accumulate, steps_on_remainder
        self.steps: list[Step] = []
        self.on_step: Callable[[int], None] | None = None
        """Called after each step with the number of steps so far."""

    def train(self, stop_after: int | None = None, until: int = EPOCHS) -> Run:
        (parameter,) = self.optimizer.param_groups[0]["params"]
        for epoch in range(self.data.epoch, until):
            for number, (losses,) in enumerate(self.loader, start=1):
                loss = self.data.update(losses)
                if number % self.accumulate == 0 or (self.steps_on_remainder and number == len(self.loader)):
                    parameter.grad = torch.zeros(1)
                    self.steps.append(Step(epoch, self.lr, float(loss)))
                    self.optimizer.step()
                    self.paced.step()
                    if self.on_step is not None:
                        self.on_step(len(self.steps))
                if len(self.steps) == stop_after:
                    return self
        return self

    @property
    def rates(self) -> list[float]:
        """The learning rate of each step."""
        return [step.lr for step in self.steps]

    @property
    def lr(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def state(self) -> dict[str, Any]:
        owners = {"data": self.data, "optimizer": self.optimizer, "paced": self.paced}
        return {name: owner.state_dict() for name, owner in owners.items()}

    def load(self, state: dict[str, Any]) -> None:
        self.data.load_state_dict(state["data"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.paced.load_state_dict(state["paced"])


@cache
def pruned_rates(maker: Maker) -> list[float]:
    """Return the learning rate of each step of an uninterrupted run with pruning."""
    return Run(maker).train().rates


def unpaced_rates(maker: Maker, total: int, lr: Any = 0.1) -> list[float]:
    """Return the rates of a scheduler without pace: before each step, and after the last."""
    optimizer = make_optimizer(lr)
    scheduler = maker(optimizer, total)
    rates = [float(optimizer.param_groups[0]["lr"])]
    for _ in range(total):
        optimizer.step()
        scheduler.step()
        rates.append(float(optimizer.param_groups[0]["lr"]))
    return rates


def collect_warnings(action: Callable[[], Any]) -> list[str]:
    """Return the texts of the package's warnings during an action."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", infobatch.InfoBatchWarning)
        action()
    return [str(each.message) for each in caught if issubclass(each.category, infobatch.InfoBatchWarning)]
