"""Records under crashes, two writers, and damage."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from infobatch.errors import InfoBatchWarning, InputError, StateError
from infobatch.lab.runs import records
from infobatch.lab.train.settings import Settings

START = {"kind": "start", "format": records.FORMAT, "run": "a", "settings": Settings().plain()}


def write(folder: Path, *facts: dict[str, Any]) -> Path:
    with records.Recorder(folder) as record:
        for fact in facts:
            record(fact)
    return folder / records.FILE


def epoch(number: int, **more: Any) -> dict[str, Any]:
    return {"kind": "epoch", "epoch": number, **more}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write(tmp_path / "run", START, epoch(0), epoch(1), {"kind": "samples"}, {"kind": "end", "metric": 1.5})
    run = records.read(tmp_path / "run")
    assert run.start == START
    assert run.settings == Settings()
    assert [fact["epoch"] for fact in run.epochs] == [0, 1]
    assert run.end == {"kind": "end", "metric": 1.5}
    assert run.name == "a"
    assert run.label == "infobatch"


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), plain, max_size=4))
@example({"name": "caf\udce9"})  # of a file whose name is no UTF-8
def test_any_fact_is_one_line_of_json(fact: dict[str, Any]) -> None:
    text = records.line(fact)
    assert text.encode().count(b"\n") == 1
    assert json.loads(text) == fact


def test_what_is_not_finite_becomes_null() -> None:
    fact = {"a": float("nan"), "b": [float("inf"), 1.0], "c": {"d": -float("inf")}}
    assert json.loads(records.line(fact)) == {"a": None, "b": [None, 1.0], "c": {"d": None}}


@given(st.integers(1, 200))
def test_a_file_cut_anywhere_loses_its_last_line_alone(cut: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "run", START, epoch(0), epoch(1, text="é" * 50))
        whole = path.read_bytes()
        lines = whole.splitlines(keepends=True)
        cut = min(cut, len(lines[-1]) - 1)
        path.write_bytes(whole[: len(whole) - cut])
        torn = cut > 1  # a line that lacks its end alone is whole
        assert len(records.read(path).epochs) == 2 - torn
        with records.Recorder(path.parent, resume=True) as record:
            record(epoch(1))
        assert [fact["epoch"] for fact in records.read(path).epochs] == [0, 1]
        assert path.with_suffix(".torn").exists() == torn
        if torn:
            assert path.with_suffix(".torn").read_bytes() == lines[-1][: len(lines[-1]) - cut] + b"\n"


def test_damage_inside_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "run", START, epoch(0), epoch(1))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:-5], lines[2]]) + "\n")
    before = path.read_bytes()
    with pytest.raises(StateError, match=r"record\.jsonl.*line 2.*JSON"):
        records.read(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("facts", "complaint"),
    [
        ([epoch(0)], "line 1 comes before any start"),
        ([{**START, "format": 9}], "line 1 has format 9"),
        ([{**START, "settings": None}], "line 1 has no settings"),
        ([START, epoch(1)], "line 2 has epoch 1 after 0 epochs"),
    ],
)
def test_what_makes_no_sense_is_named(tmp_path: Path, facts: list[Any], complaint: str) -> None:
    with pytest.raises(StateError, match=complaint):
        records.read(write(tmp_path / "run", *facts))


def test_epochs_told_twice_count_once(tmp_path: Path) -> None:
    """A run killed after its last checkpoint goes over some epochs again."""
    path = write(
        tmp_path / "run", START, epoch(0, n=1), epoch(1, n=1), {"kind": "resume"}, epoch(1, n=2), epoch(2, n=2)
    )
    assert [(fact["epoch"], fact["n"]) for fact in records.read(path).epochs] == [(0, 1), (1, 2), (2, 2)]


def test_a_record_is_not_written_over(tmp_path: Path) -> None:
    path = write(tmp_path / "run", START)
    with pytest.raises(InputError, match="--resume"):
        records.Recorder(tmp_path / "run")
    assert len(path.read_text().splitlines()) == 1
    records.Recorder(tmp_path / "run", resume=True).close()  # and the lock is free again


def test_a_full_disk_is_told_with_the_file_and_loses_the_last_line_alone(tmp_path: Path) -> None:
    write(tmp_path / "run", START, epoch(0))
    full = tmp_path / "run" / records.FILE
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (full.stat().st_size + 5, before[1]))
    try:
        record = records.Recorder(tmp_path / "run", resume=True)
        for late in (lambda: record(epoch(1)), record.close):  # what was not written is tried once more
            with pytest.raises(OSError, match=r"File too large: '.*record\.jsonl'"):
                late()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with records.Recorder(tmp_path / "run", resume=True) as record:
        record(epoch(1))
    assert len(records.read(tmp_path / "run").epochs) == 2


@pytest.mark.slow
def test_two_processes_never_write_to_one_folder_and_a_dead_one_lets_go(tmp_path: Path) -> None:
    code = f"""
import time
from infobatch.lab.runs import records
record = records.Recorder({str(tmp_path / "run")!r})
record({START!r})
print("ready", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        with pytest.raises(InputError, match="other run"):
            records.Recorder(tmp_path / "run", resume=True)
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
    for _ in range(50):
        try:
            records.Recorder(tmp_path / "run", resume=True).close()
            break
        except InputError:
            time.sleep(0.1)
    else:
        pytest.fail("the lock outlived its process")


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_worker_that_outlives_the_run_does_not_hold_its_lock(tmp_path: Path) -> None:
    wait, end = os.pipe()
    hear, say = os.pipe()
    record = records.Recorder(tmp_path / "run")
    child = os.fork()
    if not child:
        os.close(end)
        os.write(say, b"!")
        os.read(wait, 1)  # until the parent lets go
        os._exit(0)
    os.read(hear, 1)
    try:
        with pytest.raises(InputError, match="other run"):
            records.Recorder(tmp_path / "run", resume=True)  # the parent's lock is as it was
        record.close()
        records.Recorder(tmp_path / "run", resume=True).close()
    finally:
        for each in (end, wait, hear, say):
            os.close(each)
        os.waitpid(child, 0)


def test_many_runs_are_found_below_folders_and_in_files(tmp_path: Path) -> None:
    write(tmp_path / "a" / "one", START)
    write(tmp_path / "a" / "two", START)
    both = tmp_path / "kept.jsonl"
    both.write_text(2 * (records.line(START) + records.line({"kind": "end"})))
    assert len(records.read_many(tmp_path / "a", both)) == 4
    with pytest.raises(StateError, match=r"2 runs.*read_many"):
        records.read(both)
    (tmp_path / "none.jsonl").touch()
    with pytest.raises(StateError, match=r"none\.jsonl.*empty"):
        records.read(tmp_path / "none.jsonl")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty"):
        records.read_many(tmp_path / "empty")
    with pytest.raises(InputError, match="no such file"):
        records.read_many(tmp_path / "nothing.jsonl")


@pytest.mark.parametrize("damage", [lambda text: f"x{text}", lambda text: text[:40]], ids=["spoilt", "torn"])
@pytest.mark.parametrize("name", ["kept.jsonl", records.FILE])
def test_a_damaged_first_line_is_told_and_the_other_files_are_read(tmp_path: Path, name: str, damage: Any) -> None:
    places = [tmp_path / folder / name for folder in ("a", "b", "c")]
    for place in places:
        place.parent.mkdir()
        place.write_text(records.line(START) + records.line({"kind": "end"}))
    bad = places[1]
    bad.write_text(damage(bad.read_text()))
    with pytest.warns(InfoBatchWarning, match=f"/b/{name}.*line 1"):
        found = records.read_many(tmp_path)
    assert [run.file for run in found] == [places[0], places[2]]
    for paths in ([bad.parent], [bad], [tmp_path / "a", bad]):  # nothing else to read, or named
        with pytest.raises(StateError, match="line 1"):
            records.read_many(*paths)


def test_records_of_any_name_count_beside_those_of_the_usual_one(tmp_path: Path) -> None:
    one = write(tmp_path / "one", START)
    kept = tmp_path / "kept.jsonl"
    kept.write_text(records.line(START))
    (tmp_path / "measurements.jsonl").write_text(records.line({"kind": "measure"}))
    (tmp_path / "of_another_program.jsonl").write_text("[1, 2]\n")
    (tmp_path / "folder.jsonl").mkdir()
    assert [run.file for run in records.read_many(tmp_path)] == [kept, one]


def test_labels_tell_apart_what_differs() -> None:
    base = Settings()
    labels = {
        records.label(each)
        for each in (
            base,
            base.but(compensate="lr"),
            base.but(compensate="loss"),
            base.but(method="ucb", compensate="loss"),
            base.but(method="ucb", compensate="lr"),
            base.but(method="full"),
            base.but(method="full", steps=9),
            base.but(ideas="average"),
        )
    }
    ucb = {"ucb", "ucb+lr"}  # its weights are 1, so nothing grows unless it is said
    assert labels == {
        "infobatch",
        "infobatch+lr",
        "infobatch+loss",
        *ucb,
        "full",
        "full, 9 steps",
        "infobatch average",
    }


def test_what_is_no_record_below_a_folder_is_told_or_passed_over(tmp_path: Path) -> None:
    """A link that leads nowhere is told; a pipe, which would be waited for, is none."""
    (tmp_path / "record.jsonl").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(InputError, match=r"record\.jsonl"):
        records.read_many(tmp_path)
    assert [path.name for path in records.files(tmp_path)] == ["record.jsonl"]
