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
from ..methods import CARDS, METHODS
from . import tables
from .options import Answer, Json, Level, Margin, whole
from .screen import unusual
from .train_commands import REPORT, left_out, plain


def report(
    *paths: Annotated[Path, Parameter(help="Folders of runs or comparisons, or their records.")],
    output: Annotated[Path, Parameter(alias="-o", help="Where the page goes.")] = Path(REPORT),
    against: Annotated[
        str, Parameter(show_default="full data", help="Hold all others against this row, by its label in the table.")
    ] = "",
    one_look: Annotated[
        bool, Parameter(negative="", help="Intervals as for a single look at the runs, however often was looked.")
    ] = False,
    margin: Margin = None,
    level: Level = None,
    json: Json = False,
) -> Answer:
    """Make one page of plots from recorded runs.

    As in
      infobatch report runs/digits-20260131-120000 -o report.html
      infobatch report runs/first runs/second --against random --json
    """
    from .. import report as page
    from ..lab.compare.answer import answers_of
    from ..lab.compare.comparison import compare
    from ..lab.compare.tuning import at_best

    if not paths:
        raise InputError(message("folders of runs", "none", "As in: infobatch report runs -o report.html"))
    found, damaged = sift(*paths)
    unreadable = list(map(str, damaged))
    left_out(*unreadable)
    kept = files(*paths)
    series = _series(kept)
    rules: dict[str, Any] = {
        "margin": _rule(margin, {one.margin for one in series}, 0.3),
        "level": _rule(level, {one.level for one in series}, 0.95),
        "looks": None if one_look else _looks(kept, series),
        "against": against,
    }
    judged = compare(found, **rules)
    best = at_best(found, judged)
    page.write(found, output, **rules)
    if json:
        told = {"report": str(output), "runs": [plain(one) for one in found], "unreadable": unreadable}
        found_best = None if best is None else best.plain()
        answers = list(answers_of(judged, best))
        return Answer(plain={**told, "answers": answers, "comparison": judged.plain(), "at_best": found_best})
    tables.comparison(judged, best)
    tables.say(f"Report:     {output}")
    tables.answers(answers_of(judged, best))
    return Answer()


def _series(kept: Sequence[Path]) -> list[Series]:
    """The comparisons that these records are of."""
    series = []
    for folder in dict.fromkeys(file.parent.parent for file in kept):
        if (folder / PLAN).is_file():
            try:
                series.append(Series.load(folder))
            except StateError as error:  # the runs beside it may be whole
                left_out(error)
    return series


def _rule(given: float | None, theirs: set[float], usual: float) -> float:
    """What is said here, else what the comparisons were made with, if that is one and the same."""
    if given is not None:
        return given
    return theirs.pop() if len(theirs) == 1 else usual


def _looks(kept: Sequence[Path], series: Sequence[Series]) -> tuple[int, ...] | None:
    """The looks at these comparisons, or at the one of several with most; None where none is told."""
    return max((one.looks for one in series), key=len, default=None) or looks_beside(kept)


def estimate(
    losses: Annotated[
        Path,
        Parameter(
            help="A log of losses: an array [epochs, samples] in .npy, .npz or .pt (epochs in rows), or "
            "columns (keys) epoch, index, loss in .csv (.jsonl), with epoch and index from 0."
        ),
    ],
    /,
    *,
    methods: Annotated[
        tuple[str, ...],
        Parameter(
            consume_multiple=True, negative="", show_default="all that need losses alone", help="Which to look at."
        ),
    ] = (),
    epochs: Annotated[
        int | None,
        Parameter(
            converter=whole, show_default="all logged", help="Of the whole run, where the log is of its beginning."
        ),
    ] = None,
    seeds: Annotated[int, Parameter(converter=whole, help="Draws of each method.")] = 3,
    json: Json = False,
) -> Answer:
    """Say what each method would have saved, from a log of the losses of a normal run.

    As in
      infobatch estimate losses.npy
      infobatch estimate losses.csv --methods infobatch saving:share=0.5 --epochs 90
    """
    from ..lab.estimate import logs
    from ..lab.estimate import savings as estimates

    table = logs.read(losses)
    found = estimates.estimate(table, list(methods) or None, epochs, seeds)
    untried = {} if methods else estimates.left_out(epochs or len(table))
    if json:
        size = {"epochs": table.shape[0], "samples": table.shape[1]}
        unknown = list(dict.fromkeys(text for one in found for text in one.unknown))
        told = [{key: value for key, value in asdict(one).items() if key != "unknown"} for one in found]
        return Answer(plain={**size, "methods": told, "left_out": untried, "unknown": unknown})
    tables.estimates(found, untried)
    return Answer()


def doctor(
    target: Annotated[str, Parameter(help="MODULE:NAME of this folder: a loader, or a function that returns one.")],
    /,
    *,
    epochs: Annotated[int, Parameter(converter=whole, help="Passes over it.")] = 2,
    limit: Annotated[
        int | None,
        Parameter(converter=whole, show_default="all", help="Look at so many samples of the data set alone."),
    ] = None,
    json: Json = False,
) -> Answer:
    """Run your own loader for two epochs, and say whether each loss would reach its sample.

    The module is imported, so its training loop must stand under: if __name__ == "__main__":

    As in
      infobatch doctor train:loader
      infobatch doctor my_package.data:make_loader --limit 10000
    """
    from ..lab.doctor import examine

    found = examine(target, epochs=epochs, limit=limit)
    if not json:
        tables.diagnosis(found)
    return Answer(0 if found.ok else 1, found.plain() if json else None)


def methods(*, json: Json = False) -> Answer:
    """List the methods: where each is from, what it leaves out and what it costs.

    As in
      infobatch methods
      infobatch methods --json
    """
    from ..selection import SELECTORS

    chosen_once = [
        (f"static.{name}", each.source, each.rule, each.weights, each.cost, ", ".join(each.needs) or "nothing")
        for name, each in SELECTORS.items()
    ]
    if json:
        keys = ("name", "source", "rule", "weights", "cost", "needs")
        static = [dict(zip(keys, row, strict=True)) for row in chosen_once]
        dynamic = [{"name": name, **asdict(CARDS[name])} for name in METHODS]
        return Answer(plain={"methods": dynamic, "static": static})
    rows = [
        (name, card.source, card.leaves_out, card.weights, card.cost, card.needs)
        for name in METHODS
        for card in [CARDS[name]]
    ]
    tables.show(("method", "source", "leaves out", "weights", "cost of a plan", "needs"), rows)
    tables.show(("static: chosen once", "source", "keeps", "weights", "cost", "needs of a proxy"), chosen_once)
    tables.say("Give settings after a colon: infobatch train --method infobatch:ratio=0.3,delta=0.9")
    return Answer()


def tasks(
    *,
    data: Annotated[Path | None, Parameter(help="A folder: whose files are there?")] = None,
    json: Json = False,
) -> Answer:
    """List the tasks, the layouts in which their files may lie, and whether they are there.

    As in
      infobatch tasks
      infobatch tasks --data ~/data
    """
    files = {name: _there(info, data) for name, info in TASKS.items()}
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
    columns = ("task", "what", "not as by default", "files", "where to get them")
    rows = [(name, info.description, unusual(info.defaults), files[name], info.origin) for name, info in TASKS.items()]
    tables.show(columns, rows)
    tables.say("Layouts read:")
    for words in dict.fromkeys(words for each in layouts.values() for words in each):
        tables.say(f"  {words}: {', '.join(name for name in layouts if words in layouts[name])}")
    tables.say("Your own: --task MODULE:FUNCTION, which returns an infobatch.lab.tasks.task.Task.")
    return Answer()


def _there(info: TaskInfo, data: Path | None) -> str:
    if not info.layouts:
        return "built in"
    return "give --data" if data is None else locate(info, data)
