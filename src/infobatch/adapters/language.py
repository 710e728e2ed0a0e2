"""One loss per sequence for language models: causal, masked and encoder-decoder; padded, packed or without padding.

The trap: models average over the tokens of a batch, and in a pack the first token of a sequence would be predicted from
the last one of another. A sample must be an item of the data set. Sequences that a ``collate_fn`` packs are samples, in
the order of the batch; of a data set whose items are packs, the packs are.

A fused kernel that returns one loss per batch, as Liger's do, has no losses per sample. For these there is
``methods.bls``, which scores samples by their batches: ``update(loss.expand(batch_size))``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ..checks import DTYPES, describe, describe_placed, is_count
from ..errors import InputError, message, plural
from .per_sample import Average, PerSample, at_least_single, average_sums, check_average

IGNORED = -100
NO_COUNT = "Pass count=len(train_data.batch_indices), and position_ids or sequence_ids of the batch as it was collated."


def language_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    shift: bool,
    position_ids: Tensor | None = None,
    sequence_ids: Tensor | None = None,
    count: int | None = None,
    ignore_index: int = IGNORED,
    average: Average = "batch",
) -> PerSample:
    """Return each sequence's cross entropy over its tokens.

    It replaces ``outputs.loss`` of a model of transformers, and torch's ``cross_entropy`` over flattened tokens.

    Samples that a ``collate_fn`` packs, as ``DataCollatorWithFlattening`` does, are told apart in a loop over
    ``infobatch.DataLoader`` with ``position_ids=batch["position_ids"], count=len(train_data.batch_indices)``.
    Where the items of the data set are packs themselves, leave both out, and pass
    ``labels.masked_fill(position_ids == 0, -100)`` as labels: one loss per pack.

    Args:
        logits: The logits of each token, shape [batch, length, vocabulary].
        labels: The tokens, shape [batch, length].
        shift: True if a token's logits predict the next label, as of causal models; False if its own, as of masked and
            encoder-decoder models and with labels that are shifted already.
        position_ids: Where sequences are packed: the position of each token in its sequence, shape [batch, length]. A
            position that is not the next one begins a new sequence, as in the attention of transformers, and so does
            each row. There, set ``model.config.use_cache = False``: with a cache, sequences attend to each other.
        sequence_ids: Instead of positions: which sample of the batch each token belongs to, counted from 0 and negative
            for padding. Needed if a ``collate_fn`` packs the samples in another order, or pads between them.
        count: How many sequences are packed. Without it the number is read, for which a device must be waited for.
        ignore_index: The label of tokens that are not predicted.
        average: What the mean of ``loss`` is; see ``infobatch.per_sample``. Under ``"batch"``, the mean over the tokens
            of the batch, pruning is unbiased only approximately.

    Returns:
        ``loss`` for ``update`` and ``score`` for its argument of that name, each of shape [batch], or [count] of
        packed sequences. A sequence without a token to predict has the loss 0 and the score NaN: it keeps its score.

    Raises:
        InputError: If the shapes, types or devices do not fit together, or there are more or fewer sequences than
            ``count``. On a GPU and in a graph, the losses are NaN in that last case, without a gradient.

    >>> import torch, infobatch
    >>> from infobatch import adapters
    >>> texts = [torch.arange(3, 5 + n % 4) for n in range(8)]
    >>> def pack(samples):
    ...     return torch.cat(samples)[None], torch.cat([torch.arange(len(one)) for one in samples])[None]
    >>> model = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10))
    >>> train_data = infobatch.InfoBatch(texts, num_epochs=8)
    >>> for ids, positions in infobatch.DataLoader(train_data, batch_size=4, collate_fn=pack):
    ...     samples = len(train_data.batch_indices)
    ...     loss, score = adapters.language_loss(model(ids), ids, shift=True, position_ids=positions, count=samples)
    ...     train_data.update(loss, score=score).backward()
    >>> loss.shape
    torch.Size([4])
    """
    _check_tokens("logits", logits, labels)
    sequences = _find_sequences(labels, position_ids, sequence_ids, count)
    check_average(average, labels.device)
    targets = _make_targets(labels, shift, ignore_index, sequences)
    losses = _token_losses(logits.flatten(0, 1), targets.flatten())
    return _reduce(losses.view_as(targets), targets, sequences, average)


def chunked_language_loss(
    hidden: Tensor,
    lm_head: Callable[[Tensor], Tensor],
    labels: Tensor,
    *,
    shift: bool,
    chunk_size: int = 1024,
    position_ids: Tensor | None = None,
    sequence_ids: Tensor | None = None,
    count: int | None = None,
    ignore_index: int = IGNORED,
    average: Average = "batch",
) -> PerSample:
    """Return the same from hidden states, without ever holding the logits of all tokens.

    The logits of ``chunk_size`` tokens are computed at a time, and once more in the backward pass. For long sequences
    and large vocabularies, where the logits take most of the memory.

    Args:
        hidden: The last hidden states, shape [batch, length, features]: ``model.model(input_ids).last_hidden_state`` in
            transformers.
        lm_head: What makes logits of them, as ``model.lm_head``; called with tensors [tokens, features].
        labels, shift, position_ids, sequence_ids, count, ignore_index, average: As for ``language_loss``.
        chunk_size: The number of tokens whose logits are held at a time.

    Returns:
        ``loss`` and ``score``, as of ``language_loss``.

    Raises:
        InputError: As ``language_loss``, and if ``chunk_size`` is not a positive integer.

    >>> import torch, infobatch
    >>> from infobatch import adapters
    >>> body, lm_head = torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10)
    >>> ids = torch.randint(0, 10, (2, 6))
    >>> loss, score = adapters.chunked_language_loss(body(ids), lm_head, ids, shift=True, chunk_size=5)
    >>> torch.allclose(loss, adapters.language_loss(lm_head(body(ids)), ids, shift=True).loss)
    True
    """
    _check_tokens("hidden", hidden, labels)
    if not is_count(chunk_size, 1):
        remedy = "1024 tokens are a good start; fewer take less memory."
        raise InputError(message("chunk_size as a positive integer", repr(chunk_size), remedy))
    sequences = _find_sequences(labels, position_ids, sequence_ids, count)
    check_average(average, labels.device)
    targets = _make_targets(labels, shift, ignore_index, sequences)

    def losses_of(states: Tensor, targets: Tensor) -> Tensor:
        return _token_losses(lm_head(states), targets)

    states, flat = torch.split(hidden.flatten(0, 1), chunk_size), torch.split(targets.flatten(), chunk_size)
    parts = [checkpoint(losses_of, *part, use_reentrant=False) for part in zip(states, flat, strict=True)]
    losses = torch.cat(parts)
    return _reduce(losses.view_as(targets), targets, sequences, average)


class _Sequences(NamedTuple):
    """The sequences of a batch in which they are packed."""

    ids: Tensor
    """Which one each token belongs to, shape [batch, length]; negative for none."""
    starts: Tensor
    """Whether a token is not in the sequence of the one before it."""
    total: int
    is_counted: bool
    """Whether the ids were counted from positions, so that each of them must be there."""


def _token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    logits = at_least_single(logits)
    return F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="none")


def _make_targets(labels: Tensor, shift: bool, ignore_index: int, sequences: _Sequences | None) -> Tensor:
    """Return what the logits of each token predict. The last ones of sequences predict nothing if labels are shifted.

    The labels are shifted instead of the logits, of which a shifted copy would take as much memory again.
    """
    targets = torch.where(labels == ignore_index, IGNORED, labels.long())
    if sequences is not None:
        targets = targets.masked_fill(sequences.ids < 0, IGNORED)
        if shift:
            targets = targets.masked_fill(sequences.starts, IGNORED)
    return F.pad(targets[:, 1:], (0, 1), value=IGNORED) if shift else targets


def _find_sequences(
    labels: Tensor, position_ids: Tensor | None, sequence_ids: Tensor | None, count: int | None
) -> _Sequences | None:
    if position_ids is None and sequence_ids is None:
        if count is not None:
            raise InputError(message("position_ids or sequence_ids with count", "neither", NO_COUNT))
        return None
    given = position_ids if sequence_ids is None else sequence_ids
    if position_ids is not None and sequence_ids is not None:
        raise InputError(message("position_ids or sequence_ids", "both", "Leave out position_ids."))
    if count is not None and not is_count(count, 1):
        raise InputError(message("count as a positive integer", repr(count), NO_COUNT))
    is_integer = isinstance(given, Tensor) and given.dtype in (torch.int64, torch.int32)
    if not is_integer or given is None or given.shape != labels.shape or given.device != labels.device:
        expected = f"position_ids or sequence_ids as integers of shape {list(labels.shape)} on {labels.device}"
        got = describe_placed(given)
        raise InputError(message(expected, got, "Pass one for each label."))
    if sequence_ids is None:
        starts = F.pad(given[:, 1:] != given[:, :-1] + 1, (1, 0), value=True)
        ids = starts.flatten().cumsum(0).view_as(starts) - 1
    else:
        starts, ids = F.pad(given[:, 1:] != given[:, :-1], (1, 0), value=True), given.long()
    if count is None:
        count = int(ids.max()) + 1
    return _Sequences(ids, starts, max(count, 1), sequence_ids is None)


def _reduce(losses: Tensor, targets: Tensor, sequences: _Sequences | None, average: Average) -> PerSample:
    valid = targets != IGNORED
    if sequences is None:
        return average_sums(losses.sum(1), valid.sum(1), losses.numel(), average)
    count, ids = sequences.total, sequences.ids.flatten()
    bins = ids.clamp(0, count)  # the last bin is for padding behind the last sequence; padding elsewhere has the loss 0
    sums = losses.new_zeros(count + 1).index_add(0, bins, losses.flatten())
    counts = torch.zeros_like(sums, dtype=torch.int64).index_add(0, bins, valid.flatten().long())
    if sequences.is_counted:  # behind the last sequence there may be padding, in which nothing is predicted
        is_right = (ids[-1] + 1 >= count) & (counts[count] == 0)
    else:
        is_right = ids.max() < count
    if not torch.compiler.is_compiling() and losses.device.type == "cpu" and not is_right:
        remedy = f"One may have been dropped, split or added on the way from the data set. {NO_COUNT}"
        raise InputError(message(f"tokens of {plural(count, 'sequence')}", str(int(ids.max()) + 1), remedy))
    found = average_sums(sums[:count], counts[:count], losses.numel(), average)
    return PerSample(*(torch.where(is_right, one, torch.nan) for one in found))


def _check_tokens(name: str, values: Any, labels: Any) -> None:
    if not isinstance(values, Tensor) or values.ndim != 3 or values.dtype not in DTYPES or not values.numel():
        last = "vocabulary" if name == "logits" else "features"
        expected = f"floating-point {name} of shape [batch, length, {last}]"
        raise InputError(message(expected, describe(values), f"Pass the {name} of all tokens, in one tensor."))
    is_integer = isinstance(labels, Tensor) and labels.dtype in (torch.int64, torch.int32)
    if not is_integer or labels.shape != values.shape[:2] or labels.device != values.device:
        expected = f"labels as integers of shape {list(values.shape[:2])} on {values.device}"
        got = describe_placed(labels)
        remedy = f"Pass the labels of all tokens, not shifted, with one for each of the {name}; shift=True shifts them."
        raise InputError(message(expected, got, remedy))
