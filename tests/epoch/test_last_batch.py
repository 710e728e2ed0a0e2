"""The last batch of a pruned epoch, which may be of any size, counts for what it holds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import TensorDataset

import infobatch

EPOCHS = 4


def a_run(size: int, **options: Any) -> infobatch.InfoBatch:
    x = torch.rand(size, generator=torch.Generator().manual_seed(size)).pow(3)
    return infobatch.InfoBatch(TensorDataset(x, torch.arange(size)), EPOCHS, delta=1.0, **options)


def loader_of(train_data: infobatch.InfoBatch, feeder: str, **options: Any) -> Any:
    if feeder == "stock":
        return torch.utils.data.DataLoader(train_data, sampler=train_data.sampler, **options)
    return infobatch.DataLoader(train_data, **options)


def counted(
    train_data: infobatch.InfoBatch, batch: Any, feeder: str, parts: int = 1, length: int = 0
) -> dict[int, float]:
    """How much each sample of a batch counts in the loss that update returns, beside its weight."""
    found = {}
    for x, z in zip(*(part.split(length) if length else part.chunk(parts) for part in batch), strict=True):
        losses = x.clone().requires_grad_()
        weights = train_data._scores.look_up(z)
        named = feeder == "named" or parts > 1 or bool(length)  # parts of a batch need indices
        mean: Any = train_data.update(losses, z) if named else train_data.update(losses)
        mean.backward()
        assert losses.grad is not None
        found |= dict(zip(z.tolist(), (losses.grad / weights).tolist(), strict=True))
    return found


@pytest.mark.parametrize("feeder", ["ours", "stock", "named"])
@pytest.mark.parametrize("compensate", ["loss", "none"])
@settings(max_examples=30)
@given(size=st.integers(9, 60), batch=st.integers(2, 9))
def test_in_a_pruned_epoch_all_samples_count_alike(feeder: str, compensate: Any, size: int, batch: int) -> None:
    """And in a full one as without pruning: there each batch counts as a whole one."""
    train_data = a_run(size, compensate=compensate)
    for _ in range(EPOCHS):
        kept = train_data.plan().kept
        for one in loader_of(train_data, feeder, batch_size=batch):
            over = batch if len(one[0]) < kept < size else len(one[0])
            assert list(counted(train_data, one, feeder).values()) == pytest.approx([1 / over] * len(one[0]))
    assert train_data.history[-1].kept < size


@pytest.mark.parametrize("feeder", ["ours", "stock", "named"])
@pytest.mark.parametrize("how", [{"parts": 2}, {"parts": 4}, {"length": 2}, {"length": 4}])
@settings(max_examples=12)
@given(size=st.integers(18, 60))
def test_parts_of_a_batch_count_alike_too(feeder: str, how: dict[str, int], size: int) -> None:
    """A batch of 8 in parts, each a mean, where the loop divides by a fixed number: the short one's count alike."""
    train_data = a_run(size)
    part = how.get("length") or 8 // how["parts"]
    for _ in range(EPOCHS):
        kept = train_data.plan().kept
        for one in loader_of(train_data, feeder, batch_size=8):
            shares = list(counted(train_data, one, feeder, **how).values())
            if len(one[0]) == 8 or kept < size:
                assert shares == pytest.approx([1 / part] * len(shares))


@pytest.mark.slow
@pytest.mark.parametrize("feeder", ["ours", "stock", "named"])
@pytest.mark.parametrize("length", [2, 8])
@pytest.mark.parametrize("size", range(59, 67))
def test_they_do_so_in_a_run_that_goes_on_before_any_batch(feeder: str, length: int, size: int) -> None:
    """The first that comes then may be the short one, and no larger than a part of a whole one."""
    whole = a_run(size)
    for one in loader_of(whole, feeder, batch_size=8):
        counted(whole, one, feeder, length=length)
    states = [whole.state_dict()]
    for one in loader_of(whole, feeder, batch_size=8):
        counted(whole, one, feeder, length=length)
        states.append(whole.state_dict())
    for state in states[:-1]:
        resumed = a_run(size)
        resumed.load_state_dict(state)
        for one in loader_of(resumed, feeder, batch_size=8):
            shares = list(counted(resumed, one, feeder, length=length).values())
            assert shares == pytest.approx([1 / length] * len(shares))


def in_uneven_parts(train_data: infobatch.InfoBatch, feeder: str, lengths: list[int]) -> Iterator[list[float]]:
    """An epoch in batches of 10, each in parts of these lengths; how much the samples of each part count."""
    for one in loader_of(train_data, feeder, batch_size=10):
        for part in zip(*(column.split(lengths if len(column) == 10 else lengths[-1]) for column in one), strict=True):
            yield list(counted(train_data, part, "named").values())


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("feeder", ["ours", "stock"])
@pytest.mark.parametrize("lengths", [[2, 4, 4], [2, 3, 5], [1, 2, 3, 4], [5, 3, 2]])
def test_uneven_parts_count_alike_whichever_comes_first(feeder: str, lengths: list[int], sharded: bool) -> None:
    if sharded and lengths[0] < lengths[1] < lengths[2]:
        pytest.skip("only the device counts samples that came with indices: after the first part all may have come")
    train_data, one = a_run(64, shard_scores=sharded), pytest.approx(1 / max(lengths))
    list(in_uneven_parts(train_data, feeder, lengths))
    for _ in range(1, EPOCHS):
        assert all(share == one for shares in in_uneven_parts(train_data, feeder, lengths) for share in shares)


def test_other_batches_from_one_epoch_to_the_next() -> None:
    train_data = a_run(64)
    for epoch, (size, length) in enumerate([(16, 4), (8, 8), (16, 8), (4, 4)]):
        for one in infobatch.DataLoader(train_data, batch_size=size):
            shares = list(counted(train_data, one, "ours", length=length).values())
            assert not epoch or shares == pytest.approx([1 / length] * len(shares))


class Slow(torch.utils.data.Dataset[Any]):
    """Some of its samples take their time; which ones, workers see as it changes."""

    def __init__(self, size: int) -> None:
        self.slow = torch.zeros(size, dtype=torch.bool).share_memory_()

    def __len__(self) -> int:
        return len(self.slow)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self.slow[index]:
            time.sleep(0.5)
        return torch.tensor((index * 37 % 101) ** 3 / 101.0**3), index


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
    options: dict[str, Any] = {"num_workers": 2, "prefetch_factor": 8, "in_order": False}  # dealt out in turns
    for one in infobatch.DataLoader(train_data, batch_size=8, **options):
        sizes.append(len(one[0]))
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
    assert list(straight.values()) == pytest.approx([1 / 8] * len(rest[0]))


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
    assert steps == [(29, pytest.approx(1.0)), (1, pytest.approx(1 / 29))]
