"""A training loop that notes what it does, over data sets whose values are their indices."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, Dataset, Sampler, default_collate

import infobatch
from infobatch import MisalignedError

N, BATCH, EPOCHS = 60, 8, 8
PATIENCE = 60
QUIET = [
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator:UserWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


# ---- data sets: the value is the index -------------------------------------------------------------------------

BROKEN = multiprocessing.RawValue("q", -1)
"""The sample that cannot be read just now. Shared, so that running workers know it; without a lock to inherit."""


class Numbers(Dataset[Any]):
    def __init__(self, first: int = 0, size: int = N) -> None:
        self.first, self.size = first, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Tensor:
        if self.first + index == BROKEN.value:
            raise OSError("this sample cannot be read")
        return torch.tensor(float(self.first + index))


class Pairs(Numbers):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index), index % 10


class Dicts(Numbers):
    def __getitem__(self, index: int) -> Any:
        return {"x": super().__getitem__(index), "label": index % 10}


class Many(Numbers):
    """As Hugging Face's data sets: fetches a batch at once, and single samples too."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Fewer(Numbers):
    """A broken ``__getitems__``: it loses the first sample."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices[1:]]


def value(batch: Any) -> Tensor:
    """The samples' values, whatever they are packed in."""
    if isinstance(batch, dict):
        return value(batch["x"])
    if isinstance(batch, list | tuple):
        return value(batch[0])
    return batch.reshape(-1)


def as_dict(samples: list[Any]) -> dict[str, Tensor]:
    return {"x": torch.stack(samples)}


def drop_first(samples: list[Any]) -> Tensor:
    return default_collate(samples[1:])


def drop_in_short_batches(samples: list[Any]) -> Tensor:
    return default_collate(samples[1:] if len(samples) < BATCH else samples)


def twice(samples: list[Any]) -> Tensor:
    return default_collate([*samples, *samples])


def backwards(samples: list[Any]) -> Tensor:
    return default_collate(samples[::-1])


class SortedBatches(Sampler[list[int]]):
    """Draws 32, sorts them (as by length), yields batches."""

    def __init__(self, sampler: Sampler[int]) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[list[int]]:
        for drawn in BatchSampler(self.sampler, 32, False):
            ordered = sorted(drawn)
            for start in range(0, len(ordered), BATCH):
                yield ordered[start : start + BATCH]


class Reversed(Sampler[int]):
    def __init__(self, sampler: Sampler[int]) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[int]:
        return iter(list(self.sampler)[::-1])

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]


# ---- the loop ----------------------------------------------------------------------------------------------------

FEEDERS = ("stock", "ours", "explicit")


def load(train: infobatch.InfoBatch, feeder: str, options: dict[str, Any]) -> Any:
    options = {
        name: made(train) if name.endswith("sampler") and callable(made) else made for name, made in options.items()
    }
    if options.get("num_workers"):
        options = {"timeout": PATIENCE / 2, "multiprocessing_context": "fork", **options}
    if "batch_sampler" not in options:
        options = {"batch_size": BATCH, **options}
    if feeder == "ours":
        return infobatch.DataLoader(train, **options)
    if "batch_sampler" not in options:
        options = {"sampler": train.sampler, **options}
    return torch.utils.data.DataLoader(train, **options)


class Loop:
    """A training loop that notes what it does, so that an error can be placed."""

    def __init__(self, feeder: str, options: dict[str, Any], data: Any = None) -> None:
        self.feeder = feeder
        self.train = infobatch.InfoBatch(Numbers() if data is None else data, EPOCHS, 0.5, 0.875, compensate="loss")
        self.loader = load(self.train, feeder, options)
        self.options = options
        self.updated: set[int] = set()
        self.since: list[str] = []
        self.kept: list[Any] = []
        self.table = torch.ones(N)
        self.sizes: set[int] = set()
        """How many losses came at a time."""
        self.weights_wrong = False

    def mark(self) -> None:
        """Here the loop goes wrong: at the next call, or just now by leaving one out."""
        self.since = []

    def batches(self, loader: Any = None) -> Batches:
        self.since.append("pass")
        return Batches(self, self.loader if loader is None else loader)

    def update(self, batch: Any) -> None:
        self.since.append("update")
        x = value(batch)
        if self.options.get("with_indices") and isinstance(batch, list | tuple):
            loss = self.train.update(x, batch[1])
        else:
            loss = self.train.update(x, x.long()) if self.feeder == "explicit" else self.train.update(x)
        mean = (x * self.table[x.long()]).mean()
        factors = {len(x) / size for size in (len(x), *self.sizes)}  # a short last batch counts for less
        factors.add(int(torch.count_nonzero(self.table)) % BATCH / BATCH)  # and so do its parts
        self.weights_wrong |= not any(torch.isclose(loss, mean * factor) for factor in factors)
        self.sizes.add(len(x))
        self.updated.update(x.long().tolist())

    def skip(self) -> None:
        self.since.append("skip")
        self.train.skip()

    def epoch(self, loader: Any = None) -> None:
        for batch in self.batches(loader):
            self.update(batch)

    def where(self) -> str:
        """The step that raised, seen from where the loop went wrong."""
        *before, last = self.since
        between = before.count("batch")
        if last == "pass" or (last == "update" and "pass" in before and "batch" not in _after_last(before, "pass")):
            return "next pass"
        if last == "update":
            return ("that update", "next update")[between] if between < 2 else "later update"
        return {"skip": "that skip", "batch": "next batch"}[last]

    def check(self) -> None:
        """No score is wrong. Where the scores cannot be had, they cannot be wrong."""
        try:
            scores = self.train.scores
        except MisalignedError:
            return
        wrong = ~torch.isnan(scores) & (scores != torch.arange(len(scores)))
        assert not wrong.any(), f"losses on the wrong samples: {wrong.nonzero().flatten().tolist()}"


def _after_last(steps: list[str], step: str) -> list[str]:
    return steps[len(steps) - steps[::-1].index(step) :]


class Batches:
    """An iterator over a loader whose steps are noted."""

    def __init__(self, loop: Loop, loader: Any) -> None:
        self.loop, self.iterator, self.first = loop, iter(loader), True
        self.epoch: int | None = None

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        self.loop.since.append("pass" if self.first else "batch")
        self.first = False
        batch = next(self.iterator)
        if self.epoch is None:
            self.epoch = self.loop.train.epoch
            self.loop.table = self.loop.train.plan().table.clone()
        return batch


def middle(step: int) -> bool:
    return step == 2


def batches_in(loop: Loop) -> int:
    return len(loop.loader)
