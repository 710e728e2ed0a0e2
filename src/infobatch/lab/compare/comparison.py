"""Compare many runs: mean, spread, paired difference to full data, and a verdict.

    comparison = compare(read_many("runs"))
    for row in comparison.rows:
        print(row.label, row.mean, row.verdict.text)

Runs are paired by seed, because a seed fixes the initial weights and with them much of what is chance in both runs.
The interval is Student's, of the paired differences; ``verdicts`` says what it shows, ``answer`` puts it in a sentence.
Each verdict stands by itself: of forty harmless methods, one will look worse.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...errors import InputError, message
from ..format import percent, suggest
from ..metrics.metric_info import MetricInfo, is_margin
from ..runs.fields import compute, looking, mean, metric_of, same_cost_steps, saved, seconds
from ..runs.records import Run
from . import caveats
from .grouping import (
    FULL,
    are_alike,
    baseline_label,
    control_labels,
    distance,
    group,
    is_shorter_run,
    rate_grew,
    start_order,
    step_gap,
    usable,
)
from .naming import name_among, older_label
from .verdicts import Difference, Verdict, judge, level_at, of_differences

SAME_COST = 0.02
"""How close the cost of a shorter run must be to what the method costs on average, as a share."""
BASELINE = Verdict("baseline", "the baseline")
CONTROL = Verdict("control", "for comparison")

Partner = Callable[[Run], Run | None]
"""A function that finds the run to compare a run with."""


@dataclass(frozen=True)
class Row:
    """All runs of one label. ``n`` counts those with a metric; means are over these."""

    label: str
    n: int
    mean: float | None
    std: float | None
    saved: float | None
    """The share of the samples of full data that were not trained on."""
    seconds: float | None
    """Training and tests, without setup: loading and compiling once is not what methods differ in."""
    seconds_std: float | None
    steps: float | None
    difference: Difference | None
    same_cost: Difference | None
    """The difference to a shorter run: full data at equal compute. Older records may have two, of which one has a
    growing learning rate: then to the better one."""
    verdict: Verdict
    runs: tuple[str, ...]
    time_saved: float | None = None
    """The share of the seconds of full data that was saved; None if the times cannot be compared."""
    compute: float | None = None
    """The compute as a share of that of full data, looking included."""
    looking: float | None = None
    """The share of the compute of full data that looking took; None for a method that does not look."""

    @property
    def compute_saved(self) -> float | None:
        """The share of the compute of full data that was saved, net of looking; negative if it cost more."""
        return self.saved if self.looking is None or self.saved is None else self.saved - self.looking


@dataclass(frozen=True)
class Comparison:
    """Rows that were judged together, by the same rules."""

    baseline: str
    against: str
    """The label of the row that all others are compared with; empty for full data with each row's own settings."""
    metric: str
    """Its name and unit."""
    margin: float
    """In the unit of the metric."""
    level: float
    looks: tuple[int, ...] | None
    """The numbers of seeds at which verdicts were shown, including this one; None if that is not recorded."""
    interval_level: float
    """The level of the intervals: ``level`` at the first interim analysis, higher at each further one."""
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    """What a reader must know: runs left out and why, settings that differ, seeds without a partner."""
    rate_grew: bool = False
    """True if an older shorter run was trained with a learning rate that grew."""
    metric_info: MetricInfo = MetricInfo()  # noqa: RUF009 - frozen

    @property
    def rates(self) -> str:
        """The learning rate of the shorter runs, in words; empty if they all used the method's own."""
        if not self.rate_grew:
            return ""
        return "at the same learning rate or, if that did better, at a growing one (full+lr, in older records)"

    @property
    def looked(self) -> str:
        """What the level means after this many interim analyses, in words."""
        assumed = "These intervals assume that the number of seeds was fixed in advance"
        if self.looks is None:
            return f"{assumed} and that these runs are judged only once."
        if not self.looks:
            return "With one seed there is no verdict."
        if len(self.looks) == 1:
            return f"{assumed}. This is the first analysis of these runs."
        seeds = ", ".join(map(str, self.looks))
        wider = f"so the intervals are at {percent(self.interval_level)} instead of {percent(self.level)}"
        overall = f"over all analyses, at most {percent(1 - self.level)} of comparisons get a wrong verdict"
        return f"This is interim analysis {len(self.looks)} of these runs, after {seeds} seeds, {wider}: {overall}."

    def plain(self) -> dict[str, Any]:
        """Return the comparison as values that JSON can hold."""
        return asdict(self)


def compare(
    runs: Iterable[Run],
    margin: float | None = None,
    level: float = 0.95,
    looks: Iterable[int] | None = None,
    against: str = "",
) -> Comparison:
    """Compare every label with full data of the same settings and seeds.

    Args:
        runs: The recorded runs.
        margin: How much a method may lose and still count as lossless, in the unit of the metric. None: what the task
            stated, and for a percentage otherwise 0.3 points.
        level: The confidence level, as a share.
        looks: The numbers of seeds at which verdicts were shown before; None if this is the only analysis.
        against: The label or the shown name of a row to compare all others with, instead of full data.

    Returns:
        The rows. The baseline and, unless ``against`` is given, the controls (shorter runs, and what is chosen at
        random if another method is compared) get no verdict.

    Raises:
        InputError: If there are no runs, if their metrics cannot be compared, or if a rule or the label is not valid.
    """
    runs = sorted(runs, key=start_order)
    _check_rules(runs, margin, level)
    info = metric_of_all(runs, margin)
    groups = group(runs)
    shown = name_among(groups)
    against = next((name for name in groups if against in (name, shown(name), older_label(name))), against)
    if against and against not in groups:
        remedy = suggest(repr(against), (repr(shown(name)) for name in groups))
        raise InputError(message("the label of a row to compare all others with", repr(against), remedy))
    notes = caveats.note_nets(runs) + caveats.note_settings(runs, shown(against))
    good: dict[str, list[Run]] = {}
    for name, members in groups.items():
        good[name], said = usable(shown(name), members)
        notes += said
    seeds = {run.settings.seed for members in good.values() for run in members}
    all_looks = None if looks is None else tuple(sorted({*looks, len(seeds)} - {0, 1}))  # one seed shows no verdict
    look = max(1, len(all_looks or ()))
    interval_level = level_at(level, look)
    shorter = list({id(run): run for members in good.values() for run in members if is_shorter_run(run)}.values())
    controls = set() if against else control_labels(groups)
    rows = []
    for name, members in groups.items():
        full = baseline_label(members[0], groups)
        other = against or full
        partners = good.get(other, [])
        difference = paired(good[name], by_seed(partners), interval_level)
        if other == name:
            verdict, difference = BASELINE, None
        else:
            verdict = verdict_of(members, groups.get(other, []), difference, info, level, look, shown(against))
            if name in controls:
                verdict = CONTROL
            notes += caveats.note_unpaired_seeds(shown(name), good[name], partners, shown(against) or FULL)
        same = None if is_shorter_run(members[0]) else _to_shorter_run(good[name], shorter, interval_level, info)
        row = row_of(name, good[name], by_seed(good.get(full, [])), difference, same, verdict)
        rows.append(replace(row, runs=tuple(run.name for run in members)))
    if not any(row.verdict.kind == "baseline" for row in rows):
        notes.append(f"There is no run of {FULL}, so there is nothing to compare with and no verdict.")
    grew = any(map(rate_grew, shorter))
    return Comparison(
        baseline=FULL,
        against=against,
        metric=info.text,
        margin=info.margin,
        level=level,
        looks=all_looks,
        interval_level=interval_level,
        rows=tuple(rows),
        notes=tuple(notes),
        rate_grew=grew,
        metric_info=info,
    )


def _check_rules(runs: list[Run], margin: float | None, level: float) -> None:
    if not runs:
        raise InputError(message("runs to compare", "none", "Train some first: infobatch compare."))
    if margin is not None and not is_margin(margin):
        raise InputError(message("a margin in points, above 0", repr(margin), "0.3 is common."))
    if not 0 < level < 1:
        raise InputError(message("a level in (0, 1)", repr(level), "0.95 is common."))


def metric_of_all(runs: list[Run], margin: float | None) -> MetricInfo:
    """Return the metric of runs, with the margin to judge by.

    Args:
        runs: The runs. Several metrics may differ in their names alone: then no run is compared with one of another.
        margin: The margin; None for the one that the runs state.

    Raises:
        InputError: If their units, directions or margins differ.
    """
    found = list(dict.fromkeys(MetricInfo.of_record(run.start) for run in runs))
    for what, kinds in (
        ("unit and one direction", {(one.unit, one.higher_is_better) for one in found}),
        ("margin", {one.margin for one in found if margin is None}),
    ):
        if len(kinds) > 1:
            got = "; ".join(f"{one.text} ({one.direction}, margin {one.margin:g})" for one in found)
            remedy = "Report them apart." if what != "margin" else "State one, as in --margin 0.3."
            raise InputError(message(f"metrics of one {what} in a comparison", got, remedy))
    names = ", ".join(dict.fromkeys(one.name for one in found))
    return replace(found[0], name=names, margin=found[0].margin if margin is None else float(margin))


# ---- rows ------------------------------------------------------------------------------------------------------


def verdict_of(
    members: list[Run],
    partners: list[Run],
    found: Difference | None,
    info: MetricInfo,
    level: float,
    look: int,
    against: str,
) -> Verdict:
    """Judge a row, or say why it cannot be judged."""
    other = against or "full data"
    for some, whose in ((members, ""), (partners, f" of {other}")):
        ended = [run for run in some if run.end is not None]
        failed = [run for run in ended if metric_of(run) is None]
        if failed:  # a verdict based on the others would hide exactly the runs that went wrong
            text = f"no verdict: {len(failed)} of {len(ended)} runs{whose} ended without a finite metric"
            return Verdict("failed", text)
        if some and not ended:
            return Verdict("alone", f"no verdict: no run{whose} has finished")
    if not partners:
        return Verdict("alone", f"no verdict: there is no {other} to compare with")
    if found is None:
        return Verdict("alone", f"no verdict: no seed in common with {other}")
    return judge(found, info.margin, level, look, word="no worse" if against else "lossless", info=info)


def row_of(
    label: str,
    good: list[Run],
    full: Partner,
    found: Difference | None,
    same: Difference | None,
    verdict: Verdict,
) -> Row:
    """Summarize the usable runs of one label; ``full`` finds full data with a run's seed."""
    metrics = [value for run in good if (value := metric_of(run)) is not None]
    times = [value for run in good if (value := seconds(run)) is not None]
    return Row(
        label=label,
        n=len(metrics),
        mean=mean(metrics),
        std=statistics.stdev(metrics) if len(metrics) > 1 else None,
        saved=mean(saved(run, full(run)) for run in good),
        seconds=mean(times),
        seconds_std=statistics.stdev(times) if len(times) > 1 else None,
        steps=mean((run.end or {}).get("steps") for run in good),
        difference=found,
        same_cost=same,
        verdict=verdict,
        runs=(),
        time_saved=_time_saved(good, full),
        compute=mean(compute(run, full(run)) for run in good),
        looking=mean(map(looking, good)),
    )


def _time_saved(runs: list[Run], full: Partner) -> float | None:
    """Compare seconds over the seeds that both have, unless machines or settings make that meaningless."""
    pairs = [(run, other) for run in runs if (other := full(run)) is not None]
    if any(caveats.cost_settings(run) != caveats.cost_settings(other) for run, other in pairs):
        return None
    if any(caveats.runs_at_a_time(run) > 1 for pair in pairs for run in pair):
        return None
    times = [(seconds(run), seconds(other)) for run, other in pairs]
    known = [(ours, theirs) for ours, theirs in times if ours is not None and theirs]
    return 1 - sum(ours for ours, _ in known) / sum(theirs for _, theirs in known) if known else None


# ---- pairs -----------------------------------------------------------------------------------------------------


def paired(runs: list[Run], partner: Partner, level: float) -> Difference | None:
    """Return the difference between runs and their partners; None if no run has one."""
    pairs = [(run, other) for run in runs if (other := partner(run)) is not None]
    if not pairs:
        return None
    pairs.sort(key=lambda pair: pair[0].settings.seed)
    values = [(metric_of(run) or 0.0) - (metric_of(other) or 0.0) for run, other in pairs]
    seeds = tuple(run.settings.seed for run, _ in pairs)
    return Difference(seeds, *of_differences(values, level))


def by_seed(runs: list[Run]) -> Partner:
    """Return a function that finds the run with another run's seed."""
    found = {run.settings.seed: run for run in runs}
    return lambda run: found.get(run.settings.seed)


def partner_of(runs: Iterable[Run]) -> Partner:
    """Return a function that finds full data with a run's settings and seed."""
    groups = group(runs)
    good = {name: usable(name, members)[0] for name, members in groups.items()}
    return lambda run: by_seed(good.get(baseline_label(run, groups), []))(run)


def _to_shorter_run(runs: list[Run], shorter: list[Run], level: float, info: MetricInfo) -> Difference | None:
    kinds = [[run for run in shorter if rate_grew(run) is grew] for grew in (False, True)]
    return to_the_best([paired(runs, _matching(kind, runs), level) for kind in kinds], info)


def to_the_best(found: Iterable[Difference | None], info: MetricInfo) -> Difference | None:
    """Of the differences to several shorter runs, pick one with most seeds, and among these the smallest gain."""
    return min((one for one in found if one), key=lambda one: (-len(one.seeds), info.gain(one.mean)), default=None)


def _matching(shorter: list[Run], members: list[Run]) -> Partner:
    """Find the shorter run with a run's exact cost, or with about what its label costs on average.

    Comparing with the cost of each single run would include some seeds and leave out others by their outcome.
    """
    average = mean(map(same_cost_steps, members)) or 0.0

    def is_near(other: Run) -> bool:
        return abs(other.settings.steps - average) <= SAME_COST * average

    def partner(run: Run) -> Run | None:
        same = [other for other in shorter if are_alike(run, other) and (not step_gap(run, other) or is_near(other))]
        return min(same, key=lambda other: distance(run, other), default=None)

    return partner
