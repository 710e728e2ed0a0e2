"""Batches, crops and flips: the same whoever brings them, and drawn from nobody else's generator."""

from __future__ import annotations

import pytest
import torch
from small_task import QUICK, facts, made

from infobatch.lab.train import loop
from infobatch.lab.train.batches import Draws, crop_and_flip
from infobatch.lab.train.settings import Settings


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_both_feeds_train_the_same(workers: int) -> None:
    task = made(pad=1, flip=True)
    resident, loaded = facts(task, feed="resident"), facts(task, feed="loader", workers=workers)
    for one, other in zip(resident, loaded, strict=True):
        if one["kind"] in ("epoch", "end"):
            for key in set(one) - {"seconds", "time"}:
                assert one[key] == other[key], (one["kind"], key)
    assert [fact["environment"]["feed"] for fact in (resident[0], loaded[0])] == ["resident", "loader"]


@pytest.mark.parametrize("feed", ["resident", "loader"])
def test_no_loader_draws_from_the_global_generator(feed: str) -> None:
    lab = loop.Training(Settings.of({**QUICK, "feed": feed, "method": "kakurenbo"}), made())
    before = torch.get_rng_state()
    while not lab.is_finished:
        lab.epoch(lambda: False)
    assert torch.equal(torch.get_rng_state(), before)


def test_crops_and_flips_are_what_they_say() -> None:
    images = torch.randint(0, 255, (5, 3, 4, 4), dtype=torch.uint8)
    shifts, flips = torch.randint(0, 3, (5, 2)), torch.tensor([True, False, True, False, True])
    got = crop_and_flip(images, Draws(shifts, flips), 1)
    for at in range(5):
        padded = torch.zeros(3, 6, 6, dtype=torch.uint8)
        padded[:, 1:5, 1:5] = images[at]
        row, column = shifts[at].tolist()
        expected = padded[:, row : row + 4, column : column + 4]
        assert torch.equal(got[at], expected.flip(2) if flips[at] else expected)
