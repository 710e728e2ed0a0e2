"""What a sieve says it costs: FLOPs counted by hand, and those that torch counts in a whole training."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sieved_training import criterion, x_and_y
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from infobatch import Sieve
from infobatch.sieve import (
    Flops,
    Look,
    Own,
    Proxy,
    Reference,
    SieveMethod,
    adaptive,
    count_bytes,
    count_flops,
    hardest,
    lot,
)

SIZE, STEPS = 16, 12
FORWARD, STEP = 2 * (4 * 128 + 128 * 3), 2 * (2 * 4 * 128 + 3 * 128 * 3)
"""Of the model below: the first layer has no gradient of its input."""
SMALL, SMALL_STEP = 2 * (4 * 6 + 6 * 3), 2 * (2 * 4 * 6 + 3 * 6 * 3)


def net(width: int = 128) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3))


def test_by_hand() -> None:
    flops = count_flops(net(), torch.rand(8, 4))
    assert (flops, flops.step) == (FORWARD, STEP)
    sieve = Sieve(Own(net(), criterion), hardest(0.5))
    sieve(*x_and_y(SIZE, 0))
    assert sieve.summary().looking == SIZE * FORWARD
    assert sieve.summary().full == SIZE * STEP
    assert sieve.summary().saved == pytest.approx(0.5 - FORWARD / STEP)
    sieve = Sieve(Proxy(net(6), criterion, every=4), hardest(0.5))
    for step in range(6):
        sieve(*x_and_y(SIZE, step))
    assert sieve.summary().looking == SIZE * (2 * SMALL_STEP + 4 * SMALL)
    assert sieve.summary(flops).full == 6 * SIZE * STEP
    assert sieve.summary(float(flops)).full == 6 * SIZE * 3 * FORWARD  # all that one number tells


def test_what_needs_no_gradient_is_not_counted() -> None:
    """A frozen trunk has no backward pass, and the layer after it none for its input."""
    model = nn.Sequential(nn.Linear(4, 128).requires_grad_(False), nn.ReLU(), nn.Linear(128, 3))
    assert count_flops(model, torch.rand(8, 4)).step == 2 * (4 * 128 + 2 * 128 * 3)
    convolution = nn.Conv2d(3, 5, 3)
    assert count_flops(convolution, torch.rand(2, 3, 8, 8)).step == 2 * (2 * 3 * 9 * 5 * 36)


class Recomputed(nn.Module):
    """Its forward pass runs again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.inner, x, use_reentrant=False)


class Blocked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise NotImplementedError


class OneWay(nn.Module):
    """It has parameters, but no way back to them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Any:
        return Blocked.apply(self.inner(x))  # type: ignore[no-untyped-call]


def test_a_step_that_recomputes_costs_more_and_one_that_cannot_be_tried_three_forward_passes() -> None:
    recomputed = 2 * 4 * 128  # up to the last layer, whose input is then known
    assert count_flops(Recomputed(), torch.rand(8, 4)).step == STEP + recomputed
    flops = count_flops(OneWay(), torch.rand(8, 4))
    assert flops.step == 3 * flops > 0


def test_counting_leaves_no_trace() -> None:
    model, x = net(), torch.rand(8, 4)
    model[0].weight.grad = torch.ones(128, 4)
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    count_flops(model, x)
    Sieve(Own(model, criterion), hardest(0.5))(*x_and_y(SIZE, 0))
    assert all(map(torch.equal, before.values(), model.state_dict().values()))
    assert torch.equal(model[0].weight.grad, torch.ones(128, 4))
    assert model[3].weight.grad is None
    assert torch.equal(torch.get_rng_state(), random)


def test_flops_are_a_number_that_can_be_copied() -> None:
    flops = Flops(2.0, step=5.0)
    assert (copy.deepcopy(flops), copy.deepcopy(flops).step) == (2.0, 5.0)
    assert Flops(2.0).step == 6.0


def test_bytes_by_hand() -> None:
    """Of net(6): 51 + 12 parameters, as many gradients, and of BatchNorm 12 statistics and a count of 8 bytes."""
    sieve = Sieve(look := Proxy(net(6), criterion), hardest(0.5))
    weights, statistics = 4 * (4 * 6 + 6 + 2 * 6 + 6 * 3 + 3), 4 * 12 + 8
    assert sieve.summary().look_bytes == 2 * weights + statistics
    sieve(*x_and_y(SIZE, 0))
    adam = 2 * weights + 6 * 4  # two averages, and of each of six parameters a count
    assert sieve.summary().look_bytes == 2 * weights + statistics + adam
    assert "the look holds 0.00109 MB" in str(sieve.summary())
    both = Reference(net(6), criterion, of=look)
    assert Sieve(both, hardest(0.5)).summary().look_bytes == weights + statistics + look.held()
    for free in (Own(net(6), criterion), lambda batch: batch[0].sum(1)):
        assert Sieve(free, hardest(0.5)).summary().look_bytes == 0
    half = net(6).half()
    assert count_bytes(half) == weights // 2 + 2 * 12 + 8


LOOKS: dict[str, Callable[[nn.Module], Look]] = {
    "own": lambda model: Own(model, criterion),
    "proxy": lambda model: Proxy(net(6), criterion),
    "reference": lambda model: Reference(net(9), criterion, of=Own(model, criterion)),
    "reference of a proxy": lambda model: Reference(net(9), criterion, of=Proxy(net(6), criterion)),
}


@pytest.mark.parametrize("method", [hardest(0.5), lot(0.75), adaptive(0.55, every=3)], ids=lambda one: one.name)
@pytest.mark.parametrize("kind", LOOKS)
def test_all_flops_of_a_training_with_a_sieve(kind: str, method: SieveMethod) -> None:
    """Those that torch counts, less the counting of each network of the look."""
    model = net()
    look = LOOKS[kind](model)
    sieve = Sieve(look, method)
    x, y = x_and_y(SIZE, 0)
    flops = count_flops(model, x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    counted = 0
    if "own" in (kind, method.name) or kind == "reference":
        counted += SIZE * FORWARD + 8 * STEP
    if "proxy" in kind:
        counted += SIZE * (SMALL + SMALL_STEP)
    if "reference" in kind:
        counted += SIZE * 2 * (4 * 9 + 9 * 3)
    with FlopCounterMode(display=False) as counter:
        for step in range(STEPS):
            x, y, _ = sieve(*x_and_y(SIZE, step))
            loss = sieve.reduce(criterion(model(x), y))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    summary = sieve.summary(flops)
    assert summary.full is not None
    assert summary.compute is not None
    assert counter.get_total_flops() - counted == pytest.approx(summary.compute * summary.full, rel=1e-12)
    assert summary.full == STEPS * SIZE * STEP
