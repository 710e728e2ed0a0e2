"""Cases of alignment that a table does not hold."""

from __future__ import annotations

import traceback

import events as do
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


def test_a_count_to_skip_is_a_positive_number() -> None:
    loop = Loop("ours", {})
    next(loop.batches())
    with pytest.raises(infobatch.InputError):
        loop.train.skip(0)
