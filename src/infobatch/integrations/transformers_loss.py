"""The loss per sample of a model of transformers: the cross entropy of its logits, compared with the model's own loss.

A model returns a mean over its batch. Whether our losses are what it averages, and by how many tokens its labels are
shifted, shows in the loss that it returns. Users need none of this: ``PrunedTrainer`` calls it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..adapters.per_sample import PerSample, per_sample
from ..errors import InputError, message

__all__: list[str] = []

IGNORED = -100
"""The label that transformers gives to tokens which are not predicted."""
CROSS_ENTROPY = "a model whose loss is the cross entropy of its logits"
LOSS_PER_SAMPLE = (
    "Pass compute_loss_func=f, where f(outputs, labels, num_items_in_batch=None) returns one loss per sample, or "
    "infobatch.per_sample(losses, mask)."
)


def __dir__() -> list[str]:
    return [*__all__]


def losses_per_sample(logits: Tensor, labels: Tensor, shift: int, smoothing: float = 0.0) -> tuple[PerSample, Tensor]:
    """Return each sample's cross entropy, averaged over its labels, and its number of labels."""
    logits, labels = _shift(logits, labels, shift)
    flat = F.cross_entropy(
        logits.flatten(0, -2).float(),
        labels.flatten(),
        ignore_index=IGNORED,
        reduction="none",
        label_smoothing=smoothing,
    )
    valid = labels != IGNORED
    return per_sample(flat.view(labels.shape), valid), valid.view(len(labels), -1).sum(1)


def _shift(logits: Tensor, labels: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    return (logits[:, :-shift], labels[:, shift:]) if shift else (logits, labels)


def mean_over_labels(loss: Tensor, counts: Tensor) -> Tensor:
    """Return the mean over all labels of the batch, as models of transformers compute it."""
    return (loss * counts).sum() / counts.sum()


def own_candidates(own: Tensor, logits: Tensor, labels: Tensor, shift: int) -> list[Tensor]:
    """Return what the model's loss may be, given its logits.

    A loss in half precision may have been computed in half precision throughout, or in float32 and then rounded.
    """
    found, counts = losses_per_sample(logits, labels, shift)
    candidates = [mean_over_labels(found.loss, counts)]
    if own.itemsize <= 2:
        logits, labels = _shift(logits, labels, shift)
        flat = logits.flatten(0, -2).to(own.dtype)
        candidates.append(F.cross_entropy(flat, labels.flatten(), ignore_index=IGNORED))
    return candidates


def compare(own: Tensor, ours: list[Tensor]) -> Tensor:
    """Return (distance, own, ours): a distance above 1 is too large. Does not wait for the device.

    If ours is not finite there is nothing to compare: the batch has no labels, or the training has diverged. The
    absolute tolerance is for losses near 0, where the relative error of float32 is large.
    """
    tolerance = max(1e-4, 2 * torch.finfo(own.dtype).eps)
    loss, candidates = own.reshape(()).float(), torch.stack([one.float() for one in ours])
    distances = (loss - candidates).abs() / (tolerance * candidates.abs() + 1e-5)
    distance = distances.nan_to_num(math.inf).min()
    return torch.stack([torch.where(candidates[0].isfinite(), distance, 0.0), loss, candidates[0]])


def find_shift(own: Tensor, logits: Tensor, labels: Tensor) -> int:
    """Return 0 if tokens predict themselves and 1 if they predict the next one, judging by the model's own loss."""
    candidates = [own_candidates(own, logits.detach(), labels, shift) for shift in range(labels.ndim)]
    got = f"a loss of {own.item()} and a cross entropy of {' or '.join(str(ours[0].item()) for ours in candidates)}"
    matches = [
        shift for shift, ours in enumerate(candidates) if ours[0].isfinite() and compare(own.detach(), ours)[0] <= 1
    ]
    if len(matches) > 1 or (matches and own.itemsize <= 2):
        # At the first step all losses are nearly equal, especially in half precision. Their gradients are not.
        (gradient,) = torch.autograd.grad(own, logits, retain_graph=True, allow_unused=True)
        if gradient is not None:
            matches = [shift for shift in matches if _has_gradient(gradient, own, logits, labels, shift)]
            got += ", with different gradients"
    if len(matches) != 1:
        raise InputError(message(CROSS_ENTROPY, got, LOSS_PER_SAMPLE))
    return matches[0]


def _has_gradient(gradient: Tensor, own: Tensor, logits: Tensor, labels: Tensor, shift: int) -> bool:
    """Return True if our loss has this gradient at the logits, within the accuracy of half precision."""
    logits = logits.detach().requires_grad_()
    losses = own_candidates(own, logits, labels, shift)
    gradients = [torch.autograd.grad(loss, logits)[0].float() for loss in losses]
    return any(bool((gradient.float() - ours).abs().max() <= 0.05 * ours.abs().max()) for ours in gradients)


def fit(logits: Tensor, labels: Tensor) -> bool:
    """Whether these are logits for one class per sample or token, and such labels."""
    return 1 <= labels.ndim <= 2 and logits.shape[:-1] == labels.shape and not labels.is_floating_point()


def describe(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else "none"
