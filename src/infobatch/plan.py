"""A plan: whom one epoch trains on, in which order and at what weight; and the ways to draw one.

Drawing is a pure function of its arguments. All randomness comes from the generator handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

Growth = Literal["loss", "lr", "none"]
"""What grows by |D|/|S| in the place of steps."""
GROWTHS: tuple[str, ...] = get_args(Growth)


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on that device. Only a copy to the CPU is waited for: else it could be read before it is there."""
    return tensor.to(device, non_blocking=device.type != "cpu")


class _Counted(Protocol):
    @property
    def size(self) -> int: ...
    @property
    def kept(self) -> int: ...


class Shares:
    """What follows from |D| and |S| alone, for plans of every kind."""

    @property
    def saved(self: _Counted) -> float:
        """The share of the data set left out."""
        return 1.0 - self.kept / self.size

    @property
    def growth(self: _Counted) -> float:
        """|D|/|S|: how much larger the expected gradient of a step is than on full data."""
        return self.size / self.kept


@dataclass(frozen=True, eq=False)
class Plan(Shares):
    """One epoch: the kept samples in training order, and the weight of every sample.

    ``table`` has one weight per sample of the data set, 0 for those left out. ``indices`` are positions in the
    data set. For an unbiased plan the weights sum to the size of the data set. ``table`` is as drawn: where it is
    not the loss that grows, the weights in use are these, scaled to mean 1 over the kept.
    """

    epoch: int
    indices: Tensor
    table: Tensor
    chosen: Tensor | None = None
    """Whom the method's own rule chose, where weights or guards then changed that, for methods that remember it."""
    chances: Callable[[], Tensor] | None = None
    """Each sample's chance to be in it, where lots were drawn: for guards that draw again. Not kept after that."""

    @property
    def size(self) -> int:
        """N, the number of samples in the data set."""
        return self.table.numel()

    @property
    def kept(self) -> int:
        """|S|, the number of samples this epoch trains on."""
        return self.indices.numel()

    @cached_property
    def weights(self) -> Tensor:
        """The weight of each kept sample, in the order of ``indices``, as drawn.

        Where it is not the loss that grows, the weights in use are these, scaled to mean 1.
        """
        return self.table.index_select(0, self.indices)

    @cached_property
    def weight_sum(self) -> float:
        """What the weights sum to: N, where they are rescaled."""
        return self.table.sum(dtype=torch.float64).item()

    @cached_property
    def effective_size(self) -> float:
        """Kish's effective sample size of the weights: ``kept`` when all are equal, less when they differ."""
        if self.kept == self.size and self.table.stride() == (0,):
            return float(self.size)
        total = squares = torch.zeros((), dtype=torch.float64, device=self.table.device)
        for block in torch.split(self.table, 1 << 20):  # in blocks, so that a cast never doubles the memory
            total = total + block.sum(dtype=torch.float64)
            squares = squares + block.double().square().sum()
        return float(total.square() / squares)

    def to(self, device: torch.device) -> Plan:
        chosen = None if self.chosen is None else moved(self.chosen, device)
        return Plan(self.epoch, moved(self.indices, device), moved(self.table, device), chosen)

    def __repr__(self) -> str:
        return f"Plan(epoch={self.epoch}, kept={self.kept} of {self.size}, saved={self.saved:.1%})"


@dataclass(frozen=True)
class ShardPlan(Shares):
    """One epoch of scores that lie in parts: the numbers of the whole. Whom it keeps is in each rank's own part.

    ``weights`` are the few weights there are on this rank, by level; level 0 is left out.
    """

    epoch: int
    size: int
    kept: int
    weights: tuple[float, ...]
    weight_sum: float
    effective_size: float
    noise: float

    @property
    def indices(self) -> Tensor:
        raise AttributeError("with shard_scores=True nobody holds the whole list: walk train_data.sampler")


def generator_for(seed: int, epoch: int, device: torch.device) -> torch.Generator:
    """The generator of one epoch. Mixed, so that seed 0 at epoch 1 has nothing in common with seed 1 at epoch 0."""
    z = (seed * 0x9E3779B97F4A7C15 + (epoch + 1) * 0xD1B54A32D192ED03) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return torch.Generator(device).manual_seed((z ^ (z >> 31)) % 2**63)


def shuffled(count: int, generator: torch.Generator) -> Tensor:
    """A random permutation. Drawn in 32 bits where they suffice: half the memory, and faster."""
    dtype = torch.int32 if count < 2**31 else torch.int64
    return torch.randperm(count, generator=generator, device=generator.device, dtype=dtype)


def shuffled_members(mask: Tensor, generator: torch.Generator) -> Tensor:
    """The positions of the True entries in random order."""
    members = mask.nonzero().squeeze(1)
    return members.index_select(0, shuffled(members.numel(), generator))


def full(size: int, epoch: int, generator: torch.Generator) -> Plan:
    """Every sample once, at weight 1."""
    ones = torch.ones(1, dtype=torch.float32, device=generator.device).expand(size)
    return Plan(epoch, shuffled(size, generator).long(), ones)


def choose(among: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """A uniformly random subset of exactly ``count`` of the True entries of ``among``, as a mask.

    Each entry draws a random byte and the ``count`` smallest are chosen, ties at the last byte by lot: no sort,
    no loop, one small read-back.
    """
    size = among.numel()
    words = torch.empty((size + 7) // 8, dtype=torch.int64, device=among.device)
    key = words.random_(-(2**63), None, generator=generator).view(torch.uint8)[:size]
    key.bitwise_or_(among.logical_not().view(torch.uint8).neg_())  # outsiders get the largest byte

    at_most = torch.bincount(key, minlength=256)
    at_most[255] -= size - torch.count_nonzero(among)
    below = [0, *at_most.cumsum(0).tolist()]
    last = next(byte for byte in range(256) if below[byte + 1] >= count)

    chosen = key.clone().lt_(last).view(torch.bool)  # bytes compared in place: vectorised, ten times faster
    tied = key.eq_(last).view(torch.bool).logical_and_(among).nonzero().squeeze(1)
    lot = torch.randperm(tied.numel(), generator=generator, device=among.device)
    chosen[tied[lot[: count - below[last]]]] = True
    return chosen


@dataclass(frozen=True, eq=False)
class Stratum:
    """A group of samples of which ``keep`` randomly chosen ones stay, each at ``weight``."""

    members: Tensor
    keep: int
    weight: float


def stratified(strata: Sequence[Stratum], size: int, epoch: int, generator: torch.Generator) -> Plan:
    """Thin each stratum at random to its exact count; everyone outside the strata stays at weight 1.

    The survivors are shuffled as a whole, after the choice. (Walking one permutation and keeping its first k
    prunable entries would choose the same sets, but leave the end of every epoch to the others alone.)
    """
    outside = torch.ones(size, dtype=torch.bool, device=generator.device)
    for stratum in strata:
        outside.logical_and_(stratum.members.logical_not())
    chosen = [choose(stratum.members, stratum.keep, generator) for stratum in strata]
    indices = shuffled_members(reduce(torch.logical_or, chosen, outside), generator)
    table = outside.float()
    for stratum, lucky in zip(strata, chosen, strict=True):
        table.add_(lucky, alpha=stratum.weight)  # 0 + weight: exact, and no branch for the processor to guess
    return Plan(epoch, indices, table, chances=partial(_chances, tuple(strata), outside))


def _chances(strata: tuple[Stratum, ...], outside: Tensor) -> Tensor:
    chances = outside.double()
    for stratum in strata:
        chances.add_(stratum.members, alpha=stratum.keep / int(torch.count_nonzero(stratum.members)))
    return chances
