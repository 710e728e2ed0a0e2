from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import as_spawned
from torch.utils.data import Dataset, TensorDataset

import infobatch
from infobatch.attribution.views import Copied, Fetched, FullView, View, WithIndices


class Letters(Dataset[str]):
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> str:
        return "abcde"[index]


class ManyAtOnce(Letters):
    def __getitems__(self, indices: Sequence[int]) -> list[str]:
        return [self[index].upper() for index in indices]


def test_a_view_is_the_data_set_sample_by_sample() -> None:
    view = View(Letters())
    assert len(view) == 5
    assert view[3] == "d"
    assert type(view.__getitems__([4, 0])) is list
    fetched = WithIndices(Letters()).__getitems__([4, 0])
    assert isinstance(fetched, Fetched)
    assert view.__getitems__([4, 0]) == fetched == ["e", "a"]
    assert fetched.indices == [4, 0]


def test_a_data_set_that_fetches_many_at_once_is_asked_for_many() -> None:
    assert View(ManyAtOnce()).__getitems__([1, 2]) == ["B", "C"]


class Reorders(Letters):
    """As where one sorts the indices to read a file in order."""

    def __getitems__(self, indices: list[int]) -> list[str]:
        indices.reverse()
        return [self[index] for index in indices]


@pytest.mark.parametrize("ours", [True, False])
def test_a_data_set_that_changes_the_indices_is_refused(ours: bool) -> None:
    """Its samples come in another order than was asked for."""
    train_data = infobatch.InfoBatch(Reorders(), 8)
    if ours:
        loader: Any = infobatch.DataLoader(train_data, batch_size=4)
    else:
        loader = torch.utils.data.DataLoader(train_data, batch_size=4, sampler=train_data.sampler)
    with pytest.raises(infobatch.MisalignedError, match=r"Reorders\.__getitems__"):
        next(iter(loader))


class Labelled(Letters):
    """A data set with attributes, one of them under a name that the wrapper has, too."""

    def __init__(self) -> None:
        self.classes = ["vowel", "consonant"]
        self.transform: Any = None
        self.seed = 5


def test_attributes_are_those_of_the_wrapped_data_set() -> None:
    data = Labelled()
    train_data = infobatch.InfoBatch(data, 3, seed=7)
    assert train_data.classes is data.classes
    assert train_data.full().classes is data.classes
    assert as_spawned(train_data).classes == data.classes
    assert (train_data.seed, data.seed) == (7, 5)
    assert not hasattr(train_data, "column_names")
    with pytest.raises(AttributeError, match=r"InfoBatch.*Labelled.*column_names"):
        _ = train_data.column_names


def test_what_is_written_reaches_the_wrapped_data_set() -> None:
    """As timm sets the transform of its data set."""
    data = Labelled()
    train_data = infobatch.InfoBatch(data, 3)
    train_data.transform = str.upper
    assert data.transform is str.upper
    assert "transform" not in vars(train_data)
    train_data.note = "also one that it did not have"
    assert data.note == train_data.note == "also one that it did not have"  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="range"):
        infobatch.InfoBatch(range(4), 3).transform = str.upper


def test_what_is_private_in_the_wrapped_data_set_is_not_written_over_its_head() -> None:
    data: Any = Labelled()
    data._cache = {}
    train_data, view = infobatch.InfoBatch(data, 3), infobatch.InfoBatch(data, 3).full()
    for one in (train_data, view):
        with pytest.raises(AttributeError, match=r"_cache.*\.dataset\._cache"):
            one._cache = None
        assert "_cache" not in vars(one)
    assert data._cache == {}


def test_a_data_set_may_have_private_attributes_of_the_same_names() -> None:
    plain = infobatch.InfoBatch(Labelled(), 3)
    data = Labelled()
    names = [name for name in (*vars(plain), *vars(plain.full())) if name.startswith("_")]
    vars(data).update(dict.fromkeys(names, "its own"))
    train_data = infobatch.InfoBatch(data, 3)
    assert len(names) > 5
    for view in (train_data, train_data.full()):
        assert "its own" not in vars(view).values()
    for x in infobatch.DataLoader(train_data, batch_size=4, collate_fn=list):
        train_data.update(torch.ones(len(x)))
    assert train_data.epoch == 1
    assert {getattr(data, name) for name in names} == {"its own"}


class Doubled(infobatch.InfoBatch):
    def __getitem__(self, index: int) -> Any:
        return 2 * super().__getitem__(index)


class DoubledAtOnce(infobatch.InfoBatch):
    def __getitems__(self, indices: Any) -> Any:
        return [2 * sample for sample in super().__getitems__(indices)]


@pytest.mark.parametrize("kind", [Doubled, DoubledAtOnce])
@pytest.mark.parametrize("ours", [True, False])
def test_a_subclass_decides_what_a_sample_is(ours: bool, kind: type[infobatch.InfoBatch]) -> None:
    train_data = kind(list(range(8)), 3)
    if ours:
        loader: Any = infobatch.DataLoader(train_data, batch_size=4)
    else:
        loader = torch.utils.data.DataLoader(train_data, batch_size=4, sampler=train_data.sampler)
    came = []
    for batch in loader:
        came += batch.tolist()
        train_data.update(batch.float())
    assert sorted(came) == list(range(0, 16, 2))
    assert train_data.scores.tolist() == list(range(0, 16, 2))
    everything = train_data.full()
    (batch,) = torch.utils.data.DataLoader(everything, batch_size=8)
    assert batch.tolist() == list(range(0, 16, 2))
    for one in (train_data, everything):
        with pytest.raises(infobatch.InputError, match="spawned"):
            as_spawned(one)


def test_only_the_view_travels_to_a_worker() -> None:
    """Spawned. There is nothing there to train with, and the way it is told is the same wherever it is tried."""
    train_data = infobatch.InfoBatch(TensorDataset(torch.arange(5)), 3)
    there = as_spawned(train_data)
    assert type(there) is Copied
    assert there[2] == (torch.tensor(2),)
    assert not hasattr(there, "epoch")
    for use in (
        lambda: there.update(torch.ones(1)),
        lambda: there.sampler,
        lambda: there.epoch,
        lambda: infobatch.full_steps(there, 2),
        lambda: infobatch.DataLoader(there),
        lambda: infobatch.InfoBatch(there, 3),
    ):
        with pytest.raises((infobatch.InputError, AttributeError), match="process"):
            use()


def test_the_full_view_travels_without_its_sampler() -> None:
    """Its generator could not."""
    everything = infobatch.InfoBatch(TensorDataset(torch.arange(6)), 3).full()
    loader = torch.utils.data.DataLoader(
        everything, batch_size=3, sampler=everything.sampler, num_workers=1, multiprocessing_context="spawn"
    )
    assert sorted(torch.cat([x for (x,) in loader]).tolist()) == list(range(6))


def test_scores_are_not_lost_in_a_pickle(tmp_path: Path) -> None:
    train_data = infobatch.InfoBatch(TensorDataset(torch.arange(5)), 3)
    with pytest.raises(infobatch.InputError, match=r"Save its state_dict\(\)"):
        torch.save({"train_data": train_data}, tmp_path / "all.pt")


def test_the_full_view_shows_everything_and_records_nothing() -> None:
    train_data = infobatch.InfoBatch(TensorDataset(torch.arange(30.0)), 3)
    for (x,) in infobatch.DataLoader(train_data, batch_size=10):
        train_data.update(x)
    scores, epoch, kept = train_data.scores, train_data.epoch, train_data.plan().kept
    assert kept < 30
    everything = train_data.full()
    assert isinstance(everything, FullView)
    loader = torch.utils.data.DataLoader(everything, batch_size=10, sampler=everything.sampler)
    for _ in range(2):
        seen = []
        for (x,) in loader:
            loss = everything.update(x.requires_grad_())
            assert loss.item() == pytest.approx(x.mean().item())
            seen += x.tolist()
        assert sorted(seen) == list(range(30))
    assert torch.equal(train_data.scores, scores)
    assert (train_data.epoch, train_data.plan().kept) == (epoch, kept)


def test_the_full_view_takes_what_an_update_takes() -> None:
    """So that a loop runs unchanged, whatever its method wants to be told."""
    there, here = (list(inspect.signature(kind.update).parameters.values()) for kind in (infobatch.Pruned, FullView))
    assert there == here


def test_the_full_view_refuses_what_training_would() -> None:
    everything = infobatch.InfoBatch(Letters(), 3).full()
    with pytest.raises(infobatch.InputError, match="reduction"):
        everything.update(torch.tensor(1.0))


def test_the_full_view_leaves_the_global_random_state_alone() -> None:
    everything = infobatch.InfoBatch(Letters(), 3).full()
    before = torch.get_rng_state()
    order = list(everything.sampler)
    assert sorted(order) == [0, 1, 2, 3, 4]
    assert torch.equal(before, torch.get_rng_state())
