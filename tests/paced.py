"""A training of which each step's learning rate is noted, and the schedulers it is made with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

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
        momentum: float = 0.9,
        loaded: dict[str, Any] | None = None,
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
        self.optimizer = torch.optim.SGD([self.parameter], lr=lr, momentum=momentum)
        if loaded is not None:
            self.optimizer.load_state_dict(loaded)
        self.inner = maker(self.optimizer, EPOCHS * steps) if maker else None
        given = (self.inner, self.data, steps) if self.inner else (self.optimizer, self.data)
        self.paced = infobatch.pace(*given)
        self.every, self.flush = every, flush
        self.steps: list[Step] = []

    def train(self, stop_after: int | None = None, until: int = EPOCHS) -> Run:
        for epoch in range(self.data.epoch, until):
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
