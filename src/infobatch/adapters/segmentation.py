"""One loss per image for semantic segmentation: cross entropy per pixel, of a decode head and any auxiliary heads.

The trap: frameworks average over the pixels of a batch, each head separately, and differ in whether ignored pixels
count. The score of an image is the weighted sum of its own means, as in appendix A.1 of the InfoBatch paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..checks import DTYPES, describe, describe_placed, is_number
from ..errors import InputError, message
from .per_sample import Average, PerSample, at_least_single, average_sums, check_average


def segmentation_loss(
    logits: Tensor | Sequence[Tensor],
    labels: Tensor,
    head_weights: Sequence[float] | None = None,
    *,
    ignore_index: int = 255,
    class_weights: Tensor | None = None,
    average: Average = "batch",
    align_corners: bool = False,
) -> PerSample:
    """Return each image's cross entropy, averaged over its pixels and summed over the heads.

    It replaces ``CrossEntropyLoss(ignore_index=255)`` on resized logits, as in the models of transformers, and the
    decode and auxiliary heads' losses of mmsegmentation, there with ``average="all"``.

    Args:
        logits: The logits of the decode head, shape [batch, classes, height, width] of any size, or a list: that of the
            decode head and those of auxiliary heads. They are resized to the size of the labels, bilinearly.
        labels: The class of each pixel, integers of shape [batch, height, width].
        head_weights: One for each head, as (1.0, 0.4) for UperNet; not needed for a single one.
        ignore_index: The label of pixels that do not count.
        class_weights: One for each class, shape [classes]. Averages divide by the weights of the valid pixels then, as
            torch does, and ``"all"`` by the number of pixels.
        average: What the mean of ``loss`` over the batch is, for each head; see ``infobatch.per_sample``. Under
            ``"batch"`` pruning is unbiased only approximately: an image counts by its share of the batch's pixels.
        align_corners: As of ``torch.nn.functional.interpolate``.

    Returns:
        ``loss`` for ``update`` and ``score`` for its argument of that name, each of shape [batch]. An image without any
        valid pixel has the loss 0 and the score NaN, so that it keeps the score it had.

    Raises:
        InputError: If the shapes, types or devices do not fit together, or heads have no weights.

    >>> import torch, infobatch
    >>> from infobatch import adapters
    >>> images, labels = torch.rand(8, 3, 16, 16), torch.randint(0, 5, (8, 16, 16))
    >>> backbone, head, auxiliary = (torch.nn.Conv2d(*size, 4, 4) for size in ((3, 6), (6, 5), (6, 5)))
    >>> train_data = infobatch.InfoBatch(torch.utils.data.TensorDataset(images, labels), num_epochs=8)
    >>> for x, y in infobatch.DataLoader(train_data, batch_size=4):
    ...     features = backbone(x)
    ...     features = torch.nn.functional.interpolate(features, scale_factor=4)
    ...     loss, score = adapters.segmentation_loss([head(features), auxiliary(features)], y, (1.0, 0.4))
    ...     train_data.update(loss, score=score).backward()
    """
    heads = [logits] if isinstance(logits, Tensor) else logits
    weights = _check_weights(heads, head_weights)
    for head in heads:
        _check_head(head, labels, class_weights)
    check_average(average, labels.device)
    labels = labels.long()
    valid = labels != ignore_index
    targets = torch.where(valid, labels, -100)
    counts = _count(targets, valid, class_weights)
    loss, score = torch.zeros((), device=labels.device), torch.zeros((), device=labels.device)
    for head, weight in zip(heads, weights, strict=True):
        sums = _sum_pixels(head, targets, class_weights, align_corners)
        one = average_sums(sums, counts.to(sums.dtype), labels.numel(), average)
        loss, score = loss + weight * one.loss, score + weight * one.score
    return PerSample(loss, score)


def _sum_pixels(logits: Tensor, targets: Tensor, class_weights: Tensor | None, align_corners: bool) -> Tensor:
    if logits.shape[2:] != targets.shape[1:]:
        logits = F.interpolate(logits, size=targets.shape[1:], mode="bilinear", align_corners=align_corners)
    logits = at_least_single(logits)
    weights = None if class_weights is None else class_weights.to(logits.dtype)
    return F.cross_entropy(logits, targets, weights, reduction="none").flatten(1).sum(1)


def _count(targets: Tensor, valid: Tensor, class_weights: Tensor | None) -> Tensor:
    if class_weights is None:
        return valid.flatten(1).sum(1)
    return torch.where(valid, class_weights[targets.clamp(min=0)], 0.0).flatten(1).sum(1)


def _check_weights(heads: Any, weights: Any) -> list[float]:
    count = len(heads) if isinstance(heads, (list, tuple)) else 0
    if not count:
        remedy = "Pass outputs.logits, or a list of the logits of all heads."
        raise InputError(message("logits as a tensor or a list of tensors", describe(heads), remedy))
    if weights is None and count == 1:
        return [1.0]
    got = list(weights) if isinstance(weights, (list, tuple)) else None
    if got is None or len(got) != count or not all(map(is_number, got)):
        expected = f"head_weights as a list of {count} numbers, one for each head"
        remedy = "Pass what your script multiplies the losses of the heads by: (1.0, 0.4) for UperNet."
        raise InputError(message(expected, repr(weights), remedy))
    return [float(one) for one in got]


def _check_head(logits: Any, labels: Any, class_weights: Any) -> None:
    if not isinstance(logits, Tensor) or logits.ndim != 4 or logits.dtype not in DTYPES:
        expected = "floating-point logits of shape [batch, classes, height, width]"
        raise InputError(message(expected, describe(logits), "Pass the output of a head, before any argmax."))
    if logits.shape[1] < 2:
        remedy = (
            'With one class: losses = binary_cross_entropy_with_logits(logits, masks, reduction="none"), then '
            "infobatch.per_sample(losses, valid)."
        )
        raise InputError(message("logits of at least two classes", describe(logits), remedy))
    is_right = isinstance(labels, Tensor) and labels.ndim == 3 and len(labels) == len(logits) and labels.numel() > 0
    is_integer = is_right and not labels.is_floating_point() and not labels.is_complex() and labels.dtype != torch.bool
    if not is_integer or labels.device != logits.device:
        expected = f"labels as integers of shape [{len(logits)}, height, width] on {logits.device}"
        got = describe_placed(labels)
        remedy = "Pass class numbers: labels.squeeze(1) for [batch, 1, height, width]."
        if is_right and not is_integer:
            remedy = "Pass class numbers as integers: labels.long()."
        raise InputError(message(expected, got, remedy))
    if class_weights is not None:
        fits = isinstance(class_weights, Tensor) and class_weights.shape == logits.shape[1:2]
        if not fits or not class_weights.is_floating_point() or class_weights.device != logits.device:
            expected = f"class_weights as floating-point numbers of shape [{logits.shape[1]}] on {logits.device}"
            got = describe_placed(class_weights)
            remedy = "Pass one weight per class, as for torch's CrossEntropyLoss."
            raise InputError(message(expected, got, remedy))
