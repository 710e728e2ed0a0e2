"""Logs of losses in every form read back; broken ones are named, and none is run."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
import textwrap
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from infobatch.errors import InfoBatchWarning, InputError
from infobatch.lab.estimate.logs import read
from infobatch.lab.estimate.savings import estimate

nan = math.nan


def table(epochs: int, samples: int) -> Tensor:
    return torch.rand(epochs, samples, generator=torch.Generator().manual_seed(0))


def write(path: Path, losses: np.ndarray[Any, Any]) -> Path:
    """The same table in every form a person may have it in."""
    kind, seen = path.name, [(t, i, losses[t, i]) for t, i in np.argwhere(~np.isnan(losses)).tolist()]
    if path.suffix == ".npy":
        np.save(
            path,
            losses.astype(">f4") if "big" in kind else losses.astype(np.float64 if "double" in kind else np.float32),
        )
    elif kind == "columns.npz":
        epoch, index, loss = zip(*seen, strict=True)
        np.savez_compressed(path, epoch=epoch, index=index, loss=np.array(loss))
    elif path.suffix == ".npz":
        np.savez(path, losses=losses, other=np.ones(3))
    elif kind == "epochs.pt":
        torch.save([torch.from_numpy(row) for row in losses], path)
    elif kind == "named.pt":
        torch.save({"losses": torch.from_numpy(losses), "labels": torch.zeros(2)}, path)
    elif path.suffix == ".pt":
        torch.save(torch.from_numpy(losses), path)
    elif kind == "matrix.csv":
        path.write_text(
            "".join(",".join("" if math.isnan(x) else repr(x) for x in row) + "\n" for row in losses.tolist())
        )
    elif path.suffix == ".csv":
        first = 1 if "from_one" in kind else 0
        lines = [f"{float(loss)!r},{t + first},{i}" for t, i, loss in reversed(seen)]
        path.write_text("\n".join(["loss, epoch, index", *lines]))
    elif kind == "epochs.jsonl":
        rows = [
            {"epoch": t, "losses": [None if math.isnan(x) else x for x in row]} for t, row in enumerate(losses.tolist())
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "batches.jsonl":
        with path.open("w") as file:
            for t in range(len(losses)):
                here = [entry for entry in seen if entry[0] == t]
                for part in (here[::2], here[1::2]):
                    row = {"epoch": t, "index": [i for _, i, _ in part], "loss": [float(loss) for *_, loss in part]}
                    file.write(json.dumps(row) + "\n\n")
    else:
        path.write_text("".join(json.dumps({"epoch": t, "index": i, "loss": float(x)}) + "\n" for t, i, x in seen))
    return path


FORMS = [
    "plain.npy", "double.npy", "big.npy", "named.npz", "columns.npz", "plain.pt", "epochs.pt", "named.pt",
    "matrix.csv", "lines.csv", "from_one.csv", "lines.jsonl", "epochs.jsonl", "batches.jsonl",
]  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_every_form_reads_the_same(name: str, tmp_path: Path) -> None:
    losses = table(5, 40).numpy()
    losses[2, 7:20] = nan
    losses[4, :3] = nan
    found = read(write(tmp_path / name, losses))
    assert found.is_floating_point()
    np.testing.assert_array_equal(found.float().numpy(), losses)


def test_a_mark_at_the_beginning_and_a_gradient_do_no_harm(tmp_path: Path) -> None:
    """The mark is what spreadsheets write before a CSV; the gradient is what criteria leave on losses."""
    path = tmp_path / "log.csv"
    path.write_text("epoch,index,loss\n0,0,1\n1,0,2\n", encoding="utf-8-sig")
    assert read(path).tolist() == [[1.0], [2.0]]
    losses = table(10, 50).requires_grad_()
    torch.save(losses, tmp_path / "log.pt")
    assert estimate(read(tmp_path / "log.pt")) == estimate(losses.detach())


def batches(path: Path, order: np.ndarray[Any, Any], size: int) -> Path:
    """An epoch in which sample i has the loss i, logged a batch a line."""
    parts = (order[at : at + size].tolist() for at in range(0, len(order), size))
    path.write_text("".join(json.dumps({"epoch": 0, "index": part, "loss": part}) + "\n" for part in parts))
    return path


def test_a_shuffled_epoch_of_imagenet_is_read_batch_by_batch(tmp_path: Path) -> None:
    """The first lines name samples that so few losses do not bear out."""
    order = np.random.default_rng(0).permutation(1_281_167)
    found = read(batches(tmp_path / "log.jsonl", order, 1024))
    np.testing.assert_array_equal(found[0].numpy(), np.arange(len(order), dtype=np.float32))


def test_the_last_loss_of_a_sample_counts_also_where_it_had_to_wait(tmp_path: Path) -> None:
    size = 1_300_000
    path = batches(tmp_path / "log.jsonl", np.arange(size), 50_000)
    early = [json.dumps({"epoch": 0, "index": index, "loss": loss}) for index in (size - 1, size) for loss in (5, 6)]
    path.write_text("\n".join([*early, path.read_text()]))
    with pytest.warns(InfoBatchWarning, match="3 losses"):
        found = read(path)
    assert found[0, -2:].tolist() == [size - 1, 6]


@pytest.mark.parametrize("lines", [["0,0,1", "0,1,2", "0,0,3", "1,0,4"], ["0,0,1", "1,0,2", "1,0,3", "0,0,4"]])
def test_losses_that_replace_others_are_counted(lines: list[str], tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["epoch,index,loss", *lines]))
    count = len(lines) - len({line[:3] for line in lines})
    with pytest.warns(InfoBatchWarning, match=rf"log\.csv has {count} loss"):
        read(path)


@pytest.mark.parametrize("name", ["log.csv", "log.jsonl"])
def test_an_index_that_no_log_bears_out_is_named_and_takes_no_memory(name: str, tmp_path: Path) -> None:
    path, lines = tmp_path / name, [(0, 0, 1), (0, 2_000_000_000, 1), *((0, index, 1) for index in range(1, 50))]
    rows = [json.dumps(dict(zip(("epoch", "index", "loss"), line, strict=True))) for line in lines]
    if path.suffix == ".csv":
        rows = ["epoch,index,loss", *(",".join(map(str, line)) for line in lines)]
    path.write_text("\n".join(rows))
    tracemalloc.start()
    with pytest.raises(InputError, match=f"2000000000.* 51 losses .*{name}|{name}.*2000000000.* 51 losses"):
        read(path)
    assert tracemalloc.get_traced_memory()[1] < 64e6
    tracemalloc.stop()


def test_an_epoch_without_losses_is_a_gap_and_not_the_end(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("epoch,index,loss\n0,0,1\n0,2,2\n3,1,4\n")
    expected = [[1, nan, 2], [nan] * 3, [nan] * 3, [nan, 4, nan]]
    np.testing.assert_array_equal(read(path).numpy(), np.array(expected, dtype=np.float32))


def npy_header(text: str) -> bytes:
    """An npy file whose header says this."""
    held = (text + " " * (64 - (len(text) + 11) % 64) + "\n").encode()
    return b"\x93NUMPY\x01\x00" + len(held).to_bytes(2, "little") + held + bytes(64)


LARGE = "{'descr': '|u1', 'fortran_order': False, 'shape': (4611686018427387904, 4611686018427387904)}"
BROKEN = {
    "cut.npy": lambda path: path.write_bytes(write(path, table(5, 900).numpy()).read_bytes()[:-500]),
    "cut.npz": lambda path: path.write_bytes(write(path, table(5, 900).numpy()).read_bytes()[:-500]),
    "cut.pt": lambda path: path.write_bytes(write(path, table(5, 900).numpy()).read_bytes()[:-500]),
    "empty.npy": lambda path: path.write_bytes(b""),
    "empty.pt": lambda path: path.write_bytes(b""),
    "empty.csv": lambda path: path.write_text(""),
    "empty.jsonl": lambda path: path.write_text(""),
    "noise.npz": lambda path: path.write_bytes(bytes(range(256))),
    "noise.csv": lambda path: path.write_bytes(bytes(range(128, 256))),
    "one_axis.npy": lambda path: np.save(path, np.ones(5)),
    "words.npy": lambda path: np.save(path, np.array([["a"]])),
    "nothing.npy": lambda path: np.save(path, np.full((3, 4), nan)),
    "sideways.npy": lambda path: np.save(path, np.ones((2000, 10))),
    "several.npz": lambda path: np.savez(path, a=np.ones((2, 2)), b=np.ones((2, 2))),
    "text.pt": lambda path: torch.save({"losses": "text"}, path),
    "ragged.csv": lambda path: path.write_text("1,2,3\n1,2\n"),
    "head.csv": lambda path: path.write_text("epoch,sample,loss\n0,0,1\n"),
    "negative.csv": lambda path: path.write_text("epoch,index,loss\n0,-1,1\n"),
    "half.csv": lambda path: path.write_text("epoch,index,loss\n0,0.5,1\n"),
    "far.csv": lambda path: path.write_text("epoch,index,loss\n0,999999999999,1\n"),
    "late.csv": lambda path: path.write_text("epoch,index,loss\n7,0,1\n8,0,1\n"),
    "fields.jsonl": lambda path: path.write_text('{"epoch": 0, "id": 1, "loss": 2}\n'),
    "uneven.jsonl": lambda path: path.write_text('{"epoch": 0, "index": [1, 2], "loss": [1]}\n'),
    "list.jsonl": lambda path: path.write_text("[1, 2]\n"),
    "vast.jsonl": lambda path: path.write_text('{"epoch": 0, "index": 0, "loss": 1' + "0" * 500 + "}\n"),
    "blank.csv": lambda path: path.write_text("epoch,index,loss\n\n\n"),
    "nan.csv": lambda path: path.write_text("epoch,index,loss\nnan,0,1\n"),
    "sparse.csv": lambda path: path.write_text("epoch,index,loss\n0,0,1\n65000,1048570,1\n"),
    "uneven.npz": lambda path: np.savez(path, epoch=np.arange(3), index=np.arange(4), loss=np.arange(5.0)),
    "tables.npz": lambda path: np.savez(path, **dict.fromkeys(("epoch", "index", "loss"), np.zeros((2, 2)))),
    "deep.npy": lambda path: path.write_bytes(npy_header("(" * 300)),
    "large.npy": lambda path: path.write_bytes(npy_header(LARGE)),
    "sparse.pt": lambda path: torch.save(torch.eye(3).to_sparse(), path),
    "complex.pt": lambda path: torch.save(torch.ones(2, 3, dtype=torch.complex64), path),
    "meta.pt": lambda path: torch.save(torch.ones(2, 3, device="meta"), path),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_named(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    BROKEN[name](path)
    with pytest.raises(InputError, match=name):
        read(path)


@pytest.mark.parametrize("name", ["cut.csv", "cut.jsonl"])
def test_the_broken_line_is_named(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    lines = write(path, table(5, 40).numpy()).read_text().splitlines()
    path.write_text("\n".join([*lines[:150], lines[150].rsplit(",", 1)[0]]))
    with pytest.raises(InputError, match=f"line 151 of .*{name}"):
        read(path)


@pytest.mark.parametrize("head", ["epoch,index,loss\n", ""])
def test_blank_lines_count(head: str, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    lines = ["0,0,1", "", "", "0,1,1", "  ", "0,2,1", "0,x,1", "", "0,4,1"]
    path.write_text(head + "\n".join(lines))
    with pytest.raises(InputError, match=f"line {7 + bool(head)} of"):
        read(path)


class Harm:
    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('code of the file ran')",)


def test_no_code_in_a_file_is_run(tmp_path: Path) -> None:
    (tmp_path / "bad.pt").write_bytes(pickle.dumps(Harm()))
    np.save(tmp_path / "bad.npy", np.array([[Harm()]], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "bad.npz", losses=np.array([[Harm()]], dtype=object))
    for name in ("bad.pt", "bad.npy", "bad.npz"):
        with pytest.raises(InputError, match=name):
            read(tmp_path / name)


def test_unknown_names_suggest_near_ones(tmp_path: Path) -> None:
    np.save(tmp_path / "losses.npy", np.ones((2, 3)))
    with pytest.raises(InputError, match=r"Did you mean losses\.npy"):
        read(tmp_path / "loses.npy")
    with pytest.raises(InputError, match=r"\.jsonl"):
        read(tmp_path / "losses.txt")


@pytest.mark.slow
def test_a_large_log_is_mapped_and_not_held(tmp_path: Path) -> None:
    """200 MB of losses: the replay stays far below that on top of what torch takes."""
    path = tmp_path / "large.npy"
    held = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(100, 500_000))
    held[:] = np.arange(100, dtype=np.float32)[:, None]
    held[:, ::2] += 1
    held.flush()
    del held
    code = textwrap.dedent(f"""
        import torch
        torch.set_num_threads(1)
        from infobatch.lab.estimate.savings import estimate
        from infobatch.lab.estimate.logs import read
        from pathlib import Path
        anonymous = lambda: int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0])
        estimate(torch.rand(8, 1000))
        before = anonymous()
        losses = read({str(path)!r})
        estimate(losses[:10], ["infobatch"])
        print((anonymous() - before) // 1024)
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) < 80, "MB"


@pytest.mark.parametrize("kind", [torch.float32, torch.int64, torch.bfloat16], ids=str)
def test_a_tensor_that_was_expanded_to_a_huge_one_is_refused(kind: torch.dtype, tmp_path: Path) -> None:
    """It takes no memory as it is, and minutes and gigabytes once it is worked with."""
    one = torch.zeros(1, dtype=kind)
    for number, losses in enumerate([one.expand(50, 10**9), one.expand(10**9), [one.expand(10**9)] * 50]):
        torch.save(losses, tmp_path / f"{number}.pt")
        with pytest.raises(InputError, match=rf"{number}\.pt.*repeat"):
            read(tmp_path / f"{number}.pt")
    with pytest.raises(InputError, match="repeat"):
        estimate(one.float().expand(50, 10**9))


def test_a_small_table_may_be_expanded(tmp_path: Path) -> None:
    losses = torch.rand(1, 100).expand(8, 100)
    torch.save(losses, tmp_path / "log.pt")
    assert estimate(read(tmp_path / "log.pt")) == estimate(losses) == estimate(losses.contiguous())
