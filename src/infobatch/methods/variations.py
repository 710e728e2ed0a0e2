"""Any method, with a difference: unbiased weights, annealing, guards.

>>> from infobatch import methods, variations
>>> variations.annealed(variations.unbiased(methods.seta()))
seta(ratio=0.1, groups=5, share=0.9, delta=0.875, unbiased=0.25, annealed=0.875)
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ..errors import InputError, message
from ..plan import Plan
from . import draws as choices
from . import memory
from .arguments import count, labels_of, mark_of_labels, part, share_of
from .cuts import Policy
from .draws import Book, Seen
from .method import Method, method_of
from .when import Moment, all_of, until


def unbiased(method: Method, floor: float = 0.25) -> Method:
    """The method, with some of those it would leave out, and weights that sum to N: its budget is the same.

    A share ``floor`` of the left-out comes at weight 1/floor in the place of as many of the others, so the expected
    gradient is that of all data. Methods that are unbiased already stay as they are.

    >>> import infobatch
    >>> unbiased(infobatch.methods.seta())
    seta(ratio=0.1, groups=5, share=0.9, delta=0.875, unbiased=0.25)
    """
    method, floor = method_of(method), share_of("floor", floor)
    if method.unbiased:
        return method
    return replace(
        method,
        unbiased=True,
        settings={**method.settings, "unbiased": floor},
        around=(partial(_both_sides, floor=floor), *method.around),  # before guards, which have the last word
    )


def plain(method: Method) -> Method:
    """The method with every weight 1.

    >>> import infobatch
    >>> plain(infobatch.methods.random(0.3))
    random(ratio=0.3, delta=0.875, rescale=False)
    """
    method = method_of(method)
    settings = {key: value for key, value in method.settings.items() if key != "unbiased"}
    return replace(
        method,
        settings={**settings, "rescale": False},
        rescale=False,
        unbiased=False,
        around=tuple(change for change in method.around if change.func is not _both_sides),
    )


def annealed(method: Method, delta: float = 0.875) -> Method:
    """The method up to ``delta`` of the run, and all data from there on; ``delta=1`` is the method as it is."""
    method, schedule = method_of(method), until(delta)
    if delta == 1:
        return method
    return replace(
        method,
        settings={**method.settings, "annealed": min(float(delta), method.settings.get("annealed", 1.0))},
        schedule=all_of(method.schedule, schedule),
    )


def class_floor(method: Method, labels: Tensor, floor: float = 0.5) -> Method:
    """The method, with at least a share ``floor`` of each class (or group) in every plan.

    Of two floors, for classes and for groups, the larger one holds for each class in each group.
    """
    method, floor, labels = method_of(method), part("floor", floor), labels_of(labels)
    if method.size not in (None, len(labels)):
        remedy = "Both belong to the same samples."
        raise InputError(message(f"{method.size} labels, as {method.name} was given", str(len(labels)), remedy))
    around = []
    for change in method.around:
        if change.func is _with_floor:
            floor, other = max(floor, change.keywords["floor"]), change.keywords["labels"]
            labels = labels_of(labels * (int(other.max()) + 1) + other)
        else:
            around.append(change)
    return replace(
        method,
        settings={**method.settings, "class_floor": floor},
        around=(*around, partial(_with_floor, labels=labels, floor=floor)),
        size=len(labels),
        labels=" and ".join(filter(None, (method.labels, mark_of_labels(labels)))),
    )


def noise_guard(method: Method, share: float = 0.1, patience: int = 5) -> Method:
    """The method, without favour for samples that stay high: their labels may be wrong.

    A sample whose last ``patience`` losses were each, when they came, among the highest ``share`` of what was known
    of all samples is shown to the method with the lower quartile of the scores, so that it may be left out like an
    easy one.
    """
    method, share, patience = method_of(method), share_of("share", share), count("patience", patience)
    if "noise_guard" in method.settings:
        raise InputError(message("one noise guard", "a second", "Set share and patience of the first."))
    return replace(
        method,
        settings={**method.settings, "noise_guard": share, "patience": patience},
        policy=partial(_without_favour, policy=method.policy, patience=patience),
        memory=memory.streak(share) | method.memory,
    )


def _both_sides(book: Book, plan: Plan, generator: torch.Generator, *, floor: float) -> Plan:
    return choices.both_sides(plan, ~torch.isnan(book.scores), floor, generator)


def _with_floor(_: Book, plan: Plan, generator: torch.Generator, *, labels: Tensor, floor: float) -> Plan:
    return choices.with_floor(plan, labels, floor, generator)


def _without_favour(book: Book, moment: Moment, generator: torch.Generator, *, policy: Policy, patience: int) -> Plan:
    suspect = book.memory["streak"] >= patience
    calm = {name: _calmed(book.memory[name], suspect) for name in LIKE_LOSSES if name in book.memory}
    return policy(Seen(_calmed(book.scores, suspect), book.planned, {**book.memory, **calm}), moment, generator)


LIKE_LOSSES = ("average", "spread", "weight", "batch")
"""Columns in which a high loss earns a sample its place."""


def _calmed(values: Tensor, suspect: Tensor) -> Tensor:
    """With the lower quartile in the place of the suspects' values."""
    known = values[~torch.isnan(values)]
    if not known.numel():
        return values
    return torch.where(suspect, known.kthvalue((known.numel() + 3) // 4).values, values)
