"""Checks that refuse bad input where it is first visible: what was expected, what was given, what to do."""

from __future__ import annotations

import operator
import sys
from collections.abc import Sized
from numbers import Integral, Real
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, Subset

from .errors import EpochError, InputError, MisalignedError, RankError, message
from .ranks.permutation import LARGEST

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def check_dataset(dataset: Any) -> None:
    if isinstance(dataset, IterableDataset):
        raise InputError(
            message(
                "a map-style data set",
                f"the IterableDataset {type(dataset).__name__}",
                "Scores belong to positions: load it map-style, or make a list of its items.",
            )
        )
    if not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
        raise InputError(
            message("a data set with __len__ and __getitem__", type(dataset).__name__, "Make a list of its items.")
        )
    if len(dataset) == 0:
        raise InputError(message("at least one sample", "an empty data set", "Check its path or split."))


def check_options(compensate: str, shard_scores: bool) -> None:
    """Check the two options of ``Pruned`` that take one of two values."""
    if compensate not in ("none", "loss"):
        remedy = 'Leave it out to keep steps as large as on full data; "loss" is the published rule, where it grows.'
        raise InputError(message('compensate "none" or "loss"', repr(compensate), remedy))
    if not isinstance(shard_scores, bool):
        raise InputError(message("shard_scores as True or False", repr(shard_scores), "False keeps one table."))


def check_selection(selection: Any, size: int) -> None:
    """Check that a selection given instead of a method was made on this data set."""
    if selection.size != size:
        raise InputError(
            message(
                f"a selection from {size} samples",
                f"one from {selection.size}",
                "Selections hold positions: wrap the data set it was made on.",
            )
        )


def check_size(made_for: int | None, size: int, method: str) -> None:
    """Check that a method that was given labels or indices got those of this data set."""
    if made_for is not None and made_for != size:
        remedy = "Pass the labels or the selection of the data set that is wrapped."
        raise InputError(message(f"a method for {size} samples", f"{method}, made for {made_for}", remedy))


def check_loaded(loaded: Any, wrapped: Any, train_data: Any, size: int) -> None:
    """Check that a loader with ``train_data.sampler`` loads the wrapped samples, and as many as at the start."""
    if len(wrapped) != size:
        remedy = "Scores belong to positions: wrap a data set that stays as it is."
        raise MisalignedError(message(f"the {size} samples that were wrapped", str(len(wrapped)), remedy))
    of_ours = isinstance(loaded, Subset) and (loaded.dataset is train_data or loaded.dataset is wrapped)
    try:
        others = len(loaded) if isinstance(loaded, Sized) else size
    except NotImplementedError:
        others = size  # it has no length to compare
    if (of_ours and loaded is not wrapped) or others != size:
        raise MisalignedError(
            message(
                f"a loader over train_data, or over the {size} samples it wraps, in order",
                f"one over {others} samples of a {type(loaded).__name__}",
                "The sampler yields positions in train_data: DataLoader(train_data, sampler=train_data.sampler).",
            )
        )


def check_count(name: str, value: Any, least: int, remedy: str) -> int:
    """Return an integer of any library as a Python int, which a checkpoint can hold; refuse one below ``least``."""
    found = as_int(value)
    if found is None or found < least:
        raise InputError(message(f"{name} as an integer of at least {least}", repr(value), remedy))
    return found


def check_epochs(value: Any) -> int:
    """Return a number of epochs as an int. A whole float counts: transformers' ``num_train_epochs`` is one."""
    remedy = "The order is InfoBatch(data, num_epochs, ratio, delta) and Pruned(data, method, num_epochs)."
    if isinstance(value, Real) and not isinstance(value, Integral):
        number = float(value)
        if number.is_integer():
            value = int(number)
        elif number > 1:
            remedy = "Plans are made for whole epochs: round it to a whole number."
    return check_count("num_epochs", value, 1, remedy)


def check_epochs_left(epoch: int, num_epochs: int) -> None:
    """Check that a pass does not begin after the last epoch."""
    if epoch >= num_epochs:
        raise EpochError(
            message(
                f"at most num_epochs={num_epochs} epochs",
                f"a pass for epoch {epoch} (counted from 0)",
                "After resuming, loop over range(train_data.epoch, num_epochs). To train longer, set num_epochs to the "
                "number of epochs of the whole run, because the last ones use full data. A loop that counts iterations "
                "must end at train_data.epoch == train_data.num_epochs, because pruned epochs have fewer iterations. "
                "For passes that do not train, load train_data.full().",
            )
        )


def check_undivided(world: int) -> None:
    """Check that this process trains alone if the samples came from ``plan()`` and not from a pass over the sampler."""
    if world > 1:
        raise RankError(
            message(
                "a pass over train_data.sampler, which divides a plan between the ranks",
                "losses of samples taken directly from plan()",
                "Load with infobatch.DataLoader or sampler=train_data.sampler.",
            )
        )


def check_shardable(size: int, method: str, by_cuts: bool) -> None:
    """Check that a method chooses by score thresholds, and that products of two places fit in 63 bits."""
    if not by_cuts:
        expected = "for shard_scores=True a method that chooses samples by score thresholds alone"
        remedy = "Leave shard_scores out, or write the rule with methods.cuts.ByCuts."
        raise InputError(message(expected, method, remedy))
    if size > LARGEST:
        raise InputError(message(f"at most {LARGEST} samples", str(size), "Split the data set."))


def check_loss(loss: Any) -> None:
    if isinstance(loss, Tensor) and loss.ndim == 1 and loss.dtype in DTYPES and loss.shape[0] > 0:
        if not loss.is_meta and loss.layout is torch.strided:
            return
        got = "losses on meta" if loss.is_meta else f"losses as {loss.layout}"
        raise InputError(message("losses with values", got, "Move the model to a device; make them dense."))
    remedy = "Reduce every dimension but the first: loss, score = infobatch.per_sample(losses, mask)."
    if not isinstance(loss, Tensor):
        remedy = "Pass the tensor that the criterion returns."
    if isinstance(loss, tuple):
        source = "per_sample or sieve.expand"
        remedy = f"Take apart what {source} returned: loss, score = ..., then update(loss, score=score)."
    if isinstance(loss, Tensor) and loss.ndim == 1:
        remedy = "Pass loss.float(), and leave out empty batches."
    if isinstance(loss, Tensor) and loss.ndim == 0:
        remedy = (
            'Give the criterion reduction="none". After a sieve, call loss, score = sieve.expand(losses) instead of '
            "sieve.reduce, then update(loss, score=score)."
        )
    raise InputError(message("one floating-point loss per sample, shape [batch]", describe(loss), remedy))


def check_grad_mode(loss: Tensor) -> None:
    """Refuse losses without a gradient while autograd is off: the epoch would end without a training step."""
    if not loss.requires_grad:
        remedy = (
            "For passes that do not train load train_data.full(), whose update() records nothing; in training, call "
            "update() outside of torch.no_grad() and inference_mode()."
        )
        raise MisalignedError(message("losses of a training step", "losses under torch.no_grad()", remedy))


def check_score(score: Any, loss: Tensor) -> None:
    right = isinstance(score, Tensor) and score.shape == loss.shape and score.is_floating_point()
    if not right or score.device != loss.device:
        raise InputError(
            message(
                f"one floating-point score per loss, shape {list(loss.shape)} on {loss.device}",
                describe_placed(score),
                "Reduce every dimension but the first, on the device of the loss.",
            )
        )


def check_hidden(method: str, observes_hidden: bool, loader: dict[str, Any]) -> None:
    """Check that a method needs the hidden samples, and that a loader delivers all in order: so indices are known."""
    if not observes_hidden:
        remedy = "Leave the pass out: this method does not need it."
        raise InputError(message("a method that needs the hidden samples", method, remedy))
    plain = {"shuffle": False, "drop_last": False, "sampler": None, "batch_sampler": None, "in_order": True}
    for name, value in plain.items():
        if loader.get(name) is not None and loader[name] is not value:
            remedy = "Every hidden sample is observed once: leave it out."
            raise InputError(message("a loader that keeps the order", name, remedy))


def check_not_observing(hidden: Any) -> None:
    """Check that a plan is not asked for during ``hidden``, a pass over the hidden samples."""
    if hidden is not None:
        remedy = "It depends on what is observed there: finish the loop over train_data.hidden() first."
        raise MisalignedError(message("no call for a plan during a pass over the hidden samples", "one", remedy))


def check_indices(indices: Any, loss: Tensor) -> None:
    """Check what can be known of indices without reading their values."""
    is_int64 = isinstance(indices, Tensor) and indices.dtype == torch.int64
    if not is_int64 or indices.shape != loss.shape:
        remedy = "Pass one index per loss."
        if not is_int64:
            remedy = "Pass positions in the data set as 64-bit integers: indices.long()."
        expected = f"indices as an int64 tensor of shape {list(loss.shape)}, one per loss"
        raise InputError(message(expected, describe(indices), remedy))
    if indices.device != loss.device:
        raise InputError(
            message(
                f"indices on {loss.device}, like the loss",
                f"indices on {indices.device}",
                "Move them with the batch: indices.to(device, non_blocking=True).",
            )
        )


class WeightTable(Protocol):
    """The weight of each sample in the running plan."""

    size: int

    def look_up(self, indices: Tensor) -> Tensor: ...


def check_range(indices: Tensor, size: int, remedy: str) -> None:
    """Check that indices are positions in a data set of this size. This reads values, so it is for the CPU only."""
    low, high = (int(end) for end in indices.aminmax())
    if low < 0 or high >= size:
        raise InputError(message(f"indices from 0 to {size - 1}", f"{low} to {high}", remedy))


def check_members(indices: Tensor, table: WeightTable, epoch: int, ghosts: Tensor | None = None) -> Tensor:
    """Check that indices are positions in the data set and in the plan, and return their weights.

    This reads values, so it is for the CPU only. Ghosts have weight 0 and are allowed.
    """
    try:
        weights = table.look_up(indices)
    except IndexError:
        check_range(indices, table.size, "They are positions in the data set that train_data wraps.")
        raise
    if not weights.min().is_nonzero():
        outside = indices[weights == 0]  # samples outside of the plan
        if ghosts is None or not bool(torch.isin(outside, ghosts.to(outside.device)).all()):
            raise MisalignedError(describe_unplanned(epoch))
    return weights


def check_attribution(received: int, seen: int, outside: int, epoch: int) -> None:
    """Check, before losses become scores, that each belongs to the plan and to one sample only.

    A sample may have a loss that was not counted: an interrupt came between the two.

    Args:
        received: The number of losses.
        seen: The number of samples of the plan that have one.
        outside: The number of samples outside of the plan that have one.
        epoch: The epoch of the plan.
    """
    if outside:
        raise MisalignedError(describe_unplanned(epoch))
    if received > seen:
        raise MisalignedError(
            message(
                "at most one loss per sample and epoch",
                f"{received} losses for {seen} samples in epoch {epoch}",
                "Some samples came twice: does a loader pad its last batch, or did one batch get two updates?",
            )
        )


def describe(value: Any) -> str:
    return f"{value.dtype} of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def describe_placed(value: Any) -> str:
    """Describe a value with the device that a tensor is on."""
    return f"{describe(value)} on {value.device}" if isinstance(value, Tensor) else describe(value)


def is_count(value: Any, least: int) -> bool:
    """Whether this is an int of at least ``least``, and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def as_int(value: Any) -> int | None:
    """Return an integer of any library as a Python int, as 3 for np.int64(3); None for all else, bools included."""
    if isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool"):  # older NumPy takes its own as 1
        return None
    try:
        return operator.index(value)
    except (TypeError, RuntimeError):  # a tensor without a value
        return None


def is_number(value: Any) -> bool:
    """Whether this is a finite number that a float can hold, and not a bool."""
    is_plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_plain and abs(value) <= sys.float_info.max


def describe_unplanned(epoch: int) -> str:
    return message(
        f"losses of samples in the plan of epoch {epoch}",
        "one of a sample that was left out",
        "Load with sampler=train_data.sampler; indices are positions in the data set, not in the plan.",
    )
