"""Methods that score each sample by itself and keep the largest scores.

Each rule has two functions: ``NAME_scores(evidence)`` returns one score per sample, and ``NAME(evidence, share)`` the
selection. All selectors take ``evidence``, the fraction ``share`` to keep, ``balanced`` to keep equally many per
class, and a ``seed`` that settles ties; they return a ``Selection`` and raise InputError for bad arguments or missing
evidence. Uncertainty is measured on probabilities, over the classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from ..checks import is_number
from ..errors import InputError, message
from . import budget
from .evidence import Evidence
from .selection import Selection

ROWS = 2048
"""Samples processed at once."""
DENSE = 8192
"""The most rows of a Hessian that is stored as a matrix: 512 MiB."""

Hessian = Literal["kronecker", "exact"]


def random(evidence: Evidence, share: float, *, balanced: bool = False, seed: int = 0) -> Selection:
    """Keep a uniformly random subset.

    Args:
        evidence: What is known about each sample.
        share: The fraction of the samples to keep, above 0 and at most 1.
        balanced: Whether to keep the same number of samples per class. Needs ``labels``.
        seed: Determines the draw.

    Returns:
        The samples to train on.

    Raises:
        InputError: If an argument is out of range, or the evidence lacks something.

    >>> from infobatch import selection
    >>> selection.random(selection.Evidence(10), 0.3)
    Selection(random: 3 of 10, share=0.3, balanced=False, seed=0)
    """
    return keep_largest("random", _no_scores, evidence, share, balanced, seed)


def least_confidence(evidence: Evidence, share: float, *, balanced: bool = False, seed: int = 0) -> Selection:
    """Keep the samples whose most likely class has the lowest probability.

    Args:
        evidence: What is known about each sample; needs ``logits``.
        share: The fraction of the samples to keep, above 0 and at most 1.
        balanced: Whether to keep the same number of samples per class. Needs ``labels``.
        seed: Settles ties at random.

    Returns:
        The samples to train on.

    Raises:
        InputError: If an argument is out of range, or the evidence lacks something.

    >>> import torch
    >>> from infobatch import selection
    >>> logits = torch.tensor([[4.0, 0.0], [0.2, 0.0], [3.0, 0.0], [0.0, 0.1]])
    >>> list(selection.least_confidence(selection.Evidence(4, logits=logits), 0.5))
    [1, 3]
    """
    return keep_largest("least_confidence", least_confidence_scores, evidence, share, balanced, seed)


def entropy(evidence: Evidence, share: float, *, balanced: bool = False, seed: int = 0) -> Selection:
    """Keep the samples whose prediction has the largest entropy.

    Args:
        evidence: What is known about each sample; needs ``logits``.
        share: The fraction of the samples to keep, above 0 and at most 1.
        balanced: Whether to keep the same number of samples per class. Needs ``labels``.
        seed: Settles ties at random.

    Returns:
        The samples to train on.

    Raises:
        InputError: If an argument is out of range, or the evidence lacks something.

    >>> import torch
    >>> from infobatch import selection
    >>> logits = torch.tensor([[4.0, 0.0], [0.2, 0.0], [3.0, 0.0], [0.0, 0.1]])
    >>> list(selection.entropy(selection.Evidence(4, logits=logits), 0.5))
    [1, 3]
    """
    return keep_largest("entropy", entropy_scores, evidence, share, balanced, seed)


def margin(evidence: Evidence, share: float, *, balanced: bool = False, seed: int = 0) -> Selection:
    """Keep the samples whose two most likely classes have similar probabilities.

    Args:
        evidence: What is known about each sample; needs ``logits``.
        share: The fraction of the samples to keep, above 0 and at most 1.
        balanced: Whether to keep the same number of samples per class. Needs ``labels``.
        seed: Settles ties at random.

    Returns:
        The samples to train on.

    Raises:
        InputError: If an argument is out of range, or the evidence lacks something.

    >>> import torch
    >>> from infobatch import selection
    >>> logits = torch.tensor([[4.0, 0.0], [0.2, 0.0], [3.0, 0.0], [0.0, 0.1]])
    >>> list(selection.margin(selection.Evidence(4, logits=logits), 0.5))
    [1, 3]
    """
    return keep_largest("margin", margin_scores, evidence, share, balanced, seed)


def forgetting(evidence: Evidence, share: float, *, balanced: bool = False, seed: int = 0) -> Selection:
    """Keep the samples never learned, then those most often forgotten in training.

    Args:
        evidence: What is known about each sample; needs ``correct``.
        share: The fraction of the samples to keep, above 0 and at most 1.
        balanced: Whether to keep the same number of samples per class. Needs ``labels``.
        seed: Settles ties at random.

    Returns:
        The samples to train on.

    Raises:
        InputError: If an argument is out of range, or the evidence lacks something.

    >>> import torch
    >>> from infobatch import selection
    >>> correct = torch.tensor([[True, True, False], [False, True, False], [True, True, False]])  # [epoch, sample]
    >>> list(selection.forgetting(selection.Evidence(3, correct=correct), 2 / 3))  # 0 was forgotten, 2 never learned
    [0, 2]
    """
    return keep_largest("forgetting", forgetting_scores, evidence, share, balanced, seed)


def grand(evidence: Evidence, share: float, *, balanced: bool = False, seed: int = 0) -> Selection:
    """Keep the samples with the largest gradient early in training, averaged over the runs.

    Args:
        evidence: What is known about each sample; needs ``grad_norms``.
        share: The fraction of the samples to keep, above 0 and at most 1.
        balanced: Whether to keep the same number of samples per class. Needs ``labels``.
        seed: Settles ties at random.

    Returns:
        The samples to train on.

    Raises:
        InputError: If an argument is out of range, or the evidence lacks something.

    >>> import torch
    >>> from infobatch import selection
    >>> norms = torch.tensor([[0.1, 0.9, 0.5, 0.2], [0.3, 0.7, 0.6, 0.4]])  # of two runs
    >>> list(selection.grand(selection.Evidence(4, grad_norms=norms), 0.5))
    [1, 2]
    """
    return keep_largest("grand", grand_scores, evidence, share, balanced, seed)


def el2n(evidence: Evidence, share: float, *, balanced: bool = False, seed: int = 0) -> Selection:
    """Keep the samples with the largest error early in training, averaged over the runs.

    Args:
        evidence: What is known about each sample; needs ``error_norms``.
        share: The fraction of the samples to keep, above 0 and at most 1.
        balanced: Whether to keep the same number of samples per class. Needs ``labels``.
        seed: Settles ties at random.

    Returns:
        The samples to train on.

    Raises:
        InputError: If an argument is out of range, or the evidence lacks something.

    >>> import torch
    >>> from infobatch import selection
    >>> norms = torch.tensor([[0.1, 0.9, 0.5, 0.2], [0.3, 0.7, 0.6, 0.4]])  # of two runs
    >>> list(selection.el2n(selection.Evidence(4, error_norms=norms), 0.5))
    [1, 2]
    """
    return keep_largest("el2n", el2n_scores, evidence, share, balanced, seed)


def deepfool(evidence: Evidence, share: float, *, balanced: bool = False, seed: int = 0) -> Selection:
    """Keep the samples whose features lie nearest to a decision boundary of the last layer.

    Args:
        evidence: What is known about each sample; needs ``logits`` and ``head``.
        share: The fraction of the samples to keep, above 0 and at most 1.
        balanced: Whether to keep the same number of samples per class. Needs ``labels``.
        seed: Settles ties at random.

    Returns:
        The samples to train on.

    Raises:
        InputError: If an argument is out of range, or the evidence lacks something.

    >>> import torch
    >>> from infobatch import selection
    >>> head, features = torch.eye(2), torch.tensor([[4.0, 0.0], [0.2, 0.0], [3.0, 0.0], [0.0, 0.1]])
    >>> list(selection.deepfool(selection.Evidence(4, logits=features @ head.T, head=head), 0.5))
    [1, 3]
    """
    return keep_largest("deepfool", deepfool_scores, evidence, share, balanced, seed)


def influence(
    evidence: Evidence,
    share: float,
    *,
    balanced: bool = False,
    seed: int = 0,
    damping: float = 0.01,
    hessian: Hessian = "kronecker",
) -> Selection:
    """Keep the samples whose removal would move the last layer furthest.

    Args:
        evidence: What is known about each sample; needs ``labels``, ``logits`` and ``features``.
        share: The fraction of the samples to keep, above 0 and at most 1.
        balanced: Whether to keep the same number of samples per class. Needs ``labels``.
        seed: Settles ties at random.
        damping: What is added to the Hessian's diagonal, relative to its mean eigenvalue.
        hessian: "kronecker" approximates the Hessian at any size; "exact" solves with it, for small last layers.

    Returns:
        The samples to train on.

    Raises:
        InputError: If an argument is out of range, or the evidence lacks something.

    >>> import torch
    >>> from infobatch import selection
    >>> data = torch.utils.data.TensorDataset(torch.randn(20, 4), torch.arange(20) % 2)
    >>> evidence = selection.gather(torch.nn.Linear(4, 2), data, epochs=2)
    >>> len(selection.influence(evidence, 0.3))
    6
    """
    return keep_largest(
        "influence", influence_scores, evidence, share, balanced, seed, damping=damping, hessian=hessian
    )


def least_confidence_scores(evidence: Evidence) -> Tensor:
    """1 - max_c p_c."""
    return 1 - evidence.probabilities().amax(1)


def entropy_scores(evidence: Evidence) -> Tensor:
    """- sum_c p_c log p_c, finite even if a probability is 0."""
    (logits,) = evidence.need("logits")
    logs = logits.log_softmax(1)
    return -(logs.exp() * logs).sum(1)


def margin_scores(evidence: Evidence) -> Tensor:
    """1 - (p_1st - p_2nd), of the two most likely classes; p_2nd is 0 if there is one class only."""
    p = F.pad(evidence.probabilities(), (0, 1))
    first, second = p.topk(2, dim=1).values.unbind(1)
    return 1 - (first - second)


def forgetting_scores(evidence: Evidence) -> Tensor:
    """Count changes from correct to wrong between two epochs; infinite if the sample was never correct."""
    (correct,) = evidence.need("correct")
    events = torch.zeros(evidence.size, dtype=torch.float32, device=correct.device)
    for before, after in pairwise(correct):
        events += before & ~after
    return events.masked_fill(~correct.any(0), float("inf"))


def grand_scores(evidence: Evidence) -> Tensor:
    """E |g|, the norm of the sample's gradient, averaged over the runs."""
    (norms,) = evidence.need("grad_norms")
    return norms.mean(0)


def el2n_scores(evidence: Evidence) -> Tensor:
    """E |p - y|, the norm of the error, averaged over the runs."""
    (norms,) = evidence.need("error_norms")
    return norms.mean(0)


def aum_scores(evidence: Evidence) -> Tensor:
    """- AUM: the margin of the label's logit, averaged over training, negated so that the hard have the most."""
    (aum,) = evidence.need("aum")
    return -aum


def deepfool_scores(evidence: Evidence) -> Tensor:
    """Minus the smallest change of the features that changes the prediction.

    The last layer is linear, so the boundary between the predicted class c and k is a plane, at the distance
    (z_c - z_k) / |w_c - w_k|; the nearest counts. DeepFool's own perturbation, of the input and through the whole
    network, is found step by step with many gradients per sample; this is its one exact step, seen from the features.
    """
    logits, head = evidence.need("logits", "head")
    apart = torch.cdist(head, head, compute_mode="donot_use_mm_for_euclid_dist")
    nearest = []
    for z in torch.split(logits, ROWS):
        top, predicted = z.max(1)
        gap = top[:, None] - z
        distance = torch.where(gap > 0, gap / apart[predicted], 0.0)  # same weights, other bias: infinitely far
        distance.scatter_(1, predicted[:, None], float("inf"))
        nearest.append(-distance.amin(1))
    return torch.cat(nearest)


def influence_scores(evidence: Evidence, *, damping: float = 0.01, hessian: Hessian = "kronecker") -> Tensor:
    """|(H + aI)^-1 g_i| / N: how far the last layer moves when sample i is left out, to first order.

    g_i is the sample's gradient and H the mean Hessian of the cross entropy, both of the last layer with the rest
    of the network held; a is ``damping`` times H's mean eigenvalue, for H is singular (all logits may rise together).

    H is the mean of S_i x f_i f_i^T with S_i = diag(p_i) - p_i p_i^T, a matrix of (Kd)^2 numbers.
    ``hessian="exact"`` solves with it, while Kd is at most 8192. ``"kronecker"`` takes the eigenvectors of
    mean(S) x mean(f f^T) for its own, with the eigenvalues that fit H best in that basis: O(N(d + K)^2) for any size.
    """
    if not is_number(damping) or damping <= 0:
        raise InputError(message("damping above 0", repr(damping), "It is relative to the mean eigenvalue; try 0.01."))
    if hessian not in ("kronecker", "exact"):
        raise InputError(message('hessian "kronecker" or "exact"', repr(hessian), "Leave it out for kronecker."))
    e, f = evidence.last_layer()
    norms = (_influence_by_kronecker if hessian == "kronecker" else _influence_by_solving)(
        e, f, evidence.probabilities(), damping
    )
    return (norms / evidence.size).float()


SCORES: dict[str, Callable[..., Tensor]] = {
    "least_confidence": least_confidence_scores,
    "entropy": entropy_scores,
    "margin": margin_scores,
    "forgetting": forgetting_scores,
    "grand": grand_scores,
    "el2n": el2n_scores,
    "aum": aum_scores,
    "deepfool": deepfool_scores,
    "influence": influence_scores,
}
"""All scores by name. A larger score means a harder sample."""


def keep_largest(
    method: str,
    score: Callable[..., Tensor | None],
    evidence: Evidence,
    share: float,
    balanced: bool,
    seed: int,
    **own: Any,
) -> Selection:
    """Select the samples with the largest scores, overall or per class; ties are settled at random."""
    generator = budget.make_generator(seed)
    asked = list(
        budget.split_by_class(evidence, share, balanced, generator)
    )  # first, to refuse a bad budget before any work is done
    scores = score(evidence, **own)
    ranked = torch.zeros(evidence.size, device=evidence.device) if scores is None else scores
    chosen = torch.cat([members[budget.find_largest(ranked[members], k, generator)] for members, k in asked])
    settings = {"share": float(share), "balanced": balanced, "seed": int(seed), **own}
    return Selection(chosen.sort().values, evidence.size, method=method, settings=settings, scores=scores)


def _no_scores(evidence: Evidence) -> None:
    del evidence


def _influence_by_kronecker(e: Tensor, f: Tensor, p: Tensor, damping: float) -> Tensor:
    """|(H + aI)^-1 g_i| with H diagonal in the basis of u x v: sum over (b, a) of (e'_b f'_a / (h_ba + a))^2."""
    u, v, inverse = factor_hessian(f, p, damping)
    squares = [((es @ u).square() @ inverse.square() * (fs @ v).square()).sum(1) for es, fs in iterate_blocks(e, f)]
    return torch.cat(squares).sqrt()


def factor_hessian(f: Tensor, p: Tensor, damping: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the basis u x v in which H is approximated as diagonal, and the [K, d] table of 1 / (H + a) there."""
    size, classes, inputs = len(f), p.shape[1], f.shape[1]
    outer, square = _zeros(f, classes, classes), _zeros(f, inputs, inputs)
    for fs, ps in iterate_blocks(f, p):
        outer += torch.diag(ps.sum(0)) - ps.T @ ps
        square += fs.T @ fs
    u, v = torch.linalg.eigh(outer / size).eigenvectors, torch.linalg.eigh(square / size).eigenvectors
    values = _zeros(f, classes, inputs)
    for fs, ps in iterate_blocks(f, p):
        curvature = ps @ u.square() - (ps @ u).square()  # u_b^T S_i u_b
        values += curvature.T @ (fs @ v).square() / size
    return u, v, (values.clamp(min=0) + _damping(values.mean(), damping)).reciprocal()


def _influence_by_solving(e: Tensor, f: Tensor, p: Tensor, damping: float) -> Tensor:
    """|(H + aI)^-1 g_i| with H as a matrix, factored once and solved for one block of samples at a time."""
    size, classes, inputs = len(e), e.shape[1], f.shape[1]
    if classes * inputs > DENSE:
        got = f"{classes} classes x {inputs} inputs = {classes * inputs}"
        raise InputError(message(f"at most {DENSE} parameters in the last layer", got, 'Use hessian="kronecker".'))
    tensor = _zeros(e, classes, inputs, classes, inputs)
    for fs, ps in iterate_blocks(f, p):
        for b in range(classes):
            for c in range(classes):
                curvature = ps[:, b] * (float(b == c) - ps[:, c])
                tensor[b, :, c] += (fs * curvature[:, None]).T @ fs / size
    matrix = tensor.view(classes * inputs, classes * inputs)
    matrix.diagonal().add_(_damping(matrix.diagonal().mean(), damping))
    factor = torch.linalg.cholesky(matrix)
    norms = []
    for es, fs in iterate_blocks(e, f):
        gradients = (es[:, :, None] * fs[:, None, :]).flatten(1)
        norms.append(torch.cholesky_solve(gradients.T, factor).norm(dim=0))
    return torch.cat(norms)


def _damping(mean: Tensor, damping: float) -> Tensor:
    """Return what is added to the diagonal: relative to the mean, or absolute if there is no curvature."""
    return damping * torch.where(mean > 1e-30, mean, 1.0)


def iterate_blocks(first: Tensor, second: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield blocks of rows of both tensors, in double precision."""
    for one, other in zip(torch.split(first, ROWS), torch.split(second, ROWS), strict=True):
        yield one.double(), other.double()


def _zeros(like: Tensor, *shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64, device=like.device)
