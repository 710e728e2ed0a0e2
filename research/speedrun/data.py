"""CIFAR in device memory, augmented a whole epoch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from nets import BATCH
from torch import Tensor

TRANSLATE, CUTOUT = 4, 12
NAMES = ("train_x", "train_y", "test_x", "test_y")


def read(folder: Path) -> dict[str, Tensor]:
    """Read train_x.npy, train_y.npy, test_x.npy and test_y.npy; images are uint8, N x 32 x 32 x 3."""
    return {name: torch.from_numpy(np.load(folder / f"{name}.npy")) for name in NAMES}


def make_up(classes: int, count: int) -> dict[str, Tensor]:
    """Make up images that are easy to tell apart, a fifth of them for the test."""
    generator = torch.Generator().manual_seed(7)
    means = torch.rand(classes, 4, 4, 3, generator=generator) * 255
    y = torch.randint(classes, (count,), generator=generator)
    coarse = means[y].repeat_interleave(8, 1).repeat_interleave(8, 2)
    x = (coarse + 60 * torch.randn(count, 32, 32, 3, generator=generator)).clamp(0, 255).byte()
    split = count - count // 5
    return {"train_x": x[:split], "train_y": y[:split], "test_x": x[split:], "test_y": y[split:]}


def hold_out(arrays: dict[str, Tensor], count: int) -> dict[str, Tensor]:
    """Set training samples aside and score on them instead of the test set."""
    order = torch.randperm(len(arrays["train_x"]), generator=torch.Generator().manual_seed(1234))
    out, rest = order[:count], order[count:]
    x, y = arrays["train_x"], arrays["train_y"]
    return {"train_x": x[rest], "train_y": y[rest], "test_x": x[out], "test_y": y[out]}


def pad(x: Tensor, width: int) -> Tensor:
    """Reflect the borders of N x H x W x C images."""
    size = x.shape[1]
    index = torch.arange(-width, size + width, device=x.device).abs()
    index = torch.where(index > size - 1, 2 * (size - 1) - index, index)
    return x[:, index][:, :, index]


class Data:
    """Normalized images and labels on the device."""

    def __init__(self, arrays: dict[str, Tensor], device: torch.device, dtype: torch.dtype) -> None:
        here = {name: array.to(device) for name, array in arrays.items()}
        pixels = here["train_x"].float() / 255
        mean, std = pixels.mean((0, 1, 2)), pixels.std((0, 1, 2))

        def normalize(x: Tensor) -> Tensor:
            return ((x.float() / 255 - mean) / std).to(dtype)

        self.x, self.test_x = normalize(here["train_x"]), normalize(here["test_x"])
        self.y, self.test_y = here["train_y"].long(), here["test_y"].long()
        self.classes = int(self.y.max()) + 1
        self.padded = pad(self.x, TRANSLATE)
        self.device = device

    def __len__(self) -> int:
        return len(self.y)

    def epochs(
        self, generator: torch.Generator, order_of: Callable[[], Tensor | None] | None = None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield (images, labels, indices): shuffled, alternately flipped, shifted, with a square cut out.

        Nothing but the generator decides what comes, so all methods see the same batches with the same seed.

        Args:
            generator: The source of randomness.
            order_of: Returns the samples of the next epoch, in order, and None after the last; then a short last batch
                comes, too. Without it all samples come, shuffled, in full batches, for ever.
        """
        size, device = len(self), self.device
        first = torch.rand(size, generator=generator, device=device) < 0.5
        span = torch.arange(32, device=device)
        epoch = 0
        while True:
            order = torch.randperm(size, generator=generator, device=device)
            shift = torch.randint(0, 2 * TRANSLATE + 1, (2, size, 1), generator=generator, device=device)
            corner = torch.randint(0, 32 - CUTOUT + 1, (2, size, 1), generator=generator, device=device)
            if order_of is not None:
                planned = order_of()
                if planned is None:
                    return
                order = planned.to(device)
                shift, corner = shift[:, : len(order)], corner[:, : len(order)]
            flip = first[order, None] ^ bool(epoch % 2)
            rows = shift[0] + span
            columns = shift[1] + torch.where(flip, 31 - span, span)
            images = self.padded[order[:, None, None], rows[:, :, None], columns[:, None, :]]
            inside = (span >= corner) & (span < corner + CUTOUT)
            images.masked_fill_((inside[0][:, :, None] & inside[1][:, None, :]).unsqueeze(-1), 0)
            labels = self.y[order]
            end = len(order) if order_of is not None else size // BATCH * BATCH
            for start in range(0, end, BATCH):
                part = slice(start, min(start + BATCH, end))
                yield images[part], labels[part], order[part]
            epoch += 1
