"""The tasks of segmentation, from what a reader found."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from ....adapters import segmentation_loss
from ....adapters.per_sample import PerSample
from ....checks import describe
from ....errors import InputError, message
from ...metrics import MeanIoU
from ..readers.common import Samples
from ..task import Arrays, Task
from .crops import IGNORED, RandomCrops
from .mask_files import MaskedImages
from .pixel_nets import HEAD_WEIGHTS

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet, as in mmsegmentation."""
TEST_BATCH = 16
"""Test images of one size in a batch; images of several sizes come one by one."""


class FullSizeIoU(MeanIoU):
    """The mean intersection over union at the size of the masks: the decode head's logits are resized to it."""

    def update(self, outputs: Tensor | tuple[Tensor, ...], targets: Tensor) -> None:
        """Count the pixels of a batch.

        Args:
            outputs: The logits of the decode head, [N, classes, height, width], alone or as the first of several.
            targets: The class of each pixel, [N, height, width] as integers, of any size.

        Raises:
            InputError: If there are no logits of pixels, or a label is not a class.
        """
        logits = outputs[0] if isinstance(outputs, (tuple, list)) else outputs
        if not isinstance(logits, Tensor) or logits.dim() != 4:
            remedy = "Choose a net that labels pixels: fpn8, fpn32 or transformers:upernet."
            raise InputError(message("outputs [N, classes, height, width] of the net", describe(logits), remedy))
        if logits.shape[2:] != targets.shape[1:]:
            logits = F.interpolate(logits.float(), size=targets.shape[1:], mode="bilinear", align_corners=False)
        super().update(logits, targets)


def make(name: str, samples: Samples, defaults: dict[str, Any]) -> Task:
    """Make the task.

    Args:
        name: Its name.
        samples: Images and masks, in memory or as ``MaskedImages``.
        defaults: Its default settings.
    """
    train = samples.train
    if isinstance(train, Arrays):
        size, test_batch = min(train.inputs.shape[-2:]), TEST_BATCH
    else:
        assert isinstance(train, MaskedImages)
        size, test_batch = train.side, 1
    return Task(
        name=name,
        train=train,
        test=samples.test,
        classes=samples.classes,
        defaults=dict(defaults),
        mean=MEAN,
        std=STD,
        loss=heads_loss,
        metric=FullSizeIoU(len(samples.classes), IGNORED),
        augment=RandomCrops(size),
        source=samples.source,
        test_batch=test_batch,
    )


def heads_loss(outputs: Any, masks: Tensor, label_smoothing: float) -> PerSample:
    """Return the loss per image of one head, or of a decode and an auxiliary head, averaged as in mmsegmentation.

    Pixels that do not count are part of the average, so that each image of a batch weighs the same and pruning is
    unbiased.

    Raises:
        InputError: If there are other outputs, or labels are to be smoothed.
    """
    if label_smoothing:
        remedy = "Leave label_smoothing out: there is none in this loss."
        raise InputError(message("label_smoothing 0 for segmentation", repr(label_smoothing), remedy))
    heads = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    if len(heads) > len(HEAD_WEIGHTS):
        remedy = "Return the logits of the decode head, and those of one auxiliary head or none."
        raise InputError(message("one or two heads", f"{len(heads)} outputs", remedy))
    return segmentation_loss(heads, masks, HEAD_WEIGHTS[: len(heads)], ignore_index=IGNORED, average="all")
