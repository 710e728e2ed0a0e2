"""Checkpoints of a run: which one may go on, and what of it is the machine's rather than the run's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch.optim import Optimizer

from ... import files as checkpoint
from ...errors import InfoBatchError, StateError, message
from ..tasks.task import Task, differences
from ..train.settings import Settings


def read_state(path: Path, settings: Settings, task: Task) -> dict[str, Any]:
    """The checkpoint of a run with these settings on these data."""
    state = checkpoint.load(path)
    theirs = state.get("settings") if isinstance(state, dict) else None
    if not isinstance(theirs, dict) or not settings.resumes(theirs):
        raise StateError(message("the checkpoint of a run with these settings", str(path), "Nothing was loaded."))
    other = differences(state.get("data") or {}, task.data)
    if other:
        got = f"{path}, with {'; '.join(other)}"
        raise StateError(message("the checkpoint of a run on these data", got, "Nothing was loaded."))
    return cast(dict[str, Any], state)


@contextmanager
def fitting() -> Iterator[None]:
    """What torch says of a checkpoint with other parts or shapes, in our words."""
    try:
        yield
    except InfoBatchError:
        raise
    except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        got = f"another ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        raise StateError(message("the checkpoint of this net and this run", got, "Nothing was loaded.")) from error


HOW = ("lr", "fused", "foreach", "capturable")
"""Of an optimizer: how a step is done here. The rest of a checkpoint's groups is the run's."""


def load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Whether the run was saved with a captured step or without one: rate and flags are those of this optimizer."""
    groups = [
        {**theirs, **{name: mine[name] for name in HOW if name in mine}}
        for theirs, mine in zip(state["param_groups"], optimizer.param_groups, strict=True)
    ]
    optimizer.load_state_dict({**state, "param_groups": groups})


def random_state(device: torch.device) -> dict[str, Any]:
    """Of torch's global generators, which nets draw from."""
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return {"rng": torch.get_rng_state(), "cuda_rng": cuda}


def load_random_state(state: dict[str, Any], device: torch.device) -> None:
    torch.set_rng_state(state["rng"])
    if state["cuda_rng"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda_rng"], device)
