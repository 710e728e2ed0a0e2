"""What a sieve costs and saves, in FLOPs, counted by torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ..errors import InputError, message
from .rows import tensors_of
from .undisturbed import undisturbed, unwrap

STEP = 3.0
"""FLOPs of a training step over those of its forward pass: the backward pass computes two products for each of one."""


def count_flops(net: nn.Module, *inputs: Any) -> float:
    """Return the FLOPs of one forward pass of a network per row of its input, without disturbing the network.

    Matrix products, convolutions and attention are counted, as in ``torch.utils.flop_counter``. A training step costs
    three times as much.

    Args:
        net: The network.
        inputs: What it is called with: at least one tensor of shape [batch, ...].

    Raises:
        InputError: If there is no such tensor.

    >>> import torch
    >>> count_flops(torch.nn.Linear(8, 4), torch.rand(16, 8))  # 2 * 8 * 4
    64.0
    """
    tensor = next((one for one in tensors_of(inputs) if one.ndim and len(one)), None)
    if tensor is None:
        expected, remedy = "inputs with a tensor of shape [batch, ...]", "Pass what the network is called with."
        raise InputError(message(expected, "none", remedy))
    return count_flops_of(net, lambda: net_of(net)(*inputs), tensor.device, len(tensor))


def count_flops_of(net: nn.Module, forward: Callable[[], Any], device: torch.device, rows: int) -> float:
    """Return the FLOPs of a function that runs a network once, per row."""
    # A function that the compiler meets first, or anew, while FLOPs are counted would never be compiled again.
    has_compiler = "torch._dynamo" in sys.modules
    eager: Any = torch.compiler.set_stance("force_eager") if has_compiler else nullcontext()
    with undisturbed(unwrap(net), device), eager, FlopCounterMode(display=False) as counter:
        forward()
    return float(counter.get_total_flops()) / rows


def net_of(net: nn.Module) -> nn.Module:
    """Return the network inside DistributedDataParallel and torch.compile, whose operations can be counted."""
    inner = getattr(unwrap(net), "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else unwrap(net)


@dataclass(frozen=True)
class SieveSummary:
    """What a sieve has done so far, on this rank; ``Sieve.summary`` returns it.

    FLOPs of the model are unknown unless ``summary`` is told what its forward pass costs.

    >>> import torch, infobatch
    >>> sieve = infobatch.Sieve(lambda losses: losses, infobatch.sieve.hardest(keep=0.5))
    >>> kept, weight = sieve(torch.rand(32))
    >>> summary = sieve.summary(model_flops=1000.0)
    >>> summary.keep, summary.compute, summary.saved
    (0.5, 0.5, 0.5)
    """

    batches: int
    rows: int
    """Rows of all batches together."""
    kept: int
    """Rows passed on."""
    not_finite: int
    """Rows whose look gave NaN or an infinite loss."""
    looking: float
    """FLOPs of looking: forward passes of the look, and the training of a proxy."""
    full: float | None
    """FLOPs of the model for all rows, forward and backward."""

    @property
    def keep(self) -> float:
        """The share of the rows passed on."""
        return self.kept / self.rows if self.rows else 1.0

    @property
    def compute(self) -> float | None:
        """The compute, looking included, as a share of that of the model on all rows."""
        return None if not self.full else self.keep + self.looking / self.full

    @property
    def saved(self) -> float | None:
        """The share of the compute saved, net of looking; negative where looking costs more than it saves."""
        return None if self.compute is None else 1 - self.compute

    def __str__(self) -> str:
        text = f"kept {self.kept:,} of {self.rows:,} rows ({self.keep:.1%}) in {self.batches:,} batches"
        if self.compute is not None and self.saved is not None:
            looking = self.looking / (self.full or 1)
            text += f"; compute {self.compute:.1%} of full data, of which looking {looking:.1%}: saved {self.saved:.1%}"
        elif self.looking:
            text += f"; looking took {self.looking:.3g} FLOPs"
        return text + (f"; {self.not_finite:,} looks were not finite" if self.not_finite else "")
