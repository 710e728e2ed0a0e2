"""Losses of every kind that a batch may have, for properties that hold for all of them."""

from __future__ import annotations

import hypothesis.strategies as st
import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
ORDINARY = st.floats(0, 20, width=32)
NUMBERS = {
    "ordinary": ORDINARY,
    "ties": st.sampled_from([0.0, 0.5, 1.0]),
    "zeros": st.just(0.0),
    "equal": st.just(0.1),
    "negative": st.floats(-10, 10, width=32),
    "tiny": st.floats(0, 1e-38),
    "huge": st.floats(-3e38, 3e38),
    "barred": st.one_of(ORDINARY, st.just(-float("inf"))),
    "all barred": st.just(-float("inf")),
}


@st.composite
def losses_of_a_batch(draw: st.DrawFn, largest: int = 24, kind: str | None = None) -> Tensor:
    """Draw the losses of a batch, finite or minus infinity."""
    numbers = NUMBERS[draw(st.sampled_from(sorted(NUMBERS))) if kind is None else kind]
    values = draw(st.lists(numbers, min_size=1, max_size=largest))
    dtype = draw(st.sampled_from(DTYPES))
    losses = torch.tensor(values, dtype=torch.float64)
    limit = torch.finfo(dtype).max
    return torch.where(losses > -torch.inf, losses.clamp(-limit, limit), losses).to(dtype)


@st.composite
def losses_and_k(draw: st.DrawFn, largest: int = 24, kind: str | None = None) -> tuple[Tensor, int]:
    """Draw losses and how many rows to keep, one and all included."""
    losses = draw(losses_of_a_batch(largest, kind))
    return losses, draw(st.integers(1, len(losses)))
