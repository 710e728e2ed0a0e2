"""Images in parquet files and in folders: what goes in comes out again, and what is broken is named."""

from __future__ import annotations

import io
import json
import os
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made import npy_folder, png, refused, save, some_images, tiny_folder
from PIL import Image

from infobatch.errors import InfoBatchWarning, InputError
from infobatch.lab.tasks.readers import class_folders, decode, npy, own_images, parquet, tiny_imagenet

# parquet


def write_parquet(path: Path, columns: dict[str, list[Any]], features: dict[str, Any] | None = None) -> None:
    import pyarrow
    from pyarrow import parquet as writer

    table = pyarrow.table(columns)
    if features is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    writer.write_table(table, path)


def test_parquet_of_hugging_face(tmp_path: Path) -> None:
    images = some_images(5, 6, 4, 3)
    features = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}, "image": {"_type": "Image"}}
    for shard in range(2):
        rows = range(3 * shard, min(3 * shard + 3, 5))
        cells = [{"bytes": png(images[row]), "path": f"{row}.png"} for row in rows]
        columns = {"image": cells, "label": [row % 2 for row in rows]}
        write_parquet(tmp_path / f"train-0000{shard}-of-00002.parquet", columns, features)
    write_parquet(tmp_path / "test-00000-of-00001.parquet", {"img": [png(images[0])], "fine_label": [1], "label": [0]})
    assert parquet.is_present(tmp_path)
    samples = parquet.read(tmp_path, (3, 6, 4))
    assert np.array_equal(samples.train.inputs.permute(0, 2, 3, 1), images)
    assert samples.train.labels.tolist() == [0, 1, 0, 1, 0]
    assert samples.test.labels.tolist() == [1]
    assert samples.classes == ("cat", "dog")
    assert "train-00001-of-00002.parquet sha256:" in samples.source
    (tmp_path / "train-00001-of-00002.parquet").unlink()
    refused(lambda: parquet.read(tmp_path, (3, 6, 4)), "train-00001-of-00002.parquet", "no such file")


def test_parquet_that_is_broken_is_named(tmp_path: Path) -> None:
    train, test = tmp_path / "train" / "0.parquet", tmp_path / "test" / "0.parquet"
    image = png(some_images(1, 4, 4)[0])
    write_parquet(train, {"image": [image], "label": [0]})
    refused(lambda: parquet.read(tmp_path, (1, 4, 4)), "test-*.parquet", "no such file")
    write_parquet(test, {"picture": [image], "label": [0]})
    refused(lambda: parquet.read(tmp_path, (1, 4, 4)), str(test), "image or img", "picture, label")
    write_parquet(test, {"image": [image], "class": [0]})
    refused(lambda: parquet.read(tmp_path, (1, 4, 4)), str(test), "fine_label or label")
    write_parquet(test, {"image": [image, image[:40]], "label": [0, 0]})
    refused(lambda: parquet.read(tmp_path, (1, 4, 4)), f"{test}, row 1", "image")
    write_parquet(test, {"image": [{"bytes": None, "path": "a.png"}], "label": [0]})
    refused(lambda: parquet.read(tmp_path, (1, 4, 4)), f"{test}, row 0", "none")
    write_parquet(test, {"image": [image], "label": [None]})
    refused(lambda: parquet.read(tmp_path, (1, 4, 4)), f"{test}, row 0", "label", "None")
    write_parquet(test, {"image": [image], "label": np.array([2**64 - 1], np.uint64)})
    refused(lambda: parquet.read(tmp_path, (1, 4, 4)), f"{test}, row 0", "label", str(2**64 - 1))
    write_parquet(test, {"image": [image], "label": [0]})
    refused(lambda: parquet.read(tmp_path, (1, 5, 4)), str(train), "4 x 5 pixels", "4 x 4")
    whole = test.read_bytes()
    test.write_bytes(whole[:-20])
    refused(lambda: parquet.read(tmp_path, (1, 4, 4)), str(test))
    test.write_bytes(whole[:8] + bytes(60) + whole[68:])
    refused(lambda: parquet.read(tmp_path, (1, 4, 4)), str(test))
    draw = random.Random(0)
    for _ in range(200):
        spoiled = bytearray(whole)
        for _ in range(3):
            spoiled[draw.randrange(len(whole))] = draw.randrange(256)
        test.write_bytes(spoiled)
        with suppress(InputError):  # what can be read after all is no matter
            parquet.values(test, (1, 4, 4))


# image folders


def image_folder(root: Path, size: tuple[int, int] = (6, 5), below: str = "") -> dict[str, np.ndarray]:
    made = {}
    for part, count in (("train", 3), ("val", 2)):
        for kind in ("b", "a"):
            for number in range(count):
                name = f"{part}/{kind}/{below}{number}.png"
                made[name] = some_images(1, *size, 3)[0]
                save(root / name, made[name])
    return made


@pytest.mark.parametrize("below", ["", "images/"])
def test_an_image_folder_in_memory(tmp_path: Path, below: str) -> None:
    made = image_folder(tmp_path, below=below)
    (tmp_path / "train" / "notes.txt").write_text("not a class")
    (tmp_path / "train" / "a" / below / "boxes.txt").write_text("not an image")
    assert class_folders.is_present(tmp_path)
    samples = class_folders.read(tmp_path, (3, 6, 5))
    assert samples.classes == ("a", "b")
    assert samples.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert samples.test.labels.tolist() == [0, 0, 1, 1]
    for place, name in ((1, f"train/a/{below}1.png"), (3, f"train/b/{below}0.png")):
        assert np.array_equal(samples.train.inputs[place].permute(1, 2, 0), made[name])
    assert "train: 6 images" in samples.source


@pytest.mark.parametrize("name", ["a/5.HEIC", "7.png"])
def test_images_that_are_left_out_are_told(tmp_path: Path, name: str) -> None:
    image_folder(tmp_path)
    (tmp_path / "train" / name).write_bytes(b"an image of another kind, or in no class folder")
    with pytest.warns(InfoBatchWarning, match=f"1 of 7 images in {tmp_path / 'train'}, .*{name}") as caught:
        samples = class_folders.read(tmp_path, (3, 6, 5))
    assert len(caught) == 1
    assert len(samples.train.labels) == 6


def test_class_folders_may_have_any_name(tmp_path: Path) -> None:
    for part in ("train", "val"):
        for at, name in enumerate((b"caf\xe9", b"tea")):
            save(tmp_path / part / os.fsdecode(name) / "0.png", some_images(2, 6, 5, 3)[at])
    samples = class_folders.read(tmp_path, (3, 6, 5))
    assert samples.classes == ("caf\\xe9", "tea")
    assert samples.train.labels.tolist() == [0, 1]
    "".join((samples.source, *samples.classes)).encode()  # as a record does


def test_an_image_that_no_decoder_knows_is_named() -> None:
    out = io.BytesIO()
    Image.fromarray(some_images(1, 4, 4, 3)[0]).save(out, "DDS")
    spoiled = bytearray(out.getvalue())
    spoiled[80:84] = bytes(4)  # its pixel format
    refused(lambda: decode.decode_exact(bytes(spoiled), "the picture", (3, 4, 4)), "the picture", "NotImplementedError")


def test_grey_and_palette_images_become_what_the_task_needs(tmp_path: Path) -> None:
    grey = some_images(1, 4, 4)[0]
    save(tmp_path / "grey.png", grey)
    Image.fromarray(grey).convert("P").save(tmp_path / "palette.png")
    for name in ("grey.png", "palette.png"):
        path = tmp_path / name
        assert np.array_equal(decode.decode_exact(path, path, (3, 4, 4)), np.stack([grey] * 3))
        assert np.array_equal(decode.decode_exact(path, path, (1, 4, 4))[0], grey)


def test_an_image_folder_with_faults(tmp_path: Path) -> None:
    image_folder(tmp_path)
    refused(lambda: class_folders.read(tmp_path, (3, 6, 6)), ".png", "6 x 6 pixels", "5 x 6")
    bad = tmp_path / "train" / "b" / "1.png"
    whole = bad.read_bytes()
    for data in (b"", b"no image", whole[:50], whole[: len(whole) - 30]):
        bad.write_bytes(data)
        refused(lambda: class_folders.read(tmp_path, (3, 6, 5)), str(bad))
    bad.write_bytes(whole)
    save(tmp_path / "val" / "c" / "0.png", some_images(1, 6, 5, 3)[0])
    refused(lambda: class_folders.read(tmp_path, (3, 6, 5)), str(tmp_path / "val"), "'c'")
    (tmp_path / "val" / "c" / "0.png").unlink()
    (tmp_path / "train" / "c").mkdir()
    refused(lambda: class_folders.read(tmp_path, (3, 6, 5)), str(tmp_path / "train" / "c"), "none")


def test_test_images_without_class_folders(tmp_path: Path) -> None:
    save(tmp_path / "train" / "a" / "0.png", some_images(1, 6, 5, 3)[0])
    save(tmp_path / "val" / "0.png", some_images(1, 6, 5, 3)[0])
    refused(lambda: class_folders.read_lazily(tmp_path), str(tmp_path / "val"), "class folders")


def test_large_images_are_read_when_asked_for(tmp_path: Path) -> None:
    image_folder(tmp_path, (300, 260))
    samples = class_folders.read_lazily(tmp_path)
    assert samples.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    image, label = samples.train[4]
    assert (image.shape, image.dtype, label.item()) == ((3, 224, 224), torch.uint8, 1)
    assert torch.equal(samples.test[0][0], samples.test[0][0])
    assert not torch.equal(samples.train[0][0], samples.train[0][0])
    plain = samples.train.without_augmentation()
    assert torch.equal(plain[0][0], plain[0][0])
    assert torch.equal(plain.labels, samples.train.labels)
    torch.manual_seed(3)
    first = samples.train[0][0]
    torch.manual_seed(3)
    assert torch.equal(samples.train[0][0], first)
    (tmp_path / "train" / "b" / "1.png").write_bytes(b"broken")
    assert refused(lambda: samples.train[4], str(tmp_path / "train" / "b" / "1.png"))
    assert samples.train[3][1] == 1


def test_workers_of_a_loader_crop_differently(tmp_path: Path) -> None:
    """Two samples that are one image: what differs is chance, and the two come from two workers."""
    image_folder(tmp_path, (300, 260))
    data = torch.utils.data.Subset(class_folders.read_lazily(tmp_path).train, [0, 0])
    first, second = (image for image, _ in torch.utils.data.DataLoader(data, num_workers=2))
    assert not torch.equal(first, second)


def ramp(width: int, height: int) -> Image.Image:
    """Red tells the column and green the row, so a crop says where it was cut."""
    rows, columns = np.mgrid[0:height, 0:width]
    grey = np.zeros_like(rows)
    return Image.fromarray(np.stack([columns * 255 // width, rows * 255 // height, grey], -1).astype(np.uint8))


def test_the_test_view_is_the_centre() -> None:
    for width, height in ((512, 256), (256, 400), (100, 100), (256, 257)):
        view = decode.centre_view(ramp(width, height)).float()
        assert view.shape == (3, 224, 224)
        assert view[0].mean().item() == pytest.approx(127, abs=1.5)
        assert view[1].mean().item() == pytest.approx(127, abs=1.5)
    view = decode.centre_view(ramp(512, 256)).float()
    shown = (view[0].max() - view[0].min()).item() / 255
    assert shown == pytest.approx(224 / 512, abs=0.01)  # of a 512 x 256 image, 224 x 224 pixels at their own size
    assert (view[1].max() - view[1].min()).item() / 255 == pytest.approx(224 / 256, abs=0.01)


def test_the_training_view_is_a_random_part() -> None:
    torch.manual_seed(0)
    image, areas, ratios, turned = ramp(400, 300), [], [], 0
    for _ in range(300):
        view = decode.random_view(image, 32).float()
        columns, rows = view[0].mean(0), view[1].mean(1)
        wide = abs(columns[-1] - columns[0]).item() / 255 * 32 / 31
        high = abs(rows[-1] - rows[0]).item() / 255 * 32 / 31
        areas.append(wide * high)
        ratios.append(wide * 400 / (high * 300))
        turned += bool(columns[0] > columns[-1])
        assert rows[-1] > rows[0]
    assert 0.06 < min(areas) < 0.12
    assert 0.9 < max(areas) < 1.02
    share, tilt = np.meshgrid(np.linspace(0.08, 1, 500), np.linspace(-1, 1, 500) * np.log(4 / 3))
    fits = share <= 0.75 * np.exp(tilt)  # a part as large and as tall as the others is too high for 400 x 300
    assert np.mean(areas) == pytest.approx(share[fits].mean(), abs=0.04)
    assert 0.72 < min(ratios) < 0.8
    assert 1.25 < max(ratios) < 1.4
    assert 120 < turned < 180


def test_a_long_strip_has_a_view_too() -> None:
    torch.manual_seed(0)
    for width, height in ((2000, 10), (10, 2000), (1, 1)):
        assert decode.random_view(ramp(width, height), 32).shape == (3, 32, 32)


# Tiny-ImageNet


def test_tiny_imagenet_as_published(tmp_path: Path) -> None:
    made = tiny_folder(tmp_path)
    assert tiny_imagenet.is_present(tmp_path)
    samples = tiny_imagenet.read(tmp_path, (3, 8, 8))
    assert samples.classes == ("goldfish", "tench")
    assert samples.train.labels.tolist() == [0, 0, 1, 1]
    assert samples.test.labels.tolist() == [0, 1, 0]
    assert np.array_equal(samples.test.inputs[0].permute(1, 2, 0), made["val/images/val_2.png"])
    (tmp_path / "words.txt").write_text("n01\tcrane\nn02\tcrane\n")
    assert tiny_imagenet.read(tmp_path, (3, 8, 8)).classes == ("crane (n01)", "crane (n02)")
    (tmp_path / "words.txt").unlink()
    assert tiny_imagenet.read(tmp_path, (3, 8, 8)).classes == ("n01", "n02")


def test_tiny_imagenet_sorted_into_folders_is_an_image_folder(tmp_path: Path) -> None:
    tiny_folder(tmp_path)
    for wnid in ("n01", "n02"):
        (tmp_path / "val" / wnid).mkdir()
        (tmp_path / "val" / "images" / f"val_{wnid[2]}.png").rename(tmp_path / "val" / wnid / "0.png")
    (tmp_path / "val" / "images" / "val_0.png").unlink()
    (tmp_path / "val" / "images").rmdir()
    assert not tiny_imagenet.is_present(tmp_path)
    assert class_folders.read(tmp_path, (3, 8, 8)).test.labels.tolist() == [0, 1]


def test_tiny_imagenet_with_faults(tmp_path: Path) -> None:
    tiny_folder(tmp_path)
    path = tmp_path / "val" / "val_annotations.txt"
    whole = path.read_text()
    for line in ("val_0.png", "val_0.png\tn09\t0\t0\t9\t9", "../../secret.png\tn01"):
        path.write_text(whole + line + "\n")
        refused(lambda: tiny_imagenet.read(tmp_path, (3, 8, 8)), str(path), "line 4")
    path.write_bytes(b"\xff\xfe")
    refused(lambda: tiny_imagenet.read(tmp_path, (3, 8, 8)), str(path), "UTF-8")
    path.write_text("")
    refused(lambda: tiny_imagenet.read(tmp_path, (3, 8, 8)), str(path), "none")
    path.write_text(whole)
    (tmp_path / "val" / "images" / "val_1.png").unlink()
    refused(lambda: tiny_imagenet.read(tmp_path, (3, 8, 8)), "val_1.png")


# what is no regular file


@pytest.fixture(params=["pipe", "socket", "device", "folder"])
def special(request: pytest.FixtureRequest) -> Any:
    """Make a path something that is no regular file."""

    def make(path: Path) -> None:
        path.unlink(missing_ok=True)
        if request.param == "pipe":
            os.mkfifo(path)
        elif request.param == "socket":
            with socket.socket(socket.AF_UNIX) as made, chdir(path.parent):  # its name may not be long
                made.bind(path.name)
        elif request.param == "device":
            path.symlink_to("/dev/zero")
        else:
            path.mkdir()

    return make


@contextmanager
def chdir(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def test_only_regular_files_in_class_folders_are_listed(special: Any, tmp_path: Path) -> None:
    images = some_images(2, 6, 6, 3)
    for part in ("train", "val"):
        for name in ("cat", "dog"):
            save(tmp_path / part / name / "0.png", images[0])
    special(tmp_path / "train" / "cat" / "1.png")
    for read in (own_images.read_folder, class_folders.read_lazily):
        with pytest.warns(InfoBatchWarning, match=r"skipped 1 of 3 .*1\.png.*regular"):
            samples = read(tmp_path)
        assert len(samples.train.targets if hasattr(samples.train, "targets") else samples.train) == 2


def test_a_link_to_nowhere_is_named(tmp_path: Path) -> None:
    for part in ("train", "val"):
        save(tmp_path / part / "cat" / "0.png", some_images(1, 6, 6, 3)[0])
    (tmp_path / "train" / "cat" / "1.png").symlink_to("nowhere")
    refused(lambda: own_images.read_folder(tmp_path), "1.png", "FileNotFoundError")


def test_only_regular_files_are_opened(special: Any, tmp_path: Path) -> None:
    tiny_folder(tmp_path / "tiny")
    (annotated, *_) = (tmp_path / "tiny" / "val" / "images").iterdir()
    special(annotated)
    refused(lambda: tiny_imagenet.read(tmp_path / "tiny", (3, 8, 8)), annotated.name, "regular file")
    npy_folder(tmp_path / "npy", some_images(3, 4, 4), some_images(3, 4, 4))
    special(tmp_path / "npy" / "train_x.npy")
    refused(lambda: npy.values(tmp_path / "npy" / "train_x.npy"), "train_x.npy", "regular file")
    assert own_images.peek_npy(tmp_path / "npy") is None
    image = [png(some_images(1, 4, 4)[0])]
    for part in ("train", "test"):
        write_parquet(tmp_path / "rows" / part / "0.parquet", {"image": image, "label": [0]})
    special(tmp_path / "rows" / "test" / "0.parquet")
    refused(lambda: parquet.read(tmp_path / "rows", (1, 4, 4)), "0.parquet", "regular file")
