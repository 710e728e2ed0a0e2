"""The state of a sieve, checked before it is loaded."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..checks import is_count
from ..errors import StateError, message
from .passed import Passed

FIELDS = {
    *("format", "method", "seed", "num_steps", "step", "rows", "kept", "not_finite"),
    *("amount", "look", "ahead"),
}
DAMAGED = "It is damaged."


def check_sieve_state(state: Any, format_: int, method: str, seed: int, num_steps: int | None) -> None:
    """Check the state of a sieve that was made with these arguments."""
    if not isinstance(state, dict) or set(state) != FIELDS:
        remedy = "Load what sieve.state_dict() returned."
        raise StateError(message("the state of a sieve", f"another {type(state).__name__}", remedy))
    if state["format"] != format_:
        remedy = "Load it with the version of infobatch that wrote it."
        raise StateError(message(f"format {format_}", repr(state["format"])[:40], remedy))
    for name, here in (("method", method), ("seed", seed), ("num_steps", num_steps)):
        if type(state[name]) is not type(here) or state[name] != here:
            remedy = "Resume with the arguments that the run was begun with."
            raise StateError(message(f"{name} {here}", repr(state[name])[:200], remedy))
    if not all(is_count(state[name], 0) for name in ("step", "rows", "kept", "not_finite")):
        raise StateError(message("counts of batches and rows", "something else", DAMAGED))
    if not isinstance(state["look"], dict) or not isinstance(state["amount"], dict):
        raise StateError(message("the states of the look and of the amount", "something else", DAMAGED))


def save_passed(passed: Passed | None) -> dict[str, Any] | None:
    """Return what was decided about a batch as plain values; None where nothing was."""
    if passed is None:
        return None
    tensors = {name: getattr(passed, name) for name in ("rows", "weights", "losses", "valid")}
    kept = {name: None if one is None else one.cpu().clone() for name, one in tensors.items()}
    return {"size": passed.size, "is_measured": passed.is_measured, **kept}


def load_passed(saved: Any) -> Passed | None:
    """Return what ``save_passed`` saved."""
    if saved is None:
        return None
    names = {"size", "is_measured", "rows", "weights", "losses", "valid"}
    if not isinstance(saved, dict) or set(saved) != names or not is_count(saved["size"], 1):
        raise StateError(message("what was decided about the next batch", "something else", DAMAGED))
    rows, weights, size = saved["rows"], saved["weights"], saved["size"]
    if not isinstance(weights, Tensor) or not all(
        one is None or isinstance(one, Tensor) for one in (rows, saved["losses"])
    ):
        raise StateError(message("rows, weights and losses as tensors", "something else", DAMAGED))
    if rows is not None:
        is_in_range = (
            rows.dtype == torch.int64 and rows.ndim == 1 and rows.numel() and rows.min() >= 0 and rows.max() < size
        )
        if not is_in_range or weights.shape != rows.shape:
            raise StateError(message(f"rows of a batch of {size} and their weights", "others", DAMAGED))
    return Passed(**saved)
