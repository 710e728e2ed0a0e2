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
from ..tasks.nested import count_rows, is_nested, mapped, take, tensors_of
from ..tasks.task import Arrays, Task, check_labels
from .settings import CropPadding, Settings

TEST_BATCH = 1000
FEW = 64
SALT = 0x5EED  # makes the draws independent of the plans
BATCH_SALT = 0xBA7C4  # and those of a task's own augmentation independent of both


@dataclass(frozen=True, eq=False)
class Draws:
    """The crop and the flip of each position in a plan; None if the task has none."""

    shifts: Tensor | None
    flips: Tensor | None
    epoch: int = 0
    first: int = 0
    """The first of the positions."""

    def at(self, places: slice) -> Draws:
        """Return the draws of these positions."""
        shifts = None if self.shifts is None else self.shifts[places]
        flips = None if self.flips is None else self.flips[places]
        return Draws(shifts, flips, self.epoch, self.first + places.start)

    def generator(self, seed: int, device: torch.device) -> torch.Generator:
        """Return the generator of the batch at these positions, for a task's own augmentation."""
        of_epoch = generator_for(seed ^ BATCH_SALT, self.epoch, torch.device("cpu")).initial_seed()
        return generator_for(of_epoch, self.first, device)


def draw_augmentations(task: Task, settings: Settings, epoch: int, count: int, device: torch.device) -> Draws:
    """Draw crops and flips for the ``count`` positions of an epoch's plan."""
    generator = generator_for(settings.seed ^ SALT, epoch, device)
    crops, flips = settings.augment and task.pad > 0, settings.augment and task.flip
    return Draws(
        torch.randint(2 * task.pad + 1, (count, 2), generator=generator, device=device) if crops else None,
        torch.rand(count, generator=generator, device=device) < 0.5 if flips else None,
        epoch,
    )


def augments(task: Task, settings: Settings) -> bool:
    """True if training batches go through the task's own augmentation."""
    return task.augment is not None and settings.augment


def augment(task: Task, settings: Settings, inputs: Any, targets: Any, draws: Draws) -> tuple[Any, Any]:
    """Apply a task's own augmentation to a preprocessed batch, with random numbers of its positions in the plan.

    Raises:
        InputError: If it does not return inputs and targets of as many samples.
    """
    if task.augment is None or not settings.augment:
        return inputs, targets
    count, device = count_rows(targets), tensors_of(inputs)[0].device
    found = task.augment(inputs, targets, draws.generator(settings.seed, device))
    if not isinstance(found, tuple) or len(found) != 2 or not all(map(is_nested, found)):
        remedy = "End it with: return inputs, targets"
        raise InputError(message("inputs and targets from the task's augment", type(found).__name__, remedy))
    rows = sorted({len(each) for part in found for each in tensors_of(part)})
    if rows != [count]:
        remedy = "Each row must stay one sample, or losses reach the wrong ones."
        got = f"{' and '.join(map(str, rows))} rows"
        raise InputError(message(f"{count} rows in all that the task's augment returns", got, remedy))
    return found


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
    targets: Any
    draws: Draws
    indices: Tensor | None
    """None from a loader, which carries the indices itself."""

    @property
    def count(self) -> int:
        """The number of samples."""
        return count_rows(self.targets)


class Feed(Protocol):
    """Where the batches of a run come from."""

    seconds: float
    """Seconds spent waiting for data so far."""

    def epoch(self, draws: Draws, done: int) -> Iterator[Batch]:
        """Yield the batches of the current plan that follow its first ``done`` samples."""
        ...

    def test(self) -> Iterator[tuple[Any, Any]]:
        """Yield inputs and targets of the test set."""
        ...

    def few(self) -> Iterator[tuple[Any, Any]]:
        """Yield one batch of a few test samples."""
        ...


class Resident:
    """A feed that holds all data in device memory."""

    def __init__(self, task: Task, train_data: Pruned, settings: Settings, device: torch.device) -> None:
        assert isinstance(task.train, Arrays)
        self.inputs, self.targets = move(task.train.inputs, device), move(task.train.labels, device)
        self.train_data, self.device = train_data, device
        self.batch_size = settings.batch_size
        self.seconds = 0.0
        is_array = isinstance(task.test, Arrays)
        self._test = _TestArrays(task, device) if is_array else _TestLoader(task, settings, device)

    def epoch(self, draws: Draws, done: int) -> Iterator[Batch]:
        """See Feed."""
        indices = self.train_data.plan().indices.to(self.device)
        for at in range(done, len(indices), self.batch_size):
            places = slice(at, at + self.batch_size)
            yield self.batch_of(indices[places], draws.at(places))

    def batch_of(self, indices: Tensor, draws: Draws) -> Batch:
        """Gather the samples of these indices."""
        return Batch(take(self.inputs, indices), take(self.targets, indices), draws, indices)

    def test(self) -> Iterator[tuple[Any, Any]]:
        """See Feed."""
        return iter(self._test)

    def few(self) -> Iterator[tuple[Any, Any]]:
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
        for inputs, targets in checked_pairs(self.loader, self.classes, "training", self.device):
            self.seconds += perf_counter() - start
            places = slice(done, done + count_rows(targets))
            yield Batch(inputs, targets, draws.at(places), None)
            done = places.stop
            start = perf_counter()

    def test(self) -> Iterator[tuple[Any, Any]]:
        """See Feed."""
        return iter(self._test)

    def few(self) -> Iterator[tuple[Any, Any]]:
        """See Feed."""
        return self._test.few()


class _TestArrays:
    def __init__(self, task: Task, device: torch.device) -> None:
        data = cast(Any, task.test)
        self.inputs, self.targets = move(data.inputs, device), move(data.labels, device)
        self.size = task.test_batch or TEST_BATCH

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for at in range(0, count_rows(self.targets), self.size):
            yield self._rows(at, self.size)

    def few(self) -> Iterator[tuple[Any, Any]]:
        yield self._rows(0, min(self.size, FEW))

    def _rows(self, at: int, count: int) -> tuple[Any, Any]:
        return take(self.inputs, slice(at, at + count)), take(self.targets, slice(at, at + count))


class _TestLoader:
    def __init__(self, task: Task, settings: Settings, device: torch.device) -> None:
        size = task.test_batch or min(TEST_BATCH, max(settings.batch_size, 256))
        data, generator = cast(Any, task.test), torch.Generator()
        self.loader: Any = torch.utils.data.DataLoader(data, size, num_workers=settings.workers, generator=generator)
        self.classes, self.device = len(task.classes), device
        self.few_size = min(size, FEW)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return checked_pairs(self.loader, self.classes, "test", self.device)

    def few(self) -> Iterator[tuple[Any, Any]]:
        """Read one batch with a separate loader, so that the test loader's generator is not advanced.

        It uses a worker if the run does: files that a data set opens here would be inherited by later workers.
        """
        workers, generator = min(1, self.loader.num_workers), torch.Generator()
        data: Any = self.loader.dataset
        loader: Any = torch.utils.data.DataLoader(data, self.few_size, num_workers=workers, generator=generator)
        return islice(checked_pairs(loader, self.classes, "test", self.device), 1)


def checked_pairs(loader: Any, classes: int, name: str, device: torch.device) -> Iterator[tuple[Any, Any]]:
    """Yield inputs and targets of each batch on the device.

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
        inputs, targets = batch
        if classes:
            check_labels(targets, classes, f"the {name} set")
        if not is_nested(targets):
            got = f"{type(targets).__name__} in the {name} set"
            remedy = "Return a number, a tensor, or a dict or list of these as the target."
            raise InputError(message("targets that batch to tensors, one row per sample", got, remedy))
        yield move(inputs, device), move(targets, device)


def move(value: Any, device: torch.device) -> Any:
    """Move a tensor, or a dict, list or tuple of tensors, to the device.

    Raises:
        InputError: If there is something else inside.
    """

    def move_one(each: Any) -> Any:
        if not hasattr(each, "to"):
            got = f"{type(each).__name__} in an input"
            raise InputError(message("inputs that batch to tensors", got, "Return numbers or tensors as inputs."))
        return each.to(device, non_blocking=True)

    return mapped(move_one, value)


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
