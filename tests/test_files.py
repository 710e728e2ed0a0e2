from __future__ import annotations

import argparse
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
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
    with pytest.raises(infobatch.StateError, match="more than tensors and numbers"):
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
    with pytest.raises(infobatch.StateError, match=r"state\.pt, which cannot be read"):
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
