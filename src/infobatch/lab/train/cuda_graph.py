"""A training step as a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...plan import Plan
from ..tasks.task import Task
from .batches import Batch, Draws, Resident, draws, resident, size_of
from .optimizers import IN_A_GRAPH
from .settings import Settings

if TYPE_CHECKING:
    from .loop import Training


class Captured:
    """One training step as a CUDA graph. A counter on the device tells it which batch of the epoch is next."""

    def __init__(self, training: Training) -> None:
        assert isinstance(training.feed, Resident)
        self.training, device = training, training.device
        size, batch = len(training.visits), training.settings.batch_size
        self.indices = torch.zeros(size, dtype=torch.int64, device=device)
        drawn = draws(training.task, training.settings, 0, size, device)
        self.shifts, self.flips = drawn.shifts, drawn.flips
        self.rates = torch.zeros(training.full_steps, device=device)
        self.at = torch.zeros((), dtype=torch.int64, device=device)
        self.span = torch.arange(batch, device=device)
        plan = cast(Plan, training.train_data.plan())
        self.indices[: plan.kept] = plan.indices
        self.graph = self._capture()

    def stage(self, indices: Tensor, draw: Draws, rates: list[float], at: int) -> None:
        self.indices[: len(indices)] = indices
        if self.shifts is not None and draw.shifts is not None:
            self.shifts[: len(indices)] = draw.shifts
        if self.flips is not None and draw.flips is not None:
            self.flips[: len(indices)] = draw.flips
        self.rates[: len(rates)] = torch.tensor(rates, device=self.rates.device)
        self.at.fill_(at)

    def tail(self, plan: Plan, draw: Draws, steps: int) -> Iterator[Batch]:
        """The last batch, where it is smaller than the others and a graph of its own would not pay."""
        batch = len(self.span)
        where = slice((steps - 1) * batch, steps * batch)
        yield cast(Resident, self.training.feed).batch_of(plan.indices[where], draw.at(where))

    def _body(self) -> None:
        training = self.training
        where = self.at * len(self.span) + self.span
        draw = Draws(
            None if self.shifts is None else self.shifts.index_select(0, where),
            None if self.flips is None else self.flips.index_select(0, where),
        )
        for group in training.optimizer.param_groups:
            group["lr"].copy_(self.rates.index_select(0, self.at.reshape(1)).squeeze(0))
        training.step(cast(Resident, training.feed).batch_of(self.indices.index_select(0, where), draw))
        self.at.add_(1)

    def warm_up(self) -> None:
        for _ in range(3):
            self.at.zero_()  # the first batch each time: there may be no third
            self._body()

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Warm up, capture, and leave everything as it was."""
        training = self.training
        before = [(tensor, tensor.detach().clone()) for tensor in _tensors(training.model, training.optimizer)]
        known = {id(tensor) for tensor, _ in before}
        data, loss = training.train_data.state_dict(), training.loss_sum.clone()
        random = torch.cuda.get_rng_state(training.device)
        training.model.train()
        side = torch.cuda.Stream(training.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(training.device))
        with torch.cuda.stream(side), tuning(True):
            self.warm_up()
        torch.cuda.current_stream(training.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        for parameter in training.model.parameters():
            parameter.grad = None  # the graph shall own them
        with torch.cuda.graph(graph), tuning(True):
            self._body()
        with torch.no_grad():
            for tensor in _tensors(training.model, training.optimizer):
                if id(tensor) not in known:
                    tensor.zero_()  # made by the first step: a moment that starts at nothing
            for tensor, value in before:
                tensor.copy_(value)
        training.loss_sum.copy_(loss)
        training.train_data.load_state_dict(data)
        training.train_data.plan()
        torch.cuda.set_rng_state(random, training.device)
        return graph


@contextmanager
def tuning(on: bool) -> Iterator[None]:
    """Whether cuDNN tries out which kernel is the fastest for a size it has not seen."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, on
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _tensors(model: nn.Module, optimizer: Optimizer) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor))


def capturable(task: Task, settings: Settings, device: torch.device) -> bool:
    """Whether a step can be a CUDA graph: data and rate on the device, and at least one whole batch."""
    return (
        device.type == "cuda"
        and settings.graph
        and resident(task, settings)
        and size_of(task.train) >= settings.batch_size
        and settings.amp != "fp16"
        and settings.optimizer in IN_A_GRAPH
    )
