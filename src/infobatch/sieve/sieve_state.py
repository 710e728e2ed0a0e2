"""The state of a sieve, checked before any of it is loaded."""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import is_count, is_number
from ..state_checks import LARGEST, is_plain, refuse, show
from .passed import Passed
from .undisturbed import kept_random_state

FORMAT = 1
COUNTS = ("step", "rows", "kept", "not_finite")
FIELDS = {*("format", "method", "seed"), *COUNTS, *("amount", "look", "ahead")}
LOOK_COUNTS = ("flops", "step_flops", "rows_looked", "rows_trained")
TENSORS = ("rows", "weights", "losses", "valid")
MOST_VALUES = 1_000_000
"""The most values and containers of an optimizer's state; 40 entries for each of 25,000 parameter tensors."""
DAMAGED, REBUILD = "It is damaged.", "Build the look and its networks as for the run that was saved."


def check_fields(state: Any, names: set[str], what: str, remedy: str) -> None:
    """Check that a state is a dict with exactly these fields."""
    if not isinstance(state, dict) or set(state) != names:
        got = ", ".join(sorted(map(show, state))[:20]) or "nothing" if isinstance(state, dict) else show(state)
        raise refuse(f"{what} with {', '.join(sorted(names)) or 'no fields'}", got, remedy)


def check_sieve_state(state: Any, method: str, seed: int) -> None:
    """Check the state of a sieve that was made with these arguments."""
    check_fields(state, FIELDS, "the state of a sieve", "Load what sieve.state_dict() returned.")
    if not is_count(state["format"], 1) or state["format"] != FORMAT:
        remedy = "Load it with the version of infobatch that wrote it."
        raise refuse(f"format {FORMAT}", show(state["format"]), remedy)
    for name, here in (("method", method), ("seed", seed)):
        if type(state[name]) is not type(here) or state[name] != here:
            remedy = "Resume with the arguments that the run was started with."
            raise refuse(f"{name} {here}", show(state[name], quote=False), remedy)
    if not all(is_count(state[name], 0) and state[name] <= LARGEST for name in COUNTS):
        raise refuse("counts of batches and rows", "other values", DAMAGED)
    if state["kept"] > state["rows"]:
        raise refuse(f"at most {state['rows']} rows passed on", show(state["kept"]), DAMAGED)


# ---- what was decided about the next batch ---------------------------------------------------------------------


def save_passed(ahead: tuple[Passed, int] | None) -> dict[str, Any] | None:
    """Return what was decided about a batch, and its mark, as plain values; None where nothing was decided."""
    if ahead is None:
        return None
    passed, mark = ahead
    tensors = {name: getattr(passed, name) for name in TENSORS}
    saved = {name: None if one is None else one.cpu().clone() for name, one in tensors.items()}
    return {"mark": mark, "size": passed.size, "is_measured": passed.is_measured, **saved}


def load_passed(saved: Any) -> tuple[Passed, int] | None:
    """Return what ``save_passed`` was given."""
    if saved is None:
        return None
    check_fields(saved, {"mark", "size", "is_measured", *TENSORS}, "a decision about the next batch", DAMAGED)
    size, rows, valid = saved["size"], saved["rows"], saved["valid"]
    is_good = is_count(size, 1) and size <= LARGEST and is_count(saved["mark"], 0) and saved["mark"] < 1 << 32
    is_good = is_good and isinstance(saved["is_measured"], bool)
    is_good = is_good and not (saved["is_measured"] and (rows is not None or valid is not None))
    is_good = is_good and (rows is None or _are_rows(rows, size)) and (valid is None or _is_mask(valid, size))
    if is_good:
        looked = (size,) if valid is None else tuple(valid.shape)
        is_good = _are_numbers(saved["weights"], looked if rows is None else tuple(rows.shape))
        losses = saved["losses"]
        is_good = is_good and (not saved["is_measured"] if losses is None else _are_numbers(losses, looked))
    if not is_good:
        raise refuse("the rows of the next batch, their weights and losses", "values that do not agree", DAMAGED)
    return Passed(**{name: value for name, value in saved.items() if name != "mark"}), saved["mark"]


def _are_rows(rows: Any, size: int) -> bool:
    if not is_plain(rows, torch.int64) or rows.ndim != 1 or not 0 < len(rows) <= size:
        return False
    return bool(rows[0] >= 0 and rows[-1] < size and (rows.diff() > 0).all())


def _is_mask(valid: Any, size: int) -> bool:
    return is_plain(valid, torch.bool) and valid.ndim > 0 and len(valid) == size


def _are_numbers(values: Any, shape: tuple[int, ...]) -> bool:
    return isinstance(values, Tensor) and values.is_floating_point() and is_plain(values, values.dtype, shape)


# ---- measurements, networks and optimizers ---------------------------------------------------------------------


def check_measured(state: Any, sizes: tuple[float, ...]) -> None:
    """Check the measurements of a method that keeps one of several shares."""
    check_fields(state, {"share", "carried", "pending"}, "the measurements of an adaptive method", DAMAGED)
    for name, lengths in (("carried", (0, len(sizes))), ("pending", (len(sizes),))):
        values = state[name]
        if values is None and name == "pending":
            continue
        if not isinstance(values, list) or len(values) not in lengths or not all(map(_is_share, values)):
            raise refuse(f"{len(sizes)} measured shares in {name!r}", show(values), DAMAGED)
    if not is_number(state["share"]) or state["share"] not in (*sizes, 1.0):
        raise refuse(f"a share out of {', '.join(map(str, sizes))} and 1", show(state["share"]), DAMAGED)


def _is_share(value: Any) -> bool:
    return is_number(value) and -1e-3 <= value <= 1 + 1e-3  # a quotient of rounded sums


def check_counts(state: Any) -> None:
    check_fields(state, set(LOOK_COUNTS), "the state of a look", REBUILD)
    are_counts = all(is_count(state[name], 0) and state[name] <= LARGEST for name in LOOK_COUNTS[2:])
    if not are_counts or not all(is_number(state[name]) and state[name] >= 0 for name in LOOK_COUNTS[:2]):
        raise refuse("counts of rows and FLOPs of a look", "other values", DAMAGED)


def check_weights(net: nn.Module, state: Any) -> None:
    """Check that a network can load these weights."""
    own = net.state_dict()
    is_dict = isinstance(state, dict) and set(state) == set(own)
    if not is_dict or not all(_can_replace(state[name], value) for name, value in own.items()):
        expected = f"the weights of a {type(net).__name__}, in their shapes and dtypes"
        raise refuse(expected, "those of another network" if is_dict else show(state), REBUILD)


def _can_replace(saved: Any, own: Any) -> bool:
    if isinstance(own, Tensor):
        return isinstance(saved, Tensor) and is_plain(saved.detach(), own.dtype, tuple(own.shape))
    return type(saved) is type(own)


def check_optimizer(optimizer: torch.optim.Optimizer, state: Any) -> None:
    """Check that an optimizer can load a state, and take a step with it: a copy tries both."""
    try:
        is_good = _can_step(optimizer, copy.deepcopy(state))
    except Exception as error:  # whatever a damaged state leads to
        raise refuse("the state of this optimizer", f"one that it cannot use ({error!r:.200})", REBUILD) from error
    if not is_good:
        raise refuse("the state of this optimizer", "one with other fields", REBUILD)


def _can_step(optimizer: torch.optim.Optimizer, state: Any) -> bool:
    """Load a state into a copy of an optimizer, with copies of its parameters, and take a step on gradients of zero."""
    if not _is_readable(state):
        return False
    own = optimizer.state_dict()["param_groups"]
    ids = [group["params"] for group in state["param_groups"]]
    if set(state) != {"state", "param_groups"} or ids != [group["params"] for group in own]:
        return False
    if not set(state["state"]) <= {one for group in ids for one in group}:
        return False
    copies = {one: nn.Parameter(one.detach().clone()) for group in optimizer.param_groups for one in group["params"]}
    for one in copies.values():
        one.grad = torch.zeros_like(one)
    groups = [{**group, "params": [copies[one] for one in group["params"]]} for group in optimizer.param_groups]
    trial = object.__new__(type(optimizer))  # copy.copy drops the attributes of a subclass
    trial.__dict__.update(optimizer.__dict__, param_groups=groups, state=defaultdict(dict))
    type(trial).load_state_dict(trial, state)
    if not all(map(_is_like, trial.param_groups, groups)):
        return False
    before = {one: set(entry) for one, entry in trial.state.items()}
    with kept_random_state(next(iter(copies.values())).device):
        type(trial).step(trial)  # the instance may have a step of its own, from a scheduler
    is_finite = all(torch.equal(old.isfinite(), new.isfinite()) for old, new in copies.items())
    return is_finite and all(set(trial.state[one]) == names for one, names in before.items())


def _is_readable(state: Any) -> bool:
    """Whether a state has values few enough to go through one by one, and tensors that hold what they show.

    A list that holds another one twice, and so on, is small on disk but takes for ever to go through.
    """
    waiting, count = [state], 0
    while waiting and count < MOST_VALUES:
        value, count = waiting.pop(), count + 1
        if isinstance(value, (dict, list, tuple)):
            waiting += value.values() if isinstance(value, dict) else value
        elif not _is_dense(value):
            return False
    return not waiting


def _is_dense(value: Any) -> bool:
    """Whether a tensor holds as many values as it shows; anything else passes."""
    if not isinstance(value, Tensor):
        return True
    is_strided = value.layout == torch.strided and not value.is_meta
    return is_strided and value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def _is_like(loaded: Any, own: Any) -> bool:
    """Whether a setting of an optimizer is of the same kind, and fits in float32; flags may be None, too."""
    if isinstance(own, dict):
        names = set(own) - {"params"}
        return set(loaded) - {"params"} == names and all(_is_like(loaded[name], own[name]) for name in names)
    if isinstance(own, (tuple, list)):
        return isinstance(loaded, (tuple, list)) and len(loaded) == len(own) and all(map(_is_like, loaded, own))
    if is_number(own) or isinstance(own, Tensor):
        is_one = is_number(loaded) or (isinstance(loaded, Tensor) and loaded.ndim == 0)
        return is_one and abs(float(loaded)) <= torch.finfo(torch.float32).max  # and not NaN
    return loaded is None or isinstance(loaded, (bool, str))
