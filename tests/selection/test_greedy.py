"""The greedy choices against the plain loop over all pairs: the same picks, in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from cases import slow_after
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from infobatch.errors import InputError
from infobatch.selection import SELECTORS, Evidence, budget, facility, greedy

Loop = Callable[[Tensor, int], tuple[list[int], list[float]]]
SEEDS = range(6)
CLASSES = 3


def points(seed: int, kind: str, width: int = 5) -> Tensor:
    """30 to 60 rows: scattered; each twice and one of zeros; or whole numbers, so that many are as far or alike."""
    lot = torch.Generator().manual_seed(seed)
    count = 30 + seed % 3 * 15
    x = torch.randn(count, width, generator=lot, dtype=torch.float64)
    if kind == "twins":
        x[count // 2 : count // 2 * 2] = x[: count // 2]
        x[-1] = 0
    if kind == "grid":
        x = (1.5 * x).round()
    return x


def labels_of(x: Tensor) -> Tensor:
    return torch.arange(len(x)).square() % 7 % CLASSES


def shuffles(evidence: Evidence, share: float, balanced: bool, seed: int) -> Iterator[tuple[Tensor, int]]:
    """In which order a selector sees the samples, and how many it is asked for."""
    lot = budget.make_generator(seed)
    for members, k in list(budget.split_by_class(evidence, share, balanced, lot)):
        yield members[torch.randperm(len(members), generator=lot)], k


def first(scores: Tensor, slack: float = 0.0) -> int:
    """The first of the largest."""
    return int((scores >= scores.max() - slack).nonzero()[0])


def expected(table: Tensor, loop: Loop, evidence: Evidence, share: float, balanced: bool, seed: int) -> Any:
    indices, weights = [], []
    for order, k in shuffles(evidence, share, balanced, seed):
        picks, weight = loop(table[order], k)
        indices += order[picks].tolist()
        weights += weight
    ranks = torch.tensor(indices).argsort()
    weight = torch.tensor(weights)[ranks]
    return sorted(indices), weight / weight.mean()


def same_picks(
    name: str, table: Tensor, loop: Loop, evidence: Evidence, shares: tuple[float, ...] = (0.1, 0.4, 0.8)
) -> None:
    """Which of two twins is taken may be rounding's to say; all else is not."""
    kinds = torch.unique(table, dim=0, return_inverse=True)[1]
    for balanced in (False, True):
        for share in shares:
            for seed in (0, 1):
                chosen = SELECTORS[name](evidence, share, balanced=balanced, seed=seed)
                indices, weights = expected(table, loop, evidence, share, balanced, seed)
                assert sorted(kinds[chosen.indices].tolist()) == sorted(kinds[indices].tolist())
                if len(kinds.unique()) == len(kinds):
                    assert list(chosen) == indices
                    torch.testing.assert_close(chosen.weights, weights.float())


# ---- k-Center and Contextual Diversity -------------------------------------------------------------------


def farthest_loop(distance: Tensor, start: int, k: int) -> list[int]:
    picks = [start]
    while len(picks) < k:
        nearest = distance[:, picks].amin(1)
        nearest[picks] = -1
        picks.append(first(nearest))
    return picks


@cache
def farthest(seed: int, kind: str, k: int) -> list[int]:
    """By the loop, which is slow, for one test after the other."""
    return farthest_loop(euclid(points(seed, kind)), seed, k)


def euclid(x: Tensor) -> Tensor:
    return (x[:, None] - x).square().sum(2)


def k_center_loop(x: Tensor, k: int) -> tuple[list[int], list[float]]:
    start = first(-(x - x.mean(0)).square().sum(1), 1e-12)
    return farthest_loop(euclid(x), start, k), [1.0] * k


@pytest.mark.parametrize("seed", slow_after(1, SEEDS))
def test_k_center(seed: int) -> None:
    x, twins = points(seed, "scattered"), points(seed, "twins")
    same_picks("k_center", x, k_center_loop, Evidence(len(x), labels=labels_of(x), features=x))
    evidence = Evidence(len(x), labels=labels_of(twins), features=twins)
    same_picks("k_center", twins, k_center_loop, evidence, shares=(0.1, 0.3))


@pytest.mark.parametrize("pool", slow_after(3, [7, 1, 512, 2, 59, 60]))
@pytest.mark.parametrize("kind", ["scattered", "twins", "grid"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_farthest_first_whatever_the_pool(pool: int, kind: str, dtype: torch.dtype) -> None:
    for seed in SEEDS:
        x = points(seed, kind)
        for k in (1, 2, len(x) // 2, len(x)):
            want = farthest(seed, kind, k)
            got = greedy.pick_farthest_first(x.to(dtype), x.to(dtype), seed, k, pool=pool).tolist()
            distinct = len(torch.unique(x, dim=0))
            assert got[:distinct] == want[:distinct]
            assert sorted(got) == sorted(set(got))
            assert len(got) == k
            if kind == "grid":  # whole numbers are exact: the twins left over also come in order
                assert got == want


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_k_center_tells_neighbours_apart_that_are_far_from_the_others(seed: int) -> None:
    """Two clusters a thousand times as far from each other as their members are, in single precision."""
    lot = torch.Generator().manual_seed(seed)
    x = torch.randn(40, 3, generator=lot) + 1000.0 * (torch.arange(40) % 2)[:, None]
    for share in (0.2, 0.6):
        chosen = greedy.k_center(Evidence(40, features=x), share)
        assert list(chosen) == sorted(k_center_loop(x.double(), len(chosen))[0])


def test_k_center_starts_at_the_middle_and_goes_to_the_ends() -> None:
    x = torch.tensor([[0.0], [1.0], [2.0], [3.0], [4.5]])
    assert list(greedy.k_center(Evidence(5, features=x), 0.2)) == [2]
    assert list(greedy.k_center(Evidence(5, features=x), 0.4)) == [2, 4]
    assert list(greedy.k_center(Evidence(5, features=x), 0.6)) == [0, 2, 4]


def divergence_loop(logits: Tensor, k: int) -> tuple[list[int], list[float]]:
    p = logits.softmax(1)

    def kl(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(a > 0, a * (a / b).log(), 0.0).sum(-1)

    mean = p.mean(0)
    start = first(-(kl(p, mean) + kl(mean, p)), 1e-12)
    return farthest_loop(kl(p[:, None], p) + kl(p, p[:, None]), start, k), [1.0] * k


@pytest.mark.parametrize("seed", slow_after(1, SEEDS))
def test_contextual_diversity(seed: int) -> None:
    x = points(seed, "scattered", 4)
    same_picks("contextual_diversity", x, divergence_loop, Evidence(len(x), labels=labels_of(x), logits=x))


def test_contextual_diversity_knows_no_logarithm_of_zero() -> None:
    logits = torch.tensor([[1e5, 0.0, 0.0], [0.0, 1e5, 0.0], [0.0, 0.0, 1e5], [1e5, 1.0, 0.0], [0.0, 0.0, 0.0]])
    chosen = greedy.contextual_diversity(Evidence(5, logits=logits), 0.8)
    assert set(chosen) >= {1, 2, 4}
    assert len(set(chosen) & {0, 3}) == 1  # the two predict the same


# ---- Herding and Graph Cut -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_herding_does_not_add_up_the_rounding_of_the_mean(seed: int) -> None:
    """Features far from zero, in single precision: each pick would bring the mean's error along."""
    lot = torch.Generator().manual_seed(seed)
    x = torch.randn(100, 2, generator=lot) / 1000 + 10.0
    chosen = greedy.herding(Evidence(100, features=x), 0.5)
    assert list(chosen) == sorted(herding_loop(x.double(), 50)[0])


def herding_loop(x: Tensor, k: int) -> tuple[list[int], list[float]]:
    picks: list[int] = []
    while len(picks) < k:
        left = [i for i in range(len(x)) if i not in picks]
        apart = torch.stack([(x[[*picks, i]].mean(0) - x.mean(0)).norm() for i in left])
        picks.append(left[first(-apart, 1e-12)])
    return picks, [1.0] * k


@pytest.mark.parametrize("seed", slow_after(1, SEEDS))
def test_herding(seed: int) -> None:
    for kind in ("scattered", "twins"):
        x = points(seed, kind)
        same_picks("herding", x, herding_loop, Evidence(len(x), labels=labels_of(x), features=x))


def test_herding_stays_near_the_mean() -> None:
    """The trap is argmax, which runs away from it."""
    x = torch.randn(500, 8, generator=torch.Generator().manual_seed(0))
    chosen = x[greedy.herding(Evidence(500, features=x), 0.1).indices]
    by_lot = x[torch.randperm(500, generator=torch.Generator().manual_seed(1))[:50]]
    assert (chosen.mean(0) - x.mean(0)).norm() < (by_lot.mean(0) - x.mean(0)).norm() / 5


def cosines(x: Tensor) -> Tensor:
    norms = x.norm(dim=1)
    return torch.where(norms[:, None] * norms > 0, x @ x.T / (norms[:, None] * norms), 0.0)


def graph_cut_loop(lam: float) -> Loop:
    def loop(x: Tensor, k: int) -> tuple[list[int], list[float]]:
        s = (1 + cosines(x)) / 2

        def value(chosen: list[int]) -> Tensor:
            return s[:, chosen].sum() - lam * s[chosen][:, chosen].sum()

        picks: list[int] = []
        while len(picks) < k:
            left = [i for i in range(len(x)) if i not in picks]
            picks.append(left[first(torch.stack([value([*picks, i]) for i in left]), 1e-10)])
        return picks, [1.0] * k

    return loop


@pytest.mark.parametrize("lam", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("seed", slow_after(1, range(4)))
def test_graph_cut(seed: int, lam: float) -> None:
    x = points(seed, "scattered")
    for order, k in shuffles(Evidence(len(x), features=x), 0.6, False, seed):
        want, _ = graph_cut_loop(lam)(x[order], k)
        assert greedy.pick_graph_cut(greedy.normalize_rows(x[order]), k, lam).tolist() == want
        chosen = greedy.graph_cut(Evidence(len(x), features=x), 0.6, seed=seed, lam=lam)
        assert list(chosen) == sorted(order[want].tolist())


@pytest.mark.parametrize("kind", ["scattered", "twins"])
@pytest.mark.parametrize("seed", slow_after(1, range(3)))
def test_graph_cut_by_class(seed: int, kind: str) -> None:
    x = points(seed, kind)
    same_picks("graph_cut", x, graph_cut_loop(1.0), Evidence(len(x), labels=labels_of(x), features=x))


@pytest.mark.parametrize("lam", [0, -1.0, float("inf"), float("nan"), "1", True])
def test_graph_cut_refuses_a_bad_lam(lam: Any) -> None:
    with pytest.raises(InputError, match="lam"):
        greedy.graph_cut(Evidence(3, features=torch.eye(3)), 0.5, lam=lam)


# ---- Facility Location and Craig -------------------------------------------------------------------------


def facility_loop(s: Tensor, k: int, slack: float = 1e-12) -> list[int]:
    """Two who serve only each other have the same gain, so rounding must be told from a difference here too."""
    picks = [first(s.sum(0), slack)]
    while len(picks) < k:
        level = s[:, picks].amax(1, keepdim=True)
        gains = (s - level).clamp(min=0).sum(0)
        gains[picks] = -1
        picks.append(first(gains, slack))
    return picks


@pytest.mark.parametrize("kind", ["scattered", "twins"])
@pytest.mark.parametrize("seed", slow_after(1, SEEDS))
def test_facility_location(seed: int, kind: str) -> None:
    def loop(x: Tensor, k: int) -> tuple[list[int], list[float]]:
        return facility_loop((1 + cosines(x)) / 2, k), [1.0] * k

    x = points(seed, kind)
    same_picks("facility_location", x, loop, Evidence(len(x), labels=labels_of(x), features=x))


@cache
def covered(seed: int, kind: str) -> tuple[Tensor, list[int]]:
    """Similarities, and the better half of them by the loop."""
    x = greedy.normalize_rows(points(seed, kind))
    s = x @ x.T
    return s, facility_loop(s, len(s) // 2)


@pytest.mark.parametrize("room", slow_after(3, [1, 5, 1024, 2, 20]))
@pytest.mark.parametrize("block", slow_after(1, [64, 1, 1 << 20]))
def test_facility_location_in_however_small_pieces(room: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gains in blocks, from pairs, or first the one and then the other; and pairs that find no room at first."""
    monkeypatch.setattr(facility, "BLOCK", block)
    monkeypatch.setattr(facility, "AHEAD", 3)
    for seed in range(6):
        for kind in ("scattered", "twins", "grid"):
            s, want = covered(seed, kind)
            k = len(want)
            cover = facility.pick_facilities(lambda i, j, s=s: s[i][:, j].clone(), s.sum(0), k, most=1.0, room=room)
            assert cover.picks.tolist() == want
            best = s[:, want].amax(1)
            torch.testing.assert_close(s[torch.arange(len(s)), cover.picks[cover.nearest]], best)


def test_facility_location_of_equals_looks_at_each_pair_but_a_few_times() -> None:
    seen = 0

    def similar(rows: facility.Rows, columns: facility.Rows) -> Tensor:
        nonlocal seen
        block = torch.ones(300, 300)[rows][:, columns].clone()
        seen += block.numel()
        return block

    cover = facility.pick_facilities(similar, torch.full((300,), 300.0), 100, most=1.0, room=8)
    assert cover.picks.tolist() == list(range(100))
    assert seen < 5 * 300 * 300


def test_facility_location_in_single_precision() -> None:
    """Rounding may decide where two are nearly alike, but never more than that is lost."""
    for seed in range(6):
        x = torch.randn(300, 16, generator=torch.Generator().manual_seed(seed))
        picks = list(greedy.facility_location(Evidence(300, features=x), 0.2))
        s = (1 + cosines(x.double())) / 2
        best = s[:, facility_loop(s, 60)].amax(1).sum()
        assert s[:, picks].amax(1).sum() == pytest.approx(float(best), rel=1e-6)


def gradients(evidence: Evidence) -> Tensor:
    """e_i f_i^T written out, by autograd on a last layer of our own."""
    assert evidence.features is not None
    assert evidence.logits is not None
    assert evidence.labels is not None
    rows = []
    for x, z, y in zip(evidence.features, evidence.logits, evidence.labels, strict=True):
        weight = torch.zeros(len(z), len(x), dtype=x.dtype, requires_grad=True)
        bias = torch.zeros_like(z, requires_grad=True)
        loss = F.cross_entropy((z + weight @ x + bias)[None], y[None])
        rows.append(torch.cat([part.flatten() for part in torch.autograd.grad(loss, (weight, bias))]))
    return torch.stack(rows)


def craig_loop(g: Tensor, k: int) -> tuple[list[int], list[float]]:
    distance = (g[:, None] - g).norm(dim=2)
    picks = facility_loop(-distance, k, 1e-9)
    nearest = distance[:, picks].argmin(1)
    nearest[picks] = torch.arange(k)
    return picks, torch.bincount(nearest, minlength=k).double().tolist()


@pytest.mark.parametrize("seed", slow_after(1, SEEDS))
def test_craig(seed: int) -> None:
    x = points(seed, "scattered")
    lot = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(x), CLASSES, generator=lot, dtype=x.dtype)
    evidence = Evidence(len(x), labels=labels_of(x), features=x, logits=logits)
    same_picks("craig", gradients(evidence), craig_loop, evidence)


def test_craig_weighs_by_the_size_of_a_cluster() -> None:
    """Seven of one kind, two of another: the two picks stand for 7 and 2."""
    x = torch.tensor([[1.0, 0.0]] * 7 + [[0.0, 5.0]] * 2)
    evidence = Evidence(9, features=x, logits=torch.zeros(9, 2), labels=torch.zeros(9, dtype=torch.int64))
    chosen = greedy.craig(evidence, 2 / 9)
    assert chosen[0] < 7 <= chosen[1]
    assert chosen.weights.tolist() == pytest.approx([2 * 7 / 9, 2 * 2 / 9])


def test_craig_gives_a_twin_that_is_picked_its_own_weight() -> None:
    x = torch.tensor([[1.0, 0.0]] * 4 + [[0.0, 5.0]] * 4)
    evidence = Evidence(8, features=x, logits=torch.zeros(8, 2), labels=torch.zeros(8, dtype=torch.int64))
    assert greedy.craig(evidence, 1.0).weights.tolist() == [1.0] * 8


# ---- memory ----------------------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = op(*args, **(kwargs or {}))
        for thing in made if isinstance(made, list | tuple) else [made]:
            if isinstance(thing, Tensor):
                self.most = max(self.most, thing.untyped_storage().nbytes() // 4)
        return made


@pytest.mark.slow
@pytest.mark.parametrize("name", SELECTORS)
def test_nothing_is_as_large_as_all_pairs(name: str) -> None:
    """In numbers of 4 bytes. Blocks of similarities have 8 million, whatever N."""
    size = 4000
    lot = torch.Generator().manual_seed(0)
    features, logits = torch.randn(size, 6, generator=lot), torch.randn(size, 3, generator=lot)
    row = torch.rand(2, size, generator=lot)
    known: dict[str, Any] = {"labels": torch.arange(size) % 3, "features": features, "logits": logits}
    known |= {"head": torch.randn(3, 6, generator=lot), "aum": row[0], "error_norms": row, "grad_norms": row}
    evidence = Evidence(size, correct=row > 0.5, **known)
    with Largest() as seen:
        SELECTORS[name](evidence, 0.05)
    assert seen.most < size * size * 0.6


@pytest.mark.parametrize("name", ["k_center", "contextual_diversity"])
def test_no_distance_is_kept_for_each_pick_and_sample(name: str) -> None:
    """The nearest pick so far is enough. With most samples picked, distances to every pick are as many as pairs."""
    size = 2500
    lot = torch.Generator().manual_seed(0)
    features, logits = torch.randn(size, 6, generator=lot), torch.randn(size, 3, generator=lot)
    with Largest() as seen:
        SELECTORS[name](Evidence(size, features=features, logits=logits), 0.9)
    assert seen.most < 0.5 * size * size
