"""Means and paired differences of speedrun records."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from infobatch.lab.compare.verdicts import of_differences

LEVEL = 0.95
NEAR = 0.02
"""How close the cost of a shorter run must be, as a share."""

Record = dict[str, Any]


def read(paths: Iterable[Path]) -> list[Record]:
    """Read the records of runs, of this format and of the first one, which had no "format". Torn lines are left out."""
    records: list[Record] = []
    for path in paths:
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            try:
                record = json.loads(line)
                if not isinstance(record, dict):
                    raise ValueError("not an object")
            except ValueError as error:
                print(f"{path}, line {number}: left out, {error}", file=sys.stderr, flush=True)
            else:
                records.append(record)
    return records


@dataclass
class Group:
    """The runs of one setting, by seed."""

    arena: tuple[str, int, int]
    """Data set, samples held out, format of the records: only groups of one arena are compared."""
    label: str
    runs: dict[int, Record]
    alone: list[Record]
    """The runs that had the device for themselves, whose seconds may be quoted."""

    def mean(self, field: str) -> float:
        return fmean(run[field] for run in self.runs.values())

    def minus(self, other: Group, field: str) -> str:
        """Return the mean difference, paired by seed, with its interval; empty if there is no pair."""
        pairs = [self.runs[seed][field] - other.runs[seed][field] for seed in self.runs if seed in other.runs]
        if other is self or not pairs:
            return ""
        mean, _, low, high = of_differences(pairs, LEVEL)
        ends = "" if low is None or high is None else f" [{low:+.2f}, {high:+.2f}]"
        return f"{mean:+.2f}{ends} n={len(pairs)}"

    def of(self, full: Group) -> str:
        """Return the seconds and the compute as shares of those of full data; empty unless both ran alone, alike."""
        pairs = [(one, other) for one in self.alone for other in full.alone if _setting(one) == _setting(other)]
        if full is self or not pairs:
            return ""
        seconds, compute = (
            fmean(one[field] for one, _ in pairs) / fmean(other[field] for _, other in pairs)
            for field in ("seconds", "cost_epochs")
        )
        return f"of its seconds {seconds:.3f}, of its compute {compute:.3f}"


def _setting(record: Record) -> tuple[Any, ...]:
    """What must be the same where seconds are compared."""
    return tuple(str(record.get(name)) for name in ("device", "torch", "compiled", "dtype", "widths"))


def group(records: Iterable[Record]) -> list[Group]:
    """Return the runs of each setting; of two runs with the same seed the first counts."""
    groups: dict[tuple[Any, ...], Group] = {}
    for record in records:
        arena = record["dataset"], record["holdout"], record.get("format", 1)
        key = *arena, record["label"], record["budget"] or 0.0
        found = groups.setdefault(key, Group(arena, record["label"], {}, []))
        found.runs.setdefault(record["seed"], record)
        if record["alone"]:
            found.alone.append(record)
    return [groups[key] for key in sorted(groups)]


def shorter_run(of: Group, groups: list[Group]) -> Group | None:
    """Return the runs on full data that cost the same."""
    cost = of.mean("cost_epochs")
    full = [one for one in groups if one.label == "full" and one.arena == of.arena]
    near = min(full, key=lambda one: abs(one.mean("cost_epochs") - cost), default=None)
    return near if near is not None and abs(near.mean("cost_epochs") / cost - 1) <= NEAR else None


def longest_run(of: Group, groups: list[Group]) -> Group | None:
    """Return the longest runs on full data."""
    full = [one for one in groups if one.label == "full" and one.arena == of.arena]
    return max(full, key=lambda one: one.mean("cost_epochs"), default=None)


def summarize(records: list[Record], field: str) -> list[str]:
    """Return a line per setting: mean, spread, cost, seconds if alone, and the paired differences."""
    lines = [
        f"{field}, mean +- standard deviation; cost in epochs of full data; seconds of runs that ran alone",
        f"differences are paired by seed, with {LEVEL:.0%} intervals: "
        f"from full data of equal cost (within {NEAR:.0%}) and from the longest runs on full data",
        "seconds and compute as shares of the longest runs': of runs alone on the same device, with the same settings",
    ]
    groups = group(records)
    arena = None
    for one in groups:
        if one.arena != arena:
            arena = one.arena
            name, holdout, version = arena
            extra = [f"{holdout} held out"] if holdout else []
            lines.append(", ".join([name, *extra, *(["first script"] if version == 1 else [])]))
        values = [run[field] for run in one.runs.values()]
        spread = f"{stdev(values):4.2f}" if len(values) > 1 else "   -"
        seconds = f"{fmean(run['seconds'] for run in one.alone):6.1f} s" if one.alone else "     - s"
        text = f"  {one.label:52s} {fmean(values):6.2f} +- {spread} n={len(values):<3d}"
        text += f" cost {one.mean('cost_epochs'):5.2f} kept {one.mean('kept_share'):.2f} {seconds}"
        for other, what in ((shorter_run(one, groups), "equal cost"), (longest_run(one, groups), "longest")):
            difference = "" if other is None else one.minus(other, field)
            text += f"  {what} {difference}" if difference else ""
        longest = longest_run(one, groups)
        share = "" if longest is None else one.of(longest)
        lines.append(text + (f"  {share}" if share else ""))
    return lines
