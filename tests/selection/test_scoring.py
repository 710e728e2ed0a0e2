"""Each score against its closed form, or against the thing it stands for."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from infobatch import selection
from infobatch.errors import InputError
from infobatch.selection import Evidence, scoring

ROWS = ([0.5, 0.25, 0.25], [0.9, 0.05, 0.05], [0.4, 0.35, 0.25], [1.0, 0.0, 0.0])


def test_uncertainty_is_over_probabilities_of_the_classes() -> None:
    logits = torch.tensor(ROWS, dtype=torch.float64).clamp(min=1e-300).log() + torch.tensor([[3.0], [-7], [0], [50]])
    evidence = Evidence(4, logits=logits)
    assert scoring.least_confidence_scores(evidence).tolist() == pytest.approx([0.5, 0.1, 0.6, 0.0])
    assert scoring.margin_scores(evidence).tolist() == pytest.approx([0.75, 0.15, 0.95, 0.0])
    by_hand = [-sum(p * math.log(p) for p in row if p) for row in ROWS]
    assert scoring.entropy_scores(evidence).tolist() == pytest.approx(by_hand)
    for choose in (selection.least_confidence, selection.margin, selection.entropy):
        assert list(choose(evidence, 0.5)) == [0, 2]  # the least sure are kept


def least_sure(name: str, row: list[float]) -> float:
    """By hand, from the probabilities: more is less sure."""
    second, first = sorted(row)[-2:]
    return {
        "least_confidence": 1 - first,
        "margin": second - first,
        "entropy": -sum(p * math.log(p) for p in row if p),
    }[name]


@pytest.mark.parametrize("name", ["least_confidence", "margin", "entropy"])
@pytest.mark.parametrize("balanced", [False, True])
def test_the_least_sure_are_kept_overall_and_by_class(name: str, balanced: bool) -> None:
    """Common code keeps the surest if classes are not balanced, and the largest logits instead of probabilities."""
    lot = torch.Generator().manual_seed(4)
    logits = 2 * torch.randn(60, 4, generator=lot, dtype=torch.float64)
    logits += 5 * torch.randn(60, 1, generator=lot, dtype=torch.float64)  # which no probability depends on
    labels = torch.arange(60) % 3
    doubt = [least_sure(name, row) for row in logits.softmax(1).tolist()]
    groups = [[i for i in range(60) if i % 3 == label] for label in range(3)] if balanced else [list(range(60))]
    expected = [i for group in groups for i in sorted(group, key=lambda i: -doubt[i])[: len(group) * 3 // 10]]
    chosen = selection.SELECTORS[name](Evidence(60, logits=logits, labels=labels), 0.3, balanced=balanced)
    assert list(chosen) == sorted(expected)


def test_margins_of_logits_would_choose_another() -> None:
    evidence = Evidence(2, logits=torch.tensor([[1.0, 0.0, -10.0], [1.1, 0.0, 0.0]]))
    assert list(selection.margin(evidence, 0.5)) == [1]


def test_entropy_of_certainty_is_zero() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [0.0, 0.0, 0.0]])
    assert scoring.entropy_scores(Evidence(2, logits=logits)).tolist() == pytest.approx([0.0, math.log(3)])


def forgotten(history: list[bool]) -> float:
    """Toneva's count, word by word."""
    if True not in history:
        return math.inf
    return float(sum(history[t] and not history[t + 1] for t in range(len(history) - 1)))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 7).flatmap(lambda t: st.lists(st.lists(st.booleans(), min_size=t, max_size=t), min_size=1)))
def test_forgetting_counts(histories: list[list[bool]]) -> None:
    evidence = Evidence(len(histories), correct=torch.tensor(histories).T.contiguous())
    assert scoring.forgetting_scores(evidence).tolist() == [forgotten(history) for history in histories]


def test_never_learned_is_never_easy() -> None:
    never, always, once, twice = [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 1, 0, 1, 1], [1, 0, 1, 0, 1]
    evidence = Evidence(4, correct=torch.tensor([never, always, once, twice]).bool().T)
    kept = [list(selection.forgetting(evidence, share)) for share in (0.25, 0.5, 0.75)]
    assert kept == [[0], [0, 3], [0, 2, 3]]


def test_norms_are_averaged_over_runs() -> None:
    norms = torch.tensor([[1.0, 0.0, 0.4], [0.2, 0.9, 0.4]])
    for name, choose in (("error_norms", selection.el2n), ("grad_norms", selection.grand)):
        chosen = choose(Evidence(3, **{name: norms}), 0.34)
        assert chosen.scores is not None
        assert chosen.scores.tolist() == pytest.approx([0.6, 0.45, 0.4])
        assert list(chosen) == [0]


def linear(size: int = 40, classes: int = 4, inputs: int = 3, scale: float = 1.0, seed: int = 0) -> Evidence:
    """A last layer with a bias over random features."""
    lot = torch.Generator().manual_seed(seed)
    features = torch.randn(size, inputs, generator=lot, dtype=torch.float64)
    head = torch.randn(classes, inputs, generator=lot, dtype=torch.float64) * scale
    bias = torch.randn(classes, generator=lot, dtype=torch.float64) * scale
    labels = torch.randint(classes, (size,), generator=lot)
    return Evidence(size, labels=labels, features=features, logits=features @ head.T + bias, head=head)


def test_deepfool_is_the_distance_to_the_nearest_boundary() -> None:
    """No step shorter than it changes the prediction, in any direction; one a little longer does, in the best."""
    evidence = linear()
    features, logits, head = evidence.need("features", "logits", "head")
    distance = -scoring.deepfool_scores(evidence)
    bias = logits[0] - features[0] @ head.T
    predicted = logits.argmax(1)
    angle = torch.randn(20000, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    angle = angle / angle.norm(dim=1, keepdim=True)
    for i in range(evidence.size):
        inside = (features[i] + 0.999 * distance[i] * angle) @ head.T + bias
        beyond = (features[i] + 1.01 * distance[i] * angle) @ head.T + bias
        assert bool((inside.argmax(1) == predicted[i]).all())
        assert bool((beyond.argmax(1) != predicted[i]).any())
    nearest = distance.argsort()[:4].sort().values
    assert torch.equal(selection.deepfool(evidence, 0.1).indices, nearest)


def test_deepfool_where_boundaries_are_missing() -> None:
    """Two classes of equal weights are never told apart by a step; equal logits are on the boundary."""
    head = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    logits = torch.tensor([[3.0, 2.0, 0.0], [3.0, 3.0, 0.0], [1.0, 0.5, 1.0]])
    distance = -scoring.deepfool_scores(Evidence(3, logits=logits, head=head))
    assert distance.tolist() == pytest.approx([3 / math.sqrt(2), 0.0, 0.0])


def hessian_and_gradients(evidence: Evidence) -> tuple[Tensor, Tensor]:
    """Of the last layer's cross entropy, by automatic differentiation."""
    labels, features, logits, head = evidence.need("labels", "features", "logits", "head")
    inputs = torch.cat([features, torch.ones(evidence.size, 1, dtype=features.dtype)], 1)
    bias = logits[0] - features[0] @ head.T
    weights = torch.cat([head, bias[:, None]], 1).flatten()

    def loss(weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(x @ weights.view(len(head), -1).T, y)

    hessian = torch.func.jacrev(torch.func.grad(loss))(weights, inputs, labels)
    gradients = [torch.func.grad(loss)(weights, inputs[i : i + 1], labels[i : i + 1]) for i in range(evidence.size)]
    return hessian, torch.stack(gradients)


def test_influence_solves_with_the_hessian() -> None:
    evidence = linear(scale=2.0)
    hessian, gradients = hessian_and_gradients(evidence)
    damped = hessian + 0.05 * hessian.diagonal().mean() * torch.eye(len(hessian), dtype=hessian.dtype)
    expected = torch.linalg.solve(damped, gradients.T).norm(dim=0) / evidence.size
    got = scoring.influence_scores(evidence, damping=0.05, hessian="exact")
    torch.testing.assert_close(got, expected.float())


def test_influence_without_a_bias() -> None:
    evidence = linear()
    labels, features, head = evidence.need("labels", "features", "head")
    plain = Evidence(40, labels=labels, features=features, logits=features @ head.T, head=head, bias=False)
    _, gradients = hessian_and_gradients(plain)
    e, f = plain.last_layer()
    torch.testing.assert_close((e[:, :, None] * f[:, None, :]), gradients.view(40, 4, 4)[:, :, :3])


def test_kronecker_is_exact_where_predictions_are_alike() -> None:
    """All S_i equal: the Hessian is a Kronecker product."""
    evidence = linear(scale=0.0)
    exact = scoring.influence_scores(evidence, hessian="exact")
    torch.testing.assert_close(scoring.influence_scores(evidence), exact)


def ranks(values: Tensor) -> Tensor:
    return values.argsort().argsort().double()


def test_kronecker_ranks_as_exact_does() -> None:
    evidence = linear(size=400, classes=5, inputs=8, scale=1.0)
    fast, exact = scoring.influence_scores(evidence), scoring.influence_scores(evidence, hessian="exact")
    agreement = torch.corrcoef(torch.stack([ranks(fast), ranks(exact)]))[0, 1]
    without = torch.corrcoef(torch.stack([ranks(scoring.grand_scores(norms_of(evidence))), ranks(exact)]))[0, 1]
    assert agreement > 0.85
    assert agreement > without  # than gradients alone: the curvature is worth its cost


def norms_of(evidence: Evidence) -> Evidence:
    e, f = evidence.last_layer()
    return Evidence(evidence.size, grad_norms=(e.norm(dim=1) * f.norm(dim=1))[None])


def fitted(inputs: Tensor, labels: Tensor, count: int, decay: float, weights: Tensor) -> Tensor:
    """The minimum of the regularised mean loss over all samples, by Newton's steps."""

    def loss(weights: Tensor) -> Tensor:
        logits = inputs @ weights.view(3, -1).T
        return F.cross_entropy(logits, labels, reduction="sum") / count + decay / 2 * weights.square().sum()

    for _ in range(6):
        slope = torch.func.grad(loss)
        weights = weights - torch.linalg.solve(torch.func.jacrev(slope)(weights), slope(weights))
    return weights


def test_influence_foretells_what_leaving_one_out_does() -> None:
    """Against the thing itself: fit with and without the sample, and see how far the weights moved."""
    lot = torch.Generator().manual_seed(0)
    size, decay = 180, 0.02
    features = torch.randn(size, 3, generator=lot, dtype=torch.float64)
    labels = (features[:, 0] + 0.7 * torch.randn(size, generator=lot, dtype=torch.float64)).sign().long() + 1
    labels[::7] = 1
    inputs = torch.cat([features, torch.ones(size, 1, dtype=torch.float64)], 1)
    whole = fitted(inputs, labels, size, decay, torch.zeros(12, dtype=torch.float64))
    again = fitted(inputs, labels, size, decay, whole)
    assert torch.allclose(again, whole, atol=1e-10)
    moved = []
    for i in range(0, size, 9):
        rest = torch.arange(size) != i
        moved.append((fitted(inputs[rest], labels[rest], size, decay, whole) - whole).norm())
    evidence = Evidence(size, labels=labels, features=features, logits=inputs @ whole.view(3, -1).T)
    mean = hessian_mean(evidence)
    foretold = scoring.influence_scores(evidence, damping=decay / mean, hessian="exact")[::9].double()
    torch.testing.assert_close(foretold, torch.stack(moved), rtol=0.2, atol=1e-4)
    assert torch.corrcoef(torch.stack([foretold, torch.stack(moved)]))[0, 1] > 0.99


def hessian_mean(evidence: Evidence) -> float:
    """The mean of the Hessian's diagonal: p(1-p) f^2."""
    p = evidence.probabilities()
    _, f = evidence.last_layer()
    return float(((p * (1 - p)).T @ f.square()).mean() / evidence.size)


def test_influence_refuses_what_cannot_be_meant() -> None:
    evidence = linear()
    for damping in (0, -1.0, math.nan, math.inf, "1", True):
        with pytest.raises(InputError, match="damping above 0"):
            selection.influence(evidence, 0.5, damping=damping)  # type: ignore[arg-type]
    with pytest.raises(InputError, match='"kronecker" or "exact"'):
        selection.influence(evidence, 0.5, hessian="full")  # type: ignore[arg-type]
    wide = linear(size=4, classes=100, inputs=100)
    with pytest.raises(InputError, match="at most 8192 parameters"):
        selection.influence(wide, 0.5, hessian="exact")
    selection.influence(wide, 0.5)


def test_every_score_grows_with_difficulty() -> None:
    """A sample on the boundary against one far inside its class, under every score that sees them."""
    head = torch.eye(3)
    features = torch.tensor([[4.0, 0, 0], [0.1, 0, 0], [0, 4.0, 0], [0, 0.1, 0]])
    error = Evidence(4, labels=torch.tensor([0, 0, 1, 1]), features=features, logits=features)
    norms = error.errors().norm(dim=1)[None]
    evidence = Evidence(
        4,
        labels=error.labels,
        features=features,
        logits=features,
        head=head,
        correct=torch.tensor([[1, 1, 1, 1], [1, 0, 1, 0], [1, 1, 1, 1]]).bool(),
        aum=torch.tensor([4.0, 0.1, 4.0, 0.1]),
        error_norms=norms,
        grad_norms=norms,
    )
    for name, score in scoring.SCORES.items():
        values = score(evidence)
        assert values[1] > values[0], name
        assert values[3] > values[2], name
