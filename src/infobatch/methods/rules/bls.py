"""BLS (CVPR 2026): any method, with scores that need only the mean loss of a batch."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ...plan import Plan
from ..arguments import check_fraction
from ..memory import Columns, Memory
from ..method import Card, Method, Moment, Policy, ScoresView, Seen, check_method, register
from .infobatch import infobatch


@register(
    Card(
        "BLS, CVPR 2026",
        "as the inner method, by batches' mean losses",
        weights="as the inner method",
        needs="losses, and which samples share a batch",
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
