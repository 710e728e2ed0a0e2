"""The estimate against a real pruned run on losses that no training moves; logs in every form read back."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import Dataset

import infobatch
from infobatch.errors import InputError
from infobatch.lab.estimate import Estimate, estimate, left_out, read
from infobatch.methods import METHODS

pytestmark = pytest.mark.filterwarnings("ignore::infobatch.InfoBatchWarning")
nan = math.nan


class Positions(Dataset[int]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


def trained(losses: Tensor, method: infobatch.methods.Method, num_epochs: int, seed: int = 0) -> infobatch.Pruned:
    """A real pruned run in which sample i of epoch t has the loss that the table says."""
    data = infobatch.Pruned(Positions(losses.shape[1]), method, num_epochs, seed=seed)
    loader = infobatch.DataLoader(data, batch_size=32)
    for epoch in range(num_epochs):
        for indices in loader:
            data.update(losses[min(epoch, len(losses) - 1)][indices])
    return data


def table(epochs: int, samples: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(epochs, samples, generator=generator).square() / torch.arange(1, epochs + 1)[:, None]


# ---- against the real thing ------------------------------------------------------------------------------------


WANT_MORE = ("dynamic_uncertainty", "kakurenbo", "ies", "rcap", "bls")
FROM_LOSSES = [name for name in METHODS if name not in WANT_MORE]


@pytest.mark.parametrize("name", WANT_MORE)
def test_methods_that_need_more_than_losses_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="losses alone"):
        estimate(table(10, 30), [name])


@pytest.mark.parametrize("name", FROM_LOSSES)
def test_the_replay_is_the_run(name: str) -> None:
    losses, method = table(10, 300), METHODS[name]()
    real, (replayed,) = trained(losses, method, 10), estimate(losses, [name])
    assert replayed.method == repr(method)
    assert replayed.kept == tuple(report.kept for report in real.history)
    assert replayed.saved == pytest.approx(real.history[-1].saved_so_far, abs=1e-12)
    assert replayed.noise == max((report.noise for report in real.history if report.saved), default=1)
    assert replayed.effective_size == pytest.approx(sum(report.effective_size for report in real.history) / 10)
    assert replayed.spread == 0


def test_a_sample_left_out_keeps_its_score() -> None:
    """Losses that jump between epochs: who was last seen when decides everything."""
    losses = torch.rand(12, 200, generator=torch.Generator().manual_seed(1))
    for name in ("infobatch", "tiers", "saving:share=0.5"):
        (replayed,) = estimate(losses, [name])
        real = trained(losses, infobatch.lab.settings.parse_method(name), 12)
        assert replayed.kept == tuple(report.kept for report in real.history)


def test_seeds_are_those_of_runs() -> None:
    losses, method = torch.rand(8, 120), infobatch.methods.infobatch()
    shares = [trained(losses, method, 8, seed).history[-1].saved_so_far for seed in range(3)]
    (replayed,) = estimate(losses, [method], seeds=3)
    assert replayed.saved == pytest.approx(float(np.mean(shares)))
    assert replayed.spread == pytest.approx(float(np.std(shares, ddof=1)))


def test_losses_that_are_not_there_are_kept_out_of_the_scores() -> None:
    losses = table(9, 150)
    losses[::2, :40] = nan
    losses[3, 60] = math.inf
    method = infobatch.methods.infobatch()
    real, (replayed,) = trained(losses, method, 9), estimate(losses, [method])
    assert replayed.kept == tuple(report.kept for report in real.history)
    missing = 5 * 40 + 1
    assert any(f"{missing} losses" in text for text in replayed.unknown)


def test_epochs_beyond_the_log_repeat_its_last() -> None:
    losses = table(4, 150)
    (replayed,) = estimate(losses, ["infobatch"], num_epochs=16)
    real = trained(losses, infobatch.methods.infobatch(), 16)
    assert replayed.kept == tuple(report.kept for report in real.history)
    assert any("Epochs 4 to 15" in text for text in replayed.unknown)


# ---- laws ------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.integers(1, 60), st.integers(0, 9), st.sampled_from([0.0, 0.3, 1.0]))
def test_laws(epochs: int, samples: int, seed: int, missing: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    losses = torch.rand(epochs, samples, generator=generator)
    losses[torch.rand(epochs, samples, generator=generator) < missing] = nan
    losses[0, 0] = 1.0
    before = losses.clone()
    for one in estimate(losses):
        assert len(one.kept) == epochs
        assert all(0 <= kept <= samples for kept in one.kept)
        assert one.saved == pytest.approx(1 - sum(one.kept) / (epochs * samples))
        assert 0 <= one.effective_size <= samples + 1e-6
        assert one.largest_weight >= 1
        if not one.method.startswith(("random_star", "rs2", "order_dp")):  # they draw before they look
            assert one.kept[0] == samples, "nothing is known before the first epoch"
        if one.method == "full()":
            assert one.saved == 0
    assert torch.equal(losses.nan_to_num(-1), before.nan_to_num(-1))


def test_the_largest_weight_is_the_one_the_rule_gives() -> None:
    losses = torch.rand(10, 1000)
    found = {one.method.split("(")[0]: one for one in estimate(losses, ["infobatch", "author_tiers", "random_star"])}
    assert found["infobatch"].largest_weight == pytest.approx(2, rel=0.02)
    assert found["author_tiers"].largest_weight == pytest.approx(4, rel=0.02)
    assert found["random_star"].largest_weight == 1


def test_only_methods_that_can_keep_their_promise_are_tried() -> None:
    assert not any(one.method.startswith("saving") for one in estimate(torch.rand(1, 9)))
    assert any(one.method.startswith("saving") for one in estimate(torch.rand(20, 9)))
    with pytest.raises(InputError, match="saving of at most"):
        estimate(torch.rand(1, 9), ["saving"])


@pytest.mark.parametrize("epochs", [1, 20])
def test_methods_that_are_not_tried_are_told_with_the_reason(epochs: int) -> None:
    tried = {one.method.partition("(")[0] for one in estimate(torch.rand(epochs, 9))}
    told = left_out(epochs)
    assert tried.isdisjoint(told)
    assert tried | told.keys() == set(METHODS)
    assert {told[name] for name in WANT_MORE} == {"more than losses is needed"}
    assert {name: why for name, why in told.items() if name not in WANT_MORE} == (
        {"saving": "the run is too short"} if epochs == 1 else {}
    )


def test_it_says_what_it_cannot_know() -> None:
    (one,) = estimate(torch.rand(8, 20), ["infobatch"])
    assert isinstance(one, Estimate)
    assert "would differ" in one.unknown[0]
    assert len(one.unknown) == 2


# ---- logs ------------------------------------------------------------------------------------------------------


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
            {"epoch": t, "losses": [None if math.isnan(x) else x for x in row]}
            for t, row in enumerate(losses.tolist())
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
    with pytest.raises(InputError, match="Did you mean infobatch"):
        estimate(torch.rand(3, 4), ["infobach"])


@pytest.mark.parametrize(
    "call",
    [
        lambda: estimate(torch.rand(3)),
        lambda: estimate(torch.ones(3, 4, dtype=torch.int64)),
        lambda: estimate(torch.rand(3, 4), num_epochs=2),
        lambda: estimate(torch.rand(3, 4), seeds=0),
        lambda: estimate(torch.full((3, 4), nan)),
    ],
)
def test_bad_input(call: Any) -> None:
    with pytest.raises(InputError, match="expected"):
        call()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"num_epochs": 2}, "expected a whole number of epochs from 3 on; got 2. So many are in the log"),
        ({"num_epochs": True}, "expected a whole number of epochs from 3 on; got True"),
        ({"seeds": 0}, "expected a whole number of seeds from 1 on; got 0. Each is a draw"),
    ],
)
def test_numbers_are_told_in_words_that_any_caller_knows(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=f"^{said}"):
        estimate(torch.rand(3, 4), **given)


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
        from infobatch.lab.estimate import estimate, read
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
