"""Reduce the runs of one label to the numbers of one line or bar, so that 200 runs make no longer a page than five."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from ..lab.compare.comparison import Comparison, compare, partner_of
from ..lab.compare.grouping import group, is_shorter_run
from ..lab.compare.naming import name_among, name_rows
from ..lab.compare.tuning import AtBest, at_best
from ..lab.runs import fields
from ..lab.runs.fields import mean, number, table
from ..lab.runs.records import Fact, Run

MOST_POINTS, ALL_POINTS = 240, 1600
"""The largest number of points per curve and per figure. Longer curves are thinned evenly and keep their last point."""


@dataclass(frozen=True)
class Study:
    """The runs of a page and their comparison, by the names that people read."""

    sets: dict[str, list[Run]]
    comparison: Comparison
    partner: Callable[[Run], Run | None]
    """Finds full data with the same settings and seed as a run."""
    best: AtBest | None = None
    """Each method at its best learning rate, if several were tried."""

    @classmethod
    def of(
        cls,
        runs: Iterable[Run],
        margin: float | None = None,
        level: float = 0.95,
        looks: Iterable[int] | None = None,
        against: str = "",
    ) -> Study:
        runs = [with_epochs(legible(run)) for run in runs]
        found = compare(runs, margin=margin, level=level, looks=looks, against=against)
        best, name = at_best(runs, found), name_among(row.label for row in found.rows)
        sets = {name(label): members for label, members in group(runs).items()}
        shown, shown_best = name_rows(found, best)
        return cls(sets, shown, partner_of(runs), shown_best)

    @property
    def runs(self) -> list[Run]:
        return [run for members in self.sets.values() for run in members]

    @property
    def points(self) -> int:
        """The largest number of points per curve: fewer if there are many curves, to keep the page small."""
        return max(20, min(MOST_POINTS, ALL_POINTS // len(self.sets)))

    def shown(self, label: str) -> list[Run]:
        """The finished runs of a label, or all of them if none has finished; the later of two with the same seed."""
        members = self.sets[label]
        finished = [run for run in members if run.end is not None] or members
        by_start = sorted(finished, key=lambda run: str(run.start.get("time") or ""))
        latest = {run.settings.seed: run for run in by_start}
        return [run for run in finished if latest[run.settings.seed] is run]

    def first(self, label: str) -> Run:
        """The run with the lowest seed, for figures that can show only one run per label."""
        return min(self.shown(label), key=lambda run: run.settings.seed)

    def prunes(self, label: str) -> bool:
        """True if any of its runs pruned samples. A shorter run on full data stops early but prunes nothing."""
        return self.is_method(label) and any(pruned(one) for run in self.shown(label) for one in run.epochs)

    def is_method(self, label: str) -> bool:
        """True if it is neither full data nor a shorter run on full data."""
        return self.sets[label][0].settings.method != self.comparison.baseline

    def is_control(self, label: str) -> bool:
        """True if it is a shorter run: full data, stopped after a number of steps."""
        return is_shorter_run(self.sets[label][0])

    def pairs(self, label: str) -> list[tuple[Run, Run]]:
        """Pair the finished runs of a label with full data of the same settings and seed."""
        found = [(run, self.partner(run)) for run in self.shown(label) if run.end is not None]
        return [(run, other) for run, other in found if other is not None and other is not run]

    def time_saved(self, label: str) -> float | None:
        """The time saved compared with full data over the same seeds, in percent."""
        pairs = self.pairs(label)
        ours = mean(fields.seconds(run) for run, _ in pairs)
        full = mean(fields.seconds(other) for _, other in pairs)
        return None if ours is None or not full else 100 * (1 - ours / full)


@dataclass(frozen=True)
class Curve:
    """The mean over seeds at each epoch, its standard deviation (0 for one seed), and the seeds it is taken over."""

    epochs: tuple[int, ...]
    x: tuple[float, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    seeds: tuple[tuple[int, ...], ...]

    @property
    def n(self) -> tuple[int, ...]:
        """How many seeds each mean is taken over."""
        return tuple(map(len, self.seeds))

    @property
    def pieces(self) -> list[slice]:
        """Stretches of points over the same seeds, each of which is drawn as a line of its own."""
        return same_seeds(self.seeds)

    @property
    def seeds_in_words(self) -> str:
        """How many seeds each piece of the curve is a mean over, for a legend."""
        return seeds_in_words([self.n[piece.start] for piece in self.pieces])


def same_seeds(seeds: Sequence[tuple[int, ...]]) -> list[slice]:
    """Split a curve where the seeds behind it change.

    A line that joined two means over different seeds would show the difference between seeds as a change along the
    axis.

    >>> same_seeds([(0, 1), (0, 1), (0,)])
    [slice(0, 2, None), slice(2, 3, None)]
    """
    starts = [place for place, here in enumerate(seeds) if place == 0 or here != seeds[place - 1]]
    return [slice(start, end) for start, end in pairwise([*starts, len(seeds)])]


def seeds_in_words(counts: Sequence[int]) -> str:
    """Say how many seeds the pieces of a curve are means over.

    >>> seeds_in_words([3]), seeds_in_words([3, 2]), seeds_in_words([1, 2, 1, 2, 1])
    ('n = 3', 'n = 3, then 2', 'n = 1 to 2')
    """
    if len(set(counts)) == 1:
        return f"n = {counts[0]}"
    few = len(counts) <= 4
    return f"n = {', then '.join(map(str, counts))}" if few else f"n = {min(counts)} to {max(counts)}"


FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML does not allow: most control codes, and lone surrogates."""


def legible(run: Run) -> Run:
    """Remove the characters that XML forbids from the texts of a run; only its start and its samples hold texts."""
    start, samples = _legible(run.start), _legible(run.samples)
    return replace(run, name=_legible(run.name), start=start, samples=samples)


def _legible(value: Any) -> Any:
    if isinstance(value, str):
        return FORBIDDEN.sub("", value)
    if isinstance(value, dict):
        return {_legible(key): _legible(inner) for key, inner in value.items()}
    return [_legible(inner) for inner in value] if isinstance(value, list) else value


def with_epochs(run: Run) -> Run:
    """Rebuild the epochs of a compact record, whose end holds the kept counts and the metrics of all epochs."""
    end = run.end or {}
    kept, metrics = numbers(end.get("kept_by_epoch")), table(end.get("metric_by_epoch"))
    if run.epochs or (kept is None and not metrics):
        return run
    size, done = number(run.start.get("size")), 0.0
    facts: list[Fact] = []
    for epoch, many in enumerate(kept or [None] * run.settings.epochs):
        fact = {"epoch": epoch, "kept": many, "size": size, "metric": metrics.get(str(epoch))}
        if many is not None and size:
            done += many
            fact["saved_so_far"] = 1 - done / (size * (epoch + 1))
        facts.append(fact)
    return replace(run, epochs=facts)


def numbers(values: Any) -> list[float | None] | None:
    """Read a list of numbers, with None for entries that are not finite; None if it is not a list or has no numbers."""
    if not isinstance(values, list):
        return None
    found = [number(value) for value in values]
    return found if any(value is not None for value in found) else None


Track = dict[int, tuple[float, float]]
"""The points of one run: epoch, counted from 1, -> (position on the x axis, value)."""


def track(run: Run, value: Callable[[Fact], float | None], *, by_samples: bool = False) -> Track:
    """Read one number per epoch, against epochs or against the samples seen so far."""
    found, seen = Track(), 0.0
    for epoch, one in enumerate(run.epochs, 1):
        seen += number(one.get("kept")) or 0.0
        known = value(one)
        if known is not None:
            found[epoch] = (seen if by_samples else float(epoch), known)
    return found


def averaged(tracks: Mapping[int, Track], most: int) -> Curve:
    """Average tracks by epoch.

    Args:
        tracks: The track of each seed.
        most: The largest number of points to return; longer curves are thinned.
    """
    columns: dict[int, dict[int, tuple[float, float]]] = {}
    for seed, one in sorted(tracks.items()):
        for epoch, point in one.items():
            columns.setdefault(epoch, {})[seed] = point
    epochs = thinned(sorted(columns), most)
    points = [list(columns[epoch].values()) for epoch in epochs]
    return Curve(
        tuple(epochs),
        tuple(statistics.fmean(x for x, _ in column) for column in points),
        tuple(statistics.fmean(y for _, y in column) for column in points),
        tuple(_spread([y for _, y in column]) for column in points),
        tuple(tuple(columns[epoch]) for epoch in epochs),
    )


def _spread(values: list[float]) -> float:
    """Return the standard deviation; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    middle = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


def all_of(value: Callable[[Fact], float | None], *, by_samples: bool = False) -> Callable[[Study, str], Curve]:
    """Make a source of curves: the mean over the seeds of a label."""

    def curve(study: Study, label: str) -> Curve:
        runs = {run.settings.seed: run for run in study.shown(label)}
        tracks = {seed: track(run, value, by_samples=by_samples) for seed, run in runs.items()}
        return averaged(tracks, study.points)

    return curve


def planned(value: Callable[[Fact], float | None]) -> Callable[[Study, str], Curve]:
    """The same without shorter runs on full data, which prune nothing."""

    def curve(study: Study, label: str) -> Curve:
        return averaged({}, study.points) if study.is_control(label) else all_of(value)(study, label)

    return curve


def pruning(value: Callable[[Fact], float | None]) -> Callable[[Study, str], Curve]:
    """The same, for labels that prune."""

    def curve(study: Study, label: str) -> Curve:
        return all_of(value)(study, label) if study.prunes(label) else averaged({}, study.points)

    return curve


def gap(name: str) -> Callable[[Study, str], Curve]:
    """The mean difference to full data with the same seed after the same number of epochs.

    Shorter runs are left out: their schedule is compressed, so their epochs do not correspond to those of full data.
    """

    def between(run: Run, full: Run) -> Track:
        ours, theirs = track(run, fact(name)), track(full, fact(name))
        return {epoch: (float(epoch), ours[epoch][1] - theirs[epoch][1]) for epoch in ours if epoch in theirs}

    def curve(study: Study, label: str) -> Curve:
        pairs = [pair for pair in study.pairs(label) if not pair[0].settings.steps]
        return averaged({run.settings.seed: between(run, full) for run, full in pairs}, study.points)

    return curve


def thinned(values: Sequence[int], most: int) -> list[int]:
    """Keep every k-th value, counted from the end, so that at most ``most`` remain.

    >>> thinned([1, 2, 3, 4, 5, 6, 7], most=4)
    [1, 3, 5, 7]
    """
    step = max(1, math.ceil(len(values) / most))
    return list(values)[::-1][::step][::-1]


def fact(name: str) -> Callable[[Fact], float | None]:
    return lambda epoch: number(epoch.get(name))


def percent(name: str) -> Callable[[Fact], float | None]:
    return lambda epoch: None if (found := number(epoch.get(name))) is None else 100 * found


def pruned(epoch: Fact) -> float | None:
    size, kept = number(epoch.get("size")), number(epoch.get("kept"))
    return None if size is None or kept is None else size - kept


def effective(epoch: Fact) -> float | None:
    """Return the effective sample size in percent of all samples."""
    size, found = number(epoch.get("size")), number(epoch.get("effective_size"))
    return 100 * found / size if size and found is not None else None


def largest_weight(epoch: Fact) -> float | None:
    values = numbers(table(epoch.get("weights")).get("values"))
    return max(value for value in values if value is not None) if values else None


def seconds(run: Run, part: str) -> float | None:
    return number(table((run.end or {}).get("seconds")).get(part))


def choosing(run: Run) -> float | None:
    """Return the share of a run's time spent on choosing samples, by planning or by selecting them once, in percent."""
    total, parts = fields.seconds(run), [seconds(run, "planning"), seconds(run, "selection")]
    known = [part for part in parts if part is not None]
    return 100 * math.fsum(known) / total if total and known else None


def epoch_seconds(epoch: Fact) -> float | None:
    known = [part for part in map(number, table(epoch.get("seconds")).values()) if part is not None]
    return math.fsum(known) if known else None


def class_saving(run: Run) -> list[float | None] | None:
    """Return the percentage of each class's samples that was pruned over the planned run."""
    end, epochs = run.end or {}, run.settings.epochs
    size, kept = numbers(end.get("class_size")), numbers(end.get("class_kept"))
    if size is None or kept is None or len(size) != len(kept):
        return None
    return [100 * (1 - k / (s * epochs)) if s and k is not None else None for s, k in zip(size, kept, strict=True)]


def class_change(run: Run, full: Run) -> list[float | None] | None:
    """Return the metric of each class minus that of full data, in the unit of the metric."""
    ours, theirs = numbers((run.end or {}).get("class_metric")), numbers((full.end or {}).get("class_metric"))
    if ours is None or theirs is None or len(ours) != len(theirs):
        return None
    return [None if a is None or b is None else a - b for a, b in zip(ours, theirs, strict=True)]


def by_class(lists: Iterable[list[float | None] | None], classes: int) -> list[tuple[float, float] | None] | None:
    """Return mean and standard deviation over runs for each class; None for a class, or for all, without numbers."""
    known = [one for one in lists if one is not None and len(one) == classes]
    if not known:
        return None
    columns = [[value for value in column if value is not None] for column in zip(*known, strict=True)]
    if not any(columns):
        return None
    return [(statistics.fmean(column), _spread(column)) if column else None for column in columns]


def class_names(runs: Iterable[Run]) -> list[str]:
    for run in runs:
        names = run.start.get("classes")
        if isinstance(names, list) and names:
            return [str(name) for name in names]
    return []
