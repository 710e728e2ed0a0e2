"""Means and paired differences of speedrun records."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from infobatch.lab.compare.verdicts import of_differences

LEVEL = 0.95
NEAR = 0.02
"""How close the cost of a shorter run must be, as a share."""

Key = tuple[str, int, str, float]


def read(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Read the records of runs, of this format and of the first one."""
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def summarize(records: list[dict[str, Any]], field: str) -> list[str]:
    """Return a line per setting: mean, spread, cost, and the paired difference from full data of equal cost."""
    groups: dict[Key, dict[int, dict[str, Any]]] = {}
    for record in records:
        key = record["dataset"], record["holdout"], record["label"], record["budget"] or 0.0
        groups.setdefault(key, {}).setdefault(record["seed"], record)
    lines = [f"{field}; difference: paired by seed, from full data within {NEAR:.0%} of the cost, 95 % interval"]
    for key in sorted(groups):
        runs = groups[key]
        values = [run[field] for run in runs.values()]
        cost = _mean(runs, "cost_epochs")
        spread = f"{stdev(values):4.2f}" if len(values) > 1 else "   -"
        text = f"{key[0]:9s} {key[1] or '':>5} {key[2]:44s} {fmean(values):6.2f} +- {spread} n={len(values):<3d}"
        text += f" cost {cost:5.2f} kept {_mean(runs, 'kept_share'):.2f} {_mean(runs, 'seconds'):6.1f} s"
        lines.append(text + _difference(key, runs, cost, groups, field))
    return lines


def _difference(
    key: Key, runs: dict[int, dict[str, Any]], cost: float, groups: dict[Key, dict[int, dict[str, Any]]], field: str
) -> str:
    if key[2] == "full":
        return ""
    near = {
        abs(_mean(others, "cost_epochs") / cost - 1): others
        for (dataset, holdout, label, _), others in groups.items()
        if (dataset, holdout, label) == (*key[:2], "full")
    }
    if not near or min(near) > NEAR:
        return ""
    others = near[min(near)]
    pairs = [runs[seed][field] - others[seed][field] for seed in runs if seed in others]
    if not pairs:
        return ""
    mean, _, low, high = of_differences(pairs, LEVEL)
    ends = "" if low is None or high is None else f" [{low:+.2f}, {high:+.2f}]"
    return f"  {mean:+.2f}{ends} n={len(pairs)}"


def _mean(runs: dict[int, dict[str, Any]], field: str) -> float:
    return fmean(run[field] for run in runs.values())
