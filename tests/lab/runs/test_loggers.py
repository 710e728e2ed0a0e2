"""Hooks, read back with TensorBoard's own reader and out of the files of a real offline W&B run."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infobatch.errors import InputError
from infobatch.lab.runs import loggers
from infobatch.lab.train import loop
from infobatch.lab.train.settings import Settings

SETTINGS = {"task": "digits", "lr": 0.1, "epochs": 5, "augment": True, "milestones": [0.3, 0.6]}
START: dict[str, Any] = {
    "kind": "start", "format": 2, "run": "mine", "settings": SETTINGS, "environment": {"torch": "2.13"}, "size": 100,
}  # fmt: skip
END: dict[str, Any] = {
    "kind": "end", "metric": 95.0, "test_loss": None, "saved": 0.25, "epochs": 5, "seconds": {"total": 9.0},
    "class_kept": [1, 2],
}  # fmt: skip


def epoch(number: int, metric: float | None = None) -> dict[str, Any]:
    return {
        "kind": "epoch", "epoch": number, "kept": 100 - number, "metric": number * 1.5 if metric is None else metric,
        "seconds": {"step": 0.25, "data": 0.5}, "weights": {"values": [1.0, 2.0], "counts": [50, 50]},
        "class_kept": None,
    }  # fmt: skip


# ---- names -----------------------------------------------------------------------------------------------------


def test_names_are_those_of_the_records() -> None:
    assert loggers.flatten(epoch(2)) == {
        "epoch/kept": 98.0, "epoch/metric": 3.0, "seconds/step": 0.25, "seconds/data": 0.5,
    }  # fmt: skip
    assert loggers.flatten(END) == {
        "end/metric": 95.0, "end/saved": 0.25, "end/epochs": 5.0, "end/seconds/total": 9.0,
    }  # fmt: skip
    for kind in ("start", "samples", "pause", "resume"):
        assert loggers.flatten({"kind": kind, "epoch": 3, "size": 7}) == {}


plain = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-1, 1) | st.text(max_size=3)
facts = st.dictionaries(st.text("abc", min_size=1), plain | st.lists(plain) | st.dictionaries(st.text("xy"), plain))


@pytest.mark.slow
@settings(deadline=None)
@given(facts, st.sampled_from(["epoch", "end"]))
def test_every_number_and_nothing_else(fact: dict[str, Any], kind: str) -> None:
    def number(value: Any) -> bool:
        return type(value) in (int, float)

    expected = [value for value in fact.values() if number(value)]
    expected += [
        inner for value in fact.values() if isinstance(value, dict) for inner in value.values() if number(inner)
    ]
    assert sorted(loggers.flatten({"kind": kind, **fact}).values()) == sorted(map(float, expected))


# ---- TensorBoard -----------------------------------------------------------------------------------------------


def board(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder)).Reload()


def points(folder: Path, name: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in board(folder).Scalars(name)]


def test_tensorboard_shows_what_the_facts_say(tmp_path: Path) -> None:
    hook = loggers.TensorBoard(tmp_path)
    for fact in (START, *map(epoch, range(5)), {"kind": "samples", "most": []}, END):
        hook(fact)
    hook.close()
    assert points(tmp_path, "epoch/metric") == [(0, 0.0), (1, 1.5), (2, 3.0), (3, 4.5), (4, 6.0)]
    assert points(tmp_path, "seconds/step") == [(number, 0.25) for number in range(5)]
    assert points(tmp_path, "end/saved") == [(5, 0.25)]
    assert set(board(tmp_path).Tags()["scalars"]) == {*loggers.flatten(epoch(0)), *loggers.flatten(END)}
    assert len(list(tmp_path.iterdir())) == 1, "one run, one file"


def test_tensorboard_has_the_settings(tmp_path: Path) -> None:
    from tensorboard.plugins.hparams import plugin_data_pb2

    hook = loggers.TensorBoard(tmp_path)
    hook(START)
    hook(END)
    hook.close()
    found = board(tmp_path).SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    given = plugin_data_pb2.HParamsPluginData.FromString(found).session_start_info.hparams
    assert given["lr"].number_value == 0.1
    assert given["task"].string_value == "digits"
    assert given["augment"].number_value == 1  # as torch writes truth
    assert json.loads(given["milestones"].string_value) == [0.3, 0.6]
    assert "_hparams_/session_end_info" in board(tmp_path).summary_metadata


def test_tensorboard_goes_on_where_a_run_was_killed(tmp_path: Path) -> None:
    """Epoch 2 was told, but the last checkpoint was from before it: it comes again."""
    killed = loggers.TensorBoard(tmp_path)
    for fact in (START, epoch(0), epoch(1), epoch(2, metric=-1.0)):
        killed(fact)  # flushed fact by fact, never closed
    assert points(tmp_path, "epoch/metric") == [(0, 0.0), (1, 1.5), (2, -1.0)]
    hook = loggers.TensorBoard(tmp_path)
    for fact in ({"kind": "resume", "epoch": 2}, *map(epoch, range(2, 5)), END):
        hook(fact)
    hook.close()
    assert points(tmp_path, "epoch/metric") == [(0, 0.0), (1, 1.5), (2, 3.0), (3, 4.5), (4, 6.0)]
    killed.close()


def test_a_real_run_on_the_board(tmp_path: Path) -> None:
    hook = loggers.TensorBoard(tmp_path)
    told = []
    for fact in loop.run(
        Settings(model="mlp", epochs=2, method="full", batch_size=256, threads=1, gallery=0, device="cpu")
    ):
        told.append(fact)
        hook(fact)
    hook.close()
    assert points(tmp_path, "epoch/kept") == [(fact["epoch"], fact["kept"]) for fact in told if fact["kind"] == "epoch"]


# ---- Weights & Biases ------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _at_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B keeps logs and settings in the home folder; here it has one of its own, and no say from outside."""
    home = tmp_path_factory.mktemp("home")
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(home))


def records(path: Path) -> list[Any]:
    """What an offline run has written: protocol buffers in blocks of 32 KiB, as LevelDB's log has them."""
    from wandb.proto.wandb_internal_pb2 import Record

    raw, at, parts, found = path.read_bytes(), 7, b"", []
    while at + 7 <= len(raw):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", raw[at : at + 7])
        parts += raw[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            found.append(Record.FromString(parts))
            parts = b""
    return found


def close(hook: loggers.WandB) -> None:
    """And wait until its service has written everything, as the end of a process does."""
    import wandb

    hook.close()
    wandb.teardown()


def files(folder: Path) -> list[Path]:
    """Oldest first."""
    return sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns)


def history(folder: Path) -> dict[int, dict[str, Any]]:
    steps = {}
    for path in files(folder):
        for record in records(path):
            if record.WhichOneof("record_type") == "history":
                row = {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
                }
                steps[int(row["_step"])] = row
    return steps


@pytest.mark.slow
def test_wandb_writes_offline_what_the_facts_say(tmp_path: Path) -> None:
    hook = loggers.WandB("tests", folder=tmp_path)
    for fact in (START, epoch(0), epoch(1), END):
        hook(fact)
    close(hook)
    assert [row["epoch/metric"] for row in history(tmp_path).values()] == [0.0, 1.5]
    assert [row["seconds/step"] for row in history(tmp_path).values()] == [0.25, 0.25]
    (path,) = files(tmp_path)
    told = records(path)
    begun = next(record.run for record in told if record.WhichOneof("record_type") == "run")
    assert (begun.project, begun.display_name) == ("tests", "mine")
    config = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert config.items() >= {**SETTINGS, "environment": {"torch": "2.13"}}.items()
    summary = {
        item.key: json.loads(item.value_json)
        for record in told
        if record.WhichOneof("record_type") == "summary"
        for item in record.summary.update
    }
    assert summary["end/metric"] == 95.0
    assert next(record.exit.exit_code for record in told if record.WhichOneof("record_type") == "exit") == 0


@pytest.mark.slow
def test_a_resumed_run_is_the_same_run_of_wandb(tmp_path: Path) -> None:
    hook = loggers.WandB("tests", folder=tmp_path)
    for fact in (START, epoch(0), epoch(1), {"kind": "pause", "epoch": 2}):
        hook(fact)
    close(hook)
    hook = loggers.WandB("tests", folder=tmp_path)
    for fact in ({"kind": "resume", "epoch": 2, "environment": {}}, epoch(2), END):
        hook(fact)
    close(hook)
    parts = files(tmp_path)
    assert len({path.name for path in parts}) == 1, "one id"
    assert sorted(history(tmp_path)) == [0, 1, 2]
    codes = [record.exit.exit_code for path in parts for record in records(path) if record.HasField("exit")]
    assert codes == [1, 0], "the first part was interrupted, the second came to its end"


@pytest.mark.slow
def test_a_new_start_is_a_new_run_of_wandb(tmp_path: Path) -> None:
    for _ in range(2):
        hook = loggers.WandB("tests", folder=tmp_path)
        hook(START)
        close(hook)
    assert len({path.name for path in files(tmp_path)}) == 2


# ---- what can go wrong -----------------------------------------------------------------------------------------


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorboard" or "utils.tensorboard" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match="pip install tensorboard"):
        loggers.TensorBoard(tmp_path)
    with pytest.raises(InputError, match="pip install wandb"):
        loggers.WandB("tests", folder=tmp_path)


def test_an_unknown_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Did you mean offline"):
        loggers.WandB("tests", mode="offlin", folder=tmp_path)


def test_hooks_are_hooks(tmp_path: Path) -> None:
    every: list[loggers.Hook] = [loggers.TensorBoard(tmp_path), loggers.WandB("tests", folder=tmp_path)]
    for hook in every:
        hook.close()  # before any fact: nothing happens
    assert not list(tmp_path.iterdir())
