"""The mean intersection over union of classes of pixels."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import checks
from ...errors import InputError, message
from .metric import NothingMeasuredError
from .metric_info import MARGIN, PERCENT


class MeanIoU:
    """The intersection over union, averaged over the classes that occur in masks or predictions, in percent.

    It is counted from one confusion matrix over the whole test set, so that it does not depend on the batches.

    Args:
        classes: The number of classes.
        ignore_index: The label of pixels that do not count.
        margin: How many points may be lost.

    >>> from infobatch.lab.metrics import MeanIoU
    >>> metric = MeanIoU(classes=2)
    >>> metric.update(torch.tensor([[0, 1, 1, 1]]), torch.tensor([[0, 0, 1, 255]]))
    >>> metric.compute(), metric.by_class(2)
    (50.0, [50.0, 50.0])
    """

    name, unit, higher_is_better = "mean IoU", PERCENT, True

    def __init__(self, classes: int, ignore_index: int = 255, margin: float = MARGIN) -> None:
        checks.check_count("classes", classes, 1, "It is the number of classes of the pixels.")
        self.classes, self.ignore_index, self.margin = classes, ignore_index, margin
        self.reset()

    def reset(self) -> None:
        """See Metric."""
        self.confusion = torch.zeros(self.classes, self.classes, dtype=torch.int64)
        """Pixels by class in the mask and predicted class."""

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Count the pixels of a batch.

        Args:
            outputs: One output per class, [N, classes, ...], or the predicted classes, [N, ...] as integers.
            targets: The class of each pixel, [N, ...] as integers.

        Raises:
            InputError: If the shapes do not fit, or a label is not a class.
        """
        predicted = (
            outputs if isinstance(outputs, Tensor) and not outputs.is_floating_point() else self._classes(outputs)
        )
        if not isinstance(targets, Tensor) or targets.shape != predicted.shape or targets.is_floating_point():
            remedy = "Resize the outputs to the masks inside the net, as with torch.nn.functional.interpolate."
            expected = f"masks of integers of shape {list(predicted.shape)}, as the outputs"
            raise InputError(message(expected, checks.describe(targets), remedy))
        valid = targets != self.ignore_index
        rows, columns = targets[valid].long(), predicted[valid].long()
        for what, values in (("masks", rows), ("predictions", columns)):
            if values.numel() and not 0 <= int(values.min()) <= int(values.max()) < self.classes:
                got = f"{int(values.min())} to {int(values.max())}"
                remedy = f"Pixels that do not count have the label ignore_index={self.ignore_index}."
                raise InputError(message(f"{what} with classes from 0 to {self.classes - 1}", got, remedy))
        found = torch.bincount(rows * self.classes + columns, minlength=self.classes**2)
        self.confusion = self.confusion.to(found.device) + found.reshape(self.classes, self.classes)

    def compute(self) -> float:
        """See Metric.

        Raises:
            InputError: If no pixel counted.
        """
        union = self._union()
        if not union.any():
            remedy = f"All labels are ignore_index={self.ignore_index}: choose another one."
            raise NothingMeasuredError(message("a pixel to measure the mean IoU on", "none", remedy))
        return 100 * float((self.confusion.diagonal()[union > 0].double() / union[union > 0]).mean())

    def by_class(self, classes: int) -> list[float | None] | None:
        """Return the intersection over union per class, in percent; None for a class that does not occur."""
        if classes != self.classes:
            return None
        pairs = zip(self.confusion.diagonal().tolist(), self._union().tolist(), strict=True)
        return [round(100 * both / either, 4) if either else None for both, either in pairs]

    def _union(self) -> Tensor:
        return self.confusion.sum(0) + self.confusion.sum(1) - self.confusion.diagonal()

    def _classes(self, outputs: object) -> Tensor:
        if not isinstance(outputs, Tensor) or outputs.dim() < 2 or outputs.shape[1] != self.classes:
            remedy = "Return the logits from the net itself, not from a larger output."
            raise InputError(message(f"outputs [N, {self.classes}, ...]", checks.describe(outputs), remedy))
        return outputs.argmax(1)
