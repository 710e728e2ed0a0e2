"""Samples as a page shows them: words, and pictures that are what was recorded."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from infobatch.report import gallery


def test_samples_have_label_index_and_short_losses() -> None:
    def shown(**fact: Any) -> gallery.Sample:
        return gallery._sample({"index": 1089, "kept": 6, **fact}, ["zero", "one"], 20, 64)

    assert shown(label="9").name == "9"
    assert shown(label=1).name == "one"
    assert shown(label=None).name == ""
    assert (shown().index, shown().kept) == ("#1089", "kept 6/20")
    losses = [
        (-0.0, "loss 0"),
        (0, "loss 0"),
        (1e-7, "loss < 0.001"),
        (0.0123, "loss 0.012"),
        (-2, "loss \N{MINUS SIGN}2"),
    ]
    assert [shown(loss=value).loss for value, _ in losses] == [text for _, text in losses]


@pytest.mark.parametrize("shape", [(1, 5, 7), (3, 8, 8), (4, 3, 3), (2, 6, 2)])
def test_pictures_are_what_was_recorded(shape: tuple[int, int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    image = gallery.decoded({"shape": list(shape), "bytes": base64.b64encode(pixels.tobytes()).decode()})
    assert image is not None
    again = np.asarray(Image.open(io.BytesIO(gallery.png(image))))
    expected = pixels[:3].transpose(1, 2, 0) if shape[0] >= 3 else pixels[0]
    assert np.array_equal(again, expected)


def test_large_pictures_shrink_to_means() -> None:
    pixels = np.arange(256, dtype=np.uint8).reshape(16, 16, 1).repeat(8, 0).repeat(8, 1)
    small = gallery.shrunk(pixels, 16)
    assert np.array_equal(small, np.arange(256, dtype=np.uint8).reshape(16, 16, 1))
    assert max(gallery.shrunk(np.zeros((500, 3, 3), np.uint8), 64).shape) <= 64


@pytest.mark.parametrize(
    "image",
    [
        {"shape": [3, 2, 2], "bytes": "AAAA"}, {"shape": [3, 2], "bytes": "AAAA"}, {"shape": None, "bytes": ""},
        {"shape": [1, 1, 3], "bytes": "not base64!"}, {"shape": [0, 1, 1], "bytes": ""}, {"shape": ["1", 1, 3]}, {},
        {"shape": [1, 1, 3], "bytes": 5},
    ],
)  # fmt: skip
def test_spoiled_pictures_are_no_pictures(image: dict[str, Any]) -> None:
    assert gallery.decoded(image) is None
