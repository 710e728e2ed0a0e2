"""infobatch.DataLoader: indices beside each batch, and otherwise torch's loader."""

from __future__ import annotations

import copy
import pickle
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import infobatch
from infobatch.loader import IndexedBatch

SIZE, BATCH = 40, 8


def make() -> tuple[infobatch.InfoBatch, infobatch.DataLoader]:
    train = infobatch.InfoBatch(TensorDataset(torch.rand(SIZE, 3), torch.arange(SIZE)), 3, delta=1.0)
    return train, infobatch.DataLoader(train, batch_size=BATCH)


def test_the_repr_of_a_loader_shows_its_data_and_batches() -> None:
    train, loader = make()
    assert repr(train) in repr(loader)
    assert f"batch_size={BATCH}" in repr(loader)
    batches = torch.utils.data.BatchSampler(train.sampler, BATCH, drop_last=False)
    own = infobatch.DataLoader(train, batch_sampler=batches, num_workers=2)
    assert "batch_sampler=BatchSampler" in repr(own)
    assert "num_workers=2" in repr(own)


def rebuilt(loader: Any, **options: Any) -> Any:
    """As frameworks do it: a loader of torch's, from the parts of ours."""
    return DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn, **options)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_loader_rebuilt_from_the_parts_of_ours_is_a_stock_loader(workers: int) -> None:
    train, loader = make()
    for _ in range(3):
        for _x, ids in rebuilt(loader, num_workers=workers):
            train.update(ids.float())
    assert torch.equal(train.scores, torch.arange(SIZE).float())


def test_the_collate_fn_of_a_loader_is_the_users_own() -> None:
    class Collate:
        mixes = True

        def __call__(self, samples: list[Any]) -> Any:
            return torch.stack([x for x, _ in samples]) if self.mixes else samples

    train, collate = make()[0], Collate()
    loader = infobatch.DataLoader(train, batch_size=BATCH, collate_fn=collate)
    assert loader.collate_fn is collate
    train.update(next(iter(loader)).sum(1))
    collate.mixes = False  # as timm switches its mixup off
    assert type(next(iter(loader))) is list
    assert type(next(iter(rebuilt(loader)))) is list
    assert loader.dataset is train


@pytest.mark.parametrize("again", [lambda carried: pickle.loads(pickle.dumps(carried)), copy.copy, copy.deepcopy])
def test_it_travels(again: Callable[[IndexedBatch], IndexedBatch]) -> None:
    came = again(IndexedBatch(array("q", [3, 1]), {"x": torch.ones(2)}))
    assert came.indices == array("q", [3, 1])
    assert torch.equal(came.batch["x"], torch.ones(2))


class Pinned:
    def __init__(self, pinned: bool = False) -> None:
        self.pinned = pinned

    def pin_memory(self) -> Pinned:
        return Pinned(True)


def test_its_batch_is_pinned_and_its_indices_are_left_alone() -> None:
    indices = array("q", [3, 1])
    came = IndexedBatch(indices, {"x": Pinned(), "rest": [Pinned()]}).pin_memory()
    assert came.indices is indices
    assert came.batch["x"].pinned
    assert came.batch["rest"][0].pinned


def test_the_same_loader_works_afterwards() -> None:
    """A look through a rebuilt loader takes nothing away."""
    train, loader = make()
    next(iter(rebuilt(loader)))
    for _ in range(3):
        for _x, ids in loader:
            train.update(ids.float())
    assert torch.equal(train.scores, torch.arange(SIZE).float())


def test_a_batch_sampler_that_does_not_tell_its_length() -> None:
    """As torch's loader takes it."""

    class Pairs(torch.utils.data.Sampler[list[int]]):
        def __iter__(self) -> Iterator[list[int]]:
            everyone = list(train_data.sampler)
            yield from (everyone[at : at + 2] for at in range(0, len(everyone), 2))

        def __len__(self) -> int:
            raise NotImplementedError

    train_data = infobatch.InfoBatch(TensorDataset(torch.arange(6.0)), 3)
    for (x,) in infobatch.DataLoader(train_data, batch_sampler=Pairs()):
        train_data.update(x)
    assert train_data.scores.tolist() == list(range(6))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_sampler_that_drops_a_whole_epoch_is_refused(workers: int) -> None:
    """Otherwise the epoch would count although nothing was trained; what is left of a resumed one may be dropped."""

    class Whole(torch.utils.data.Sampler[list[int]]):
        def __init__(self, train_data: infobatch.Pruned, size: int) -> None:
            self.batches = torch.utils.data.BatchSampler(train_data.sampler, size, drop_last=False)

        def __iter__(self) -> Iterator[list[int]]:
            return (batch for batch in self.batches if len(batch) == self.batches.batch_size)

    def run(size: int) -> tuple[infobatch.Pruned, Any]:
        train_data = infobatch.InfoBatch(TensorDataset(torch.arange(8.0)), 3, delta=0.5)
        return train_data, infobatch.DataLoader(train_data, batch_sampler=Whole(train_data, size), num_workers=workers)

    train_data, loader = run(8)
    for (x,) in loader:
        train_data.update(x)
    kept = train_data.plan().kept
    assert kept < 8
    for _ in range(2):
        with pytest.raises(infobatch.InputError, match=rf"one batch in epoch 1.*{kept} samples"):
            next(iter(loader))
        assert train_data.epoch == 1
    train_data, loader = run(5)
    for (x,) in loader:
        train_data.update(x)
        state = train_data.state_dict()
        break
    resumed, loader = run(5)
    resumed.load_state_dict(state)
    assert list(loader) == []
    assert resumed.epoch == 1


@pytest.mark.parametrize("reorder", [list, reversed, sorted])
def test_channels_reach_their_samples_in_whatever_order_batches_come(reorder: Callable[[Any], Any]) -> None:
    values = torch.rand(20)
    method = infobatch.methods.dynamic_uncertainty(ratio=0.3, window=2)
    train_data = infobatch.Pruned(TensorDataset(values), method, num_epochs=8)
    own = torch.utils.data.BatchSampler(train_data.sampler, 6, drop_last=False)

    class Reordered(torch.utils.data.Sampler[list[int]]):
        def __iter__(self) -> Iterator[list[int]]:
            return iter(reorder(list(own)))

    for (x,) in infobatch.DataLoader(train_data, batch_sampler=Reordered()):
        train_data.update(torch.zeros(len(x)), confidence=x)
    assert train_data.epoch == 1
    assert torch.equal(train_data.state_dict()["memory"]["p0"], values)
