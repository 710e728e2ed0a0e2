"""Optimizers and learning-rate schedules by name, and the learning rate and momentum of each step of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, MultiStepLR, OneCycleLR, PolynomialLR

from ...errors import InputError, message
from ...plan import Plan
from ..format import suggest
from .settings import Settings

Maker = Callable[..., Optimizer]


def _sgd(parameters: Iterable[Tensor], settings: Settings, lr: Any, **extra: Any) -> Optimizer:
    extra.pop("capturable", None)
    extra |= {"momentum": settings.momentum, "nesterov": settings.nesterov, "weight_decay": settings.weight_decay}
    return torch.optim.SGD(parameters, lr=lr, **extra)


def _of_torch(name: str) -> Maker:
    def make(parameters: Iterable[Tensor], settings: Settings, lr: Any, **extra: Any) -> Optimizer:
        if name == "RAdam":
            extra.pop("fused", None)
        maker: Maker = getattr(torch.optim, name)
        return maker(parameters, lr=lr, weight_decay=settings.weight_decay, **extra)

    return make


def _layerwise(name: str) -> Maker:
    def make(parameters: Iterable[Tensor], settings: Settings, lr: Any, **extra: Any) -> Optimizer:
        del extra
        try:
            import pytorch_optimizer
        except ImportError as error:
            raise InputError(
                message(f"pytorch_optimizer installed, for {name}", str(error), "pip install pytorch_optimizer")
            ) from error
        own = {"momentum": settings.momentum} if name == "LARS" else {}
        maker: Maker = getattr(pytorch_optimizer, name)
        return maker(parameters, lr=float(lr), weight_decay=settings.weight_decay, **own)

    return make


OPTIMIZERS: dict[str, Maker] = {
    "sgd": _sgd,
    "adam": _of_torch("Adam"),
    "adamw": _of_torch("AdamW"),
    "radam": _of_torch("RAdam"),
    "lars": _layerwise("LARS"),
    "lamb": _layerwise("Lamb"),
}
IN_A_GRAPH = frozenset({"sgd", "adam", "adamw", "radam"})
"""Optimizers whose step a CUDA graph can capture: learning rate and counters are tensors that the CPU never reads."""


POLY_POWER = 0.9


def make_optimizer(model: nn.Module, settings: Settings, *, captured: bool = False) -> Optimizer:
    """Build the optimizer that the settings name.

    Args:
        model: The net whose trainable parameters it updates.
        settings: Name, learning rate, momentum and weight decay.
        captured: Keep the learning rate in a tensor on the device, where a CUDA graph reads it.

    Returns:
        The optimizer.

    Raises:
        InputError: If the name is unknown or a package is missing.
    """
    if settings.optimizer not in OPTIMIZERS:
        raise InputError(message("an optimizer", repr(settings.optimizer), suggest(settings.optimizer, OPTIMIZERS)))
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    lr: Any = settings.lr
    extra: dict[str, Any] = {}
    if captured:
        lr = torch.tensor(settings.lr, device=parameters[0].device)
        extra = {"fused": True, "capturable": True}
    return OPTIMIZERS[settings.optimizer](parameters, settings, lr, **extra)


def make_scheduler(optimizer: Optimizer, settings: Settings, total_steps: int) -> LRScheduler:
    """Build the scheduler that the settings name, for ``total_steps`` steps on full data."""
    if settings.schedule == "onecycle":
        warmup = max(settings.warmup, 1e-9)
        cycle = settings.cycle_momentum
        return OneCycleLR(optimizer, settings.lr, total_steps, pct_start=warmup, cycle_momentum=cycle)
    if settings.schedule == "cosine":
        return CosineAnnealingLR(optimizer, total_steps)
    if settings.schedule == "poly":
        return PolynomialLR(optimizer, total_steps, power=POLY_POWER)
    if settings.schedule == "step":
        return MultiStepLR(optimizer, [round(share * total_steps) for share in settings.milestones], gamma=0.2)
    return LambdaLR(optimizer, _one)


def _one(step: int) -> float:
    del step
    return 1.0


def rate_table(settings: Settings, total_steps: int) -> list[float]:
    """Compute the learning rate of each step of a run on full data, with torch's own scheduler."""
    return _schedule_table(settings, total_steps, "lr")


def momentum_table(settings: Settings, total_steps: int) -> list[float]:
    """Compute the momentum of each step of a run on full data, with torch's own scheduler; empty if it is constant."""
    return _schedule_table(settings, total_steps, "momentum") if settings.cycle_momentum else []


def _schedule_table(settings: Settings, total_steps: int, name: str) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=settings.lr)
    scheduler = make_scheduler(optimizer, settings, total_steps)
    values = []
    for _ in range(total_steps):
        values.append(float(optimizer.param_groups[0][name]))
        optimizer.step()
        if len(values) < total_steps:
            scheduler.step()
    return values


def epoch_rates(table: list[float], plan: Plan, steps: int, batch_size: int, full_steps: int) -> list[float]:
    """Compute the learning rates (or momenta) of an epoch's first steps, as ``infobatch.pace`` would set them.

    Each step has the rate of the point that its data would have reached in an epoch on full data. They are known in
    advance because a captured step reads them from the device.

    Args:
        table: The rates (or momenta) of a run on full data.
        plan: The plan of the epoch.
        steps: How many steps the epoch takes.
        batch_size: Samples per step.
        full_steps: Steps of an epoch on full data.

    Returns:
        One rate per step.
    """
    start, is_full = plan.epoch * full_steps, plan.kept == plan.size
    offsets = (at if is_full else at * batch_size * full_steps // plan.kept for at in range(steps))
    return [table[min(start + offset, len(table) - 1)] for offset in offsets]


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the learning rate of all parameter groups; a tensor is filled in place, where a CUDA graph reads it."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def set_momentum(optimizer: Optimizer, momentum: float) -> None:
    """Set the momentum of all parameter groups, or the first beta where there are betas, as torch's OneCycleLR does.

    >>> optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
    >>> set_momentum(optimizer, 0.85)
    >>> optimizer.param_groups[0]["betas"]
    (0.85, 0.999)
    """
    for group in optimizer.param_groups:
        if "betas" in group:
            group["betas"] = (momentum, *group["betas"][1:])
        else:
            group["momentum"] = momentum
