"""Optimizers and learning-rate schedules by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, MultiStepLR, OneCycleLR

from ...errors import InputError, message
from .settings import Settings, near

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
"""Those whose step a CUDA graph can hold: learning rate and counters are tensors, and nothing looks at values."""


def make_optimizer(model: nn.Module, settings: Settings, *, captured: bool = False) -> Optimizer:
    if settings.optimizer not in OPTIMIZERS:
        raise InputError(message("an optimizer", repr(settings.optimizer), near(settings.optimizer, OPTIMIZERS)))
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    lr: Any = settings.lr
    extra: dict[str, Any] = {}
    if captured:
        lr = torch.tensor(settings.lr, device=parameters[0].device)
        extra = {"fused": True, "capturable": True}
    return OPTIMIZERS[settings.optimizer](parameters, settings, lr, **extra)


def make_scheduler(optimizer: Optimizer, settings: Settings, total_steps: int) -> LRScheduler:
    """One step a batch of full data; ``infobatch.pace`` maps the batches of a pruned run onto it.

    The momentum does not cycle with OneCycle: a captured step could not follow it.
    """
    if settings.schedule == "onecycle":
        share = max(settings.warmup, 1e-9)
        return OneCycleLR(optimizer, settings.lr, total_steps, pct_start=share, cycle_momentum=False)
    if settings.schedule == "cosine":
        return CosineAnnealingLR(optimizer, total_steps)
    if settings.schedule == "step":
        return MultiStepLR(optimizer, [round(share * total_steps) for share in settings.milestones], gamma=0.2)
    return LambdaLR(optimizer, _one)


def _one(step: int) -> float:
    del step
    return 1.0
