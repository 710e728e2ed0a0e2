"""Digits, and what all readers share."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
import torch
from made import idx_folder, npy_folder, some_images, tiny_folder

from infobatch.lab.tasks.readers import digits, idx, npy, tiny_imagenet
from infobatch.lab.tasks.readers.common import fingerprint


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
    monkeypatch.setattr("infobatch.lab.tasks.readers.common.HASHED", 2)
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
    tiny_imagenet.read(tmp_path / "tiny", (3, 8, 8))
    assert {path: path.stat().st_mtime for path in sorted(tmp_path.rglob("*"))} == before
