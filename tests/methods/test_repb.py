"""RePB: samples below the mean of their batch sit out at random, and weights follow how often each was selected."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

import infobatch
from infobatch import Pruned, methods, variations
from infobatch.epoch.scores import ScoreTable
from infobatch.methods.method import Moment

N, BATCH, RHO = 60, 8, 0.4


def made(size: int = N, epochs: int = 14, **given: Any) -> Pruned:
    return Pruned(TensorDataset(torch.arange(size)), methods.repb(RHO), epochs, **given)


def losses_of(indices: Tensor, epoch: int) -> Tensor:
    return torch.exp(-0.1 * epoch * (indices % 5)) + 0.3 * torch.sin(indices * 1.7 + epoch)


@pytest.mark.parametrize("compensate", ["none", "loss"])
def test_a_run_follows_the_published_rule(compensate: Any) -> None:
    """The rule in plain Python, with no other knowledge of a plan than which of those below the mean it drew."""
    train, relative, selected, came_back = made(compensate=compensate), [0.0] * N, [0] * N, 0
    for epoch in range(14):
        indices = train.plan().indices.tolist()
        below = {i for i in range(N) if relative[i] < 0}
        assert set(range(N)) - below <= set(indices)
        assert len(below & set(indices)) == round((1 - RHO) * len(below))
        came_back += sum(selected[i] < epoch and relative[i] < 0 for i in indices)
        weight = {i: epoch / selected[i] if epoch else 1.0 for i in indices}
        scale = 1.0 if compensate == "loss" else 1 / fmean(weight.values())
        for (at,) in infobatch.DataLoader(train, batch_size=BATCH):
            losses = losses_of(at, epoch)
            train.update(losses)
            part = len(at) / BATCH if len(indices) < N else 1.0  # a short last batch counts for less
            expected = [scale * part * weight[i] for i in at.tolist()]
            assert train.batch_weights.tolist() == pytest.approx(expected, rel=1e-5)
            mean = fmean(losses.tolist())
            for i, loss in zip(at.tolist(), losses.tolist(), strict=True):
                relative[i], selected[i] = loss - mean, selected[i] + 1
        assert train.scores.tolist() == pytest.approx(relative, abs=1e-6)
    assert came_back > 50
    assert max(selected) == 14
    assert min(selected) < 11


def trained(epochs: int) -> ScoreTable:
    """After so many epochs of which the even samples were in every other one; samples of 0, 1, 4, 5, ... are low."""
    book = ScoreTable(N)
    book.make_columns(methods.repb().memory, ())
    book.scores.copy_(torch.where(torch.arange(N) % 4 < 2, -1.0, 1.0))
    book.memory["visits"].copy_(torch.where(torch.arange(N) % 2 == 0, epochs // 2, epochs).float())
    return book


def test_each_below_the_mean_has_the_same_chance_whether_it_was_left_out_or_not() -> None:
    book, draws = trained(4), 1000
    tables = torch.stack([methods.repb(RHO).draw(book, Moment(4, 9), seed).table for seed in range(draws)])
    share, low = (tables != 0).double().mean(0), book.scores < 0
    assert bool((share[~low] == 1).all())
    assert float((share[low] - (1 - RHO)).abs().max()) < 5 * (RHO * (1 - RHO) / draws) ** 0.5
    even = torch.arange(N) % 2 == 0
    assert set(tables[:, even].unique().tolist()) == {0.0, 2.0}
    assert set(tables[:, ~even].unique().tolist()) == {0.0, 1.0}


def test_with_a_constant_chance_the_expected_weight_tends_to_one() -> None:
    """After E epochs, the first of them full, it is 1 - rho^E, as the card says."""
    runs, epochs = 120, 6
    sums = torch.zeros(epochs)
    for seed in range(runs):
        book = ScoreTable(50)
        book.make_columns(methods.repb().memory, ())
        for epoch in range(epochs):
            plan = methods.repb(RHO).draw(book, Moment(epoch, epochs), seed)
            sums[epoch] += plan.table.mean() / runs
            book.begin(plan)
            book.record(plan.indices, torch.full((plan.kept,), -1.0))
            book.close(plan, None, methods.repb().memory)
            book.begin_anew(book.planned + plan.kept)
    assert sums[0] == pytest.approx(1)
    assert sums[1:].tolist() == pytest.approx([1 - RHO**done for done in range(1, epochs)], abs=0.02)


# ---- scores relative to the batch ------------------------------------------------------------------------------


def recorded(losses: Tensor, *parts: list[int], score: Tensor | None = None) -> list[float]:
    """The scores of the samples 0, 1, ... after an epoch in which they came in these parts."""
    train = made(len(losses))
    for part in parts or (list(range(len(losses))),):
        at = torch.tensor(part)
        train.update(losses[at], at, score=None if score is None else score[at])
    assert train.epoch == 1
    return train.scores.tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_a_score_is_how_far_a_loss_is_above_its_batch(dtype: torch.dtype) -> None:
    assert recorded(torch.tensor([1.0, 2.0, 3.0, 6.0], dtype=dtype)) == [-2, -1, 0, 3]


def test_parts_of_a_batch_are_compared_with_their_own_mean() -> None:
    assert recorded(torch.tensor([1.0, 2.0, 3.0, 6.0]), [0, 3], [1], [2]) == [-2.5, 0, 0, 2.5]


def test_unknown_samples_take_no_part_in_the_mean() -> None:
    nan = torch.nan
    got = recorded(torch.zeros(4), score=torch.tensor([1.0, nan, 2.0, nan]))
    assert got == pytest.approx([-0.5, nan, 0.5, nan], nan_ok=True)
    assert recorded(torch.zeros(2), score=torch.tensor([nan, nan])) == pytest.approx([nan, nan], nan_ok=True)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 3.4e38])
@pytest.mark.parametrize("given", [False, True], ids=["loss", "score"])
def test_a_loss_that_is_not_finite_spoils_no_other(bad: float, given: bool) -> None:
    losses = torch.tensor([1.0, bad, 3.0])
    with pytest.warns(infobatch.InfoBatchWarning, match="1 of 3 losses"):
        got = recorded(losses, score=losses if given else None)
    assert got == pytest.approx([-1.0, torch.nan, 1.0], nan_ok=True)


@pytest.mark.parametrize("size", [3, 7, 49])
def test_equal_losses_are_all_at_the_mean(size: int) -> None:
    """A mean that was rounded up would put all of them below it."""
    for loss in (0.1, 0.7, 1 / 3, 1e-30):
        assert recorded(torch.full((size,), loss)) == [0.0] * size


# ---- around the method -----------------------------------------------------------------------------------------


def test_unbiased_weighs_all_alike_where_nothing_is_left_out() -> None:
    book = trained(4)
    book.scores.fill_(1.0)
    plan = methods.repb().draw(book, Moment(4, 9), 0)
    assert float(plan.table.sum()) == N * 1.5
    fair = variations.unbiased(methods.repb()).draw(book, Moment(4, 9), 0)
    assert torch.equal(fair.table, torch.ones(N))
    assert torch.equal(fair.indices, plan.indices)


def test_shards_are_refused() -> None:
    with pytest.raises(infobatch.InputError, match="shard_scores=True"):
        made(shard_scores=True)
