"""The loss per sample in ``PrunedTrainer``: the user's own, or the cross entropy of the logits of a model.

A model returns a mean over its batch. Whether our losses are what it averages, and by how many tokens its labels are
shifted, shows in the loss that it returns. Users need none of this: ``PrunedTrainer`` calls it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..adapters.per_sample import PerSample, per_sample
from ..errors import InputError, message

__all__: list[str] = []

IGNORED = -100
"""The label that transformers gives to tokens which are not predicted."""
NUMBER = "num_items_in_batch"
"""The name under which the Trainer passes the number of labels of the accumulated batches."""
CROSS_ENTROPY = "a model whose loss is the cross entropy of its logits"
LOSS_PER_SAMPLE = (
    "Pass compute_loss_func=f, where f(outputs, labels, num_items_in_batch=None, inputs=None) returns one loss per "
    "sample, or infobatch.per_sample(losses, mask)."
)


def __dir__() -> list[str]:
    return [*__all__]


class LossFunction:
    """A ``compute_loss_func`` that is called with what it takes, and may return a ``PerSample``.

    It is called as the Trainer calls it. The Trainer gets the losses alone.

    Args:
        func: The user's function, which returns one loss per sample, or a ``PerSample``.

    Raises:
        InputError: If the function cannot be called with outputs and labels.

    Example:
        >>> import torch, infobatch
        >>> losses = torch.tensor([[1.0, 3.0], [0.0, 0.0]])
        >>> func = LossFunction(lambda outputs, labels: infobatch.per_sample(outputs, labels != IGNORED))
        >>> func(losses, torch.tensor([[4, 2], [IGNORED, IGNORED]]), num_items_in_batch=2), func.score
        (tensor([2., 0.]), tensor([2., nan]))
    """

    def __init__(self, func: Callable[..., Any]) -> None:
        self.func = func
        self.inputs: dict[str, Any] | None = None
        """The batch to pass to a function that takes it."""
        self.score: Tensor | None = None
        """The scores of the last call, if it returned any."""
        self.takes_number, self.takes_inputs = True, False
        try:
            signature = inspect.signature(func.forward if isinstance(func, nn.Module) else func)
        except (TypeError, ValueError):  # of C code, say: called as the Trainer would
            return
        kinds = {one.kind for one in signature.parameters.values()}
        self.takes_number = NUMBER in signature.parameters or inspect.Parameter.VAR_KEYWORD in kinds
        self.takes_inputs = "inputs" in signature.parameters
        given = [*([NUMBER] if self.takes_number else []), *(["inputs"] if self.takes_inputs else [])]
        try:
            signature.bind(None, None, **dict.fromkeys(given))
        except TypeError as error:
            expected = "compute_loss_func as f(outputs, labels, num_items_in_batch=None, inputs=None)"
            remedy = "Name its parameters like these; the last two may be left out."
            raise InputError(message(expected, f"f{signature}: {error}", remedy)) from None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the losses that the function returns, and keep the scores."""
        if not self.takes_number:
            kwargs.pop(NUMBER, None)
        if self.takes_inputs:
            kwargs["inputs"] = self.inputs
        found = self.func(*args, **kwargs)
        loss, self.score = found if isinstance(found, PerSample) else (found, None)
        return loss


def find_scale(losses: Any, doubled: Any) -> bool | None:
    """Return True if losses are divided by the number of items, False if they do not depend on it, None if unknown.

    Args:
        losses: The losses of a batch.
        doubled: What they would be if the number were twice as large.
    """
    if not isinstance(losses, Tensor) or losses.ndim != 1 or not isinstance(doubled, Tensor):
        return None  # refused elsewhere
    losses = losses.detach().float()
    tells = losses.isfinite() & (losses != 0)
    ratios = (doubled.float() / losses)[tells].tolist()
    if not ratios:
        return None
    for ratio, is_scaled in ((0.5, True), (1.0, False)):
        if all(abs(one - ratio) < 0.01 for one in ratios):
            return is_scaled
    raise InputError(
        message(
            "a compute_loss_func whose losses are divided by num_items_in_batch or do not depend on it",
            f"losses that change by factors from {min(ratios):.3f} to {max(ratios):.3f} when that number doubles",
            "Say which scale they have in class Mine(PrunedTrainer): loss_is_scaled_for_ga = True if their mean is a "
            "share of the loss of a whole step, False if it is a mean over the batch.",
        )
    )


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
