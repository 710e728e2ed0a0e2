"""Choices by a score: each sample has a number, and the largest are kept."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import budget
from .evidence import Evidence
from .selection import Selection


def random(evidence: Evidence, share: float, *, balanced: bool = False, seed: int = 0) -> Selection:
    """A uniformly random subset."""
    scores = torch.zeros(evidence.size, device=evidence.device)
    return keep_largest("random", scores, evidence, share, balanced, seed)


def keep_largest(
    method: str, scores: Tensor, evidence: Evidence, share: float, balanced: bool, seed: int, **own: Any
) -> Selection:
    """The selection of the largest scores, of all samples or of each class; ties by lot."""
    lot = budget.generator(seed)
    chosen = [
        members[budget.largest(scores[members], k, lot)]
        for members, k in budget.parts(evidence, share, balanced, lot)
    ]
    settings = {"share": float(share), "balanced": balanced, "seed": seed, **own}
    indices = torch.cat(chosen).sort().values
    return Selection(indices, evidence.size, method=method, settings=settings, scores=scores)
