"""The readers: what goes into a file comes out again, and what is broken is named."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import random
import struct
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from infobatch.errors import InfoBatchWarning, InputError
from infobatch.lab.data import cifar, digits, folder, idx, names, npy, parquet, pictures, tiny
from infobatch.lab.data.files import digest, fingerprint

rng = np.random.default_rng(0)


def some_images(count: int, *shape: int) -> np.ndarray:
    return rng.integers(0, 256, (count, *shape), dtype=np.uint8)


def write_idx(path: Path, array: np.ndarray) -> None:
    data = b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)


def idx_folder(root: Path, ending: str = "") -> dict[str, np.ndarray]:
    root.mkdir(parents=True, exist_ok=True)
    made = {}
    for part, count in (("train", 6), ("t10k", 3)):
        made[f"{part}-images-idx3-ubyte"] = some_images(count, 5, 4)
        made[f"{part}-labels-idx1-ubyte"] = np.arange(count, dtype=np.uint8)
    for name, array in made.items():
        write_idx(root / f"{name}{ending}", array)
    return made


def npy_folder(root: Path, train: np.ndarray, test: np.ndarray, classes: int = 3) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for part, images in (("train", train), ("test", test)):
        np.save(root / f"{part}_x.npy", images)
        np.save(root / f"{part}_y.npy", np.arange(len(images)) % classes)


def png(image: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(image).save(out, "PNG")
    return out.getvalue()


def save(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(image))


def refused(call: Any, *words: str) -> str:
    with pytest.raises(InputError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
    return str(caught.value)


# idx


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_idx_comes_out_as_it_went_in(tmp_path: Path, ending: str) -> None:
    made = idx_folder(tmp_path, ending)
    assert idx.found(tmp_path)
    samples = idx.read(tmp_path)
    assert samples.train.inputs.shape == (6, 1, 5, 4)
    assert samples.train.inputs.dtype == torch.uint8
    assert samples.train.labels.dtype == torch.int64
    assert np.array_equal(samples.train.inputs[:, 0], made["train-images-idx3-ubyte"])
    assert np.array_equal(samples.test.inputs[:, 0], made["t10k-images-idx3-ubyte"])
    assert samples.test.labels.tolist() == [0, 1, 2]
    assert f"train-images-idx3-ubyte{ending} sha256:" in samples.source


def test_idx_with_a_dot_in_its_name(tmp_path: Path) -> None:
    for name in idx_folder(tmp_path):
        (tmp_path / name).rename(tmp_path / name.replace("-idx", ".idx"))
    assert len(idx.read(tmp_path).train) == 6


@settings(max_examples=40, deadline=None)
@given(array=hnp.arrays(np.uint8, hnp.array_shapes(max_dims=4, max_side=6)), packed=st.booleans())
def test_idx_of_any_shape(tmp_path_factory: pytest.TempPathFactory, array: np.ndarray, packed: bool) -> None:
    path = tmp_path_factory.mktemp("idx") / ("a.gz" if packed else "a")
    write_idx(path, array)
    assert np.array_equal(idx.values(path), array)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), packed=st.booleans())
def test_idx_cut_anywhere_is_named(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, packed: bool
) -> None:
    path = tmp_path_factory.mktemp("idx") / ("a.gz" if packed else "a")
    write_idx(path, np.arange(48, dtype=np.uint8).reshape(3, 4, 4))
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    refused(lambda: idx.values(path), str(path))


def test_idx_that_is_not_one(tmp_path: Path) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(b"\x89PNG and so on")
    refused(lambda: idx.values(path), str(path), "89 50 4e 47")
    path.write_bytes(b"\0\0\x0d\x01" + struct.pack(">If", 1, 1.0))
    refused(lambda: idx.values(path), str(path), "00 00 0d 01")
    path.write_bytes(b"\0\0\x08\x03" + b"\xff" * 12 + b"\0")
    refused(lambda: idx.values(path), str(path), "1, so it is cut off")
    write_idx(path, some_images(2, 2, 2))
    path.write_bytes(path.read_bytes() + b"\0")
    refused(lambda: idx.values(path), str(path), "more")
    packed = tmp_path / "a.gz"
    packed.write_bytes(b"not gzip")
    refused(lambda: idx.values(packed), str(packed))
    packed.write_bytes(gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 64) + bytes(64))[:-3] + b"abc")
    refused(lambda: idx.values(packed), str(packed))


def test_idx_parts_must_all_be_there_and_agree(tmp_path: Path) -> None:
    idx_folder(tmp_path)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", np.zeros(4, np.uint8))
    refused(lambda: idx.read(tmp_path), "t10k-labels-idx1-ubyte", "3 labels", "got 4")
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    refused(lambda: idx.read(tmp_path), str(tmp_path / "t10k-labels-idx1-ubyte"), "no such file")


# npy


def test_npy_images_with_and_without_channels(tmp_path: Path) -> None:
    colour, grey = some_images(5, 4, 3, 3), some_images(2, 4, 3)
    npy_folder(tmp_path, colour, np.asfortranarray(colour[:4]))
    samples = npy.read(tmp_path)
    assert samples.train.inputs.shape == (5, 3, 4, 3)
    assert samples.train.inputs.is_contiguous()
    assert samples.train.inputs[2, 1, 3, 0] == colour[2, 3, 0, 1]
    assert torch.equal(samples.test.inputs, samples.train.inputs[:4])
    assert samples.train.labels.tolist() == [0, 1, 2, 0, 1]
    npy_folder(tmp_path, grey, grey)
    assert np.array_equal(npy.read(tmp_path).train.inputs[:, 0], grey)


class Trap:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_npy_with_objects_runs_nothing(tmp_path: Path) -> None:
    npy_folder(tmp_path, some_images(3, 4, 4), some_images(3, 4, 4))
    sprung = tmp_path / "sprung"
    np.save(tmp_path / "train_y.npy", np.array([Trap(sprung), 1, 2], dtype=object), allow_pickle=True)
    refused(lambda: npy.read(tmp_path), str(tmp_path / "train_y.npy"))
    (tmp_path / "train_y.npy").write_bytes(pickle.dumps(Trap(sprung)))
    refused(lambda: npy.read(tmp_path), str(tmp_path / "train_y.npy"))
    assert not sprung.exists()
    np.load(tmp_path / "train_y.npy", allow_pickle=True)  # the trap is a real one
    assert sprung.exists()


def test_npy_that_is_broken_is_named(tmp_path: Path) -> None:
    npy_folder(tmp_path, some_images(3, 4, 4), some_images(3, 4, 4))
    path = tmp_path / "test_x.npy"
    whole = path.read_bytes()
    for length in (0, 5, 40, len(whole) - 1):
        path.write_bytes(whole[:length])
        refused(lambda: npy.read(tmp_path), str(path))
    path.write_bytes(whole.replace(b"(3, 4, 4)", b"(9**9,1)"[:9].ljust(9)))
    refused(lambda: npy.read(tmp_path), str(path))
    path.write_bytes(whole.replace(b"(3, 4, 4), }         ", b"(3000000000000, 4), }"))
    refused(lambda: npy.read(tmp_path), str(path))
    for text in ("{'descr': '|u1', 'fortran_order': False, 'shape': (4611686018427387904, 4)}", "(" * 300):
        head = text.ljust(117 if len(text) < 117 else 501).encode() + b"\n"
        path.write_bytes(whole[:8] + len(head).to_bytes(2, "little") + head + bytes(64))
        refused(lambda: npy.read(tmp_path), str(path))
    np.savez(tmp_path / "a.npz", some_images(3, 4, 4))
    (tmp_path / "a.npz").rename(path)
    refused(lambda: npy.read(tmp_path), str(path), "archive")
    np.save(path, np.zeros((3, 4, 4), np.float32))
    refused(lambda: npy.read(tmp_path), str(path), "float32 [3, 4, 4]")
    np.save(path, np.zeros((2, 4, 4), np.uint8))
    refused(lambda: npy.read(tmp_path), "test_y.npy", "2 labels", "got 3")
    np.save(tmp_path / "test_y.npy", np.zeros(2))
    refused(lambda: npy.read(tmp_path), "test_y.npy", "float64")
    (tmp_path / "test_y.npy").unlink()
    refused(lambda: npy.read(tmp_path), str(tmp_path / "test_y.npy"), "no such file")


# CIFAR


class Python2:
    """Writes the pickles of Python 2, protocol 2, as CIFAR's are: byte strings, and numpy's old names."""

    def __init__(self) -> None:
        self.out, self.memo = b"\x80\x02", 1

    def put(self) -> None:
        self.out += b"q" + bytes([self.memo])
        self.memo += 1

    def write(self, value: Any) -> None:
        if isinstance(value, dict):
            self.out += b"}"
            self.put()
            self.out += b"("
            for pair in value.items():
                for side in pair:
                    self.write(side)
            self.out += b"u"
        elif isinstance(value, list):
            self.out += b"]"
            self.put()
            self.out += b"("
            for item in value:
                self.write(item)
            self.out += b"e"
        elif isinstance(value, str):
            self.out += b"U" + bytes([len(value)]) + value.encode()
            self.put()
        elif isinstance(value, int):
            self.out += b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value)
        else:
            self.array(value)

    def array(self, value: np.ndarray) -> None:
        kind = value.dtype.str[1:].encode()
        raw = value.tobytes()
        self.out += b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        self.out += b"(K\x01" + b"M" + struct.pack("<H", value.shape[0]) + b"M" + struct.pack("<H", value.shape[1])
        self.out += b"\x86cnumpy\ndtype\nU" + bytes([len(kind)]) + kind + b"K\x00K\x01\x87R"
        self.out += (
            b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
            + struct.pack("<I", len(raw))
            + raw
            + b"tb"
        )


def python2(value: Any) -> bytes:
    writer = Python2()
    writer.write(value)
    return writer.out + b"."


def batch(path: Path, labels: list[int], key: str) -> tuple[np.ndarray, str]:
    """A batch as published, and its md5."""
    images = some_images(len(labels), 3072)
    path.write_bytes(python2({"batch_label": "testing", key: labels, "data": images, "filenames": ["a_s_1.png"]}))
    return images, hashlib.md5(path.read_bytes()).hexdigest()


def test_class_names_are_the_published_ones() -> None:
    """The pickles that hold them, made again, have the published md5: so each name and its place is right."""
    coarse = [
        *("aquatic_mammals", "fish", "flowers", "food_containers", "fruit_and_vegetables"),
        *("household_electrical_devices", "household_furniture", "insects", "large_carnivores"),
        *("large_man-made_outdoor_things", "large_natural_outdoor_scenes", "large_omnivores_and_herbivores"),
        *("medium_mammals", "non-insect_invertebrates", "people", "reptiles", "small_mammals", "trees"),
        *("vehicles_1", "vehicles_2"),
    ]
    meta100 = python2({"fine_label_names": list(names.CIFAR100), "coarse_label_names": coarse})
    meta10 = python2({"num_cases_per_batch": 10000, "label_names": list(names.CIFAR10), "num_vis": 3072})
    assert hashlib.md5(meta100).hexdigest() == "7973b15100ade9c7d40fb424638fde48"
    assert hashlib.md5(meta10).hexdigest() == "5ff9c542aee3614f3951f8cda6e48888"
    assert cifar.unpickle(meta10)[b"label_names"][2] == b"bird"


TEN, HUNDRED = ["data_batch_1", "data_batch_2", "test_batch"], ["train", "test"]


@pytest.mark.parametrize(("key", "parts"), [("labels", TEN), ("fine_labels", HUNDRED)])
def test_cifar_batches(tmp_path: Path, key: str, parts: list[str]) -> None:
    made, published = {}, {}
    for place, name in enumerate(parts):
        made[name], published[name] = batch(tmp_path / name, [place, 7, 9], key)
    assert cifar.found(tmp_path, published)
    samples = cifar.read(tmp_path, published)
    train = np.concatenate([made[name] for name in parts[:-1]]).reshape(-1, 3, 32, 32)
    assert np.array_equal(samples.train.inputs, train)
    assert np.array_equal(samples.test.inputs, made[parts[-1]].reshape(-1, 3, 32, 32))
    assert samples.train.labels.tolist() == [label for place in range(len(parts) - 1) for label in (place, 7, 9)]
    assert samples.test.labels.tolist() == [len(parts) - 1, 7, 9]
    assert published[parts[0]][:12] in samples.source


class Numpys(pickle.Unpickler):
    """The usual unpickler; numpy's module has moved since."""

    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def test_the_pickles_made_here_are_numpys() -> None:
    images = some_images(2, 3072)
    content = Numpys(io.BytesIO(python2({"data": images})), encoding="bytes").load()
    assert np.array_equal(content[b"data"], images)


def test_a_cifar_file_with_another_hash_is_not_opened(tmp_path: Path) -> None:
    sprung, published = tmp_path / "sprung", {}
    for name in ("train", "test"):
        _, published[name] = batch(tmp_path / name, [1, 2], "fine_labels")
    (tmp_path / "test").write_bytes(pickle.dumps(Trap(sprung)))
    refused(lambda: cifar.read(tmp_path, published), str(tmp_path / "test"), published["test"], "not opened")
    assert not sprung.exists()
    (tmp_path / "test").unlink()
    refused(lambda: cifar.read(tmp_path, published), str(tmp_path / "test"), "no such file")


def text(value: object) -> bytes:
    """A string of Python 2 inside a pickle."""
    return b"T" + struct.pack("<I", len(str(value))) + str(value).encode()


ATTACKS = {
    "reduce": lambda path: pickle.dumps(Trap(path)),
    "old reduce": lambda path: pickle.dumps(Trap(path), protocol=0),
    "instance": lambda path: f"(S'touch {path}'\nios\nsystem\n.".encode(),
    "object": lambda path: f"(cos\nsystem\nS'touch {path}'\no.".encode(),
    "inside an array": lambda path: b"cnumpy\nndarray\n(cos\nsystem\n" + text(f"touch {path}") + b"\x85Rtb.",
    "numpy's loader": lambda path: b"cnumpy\nload\n" + text(path) + b"\x85R.",
    "a dotted name": lambda path: b"\x80\x04\x8c\x05numpy\x8c\x0fndarray.tofile_\x93" + text(path) + b"\x85R.",
    "builtins": lambda path: b"c__builtin__\neval\n" + text(f"open({str(path)!r}, 'w')") + b"\x85R.",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_pickle_with_code_is_refused_before_it_runs(tmp_path: Path, attack: str) -> None:
    sprung = tmp_path / "sprung"
    data = ATTACKS[attack](sprung)
    with pytest.raises(pickle.UnpicklingError, match="asks for"):
        cifar.unpickle(data)
    assert not sprung.exists()
    path = tmp_path / "train"
    path.write_bytes(data)
    (tmp_path / "test").write_bytes(data)
    same = {"train": digest(path, "md5"), "test": digest(path, "md5")}
    refused(lambda: cifar.read(tmp_path, same), str(path), "asks for")
    assert not sprung.exists()


@pytest.mark.parametrize("attack", ["reduce", "instance", "object"])
def test_the_attacks_are_real(tmp_path: Path, attack: str) -> None:
    pickle.loads(ATTACKS[attack](tmp_path / "sprung"))
    assert (tmp_path / "sprung").exists()


def test_a_pickle_of_the_right_hash_and_the_wrong_content(tmp_path: Path) -> None:
    images = some_images(2, 3072)
    wrong = {
        "cut off": python2({"data": images, "labels": [1, 2]})[:-9],
        "no images": python2({"labels": [1, 2]}),
        "a label too few": python2({"data": images, "labels": [1]}),
        "labels of text": python2({"data": images, "labels": ["1", "2"]}),
        "not bytes": python2({"data": images.view(np.int8), "labels": [1, 2]}),
        "another size": python2({"data": images[:, :99], "labels": [1, 2]}),
        "no dictionary": python2([1, 2]),
    }
    for name, data in wrong.items():
        for file in ("train", "test"):
            (tmp_path / file).write_bytes(data)
        md5 = hashlib.md5(data).hexdigest()
        said = refused(partial(cifar.read, tmp_path, {"train": md5, "test": md5}), str(tmp_path / "train"))
        assert "a batch of CIFAR" in said, name


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
    write_parquet(
        tmp_path / "test-00000-of-00001.parquet", {"img": [png(images[0])], "fine_label": [1], "label": [0]}
    )
    assert parquet.found(tmp_path)
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
    assert folder.found(tmp_path)
    samples = folder.read(tmp_path, (3, 6, 5))
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
    with pytest.warns(InfoBatchWarning, match=f"left out: 1 of 7 images in {tmp_path / 'train'}, as {name}") as told:
        samples = folder.read(tmp_path, (3, 6, 5))
    assert len(told) == 1
    assert len(samples.train.labels) == 6


def test_class_folders_may_have_any_name(tmp_path: Path) -> None:
    for part in ("train", "val"):
        for at, name in enumerate((b"caf\xe9", b"tea")):
            save(tmp_path / part / os.fsdecode(name) / "0.png", some_images(2, 6, 5, 3)[at])
    samples = folder.read(tmp_path, (3, 6, 5))
    assert samples.classes == ("caf\\xe9", "tea")
    assert samples.train.labels.tolist() == [0, 1]
    "".join((samples.source, *samples.classes)).encode()  # as a record does


def test_an_image_that_no_decoder_knows_is_named() -> None:
    out = io.BytesIO()
    Image.fromarray(some_images(1, 4, 4, 3)[0]).save(out, "DDS")
    spoiled = bytearray(out.getvalue())
    spoiled[80:84] = bytes(4)  # its pixel format
    refused(lambda: pictures.whole(bytes(spoiled), "the picture", (3, 4, 4)), "the picture", "NotImplementedError")


def test_grey_and_palette_images_become_what_the_task_needs(tmp_path: Path) -> None:
    grey = some_images(1, 4, 4)[0]
    save(tmp_path / "grey.png", grey)
    Image.fromarray(grey).convert("P").save(tmp_path / "palette.png")
    for name in ("grey.png", "palette.png"):
        path = tmp_path / name
        assert np.array_equal(pictures.whole(path, path, (3, 4, 4)), np.stack([grey] * 3))
        assert np.array_equal(pictures.whole(path, path, (1, 4, 4))[0], grey)


def test_an_image_folder_with_faults(tmp_path: Path) -> None:
    image_folder(tmp_path)
    refused(lambda: folder.read(tmp_path, (3, 6, 6)), ".png", "6 x 6 pixels", "5 x 6")
    bad = tmp_path / "train" / "b" / "1.png"
    whole = bad.read_bytes()
    for data in (b"", b"no image", whole[:50], whole[: len(whole) - 30]):
        bad.write_bytes(data)
        refused(lambda: folder.read(tmp_path, (3, 6, 5)), str(bad))
    bad.write_bytes(whole)
    save(tmp_path / "val" / "c" / "0.png", some_images(1, 6, 5, 3)[0])
    refused(lambda: folder.read(tmp_path, (3, 6, 5)), str(tmp_path / "val"), "'c'")
    (tmp_path / "val" / "c" / "0.png").unlink()
    (tmp_path / "train" / "c").mkdir()
    refused(lambda: folder.read(tmp_path, (3, 6, 5)), str(tmp_path / "train" / "c"), "none")


def test_test_images_without_class_folders(tmp_path: Path) -> None:
    save(tmp_path / "train" / "a" / "0.png", some_images(1, 6, 5, 3)[0])
    save(tmp_path / "val" / "0.png", some_images(1, 6, 5, 3)[0])
    refused(lambda: folder.lazy(tmp_path), str(tmp_path / "val"), "class folders")


def test_large_images_are_read_when_asked_for(tmp_path: Path) -> None:
    image_folder(tmp_path, (300, 260))
    samples = folder.lazy(tmp_path)
    assert samples.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    image, label = samples.train[4]
    assert (image.shape, image.dtype, label.item()) == ((3, 224, 224), torch.uint8, 1)
    assert torch.equal(samples.test[0][0], samples.test[0][0])
    assert not torch.equal(samples.train[0][0], samples.train[0][0])
    plain = samples.train.plain()
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
    data = torch.utils.data.Subset(folder.lazy(tmp_path).train, [0, 0])
    first, second = (image for image, _ in torch.utils.data.DataLoader(data, num_workers=2))
    assert not torch.equal(first, second)


def ramp(width: int, height: int) -> Image.Image:
    """Red tells the column and green the row, so a crop says where it was cut."""
    rows, columns = np.mgrid[0:height, 0:width]
    grey = np.zeros_like(rows)
    return Image.fromarray(np.stack([columns * 255 // width, rows * 255 // height, grey], -1).astype(np.uint8))


def test_the_test_view_is_the_centre() -> None:
    for width, height in ((512, 256), (256, 400), (100, 100), (256, 257)):
        view = pictures.centre_view(ramp(width, height)).float()
        assert view.shape == (3, 224, 224)
        assert view[0].mean().item() == pytest.approx(127, abs=1.5)
        assert view[1].mean().item() == pytest.approx(127, abs=1.5)
    view = pictures.centre_view(ramp(512, 256)).float()
    shown = (view[0].max() - view[0].min()).item() / 255
    assert shown == pytest.approx(224 / 512, abs=0.01)  # of a 512 x 256 image, 224 x 224 pixels at their own size
    assert (view[1].max() - view[1].min()).item() / 255 == pytest.approx(224 / 256, abs=0.01)


def test_the_training_view_is_a_random_part() -> None:
    torch.manual_seed(0)
    image, areas, ratios, turned = ramp(400, 300), [], [], 0
    for _ in range(300):
        view = pictures.random_view(image, 32).float()
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
        assert pictures.random_view(ramp(width, height), 32).shape == (3, 32, 32)


# Tiny-ImageNet


def tiny_folder(root: Path) -> dict[str, np.ndarray]:
    made = {}
    for wnid in ("n02", "n01"):
        for number in range(2):
            name = f"train/{wnid}/images/{wnid}_{number}.png"
            made[name] = some_images(1, 8, 8, 3)[0]
    for number in range(3):
        made[f"val/images/val_{number}.png"] = some_images(1, 8, 8, 3)[0]
    for name, image in made.items():
        save(root / name, image)
    lines = [f"val_{number}.png\t{wnid}\t0\t0\t9\t9" for number, wnid in ((2, "n01"), (0, "n02"), (1, "n01"))]
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    (root / "words.txt").write_text("n01\tgoldfish, Carassius auratus\nn02\ttench\nn03\tcrane\n")
    return made


def test_tiny_imagenet_as_published(tmp_path: Path) -> None:
    made = tiny_folder(tmp_path)
    assert tiny.found(tmp_path)
    samples = tiny.read(tmp_path, (3, 8, 8))
    assert samples.classes == ("goldfish", "tench")
    assert samples.train.labels.tolist() == [0, 0, 1, 1]
    assert samples.test.labels.tolist() == [0, 1, 0]
    assert np.array_equal(samples.test.inputs[0].permute(1, 2, 0), made["val/images/val_2.png"])
    (tmp_path / "words.txt").write_text("n01\tcrane\nn02\tcrane\n")
    assert tiny.read(tmp_path, (3, 8, 8)).classes == ("crane (n01)", "crane (n02)")
    (tmp_path / "words.txt").unlink()
    assert tiny.read(tmp_path, (3, 8, 8)).classes == ("n01", "n02")


def test_tiny_imagenet_sorted_into_folders_is_an_image_folder(tmp_path: Path) -> None:
    tiny_folder(tmp_path)
    for wnid in ("n01", "n02"):
        (tmp_path / "val" / wnid).mkdir()
        (tmp_path / "val" / "images" / f"val_{wnid[2]}.png").rename(tmp_path / "val" / wnid / "0.png")
    (tmp_path / "val" / "images" / "val_0.png").unlink()
    (tmp_path / "val" / "images").rmdir()
    assert not tiny.found(tmp_path)
    assert folder.read(tmp_path, (3, 8, 8)).test.labels.tolist() == [0, 1]


def test_tiny_imagenet_with_faults(tmp_path: Path) -> None:
    tiny_folder(tmp_path)
    path = tmp_path / "val" / "val_annotations.txt"
    whole = path.read_text()
    for line in ("val_0.png", "val_0.png\tn09\t0\t0\t9\t9", "../../secret.png\tn01"):
        path.write_text(whole + line + "\n")
        refused(lambda: tiny.read(tmp_path, (3, 8, 8)), str(path), "line 4")
    path.write_bytes(b"\xff\xfe")
    refused(lambda: tiny.read(tmp_path, (3, 8, 8)), str(path), "UTF-8")
    path.write_text("")
    refused(lambda: tiny.read(tmp_path, (3, 8, 8)), str(path), "none")
    path.write_text(whole)
    (tmp_path / "val" / "images" / "val_1.png").unlink()
    refused(lambda: tiny.read(tmp_path, (3, 8, 8)), "val_1.png")


# digits, and what all share


def test_digits_are_those_of_the_example() -> None:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    train, test = train_test_split(range(len(labels)), test_size=0.3, stratify=labels, random_state=0)
    samples = digits.read()
    assert samples.train.labels.tolist() == labels[train].tolist()
    assert samples.test.labels.tolist() == labels[test].tolist()
    ours = samples.train.inputs.reshape(len(train), 64).double() / 255 * 16
    assert (ours - torch.from_numpy(images[train])).abs().max() < 0.04
    assert samples.train.inputs.max() == 255
    assert samples.train.inputs.unique().numel() == 17


def test_fingerprints_tell_files_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one")
    assert fingerprint([path]) == f"a sha256:{hashlib.sha256(b'one').hexdigest()[:12]}"
    monkeypatch.setattr("infobatch.lab.data.files.HASHED", 2)
    assert fingerprint([path]) == "a 3 bytes"


def test_readers_write_nothing(tmp_path: Path) -> None:
    idx_folder(tmp_path / "idx")
    npy_folder(tmp_path / "npy", some_images(3, 4, 4), some_images(3, 4, 4))
    tiny_folder(tmp_path / "tiny")
    for path in tmp_path.rglob("*"):
        os.utime(path, (1, 1))
    before = {path: path.stat().st_mtime for path in sorted(tmp_path.rglob("*"))}
    idx.read(tmp_path / "idx")
    npy.read(tmp_path / "npy").train.inputs.zero_()  # nor through the tensors
    tiny.read(tmp_path / "tiny", (3, 8, 8))
    assert {path: path.stat().st_mtime for path in sorted(tmp_path.rglob("*"))} == before
