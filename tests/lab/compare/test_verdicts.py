"""Verdicts held against closed forms, brute force and simulated comparisons whose truth is known."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict

import numpy as np
import pytest
from scipy import stats

from infobatch.lab.compare.verdicts import Difference, interval, judge, level_at, more_seeds, of_differences, student
from infobatch.lab.format import format_number


def differing(values: list[float], look: int = 1) -> Difference:
    return Difference(tuple(range(len(values))), *of_differences(values, level_at(0.95, look)))


def test_quantile_is_students() -> None:
    # Two printed in every table, and the closed forms that one and two degrees of freedom have.
    assert student(4, 0.95) == pytest.approx(2.776445, abs=1e-6)
    assert student(29, 0.99) == pytest.approx(2.756386, abs=1e-6)
    for level in (0.5, 0.9, 0.95, 0.999):
        assert student(1, level) == pytest.approx(math.tan(math.pi * level / 2))
        assert student(2, level) == pytest.approx(level * math.sqrt(2 / (1 - level**2)))


def test_interval_is_scipys() -> None:
    values = [0.4, -0.2, 0.9, 0.1, -0.6, 0.3]
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.9)
    assert interval(values, 0.9) == pytest.approx((expected.low, expected.high))


def test_interval_covers_the_truth_as_often_as_it_says() -> None:
    draw = random.Random(1)
    for n, level in ((2, 0.95), (5, 0.95), (5, 0.8)):
        hits = 0
        for _ in range(1000):
            low, high = interval([draw.gauss(0.7, 2.0) for _ in range(n)], level)
            hits += low <= 0.7 <= high
        assert hits / 1000 == pytest.approx(level, abs=4 * math.sqrt(level * (1 - level) / 1000))


def verdicts(truth: float, *, spread: float, n: int, rounds: int = 1000, grid: float = 0.0) -> dict[str, float]:
    """How often each verdict falls, where the true difference is known."""
    draw = random.Random(2)
    counts: dict[str, int] = {}
    for _ in range(rounds):
        values = [draw.gauss(truth, spread) for _ in range(n)]
        values = [grid * round(value / grid) for value in values] if grid else values
        kind = judge(differing(values), 0.3, 0.95).kind
        counts[kind] = counts.get(kind, 0) + 1
    return {kind: count / rounds for kind, count in counts.items()}


@pytest.mark.slow
def test_wrong_verdicts_are_as_rare_as_promised() -> None:
    rare = 0.025 + 4 * math.sqrt(0.025 * 0.975 / 1000)
    for n in (2, 3, 5, 20):
        harmless = verdicts(0.0, spread=0.4, n=n)
        assert harmless.get("worse", 0) <= rare
        harmful = verdicts(-0.3, spread=0.4, n=n)
        assert harmful.get("lossless", 0) + harmful.get("better", 0) <= rare
        assert verdicts(0.0, spread=0.4, n=n).get("better", 0) <= rare


def test_wrong_verdicts_stay_rare_where_accuracies_are_counts() -> None:
    """On a grid as coarse as the spread, few seeds are often all alike; that must not pass for certainty."""
    for n in (2, 3, 4, 6):
        harmful = verdicts(-0.3, spread=0.2, n=n, grid=0.2)
        assert harmful.get("lossless", 0) + harmful.get("better", 0) <= 0.05


def ever_shown(truth: float, first: int, more: int | None, rounds: int = 1000, most: int = 250) -> dict[str, float]:
    """Shares of the verdicts that a person comes to who looks, adds seeds and looks again until there is one: as many
    seeds as the verdict asks for, or always the same number."""
    draw, shown = np.random.default_rng(4), Counter[str]()
    for _ in range(rounds):
        values, n, look = draw.normal(truth, 0.6, most), first, 1
        while n <= most:
            mean, std = float(values[:n].mean()), float(values[:n].std(ddof=1))
            half = student(n - 1, level_at(0.95, look)) * std / math.sqrt(n)
            verdict = judge(Difference(tuple(range(n)), mean, std, mean - half, mean + half), 0.3, 0.95, look)
            if verdict.more is None:
                shown[verdict.kind] += 1
                break
            n, look = n + (more or verdict.more), look + 1
    return defaultdict(float, {kind: count / rounds for kind, count in shown.items()})


@pytest.mark.slow
@pytest.mark.parametrize("first", [2, 3, 5])
@pytest.mark.parametrize("more", [None, 5])
def test_looking_again_and_again_keeps_the_promise(first: int, more: int | None) -> None:
    """With the same interval at each look, these shares are 6 to 11 %."""
    harmless, harmful = ever_shown(0.0, first, more), ever_shown(-0.3, first, more)
    assert harmless["worse"] <= 0.05
    assert harmful["lossless"] + harmful["better"] <= 0.05
    assert harmless["lossless"] + harmless["better"] > 0.8  # and it does end


def test_what_rounds_to_nothing_has_no_sign() -> None:
    assert [format_number("{:+.2f}", value) for value in (-0.001, 0.001, -0.006)] == ["0.00", "0.00", "-0.01"]
    assert format_number("{:.2f}", math.nan) == "nan"


def test_enough_seeds_do_decide() -> None:
    harmless = verdicts(0.0, spread=0.2, n=20)
    assert harmless["lossless"] + harmless["better"] > 0.99
    assert verdicts(-0.8, spread=0.2, n=8)["worse"] > 0.99
    assert verdicts(0.5, spread=0.2, n=8)["better"] > 0.99


@pytest.mark.parametrize(
    ("values", "kind", "text"),
    [
        ([0.02, -0.02, 0.05, -0.05], "lossless", "lossless within 0.3 points at 95 %"),
        ([1.0, 1.2, 0.8, 1.0], "better", "better by 1.00 points (0.74 to 1.26), so lossless"),
        ([-1.0, -1.2, -0.8, -1.0], "worse", "worse by 1.00 points (0.74 to 1.26)"),
        ([-0.1, -0.12, -0.08, -0.1], "lossless", "lossless within 0.3 points at 95 %"),
        ([2.0, -2.0], "undecided", None),
        ([0.5, 0.501], "undecided", "not enough seeds: about 1 more needed"),
        ([-1.0, -1.001], "undecided", "not enough seeds: about 1 more needed"),
        ([0.0, 0.0], "undecided", "2 more needed"),
        ([0.0, 0.0, 0.0, 0.0], "lossless", "lossless within 0.3 points at 95 %"),
    ],
)
def test_verdicts_in_words(values: list[float], kind: str, text: str | None) -> None:
    verdict = judge(differing(values), 0.3, 0.95)
    assert verdict.kind == kind
    assert text is None or verdict.text.endswith(text)


@pytest.mark.parametrize("mean", [0.4, 0.0, -0.14, -0.16, -0.3, -0.5, -2.0])
@pytest.mark.parametrize("std", [0.1, 0.6, 3.0])
@pytest.mark.parametrize("n", [2, 7])
def test_seeds_needed_are_the_fewest_that_decide(mean: float, std: float, n: int) -> None:
    more = more_seeds(mean, std, n, 0.3, 0.95)

    def decided(seeds: int) -> bool:
        half = stats.t.ppf(0.975, seeds - 1) * std / math.sqrt(seeds)
        return mean - half > -0.3 or (mean + half < 0 and mean - half < -0.3)

    assert more >= 1
    assert decided(n + more)
    assert more == 1 or not decided(n + more - 1)


def test_seeds_needed_come_out_right_on_average() -> None:
    """Told after four seeds, the number is of the right size: most comparisons decide once they have it."""
    draw = random.Random(3)
    decided = asked = 0
    for _ in range(400):
        values = [draw.gauss(0.0, 0.5) for _ in range(4)]
        verdict = judge(differing(values), 0.3, 0.95)
        if verdict.more is not None:
            asked += 1
            values += [draw.gauss(0.0, 0.5) for _ in range(verdict.more)]
            decided += judge(differing(values, look=2), 0.3, 0.95, look=2).kind != "undecided"
    assert asked > 200
    assert decided / asked > 0.4
