"""Random set-ups: data, method, loader and the way the loop updates. The value of a sample tells its position."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, ConcatDataset, Dataset, Sampler, Subset, TensorDataset

import infobatch
from infobatch import variations
from infobatch.methods import METHODS

PATIENCE = 20
"""Seconds until a loader gives up on its workers."""


# ---- data ------------------------------------------------------------------------------------------------------


class Items(Dataset[Any]):
    """Samples that tell their position; those in ``broken`` cannot be read."""

    def __init__(self, size: int, shape: str = "plain") -> None:
        self.size, self.shape = size, shape
        self.broken: set[int] = set()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        if index in self.broken:
            raise OSError(f"sample {index} cannot be read")
        value = torch.tensor(index)
        if self.shape == "dict":
            return {"x": value, "label": index % 3}
        return (value, index % 3) if self.shape == "pair" else value


class Many(Items):
    """Fetches a whole batch at once, as Hugging Face's data sets do."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


DATA = ("list", "tensors", "items", "items", "pairs", "dicts", "many", "subset", "concat")


def make_data(kind: str, size: int) -> Any:
    if kind == "list":
        return list(range(size))
    if kind == "tensors":
        return TensorDataset(torch.arange(size), torch.arange(size) % 3)
    if kind == "subset":
        return Subset(Many(2 * size), range(size))
    if kind == "concat":
        cut = size // 2
        return ConcatDataset([part for part in (list(range(cut)), list(range(cut, size))) if part])
    shapes = {"pairs": "pair", "dicts": "dict"}
    return Many(size) if kind == "many" else Items(size, shapes.get(kind, "plain"))


def values_of(batch: Any) -> Tensor:
    """Return the samples' values, whatever they are packed in."""
    if isinstance(batch, dict):
        return values_of(batch["x"])
    if isinstance(batch, list | tuple):
        return values_of(batch[0])
    return torch.as_tensor(batch).reshape(-1).long()


class Buckets(Sampler[list[int]]):
    """Sorts what it draws in pieces, as by length, and yields batches."""

    def __init__(self, sampler: Any, batch: int) -> None:
        self.sampler, self.batch = sampler, batch

    def __iter__(self) -> Iterator[list[int]]:
        for drawn in BatchSampler(self.sampler, 3 * self.batch, False):
            ordered = sorted(drawn)
            for start in range(0, len(ordered), self.batch):
                yield ordered[start : start + self.batch]


class Ragged(Sampler[list[int]]):
    """Batches of changing sizes."""

    def __init__(self, sampler: Any, batch: int) -> None:
        self.sampler, self.batch = sampler, batch

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        want = 1
        for index in self.sampler:
            batch.append(index)
            if len(batch) >= want:
                yield batch
                batch, want = [], want % self.batch + 1
        if batch:
            yield batch


# ---- methods ---------------------------------------------------------------------------------------------------


def make_method(lot: random.Random, name: str, size: int) -> Any:
    """Return a method with arguments drawn at random, or its defaults."""
    given: dict[str, Any] = {}
    if name == "rcap":
        given["labels"] = torch.arange(size) % 3
    if name == "dynamic_uncertainty":
        given["window"] = lot.randint(2, 4)
    if lot.random() < 0.6:
        ratio, delta = round(lot.uniform(0.05, 0.9), 2), lot.choice([0.5, 0.75, 0.875, 1.0])
        if name in ("infobatch", "tiers", "above_mean", "random", "rising"):
            given |= {"ratio": ratio, "delta": delta}
        elif name in ("random_star", "rs2", "ucb", "epsilon_greedy", "eswp", "rcap", "dynamic_uncertainty"):
            given["ratio"] = ratio
        elif name == "saving":
            given |= {"share": round(lot.uniform(0.05, 0.5), 2), "delta": delta}
        if name in ("infobatch", "random") and lot.random() < 0.2:
            given["warmup"] = lot.randint(1, 3)
        if name == "infobatch" and lot.random() < 0.2:
            given |= lot.choice([{"rounding": "paper"}, {"rescale": False}])
    return vary(lot, METHODS[name](**given), size)


def vary(lot: random.Random, method: Any, size: int) -> Any:
    if lot.random() < 0.75:
        return method
    change = lot.choice(["unbiased", "plain", "annealed", "class_floor", "noise_guard"])
    if change == "class_floor":
        return variations.class_floor(method, torch.arange(size) % 3, round(lot.uniform(0.1, 0.8), 2))
    return getattr(variations, change)(method)


def draw_method(lot: random.Random) -> str:
    """The paper's rule in a third of all cases, any other equally often."""
    return "infobatch" if lot.random() < 0.34 else lot.choice(sorted(METHODS))


# ---- a set-up --------------------------------------------------------------------------------------------------

DTYPES = (torch.float32, torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class World:
    """Everything that a training is made of."""

    size: int
    batch: int
    epochs: int
    method: Any
    compensate: str
    seed: int
    data: Any
    loader: str
    """"ours", "torch" or "plan": a loop over ``plan()`` that has no loader."""
    mode: str
    """"whole": update(loss). "named": update(loss, indices). "parts": the same in parts. "ahead": reads one ahead."""
    dtype: torch.dtype = torch.float32
    options: dict[str, Any] = field(default_factory=dict)
    sampler: str = ""
    """Of batches: none, "torch" for torch's BatchSampler, "buckets", "ragged", or "single" for batch_size=None."""

    @property
    def known_batch(self) -> int | None:
        """The batch size, as far as the package can know it."""
        if self.sampler == "single":
            return 1
        return None if self.loader == "plan" or self.sampler in ("buckets", "ragged") else self.batch

    @property
    def in_order(self) -> bool:
        return self.sampler != "buckets" and self.options.get("in_order", True)

    @property
    def drop_last(self) -> bool:
        return bool(self.options.get("drop_last"))

    def make(self) -> infobatch.Pruned:
        return infobatch.Pruned(
            self.data,
            self.method,
            self.epochs,
            seed=self.seed,
            compensate=self.compensate,  # type: ignore[arg-type]
        )

    def make_loader(self, train: infobatch.Pruned) -> Any:
        """Return a loader over ``train``; None for a loop over plan()."""
        if self.loader == "plan":
            return None
        options = dict(self.options)
        if options.get("num_workers"):
            options |= {"timeout": PATIENCE, "multiprocessing_context": "fork"}
        makers: dict[str, Any] = {
            "torch": lambda: BatchSampler(train.sampler, self.batch, options.pop("drop_last", False))
        }
        makers |= {"buckets": lambda: Buckets(train.sampler, self.batch)}
        makers |= {"ragged": lambda: Ragged(train.sampler, self.batch)}
        if self.sampler in makers:
            options["batch_sampler"] = makers[self.sampler]()
        else:
            options["batch_size"] = None if self.sampler == "single" else self.batch
        if self.loader == "ours":
            return infobatch.DataLoader(train, **options)
        if "batch_sampler" not in options:
            options["sampler"] = train.sampler
        return torch.utils.data.DataLoader(train, **options)

    def other_loader(self, lot: random.Random) -> World:
        """The same training, gone on with through another loader."""
        return with_loader(lot, self)

    def describe(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return (
            f"{self.method!r}, {self.size} samples, {self.epochs} epochs, {self.loader} loader"
            f"{' by ' + self.sampler if self.sampler else ''}, batches of {self.batch}, {self.mode}"
            f"{', ' + options if options else ''}, {str(self.dtype).removeprefix('torch.')}, {self.compensate}"
        )


def draw_size(lot: random.Random) -> int:
    return lot.choice([lot.randint(1, 8), lot.randint(5, 60), lot.randint(20, 60), lot.randint(40, 300)])


def draw_batch(lot: random.Random, size: int) -> int:
    most = lot.choice([max(1, size // 3), max(1, size // 3), max(1, size // 8), size, size + 5])
    return max(lot.randint(1, most), -(-size // 40))


def with_loader(lot: random.Random, world: World, *, workers: float = 0.0, plain: bool = False) -> World:
    """Draw a loader for this training: its kind, batch size and options, and the way of the updates."""
    kind = lot.choice(["ours", "ours", "ours", "torch", "torch", "plan"])
    mode = "named" if kind == "plan" else lot.choice(["whole"] * 4 + ["named", "parts", "ahead"])
    options: dict[str, Any] = {}
    sampler = ""
    if kind != "plan" and not plain:
        if lot.random() < 0.15:
            options["drop_last"] = True
        if lot.random() < 0.15:
            sampler = lot.choice(["torch", "buckets", "ragged", "single"] if kind == "ours" else ["torch", "single"])
        if sampler in ("buckets", "ragged", "single"):
            options.pop("drop_last", None)
    if kind != "plan" and lot.random() < workers:
        options["num_workers"] = lot.choice([1, 2])
        if lot.random() < 0.4:
            options["persistent_workers"] = True
        if lot.random() < 0.5:
            options["prefetch_factor"] = lot.choice([1, 2, 4])
        if lot.random() < 0.2 and sampler != "single" and (kind == "ours" or not plain):
            options["in_order"] = False
    batch = world.batch if lot.random() < 0.4 else draw_batch(lot, world.size)
    return replace(world, loader=kind, mode=mode, options=options, sampler=sampler, batch=batch)


def draw(lot: random.Random, *, workers: float = 0.02, plain: bool = False, data: tuple[str, ...] = DATA) -> World:
    """Draw a whole set-up; ``plain`` leaves out what drops samples or batches."""
    while True:  # until the arguments fit together
        with contextlib.suppress(infobatch.InputError):
            world = _draw(lot, workers, plain, data)
            world.make()
            return world


def _draw(lot: random.Random, workers: float, plain: bool, data: tuple[str, ...]) -> World:
    size = draw_size(lot)
    world = World(
        size=size,
        batch=draw_batch(lot, size),
        epochs=lot.choice([1, 2, 3, 4, 5, 6, 8]),
        method=make_method(lot, draw_method(lot), size),
        compensate=lot.choice(["none", "none", "loss"]),
        seed=lot.choice([0, 1, lot.randint(0, 2**31)]),
        data=make_data(lot.choice(data), size),
        loader="ours",
        mode="whole",
        dtype=lot.choice(DTYPES),
    )
    return with_loader(lot, world, workers=workers, plain=plain)
