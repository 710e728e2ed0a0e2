"""Checks of a state_dict. All of it is checked before any of it is loaded, so loading cannot stop halfway."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from .checks import describe, is_count, is_number
from .epoch.summary import EpochSummary
from .errors import StateError, message, plural

FORMAT = 2
COUNTS = ("seed", "epoch", "usual_update", "planned", "done")
FIELDS = {
    *("format", "size", "method", "compensate", "device", "num_epochs", "scores", "memory", "summaries", "running"),
    *COUNTS,
}


def check_state(
    state: Any,
    size: int,
    method: str,
    compensate: str,
    memory: Collection[str] = (),
    channels: Collection[str] = (),
) -> None:
    """Check the state of scores in one table."""
    first = state[0] if isinstance(state, list) and state else state
    if isinstance(first, dict) and "shard" in first:
        raise _refuse("scores in one table", "one rank's shard of them", "Pass shard_scores=True.")
    _check_facts(state, size, method, compensate, FIELDS)
    _check_scores(state["scores"], size)
    _check_columns(state["memory"], size, memory)
    if (state["running"] is None) != (state["done"] == 0):
        raise _refuse(
            f"the running epoch, of which {state['done']} samples are done",
            "none of it",
            "torch.distributed.checkpoint loads only what its reader has: use infobatch.integrations.dcp.Sharded.",
        )
    if state["running"] is not None:
        _check_running(state["running"], size, channels)


def check_shards(
    states: list[Any], size: int, method: str, compensate: str, start: int, stop: int, plan_names: set[str]
) -> None:
    """Check shards saved by ranks: each complete, all of one moment, with places ``start`` to ``stop`` in them."""
    if not states:
        raise _refuse("the state of a rank, or of all of them", "an empty list", "Load what state_dict() returned.")
    for state in states:
        if isinstance(state, dict) and set(state) == FIELDS:
            raise _refuse("one rank's shard of the scores", "scores in one table", "Leave shard_scores out.")
        _check_facts(state, size, method, compensate, FIELDS | {"shard"})
        shard = state["shard"]
        least = {"rank": 0, "world": 1, "start": 0}
        is_shard = isinstance(shard, dict) and set(shard) == set(least)
        if not is_shard or not all(is_count(shard[key], least[key]) for key in least):
            raise _refuse("which shard this is", repr(shard), "It is damaged.")
        each = -(-size // shard["world"])
        first = min(shard["rank"] * each, size)
        if shard["start"] != first:
            raise _refuse(f"a shard from place {first}", f"from {shard['start']}", "It is damaged.")
        count = min(each, size - first)
        _check_scores(state["scores"], count)
        if state["running"] is not None:
            _check_running_shard(state["running"], count, size, plan_names)
    for name in ("epoch", "seed", "planned"):
        values = {state[name] for state in states}
        if len(values) > 1:
            raise _refuse(f"shards of one {name}", repr(sorted(values)), "Load those that were saved together.")
    if len({state["running"] is None for state in states}) > 1:
        raise _refuse("shards of one moment", "some in an epoch, some before", "Load those that were saved together.")
    reached = start
    for state in sorted(states, key=lambda state: state["shard"]["start"]):
        if state["shard"]["start"] <= reached:
            reached = max(reached, state["shard"]["start"] + state["scores"].numel())
    if reached < stop:
        raise _refuse(
            f"places {start} to {stop}, which belong to this rank",
            f"{plural(len(states), 'shard')}, without those from {reached} on",
            "On another number of ranks load the list of all ranks' states.",
        )


def _check_facts(state: Any, size: int, method: str, compensate: str, names: set[str]) -> None:
    if not isinstance(state, dict) or "format" not in state:
        raise _refuse("a state_dict of infobatch", type(state).__name__, "Was another object saved under this name?")
    if not is_count(state["format"], 1) or state["format"] != FORMAT:
        remedy = "Load it with the version of infobatch that wrote it."
        raise _refuse(f"format {FORMAT}", f"format {state['format']!r}", remedy)
    if set(state) != names:
        raise _refuse("all fields of a state_dict", f"a difference of {sorted(names ^ set(state))}", "It is damaged.")
    if state["size"] != size:
        remedy = "Scores belong to positions: load the data set they were made on."
        raise _refuse(f"the state of a data set of {size} samples", f"one of {state['size']}", remedy)
    for name, here in (("method", method), ("compensate", compensate)):
        if state[name] != here:
            remedy = "Resume with the settings that the run was begun with."
            raise _refuse(f"{name} {here}", f"{name} {state[name]}", remedy)
    for name, least in (("num_epochs", 1), *((name, 0) for name in COUNTS)):
        if not is_count(state[name], least):
            raise _refuse(f"{name} as an integer of at least {least}", repr(state[name]), "It is damaged.")
    names_of_summary = {field.name for field in fields(EpochSummary)}
    summaries = state["summaries"]
    if not isinstance(summaries, list) or not all(
        isinstance(one, dict) and set(one) == names_of_summary for one in summaries
    ):
        raise _refuse("a list of epoch summaries", type(summaries).__name__, "It is damaged.")


def _check_scores(scores: Any, size: int) -> None:
    _check_table(scores, size)
    if torch.isinf(scores).any():
        raise _refuse("finite scores", "infinite ones", "It is damaged.")


def _check_columns(columns: Any, size: int, names: Collection[str]) -> None:
    if not isinstance(columns, dict) or set(columns) != set(names):
        got = repr(sorted(columns)) if isinstance(columns, dict) else type(columns).__name__
        raise _refuse(f"the columns of the method, {sorted(names)}", got, "Resume with the same method.")
    for column in columns.values():
        _check_table(column, size)


def _check_running(running: Any, size: int, channels: Collection[str]) -> None:
    names = {"indices", "table", "fresh", "channels"}
    if not isinstance(running, dict) or set(running) - {"chosen"} != names:
        raise _refuse("the plan and the losses of an epoch", type(running).__name__, "It is damaged.")
    _check_columns(running["channels"], size, channels)
    chosen = running.get("chosen")
    is_mask = isinstance(chosen, Tensor) and chosen.shape == (size,) and chosen.dtype == torch.bool
    if chosen is not None and not is_mask:
        raise _refuse(f"a mask of {size} samples", describe(chosen), "It is damaged.")
    indices, table = running["indices"], running["table"]
    _check_table(running["fresh"], size)
    plausible = isinstance(indices, Tensor) and indices.dtype == torch.int64 and indices.ndim == 1
    if not plausible or not 0 < indices.numel() <= size or indices.min() < 0 or indices.max() >= size:
        raise _refuse("a plan of this data set", describe(indices), "It is damaged.")
    planned = torch.zeros(size, dtype=torch.bool, device="cpu").index_fill_(0, indices.cpu(), True)
    if table is None:
        fits = bool(planned.all())
    else:
        _check_table(table, size)
        fits = torch.equal(table.cpu() > 0, planned)
    if not fits or indices.numel() != torch.count_nonzero(planned):
        raise _refuse("each sample of a plan once, with its weight", "a plan and other weights", "It is damaged.")


def _check_running_shard(running: Any, size: int, of: int, plan_names: set[str]) -> None:
    if not isinstance(running, dict) or set(running) != {"level", "fresh"} | plan_names:
        raise _refuse("the plan and the losses of an epoch", type(running).__name__, "It is damaged.")
    _check_table(running["fresh"], size)
    level, weights = running["level"], running["weights"]
    levels = len(weights) if isinstance(weights, (tuple, list)) else 0
    is_level = isinstance(level, Tensor) and level.shape == (size,) and levels > 0
    if not is_level or (size and not 0 <= int(level.max()) < levels):
        raise _refuse(f"a level for each of {size} samples, below {levels}", describe(level), "It is damaged.")
    numbers = [running[name] for name in ("weight_sum", "effective_size", "noise")]
    plausible = is_count(running["epoch"], 0) and is_count(running["kept"], 1) and running["size"] == of
    held = int(torch.count_nonzero(level))  # 0 is left out
    if not all(map(is_number, [*weights, *numbers])) or not plausible or not held <= running["kept"] <= of:
        raise _refuse(f"the numbers of a plan of {of} samples", "others", "It is damaged.")


def _check_table(table: Any, size: int) -> None:
    is_plain = isinstance(table, Tensor) and table.layout == torch.strided and not table.is_meta
    if not is_plain or table.shape != (size,) or table.dtype != torch.float32:
        raise _refuse(f"a float32 table of {size} numbers", describe(table), "It is damaged.")


def _refuse(expected: str, got: str, remedy: str) -> StateError:
    return StateError(message(expected, got, f"{remedy} Nothing was loaded."))
