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

from . import choices, memory
from .choices import Book, Seen
from .method import Method
from .plan import Plan
from .policies import Policy
from .schedules import Moment, all_of, until
from .values import count, labels_of, part, share_of


def unbiased(method: Method, floor: float = 0.25) -> Method:
    """The method, with some of those it would leave out, and weights that sum to N: its budget is the same.

    A share ``floor`` of the left-out comes at weight 1/floor in the place of as many of the others, so the expected
    gradient is that of all data. Methods that are unbiased already stay as they are.

    >>> import infobatch
    >>> unbiased(infobatch.methods.seta())
    seta(ratio=0.1, groups=5, share=0.9, delta=0.875, unbiased=0.25)
    """
    floor = share_of("floor", floor)
    if method.rescale:
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
    return replace(method, settings={**method.settings, "rescale": False}, rescale=False, unbiased=False)


def annealed(method: Method, delta: float = 0.875) -> Method:
    """The method up to ``delta`` of the run, and all data from there on; ``delta=1`` is the method as it is."""
    if delta == 1:
        return method
    return replace(
        method,
        settings={**method.settings, "annealed": float(delta)},
        schedule=all_of(method.schedule, until(delta)),
    )


def class_floor(method: Method, labels: Tensor, floor: float = 0.5) -> Method:
    """The method, with at least a share ``floor`` of each class (or group) in every plan."""
    floor, labels = part("floor", floor), labels_of(labels)
    return replace(
        method,
        settings={**method.settings, "class_floor": floor},
        around=(*method.around, partial(_with_floor, labels=labels, floor=floor)),
    )


def noise_guard(method: Method, share: float = 0.1, patience: int = 5) -> Method:
    """The method, without favour for samples that stay high: their labels may be wrong.

    A sample whose loss was among the highest ``share`` of its epoch ``patience`` times in a row is shown to the
    method with the lower quartile of the scores, so that it may be left out like an easy one.
    """
    share, patience = share_of("share", share), count("patience", patience)
    return replace(
        method,
        settings={**method.settings, "noise_guard": share, "patience": patience},
        policy=partial(_without_favour, policy=method.policy, patience=patience),
        memory=memory.streak(share) | method.memory,
    )


def _both_sides(plan: Plan, generator: torch.Generator, *, floor: float) -> Plan:
    return choices.both_sides(plan, floor, generator)


def _with_floor(plan: Plan, generator: torch.Generator, *, labels: Tensor, floor: float) -> Plan:
    return choices.with_floor(plan, labels, floor, generator)


def _without_favour(book: Book, moment: Moment, generator: torch.Generator, *, policy: Policy, patience: int) -> Plan:
    suspect = book.memory["streak"] >= patience
    calm = {name: _calmed(book.memory[name], suspect) for name in LIKE_LOSSES if name in book.memory}
    return policy(Seen(_calmed(book.scores, suspect), book.planned, {**book.memory, **calm}), moment, generator)


LIKE_LOSSES = ("average", "weight", "batch")
"""Columns in which a high loss earns a sample its place."""


def _calmed(values: Tensor, suspect: Tensor) -> Tensor:
    """With the lower quartile in the place of the suspects' values."""
    known = values[~torch.isnan(values)]
    if not known.numel():
        return values
    return torch.where(suspect, known.kthvalue((known.numel() + 3) // 4).values, values)
