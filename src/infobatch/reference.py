"""The paper's equations, word for word: on plain lists, in the paper's letters, slow.

For readers, and for the tests, which hold the fast code against them. One epoch of five samples, r = 0.5:

>>> H = [0.1, 0.9, 0.2, 1.5, 0.3]
>>> P = pruning_probability(H, r=0.5)
>>> P
[0.5, 0.0, 0.5, 0.0, 0.5]
>>> [rescaling_factor(P_z) for P_z in P]
[2.0, 1.0, 2.0, 1.0, 2.0]

H are the scores, one per sample z of the data set D; t is the epoch, counted from 0, of C epochs in all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction


def initial_scores(size: int) -> list[float]:
    """Below equation 4: without a previous loss every score is 1, so the first epoch prunes no sample.

    >>> pruning_probability(initial_scores(3), r=0.5)
    [0.0, 0.0, 0.0]
    """
    return [1.0] * size


def mean_score(H: Sequence[float]) -> float:  # noqa: N803 (the paper's letter, here and below)
    """H̄, the mean of all scores.

    >>> mean_score([0.1] * 10)
    0.1
    """
    return math.fsum(H) / len(H)


def pruning_probability(H: Sequence[float], r: float) -> list[float]:  # noqa: N803
    """Equation 3: P(z) = r where H(z) < H̄, and 0 where H(z) ≥ H̄.

    >>> pruning_probability([1.0, 2.0, 3.0], r=0.25)
    [0.25, 0.0, 0.0]
    """
    threshold = mean_score(H)
    return [r if H_z < threshold else 0.0 for H_z in H]


def updated_scores(H: Sequence[float], L: Mapping[int, float]) -> list[float]:  # noqa: N803
    """Equation 4: the loss L(z) becomes the score of each z in S; all others keep the score they had.

    >>> updated_scores([1.0, 1.0, 1.0], {0: 0.2, 2: 0.7})
    [0.2, 1.0, 0.7]
    """
    return [L.get(z, H_z) for z, H_z in enumerate(H)]


def rescaling_factor(P_z: float) -> float:  # noqa: N803
    """Between equations 6 and 7: γ(z) = 1/(1 - P(z)), by which the loss of a kept sample is multiplied.

    >>> rescaling_factor(0.5), rescaling_factor(0.0)
    (2.0, 1.0)
    """
    return 1 / (1 - P_z)


def growth(P: Sequence[float]) -> float:  # noqa: N803
    """Equation 8: E[1/c] = |D| / Σ(1 - P(z)) ≃ |D|/|S|, by which the expected gradient of a step grows.

    >>> growth([0.5, 0.5, 0.0, 0.0])
    1.3333333333333333
    """
    return len(P) / math.fsum(1 - P_z for P_z in P)


def annealed_pruning_probability(H: Sequence[float], r: float, t: int, delta: float, C: int) -> list[float]:  # noqa: N803
    """Equation 10: as equation 3 while t < δ·C; after that no sample is pruned.

    δ is read as the decimal number it is written as: 0.28 · 25 is 7, as on paper, and not the 7.000000000000001 of
    floating point.

    >>> H = [1.0, 2.0, 3.0]
    >>> annealed_pruning_probability(H, 0.5, t=6, delta=0.28, C=25)
    [0.5, 0.0, 0.0]
    >>> annealed_pruning_probability(H, 0.5, t=7, delta=0.28, C=25)
    [0.0, 0.0, 0.0]
    """
    if t < Fraction(str(delta)) * C:
        return pruning_probability(H, r)
    return [0.0] * len(H)
