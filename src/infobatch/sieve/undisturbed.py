"""Run without leaving a trace: modes, buffers and random states are as they were, and nothing is compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@contextmanager
def undisturbed(net: nn.Module, device: torch.device) -> Iterator[None]:
    """Compute without gradients; afterwards all modes, buffers and random states are as they were.

    A BatchNorm in training mode normalizes by the batch, as it will in the step, and learns nothing. Other modules in
    training mode work on copies of their buffers.
    """
    modes = [(module, module.training) for module in net.modules()]
    trained = [module for module, is_training in modes if is_training]
    norms = [module for module in trained if isinstance(module, _BatchNorm) and module.track_running_stats]
    originals = [
        (module, name, buffer)
        for module in trained
        if not isinstance(module, _BatchNorm)
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    for norm in norms:
        norm.track_running_stats = False  # then it neither reads nor writes its statistics, and nothing is copied
    for module, name, buffer in originals:
        module._buffers[name] = buffer.clone()
    try:
        with torch.no_grad(), kept_random_state(device):
            yield
    finally:
        for norm in norms:
            norm.track_running_stats = True
        for module, name, buffer in originals:
            module._buffers[name] = buffer
        for module, is_training in modes:
            module.training = is_training


@contextmanager
def kept_random_state(device: torch.device) -> Iterator[None]:
    """Restore torch's random states of the CPU and of this device afterwards. Inside a captured graph: do nothing."""
    is_cuda = device.type == "cuda"
    if is_cuda and torch.cuda.is_current_stream_capturing():  # a graph moves its random states by itself
        yield
        return
    on_cpu = torch.get_rng_state()
    on_device = torch.cuda.get_rng_state(device) if is_cuda else None
    try:
        yield
    finally:
        torch.set_rng_state(on_cpu)
        if on_device is not None:
            torch.cuda.set_rng_state(on_device, device)


def unwrap(net: nn.Module) -> nn.Module:
    """Return the network inside DistributedDataParallel, whose forward pass talks to other ranks."""
    return net.module if isinstance(net, nn.parallel.DistributedDataParallel) else net


def not_compiled(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Run a function as it is, also where it is called from code that ``torch.compile`` compiles.

    ``torch.compiler.disable`` as the decorator would load the compiler, more than a second, at import.
    """

    @functools.wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(function)(*args, **kwargs)  # type: ignore[no-untyped-call, no-any-return]
        return function(*args, **kwargs)

    return run
