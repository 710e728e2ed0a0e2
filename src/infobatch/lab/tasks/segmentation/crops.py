"""Random crops of images and their masks together, at random scales and flipped, on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

IGNORED = 255
"""The label of pixels that do not count."""


@dataclass(frozen=True)
class RandomCrops:
    """Scale images at random, cut a square out of each at random, and flip half of them, as mmsegmentation does.

    A crop lies within what is labeled, as far as that reaches; what it covers beyond is 0 in the image (after
    normalization the mean) and does not count in the mask.

    >>> images, masks = torch.rand(2, 3, 40, 60), torch.zeros(2, 40, 60, dtype=torch.uint8)
    >>> images, masks = RandomCrops(32)(images, masks, torch.Generator())
    >>> tuple(images.shape), tuple(masks.shape)
    ((2, 3, 32, 32), (2, 32, 32))
    """

    size: int
    """Pixels of a side of the crop."""
    scales: tuple[float, float] = (0.5, 2.0)
    """The smallest and the largest factor by which images are enlarged."""

    def __call__(self, inputs: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Crop a batch.

        Args:
            inputs: Normalised images [N, C, H, W].
            targets: Their masks [N, H, W], as integers.
            generator: Where all random numbers come from, on the device of the images.

        Returns:
            Images [N, C, size, size], and masks [N, size, size] of the type they had.
        """
        draws = torch.rand(4, len(inputs), generator=generator, device=inputs.device)
        low, high = self.scales
        scale = low + (high - low) * draws[0]
        valid = targets != IGNORED
        rows = _pixels(valid.any(2), scale, draws[1], self.size)
        columns = _pixels(valid.any(1), scale, draws[2], self.size)
        columns = torch.where(draws[3][:, None] < 0.5, columns.flip(1), columns)
        height, width = inputs.shape[2:]
        across = ((2 * columns + 1) / width - 1)[:, None, :].expand(-1, self.size, -1)
        down = ((2 * rows + 1) / height - 1)[:, :, None].expand(-1, -1, self.size)
        grid = torch.stack([across, down], 3)
        images = F.grid_sample(inputs, grid.to(inputs.dtype), mode="bilinear", align_corners=False)
        # 0 is what lies beyond, so classes are counted from 1
        numbers = torch.where(valid, targets.float() + 1, 0.0)[:, None]
        found = F.grid_sample(numbers, grid, mode="nearest", align_corners=False)[:, 0].round()
        return images, torch.where(found > 0, found - 1, float(IGNORED)).to(targets.dtype)


def _pixels(has_labels: Tensor, scale: Tensor, place: Tensor, size: int) -> Tensor:
    """Return the pixels, with fractions, that ``size`` pixels of the scaled crop come from, along one side.

    Args:
        has_labels: Which pixels of the side have labels, [N, side].
        scale: How much each image is enlarged, [N].
        place: Where the crop lies among the places that are left, in [0, 1), [N].
        size: Pixels of the crop.
    """
    labeled = has_labels.int()
    first = labeled.argmax(1)
    last = has_labels.shape[1] - labeled.flip(1).argmax(1)
    free = ((last - first) * scale - size).clamp(min=0).floor() + 1
    start = (place * free).floor()[:, None] + torch.arange(size, device=scale.device) + 0.5
    return first[:, None] + start / scale[:, None] - 0.5
