"""Files of arrays: what goes into a file comes out again, and what is broken is named."""

from __future__ import annotations

import gzip
import pickle
import struct
from pathlib import Path

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made import Trap, idx_folder, npy_folder, refused, some_images, write_idx

from infobatch.lab.tasks.readers import idx, npy

# idx


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_idx_comes_out_as_it_went_in(tmp_path: Path, ending: str) -> None:
    made = idx_folder(tmp_path, ending)
    assert idx.is_present(tmp_path)
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
def test_idx_cut_anywhere_is_named(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, packed: bool) -> None:
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
    refused(lambda: idx.values(path), str(path), "1, so it is truncated")
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
