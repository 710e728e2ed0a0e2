"""Diffusion in a sieve: which methods leave the distribution of the timesteps as it was drawn."""

from __future__ import annotations

import pytest
import torch
from lots import lot as draws
from torch import Tensor

import infobatch
from infobatch.adapters import diffusion_loss
from infobatch.sieve import SieveMethod, adaptive, below_mean, hardest, lot

BATCH, STEPS = 64, 200


def losses_of(batch: tuple[Tensor, Tensor]) -> Tensor:
    """The losses of a model that leaves more of the noise at early timesteps."""
    noise, t = batch
    return diffusion_loss(noise * (0.5 + t / 1000)[:, None], noise, t, None).loss


def early_share(method: SieveMethod) -> float:
    """Return the share of all weights that is on the first half of the timesteps."""
    generator, sieve = draws(), infobatch.Sieve(losses_of, method)
    early = total = 0.0
    for _ in range(STEPS):
        noise, t = torch.randn(BATCH, 4, generator=generator), torch.randint(500, (BATCH,), generator=generator)
        noise, t, weight = sieve(noise, t)
        sieve.reduce(losses_of((noise, t)))
        early += float(weight[t < 250].sum())
        total += float(weight.sum())
    return early / total


@pytest.mark.parametrize("method", [lot(keep=0.7), below_mean(keep=0.7)], ids=repr)
def test_weights_make_up_for_the_timesteps_left_out(method: SieveMethod) -> None:
    assert early_share(method) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("method", [hardest(keep=0.5), adaptive()], ids=repr)
def test_without_such_weights_timesteps_with_large_losses_are_preferred(method: SieveMethod) -> None:
    assert early_share(method) > 0.6
