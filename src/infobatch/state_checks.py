"""Checks of a state_dict. All of it is checked before any of it is loaded, so that loading cannot fail halfway.

A state may come from a damaged file, so nothing is assumed of any value, and errors describe it in bounded space.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from .checks import describe, is_count, is_number
from .epoch.slice import TOO_LARGE, UNSEEN
from .errors import StateError, message, plural
from .plan import EpochSummary

FORMAT = 3
COUNTS = ("seed", "epoch", "largest_update", "planned", "done")
DAMAGED = "It is damaged: load an older one."
LARGEST = 2**63 - 1
"""The largest count that a tensor can hold. A seed may be larger."""
FIELDS = {
    *("format", "size", "method", "compensate", "device", "num_epochs", "scores", "memory", "summaries", "running"),
    *COUNTS,
}


State = dict[str, Any]
"""A training, or a part of one, as plain tensors, numbers and text."""


def check_state(
    state: Any, size: int, method: str, compensate: str, memory: Collection[str], channels: Collection[str]
) -> None:
    """Check the state of scores in one table."""
    first = state[0] if isinstance(state, list) and state else state
    if isinstance(first, dict) and "shard" in first:
        raise refuse("scores in one table", "one rank's shard of them", "Pass shard_scores=True.")
    _check_facts(state, size, method, compensate, FIELDS)
    _check_progress(state, size)
    _check_scores(state["scores"], size)
    _check_columns(state["memory"], size, memory)
    if (state["running"] is None) != (state["done"] == 0):
        raise refuse(
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
        raise refuse("the state of a rank, or of all of them", "an empty list", "Load what state_dict() returned.")
    for state in states:
        if isinstance(state, dict) and set(state) == FIELDS:
            raise refuse("one rank's shard of the scores", "scores in one table", "Leave shard_scores out.")
        _check_facts(state, size, method, compensate, FIELDS | {"shard"})
        shard = state["shard"]
        least = {"rank": 0, "world": 1, "start": 0}
        is_shard = isinstance(shard, dict) and set(shard) == set(least)
        if not is_shard or not all(is_count(shard[key], least[key]) for key in least):
            raise refuse("which shard this is", "something else", DAMAGED)
        each = -(-size // shard["world"])
        first = min(shard["rank"] * each, size)
        if shard["start"] != first:
            raise refuse(f"a shard from place {first}", f"from {show(shard['start'])}", DAMAGED)
        count = min(each, size - first)
        _check_scores(state["scores"], count)
        if state["running"] is not None:
            _check_running_shard(state["running"], count, size, plan_names)
    for name in ("epoch", "seed", "planned"):
        values = {state[name] for state in states}
        if len(values) > 1:
            several = ", ".join(map(show, sorted(values)[:20]))
            raise refuse(f"shards of one {name}", several, "Load those that were saved together.")
    _check_progress(states[0], size)
    if len({state["running"] is None for state in states}) > 1:
        raise refuse("shards of one moment", "some in an epoch, some before", "Load those that were saved together.")
    for state in states:
        if state["running"] is not None and state["running"]["epoch"] != state["epoch"]:
            raise refuse(f"the plan of epoch {state['epoch']}", "that of another", DAMAGED)
    reached = start
    for state in sorted(states, key=lambda state: state["shard"]["start"]):
        if state["shard"]["start"] <= reached:
            reached = max(reached, state["shard"]["start"] + state["scores"].numel())
    if reached < stop:
        raise refuse(
            f"places {start} to {stop}, which belong to this rank",
            f"{plural(len(states), 'shard')}, without those from {reached} on",
            "On another number of ranks load the list of all ranks' states.",
        )


def _describe_foreign(state: Any) -> str:
    """Return the type of a value that is not a state, and of a dict, such as a whole checkpoint, some of its keys."""
    kind = type(state).__name__
    if not isinstance(state, dict) or not state:
        return kind
    return f"a {kind} with the keys {', '.join(show(key)[:40] for key in itertools.islice(state, 8))}"


def _check_facts(state: Any, size: int, method: str, compensate: str, names: set[str]) -> None:
    if not isinstance(state, dict) or "format" not in state:
        remedy = "Load what train_data.state_dict() returned, for example load_state_dict(checkpoint['train_data'])."
        raise refuse("a state_dict of infobatch", _describe_foreign(state), remedy)
    if not is_count(state["format"], 1) or state["format"] != FORMAT:
        remedy = "Load it with the version of infobatch that wrote it."
        raise refuse(f"format {FORMAT}", f"format {show(state['format'])}", remedy)
    if set(state) != names:
        differing = ", ".join(sorted(map(show, names ^ set(state)))[:20])
        raise refuse("all fields of a state_dict", f"a difference of {differing}", DAMAGED)
    if not is_count(state["size"], 1) or state["size"] != size:
        remedy = "Scores belong to positions: load the data set they were made on."
        raise refuse(f"the state of a data set of {size} samples", f"one of {show(state['size'])}", remedy)
    for name, here in (("method", method), ("compensate", compensate)):
        if not isinstance(state[name], str) or state[name] != here:
            remedy = "Resume with the settings that the run was started with."
            raise refuse(f"{name} {here}", f"{name} {show(state[name], quote=False)}", remedy)
    if not isinstance(state["device"], str):
        raise refuse("the name of a device", show(state["device"]), DAMAGED)
    for name, least in (("num_epochs", 1), *((name, 0) for name in COUNTS)):
        if not is_count(state[name], least) or (name != "seed" and state[name] > LARGEST):
            raise refuse(f"{name} as an integer of at least {least}", show(state[name]), DAMAGED)
    _check_summaries(state["summaries"])


def _check_progress(state: Any, size: int) -> None:
    for name, most in (("planned", state["epoch"] * size), ("done", size)):
        if state[name] > most:
            raise refuse(f"{name} of at most {most} in epoch {state['epoch']}", str(state[name]), DAMAGED)


def _check_summaries(summaries: Any) -> None:
    names = {field.name: field.type for field in fields(EpochSummary)}
    if not isinstance(summaries, list):
        raise refuse("a list of epoch summaries", type(summaries).__name__, DAMAGED)
    for summary in summaries:
        if not isinstance(summary, dict) or set(summary) != set(names):
            raise refuse("the numbers of an epoch summary", show(summary), DAMAGED)
        for name, kind in names.items():
            value = summary[name]
            if not (is_count(value, 0) and value <= LARGEST if kind == "int" else is_number(value)):
                raise refuse(f"{name} of an epoch summary as a number ({kind})", show(value), DAMAGED)


def _check_scores(scores: Any, size: int) -> None:
    _check_table(scores, size)
    if bool((scores.abs() >= TOO_LARGE).any()):  # NaN, for a sample without a score, is not
        raise refuse(f"scores below {TOO_LARGE:.3g}", "larger or infinite ones", DAMAGED)


def _check_columns(columns: Any, size: int, names: Collection[str]) -> None:
    if not isinstance(columns, dict) or set(columns) != set(names):
        got = ", ".join(sorted(map(show, columns))[:20]) if isinstance(columns, dict) else type(columns).__name__
        raise refuse(f"the columns of the method, {sorted(names)}", got, "Resume with the same method.")
    for column in columns.values():
        _check_table(column, size)


def _check_running(running: Any, size: int, channels: Collection[str]) -> None:
    names = {"indices", "table", "fresh", "channels"}
    if not isinstance(running, dict) or set(running) - {"chosen"} != names:
        raise refuse("the plan and the losses of an epoch", type(running).__name__, DAMAGED)
    _check_columns(running["channels"], size, channels)
    chosen = running.get("chosen")
    if chosen is not None and not is_plain(chosen, torch.bool, (size,)):
        raise refuse(f"a mask of {size} samples", describe(chosen), DAMAGED)
    indices, table, fresh = running["indices"], running["table"], running["fresh"]
    _check_table(fresh, size)
    plausible = is_plain(indices, torch.int64) and indices.ndim == 1
    if not plausible or not 0 < indices.numel() <= size or indices.min() < 0 or indices.max() >= size:
        raise refuse("a plan of this data set", describe(indices), DAMAGED)
    planned = torch.zeros(size, dtype=torch.bool, device="cpu").index_fill_(0, indices.cpu(), True)
    if table is None:
        fits = bool(planned.all())
    else:
        _check_table(table, size)
        fits = torch.equal(table.cpu() > 0, planned) and bool(torch.isfinite(table).all())
    if not fits or indices.numel() != torch.count_nonzero(planned):
        raise refuse("each sample of a plan once, with its weight", "a plan and other weights", DAMAGED)
    _check_losses(fresh, planned)


def _check_losses(fresh: Tensor, planned: Tensor) -> None:
    """Check that no loss belongs to a sample outside the plan: the end of the epoch would refuse it."""
    if bool((fresh.cpu() != UNSEEN)[~planned].any()):
        raise refuse("losses of the samples in the plan", "losses of others too", DAMAGED)


def _check_running_shard(running: Any, size: int, of: int, plan_names: set[str]) -> None:
    if not isinstance(running, dict) or set(running) != {"level", "fresh"} | plan_names:
        raise refuse("the plan and the losses of an epoch", type(running).__name__, DAMAGED)
    _check_table(running["fresh"], size)
    level, weights = running["level"], running["weights"]
    levels = len(weights) if isinstance(weights, (tuple, list)) else 0
    is_level = any(is_plain(level, dtype, (size,)) for dtype in (torch.uint8, torch.int16)) and levels > 0
    if not is_level or (size and not 0 <= int(level.min()) <= int(level.max()) < levels):
        raise refuse(f"a level for each of {size} samples, below {levels}", describe(level), DAMAGED)
    numbers = [running[name] for name in ("weight_sum", "effective_size", "noise")]
    plausible = is_count(running["epoch"], 0) and is_count(running["kept"], 1) and is_count(running["size"], 1)
    if not all(map(is_number, [*weights, *numbers])) or not plausible:
        raise refuse(f"the numbers of a plan of {of} samples", "others", DAMAGED)
    held = int(torch.count_nonzero(level))  # 0 is left out
    scaled = weights[0] == 0 and all(weight > 0 for weight in weights[1:]) and running["weight_sum"] > 0
    if running["size"] != of or not scaled or not held <= running["kept"] <= of:
        raise refuse(f"the numbers of a plan of {of} samples", "those of another", DAMAGED)
    _check_losses(running["fresh"], level.cpu() != 0)


def _check_table(table: Any, size: int) -> None:
    if not is_plain(table, torch.float32, (size,)):
        raise refuse(f"a float32 table of {size} numbers", describe(table), DAMAGED)


def is_plain(value: Any, dtype: torch.dtype, shape: tuple[int, ...] | None = None) -> bool:
    """Whether this is a dense tensor with values, of this type and shape, that is no part of a graph."""
    if not isinstance(value, Tensor) or value.dtype != dtype or value.layout != torch.strided:
        return False
    return not value.is_meta and not value.requires_grad and (shape is None or value.shape == shape)


def show(value: Any, *, quote: bool = True) -> str:
    """Describe any value in one short line: containers may be too deep, and integers too long, to be printed.

    >>> show(3), show("epoch"), show([[]]), show(10**5000)
    ('3', "'epoch'", 'list', 'an integer of 16610 bits')
    """
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > LARGEST:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, str):
        return repr(value[:200]) if quote else value[:200]
    return repr(value) if value is None or isinstance(value, (bool, int, float)) else describe(value)


def refuse(expected: str, got: str, remedy: str) -> StateError:
    return StateError(message(expected, got, f"{remedy} Nothing was loaded."))
