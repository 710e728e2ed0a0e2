"""CCS and DQ: what each bin gives, and how the bins are made."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from infobatch.errors import InputError
from infobatch.selection import Evidence, bins, budget, greedy


def scored(scores: list[float] | Tensor, **known: Any) -> Evidence:
    """Evidence by whose margin sample i is as hard as its score says."""
    row = torch.as_tensor(scores, dtype=torch.float64)
    return Evidence(len(row), aum=-row, **known)


# ---- CCS -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_ccs_takes_as_many_of_each_bin_and_small_bins_whole(seed: int) -> None:
    """Widths of 1 from 0 to 4, with 3, 20, 7 and 40 samples, and the hardest tenth on top: 30 = 3 + 10 + 7 + 10."""
    sizes = [3, 20, 7, 40]
    ends = [torch.tensor([0.0, 4.0])]
    within = [
        place + 0.1 + 0.8 * torch.rand(size, generator=torch.Generator().manual_seed(place))
        for place, size in enumerate([2, 20, 7, 39])
    ]
    hardest = 100 + torch.rand(8, generator=torch.Generator().manual_seed(9))
    scores = torch.cat([*ends, *within, hardest])
    chosen = bins.ccs(scored(scores), 30 / len(scores), cutoff=0.1, bins=4, seed=seed)
    kept = scores[chosen.indices]
    assert kept.max() <= 4
    counts = torch.bincount(kept.long().clamp(max=3), minlength=4).tolist()
    assert counts == [3, 10, 7, 10]
    assert sum(sizes) == 70
    torch.testing.assert_close(chosen.scores, scores.float())


def test_ccs_draws_anew_with_each_seed() -> None:
    scores = torch.linspace(0, 1, 200)
    draws = {tuple(bins.ccs(scored(scores), 0.2, seed=seed)) for seed in range(5)}
    assert len(draws) == 5


def literal(scores: list[float], k: int, cutoff: float, parts: int) -> list[int]:
    """How many each bin gives, by the paper's algorithm, with the larger bins last."""
    kept = sorted(scores)[: len(scores) - min(round(cutoff * len(scores)), len(scores) - k)]
    low, high = kept[0], kept[-1]
    counts = [0] * parts
    for score in kept:
        counts[min(parts - 1, int((score - low) / ((high - low) or 1.0) * parts))] += 1
    given_ = [0] * parts
    left = k
    for done, place in enumerate(sorted(range(parts), key=lambda place: counts[place])):
        given_[place] = min(counts[place], left // (parts - done))
        left -= given_[place]
    assert left == 0
    return sorted(given_)


@given(st.data())
def test_ccs_gives_what_the_paper_says(data: st.DataObject) -> None:
    scores = data.draw(st.lists(st.integers(0, 12).map(float), min_size=1, max_size=40))
    k = data.draw(st.integers(1, len(scores)))
    cutoff = data.draw(st.sampled_from([0.0, 0.1, 0.5, 0.9]))
    parts = data.draw(st.integers(1, 8))
    table = torch.tensor(scores)
    places = bins.draw_stratified(table, k, cutoff, parts, budget.make_generator(0))
    assert len(set(places.tolist())) == k
    kept = sorted(scores)[: len(scores) - min(round(cutoff * len(scores)), len(scores) - k)]
    low, high = kept[0], kept[-1]
    assert float(table[places].max()) <= high
    got = [min(parts - 1, int((s - low) / ((high - low) or 1.0) * parts)) for s in table[places].tolist()]
    assert sorted(got.count(place) for place in range(parts)) == literal(scores, k, cutoff, parts)


def test_ccs_drops_less_when_too_few_would_be_left() -> None:
    assert len(bins.ccs(scored(torch.arange(20.0)), 0.95, cutoff=0.5)) == 19
    assert max(bins.ccs(scored(torch.arange(20.0)), 0.95, cutoff=0.5)) == 18
    assert len(bins.ccs(scored(torch.arange(20.0)), 1.0, cutoff=0.5)) == 20


def test_ccs_of_scores_without_end() -> None:
    """Never learned is infinitely hard: the first to be dropped, and else in the last bin."""
    correct = torch.zeros(2, 40, dtype=torch.bool)
    correct[:, :30] = True
    evidence = Evidence(40, correct=correct)
    assert max(bins.ccs(evidence, 0.5, score="forgetting", cutoff=0.25)) < 30
    both = bins.ccs(evidence, 0.5, score="forgetting", cutoff=0.0)
    assert len(both) == 20
    assert len(bins.ccs(Evidence(4, correct=torch.zeros(1, 4, dtype=torch.bool)), 0.5, score="forgetting")) == 2


def test_ccs_by_class_drops_the_hardest_of_each() -> None:
    labels = torch.arange(40) % 2
    chosen = bins.ccs(scored(torch.arange(40.0), labels=labels), 0.5, balanced=True, cutoff=0.1)
    assert chosen.kept_by_class(labels) == {0: (10, 20), 1: (10, 20)}
    assert max(chosen) < 36


@pytest.mark.parametrize(
    "bad", [{"score": "aumm"}, {"score": 3}, {"cutoff": 1.0}, {"cutoff": -0.1}, {"cutoff": True}, {"bins": 0}]
)
def test_ccs_refuses(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        bins.ccs(scored(torch.arange(10.0)), 0.5, **bad)


# ---- DQ --------------------------------------------------------------------------------------------------


def similarity(x: Tensor) -> Tensor:
    x = x / x.norm(dim=1, keepdim=True)
    return (1 + x @ x.T) / 2


@pytest.mark.parametrize("seed", range(4))
def test_dq_bins_are_graph_cuts_of_what_is_left(seed: int) -> None:
    x = torch.randn(43, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    s = similarity(x)
    left = list(range(43))
    want = []
    for turn in range(6, 0, -1):
        part: list[int] = []
        while len(part) < len(left) // turn:
            others = [i for i in left if i not in part]
            value = [float(s[left][:, [*part, i]].sum() - s[[*part, i]][:, [*part, i]].sum()) for i in others]
            part.append(others[value.index(max(value))])
        want.append(sorted(part))
        left = [i for i in left if i not in part]
    parts = bins.quantize(greedy.normalize_rows(x), 6, 1.0)
    assert [sorted(part.tolist()) for part in parts] == want
    assert sorted(i for part in want for i in part) == list(range(43))


def test_dq_takes_the_same_share_of_each_bin() -> None:
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    order = torch.randperm(200, generator=budget.make_generator(3))
    parts = bins.quantize(greedy.normalize_rows(x[order]), 10, 1.0)
    chosen = set(bins.dq(Evidence(200, features=x), 0.25, seed=3))
    assert [len(part) for part in parts] == [20] * 10
    assert [len(chosen & set(order[part].tolist())) for part in parts] == [5] * 10


def test_dq_of_fewer_samples_than_bins() -> None:
    assert len(bins.dq(Evidence(4, features=torch.eye(4)), 0.5)) == 2
    assert len(bins.dq(Evidence(1, features=torch.ones(1, 2)), 0.5)) == 1


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.data())
def test_shares_are_in_proportion(sizes: list[int], data: st.DataObject) -> None:
    k = data.draw(st.integers(0, sum(sizes)))
    parts = bins.divide_in_proportion(sizes, k, budget.make_generator(data.draw(st.integers(0, 9))))
    assert sum(parts) == k
    for part, size in zip(parts, sizes, strict=True):
        assert abs(part - k * size / sum(sizes)) < 1
        assert 0 <= part <= size


@pytest.mark.parametrize("bad", [{"bins": 0}, {"bins": 2.0}, {"lam": 0.0}, {"lam": None}])
def test_dq_refuses(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(bad))):
        bins.dq(Evidence(3, features=torch.eye(3)), 0.5, **bad)


def test_of_two_left_graph_cut_has_no_favourite_so_the_first_is_taken() -> None:
    """Both gains are the same sum; rounding would decide, and another device rounds otherwise."""
    for seed in range(50):
        x = greedy.normalize_rows(torch.randn(2, 7, generator=torch.Generator().manual_seed(seed)))
        assert [part.tolist() for part in bins.quantize(x, 2, 1.0)] == [[0], [1]]
