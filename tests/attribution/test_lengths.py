"""len(loader): the batches of the pass that was walked, and from iter(loader) on those of the new one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import infobatch

SIZE, BATCH, EPOCHS = 61, 8, 6
WORKERS: dict[str, dict[str, Any]] = {
    "none": {},
    "two": {"num_workers": 2},
    "persistent": {"num_workers": 1, "persistent_workers": True},
}
FEEDERS = ("stock", "ours", "pairs")
CASES = [
    pytest.param(feeder, workers, id=f"{feeder}-{workers}", marks=() if workers == "none" else pytest.mark.slow)
    for feeder in FEEDERS
    for workers in WORKERS
]


class Training:
    def __init__(self, feeder: str, workers: str) -> None:
        self.data = infobatch.InfoBatch(TensorDataset(torch.arange(float(SIZE))), EPOCHS, delta=0.8)
        options = {"batch_size": BATCH, **WORKERS[workers]}
        self.has_pairs = feeder == "pairs"
        if feeder == "stock":
            self.loader: Any = DataLoader(self.data, sampler=self.data.sampler, **options)
        else:
            self.loader = infobatch.DataLoader(self.data, with_indices=self.has_pairs, **options)

    def update(self, batch: Any) -> None:
        if self.has_pairs:
            (x,), indices = batch
            self.data.update(x, indices)
        else:
            self.data.update(batch[0])

    def check(self, lengths: list[int]) -> None:
        assert lengths == [-(-epoch.kept // BATCH) for epoch in self.data.history]
        assert len(lengths) == EPOCHS
        assert len(set(lengths)) > 1
        assert torch.equal(self.data.scores, torch.arange(float(SIZE)))


@pytest.mark.parametrize(("feeder", "workers"), CASES)
def test_after_the_loop_it_is_the_number_of_batches_that_came(feeder: str, workers: str) -> None:
    training, lengths = Training(feeder, workers), []
    for _ in range(EPOCHS):
        steps = 0
        for batch in training.loader:
            training.update(batch)
            steps += 1
            assert len(training.loader) >= steps
        assert len(training.loader) == steps
        lengths.append(steps)
    training.check(lengths)


@pytest.mark.parametrize("feeder", FEEDERS)
def test_it_stays_so_while_a_scheduler_is_paced(feeder: str) -> None:
    training, lengths = Training(feeder, "none"), []
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * 8)
    scheduler = infobatch.pace(cosine, training.data, 8)
    for _ in range(EPOCHS):
        steps = 0
        for batch in training.loader:
            training.update(batch)
            optimizer.step()
            scheduler.step()
            steps += 1
        _ = training.data.progress
        assert len(training.loader) == steps
        lengths.append(steps)
    training.check(lengths)


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize(("feeder", "workers"), CASES)
def test_an_iterator_that_is_never_exhausted_walks_the_whole_plan(feeder: str, workers: str, is_kept: bool) -> None:
    """As Ignite and Accelerate's own example do it."""
    training, lengths, kept = Training(feeder, workers), [], []
    for _ in range(EPOCHS):
        batches = iter(training.loader)
        lengths.append(len(training.loader))
        for _ in range(lengths[-1]):
            training.update(next(batches))
        if is_kept:
            kept.append(batches)
        del batches
    training.check(lengths)


def test_a_loop_that_left_an_epoch_early_begins_the_next() -> None:
    training = Training("stock", "none")
    for _ in range(2):
        batches = iter(training.loader)
        training.update(next(batches))
    del batches
    assert len(training.loader) == 8
    batches = iter(training.loader)
    kept = len(training.loader)
    assert kept == -(-training.data.plan().kept // BATCH)
    assert len(list(batches)) == kept


def test_frameworks_ask_for_the_coming_length() -> None:
    training = Training("ours", "none")
    for batch in training.loader:
        training.update(batch)
    assert len(training.loader) == 8
    coming = training.loader.count_batches()
    assert coming == 6
    assert len(list(training.loader)) == coming
