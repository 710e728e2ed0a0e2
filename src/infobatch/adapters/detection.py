"""Object detection: losses per image, out of losses per anchor or box, and out of a set prediction (DETR, YOLOS).

Detectors divide by the number of objects in the batch. A loss per image must do the same, so that a step stays that of
the framework; a score must not, or it would depend on the other images of the batch: it is divided by the image's own
number. An image without objects has no box loss, but its class or objectness loss makes its score known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..checks import DTYPES, check_range, describe, is_number
from ..errors import InputError, message
from .per_sample import PerSample, at_least_single

Layer = Mapping[str, Any]
"""One layer's ``logits`` [batch, queries, classes + 1] and ``pred_boxes`` [batch, queries, 4]."""
NAMES = ("logits", "pred_boxes")


def per_image(
    losses: Tensor, counts: Tensor, image: Tensor | None = None, *, normalizer: Tensor | float | None = None
) -> PerSample:
    """Sum losses per anchor or box over each image, such that their mean is the sum over the batch / its objects.

    It replaces ``losses.sum() / max(positives, 1)`` in a detector. Call it once for each kind of loss, and add up what
    it returns, losses and scores with the same factors. Set the losses of anchors that do not count to 0 before, with
    ``torch.where``.

    Since each loss is divided by a number of the batch, the gradient of a pruned epoch is unbiased only as far as all
    batches have about as many objects. It is exactly so with a fixed ``normalizer``, the batch size times the mean
    number of objects.

    Args:
        losses: The losses of anchors, cells or boxes: shape [batch, ...], or [n, ...] with ``image``.
        counts: What the framework divides by, per image, shape [batch]: the number of positive anchors; the sum of the
            target scores; or the number of cells, for a loss that is a mean over cells. Less than 1 counts as 1.
        image: The image that each of the n losses belongs to, int64 [n].
        normalizer: What the framework divides by, if it is not ``counts.sum()``, as the mean of it over ranks.

    Returns:
        ``loss`` and ``score``, each of shape [batch] and at least float32. The score is divided by the image's own
        count; it is 0, not unknown, for an image without an object.

    Raises:
        InputError: If shapes, types or devices do not fit.

    >>> import torch, infobatch
    >>> positives = torch.tensor([2, 0])  # the second image has no objects
    >>> boxes = infobatch.adapters.per_image(torch.tensor([1.0, 3.0]), positives, image=torch.tensor([0, 0]))
    >>> anchors = infobatch.adapters.per_image(torch.tensor([[0.5, 0.5, 1.0], [0.1, 0.1, 0.1]]), positives)
    >>> loss, score = boxes.loss + anchors.loss, boxes.score + anchors.score
    >>> loss.mean(), score  # (1 + 3 + 2 + 0.3) / 2 positives
    (tensor(3.1500), tensor([3.0000, 0.3000]))
    """
    _check_losses(losses, counts, image)
    flat = losses.reshape(len(losses), -1) if losses.numel() else losses.new_zeros(len(losses), 1) + losses.sum()
    sums = flat.sum(1, dtype=torch.promote_types(losses.dtype, torch.float32))
    if image is not None:
        if image.device.type == "cpu" and len(image) and not torch.compiler.is_compiling():
            check_range(image, len(counts), "They are positions in the batch.")
        sums = sums.new_zeros(len(counts)).index_add(0, image, sums)
    total = counts.sum().clamp(min=1) if normalizer is None else _check_total("normalizer", normalizer)
    return _share(sums, counts.clamp(min=1), total)


def set_prediction_loss(
    layers: Sequence[Layer],
    labels: Sequence[Mapping[str, Tensor]],
    indices: Sequence[Sequence[tuple[Tensor, Tensor]]],
    *,
    no_object: float = 0.1,
    box: float = 5.0,
    giou: float = 2.0,
    num_boxes: Tensor | float | None = None,
    boxes_per_image: float | None = None,
) -> PerSample:
    """Return the loss of each image from predictions that were matched with its objects, as in DETR and YOLOS.

    It replaces ``outputs.loss`` of transformers' ``DetrForObjectDetection`` and ``YolosForObjectDetection``: class,
    box and generalized IoU losses, of auxiliary layers, too. The mean over the batch is that loss. Models with a focal
    class loss, such as Deformable DETR, need ``per_image``.

    Since the batch's loss is divided by its number of boxes, the gradient of a pruned epoch is unbiased only as far as
    all batches have about as many. It is exactly so with ``boxes_per_image``.

    Args:
        layers: The outputs of the last layer and of the auxiliary ones, each with ``logits`` and ``pred_boxes`` as
            (center, size): ``[outputs, *(outputs.auxiliary_outputs or ())]``.
        labels: For each image its ``class_labels`` and ``boxes``, as for the model.
        indices: For each layer what the framework's matcher returns: for each image, which queries belong to which of
            its objects.
        no_object: The weight of the class "no object", ``config.eos_coefficient``.
        box, giou: The factors of these losses, ``config.bbox_loss_coefficient`` and ``giou_loss_coefficient``.
        num_boxes: What box losses are divided by, if it is not the number of boxes in the batch: with several ranks,
            the mean of it over ranks.
        boxes_per_image: A fixed number to normalize with instead: the mean number of boxes per image of the data set.

    Returns:
        ``loss`` and ``score``, each of shape [batch] and at least float32. The score is divided by numbers of the image
        alone: of its boxes, at least 1, and of its weights of classes.

    Raises:
        InputError: If shapes, types or devices do not fit.

    With a model of transformers, ``indices = [matcher(layer, labels) for layer in layers]``, where ``matcher`` is its
    ``HungarianMatcher(config.class_cost, config.bbox_cost, config.giou_cost)``.

    >>> import torch, infobatch
    >>> outputs = {"logits": torch.zeros(2, 3, 5), "pred_boxes": torch.full((2, 3, 4), 0.5)}
    >>> labels = [
    ...     {"class_labels": torch.tensor([1]), "boxes": torch.tensor([[0.5, 0.5, 0.5, 0.5]])},
    ...     {"class_labels": torch.tensor([], dtype=torch.int64), "boxes": torch.zeros(0, 4)},
    ... ]
    >>> matched = [(torch.tensor([2]), torch.tensor([0])), (torch.tensor([], dtype=torch.int64),) * 2]
    >>> loss, score = infobatch.adapters.set_prediction_loss([outputs], labels, [matched])
    >>> loss.mean(), score  # log(5): the box is right, the classes are not known
    (tensor(1.6094), tensor([1.6094, 1.6094]))
    """
    _check_matched(layers, labels, indices)
    for name, value in (("no_object", no_object), ("box", box), ("giou", giou)):
        if not is_number(value) or value < 0 or (name == "no_object" and value == 0):
            remedy = "Pass those of the model's config."
            raise InputError(message(f"{name} as a positive number", _describe_number(value), remedy))
    size, queries = layers[0]["logits"].shape[:2]
    counts = [len(one["class_labels"]) for one in labels]
    own = torch.tensor(counts, device=layers[0]["logits"].device).clamp(min=1)
    total: Tensor | float = max(sum(counts), 1)
    class_total: Tensor | float | None = None
    if num_boxes is not None:
        total = _check_total("num_boxes", num_boxes)
    if boxes_per_image is not None:
        total = size * _check_total("boxes_per_image", boxes_per_image)
        class_total = size * queries * no_object + (1 - no_object) * total
    loss, score = torch.zeros((), device=own.device), torch.zeros((), device=own.device)
    for layer, matched in zip(layers, indices, strict=True):
        pairs = _gather_pairs(layer, labels, matched)
        classes, weights = _class_losses(layer["logits"], pairs, no_object)
        boxes = _box_losses(layer["pred_boxes"], pairs, box, giou)
        for part in (
            _share(classes, weights, weights.sum() if class_total is None else class_total),
            _share(boxes, own, total),
        ):
            loss, score = loss + part.loss, score + part.score
    return PerSample(loss, score)


def _share(sums: Tensor, own: Tensor, total: Tensor | float) -> PerSample:
    """Return losses whose mean is the sum of all sums / total, and scores, each divided by its own number."""
    return PerSample(sums * (len(sums) / total), sums.detach() / own)


# ---- what was matched ------------------------------------------------------------------------------------------


class _Pairs(NamedTuple):
    """Queries and the objects they were matched with, over all images of a batch."""

    image: Tensor
    query: Tensor
    label: Tensor
    box: Tensor


def _gather_pairs(layer: Layer, labels: Sequence[Mapping[str, Tensor]], matched: Any) -> _Pairs:
    device = layer["logits"].device
    image = torch.cat([torch.full_like(query, at) for at, (query, _) in enumerate(matched)]).to(device)
    query = torch.cat([query for query, _ in matched]).to(device)
    chosen = [(one, target.to(one["boxes"].device)) for one, (_, target) in zip(labels, matched, strict=True)]
    label = torch.cat([one["class_labels"][target] for one, target in chosen])
    return _Pairs(image, query, label, torch.cat([one["boxes"][target] for one, target in chosen]))


def _class_losses(logits: Tensor, pairs: _Pairs, no_object: float) -> tuple[Tensor, Tensor]:
    """Return the sum of each image's weighted class losses, and the sum of the weights."""
    logits = at_least_single(logits)
    last = logits.shape[-1] - 1
    target = torch.full(logits.shape[:2], last, dtype=torch.int64, device=logits.device)
    target = target.index_put((pairs.image, pairs.query), pairs.label)
    weight = torch.where(torch.arange(last + 1, device=logits.device) == last, no_object, 1.0).to(logits.dtype)
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), target, weight, reduction="none")
    return losses.sum(1), weight[target].sum(1)


def _box_losses(boxes: Tensor, pairs: _Pairs, box: float, giou: float) -> Tensor:
    """Return the sum of each image's box losses: the distance of the coordinates, and 1 - generalized IoU."""
    dtype = torch.promote_types(boxes.dtype, torch.float32)
    found, target = boxes[pairs.image, pairs.query].to(dtype), pairs.box.to(dtype)
    distance = torch.nn.functional.l1_loss(found, target, reduction="none").sum(1)
    losses = box * distance + giou * (1 - _generalized_iou(_corners(found), _corners(target)))
    return losses.new_zeros(len(boxes)).index_add(0, pairs.image, losses)


def _corners(boxes: Tensor) -> Tensor:
    """Turn boxes as (center, size) into (low corner, high corner)."""
    center, size = boxes[:, :2], boxes[:, 2:]
    return torch.cat([center - 0.5 * size, center + 0.5 * size], dim=1)


def _generalized_iou(one: Tensor, other: Tensor) -> Tensor:
    """Return the generalized intersection over union of each pair of boxes, given by their corners."""
    area, other_area = ((boxes[:, 2:] - boxes[:, :2]).prod(1) for boxes in (one, other))
    inner = torch.minimum(one[:, 2:], other[:, 2:]) - torch.maximum(one[:, :2], other[:, :2])
    outer = torch.maximum(one[:, 2:], other[:, 2:]) - torch.minimum(one[:, :2], other[:, :2])
    intersection, hull = inner.clamp(min=0).prod(1), outer.clamp(min=0).prod(1)
    union = area + other_area - intersection
    return intersection / union - (hull - union) / hull


# ---- checks ----------------------------------------------------------------------------------------------------


def _check_losses(losses: Any, counts: Any, image: Any) -> None:
    is_counts = isinstance(counts, Tensor) and counts.ndim == 1 and len(counts) > 0 and counts.dtype != torch.bool
    if not is_counts or counts.is_complex():
        remedy = "Pass what the framework divides by, of each image: the number of its positive anchors."
        raise InputError(message("counts as one number per image, shape [batch]", describe(counts), remedy))
    if not isinstance(losses, Tensor) or losses.ndim == 0 or losses.dtype not in DTYPES:
        remedy = 'Give the criterion reduction="none".'
        raise InputError(message("floating-point losses per anchor or box", describe(losses), remedy))
    if image is None and len(losses) != len(counts):
        remedy = "Of losses in one list over all images pass image, which says whose they are."
        raise InputError(message(f"losses of {len(counts)} images", describe(losses), remedy))
    is_index = isinstance(image, Tensor) and image.dtype == torch.int64 and image.shape == losses.shape[:1]
    if image is not None and not is_index:
        remedy = "Pass one int64 position in the batch for each row of losses."
        raise InputError(message(f"image of shape [{len(losses)}]", describe(image), remedy))
    for name, one in (("counts", counts), ("image", image)):
        if one is not None and one.device != losses.device:
            remedy = "Move it to the device of the losses."
            raise InputError(message(f"{name} on {losses.device}", f"{name} on {one.device}", remedy))


def _check_total(name: str, value: Any) -> Any:
    """Return a number to divide by; one in a tensor is not read, which would wait for the device."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.reshape(())
    if not is_number(value) or value <= 0:
        remedy = "Leave it out to divide by the number of the batch."
        raise InputError(message(f"{name} as a positive number", _describe_number(value), remedy))
    return value


def _describe_number(value: Any) -> str:
    return repr(value) if is_number(value) else describe(value)


def _check_matched(layers: Any, labels: Any, indices: Any) -> None:
    if isinstance(layers, Mapping) or not isinstance(layers, Sequence) or not layers:
        remedy = "Pass [outputs], followed by the auxiliary outputs."
        raise InputError(message("a list of layers", describe(layers), remedy))
    for layer in layers:
        parts = [layer[name] if isinstance(layer, Mapping) and name in layer else None for name in NAMES]
        shapes = [one.shape for one in parts if isinstance(one, Tensor) and one.ndim == 3 and one.dtype in DTYPES]
        is_good = len(shapes) == 2 and shapes[0][:2] == shapes[1][:2] and shapes[0].numel() > 0 and shapes[1][2] == 4
        if not is_good:
            expected = "in each layer, logits [batch, queries, classes + 1] and pred_boxes [batch, queries, 4]"
            got = " and ".join(map(describe, parts))
            raise InputError(message(expected, got, "Pass the outputs of the model as they are."))
    size = len(layers[0]["logits"])
    if not isinstance(labels, Sequence) or len(labels) != size or not all(map(_is_label, labels)):
        remedy = "Pass the labels as for the model: an image without objects has empty ones."
        raise InputError(message(f"class_labels and boxes of each of {size} images", describe(labels), remedy))
    device = layers[0]["logits"].device
    strays = {value.device for one in labels for value in (one["class_labels"], one["boxes"])} - {device}
    if strays:
        remedy = "Move them with the images."
        raise InputError(message(f"labels on {device}, like the logits", f"labels on {strays.pop()}", remedy))
    if not isinstance(indices, Sequence) or len(indices) != len(layers) or any(len(one) != size for one in indices):
        remedy = "Pass [matcher(layer, labels) for layer in layers]."
        expected = f"for each of {len(layers)} layers the matches of {size} images"
        raise InputError(message(expected, describe(indices), remedy))


def _is_label(one: Any) -> bool:
    if not isinstance(one, Mapping) or not all(isinstance(one.get(name), Tensor) for name in ("class_labels", "boxes")):
        return False
    return tuple(one["boxes"].shape) == (len(one["class_labels"]), 4)
