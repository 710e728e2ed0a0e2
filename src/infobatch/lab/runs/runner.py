"""Runs into folders, one or many. Each can be stopped at any moment and goes on where it was.

    run = train_one(Settings(epochs=8), "runs/mine/infobatch-seed0")
    run.end["metric"]

A comparison is a folder of such folders, with ``comparison.json`` beside them:

    runs/digits-20260131-120000/
      comparison.json            what is compared
      full-seed0/                a run
      infobatch-seed0/
      full-509-steps-seed0/      full data with the steps that infobatch took
      full-lr=0.2-seed0/         at another learning rate
      ...
"""

from __future__ import annotations

import gc
import hashlib
import json
import math
import os
import re
import shlex
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InputError, StateError, message
from ...files import replacing
from ...plan import GROWTHS
from ..tasks.catalogue import make_task
from ..tasks.nets import usual_net
from ..tasks.task import Task, differences
from ..train.batches import size_of
from ..train.loop import Tick, run
from ..train.settings import HARDWARE, Settings
from .interrupt import Stop, never
from .loggers import Hook
from .records import CHECKPOINT, FILE, Fact, Recorder, Run, label, read, read_file

if TYPE_CHECKING:
    from ..papers.recipe import Cell, Recipe

PLAN = "comparison.json"
FORMAT = 1
LONGEST = 120
"""Letters of a folder's name before the seed; of longer ones the end is a hash."""

Watch = Callable[[Settings, int], Tick]
"""Told which run begins and how many epochs it has; what it returns is told how many are done."""
Hooks = Callable[[Path], Sequence[Hook]]
"""The hooks of the run in a folder."""


def settle(given: dict[str, Any]) -> tuple[Settings, Task]:
    """What a person gave, over what suits the task; and the task. A net that nobody named is named here, for the
    record."""
    asked = Settings.of(given)  # what cannot be right is said before data are read
    task = make_task(asked.task, asked.data)
    return Settings.of(given, {"model": usual_net(task), **task.defaults}), task


# ---- one run ---------------------------------------------------------------------------------------------


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
    """Train into a folder of its own; returns the record. Its ``end`` is None where ``stop`` became true.

    With ``resume`` a finished run is read and not trained again. An unfinished one goes on from its checkpoint;
    without a checkpoint it starts anew, and its old record is kept beside the new one. Hooks are closed at the end.
    ``net`` is that of the runs this one is to stand beside, as their ``start`` has it: another is not begun with.
    """
    folder = Path(folder)
    task = task or make_task(settings.task, settings.data)
    start = partial(run, settings, task=task, name=folder.name, keep=folder / CHECKPOINT, stop=stop, tick=tick)
    try:
        if (folder / FILE).exists():
            known = _go_on(settings, task, start, folder, resume, hooks)
            if known is not None:
                return known
        facts = start()
        first = next(facts)  # what is wrong with the settings is said before there is a folder
        if net and first["net"] != net:
            expected, got = f"the net that the runs beside {folder} have, {net}", f"another, {first['net']}"
            raise InputError(message(expected, got, "Put that one back, or compare into another folder."))
        with Recorder(folder) as record:
            _set_aside(folder / CHECKPOINT)  # of a run whose record is gone
            return _write(chain([first], facts), record, hooks)
    finally:
        for hook in hooks:
            hook.close()


def _go_on(
    settings: Settings,
    task: Task,
    start: Callable[..., Iterator[Fact]],
    folder: Path,
    resume: bool,
    hooks: Sequence[Hook],
) -> Run | None:
    """The run that was there, gone on with. None where there is nothing to go on from."""
    kept = folder / CHECKPOINT
    with Recorder(folder, resume=resume) as record:
        known = _known(folder)
        if known is not None:
            _same(settings, task, known, folder)
            if known.end is not None:
                kept.unlink(missing_ok=True)
                return known
        if known is None or not kept.exists():
            _set_aside(folder / FILE)
            return None
        facts = start(resume=True)
        try:
            first = next(facts)
        except StateError as error:
            anew = f"mv {shlex.quote(str(kept))} {shlex.quote(str(kept) + '.damaged')}"
            text = f"{error} The record is as it was. To train this run anew: {anew}, and --resume again."
            raise StateError(text) from error
        return _write(chain([first], facts), record, hooks)


def _write(facts: Iterable[Fact], record: Recorder, hooks: Sequence[Hook]) -> Run:
    for fact in facts:
        record(fact)
        for hook in hooks:
            hook(fact)
    done = read(record.folder)
    if done.end is not None:
        (record.folder / CHECKPOINT).unlink(missing_ok=True)
    return done


def _known(folder: Path) -> Run | None:
    try:
        runs = list(read_file(folder / FILE))
    except StateError as error:
        raise StateError(f"{error} To train this run anew, move {folder} away.") from error
    return runs[-1] if runs else None


def _same(settings: Settings, task: Task, known: Run, folder: Path) -> None:
    theirs, mine = known.settings.plain(), settings.plain()
    if not settings.resumes(theirs):
        told = [key for key in mine if key not in HARDWARE and theirs[key] != mine[key]]
        other = [f"{key} {theirs[key]!r}, not {mine[key]!r}" for key in told]
        raise InputError(
            message(
                f"the settings that {folder} was begun with (but for {', '.join(HARDWARE)})",
                f"others: it has {'; '.join(other)}",
                "Leave them out to go on, or train into another folder.",
            )
        )
    other = differences(known.start, task.data)
    if other:
        expected, got = f"the data that {folder} was begun with", f"others: it has {'; '.join(other)}"
        raise InputError(message(expected, got, "Name their folder with --data, or train into another folder."))


def _set_aside(path: Path) -> None:
    """Under a name of its own, so that nothing is lost."""
    if not path.exists():
        return
    if not path.stat().st_size:
        path.unlink()
        return
    for number in count(1):
        aside = path.with_name(f"{path.name}.unfinished{number}")
        if not aside.exists():
            path.rename(aside)
            return


def folder_of(root: str | os.PathLike[str], settings: Settings, lr: float | None = None) -> Path:
    """``lr``: the learning rate that goes without saying.

    >>> folder_of("runs/mine", Settings(method="infobatch:ratio=0.3,delta=0.9", seed=2)).name
    'infobatch-ratio=0.3-delta=0.9-seed2'
    """
    name = label(settings) if lr in (None, settings.lr) else f"{label(settings)}, lr={settings.lr}"
    slug = re.sub(r"[^A-Za-z0-9._=+]+", "-", name).strip("-.")
    if len(slug) > LONGEST:
        slug = f"{slug[: LONGEST - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return Path(root) / f"{slug}-seed{settings.seed}"


def length(settings: Settings, size: int) -> int:
    """Epochs of a run over ``size`` samples."""
    return math.ceil(settings.steps / math.ceil(size / settings.batch_size)) if settings.steps else settings.epochs


# ---- many runs -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Series:
    """Methods x seeds x rates on one base of settings, and full data beside them: what a comparison consists of."""

    base: Settings
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    equal_steps: bool = True
    """Also full data with the number of steps that each pruned run took, at its rate and at one that grew as much, if
    there are no other rates."""
    margin: float = 0.3
    level: float = 0.95
    looks: tuple[int, ...] = ()
    """The numbers of seeds at which verdicts were shown."""
    rates: tuple[float, ...] = ()
    """Learning rates beside that of the base."""

    def __post_init__(self) -> None:
        if not 0 < self.margin < math.inf or not 0 < self.level < 1:
            got = f"{self.margin} and {self.level}"
            raise InputError(message("a margin above 0 and a level in (0, 1)", got, "0.3 and 0.95 are usual."))
        self.settings()  # a name that is none is said now

    def settings(self) -> list[Settings]:
        return plan_comparison(self.base, self.methods, self.seeds, self.rates)

    def on(self, hardware: dict[str, Any]) -> Series:
        return replace(self, base=Settings.of({**self.base.plain(), **hardware}))

    def begin(self, folder: Path) -> None:
        """Make the folder. Refused where there is one, so that two comparisons never share it."""
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            remedy = f"Take another name, or go on: infobatch compare --resume {shlex.quote(str(folder))}"
            raise InputError(message("a folder that is not there yet", str(folder), remedy)) from None
        self.save(folder)

    def save(self, folder: Path) -> None:
        plain = {
            "format": FORMAT,
            "base": self.base.plain(),
            "methods": list(self.methods),
            "seeds": list(self.seeds),
            "equal_steps": self.equal_steps,
            "margin": self.margin,
            "level": self.level,
            "looks": list(self.looks),
            "rates": list(self.rates),
        }
        with replacing(folder / PLAN) as file:
            file.write(f"{json.dumps(plain, indent=1, ensure_ascii=False)}\n".encode())

    def undo(self, folder: Path) -> None:
        """Take ``begin`` back, if nothing was recorded since."""
        if not any(folder.rglob(FILE)):
            (folder / PLAN).unlink(missing_ok=True)
            with suppress(OSError):
                folder.rmdir()

    @classmethod
    def load(cls, folder: Path) -> Series:
        path = folder / PLAN
        if not path.is_file():
            raise InputError(message(f"the folder of a comparison, with a {PLAN}", str(folder), _instead(folder)))
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            if plain.pop("format") != FORMAT:
                raise ValueError("of another format")
            base, methods, seeds = plain.pop("base"), plain.pop("methods"), plain.pop("seeds")
            plain["looks"] = tuple(map(int, plain.get("looks", [len(seeds)])))  # written before looks were: likely
            plain["rates"] = tuple(map(float, plain.get("rates", ())))
            return cls(Settings.of(base), tuple(methods), tuple(map(int, seeds)), **plain)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            text = message(f"a {PLAN} of the lab", f"{path}, which cannot be read ({error})", "Nothing was changed.")
            raise StateError(f"{text} The runs beside it are whole: infobatch report {folder}") from error


def note_look(folder: Path) -> tuple[int, ...]:
    """The numbers of seeds at which verdicts of a comparison were shown, with the one that is shown now."""
    series = Series.load(folder)
    if len(series.seeds) not in (1, *series.looks):  # one seed shows no verdict
        series = replace(series, looks=(*series.looks, len(series.seeds)))
        series.save(folder)
    return series.looks


def plan_comparison(
    base: Settings, methods: Sequence[str], seeds: Sequence[int], rates: Sequence[float] = ()
) -> list[Settings]:
    """Full data and each method with every seed; seed by seed, so that a comparison cut short is still paired.

    Each also at the learning rates given beside that of the base.

    >>> [(one.method, one.seed) for one in plan_comparison(Settings(), ["infobatch"], [0, 1])]
    [('full', 0), ('infobatch', 0), ('full', 1), ('infobatch', 1)]

    A method may end in "+lr", as in labels, in "+loss" or in "+none": that is what grows with it.
    """
    names = list(dict.fromkeys(["full", *(re.sub(r"\s", "", name) for name in methods)]))
    chosen = dict.fromkeys(_with(base.but(lr=rate), name) for rate in (base.lr, *rates) for name in names)
    return [settings.but(seed=seed) for seed in seeds for settings in chosen]


def _with(base: Settings, method: str) -> Settings:
    if method == "full":
        return base.but(method=method, compensate="none")  # nothing grows, and so there is one baseline for all
    name, plus, grows = method.rpartition("+")
    if not plus or grows not in GROWTHS:
        return base.but(method=method)
    plain = _with(base, name)
    asked = plain.but(compensate=grows)
    return plain if name == "full" or asked.grows == plain.grows else asked


def equal_steps(settings: Settings, done: Run, larger: bool = True) -> list[Settings]:
    """Full data with the number of steps that a pruned run took; none where it left nothing out.

    Where its learning rate grew, also at a rate that is as much ``larger``: is it more than that?
    """
    if done.end is None or settings.method == "full" or not done.end["saved"]:
        return []
    plain = settings.but(method="full", compensate="none", steps=done.end["steps"])
    return [plain, plain.but(compensate="lr")] if larger and _rate_grows(settings) else [plain]


def _rate_grows(settings: Settings) -> bool:
    return settings.grows == "lr" and not settings.ideas  # some of which say how it grows


def compare_into(
    folder: str | os.PathLike[str],
    series: Series,
    *,
    task: Task,
    stop: Stop = never,
    watch: Watch | None = None,
    hooks: Hooks | None = None,
) -> Iterator[Run]:
    """The runs of a comparison, as they finish; those that are there already are read. The last one has no ``end``
    where ``stop`` became true."""
    todo, seen, net = deque(series.settings()), set(), ""
    while todo:
        settings = todo.popleft()
        if settings in seen:  # two methods that took as many steps share a control
            continue
        seen.add(settings)
        place = folder_of(folder, settings, series.base.lr)
        tick = watch(settings, length(settings, size_of(task.train))) if watch is not None else None
        own = hooks(place) if hooks is not None else ()
        done = train_one(settings, place, task=task, resume=True, stop=stop, tick=tick, hooks=own, net=net)
        net = net or str(done.start.get("net") or "")  # older records do not tell it
        gc.collect()  # a captured step and its run hold each other, and much memory of the GPU
        yield done
        if done.end is None:
            return
        if series.equal_steps:
            todo.extendleft(reversed(equal_steps(settings, done, larger=not series.rates)))


def reproduce_into(
    root: str | os.PathLike[str],
    recipe: Recipe,
    todo: Sequence[tuple[Cell, Settings]],
    *,
    quick: bool = False,
    stop: Stop = never,
    watch: Watch | None = None,
) -> Iterator[Run]:
    """The runs of a recipe, as ``compare_into``. Those that are there already are read."""
    from ..papers.recipe import run_name

    tasks: dict[tuple[str, str], Task] = {}
    for cell, settings in todo:
        where = settings.task, settings.data
        if where not in tasks:
            tasks = {where: make_task(*where)}  # one at a time: they may be large
        tick = watch(settings, settings.epochs) if watch is not None else None
        place = Path(root) / run_name(recipe, cell, settings, quick)
        done = train_one(settings, place, task=tasks[where], resume=True, stop=stop, tick=tick)
        gc.collect()
        yield done
        if done.end is None:
            return


def with_controls(series: Series) -> list[Settings]:
    """All runs of a comparison, as far as is known before: a method's controls will have its steps."""
    planned = series.settings()
    pruned = [one for one in planned if series.equal_steps and one.method != "full"]
    return [*planned, *pruned, *(filter(_rate_grows, pruned) if not series.rates else ())]


def total_length(series: Series, task: Task) -> int:
    """Epochs of all runs of a comparison; a control counts as a whole run until it is known how long it is."""
    return sum(length(one, size_of(task.train)) for one in with_controls(series))


def one_run(folder: Path) -> Path:
    """The folder of one run, which a comparison's is not."""
    if (folder / PLAN).is_file():
        remedy = f"This is a comparison: infobatch compare --resume {shlex.quote(str(folder))}"
        raise InputError(message("the folder of one run", str(folder), remedy))
    return folder


def _instead(folder: Path) -> str:
    if (folder / FILE).exists():
        return f"This is one run: infobatch train --resume {shlex.quote(str(folder))}"
    return "infobatch compare makes one." if folder.exists() else "There is no such folder."
