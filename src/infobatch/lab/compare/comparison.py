"""Numbers of many runs, and what they prove: mean, spread, paired difference to full data, a plain verdict.

    comparison = compare(read_many("runs"))
    for row in comparison.rows:
        print(row.label, row.mean, row.verdict.text)

Runs are paired by seed, because a seed fixes the net's first weights and much of the luck of both. The interval is
Student's, of the paired differences; what it proves, ``verdicts`` says. Each row stands by itself: of forty harmless
methods one will look worse.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...errors import InputError, message
from ..format import percent
from ..runs.fields import mean, metric_of, number, saved, seconds, table
from ..runs.records import Run, label
from ..train.settings import near
from .verdicts import Difference, Verdict, judge, level_at, of_differences

FULL = "full"
"""The method that all others are held against."""
OWN = ("method", "seed", "compensate", "ideas", "steps")
"""The settings a comparison is about."""
COST = ("data", "eval_every", "gallery", "feed", "graph", "workers", "device", "threads", "compile", "channels_last")
"""Settings that change what a run costs or shows, and not what it learns."""
SAME_STEPS = 0.02
"""How near a control's number of steps must be to what the method takes on average, as a share."""


@dataclass(frozen=True)
class Row:
    """All runs of one label. ``n`` counts those with a metric; means are over them."""

    label: str
    n: int
    mean: float | None
    std: float | None
    saved: float | None
    """The share of full data's samples that were not trained on."""
    seconds: float | None
    """Of training and tests, without setup: what is loaded or compiled once is no part of what methods differ in."""
    seconds_std: float | None
    steps: float | None
    difference: Difference | None
    same_steps: Difference | None
    """The difference to full data trained for as many steps as this method took: of two rates, at the better one."""
    verdict: Verdict
    runs: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    baseline: str
    against: str
    """The label of the row that all others were held against; empty for full data of each one's own settings."""
    metric: str
    margin: float
    level: float
    looks: tuple[int, ...] | None
    """The numbers of seeds at which verdicts were shown, this time included; None where that is not recorded."""
    interval_level: float
    """Of the intervals: the level of one look, more with each further look."""
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    """What a reader must know: runs left out and why, settings that differ, seeds without a partner."""
    rate_grew: bool = False
    """Whether there is full data for as many steps as a method took at a rate that grew in the place of steps."""

    @property
    def rates(self) -> str:
        """At which learning rate full data for as many steps was trained; empty where there is one rate alone."""
        if not self.rate_grew:
            return ""
        return "at the same learning rate or, where that did better, at one that grew in the place of steps (full+lr)"

    @property
    def looked(self) -> str:
        """What the level is worth after so many looks, in words."""
        holds = "The level holds for a number of seeds fixed beforehand."
        if self.looks is None:
            return f"{holds} One look at these runs is assumed."
        if len(self.looks) < 2:
            return f"{holds} You have looked once." if self.looks else f"{holds} With one seed there is no verdict."
        seeds = ", ".join(map(str, self.looks))
        wider = f"so the intervals are at {percent(self.interval_level)} in place of {percent(self.level)}"
        whole = f"over all looks a wrong verdict comes in at most {percent(1 - self.level)} of comparisons"
        return f"{holds} You have looked {len(self.looks)} times, at {seeds} seeds, {wider}: {whole}."

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def compare(
    runs: Iterable[Run],
    margin: float = 0.3,
    level: float = 0.95,
    looks: Iterable[int] | None = None,
    against: str = "",
) -> Comparison:
    """Every label against full data with the same settings and seeds, or against the label ``against``.

    ``looks`` are the numbers of seeds at which verdicts were shown before; without them this is the only look.
    """
    runs = sorted(runs, key=_begun)
    if not runs:
        raise InputError(message("runs to compare", "none", "Train some first: infobatch compare."))
    if not (0 < margin < math.inf):
        raise InputError(message("a margin in points, above 0", repr(margin), "0.3 is usual."))
    if not 0 < level < 1:
        raise InputError(message("a level in (0, 1)", repr(level), "0.95 is usual."))
    sets = group(runs)
    if against and against not in sets:
        remedy = near(repr(against), map(repr, sets))
        raise InputError(message("the label of a row to hold all others against", repr(against), remedy))
    notes = _notes_on_nets(runs) + _notes_on_settings(runs, against)
    good: dict[str, list[Run]] = {}
    for name, members in sets.items():
        good[name], said = usable(name, members)
        notes += said
    seeds = {run.settings.seed for members in good.values() for run in members}
    taken = None if looks is None else tuple(sorted({*looks, len(seeds)} - {0, 1}))  # one seed shows no verdict
    look = max(1, len(taken or ()))
    held = level_at(level, look)
    controls = list({id(run): run for members in good.values() for run in members if is_control(run)}.values())
    rows = []
    for name, members in sets.items():
        full = _baseline_of(members[0], sets)
        other = against or full
        partners = good.get(other, [])
        difference = paired(good[name], by_seed(partners), held)
        if other == name:
            verdict = Verdict("baseline", "the baseline")
            difference = None
        else:
            verdict = verdict_of(members, sets.get(other, []), difference, margin, level, look, against)
            notes += _lone_seeds(name, good[name], partners, against or FULL)
        same = None if is_control(members[0]) else _same_steps(good[name], controls, held)
        row = row_of(name, good[name], by_seed(good.get(full, [])), difference, same, verdict)
        rows.append(replace(row, runs=tuple(run.name for run in members)))
    if not any(row.verdict.kind == "baseline" for row in rows):
        notes.append(f"There is no run of {FULL}, so nothing to compare with and no verdict.")
    metric, grew = _metric_name(runs), any(map(_rate_grew, controls))
    return Comparison(FULL, against, metric, margin, level, taken, held, tuple(rows), tuple(notes), grew)


def group(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs that differ in nothing but the seed, by label. Rate by rate, where rates differ: the baseline, then
    methods as they were begun with the first seed, each followed by its control. The order of the runs given does
    not matter.

    Where other settings than the method differ, they are part of the label. Full data with another method's very
    number of steps is labelled by that method, since the number differs from seed to seed; "full+lr" where the
    learning rate grew in the place of steps.
    """
    runs = sorted(runs, key=_begun)
    shown = _telling(runs)
    whose = _owners([run for run in runs if is_control(run)], runs)
    sets: dict[str, list[Run]] = {}
    owners: dict[str, str] = {}
    for run in runs:
        values = ", ".join(f"{name}={decisive(run)[name]}" for name in shown)
        suffix = f" · {values}" if values else ""
        for owner in whose.get(id(run)) or ("",):
            kind = f"{FULL}+lr" if _rate_grew(run) else FULL
            name = (f"{kind}, steps of {owner}" if owner else run.label) + suffix
            sets.setdefault(name, []).append(run)
            owners[name] = owner + suffix if owner else ""

    def rank(name: str) -> tuple[float, int]:
        run = sets[name][0]
        rate = run.settings.lr if "lr" in shown else 0.0
        if _is_baseline(run):
            return rate, 1 if run.settings.ideas else 0
        return rate, 3 if is_control(run) else 2

    own = sorted((name for name in sets if not owners[name]), key=rank)
    place = {name: at for at, name in enumerate(own)}

    def position(name: str) -> tuple[int, bool, bool]:
        return place[owners[name] or name], bool(owners[name]), _rate_grew(sets[name][0])

    return {name: sets[name] for name in sorted(sets, key=position)}


def _begun(run: Run) -> tuple[int, str, str]:
    return run.settings.seed, str(run.start.get("time") or ""), run.name


def partner_of(runs: Iterable[Run]) -> Callable[[Run], Run | None]:
    """A function that finds, for a run, full data with its settings and its seed."""
    sets = group(runs)
    good = {name: usable(name, members)[0] for name, members in sets.items()}
    return lambda run: by_seed(good.get(_baseline_of(run, sets), []))(run)


def verdict_of(
    members: list[Run],
    partners: list[Run],
    found: Difference | None,
    margin: float,
    level: float,
    look: int,
    against: str,
) -> Verdict:
    other = against or "full data"
    for some, whose in ((members, ""), (partners, f" of {other}")):
        ended = [run for run in some if run.end is not None]
        lost = [run for run in ended if metric_of(run) is None]
        if lost:  # a verdict from the others would hide just the runs that went wrong
            text = f"no verdict: {len(lost)} of {len(ended)} runs{whose} ended without a finite metric"
            return Verdict("failed", text)
        if some and not ended:
            return Verdict("alone", f"no verdict: no run{whose} has finished")
    if not partners:
        return Verdict("alone", f"no verdict: no {other} to compare with")
    if found is None:
        return Verdict("alone", f"no verdict: no seed in common with {other}")
    return judge(found, margin, level, look, word="no worse" if against else "lossless")


def paired(runs: list[Run], partner: Callable[[Run], Run | None], level: float) -> Difference | None:
    pairs = [(run, other) for run in runs if (other := partner(run)) is not None]
    if not pairs:
        return None
    pairs.sort(key=lambda pair: pair[0].settings.seed)
    values = [(metric_of(run) or 0.0) - (metric_of(other) or 0.0) for run, other in pairs]
    seeds = tuple(run.settings.seed for run, _ in pairs)
    return Difference(seeds, *of_differences(values, level))


def _same_steps(runs: list[Run], controls: list[Run], level: float) -> Difference | None:
    """To the controls at the same rate or, where they did better, to those whose rate grew in the place of steps."""
    kinds = [[run for run in controls if _rate_grew(run) is grew] for grew in (False, True)]
    return to_the_best([paired(runs, _matching(kind, runs), level) for kind in kinds])


def to_the_best(found: Iterable[Difference | None]) -> Difference | None:
    """Of differences to several controls the one with most seeds, and among those the one to the best control."""
    return min((one for one in found if one), key=lambda one: (-len(one.seeds), one.mean), default=None)


def by_seed(runs: list[Run]) -> Callable[[Run], Run | None]:
    table = {run.settings.seed: run for run in runs}
    return lambda run: table.get(run.settings.seed)


def _matching(controls: list[Run], members: list[Run]) -> Callable[[Run], Run | None]:
    """The control with a run's very number of steps, or with one that is near what its label takes on average.

    Near a single run's would do for some seeds and not for others, by what came of them.
    """
    usual = mean((run.end or {}).get("steps") for run in members) or 0.0

    def near(control: Run) -> bool:
        return abs(control.settings.steps - usual) <= SAME_STEPS * usual

    def partner(run: Run) -> Run | None:
        same = [other for other in controls if _alike(run, other) and (not _steps_apart(run, other) or near(other))]
        return min(same, key=lambda other: _distance(run, other), default=None)

    return partner


def _alike(run: Run, full: Run) -> bool:
    """Full data with ideas stands beside runs with the same ideas alone; without ideas, beside all."""
    pair = run.settings.seed == full.settings.seed and full.settings.ideas in ("", run.settings.ideas)
    return pair and decisive(run) == decisive(full)


def _distance(run: Run, control: Run) -> tuple[bool, float]:
    return run.settings.ideas != control.settings.ideas, _steps_apart(run, control)


def _steps_apart(run: Run, control: Run) -> float:
    """How far a control's steps are from those that a run took on its own, as a share of them."""
    took = number((run.end or {}).get("steps"))
    if not took or run.settings.steps:
        return math.inf
    return abs(control.settings.steps - took) / took


def _owners(controls: list[Run], runs: list[Run]) -> dict[int, list[str]]:
    """Of each control, the labels of the methods whose very steps it took. A method owns controls where most of its
    runs have one; a round number of steps that one of them happened to take does not make it the method's. Two
    methods may have one of a seed in common; whose controls are all another's, needs no row of its own.
    """
    by_seed: dict[int, list[Run]] = {}
    for run in runs:
        by_seed.setdefault(run.settings.seed, []).append(run)
    exact = {
        id(control): [
            run for run in by_seed[control.settings.seed] if not _steps_apart(run, control) and _alike(run, control)
        ]
        for control in controls
    }
    having = Counter(run.label for run in {id(run): run for found in exact.values() for run in found}.values())
    there = Counter(run.label for run in runs)
    owning = {label for label, count in having.items() if 2 * count > there[label]}
    claims: dict[str, set[int]] = {}
    for control in controls:
        own = [(_distance(run, control), run.label) for run in exact[id(control)] if run.label in owning]
        for distance, name in own:
            if distance == min(own)[0]:
                claims.setdefault(name, set()).add(id(control))
    kept: dict[str, set[int]] = {}
    for name in sorted(claims, key=lambda name: -len(claims[name])):  # equals in the order they came
        if not any(claims[name] <= other for other in kept.values()):
            kept[name] = claims[name]
    return {id(control): [name for name in kept if id(control) in kept[name]] for control in controls}


def _is_baseline(run: Run) -> bool:
    """Full data, whatever its ideas."""
    plain = label(run.settings.but(ideas="")) if run.settings.ideas else run.label
    return plain == FULL


def is_control(run: Run) -> bool:
    """Full data, stopped after a number of steps."""
    return run.settings.steps > 0 and run.settings.method == FULL


def _rate_grew(run: Run) -> bool:
    return run.settings.grows == "lr"


def _baseline_of(run: Run, sets: Mapping[str, list[Run]]) -> str:
    """The label of full data with this run's settings; empty where there is none.

    Of a method with ideas: full data with the same ideas, else with none. Full data with ideas stands against full
    data without, and is itself the baseline where there is no other.
    """
    found = {
        members[0].settings.ideas: name
        for name, members in sets.items()
        if _is_baseline(members[0]) and decisive(members[0]) == decisive(run)
    }
    own = run.settings.ideas
    wanted = ("", own) if _is_baseline(run) else (own, "")
    return next((found[ideas] for ideas in wanted if ideas in found), "")


def usable(label: str, members: list[Run]) -> tuple[list[Run], list[str]]:
    """One finished run a seed, with a finite metric; and what was said about the others."""
    notes: list[str] = []
    usable: dict[int, Run] = {}
    for run in members:
        who = f"{run.name} ({label}, seed {run.settings.seed})"
        if run.end is None:
            notes.append(f"{who} has not finished: {len(run.epochs)} of {run.settings.epochs} epochs. Left out.")
        elif metric_of(run) is None:
            notes.append(f"{who} ended without a finite metric. Left out of the means.")
        else:
            other = usable.get(run.settings.seed)
            later = run if other is None else max(other, run, key=lambda one: str(one.start.get("time", "")))
            if other is not None:
                notes.append(
                    f"{other.name} and {run.name} are both {label}, seed {run.settings.seed}: the later counts."
                )
            usable[run.settings.seed] = later
    return [usable[seed] for seed in sorted(usable)], notes


def row_of(
    label: str,
    good: list[Run],
    partner: Callable[[Run], Run | None],
    found: Difference | None,
    same: Difference | None,
    verdict: Verdict,
) -> Row:
    metrics = [value for run in good if (value := metric_of(run)) is not None]
    times = [value for run in good if (value := seconds(run)) is not None]
    return Row(
        label=label,
        n=len(metrics),
        mean=mean(metrics),
        std=statistics.stdev(metrics) if len(metrics) > 1 else None,
        saved=mean(saved(run, partner(run)) for run in good),
        seconds=mean(times),
        seconds_std=statistics.stdev(times) if len(times) > 1 else None,
        steps=mean((run.end or {}).get("steps") for run in good),
        difference=found,
        same_steps=same,
        verdict=verdict,
        runs=(),
    )


def _lone_seeds(label: str, good: list[Run], partners: list[Run], baseline: str) -> list[str]:
    known = {run.settings.seed for run in partners}
    lone = sorted(run.settings.seed for run in good if run.settings.seed not in known)
    if not lone or not known:
        return []
    return [f"{label}: {_seeds(lone)} without a run of {baseline} beside it, so not in the difference."]


def _seeds(some: list[int]) -> str:
    return f"seed{'s' if len(some) > 1 else ''} {', '.join(map(str, some))}"


def decisive(run: Run) -> dict[str, Any]:
    """The settings that decide what a run learns, besides those compared. Data are known by what they are, if it is
    recorded, or by the name of a set that is the same everywhere, rather than by where they lie."""
    plain = run.settings.plain()
    own = {name: value for name, value in plain.items() if name not in OWN + COST}
    named = ":" not in plain["task"] and plain["task"] != "images"
    source = str(run.start.get("source") or ("" if named else plain["data"]))
    return {**own, "milestones": tuple(plain["milestones"]), "source": source}


def differing(tables: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Keys whose values are not all alike, with the values in order of appearance."""
    keys = dict.fromkeys(key for table in tables for key in table)
    values = {key: list(dict.fromkeys(repr(table.get(key)) for table in tables)) for key in keys}
    first = {key: {repr(table.get(key)): table.get(key) for table in tables} for key in keys}
    return {key: [first[key][text] for text in texts] for key, texts in values.items() if len(texts) > 1}


def _telling(runs: list[Run]) -> list[str]:
    """Differing settings, as few as tell the runs apart."""
    tables = [decisive(run) for run in runs]
    names: list[str] = []
    for name in differing(tables):
        more = [*names, name]
        if len({tuple(table[key] for key in more) for table in tables}) > len(
            {tuple(table[key] for key in names) for table in tables}
        ):
            names = more
    return names


def _notes_on_settings(runs: list[Run], against: str) -> list[str]:
    notes = []
    apart = differing([decisive(run) for run in runs])
    if apart:
        each = "Each is compared only with full data of its own settings."
        how = f"All are compared with {against}." if against else each
        notes.append(f"The runs differ in {_listed(apart)}. {how}")
    told = [name for name in COST if name != "data"]  # a folder's name says nothing
    cost = differing([{name: getattr(run.settings, name) for name in told} for run in runs])
    cost |= differing([_machine(run) for run in runs])
    if cost:
        notes.append(f"The runs differ in {_listed(cost)}: take care when comparing their seconds.")
    together = max(number(table(run.start.get("environment")).get("at_a_time")) or 1 for run in runs)
    if together > 1:
        notes.append(f"Up to {together:g} runs shared the machine: their seconds are no figures of speed.")
    return notes


def _notes_on_nets(runs: list[Run]) -> list[str]:
    """A task's own net may change while its name stays. Records that do not tell theirs are not held against any."""
    seeds: dict[str, dict[str, list[int]]] = {}
    for run in runs:
        net = str(run.start.get("net") or "")
        if net:
            seeds.setdefault(repr(decisive(run)), {}).setdefault(net, []).append(run.settings.seed)
    for nets in seeds.values():
        if len(nets) > 1:
            told = (f"{net} ({_seeds(sorted(set(their)))})" for net, their in nets.items())
            mixed = "Means and differences mix them: compare runs of one net alone."
            return [f"Runs of the same settings have different nets: {'; '.join(told)}. {mixed}"]
    return []


def _machine(run: Run) -> dict[str, Any]:
    environment = table(run.start.get("environment"))
    names = {"gpu": "GPU", "cpu": "CPU", "torch": "torch", "infobatch": "infobatch"}
    return {shown: environment.get(name) for name, shown in names.items()}


def _listed(apart: Mapping[str, list[Any]]) -> str:
    return "; ".join(f"{name} ({', '.join(map(str, _in_order(values)))})" for name, values in apart.items())


def _in_order(values: list[Any]) -> list[Any]:
    return sorted(values) if all(number(value) is not None for value in values) else values


def _metric_name(runs: list[Run]) -> str:
    return ", ".join(dict.fromkeys(str(run.start.get("metric") or "metric") for run in runs))
