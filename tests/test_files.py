from __future__ import annotations

import argparse
import collections
import copy
import os
import random
import signal
import struct
import threading
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._tensor import _rebuild_from_type_v2 as rebuild
from torch.utils.data import TensorDataset

import infobatch
from infobatch import files as checkpoint


def a_state() -> dict[str, Any]:
    train_data = infobatch.InfoBatch(TensorDataset(torch.rand(40)), 5)
    for (x,) in infobatch.DataLoader(train_data, batch_size=8):
        train_data.update(x)
    return {"data": train_data.state_dict(), "step": 5}


def same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one.nan_to_num(7), two.nan_to_num(7))
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    return bool(one == two)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    state = a_state()
    infobatch.save(state, tmp_path / "last.pt")
    assert same(infobatch.load(tmp_path / "last.pt"), state)
    assert same(torch.load(tmp_path / "last.pt", weights_only=True), state)
    infobatch.save(state, str(tmp_path / "text path.pt"))
    assert same(infobatch.load(str(tmp_path / "text path.pt")), state)


def test_saving_leaves_nothing_else_behind(tmp_path: Path) -> None:
    for _ in range(3):
        infobatch.save(a_state(), tmp_path / "last.pt")
    assert os.listdir(tmp_path) == ["last.pt"]


class Cursed:
    """Fails in the middle of being written."""

    def __reduce__(self) -> Any:
        raise OSError("the disk is full")


def test_a_crash_while_saving_leaves_the_old_one_whole(tmp_path: Path) -> None:
    state = a_state()
    infobatch.save(state, tmp_path / "last.pt")
    with pytest.raises(OSError, match="disk is full"):
        infobatch.save({"big": torch.rand(1000), "last": Cursed()}, tmp_path / "last.pt")
    assert os.listdir(tmp_path) == ["last.pt"]
    assert same(infobatch.load(tmp_path / "last.pt"), state)


@pytest.mark.parametrize("name", ["/proc/last.pt", "a folder"])
def test_where_it_cannot_be_written_the_path_that_was_given_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a folder").mkdir()
    with pytest.raises(OSError, match=f": '{name}'$"):
        infobatch.save({"step": 5}, name)
    assert os.listdir(tmp_path) == ["a folder"]


def test_an_error_of_the_state_itself_keeps_its_name(tmp_path: Path) -> None:
    class Elsewhere:
        def __reduce__(self) -> Any:
            raise FileNotFoundError(2, "No such file or directory", "elsewhere.txt")

    with pytest.raises(FileNotFoundError, match=r"elsewhere\.txt"):
        infobatch.save(Elsewhere(), tmp_path / "last.pt")


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDWR)  # so that neither side waits for the other
    try:
        infobatch.save({"step": 5}, pipe)
        assert pipe.is_fifo()
        (tmp_path / "last.pt").write_bytes(os.read(end, 1 << 16))
    finally:
        os.close(end)
    assert infobatch.load(tmp_path / "last.pt") == {"step": 5}


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    infobatch.save(a_state(), tmp_path / "whole.pt")
    whole = (tmp_path / "whole.pt").read_bytes()
    for length in [0, 1, 2, 10, 30, 64, 100, *range(200, len(whole), len(whole) // 25), len(whole) - 1]:
        (tmp_path / "cut.pt").write_bytes(whole[:length])
        with pytest.raises(infobatch.StateError, match=r"expected .*; got .*cut\.pt.* older one"):
            infobatch.load(tmp_path / "cut.pt")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol:UserWarning")
def test_a_spoilt_file_is_refused_or_reads_as_something(tmp_path: Path) -> None:
    """Bytes overwritten at random: StateError, or a value; never another error."""
    infobatch.save(a_state(), tmp_path / "whole.pt")
    whole = bytearray((tmp_path / "whole.pt").read_bytes())
    dice = random.Random(0)
    refused = 0
    for _ in range(400):
        spoilt = bytearray(whole)
        at = dice.randrange(len(whole) // 2)
        spoilt[at] = dice.randrange(256)
        (tmp_path / "spoilt.pt").write_bytes(spoilt)
        try:
            infobatch.load(tmp_path / "spoilt.pt")
        except infobatch.StateError:
            refused += 1
    assert refused > 30


def test_other_files_are_refused(tmp_path: Path) -> None:
    for content in (b"hello", b"PK\x03\x04", b"\x80\x02}q\x00.", os.urandom(500)):
        (tmp_path / "other").write_bytes(content)
        with pytest.raises(infobatch.StateError):
            infobatch.load(tmp_path / "other")


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    torch.save({"path": Path("/")}, tmp_path / "more.pt")
    with pytest.raises(infobatch.StateError, match="more than tensors"):
        infobatch.load(tmp_path / "more.pt")


def test_a_missing_file_is_just_that(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        infobatch.load(tmp_path / "none.pt")


def test_a_flipped_bit_in_a_tensor_is_found(tmp_path: Path) -> None:
    """Torch writes a checksum of each tensor but does not look at it when it reads."""
    path = tmp_path / "state.pt"
    infobatch.save({"scores": torch.zeros(1000)}, path)
    content = bytearray(path.read_bytes())
    at = content.index(bytes(400)) + 100
    content[at] ^= 1
    path.write_bytes(content)
    assert torch.load(path, weights_only=True)["scores"].any(), "which torch itself lets pass"
    with pytest.raises(infobatch.StateError, match=r"state\.pt.*checksum"):
        infobatch.load(path)


def test_a_pipe_is_written_to_and_a_file_keeps_its_mode(tmp_path: Path) -> None:
    read, write = os.pipe()
    with checkpoint.replacing(f"/dev/fd/{write}") as file:
        file.write(b"all of it")
    os.close(write)
    with open(read, "rb") as other:
        assert other.read() == b"all of it"
    mine = tmp_path / "mine.pt"
    infobatch.save({"step": 1}, mine)
    mine.chmod(0o600)
    (tmp_path / ".mine.pt.0.tmp").mkdir()  # named as a draft, and no file
    os.utime(tmp_path / ".mine.pt.0.tmp", (0, 0))
    infobatch.save({"step": 2}, mine)
    assert (mine.stat().st_mode & 0o777, infobatch.load(mine)) == (0o600, {"step": 2})


def test_drafts_of_killed_writers_go_and_those_of_others_stay(tmp_path: Path) -> None:
    old, young, other = (tmp_path / f".{name}.tmp" for name in ("last.pt.0", "last.pt.1", "next.pt.0"))
    for draft in (old, young, other):
        draft.touch()
    for draft in (old, other):
        os.utime(draft, (0, 0))
    infobatch.save({"step": 1}, tmp_path / "last.pt")
    assert [draft.exists() for draft in (old, young, other)] == [False, True, True]


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_draft_goes_as_soon_as_its_writer_is_known_to_be_dead(tmp_path: Path) -> None:
    """Otherwise a run that is killed and started again could find the disk full of its own drafts for an hour."""
    if not (child := os.fork()):
        with checkpoint.replacing(tmp_path / "last.pt") as file:
            file.write(b"half of it")
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    with checkpoint.replacing(tmp_path / "last.pt") as file:
        dead, alive = sorted(tmp_path.iterdir(), key=lambda draft: draft.stat().st_size, reverse=True)
        assert (dead.read_bytes(), alive.read_bytes()) == (b"half of it", b"")  # it was written to a moment ago
        for draft in (dead, alive):
            os.utime(draft, (time.time() - 100,) * 2)
        infobatch.save({"step": 1}, tmp_path / "last.pt")
        assert sorted(tmp_path.iterdir()) == sorted([alive, tmp_path / "last.pt"])
        torch.save({"step": 2}, file)
    assert infobatch.load(tmp_path / "last.pt") == {"step": 2}


def test_old_drafts_are_removed_before_a_new_one_is_written(tmp_path: Path) -> None:
    """On a full disk nothing would ever remove them after a write that succeeded."""
    old = tmp_path / ".last.pt.0.tmp"
    old.write_bytes(bytes(1000))
    os.utime(old, (0, 0))
    with checkpoint.replacing(tmp_path / "last.pt") as file:
        assert not old.exists()
        file.write(b"all of it")
    assert os.listdir(tmp_path) == ["last.pt"]


@pytest.mark.parametrize("name", ["点" * 80, "é" * 126, "a" + "点" * 60 + ".pt", os.fsdecode(b"\xff" * 200), "x" * 255])
def test_a_name_may_be_as_long_as_the_file_system_allows(name: str, tmp_path: Path) -> None:
    for step in range(2):
        infobatch.save({"step": step}, tmp_path / name)
    assert os.listdir(tmp_path) == [name]
    assert infobatch.load(tmp_path / name) == {"step": 1}


def test_drafts_of_a_long_name_are_found_again(tmp_path: Path) -> None:
    name = "点" * 80
    with checkpoint.replacing(tmp_path / name):
        (draft,) = tmp_path.iterdir()
        os.link(draft, kept := draft.with_name(draft.name[:-4] + "x.tmp"))
        os.utime(kept, (0, 0))
    infobatch.save({"step": 1}, tmp_path / name)
    assert os.listdir(tmp_path) == [name]


def test_numbers_of_numpy_are_saved_as_plain_ones(tmp_path: Path) -> None:
    """A LambdaLR whose lambda uses numpy puts them into the optimizer, and torch would refuse to read them."""
    groups = [{"betas": (np.float32(0.5), 0.9)}, {"step": np.int64(3)}]
    state = {"lr": np.float64(0.5), "groups": groups, "w": torch.ones(2)}
    infobatch.save(state, tmp_path / "last.pt")
    loaded = infobatch.load(tmp_path / "last.pt")
    assert same(loaded, {"lr": 0.5, "groups": [{"betas": (0.5, 0.9)}, {"step": 3}], "w": torch.ones(2)})
    assert type(loaded["lr"]) is float
    assert type(state["lr"]) is np.float64
    model = torch.nn.Linear(2, 2).state_dict()
    model["scale"] = np.float64(0.5)
    infobatch.save(model, tmp_path / "last.pt")
    assert infobatch.load(tmp_path / "last.pt")._metadata == model._metadata


def test_a_list_that_holds_itself(tmp_path: Path) -> None:
    knot: list[Any] = [torch.ones(2)]
    knot.append(knot)
    infobatch.save(knot, tmp_path / "last.pt")
    loaded = infobatch.load(tmp_path / "last.pt")
    assert loaded[1] is loaded


def test_what_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    infobatch.save(a_state(), tmp_path / "last.pt")
    before = (tmp_path / "last.pt").read_bytes()
    with pytest.raises(infobatch.InputError, match=r"argparse\.Namespace.*Nothing was written"):
        infobatch.save({**a_state(), "args": argparse.Namespace(lr=1)}, tmp_path / "last.pt")
    assert (tmp_path / "last.pt").read_bytes() == before
    assert os.listdir(tmp_path) == ["last.pt"]


# ---- saving while training goes on -----------------------------------------------------------------------


@contextmanager
def changing(change: Callable[[], object]) -> Iterator[None]:
    """Call ``change`` again and again in another thread, as training does while a checkpoint is written."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            change()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_state_that_changes_while_it_is_saved_is_saved_whole(tmp_path: Path) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
    tensors = list(model.state_dict().values())
    with changing(lambda: [tensor.add_(1.0) for tensor in tensors]):
        for _ in range(20):
            infobatch.save({"model": model.state_dict(), "part": tensors[0][3:5]}, tmp_path / "last.pt")
            loaded = infobatch.load(tmp_path / "last.pt")
            assert torch.equal(loaded["part"], loaded["model"]["0.weight"][3:5])


def test_entries_added_while_a_state_is_saved_do_no_harm(tmp_path: Path) -> None:
    """An optimizer fills its state in the first step."""
    state: dict[int, Any] = {}

    def change() -> None:
        state.clear()
        for number in range(100):
            state[number] = {"step": torch.zeros(())}

    with changing(change):
        for _ in range(20):
            infobatch.save({"state": state}, tmp_path / "last.pt")
            assert set(infobatch.load(tmp_path / "last.pt")["state"]) <= set(range(100))


def test_a_file_damaged_while_it_is_written_does_not_replace_the_old_one(tmp_path: Path) -> None:
    """A bare storage is written as it is; the check of what was written finds that it changed meanwhile."""
    path, table = tmp_path / "last.pt", torch.zeros(1 << 20)
    infobatch.save({"step": 1}, path)

    def save_until_refused() -> None:
        for _ in range(1000):
            infobatch.save({"step": 2, "storage": table.untyped_storage()}, path)

    with changing(lambda: table.add_(1.0)), pytest.raises(infobatch.StateError, match=r"last\.pt.*checksum"):
        save_until_refused()
    assert infobatch.load(path)["step"] in (1, 2)
    assert os.listdir(tmp_path) == ["last.pt"]


def test_a_snapshot_keeps_what_tensors_share(tmp_path: Path) -> None:
    table = torch.rand(100_000)
    model = torch.nn.Linear(4, 4)
    state = {
        "tied": [model.weight, model.weight, model.weight.data],
        "rows": table.view(100, 1000).unbind(),
        "expanded": torch.zeros(1).expand(50),
        "transposed": torch.arange(6).view(2, 3).t(),
        "twice": (table, table),
    }
    infobatch.save(state, tmp_path / "last.pt")
    assert (tmp_path / "last.pt").stat().st_size < 500_000
    loaded = infobatch.load(tmp_path / "last.pt")
    places = {tensor.data_ptr() for tensor in loaded["tied"]}
    assert len(places) == 1
    assert loaded["rows"][1].untyped_storage().data_ptr() == loaded["twice"][0].untyped_storage().data_ptr()
    assert loaded["twice"][0] is loaded["twice"][1]
    assert loaded["expanded"].stride() == (0,)
    assert torch.equal(loaded["transposed"], state["transposed"])


@pytest.mark.filterwarnings("ignore::UserWarning")  # quantized tensors are deprecated
def test_tensors_of_every_kind_survive_a_snapshot(tmp_path: Path) -> None:
    leaf = torch.nn.Parameter(torch.rand(3), requires_grad=False)
    tagged = torch.rand(2)
    tagged.note = "kept"  # type: ignore[attr-defined]
    state = {
        "parameter": leaf,
        "grad": torch.rand(2, requires_grad=True),
        "tagged": tagged,
        "sparse": torch.eye(3).to_sparse(),
        "quantized": torch.quantize_per_tensor(torch.rand(4), 0.1, 0, torch.qint8),
        "conj": torch.tensor([1 + 2j]).conj(),
        "meta": torch.empty(3, device="meta"),
        "bfloat16": torch.rand(3).bfloat16(),
        "empty": torch.empty(0, 4),
    }
    infobatch.save(state, tmp_path / "last.pt")
    loaded = infobatch.load(tmp_path / "last.pt")
    assert type(loaded["parameter"]) is torch.nn.Parameter
    assert not loaded["parameter"].requires_grad
    assert loaded["grad"].requires_grad
    assert loaded["tagged"].note == "kept"
    assert loaded["meta"].is_meta
    assert torch.equal(loaded["sparse"].to_dense(), torch.eye(3))
    assert torch.equal(loaded["quantized"].dequantize(), state["quantized"].dequantize())
    for name in ("parameter", "conj", "bfloat16", "empty"):
        assert torch.equal(loaded[name], state[name])


# ---- small files that would cost much --------------------------------------------------------------------


class Call:
    """Pickled as a call, as ``bytearray(10**10)``."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


def packed(path: Path) -> None:
    """A checkpoint whose one tensor is compressed."""
    torch.save({"table": torch.zeros(1 << 20)}, path)
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in records.items():
            archive.writestr(name, content)


def overlapping(path: Path) -> None:
    """Records that share their bytes, so that a small file unpacks to a large one without any compression."""
    torch.save({"table": torch.zeros(1 << 10)}, path)
    with zipfile.ZipFile(path, "a") as archive:
        first = next(record for record in archive.infolist() if record.filename.endswith("data/0"))
        for number in range(1, 500):
            copied = copy.copy(first)
            copied.filename = f"archive/data/{number}"
            archive.filelist.append(copied)
            archive.NameToInfo[copied.filename] = copied
        archive._didModify = True  # type: ignore[attr-defined]


def declaring(path: Path, size: int) -> None:
    """A storage that is declared larger than what the file holds of it."""
    torch.save({"table": torch.zeros(77)}, path)
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in records.items():
            archive.writestr(name, content.replace(b"KM", b"J" + struct.pack("<i", size)))


def repeated(depth: int) -> tuple[Any, ...]:
    """A tuple of two tuples of two tuples ...: as a key it is hashed, which visits all of them."""
    made: tuple[Any, ...] = ()
    for _ in range(depth):
        made = (made, made)
    return made


class Keyed:
    """Pickled as a dict with such a tuple as its key, without ever hashing it here."""

    def __reduce__(self) -> Any:
        return collections.OrderedDict, (), None, None, iter([(repeated(30), 1)])


BOMBS: dict[str, Callable[[Path], object]] = {
    "compressed": packed,
    "overlapping": overlapping,
    "declared": lambda path: declaring(path, 1 << 30),
    "declared a little": lambda path: declaring(path, 100),
    "expanded": lambda path: torch.save(torch.zeros(1).expand(10**9), path),
    "expanded bfloat16": lambda path: torch.save([torch.zeros(1).bfloat16().expand(10**5, 10**5)], path),
    "expanded parameter": lambda path: torch.save(torch.nn.Parameter(torch.zeros(1).expand(10**9)), path),
    "bytearray": lambda path: torch.save(Call(bytearray, 10**10), path),
    "tensor": lambda path: torch.save(Call(torch.FloatTensor, torch.Size([10**10])), path),
    "of a class": lambda path: torch.save(Call(rebuild, bytearray, torch.Tensor, (10**10,), {}), path),
    "endless key": lambda path: torch.save(Keyed(), path),
    "not a zip": lambda path: torch.save(torch.zeros(9), path, _use_new_zipfile_serialization=False),
}


@pytest.mark.parametrize("kind", BOMBS)
@pytest.mark.filterwarnings("ignore::UserWarning")  # of the library that wrote the duplicate
def test_a_small_file_that_would_cost_much_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "small.pt"
    BOMBS[kind](path)
    assert path.stat().st_size < 100_000
    tracemalloc.start()
    try:
        with pytest.raises(infobatch.StateError, match=r"small\.pt"):
            infobatch.load(path)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_what_load_would_refuse_as_too_large_is_not_saved(tmp_path: Path) -> None:
    infobatch.save({"step": 1}, tmp_path / "last.pt")
    with pytest.raises(infobatch.StateError, match=r"last\.pt.*clone"):
        infobatch.save({"table": torch.zeros(1).expand(10**9)}, tmp_path / "last.pt")
    assert infobatch.load(tmp_path / "last.pt") == {"step": 1}


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(infobatch.StateError, match="regular file"):
        infobatch.load(tmp_path / "pipe")


def test_values_of_every_plain_kind_are_loaded(tmp_path: Path) -> None:
    state = {
        "text": "x" * 1000,
        "numbers": [1, 2**40, -(2**70), 0.5, 1j, True, None],
        "bytes": b"some",
        "bytearray": bytearray(b"some"),
        "set": {1, 2},
        "counter": collections.Counter("abca"),
        "ordered": collections.OrderedDict(a=1),
        "size": torch.Size([3, 10**12]),
        "device": torch.device("cpu"),
        "dtype": torch.float16,
    }
    infobatch.save(state, tmp_path / "plain.pt")
    assert infobatch.load(tmp_path / "plain.pt") == state
