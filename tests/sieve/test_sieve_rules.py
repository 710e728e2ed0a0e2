"""Rules: exactly k different rows of any losses, the ones that a literal reading of the rule names."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import example, given
from lots import lot
from made_losses import losses_and_k, losses_of_a_batch
from torch import Tensor

from infobatch.sieve import rules
from infobatch.sieve.rules import Choice

Rule = Callable[[Tensor, int, int], Choice]
UNBIASED: dict[str, Rule] = {
    "by_lot": lambda losses, k, seed: rules.choose_by_lot(losses, k, lot(seed), 0.25),
    "by_lot, floor 1": lambda losses, k, seed: rules.choose_by_lot(losses, k, lot(seed), 1.0),
    "below_mean": lambda losses, k, seed: rules.choose_below_mean(losses, k, lot(seed), 0.25),
    "below_mean, floor 1": lambda losses, k, seed: rules.choose_below_mean(losses, k, lot(seed), 1.0),
}
RULES: dict[str, Rule] = {
    "hardest": lambda losses, k, seed: rules.choose_hardest(losses, k),
    "easiest": lambda losses, k, seed: rules.choose_easiest(losses, k),
    "band": lambda losses, k, seed: rules.choose_band(losses, k, 2),
    "by_percentile": lambda losses, k, seed: rules.choose_by_percentile(losses, k, lot(seed), 1.0),
    "by_percentile, power 0": lambda losses, k, seed: rules.choose_by_percentile(losses, k, lot(seed), 0.0),
    "in_proportion": lambda losses, k, seed: rules.choose_in_proportion(losses, k, lot(seed)),
    "random": lambda losses, k, seed: rules.choose_random(losses, k, lot(seed)),
    "with_floor": lambda losses, k, seed: rules.choose_hardest_with_floor(
        losses, k, torch.arange(len(losses)) % 3, 0.25
    ),
    **UNBIASED,
}


def sorted_values(losses: Tensor) -> list[float]:
    return sorted(losses.double().tolist())


@pytest.mark.parametrize("name", RULES)
@given(given_losses=losses_and_k(), seed=st.integers(0, 99))
@example(given_losses=(torch.tensor([1e38, 0.0, -torch.inf, 3e38]), 3), seed=0)
@example(given_losses=(torch.tensor([1.7e308, -1.7e308, 0.0], dtype=torch.float64), 2), seed=0)
@example(given_losses=(torch.tensor([1e-300, 3e-300, 0.0], dtype=torch.float64), 2), seed=0)
@example(given_losses=(torch.full((3,), 6e4, dtype=torch.float16), 2), seed=0)
def test_exactly_k_different_rows_and_barred_ones_only_where_nothing_else_is_left(
    name: str, given_losses: tuple[Tensor, int], seed: int
) -> None:
    losses, k = given_losses
    before = losses.clone()
    rows, weights = RULES[name](losses, k, seed)
    assert rows.dtype == torch.int64
    assert weights.dtype == torch.float32
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert len(rows) == len(weights) == k
    assert 0 <= int(rows.min()) <= int(rows.max()) < len(losses)
    assert bool((weights.isfinite() & (weights > 0)).all())
    valid = losses > -torch.inf
    assert int(valid[rows].sum()) == min(k, int(valid.sum()))
    assert torch.equal(losses, before)
    assert all(map(torch.equal, RULES[name](losses, k, seed), (rows, weights)))  # the seed decides, and nothing else


@pytest.mark.parametrize("name", [name for name in RULES if name not in UNBIASED])
@given(given_losses=losses_and_k(largest=6))
def test_without_the_promise_of_unbiased_weights_all_are_one(name: str, given_losses: tuple[Tensor, int]) -> None:
    assert RULES[name](*given_losses, 0).weights.tolist() == [1.0] * given_losses[1]


@given(losses_and_k(largest=8))
def test_the_hardest_and_the_easiest_against_sorting(given_losses: tuple[Tensor, int]) -> None:
    losses, k = given_losses
    hardest = losses[rules.choose_hardest(losses, k).rows]
    assert sorted_values(hardest) == sorted_values(losses)[-k:]
    easiest = losses[rules.choose_easiest(losses, k).rows]
    worst_last = sorted(losses.double().tolist(), key=lambda loss: loss if loss > -math.inf else math.inf)
    assert sorted_values(easiest) == sorted(worst_last[:k])


@given(losses_and_k(largest=8), st.integers(0, 8))
@example((torch.tensor([-torch.inf, 1.0, 2.0, -torch.inf]), 2), 2)
def test_the_band_leaves_out_the_hardest_as_far_as_enough_others_are_left(
    given_losses: tuple[Tensor, int], skip: int
) -> None:
    losses, k = given_losses
    falling = sorted_values(losses)[::-1]
    valid = [loss for loss in falling if loss > -math.inf]
    spare = max(0, min(skip, len(valid) - k))
    band = losses[rules.choose_band(losses, k, skip).rows]
    assert sorted_values(band)[::-1] == falling[spare : spare + k]


@given(losses_and_k(largest=7, kind="ordinary"), st.data(), st.sampled_from([0.1, 0.25, 1 / 3, 0.5, 0.7, 1.0]))
def test_the_class_floor_against_every_choice(given_losses: tuple[Tensor, int], data: Any, share: float) -> None:
    losses, k = given_losses
    labels = data.draw(st.lists(st.integers(-1, 2), min_size=len(losses), max_size=len(losses)))
    counts = {label: labels.count(label) for label in labels}
    promised = {label: math.ceil(round(share * count, 6)) for label, count in counts.items()}
    rows = rules.choose_hardest_with_floor(losses, k, torch.tensor(labels), share).rows.tolist()
    if sum(promised.values()) > k:  # then only promised rows are chosen: of each class its hardest
        for label, count in promised.items():
            mine = [row for row in rows if labels[row] == label]
            hardest = sorted(losses[[at for at in range(len(labels)) if labels[at] == label]].tolist())[::-1]
            assert sorted(losses[mine].tolist())[::-1] == hardest[: len(mine)]
            assert len(mine) <= count
        return

    def keeps_promises(chosen: tuple[int, ...]) -> bool:
        return all(sum(labels[row] == label for row in chosen) >= count for label, count in promised.items())

    assert keeps_promises(tuple(rows))
    allowed = filter(keeps_promises, itertools.combinations(range(len(losses)), k))
    best = max(losses[list(chosen)].double().sum() for chosen in allowed)
    torch.testing.assert_close(losses[rows].double().sum(), best)


@pytest.mark.parametrize("count", [10, 100, 1000, 10_000])
@pytest.mark.parametrize("percent", [1, 10, 29, 57, 70])
def test_a_share_that_is_a_whole_number_of_rows_is_not_rounded_up(count: int, percent: int) -> None:
    """0.29 * 100 is 28.999999999999996, and 0.07 * 100 more than 7."""
    if percent * count % 100:
        return
    labels = torch.arange(2 * count) % 2
    whole = percent * count // 100
    chosen = rules.choose_hardest_with_floor(labels.float(), 2 * whole, labels, percent / 100).rows
    assert int((labels[chosen] == 0).sum()) == whole


# ---- by lot ----------------------------------------------------------------------------------------------------

FEW, MANY = 800, 3000
MADE = {
    "ordinary": torch.tensor([0.1, 3.0, 0.2, 1.0, 0.0, 7.0, 0.4]),
    "negative": torch.tensor([-3.0, -1.0, 2.0, 0.0, -2.5]),
    "one dominates": torch.tensor([1e-6, 1e6, 2e-6, 0.0, 1e-6]),
    "zeros": torch.zeros(6),
    "equal": torch.full((6,), 0.1),
    "half precision": torch.tensor([6e4, 5e4, 3e4, 1e4, 6e4, 2.0], dtype=torch.float16),
    "two are barred": torch.tensor([0.5, -torch.inf, 2.0, 1.0, -torch.inf, 0.1]),
}


@pytest.mark.parametrize(
    ("kind", "k", "draws"),
    [
        *((kind, 3, FEW) for kind in ("ordinary", "negative", "half precision", "two are barred")),
        *(pytest.param(kind, k, MANY, marks=pytest.mark.slow) for kind in MADE for k in (1, 2, 3, 4)),
    ],
)
@pytest.mark.parametrize("name", UNBIASED)
def test_weighted_sums_are_unbiased_over_many_draws(name: str, kind: str, k: int, draws: int) -> None:
    """The mean of sum(weight * value) is the sum of the values: of the losses, and of each row alone."""
    losses = MADE[kind]
    valid, size = losses > -torch.inf, len(losses)
    k = min(k, int(valid.sum()))
    generator = lot(3)
    floor = 1.0 if name.endswith("floor 1") else 0.25
    rule = rules.choose_by_lot if name.startswith("by_lot") else rules.choose_below_mean
    drawn = torch.zeros(draws, size, dtype=torch.float64)
    for draw in range(draws):
        rows, weights = rule(losses, k, generator, floor)
        drawn[draw, rows] = weights.double()
        assert float(weights.max()) <= int(valid.sum()) / (floor * k) * (1 + 1e-6)  # the floor bounds the weights
    worth, slack = losses.double().where(valid, 0), 4.5 / draws**0.5
    off = (drawn.mean(0) - valid.double()).abs()  # the mean weight of each row is 1
    assert bool((off <= slack * drawn.std(0) + 1e-6).all()), drawn.mean(0)
    sums = (drawn * worth).sum(1)
    assert abs(sums.mean() - worth.sum()) <= slack * sums.std() + 1e-6 * worth.abs().sum()


@given(losses_and_k(largest=12))
def test_below_mean_keeps_every_row_at_or_above_the_mean_if_they_fit(given_losses: tuple[Tensor, int]) -> None:
    losses, k = given_losses
    rows, weights = rules.choose_below_mean(losses, k, lot(), 0.25)
    valid = [row for row, loss in enumerate(losses.tolist()) if loss > -math.inf]
    values = losses.double()[valid]
    if not valid or not math.isfinite(float(values.sum())):
        return
    high = [row for row in valid if float(losses[row]) >= float(values.sum() / len(valid))]
    low, wanted = len(valid) - len(high), min(k, len(valid))
    least = 0.25 * wanted / len(valid)
    chance = dict(zip(rows.tolist(), (1 / weights.double()).tolist(), strict=True))
    if wanted - len(high) < low * least:  # too many are high: they, too, are drawn
        expected = {True: (wanted - low * least) / max(len(high), 1), False: least}
    else:
        expected = {True: 1.0, False: (wanted - len(high)) / max(low, 1)}
        assert set(high) <= set(rows.tolist())
    for row in set(rows.tolist()) & set(valid):
        assert chance[row] == pytest.approx(expected[row in high], rel=1e-5)


# ---- without replacement ---------------------------------------------------------------------------------------


def chance_of_each_pair(sizes: list[float]) -> dict[tuple[int, int], float]:
    """The chance of each pair, if a row is drawn in proportion to its size, and then another from the rest."""
    shares = [size / sum(sizes) for size in sizes]
    return {
        (one, other): shares[one] * shares[other] * (1 / (1 - shares[one]) + 1 / (1 - shares[other]))
        for one, other in itertools.combinations(range(len(sizes)), 2)
    }


def assert_pairs_as_expected(draw: Callable[[torch.Generator], Choice], sizes: list[float]) -> None:
    generator, draws = lot(5), 4000
    counts = Counter(tuple(draw(generator).rows.tolist()) for _ in range(draws))
    for pair, chance in chance_of_each_pair(sizes).items():
        assert abs(counts[pair] / draws - chance) <= 4.5 * (chance * (1 - chance) / draws) ** 0.5 + 1e-9, pair


@pytest.mark.parametrize("keep", [0.5, 0.25, 0.8])
def test_selective_backprop_draws_as_published(keep: float) -> None:
    """In proportion to percentile ** (1/keep - 1), with (rank + 0.5) / N as the percentile."""
    losses = torch.tensor([2.0, 0.1, 9.0, 0.5, 1.0])
    ranks = [3, 0, 4, 1, 2]
    sizes = [((rank + 0.5) / 5) ** (1 / keep - 1) for rank in ranks]
    assert_pairs_as_expected(lambda g: rules.choose_by_percentile(losses, 2, g, 1 / keep - 1), sizes)


def test_es_draws_in_proportion_to_the_losses() -> None:
    losses = torch.tensor([2.0, 0.1, 4.0, 0.5, 1.0])
    assert_pairs_as_expected(lambda g: rules.choose_in_proportion(losses, 2, g), losses.tolist())


@pytest.mark.parametrize("rule", [rules.choose_random, rules.choose_in_proportion])
def test_rows_without_a_difference_are_equally_likely(rule: Any) -> None:
    assert_pairs_as_expected(lambda g: rule(torch.zeros(5), 2, g), [1.0] * 5)


def test_rows_of_size_zero_fill_up_at_random_and_before_barred_ones() -> None:
    losses = torch.tensor([0.0, 3.0, -torch.inf, 0.0, -1.0])
    drawn = Counter(tuple(rules.choose_in_proportion(losses, 2, lot(seed)).rows.tolist()) for seed in range(600))
    assert set(drawn) == {(0, 1), (1, 3), (1, 4)}
    assert min(drawn.values()) > 120


# ---- tokens ----------------------------------------------------------------------------------------------------


@given(losses_of_a_batch(), st.data(), st.sampled_from([0.1, 0.5, 0.6, 1.0]))
def test_tokens_the_hardest_share_of_those_that_count(flat: Tensor, data: Any, keep: float) -> None:
    mask = data.draw(st.lists(st.booleans(), min_size=len(flat), max_size=len(flat)))
    losses, valid = flat.unsqueeze(0), torch.tensor([mask])
    weights = rules.choose_tokens(losses, valid, keep)
    assert weights.shape == losses.shape
    eligible = [loss for loss, counts in zip(flat.double().tolist(), mask, strict=True) if counts and loss > -math.inf]
    wanted = min(max(1, round(keep * sum(mask))), len(eligible))
    assert set(weights.flatten().tolist()) <= {0.0, 1.0}
    chosen = flat[weights[0] == 1].double().tolist()
    assert sorted(chosen) == sorted(eligible)[len(eligible) - wanted :]
    assert not weights[~valid].any()
