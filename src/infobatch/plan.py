"""A plan: which samples one epoch trains on, in which order and with which weights; how to draw and summarize one.

Drawing is a pure function of its arguments. All randomness comes from the generator passed in.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from typing import Literal

import torch
from torch import Tensor

from .errors import InputError, message

Compensation = Literal["none", "loss"]
"""What makes up for the missing steps of a pruned epoch: nothing, or a loss that grows by |D|/|S| as in the paper."""
SAMPLE = 1 << 16
"""The number of samples from which the noise of a plan is estimated."""


def move(tensor: Tensor, device: torch.device) -> Tensor:
    """Move a tensor. Only a copy to the CPU is waited for: it could be read before it has arrived."""
    return tensor.to(device, non_blocking=device.type != "cpu")


class PlanNumbers(ABC):
    """The numbers of one epoch's plan, whether its samples lie in one list or in the shards of many ranks."""

    epoch: int
    indices: Tensor
    """The kept samples in training order; not available for shards."""
    size: int
    """N, the number of samples in the data set."""
    kept: int
    """|S|, the number of samples this epoch trains on."""
    weight_sum: float
    """The sum of all weights: N, if they are rescaled."""
    effective_size: float
    """Kish's effective sample size of the weights: ``kept`` if all are equal, less if they differ."""

    @property
    def saved(self) -> float:
        """The share of the data set left out."""
        return 1.0 - self.kept / self.size

    @property
    def growth(self) -> float:
        """|D|/|S|: how much larger the expected gradient of a step is than on full data if the loss grows."""
        return self.size / self.kept

    def scale(self, compensate: Compensation) -> float:
        """Return the factor on the weights as drawn: unless the loss grows, their mean over the plan is 1.

        Args:
            compensate: What makes up for the missing steps of a pruned epoch, as for ``Pruned``.

        >>> import infobatch
        >>> infobatch.InfoBatch(range(100), num_epochs=8).plan().scale("none")
        1.0
        """
        return 1.0 if compensate == "loss" else self.kept / self.weight_sum

    def to(self, device: torch.device) -> PlanNumbers:
        """Return the plan on another device; numbers alone stay as they are."""
        del device
        return self

    def weights_of(self, indices: Tensor) -> Tensor:
        """Return the weights of these samples, scaled to mean 1 over the plan, as an adapter needs them.

        Unlike ``Pruned.batch_weights`` they are known before ``update``, and never grow with the loss.

        Args:
            indices: Positions in the data set, as from ``Pruned.batch_indices``.

        Raises:
            InputError: With ``shard_scores``: no rank holds the weights of all samples.

        >>> import infobatch
        >>> train_data = infobatch.InfoBatch(range(8), num_epochs=8)
        >>> for x in infobatch.DataLoader(train_data, batch_size=4):
        ...     weights = train_data.plan().weights_of(train_data.batch_indices)
        ...     loss = train_data.update(x / 8)
        >>> weights
        tensor([1., 1., 1., 1.])
        """
        del indices
        remedy = "Leave shard_scores out."
        raise InputError(message("a plan with the weights of all samples", "one in shards", remedy))


@dataclass(frozen=True, eq=False)
class Plan(PlanNumbers):
    """One epoch: the kept samples in training order, and the weight of every sample. ``Pruned.plan`` returns it.

    ``table`` has one weight per sample of the data set, 0 for those left out; ``indices`` are positions in the data
    set. The weights of an unbiased plan sum to the size of the data set. They are as drawn: unless the loss grows,
    the weights in use are scaled to mean 1 over the kept samples.

    >>> import torch, infobatch
    >>> plan = infobatch.Plan(epoch=2, indices=torch.tensor([3, 0]), table=torch.tensor([1.0, 0.0, 0.0, 3.0]))
    >>> plan
    Plan(epoch=2, kept=2 of 4, saved=50.0%)
    >>> plan.weights, plan.weight_sum, plan.growth
    (tensor([3., 1.]), 4.0, 2.0)
    >>> plan.saved, plan.effective_size
    (0.5, 1.6)
    """

    epoch: int
    indices: Tensor
    table: Tensor
    chosen: Tensor | None = None
    """The mask of what the method's own rule chose, if weights or guards changed it and the method remembers it."""
    chances: Callable[[], Tensor] | None = None
    """The chance of each sample, if the plan was drawn: for guards that draw again. Not kept after that."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", self.table.numel())
        object.__setattr__(self, "kept", self.indices.numel())

    @cached_property
    def weights(self) -> Tensor:
        """The weight of each kept sample as drawn, in the order of ``indices``."""
        return self.table.index_select(0, self.indices)

    def weights_of(self, indices: Tensor) -> Tensor:
        return self.table.index_select(0, move(indices, self.table.device)) * self.scale("none")

    @cached_property
    def weight_sum(self) -> float:  # type: ignore[override]
        """The sum of all weights: N, if they are rescaled."""
        return self.table.sum(dtype=torch.float64).item()

    @cached_property
    def effective_size(self) -> float:  # type: ignore[override]
        """Kish's effective sample size of the weights: ``kept`` if all are equal, less if they differ."""
        if self.kept == self.size and self.table.stride() == (0,):
            return float(self.size)
        total = squares = torch.zeros((), dtype=torch.float64, device=self.table.device)
        for block in torch.split(self.table, 1 << 20):  # in blocks, so that a cast never doubles the memory
            total = total + block.sum(dtype=torch.float64)
            squares = squares + block.double().square().sum()
        return float(total.square() / squares)

    def to(self, device: torch.device) -> Plan:
        """Return the plan on another device.

        Args:
            device: The device.

        >>> import torch, infobatch
        >>> infobatch.InfoBatch(range(100), num_epochs=8).plan().to(torch.device("cpu"))
        Plan(epoch=0, kept=100 of 100, saved=0.0%)
        """
        chosen = None if self.chosen is None else move(self.chosen, device)
        return Plan(self.epoch, move(self.indices, device), move(self.table, device), chosen)

    def __repr__(self) -> str:
        return f"Plan(epoch={self.epoch}, kept={self.kept} of {self.size}, saved={self.saved:.1%})"


def generator_for(seed: int, epoch: int, device: torch.device) -> torch.Generator:
    """Return the generator of one epoch, mixed so that seed 0, epoch 1 is unrelated to seed 1, epoch 0."""
    z = (seed * 0x9E3779B97F4A7C15 + (epoch + 1) * 0xD1B54A32D192ED03) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return torch.Generator(device).manual_seed((z ^ (z >> 31)) % 2**63)


def shuffled(count: int, generator: torch.Generator) -> Tensor:
    """Return a random permutation, drawn in 32 bits where they suffice: half the memory, and faster."""
    dtype = torch.int32 if count < 2**31 else torch.int64
    return torch.randperm(count, generator=generator, device=generator.device, dtype=dtype)


def shuffled_members(mask: Tensor, generator: torch.Generator) -> Tensor:
    """Return the positions of the True entries in random order."""
    members = mask.nonzero().squeeze(1)
    return members.index_select(0, shuffled(members.numel(), generator))


def full(size: int, epoch: int, generator: torch.Generator) -> Plan:
    """Return the plan of all samples, each with weight 1."""
    ones = torch.ones(1, dtype=torch.float32, device=generator.device).expand(size)
    return Plan(epoch, shuffled(size, generator).long(), ones)


def choose(among: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return the mask of a uniformly random subset of exactly ``count`` of the True entries of ``among``.

    Each entry draws a random byte and the ``count`` smallest are chosen, with ties at the last byte settled at random:
    no sort, no loop, one small read-back.
    """
    size = among.numel()
    words = torch.empty((size + 7) // 8, dtype=torch.int64, device=among.device)
    key = words.random_(-(2**63), None, generator=generator).view(torch.uint8)[:size]
    key.bitwise_or_(among.logical_not().view(torch.uint8).neg_())  # entries outside get the largest byte

    at_most = torch.bincount(key, minlength=256)
    at_most[255] -= size - torch.count_nonzero(among)
    below = [0, *at_most.cumsum(0).tolist()]
    last = next(byte for byte in range(256) if below[byte + 1] >= count)

    chosen = key.clone().lt_(last).view(torch.bool)  # bytes compared in place: vectorized, ten times faster
    tied = key.eq_(last).view(torch.bool).logical_and_(among).nonzero().squeeze(1)
    shuffle = torch.randperm(tied.numel(), generator=generator, device=among.device)
    chosen[tied[shuffle[: count - below[last]]]] = True
    return chosen


@dataclass(frozen=True, eq=False)
class Stratum:
    """A group of samples of which ``keep`` randomly chosen ones stay, each with ``weight``."""

    members: Tensor
    keep: int
    weight: float


def stratified(strata: Sequence[Stratum], size: int, epoch: int, generator: torch.Generator) -> Plan:
    """Thin each stratum at random to its exact count; all samples outside the strata stay with weight 1.

    The kept samples are shuffled together, after the choice. (Keeping the first k prunable entries of one permutation
    would choose the same sets, but leave the end of every epoch to the other samples.)

    Args:
        strata: The groups of samples to thin, which do not overlap.
        size: The number of samples in the data set.
        epoch: The epoch of the plan.
        generator: The source of randomness, on the device of the strata.

    Returns:
        The plan.
    """
    outside = torch.ones(size, dtype=torch.bool, device=generator.device)
    for stratum in strata:
        outside.logical_and_(stratum.members.logical_not())
    chosen = [choose(stratum.members, stratum.keep, generator) for stratum in strata]
    indices = shuffled_members(reduce(torch.logical_or, chosen, outside), generator)
    table = outside.float()
    for stratum, kept in zip(strata, chosen, strict=True):
        table.add_(kept, alpha=stratum.weight)  # 0 + weight: exact, and no branch for the processor to guess
    return Plan(epoch, indices, table, chances=partial(_chances, tuple(strata), outside))


def _chances(strata: tuple[Stratum, ...], outside: Tensor) -> Tensor:
    chances = outside.double()
    for stratum in strata:
        chances.add_(stratum.members, alpha=stratum.keep / int(torch.count_nonzero(stratum.members)))
    return chances


# ---- what a plan does, in numbers ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class EpochSummary:
    """One epoch: what was left out, and what that does to a step. ``Pruned.history`` has one of each finished epoch.

    Attributes:
        epoch: The number of the epoch, from 0.
        kept: How many samples it used.
        saved: The share of this epoch left out.
        saved_so_far: The share left out of all epochs up to this one.
        growth: |D|/|S|: the factor by which a step's expected gradient grows and its safe step size shrinks (B.4).
        effective_size: Kish's effective sample size of the weights.
        noise: The squared noise-to-signal ratio of a step compared with full data, estimated with losses in place of
            gradient norms. The paper's B.3 asks for at most 1. Uniform pruning has 1; pruning small gradients gives
            less. It says nothing if ``update`` was given scores that are not losses, such as normalized ones.
        not_finite: How many losses were NaN or infinite. They did not become scores.

    >>> import torch, infobatch
    >>> data = torch.utils.data.TensorDataset(torch.rand(100, 1))
    >>> train_data = infobatch.Pruned(data, infobatch.methods.random_star(ratio=0.25), num_epochs=8)
    >>> for (x,) in infobatch.DataLoader(train_data, batch_size=25):
    ...     loss = train_data.update(x.sum(1))
    >>> summary = train_data.history[-1]
    >>> summary.epoch, summary.kept, summary.saved, f"{summary.growth:.2f}"
    (0, 75, 0.25, '1.33')
    """

    epoch: int
    kept: int
    saved: float
    saved_so_far: float
    growth: float
    effective_size: float
    noise: float
    not_finite: int = 0


def summarize(plan: PlanNumbers, noise: float, planned: int) -> EpochSummary:
    """Summarize a plan; ``planned`` is the number of samples of all plans before it."""
    return EpochSummary(
        epoch=plan.epoch,
        kept=plan.kept,
        saved=plan.saved,
        saved_so_far=1.0 - (planned + plan.kept) / ((plan.epoch + 1) * plan.size),
        growth=plan.growth,
        effective_size=plan.effective_size,
        noise=noise,
    )


def estimate_noise(plan: Plan, scores: Tensor) -> float:
    """Equation 18 as a quotient: the mean of G²/(1-P) over D, against |D|/|S| times the mean of G².

    A kept sample of weight w stands for w samples, each with 1/(1-P) = w. Estimated on the first 65,536 samples of the
    shuffled plan, so exact for smaller ones. 1 if nothing is known yet.
    """
    some = plan.indices[:SAMPLE]
    weights = plan.table.index_select(0, some).double()
    mass = torch.nan_to_num(scores.index_select(0, some).double().square() * weights, nan=0.0)
    total, weighted = torch.stack([mass.sum(), (mass * weights).sum()]).tolist()
    return float(weighted / total / plan.growth) if total > 0 else 1.0
