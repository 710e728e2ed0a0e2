"""What an epoch's plan did, in numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..plan import Plan, PlanNumbers

SAMPLE = 1 << 16


@dataclass(frozen=True)
class EpochSummary:
    """One epoch: what was left out, and what that does to a step."""

    epoch: int
    kept: int
    saved: float
    """The share of this epoch left out."""
    saved_so_far: float
    """The share left out of all epochs up to this one."""
    growth: float
    """|D|/|S|: the factor by which a step's expected gradient grows and its safe step size shrinks (B.4)."""
    effective_size: float
    """Kish's effective sample size of the weights."""
    noise: float
    """The squared noise-to-signal ratio of a step compared with full data, with losses for gradient sizes. The paper's
    B.3 asks for at most 1, which is what uniform pruning has; pruning small gradients gives less."""
    not_finite: int = 0
    """How many losses were NaN or infinite. They did not become scores."""


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
