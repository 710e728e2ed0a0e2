"""Glister, GradMatch and DP against gradients written out: by autograd, by scipy, by a Hessian that is inverted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from cases import slow_after
from scipy.optimize import nnls
from torch import Tensor
from torch.nn import functional as F

from infobatch.errors import InputError
from infobatch.selection import Evidence, budget, gradients
from infobatch.selection.scoring import influence, influence_scores

CLASSES, WIDTH = 3, 4


def made(seed: int, size: int, bias: bool = True) -> Evidence:
    """Samples with the logits of some last layer."""
    lot = torch.Generator().manual_seed(seed)
    features = torch.randn(size, WIDTH, generator=lot, dtype=torch.float64)
    logits = 2 * torch.randn(size, CLASSES, generator=lot, dtype=torch.float64)
    labels = torch.randint(0, CLASSES, (size,), generator=lot)
    return Evidence(size, labels=labels, features=features, logits=logits, bias=bias)


def held_against(train: Evidence, validation: Evidence) -> Evidence:
    return Evidence(
        train.size, labels=train.labels, features=train.features, logits=train.logits, validation=validation
    )


def tables(evidence: Evidence) -> tuple[Tensor, Tensor, Tensor]:
    x, z, y = evidence.need("features", "logits", "labels")
    return x, z, y


def gradient(evidence: Evidence, sample: int | Tensor, moved: Tensor) -> Tensor:
    """By autograd: of the mean loss of these samples by the last layer, once that has ``moved``."""
    x, z, y = tables(evidence)
    layer = moved.clone().requires_grad_()
    rows = torch.atleast_1d(torch.as_tensor(sample))
    ones = torch.ones(len(rows), 1, dtype=x.dtype)
    loss = F.cross_entropy(z[rows] + torch.cat([x[rows], ones], 1) @ layer.T, y[rows])
    return torch.autograd.grad(loss, layer)[0]


def each_gradient(evidence: Evidence) -> Tensor:
    still = torch.zeros(CLASSES, WIDTH + 1, dtype=torch.float64)
    return torch.stack([gradient(evidence, i, still).flatten() for i in range(evidence.size)])


def shuffles(evidence: Evidence, share: float, balanced: bool, seed: int) -> Iterator[tuple[Tensor, int]]:
    lot = budget.make_generator(seed)
    for members, k in list(budget.split_by_class(evidence, share, balanced, lot)):
        yield members[torch.randperm(len(members), generator=lot)], k


# ---- Glister ---------------------------------------------------------------------------------------------


def glister_loop(train: Evidence, held: Evidence, order: Tensor, rows: Tensor, k: int, rate: float) -> list[int]:
    g = each_gradient(train)[order]
    picks: list[int] = []
    while len(picks) < k:
        moved = -rate * g[picks].mean(0) if picks else torch.zeros_like(g[0])
        gain = g @ gradient(held, rows, moved.view(CLASSES, -1)).flatten()
        gain[picks] = -torch.inf
        picks.append(int(gain.argmax()))
    return picks


@pytest.mark.parametrize("rate", [0.1, 3.0])
@pytest.mark.parametrize("seed", slow_after(1, range(4)))
def test_glister(seed: int, rate: float) -> None:
    train, held = made(seed, 40), made(seed + 100, 30)
    for evidence, seen in ((held_against(train, held), held), (train, train)):
        for balanced in (False, True):
            want = []
            for order, k in shuffles(evidence, 0.4, balanced, seed):
                rows = torch.arange(seen.size)
                if balanced:
                    rows = (tables(seen)[2] == tables(train)[2][order[0]]).nonzero().squeeze(1)
                want += order[glister_loop(train, seen, order, rows, k, rate)].tolist()
            chosen = gradients.glister(evidence, 0.4, balanced=balanced, seed=seed, rate=rate)
            assert list(chosen) == sorted(want)
            assert chosen.settings["validation"] == ("training data" if seen is train else "held-out data")


def test_the_update_of_glister_runs() -> None:
    """Twenty samples push one way, and held-out data want a little of it and a little of another.

    Who never looks again takes the strong ones alone; once those have been trained on, the weak are worth more.
    """
    x = torch.cat([torch.tensor([[3.0, 0.0]]).repeat(20, 1), torch.tensor([[0.0, 1.0]]).repeat(20, 1)])
    x += 0.01 * torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    train = Evidence(40, features=x, logits=torch.zeros(40, 2), labels=torch.zeros(40, dtype=torch.int64))
    both = torch.tensor([[3.0, 0.0], [0.0, 3.0]])
    seen = Evidence(2, features=both, logits=torch.zeros(2, 2), labels=torch.zeros(2, dtype=torch.int64))
    evidence = held_against(train, seen)
    once = gradients.glister(evidence, 0.25, rate=2.0, rounds=1)
    often = gradients.glister(evidence, 0.25, rate=2.0)
    assert max(once) < 20
    assert max(often) >= 20
    assert min(often) < 20


def test_rounds_of_glister_take_the_best_of_each() -> None:
    train = made(0, 30)
    gain = each_gradient(train) @ each_gradient(train).mean(0)
    chosen = gradients.glister(train, 0.5, rounds=1)
    assert list(chosen) == sorted(gain.topk(15).indices.tolist())
    e, f = train.last_layer()
    _, z, y = tables(train)
    held = gradients.HeldOut(f, z, y)
    in_fours = gradients.pick_by_validation(e, f, held, 15, 0.1, 4).tolist()
    assert in_fours[:3] == gain.topk(3).indices.tolist()
    assert sorted(set(in_fours)) == sorted(in_fours)
    assert len(in_fours) == 15


def test_glister_refuses_held_out_data_that_do_not_serve() -> None:
    train = made(0, 10)
    x, z, _ = tables(train)
    one = Evidence(2, labels=torch.zeros(2, dtype=torch.int64), features=x[:2], logits=z[:2])
    with pytest.raises(InputError, match="none of class"):
        gradients.glister(held_against(train, one), 0.5, balanced=True)
    with pytest.raises(InputError, match="logits"):
        gradients.glister(held_against(train, Evidence(2, features=x[:2])), 0.5)
    with pytest.raises(InputError, match="bias"):
        gradients.glister(held_against(train, made(1, 10, bias=False)), 0.5)


def test_held_out_data_may_be_of_another_precision() -> None:
    train, held = made(0, 20), made(1, 20)
    x, z, y = tables(held)
    single = Evidence(20, labels=y, features=x.float(), logits=z.float())
    assert gradients.glister(held_against(train, single), 0.5) == gradients.glister(held_against(train, held), 0.5)


# ---- GradMatch -------------------------------------------------------------------------------------------


def by_scipy(g: Tensor, target: Tensor, damping: float) -> Tensor:
    """The least |target - w g|^2 + damping |w|^2 with w >= 0."""
    n = len(g)
    left = torch.cat([g.T, damping**0.5 * torch.eye(n, dtype=g.dtype)])
    right = torch.cat([target, torch.zeros(n, dtype=g.dtype)])
    return torch.from_numpy(nnls(left.numpy(), right.numpy())[0])


def pursuit_loop(g: Tensor, k: int, ridge: float) -> tuple[list[int], Tensor]:
    damping = ridge * float(g.square().sum(1).mean())
    target = g.sum(0)
    picks: list[int] = []
    weights = torch.zeros(0, dtype=g.dtype)
    while len(picks) < k:
        along = g @ (target - weights @ g[picks])
        along[picks] = -torch.inf
        picks.append(int(along.argmax()))
        weights = by_scipy(g[picks], target, damping)
    return picks, weights


@pytest.mark.parametrize("ridge", [0.01, 0.5])
@pytest.mark.parametrize("seed", slow_after(1, range(4)))
def test_grad_match(seed: int, ridge: float) -> None:
    evidence = made(seed, 40)
    g = each_gradient(evidence)
    for balanced in (False, True):
        indices: list[int] = []
        weights = []
        for order, k in shuffles(evidence, 0.3, balanced, seed):
            picks, weight = pursuit_loop(g[order], k, ridge)
            indices += order[picks].tolist()
            weights.append(weight)
        chosen = gradients.grad_match(evidence, 0.3, balanced=balanced, seed=seed, ridge=ridge)
        assert list(chosen) == sorted(indices)
        weight = torch.cat(weights)[torch.tensor(indices).argsort()]
        torch.testing.assert_close(chosen.weights.double(), weight / weight.mean(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", slow_after(5, range(30)))
def test_weights_of_least_squares_above_zero(seed: int) -> None:
    lot = torch.Generator().manual_seed(seed)
    count = 2 + seed
    e = torch.randn(count, 3, generator=lot, dtype=torch.float64)
    f = torch.randn(count, 4, generator=lot, dtype=torch.float64)
    if seed % 3 == 0:
        e[1], f[1] = e[0], f[0]
    target = torch.randn(3, 4, generator=lot, dtype=torch.float64)
    damping = [1e-3, 0.1, 10.0][seed % 3]
    start = torch.rand(count, generator=lot, dtype=torch.float64)
    got = gradients.solve_nonnegative(e, f, target, damping, start)
    rows = torch.einsum("ik,id->ikd", e, f).flatten(1)
    torch.testing.assert_close(got, by_scipy(rows, target.flatten(), damping), rtol=1e-6, atol=1e-8)
    assert bool((got >= 0).all())


def test_grad_match_comes_nearer_than_chance() -> None:
    evidence = made(7, 200)
    g = each_gradient(evidence)

    def apart(picks: Tensor, weights: Tensor) -> float:
        mean = (weights[:, None] * g[picks]).mean(0)
        scale = float(mean @ g.mean(0) / (mean @ mean))
        return float((g.mean(0) - scale * mean).norm())

    chosen = gradients.grad_match(evidence, 0.1)
    chance = [
        apart(torch.randperm(200, generator=torch.Generator().manual_seed(seed))[:20], torch.ones(20).double())
        for seed in range(10)
    ]
    assert apart(chosen.indices, chosen.weights.double()) < min(chance) / 2


def test_grad_match_without_any_gradient() -> None:
    """All predictions right to the last bit: any choice matches, at weight 1."""
    logits = torch.full((12, 2), -1000.0)
    logits[:, 0] = 1000.0
    labels = torch.zeros(12, dtype=torch.int64)
    chosen = gradients.grad_match(Evidence(12, labels=labels, features=torch.randn(12, 3), logits=logits), 0.5)
    assert len(chosen) == 6
    assert chosen.weights.tolist() == [1.0] * 6


# ---- DP --------------------------------------------------------------------------------------------------


def influences(evidence: Evidence, damping: float) -> Tensor:
    """(H + aI)^-1 g, with the Hessian of the mean loss by autograd, written out and inverted."""
    x, z, y = tables(evidence)
    ones = torch.ones(evidence.size, 1, dtype=x.dtype)

    def loss(layer: Tensor) -> Tensor:
        return F.cross_entropy(z + torch.cat([x, ones], 1) @ layer.view(CLASSES, -1).T, y)

    flat = torch.zeros(CLASSES * (WIDTH + 1), dtype=x.dtype)
    hessian: Any = torch.autograd.functional.hessian(loss, flat)
    damped = hessian + damping * hessian.diagonal().mean() * torch.eye(len(flat), dtype=x.dtype)
    return torch.linalg.solve(damped, each_gradient(evidence).T).T


def even(seed: int, size: int) -> Evidence:
    """The same prediction for all, so that the Hessian is a Kronecker product and nothing is approximate."""
    one = made(seed, size)
    logits = torch.tensor([0.3, -1.0, 0.5], dtype=torch.float64).repeat(size, 1)
    return Evidence(size, labels=one.labels, features=one.features, logits=logits)


def prune_loop(v: Tensor, many: int) -> list[int]:
    gone: list[int] = []
    while len(gone) < many:
        left = [i for i in range(len(v)) if i not in gone]
        size = torch.stack([v[[*gone, i]].sum(0).norm() for i in left])
        gone.append(left[int(size.argmin())])
    return gone


@pytest.mark.parametrize("damping", [0.01, 1.0])
@pytest.mark.parametrize("seed", slow_after(1, range(4)))
def test_dp(seed: int, damping: float) -> None:
    evidence = even(seed, 40)
    v = influences(evidence, damping)
    for balanced in (False, True):
        for share in (0.3, 0.7):
            kept = set(range(40))
            for order, k in shuffles(evidence, share, balanced, seed):
                kept -= set(order[prune_loop(v[order], len(order) - k)].tolist())
            chosen = gradients.dp(evidence, share, balanced=balanced, seed=seed, damping=damping)
            assert set(chosen) == kept


def test_dp_leaves_out_first_whose_influence_is_least() -> None:
    evidence = made(3, 50)
    kept = gradients.dp(evidence, 49 / 50)
    assert set(range(50)) - set(kept) == {int(influence_scores(evidence).argmin())}


@pytest.mark.parametrize(
    ("kind", "scale"),
    [(torch.float32, 2.0**100), (torch.float32, 2.0**-100), (torch.float64, 2.0**900), (torch.float64, 2.0**-900)],
)
def test_dp_is_the_same_at_any_scale(kind: torch.dtype, scale: float) -> None:
    """The Hessian grows by the square of what gradients grow by, and squares of squares would overflow."""
    one = made(2, 40)
    features = cast(Tensor, one.features).to(kind)

    def kept(features: Tensor, bias: bool) -> list[int]:
        evidence = Evidence(40, labels=one.labels, features=features, logits=one.logits, bias=bias)
        return [at for balanced in (False, True) for at in gradients.dp(evidence, 0.3, balanced=balanced)]

    assert kept(scale * features, False) == kept(features, False)
    assert len(kept(scale * features, True)) == 24


@pytest.mark.parametrize("pool", [4, 8, 40])
def test_dp_from_a_pool(pool: int) -> None:
    """The rule as stated, step by step."""
    evidence = even(1, 40)
    v = influences(evidence, 0.01)
    gone: list[int] = []
    while len(gone) < 30:
        left = [i for i in range(40) if i not in gone]
        size = torch.stack([v[[*gone, i]].sum(0).norm() for i in left])
        near = [left[place] for place in size.argsort()[:pool].tolist()]
        steps = 30 - len(gone) if len(left) <= pool else min(30 - len(gone), pool // 4)
        for _ in range(steps):
            size = torch.stack([v[[*gone, i]].sum(0).norm() for i in near])
            gone.append(near.pop(int(size.argmin())))
    assert set(gradients.dp(evidence, 0.25, pool=pool)) == set(range(40)) - set(gone)


# ---- bad settings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("glister", {"rate": 0}),
        ("glister", {"rate": float("nan")}),
        ("glister", {"rounds": 0}),
        ("glister", {"rounds": 1.5}),
        ("grad_match", {"ridge": -1.0}),
        ("grad_match", {"ridge": "0.5"}),
        ("grad_match", {"rounds": True}),
        ("dp", {"damping": 0.0}),
        ("dp", {"pool": 3}),
        ("dp", {"pool": 10.0}),
    ],
)
def test_bad_settings_are_named(name: str, bad: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(bad))):
        getattr(gradients, name)(made(0, 10), 0.5, **bad)


@pytest.mark.parametrize("method", [gradients.dp, influence])
def test_predictions_without_any_doubt_are_no_trouble(method: Any) -> None:
    """Then H has next to no curvature, and its inverse no bound but the damping."""
    lot = torch.Generator().manual_seed(1)
    logits = 1e4 * torch.randn(9, 3, generator=lot, dtype=torch.float64)
    features = 1e18 * torch.randn(9, 3, generator=lot, dtype=torch.float64)
    evidence = Evidence(9, labels=torch.arange(9) % 3, logits=logits, features=features)
    assert len(method(evidence, 0.5)) == 4
