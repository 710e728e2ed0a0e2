"""Weights that are called unbiased have the expectation 1 for each sample, also of a handful."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lots import lot

from infobatch import methods, variations
from infobatch.epoch.scores import ScoreTable
from infobatch.methods import METHODS, Method
from infobatch.methods.method import Moment

N, EPOCHS, DRAWS = 12, 10, 1500
LABELS = torch.tensor([0] * 6 + [1] * 3 + [2] * 2 + [3])
GIVEN: dict[str, dict[str, Any]] = {
    "rcap": {"labels": LABELS},
    "dynamic_uncertainty": {"window": 2},
    "rising": {"ratio": 0.6, "power": 1.0, "floor": 0.1},
}
VARIANTS: dict[str, Callable[[Method], Method]] = {
    "unbiased": variations.unbiased,
    "noise guard": lambda method: variations.noise_guard(variations.unbiased(method), 0.2, 2),
    "low class floor": lambda method: variations.class_floor(variations.unbiased(method), LABELS, 0.2),
    "class floor": lambda method: variations.class_floor(variations.unbiased(method), LABELS, 0.6),
    "all": lambda method: variations.class_floor(
        variations.noise_guard(variations.unbiased(method), 0.2, 2), LABELS, 0.4
    ),
}
FAST = {("rising", "unbiased"), ("random_star", "low class floor")}


def trained(method: Method, epochs: int = 3) -> ScoreTable:
    """The scores and the memory after some epochs."""
    book, hard = ScoreTable(N), torch.rand(N, generator=lot(3)) ** 3
    book.make_columns(method.memory, method.channels)
    for epoch in range(epochs):
        plan = method.draw(book, Moment(epoch, EPOCHS), 77)
        book.begin(plan)
        book.record(plan.indices, hard[plan.indices] * 0.8**epoch + 0.01)
        for column in book.channels.values():
            column[plan.indices] = 0.5
        book.close(plan, None, method.memory)
        book.begin_anew(book.planned + plan.kept)
    return book


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        pytest.param(name, variant, marks=() if (name, variant) in FAST else pytest.mark.slow)
        for name in METHODS
        for variant in VARIANTS
    ],
)
def test_the_expected_weight_of_each_sample_is_one(name: str, variant: str) -> None:
    method = VARIANTS[variant](METHODS[name](**GIVEN.get(name, {})))
    assert method.unbiased
    book = trained(method)
    tables = torch.stack([method.draw(book, Moment(3, EPOCHS), seed).table.expand(N).double() for seed in range(DRAWS)])
    torch.testing.assert_close(tables.sum(1), torch.full((DRAWS,), float(N), dtype=torch.float64), rtol=1e-6, atol=0)
    off = (tables.mean(0) - 1).abs()
    assert bool((off <= 4.5 * tables.std(0) / DRAWS**0.5 + 1e-6).all()), tables.mean(0)


@pytest.mark.parametrize("rounding", ["exact", "paper"])
def test_the_published_rounding_is_unbiased_where_a_count_divides(rounding: Any) -> None:
    """It keeps int((1-r)m) with weight 1/(1-r), so of an odd number of prunable samples it keeps half a sample less."""
    method = methods.infobatch(0.5, rounding=rounding)
    for prunable, expected in ((6, 6.0), (7, 6.0 if rounding == "paper" else 7.0)):
        book = ScoreTable(N)
        book.scores.copy_(torch.where(torch.arange(N) < prunable, 0.1, 9.0))
        plan = method.draw(book, Moment(1, EPOCHS), 0)
        assert float(plan.table[:prunable].sum()) == pytest.approx(expected)
