"""Images and masks from files: both layouts are read pixel by pixel, and what is missing or wrong is said in full."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from made_masks import ade20k, pair, plain
from PIL import Image

from infobatch.errors import InputError
from infobatch.lab.tasks import catalogue
from infobatch.lab.tasks.catalogue import TASKS, make_task
from infobatch.lab.tasks.segmentation.mask_files import MaskedImages
from infobatch.lab.tasks.task import Arrays


@pytest.mark.parametrize("place", [".", "ADEChallengeData2016", "ade/ADEChallengeData2016"])
def test_ade20k_is_found_where_it_usually_lies(tmp_path: Path, place: str) -> None:
    ade20k(tmp_path / place)
    assert catalogue.locate(TASKS["ade20k"], tmp_path) == f"in {tmp_path / place}"
    task = make_task("ade20k", str(tmp_path))
    assert (len(task.train), len(task.test), len(task.classes)) == (4, 2, 150)  # type: ignore[arg-type]
    assert (task.classes[0], task.classes[149]) == ("wall", "flag")
    assert "4 images and masks" in task.source
    assert "sha256" in task.source


def test_labels_of_ade20k_count_from_one(tmp_path: Path) -> None:
    """0 does not count and 1 is the first class, in test masks of the size of their files."""
    ade20k(tmp_path)
    image, mask = make_task("ade20k", str(tmp_path)).test[0]  # type: ignore[index]
    assert mask.shape == (40, 60)
    assert [mask[0, column].item() for column in (0, 20, 40, 59)] == [255, 0, 1, 149]
    assert image.shape == (3, 512, 768)  # the shorter side has 512 pixels, as in mmsegmentation


def test_training_images_of_several_sizes_lie_in_one_square(tmp_path: Path) -> None:
    """Scaled to the same shorter side, unless the longer one is too long; around them no pixel counts."""
    ade20k(tmp_path, train=1)
    folders = tmp_path / "images" / "training", tmp_path / "annotations" / "training"
    pair(*folders, "B_tall", (20, 80), (1, 2))
    train = make_task("ade20k", str(tmp_path)).train
    heights = {}
    for at, wanted in ((0, (512, 768)), (1, (768, 192))):
        image, mask = train[at]  # type: ignore[index]
        assert image.shape == (3, 768, 768)
        assert mask.shape == (768, 768)
        inside = torch.zeros(768, 768, dtype=torch.bool)
        inside[: wanted[0], : wanted[1]] = True
        assert bool((mask[~inside] == 255).all())
        assert bool((image[:, ~inside] == torch.tensor([[124], [116], [104]])).all())
        heights[at] = mask[inside]
    assert sorted(set(heights[0].tolist())) == [0, 1, 149, 255]
    assert heights[1].reshape(768, 192)[:, [0, 95, 96, 191]].unique(dim=0).tolist() == [[0, 0, 1, 1]]


@pytest.mark.parametrize("names", [{}, {"masks": "annotations"}, {"masks": "labels", "val": "test"}])
def test_small_images_of_one_size_are_read_into_memory(tmp_path: Path, names: dict[str, str]) -> None:
    plain(tmp_path, **names)
    task = make_task("segmentation", str(tmp_path))
    assert isinstance(task.train, Arrays)
    assert isinstance(task.test, Arrays)
    assert task.classes == ("0", "1", "2")
    for at, name in enumerate(sorted(map(str, range(12)))):
        image = np.array(Image.open(tmp_path / "images" / "train" / f"{name}.png"))
        mask = np.array(Image.open(tmp_path / names.get("masks", "masks") / "train" / f"{name}.png"))
        assert np.array_equal(task.train.inputs[at].permute(1, 2, 0).numpy(), image)
        assert np.array_equal(task.train.labels[at].numpy(), mask)


def test_images_of_several_sizes_are_read_on_access(tmp_path: Path) -> None:
    plain(tmp_path, size=(24, 16))
    pair(tmp_path / "images" / "val", tmp_path / "masks" / "val", "tall", (16, 30), (0, 2), "png")
    task = make_task("segmentation", str(tmp_path))
    assert isinstance(task.train, MaskedImages)
    assert task.train[0][0].shape == (3, 16, 24)
    assert task.test_batch == 1
    shapes = {tuple(task.test[at][1].shape) for at in range(5)}  # type: ignore[index]
    assert shapes == {(16, 24), (30, 16)}


def test_names_of_classes_come_from_a_file(tmp_path: Path) -> None:
    """So labels that no training mask has are classes, too."""
    plain(tmp_path)
    (tmp_path / "classes.txt").write_text("ground\nlow\n\nhigh\nnowhere\n")
    assert make_task("segmentation", str(tmp_path)).classes == ("ground", "low", "high", "nowhere")


def test_a_palette_s_numbers_are_the_labels(tmp_path: Path) -> None:
    """Not the brightness of its colours."""
    plain(tmp_path)
    path = tmp_path / "masks" / "train" / "0.png"
    labels = np.array(Image.open(path))
    mask = Image.fromarray(labels, mode="P")
    mask.putpalette([200, 10, 10, 10, 200, 10] * 128)
    mask.save(path)
    task = make_task("segmentation", str(tmp_path))
    assert np.array_equal(task.train.labels[0].numpy(), labels)  # type: ignore[union-attr]


# ---- bad input -------------------------------------------------------------------------------------------


def rewrite(path: Path, change: Callable[[np.ndarray], np.ndarray]) -> None:
    Image.fromarray(change(np.array(Image.open(path)))).save(path)


def read_all(name: str, root: Path) -> None:
    task = make_task(name, str(root))
    for part in (task.train, task.test):
        for at in range(len(part)):  # type: ignore[arg-type]
            part[at]  # type: ignore[index]


MASK = {"segmentation": "masks/train/1.png", "ade20k": "annotations/training/ADE_training_00000001.png"}
IMAGE = {"segmentation": "images/train/1.png", "ade20k": "images/training/ADE_training_00000001.jpg"}
BOTH = pytest.mark.parametrize("name", ["segmentation", "ade20k"])


@pytest.fixture
def root(tmp_path: Path, name: str) -> Path:
    {"segmentation": plain, "ade20k": ade20k}[name](tmp_path)
    read_all(name, tmp_path)
    return tmp_path


def refused(name: str, root: Path, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_all(name, root)


@BOTH
def test_damaged_files_are_named(name: str, root: Path) -> None:
    for file in (MASK[name], IMAGE[name]):
        whole = (root / file).read_bytes()
        for content in (whole[: len(whole) // 2], b"no image", b""):
            (root / file).write_bytes(content)
            refused(name, root, f"a readable image in .*{re.escape(file)}")
        (root / file).write_bytes(whole)


@BOTH
def test_a_mask_of_another_size_is_refused(name: str, root: Path) -> None:
    rewrite(root / MASK[name], lambda mask: mask[:-2, 3:])
    refused(name, root, rf"a mask of \d+ x \d+ pixels, as its image has, in .*{re.escape(MASK[name])}; got \d+ x \d+")


@BOTH
def test_missing_pairs_are_named(name: str, root: Path) -> None:
    for file, words in ((MASK[name], "a mask in .* for each image"), (IMAGE[name], "an? image in .* for each mask")):
        shutil.move(root / file, root / "away")
        refused(name, root, f"{words}; got none for 1 of .*{Path(file).stem}")
        shutil.move(root / "away", root / file)


@BOTH
def test_labels_outside_the_classes_are_refused(name: str, root: Path) -> None:
    (root / "classes.txt").write_text("a\nb\nc\n")
    wrong, allowed = {"segmentation": (3, "0 to 2"), "ade20k": (151, "1 to 150")}[name]

    def change(mask: np.ndarray) -> np.ndarray:
        mask[0, :5] = wrong
        return mask

    rewrite(root / MASK[name], change)
    refused(name, root, f"labels from {allowed}, or 255 .* in .*{re.escape(MASK[name])}; got {wrong} in 5 pixels")


@BOTH
def test_colours_are_no_labels(name: str, root: Path) -> None:
    rewrite(root / MASK[name], lambda mask: np.stack([mask] * 3, 2))
    refused(name, root, "one number of at most 8 bits per pixel .* got an image of mode RGB")


def test_what_else_cannot_be(tmp_path: Path) -> None:
    plain(tmp_path)
    image = tmp_path / "images" / "train" / "1.png"
    shutil.copy(image, image.with_suffix(".bmp"))
    refused("segmentation", tmp_path, "one file for each name in .*1.bmp and 1.png")
    image.with_suffix(".bmp").unlink()
    for content in (b"one\n", b"one\none\n", b"\xff\xfe\n"):
        (tmp_path / "classes.txt").write_bytes(content)
        refused("segmentation", tmp_path, "classes.txt; got")
    (tmp_path / "classes.txt").unlink()
    for path in (tmp_path / "masks" / "train").iterdir():
        rewrite(path, lambda mask: mask * 0)
    refused("segmentation", tmp_path, "at least two classes in .*got labels up to 0")
    for path in (*(tmp_path / "masks" / "val").iterdir(), *(tmp_path / "images" / "val").iterdir()):
        path.unlink()
    refused("segmentation", tmp_path, "images in .*val; got none")
