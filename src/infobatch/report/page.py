"""Build the page of a comparison: its sections in order, each saying what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from ..errors import plural
from ..lab.compare.answer import answers_of, measures_time
from ..lab.compare.comparison import Row
from ..lab.format import percent
from ..lab.metrics.metric_info import MetricInfo
from ..lab.runs.fields import device_of, looking, metric_of, number, seconds, table
from ..lab.runs.records import Run
from . import shell
from .figures import bars, curves, svg
from .figures.by_class import by_class
from .figures.by_rate import by_rate
from .figures.figure import (
    Figure,
    format_value,
    interval_text,
    label_styles,
    mean_and_std,
    metric_title,
    signed,
    swatch,
)
from .figures.frontier import frontier
from .figures.losses import distributions
from .gallery import MOST_LABELS, Gallery, galleries
from .series import Study


@dataclass(frozen=True)
class Section:
    key: str
    title: str
    intro: str
    figures: tuple[Figure, ...] = ()
    galleries: tuple[Gallery, ...] = ()
    missing: str = ""
    """The text to show if there is nothing else."""


@dataclass(frozen=True)
class Line:
    """A row of the verdict table, as text."""

    row: Row
    mark: Markup
    mean: str
    saved: str
    samples: str
    """The samples saved, if they differ from the compute saved."""
    seconds: str
    time: str
    difference: str
    interval: str
    same: str
    rate: str = ""


def page(study: Study) -> str:
    """Render the whole page."""
    with svg.page_style():
        sections = _sections(study)
    return shell.render(
        "page.html",
        title=_title(study),
        subtitle=_subtitle(study),
        study=study,
        answers=answers_of(study.comparison, study.best),
        looks=any(row.looking is not None for row in study.comparison.rows),
        interval=percent(study.comparison.interval_level),
        lines=_lines(study),
        best=_best(study),
        sections=sections,
        settings=_settings(study),
        environment=_environment(study),
        runs=[_run(label, run) for label, members in study.sets.items() for run in members],
    )


def _sections(study: Study) -> list[Section]:
    losses, omitted = distributions(study)
    shapes = (
        "Losses before pruning (filled), of the kept samples (solid), and of the kept samples times their weights "
        "(dashed). The weights do their job if the dashed line follows the filled shape."
    )
    if omitted:
        shapes += f" Not shown, to keep the page small: {', '.join(omitted)}."
    classes, others = by_class(study)
    apart = f" Not shown, since their classes differ: {', '.join(others)}." if others else ""
    ended = any(run.end is not None for run in study.runs)
    nothing = "These records hold no epochs, or only the last one." if ended else "No epoch has been recorded yet."
    return [
        _section(
            "cost",
            f"{metric_title(study)} against cost",
            "What each method reaches, and what it costs.",
            [by_rate(study), bars.difference(study), frontier(study, "compute"), frontier(study, "time")],
            "No run has finished with a metric yet.",
        ),
        _section(
            "curves",
            "Curves",
            "How the metric and the losses developed.",
            curves.draw(study, "metric-epochs", "metric-samples", "gap", "test-loss", "train-loss", "learning-rate"),
            nothing,
        ),
        _section(
            "pruning",
            "Pruning",
            "How many samples were pruned, when, and how that affects a step.",
            curves.draw(study, "pruned", "saved", "noise"),
            nothing,
        ),
        _section(
            "losses",
            "Loss distribution",
            shapes,
            losses,
            "No run has a histogram of an epoch in which samples were pruned.",
        ),
        _section(
            "time",
            "Savings and overhead",
            "Pruning saves samples by design; it saves time only as far as time was spent on samples.",
            [bars.savings(study), bars.seconds(study), *curves.draw(study, "seconds-epochs")],
            "No run has finished, so no time is known.",
        ),
        _section(
            "weighting",
            "Weights and effective sample size",
            "How much each kept sample counted.",
            [bars.weights(study), *curves.draw(study, "effective", "largest-weight")],
            "No run pruned anything: every weight is 1.",
        ),
        _section(
            "classes",
            "Classes",
            "Which classes were pruned, and how their metric changed." + apart,
            classes,
            "No numbers per class: the task has no classes, or no run has finished." + apart,
        ),
        _gallery(study),
    ]


def _section(key: str, title: str, intro: str, found: Iterable[Figure | None], missing: str) -> Section:
    return Section(key, title, intro, tuple(one for one in found if one is not None), missing=missing)


def _gallery(study: Study) -> Section:
    found = galleries(study)
    left = sum(map(study.prunes, study.sets)) - len(found)
    intro = (
        "The samples used in the most and in the fewest epochs, from one run per method. A method that prunes by loss "
        "keeps what the network finds hard, often including wrong labels. With random pruning, both lists are random."
    )
    if found and left > 0:
        why = f"their records have no samples, or there are more than {MOST_LABELS} methods"
        intro += f" {plural(left, 'method')} not shown: {why}."
    missing = "No samples: no pruning run has finished, or the runs were made with gallery = 0."
    return Section("samples", "Samples most and least kept", intro, galleries=tuple(found), missing=missing)


def _title(study: Study) -> str:
    tasks = list(dict.fromkeys(run.settings.task for run in study.runs))
    methods = len({study.sets[label][0].label for label in study.sets if study.is_method(label)})
    runs = plural(len(study.runs), "run")
    return f"{', '.join(tasks)}: {plural(methods, 'method')}, {runs}" if methods else f"{', '.join(tasks)}: {runs}"


def _subtitle(study: Study) -> str:
    models = ", ".join(dict.fromkeys(run.settings.model for run in study.runs if run.settings.model))
    epochs = list(dict.fromkeys(run.settings.epochs for run in study.runs))
    trained = ", ".join([*map(str, epochs[:-1]), plural(epochs[-1], "epoch")])
    size = ", ".join(dict.fromkeys(f"{run.start['size']:,}" for run in study.runs if number(run.start.get("size"))))
    device = ", ".join(dict.fromkeys(name for run in study.runs if (name := device_of(run))))
    days = sorted({str(run.start.get("time") or "")[:10] for run in study.runs} - {""})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}" if days else ""
    parts = [models, trained, f"{size} training samples" if size else "", device, when]
    return " · ".join(part for part in parts if part)


def _lines(study: Study) -> list[Line]:
    styles = label_styles(study)
    lines = []
    for row in study.comparison.rows:
        time = study.time_saved(row.label) if row.difference is not None and measures_time(row) else None
        line = _line(row, study, time="" if time is None else f"{signed(-time, 1)} %")
        lines.append(replace(line, mark=swatch(styles[row.label])))
    return lines


def _best(study: Study) -> list[Line]:
    return (
        [] if study.best is None else [replace(_line(one.row, study), rate=f"{one.rate:g}") for one in study.best.rows]
    )


def _line(row: Row, study: Study, time: str = "") -> Line:
    found, same, places = row.difference, row.same_cost, study.comparison.metric_info.places
    beside = "" if same is None else interval_text(same.low, same.high, places) or "one seed"
    return Line(
        row=row,
        mark=Markup(),
        mean=mean_and_std(row.mean, row.std, places),
        saved="" if row.compute_saved is None else format_value("{:.1f} %", 100 * row.compute_saved),
        samples="" if not row.looking or row.saved is None else format_value("{:.1f} %", 100 * row.saved),
        seconds="" if row.seconds is None else f"{row.seconds:,.1f}" + _spread(row.seconds_std),
        time=time,
        difference="" if found is None else signed(found.mean, places),
        interval="" if found is None else interval_text(found.low, found.high, places),
        same="" if same is None else f"{signed(same.mean, places)} ({beside})",
    )


def _spread(std: float | None) -> str:
    return "" if std is None else f" ± {std:,.1f}"


@dataclass(frozen=True)
class Table:
    """What all runs have in common, and what differs between labels."""

    common: tuple[tuple[str, str], ...]
    names: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]


def _table(sets: Mapping[str, list[Mapping[str, Any]]]) -> Table:
    tables = [table for members in sets.values() for table in members]
    names = list(dict.fromkeys(name for table in tables for name in table))
    values = {name: list(dict.fromkeys(_word(table.get(name)) for table in tables)) for name in names}
    apart = tuple(name for name in names if len(values[name]) > 1)
    rows = tuple(
        (label, tuple(_listed(_word(table.get(name)) for table in members) for name in apart))
        for label, members in sets.items()
    )
    return Table(tuple((name, values[name][0]) for name in names if name not in apart), apart, rows)


def _listed(words: Iterable[str]) -> str:
    """List the distinct texts; of many, the first few and the number of the others."""
    known = list(dict.fromkeys(words))
    return ", ".join(known) if len(known) <= 6 else f"{', '.join(known[:5])} and {len(known) - 5} more"


def _word(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_word, value))
    if value is None or value == "":
        return "none"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _settings(study: Study) -> Table:
    found = {
        label: [{**run.settings.plain(), "look": _describe_look(run)} for run in members]
        for label, members in study.sets.items()
    }
    settings = [one for members in found.values() for one in members]
    hidden = {name for name in MOSTLY_EMPTY if not any(one[name] for one in settings)}
    return _table({label: [_legible_settings(one, hidden) for one in members] for label, members in found.items()})


def _describe_look(run: Run) -> str:
    """Say what the sieve of a run looked with; empty for a run without a look."""
    sieve = table(run.start.get("sieve"))
    if sieve.get("look") != "proxy":
        return "the model itself" if sieve.get("look") == "own" else ""
    parameters = str(sieve.get("fingerprint")).rpartition(", ")[0]  # what follows is a hash
    return f"proxy {sieve.get('net')} ({parameters}), trained on one batch in {sieve.get('every')}"


MOSTLY_EMPTY = ("data", "ideas", "look")
"""What most runs leave empty; they are listed only if some run has them."""


def _legible_settings(settings: dict[str, Any], hidden: set[str]) -> dict[str, Any]:
    """Name and write settings so that they can be read without a manual.

    ``graph`` is a request; the environment says whether it was met.
    """
    names = {"graph": "graph (if possible)", "data": "data folder"}
    words = {**settings, "steps": settings["steps"] or "all epochs"}
    return {names.get(name, name): value for name, value in words.items() if name not in hidden}


def _environment(study: Study) -> Table:
    return _table({label: [_machine(run) for run in members] for label, members in study.sets.items()})


def _machine(run: Run) -> dict[str, Any]:
    plain = dict(table(run.start.get("environment")))
    git = plain.pop("git", None)
    if isinstance(git, dict):
        plain["git"] = f"{git.get('commit')}{' with changes' if git.get('dirty') else ''}"
    return {**plain, "data": run.start.get("source")}


def _run(label: str, run: Run) -> dict[str, str]:
    found, saved, time = metric_of(run), number((run.end or {}).get("saved")), seconds(run)
    net = None if saved is None else saved - (looking(run) or 0.0)
    state = "finished" if run.end is not None else f"{len(run.epochs)} of {run.settings.epochs} epochs"
    return {
        "name": run.name,
        "label": label,
        "seed": str(run.settings.seed),
        "metric": "" if found is None else MetricInfo.of_record(run.start).value(found),
        "saved": "" if net is None else format_value("{:.1f} %", 100 * net),
        "seconds": "" if time is None else f"{time:,.1f}",
        "state": state if run.end is None or found is not None else "no finite metric",
    }
