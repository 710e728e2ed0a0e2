"""The paper's rule and its relatives: prune below the mean loss, and weight the remaining samples up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from ...errors import InputError, message
from ..arguments import check_open_fraction, check_ratio
from ..cuts import ByCuts, Cut, Rounding, Stats, beyond, float32_ceil, nonempty, quantile
from ..method import RANK, Card, Method, Moment, Policy, after, all_of, register, until


@ByCuts
def below_mean(stats: Stats, moment: Moment, *, ratio: float, rounding: Rounding = "exact") -> list[Cut]:
    """Equation 3: W = {H < mean H}; each sample of W is pruned with probability r.

    The rule draws nothing: it returns one cut, from minus infinity up to the mean. ``float32_ceil`` rounds the mean up
    to a float32 number, below which the same scores lie, because scores are float32. ``Cut.keep`` then says how many
    samples of W stay and with which weight, and ``plan.stratified`` draws which.
    """
    del moment
    return nonempty(Cut(-math.inf, float32_ceil(stats.mean()), ratio, rounding=rounding))


@register(Card("the paper, eq. 3", "a share `ratio` of the samples with a loss below the mean"))
def infobatch(
    ratio: float = 0.5,
    delta: float = 0.875,
    *,
    warmup: int = 0,
    rescale: bool = True,
    rounding: Rounding = "exact",
) -> Method:
    """Prune ``ratio`` of the samples below the mean loss, weight the rest up, and end on full data: the paper's rule.

    Args:
        ratio: The share pruned among the samples below the mean (the paper's r).
        delta: Prune while epoch < delta * num_epochs; 1 turns annealing off.
        warmup: The number of full epochs at the start, beyond the first.
        rescale: False sets every weight to 1 (the paper's Table 4).
        rounding: "exact" keeps k = round((1-r)m) of m samples with weight m/k; "paper" keeps int((1-r)m) with weight
            1/(1-r), so up to one prunable sample is not made up for.

    Returns:
        The method, for ``infobatch.Pruned``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import infobatch
    >>> infobatch.methods.infobatch(ratio=0.5, delta=0.875)
    infobatch(ratio=0.5, delta=0.875)
    """
    ratio = check_ratio(ratio)
    if rounding not in ("exact", "paper"):
        raise InputError(message('rounding "exact" or "paper"', repr(rounding), "Leave it out for exact."))
    if not isinstance(rescale, bool):
        raise InputError(message("rescale as True or False", repr(rescale), "False turns the weights off."))
    policy = partial(below_mean, ratio=ratio, rounding=rounding)
    return annealed_method("infobatch", policy, delta, warmup, rescale, ratio=ratio, rounding=rounding)


@ByCuts
def below_mean_in_tiers(stats: Stats, moment: Moment, *, ratio: float, low_ratio: float, low_share: float) -> list[Cut]:
    """As ``below_mean``, but with ``low_ratio`` for the members of W among the lowest ``low_share`` of all samples."""
    del moment
    edge = float32_ceil(stats.mean())
    low = min(edge, quantile(stats, low_share))
    return nonempty(Cut(-math.inf, low, low_ratio), Cut(low, edge, ratio))


@register(Card("the papers", "75 % of the lowest fifth of the losses, 50 % from there up to the mean", RANK))
def tiers(
    ratio: float = 0.5,
    delta: float = 0.875,
    *,
    low_ratio: float = 0.75,
    low_share: float = 0.2,
    warmup: int = 0,
) -> Method:
    """Prune 75 % of the lowest fifth of the losses, and 50 % from there up to the mean: the papers' stronger setting.

    Args:
        ratio: The share pruned among the other samples below the mean.
        delta: Prune while epoch < delta * num_epochs.
        low_ratio: The share pruned among the lowest losses.
        low_share: The share of all samples that these lowest losses make up.
        warmup: The number of full epochs at the start, beyond the first.

    Returns:
        The method, for ``infobatch.Pruned``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import infobatch
    >>> infobatch.methods.tiers()
    tiers(ratio=0.5, low_ratio=0.75, low_share=0.2, delta=0.875)
    """
    ratio, low_ratio = check_ratio(ratio), check_ratio(low_ratio)
    low_share = check_open_fraction("low_share", low_share)
    policy = partial(below_mean_in_tiers, ratio=ratio, low_ratio=low_ratio, low_share=low_share)
    return annealed_method("tiers", policy, delta, warmup, ratio=ratio, low_ratio=low_ratio, low_share=low_share)


@ByCuts
def quantile_tiers(stats: Stats, moment: Moment, *, tiers: Sequence[tuple[float, float]]) -> list[Cut]:
    """Tiers as (upper quantile, ratio), ascending: [(0.2, 0.75), (0.85, 0.5)] always keeps the top 15 %."""
    del moment
    cuts, low = [], -math.inf
    for upper, ratio in tiers:
        high = max(low, quantile(stats, upper))
        cuts.append(Cut(low, high, ratio))
        low = high
    return nonempty(*cuts)


@register(Card("the author's script", "75 % of the losses below the 20th percentile, 50 % up to the 85th", RANK))
def author_tiers(delta: float = 0.875, *, warmup: int = 0) -> Method:
    """Prune 75 % below the 20th percentile of the losses and 50 % up to the 85th, as in the author's ImageNet script.

    Args:
        delta: Prune while epoch < delta * num_epochs.
        warmup: The number of full epochs at the start, beyond the first.

    Returns:
        The method, for ``infobatch.Pruned``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import infobatch
    >>> infobatch.methods.author_tiers(warmup=5)
    author_tiers(delta=0.875, warmup=5)
    """
    policy = partial(quantile_tiers, tiers=((0.2, 0.75), (0.85, 0.5)))
    return annealed_method("author_tiers", policy, delta, warmup)


@ByCuts
def beyond_mean(stats: Stats, moment: Moment, *, ratio: float) -> list[Cut]:
    """The other side, Table 5: each sample with H > mean H is pruned with probability r."""
    del moment
    return nonempty(Cut(beyond(stats.mean()), math.inf, ratio))


@register(Card("the paper, Table 5", "a share `ratio` of the samples with a loss above the mean"))
def above_mean(ratio: float = 0.5, delta: float = 0.875, *, warmup: int = 0) -> Method:
    """Prune among the samples above the mean loss: the opposite of the paper's rule (its Table 5).

    Args:
        ratio: The share pruned among the samples above the mean.
        delta: Prune while epoch < delta * num_epochs.
        warmup: The number of full epochs at the start, beyond the first.

    Returns:
        The method, for ``infobatch.Pruned``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import infobatch
    >>> infobatch.methods.above_mean(ratio=0.5)
    above_mean(ratio=0.5, delta=0.875)
    """
    ratio = check_ratio(ratio)
    return annealed_method("above_mean", partial(beyond_mean, ratio=ratio), delta, warmup, ratio=ratio)


def annealed_method(
    name: str, policy: Policy, delta: float, warmup: int, rescale: bool = True, **settings: Any
) -> Method:
    """Return a method that prunes from ``warmup`` up to ``delta`` of the run. Defaults are left out of its repr."""
    schedule = all_of(until(delta), after(warmup))
    settings |= {"delta": float(delta), "warmup": int(warmup), "rescale": rescale}
    defaults = {"warmup": 0, "rescale": True, "rounding": "exact"}
    shown = {key: value for key, value in settings.items() if defaults.get(key) != value}
    return Method(name, shown, policy, schedule, rescale, unbiased=rescale)
