"""A training step captured as a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...plan import Plan
from ..tasks.task import Task
from .batches import Batch, Draws, Resident, augments, draw_augmentations, is_resident, size_of
from .method_text import is_sieve
from .optimizers import IN_A_GRAPH
from .settings import Settings

if TYPE_CHECKING:
    from .loop import Training


class CapturedStep:
    """One training step as a CUDA graph. A counter on the device selects the next batch of the epoch."""

    def __init__(self, training: Training) -> None:
        assert isinstance(training.feed, Resident)
        self.training, device = training, training.device
        size, batch_size = len(training.visits), training.settings.batch_size
        self.indices = torch.zeros(size, dtype=torch.int64, device=device)
        draws = draw_augmentations(training.task, training.settings, 0, size, device)
        self.shifts, self.flips = draws.shifts, draws.flips
        self.rates = torch.zeros(training.full_steps, device=device)
        self.at = torch.zeros((), dtype=torch.int64, device=device)
        self.offsets = torch.arange(batch_size, device=device)
        plan = cast(Plan, training.train_data.plan())
        self.indices[: plan.kept] = plan.indices
        self.graph = self._capture()

    def stage(self, indices: Tensor, draws: Draws, rates: list[float], at: int) -> None:
        """Copy an epoch's plan, augmentations and learning rates to the device; start at batch ``at``."""
        self.indices[: len(indices)] = indices
        if self.shifts is not None and draws.shifts is not None:
            self.shifts[: len(indices)] = draws.shifts
        if self.flips is not None and draws.flips is not None:
            self.flips[: len(indices)] = draws.flips
        self.rates[: len(rates)] = torch.tensor(rates, device=self.rates.device)
        self.at.fill_(at)

    def last_batch(self, plan: Plan, draws: Draws, steps: int) -> Iterator[Batch]:
        """Yield the last batch, for an ordinary step: a short one is not worth a graph."""
        batch_size = len(self.offsets)
        places = slice((steps - 1) * batch_size, steps * batch_size)
        yield cast(Resident, self.training.feed).batch_of(plan.indices[places], draws.at(places))

    def _step(self) -> None:
        training = self.training
        places = self.at * len(self.offsets) + self.offsets
        draws = Draws(
            None if self.shifts is None else self.shifts.index_select(0, places),
            None if self.flips is None else self.flips.index_select(0, places),
        )
        for group in training.optimizer.param_groups:
            group["lr"].copy_(self.rates.index_select(0, self.at.reshape(1)).squeeze(0))
        training.step(cast(Resident, training.feed).batch_of(self.indices.index_select(0, places), draws))
        self.at.add_(1)

    def warm_up(self) -> None:
        """Take three steps on the first batch, as capturing requires; an epoch may have no third batch."""
        for _ in range(3):
            self.at.zero_()
            self._step()

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Warm up and capture, then restore everything the steps have changed."""
        training = self.training
        saved = [(tensor, tensor.detach().clone()) for tensor in _tensors(training.model, training.optimizer)]
        known = {id(tensor) for tensor, _ in saved}
        data, loss_sum = training.train_data.state_dict(), training.loss_sum.clone()
        random = torch.cuda.get_rng_state(training.device)
        training.model.train()
        side = torch.cuda.Stream(training.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(training.device))
        with torch.cuda.stream(side), cudnn_benchmark(True):
            self.warm_up()
        torch.cuda.current_stream(training.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        for parameter in training.model.parameters():
            parameter.grad = None  # so that the graph allocates the gradients
        with torch.cuda.graph(graph), cudnn_benchmark(True):
            self._step()
        with torch.no_grad():
            for tensor in _tensors(training.model, training.optimizer):
                if id(tensor) not in known:
                    tensor.zero_()  # optimizer state that the first step created
            for tensor, value in saved:
                tensor.copy_(value)
        training.loss_sum.copy_(loss_sum)
        training.train_data.load_state_dict(data)
        training.train_data.plan()
        torch.cuda.set_rng_state(random, training.device)
        return graph


@contextmanager
def cudnn_benchmark(enabled: bool) -> Iterator[None]:
    """Let cuDNN time its kernels for each new size inside the block, or not."""
    previous, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, enabled
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = previous


def _tensors(model: nn.Module, optimizer: Optimizer) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor))


def can_capture(task: Task, settings: Settings, device: torch.device) -> bool:
    """True if a step can be a CUDA graph: data and learning rate on the device, at least one full batch, no sieve.

    Momentum stays on the CPU: torch's fused optimizers take it as a number, so a captured step could not follow it.
    A task's own augmentation draws from a new generator for each batch, which a graph cannot follow.
    """
    return (
        device.type == "cuda"
        and settings.graph
        and not is_sieve(settings.method)
        and not augments(task, settings)
        and is_resident(task, settings)
        and size_of(task.train) >= settings.batch_size
        and settings.amp != "fp16"
        and settings.optimizer in IN_A_GRAPH
        and not settings.cycle_momentum
    )
