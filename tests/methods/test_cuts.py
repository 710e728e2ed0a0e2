from __future__ import annotations

import math
import random
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from infobatch.epoch.scores import ScoreTable
from infobatch.methods.cuts import TableStats
from infobatch.methods.cuts import quantile as quantile_of
from infobatch.methods.method import Moment, Policy, until
from infobatch.methods.rules.baselines import uniform
from infobatch.methods.rules.infobatch import below_mean, below_mean_in_tiers, beyond_mean, quantile_tiers
from infobatch.methods.rules.saving import spend
from infobatch.plan import Plan, full, generator_for

CPU = torch.device("cpu")
NOW = Moment(1, 10)
modest = settings(deadline=None, max_examples=80, derandomize=True)

POLICIES: dict[str, Policy] = {
    "below_mean": partial(below_mean, ratio=0.5),
    "above_mean": partial(beyond_mean, ratio=0.3),
    "tiers": partial(below_mean_in_tiers, ratio=0.5, low_ratio=0.75, low_share=0.2),
    "quantile_tiers": partial(quantile_tiers, tiers=((0.2, 0.75), (0.85, 0.5))),
    "uniform": partial(uniform, ratio=0.3),
    "spend": partial(spend, saving=0.4, ratio=0.5),
}
every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
ratios = st.sampled_from([0.01, 0.1, 0.25, 0.3, 0.5, 0.7, 0.75, 0.9, 0.99])
score = st.one_of(
    st.floats(0, 100, width=32), st.sampled_from([0.0, 0.5, 1.0]), st.just(math.nan), st.floats(-5, 5, width=32)
)
score_lists = st.lists(score, min_size=1, max_size=150)


def book_of(scores: Tensor | list[float], planned: int | None = None) -> ScoreTable:
    scores = torch.as_tensor(scores, dtype=torch.float32)
    book = ScoreTable(scores.numel())
    book.scores.copy_(scores)
    book.planned = scores.numel() if planned is None else planned
    return book


def draw(policy: Policy, scores: Tensor | list[float], seed: int = 0, moment: Moment = NOW) -> Plan:
    return policy(book_of(scores), moment, generator_for(seed, moment.epoch, CPU))


def skewed(size: int, seed: int = 0) -> Tensor:
    return torch.rand(size, generator=torch.Generator().manual_seed(seed)).pow(3)


def total(plan: Plan) -> float:
    return plan.table.double().sum().item()


# ---- what holds for every policy -----------------------------------------------------------------------------


@every_policy
@modest
@given(scores=score_lists, seed=st.integers(0, 2**63))
def test_weights_sum_to_n_and_the_unknown_stay(policy: Policy, scores: list[float], seed: int) -> None:
    plan = draw(policy, scores, seed)
    assert total(plan) == pytest.approx(len(scores), rel=1e-6)
    kept = set(plan.indices.tolist())
    assert len(kept) == plan.kept >= 1
    for z, known in enumerate(scores):
        if math.isnan(known):
            assert z in kept
            assert plan.table[z] == 1


@every_policy
def test_nothing_known_nothing_pruned(policy: Policy) -> None:
    plan = draw(policy, [math.nan] * 20)
    assert plan.kept == 20
    assert torch.equal(plan.table, torch.ones(20))


@every_policy
def test_one_sample_is_never_pruned_away(policy: Policy) -> None:
    assert draw(policy, [0.5]).indices.tolist() == [0]


@every_policy
def test_pure_in_scores_epoch_and_seed(policy: Policy) -> None:
    numpy = pytest.importorskip("numpy")
    book = book_of(skewed(300))
    before = book.scores.clone()
    state = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()
    one = policy(book, NOW, generator_for(5, 1, CPU))
    with torch.random.fork_rng():
        torch.manual_seed(99)
        two = policy(book, NOW, generator_for(5, 1, CPU))
    assert torch.equal(one.indices, two.indices)
    assert torch.equal(one.table, two.table)
    assert torch.equal(book.scores, before)
    assert torch.equal(state[0], torch.get_rng_state())
    assert state[1] == random.getstate()
    assert state[2] == numpy.random.get_state()[1].tolist()


@every_policy
def test_other_seed_other_plan(policy: Policy) -> None:
    scores = skewed(300)
    zero_one = draw(policy, scores, seed=0, moment=Moment(1, 10))
    one_zero = draw(policy, scores, seed=1, moment=Moment(0, 10))
    assert not torch.equal(zero_one.table, draw(policy, scores, seed=1).table)
    assert not torch.equal(zero_one.table, draw(policy, scores, seed=0, moment=Moment(2, 10)).table)
    assert set(zero_one.indices.tolist()) != set(one_zero.indices.tolist())


# ---- below and above the mean --------------------------------------------------------------------------------


@modest
@given(score_lists, ratios)
def test_below_mean_keeps_the_exact_count(scores: list[float], ratio: float) -> None:
    known = [Fraction(score) for score in torch.tensor(scores).tolist() if not math.isnan(score)]
    plan = draw(partial(below_mean, ratio=ratio), scores)
    if not known:
        assert plan.kept == len(scores)
        return
    threshold = float(sum(known) / len(known))
    m = sum(score < threshold for score in map(float, known))
    k = max(1, round((1 - Fraction(str(ratio))) * m)) if m else 0
    assert plan.kept == len(scores) - m + k
    for z, known_score in enumerate(torch.tensor(scores).tolist()):
        if known_score < threshold:
            assert plan.table[z].item() in (0.0, torch.tensor(m / k).item())
        else:
            assert plan.table[z] == 1


def test_unknown_scores_take_no_part_in_the_mean() -> None:
    """Counted as 0 or as 1 they would move the mean past 4 or past 6."""
    scores = [4.0, 5.0, 6.0, 9.0] + [math.nan] * 20
    plan = draw(partial(below_mean, ratio=0.5), scores)
    assert plan.kept == 24 - 1  # of {4, 5} one goes: the mean is 6
    assert plan.table[2:].tolist() == [1.0] * 22
    assert sorted(plan.table[:2].tolist()) == [0.0, 2.0]


@pytest.mark.parametrize("size", [1, 2, 3, 10, 1000, 70_001])
@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 1e-30, 7e20])
@pytest.mark.parametrize("name", ["below_mean", "above_mean", "tiers", "quantile_tiers"])
def test_constant_scores_prune_nobody(name: str, value: float, size: int) -> None:
    assert draw(POLICIES[name], torch.full((size,), value)).kept == size


def test_the_mean_itself_is_kept() -> None:
    plan = draw(partial(below_mean, ratio=0.9), [1.0, 2.0, 3.0])
    assert plan.table[1:].tolist() == [1.0, 1.0]


def test_above_mean_is_the_other_side() -> None:
    plan = draw(partial(beyond_mean, ratio=0.5), [1.0, 2.0, 2.0, 7.0, 8.0])
    assert plan.table[:3].tolist() == [1.0, 1.0, 1.0]
    assert sorted(plan.table[3:].tolist()) == [0.0, 2.0]


def test_ratio_zero_is_a_full_plan() -> None:
    rules: list[Callable[..., Plan]] = [below_mean, beyond_mean, uniform]
    for rule in rules:
        assert draw(partial(rule, ratio=0.0), skewed(50)).kept == 50


@pytest.mark.parametrize(
    ("ratio", "m", "k"), [(0.9, 10, 1), (0.9, 9, 0), (0.5, 9, 4), (0.3, 10, 7), (0.7, 10, 3), (0.99, 50, 0)]
)
def test_paper_rounding_is_int_and_the_literal_weight(ratio: float, m: int, k: int) -> None:
    """As real numbers: int((1 - 0.9) * 10) would be 0 in floating point."""
    scores = [1.0] * m + [100.0] * 5
    plan = draw(partial(below_mean, ratio=ratio, rounding="paper"), scores)
    assert plan.kept == 5 + k
    assert set(plan.table[:m].tolist()) <= {0.0, torch.tensor(float(1 / (1 - Fraction(str(ratio))))).item()}


@pytest.mark.parametrize(("ratio", "m", "k"), [(0.9, 10, 1), (0.99, 10, 1), (0.5, 9, 4), (0.5, 11, 6), (0.3, 10, 7)])
def test_exact_rounding_keeps_at_least_one(ratio: float, m: int, k: int) -> None:
    plan = draw(partial(below_mean, ratio=ratio), [1.0] * m + [100.0] * 5)
    assert plan.kept == 5 + k
    assert plan.table.max().item() == pytest.approx(m / k)


# ---- quantiles -----------------------------------------------------------------------------------------------


def quantile(scores: torch.Tensor, share: float) -> float:
    return quantile_of(TableStats(book_of(scores)), share)


@pytest.mark.parametrize("share", [0.1, 0.2, 0.29, 0.57, 0.85, 0.99])
@pytest.mark.parametrize("size", [1, 7, 100, 1000])
def test_quantile_has_the_share_strictly_below(share: float, size: int) -> None:
    scores = torch.randperm(size, generator=torch.Generator().manual_seed(size)).float()
    strictly = (scores < quantile(scores, share)).sum()
    assert strictly == math.floor(Fraction(str(share)) * size)


def test_quantile_counts_the_known_alone() -> None:
    scores = torch.tensor([math.nan] * 50 + list(range(100)))
    assert quantile(scores, 0.2) == 20
    assert quantile(torch.tensor([math.nan]), 0.5) == -math.inf


def test_tiers_prune_the_lowest_share_harder() -> None:
    scores = torch.arange(100.0).pow(2)  # mean 3283.5, so 0 to 57 lie below
    plan = draw(POLICIES["tiers"], scores)
    assert int((plan.table[:20] > 0).sum()) == 5
    assert int((plan.table[20:58] > 0).sum()) == 19
    assert plan.table[58:].tolist() == [1.0] * 42
    assert plan.table[:20].max() == 4
    assert plan.table[20:58].max() == 2


def test_tiers_never_reach_above_the_mean() -> None:
    scores = torch.tensor([0.0, 0.0, *range(100, 118)])  # mean 97.65, and 90 % lie far above it
    plan = draw(partial(below_mean_in_tiers, ratio=0.5, low_ratio=0.5, low_share=0.9), scores)
    assert plan.table[2:].tolist() == [1.0] * 18
    assert sorted(plan.table[:2].tolist()) == [0.0, 2.0]


def test_quantile_tiers_keep_the_top() -> None:
    plan = draw(POLICIES["quantile_tiers"], torch.arange(200.0))
    assert int((plan.table[:40] > 0).sum()) == 10
    assert int((plan.table[40:170] > 0).sum()) == 65
    assert plan.table[170:].tolist() == [1.0] * 30


def test_uniform_with_the_unknown() -> None:
    scores = [math.nan] * 10 + [1.0] * 10
    assert draw(partial(uniform, ratio=0.5), scores).kept == 15
    assert draw(partial(uniform, ratio=0.5, unscored=True), scores).kept == 10


# ---- a share of the whole run --------------------------------------------------------------------------------


def falling(size: int, epoch: int, draw: torch.Generator) -> Tensor:
    return torch.rand(size, generator=draw).pow(4) * 0.8**epoch


def rising(size: int, epoch: int, draw: torch.Generator) -> Tensor:
    return torch.rand(size, generator=draw) * 1.3**epoch


def tied(size: int, epoch: int, draw: torch.Generator) -> Tensor:
    return torch.randint(0, 3, (size,), generator=draw).float()


def constant(size: int, epoch: int, draw: torch.Generator) -> Tensor:
    return torch.full((size,), 0.5)


def two_valued(size: int, epoch: int, draw: torch.Generator) -> Tensor:
    return (torch.rand(size, generator=draw) < 0.02).float() * 100


def not_finite(size: int, epoch: int, draw: torch.Generator) -> Tensor:
    losses = torch.rand(size, generator=draw)
    losses[torch.rand(size, generator=draw) < 0.15] = math.nan
    return losses


def whole_run(losses: Callable[..., Tensor], share: float, size: int, C: int, ratio: float, delta: float) -> float:
    """Returns the share of all samples of all epochs that was left out."""
    random_numbers = torch.Generator().manual_seed(size)
    schedule = until(delta)
    book = book_of([math.nan] * size, planned=0)
    for t in range(C):
        moment, generator = Moment(t, C, schedule), generator_for(0, t, CPU)
        if schedule(moment):
            plan = spend(book, moment, generator, saving=share, ratio=ratio)
        else:
            plan = full(size, t, generator)
        assert total(plan) == pytest.approx(size, rel=1e-6)
        book.begin(plan)
        book.record(plan.indices, losses(size, t, random_numbers)[plan.indices])
        book.close(plan, None, None)
        book.begin_anew(book.planned + plan.kept)
    return 1 - book.planned / (C * size)


@pytest.mark.parametrize("losses", [falling, rising, tied, constant, two_valued, not_finite])
@pytest.mark.parametrize(
    ("share", "size", "C", "ratio", "delta"),
    [
        (0.4, 500, 20, 0.5, 0.875),
        (0.1, 333, 10, 0.5, 0.875),
        (0.6, 400, 30, 0.5, 0.9),
        (0.25, 150, 12, 0.9, 0.5),
        (0.05, 1000, 100, 0.3, 0.875),
    ],
)
def test_spend_meets_the_asked_share(
    losses: Callable[..., Tensor], share: float, size: int, C: int, ratio: float, delta: float
) -> None:
    assert whole_run(losses, share, size, C, ratio, delta) == pytest.approx(share, abs=0.01)


def test_spend_takes_the_lowest_and_no_weight_exceeds_the_ratios() -> None:
    scores = torch.arange(100.0)
    plan = draw(partial(spend, saving=0.2, ratio=0.5), scores, moment=Moment(1, 2))
    assert plan.kept == 60  # 20 % of two epochs, all in the second
    assert plan.table[80:].tolist() == [1.0] * 20
    assert plan.table.max() == 2


def test_spend_catches_up() -> None:
    """What an epoch could not save, the later ones do; what was saved beyond, they give back."""
    policy = partial(spend, saving=0.3, ratio=0.5)
    moment = Moment(2, 4)
    for planned, kept in ((200, 40), (160, 60), (100, 90), (60, 100)):
        book = book_of(torch.arange(100.0), planned=planned)
        assert policy(book, moment, generator_for(0, 2, CPU)).kept == kept
