"""Cases of alignment that a table does not hold."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Any

import actions as do
import pytest
import torch
from loop import BROKEN, FEEDERS, QUIET, Loop, N, backwards, drop_first, load

import infobatch
from infobatch import MisalignedError

pytestmark = QUIET


def test_an_iterator_kept_alive_by_its_own_error_is_no_rival() -> None:
    """An error in a worker ties its iterator into a cycle, so it lives on after the loop has let it go."""
    loop = Loop("stock", {"num_workers": 1, "prefetch_factor": 1})
    do.broken(loop, 20)
    kept: list[OSError] = []
    try:
        loop.epoch()
    except OSError as error:
        kept.append(error)
    finally:
        BROKEN.value = -1
    assert kept
    loop.epoch(load(loop.train, "stock", {}))
    loop.check()
    traceback.clear_frames(kept[0].__traceback__)


@pytest.mark.parametrize("workers", [0, 1])
def test_single_samples_lost_to_an_error_do_not_shift_the_rest(workers: int) -> None:
    """With batch_size=None no indices travel: positions are counted, and a lost one counts."""
    loop = Loop("ours", {"batch_size": None, "num_workers": workers})
    do.with_error(loop, 20, lambda loop, batch: None)
    loop.epoch()
    loop.check()
    assert not loop.weights_wrong


def test_doubtful_losses_do_not_travel_in_a_checkpoint() -> None:
    loop = Loop("stock", {"collate_fn": drop_first})
    with pytest.raises(MisalignedError):
        loop.epoch()
    state = loop.train.state_dict()
    again = Loop("stock", {})
    again.train.load_state_dict(state)
    again.epoch()
    again.check()


@pytest.mark.parametrize("feeder", FEEDERS)
def test_order_inside_a_batch_is_the_callers(feeder: str) -> None:
    """What nobody can see: a collate that mixes the samples of a batch. Only the caller's own indices help."""
    loop = Loop(feeder, {"collate_fn": backwards})
    loop.epoch()
    right = bool((loop.train.scores == torch.arange(N)).all())
    assert right == (feeder == "explicit")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("feeder", ["ours", "stock"])
def test_parts_of_a_batch_with_the_indices_of_the_batch_at_hand(feeder: str, workers: int) -> None:
    loop = Loop(feeder, {"num_workers": workers})
    for _ in range(2):
        for batch in loop.batches():
            for part, indices in zip(batch.split(3), loop.train.batch_indices.split(3), strict=True):
                loop.train.update(part, indices)
    known = ~torch.isnan(loop.train.scores)
    assert known.all()
    loop.check()


@pytest.mark.parametrize("kind", [infobatch.DataLoader, torch.utils.data.DataLoader])
@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
def test_a_batch_sampler_that_makes_its_batches_at_once(kind: Any, workers: dict[str, Any]) -> None:
    """Torch asks it twice for a first pass with workers, once before the iterator is made."""

    class Buckets(torch.utils.data.Sampler[list[int]]):
        def __iter__(self) -> Iterator[list[int]]:
            order = sorted(train.sampler)
            return iter([order[start : start + 8] for start in range(0, len(order), 8)])

    train = infobatch.InfoBatch(list(range(40)), 3, delta=1.0)
    loader = kind(train, batch_sampler=Buckets(), **workers)
    for _ in range(3):
        for batch in loader:
            train.update(batch.float(), batch)
    assert [report.kept for report in train.history] == [40, 30, 30]
    assert torch.equal(train.scores, torch.arange(40.0))
