"""Runs into folders: stopped, damaged, resumed; always the numbers of a run that nobody disturbed."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from infobatch.errors import InputError, StateError
from infobatch.lab.runs import many_runs
from infobatch.lab.runs.interrupt import never
from infobatch.lab.runs.many_runs import Series, compare_into, plan_comparison, shorter_run
from infobatch.lab.runs.records import Recorder, Run, read, read_many
from infobatch.lab.runs.runner import LONGEST, folder_of, train_one
from infobatch.lab.tasks.task import Arrays, Task
from infobatch.lab.train.settings import HARDWARE, Settings

QUICK = Settings(epochs=8, batch_size=20, lr=0.05, threads=1, model="mlp", gallery=2)


@pytest.fixture(scope="module")
def task() -> Task:
    draw = torch.Generator().manual_seed(0)

    def some(count: int) -> Arrays:
        inputs = torch.randn(count, 10, generator=draw)
        return Arrays(inputs, (inputs[:, 0] + 0.5 * torch.randn(count, generator=draw) > 0).long())

    return Task("toy", some(200), some(100), ("no", "yes"))


def after(calls: int) -> Callable[[], bool]:
    """True from so many calls on: the run stops after as many batches."""
    count = iter(range(10**9))
    return lambda: next(count) >= calls


def numbers(run: Run) -> Any:
    """All that a run learnt, without what the clock says."""
    assert run.end is not None
    end = {key: value for key, value in run.end.items() if key not in ("time", "seconds")}
    epochs = [{key: value for key, value in epoch.items() if key != "seconds"} for epoch in run.epochs]
    return end, epochs, run.samples, run.start["settings"]


# ---- one run ---------------------------------------------------------------------------------------------


def test_a_paused_run_goes_on_to_the_same_end(task: Task, tmp_path: Path) -> None:
    whole = train_one(QUICK, tmp_path / "whole", task=task)
    paused = train_one(QUICK, tmp_path / "parts", task=task, stop=after(23))
    assert paused.end is None
    assert (tmp_path / "parts" / "checkpoint.pt").exists()
    again = train_one(QUICK, tmp_path / "parts", task=task, resume=True, stop=after(11))
    assert again.end is None
    done = train_one(QUICK, tmp_path / "parts", task=task, resume=True)
    assert numbers(done) == numbers(whole)
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == ["lock", "record.jsonl"]


def test_a_finished_run_is_read_and_not_run_again(task: Task, tmp_path: Path) -> None:
    train_one(QUICK, tmp_path / "run", task=task)
    before = (tmp_path / "run" / "record.jsonl").read_bytes()
    (tmp_path / "run" / "checkpoint.pt").write_bytes(b"left by a crash after the last line")
    heard: list[float] = []
    done = train_one(QUICK, tmp_path / "run", task=task, resume=True, tick=heard.append)
    assert done.end is not None
    assert heard == []
    assert (tmp_path / "run" / "record.jsonl").read_bytes() == before
    assert not (tmp_path / "run" / "checkpoint.pt").exists()


def test_without_resume_a_record_is_left_alone(task: Task, tmp_path: Path) -> None:
    train_one(QUICK, tmp_path / "run", task=task)
    before = (tmp_path / "run" / "record.jsonl").read_bytes()
    with pytest.raises(InputError, match=r"a folder without a record.*--resume"):
        train_one(QUICK, tmp_path / "run", task=task)
    assert (tmp_path / "run" / "record.jsonl").read_bytes() == before


@pytest.mark.slow
def test_without_a_checkpoint_a_run_starts_anew_beside_its_old_record(task: Task, tmp_path: Path) -> None:
    train_one(QUICK, tmp_path / "run", task=task, stop=after(35))
    (tmp_path / "run" / "checkpoint.pt").unlink()
    old = (tmp_path / "run" / "record.jsonl").read_bytes()
    done = train_one(QUICK, tmp_path / "run", task=task, resume=True)
    assert numbers(done) == numbers(train_one(QUICK, tmp_path / "whole", task=task))
    assert (tmp_path / "run" / "record.jsonl.unfinished1").read_bytes() == old
    assert len(read_many(tmp_path / "run")) == 1


def test_a_record_torn_in_its_first_line_is_set_aside(task: Task, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "record.jsonl").write_text('{"kind": "sta')
    done = train_one(QUICK, folder, task=task, resume=True)
    assert done.end is not None
    assert (folder / "record.torn").read_text() == '{"kind": "sta\n'


@pytest.mark.parametrize("record", ['{"kind": "sta', None])
def test_a_checkpoint_whose_record_is_gone_is_set_aside(task: Task, tmp_path: Path, record: str | None) -> None:
    """Or it would be loaded into the new record, once that run is interrupted."""
    folder = tmp_path / "run"
    train_one(QUICK, folder, task=task, stop=after(35))
    stale = (folder / "checkpoint.pt").read_bytes()
    (folder / "record.jsonl").unlink()
    if record is not None:
        (folder / "record.jsonl").write_text(record)

    def killed() -> bool:
        raise KeyboardInterrupt  # before its first checkpoint

    with pytest.raises(KeyboardInterrupt):
        train_one(QUICK, folder, task=task, resume=True, stop=killed)
    assert not (folder / "checkpoint.pt").exists()
    assert (folder / "checkpoint.pt.unfinished1").read_bytes() == stale
    done = train_one(QUICK, folder, task=task, resume=True)
    assert numbers(done) == numbers(train_one(QUICK, tmp_path / "whole", task=task))


def test_a_full_disk_is_named_and_costs_nothing_but_the_new_checkpoint(task: Task, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train_one(QUICK, folder, task=task, stop=after(35))
    kept = (folder / "checkpoint.pt").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(kept) // 2, limits[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: '.*checkpoint\.pt'"):
            train_one(QUICK, folder, task=task, resume=True, stop=after(15))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (folder / "checkpoint.pt").read_bytes() == kept
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint.pt", "lock", "record.jsonl"]
    done = train_one(QUICK, folder, task=task, resume=True)
    assert numbers(done) == numbers(train_one(QUICK, tmp_path / "whole", task=task))


def own(task: Task, width: int) -> Task:
    """With a net of its own."""
    return replace(task, make_model=lambda: nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, 2)))


def test_a_checkpoint_of_another_net_is_named(task: Task, tmp_path: Path) -> None:
    settings = QUICK.but(model="task")
    train_one(settings, tmp_path / "run", task=own(task, 8), stop=after(35))
    with pytest.raises(StateError, match=r"size mismatch.*mv "):
        train_one(settings, tmp_path / "run", task=own(task, 9), resume=True)
    assert train_one(settings, tmp_path / "run", task=own(task, 8), resume=True).end is not None


def test_a_record_torn_in_its_last_line_goes_on(task: Task, tmp_path: Path) -> None:
    train_one(QUICK, tmp_path / "run", task=task, stop=after(35))
    with open(tmp_path / "run" / "record.jsonl", "a") as file:
        file.write('{"kind": "epo')
    done = train_one(QUICK, tmp_path / "run", task=task, resume=True)
    assert numbers(done) == numbers(train_one(QUICK, tmp_path / "whole", task=task))


@pytest.mark.parametrize("spoil", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"x" + data[1:]])
def test_a_damaged_checkpoint_is_named_and_nothing_is_lost(
    task: Task, tmp_path: Path, spoil: Callable[[bytes], bytes]
) -> None:
    folder = tmp_path / "my run"
    train_one(QUICK, folder, task=task, stop=after(35))
    checkpoint = folder / "checkpoint.pt"
    checkpoint.write_bytes(spoil(checkpoint.read_bytes()))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(StateError) as caught:
        train_one(QUICK, folder, task=task, resume=True)
    assert str(checkpoint) in str(caught.value)
    advice = f"mv '{checkpoint}' '{checkpoint}.damaged'"
    assert advice in str(caught.value)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert os.system(advice) == 0
    assert train_one(QUICK, folder, task=task, resume=True).end is not None


def test_a_damaged_record_is_named_and_nothing_is_lost(task: Task, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train_one(QUICK, folder, task=task, stop=after(35))
    lines = (folder / "record.jsonl").read_text().splitlines(keepends=True)
    (folder / "record.jsonl").write_text("".join([lines[0], "{broken\n", *lines[2:]]))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(StateError, match=rf"record\.jsonl, whose line 2 .*move {folder} away"):
        train_one(QUICK, folder, task=task, resume=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_other_settings_are_refused_and_other_hardware_is_not(task: Task, tmp_path: Path) -> None:
    train_one(QUICK, tmp_path / "run", task=task, stop=after(35))
    with pytest.raises(InputError, match=r"others: it has lr 0\.05, not 0\.1\. "):
        train_one(QUICK.but(lr=0.1, feed="loader"), tmp_path / "run", task=task, resume=True)
    done = train_one(QUICK.but(feed="loader", data="elsewhere"), tmp_path / "run", task=task, resume=True)
    assert numbers(done) == numbers(train_one(QUICK, tmp_path / "whole", task=task))


def test_other_data_are_refused_and_what_a_record_does_not_tell_is_not(task: Task, tmp_path: Path) -> None:
    """Data may move, so their folder is no setting; what they are is held against the record."""
    settings, folder = QUICK.but(data="here"), tmp_path / "run"
    assert isinstance(task.train, Arrays)
    others = {
        "classes": replace(task, classes=("no", "maybe")),
        "size": replace(task, train=Arrays(task.train.inputs[:-1], task.train.labels[:-1])),
        "source": replace(task, train=Arrays(task.train.inputs + 1, task.train.labels)),
    }
    train_one(settings, folder, task=task, stop=after(35))
    for stop in (after(20), never):
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        for what, other in others.items():
            with pytest.raises(InputError, match=rf"the data that .*run was started with; got others: .*{what} "):
                train_one(settings, folder, task=other, resume=True)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
        train_one(settings.but(data="moved"), folder, task=replace(task), resume=True, stop=stop)
    first, rest = (folder / "record.jsonl").read_text().split("\n", 1)
    start = {key: value for key, value in json.loads(first).items() if key not in ("source", "classes")}
    (folder / "record.jsonl").write_text(json.dumps(start) + "\n" + rest)
    assert train_one(settings, folder, task=others["classes"], resume=True).end is not None
    with pytest.raises(InputError, match="size 200, not 199"):
        train_one(settings, folder, task=others["size"], resume=True)


def test_hardware_are_settings() -> None:
    assert set(HARDWARE) < set(QUICK.plain())


def test_bad_settings_leave_no_folder(task: Task, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="resnet18"):
        train_one(QUICK.but(model="resnt18"), tmp_path / "run", task=task)
    assert not (tmp_path / "run").exists()


def test_a_folder_in_use_is_refused(task: Task, tmp_path: Path) -> None:
    train_one(QUICK, tmp_path / "run", task=task, stop=after(35))
    with Recorder(tmp_path / "run", resume=True):
        before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
        for resume in (True, False):
            with pytest.raises(InputError, match="other run"):
                train_one(QUICK, tmp_path / "run", task=task, resume=resume)
        assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


class Listener:
    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.closed = 0

    def __call__(self, fact: dict[str, Any]) -> None:
        self.kinds.append(fact["kind"])

    def close(self) -> None:
        self.closed += 1


def test_hooks_hear_what_is_recorded_and_are_closed(task: Task, tmp_path: Path) -> None:
    first, second, third = Listener(), Listener(), Listener()
    train_one(QUICK, tmp_path / "run", task=task, stop=after(15), hooks=[first])
    train_one(QUICK, tmp_path / "run", task=task, resume=True, hooks=[second])
    lines = (tmp_path / "run" / "record.jsonl").read_text().splitlines()
    recorded = [json.loads(line)["kind"] for line in lines]
    assert first.kinds + second.kinds == recorded
    with pytest.raises(InputError):
        train_one(QUICK, tmp_path / "run", task=task, hooks=[third])
    assert (first.closed, second.closed, third.closed) == (1, 1, 1)


def test_a_run_is_made_again_from_its_record(task: Task, tmp_path: Path) -> None:
    first = train_one(QUICK.but(method="tiers", seed=3), tmp_path / "first", task=task)
    again = train_one(Settings.of(read(tmp_path / "first").start["settings"]), tmp_path / "again", task=task)
    assert numbers(again) == numbers(first)


# ---- many runs -------------------------------------------------------------------------------------------


def test_a_comparison_goes_seed_by_seed_with_full_data_first() -> None:
    planned = plan_comparison(QUICK, ["random", "full", "infobatch: ratio=0.3", "random"], [4, 5])
    assert [(one.method, one.seed) for one in planned] == [
        (method, seed) for seed in (4, 5) for method in ("full", "random", "infobatch:ratio=0.3")
    ]
    assert {one.but(method="full", seed=0) for one in planned} == {QUICK.but(method="full")}


def test_a_suffix_says_what_grows() -> None:
    full, default, paper, ucb = plan_comparison(QUICK, ["infobatch", "infobatch+loss", "ucb"], [0])
    assert [one.grows for one in (full, default, paper, ucb)] == ["none", "none", "loss", "none"]
    assert paper.method == "infobatch"
    assert plan_comparison(QUICK, ["full+none", "infobatch+none", "infobatch", "ucb+loss", "ucb"], [0]) == [
        full,
        default,
        ucb,
    ]
    other, pruned = plan_comparison(QUICK.but(compensate="loss"), ["infobatch"], [0])
    assert other == full  # one baseline, whatever grows elsewhere
    assert pruned.grows == "loss"


def test_a_growing_learning_rate_is_read_and_not_trained(task: Task, tmp_path: Path) -> None:
    """A comparison from before can be loaded and its finished runs are read; nothing new is trained for it."""
    old = Series(QUICK, ("infobatch+lr",), (0,))
    with pytest.raises(InputError, match=r"compensate.*'lr'"):
        old.begin(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(InputError, match=r"compensate.*'lr'"):
        list(compare_into(tmp_path, old, task=task))
    grown = old.settings()[1]
    place = folder_of(tmp_path, grown)
    assert place.name == "infobatch+lr-seed0"
    assert not place.exists()
    train_one(QUICK.but(method="infobatch"), place, task=task)
    record = place / "record.jsonl"
    record.write_text(record.read_text().replace('"compensate":"none"', '"compensate":"lr"'))
    old.save(tmp_path)
    runs = list(compare_into(tmp_path, Series.load(tmp_path), task=task))
    assert [run.label.partition(",")[0] for run in runs] == ["full", "infobatch+lr", "full"]
    lines = record.read_text().splitlines(keepends=True)
    record.write_text("".join(lines[:-1]))  # as if it had not finished
    with pytest.raises(InputError, match=r"compensate.*'lr'"):
        train_one(grown, place, task=task, resume=True)
    assert record.read_text() == "".join(lines[:-1])


@pytest.mark.slow
def test_a_comparison_runs_every_method_and_its_control(task: Task, tmp_path: Path) -> None:
    series = Series(QUICK, ("infobatch", "random"), (0, 1))
    begun: list[tuple[str, int, int]] = []

    def watch(settings: Settings, epochs: int) -> Callable[[float], None]:
        begun.append((settings.method, settings.steps, epochs))
        return lambda done: None

    runs = list(compare_into(tmp_path, series, task=task, watch=watch))
    assert [(run.settings.method, run.settings.seed) for run in runs] == [
        (method, seed) for seed in (0, 1) for method in ("full", "infobatch", "full", "random", "full")
    ]
    assert [(run.settings.method, run.settings.steps) for run in runs] == [one[:2] for one in begun]
    for at in (1, 3, 6, 8):
        method, control = runs[at], runs[at + 1]
        assert method.end is not None
        assert control.end is not None
        assert control.settings.seed == method.settings.seed
        assert control.end["steps"] == method.end["steps"] < runs[0].settings.epochs * 10
        assert begun[at + 1][2] == len(control.epochs)
    assert {path.name for path in tmp_path.iterdir()} == {folder_of(tmp_path, run.settings).name for run in runs}
    assert sum(one[2] for one in begun) <= many_runs.total_length(series, task) == 8 * (6 + 4)


def test_a_comparison_goes_on_with_the_net_it_was_begun_with(task: Task, tmp_path: Path) -> None:
    series = Series(QUICK.but(model="task"), ("random",), (0,), equal_steps=False)
    list(compare_into(tmp_path, series, task=own(task, 8)))
    before = sorted(tmp_path.rglob("*"))
    more = replace(series, seeds=(0, 1))
    with pytest.raises(InputError, match=r"106 parameters, .*another, 119 parameters"):
        list(compare_into(tmp_path, more, task=own(task, 9)))
    assert sorted(tmp_path.rglob("*")) == before
    assert len(list(compare_into(tmp_path, series, task=own(task, 9)))) == 2  # they are there, and read
    for record in tmp_path.rglob("record.jsonl"):  # as records were before they held the net
        facts = [json.loads(line) for line in record.read_text().splitlines()]
        del facts[0]["net"]
        record.write_text("".join(json.dumps(fact) + "\n" for fact in facts))
    assert len(list(compare_into(tmp_path, more, task=own(task, 9)))) == 4


def test_methods_that_took_as_many_steps_share_a_control(task: Task, tmp_path: Path) -> None:
    series = Series(QUICK, ("random:ratio=0.5", "random:ratio=0.5,delta=0.87"), (0,))
    runs = list(compare_into(tmp_path, series, task=task))
    assert [run.settings.method for run in runs] == [
        "full", "random:ratio=0.5", "full", "random:ratio=0.5,delta=0.87",
    ]  # fmt: skip


def test_long_names_that_begin_alike_have_folders_of_their_own(task: Task, tmp_path: Path) -> None:
    first = "tiers:ratio=0.5" + 130 * "0"
    series = Series(QUICK, (first, first + ",low_ratio=0.9"), (0,), equal_steps=False)
    runs = list(compare_into(tmp_path, series, task=task))
    assert [run.settings.method for run in runs] == ["full", *series.methods]
    names = [folder_of(tmp_path, run.settings).name for run in runs]
    assert sorted(names) == sorted(path.name for path in tmp_path.iterdir())
    assert max(map(len, names)) == len("-seed0") + LONGEST


def test_no_control_for_a_run_that_left_nothing_out(task: Task, tmp_path: Path) -> None:
    settings = QUICK.but(method="infobatch:ratio=0")
    assert shorter_run(settings, train_one(settings, tmp_path / "run", task=task)) is None


@pytest.mark.slow
def test_a_comparison_stopped_anywhere_goes_on_to_the_same_runs(task: Task, tmp_path: Path) -> None:
    series = Series(QUICK, ("infobatch",), (0, 1))
    whole = list(compare_into(tmp_path / "whole", series, task=task))
    series.begin(tmp_path / "parts")
    for calls in (50, 100, 40, 75):
        parts = list(compare_into(tmp_path / "parts", Series.load(tmp_path / "parts"), task=task, stop=after(calls)))
        assert parts[-1].end is None
    parts = list(compare_into(tmp_path / "parts", Series.load(tmp_path / "parts"), task=task))
    assert [numbers(run) for run in parts] == [numbers(run) for run in whole]


def test_what_is_compared_is_kept_and_read_back(tmp_path: Path) -> None:
    series = Series(QUICK.but(milestones=(0.5,)), ("infobatch", "tiers:ratio=0.4"), (3, 4), False, 0.5, 0.9)
    series.begin(tmp_path / "new")
    assert Series.load(tmp_path / "new") == series
    assert series.on({"device": "cpu"}).base == series.base.but(device="cpu")
    with pytest.raises(InputError, match=r"infobatch compare --resume"):
        series.begin(tmp_path / "new")
    series.undo(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_folder_that_holds_no_comparison_is_named(task: Task, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no such folder"):
        Series.load(tmp_path / "nowhere")
    train_one(QUICK, tmp_path / "run", task=task)
    with pytest.raises(InputError, match="infobatch train --resume"):
        Series.load(tmp_path / "run")
    for text in ("{", "[]", '{"format": 2}', '{"format": 1, "base": {"lr": 0.1}}'):
        (tmp_path / "comparison.json").write_text(text)
        with pytest.raises(StateError, match=r"comparison\.json.*infobatch report"):
            Series.load(tmp_path)
        assert (tmp_path / "comparison.json").read_text() == text


def test_a_comparison_that_cannot_be_kept_is_named_by_its_own_file() -> None:
    with pytest.raises(OSError, match=r": '/proc/comparison\.json'$"):
        Series(QUICK, ("infobatch",), (0,)).save(Path("/proc"))


def test_a_begun_comparison_with_runs_is_not_undone(task: Task, tmp_path: Path) -> None:
    series = Series(QUICK, ("infobatch",), (0,))
    series.begin(tmp_path / "new")
    next(compare_into(tmp_path / "new", series, task=task))
    series.undo(tmp_path / "new")
    assert Series.load(tmp_path / "new") == series
