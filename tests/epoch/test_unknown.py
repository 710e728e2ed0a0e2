"""A NaN score says that nothing is known of a sample; a NaN loss is an accident. The two are told apart."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from lots import lot
from torch.utils.data import TensorDataset

import infobatch
from infobatch import InfoBatch, InfoBatchWarning, Pruned, methods

N, BATCH = 40, 8
EVERY_FOURTH = torch.arange(N) % 4 == 0
HARD = torch.rand(N, generator=lot()) + 0.1


def epoch_of(train: Pruned, unknown: torch.Tensor, level: float = 1.0, *, named: bool = False, **kind: Any) -> None:
    """An epoch of losses ``level * HARD``; those of ``unknown`` samples are 0, with NaN for a score."""
    for (at,) in infobatch.DataLoader(train, batch_size=BATCH):
        losses = (level * HARD[at]).to(**kind)
        loss = losses.masked_fill(unknown[at], 0.0)
        train.update(loss, at if named else None, score=losses.masked_fill(unknown[at], torch.nan))


def made(method: methods.Method | None = None, **given: Any) -> Pruned:
    return Pruned(TensorDataset(torch.arange(N)), method or methods.infobatch(), 8, **given)


@pytest.mark.parametrize("named", [False, True], ids=["carried", "named"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shard_scores", [False, True], ids=["table", "shards"])
def test_an_unknown_sample_has_no_score_and_nobody_is_warned(
    recwarn: pytest.WarningsRecorder, named: bool, dtype: torch.dtype, shard_scores: bool
) -> None:
    train = made(shard_scores=shard_scores)
    epoch_of(train, EVERY_FOURTH, named=named, dtype=dtype)
    scores = torch.empty(N).index_copy_(0, train.owned, train.scores)
    assert torch.equal(scores.isnan(), EVERY_FOURTH)
    torch.testing.assert_close(scores[~EVERY_FOURTH], HARD[~EVERY_FOURTH].to(dtype).float())
    assert train.history[0].not_finite == 0
    assert not recwarn.list


def test_an_unknown_sample_is_kept_and_takes_no_part_in_the_mean() -> None:
    """With the loss 0 it would lower the mean and be the first to be pruned."""
    train = made()
    epoch_of(train, EVERY_FOURTH)
    plan = train.plan()
    assert bool((plan.table[EVERY_FOURTH] == 1).all())
    below = ~EVERY_FOURTH & (HARD[~EVERY_FOURTH].double().mean() > HARD)
    assert plan.kept == N - round(0.5 * int(below.sum()))


def test_an_unknown_sample_keeps_its_old_score() -> None:
    train = made(methods.full())
    epoch_of(train, torch.zeros(N, dtype=torch.bool))
    epoch_of(train, EVERY_FOURTH, level=2.0)
    torch.testing.assert_close(train.scores, torch.where(EVERY_FOURTH, HARD, 2 * HARD))


def test_a_loss_that_is_not_finite_is_warned_of_whatever_its_score() -> None:
    train = made()
    for (at,) in infobatch.DataLoader(train, batch_size=BATCH):
        loss = HARD[at].masked_fill(at == 3, torch.nan).masked_fill(at == 5, torch.inf)
        train.update(loss, score=loss.masked_fill((at == 5) | (at == 7), torch.nan))
    with pytest.warns(InfoBatchWarning, match="2 of 40 losses"):
        assert train.history[0].not_finite == 2
    assert train.scores.isnan().nonzero().squeeze(1).tolist() == [3, 5, 7]


def test_an_infinite_score_is_an_accident_too() -> None:
    train = made()
    for (at,) in infobatch.DataLoader(train, batch_size=BATCH):
        train.update(HARD[at], score=HARD[at].masked_fill(at == 3, torch.inf))
    with pytest.warns(InfoBatchWarning, match="1 of 40 losses"):
        assert train.history[0].not_finite == 1


def test_the_mean_of_a_batch_is_that_of_its_known_samples_and_for_them(recwarn: pytest.WarningsRecorder) -> None:
    train = made(methods.bls())
    for (at,) in infobatch.DataLoader(train, batch_size=BATCH):
        train.update(HARD[at], score=torch.where(at % 2 == 0, torch.nan, 1.0))
    assert torch.equal(train.scores.nan_to_num(0), (torch.arange(N) % 2).float())
    assert not recwarn.list


def test_what_a_method_remembers_stays_where_nothing_is_known() -> None:
    train = made(methods.eswp())
    epoch_of(train, EVERY_FOURTH)
    train.plan()
    assert torch.equal(train.state_dict()["memory"]["slow"].isnan(), EVERY_FOURTH)


def test_an_epoch_with_unknown_samples_resumes() -> None:
    train, later = made(), made()
    batches = iter(infobatch.DataLoader(train, batch_size=BATCH))
    for _ in range(2):
        (at,) = next(batches)
        train.update(HARD[at], score=HARD[at].masked_fill(EVERY_FOURTH[at], torch.nan))
    later.load_state_dict(train.state_dict())
    assert later.progress == (0, 2 * BATCH, N)
    epoch_of(later, EVERY_FOURTH)
    assert later.epoch == 1
    assert torch.equal(later.scores.isnan(), EVERY_FOURTH)


@pytest.mark.slow
def test_unknown_samples_in_a_compiled_step() -> None:
    train = InfoBatch(TensorDataset(torch.arange(N)), 8)

    @partial(torch.compile, backend="eager", fullgraph=True)
    def step(at: torch.Tensor) -> torch.Tensor:
        return train.update(HARD[at], at, score=HARD[at].masked_fill(EVERY_FOURTH[at], torch.nan))

    for (at,) in infobatch.DataLoader(train, batch_size=BATCH):
        step(at)
    assert torch.equal(train.scores.isnan(), EVERY_FOURTH)
    assert train.history[0].not_finite == 0
