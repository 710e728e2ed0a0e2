"""Any method with a difference: unbiased weights, annealing, averaged scores, guards.

>>> from infobatch import methods, variations
>>> variations.annealed(variations.unbiased(methods.seta()))
seta(ratio=0.1, groups=5, share=0.9, delta=0.875, unbiased=0.25, annealed=0.875)
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import partial

import torch
from torch import Tensor

from ..errors import InputError, message
from ..plan import Plan, Stratum, shuffled_members, stratified
from .arguments import check_fraction, check_labels, check_open_fraction, check_positive, fingerprint_labels
from .draws import apportion, draw_in_cells, first_of_each, sort_rising, sum_by_class
from .memory import Columns, Memory
from .method import Method, Moment, Policy, ScoresView, Seen, all_of, check_method, until

__all__ = ["annealed", "averaged", "class_floor", "noise_guard", "plain", "unbiased"]

LIKE_LOSSES = ("average", "smooth", "spread", "weight", "batch")
"""Columns of a memory in which a high loss earns a sample its place."""


def __dir__() -> list[str]:
    return [*__all__]


def unbiased(method: Method, floor: float = 0.25) -> Method:
    """Give a method weights that sum to N, within the same budget.

    A share ``floor`` of the pruned samples takes the place of as many others, with weight 1/floor, so the expected
    gradient is that of all data. Methods that are unbiased already stay as they are.

    Args:
        method: The method.
        floor: The share of the pruned samples that comes back.

    Returns:
        The changed method; ``method`` itself stays as it is.

    Raises:
        InputError: If an argument is out of its range.

    >>> import infobatch
    >>> unbiased(infobatch.methods.seta())
    seta(ratio=0.1, groups=5, share=0.9, delta=0.875, unbiased=0.25)
    """
    method, floor = check_method(method), check_open_fraction("floor", floor)
    if method.unbiased:
        return method
    return replace(
        method,
        unbiased=True,
        settings={**method.settings, "unbiased": floor},
        around=(partial(_keep_both_sides, floor=floor), *method.around),  # before guards, which have the last word
    )


def plain(method: Method) -> Method:
    """Set every weight of a method to 1.

    Args:
        method: The method.

    Returns:
        The changed method; ``method`` itself stays as it is.

    >>> import infobatch
    >>> plain(infobatch.methods.random(0.3))
    random(ratio=0.3, delta=0.875, rescale=False)
    """
    method = check_method(method)
    settings = {key: value for key, value in method.settings.items() if key != "unbiased"}
    return replace(
        method,
        settings={**settings, "rescale": False},
        rescale=False,
        unbiased=False,
        around=tuple(change for change in method.around if change.func is not _keep_both_sides),
    )


def annealed(method: Method, delta: float = 0.875) -> Method:
    """Use a method up to ``delta`` of the run and all data from there on.

    Args:
        method: The method.
        delta: Prune while epoch < delta * num_epochs; 1 changes nothing.

    Returns:
        The changed method; ``method`` itself stays as it is.

    Raises:
        InputError: If an argument is out of its range.

    >>> import infobatch
    >>> annealed(infobatch.methods.rs2(), delta=0.8)
    rs2(ratio=0.3, annealed=0.8)
    """
    method, schedule = check_method(method), until(delta)
    if delta == 1:
        return method
    return replace(
        method,
        settings={**method.settings, "annealed": min(float(delta), method.settings.get("annealed", 1.0))},
        schedule=all_of(method.schedule, schedule),
    )


def averaged(method: Method, share: float = 0.2) -> Method:
    """Show a method the average of each sample's scores instead of the last one, where single scores are noisy.

    For masked images, diffusion or strong augmentation: there, a score is mostly the mask, the timestep or the crop
    that was drawn. The average is the mean of the first scores; then each new one has the weight ``share``. Methods
    that remember losses in their own way stay as they are.

    Args:
        method: The method.
        share: The least weight of the newest score: 0.2 averages about 9 of them, 1 only keeps the last.

    Returns:
        The changed method; ``method`` itself stays as it is.

    Raises:
        InputError: If an argument is out of its range.

    >>> import infobatch
    >>> averaged(infobatch.methods.infobatch())
    infobatch(ratio=0.5, delta=0.875, averaged=0.2)
    """
    method, share = check_method(method), check_fraction("share", share)
    if "averaged" in method.settings:
        raise InputError(message("one average", "a second", "Set the share of the first."))
    return replace(
        method,
        settings={**method.settings, "averaged": share},
        policy=partial(_apply_to_averages, policy=method.policy),
        memory=Memory({"smooth": torch.nan, "smooth_count": 0.0}, partial(_average, share=share)) | method.memory,
    )


def class_floor(method: Method, labels: Tensor, floor: float = 0.5) -> Method:
    """Keep at least a share ``floor`` of each class (or group) in every plan of a method.

    With two floors, one for classes and one for groups, the larger holds for each class within each group.

    Args:
        method: The method.
        labels: The class of each sample.
        floor: The share of each class that is kept at least.

    Returns:
        The changed method; ``method`` itself stays as it is.

    Raises:
        InputError: If an argument is out of its range.

    >>> import torch, infobatch
    >>> class_floor(infobatch.methods.infobatch(), labels=torch.arange(100) % 10, floor=0.5)
    infobatch(ratio=0.5, delta=0.875, class_floor=0.5)
    """
    method, floor, labels = check_method(method), check_fraction("floor", floor), check_labels(labels)
    if method.size not in (None, len(labels)):
        remedy = "Pass the labels of the same samples to both."
        raise InputError(message(f"{method.size} labels, as {method.name} was given", str(len(labels)), remedy))
    around = []
    for change in method.around:
        if change.func is _keep_floor:
            floor, other = max(floor, change.keywords["floor"]), change.keywords["labels"]
            labels = check_labels(labels * (int(other.max()) + 1) + other)
        else:
            around.append(change)
    return replace(
        method,
        settings={**method.settings, "class_floor": floor},
        around=(*around, partial(_keep_floor, labels=labels, floor=floor)),
        size=len(labels),
        labels=" and ".join(filter(None, (method.labels, fingerprint_labels(labels)))),
    )


def noise_guard(method: Method, share: float = 0.1, patience: int = 5) -> Method:
    """Stop favoring samples whose loss stays high: their labels may be wrong.

    If each of a sample's last ``patience`` losses was among the highest ``share`` of all losses known at that time, the
    method sees the lower quartile of the scores instead of its score, and may prune it like an easy one.

    Args:
        method: The method.
        share: The share of the losses that counts as high.
        patience: How many losses in a row must be high.

    Returns:
        The changed method; ``method`` itself stays as it is.

    Raises:
        InputError: If an argument is out of its range.

    >>> import infobatch
    >>> noise_guard(infobatch.methods.rs2())
    rs2(ratio=0.3, noise_guard=0.1, patience=5)
    """
    method, share = check_method(method), check_open_fraction("share", share)
    patience = check_positive("patience", patience)
    if "noise_guard" in method.settings:
        raise InputError(message("one noise guard", "a second", "Set share and patience of the first."))
    return replace(
        method,
        settings={**method.settings, "noise_guard": share, "patience": patience},
        policy=partial(_apply_without_suspects, policy=method.policy, patience=patience),
        memory=Memory({"streak": 0.0}, partial(_count_streak, share=share)) | method.memory,
    )


# ---- unbiased --------------------------------------------------------------------------------------------------


def _keep_both_sides(view: ScoresView, plan: Plan, generator: torch.Generator, *, floor: float) -> Plan:
    """Keep as many samples as the plan, but some of those it pruned, too, with weights that make up for it.

    Two strata: the plan's samples with a score, and the pruned ones. Of the latter a share ``floor`` comes with weight
    1/floor, instead of as many of the former (up to half of them), chosen at random. Both are weighted up to stand for
    their stratum. The plan's samples without a score stay as they are, unless it prunes some of those as well.
    """
    known, pruned = ~torch.isnan(view.scores), plan.table == 0
    outside = plan.size - plan.kept
    if not outside:  # nothing to make up for, whatever weights the rule gave
        return Plan(plan.epoch, plan.indices, plan.table.new_ones(1).expand(plan.size))
    inside = ~pruned if bool((pruned & ~known).any()) else ~pruned & known
    count = int(torch.count_nonzero(inside))
    guests = max(1, min(round(floor * outside), plan.kept // 2))
    stay = max(1, count - min(guests, count // 2))  # more in all, where few have a score
    strata = [Stratum(pruned, guests, outside / guests)]
    if count:
        strata.insert(0, Stratum(inside, stay, count / stay))
    return stratified(strata, plan.size, plan.epoch, generator)


# ---- averaged --------------------------------------------------------------------------------------------------


def _apply_to_averages(view: ScoresView, moment: Moment, generator: torch.Generator, *, policy: Policy) -> Plan:
    return policy(Seen(view.memory["smooth"], view.planned, view.memory), moment, generator)


def _average(columns: Columns, losses: Tensor, context: Columns, *, share: float) -> Columns:
    """The mean of all scores up to the 1/share-th, then a moving average."""
    del context
    count = columns["smooth_count"] + 1
    old = torch.where(count == 1, losses, columns["smooth"])
    return {"smooth": old + (losses - old) / count.clamp(max=1 / share), "smooth_count": count}


# ---- class_floor -----------------------------------------------------------------------------------------------


def _keep_floor(_: ScoresView, plan: Plan, generator: torch.Generator, *, labels: Tensor, floor: float) -> Plan:
    """Where the plan was drawn, draw again, class by class; elsewhere bring back pruned samples of short classes.

    Where a class would fall short in a draw, the chances of all its samples rise. The weights follow the chances, so an
    unbiased plan stays unbiased, and samples that were certain to stay still are. Elsewhere they come with weight 1.
    """
    if plan.kept == plan.size:
        return plan
    labels, share = labels.to(plan.table.device), Fraction(repr(floor))
    least = [math.ceil(share * size) for size in torch.bincount(labels).tolist()]
    if plan.chances is None:
        return _fill_up(plan, labels, least, generator)
    return _draw_again(plan, plan.chances().double(), labels, least, generator)


def _fill_up(plan: Plan, labels: Tensor, least: list[int], generator: torch.Generator) -> Plan:
    inside = plan.table != 0
    have = torch.bincount(labels[inside], minlength=len(least)).tolist()
    need = [max(want - kept, 0) for want, kept in zip(least, have, strict=True)]
    if not any(need):
        return plan
    table = plan.table.index_fill(0, first_of_each(shuffled_members(~inside, generator), labels, need), 1.0)
    return Plan(plan.epoch, shuffled_members(table != 0, generator), table)


def _draw_again(plan: Plan, chances: Tensor, labels: Tensor, least: list[int], generator: torch.Generator) -> Plan:
    """Draw as many samples as the plan has, but at least ``least`` of each class."""
    table = (chances >= 1).double()
    certain = torch.bincount(labels[table != 0], minlength=len(least)).tolist()
    least = [want - there for want, there in zip(least, certain, strict=True)]
    open_ = (table == 0).nonzero().squeeze(1)
    table[open_] = _draw_weights(chances[open_], labels[open_], least, plan.kept - sum(certain), generator)
    return Plan(plan.epoch, shuffled_members(table != 0, generator), table.float())


def _draw_weights(chances: Tensor, labels: Tensor, least: list[int], total: int, generator: torch.Generator) -> Tensor:
    """Return weights that sum to the size of each class; at least ``least`` of it are drawn, and never none."""
    sizes = torch.bincount(labels, minlength=len(least))
    limits, expected = sizes.tolist(), sum_by_class(labels, chances, len(sizes)).tolist()
    shares = zip(apportion(expected, limits, total, generator), least, limits, strict=True)
    number = torch.tensor([max(share, few, min(limit, 1)) for share, few, limit in shares], device=labels.device)
    chances = scale_in_classes(chances, labels, number)
    order = sort_rising(chances, generator)
    order = order[labels[order].argsort(stable=True)]
    nonempty = sizes > 0
    drawn = draw_in_cells(chances[order], sizes[nonempty], number[nonempty], generator)
    return torch.zeros_like(chances).index_copy_(0, order, drawn)


def scale_in_classes(chances: Tensor, labels: Tensor, number: Tensor) -> Tensor:
    """Return chances c * chance, at most 1, with a c per class such that they sum to ``number[class]``."""
    chances = chances.clamp(min=1e-9)  # every sample has a chance
    free = torch.ones_like(labels, dtype=torch.bool)
    while True:
        room = number - torch.bincount(labels[~free], minlength=len(number))
        mass = sum_by_class(labels, torch.where(free, chances, 0.0), len(number))
        scaled = chances * (room / mass.clamp(min=1e-300))[labels]
        over = free & (scaled >= 1)
        if not bool(over.any()):
            return torch.where(free, scaled, 1.0)
        free &= ~over


# ---- noise_guard -----------------------------------------------------------------------------------------------


def _apply_without_suspects(
    view: ScoresView, moment: Moment, generator: torch.Generator, *, policy: Policy, patience: int
) -> Plan:
    suspect = view.memory["streak"] >= patience
    calm = {name: _calm(view.memory[name], suspect) for name in LIKE_LOSSES if name in view.memory}
    return policy(Seen(_calm(view.scores, suspect), view.planned, {**view.memory, **calm}), moment, generator)


def _calm(values: Tensor, suspect: Tensor) -> Tensor:
    """Replace the values of the suspects by the lower quartile."""
    known = values[~torch.isnan(values)]
    if not known.numel():
        return values
    return torch.where(suspect, known.kthvalue((known.numel() + 3) // 4).values, values)


def _count_streak(columns: Columns, losses: Tensor, context: Columns, *, share: float) -> Columns:
    """Count the losses in a row that were among the highest share; pruned samples take part with their last loss."""
    last = torch.where(context["arrived"] != 0, losses, context["scores"])
    known = last[~torch.isnan(last)]
    if not known.numel():
        return {}
    edge = known.kthvalue(max(1, known.numel() - round(share * known.numel()))).values
    return {"streak": torch.where(losses > edge, columns["streak"] + 1, 0.0)}
