"""CIFAR's pickles: read as published, and nothing in them is run."""

from __future__ import annotations

import hashlib
import io
import pickle
import struct
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made import Trap, refused, some_images

from infobatch.lab.tasks.readers import cifar, class_names
from infobatch.lab.tasks.readers.common import digest


class Python2:
    """Writes the pickles of Python 2, protocol 2, as CIFAR's are: byte strings, and numpy's old class_names."""

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
            b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T" + struct.pack("<I", len(raw)) + raw + b"tb"
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
    meta100 = python2({"fine_label_names": list(class_names.CIFAR100), "coarse_label_names": coarse})
    meta10 = python2({"num_cases_per_batch": 10000, "label_names": list(class_names.CIFAR10), "num_vis": 3072})
    assert hashlib.md5(meta100).hexdigest() == "7973b15100ade9c7d40fb424638fde48"
    assert hashlib.md5(meta10).hexdigest() == "5ff9c542aee3614f3951f8cda6e48888"
    assert cifar.unpickle(meta10)[b"label_names"][2] == b"bird"


TEN, HUNDRED = ["data_batch_1", "data_batch_2", "test_batch"], ["train", "test"]


@pytest.mark.parametrize(("key", "parts"), [("labels", TEN), ("fine_labels", HUNDRED)])
def test_cifar_batches(tmp_path: Path, key: str, parts: list[str]) -> None:
    made, published = {}, {}
    for place, name in enumerate(parts):
        made[name], published[name] = batch(tmp_path / name, [place, 7, 9], key)
    assert cifar.is_present(tmp_path, published)
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
    with pytest.raises(pickle.UnpicklingError, match="no CIFAR file needs"):
        cifar.unpickle(data)
    assert not sprung.exists()
    path = tmp_path / "train"
    path.write_bytes(data)
    (tmp_path / "test").write_bytes(data)
    same = {"train": digest(path, "md5"), "test": digest(path, "md5")}
    refused(lambda: cifar.read(tmp_path, same), str(path), "no CIFAR file needs")
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
