"""Methods that use the gradients of the last layer: e_i f_i^T for sample i, never stored.

They need inner products only: with a matrix M of the layer's shape, <e_i f_i^T, M> = e_i . (M f_i). One pass over all
samples takes O(NKd) time and O(NK) memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from ..checks import check_count
from ..errors import InputError, message
from . import budget
from .evidence import Evidence
from .greedy import check_positive, choose, rescale
from .scoring import factor_hessian
from .selection import Selection


def glister(
    evidence: Evidence,
    share: float,
    *,
    balanced: bool = False,
    seed: int = 0,
    rate: float = 0.1,
    rounds: int = 100,
) -> Selection:
    """Pick, one after another, the sample that lowers the loss on held-out data most, to first order.

    Killamsetty et al. (AAAI 2021). The gain of j is <g_j, grad L_val>. The picks move the last layer by ``rate``
    times their mean gradient, and grad L_val is computed again there: after each pick, or ``rounds`` times in all if
    more samples are picked. Without ``evidence.validation`` the training data are used instead, as the settings
    record. With ``balanced=True`` each class is compared with its own held-out samples.

    Args:
        evidence: What is known about each sample; needs ``labels``, ``logits`` and ``features``.
        share: The fraction of the samples to keep, above 0 and at most 1.
        balanced: Whether to keep the same number of samples per class. Needs ``labels``.
        seed: Settles ties at random.
        rate: How far the picks move the last layer, in units of their mean gradient.
        rounds: How often the gradient on held-out data is computed again, at most.

    Returns:
        The samples to train on.

    Raises:
        InputError: If an argument is out of range, or the evidence lacks something.

    >>> import torch
    >>> from infobatch import selection
    >>> data = torch.utils.data.TensorDataset(torch.randn(20, 4), torch.arange(20) % 2)
    >>> evidence = selection.gather(torch.nn.Linear(4, 2), data, epochs=2, validation=data)  # better: held-out data
    >>> len(selection.glister(evidence, 0.3))
    6
    """
    check_positive("rate", rate)
    check_count("rounds", rounds, 1, "Leave it out for 100.")
    e, f = evidence.last_layer()
    held = evidence.validation or evidence
    if held.bias != evidence.bias:
        remedy = "Both must come from the same model."
        raise InputError(message(f"validation with bias={evidence.bias}", f"bias={held.bias}", remedy))
    logits, labels = held.need("logits", "labels")
    inputs = held.last_layer()[1].to(f.dtype)

    def pick(members: Tensor, k: int) -> tuple[Tensor, None]:
        rows = torch.arange(len(labels), device=labels.device)
        if balanced:
            (own,) = evidence.need("labels")
            rows = (labels == own[members[0]]).nonzero().squeeze(1)
            if not len(rows):
                got = f"none of class {int(own[members[0]])}"
                raise InputError(message("held-out data of every class", got, "Hold out more, or leave balanced out."))
        seen = HeldOut(inputs[rows], logits[rows], labels[rows])
        return pick_by_validation(e[members], f[members], seen, k, rate, rounds), None

    used = "training data" if evidence.validation is None else "held-out data"
    settings = {"rate": float(rate), "rounds": rounds, "validation": used}
    return choose("glister", evidence, share, balanced, seed, pick, settings=settings)


def grad_match(
    evidence: Evidence,
    share: float,
    *,
    balanced: bool = False,
    seed: int = 0,
    ridge: float = 0.5,
    rounds: int = 100,
) -> Selection:
    """Pick samples whose weighted gradients add up to the gradient of all, by orthogonal matching pursuit.

    Killamsetty et al. (ICML 2021). Each pick has the largest inner product with what is missing; then all weights
    are solved for: w >= 0 with least |sum_all g - sum_S w g|^2 + ridge * mean |g|^2 * |w|^2. If
    more than ``rounds`` samples are picked, a round picks several. A pick that turns out useless has weight 0.

    Args:
        evidence: What is known about each sample; needs ``labels``, ``logits`` and ``features``.
        share: The fraction of the samples to keep, above 0 and at most 1.
        balanced: Whether to keep the same number of samples per class. Needs ``labels``.
        seed: Settles ties at random.
        ridge: The penalty on large weights.
        rounds: The largest number of rounds in which samples are picked.

    Returns:
        The samples to train on.

    Raises:
        InputError: If an argument is out of range, or the evidence lacks something.

    >>> import torch
    >>> from infobatch import selection
    >>> data = torch.utils.data.TensorDataset(torch.randn(20, 4), torch.arange(20) % 2)
    >>> evidence = selection.gather(torch.nn.Linear(4, 2), data, epochs=2)
    >>> chosen = selection.grad_match(evidence, 0.3)
    >>> len(chosen), bool((chosen.weights >= 0).all())
    (6, True)
    """
    check_positive("ridge", ridge)
    check_count("rounds", rounds, 1, "Leave it out for 100.")
    e, f = evidence.last_layer()

    def pick(members: Tensor, k: int) -> tuple[Tensor, Tensor]:
        return run_matching_pursuit(e[members], f[members], k, ridge, rounds)

    settings = {"ridge": float(ridge), "rounds": rounds}
    return choose("grad_match", evidence, share, balanced, seed, pick, weighted=True, settings=settings)


def dp(
    evidence: Evidence,
    share: float,
    *,
    balanced: bool = False,
    seed: int = 0,
    damping: float = 0.01,
    pool: int = 1024,
) -> Selection:
    """Leave out the samples whose joint absence moves the last layer least.

    Yang et al. (ICLR 2023) with the number left out given: the least |sum of (H + aI)^-1 g_i| over the samples
    left out. They use simulated annealing; here samples are left out one by one, each the one that keeps the sum
    shortest. It is searched among the ``pool`` best candidates, which are chosen again after every pool / 4 steps. H
    and a are those of ``influence``, in Kronecker form.

    Args:
        evidence: What is known about each sample; needs ``labels``, ``logits`` and ``features``.
        share: The fraction of the samples to keep, above 0 and at most 1.
        balanced: Whether to keep the same number of samples per class. Needs ``labels``.
        seed: Settles ties at random.
        damping: What is added to the Hessian's diagonal, relative to its mean eigenvalue.
        pool: The number of candidates among which the next sample to leave out is searched.

    Returns:
        The samples to train on.

    Raises:
        InputError: If an argument is out of range, or the evidence lacks something.

    >>> import torch
    >>> from infobatch import selection
    >>> data = torch.utils.data.TensorDataset(torch.randn(20, 4), torch.arange(20) % 2)
    >>> evidence = selection.gather(torch.nn.Linear(4, 2), data, epochs=2)
    >>> len(selection.dp(evidence, 0.3))
    6
    """
    check_positive("damping", damping)
    check_count("pool", pool, 4, "Leave it out for 1024.")
    budget.count_kept(evidence.size, share)  # refuse a bad share before any work is done
    e, f = evidence.last_layer()
    f = rescale(f)  # H grows with the square, so the selection is the same
    u, v, inverse = factor_hessian(f, evidence.probabilities(), damping)
    e, f = e @ u.to(e.dtype), f @ v.to(f.dtype)  # in this basis sample i's influence is ``inverse`` times e_i f_i^T

    def pick(members: Tensor, k: int) -> tuple[Tensor, None]:
        kept = torch.ones(len(members), dtype=torch.bool, device=members.device)
        kept[pick_least_influence(e[members], f[members], inverse, len(members) - k, pool)] = False
        return kept.nonzero().squeeze(1), None

    return choose("dp", evidence, share, balanced, seed, pick, settings={"damping": float(damping), "pool": pool})


class HeldOut:
    """Held-out samples, and how the last layer's gradient on them changes as the layer moves."""

    def __init__(self, inputs: Tensor, logits: Tensor, labels: Tensor) -> None:
        self.inputs, self.logits = inputs, logits.to(inputs.dtype)
        self.truth = F.one_hot(labels, logits.shape[1])

    def gradient(self, moved: Tensor) -> Tensor:
        """[K, d], the mean gradient once the layer's weights have changed by ``moved``."""
        errors = (self.logits + self.inputs @ moved.T).softmax(1) - self.truth
        return errors.T @ self.inputs / len(errors)


def pick_by_validation(e: Tensor, f: Tensor, held: HeldOut, k: int, rate: float, rounds: int) -> Tensor:
    """Return the picks of Glister in order."""
    picks = torch.empty(0, dtype=torch.int64, device=e.device)
    gradient = torch.zeros(e.shape[1], f.shape[1], dtype=f.dtype, device=f.device)
    for many in _split(k, rounds):
        moved = -rate * gradient / max(1, len(picks))
        new = _top(project(e, f, held.gradient(moved)), picks, many)
        gradient += e[new].T @ f[new]
        picks = torch.cat([picks, new])
    return picks


def run_matching_pursuit(e: Tensor, f: Tensor, k: int, ridge: float, rounds: int) -> tuple[Tensor, Tensor]:
    """Return the picks of GradMatch in order, and their weights."""
    e, f = rescale(e), rescale(f)
    target = e.double().T @ f.double()
    damping = ridge * float((e.square().sum(1) * f.square().sum(1)).mean())
    picks = torch.empty(0, dtype=torch.int64, device=e.device)
    weights = torch.empty(0, dtype=torch.float64, device=e.device)
    missing, near, exact = target, 1e-6, 1e-12  # early weights only decide the next pick
    for many in _split(k, rounds):
        new = _top(project(e, f, missing.to(f.dtype)), picks, many)
        picks, weights = torch.cat([picks, new]), torch.cat([weights, weights.new_zeros(many)])
        es, fs = e[picks].double(), f[picks].double()
        last = len(picks) == k
        weights = solve_nonnegative(es, fs, target, damping, weights, exact if last else near)
        missing = target - (es * weights[:, None]).T @ fs
    return picks, weights


def solve_nonnegative(
    e: Tensor, f: Tensor, target: Tensor, damping: float, start: Tensor, accuracy: float = 1e-12
) -> Tensor:
    """Return w >= 0 with the least |target - sum_i w_i e_i f_i^T|^2 + damping |w|^2.

    The positive entries are found by swapping all entries that violate their sign, or a single one if that does not
    help (block principal pivoting: Judice and Pires, 1994); their values by conjugate gradients.
    """
    goal = project(e, f, target)

    def product(w: Tensor) -> Tensor:
        return project(e, f, (e * w[:, None]).T @ f) + damping * w

    w, free = start, (start > 0) | (goal > 0)
    fewest, chances = len(w) + 1, 3
    noise = 1e3 * accuracy * float(goal.abs().amax())
    while True:
        w = _solve_by_conjugate_gradients(product, goal, w, free, accuracy)
        wrong = torch.where(free, w < 0, goal - product(w) > noise)
        count = int(wrong.sum())
        if not count:
            return w
        if count < fewest:
            fewest, chances = count, 3
        elif chances:
            chances -= 1
        else:
            last = int(wrong.nonzero()[-1])
            wrong = torch.arange(len(wrong), device=wrong.device) == last
        free = free ^ wrong


def pick_least_influence(e: Tensor, f: Tensor, inverse: Tensor, many: int, pool: int) -> Tensor:
    """Return the samples left out, in order: each keeps |sum of inverse * e_i f_i^T| the shortest."""
    metric = inverse.square() / inverse.square().amax()
    own = (e.square() @ metric.to(e.dtype) * f.square()).sum(1) / 2
    total = torch.zeros_like(metric)
    gone = torch.empty(many, dtype=torch.int64, device=e.device)
    done = 0
    while done < many:
        cost = own + project(e, f, (metric * total).to(f.dtype))
        near = _top(-cost, gone[:done], min(pool, len(own) - done)).sort().values
        es, fs, rest = e[near], f[near], own[near]
        steps = many - done if len(near) == len(own) - done else min(many - done, pool // 4)
        for _ in range(steps):
            best = (rest + project(es, fs, (metric * total).to(f.dtype))).argmin(0, keepdim=True)
            rest.index_fill_(0, best, torch.inf)
            total += es.index_select(0, best).double().T @ fs.index_select(0, best).double()
            gone[done] = near.index_select(0, best)[0]
            done += 1
    return gone


def project(e: Tensor, f: Tensor, matrix: Tensor) -> Tensor:
    """Return <e_i f_i^T, matrix> for each i."""
    return ((f @ matrix.T) * e).sum(1)


def _solve_by_conjugate_gradients(
    product: Callable[[Tensor], Tensor], goal: Tensor, start: Tensor, free: Tensor, accuracy: float
) -> Tensor:
    """Return x with product(x) = goal where ``free``, and 0 elsewhere, by conjugate gradients."""
    x = torch.where(free, start, 0.0)
    rest = torch.where(free, goal - product(x), 0.0)
    step, square = rest, rest @ rest
    enough = accuracy**2 * float(goal @ goal)
    for _ in range(10 * len(goal)):
        if float(square) <= enough:
            break
        image = torch.where(free, product(step), 0.0)
        length = square / (step @ image)
        x, rest = x + length * step, rest - length * image
        before, square = square, rest @ rest
        step = rest + (square / before) * step
    return x


def _top(scores: Tensor, taken: Tensor, many: int) -> Tensor:
    """Return the largest scores except those taken; of equal scores the first comes first."""
    return scores.index_fill(0, taken, -torch.inf).argsort(descending=True, stable=True)[:many]


def _split(k: int, rounds: int) -> Iterator[int]:
    """Split k into at most ``rounds`` integers that are as equal as possible."""
    rounds = min(k, rounds)
    return (k * (turn + 1) // rounds - k * turn // rounds for turn in range(rounds))
