"""Run without leaving a trace: modes, buffers and random states are as they were, and nothing is compiled."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, MethodType, ModuleType
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@contextmanager
def restoring(restore: Callable[[], None]) -> Iterator[None]:
    """Call a function afterwards, and once more: an interrupt may have fallen into the first call."""
    try:
        try:
            yield
        finally:
            restore()
    finally:
        restore()


@contextmanager
def undisturbed(net: nn.Module, device: torch.device) -> Iterator[None]:
    """Compute without gradients; afterwards all modes, buffers and random states are as they were.

    A BatchNorm in training mode normalizes by the batch, as it will in the step, and learns nothing. Other modules in
    training mode work on copies of their buffers.
    """
    modes = [(module, module.training) for module in net.modules()]
    trained = [module for module, is_training in modes if is_training]
    norms = [module for module in trained if isinstance(module, _BatchNorm) and module.track_running_stats]
    synced = [module for module in trained if isinstance(module, nn.SyncBatchNorm)]
    buffers = [
        (module, name, buffer)
        for module in trained
        for name, buffer in module._buffers.items()
        if buffer is not None and (module in synced or not isinstance(module, _BatchNorm))
    ]

    def restore() -> None:
        for norm in norms:
            norm.track_running_stats = True
        for module, name, buffer in buffers:
            module._buffers[name] = buffer
        for module, is_training in modes:
            module.training = is_training

    with restoring(restore):
        for norm in norms:
            norm.track_running_stats = False  # then it neither reads nor writes its statistics, and nothing is copied
        for module, name, buffer in buffers:
            module._buffers[name] = None if module in synced else buffer.clone()
        for module in synced:
            module.training = False  # without statistics it still normalizes by its batch, but asks no other rank
        with torch.no_grad(), kept_random_state(device), uncached_autocast():
            yield


@contextmanager
def kept_modes(modules: list[nn.Module]) -> Iterator[None]:
    """Set modules back to the modes they had."""
    modes = [module.training for module in modules]

    def restore() -> None:
        for module, is_training in zip(modules, modes, strict=True):
            if module.training != is_training:
                module.training = is_training

    with restoring(restore):
        yield


def networks_of(look: Any, depth: int = 3) -> list[nn.Module]:
    """Return the networks that an object or a function refers to by its attributes, its closure or global names.

    >>> model = torch.nn.Linear(4, 3)
    >>> networks_of(lambda batch: model(batch))
    [Linear(in_features=4, out_features=3, bias=True)]
    """
    if isinstance(look, nn.Module):
        return [look]
    return [net for one in _references_of(look) for net in networks_of(one, depth - 1)] if depth else []


def _references_of(value: Any) -> list[Any]:
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, FunctionType):
        inside = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        named = [value.__globals__[name] for name in value.__code__.co_names if name in value.__globals__]
        return [*inside, *named, *(value.__defaults__ or ())]
    is_other = isinstance(value, (type, ModuleType)) or (getattr(type(value), "__module__", "") or "").startswith(
        "torch"
    )
    return [] if is_other else [*getattr(value, "__dict__", {}).values()]


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # the variable has no value yet
        return False


@contextmanager
def kept_random_state(device: torch.device, seed: int | None = None) -> Iterator[None]:
    """Restore torch's random states of the CPU and of the GPU in use afterwards. Inside a captured graph: do nothing.

    Args:
        device: The device of the batch.
        seed: Where to begin; None for the present states.
    """
    is_on_gpu = device.type == "cuda"
    if not is_on_gpu and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        device, is_on_gpu = torch.device("cuda", torch.cuda.current_device()), True  # the network may be there
    if is_on_gpu and torch.cuda.is_current_stream_capturing():  # a graph moves its random states by itself
        yield
        return
    on_cpu = torch.get_rng_state()
    on_gpu = torch.cuda.get_rng_state(device) if is_on_gpu else None

    def restore() -> None:
        torch.set_rng_state(on_cpu)
        if on_gpu is not None:
            torch.cuda.set_rng_state(on_gpu, device)

    with restoring(restore):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        if seed is not None and is_on_gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


@contextmanager
def uncached_autocast() -> Iterator[None]:
    """Let autocast cast weights anew: up to torch 2.9, a step would reuse those cast here, which have no gradient."""
    is_enabled = torch.is_autocast_cache_enabled()
    with restoring(lambda: torch.set_autocast_cache_enabled(is_enabled)):
        torch.set_autocast_cache_enabled(False)
        yield


def unwrap(net: nn.Module) -> nn.Module:
    """Return the network inside DistributedDataParallel, whose forward pass talks to other ranks."""
    inner = getattr(net, "_orig_mod", net)  # of torch.compile
    if isinstance(inner, nn.parallel.DistributedDataParallel):
        return unwrap(inner.module)
    return net


def is_sharded(net: nn.Module) -> bool:
    """Whether a forward pass gathers weights from other ranks: FSDP, as a wrapper or by ``fully_shard``."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # not imported for this: without it there is no such network
    kinds = () if fsdp is None else (fsdp.FullyShardedDataParallel, fsdp.FSDPModule)
    return any(isinstance(module, kinds) for module in net.modules())


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
