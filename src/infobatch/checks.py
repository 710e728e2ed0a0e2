"""Bad input, refused where it is first visible: what was expected, what came, what to do."""

from __future__ import annotations

import operator
import sys
from collections.abc import Sized
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, Subset

from .errors import InputError, MisalignedError, message
from .ranks.permutation import LARGEST

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Book(Protocol):
    """What is asked of a book of scores, whole or in parts."""

    @property
    def size(self) -> int: ...
    def look_up(self, indices: Tensor) -> Tensor:
        """The weights of these samples; IndexError where there are none of that number."""
        ...

    def seen(self) -> int: ...
    def strangers(self) -> int: ...


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


def check_selection(selection: Any, size: int) -> None:
    """A selection in the place of a method: of this data set."""
    if selection.size != size:
        raise InputError(
            message(
                f"a selection from {size} samples",
                f"one from {selection.size}",
                "Selections belong to positions: wrap the data set it was made on.",
            )
        )


def check_size(made_for: int | None, size: int, method: str) -> None:
    """A method that was given labels or places is for the data set they are of."""
    if made_for is not None and made_for != size:
        remedy = "Labels and selections belong to positions: pass those of the data set that is wrapped."
        raise InputError(message(f"a method for {size} samples", f"{method}, made for {made_for}", remedy))


def check_loaded(loaded: Any, wrapped: Any, train_data: Any, size: int) -> None:
    """What a loader walks by ``train_data.sampler``: its samples, and as many as there were at the start."""
    if len(wrapped) != size:
        remedy = "Scores belong to positions: wrap a data set that stays as it is."
        raise MisalignedError(message(f"the {size} samples that were wrapped", str(len(wrapped)), remedy))
    of_ours = isinstance(loaded, Subset) and (loaded.dataset is train_data or loaded.dataset is wrapped)
    try:
        others = len(loaded) if isinstance(loaded, Sized) else size
    except NotImplementedError:
        others = size  # it does not tell
    if (of_ours and loaded is not wrapped) or others != size:
        raise MisalignedError(
            message(
                f"a loader over train_data, or over the {size} samples it wraps in their order",
                f"one over {others} samples of a {type(loaded).__name__}",
                "Its sampler names positions in train_data: DataLoader(train_data, sampler=train_data.sampler).",
            )
        )


def check_count(name: str, value: Any, least: int, remedy: str) -> int:
    """Return an integer of any library as a Python int, which a checkpoint can hold; refuse one below ``least``."""
    found = as_int(value)
    if found is None or found < least:
        raise InputError(message(f"{name} as an integer of at least {least}", repr(value), remedy))
    return found


def check_shardable(size: int, method: str, by_cuts: bool) -> None:
    """Scores in parts want a method that cuts the axis of scores, and products of two places in 63 bits."""
    if not by_cuts:
        raise InputError(
            message(
                "for shard_scores=True a method that only cuts the axis of scores",
                method,
                "Its policy looks at all scores at once: leave shard_scores out, or write it with methods.cuts.ByCuts.",
            )
        )
    if size > LARGEST:
        raise InputError(message(f"at most {LARGEST} samples", str(size), "Split the data set."))


def check_loss(loss: Any) -> None:
    if isinstance(loss, Tensor) and loss.ndim == 1 and loss.dtype in DTYPES and loss.shape[0] > 0:
        if not loss.is_meta and loss.layout is torch.strided:
            return
        got = "losses on meta" if loss.is_meta else f"losses as {loss.layout}"
        raise InputError(message("losses with values", got, "Move the model to a device; make them dense."))
    remedy = "Reduce every dimension but the first: loss.flatten(1).mean(1)."
    if not isinstance(loss, Tensor):
        remedy = "Pass the criterion's tensor as it is."
    if isinstance(loss, Tensor) and loss.ndim == 1:
        remedy = "Take loss.float(), and no empty batch."
    if isinstance(loss, Tensor) and loss.ndim == 0:
        remedy = 'Give the criterion reduction="none".'
    raise InputError(message("one floating-point loss a sample, shape [batch]", describe(loss), remedy))


def check_score(score: Any, loss: Tensor) -> None:
    right = isinstance(score, Tensor) and score.shape == loss.shape and score.is_floating_point()
    if not right or score.device != loss.device:
        raise InputError(
            message(
                f"one floating-point score a loss, shape {list(loss.shape)} on {loss.device}",
                f"{describe(score)} on {score.device}" if isinstance(score, Tensor) else describe(score),
                "Reduce every dimension but the first, where the loss is.",
            )
        )


def check_look(loader: dict[str, Any]) -> None:
    """A look goes through all of the left-out in one order; their indices are counted by it."""
    plain = {"shuffle": False, "drop_last": False, "sampler": None, "batch_sampler": None, "in_order": True}
    for name, value in plain.items():
        if loader.get(name) is not None and loader[name] is not value:
            remedy = "A look is at all of the left-out, once: leave it out."
            raise InputError(message("a loader that keeps the order", name, remedy))


def check_indices(indices: Any, loss: Tensor) -> None:
    """What can be seen of indices without a look at their values."""
    whole = isinstance(indices, Tensor) and indices.dtype == torch.int64
    if not whole or indices.shape != loss.shape:
        remedy = "One for each loss: nothing may drop, repeat or split the samples of a batch."
        if not whole:
            remedy = "They are positions in the data set, as 64-bit integers: indices.long()."
        expected = f"indices as an int64 tensor of shape {list(loss.shape)}, one a loss"
        raise InputError(message(expected, describe(indices), remedy))
    if indices.device != loss.device:
        raise InputError(
            message(
                f"indices on {loss.device}, where the loss is",
                f"indices on {indices.device}",
                "Move them with the batch: indices.to(device, non_blocking=True).",
            )
        )


def check_members(indices: Tensor, book: Book, epoch: int, ghost: Tensor | None = None) -> Tensor:
    """That indices are positions in the data set and part of the plan. Looks at values, so on the CPU only.

    Returns their weights. A rank's ghost has none, and may come.
    """
    try:
        weights = book.look_up(indices)
    except IndexError:
        low, high = indices.aminmax()
        raise InputError(
            message(
                f"indices from 0 to {book.size - 1}",
                f"{int(low)} to {int(high)}",
                "They are positions in the data set that train_data wraps.",
            )
        ) from None
    if not weights.min().is_nonzero() and (ghost is None or bool((weights == 0)[indices != ghost].any())):
        raise MisalignedError(stranger(epoch))
    return weights


def check_attribution(book: Book, came: int, epoch: int) -> None:
    """Before an epoch's losses become scores: each belongs to the plan, and to one sample alone."""
    if book.strangers():
        raise MisalignedError(stranger(epoch))
    if came != book.seen():
        raise MisalignedError(
            message(
                "at most one loss a sample and epoch",
                f"{came} losses for {book.seen()} samples in epoch {epoch}",
                "Some samples came twice: a loader that pads its last batch, or two updates for one batch.",
            )
        )


def describe(value: Any) -> str:
    return f"{value.dtype} of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def is_count(value: Any, least: int) -> bool:
    """A whole number of at least ``least``; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def as_int(value: Any) -> int | None:
    """A whole number of any library as a plain one, as 3 for np.int64(3); None where it is none, as True is."""
    if isinstance(value, bool) or getattr(value, "dtype", None) == torch.bool:
        return None
    try:
        return operator.index(value)
    except (TypeError, RuntimeError):  # of a tensor that has no value
        return None


def is_number(value: Any) -> bool:
    """A finite number that a float can hold; True and False are none."""
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return plain and abs(value) <= sys.float_info.max


def stranger(epoch: int) -> str:
    return message(
        f"losses of samples in the plan of epoch {epoch}",
        "one of a sample that was left out",
        "Load with sampler=train_data.sampler; indices are positions in the data set, not in the plan.",
    )
