"""One loss per sample from losses per token, pixel or box, of which some do not count.

The trap: a mean over padding and ignored elements counts them as losses of 0, and scripts differ in what they divide
by: each sample's own elements, those of the batch or those of the accumulated step. ``average`` says which.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..checks import DTYPES, describe, describe_placed, is_number
from ..errors import InputError, message

Average = Literal["sample", "batch", "all", "sum"] | float | Tensor
"""What the sums of losses are divided by; see ``per_sample``."""
AVERAGES = ("sample", "batch", "all", "sum")


class PerSample(NamedTuple):
    """What ``per_sample`` and the other adapters return: ``update(loss, score=score)`` takes both."""

    loss: Tensor
    """One loss per sample, shape [batch]; 0, without a gradient, where no element is valid."""
    score: Tensor
    """Each sample's own mean, without a gradient; NaN where no element is valid, so that nothing is known of it."""


def per_sample(losses: Tensor, mask: Tensor | None = None, average: Average = "sample") -> PerSample:
    """Average losses over all dimensions but the first, leaving out what the mask excludes.

    Use it in place of ``losses.flatten(1).mean(1)``, which counts padding and ignored elements as losses of 0. A sample
    without any valid element, such as a sentence without a masked token, is unknown: its loss is 0 and adds nothing to
    the gradient, and it keeps the score it had, instead of a 0 for which it would be pruned.

    In ``update``, a short last batch of a pruned epoch counts in proportion to its size, whatever the average; so under
    ``"sum"`` or a number its samples count a little less than others.

    Args:
        losses: The losses of a batch, shape [batch, ...], as from a criterion with ``reduction="none"``.
        mask: Which elements are valid: True or nonzero. It has as many dimensions as ``losses``, each of the same size
            or 1. None: all are valid.
        average: What the mean of ``loss`` over the batch is, so that it equals the loss of the script it replaces:

            - ``"sample"``: the mean of the samples' own means. Every sample has the same influence.
            - ``"batch"``: the mean over all valid elements of the batch, as of torch's
              ``CrossEntropyLoss(ignore_index=...)`` and the models of transformers. Every element has the same
              influence within its batch. What a batch is divided by depends on which samples it holds, so pruning is
              unbiased only approximately. It is so exactly with the averages above and below, and with a fixed number,
              such as that of the valid elements of a usual batch.
            - ``"all"``: the mean over all elements, with losses of 0 where the mask excludes them, as of mmsegmentation
              by default.
            - ``"sum"``: the sum over the batch, as of a VAE's script.
            - a number, or a tensor with one value: the sum over the batch divided by it. As the number of valid
              elements of all batches that are accumulated for a step, it is the Trainer's ``num_items_in_batch``: call
              backward on the mean of each of these batches, without dividing by how many they are. Ranks average their
              gradients: divide a number that all of them share by the number of ranks.

    Returns:
        ``loss`` and ``score``, each of shape [batch] and at least float32. The score is the mean of the sample's own
        valid elements, whatever the average: pass both to ``update``, or long samples score as hard ones. A sieve looks
        with ``"sample"``; after it, expand both: ``loss, score = sieve.expand(loss, score=score)``.

    Raises:
        InputError: If ``losses`` are not floating-point losses with a batch dimension, the mask does not fit them, or
            the average is none of these.

    >>> import torch, infobatch
    >>> labels = torch.tensor([[4, 2, -100], [-100, -100, -100]])  # two sentences; -100 is not predicted
    >>> losses = torch.tensor([[1.0, 3.0, 0.0], [0.0, 0.0, 0.0]])
    >>> loss, score = infobatch.per_sample(losses, labels != -100)
    >>> loss, score
    (tensor([2., 0.]), tensor([2., nan]))
    >>> train_data = infobatch.InfoBatch(torch.utils.data.TensorDataset(labels), num_epochs=8)
    >>> for batch in infobatch.DataLoader(train_data, batch_size=2):
    ...     mean = train_data.update(loss, score=score)
    >>> for average in ("sample", "batch", "all", "sum", 8):
    ...     print(average, float(infobatch.per_sample(losses, labels != -100, average).loss.mean()))
    sample 1.0
    batch 2.0
    all 0.6666666865348816
    sum 4.0
    8 0.5
    """
    _check_losses(losses)
    check_average(average, losses.device)
    flat = losses.reshape(len(losses), -1)
    dtype = torch.promote_types(losses.dtype, torch.float32)
    if mask is None:
        mean = flat.mean(1, dtype=dtype)
        if isinstance(average, str) and average != "sum":
            return PerSample(mean, mean.detach())
        sums, count = flat.sum(1, dtype=dtype), torch.full((len(flat),), flat.shape[1], device=losses.device)
        return PerSample(average_sums(sums, count, flat.numel(), average).loss, mean.detach())
    _check_mask(mask, losses)
    valid = (mask != 0).expand_as(losses).reshape_as(flat)
    # not a product with the mask: what is left out may be infinite or NaN
    sums = torch.where(valid, flat, 0.0).sum(1, dtype=dtype)
    return average_sums(sums, valid.sum(1), flat.numel(), average)


def average_sums(sums: Tensor, counts: Tensor, elements: int, average: Average) -> PerSample:
    """Divide the sums of losses as ``average`` says, for ``per_sample`` and adapters that make the sums themselves.

    Args:
        sums: The sum of the valid losses of each sample, shape [batch].
        counts: How many they are, or the sum of their weights where classes have weights.
        elements: How many elements the batch has, valid or not, for ``"all"``.
        average: What to divide by; see ``per_sample``.

    Returns:
        ``loss`` and ``score``, as of ``per_sample``.
    """
    is_known = counts != 0
    mean = sums / torch.where(is_known, counts, 1)
    score = mean.detach().masked_fill(~is_known, torch.nan)
    if isinstance(average, str):
        if average == "sample":
            return PerSample(mean, score)
        if average == "all":
            return PerSample(sums / (elements / len(sums)), score)
        if average == "sum":
            return PerSample(sums * len(sums), score)
        average = counts.sum()
    if isinstance(average, Tensor):
        average = torch.where(average == 0, 1, average)  # nothing is valid: 0 instead of 0 / 0
    return PerSample(sums * len(sums) / average, score)


def check_average(average: Any, device: torch.device) -> None:
    """Check what the sums are divided by, without reading a tensor's value.

    Raises:
        InputError: If it is neither one of the names nor a positive number.
    """
    remedy = "Choose by what your script divides; see infobatch.per_sample."
    if isinstance(average, str):
        is_right, got = average in AVERAGES, repr(average)
    elif isinstance(average, Tensor):
        is_right = average.ndim == 0 and average.dtype != torch.bool and not average.is_complex()
        is_right, got = is_right and average.device in (device, torch.device("cpu")), describe(average)
        remedy = "Pass the number of valid elements of the whole step as one value, on the device of the losses."
    else:
        is_right, got = is_number(average) and average > 0, repr(average)
    if average is None:
        remedy = 'Where the Trainer gives no number, pass "batch".'
    if not is_right:
        raise InputError(message(f"average as one of {AVERAGES}, or a positive number", got, remedy))


def at_least_single(values: Tensor) -> Tensor:
    """Return values in float32 where they are in half precision."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


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
        got = describe_placed(mask)
        raise InputError(
            message(
                f"a mask for losses of shape {list(losses.shape)} on {losses.device}, each dimension equal or 1",
                got,
                "Name the missing dimensions: mask[:, None] for [batch, pixels] beside [batch, channels, pixels].",
            )
        )
