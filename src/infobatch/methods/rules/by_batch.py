"""Methods that score a sample by its batch: BLS by the batch's mean loss, RePB by the loss relative to that mean."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ...plan import Plan
from ..arguments import check_fraction, check_ratio
from ..cuts import ByCuts, Cut, Stats, nonempty
from ..memory import Columns, Memory, visits
from ..method import DRAW, Card, Method, Moment, Policy, ScoresView, Seen, check_method, register, until
from .infobatch import infobatch

SHARED = "losses, and which samples share a batch"


@register(
    Card(
        "BLS, CVPR 2026",
        "as the inner method, by batches' mean losses",
        weights="as the inner method",
        needs=SHARED,
    )
)
def bls(inner: Method | None = None, *, share: float = 0.9) -> Method:
    """Run ``inner`` (InfoBatch by default) on a moving average of the mean loss of each sample's batch.

    Args:
        inner: The method that prunes.
        share: The weight of the old average: H <- share*H + (1-share)*b.

    Returns:
        The method, for ``infobatch.Pruned``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import infobatch
    >>> infobatch.methods.bls(infobatch.methods.tiers())
    bls(inner=tiers(ratio=0.5, low_ratio=0.75, low_share=0.2, delta=0.875), share=0.9)
    """
    inner, share = infobatch() if inner is None else check_method(inner), check_fraction("share", share)
    return replace(
        inner,
        name="bls",
        settings={"inner": inner, "share": share},
        policy=partial(_apply_to_batch_average, policy=inner.policy),
        memory=Memory({"batch": torch.nan}, partial(_average_batches, share=share)) | inner.memory,
        score="batch",
    )


def _apply_to_batch_average(view: ScoresView, moment: Moment, generator: torch.Generator, *, policy: Policy) -> Plan:
    return policy(Seen(view.memory["batch"], view.planned, view.memory), moment, generator)


def _average_batches(columns: Columns, losses: Tensor, context: Columns, *, share: float) -> Columns:
    del context
    old = columns["batch"]
    return {"batch": torch.where(torch.isnan(old), losses, share * old + (1 - share) * losses)}


@register(
    Card(
        "RePB, ICLR 2026 submission",
        "a share `ratio` of the samples below the mean of their last batch",
        DRAW,
        "epochs / times selected",
        SHARED,
    )
)
def repb(ratio: float = 0.5) -> Method:
    """Prune ``ratio`` of the samples with a loss below the mean of their last batch; weight rarely selected ones more.

    Args:
        ratio: The share pruned among those samples, in every epoch anew.

    Returns:
        The method, for ``infobatch.Pruned``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import infobatch
    >>> infobatch.methods.repb(ratio=0.5)
    repb(ratio=0.5)
    """
    ratio = check_ratio(ratio)
    policy = partial(weigh_by_visits, ratio=ratio)
    return Method("repb", {"ratio": ratio}, policy, until(1.0), unbiased=False, memory=visits(), score="relative")


@ByCuts
def below_batch(stats: Stats, moment: Moment, *, ratio: float) -> list[Cut]:
    """Scores are relative, so those below the mean of their batch are the negative ones."""
    del stats, moment
    return nonempty(Cut(-math.inf, 0.0, ratio))


def weigh_by_visits(view: ScoresView, moment: Moment, generator: torch.Generator, *, ratio: float) -> Plan:
    """Give each sample of the plan the weight E/N_i if it was in the plans of N_i of the E finished epochs."""
    plan = below_batch(view, moment, generator, ratio=ratio)
    weights = max(moment.epoch, 1) / view.memory["visits"].clamp(min=1)  # 1 in the first epoch
    return Plan(plan.epoch, plan.indices, torch.where(plan.table != 0, weights, 0.0))
