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

from ..errors import InfoBatchError, InputError, message, plural
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
    FLAT,
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
    parse_int,
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
    like: Annotated[
        Path | None, Parameter(help="The folder of a run: use its settings, except for those given here.")
    ] = None,
    runs: Root = RUNS,
    name: Name = "",
    tensorboard: Board = None,
    wandb: Wandb = "",
    json: Json = False,
    given: Annotated[Given, FLAT] = {},  # noqa: B006
) -> Answer:
    """Train one run with one method, and record it.

    Every epoch is recorded in a folder below --runs; Ctrl-C stops after the batch and leaves a checkpoint.

    For example
      infobatch train --task digits --method infobatch:ratio=0.3 --seed 1
      infobatch train --like runs/digits-20260131-120000/full-seed0 --seed 7
    """
    known = resume or like
    if resume is not None:
        _check_resume_options(given, {"--like": like, "--name": name})
    if known is not None:
        settings = Settings.of({**read(many_runs.one_run(known)).settings.plain(), **given})
        task = make_task(settings.task, settings.data)
    else:
        settings, task = runner.settle(given)
    epochs = runner.length(settings, size_of(task.train))
    folder = resume or runner.folder_of(_place(runs, name, settings), settings)
    with make_screen(1, epochs) as screen, _stop_on_interrupt() as stop:
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
    described = describe_run(done, folder) if json else None
    if done.end is None:
        return _stopped(f"infobatch train --resume {shlex.quote(str(folder))}", described)
    if not json:
        tables.say(f"Recorded in {folder}")
    return Answer(plain=described)


def compare(
    *,
    methods: Annotated[
        tuple[str, ...],
        Parameter(
            consume_multiple=True,
            negative="",
            show_default=" ".join(METHODS),
            help="The methods to compare with full data, which is always trained. NAME+loss lets the loss grow, as in "
            "the papers; NAME+none does not. `infobatch methods` lists them. With --resume, methods to add.",
        ),
    ] = (),
    seeds: Annotated[
        int | None,
        Parameter(
            converter=parse_int,
            show_default=str(SEEDS),
            help="Runs per method, with seeds counting up from --seed; with --resume, the new total.",
        ),
    ] = None,
    equal_steps: Annotated[
        bool,
        Parameter(help="Also train a shorter run for each method: full data at equal compute."),
    ] = True,
    rates: Annotated[
        tuple[float, ...],
        Parameter(
            consume_multiple=True,
            negative="",
            show_default="only --lr",
            help="More learning rates to train everything at; each method is then also compared with full data, both "
            "at their best. With --resume, rates to add.",
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
    given: Annotated[Shared, FLAT] = {},  # noqa: B006
) -> Answer:
    """Train methods and full data with the same seeds, and say what was saved and what it cost.

    Ends with one answer per method; the tables above and the report hold the
    evidence. More seeds make it more certain: --resume adds them.

    For example
      infobatch compare --task digits --methods full infobatch random --seeds 5
      infobatch compare --task digits --methods infobatch --lr 0.05 --rates 0.1 0.2
      infobatch compare --resume runs/digits-20260131-120000 --seeds 12
    """
    if seeds is not None and not 1 <= seeds <= many_runs.MOST_SEEDS:
        raise InputError(message(f"1 to {many_runs.MOST_SEEDS:,} seeds", str(seeds), "Five is a good start."))
    if resume is not None:
        _check_resume_options(given, {"--name": name, "--no-equal-steps": not equal_steps})
        series, folder = _extend(Series.load(resume), methods, seeds, rates, margin, level), resume
        series.save(folder)
        series = series.on(given)
        task = make_task(series.base.task, series.base.data)
    else:
        base, task = runner.settle(given)
        if rates and set(rates) <= {base.lr}:
            remedy = "--rates adds to --lr: name other rates, or leave it out."
            raise InputError(message(f"--rates other than --lr {base.lr:g}", " ".join(map(str, rates)), remedy))
        first = tuple(range(base.seed, base.seed + (seeds or SEEDS)))
        series = _extend(Series(base, methods or METHODS, first, equal_steps), (), None, rates, margin, level)
        folder = _place(runs, name, base)
        series.begin(folder)
    try:
        done = _run_all(series, folder, task, _hooks(tensorboard, wandb))
    except InfoBatchError:
        if resume is None:
            series.undo(folder)
        raise
    return _finish_comparison(series, folder, done, json)


def _run_all(series: Series, folder: Path, task: Task, hooks: Hooks) -> list[Run]:
    count, done = len(many_runs.with_controls(series)), []
    epochs = many_runs.total_length(series, task)
    with make_screen(count, epochs, rates=bool(series.rates)) as screen, _stop_on_interrupt() as stop:
        first = Announcement(screen, series.base, f"{count} runs, at most {epochs:,} epochs in total")
        each: Hooks = lambda place: [first, *hooks(place)]  # noqa: E731
        for one in many_runs.compare_into(folder, series, task=task, stop=stop, watch=screen.watch, hooks=each):
            screen.done(one)
            done.append(one)
    return done


def _finish_comparison(series: Series, folder: Path, done: list[Run], json: bool) -> Answer:
    from .. import report
    from ..lab.compare.answer import answers_of
    from ..lab.compare.comparison import compare
    from ..lab.compare.tuning import at_best

    again = f"infobatch compare --resume {shlex.quote(str(folder))}"
    finished = done[-1].end is not None
    described = {"folder": str(folder), "finished": finished, "runs": [describe_run(one) for one in done]}
    if not finished:
        return _stopped(again, described if json else None)
    rules: dict[str, Any] = {"margin": series.margin, "level": series.level, "looks": many_runs.note_look(folder)}
    known = sift(folder)[0]  # includes runs from before --rates or --methods were added
    found = compare(known, **rules)
    best = at_best(known, found)
    if not json:
        tables.print_comparison(found, best)
    report.write(known, folder / REPORT, **rules)
    if json:
        judged = {
            "answers": list(answers_of(found, best)),
            "comparison": found.plain(),
            "at_best": None if best is None else best.plain(),
        }
        return Answer(plain={**described, "report": str(folder / REPORT), **judged})
    asked = {label(one) for one in series.settings()}
    rows = found.rows if best is None else [one.row for one in best.rows]
    open_rows = [(row.verdict.more, row.label) for row in rows if row.label in asked and row.verdict.more]
    guess = f"an estimate from {len(series.seeds)}; it may take more"
    for more, name in (min(open_rows), max(open_rows))[: len(open_rows)] if open_rows else ():
        tables.say(f"For a verdict on {name}, train about {plural(more, 'more seed')} ({guess}):")
        tables.say(f"    {again} --seeds {len(series.seeds) + more}")
    tables.say(f"Records:    {folder}", f"Report:     {folder / REPORT}")
    tables.print_answers(answers_of(found, best))
    return Answer()


def _extend(
    series: Series,
    methods: tuple[str, ...],
    seeds: int | None,
    rates: tuple[float, ...],
    margin: float | None,
    level: float | None,
) -> Series:
    """Add methods, seeds and rates to a comparison; none is ever removed."""
    first, many = series.seeds[0], seeds or len(series.seeds)
    if many < len(series.seeds):
        remedy = "Leave --seeds out to finish it, or use `infobatch report` on the runs so far."
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
    name: Annotated[
        str, Parameter(show_default=False, help="The name of a recipe, such as table1, or a TOML file.")
    ] = "",
    /,
    *,
    quick: Annotated[
        bool, Parameter(negative="", show_default=False, help="Train a small stand-in: about a minute on two cores.")
    ] = False,
    listing: Annotated[
        bool,
        Parameter(name="--list", negative="", show_default=False, help="List all recipes and their outcomes here."),
    ] = False,
    output: Annotated[
        Path | None,
        Parameter(alias="-o", help="With --list: write a page with our numbers and the papers' side by side."),
    ] = None,
    seeds: Annotated[int, Parameter(converter=parse_int, show_default="the recipe's", help="Runs per cell.")] = 0,
    runs: Root = RUNS,
    json: Json = False,
    given: Annotated[Hardware, FLAT] = {},  # noqa: B006
) -> Answer:
    """Reproduce a table or figure of the papers, and compare our numbers with it.

    A recipe holds a claim of the papers, its numbers, and the settings to check
    them. Runs that are already recorded are not trained again.

    For example
      infobatch reproduce --list -o papers.html
      infobatch reproduce table11
    """
    from ..lab.papers import recipe as recipe_files
    from ..lab.papers.judge import outcome

    if output is not None and not listing:
        remedy = f"For example: infobatch reproduce --list -o {output}"
        raise InputError(message("--list with --output", f"--output {output} alone", remedy))
    if listing and name:
        raise InputError(message("a recipe or --list", f"both, {name} and --list", "Leave one out."))
    if not name:
        if runs != RUNS and not runs.is_dir():
            raise InputError(message("a folder of runs", str(runs), "There is no such folder."))
        return _list_recipes(_read_evidence(runs), output, json)
    recipe = recipe_files.load(name)
    todo = recipe_files.runs(recipe, quick, seeds, **given)
    try:
        finished = not todo or _train_all(recipe, todo, runs, quick)
    except InfoBatchError:
        if not json:  # show what is known before the error about what is missing
            known = _read_evidence(runs)
            tables.print_outcome(outcome(recipe, known.runs, known.measurements, quick))
        raise
    if not finished:
        return _stopped("the same command again", {"recipe": name, "finished": False} if json else None)
    if recipe.measure:
        _measure(recipe, runs, quick)
    known = _read_evidence(runs)
    found = outcome(recipe, known.runs, known.measurements, quick)
    if json:
        about = {"finished": True, "folder": str(runs), "unreadable": list(known.unreadable)}
        return Answer(plain={**found.plain(), **about})
    tables.print_outcome(found)
    return Answer()


def _train_all(recipe: Recipe, todo: Sequence[tuple[Cell, Settings]], runs: Path, quick: bool) -> bool:
    """Train what a recipe still needs; False if it was stopped."""
    finished = True
    with make_screen(len(todo), sum(settings.epochs for _, settings in todo)) as screen, _stop_on_interrupt() as stop:
        for one in many_runs.reproduce_into(runs, recipe, todo, quick=quick, stop=stop, watch=screen.watch):
            screen.done(one)
            finished = one.end is not None
    return finished


def _measure(recipe: Recipe, runs: Path, quick: bool) -> None:
    """Make a recipe's measurement, and record it next to its runs."""
    from ..lab.papers.gathered import measure

    measured = measure(recipe, quick, lambda text: print(text, file=sys.stderr))
    place = runs / f"{recipe.name}{'-quick' if quick else ''}"
    place.mkdir(parents=True, exist_ok=True)
    kept = place / "measurements.jsonl"
    with naming(kept), open(kept, "a", encoding="utf-8") as file:
        file.write(line(measured.plain()))


def _list_recipes(known: Evidence, output: Path | None, json: bool) -> Answer:
    from .. import report
    from ..lab.papers.judge import listing

    found = listing(known)
    if output is not None:
        report.write_papers([one.outcome for one in found], known, output)
    if json:
        where = {} if output is None else {"report": str(output)}
        described = {"recipes": [one.plain() for one in found], "unreadable": list(known.unreadable)}
        return Answer(plain={**described, **where})
    tables.print_recipes(found)
    if output is not None:
        tables.say(f"Report:     {output}")
    return Answer()


def _read_evidence(runs: Path) -> Evidence:
    """Read the records in the checkout and below ``runs``; print which of them cannot be read."""
    from ..lab.papers.gathered import evidence

    known = evidence(*([runs] if runs.is_dir() else []))
    warn_left_out(*known.unreadable)
    return known


# ---- helpers ---------------------------------------------------------------------------------------------


def warn_left_out(*what: object) -> None:
    """Print to stderr what an answer does not include."""
    for each in what:
        print(f"infobatch: left out: {each}", file=sys.stderr)


def describe_run(done: Run, folder: Path | None = None) -> dict[str, Any]:
    """Describe a run as values that JSON can hold."""
    about = {"run": done.name, "label": done.label, "seed": done.settings.seed, "finished": done.end is not None}
    where = {"folder": str(folder)} if folder is not None else {}
    return {**about, **where, "settings": done.settings.plain(), "end": done.end}


def _place(runs: Path, name: str, settings: Settings) -> Path:
    """Return the folder below ``runs`` for new runs."""
    if (name and Path(name).parts != (name,)) or name == "..":
        remedy = f"Choose where all runs go with --runs, here {runs}."
        raise InputError(message("--name as the name of one folder below --runs", repr(name), remedy))
    return runs / (name or f"{settings.task.replace(':', '-')}-{datetime.now():%Y%m%d-%H%M%S}")


def _check_resume_options(given: dict[str, Any], others: dict[str, Any]) -> None:
    wrong = [f"--{key.replace('_', '-')}" for key in given if key not in HARDWARE]
    wrong += [key for key, value in others.items() if value]
    if wrong:
        expected = f"no settings with --resume except {', '.join(f'--{key}' for key in HARDWARE)}"
        raise InputError(message(expected, ", ".join(wrong), "A resumed run keeps its other settings."))


def _hooks(tensorboard: Path | None, wandb: str) -> Hooks:
    def hooks(folder: Path) -> list[Hook]:
        found: list[Hook] = []
        if tensorboard is not None:
            found.append(TensorBoard(tensorboard / folder.parent.name / folder.name))
        if wandb:
            found.append(WandB(wandb, folder=folder))
        return found

    return hooks


def _stop_on_interrupt() -> AbstractContextManager[Stop]:
    text = b"\nStopping after this batch, with a checkpoint. Press Ctrl-C again to quit at once.\n"
    if sys.stderr.isatty():
        text = b"\x1b[?25h" + text  # the bars hide the cursor, and a second Ctrl-C would leave it hidden
    return interruptible(lambda: os.write(2, text))  # not print: the signal may arrive during one


def _stopped(command: str, plain: dict[str, Any] | None) -> Answer:
    print(f"Stopped. To continue: {command}", file=sys.stderr)
    return Answer(STOPPED, plain)
