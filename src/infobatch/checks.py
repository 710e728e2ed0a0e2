"""Bad input, refused where it is first visible: what was expected, what came, what to do."""

from __future__ import annotations

from collections.abc import Collection, Sized
from dataclasses import fields
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from .errors import InputError, MisalignedError, StateError, message
from .order import LARGEST
from .plan import ShardPlan
from .telemetry import EpochReport

FORMAT = 1
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
FIELDS = {
    *("format", "size", "method", "compensate", "num_epochs", "seed", "epoch", "planned", "scores", "reports"),
    *("device", "done", "running", "memory"),
}


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


def check_count(name: str, value: Any, least: int, remedy: str) -> None:
    if not _is_count(value, least):
        raise InputError(message(f"{name} as a whole number of at least {least}", repr(value), remedy))


def check_shardable(size: int, method: str, by_cuts: bool) -> None:
    """Scores in parts want a method that cuts the axis of scores, and products of two places in 63 bits."""
    if not by_cuts:
        raise InputError(
            message(
                "for shard_scores=True a method that only cuts the axis of scores",
                method,
                "Its policy looks at all scores at once: leave shard_scores out, or write it with policies.ByCuts.",
            )
        )
    if size > LARGEST:
        raise InputError(message(f"at most {LARGEST} samples", str(size), "Split the data set."))


def check_loss(loss: Any) -> None:
    if isinstance(loss, Tensor) and loss.ndim == 1 and loss.dtype in DTYPES and loss.shape[0] > 0:
        if not loss.is_meta:
            return
        raise InputError(message("losses with values", "losses on meta", "Move the model to a device first."))
    remedy = "Reduce every dimension but the first: loss.flatten(1).mean(1)."
    if not isinstance(loss, Tensor):
        remedy = "Pass the criterion's tensor as it is."
    if isinstance(loss, Tensor) and loss.ndim == 0:
        remedy = 'Give the criterion reduction="none".'
    raise InputError(message("one floating-point loss a sample, shape [batch]", kind(loss), remedy))


def check_score(score: Any, loss: Tensor) -> None:
    right = isinstance(score, Tensor) and score.shape == loss.shape and score.is_floating_point()
    if not right or score.device != loss.device:
        raise InputError(
            message(
                f"one floating-point score a loss, shape {list(loss.shape)} on {loss.device}",
                f"{kind(score)} on {score.device}" if isinstance(score, Tensor) else kind(score),
                "Reduce every dimension but the first, where the loss is.",
            )
        )


def check_brought(method: str, needs: Collection[str], loss: Tensor, confidence: Any) -> None:
    """What a method needs besides losses, named where it is missing."""
    if "confidence" not in needs:
        return
    remedy = "Pass confidence=logits.softmax(1).gather(1, targets[:, None]).squeeze(1)."
    if confidence is None:
        expected = f"the keyword confidence, which {method} needs: the probability of the right answer, one a sample"
        raise InputError(message(expected, "none", remedy))
    right = isinstance(confidence, Tensor) and confidence.shape == loss.shape and confidence.is_floating_point()
    if not right or confidence.device != loss.device:
        raise InputError(
            message(f"confidence of shape {list(loss.shape)} on {loss.device}", kind(confidence), remedy)
        )
    if confidence.device.type == "cpu" and not torch.compiler.is_compiling() and not_chances(confidence.detach()):
        low, high = (float(end) for end in confidence.detach().aminmax())
        raise InputError(message("probabilities as confidence, from 0 to 1", f"{low:.3g} to {high:.3g}", remedy))


def not_chances(values: Tensor) -> int:
    """How many are no probabilities. NaN says that nothing is known."""
    return int(torch.count_nonzero((values < 0) | (values > 1)))


def check_look(loader: dict[str, Any]) -> None:
    """A look goes through all of the left-out in one order; their indices are counted by it."""
    plain = {"shuffle": False, "drop_last": False, "sampler": None, "batch_sampler": None, "in_order": True}
    for name, value in plain.items():
        if loader.get(name) is not None and loader[name] is not value:
            remedy = "A look is at all of the left-out, once: leave it out."
            raise InputError(message("a loader that keeps the order", name, remedy))


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
        if not isinstance(state["part"], dict) or set(state["part"]) != {"rank", "world", "start"}:
            raise _refused("which part this is", repr(state["part"]), "It is damaged.")
        each = -(-size // state["part"]["world"])
        first = min(state["part"]["rank"] * each, size)
        if state["part"]["start"] != first:
            raise _refused(f"a part from place {first}", f"from {state['part']['start']}", "It is damaged.")
        count = min(each, size - first)
        _check_scores(state["scores"], count)
        if state["running"] is not None:
            _check_running_part(state["running"], count)
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
            f"{len(parts)} part(s) that lack those from {reached} on",
            "On another number of ranks load the list of all ranks' states.",
        )


def _check_facts(state: Any, size: int, method: str, compensate: str, names: set[str]) -> None:
    if not isinstance(state, dict) or "format" not in state:
        raise _refused("a state_dict of infobatch", type(state).__name__, "Was another object saved under this name?")
    if not _is_count(state["format"], 1) or state["format"] > FORMAT:
        raise _refused(f"format {FORMAT} or older", f"format {state['format']!r}", "Update infobatch.")
    if set(state) != names:
        raise _refused(
            "all fields of a state_dict", f"a difference of {sorted(names ^ set(state))}", "It is damaged."
        )
    if state["size"] != size:
        raise _refused(
            f"the state of a data set of {size} samples",
            f"one of {state['size']}",
            "Scores belong to positions: load the data set they were made on.",
        )
    for name, here in (("method", method), ("compensate", compensate)):
        if state[name] != here and not (here == "auto" and state[name] in ("loss", "lr")):
            got = f"{name} {state[name]}"
            raise _refused(f"{name} {here}", got, "Resume with the settings the run was begun with.")
    for name, least in (("num_epochs", 1), ("seed", 0), ("epoch", 0), ("planned", 0), ("done", 0)):
        if not _is_count(state[name], least):
            raise _refused(f"{name} as a whole number of at least {least}", repr(state[name]), "It is damaged.")
    _check_reports(state["reports"])


def kind(value: Any) -> str:
    return f"{value.dtype} of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _check_table(table: Any, size: int) -> None:
    plain = isinstance(table, Tensor) and table.layout == torch.strided and not table.is_meta
    if not plain or table.shape != (size,) or table.dtype != torch.float32:
        raise _refused(f"a float32 table of {size} numbers", kind(table), "It is damaged.")


def _check_scores(scores: Any, size: int) -> None:
    _check_table(scores, size)
    if torch.isinf(scores).any():
        raise _refused("finite scores", "infinite ones", "It is damaged.")


def _check_running_part(running: Any, size: int) -> None:
    facts = {field.name for field in fields(ShardPlan)}
    if not isinstance(running, dict) or set(running) != {"level", "fresh"} | facts:
        raise _refused("the plan and the losses of an epoch", type(running).__name__, "It is damaged.")
    _check_table(running["fresh"], size)
    level, levels = running["level"], len(running["weights"])
    if not isinstance(level, Tensor) or level.shape != (size,) or (size and not 0 <= int(level.max()) < levels):
        raise _refused(f"a level for each of {size} samples, below {levels}", kind(level), "It is damaged.")


def _check_reports(reports: Any) -> None:
    names = {field.name for field in fields(EpochReport)}
    whole = isinstance(reports, list) and all(isinstance(one, dict) and set(one) == names for one in reports)
    if not whole:
        raise _refused("a list of epoch reports", type(reports).__name__, "It is damaged.")


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
        raise _refused(f"a mask of {size} samples", kind(chosen), "It is damaged.")
    indices, table = running["indices"], running["table"]
    _check_table(running["fresh"], size)
    plausible = isinstance(indices, Tensor) and indices.dtype == torch.int64 and indices.ndim == 1
    if not plausible or not 0 < indices.numel() <= size or indices.min() < 0 or indices.max() >= size:
        raise _refused("a plan of this data set", kind(indices), "It is damaged.")
    planned = torch.zeros(size, dtype=torch.bool, device="cpu").index_fill_(0, indices.cpu(), True)
    if table is None:
        belong = bool(planned.all())
    else:
        _check_table(table, size)
        belong = torch.equal(table.cpu() > 0, planned)
    if not belong or indices.numel() != torch.count_nonzero(planned):
        raise _refused("each sample of a plan once, with its weight", "a plan and weights apart", "It is damaged.")


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _refused(expected: str, got: str, remedy: str) -> StateError:
    return StateError(message(expected, got, f"{remedy} Nothing was loaded."))


def stranger(epoch: int) -> str:
    return message(
        f"losses of samples in the plan of epoch {epoch}",
        "one of a sample that was left out",
        "Load with sampler=train_data.sampler; indices are positions in the data set, not in the plan.",
    )
