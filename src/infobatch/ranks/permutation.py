"""Random orders of a billion samples that are computed instead of stored.

``Spread`` maps samples to places, so that any range of places holds a fair mix of the data set. ``blocks`` goes through
n places in random order, one block at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

LARGEST = 3_000_000_000  # products of two places must fit in 63 bits


class Spread:
    """A fixed one-to-one map between samples and places: place = sample * a mod n, with a near n / golden ratio.

    Neighbouring places hold samples from all over the data set, however it is sorted, because a and n are coprime.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        step = max(1, round(size * (math.sqrt(5) - 1) / 2))
        while math.gcd(step, size) != 1:
            step += 1
        self._step, self._back = step, pow(step, -1, size) if size > 1 else 0

    def place(self, sample: Tensor) -> Tensor:
        return (sample * self._step) % self.size

    def sample(self, place: Tensor) -> Tensor:
        return (place * self._back) % self.size


def blocks(size: int, key: int, length: int = 1 << 16) -> Iterator[Tensor]:
    """Yield all numbers below ``size`` once, in random order, in blocks of at most ``length``.

    A Feistel network permutes the numbers with enough bits, and those past the end are dropped. In six rounds each half
    is shifted three times by a hash of the other half, which is invertible, so no number is lost.
    """
    bits = max(2, (size - 1).bit_length())
    low, keys = bits // 2, _keys(key)
    for start in range(0, 1 << bits, length):
        number = torch.arange(start, min(start + length, 1 << bits), device="cpu")
        left, right = number >> low, number & ((1 << low) - 1)
        for even, odd in zip(keys[::2], keys[1::2], strict=True):
            left = (left + _hash(right, even)) & ((1 << (bits - low)) - 1)
            right = (right + _hash(left, odd)) & ((1 << low) - 1)
        number = (left << low) | right
        yield number[number < size]


def _keys(key: int) -> list[int]:
    """Return one key per round."""
    generator = torch.Generator("cpu").manual_seed(key)
    drawn: list[int] = torch.randint(1 << 62, (6,), generator=generator, device="cpu").tolist()
    return [value | 1 for value in drawn]


def _hash(value: Tensor, key: int) -> Tensor:
    """Mix into the upper bits and return them: multiplication carries only upwards. Overflow wraps, as intended."""
    mixed = (value + (key >> 7)) * key
    mixed = (mixed ^ (mixed >> 31)) * -0x61C8864680B583EB
    return (mixed >> 33) & 0x3FFFFFFF
