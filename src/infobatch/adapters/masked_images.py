"""The reconstruction loss of masked images, one per image: MAE.

The trap: which patches were masked is most of what differs between two losses of an image. Average the scores over
epochs: ``infobatch.variations.averaged(method)``.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

from torch import Tensor

from ..checks import DTYPES, describe, describe_placed
from ..errors import InputError, message
from .per_sample import PerSample, at_least_single, per_sample


def masked_image_loss(logits: Tensor, mask: Tensor, pixel_values: Tensor, *, norm_pix_loss: bool = False) -> PerSample:
    """Return the mean squared error of each image over its masked patches.

    Use it in place of the ``loss`` of transformers' ``ViTMAEForPreTraining``, with what else that returns:
    ``masked_image_loss(out.logits, out.mask, pixel_values, norm_pix_loss=model.config.norm_pix_loss)``. As there, all
    images have equally many masked patches; if yours have not, the mean over the batch is that of the images, not of
    all masked patches.

    A score from one mask says more about the mask than about the image, and a rule prunes by it. Wrap the method in
    ``infobatch.variations.averaged``, which ranks by an average over the epochs.

    Args:
        logits: The predicted patches, shape [batch, patches, patch_size² * channels], as from the decoder.
        mask: 1 for the masked patches, shape [batch, patches].
        pixel_values: The images, shape [batch, channels, height, width].
        norm_pix_loss: Whether the target of each patch is normalized by its own mean and variance, as in the model's
            config.

    Returns:
        ``loss`` and ``score``, each of shape [batch] and at least float32; 0 and NaN for an image without a masked
        patch.

    Raises:
        InputError: If an argument has the wrong shape, type or device.

    >>> import torch, infobatch
    >>> data = torch.utils.data.TensorDataset(torch.rand(40, 3, 8, 8))
    >>> decoder = torch.nn.Linear(1, 48)  # predicts four patches of 4 x 4 pixels in 3 channels
    >>> method = infobatch.variations.averaged(infobatch.methods.infobatch())
    >>> train_data = infobatch.Pruned(data, method, num_epochs=8)
    >>> for (images,) in infobatch.DataLoader(train_data, batch_size=10):
    ...     mask = (torch.rand(10, 4).argsort(1) < 3).float()  # three of four
    ...     logits = decoder(images.mean((1, 2, 3)).view(10, 1, 1).expand(10, 4, 1))
    ...     loss, score = infobatch.adapters.masked_image_loss(logits, mask, images)
    ...     train_data.update(loss, score=score).backward()
    """
    size = _check_images(logits, mask, pixel_values)
    logits = at_least_single(logits)
    target = _patchify(pixel_values.to(logits.dtype), size)
    if norm_pix_loss:
        mean = target.mean(dim=-1, keepdim=True)
        var = target.var(dim=-1, keepdim=True)
        target = (target - mean) / (var + 1.0e-6) ** 0.5
    return per_sample(((logits - target) ** 2).mean(dim=-1), mask)


def _patchify(images: Tensor, size: int) -> Tensor:
    """Return the pixels of each patch, row by row, channels last."""
    batch, channels, height, width = images.shape
    parts = images.reshape(batch, channels, height // size, size, width // size, size)
    return parts.permute(0, 2, 4, 3, 5, 1).reshape(batch, -1, size * size * channels)


def _check_images(logits: Any, mask: Any, images: Any) -> int:
    """Return the size of a patch, after checking that the three fit together."""
    given = {"logits": (logits, 3), "mask": (mask, 2), "pixel_values": (images, 4)}
    for name, (one, dimensions) in given.items():
        if not isinstance(one, Tensor) or one.ndim != dimensions or not one.numel() or one.device != logits.device:
            got = describe_placed(one)
            remedy = "Pass out.logits, out.mask and the images of a batch that is not empty, on one device."
            raise InputError(message(f"{name} as a tensor with {dimensions} dimensions", got, remedy))
    for name, one in (("logits", logits), ("pixel_values", images)):
        if one.dtype not in DTYPES:
            raise InputError(message(f"{name} as floating-point numbers", describe(one), f"Pass {name}.float()."))
    batch, channels, height, width = images.shape
    size = isqrt(logits.shape[2] // channels)
    patches = (height // size) * (width // size) if size else 0
    fits = (
        size * size * channels == logits.shape[2] and height == height // size * size and width == width // size * size
    )
    if not fits or logits.shape[:2] != (batch, patches) or mask.shape != (batch, patches):
        expected = "logits of shape [batch, patches, patch_size² * channels], a mask of shape [batch, patches]"
        got = f"{list(logits.shape)} and {list(mask.shape)} for images of shape {list(images.shape)}"
        remedy = "Pass out.logits and out.mask for these images; the class token is not among the patches."
        raise InputError(message(expected, got, remedy))
    return size
