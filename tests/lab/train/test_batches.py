"""Batches, crops and flips: the same whoever brings them, and drawn from nobody else's generator."""

from __future__ import annotations

import pytest
import torch
from small_task import QUICK, facts, made
from torch.nn import functional as F

from infobatch.errors import InputError
from infobatch.lab.tasks.task import Arrays
from infobatch.lab.train import loop
from infobatch.lab.train.batches import Draws, Preprocess, crop_and_flip, draw_augmentations
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


def test_reflected_crops_are_torch_s() -> None:
    images, pad = torch.randint(0, 255, (60, 3, 7, 5), dtype=torch.uint8), 4
    shifts, flips = torch.randint(0, 2 * pad + 1, (60, 2)), torch.rand(60) < 0.5
    shifts[:4] = torch.tensor([[0, 0], [0, 8], [8, 0], [8, 8]])
    got = crop_and_flip(images, Draws(shifts, flips), pad, "reflect")
    padded = F.pad(images.float(), (pad, pad, pad, pad), mode="reflect").byte()
    for at, (row, column) in enumerate(shifts.tolist()):
        expected = padded[at, :, row : row + 7, column : column + 5]
        assert torch.equal(got[at], expected.flip(2) if flips[at] else expected)
    assert got.shape == images.shape


def test_an_image_is_not_reflected_beyond_itself() -> None:
    draws = Draws(torch.zeros(1, 2, dtype=torch.int64), None)
    with pytest.raises(InputError, match="more than 4 pixels"):
        crop_and_flip(torch.zeros(1, 1, 9, 4, dtype=torch.uint8), draws, 4, "reflect")


def test_training_reflects_when_asked() -> None:
    """An image without a dark pixel has none after a crop either, unless what is beyond its edge is black."""
    task = made(pad=2)
    assert isinstance(task.train, Arrays)
    bright = task.train.inputs.clamp(min=100)
    for padding, dark in (("zeros", True), ("reflect", False)):
        settings = Settings.of({**QUICK, "crop_padding": padding})
        draws = draw_augmentations(task, settings, 0, len(bright), torch.device("cpu"))
        x = Preprocess(task, settings, torch.device("cpu"))(bright, draws)
        assert bool((x < (100 / 255 - 0.3) / 0.2 - 1e-4).any()) == dark
