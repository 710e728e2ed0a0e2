"""Train one run into a folder; it can be stopped at any time and continued from there.

run = train_one(Settings(epochs=8), "runs/mine/infobatch-seed0")
run.end["metric"]
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any

from ...errors import InputError, StateError, message
from ..metrics.metric_info import MetricInfo
from ..tasks.catalogue import make_task
from ..tasks.nets import default_net
from ..tasks.task import Task, differences
from ..train.loop import Tick, run
from ..train.settings import HARDWARE, Settings, without_whole_last
from .interrupt import Stop, never
from .loggers import Hook
from .records import CHECKPOINT, FILE, Fact, Recorder, Run, label, read, read_file

LONGEST = 120
"""Characters of a folder's name before the seed; longer names end in a hash."""


def settle(given: dict[str, Any]) -> tuple[Settings, Task]:
    """Complete a user's settings with the defaults of the task, and load the task.

    Args:
        given: Settings by name. If no net is named, the task's default is filled in, so that it is recorded.

    Returns:
        The settings and the task.

    Raises:
        InputError: If a setting is unknown, has a value that is not allowed, or is no longer trained.
    """
    checked = Settings.of(given)  # refuses wrong settings before any data are read
    checked.check_trainable()
    task = make_task(checked.task, checked.data)
    return Settings.of(given, {"model": default_net(task), **task.defaults}), task


def train_one(
    settings: Settings,
    folder: str | os.PathLike[str],
    *,
    task: Task | None = None,
    resume: bool = False,
    stop: Stop = never,
    tick: Tick | None = None,
    hooks: Sequence[Hook] = (),
    net: str = "",
) -> Run:
    """Train a run into a folder and return its record.

    Args:
        settings: What to train.
        folder: The folder of this run.
        task: The task, if it has been loaded already.
        resume: Return a finished run without training it again, and continue an unfinished one from its checkpoint.
            Without a checkpoint it starts again, and its old record is kept beside the new one.
        stop: Asked after each batch; once it returns true, the run saves a checkpoint and ends.
        tick: Called now and then with the number of epochs done.
        hooks: Loggers; they are closed at the end.
        net: The fingerprint of the net in the runs this one will be compared with, from their ``start`` fact.

    Returns:
        The record. Its ``end`` is None if ``stop`` ended the run early.

    Raises:
        InputError: If the settings cannot be trained, or the folder has a run with other settings, data or net.
        StateError: If the record or the checkpoint is damaged.
    """
    folder = Path(folder)
    task = task or make_task(settings.task, settings.data)
    start = partial(run, settings, task=task, name=folder.name, keep=folder / CHECKPOINT, stop=stop, tick=tick)
    try:
        if (folder / FILE).exists():
            recorded = _continue(settings, task, start, folder, resume, hooks)
            if recorded is not None:
                return recorded
        facts = start()
        first = next(facts)  # wrong settings raise here, before the folder is created
        if net and first["net"] != net:
            expected, got = f"the net of the runs beside {folder}, {net}", f"another, {first['net']}"
            raise InputError(message(expected, got, "Restore that net, or compare into another folder."))
        with Recorder(folder) as record:
            _set_aside(folder / CHECKPOINT)  # left by a run whose record was deleted
            return _write(chain([first], facts), record, hooks)
    finally:
        for hook in hooks:
            hook.close()


def _continue(
    settings: Settings,
    task: Task,
    start: Callable[..., Iterator[Fact]],
    folder: Path,
    resume: bool,
    hooks: Sequence[Hook],
) -> Run | None:
    """Continue the run in the folder and return its record; None if it has to start again."""
    checkpoint = folder / CHECKPOINT
    with Recorder(folder, resume=resume) as record:
        recorded = _last_run(folder)
        if recorded is not None:
            _check_same(settings, task, recorded, folder)
            if recorded.end is not None:
                checkpoint.unlink(missing_ok=True)
                return recorded
        settings.check_trainable()
        if recorded is None or not checkpoint.exists():
            _set_aside(folder / FILE)
            return None
        facts = start(resume=True)
        try:
            first = next(facts)
        except StateError as error:
            restart = f"mv {shlex.quote(str(checkpoint))} {shlex.quote(str(checkpoint) + '.damaged')}"
            text = f"{error} The record is unchanged. To train this run again: {restart}, and --resume again."
            raise StateError(text) from error
        return _write(chain([first], facts), record, hooks)


def _write(facts: Iterable[Fact], record: Recorder, hooks: Sequence[Hook]) -> Run:
    for fact in facts:
        record(fact)
        for hook in hooks:
            hook(fact)
    recorded = read(record.folder)
    if recorded.end is not None:
        (record.folder / CHECKPOINT).unlink(missing_ok=True)
    return recorded


def _last_run(folder: Path) -> Run | None:
    try:
        runs = list(read_file(folder / FILE))
    except StateError as error:
        raise StateError(f"{error} To train this run again, move {folder} away.") from error
    return runs[-1] if runs else None


def _check_same(settings: Settings, task: Task, recorded: Run, folder: Path) -> None:
    """Refuse to continue a run with other settings or data. How older runs weighted a last batch does not matter."""
    theirs, mine = (one.but(ideas=without_whole_last(one.ideas)).plain() for one in (recorded.settings, settings))
    changed = [key for key in mine if key not in HARDWARE and theirs[key] != mine[key]]
    if changed:
        different = [f"{key} {theirs[key]!r}, not {mine[key]!r}" for key in changed]
        raise InputError(
            message(
                f"the settings that {folder} was started with (except {', '.join(HARDWARE)})",
                f"others: it has {'; '.join(different)}",
                "Leave them out to continue it, or train into another folder.",
            )
        )
    theirs_metric = MetricInfo.of_record(recorded.start)
    if "metric_info" in recorded.start and theirs_metric != task.metric_info:
        got = f"{task.metric_info.text}, {task.metric_info.direction}, margin {task.metric_info.margin:g}"
        was = f"{theirs_metric.text}, {theirs_metric.direction}, margin {theirs_metric.margin:g}"
        remedy = "Restore the task's metric, or train into another folder."
        raise InputError(message(f"the metric that {folder} was started with ({was})", got, remedy))
    different = differences(recorded.start, task.data)
    if different:
        expected, got = f"the data that {folder} was started with", f"others: it has {'; '.join(different)}"
        raise InputError(message(expected, got, "Name their folder with --data, or train into another folder."))


def _set_aside(path: Path) -> None:
    """Rename a file to a name that is free, so that nothing is lost."""
    if not path.exists():
        return
    if not path.stat().st_size:
        path.unlink()
        return
    for number in count(1):
        free = path.with_name(f"{path.name}.unfinished{number}")
        if not free.exists():
            path.rename(free)
            return


def folder_of(root: str | os.PathLike[str], settings: Settings, lr: float | None = None) -> Path:
    """Return the folder of a run below ``root``; another learning rate than ``lr`` becomes part of its name.

    >>> folder_of("runs/mine", Settings(method="infobatch:ratio=0.3,delta=0.9", seed=2)).name
    'infobatch-ratio=0.3-delta=0.9-seed2'
    """
    name = label(settings) if lr in (None, settings.lr) else f"{label(settings)}, lr={settings.lr}"
    slug = re.sub(r"[^A-Za-z0-9._=+]+", "-", name).strip("-.")
    if len(slug) > LONGEST:
        slug = f"{slug[: LONGEST - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return Path(root) / f"{slug}-seed{settings.seed}"


def length(settings: Settings, size: int) -> int:
    """Return the number of epochs of a run over ``size`` samples."""
    return math.ceil(settings.steps / math.ceil(size / settings.batch_size)) if settings.steps else settings.epochs
