"""The last batch of a pruned epoch, which may be of any size, counts for what it holds."""

from __future__ import annotations

import random
import time
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import TensorDataset

import infobatch
from infobatch.testing import assert_resumable

EPOCHS = 4


def a_run(size: int, **options: Any) -> infobatch.InfoBatch:
    x = torch.rand(size, generator=torch.Generator().manual_seed(size)).pow(3)
    return infobatch.InfoBatch(TensorDataset(x, torch.arange(size)), EPOCHS, delta=1.0, **options)


def loader_of(train_data: infobatch.InfoBatch, feeder: str, **options: Any) -> Any:
    if feeder == "pairs":
        return infobatch.DataLoader(train_data, with_indices=True, **options)
    if feeder == "stock":
        return torch.utils.data.DataLoader(train_data, sampler=train_data.sampler, **options)
    return infobatch.DataLoader(train_data, **options)


def counted(train_data: infobatch.InfoBatch, batch: Any, feeder: str, length: int = 0) -> dict[int, float]:
    """How much each sample of a batch counts in the loss that update returns, beside its weight.

    Parts of a batch have at most this ``length``, and each counts by its share of the batch. Ghosts are left out.
    """
    found = {}
    whole = len(batch[0])
    for x, z in zip(*(part.split(length or whole) for part in batch), strict=True):
        losses = x.clone().requires_grad_()
        weights = train_data._scores.look_up(z)
        named = feeder in ("named", "pairs") or len(z) < whole  # parts of a batch need indices
        mean: Any = train_data.update(losses, z) if named else train_data.update(losses)
        (mean * len(z) / whole).backward()
        assert losses.grad is not None
        assert bool((losses.grad[weights == 0] == 0).all())
        real = weights > 0
        found |= dict(zip(z[real].tolist(), (losses.grad / weights)[real].tolist(), strict=True))
    return found


@pytest.mark.parametrize("length", [0, 1, 3])
@pytest.mark.parametrize("feeder", ["ours", "stock", "named"])
@pytest.mark.parametrize("compensate", ["loss", "none"])
@settings(max_examples=20)
@given(size=st.integers(9, 60), batch=st.integers(2, 9))
def test_in_a_pruned_epoch_all_samples_count_alike(
    feeder: str, compensate: Any, length: int, size: int, batch: int
) -> None:
    """And in a full one as without pruning: there each batch counts as a whole one. Parts add up to their batch."""
    train_data = a_run(size, compensate=compensate)
    feeder = "named" if length else feeder
    for _ in range(EPOCHS):
        kept = train_data.plan().kept
        for one in loader_of(train_data, feeder, batch_size=batch):
            over = batch if len(one[0]) < kept < size else len(one[0])
            shares = list(counted(train_data, one, feeder, length).values())
            assert shares == pytest.approx([1 / over] * len(shares))
    assert train_data.history[-1].kept < size


@pytest.mark.parametrize("ranks", [{}, {"shard_scores": True}])
@pytest.mark.parametrize("length", [0, 3])
@pytest.mark.parametrize("feeder", ["ours", "stock", "named"])
@pytest.mark.parametrize("other", [8, 3, 16])
@pytest.mark.parametrize("size", [59, 62, pytest.param(64, marks=pytest.mark.slow)])
def test_they_do_so_after_a_stop_anywhere_and_with_other_batches(
    feeder: str, length: int, size: int, other: int, ranks: dict[str, Any]
) -> None:
    feeder = "named" if length else feeder
    whole = a_run(size, **ranks)
    for one in loader_of(whole, feeder, batch_size=8):
        counted(whole, one, feeder)
    states = [whole.state_dict()]
    for one in loader_of(whole, feeder, batch_size=8):
        counted(whole, one, feeder)
        states.append(whole.state_dict())
    for state in states[:-1]:
        resumed = a_run(size, **ranks)
        resumed.load_state_dict(state)
        for one in loader_of(resumed, feeder, batch_size=other):
            shares = list(counted(resumed, one, feeder, length).values())
            assert shares == pytest.approx([1 / other] * len(shares))


def test_a_batch_in_halves_because_memory_ran_out_goes_as_far() -> None:
    """In a pruned epoch as in a full one: the halves add up to the batch."""
    train_data = a_run(64)
    for _ in range(EPOCHS):
        for number, one in enumerate(infobatch.DataLoader(train_data, batch_size=16)):
            shares = list(counted(train_data, one, "named", length=8 if number == 1 else 0).values())
            if len(one[0]) == 16:
                assert shares == pytest.approx([1 / 16] * 16)


class Normed(torch.nn.Module):
    """A model that cannot be trained on a batch of one sample, as any with BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x.unsqueeze(1)).squeeze()
        return y


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("feeder", ["ours", "stock", "pairs"])
@pytest.mark.parametrize("size", range(40, 56))
def test_no_batch_has_a_single_sample(size: int, feeder: str, shards: bool) -> None:
    """Unless one of full data has: a ghost of weight 0 comes beside the sample, and gets no score."""
    train_data, model, sizes, ghosts = a_run(size, shard_scores=shards), Normed(), [], 0
    if size % 8 == 1:
        return
    for epoch in range(EPOCHS):
        came, delivered = [], 0
        for one in loader_of(train_data, feeder, batch_size=8):
            (x, z), named = one if feeder == "pairs" else (one, None)
            loss: Any = train_data.update(model(x).square(), named, score=x)
            loss.backward()
            assert loss.isfinite()
            sizes.append(len(z))
            came += z[train_data.batch_weights > 0].tolist()
            delivered += len(z)
        assert train_data.epoch == epoch + 1
        assert len(came) == len(set(came)) == train_data.history[epoch].kept
        ghosts += delivered - len(came)
    assert min(sizes) > 1
    assert ghosts == 3 * (size in (44, 46, 50))  # in these, a pruned epoch has 33 samples


def test_a_ghost_leaves_the_score_of_its_sample_alone() -> None:
    train_data = a_run(60)
    for _ in infobatch.DataLoader(train_data, batch_size=60):
        train_data.update(torch.arange(60.0)[train_data.batch_indices])
    before = train_data.scores
    for _x, z in infobatch.DataLoader(train_data, batch_size=train_data.plan().kept - 1):
        train_data.update(z + 100.0)
    ghost = z[train_data.batch_weights == 0]
    assert len(z) == 2
    assert len(ghost) == 1
    assert torch.equal(train_data.scores[ghost], before[ghost])
    assert int((train_data.scores >= 100).sum()) == train_data.history[-1].kept


@pytest.mark.parametrize("length", [0, 1, 2])
def test_beside_a_ghost_the_only_sample_of_an_epoch_counts_as_without_one(length: int) -> None:
    """In one piece or in parts; a ghost's loss has no influence even if it is not finite."""
    method = infobatch.methods.random(ratio=0.9, delta=1.0)
    data = TensorDataset(torch.arange(10.0), torch.arange(10))
    train_data = infobatch.Pruned(data, method, 2)
    for _ in range(2):
        for x, z in infobatch.DataLoader(train_data, batch_size=4):
            weights = train_data._scores.look_up(z)
            losses = (x + 1).masked_fill(weights == 0, torch.nan)
            parts = zip(losses.split(length or len(z)), z.split(length or len(z)), strict=True)
            steps = [float(train_data.update(part, named)) * len(part) / len(z) for part, named in parts]
    assert train_data.history[-1].kept == 1
    assert len(z) == 2
    assert sum(steps) == pytest.approx(float((losses * weights).nansum()))


class Slow(torch.utils.data.Dataset[Any]):
    """Some of its samples wait until they are no longer marked as slow, which workers see at once."""

    def __init__(self, size: int) -> None:
        self.slow = torch.zeros(size, dtype=torch.bool).share_memory_()

    def __len__(self) -> int:
        return len(self.slow)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        while self.slow[index]:
            time.sleep(0.01)
        return torch.tensor((index * 37 % 101) ** 3 / 101.0**3), index


@pytest.mark.parametrize("length", [0, 3])
@pytest.mark.parametrize("shards", [False, True])
@settings(max_examples=20)
@given(size=st.integers(20, 60), lot=st.randoms(use_true_random=False))
def test_with_indices_it_may_come_in_any_order_and_others_not_at_all(
    length: int, shards: bool, size: int, lot: random.Random
) -> None:
    """A loop may leave out batches without a word if they bring their indices, or update them in any order."""
    train_data = a_run(size, shard_scores=shards)
    for one in loader_of(train_data, "ours", batch_size=8):
        counted(train_data, one, "ours")
    batches = list(loader_of(train_data, "pairs", batch_size=8))
    lot.shuffle(batches)
    for one, indices in batches[lot.randrange(len(batches)) :]:
        assert torch.equal(one[1], indices)
        shares = list(counted(train_data, one, "named", length).values())
        assert shares == pytest.approx([1 / 8] * len(shares))


def test_it_need_not_be_the_last_that_comes() -> None:
    """With in_order=False a batch that is ready goes first."""
    data = Slow(61)
    train_data = infobatch.InfoBatch(data, EPOCHS, delta=1.0)
    for one in infobatch.DataLoader(train_data, batch_size=8):
        counted(train_data, one, "ours")
    indices = train_data.plan().indices
    assert len(indices) % 8
    data.slow[indices[len(indices) // 8 * 8 - 1]] = True  # of the batch before the short one
    sizes = []
    options: dict[str, Any] = {"num_workers": 2, "prefetch_factor": 8, "timeout": 60, "in_order": False}
    for one in infobatch.DataLoader(train_data, batch_size=8, **options):
        sizes.append(len(one[0]))
        if sizes[-1] < 8:
            data.slow.fill_(False)
        assert list(counted(train_data, one, "ours").values()) == pytest.approx([1 / 8] * sizes[-1])
    assert sizes[-1] == 8, "the short one came before"


@pytest.mark.parametrize("feeder", ["ours", "stock", "named"])
def test_an_epoch_in_one_batch_has_no_short_one(feeder: str) -> None:
    train_data = a_run(40)
    for _ in range(EPOCHS):
        for one in loader_of(train_data, feeder, batch_size=40):
            many = len(one[0])
            assert list(counted(train_data, one, feeder).values()) == pytest.approx([1 / many] * many)
    assert many < 40


def test_a_loader_that_drops_it_has_none() -> None:
    train_data = a_run(61)
    for _ in range(2):
        for one in infobatch.DataLoader(train_data, batch_size=8, drop_last=True):
            assert list(counted(train_data, one, "ours").values()) == pytest.approx([1 / 8] * 8)


@pytest.mark.parametrize("shards", [True, False])
@pytest.mark.parametrize("feeder", ["ours", "stock"])
def test_a_loader_that_drops_it_may_drop_all_that_was_left_of_an_epoch(feeder: str, shards: bool) -> None:
    """A run may resume with larger batches, or on more ranks."""
    train_data, again = (a_run(60, shard_scores=shards) for _ in range(2))
    for batch in (60, 8):
        batches = iter(loader_of(train_data, feeder, batch_size=batch))
        for _ in range(2 if batch == 8 else 1):
            counted(train_data, next(batches), feeder)
    again.load_state_dict(train_data.state_dict())
    assert again.progress[:2] == (1, 16)
    sizes = [
        [len(one[0]) for one in loader_of(again, feeder, batch_size=40, drop_last=True) if counted(again, one, feeder)]
        for _ in range(again.epoch, EPOCHS)
    ]
    assert sizes == [[], [40], [40]]
    assert [summary.epoch for summary in again.history] == [*range(EPOCHS)]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("shards", [True, False])
def test_it_counts_the_same_after_a_stop_right_before_it(named: bool, shards: bool) -> None:
    def run() -> infobatch.InfoBatch:
        return a_run(61, shard_scores=shards)

    train_data, feeder = run(), "named" if named else "ours"
    for one in infobatch.DataLoader(train_data, batch_size=8):
        counted(train_data, one, feeder)
    batches = iter(infobatch.DataLoader(train_data, batch_size=8))
    for _ in range(train_data.plan().kept // 8):
        counted(train_data, next(batches), feeder)
    again = run()
    again.load_state_dict(train_data.state_dict())
    straight = counted(train_data, next(batches), feeder)
    (rest,) = infobatch.DataLoader(again, batch_size=8)
    assert len(rest[0]) < 8
    assert counted(again, rest, feeder) == straight
    assert list(straight.values()) == pytest.approx([1 / 8] * len(straight))


def test_one_sample_does_not_kick() -> None:
    """A mean over points: a whole batch and a last one of one sample move it as far as their samples go."""
    x = torch.tensor([0.0] * 16 + [10.0] * 17)
    train_data = infobatch.Pruned(TensorDataset(x), infobatch.methods.random_star(0.1), 1)
    weight = torch.nn.Parameter(torch.zeros(1))
    steps = []
    for (batch,) in infobatch.DataLoader(train_data, batch_size=29):
        weight.grad = None
        train_data.update(batch * weight).backward()  # type: ignore[no-untyped-call]
        assert weight.grad is not None
        steps.append((len(batch), weight.grad.item() / batch.mean().item()))
    assert steps == [(29, pytest.approx(1.0)), (2, pytest.approx(1 / 29))]  # the second is a ghost


class Resumable:
    """Training data of which only the losses matter."""

    def __init__(self, feeder: str, size: int) -> None:
        self.train_data, self.feeder = a_run(size), feeder
        options: dict[str, Any] = {"batch_size": 8}
        if feeder == "unsized":  # nothing but updates shows how large a batch is
            batches = torch.utils.data.BatchSampler(self.train_data.sampler, 8, drop_last=False)
            options = {"batch_sampler": Renamed(batches)}
        self.loader = loader_of(self.train_data, feeder, **options)

    def __iter__(self) -> Any:
        for _ in range(self.train_data.epoch, EPOCHS):
            for x, z in self.loader:
                yield self.train_data.update(x, z) if self.feeder == "named" else self.train_data.update(x)

    @property
    def epoch(self) -> int:
        return self.train_data.epoch

    def state_dict(self) -> Any:
        return self.train_data.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.train_data.load_state_dict(state)


class Renamed:
    """A batch sampler that does not say how large its batches are."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


@pytest.mark.parametrize("feeder", ["ours", "stock", "named", "unsized"])
@pytest.mark.parametrize("size", [21, 33])
def test_resumed_before_it_a_run_ends_with_the_same_state(feeder: str, size: int) -> None:
    assert_resumable(partial(Resumable, feeder, size), stops=99)
