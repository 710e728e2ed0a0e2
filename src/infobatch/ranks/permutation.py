"""Orders of a billion samples that nobody writes down.

``Spread`` deals the samples out to places, so that any run of places holds a fair mix of the data set. ``blocks``
walks n places in a random order, a block at a time. Both compute where others would look up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

LARGEST = 3_000_000_000  # products of two places must fit in 63 bits


class Spread:
    """A fixed one-to-one map between samples and places: place = sample * a mod n, with a near n / golden ratio.

    Neighbouring places hold samples from all over the data set, whatever it is sorted by or however it repeats,
    because a and n share no divisor.
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
    """All numbers below ``size`` once, in a random order, in blocks of about ``length`` or less.

    A Feistel network permutes the numbers of as many bits as are needed; those past the end are passed over. Six
    rounds: each half is shifted three times by a hash of the other, which can be undone and so loses nothing.
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
    """One a round."""
    generator = torch.Generator("cpu").manual_seed(key)
    drawn: list[int] = torch.randint(1 << 62, (6,), generator=generator, device="cpu").tolist()
    return [value | 1 for value in drawn]


def _hash(value: Tensor, key: int) -> Tensor:
    """Mix to the upper bits and take them: multiplication carries upwards only. Wraps around, as intended."""
    mixed = (value + (key >> 7)) * key
    mixed = (mixed ^ (mixed >> 31)) * -0x61C8864680B583EB
    return (mixed >> 33) & 0x3FFFFFFF
