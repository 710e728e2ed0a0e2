"""What a sieve costs and saves, in FLOPs, counted by torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ..errors import InputError, message
from .rows import tensors_of
from .undisturbed import is_sharded, undisturbed, unwrap

STEP = 3.0
"""FLOPs of a training step over those of its forward pass, where they cannot be counted: the backward pass computes two
products for each one of the forward pass, or one where the input, as in the first layer, or the weight needs no
gradient."""


class Flops(float):
    """FLOPs of one forward pass of a network, per row; ``count_flops`` returns them.

    >>> from infobatch.sieve import Flops
    >>> flops = Flops(64.0, step=128.0)
    >>> flops, flops.step
    (64.0, 128.0)
    """

    step: float
    """FLOPs of a training step, forward and backward, per row."""

    def __new__(cls, forward: float, step: float | None = None) -> Flops:
        made = super().__new__(cls, forward)
        made.step = STEP * forward if step is None else step
        return made


def step_of(flops: float) -> float:
    """Return the FLOPs of a training step, from those of a forward pass."""
    return flops.step if isinstance(flops, Flops) else STEP * flops


def count_flops(net: nn.Module, *inputs: Any) -> Flops:
    """Return the FLOPs of one forward pass of a network per row of its input, without disturbing the network.

    Matrix products, convolutions and attention are counted, as in ``torch.utils.flop_counter``. The ``step`` of the
    result holds the FLOPs of a training step, forward and backward.

    Args:
        net: The network.
        inputs: What it is called with: at least one tensor of shape [batch, ...]. A few rows are enough.

    Raises:
        InputError: If there is no such tensor.

    >>> import torch
    >>> flops = count_flops(torch.nn.Linear(8, 4), torch.rand(16, 8))
    >>> flops, flops.step  # 2 * 8 * 4; and twice that: the first layer needs no gradient of its inputs
    (64.0, 128.0)
    """
    tensor = next((one for one in tensors_of(inputs) if one.ndim and len(one)), None)
    if tensor is None:
        expected, remedy = "inputs with a tensor of shape [batch, ...]", "Pass what the network is called with."
        raise InputError(message(expected, "none", remedy))
    return count_flops_of(net, lambda: net_of(net)(*inputs), tensor.device, len(tensor))


def count_flops_of(net: nn.Module, forward: Callable[[], Any], device: torch.device, rows: int) -> Flops:
    """Return the FLOPs of a function that runs a network once, and those of a training step, per row."""
    flops = count_forward(net, forward, device, rows)
    return Flops(flops, flops * step_over_forward(net, forward, device))


def count_forward(net: nn.Module, forward: Callable[[], Any], device: torch.device, rows: int) -> float:
    """Return the FLOPs of a function that runs a network once, per row."""
    with undisturbed(unwrap(net), device), uncompiled(), flop_counter() as counter:
        forward()
    return float(counter.get_total_flops()) / rows


def step_over_forward(net: nn.Module, forward: Callable[[], Any], device: torch.device) -> float:
    """Return the FLOPs of a training step over those of its forward pass; no gradient is kept.

    Where a step cannot be tried, as with FSDP, which gathers weights for it, this is ``STEP``.
    """
    parameters = [one for one in net.parameters() if one.requires_grad]
    if is_sharded(net) or not parameters:
        return STEP
    try:
        with undisturbed(unwrap(net), device), uncompiled(), flop_counter() as counter:
            with torch.enable_grad():
                outputs = [one.float().sum() for one in tensors_of(forward()) if one.requires_grad]
            flops = counter.get_total_flops()
            torch.autograd.grad(outputs, parameters, allow_unused=True)
    except Exception:  # whatever stands in the way of a gradient must not end the run
        return STEP
    return float(counter.get_total_flops() / flops) if flops else STEP


def flop_counter() -> FlopCounterMode:
    """Return torch's counter of FLOPs, which knows the fused attention of GPUs, and make it know that of CPUs."""
    aten = torch.ops.aten
    more = {
        aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
    }
    return FlopCounterMode(display=False, custom_mapping=more)


def _attention_flops(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any) -> int:
    """Count the two products of attention, given shapes; as in torch, a causal mask is not taken into account."""
    batch, heads, length, features = query
    return 2 * batch * heads * length * key[2] * (features + value[3])


def _attention_backward_flops(
    gradient: Sequence[int], query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any
) -> int:
    """Count the products of its backward pass: the scores once more, and the gradients of all four factors."""
    del gradient
    batch, heads, length, features = query
    return 2 * batch * heads * length * key[2] * (3 * features + 2 * value[3])


def uncompiled() -> AbstractContextManager[Any]:
    """Run compiled functions as they are: what the compiler meets while FLOPs are counted, it never compiles again."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def count_bytes(net: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> int:
    """Return the bytes of memory that a network holds: its parameters and buffers.

    Args:
        net: The network.
        optimizer: Its optimizer, if it trains: then its state, and the gradients, are counted as well.

    >>> import torch
    >>> net = torch.nn.Linear(8, 4)  # 36 parameters in float32
    >>> count_bytes(net), count_bytes(net, torch.optim.SGD(net.parameters()))
    (144, 288)
    """
    tensors = [*net.parameters(), *net.buffers()]
    if optimizer is not None:
        tensors += [one for group in optimizer.param_groups for one in group["params"]]  # as many gradients
        tensors += [one for entry in optimizer.state.values() for one in entry.values() if isinstance(one, Tensor)]
    return sum(one.numel() * one.element_size() for one in tensors)


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
    look_bytes: int = 0
    """Bytes of memory that the look holds: weights, and of a proxy gradients and its optimizer's state."""

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
        if self.look_bytes:
            text += f"; the look holds {self.look_bytes / 1e6:,.3g} MB"
        return text + (f"; {self.not_finite:,} looks were not finite" if self.not_finite else "")
