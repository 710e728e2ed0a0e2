"""FLOPs of attention, forward and backward, compared with products counted by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from infobatch.sieve import count_flops

LENGTH, WIDTH, HEADS = 12, 16, 4


class Attention(nn.Module):
    """Self-attention with as many or fewer heads of keys and values than of queries."""

    def __init__(self, groups: int, fused: bool, causal: bool) -> None:
        super().__init__()
        self.groups, self.fused, self.causal = groups, fused, causal
        self.project = nn.Linear(WIDTH, WIDTH + 2 * WIDTH * groups // HEADS, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.project(x).unflatten(2, (-1, WIDTH // HEADS)).transpose(1, 2)
        q, k, v = heads.split([HEADS, self.groups, self.groups], dim=1)
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=self.groups < HEADS)
        k, v = (one.repeat_interleave(HEADS // self.groups, dim=1) for one in (k, v))
        return (q @ k.transpose(2, 3) / 2).softmax(3) @ v


@pytest.mark.parametrize("groups", [HEADS, HEADS // 2])
@pytest.mark.parametrize(("fused", "causal"), [(False, False), (True, False), (True, True)])
def test_attention_is_counted_fused_or_not(groups: int, fused: bool, causal: bool) -> None:
    linear = 2 * LENGTH * WIDTH * (WIDTH + 2 * WIDTH * groups // HEADS)
    products = 2 * 2 * HEADS * LENGTH * LENGTH * (WIDTH // HEADS)
    found = count_flops(Attention(groups, fused, causal), torch.randn(8, LENGTH, WIDTH))
    assert found == linear + products
    scores_again = products / 2 if fused else 0  # which a fused backward pass computes once more
    # the input of the linear layer needs no gradient, all four factors of the products do
    assert found.step == pytest.approx(2 * linear + 3 * products + scores_again)
