"""A rule of this package: keep each sample with a chance p that rises with its score, and weight 1/p."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial

import torch

from ...checks import is_number
from ...errors import InputError, message
from ...plan import Plan, full, shuffled_members
from ..arguments import check_open_fraction, check_ratio
from ..draws import budget, draw_in_cells, scale_chances, sort_rising
from ..method import SORT, Card, Method, Moment, ScoresView, register
from .infobatch import annealed_method


@register(Card("this package", "a share `ratio` of the samples, less likely the higher the loss", SORT))
def rising(
    ratio: float = 0.35, delta: float = 0.875, *, power: float = 0.5, floor: float = 0.25, warmup: int = 0
) -> Method:
    """Keep a sample with a chance p ~ H**power, at least ``floor``, and weight 1/p; (1-ratio)N stay in a pruned epoch.

    Args:
        ratio: The share of all samples pruned per epoch.
        delta: Prune while epoch < delta * num_epochs.
        power: 1 keeps in proportion to the score, 0 uniformly.
        floor: The lowest chance of any sample, at most 1 - ratio.
        warmup: The number of full epochs at the start, beyond the first.

    Returns:
        The method, for ``infobatch.Pruned``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import infobatch
    >>> infobatch.methods.rising(ratio=0.35)
    rising(ratio=0.35, power=0.5, floor=0.25, delta=0.875)
    """
    ratio, floor = check_ratio(ratio), check_open_fraction("floor", floor)
    if not is_number(power) or not 0 <= power <= 4:
        raise InputError(message("a power in [0, 4]", repr(power), "1 is in proportion to the score, 0 uniform."))
    if Fraction(repr(floor)) + Fraction(repr(ratio)) > 1:
        remedy = "No chance is below the floor, so at least that share stays: lower floor or ratio."
        raise InputError(message(f"a floor of at most 1 - ratio = {1 - ratio:.3g}", repr(floor), remedy))
    policy = partial(keep_by_chance, ratio=ratio, power=float(power), floor=floor)
    return annealed_method("rising", policy, delta, warmup, ratio=ratio, power=float(power), floor=floor)


def keep_by_chance(
    view: ScoresView, moment: Moment, generator: torch.Generator, *, ratio: float, power: float, floor: float
) -> Plan:
    """Keep with p ~ H**power, held between ``floor`` and 1, and weight 1/p.

    With the loss in place of the gradient norm, p ~ H minimizes the variance of the step. Samples with similar scores
    share one chance, so that weights are unbiased and sum to N in every plan; see ``draw_in_cells``.
    """
    scores = view.scores.double()
    known = ~torch.isnan(scores)
    count = int(known.sum())
    if not count:
        return full(view.size, moment.epoch, generator)
    stay = max(budget(view.size, ratio) - (view.size - count), math.ceil(floor * count), 1)
    lowest = min(0.0, float(scores[known].min()))  # with losses below zero, count from the lowest
    sizes = (scores[known] - lowest).clamp(min=0).pow(power)
    if not float(sizes.sum()) > 0:
        sizes = torch.ones_like(sizes)
    chances = scale_chances(sizes, stay, floor)
    members = known.nonzero().squeeze(1)
    order = sort_rising(chances, generator)
    sizes, number = (torch.tensor([each], device=chances.device) for each in (count, stay))
    table = (~known).double()
    table[members[order]] = draw_in_cells(chances[order], sizes, number, generator)
    all_chances = torch.ones_like(table).index_copy_(0, members, chances)
    indices = shuffled_members(table != 0, generator)
    return Plan(moment.epoch, indices, table.float(), chances=lambda: all_chances)
