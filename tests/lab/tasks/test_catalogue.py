"""Tasks by name: the right files are found, and what is missing or wrong is said in full."""

from __future__ import annotations

import gzip
import io
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from infobatch.errors import InputError
from infobatch.lab.tasks import catalogue
from infobatch.lab.tasks.catalogue import TASKS, make_task
from infobatch.lab.tasks.readers import class_names
from infobatch.lab.tasks.task import Arrays, Task
from infobatch.lab.train.settings import Settings

rng = np.random.default_rng(0)


def images(name: str, count: int) -> np.ndarray:
    channels, *size = TASKS[name].shape
    return rng.integers(0, 256, (count, *size, *([channels] * (channels > 1))), dtype=np.uint8)


def as_npy(root: Path, name: str) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 4), ("test", 2)):
        np.save(root / f"{part}_x.npy", images(name, count))
        np.save(root / f"{part}_y.npy", np.arange(count))


def as_idx(root: Path, name: str) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 4), ("t10k", 2)):
        for kind, array in (("images-idx3", images(name, count)), ("labels-idx1", np.arange(count, dtype=np.uint8))):
            head = b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            (root / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + array.tobytes()))


def as_parquet(root: Path, name: str) -> None:
    import pyarrow
    from pyarrow import parquet

    root.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 4), ("test", 2)):
        cells = []
        for image in images(name, count):
            out = io.BytesIO()
            Image.fromarray(image).save(out, "PNG")
            cells.append({"bytes": out.getvalue(), "path": None})
        table = pyarrow.table({"image": cells, "label": list(range(count))})
        parquet.write_table(table, root / f"{part}-00000-of-00001.parquet")


def as_folder(root: Path, name: str) -> None:
    for part, count in (("train", 4), ("test", 2)):
        for place, image in enumerate(images(name, count)):
            path = root / part / "zyxw"[place] / "0.png"
            path.parent.mkdir(parents=True)
            Image.fromarray(image).save(path)


LAYOUTS = {"npy": as_npy, "idx": as_idx, "parquet": as_parquet, "folder": as_folder}
PLACES = [
    ("mnist", "idx", "."), ("mnist", "idx", "MNIST/raw"), ("mnist", "npy", "mnist"), ("mnist", "parquet", "mnist"),
    ("fashion_mnist", "idx", "FashionMNIST/raw"), ("fashion_mnist", "npy", "."), ("fashion_mnist", "parquet", "."),
    ("cifar10", "npy", "."), ("cifar10", "parquet", "plain_text"), ("cifar10", "folder", "."),
    ("cifar100", "npy", "cifar100"), ("cifar100", "parquet", "data"), ("cifar100", "folder", "."),
    ("tiny_imagenet", "npy", "."), ("tiny_imagenet", "parquet", "data"),
    ("tiny_imagenet", "folder", "tiny-imagenet-200"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "layout", "place"), PLACES)
def test_each_layout_is_found_where_it_usually_lies(tmp_path: Path, name: str, layout: str, place: str) -> None:
    LAYOUTS[layout](tmp_path / place, name)
    task = make_task(name, str(tmp_path))
    assert task.name == name
    assert isinstance(task.train, Arrays)
    assert task.train.inputs.shape == (4, *TASKS[name].shape)
    assert task.test.inputs.dtype == torch.uint8
    assert sorted(task.train.labels.tolist()) == [0, 1, 2, 3]
    assert task.classes[:2] == (("w", "x") if layout == "folder" else (TASKS[name].classes or ("0", "1"))[:2])
    assert len(task.mean) == len(task.std) == task.train.inputs.shape[1]
    assert "sha256:" in task.source


def test_defaults_are_settings_and_can_be_changed_safely() -> None:
    for info in TASKS.values():
        Settings.of({"task": info.name}, info.defaults)
    task = make_task("digits", "")
    task.defaults["lr"] = 99
    assert TASKS["digits"].defaults["lr"] == 0.05


def test_every_task_tells_what_it_needs() -> None:
    expected = ["digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "tiny_imagenet", "imagenet", "images"]
    assert list(TASKS) == [*expected, "shapes", "ade20k", "segmentation", "instructions"]
    for info in TASKS.values():
        assert info.description
        assert "\n" not in info.description
        assert len(info.mean) == len(info.std) == (info.shape[0] if info.shape else 0)
        for data in ("", "no/such/folder"):
            if info.layouts:
                with pytest.raises(InputError) as caught:
                    make_task(info.name, data)
                for words in (*map(str, info.layouts), info.origin):
                    assert words in str(caught.value)


def test_a_folder_with_other_things_is_described(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"")
    with pytest.raises(InputError, match=r"holiday\.jpg"):
        make_task("cifar10", str(tmp_path))


def test_files_of_another_set_are_refused(tmp_path: Path) -> None:
    as_npy(tmp_path, "mnist")
    with pytest.raises(InputError, match=r"3 x 32 x 32.*1 x 28 x 28"):
        make_task("cifar10", str(tmp_path))
    as_npy(tmp_path, "cifar100")
    for labels in ([0, 1, 2, 99], [0, 1, 2, -1]):
        np.save(tmp_path / "train_y.npy", np.array(labels))
        with pytest.raises(InputError, match="labels from 0 to 9"):
            make_task("cifar10", str(tmp_path))


def test_one_folder_may_hold_several_sets(tmp_path: Path) -> None:
    as_idx(tmp_path / "MNIST" / "raw", "mnist")
    as_idx(tmp_path / "FashionMNIST" / "raw", "fashion_mnist")
    as_npy(tmp_path / "cifar10", "cifar10")
    assert make_task("mnist", str(tmp_path)).classes == class_names.DIGITS
    fashion = make_task("fashion_mnist", str(tmp_path))
    assert fashion.classes[9] == "ankle boot"
    assert not torch.equal(fashion.train.inputs, make_task("mnist", str(tmp_path)).train.inputs)
    assert make_task("cifar10", str(tmp_path)).classes == class_names.CIFAR10


def test_cifar_pickles_are_looked_for_in_torchvisions_folders(tmp_path: Path) -> None:
    """Without the real files: a false one is found, and refused by its hash."""
    for name, folder, file in (
        ("cifar10", "cifar-10-batches-py", "test_batch"),
        ("cifar100", "cifar-100-python", "test"),
    ):
        (tmp_path / folder).mkdir()
        for part in catalogue.cifar.CIFAR10_MD5 if name == "cifar10" else catalogue.cifar.CIFAR100_MD5:
            (tmp_path / folder / part).write_bytes(b"\x80\x02}.")
        with pytest.raises(InputError, match=f"{folder}.*published md5"):
            make_task(name, str(tmp_path))
        (tmp_path / folder / file).unlink()
        with pytest.raises(InputError, match=f"{file}.*no such file"):
            make_task(name, str(tmp_path))


def test_imagenet_reads_from_files(tmp_path: Path) -> None:
    for part in ("train", "val"):
        for place, wnid in enumerate(("n01", "n02")):
            (tmp_path / part / wnid).mkdir(parents=True)
            Image.new("RGB", (300, 280), (place, 9, 9)).save(tmp_path / part / wnid / "a.JPEG")
    task = make_task("imagenet", str(tmp_path))
    assert task.classes == ("n01", "n02")
    assert task.train[1][0].shape == (3, 224, 224)
    assert task.test.labels.tolist() == [0, 1]


def test_digits_bring_their_own_data() -> None:
    task = make_task("digits", "")
    assert (len(task.train), len(task.test), task.classes) == (1257, 540, tuple("0123456789"))
    with pytest.raises(InputError, match="scikit-learn"):
        make_task("digits", "somewhere")


@pytest.mark.parametrize(("wrong", "right"), [("cifr10", "cifar10"), ("fashion-mnist", "fashion_mnist")])
def test_near_names_are_suggested(wrong: str, right: str) -> None:
    with pytest.raises(InputError, match=f"Did you mean .*{right}"):
        make_task(wrong, "")


# a person's own


MODULE = """
import torch
from infobatch.lab.tasks.task import Arrays, Task

def samples():
    return Arrays(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64))

def make_task():
    return Task("mine", samples(), samples(), ("only",))

def from_folder(folder):
    return Task(f"mine from {folder}", samples(), samples(), ("only",))

def perhaps(folder="nowhere", *, size=3):
    return from_folder(folder)

def nothing():
    return None

def greedy(folder, size):
    return None

def fails():
    raise RuntimeError("my own bug")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "their_tasks.py").write_text(MODULE)
    (tmp_path / "half.py").write_text("import no_such_package")
    yield "their_tasks"
    for name in ("their_tasks", "half"):
        sys.modules.pop(name, None)


def test_own_tasks_with_and_without_a_folder(module: str) -> None:
    assert isinstance(make_task(f"{module}:make_task", ""), Task)
    assert make_task(f"{module}:from_folder", "here").name == "mine from here"
    assert make_task(f"{module}:perhaps", "").name == "mine from nowhere"
    assert make_task(f"{module}:perhaps", "here").name == "mine from here"


@pytest.mark.parametrize(
    ("given", "data", "words"),
    [
        ("their_tasks:mak_task", "", "Did you mean make_task"),
        ("their_task:make_task", "", "'their_task'"),
        ("their_tasks.py:make_task", "", r"leave out \.py"),
        (":make_task", "", "before the colon"),
        ("..up:make_task", "", "before the colon"),
        ("their_tasks:nothing", "", "NoneType"),
        ("their_tasks:greedy", "here", "folder, size"),
        ("their_tasks:make_task", "here", "takes none"),
    ],
)
def test_own_tasks_that_cannot_be(module: str, given: str, data: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make_task(given, data)


def test_errors_of_a_persons_own_code_stay_theirs(module: str) -> None:
    with pytest.raises(RuntimeError, match="my own bug"):
        make_task(f"{module}:fails", "")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        make_task("half:make_task", "")


# ---- images of a person's own ----------------------------------------------------------------------------


@pytest.mark.parametrize(("layout", "like"), [("npy", "mnist"), ("folder", "cifar10"), ("parquet", "cifar10")])
def test_own_images_tell_all_about_themselves(tmp_path: Path, layout: str, like: str) -> None:
    LAYOUTS[layout](tmp_path, like)
    task = make_task("images", str(tmp_path))
    assert isinstance(task.train, Arrays)
    assert task.train.inputs.shape == (4, *(TASKS[like].shape or ()))
    assert task.classes == (("w", "x", "y", "z") if layout == "folder" else ("0", "1", "2", "3"))
    floats = task.train.inputs.double() / 255
    assert task.mean == pytest.approx(floats.mean((0, 2, 3)).tolist())
    assert task.std == pytest.approx(floats.std((0, 2, 3), correction=0).tolist())
    assert (task.pad, task.flip) == (4, True)


def test_small_own_images_are_left_as_they_are(tmp_path: Path) -> None:
    for part in ("train", "test"):
        np.save(tmp_path / f"{part}_x.npy", rng.integers(0, 256, (6, 12, 12), dtype=np.uint8))
        np.save(tmp_path / f"{part}_y.npy", np.arange(6) % 3)
    task = make_task("images", str(tmp_path))
    assert (task.pad, task.flip) == (0, False)
    said = {name: catalogue.locate(info, tmp_path) for name, info in TASKS.items() if info.layouts}
    assert said.pop("images") == f"in {tmp_path}"
    assert not any(text.startswith("in ") for text in said.values())
    assert "3 classes of 1 x 12 x 12" in said["mnist"]


def test_own_images_of_several_sizes_are_read_when_asked_for(tmp_path: Path) -> None:
    for part in ("train", "val"):
        for name, size in (("cat", (40, 30)), ("dog", (300, 200))):
            (tmp_path / part / name).mkdir(parents=True)
            Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(tmp_path / part / name / "0.png")
    task = make_task("images", str(tmp_path))
    assert task.classes == ("cat", "dog")
    assert task.train[0][0].shape == (3, 224, 224)  # type: ignore[index]
    assert len(task.mean) == 3
