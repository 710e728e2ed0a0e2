"""The contrastive losses of pairs with in-batch negatives: CLIP, InfoNCE, retrieval.

The trap: such a loss depends on the other samples of the batch. In a short batch it is smaller, and of a single pair it
is 0, so ``train_data`` must be told ``in_batch_loss=True``, or the samples of short batches are pruned for that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..checks import DTYPES, describe, describe_placed
from ..errors import InputError, message
from ..plan import move
from .per_sample import PerSample, at_least_single


def contrastive_loss(
    similarity: Tensor,
    reverse: Tensor | None = None,
    *,
    positives: Tensor | None = None,
    weights: Tensor | None = None,
) -> PerSample:
    """Return the cross entropy of each row against all columns, averaged over both directions.

    Use it in place of the ``return_loss=True`` of transformers' ``CLIPModel``:
    ``contrastive_loss(out.logits_per_text, out.logits_per_image)``, or, without ``reverse``, in place of
    sentence-transformers' ``MultipleNegativesRankingLoss``, with its scaled similarities. Write
    ``InfoBatch(..., in_batch_loss=True)``, so that short batches give no scores.

    To leave a column out of a row, as where two samples have the same text, fill it with -inf:
    ``similarity.masked_fill(is_same, -torch.inf)``. A row's own column must stay.

    **Several ranks.** Let the rows be those of this rank and the columns those of all, from
    ``torch.distributed.nn.functional.all_gather``, and pass ``positives=torch.arange(rows) + rank * rows``. Gather the
    ``weights`` likewise.

    **Bias.** The weights of ``update`` make up for pruned rows, but the columns are what the plan drew: more hard
    samples, which are harder negatives. So the expected gradient is not exactly that of full data, as it would be with
    candidates that do not depend on the plan. With ``weights``, each column also counts by its weight, as
    log-weights in the softmax, which makes the sum over negatives unbiased and leaves a bias from its logarithm, which
    falls with the size of the batch.

    Args:
        similarity: The scaled similarities, shape [batch, columns]: row i is a sample, and its own column is
            ``positives[i]``.
        reverse: The same for the other direction. None: one direction.
        positives: The own column of each row in both directions, int64 of shape [batch]. None: column i.
        weights: The weights of the samples in the first columns of both directions, relative to a mean of 1, as from
            ``train_data.plan().weights_of(train_data.batch_indices)``. Further columns, such as hard negatives, weigh
            1. None: all weigh 1, as in the frameworks' losses.

    Returns:
        ``loss`` and ``score``, each of shape [batch] and at least float32. The score is NaN if there are no negatives.

    Raises:
        InputError: If an argument has the wrong shape, type or device.

    >>> import torch, infobatch
    >>> images, texts = torch.randn(100, 8), torch.randn(100, 8)
    >>> data = torch.utils.data.TensorDataset(images, texts)
    >>> net = torch.nn.Linear(8, 8)
    >>> train_data = infobatch.InfoBatch(data, num_epochs=8, in_batch_loss=True)
    >>> for x, y in infobatch.DataLoader(train_data, batch_size=32):
    ...     similarity = net(x) @ y.T
    ...     weights = train_data.plan().weights_of(train_data.batch_indices)
    ...     loss, score = infobatch.adapters.contrastive_loss(similarity, similarity.T, weights=weights)
    ...     train_data.update(loss, score=score).backward()
    >>> train_data.scores.isnan().sum()  # the last batch was short
    tensor(4)
    """
    directions = [similarity] if reverse is None else [similarity, reverse]
    _check_similarities(directions)
    rows = len(similarity)
    if positives is None:
        _check_own_columns(directions)
        positives = torch.arange(rows, device=similarity.device)
    else:
        _check_positives(positives, directions)
    if weights is not None:
        _check_weights(weights, directions)
        directions = [_weigh(one, positives, weights) for one in directions]
    losses = [F.cross_entropy(at_least_single(one), positives, reduction="none") for one in directions]
    loss = losses[0] if reverse is None else (losses[0] + losses[1]) / 2.0
    has_negatives = any(one.shape[1] > 1 for one in directions)
    return PerSample(loss, loss.detach() if has_negatives else torch.full_like(loss, torch.nan))


def _weigh(similarity: Tensor, positives: Tensor, weights: Tensor) -> Tensor:
    """Add the log-weight of each column but the row's own. A weight of 0, of what only fills a place, removes it."""
    similarity = at_least_single(similarity)
    logs = move(weights.detach(), similarity.device).to(similarity.dtype).log()
    logs = F.pad(logs, (0, similarity.shape[1] - len(logs)))
    is_own = torch.arange(similarity.shape[1], device=positives.device) == positives[:, None]
    return similarity + torch.where(is_own, 0.0, logs)


# ---- checks ----------------------------------------------------------------------------------------------------


def _check_similarities(directions: list[Any]) -> None:
    first = directions[0]
    for one in directions:
        remedy = ""
        if not isinstance(one, Tensor) or one.ndim != 2 or one.dtype not in DTYPES or not one.numel():
            remedy = "Pass the similarities of all pairs of the batch, which is not empty, each times the scale."
        elif one.shape[0] != first.shape[0] or one.device != first.device:
            remedy = "Pass one row per sample in both directions: for CLIP logits_per_text and logits_per_image."
        if remedy:
            expected = "similarities as a floating-point tensor of shape [batch, columns], for each direction"
            raise InputError(message(expected, ", ".join(describe(each) for each in directions), remedy))


def _check_own_columns(directions: list[Tensor]) -> None:
    rows, columns = len(directions[0]), min(one.shape[1] for one in directions)
    if columns < rows:
        remedy = "Pass positives, the own column of each row, or the whole batch as columns."
        raise InputError(message(f"a column for each of {rows} rows", f"{columns} columns", remedy))


def _check_positives(positives: Any, directions: list[Tensor]) -> None:
    rows, columns = len(directions[0]), min(one.shape[1] for one in directions)
    expected = f"positives as int64 of shape [{rows}] on {directions[0].device}"
    fits = isinstance(positives, Tensor) and positives.dtype == torch.int64 and positives.shape == (rows,)
    if not fits or positives.device != directions[0].device:
        got = describe_placed(positives)
        raise InputError(message(expected, got, "Pass the own column of each row."))
    if positives.device.type == "cpu" and not torch.compiler.is_compiling():
        low, high = (int(end) for end in positives.aminmax())
        if low < 0 or high >= columns:
            remedy = "They are columns; on several ranks the rows before those of this rank are added."
            raise InputError(message(f"positives from 0 to {columns - 1}", f"{low} to {high}", remedy))


def _check_weights(weights: Any, directions: list[Tensor]) -> None:
    columns = min(one.shape[1] for one in directions)
    fits = isinstance(weights, Tensor) and weights.ndim == 1 and weights.is_floating_point()
    if not fits or len(weights) > columns:
        remedy = "Pass train_data.plan().weights_of(train_data.batch_indices), gathered if the columns are."
        raise InputError(message(f"a weight for each of the first columns, of {columns}", describe(weights), remedy))
