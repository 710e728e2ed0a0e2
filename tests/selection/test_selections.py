"""A selection as a value: what it refuses, and what it reads and writes."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import infobatch
from infobatch.errors import InputError, StateError
from infobatch.selection import Selection

PICKED = [1, 4, 7]


def picked(**more: Any) -> Selection:
    return Selection(torch.tensor(PICKED), 9, **more)


def test_is_a_sequence() -> None:
    chosen = picked()
    assert (len(chosen), chosen[0], chosen[-1], chosen[1:], list(chosen)) == (3, 1, 7, [4, 7], PICKED)
    assert type(chosen[0]) is int
    assert 4 in chosen
    assert chosen.index(7) == 2
    with pytest.raises(IndexError):
        chosen[3]


def test_equality_is_of_samples_and_weights() -> None:
    heavy = picked(weights=torch.tensor([0.5, 1.5, 1.0]))
    assert picked() == picked(method="other")
    assert picked() != heavy
    assert picked() != Selection(torch.tensor(PICKED), 10)
    assert picked() != PICKED
    assert pickle.loads(pickle.dumps(heavy)) == heavy
    with pytest.raises(TypeError, match="unhashable"):
        hash(heavy)


def test_complement() -> None:
    assert list(picked().complement()) == [0, 2, 3, 5, 6, 8]
    assert picked().complement().complement() == picked()
    with pytest.raises(InputError, match="share below 1"):
        Selection(torch.arange(9), 9).complement()


def test_kept_by_class() -> None:
    labels = torch.tensor([5, 5, 5, 0, 0, 0, 0, 2, 5])
    assert picked().kept_by_class(labels) == {0: (1, 4), 2: (1, 1), 5: (1, 4)}
    with pytest.raises(InputError, match="9 labels"):
        picked().kept_by_class(labels[:8])


def test_subset_is_of_the_data_set_it_was_chosen_from() -> None:
    assert [x.item() for (x,) in picked().subset(TensorDataset(torch.arange(9)))] == PICKED
    with pytest.raises(InputError, match="a data set of 9 samples; got one of 8"):
        picked().subset(TensorDataset(torch.arange(8)))


def test_pruning_goes_on_inside_it() -> None:
    data = infobatch.InfoBatch(picked().subset(TensorDataset(torch.arange(9))), num_epochs=2)
    loader = torch.utils.data.DataLoader(data, batch_size=2, sampler=data.sampler)
    seen = torch.cat([x for (x,) in loader if data.update(torch.ones(len(x))) is not None])
    assert sorted(seen.tolist()) == PICKED


@pytest.mark.parametrize(
    ("indices", "size", "more", "words"),
    [
        ([4, 1], 9, {}, "ascending"),
        ([1, 1], 9, {}, "each index once"),
        ([1, 9], 9, {}, "from 0 to 8"),
        ([-1, 3], 9, {}, "from 0 to 8"),
        ([], 9, {}, "integer|at least one"),
        ([1.0], 9, {}, "integer"),
        ([True], 9, {}, "nonzero"),
        ([[1]], 9, {}, "one-dimensional"),
        ([1], 0, {}, "size as an? "),
        ([1], 9, {"weights": torch.ones(2)}, "1 floating-point weights"),
        ([1], 9, {"weights": torch.tensor([-1.0])}, "at least 0"),
        ([1], 9, {"weights": torch.tensor([float("nan")])}, "finite"),
        ([1], 9, {"scores": torch.ones(8)}, "9 floating-point scores"),
    ],
)
def test_refused(indices: list[Any], size: int, more: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Selection(torch.tensor(indices), size, **more)


def test_load_refuses_another_file(tmp_path: Path) -> None:
    infobatch.save({"indices": torch.tensor(PICKED)}, tmp_path / "list.pt")
    with pytest.raises(StateError, match=r"Selection\.read"):
        Selection.load(tmp_path / "list.pt")
    assert list(Selection.read(tmp_path / "list.pt", 9)) == PICKED


def written(path: Path, kind: str) -> Path:
    """The picked, out of order, as people publish them."""
    values, file = [7, 1, 4], path / f"list.{kind.split('-')[0]}"
    match kind:
        case "npy":
            np.save(file, np.array(values, dtype=np.int32))
        case "npz":
            np.savez(file, np.array(values))
        case "npz-named":
            np.savez(file, indices=np.array(values, dtype=np.uint16), scores=np.ones(9))
        case "pt":
            torch.save(torch.tensor(values), file)
        case "pth":
            torch.save({"idx": values, "accuracy": 0.9}, file)
        case "txt":
            file.write_text("# easy first\n7\n1, 4  # the rest\n")
        case "csv":
            file.write_text("7\n1\n4\n")
        case "csv-named":
            file.write_text("score,Index\n0.5,7\n0.2,1\n0.1,4\n")
        case "json":
            file.write_text(json.dumps(values))
        case "json-named":
            file.write_text(json.dumps({"method": "el2n", "indices": values}))
    return file


@pytest.mark.parametrize(
    "kind", ["npy", "npz", "npz-named", "pt", "pth", "txt", "csv", "csv-named", "json", "json-named"]
)
def test_reads_published_lists(kind: str, tmp_path: Path) -> None:
    chosen = Selection.read(written(tmp_path, kind), 9)
    assert list(chosen) == PICKED
    assert chosen == picked()
    assert chosen.method == "read"
    with pytest.raises(InputError, match="from 0 to 6"):
        Selection.read(written(tmp_path, kind), 7)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.npy", b"\x93NUMPY broken", "unreadable"),
        ("a.npz", b"no archive", "unreadable"),
        ("a.json", b'["1"]', "integer"),
        ("a.json", b"[1.0]", "integer"),
        ("a.json", b"[true]", "integer"),
        ("a.json", b"[1", "JSON"),
        ("a.json", b'{"a": [1], "b": [2]}', "a, b"),
        ("a.json", b"[%d]" % 2**70, "integer"),
        ("a.txt", b"1\n2.5\n", "'2.5'"),
        ("a.txt", b"1\n1\n", "each index once"),
        ("a.txt", b"9" * 5000, "'9999"),
        ("a.txt", b"", "at least one"),
        ("a.txt", b"\xff\xfe", "not text"),
        ("a.csv", b"", "at least one"),
        ("a.csv", b"1,2\n3,4\n", "2 columns without names"),
        ("a.csv", b"score,index\n1\n", "too short"),
        ("a.csv", b"index\nx\n", "'x'"),
        ("a.pickle", b"", "Supported are"),
    ],
)
def test_lists_that_are_none(name: str, content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=words):
        Selection.read(tmp_path / name, 9)


def test_nothing_in_a_list_is_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    np.save(tmp_path / "a.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    torch.save([Trap()], tmp_path / "a.pt")
    with pytest.raises(InputError):
        Selection.read(tmp_path / "a.npy", 9)
    with pytest.raises(StateError):
        Selection.read(tmp_path / "a.pt", 9)
    assert not (tmp_path / "sprung").exists()


def test_a_missing_file_speaks_for_itself(tmp_path: Path) -> None:
    for ending in ("npy", "npz", "pt", "txt", "csv", "json"):
        with pytest.raises(FileNotFoundError):
            Selection.read(tmp_path / f"none.{ending}", 9)


def test_floating_point_cannot_hold_positions(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([1.0, 2.0]))
    with pytest.raises(InputError, match="Floating-point"):
        Selection.read(tmp_path / "a.npy", 9)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("two_signs.txt", b"+-5", "integer"),
        ("deep.json", b"[" * 100_000, "JSON"),
        ("long_field.csv", b"index\n" + b"1" * 200_000, "invalid table"),
    ],
)
def test_odd_files_are_named(name: str, content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=words):
        Selection.read(tmp_path / name, 10)


@pytest.mark.parametrize(("name", "text"), [("a.txt", "3\n1"), ("a.csv", "index,name\n3,x\n1,y"), ("a.json", "[3, 1]")])
def test_a_mark_before_the_first_word_does_not_matter(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert list(Selection.read(tmp_path / name, 10)) == [1, 3]


@pytest.mark.filterwarnings("ignore:.*parse:UserWarning")  # newer torch, on loading such a tensor
def test_indices_in_an_odd_layout_are_refused(tmp_path: Path) -> None:
    torch.save(torch.tensor([1, 2]).to_sparse(), tmp_path / "a.pt")
    with pytest.raises(InputError, match="indices as"):
        Selection.read(tmp_path / "a.pt", 10)
    with pytest.raises(InputError, match=r"size as an? "):
        Selection.read(tmp_path / "a.pt", "10")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [{"size": "9"}, {"size": 1}, {"indices": [1, 2]}, {"weights": torch.ones(9)}, {"settings": None}, {"method": 3}],
    ids=str,
)
def test_damaged_selections_are_named(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "chosen.pt"
    Selection(torch.tensor([1, 2]), 9).save(path)
    infobatch.save(infobatch.load(path) | change, path)
    with pytest.raises(StateError, match="damaged"):
        Selection.load(path)


def test_a_selection_without_any_weight_is_none() -> None:
    with pytest.raises(InputError, match="a weight above 0"):
        Selection(torch.tensor([1, 2]), 9, torch.zeros(2))


def test_labels_may_be_a_list() -> None:
    chosen = Selection(torch.tensor([1, 2]), 4)
    assert chosen.kept_by_class([0, 1, 1, 7]) == {0: (0, 1), 1: (2, 2), 7: (0, 1)}
    with pytest.raises(InputError, match="Number the classes"):
        chosen.kept_by_class(["a", "b", "b", "c"])
