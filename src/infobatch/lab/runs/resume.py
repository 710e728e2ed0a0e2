"""Checkpoints of a run: which may be continued, and what in them belongs to the machine, not to the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch.optim import Optimizer

from ... import files
from ...errors import InfoBatchError, StateError, message
from ..tasks.task import Task, differences
from ..train.settings import Settings


def read_state(path: Path, settings: Settings, task: Task) -> dict[str, Any]:
    """Load the checkpoint of a run.

    Args:
        path: The checkpoint file.
        settings: The settings to continue with.
        task: The task to continue on.

    Returns:
        The state to pass to ``Training``.

    Raises:
        StateError: If it belongs to a run with other settings or other data.
    """
    state = files.load(path)
    saved_settings = state.get("settings") if isinstance(state, dict) else None
    if not isinstance(saved_settings, dict) or not settings.resumes(saved_settings):
        raise StateError(message("the checkpoint of a run with these settings", str(path), "Nothing was loaded."))
    different = differences(state.get("data") or {}, task.data)
    if different:
        got = f"{path}, with {'; '.join(different)}"
        raise StateError(message("the checkpoint of a run on these data", got, "Nothing was loaded."))
    return cast(dict[str, Any], state)


@contextmanager
def explain_mismatch() -> Iterator[None]:
    """Turn the errors that torch raises for a checkpoint of another net into a StateError."""
    try:
        yield
    except InfoBatchError:
        raise
    except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        got = f"another ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        raise StateError(message("the checkpoint of this net and this run", got, "Nothing was loaded.")) from error


MACHINE = ("lr", "fused", "foreach", "capturable")
"""Options of an optimizer that say how this machine takes a step; all others are taken from the checkpoint."""


def load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load an optimizer's state, whether or not it was saved with a captured step."""
    groups = [
        {**saved, **{name: current[name] for name in MACHINE if name in current}}
        for saved, current in zip(state["param_groups"], optimizer.param_groups, strict=True)
    ]
    optimizer.load_state_dict({**state, "param_groups": groups})


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the state of torch's global generators, which nets draw from."""
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return {"rng": torch.get_rng_state(), "cuda_rng": cuda}


def load_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Set torch's global generators to a state from ``random_state``."""
    torch.set_rng_state(state["rng"])
    if state["cuda_rng"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda_rng"], device)
