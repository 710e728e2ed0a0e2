"""Commands that train nothing: report, estimate, doctor, methods, tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ..errors import InputError, StateError, message
from ..lab.runs.many_runs import PLAN, Series
from ..lab.runs.records import files, looks_beside, sift
from ..lab.tasks.catalogue import TASKS, TaskInfo, locate
from ..lab.train.method_text import NOT_BY_TEXT, SIEVE
from ..methods import CARDS, METHODS
from . import tables
from .options import Answer, Json, Level, Margin, parse_int
from .screen import describe_changes
from .train_commands import REPORT, describe_run, warn_left_out


def report(
    *paths: Annotated[Path, Parameter(help="Folders of runs or comparisons, or record files.")],
    output: Annotated[Path, Parameter(alias="-o", help="The page to write.")] = Path(REPORT),
    against: Annotated[
        str, Parameter(show_default="full data", help="Compare all rows with this one, by its label in the table.")
    ] = "",
    one_look: Annotated[
        bool, Parameter(negative="", help="Show intervals as if the runs had been judged only once.")
    ] = False,
    margin: Margin = None,
    level: Level = None,
    json: Json = False,
) -> Answer:
    """Judge recorded runs, and write one HTML page with tables and plots.

    For example
      infobatch report runs/digits-20260131-120000 -o report.html
      infobatch report runs/first runs/second --against random --json
    """
    from .. import report as page
    from ..lab.compare.answer import answers_of
    from ..lab.compare.comparison import compare
    from ..lab.compare.tuning import at_best

    if not paths:
        raise InputError(message("folders of runs", "none", "For example: infobatch report runs -o report.html"))
    found, damaged = sift(*paths)
    unreadable = list(map(str, damaged))
    warn_left_out(*unreadable)
    kept = files(*paths)
    series = _series(kept)
    rules: dict[str, Any] = {
        "margin": _rule(margin, {one.margin for one in series}, None),
        "level": _rule(level, {one.level for one in series}, 0.95),
        "looks": None if one_look else _looks(kept, series),
        "against": against,
    }
    judged = compare(found, **rules)
    best = at_best(found, judged)
    page.write(found, output, **rules)
    if json:
        described = {"report": str(output), "runs": [describe_run(one) for one in found], "unreadable": unreadable}
        found_best = None if best is None else best.plain()
        answers = list(answers_of(judged, best))
        return Answer(plain={**described, "answers": answers, "comparison": judged.plain(), "at_best": found_best})
    tables.print_comparison(judged, best)
    tables.say(f"Report:     {output}")
    tables.print_answers(answers_of(judged, best))
    return Answer()


def _series(kept: Sequence[Path]) -> list[Series]:
    """Load the comparisons that these records belong to."""
    series = []
    for folder in dict.fromkeys(file.parent.parent for file in kept):
        if (folder / PLAN).is_file():
            try:
                series.append(Series.load(folder))
            except StateError as error:  # the runs next to it may still be readable
                warn_left_out(error)
    return series


def _rule(given: float | None, theirs: set[Any], default: Any) -> Any:
    """Return what was given, or what the comparisons used if they agree, or the default."""
    if given is not None:
        return given
    return theirs.pop() if len(theirs) == 1 else default


def _looks(kept: Sequence[Path], series: Sequence[Series]) -> tuple[int, ...] | None:
    """Return the recorded interim analyses, of several comparisons the most; None if none are recorded."""
    return max((one.looks for one in series), key=len, default=None) or looks_beside(kept)


def estimate(
    losses: Annotated[
        Path,
        Parameter(
            help="A log of per-sample losses: an array [epochs, samples] in .npy, .npz or .pt, or "
            "epoch, index, loss as columns of a .csv or keys of a .jsonl file, counting from 0."
        ),
    ],
    /,
    *,
    methods: Annotated[
        tuple[str, ...],
        Parameter(
            consume_multiple=True,
            negative="",
            show_default="all that need only losses",
            help="The methods to estimate.",
        ),
    ] = (),
    epochs: Annotated[
        int | None,
        Parameter(
            converter=parse_int,
            show_default="all logged",
            help="Epochs of the planned run, if the log covers only its beginning.",
        ),
    ] = None,
    seeds: Annotated[int, Parameter(converter=parse_int, help="Random draws per method.")] = 3,
    json: Json = False,
) -> Answer:
    """Estimate what each method would have saved, from the losses of a normal run.

    Nothing is trained, so the estimate covers the savings and not the accuracy.

    For example
      infobatch estimate losses.npy
      infobatch estimate losses.csv --methods infobatch saving:share=0.5 --epochs 90
    """
    from ..lab.estimate import logs, savings

    table = logs.read(losses)
    found = savings.estimate(table, list(methods) or None, epochs, seeds)
    untried = {} if methods else savings.untried_methods(epochs or len(table))
    if json:
        size = {"epochs": table.shape[0], "samples": table.shape[1]}
        unknown = list(dict.fromkeys(text for one in found for text in one.unknown))
        described = [{key: value for key, value in asdict(one).items() if key != "unknown"} for one in found]
        return Answer(plain={**size, "methods": described, "left_out": untried, "unknown": unknown})
    tables.print_estimates(found, untried)
    return Answer()


def doctor(
    target: Annotated[
        str, Parameter(help="MODULE:NAME of a loader, or of a function that returns one; this folder is searched, too.")
    ],
    /,
    *,
    epochs: Annotated[int, Parameter(converter=parse_int, help="Passes over the loader.")] = 2,
    limit: Annotated[
        int | None,
        Parameter(converter=parse_int, show_default="all", help="Use only this many samples of the data set."),
    ] = None,
    json: Json = False,
) -> Answer:
    """Check with your own loader that every loss reaches its sample.

    Runs the loader for two epochs, without training. The module is imported, so
    put its training loop under `if __name__ == "__main__":`. The exit code is 1
    if a problem was found.

    For example
      infobatch doctor train:loader
      infobatch doctor my_package.data:make_loader --limit 10000
    """
    from ..lab.doctor import examine

    found = examine(target, epochs=epochs, limit=limit)
    if not json:
        tables.print_diagnosis(found)
    return Answer(0 if found.ok else 1, found.plain() if json else None)


def methods(*, json: Json = False) -> Answer:
    """List the methods of both engines: source, which samples each leaves out, and what it costs.

    For example
      infobatch methods
      infobatch methods --json
    """
    from ..selection import SELECTORS
    from ..sieve import SIEVE_CARDS

    chosen_once = [
        (f"static.{name}", each.source, each.keeps, each.weights, each.cost, ", ".join(each.needs) or "nothing")
        for name, each in SELECTORS.items()
    ]
    inside = [
        (f"{SIEVE}{name}", card.source, card.leaves_out, card.weights, card.cost) for name, card in SIEVE_CARDS.items()
    ]
    if json:
        keys: tuple[str, ...] = ("name", "source", "keeps", "weights", "cost", "needs")
        static = [
            {**dict(zip(keys, row, strict=True)), "rule": each.rule}
            for row, each in zip(chosen_once, SELECTORS.values(), strict=True)
        ]
        dynamic = [{"name": name, **asdict(CARDS[name])} for name in METHODS]
        keys = ("name", "source", "leaves_out", "weights", "look")
        sieves = [
            {**dict(zip(keys, row, strict=True)), "by_text": name not in NOT_BY_TEXT}
            for row, name in zip(inside, SIEVE_CARDS, strict=True)
        ]
        return Answer(plain={"methods": dynamic, "static": static, "sieve": sieves})
    rows = [
        (name, card.source, card.leaves_out, card.weights, card.cost, card.needs)
        for name in METHODS
        for card in [CARDS[name]]
    ]
    tables.show(("method", "source", "leaves out", "weights", "cost per plan", "needs"), rows)
    tables.show(("static (selects once)", "source", "keeps", "weights", "cost", "needs from a proxy"), chosen_once)
    tables.show(("inside the batch", "source", "leaves out", "weights", "looks with"), inside)
    for name, what in NOT_BY_TEXT.items():
        tables.say(f"{SIEVE}{name} needs {what}: use infobatch.Sieve in a training loop of yours.")
    tables.say(
        "Add settings after a colon: infobatch train --method infobatch:ratio=0.3,delta=0.9",
        "A sieve also takes look=proxy or own, net and every (of the proxy), and then=METHOD: "
        "sieve.hardest:keep=0.5,net=resnet8,then=infobatch",
    )
    return Answer()


def tasks(
    *,
    data: Annotated[Path | None, Parameter(help="A folder to search for the files of the tasks.")] = None,
    json: Json = False,
) -> Answer:
    """List the tasks, the file layouts each can read, and whether the files are there.

    For example
      infobatch tasks
      infobatch tasks --data ~/data
    """
    files = {name: _describe_files(info, data) for name, info in TASKS.items()}
    layouts = {name: [str(layout) for layout in info.layouts] for name, info in TASKS.items()}
    if json:
        about = [
            {
                "name": name,
                "what": info.description,
                "files": files[name],
                "layouts": layouts[name],
                "defaults": info.defaults,
            }
            for name, info in TASKS.items()
        ]
        return Answer(plain={"tasks": about})
    columns = ("task", "description", "its own defaults", "files", "where to get them")
    rows = [
        (name, info.description, describe_changes(info.defaults), files[name], info.origin)
        for name, info in TASKS.items()
    ]
    tables.show(columns, rows)
    tables.say("File layouts:")
    for words in dict.fromkeys(words for each in layouts.values() for words in each):
        tables.say(f"  {words}: {', '.join(name for name in layouts if words in layouts[name])}")
    tables.say("A task of yours: --task MODULE:FUNCTION, where the function returns an infobatch.lab.tasks.task.Task.")
    return Answer()


def _describe_files(info: TaskInfo, data: Path | None) -> str:
    if not info.layouts:
        return "built in"
    return "needs --data" if data is None else locate(info, data)
