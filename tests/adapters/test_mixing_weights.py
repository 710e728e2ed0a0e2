"""Mixed rows are pairs of samples: what their weights must be, and where they come from."""

from __future__ import annotations

import math
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
import torch
from lots import lot
from plans import all_plans, expected_gradient, gradient
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import infobatch
from infobatch import InputError
from infobatch.adapters import mix_targets, mixed_loss

X = torch.randn(7, 3, generator=lot(2))
Y = torch.tensor([0, 1, 2, 0, 1, 2, 1])
SCORES = torch.tensor([0.1, 5.0, 0.2, 0.3, 4.0, 0.1, 0.2])  # five of seven are below the mean
LOW = torch.lt(SCORES, SCORES.mean())
PAIRS = [(i, j) for i, j in product(range(7), repeat=2) if i != j]


def net_of(seed: int = 3) -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=lot(seed)))
    return net


def pair_losses(net: nn.Module, i: int, j: int, weights: Tensor | None) -> Tensor:
    """The losses of the two rows of a batch of two samples."""
    x, y = X[[i, j]], Y[[i, j]]
    mixed = 0.7 * x + 0.3 * x.flip(0)
    return mixed_loss(net(mixed), mix_targets(y, 3, 0.7), y, weights=weights).loss


def losses_of_pairs(net: nn.Module, kept: Tensor, weights: Tensor | None) -> Tensor:
    """One loss per kept sample: its mean over all kept partners."""
    found = []
    for a, i in enumerate(kept.tolist()):
        others = [b for b in range(len(kept)) if b != a]
        two = [None if weights is None else weights[[a, b]] for b in others]
        rows = [pair_losses(net, i, int(kept[b]), w)[0] for b, w in zip(others, two, strict=True)]
        found.append(torch.stack(rows).mean())
    return torch.stack(found)


def pair_gradient(net: nn.Module, factor: Any) -> Tensor:
    """The mean gradient over all ordered pairs of the data set, each times a factor."""
    rows = [pair_losses(net, i, j, None)[0] * factor(i, j) for i, j in PAIRS]
    return gradient(net, torch.stack(rows).mean())


def test_the_product_of_both_weights_is_unbiased_for_independent_draws() -> None:
    """Exactly: over all subsets, each sample drawn with its own chance, the sum over pairs is that of all pairs."""
    net, chances = net_of(), torch.tensor([0.5, 1.0, 0.25, 0.5, 1.0, 0.75, 0.5])
    total = torch.zeros_like(pair_gradient(net, lambda i, j: 1.0))
    low = [i for i in range(7) if chances[i] < 1]
    own = {
        pair: gradient(net, pair_losses(net, *pair, 1 / chances[list(pair)])[0] / chances[pair[0]]) for pair in PAIRS
    }
    for count in range(len(low) + 1):
        for drawn in combinations(low, count):
            kept = {*drawn, 1, 4}
            chance = math.prod(float(chances[i] if i in kept else 1 - chances[i]) for i in low)
            total = total + chance * sum((own[i, j] for i, j in PAIRS if i in kept and j in kept), torch.zeros(()))
    torch.testing.assert_close(total / len(PAIRS), pair_gradient(net, lambda i, j: 1.0), rtol=1e-5, atol=1e-6)


def test_where_k_of_m_are_drawn_a_pair_of_two_of_them_counts_a_little_less() -> None:
    """By exactly (m-k) / (k(m-1)), and all pairs by one factor, which is near 1 and no bias."""
    net = net_of()
    m, kept = int(LOW.sum()), int(next(all_plans(SCORES)).count_nonzero())
    k, n = kept - int((~LOW).sum()), len(SCORES)
    scale = kept / n  # of the weights in use
    found = expected_gradient(net, lambda i, w: losses_of_pairs(net, i, w * scale), SCORES)
    missing = (m - k) / (k * (m - 1))
    common = (1 - 1 / n) / (1 - 1 / kept)
    expected = pair_gradient(net, lambda i, j: common * (1 - missing * bool(LOW[i] and LOW[j])))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert 0 < missing < 1 / k


def test_the_own_weight_alone_and_the_average_of_both_are_biased() -> None:
    """Far more than the product, in the direction of the gradient, too."""
    net, full = net_of(), pair_gradient(net_of(), lambda i, j: 1.0)

    def distance(losses_of: Any) -> float:
        found = expected_gradient(net, losses_of, SCORES)
        return float(torch.linalg.vector_norm(found / found.norm() - full / full.norm()))

    def averaged(i: Tensor, w: Tensor) -> Tensor:
        found = []
        for a, own in enumerate(i.tolist()):
            rows = [
                (pair_losses(net, own, int(i[b]), None)[0], (w[a] + w[b]) / 2 / w[a]) for b in range(len(i)) if b != a
            ]
            found.append(torch.stack([loss * weight for loss, weight in rows]).mean())
        return torch.stack(found)

    product_of_both = distance(lambda i, w: losses_of_pairs(net, i, w))
    alone = distance(lambda i, w: losses_of_pairs(net, i, None))
    assert product_of_both < alone
    assert product_of_both < distance(averaged)


def test_the_weights_of_a_plan_are_known_before_update() -> None:
    """The mean that comes back is that of the products, in full, pruned and short batches."""
    data = TensorDataset(torch.randn(101, 3, generator=lot(4)), torch.arange(101) % 3)
    for compensate in ("none", "loss"):
        train = infobatch.InfoBatch(data, 6, seed=1, compensate=compensate)  # type: ignore[arg-type]
        net, heavy = net_of(), 0
        for _ in range(4):
            for x, y in infobatch.DataLoader(train, batch_size=20):
                plan = train.plan()
                weights = plan.weights_of(train.batch_indices)
                mixed, targets = 0.7 * x + 0.3 * x.flip(0), mix_targets(y, 3, 0.7)
                loss, score = mixed_loss(net(mixed), targets, y, weights=weights, lam=0.7)
                mean = train.update(loss, score=score)
                mean.backward()  # type: ignore[no-untyped-call]
                own = train.batch_weights
                plain = mixed_loss(net(mixed), targets, y).loss
                partner = weights.flip(0)
                if len(y) % 2:
                    partner[len(y) // 2] = 1.0
                torch.testing.assert_close(mean, (plain * own * partner).mean())
                growth = plan.growth if compensate == "loss" else 1.0
                factor = len(y) / 20 if plan.kept < plan.size else 1.0
                torch.testing.assert_close(own, weights * growth * factor)
                heavy += int((own.max() > own.min()).item())
            if train.epoch == 2:
                torch.testing.assert_close(train.plan().weights_of(train.plan().indices).mean(), torch.tensor(1.0))
        assert heavy
        assert bool(train.scores.isfinite().all())


def test_a_partner_that_only_fills_a_place_takes_no_loss_away() -> None:
    net = net_of()
    loss, plain = pair_losses(net, 0, 1, torch.tensor([2.0, 0.0])), pair_losses(net, 0, 1, None)
    torch.testing.assert_close(loss, plain * torch.tensor([1.0, 2.0]))


def test_a_rest_of_a_single_sample_gets_a_partner_and_keeps_its_loss() -> None:
    """The ghost that joins it has weight 0 in the plan."""
    data, met = TensorDataset(torch.randn(101, 3, generator=lot(4)), torch.arange(101) % 3), 0
    for size in range(7, 12):
        train, net = infobatch.InfoBatch(data, 6, seed=1), net_of()
        for _ in range(3):
            for x, y in infobatch.DataLoader(train, batch_size=size):
                weights = train.plan().weights_of(train.batch_indices)
                loss, _ = mixed_loss(net(x), mix_targets(y, 3, 0.7), y, weights=weights)
                train.update(loss).backward()  # type: ignore[no-untyped-call]
                if bool((weights == 0).any()):
                    met += 1
                    plain = mixed_loss(net(x), mix_targets(y, 3, 0.7), y).loss
                    torch.testing.assert_close(loss[0], plain[0])
    assert met


def test_shards_have_no_weights_to_ask_for(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        train = infobatch.InfoBatch(range(8), 4, shard_scores=True)
        with pytest.raises(InputError, match="shard_scores"):
            train.plan().weights_of(torch.tensor([1]))
    finally:
        torch.distributed.destroy_process_group()
