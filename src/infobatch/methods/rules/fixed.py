"""A fixed selection, made before training: what ``Pruned`` turns a ``Selection`` into."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ... import checks
from ...plan import Plan
from ..arguments import fingerprint
from ..method import Method, Moment, ScoresView, check_method, until


def static(selection: Any) -> Method:
    """Use a fixed selection (``infobatch.selection``) in every epoch, with its weights.

    ``Pruned`` does so if it is given a selection. The ``mark`` in the settings tells selections apart, so that no run
    is resumed with another one.

    Args:
        selection: An ``infobatch.selection.Selection``.

    Returns:
        The method, for ``infobatch.Pruned``.

    >>> from infobatch import methods, selection
    >>> methods.static(selection.Selection(torch.tensor([1, 3]), size=5))
    static(selection='given', kept=2, mark='8c972ac2')
    """
    indices, weights = torch.as_tensor(selection.indices), torch.as_tensor(selection.weights)
    mark = fingerprint(indices, weights.float().view(torch.int32).long())
    settings = {"selection": getattr(selection, "method", "given"), "kept": len(indices), "mark": mark}
    policy = partial(keep_selection, indices=indices, weights=weights)
    return Method("static", settings, policy, until(1.0), unbiased=False, prunes_first=True, size=selection.size)


def keep_selection(
    view: ScoresView, moment: Moment, generator: torch.Generator, *, indices: Tensor, weights: Tensor
) -> Plan:
    """Keep the selection in a new order, without the samples of weight 0."""
    table = torch.zeros_like(view.scores)
    table[indices.to(table.device)] = weights.to(table)
    indices = table.nonzero().squeeze(1)
    shuffle = torch.randperm(indices.numel(), generator=generator, device=indices.device)
    return Plan(moment.epoch, indices[shuffle], table)


def fit_method(given: Any, size: int, num_epochs: int) -> Method:
    """Return the method, or a selection as one, if it fits a data set of this size and this number of epochs."""
    if hasattr(given, "indices") and hasattr(given, "weights"):
        checks.check_selection(given, size)
        given = static(given)
    method = check_method(given)
    checks.check_size(method.size, size, repr(method))
    method.check_epochs(num_epochs, method.schedule)
    return method
