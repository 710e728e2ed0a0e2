"""Made images of discs and squares with their masks: segmentation that trains in seconds and needs no files."""

from __future__ import annotations

import torch

from ..readers.common import Samples
from ..task import Arrays
from .crops import IGNORED

CLASSES = ("ground", "disc", "square")
COLOURS = torch.tensor([[0.4, 0.5, 0.4], [0.7, 0.4, 0.3], [0.3, 0.4, 0.7]])
"""The mean colour of each class; a shape's own differs from it by up to 0.3."""
SIZE = 24
TRAIN, TEST = 240, 80


def read() -> Samples:
    """Draw the images, always the same ones; the border of each shape does not count.

    >>> samples = read()
    >>> len(samples.train), len(samples.test), samples.classes
    (240, 80, ('ground', 'disc', 'square'))
    """
    generator = torch.Generator().manual_seed(0)
    return Samples(_draw(TRAIN, generator), _draw(TEST, generator), "made: discs and squares", CLASSES)


def _draw(count: int, generator: torch.Generator) -> Arrays:
    """Draw images with one disc and one square each, of any size; one may cover the other."""
    masks = torch.zeros(count, SIZE, SIZE, dtype=torch.uint8)
    images = _colours(0, torch.rand(count, 3, 1, 1, generator=generator)).expand(-1, -1, SIZE, SIZE)
    rows, columns = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    for label in (1, 2):
        draws = torch.rand(6, count, 1, 1, generator=generator)
        down, across = (rows - draws[0] * SIZE).abs(), (columns - draws[1] * SIZE).abs()
        reach = 3 + 5 * draws[2]
        distance = (down**2 + across**2).sqrt() if label == 1 else torch.maximum(down, across)
        inside = distance <= reach
        masks[inside] = label
        masks[(distance - reach).abs() < 0.5] = IGNORED
        images = torch.where(inside[:, None], _colours(label, draws[3:].permute(1, 0, 2, 3)), images)
    noise = 0.15 * torch.randn(images.shape, generator=generator)
    return Arrays(((images + noise).clamp(0, 1) * 255).byte(), masks)


def _colours(label: int, draws: torch.Tensor) -> torch.Tensor:
    return COLOURS[label][:, None, None] + 0.6 * (draws - 0.5)
