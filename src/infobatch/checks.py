"""Bad input, refused where it is first visible: what was expected, what came, what to do."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from .errors import InputError, MisalignedError, StateError, message
from .scorebook import ScoreBook

FORMAT = 1
FIELDS = {
    "format",
    "size",
    "method",
    "num_epochs",
    "seed",
    "epoch",
    "planned",
    "scores",
    "reports",
    "done",
    "running",
}


def check_dataset(dataset: Any) -> None:
    if isinstance(dataset, IterableDataset):
        raise InputError(
            message(
                "a data set with positions (map-style)",
                f"the IterableDataset {type(dataset).__name__}",
                "Scores belong to positions: list its items, or load it map-style.",
            )
        )
    if not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
        raise InputError(
            message("a data set with __len__ and __getitem__", type(dataset).__name__, "Scores belong to positions.")
        )
    if len(dataset) == 0:
        raise InputError(message("at least one sample", "an empty data set", "Check its path or split."))


def check_count(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(
            message(f"{name} as a whole number of at least {least}", repr(value), f"Pass {name}={least}.")
        )


def check_loss(loss: Any) -> None:
    if isinstance(loss, Tensor) and loss.ndim == 1 and loss.is_floating_point() and loss.shape[0] > 0:
        return
    remedy = "Reduce every dimension but the first: loss.flatten(1).mean(1)."
    if isinstance(loss, Tensor) and loss.ndim == 0:
        remedy = 'Give the criterion reduction="none".'
    raise InputError(message("one floating-point loss a sample, shape [batch]", kind(loss), remedy))


def check_score(score: Any, loss: Tensor) -> None:
    if not isinstance(score, Tensor) or score.shape != loss.shape or not score.is_floating_point():
        raise InputError(
            message(f"one floating-point score a loss, shape {list(loss.shape)}", kind(score), "Reduce it first.")
        )


def check_indices(indices: Any, loss: Tensor) -> None:
    """What can be seen of indices without a look at their values."""
    if not isinstance(indices, Tensor) or indices.dtype != torch.int64 or indices.shape != loss.shape:
        raise InputError(
            message(
                f"indices as an int64 tensor of shape {list(loss.shape)}, one a loss",
                kind(indices),
                "They are positions in the data set; floating point cannot hold them all.",
            )
        )
    if indices.device != loss.device:
        raise InputError(
            message(
                f"indices on {loss.device}, where the loss is",
                f"indices on {indices.device}",
                "Move them with the batch: indices.to(device, non_blocking=True).",
            )
        )


def check_members(indices: Tensor, book: ScoreBook, epoch: int) -> None:
    """That indices are positions in the data set and part of the plan. Looks at values, so on the CPU only."""
    if indices.numel() == 0:
        return
    low, high = indices.aminmax()
    if low < 0 or high >= book.size:
        raise InputError(
            message(
                f"indices from 0 to {book.size - 1}",
                f"{int(low)} to {int(high)}",
                "They are positions in the data set that train_data wraps.",
            )
        )
    if book.weights.index_select(0, indices).min() == 0:
        raise MisalignedError(_stranger(epoch))


def check_attribution(book: ScoreBook, came: int, epoch: int) -> None:
    """Before an epoch's losses become scores: each belongs to the plan, and to one sample alone."""
    if book.strangers():
        raise MisalignedError(_stranger(epoch))
    if came != book.seen():
        raise MisalignedError(
            message(
                "at most one loss a sample and epoch",
                f"{came} losses for {book.seen()} samples in epoch {epoch}",
                "Some samples came twice: a loader that pads its last batch, or two updates for one batch.",
            )
        )


def check_state(state: Any, size: int, method: str) -> None:
    if not isinstance(state, dict) or "format" not in state:
        raise _refused("a state_dict of infobatch", type(state).__name__, "Was another object saved under this name?")
    if not isinstance(state["format"], int) or state["format"] > FORMAT:
        raise _refused(f"format {FORMAT} or older", f"format {state['format']}", "Update infobatch.")
    if set(state) != FIELDS:
        raise _refused(
            "all fields of a state_dict", f"a difference of {sorted(FIELDS ^ set(state))}", "It is damaged."
        )
    if state["size"] != size:
        raise _refused(
            f"the state of a data set of {size} samples",
            f"one of {state['size']}",
            "Scores belong to positions: load the data set they were made on.",
        )
    if state["method"] != method:
        raise _refused(method, str(state["method"]), "Resume with the settings the run was begun with.")
    _check_table(state["scores"], size)
    running = state["running"]
    if (running is None) != (state["done"] == 0):
        raise _refused(
            f"the running epoch, of which {state['done']} samples are done",
            "none of it",
            "torch.distributed.checkpoint loads only what the receiver has: use infobatch.integrations.dcp.Sharded.",
        )
    if running is not None:
        _check_table(running["fresh"], size)
        if running["table"] is not None:
            _check_table(running["table"], size)
        _check_plan(running["indices"], size)


def kind(value: Any) -> str:
    return f"{value.dtype} of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _check_table(table: Any, size: int) -> None:
    if not isinstance(table, Tensor) or table.shape != (size,) or table.dtype != torch.float32:
        raise _refused(f"a float32 table of {size} numbers", kind(table), "It is damaged.")


def _check_plan(indices: Any, size: int) -> None:
    plausible = isinstance(indices, Tensor) and indices.dtype == torch.int64 and indices.ndim == 1
    if not plausible or not 0 < indices.numel() <= size or indices.min() < 0 or indices.max() >= size:
        raise _refused("a plan of this data set", kind(indices), "It is damaged.")


def _refused(expected: str, got: str, remedy: str) -> StateError:
    return StateError(message(expected, got, f"{remedy} Nothing was loaded."))


def _stranger(epoch: int) -> str:
    return message(
        f"losses of samples in the plan of epoch {epoch}",
        "one of a sample that was left out",
        "Load with sampler=train_data.sampler; indices are positions in the data set, not in the plan.",
    )
