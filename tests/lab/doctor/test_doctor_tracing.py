"""The doctor: recognizing samples by their content and following them through a loader."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import infobatch
from infobatch.lab.doctor.probe import Account, Trial, account
from infobatch.lab.doctor.tracing import Census, Log, Marked, count_rows, fingerprint, parts, rows

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.set_vital. is deprecated:UserWarning"),  # torchdata's own
]


shapes = st.lists(st.integers(1, 5), min_size=0, max_size=3)


@settings(deadline=None, max_examples=50)
@given(
    shapes, st.sampled_from([torch.float16, torch.bfloat16, torch.uint8, torch.int64, torch.bool]), st.integers(0, 99)
)
def test_a_fingerprint_is_of_the_numbers_and_not_of_their_type(shape: list[int], dtype: torch.dtype, seed: int) -> None:
    thing = torch.randint(0, 9, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    ((_, narrow),), ((_, wide),) = list(parts(thing)), list(parts(thing.double()))
    assert fingerprint(narrow) == fingerprint(wide)
    ((_, array),) = list(parts(thing.double().numpy()))
    assert fingerprint(array) == fingerprint(narrow)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=6),
    st.booleans(),
    st.integers(-1, 3),
)
def test_padding_is_seen_through(samples: list[list[int]], in_front: bool, pad: int) -> None:
    """The sample that a padded row is recognized as, padded, gives that row."""
    census = Census(lengths=sorted({len(sample) for sample in samples}))
    tensors = [torch.tensor(sample) for sample in samples]
    for number, sample in enumerate(tensors):
        census.owner.setdefault(fingerprint(sample), number)
    longest = 1 + max(map(len, samples))
    for sample in samples:
        more = [pad] * (longest - len(sample))
        row = torch.tensor(more + sample if in_front else sample + more)
        key = census.recognize(row)
        assert key, "the sample itself is one that it could be"
        kept = samples[census.owner[key]]
        rest = longest - len(kept)
        could = row.tolist() in (kept + [row[-1].item()] * rest, [row[0].item()] * rest + kept)
        assert could


def test_large_parts_are_looked_at_in_places() -> None:
    large = torch.zeros(1_000_000)
    other = large.clone()
    other[::1000] = 1
    assert fingerprint(large) != fingerprint(other)
    assert fingerprint(torch.zeros(3)) != fingerprint(torch.zeros(4))
    assert fingerprint(torch.zeros(999_999)) != fingerprint(large)


def test_rows_of_batches() -> None:
    x, y = torch.randn(4, 3, 2), torch.arange(4)
    assert count_rows((x, y), [4]) == 4
    assert count_rows({"x": x, "n": torch.tensor(1)}, [8, 4]) == 4
    assert count_rows([[x[0], x[1, :1]], ["a", "b"]], [2]) == 2
    assert count_rows((x[:3], y[:3]), [4, 2]) == 3
    assert count_rows(object(), [4]) is None
    found = dict(rows({"x": x, "names": ["a", "b", "c", "d"], "all": torch.tensor(7)}, 4))
    assert set(found) == {("x",), ("names", "*")}
    assert torch.equal(torch.stack(found[("x",)]), x.reshape(4, 6))
    assert found[("names", "*")] == [b"a", b"b", b"c", b"d"]


def test_notes_of_several_processes_are_read_once(tmp_path: Path) -> None:
    data = Marked([torch.tensor([float(i), 1.0]) for i in range(10)], tmp_path, 10)
    for i in range(3):
        data[i]
    log, census = Log(tmp_path), Census()
    log.read(census)
    (tmp_path / "other").write_bytes((next(tmp_path.iterdir())).read_bytes()[:-8])
    data.__getitems__([3, 4])
    log.read(census)
    assert census.fetched == {0: 2, 1: 2, 2: 1, 3: 1, 4: 1}, "and not what is half written"
    assert sorted(census.sizes) == [(1, 1)] * 5 + [(2, 2)]
    assert census.recognize(torch.tensor([4.0, 1.0])) == census.keys[4][0]


def test_what_was_fetched_before_a_pass_is_not_of_it(tmp_path: Path) -> None:
    marked = Marked([torch.tensor([float(i), 1.0]) for i in range(10)], tmp_path, 10)
    data = infobatch.InfoBatch(marked, 8)
    marked.__getitems__([3, 4])
    (trace,) = Trial(infobatch.DataLoader(data, batch_size=4), data, Log(tmp_path)).run(1).traces
    assert trace.census.fetched == dict.fromkeys(range(10), 1)
    assert sorted(trace.went.values()) == list(range(10))
    assert account(trace) == Account(right=10)
