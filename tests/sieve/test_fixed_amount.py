"""A fixed share holds in its part of the run, and to its end if it has none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from infobatch import InputError, Sieve
from infobatch.sieve import Fixed, hardest


def test_a_run_that_goes_on_for_longer_than_said_is_still_sieved() -> None:
    sieve = Sieve(lambda batch: batch, hardest(keep=0.5), num_steps=3)
    assert [len(sieve(torch.rand(8))[0]) for _ in range(6)] == [4] * 6


def test_what_ends_stays_ended() -> None:
    shares = [Fixed(0.5, begin=0.25, end=0.75).decide(step, step / 8).share for step in range(10)]
    assert shares == [1, 1, 0.5, 0.5, 0.5, 0.5, 1, 1, 1, 1]


@pytest.mark.parametrize("keep", [0, -0.5, 1.01, 2, torch.nan, "half", None])
def test_a_share_outside_of_0_to_1_is_refused_also_where_a_method_is_written_by_hand(keep: Any) -> None:
    with pytest.raises(InputError, match=r"keep in \(0, 1\]"):
        Fixed(keep)
