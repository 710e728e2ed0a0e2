"""Losses and scores of batches that MixUp or CutMix has mixed.

The trap: a mixed row has one loss and two samples. Its loss is neither's score, and the weight of its own sample alone
leaves the partners as they were drawn, with more hard ones among them than in the data set.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from ..checks import DTYPES, describe, describe_placed
from ..errors import InputError, message
from ..plan import move
from .per_sample import PerSample, at_least_single

Criterion = Literal["cross_entropy", "bce"]
Form = Literal["paper", "error"]

LEAST_PRESENT = 0.5
"""A sample that makes up less than this of its two rows together is not judged by them."""
SOLVABLE = 0.05
"""The least determinant for which the gaps of two samples of one class are told apart."""
NOTHING = 1e-6
"""A share that is a rounding error of 0."""
NOT_MIXED = 1e-3
"""How far the classes that were not mixed into a target may be from each other: rounding, also in half precision."""


def mix_targets(
    labels: Tensor,
    num_classes: int,
    lam: float | Tensor,
    *,
    partners: Tensor | None = None,
    smoothing: float = 0.0,
) -> Tensor:
    """Return the soft targets of a mixed batch, as timm's ``Mixup`` makes them.

    With ``smoothing``, the class of a sample has 1 - smoothing + smoothing / num_classes, and all others have
    smoothing / num_classes. torchvision's transforms make the same targets without it, and its scripts give it to the
    criterion, which comes to the same.

    Args:
        labels: The class of each row before mixing, int64 of shape [batch].
        num_classes: The number of classes.
        lam: The share of its own sample in each row: a number, or a tensor of shape [batch] or [batch, 1].
        partners: The row that each row was mixed with, int64 of shape [batch]. None: the batch in reverse, as in timm.
            For torchvision's transforms ``torch.arange(batch).roll(1)``.
        smoothing: The label smoothing.

    Returns:
        The targets, shape [batch, num_classes].

    Raises:
        InputError: If an argument has the wrong shape or type.

    >>> import torch, infobatch
    >>> infobatch.adapters.mix_targets(torch.tensor([0, 2]), num_classes=3, lam=0.75)
    tensor([[0.7500, 0.0000, 0.2500],
            [0.2500, 0.0000, 0.7500]])
    """
    _check_rows("labels", labels, labels, "Pass the class of each row as integers, before they are mixed.")
    partners = _find_partners(partners, labels)
    if isinstance(lam, Tensor):
        lam = at_least_single(_check_lam(lam, labels))[:, None]
    off = smoothing / num_classes
    own = torch.full((len(labels), num_classes), off, device=labels.device)
    own = own.scatter(1, labels[:, None], 1.0 - smoothing + off)
    return own * lam + own[partners] * (1.0 - lam)


def mixed_loss(
    logits: Tensor,
    targets: Tensor,
    labels: Tensor,
    *,
    partners: Tensor | None = None,
    weights: Tensor | None = None,
    lam: float | Tensor | None = None,
    criterion: Criterion = "cross_entropy",
    label_smoothing: float = 0.0,
    score: Form = "paper",
) -> PerSample:
    """Return the loss of each mixed row, and a score of each sample from the two rows that it is part of.

    Use it in place of timm's ``SoftTargetCrossEntropy`` or ``BinaryCrossEntropy``, or of ``CrossEntropyLoss`` after
    torchvision's ``MixUp`` and ``CutMix``. The targets are what these made of the labels; the labels must be kept, so a
    ``collate_fn`` that mixes has to return both. timm's ``Mixup`` refuses odd batches, as the last one of a pruned
    epoch may be: use ``drop_last=True`` with it.

    **Scores.** Let row j be the one that sample i is mixed into, t the targets and p the predictions. The paper's A.3
    adds up ``p_i[y_i] + p_j[y_i]``. That rises as a sample is learned, and a score must fall, so "paper" subtracts it
    from its target: ``(t_i[y_i] - p_i[y_i]) + (t_j[y_i] - p_j[y_i])``. "error" is the form of the author's code, which
    adds the absolute values. Where two samples of one class are mixed, each difference belongs to both. They share it
    in proportion to ``lam``, or equally if that is not given. With ``lam``, and where two rows are each other's
    partners, the two differences are solved for the two samples as in A.3, unless lam is near 0.5. A row that holds
    nothing of a sample does not count for it, and if all rows hold less of it than half a row, as with one lam per row,
    its score is unknown. Much of a score is still chance,
    which ``infobatch.variations.averaged`` averages away; the author prunes nothing in the first 20 epochs, as
    ``methods.infobatch(warmup=20)``.

    **Weights.** A row needs both of its samples to be drawn, so its unbiased weight is the product of theirs:
    ``update`` multiplies by that of its own sample, and this function by that of its partner. The average of both, or
    its own alone, is biased towards pairs with hard samples. The product is exact for independent draws. Where k of m
    samples are drawn, as by InfoBatch, pairs of two of them count less by the share (m-k) / (k(m-1)), which is at most
    1/k. The author instead mixes rescaled samples with rescaled ones and applies one of their equal weights: then a
    sample that may be pruned never meets one that may not. The product varies more than either weight. Where a row is
    its own partner, or lam is 1, it holds a single sample, and the weight of that is enough.

    Args:
        logits: The predictions for the mixed rows, shape [batch, classes].
        targets: The mixed targets, as the framework made them, of the same shape.
        labels: The class of each row before mixing, int64 of shape [batch].
        partners: As for ``mix_targets``.
        weights: The weight of each row's own sample, relative to a mean of 1, shape [batch], as from
            ``train_data.plan().weights_of(train_data.batch_indices)``. A partner of weight 0, which only fills a place,
            counts as one of weight 1. None: all are 1, as on full data. After a sieve: ``weight / weight.mean()``.
        lam: As for ``mix_targets``; only needed to tell two samples of one class apart.
        criterion: "cross_entropy", or "bce": the mean over classes of the binary cross entropy.
        label_smoothing: As for ``torch.nn.CrossEntropyLoss``; 0 if the targets are smoothed already, as timm's are.
        score: "paper" or "error".

    Returns:
        ``loss`` and ``score``, each of shape [batch] and at least float32. The score is NaN where a sample is hardly
        part of the batch. On other devices than the CPU also where ``partners`` do not explain the targets.

    Raises:
        InputError: If an argument has the wrong shape, type or device, or, on the CPU, if a target has other classes
            than those of its row and its partner.

    >>> import torch, infobatch
    >>> x, y = torch.randn(40, 8), torch.arange(40) % 4
    >>> model = torch.nn.Linear(8, 4)
    >>> train_data = infobatch.InfoBatch(torch.utils.data.TensorDataset(x, y), num_epochs=8)
    >>> for x, y in infobatch.DataLoader(train_data, batch_size=10):
    ...     lam = torch.distributions.Beta(1.0, 1.0).sample()
    ...     mixed = lam * x + (1 - lam) * x.flip(0)  # with timm: mixed, targets = mixup(x, y)
    ...     targets = infobatch.adapters.mix_targets(y, 4, lam, smoothing=0.1)
    ...     weights = train_data.plan().weights_of(train_data.batch_indices)
    ...     loss, score = infobatch.adapters.mixed_loss(model(mixed), targets, y, weights=weights, lam=lam)
    ...     train_data.update(loss, score=score).backward()
    """
    _check_logits(logits, targets, criterion, score)
    _check_rows("labels", labels, logits, "Pass the class of each row before mixing.")
    partners = _find_partners(partners, labels)
    logits = at_least_single(logits)
    targets = targets.to(logits.dtype)
    is_told = _explain(targets, labels, partners)
    if label_smoothing:
        targets = targets * (1.0 - label_smoothing) + label_smoothing / targets.shape[1]
    shares = _find_shares(targets, labels, partners, None if lam is None else _check_lam(lam, labels))
    if criterion == "bce":
        loss = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(1)
        chances = logits.detach().sigmoid()
    else:
        loss = torch.sum(-targets * F.log_softmax(logits, dim=-1), dim=-1)
        chances = logits.detach().softmax(dim=-1)
    if weights is not None:
        loss = loss * _partner_weights(weights, partners, shares, loss)
    gaps = targets.detach() - chances
    found = _score(gaps.abs() if score == "error" else gaps, labels, partners, shares, solve=lam is not None)
    return PerSample(loss, found.masked_fill(~is_told, torch.nan))


# ---- scores ----------------------------------------------------------------------------------------------------


def _score(gaps: Tensor, labels: Tensor, partners: Tensor, shares: Tensor, *, solve: bool) -> Tensor:
    """Add up the gaps of each sample at its class in its own row and in the one that it is mixed into."""
    rows = torch.arange(len(labels), device=labels.device)
    guest = partners.argsort()  # the row that each sample is mixed into, if any: then its partner is this one
    is_guest = partners[guest] == rows
    own, there = gaps[rows, labels], gaps[guest, labels]
    absent = 1.0 - shares  # the share of the partner
    alike = labels == labels[partners]
    visiting = absent[guest]
    total = _portion(own, shares, alike) + _portion(there, visiting, alike[guest])
    present = shares + visiting
    score = torch.where(present < LEAST_PRESENT, torch.nan, total)
    if solve:
        # own = shares * s_i + absent * s_j in row i, there = the same from the side of j: two equations for two samples
        other = shares[guest]
        determinant = shares + other - 1.0
        solved = (other * own - absent * there) / determinant
        both = own + there
        solved = solved.clamp(both.clamp(max=0.0), both.clamp(min=0.0))
        is_solvable = alike & (guest == partners) & (determinant.abs() >= SOLVABLE)
        score = torch.where(is_solvable, solved, score)
    return score.masked_fill(~is_guest, torch.nan)


def _portion(gap: Tensor, share: Tensor, is_alike: Tensor) -> Tensor:
    """Return what of a gap is a sample's that has this share in the row: all of it if the other has another class."""
    return torch.where(is_alike, share * gap, torch.where(share > NOTHING, gap, 0.0))


def _find_shares(targets: Tensor, labels: Tensor, partners: Tensor, lam: Tensor | None) -> Tensor:
    """Return the share of its own sample in each row, read from the targets; 1/2 where they do not tell."""
    if lam is not None:
        return lam.to(targets.dtype).expand(len(labels))
    classes = targets.shape[1]
    own = targets.gather(1, labels[:, None]).squeeze(1)
    other = targets.gather(1, labels[partners][:, None]).squeeze(1)
    kept = 1.0 - (1.0 - own - other) / (1.0 - 2.0 / classes) if classes > 2 else torch.ones_like(own)  # not smoothed
    shares = ((own - (1.0 - kept) / classes) / kept).clamp(0.0, 1.0)
    shares = torch.where(labels == labels[partners], 0.5, shares)
    return shares.detach()


# ---- weights ---------------------------------------------------------------------------------------------------


def _partner_weights(weights: Tensor, partners: Tensor, shares: Tensor, loss: Tensor) -> Tensor:
    """Return what each loss is multiplied by before ``update`` multiplies it by the weight of its own sample."""
    _check_rows("weights", weights, loss, "Pass train_data.plan().weights_of(train_data.batch_indices).", real=True)
    weights = move(weights.detach(), loss.device).to(loss.dtype)[partners]
    is_single = partners == torch.arange(len(partners), device=partners.device)
    is_single = is_single | (1.0 - shares <= NOTHING) | (weights == 0)
    return weights.masked_fill(is_single, 1.0)


# ---- checks ----------------------------------------------------------------------------------------------------


def _find_partners(partners: Tensor | None, labels: Tensor) -> Tensor:
    if partners is None:
        return torch.arange(len(labels) - 1, -1, -1, device=labels.device)
    _check_rows("partners", partners, labels, "Pass the row that each row was mixed with.")
    if partners.device.type == "cpu" and not torch.compiler.is_compiling():
        low, high = (int(end) for end in partners.aminmax())
        if low < 0 or high >= len(labels):
            remedy = "They are rows of this batch, not indices of samples."
            raise InputError(message(f"partners from 0 to {len(labels) - 1}", f"{low} to {high}", remedy))
    return partners


def _explain(targets: Tensor, labels: Tensor, partners: Tensor) -> Tensor:
    """Return which targets are mixed from the classes of their row and its partner alone; on the CPU, all must be."""
    may_read = targets.device.type == "cpu" and not torch.compiler.is_compiling()
    if may_read:
        low, high = (int(end) for end in labels.aminmax())
        if low < 0 or high >= targets.shape[1]:
            remedy = "Pass the class of each row before mixing; the targets have one column per class."
            raise InputError(message(f"labels from 0 to {targets.shape[1] - 1}", f"{low} to {high}", remedy))
    both = torch.stack([labels, labels[partners]], 1)
    targets = targets.detach()
    others = targets.scatter(1, both, -torch.inf).amax(1) - targets.scatter(1, both, torch.inf).amin(1)
    is_told = others <= NOT_MIXED
    if may_read and not bool(is_told.all()):
        row = int((~is_told).nonzero()[0])
        a, b = both[row].tolist()
        remedy = (
            "Pass the labels as they were before mixing, in the order of the rows, and for torchvision's transforms "
            "partners=torch.arange(batch).roll(1)."
        )
        expected = f"a target of the classes {a} and {b} in row {row}, those of its own sample and of its partner"
        got = "one with other classes"
        raise InputError(message(expected, got, remedy))
    return is_told


def _check_logits(logits: Any, targets: Any, criterion: str, score: str) -> None:
    if criterion not in ("cross_entropy", "bce"):
        remedy = "Apply another criterion to the targets yourself, and take only the score from here."
        raise InputError(message('criterion "cross_entropy" or "bce"', repr(criterion), remedy))
    if score not in ("paper", "error"):
        raise InputError(message('score "paper" or "error"', repr(score), "Leave it out for the paper's form."))
    if not isinstance(logits, Tensor) or logits.ndim != 2 or logits.dtype not in DTYPES or not logits.numel():
        remedy = "Pass what the model returns for the mixed rows, and no empty batch."
        raise InputError(message("floating-point logits of shape [batch, classes]", describe(logits), remedy))
    fits = isinstance(targets, Tensor) and targets.shape == logits.shape and targets.dtype in DTYPES
    if not fits or targets.device != logits.device:
        got = describe_placed(targets)
        expected = f"soft targets of shape {list(logits.shape)} on {logits.device}"
        raise InputError(message(expected, got, "Pass the mixed targets, one column per class: see mix_targets."))


def _check_lam(lam: float | Tensor, labels: Tensor) -> Tensor:
    lam = torch.as_tensor(lam, device=labels.device)
    if lam.shape not in ((), (len(labels),), (len(labels), 1)) or not lam.is_floating_point():
        remedy = "Pass one number, or one per row."
        raise InputError(message(f"lam as a number or of shape [{len(labels)}]", describe(lam), remedy))
    return lam.detach().reshape(-1)


def _check_rows(name: str, given: Any, like: Tensor, remedy: str, *, real: bool = False) -> None:
    """Check one number per row: real, on any device, or integer, on the device of ``like``."""
    fits = isinstance(given, Tensor) and given.ndim == 1 and given.shape[0] == like.shape[0] > 0
    if fits:
        fits = given.is_floating_point() if real else given.dtype == torch.int64 and given.device == like.device
    if not fits:
        kind = "floating-point" if real else "int64"
        where = "" if real else f" on {like.device}"
        got = describe_placed(given)
        shape = list(like.shape[:1]) if isinstance(like, Tensor) else "[batch]"
        raise InputError(message(f"{name} as {kind} of shape {shape}{where}", got, remedy))
