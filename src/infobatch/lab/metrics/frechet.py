"""The Frechet distance between two sets of features, each taken as a normal distribution.

It is no FID: that name belongs to the features of one network, whose weights are not part of this package. Values from
different feature networks, or from different numbers of samples, cannot be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ... import checks
from ...errors import InputError, installing, message
from .metric import NothingMeasuredError


class FrechetDistance:
    """|m1 - m2|^2 + trace(C1 + C2 - 2 (C1 C2)^(1/2)) of the features of outputs and targets; lower is better.

    Args:
        features: Maps a batch to features [N, d]; None if outputs and targets are features already.
        margin: By how much it may rise without harm.

    >>> from infobatch.lab.metrics import FrechetDistance
    >>> metric = FrechetDistance(margin=0.1)
    >>> metric.update(torch.tensor([[0.0], [2.0]]), torch.tensor([[3.0], [5.0]]))  # same spread, means 1 and 4
    >>> round(metric.compute(), 6)
    9.0
    """

    name, unit, higher_is_better = "Frechet distance", "", False

    def __init__(self, margin: float, features: Callable[[Any], Tensor] | None = None) -> None:
        self.margin, self.features = margin, features
        self.reset()

    def reset(self) -> None:
        """See Metric."""
        self._sides: list[_Moments] = [_Moments(), _Moments()]

    @torch.no_grad()
    def update(self, outputs: Any, targets: Any) -> None:
        """Take in the features of a batch of outputs, and of a batch of targets.

        Raises:
            InputError: If the features do not have the shape [N, d].
        """
        for side, batch in zip(self._sides, (outputs, targets), strict=True):
            found = batch if self.features is None else self.features(batch)
            if not isinstance(found, Tensor) or found.dim() != 2:
                remedy = "Pool over space and flatten, as in features.mean((2, 3))."
                raise InputError(message("features of shape [N, d]", checks.describe(found), remedy))
            side.add(found.double())

    def compute(self) -> float:
        """See Metric.

        Raises:
            InputError: If there are fewer than two samples on a side, or scipy is missing.
        """
        try:
            from scipy.linalg import sqrtm
        except ImportError as error:
            raise InputError(message("scipy for matrix square roots", str(error), installing("lab"))) from error
        if any(side.count < 2 for side in self._sides):
            got = " and ".join(str(side.count) for side in self._sides)
            raise NothingMeasuredError(
                message("at least two samples to measure a spread on", got, "Use a larger test set.")
            )
        (mean, spread), (other_mean, other_spread) = (side.mean_and_covariance() for side in self._sides)
        root = torch.as_tensor(sqrtm((spread @ other_spread).numpy()).real)
        trace = float(spread.trace() + other_spread.trace() - 2 * root.trace())
        return max(0.0, float((mean - other_mean).square().sum()) + trace)


class _Moments:
    """Count, sum and products of features, added up batch by batch around the first sample."""

    def __init__(self) -> None:
        self.count = 0
        self.origin = self.sum = self.products = torch.zeros(0, dtype=torch.float64)

    def add(self, features: Tensor) -> None:
        if not self.count:
            self.origin, size = features[0], features.shape[1]
            self.sum, self.products = features.new_zeros(size), features.new_zeros(size, size)
        shifted = features - self.origin  # products of large numbers would lose the spread between them
        self.sum, self.products = self.sum + shifted.sum(0), self.products + shifted.T @ shifted
        self.count += len(features)

    def mean_and_covariance(self) -> tuple[Tensor, Tensor]:
        shift = self.sum / self.count
        covariance = (self.products - self.count * torch.outer(shift, shift)) / (self.count - 1)
        return (self.origin + shift).cpu(), covariance.cpu()
