"""One loss per sample from losses per token, pixel or box, of which some do not count."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..checks import DTYPES, describe
from ..errors import InputError, message


class PerSample(NamedTuple):
    """What ``per_sample`` returns: ``update(loss, score=score)`` takes both."""

    loss: Tensor
    """The mean loss of each sample, shape [batch]; 0, without a gradient, where no element is valid."""
    score: Tensor
    """The same without a gradient; NaN where no element is valid, so that nothing is known of the sample."""


def per_sample(losses: Tensor, mask: Tensor | None = None) -> PerSample:
    """Average losses over all dimensions but the first, leaving out what the mask excludes.

    Use it in place of ``losses.flatten(1).mean(1)``, which counts padding and ignored elements as losses of 0. A sample
    without any valid element, such as a sentence without a masked token, is unknown: its loss is 0 and adds nothing to
    the gradient, and it keeps the score it had, instead of a 0 for which it would be pruned.

    Args:
        losses: The losses of a batch, shape [batch, ...], as from a criterion with ``reduction="none"``.
        mask: Which elements are valid: True or nonzero. It has as many dimensions as ``losses``, each of the same size
            or 1. None: all are valid.

    Returns:
        ``loss`` and ``score``, each of shape [batch] and at least float32.

    Raises:
        InputError: If ``losses`` are not floating-point losses with a batch dimension, or the mask does not fit them.

    >>> import torch, infobatch
    >>> labels = torch.tensor([[4, 2, -100], [-100, -100, -100]])  # two sentences; -100 is not predicted
    >>> losses = torch.tensor([[1.0, 3.0, 0.0], [0.0, 0.0, 0.0]])
    >>> loss, score = infobatch.per_sample(losses, labels != -100)
    >>> loss, score
    (tensor([2., 0.]), tensor([2., nan]))
    >>> train_data = infobatch.InfoBatch(torch.utils.data.TensorDataset(labels), num_epochs=8)
    >>> for batch in infobatch.DataLoader(train_data, batch_size=2):
    ...     mean = train_data.update(loss, score=score)
    """
    _check_losses(losses)
    flat = losses.reshape(len(losses), -1)
    dtype = torch.promote_types(losses.dtype, torch.float32)
    if mask is None:
        loss = flat.mean(1, dtype=dtype)
        return PerSample(loss, loss.detach())
    _check_mask(mask, losses)
    valid = (mask != 0).expand_as(losses).reshape_as(flat)
    count = valid.sum(1)
    # not a product with the mask: what is left out may be infinite or NaN
    loss = torch.where(valid, flat, 0.0).sum(1, dtype=dtype) / count.clamp(min=1)
    return PerSample(loss, loss.detach().masked_fill(count == 0, torch.nan))


def _check_losses(losses: Any) -> None:
    remedy = ""
    if not isinstance(losses, Tensor):
        remedy = "Pass the tensor that the criterion returns."
    elif losses.ndim == 0:
        remedy = 'Give the criterion reduction="none".'
    elif losses.dtype not in DTYPES:
        remedy = "Pass losses.float()."
    elif losses.numel() == 0:
        remedy = "Leave out an empty batch; a sample needs at least one element."
    if remedy:
        raise InputError(message("floating-point losses as a tensor of shape [batch, ...]", describe(losses), remedy))


def _check_mask(mask: Any, losses: Tensor) -> None:
    fits = isinstance(mask, Tensor) and mask.ndim == losses.ndim and mask.device == losses.device
    if not fits or any(mine not in (1, size) for mine, size in zip(mask.shape, losses.shape, strict=True)):
        got = f"{describe(mask)} on {mask.device}" if isinstance(mask, Tensor) else describe(mask)
        raise InputError(
            message(
                f"a mask for losses of shape {list(losses.shape)} on {losses.device}, each dimension equal or 1",
                got,
                "Name the missing dimensions: mask[:, None] for [batch, pixels] beside [batch, channels, pixels].",
            )
        )
