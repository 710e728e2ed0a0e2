"""What a state_dict must be. All of it is looked at before any of it is loaded, so loading cannot stop halfway."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from .checks import describe, is_count, is_number
from .epoch.summary import EpochReport
from .errors import StateError, counted, message
from .plan import ShardPlan

FORMAT = 1
FIELDS = {
    *(
        "format",
        "size",
        "method",
        "compensate",
        "num_epochs",
        "seed",
        "epoch",
        "seen",
        "usual",
        "planned",
        "scores",
        "reports",
    ),
    *("device", "done", "running", "memory"),
}


def check_state(
    state: Any,
    size: int,
    method: str,
    compensate: str,
    memory: Collection[str] = (),
    came: Collection[str] = (),
) -> None:
    """The whole of a state_dict, so that loading it cannot stop halfway."""
    parts = state[0] if isinstance(state, list) and state else state
    if isinstance(parts, dict) and "part" in parts:
        raise _refused("scores in one table", "one rank's part of them", "Pass shard_scores=True.")
    _check_facts(state, size, method, compensate, FIELDS)
    _check_scores(state["scores"], size)
    _check_columns(state["memory"], size, memory)
    if (state["running"] is None) != (state["done"] == 0):
        raise _refused(
            f"the running epoch, of which {state['done']} samples are done",
            "none of it",
            "torch.distributed.checkpoint loads only what its reader has: use infobatch.integrations.dcp.Sharded.",
        )
    if state["running"] is not None:
        _check_running(state["running"], size, came)


def check_parts(parts: list[Any], size: int, method: str, compensate: str, start: int, stop: int) -> None:
    """Parts of a state, saved by ranks: each whole, all of one moment, with places ``start`` to ``stop`` in them."""
    if not parts:
        raise _refused("the state of a rank, or of all of them", "an empty list", "Load what state_dict() returned.")
    for state in parts:
        if isinstance(state, dict) and set(state) == FIELDS:
            raise _refused("one rank's part of the scores", "scores in one table", "Leave shard_scores out.")
        _check_facts(state, size, method, compensate, FIELDS | {"part"})
        if not _is_part(state["part"]):
            raise _refused("which part this is", repr(state["part"]), "It is damaged.")
        each = -(-size // state["part"]["world"])
        first = min(state["part"]["rank"] * each, size)
        if state["part"]["start"] != first:
            raise _refused(f"a part from place {first}", f"from {state['part']['start']}", "It is damaged.")
        count = min(each, size - first)
        _check_scores(state["scores"], count)
        if state["running"] is not None:
            _check_running_part(state["running"], count, size)
    for name in ("epoch", "seed", "planned"):
        values = {state[name] for state in parts}
        if len(values) > 1:
            raise _refused(f"parts of one {name}", repr(sorted(values)), "Take those that were saved together.")
    if len({state["running"] is None for state in parts}) > 1:
        raise _refused("parts of one moment", "some in an epoch, some before", "Take those that were saved together.")
    reached = start
    for state in sorted(parts, key=lambda state: state["part"]["start"]):
        if state["part"]["start"] <= reached:
            reached = max(reached, state["part"]["start"] + state["scores"].numel())
    if reached < stop:
        raise _refused(
            f"places {start} to {stop}, which are this rank's",
            f"{counted(len(parts), 'part')}, without those from {reached} on",
            "On another number of ranks load the list of all ranks' states.",
        )


def _check_facts(state: Any, size: int, method: str, compensate: str, names: set[str]) -> None:
    if not isinstance(state, dict) or "format" not in state:
        raise _refused("a state_dict of infobatch", type(state).__name__, "Was another object saved under this name?")
    if not is_count(state["format"], 1) or state["format"] > FORMAT:
        raise _refused(f"format {FORMAT} or older", f"format {state['format']!r}", "Update infobatch.")
    if set(state) != names:
        raise _refused("all fields of a state_dict", f"a difference of {sorted(names ^ set(state))}", "It is damaged.")
    if state["size"] != size:
        raise _refused(
            f"the state of a data set of {size} samples",
            f"one of {state['size']}",
            "Scores belong to positions: load the data set they were made on.",
        )
    for name, here in (("method", method), ("compensate", compensate)):
        if state[name] != here:
            got = f"{name} {state[name]}"
            raise _refused(f"{name} {here}", got, "Resume with the settings the run was begun with.")
    counts = ("seed", "epoch", "seen", "usual", "planned", "done")
    for name, least in (("num_epochs", 1), *((name, 0) for name in counts)):
        if not is_count(state[name], least):
            raise _refused(f"{name} as a whole number of at least {least}", repr(state[name]), "It is damaged.")
    _check_reports(state["reports"])


def _check_scores(scores: Any, size: int) -> None:
    _check_table(scores, size)
    if torch.isinf(scores).any():
        raise _refused("finite scores", "infinite ones", "It is damaged.")


def _check_columns(columns: Any, size: int, names: Collection[str]) -> None:
    if not isinstance(columns, dict) or set(columns) != set(names):
        got = repr(sorted(columns)) if isinstance(columns, dict) else type(columns).__name__
        raise _refused(f"what the method remembers, {sorted(names)}", got, "Resume with the same method.")
    for column in columns.values():
        _check_table(column, size)


def _check_running(running: Any, size: int, came: Collection[str]) -> None:
    names = {"indices", "table", "fresh", "came"}
    if not isinstance(running, dict) or set(running) - {"chosen"} != names:
        raise _refused("the plan and the losses of an epoch", type(running).__name__, "It is damaged.")
    _check_columns(running["came"], size, came)
    chosen = running.get("chosen")
    whole = isinstance(chosen, Tensor) and chosen.shape == (size,) and chosen.dtype == torch.bool
    if chosen is not None and not whole:
        raise _refused(f"a mask of {size} samples", describe(chosen), "It is damaged.")
    indices, table = running["indices"], running["table"]
    _check_table(running["fresh"], size)
    plausible = isinstance(indices, Tensor) and indices.dtype == torch.int64 and indices.ndim == 1
    if not plausible or not 0 < indices.numel() <= size or indices.min() < 0 or indices.max() >= size:
        raise _refused("a plan of this data set", describe(indices), "It is damaged.")
    planned = torch.zeros(size, dtype=torch.bool, device="cpu").index_fill_(0, indices.cpu(), True)
    if table is None:
        belong = bool(planned.all())
    else:
        _check_table(table, size)
        belong = torch.equal(table.cpu() > 0, planned)
    if not belong or indices.numel() != torch.count_nonzero(planned):
        raise _refused("each sample of a plan once, with its weight", "a plan and weights apart", "It is damaged.")


def _is_part(part: Any) -> bool:
    least = {"rank": 0, "world": 1, "start": 0}
    return isinstance(part, dict) and set(part) == set(least) and all(is_count(part[key], least[key]) for key in least)


def _check_running_part(running: Any, size: int, of: int) -> None:
    facts = {field.name for field in fields(ShardPlan)}
    if not isinstance(running, dict) or set(running) != {"level", "fresh"} | facts:
        raise _refused("the plan and the losses of an epoch", type(running).__name__, "It is damaged.")
    _check_table(running["fresh"], size)
    level, weights = running["level"], running["weights"]
    levels = len(weights) if isinstance(weights, (tuple, list)) else 0
    known = isinstance(level, Tensor) and level.shape == (size,) and levels > 0
    if not known or (size and not 0 <= int(level.max()) < levels):
        raise _refused(f"a level for each of {size} samples, below {levels}", describe(level), "It is damaged.")
    numbers = [running[name] for name in ("weight_sum", "effective_size", "noise")]
    counted = is_count(running["epoch"], 0) and is_count(running["kept"], 1) and running["size"] == of
    held = int(torch.count_nonzero(level))  # 0 is left out
    if not all(map(is_number, [*weights, *numbers])) or not counted or not held <= running["kept"] <= of:
        raise _refused(f"the numbers of a plan of {of} samples", "others", "It is damaged.")


def _check_reports(reports: Any) -> None:
    names = {field.name for field in fields(EpochReport)}
    whole = isinstance(reports, list) and all(isinstance(one, dict) and set(one) == names for one in reports)
    if not whole:
        raise _refused("a list of epoch reports", type(reports).__name__, "It is damaged.")


def _check_table(table: Any, size: int) -> None:
    plain = isinstance(table, Tensor) and table.layout == torch.strided and not table.is_meta
    if not plain or table.shape != (size,) or table.dtype != torch.float32:
        raise _refused(f"a float32 table of {size} numbers", describe(table), "It is damaged.")


def _refused(expected: str, got: str, remedy: str) -> StateError:
    return StateError(message(expected, got, f"{remedy} Nothing was loaded."))
