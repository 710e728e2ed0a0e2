"""Train many runs: a comparison of methods, or the cells of a recipe. Each can be stopped and continued.

A comparison is a folder of runs, with ``comparison.json`` beside them:

    runs/digits-20260131-120000/
      comparison.json            what is compared
      full-seed0/                a run
      infobatch-seed0/
      full-509-steps-seed0/      a shorter run: full data at the cost of infobatch
      full-lr=0.2-seed0/         at another learning rate
      ...
"""

from __future__ import annotations

import gc
import json
import math
import os
import re
import shlex
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...errors import InputError, StateError, message
from ...files import replacing
from ..metrics.metric_info import MARGIN
from ..tasks.catalogue import make_task
from ..tasks.task import Task
from ..train.batches import size_of
from ..train.loop import Tick
from ..train.method_text import SUFFIXES
from ..train.settings import Settings, without_whole_last
from .fields import compute, same_cost_steps
from .interrupt import Stop, never
from .loggers import Hook
from .records import FILE, Run
from .runner import folder_of, length, train_one

if TYPE_CHECKING:
    from ..papers.recipe import Cell, Recipe

PLAN = "comparison.json"
FORMAT = 1
MOST_SEEDS = 1_000_000

Watch = Callable[[Settings, int], Tick]
"""Called with the settings and the epochs of a run that begins; returns the run's tick."""
Hooks = Callable[[Path], Sequence[Hook]]
"""Returns the hooks of the run in a folder."""


@dataclass(frozen=True)
class Series:
    """The plan of a comparison: methods x seeds x learning rates on one base of settings, and full data with each.

    Raises:
        InputError: If a method is unknown, or margin or level is out of range.
    """

    base: Settings
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    equal_steps: bool = True
    """Also train a shorter run beside each run of a method: full data at equal compute."""
    margin: float | None = None
    """In the unit of the metric; None for what the task states."""
    level: float = 0.95
    looks: tuple[int, ...] = ()
    """The numbers of seeds at which verdicts were shown."""
    rates: tuple[float, ...] = ()
    """Learning rates in addition to that of the base."""

    def __post_init__(self) -> None:
        margin = MARGIN if self.margin is None else self.margin
        if not 0 < margin < math.inf or not 0 < self.level < 1:
            got = f"{self.margin} and {self.level}"
            raise InputError(message("a margin above 0 and a level in (0, 1)", got, "0.3 and 0.95 are common."))
        self.settings()  # refuses unknown methods now

    def settings(self) -> list[Settings]:
        """Return the settings of all runs, without the shorter runs."""
        return plan_comparison(self.base, self.methods, self.seeds, self.rates)

    def on(self, hardware: dict[str, Any]) -> Series:
        """Return this series with other hardware settings."""
        return replace(self, base=Settings.of({**self.base.plain(), **hardware}))

    def begin(self, folder: Path) -> None:
        """Create the folder of a new comparison and write its plan.

        Raises:
            InputError: If the folder exists (two comparisons never share one), or a run is no longer trainable.
        """
        for settings in self.settings():
            settings.check_trainable()
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            remedy = f"Choose another name, or continue it: infobatch compare --resume {shlex.quote(str(folder))}"
            raise InputError(message("a folder that does not exist yet", str(folder), remedy)) from None
        self.save(folder)

    def save(self, folder: Path) -> None:
        """Write the plan into the folder."""
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
        """Remove what ``begin`` created, unless something was recorded since."""
        if not any(folder.rglob(FILE)):
            (folder / PLAN).unlink(missing_ok=True)
            with suppress(OSError):
                folder.rmdir()

    @classmethod
    def load(cls, folder: Path) -> Series:
        """Read the plan of a comparison.

        Raises:
            InputError: If the folder holds no comparison.
            StateError: If its plan is damaged.
        """
        path = folder / PLAN
        if not path.is_file():
            raise InputError(message(f"the folder of a comparison, with a {PLAN}", str(folder), _remedy(folder)))
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            if plain.pop("format") != FORMAT:
                raise ValueError("it has another format")
            base, methods, seeds = plain.pop("base"), plain.pop("methods"), plain.pop("seeds")
            plain["looks"] = tuple(map(int, plain.get("looks", [len(seeds)])))  # older plans have no looks
            plain["rates"] = tuple(map(float, plain.get("rates", ())))
            return cls(Settings.from_record({"settings": base}), tuple(methods), tuple(map(int, seeds)), **plain)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            text = message(f"a {PLAN} of the lab", f"{path}, which cannot be read ({error})", "Nothing was changed.")
            raise StateError(f"{text} The runs beside it are complete: infobatch report {folder}") from error


def note_look(folder: Path) -> tuple[int, ...]:
    """Note an interim analysis: verdicts are shown now. Return the numbers of seeds at all analyses so far."""
    series = Series.load(folder)
    if len(series.seeds) not in (1, *series.looks):  # one seed gives no verdict
        series = replace(series, looks=(*series.looks, len(series.seeds)))
        series.save(folder)
    return series.looks


def plan_comparison(
    base: Settings, methods: Sequence[str], seeds: Sequence[int], rates: Sequence[float] = ()
) -> list[Settings]:
    """List the runs of a comparison: full data and each method, seed by seed, so that pairs are complete early.

    Args:
        base: The settings that all runs share.
        methods: Methods; "+loss" or "+none" at the end sets ``compensate``.
        seeds: Seeds.
        rates: Learning rates in addition to that of the base.

    Returns:
        The settings of each run.

    >>> [(one.method, one.seed) for one in plan_comparison(Settings(), ["infobatch"], [0, 1])]
    [('full', 0), ('infobatch', 0), ('full', 1), ('infobatch', 1)]
    """
    names = list(dict.fromkeys(["full", *(re.sub(r"\s", "", name) for name in methods)]))
    chosen = dict.fromkeys(_with_method(base.but(lr=rate), name) for rate in (base.lr, *rates) for name in names)
    return [settings.but(seed=seed) for seed in seeds for settings in chosen]


def _with_method(base: Settings, method: str) -> Settings:
    if method == "full":
        return base.but(method=method, compensate="none")  # nothing grows, so all share one baseline
    name, plus, suffix = method.rpartition("+")
    if not plus or suffix not in SUFFIXES:
        return base.but(method=method)
    settings = _with_method(base, name)
    compensated = settings.but(compensate=suffix)
    return settings if name == "full" or compensated.grows == settings.grows else compensated


def shorter_run(settings: Settings, recorded: Run) -> Settings | None:
    """Return full data for as many steps as cost the same; None if a run saved nothing or has not finished.

    A sieve saves nothing if its looks cost as much as the samples that it leaves out.
    """
    if recorded.end is None or settings.method == "full" or not recorded.end["saved"]:
        return None
    steps = same_cost_steps(recorded)
    if steps is None or (compute(recorded, None) or 0.0) >= 1:
        return None
    return settings.but(method="full", compensate="none", steps=round(steps))


def compare_into(
    folder: str | os.PathLike[str],
    series: Series,
    *,
    task: Task,
    stop: Stop = never,
    watch: Watch | None = None,
    hooks: Hooks | None = None,
) -> Iterator[Run]:
    """Train the runs of a comparison and yield each as it finishes; finished ones are read, not trained again.

    Args:
        folder: The folder of the comparison.
        series: Its plan.
        task: The task.
        stop: Asked after each batch; once it returns true, the current run is the last and has no ``end``.
        watch: Called when a run begins.
        hooks: Makes the loggers of a run.

    Yields:
        The records.

    Raises:
        InputError: If a run cannot be trained.
        StateError: If a record or checkpoint is damaged.
    """
    waiting, seen, net = deque(series.settings()), set(), ""
    while waiting:
        settings = waiting.popleft()
        if settings in seen:  # two methods of equal cost share a shorter run
            continue
        seen.add(settings)
        run_folder = folder_of(folder, settings, series.base.lr)
        tick = watch(settings, length(settings, size_of(task.train))) if watch is not None else None
        loggers = hooks(run_folder) if hooks is not None else ()
        recorded = train_one(settings, run_folder, task=task, resume=True, stop=stop, tick=tick, hooks=loggers, net=net)
        net = net or str(recorded.start.get("net") or "")  # older records have none
        _release_gpu()
        yield recorded
        if recorded.end is None:
            return
        shorter = shorter_run(settings, recorded) if series.equal_steps else None
        if shorter is not None:
            waiting.appendleft(shorter)


def reproduce_into(
    root: str | os.PathLike[str],
    recipe: Recipe,
    runs: Sequence[tuple[Cell, Settings]],
    *,
    quick: bool = False,
    stop: Stop = never,
    watch: Watch | None = None,
) -> Iterator[Run]:
    """Train the runs of a recipe, as ``compare_into`` does those of a comparison.

    Recipes name the runs of older records, in which a short last batch counted as a full one. New runs weight it by
    its samples.
    """
    from ..papers.recipe import run_name

    tasks: dict[tuple[str, str], Task] = {}
    for cell, wanted in runs:
        settings = wanted.but(ideas=without_whole_last(wanted.ideas))
        source = settings.task, settings.data
        if source not in tasks:
            tasks = {source: make_task(*source)}  # one at a time, since tasks may be large
        tick = watch(settings, settings.epochs) if watch is not None else None
        folder = Path(root) / run_name(recipe, cell, settings, quick)
        recorded = train_one(settings, folder, task=tasks[source], resume=True, stop=stop, tick=tick)
        _release_gpu()
        yield recorded
        if recorded.end is None:
            return


def _release_gpu() -> None:
    """Free the GPU memory of a finished run: its captured step and the run itself reference each other."""
    if torch.cuda.is_available():
        gc.collect()


def with_controls(series: Series) -> list[Settings]:
    """Return all runs of a comparison; a shorter run is stood in for by the run whose cost it will have."""
    planned = series.settings()
    return [*planned, *(one for one in planned if series.equal_steps and one.method != "full")]


def total_length(series: Series, task: Task) -> int:
    """Return the epochs of all runs of a comparison; shorter runs count in full, since their steps are not known."""
    return sum(length(one, size_of(task.train)) for one in with_controls(series))


def one_run(folder: Path) -> Path:
    """Return the folder of one run.

    Raises:
        InputError: If it is the folder of a comparison.
    """
    if (folder / PLAN).is_file():
        remedy = f"This is a comparison: infobatch compare --resume {shlex.quote(str(folder))}"
        raise InputError(message("the folder of one run", str(folder), remedy))
    return folder


def _remedy(folder: Path) -> str:
    if (folder / FILE).exists():
        return f"This is one run: infobatch train --resume {shlex.quote(str(folder))}"
    return "infobatch compare creates one." if folder.exists() else "There is no such folder."
