"""Batches of an epoch's plan: cut from the device's memory, or brought by a loader. Both give the same ones.

Crops and flips are drawn for a whole epoch from (seed, epoch), one draw a place in the plan. So they do not depend
on who brings the batches, on where a run was interrupted, or on a captured graph. Loaders have generators of their
own: torch's would draw from the global one at each pass, and a resumed epoch is one pass more.
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
from .settings import Settings

TEST_BATCH = 1000
FEW = 64
SALT = 0x5EED  # so that crops have nothing in common with plans


@dataclass(frozen=True, eq=False)
class Draws:
    """Crop and flip of each place in a plan; None where the task has none."""

    shifts: Tensor | None
    flips: Tensor | None

    def at(self, where: slice) -> Draws:
        return Draws(
            None if self.shifts is None else self.shifts[where], None if self.flips is None else self.flips[where]
        )


def draws(task: Task, settings: Settings, epoch: int, count: int, device: torch.device) -> Draws:
    generator = generator_for(settings.seed ^ SALT, epoch, device)
    crop, flip = settings.augment and task.pad > 0, settings.augment and task.flip
    shifts = torch.randint(2 * task.pad + 1, (count, 2), generator=generator, device=device) if crop else None
    flips = torch.rand(count, generator=generator, device=device) < 0.5 if flip else None
    return Draws(shifts, flips)


class Prepare:
    """Bytes to what a net eats: crop, flip, normalise; on the device, for a batch at once."""

    def __init__(self, task: Task, settings: Settings, device: torch.device) -> None:
        self.pad = task.pad
        self.channels_last = settings.channels_last
        self.mean = torch.tensor(task.mean or 0.0, device=device).reshape(-1, 1, 1) * 255
        self.scale = 1 / (torch.tensor(task.std or 1.0, device=device).reshape(-1, 1, 1) * 255)

    def __call__(self, inputs: Any, draw: Draws | None = None) -> Any:
        if not isinstance(inputs, Tensor) or inputs.dtype != torch.uint8:
            return inputs
        if draw is not None:
            inputs = crop_and_flip(inputs, draw, self.pad)
        x = (inputs.float() - self.mean) * self.scale
        return x.contiguous(memory_format=torch.channels_last) if self.channels_last and x.dim() == 4 else x


def crop_and_flip(images: Tensor, draw: Draws, pad: int) -> Tensor:
    """One gather for both. Images are padded with zeros, as is the custom."""
    if draw.shifts is None and draw.flips is None:
        return images
    count, _, height, width = images.shape
    rows = torch.arange(height, device=images.device).expand(count, -1)
    columns = torch.arange(width, device=images.device).expand(count, -1)
    if draw.flips is not None:
        columns = torch.where(draw.flips[:, None], width - 1 - columns, columns)
    if draw.shifts is not None:
        images = F.pad(images, (pad, pad, pad, pad))
        rows, columns = rows + draw.shifts[:, :1], columns + draw.shifts[:, 1:]
    image = torch.arange(count, device=images.device)[:, None, None]
    return images.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


@dataclass(frozen=True, eq=False)
class Batch:
    inputs: Any
    labels: Tensor
    draw: Draws
    indices: Tensor | None
    """None where the loader's delivery tells them."""


class Feed(Protocol):
    seconds: float
    """Spent on waiting for data, so far."""

    def epoch(self, draw: Draws, done: int) -> Iterator[Batch]:
        """The batches of the running plan, from the one after ``done`` samples on."""
        ...

    def test(self) -> Iterator[tuple[Any, Tensor]]: ...
    def few(self) -> Iterator[tuple[Any, Tensor]]:
        """A few of the test samples, as one batch."""
        ...


class Resident:
    """All data in the device's memory."""

    def __init__(self, task: Task, train_data: Pruned, settings: Settings, device: torch.device) -> None:
        assert isinstance(task.train, Arrays)
        self.inputs, self.labels = task.train.inputs.to(device), task.train.labels.to(device)
        self.train_data = train_data
        self.batch = settings.batch_size
        self.seconds = 0.0
        self._test = _Held(task.test, device) if isinstance(task.test, Arrays) else _Loaded(task, settings, device)

    def epoch(self, draw: Draws, done: int) -> Iterator[Batch]:
        indices = self.train_data.plan().indices.to(self.inputs.device)
        for at in range(done, len(indices), self.batch):
            where = slice(at, at + self.batch)
            yield self.batch_of(indices[where], draw.at(where))

    def all(self, draw: Draws, count: int) -> Iterator[Batch]:
        """So many batches of all data, in their order, and from the first again where they end."""
        for at in range(count):
            where = slice(at * self.batch, (at + 1) * self.batch)
            indices = torch.arange(where.start, where.stop, device=self.labels.device) % len(self.labels)
            yield self.batch_of(indices, draw.at(where))

    def batch_of(self, indices: Tensor, draw: Draws) -> Batch:
        inputs, labels = self.inputs.index_select(0, indices), self.labels.index_select(0, indices)
        return Batch(inputs, labels, draw, indices)

    def test(self) -> Iterator[tuple[Any, Tensor]]:
        return iter(self._test)

    def few(self) -> Iterator[tuple[Any, Tensor]]:
        return self._test.few()


class Loader:
    """An ordinary loader with workers."""

    def __init__(self, task: Task, train_data: Pruned, settings: Settings, device: torch.device) -> None:
        pin = device.type == "cuda"
        self.loader: Any = DataLoader(
            train_data,
            batch_size=settings.batch_size,
            num_workers=settings.workers,
            pin_memory=pin,
            persistent_workers=settings.workers > 0,
        )
        self.device = device
        self.classes = len(task.classes)
        self.seconds = 0.0
        self._test = _Loaded(task, settings, device)

    def epoch(self, draw: Draws, done: int) -> Iterator[Batch]:
        start = perf_counter()
        self.loader.seed_workers()
        for inputs, labels in pairs(self.loader, self.classes, "training", self.device):
            self.seconds += perf_counter() - start
            where = slice(done, done + len(labels))
            yield Batch(inputs, labels, draw.at(where), None)
            done = where.stop
            start = perf_counter()

    def test(self) -> Iterator[tuple[Any, Tensor]]:
        return iter(self._test)

    def few(self) -> Iterator[tuple[Any, Tensor]]:
        return self._test.few()


class _Held:
    def __init__(self, data: Arrays, device: torch.device) -> None:
        self.inputs, self.labels = data.inputs.to(device), data.labels.to(device)

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        for at in range(0, len(self.labels), TEST_BATCH):
            yield self.inputs[at : at + TEST_BATCH], self.labels[at : at + TEST_BATCH]

    def few(self) -> Iterator[tuple[Any, Tensor]]:
        yield self.inputs[:FEW], self.labels[:FEW]


class _Loaded:
    def __init__(self, task: Task, settings: Settings, device: torch.device) -> None:
        size = min(TEST_BATCH, max(settings.batch_size, 256))
        data, own = cast(Any, task.test), torch.Generator()
        self.loader: Any = torch.utils.data.DataLoader(data, size, num_workers=settings.workers, generator=own)
        self.classes, self.device = len(task.classes), device

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        return pairs(self.loader, self.classes, "test", self.device)

    def few(self) -> Iterator[tuple[Any, Tensor]]:
        """By a loader of their own, lest the tests' own draw from its generator once more. With a worker where there
        are some: files that a data set opens here would be theirs, too."""
        workers, own = min(1, self.loader.num_workers), torch.Generator()
        loader: Any = torch.utils.data.DataLoader(self.loader.dataset, FEW, num_workers=workers, generator=own)
        return islice(pairs(loader, self.classes, "test", self.device), 1)


def pairs(loader: Any, classes: int, name: str, device: torch.device) -> Iterator[tuple[Any, Tensor]]:
    """Inputs and labels of each batch, on the device; what cannot be right is said here, while it can be."""
    for batch in loader:
        if not isinstance(batch, (list, tuple)) or len(batch) != 2:
            got = f"{len(batch)} parts" if isinstance(batch, (list, tuple)) else type(batch).__name__
            raise InputError(
                message(f"samples (input, label) in the {name} set", got, "Return two from __getitem__.")
            )
        inputs, labels = batch
        if classes:
            check_labels(labels, classes, f"the {name} set")
        elif not isinstance(labels, Tensor):
            got = f"{type(labels).__name__} in the {name} set"
            raise InputError(message("labels that batch to a tensor", got, "Return numbers or tensors as labels."))
        yield move(inputs, device), move(labels, device)


def move(value: Any, device: torch.device) -> Any:
    """To the device: a tensor, or a dict, list or tuple of them."""
    if isinstance(value, dict):
        return {key: move(inner, device) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [move(inner, device) for inner in value]
    if not hasattr(value, "to"):
        got = f"{type(value).__name__} in an input"
        raise InputError(message("inputs that batch to tensors", got, "Return numbers or tensors as inputs."))
    return value.to(device, non_blocking=True)


def resident(task: Task, settings: Settings) -> bool:
    """Whether the data lie in the device's memory."""
    return settings.feed != "loader" and isinstance(task.train, Arrays)


def make_feed(task: Task, train_data: Pruned, settings: Settings, device: torch.device) -> Resident | Loader:
    kind = Resident if resident(task, settings) else Loader
    return kind(task, train_data, settings, device)


def size_of(data: Any) -> int:
    return len(cast(Sized, data))
