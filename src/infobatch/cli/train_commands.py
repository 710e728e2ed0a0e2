"""Commands that train: train, compare, reproduce."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ..errors import InfoBatchError, InputError, message
from ..files import naming
from ..lab.runs import many_runs, runner
from ..lab.runs.interrupt import Stop, interruptible
from ..lab.runs.loggers import Hook, TensorBoard, WandB
from ..lab.runs.many_runs import Hooks, Series
from ..lab.runs.records import Run, label, line, read, sift
from ..lab.tasks.catalogue import make_task
from ..lab.tasks.task import Task
from ..lab.train.batches import size_of
from ..lab.train.settings import HARDWARE, Settings
from . import tables
from .options import (
    WHOLE,
    Answer,
    Board,
    Given,
    Hardware,
    Json,
    Level,
    Margin,
    Name,
    Resume,
    Root,
    Shared,
    Wandb,
    whole,
)
from .screen import Announcement, make_screen

if TYPE_CHECKING:
    from ..lab.papers.gathered import Evidence
    from ..lab.papers.recipe import Cell, Recipe

STOPPED = 130
"""The exit code after Ctrl-C."""
RUNS = Path("runs")
REPORT = "report.html"
METHODS = ("infobatch", "random")
SEEDS = 5


def train(
    *,
    resume: Resume = None,
    like: Annotated[Path | None, Parameter(help="A run's folder: take its settings, but for those given.")] = None,
    runs: Root = RUNS,
    name: Name = "",
    tensorboard: Board = None,
    wandb: Wandb = "",
    json: Json = False,
    given: Annotated[Given, WHOLE] = {},  # noqa: B006
) -> Answer:
    """Train once, with one method, and record it.

    As in
      infobatch train --task digits --method infobatch:ratio=0.3 --seed 1
      infobatch train --like runs/digits-20260131-120000/full-seed0 --seed 7
    """
    known = resume or like
    if resume is not None:
        _only_hardware(given, {"--like": like, "--name": name})
    if known is not None:
        settings = Settings.of({**read(many_runs.one_run(known)).settings.plain(), **given})
        task = make_task(settings.task, settings.data)
    else:
        settings, task = runner.settle(given)
    epochs = runner.length(settings, size_of(task.train))
    folder = resume or runner.folder_of(runs / (name or _now(settings)), settings)
    with make_screen(1, epochs) as screen, _stoppable() as stop:
        done = runner.train_one(
            settings,
            folder,
            task=task,
            resume=resume is not None,
            stop=stop,
            tick=screen.watch(settings, epochs),
            hooks=[Announcement(screen, settings), *_hooks(tensorboard, wandb)(folder)],
        )
        screen.done(done)
    told = plain(done, folder) if json else None
    if done.end is None:
        return _paused(f"infobatch train --resume {shlex.quote(str(folder))}", told)
    if not json:
        tables.say(f"Recorded in {folder}")
    return Answer(plain=told)


def compare(
    *,
    methods: Annotated[
        tuple[str, ...],
        Parameter(
            consume_multiple=True,
            negative="",
            show_default=" ".join(METHODS),
            help="Those to hold against full data, which is always there; NAME+loss, NAME+lr, NAME+none: what grows. "
            "`infobatch methods` lists them. With --resume they are added.",
        ),
    ] = (),
    seeds: Annotated[
        int | None,
        Parameter(
            converter=whole,
            show_default=str(SEEDS),
            help="Runs of each method, with seeds from --seed on; more with --resume.",
        ),
    ] = None,
    equal_steps: Annotated[
        bool,
        Parameter(help="Also train full data for as many steps as each method took, also at the rate it grew to."),
    ] = True,
    rates: Annotated[
        tuple[float, ...],
        Parameter(
            consume_multiple=True,
            negative="",
            show_default="that of --lr alone",
            help="Other learning rates to train everything at; then each is also held against full data with both at "
            "their best. With --resume they are added.",
        ),
    ] = (),
    margin: Margin = None,
    level: Level = None,
    resume: Resume = None,
    runs: Root = RUNS,
    name: Name = "",
    tensorboard: Board = None,
    wandb: Wandb = "",
    json: Json = False,
    given: Annotated[Shared, WHOLE] = {},  # noqa: B006
) -> Answer:
    """Train methods beside full data, seed by seed, and say what the difference proves.

    As in
      infobatch compare --task digits --methods full infobatch random --seeds 5
      infobatch compare --task digits --methods infobatch --lr 0.05 --rates 0.1 0.2
      infobatch compare --resume runs/digits-20260131-120000 --seeds 12
    """
    if seeds is not None and not 1 <= seeds <= many_runs.MOST_SEEDS:
        raise InputError(message(f"1 to {many_runs.MOST_SEEDS:,} seeds", str(seeds), "Five are a good start."))
    if resume is not None:
        _only_hardware(given, {"--name": name, "--no-equal-steps": not equal_steps})
        series, folder = _grown(Series.load(resume), methods, seeds, rates, margin, level), resume
        series.save(folder)
        series = series.on(given)
        task = make_task(series.base.task, series.base.data)
    else:
        base, task = runner.settle(given)
        if rates and set(rates) <= {base.lr}:
            remedy = "They are beside that one: name others, or leave --rates out."
            raise InputError(message(f"--rates other than --lr {base.lr:g}", " ".join(map(str, rates)), remedy))
        first = tuple(range(base.seed, base.seed + (seeds or SEEDS)))
        series = _grown(Series(base, methods or METHODS, first, equal_steps), (), None, rates, margin, level)
        folder = runs / (name or _now(base))
        series.begin(folder)
    try:
        done = _run_all(series, folder, task, _hooks(tensorboard, wandb))
    except InfoBatchError:
        if resume is None:
            series.undo(folder)
        raise
    return _told(series, folder, done, json)


def _run_all(series: Series, folder: Path, task: Task, hooks: Hooks) -> list[Run]:
    count, done = len(many_runs.with_controls(series)), []
    epochs = many_runs.total_length(series, task)
    with make_screen(count, epochs, rates=bool(series.rates)) as screen, _stoppable() as stop:
        first = Announcement(screen, series.base, f"{count} runs, {epochs:,} epochs in all or less")
        each: Hooks = lambda place: [first, *hooks(place)]  # noqa: E731
        for one in many_runs.compare_into(folder, series, task=task, stop=stop, watch=screen.watch, hooks=each):
            screen.done(one)
            done.append(one)
    return done


def _told(series: Series, folder: Path, done: list[Run], json: bool) -> Answer:
    from .. import report
    from ..lab.compare.answer import answers_of
    from ..lab.compare.comparison import compare
    from ..lab.compare.tuning import at_best

    again = f"infobatch compare --resume {shlex.quote(str(folder))}"
    finished = done[-1].end is not None
    told = {"folder": str(folder), "finished": finished, "runs": [plain(one) for one in done]}
    if not finished:
        return _paused(again, told if json else None)
    rules: dict[str, Any] = {"margin": series.margin, "level": series.level, "looks": many_runs.note_look(folder)}
    known = sift(folder)[0]  # with what was trained before there were other rates
    found = compare(known, **rules)
    best = at_best(known, found)
    if not json:
        tables.comparison(found, best)
    report.write(known, folder / REPORT, **rules)
    if json:
        judged = {
            "answers": list(answers_of(found, best)),
            "comparison": found.plain(),
            "at_best": None if best is None else best.plain(),
        }
        return Answer(plain={**told, "report": str(folder / REPORT), **judged})
    asked = {label(one) for one in series.settings()}
    rows = found.rows if best is None else [one.row for one in best.rows]
    open_rows = [(row.verdict.more, row.label) for row in rows if row.label in asked and row.verdict.more]
    guess = f"guessed from {len(series.seeds)} seeds, it may take more"
    for more, name in (min(open_rows), max(open_rows))[: len(open_rows)] if open_rows else ():
        tables.say(f"To decide:  {again} --seeds {len(series.seeds) + more}   ({name}; {guess})")
    tables.say(f"Records:    {folder}", f"Report:     {folder / REPORT}")
    tables.answers(answers_of(found, best))
    return Answer()


def _grown(
    series: Series,
    methods: tuple[str, ...],
    seeds: int | None,
    rates: tuple[float, ...],
    margin: float | None,
    level: float | None,
) -> Series:
    """A comparison may get more methods, seeds and rates; it never loses any."""
    first, many = series.seeds[0], seeds or len(series.seeds)
    if many < len(series.seeds):
        remedy = "Leave --seeds out to finish it; `infobatch report` takes what is there."
        raise InputError(message(f"at least the {len(series.seeds)} seeds it has", str(seeds), remedy))
    return replace(
        series,
        methods=tuple(dict.fromkeys([*series.methods, *methods])),
        seeds=tuple(range(first, first + many)),
        rates=tuple(dict.fromkeys(rate for rate in (*series.rates, *rates) if rate != series.base.lr)),
        margin=series.margin if margin is None else margin,
        level=series.level if level is None else level,
    )


def reproduce(
    name: Annotated[str, Parameter(show_default=False, help="A recipe, as table1; or a file of your own.")] = "",
    /,
    *,
    quick: Annotated[
        bool, Parameter(negative="", show_default=False, help="A stand-in: about a minute on two cores.")
    ] = False,
    listing: Annotated[
        bool,
        Parameter(name="--list", negative="", show_default=False, help="All recipes, and what came of them here."),
    ] = False,
    output: Annotated[
        Path | None, Parameter(alias="-o", help="With --list: where a page goes that has them beside the papers'.")
    ] = None,
    seeds: Annotated[int, Parameter(converter=whole, show_default="the recipe's", help="Runs of each cell.")] = 0,
    runs: Root = RUNS,
    json: Json = False,
    given: Annotated[Hardware, WHOLE] = {},  # noqa: B006
) -> Answer:
    """Run a table or figure of the papers, and hold what comes against the paper.

    As in
      infobatch reproduce --list -o papers.html
      infobatch reproduce table11
    """
    from ..lab.papers import recipe as recipes
    from ..lab.papers.judge import outcome

    if output is not None and not listing:
        remedy = f"As in: infobatch reproduce --list -o {output}"
        raise InputError(message("--list with --output", f"--output {output} alone", remedy))
    if listing and name:
        raise InputError(message("a recipe or --list", f"both, {name} and --list", "Leave one of them out."))
    if not name:
        if runs != RUNS and not runs.is_dir():
            raise InputError(message("a folder of runs", str(runs), "There is no such folder."))
        return _listed(_evidence(runs), output, json)
    recipe = recipes.load(name)
    todo = recipes.runs(recipe, quick, seeds, **given)
    try:
        finished = not todo or _train_all(recipe, todo, runs, quick)
    except InfoBatchError:
        if not json:  # what is known, before what is missing
            known = _evidence(runs)
            tables.outcome(outcome(recipe, known.runs, known.measurements, quick))
        raise
    if not finished:
        return _paused("the same command again", {"recipe": name, "finished": False} if json else None)
    if recipe.measure:
        _measure(recipe, runs, quick)
    known = _evidence(runs)
    found = outcome(recipe, known.runs, known.measurements, quick)
    if json:
        about = {"finished": True, "folder": str(runs), "unreadable": list(known.unreadable)}
        return Answer(plain={**found.plain(), **about})
    tables.outcome(found)
    return Answer()


def _train_all(recipe: Recipe, todo: Sequence[tuple[Cell, Settings]], runs: Path, quick: bool) -> bool:
    """Train what a recipe still wants. False where it was stopped."""
    finished = True
    with make_screen(len(todo), sum(settings.epochs for _, settings in todo)) as screen, _stoppable() as stop:
        for one in many_runs.reproduce_into(runs, recipe, todo, quick=quick, stop=stop, watch=screen.watch):
            screen.done(one)
            finished = one.end is not None
    return finished


def _measure(recipe: Recipe, runs: Path, quick: bool) -> None:
    """Make a recipe's measurement, and write it down beside its runs."""
    from ..lab.papers.gathered import measure

    measured = measure(recipe, quick, lambda text: print(text, file=sys.stderr))
    place = runs / f"{recipe.name}{'-quick' if quick else ''}"
    place.mkdir(parents=True, exist_ok=True)
    kept = place / "measurements.jsonl"
    with naming(kept), open(kept, "a", encoding="utf-8") as file:
        file.write(line(measured.plain()))


def _listed(known: Evidence, output: Path | None, json: bool) -> Answer:
    from .. import report
    from ..lab.papers.judge import listing

    found = listing(known)
    if output is not None:
        report.write_papers([one.outcome for one in found], known, output)
    if json:
        where = {} if output is None else {"report": str(output)}
        told = {"recipes": [one.plain() for one in found], "unreadable": list(known.unreadable)}
        return Answer(plain={**told, **where})
    tables.recipes(found)
    if output is not None:
        tables.say(f"Report:     {output}")
    return Answer()


def _evidence(runs: Path) -> Evidence:
    """What is kept with the recipes and below ``runs``; what of it cannot be read is said."""
    from ..lab.papers.gathered import evidence

    known = evidence(*([runs] if runs.is_dir() else []))
    left_out(*known.unreadable)
    return known


# ---- small things ----------------------------------------------------------------------------------------


def left_out(*what: object) -> None:
    """Said on stderr, beside an answer that goes without it."""
    for each in what:
        print(f"infobatch: left out: {each}", file=sys.stderr)


def plain(done: Run, folder: Path | None = None) -> dict[str, Any]:
    """A run as JSON shows it."""
    about = {"run": done.name, "label": done.label, "seed": done.settings.seed, "finished": done.end is not None}
    where = {"folder": str(folder)} if folder is not None else {}
    return {**about, **where, "settings": done.settings.plain(), "end": done.end}


def _now(settings: Settings) -> str:
    return f"{settings.task.replace(':', '-')}-{datetime.now():%Y%m%d-%H%M%S}"


def _only_hardware(given: dict[str, Any], others: dict[str, Any]) -> None:
    wrong = [f"--{key.replace('_', '-')}" for key in given if key not in HARDWARE]
    wrong += [key for key, value in others.items() if value]
    if wrong:
        expected = f"with --resume no settings but {', '.join(f'--{key}' for key in HARDWARE)}"
        raise InputError(message(expected, ", ".join(wrong), "The others are those it was begun with."))


def _hooks(tensorboard: Path | None, wandb: str) -> Hooks:
    def hooks(folder: Path) -> list[Hook]:
        found: list[Hook] = []
        if tensorboard is not None:
            found.append(TensorBoard(tensorboard / folder.parent.name / folder.name))
        if wandb:
            found.append(WandB(wandb, folder=folder))
        return found

    return hooks


def _stoppable() -> AbstractContextManager[Stop]:
    text = b"\nStopping after this batch, with a checkpoint. Once more to end at once.\n"
    if sys.stderr.isatty():
        text = b"\x1b[?25h" + text  # bars hide the cursor, and nobody could bring it back after the second time
    return interruptible(lambda: os.write(2, text))  # not by print: one may be under way


def _paused(command: str, plain: dict[str, Any] | None) -> Answer:
    print(f"Stopped. To go on: {command}", file=sys.stderr)
    return Answer(STOPPED, plain)
