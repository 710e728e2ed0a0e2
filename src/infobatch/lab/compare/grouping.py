"""Sort runs into groups that differ only in the seed, and give each group its label.

>>> from ..train.settings import Settings
>>> runs = [Run("a", {"settings": Settings(method=name).plain()}) for name in ("infobatch", "full")]
>>> list(group(runs))
['full', 'infobatch']
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..metrics.metric_info import MetricInfo
from ..runs.fields import metric_of, same_cost_steps
from ..runs.records import Run, label
from ..train.method_text import SIEVE

FULL = "full"
"""The method that trains on all samples: the baseline."""
RANDOM = "random"
"""The method that leaves samples out at random: a control, if other methods are compared."""
RANDOM_ROWS = f"{SIEVE}random_rows"
"""The same inside the batch."""
COMPARED = ("method", "seed", "compensate", "ideas", "steps")
"""The settings that a comparison is about."""
COST = ("data", "eval_every", "gallery", "feed", "graph", "workers", "device", "threads", "compile", "channels_last")
"""Settings that change what a run costs or shows, but not what it learns."""


def group(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Group runs that differ only in the seed, by label; the order of ``runs`` does not matter.

    Settings other than the method are part of the label if they differ. Full data at exactly the cost of a method ("a
    shorter run") is labelled by that method, because its number of steps differs from seed to seed. Older records may
    hold such runs with a growing learning rate: their label begins with "full+lr".

    Returns:
        The groups, by learning rate if that differs; within a rate the baseline first, then methods in the order in
        which they were started with the first seed, each followed by its shorter run.
    """
    runs = sorted(runs, key=start_order)
    shown = _labelling_settings(runs)
    owners_by_run = _find_owners([run for run in runs if is_shorter_run(run)], runs)
    groups: dict[str, list[Run]] = {}
    owner_of: dict[str, str] = {}
    for run in runs:
        values = ", ".join(f"{name}={decisive(run)[name]}" for name in shown)
        suffix = f" · {values}" if values else ""
        for owner in owners_by_run.get(id(run)) or ("",):
            kind = f"{FULL}+lr" if rate_grew(run) else FULL
            name = (f"{kind}, cost of {owner}" if owner else run.label) + suffix
            groups.setdefault(name, []).append(run)
            owner_of[name] = owner + suffix if owner else ""

    def rank(name: str) -> tuple[float, int]:
        run = groups[name][0]
        rate = run.settings.lr if "lr" in shown else 0.0
        if is_baseline(run):
            return rate, 1 if run.settings.ideas else 0
        return rate, 3 if is_shorter_run(run) else 2

    unowned = sorted((name for name in groups if not owner_of[name]), key=rank)
    place = {name: at for at, name in enumerate(unowned)}

    def position(name: str) -> tuple[int, bool, bool]:
        return place[owner_of[name] or name], bool(owner_of[name]), rate_grew(groups[name][0])

    return {name: groups[name] for name in sorted(groups, key=position)}


def start_order(run: Run) -> tuple[int, str, str]:
    """Sort key: by seed, then by the time at which a run was started."""
    return run.settings.seed, str(run.start.get("time") or ""), run.name


# ---- what a run is ---------------------------------------------------------------------------------------------


def is_baseline(run: Run) -> bool:
    """True for full data; in older records with or without ``ideas``."""
    without_ideas = label(run.settings.but(ideas="")) if run.settings.ideas else run.label
    return without_ideas == FULL


def is_shorter_run(run: Run) -> bool:
    """True for full data that was stopped after a number of steps."""
    return run.settings.steps > 0 and run.settings.method == FULL


def control_labels(groups: Mapping[str, list[Run]]) -> set[str]:
    """Find the groups that others are compared with: shorter runs, and random choices if other methods are compared."""
    shorter = {name for name, members in groups.items() if is_shorter_run(members[0])}
    kinds = {name: members[0].settings.method.partition(":")[0] for name, members in groups.items()}
    chance = {name for name, kind in kinds.items() if kind in (RANDOM, RANDOM_ROWS)}
    others = {name for name, kind in kinds.items() if kind != FULL} - chance
    return shorter | (chance if others else set())


def rate_grew(run: Run) -> bool:
    """True for older records in which the learning rate grew."""
    return run.settings.grows == "lr"


def baseline_label(run: Run, groups: Mapping[str, list[Run]]) -> str:
    """Find the label of full data with a run's settings; empty if there is none.

    A method with ``ideas`` (older records) is compared with full data that has the same ideas, or else none. Full data
    with ideas is compared with full data without, and is itself the baseline if there is no other.
    """
    found = {
        members[0].settings.ideas: name
        for name, members in groups.items()
        if is_baseline(members[0]) and decisive(members[0]) == decisive(run)
    }
    ideas = run.settings.ideas
    preferred = ("", ideas) if is_baseline(run) else (ideas, "")
    return next((found[each] for each in preferred if each in found), "")


def usable(label: str, members: list[Run]) -> tuple[list[Run], list[str]]:
    """Pick one finished run per seed with a finite metric.

    Returns:
        These runs by seed, and a note about each run that was left out.
    """
    notes: list[str] = []
    chosen: dict[int, Run] = {}
    for run in members:
        described = f"{run.name} ({label}, seed {run.settings.seed})"
        if run.end is None:
            done = f"{len(run.epochs)} of {run.settings.epochs} epochs"
            notes.append(f"{described} has not finished ({done}), so it is left out.")
        elif metric_of(run) is None:
            notes.append(f"{described} ended without a finite metric, so it is left out of the means.")
        else:
            other = chosen.get(run.settings.seed)
            later = run if other is None else max(other, run, key=lambda one: str(one.start.get("time", "")))
            if other is not None:
                both = f"{other.name} and {run.name} are both {label}, seed {run.settings.seed}"
                notes.append(f"{both}: only the later one counts.")
            chosen[run.settings.seed] = later
    return [chosen[seed] for seed in sorted(chosen)], notes


# ---- settings --------------------------------------------------------------------------------------------------


def decisive(run: Run) -> dict[str, Any]:
    """Return the settings that decide what a run learns, apart from those compared, and what is measured.

    Data are identified by their recorded source, or by the name of a standard data set; a folder's name says little.
    """
    settings = run.settings.plain()
    kept = {name: value for name, value in settings.items() if name not in COMPARED + COST}
    metric = str(run.start.get("metric") or MetricInfo().text)
    is_standard = ":" not in settings["task"] and settings["task"] != "images"
    source = str(run.start.get("source") or ("" if is_standard else settings["data"]))
    return {**kept, "milestones": tuple(settings["milestones"]), "source": source, "metric": metric}


def differing(tables: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the keys whose values differ between tables, with the values in order of appearance."""
    keys = dict.fromkeys(key for table in tables for key in table)
    values = {key: {repr(table.get(key)): table.get(key) for table in tables} for key in keys}
    return {key: list(found.values()) for key, found in values.items() if len(found) > 1}


def _labelling_settings(runs: list[Run]) -> list[str]:
    """Choose as few differing settings as it takes to tell the runs apart."""
    tables = [decisive(run) for run in runs]
    names: list[str] = []
    for name in differing(tables):
        more = [*names, name]
        if len({tuple(table[key] for key in more) for table in tables}) > len(
            {tuple(table[key] for key in names) for table in tables}
        ):
            names = more
    return names


# ---- shorter runs and the methods they belong to -----------------------------------------------------------------


def are_alike(run: Run, full: Run) -> bool:
    """True if full data has a run's seed and settings; full data with ideas only matches runs with the same ideas."""
    is_pair = run.settings.seed == full.settings.seed and full.settings.ideas in ("", run.settings.ideas)
    return is_pair and decisive(run) == decisive(full)


def distance(run: Run, shorter: Run) -> tuple[bool, float]:
    """Sort key: how well a shorter run matches a run."""
    return run.settings.ideas != shorter.settings.ideas, step_gap(run, shorter)


def step_gap(run: Run, shorter: Run) -> float:
    """Return how far a shorter run's steps are from those that cost as much as a run, as a share of the latter."""
    same = same_cost_steps(run)
    if not same or run.settings.steps:
        return math.inf
    return abs(shorter.settings.steps - same) / same


def _find_owners(shorter_runs: list[Run], runs: list[Run]) -> dict[int, list[str]]:
    """Find the labels of the methods whose exact cost each shorter run had.

    A method owns shorter runs if most of its runs have one; a round number of steps that one run took by chance does
    not count. Two methods may share the shorter run of a seed. A method all of whose shorter runs belong to another
    one needs no group of its own.
    """
    by_seed: dict[int, list[Run]] = {}
    for run in runs:
        by_seed.setdefault(run.settings.seed, []).append(run)
    exact = {
        id(shorter): [
            run for run in by_seed[shorter.settings.seed] if not step_gap(run, shorter) and are_alike(run, shorter)
        ]
        for shorter in shorter_runs
    }
    matched = Counter(run.label for run in {id(run): run for found in exact.values() for run in found}.values())
    total = Counter(run.label for run in runs)
    owning = {label for label, count in matched.items() if 2 * count > total[label]}
    claims: dict[str, set[int]] = {}
    for shorter in shorter_runs:
        candidates = [(distance(run, shorter), run.label) for run in exact[id(shorter)] if run.label in owning]
        for gap, name in candidates:
            if gap == min(candidates)[0]:
                claims.setdefault(name, set()).add(id(shorter))
    kept: dict[str, set[int]] = {}
    for name in sorted(claims, key=lambda name: -len(claims[name])):  # stable: ties keep their order
        if not any(claims[name] <= other for other in kept.values()):
            kept[name] = claims[name]
    return {id(shorter): [name for name in kept if id(shorter) in kept[name]] for shorter in shorter_runs}
