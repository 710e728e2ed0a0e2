"""The batches of an epoch, from device memory or from a DataLoader. Both give the same batches.

Crops and flips are drawn for a whole epoch from (seed, epoch), one per position in the plan. They therefore depend
neither on the feed, nor on where a run was interrupted, nor on whether the step is captured. Loaders get their own
generators: otherwise each pass would draw from torch's global one, and a resumed epoch takes one more pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from ...dataset import Pruned
from ...errors import InputError, message
from ...loader import DataLoader
from ...plan import generator_for
from ..tasks.task import Arrays, Task, check_labels
from .settings import CropPadding, Settings

TEST_BATCH = 1000
FEW = 64
SALT = 0x5EED  # makes the draws independent of the plans


@dataclass(frozen=True, eq=False)
class Draws:
    """The crop and the flip of each position in a plan; None if the task has none."""

    shifts: Tensor | None
    flips: Tensor | None

    def at(self, places: slice) -> Draws:
        """Return the draws of these positions."""
        return Draws(
            None if self.shifts is None else self.shifts[places], None if self.flips is None else self.flips[places]
        )


def draw_augmentations(task: Task, settings: Settings, epoch: int, count: int, device: torch.device) -> Draws:
    """Draw crops and flips for the ``count`` positions of an epoch's plan."""
    generator = generator_for(settings.seed ^ SALT, epoch, device)
    crops, flips = settings.augment and task.pad > 0, settings.augment and task.flip
    return Draws(
        torch.randint(2 * task.pad + 1, (count, 2), generator=generator, device=device) if crops else None,
        torch.rand(count, generator=generator, device=device) < 0.5 if flips else None,
    )


class Preprocess:
    """Crop, flip and normalise a batch of byte images on the device; other inputs pass unchanged."""

    def __init__(self, task: Task, settings: Settings, device: torch.device) -> None:
        self.pad, self.padding = task.pad, settings.crop_padding
        self.channels_last = settings.channels_last
        self.mean = torch.tensor(task.mean or 0.0, device=device).reshape(-1, 1, 1) * 255
        self.scale = 1 / (torch.tensor(task.std or 1.0, device=device).reshape(-1, 1, 1) * 255)

    def __call__(self, inputs: Any, draws: Draws | None = None) -> Any:
        if not isinstance(inputs, Tensor) or inputs.dtype != torch.uint8:
            return inputs
        if draws is not None:
            inputs = crop_and_flip(inputs, draws, self.pad, self.padding)
        x = (inputs.float() - self.mean) * self.scale
        return x.contiguous(memory_format=torch.channels_last) if self.channels_last and x.dim() == 4 else x


def crop_and_flip(images: Tensor, draws: Draws, pad: int, padding: CropPadding = "zeros") -> Tensor:
    """Crop and flip images with one gather; crops may reach ``pad`` pixels beyond the edge.

    Args:
        images: Images [N, C, H, W].
        draws: The crop and the flip of each.
        pad: How far crops may reach.
        padding: What they find there: zeros, or the image reflected at its outermost pixels.

    Raises:
        InputError: If an image is too small to be reflected that far.
    """
    if draws.shifts is None and draws.flips is None:
        return images
    count, _, height, width = images.shape
    rows = torch.arange(height, device=images.device).expand(count, -1)
    columns = torch.arange(width, device=images.device).expand(count, -1)
    if draws.flips is not None:
        columns = torch.where(draws.flips[:, None], width - 1 - columns, columns)
    if draws.shifts is not None:
        rows, columns = rows + draws.shifts[:, :1], columns + draws.shifts[:, 1:]
        if padding == "zeros":
            images = F.pad(images, (pad, pad, pad, pad))
        else:  # torch's reflection takes no bytes on a CPU
            rows, columns = _reflect(rows - pad, height, pad), _reflect(columns - pad, width, pad)
    image = torch.arange(count, device=images.device)[:, None, None]
    return images.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _reflect(places: Tensor, size: int, pad: int) -> Tensor:
    """Return the pixels that are as far inside the edge as ``places`` are outside."""
    if pad >= size:
        expected = f"images of more than {pad} pixels, to reflect {pad} at each edge"
        raise InputError(message(expected, f"a side of {size}", "Leave crop_padding=reflect out, or pad less."))
    return size - 1 - (size - 1 - places.abs()).abs()


@dataclass(frozen=True, eq=False)
class Batch:
    """One training batch."""

    inputs: Any
    labels: Tensor
    draws: Draws
    indices: Tensor | None
    """None from a loader, which carries the indices itself."""


class Feed(Protocol):
    """Where the batches of a run come from."""

    seconds: float
    """Seconds spent waiting for data so far."""

    def epoch(self, draws: Draws, done: int) -> Iterator[Batch]:
        """Yield the batches of the current plan that follow its first ``done`` samples."""
        ...

    def test(self) -> Iterator[tuple[Any, Tensor]]:
        """Yield inputs and labels of the test set."""
        ...

    def few(self) -> Iterator[tuple[Any, Tensor]]:
        """Yield one batch of a few test samples."""
        ...


class Resident:
    """A feed that holds all data in device memory."""

    def __init__(self, task: Task, train_data: Pruned, settings: Settings, device: torch.device) -> None:
        assert isinstance(task.train, Arrays)
        self.inputs, self.labels = task.train.inputs.to(device), task.train.labels.to(device)
        self.train_data = train_data
        self.batch_size = settings.batch_size
        self.seconds = 0.0
        is_array = isinstance(task.test, Arrays)
        self._test = _TestArrays(task.test, device) if is_array else _TestLoader(task, settings, device)

    def epoch(self, draws: Draws, done: int) -> Iterator[Batch]:
        """See Feed."""
        indices = self.train_data.plan().indices.to(self.inputs.device)
        for at in range(done, len(indices), self.batch_size):
            places = slice(at, at + self.batch_size)
            yield self.batch_of(indices[places], draws.at(places))

    def batch_of(self, indices: Tensor, draws: Draws) -> Batch:
        """Gather the samples of these indices."""
        inputs, labels = self.inputs.index_select(0, indices), self.labels.index_select(0, indices)
        return Batch(inputs, labels, draws, indices)

    def test(self) -> Iterator[tuple[Any, Tensor]]:
        """See Feed."""
        return iter(self._test)

    def few(self) -> Iterator[tuple[Any, Tensor]]:
        """See Feed."""
        return self._test.few()


class Loader:
    """A feed that reads from a DataLoader with workers."""

    def __init__(self, task: Task, train_data: Pruned, settings: Settings, device: torch.device) -> None:
        self.loader: Any = DataLoader(
            train_data,
            batch_size=settings.batch_size,
            num_workers=settings.workers,
            pin_memory=device.type == "cuda",
            persistent_workers=settings.workers > 0,
        )
        self.device = device
        self.classes = len(task.classes)
        self.seconds = 0.0
        self._test = _TestLoader(task, settings, device)

    def epoch(self, draws: Draws, done: int) -> Iterator[Batch]:
        """See Feed."""
        start = perf_counter()
        self.loader.seed_workers()
        for inputs, labels in checked_pairs(self.loader, self.classes, "training", self.device):
            self.seconds += perf_counter() - start
            places = slice(done, done + len(labels))
            yield Batch(inputs, labels, draws.at(places), None)
            done = places.stop
            start = perf_counter()

    def test(self) -> Iterator[tuple[Any, Tensor]]:
        """See Feed."""
        return iter(self._test)

    def few(self) -> Iterator[tuple[Any, Tensor]]:
        """See Feed."""
        return self._test.few()


class _TestArrays:
    def __init__(self, data: Any, device: torch.device) -> None:
        self.inputs, self.labels = data.inputs.to(device), data.labels.to(device)

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        for at in range(0, len(self.labels), TEST_BATCH):
            yield self.inputs[at : at + TEST_BATCH], self.labels[at : at + TEST_BATCH]

    def few(self) -> Iterator[tuple[Any, Tensor]]:
        yield self.inputs[:FEW], self.labels[:FEW]


class _TestLoader:
    def __init__(self, task: Task, settings: Settings, device: torch.device) -> None:
        size = min(TEST_BATCH, max(settings.batch_size, 256))
        data, generator = cast(Any, task.test), torch.Generator()
        self.loader: Any = torch.utils.data.DataLoader(data, size, num_workers=settings.workers, generator=generator)
        self.classes, self.device = len(task.classes), device

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        return checked_pairs(self.loader, self.classes, "test", self.device)

    def few(self) -> Iterator[tuple[Any, Tensor]]:
        """Read one batch with a separate loader, so that the test loader's generator is not advanced.

        It uses a worker if the run does: files that a data set opens here would be inherited by later workers.
        """
        workers, generator = min(1, self.loader.num_workers), torch.Generator()
        loader: Any = torch.utils.data.DataLoader(self.loader.dataset, FEW, num_workers=workers, generator=generator)
        return islice(checked_pairs(loader, self.classes, "test", self.device), 1)


def checked_pairs(loader: Any, classes: int, name: str, device: torch.device) -> Iterator[tuple[Any, Tensor]]:
    """Yield inputs and labels of each batch on the device.

    Args:
        loader: Yields the batches.
        classes: The number of classes; 0 if the labels are not classes.
        name: "training" or "test", for error messages.
        device: Where the batches go.

    Raises:
        InputError: If a batch is not a pair, or its labels cannot be right.
    """
    for batch in loader:
        if not isinstance(batch, (list, tuple)) or len(batch) != 2:
            got = f"{len(batch)} parts" if isinstance(batch, (list, tuple)) else type(batch).__name__
            raise InputError(
                message(f"samples (input, label) in the {name} set", got, "Return two values from __getitem__.")
            )
        inputs, labels = batch
        if classes:
            check_labels(labels, classes, f"the {name} set")
        elif not isinstance(labels, Tensor):
            got = f"{type(labels).__name__} in the {name} set"
            raise InputError(message("labels that batch to a tensor", got, "Return numbers or tensors as labels."))
        yield move(inputs, device), move(labels, device)


def move(value: Any, device: torch.device) -> Any:
    """Move a tensor, or a dict, list or tuple of tensors, to the device.

    Raises:
        InputError: If there is something else inside.
    """
    if isinstance(value, dict):
        return {key: move(inner, device) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [move(inner, device) for inner in value]
    if not hasattr(value, "to"):
        got = f"{type(value).__name__} in an input"
        raise InputError(message("inputs that batch to tensors", got, "Return numbers or tensors as inputs."))
    return value.to(device, non_blocking=True)


def is_resident(task: Task, settings: Settings) -> bool:
    """True if the training data are held in device memory."""
    return settings.feed != "loader" and isinstance(task.train, Arrays)


def make_feed(task: Task, train_data: Pruned, settings: Settings, device: torch.device) -> Resident | Loader:
    """Build the feed of a run."""
    feed = Resident if is_resident(task, settings) else Loader
    return feed(task, train_data, settings, device)


def size_of(data: Any) -> int:
    """Return the number of samples of a data set."""
    return len(cast(Sized, data))
