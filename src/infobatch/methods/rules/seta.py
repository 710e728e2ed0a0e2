"""SeTa (CVPR 2025): a random part of the data, and of that a window of loss groups that slides from easy to hard."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ...plan import Plan, choose
from ..arguments import check_fraction, check_positive, check_ratio
from ..draws import budget, plan_of
from ..method import SORT, Card, Method, Moment, ScoresView, published, register, until


@register(Card("SeTa, CVPR 2025", "loss groups outside a sliding window, and a tenth at random", SORT, "all 1"))
def seta(ratio: float = 0.1, *, groups: int = 5, share: float = 0.9, delta: float = 0.875) -> Method:
    """Keep a random (1-ratio)N, and of that a window of loss groups that slides from easy to hard.

    Args:
        ratio: The share pruned at random.
        groups: The number of groups, by k-means over the losses.
        share: The share of the groups inside the window.
        delta: Slide while epoch < delta * num_epochs; after that all groups are in.

    Returns:
        The method, for ``infobatch.Pruned``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import infobatch
    >>> infobatch.methods.seta(ratio=0.1)
    seta(ratio=0.1, groups=5, share=0.9, delta=0.875)
    """
    ratio, share, groups = check_ratio(ratio), check_fraction("share", share), check_positive("groups", groups)
    until(delta)
    delta = float(delta)
    policy = partial(keep_window, ratio=ratio, groups=groups, share=share, delta=delta)
    settings = {"ratio": ratio, "groups": groups, "share": share, "delta": delta}
    return published("seta", settings, policy, until(1.0))


def keep_window(
    view: ScoresView,
    moment: Moment,
    generator: torch.Generator,
    *,
    ratio: float,
    groups: int,
    share: float,
    delta: float,
) -> Plan:
    drawn = choose(torch.ones_like(view.scores, dtype=torch.bool), budget(view.size, ratio), generator)
    unknown = torch.isnan(view.scores)
    if not until(delta)(moment) or bool(unknown.all()):
        return plan_of(drawn | unknown, moment.epoch, generator)
    group = kmeans_1d(view.scores, groups)
    width = max(1, round(groups * share))
    start = moment.epoch % (groups - width + 1)
    inside = (group >= start) & (group < start + width)
    mask = (drawn & inside) | unknown
    return plan_of(mask if bool(mask.any()) else drawn, moment.epoch, generator)


def kmeans_1d(values: Tensor, groups: int, rounds: int = 100) -> Tensor:
    """Return the group of each number by Lloyd's algorithm from equal quantiles, 0 for the lowest; -1 for NaN."""
    known = ~torch.isnan(values)
    ordered = values[known].double().sort().values
    count = ordered.numel()
    if not count:
        return torch.full_like(values, -1, dtype=torch.int64)
    sums = torch.cat([ordered.new_zeros(1), ordered.cumsum(0)])
    cuts = torch.linspace(0, count, groups + 1, dtype=torch.float64, device=values.device).round().long()
    for _ in range(rounds):
        sizes = cuts.diff()
        means = torch.where(sizes > 0, sums[cuts].diff() / sizes.clamp(min=1), -torch.inf)
        means = torch.cummax(means, 0).values  # an empty group stands where the one before it does
        middles = (means[1:] + means[:-1]) / 2
        inner = torch.searchsorted(ordered, middles)
        new = torch.cat([cuts[:1], inner, cuts[-1:]])
        if torch.equal(new, cuts):
            break
        cuts = new
    bounds = ordered[cuts[1:-1].clamp(max=count - 1)]
    bounds = torch.where(cuts[1:-1] >= count, torch.inf, bounds)
    group = torch.searchsorted(bounds, values.double().nan_to_num(), right=True)
    return torch.where(known, group, -1)
