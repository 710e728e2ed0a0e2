"""Methods that build a subset greedily: each pick is the best sample to add to those picked before.

Every function here is exact: its picks are those of the textbook loop over all pairs. Memory is O(N), time as stated.
The samples are shuffled with the seed first and of equal candidates the first is taken, so the seed settles ties.

Libraries considered and not used: scikit-learn and faiss-cpu find nearest neighbours but do not select subsets.
apricot-select and submodlib select the same samples (500 of 5,000, apricot in twice the time), but hold all N x N
similarities, 20 GB for 50,000 samples, run on the CPU only, and offer neither farthest-first, herding nor a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..checks import is_number
from ..errors import InputError, message
from . import budget
from .evidence import Evidence
from .facility import Rows, Similarity, pick_facilities, sum_similarities
from .selection import Selection

POOL = 512
"""Candidates of farthest-first whose mutual distances are held at once."""
BLOCK = 1 << 22
"""Numbers in double precision held at once."""
NOISE = 16
"""Numbers that differ by this many rounding errors count as equal."""

Pick = Callable[[Tensor, int], tuple[Tensor, Tensor | None]]
"""(shuffled samples, k) -> k positions among them, and their weights unless all are 1."""


def k_center(evidence: Evidence, share: float, *, balanced: bool = False, seed: int = 0) -> Selection:
    """Pick, one after another, the sample whose nearest pick is farthest away in Euclidean distance.

    The first is the sample nearest to the mean. Sener and Savarese (2018), without their integer program.

    Args:
        evidence: What is known about each sample; needs ``features``.
        share: The fraction of the samples to keep, above 0 and at most 1.
        balanced: Whether to keep the same number of samples per class. Needs ``labels``.
        seed: Settles ties at random.

    Returns:
        The samples to train on.

    Raises:
        InputError: If an argument is out of range, or the evidence lacks something.

    >>> import torch
    >>> from infobatch import selection
    >>> features = torch.tensor([[0.0], [1.0], [2.0], [9.0]])
    >>> list(selection.k_center(selection.Evidence(4, features=features), 0.5))
    [2, 3]
    """
    (features,) = evidence.need("features")

    def pick(members: Tensor, k: int) -> tuple[Tensor, None]:
        x = rescale(features[members])
        start = int((x - x.mean(0)).square().sum(1).argmin())
        x -= x[start].clone()  # a sample and not the mean: integers stay integers, so ties stay ties
        return pick_farthest_first(x, x, start, k), None

    return choose("k_center", evidence, share, balanced, seed, pick)


def contextual_diversity(evidence: Evidence, share: float, *, balanced: bool = False, seed: int = 0) -> Selection:
    """Pick as in k-Center, with the distance KL(p|q) + KL(q|p) between predictions.

    The first pick is nearest to the mean prediction. Agarwal et al. (2020). Logarithms are computed from the logits, so
    a probability of 0 is harmless.

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
    >>> list(selection.contextual_diversity(selection.Evidence(4, logits=logits), 0.5))
    [0, 1]
    """
    (logits,) = evidence.need("logits")

    def pick(members: Tensor, k: int) -> tuple[Tensor, None]:
        log = logits[members].log_softmax(1).clamp_(min=-1e4)
        p = log.exp()
        mean = p.mean(0)
        start = int(((p - mean) * (log - mean.clamp(min=1e-38).log())).sum(1).argmin())
        return pick_farthest_first(torch.cat([p, log], 1), torch.cat([log, p], 1), start, k), None

    return choose("contextual_diversity", evidence, share, balanced, seed, pick)


def herding(evidence: Evidence, share: float, *, balanced: bool = False, seed: int = 0) -> Selection:
    """Pick samples such that the mean of their features stays nearest to the mean of all; no sample is picked twice.

    Welling (2009).

    Args:
        evidence: What is known about each sample; needs ``features``.
        share: The fraction of the samples to keep, above 0 and at most 1.
        balanced: Whether to keep the same number of samples per class. Needs ``labels``.
        seed: Settles ties at random.

    Returns:
        The samples to train on.

    Raises:
        InputError: If an argument is out of range, or the evidence lacks something.

    >>> import torch
    >>> from infobatch import selection
    >>> features = torch.tensor([[0.0], [1.0], [2.0], [9.0]])
    >>> list(selection.herding(selection.Evidence(4, features=features), 0.5))
    [1, 2]
    """
    (features,) = evidence.need("features")

    def pick(members: Tensor, k: int) -> tuple[Tensor, None]:
        x = rescale(features[members])
        mean = x.mean(0, dtype=torch.float64)
        for rows in torch.split(
            x, BLOCK // x.shape[1] + 1
        ):  # in double precision: errors would add up in the sum of the picks
            rows.copy_(rows - mean)
        return pick_smallest_sum(x, x.square().sum(1) / 2, k), None

    return choose("herding", evidence, share, balanced, seed, pick)


def graph_cut(
    evidence: Evidence, share: float, *, balanced: bool = False, seed: int = 0, lam: float = 1.0
) -> Selection:
    """Pick greedily for f(S) = sum_{i in V, j in S} s_ij - lam * sum_{i, j in S} s_ij.

    s = (1 + cosine) / 2 of the features. Picks are similar to all samples but not to each other;
    Iyer and Bilmes (2013). With lam above 1/2, f falls again once S is large; the picks then lose least.

    Args:
        evidence: What is known about each sample; needs ``features``.
        share: The fraction of the samples to keep, above 0 and at most 1.
        balanced: Whether to keep the same number of samples per class. Needs ``labels``.
        seed: Settles ties at random.
        lam: The penalty on picks that are similar to each other.

    Returns:
        The samples to train on.

    Raises:
        InputError: If an argument is out of range, or the evidence lacks something.

    >>> import torch
    >>> from infobatch import selection
    >>> features = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.2, 1.0]])
    >>> list(selection.graph_cut(selection.Evidence(4, features=features), 0.5))
    [1, 3]
    """
    check_positive("lam", lam)
    (features,) = evidence.need("features")

    def pick(members: Tensor, k: int) -> tuple[Tensor, None]:
        return pick_graph_cut(normalize_rows(features[members]), k, lam), None

    return choose("graph_cut", evidence, share, balanced, seed, pick, settings={"lam": float(lam)})


def facility_location(evidence: Evidence, share: float, *, balanced: bool = False, seed: int = 0) -> Selection:
    """Pick greedily for f(S) = sum_i max_{j in S} s_ij, with s = (1 + cosine) / 2 of the features.

    Every sample has a similar one in S; Iyer and Bilmes (2013).

    Args:
        evidence: What is known about each sample; needs ``features``.
        share: The fraction of the samples to keep, above 0 and at most 1.
        balanced: Whether to keep the same number of samples per class. Needs ``labels``.
        seed: Settles ties at random.

    Returns:
        The samples to train on.

    Raises:
        InputError: If an argument is out of range, or the evidence lacks something.

    >>> import torch
    >>> from infobatch import selection
    >>> features = torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [0.0, 1.0]])
    >>> list(selection.facility_location(selection.Evidence(4, features=features), 0.5))
    [2, 3]
    """
    (features,) = evidence.need("features")

    def pick(members: Tensor, k: int) -> tuple[Tensor, None]:
        x = normalize_rows(features[members])

        def cosine(rows: Rows, columns: Rows) -> Tensor:  # f(S) is 1/2 sum max cosine + N/2: the same picks
            return x[rows] @ x[columns].T

        total = (x @ x.sum(0, dtype=torch.float64).to(x.dtype)).double()
        return pick_facilities(cosine, total, k, most=1.0).picks, None

    return choose("facility_location", evidence, share, balanced, seed, pick)


def craig(evidence: Evidence, share: float, *, balanced: bool = False, seed: int = 0) -> Selection:
    """Pick by facility location on last-layer gradients, so that all samples have a pick with a similar gradient.

    The weight of a pick is the number of samples nearest to it, scaled to mean 1. Mirzasoleiman et al. (2020).

    Args:
        evidence: What is known about each sample; needs ``labels``, ``logits`` and ``features``.
        share: The fraction of the samples to keep, above 0 and at most 1.
        balanced: Whether to keep the same number of samples per class. Needs ``labels``.
        seed: Settles ties at random.

    Returns:
        The samples to train on.

    Raises:
        InputError: If an argument is out of range, or the evidence lacks something.

    >>> import torch
    >>> from infobatch import selection
    >>> data = torch.utils.data.TensorDataset(torch.randn(20, 4), torch.arange(20) % 2)
    >>> evidence = selection.gather(torch.nn.Linear(4, 2), data, epochs=2)
    >>> chosen = selection.craig(evidence, 0.3)
    >>> len(chosen), f"{chosen.weights.mean():.3f}"
    (6, '1.000')
    """
    e, f = evidence.last_layer()

    def pick(members: Tensor, k: int) -> tuple[Tensor, Tensor]:
        similar = make_gradient_similarity(e[members], f[members])
        total = sum_similarities(similar, len(members), members.device)
        most = 2 * float(total.abs().amax()) / len(members)  # d_ij <= d_il + d_lj: so it is for the mean over all l
        cover = pick_facilities(similar, total, k, most=most)
        return cover.picks, cover.sizes()

    return choose("craig", evidence, share, balanced, seed, pick, weighted=True)


def choose(
    method: str,
    evidence: Evidence,
    share: float,
    balanced: bool,
    seed: int,
    pick: Pick,
    *,
    weighted: bool = False,
    scores: Tensor | None = None,
    settings: dict[str, Any] | None = None,
) -> Selection:
    """Apply ``pick`` to all samples or to each class, and scale the weights to mean 1."""
    generator = budget.make_generator(seed)
    chosen, weights = [], []
    for members, k in list(budget.split_by_class(evidence, share, balanced, generator)):
        order = torch.randperm(len(members), generator=generator, device=budget.CPU).to(members.device)
        shuffled = members[order]
        takes_all = k == len(members) and not weighted
        places, weight = (torch.arange(k, device=members.device), None) if takes_all else pick(shuffled, k)
        chosen.append(shuffled[places])
        weights.append(torch.ones(k, device=members.device) if weight is None else weight)
    indices, ranks = torch.cat(chosen).sort()
    weight = torch.cat(weights)[ranks].double()
    mean = weight.mean()
    weight = torch.where(mean > 0, weight / mean, 1.0).float()
    asked = {"share": float(share), "balanced": balanced, "seed": int(seed)} | (settings or {})
    return Selection(indices, evidence.size, weight, method=method, settings=asked, scores=scores)


def pick_farthest_first(left: Tensor, right: Tensor, start: int, k: int, *, pool: int = POOL) -> Tensor:
    """Return the picks in order, from ``start`` on: each is the sample whose nearest pick is farthest away.

    The distance is d_ij = o_i + o_j - left_i . right_j, with o such that d_ii = 0; of equals the first is taken. A
    pick is compared with the ``pool`` farthest samples only: distances to the nearest pick only shrink, so as long
    as one of the pool is farther than all others were when it was filled, it is the farthest of all. Then all picks
    from the pool are compared with all samples in one product of matrices. O(N k d) time.
    """
    own = torch.cat([(some.double() * other).sum(1) for some, other in _rows(left, right)]) / 2
    slack = float(NOISE * torch.finfo(own.dtype).eps * own.abs().amax())
    far = own.new_full((len(own),), torch.inf)
    picks = torch.tensor([start], device=own.device)
    chosen = [picks]
    count = 1
    while True:
        _update_distances(far, left, right, own, picks)
        far[picks] = -torch.inf
        if count == k:
            return torch.cat(chosen)
        ranked = far.topk(min(pool + 1, len(far)))
        limit = slack + (ranked.values[-1].item() if len(far) > pool else -torch.inf)
        if ranked.values[0].item() <= limit:  # more ties than the pool holds
            picks = (far >= ranked.values[0] - slack).int().argmax(0, keepdim=True)
        else:
            members = ranked.indices[: pool if len(far) > pool else None].sort().values
            among = _distances(left[members], right[members], own[members], own[members])
            picks = members[_pick_in_pool(far[members].cpu(), among.cpu(), limit, slack, k - count).to(members.device)]
        chosen.append(picks)
        count += len(picks)


def pick_smallest_sum(x: Tensor, offset: Tensor, k: int) -> Tensor:
    """Return the picks in order: each is the row j with the least offset_j + x_j . (the sum of the picks).

    With offset |x|^2 / 2 that is the row which keeps the sum of the picks shortest. O(N k d) time.
    """
    offset = offset.double()
    columns = x.T.contiguous()  # products read memory in order: three times as fast
    total = torch.zeros(x.shape[1], dtype=torch.float64, device=x.device)
    picks = torch.empty(k, dtype=torch.int64, device=x.device)
    for step in range(k):
        pick = torch.add(offset, total.to(x.dtype) @ columns).argmin(0, keepdim=True)
        picks[step] = pick[0]
        offset.index_fill_(0, pick, torch.inf)
        total += x.index_select(0, pick)[0]
    return picks


def pick_graph_cut(x: Tensor, k: int, lam: float) -> Tensor:
    """Return the picks of graph cut in order, for rows of length 1.

    The gain of j is sum_i s_ij - lam (2 sum_{i in S} s_ij + s_jj), which is
    x_j . (sum_i x_i / 2 - lam sum_{i in S} x_i) - lam |x_j|^2 / 2 plus a term equal for all j.
    """
    towards = (x @ x.sum(0, dtype=torch.float64).to(x.dtype)).double()
    return pick_smallest_sum(x, (x.square().sum(1) - towards / lam) / 2, k)


def normalize_rows(features: Tensor) -> Tensor:
    """Scale each row to length 1. A row of zeros stays zero: its cosine with any row is 0."""
    x = rescale(features)
    norm = x.norm(dim=1, keepdim=True)
    return x / torch.where(norm > 0, norm, 1.0)


def make_gradient_similarity(e: Tensor, f: Tensor) -> Similarity:
    """Return a similarity: minus the distance of the gradients e_i f_i^T, computed from (e_i . e_j)(f_i . f_j)."""
    e, f = rescale(e), rescale(f)
    norms = e.square().sum(1) * f.square().sum(1)
    noise = NOISE * torch.finfo(f.dtype).eps

    def similar(rows: Rows, columns: Rows) -> Tensor:
        inner = (e[rows] @ e[columns].T).mul_(f[rows] @ f[columns].T)
        both = norms[rows, None] + norms[columns]
        square = torch.sub(both, inner, alpha=2, out=inner)
        square.masked_fill_(square <= both.mul_(noise), 0.0)
        return square.sqrt_().neg_()

    return similar


def _pick_in_pool(far: Tensor, among: Tensor, limit: float, slack: float, most: int) -> Tensor:
    """Return picks from a pool, as long as the farthest is beyond ``limit``."""
    picks: list[int] = []
    while len(picks) < most:
        top = float(far.max())
        if top <= limit:
            break
        place = int((far >= top - slack).int().argmax())
        picks.append(place)
        torch.minimum(far, among[place], out=far)
        far[place] = -torch.inf
    return torch.tensor(picks, dtype=torch.int64)


def _update_distances(far: Tensor, left: Tensor, right: Tensor, own: Tensor, picks: Tensor) -> None:
    """Lower each sample's distance to the nearest pick by the new picks."""
    there, mine = right[picks].double(), own[picks]
    for near, some, its in _rows(far, left, own, width=len(picks) + left.shape[1]):
        torch.minimum(near, _distances(some, there, its, mine).amin(1), out=near)


def _rows(*tables: Tensor, width: int = 0) -> Iterator[tuple[Tensor, ...]]:
    """Yield blocks of the same rows of each table."""
    many = max(1, BLOCK // (width or tables[0].shape[1]))
    return zip(*(torch.split(table, many) for table in tables), strict=True)


def _distances(left: Tensor, right: Tensor, own: Tensor, other: Tensor) -> Tensor:
    """Return d_ij in double precision, and 0 where it is within rounding error."""
    both = own[:, None] + other
    noise = (own.abs()[:, None] + other.abs()).mul_(NOISE * torch.finfo(own.dtype).eps)
    distance = both.sub_(left.double() @ right.double().T)
    return distance.masked_fill_(distance <= noise, 0.0)


def rescale(x: Tensor) -> Tensor:
    """Return a copy times a power of 2 that brings its largest number near 1, so that squares stay in range."""
    exponent = int(torch.frexp(x.abs().amax()).exponent)
    most = 100 if x.dtype == torch.float32 else 1000  # so that the factor itself stays in range
    return x * 2.0 ** -max(-most, min(most, exponent))


def check_positive(name: str, value: Any) -> None:
    if not is_number(value) or value <= 0:
        raise InputError(message(f"{name} as a number above 0", repr(value), "Leave it out for the default."))
