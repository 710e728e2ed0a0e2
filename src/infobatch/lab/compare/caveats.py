"""Notes that a reader of a comparison needs: settings, machines, nets and seeds that differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..runs.fields import number, table
from ..runs.records import Run
from .grouping import COST, decisive, differing

SHOWN_COST = tuple(name for name in COST if name != "data")
"""Without the data folder, whose name says nothing about cost."""


def note_settings(runs: list[Run], against: str) -> list[str]:
    """Note which settings and machines differ between runs."""
    notes = []
    learning = differing([decisive(run) for run in runs])
    if learning:
        paired = "Each run is compared only with full data of the same settings."
        notes.append(
            f"The runs differ in {_list(learning)}. {f'All are compared with {against}.' if against else paired}"
        )
    cost = differing([cost_settings(run) for run in runs])
    if cost:
        notes.append(f"The runs differ in {_list(cost)}: their seconds may not be comparable.")
    together = max(runs_at_a_time(run) for run in runs)
    if together > 1:
        notes.append(f"Up to {together:g} runs shared the machine, so their seconds do not measure speed.")
    return notes


def note_nets(runs: list[Run]) -> list[str]:
    """Note runs with the same settings but different nets: a task's net may change while its name stays.

    Records that do not name their net are not compared with any.
    """
    seeds: dict[str, dict[str, list[int]]] = {}
    for run in runs:
        net = str(run.start.get("net") or "")
        if net:
            seeds.setdefault(repr(decisive(run)), {}).setdefault(net, []).append(run.settings.seed)
    for nets in seeds.values():
        if len(nets) > 1:
            listed = "; ".join(f"{net} ({_name_seeds(sorted(set(some)))})" for net, some in nets.items())
            remedy = "Means and differences mix them: compare runs of one net only."
            return [f"Runs with the same settings have different nets: {listed}. {remedy}"]
    return []


def note_unpaired_seeds(label: str, runs: list[Run], partners: list[Run], baseline: str) -> list[str]:
    """Note seeds for which the baseline has no run."""
    known = {run.settings.seed for run in partners}
    unpaired = sorted(run.settings.seed for run in runs if run.settings.seed not in known)
    if not unpaired or not known:
        return []
    return [f"{label}: no run of {baseline} has {_name_seeds(unpaired)}, so the difference leaves that out."]


def cost_settings(run: Run) -> dict[str, Any]:
    """Return what decides how long a run takes, besides the method: settings, hardware and versions."""
    environment = table(run.start.get("environment"))
    names = {"gpu": "GPU", "cpu": "CPU", "torch": "torch", "infobatch": "infobatch"}
    machine = {shown: environment.get(name) for name, shown in names.items()}
    return {**{name: getattr(run.settings, name) for name in SHOWN_COST}, **machine}


def runs_at_a_time(run: Run) -> float:
    """Return how many runs shared the machine."""
    return number(table(run.start.get("environment")).get("at_a_time")) or 1


def _name_seeds(seeds: list[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _list(values_by_name: Mapping[str, list[Any]]) -> str:
    return "; ".join(f"{name} ({', '.join(map(str, _sorted(values)))})" for name, values in values_by_name.items())


def _sorted(values: list[Any]) -> list[Any]:
    return sorted(values) if all(number(value) is not None for value in values) else values
