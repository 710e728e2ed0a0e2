"""Production held against the paper's equations, step by step over whole runs."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch.utils.data import TensorDataset

import infobatch
from infobatch import reference

RUNS = [
    # size, epochs, ratio, delta, seed
    (7, 10, 0.5, 0.875, 0),
    (50, 12, 0.5, 0.875, 1),
    (101, 10, 0.3, 0.7, 2),
    (64, 20, 0.75, 0.35, 3),
    (200, 15, 0.9, 1.0, 4),
    (33, 25, 0.1, 0.28, 5),
    (40, 10, 0.999, 0.9, 6),  # so high that the exact count would round to nobody
]


def made_up_losses(size: int, epoch: int, seed: int) -> list[float]:
    """Losses of a training that never was: skewed, falling, and with ties."""
    draw = torch.Generator().manual_seed(1000 * seed + epoch)
    losses = torch.rand(size, generator=draw).pow(3) * 0.9**epoch
    losses[::5] = 0.25
    return losses.tolist()


def train_on(train_data: infobatch.Pruned, losses: list[float], batch_size: int) -> dict[int, float]:
    """One epoch. Returns the losses of the samples that came."""
    came = {}
    for (z,) in infobatch.DataLoader(train_data, batch_size=batch_size):
        batch = torch.tensor([losses[index] for index in z.tolist()])
        train_data.update(batch)
        has_weight = train_data.batch_weights > 0  # all but the ghost that fills up a last batch of one sample
        came |= dict(zip(z[has_weight].tolist(), batch[has_weight].tolist(), strict=True))
    return came


@pytest.mark.filterwarnings("ignore:epoch:infobatch.InfoBatchWarning")
@pytest.mark.parametrize("rounding", ["exact", "paper"])
@pytest.mark.parametrize(("size", "C", "r", "delta", "seed"), RUNS)
def test_whole_runs_follow_the_equations(
    size: int, C: int, r: float, delta: float, seed: int, rounding: infobatch.methods.cuts.Rounding
) -> None:
    data = TensorDataset(torch.arange(size))
    train_data = infobatch.InfoBatch(data, C, r, delta, seed=seed, rounding=rounding)
    H = reference.initial_scores(size)
    stay = 1 - Fraction(str(r))
    for t in range(C):
        P = reference.annealed_pruning_probability(H, r, t, delta, C)
        W = [z for z in range(size) if P[z] > 0]
        m = len(W)
        k = int(stay * m) if rounding == "paper" else min(m, max(1, round(stay * m)))

        plan = train_data.plan()
        S = set(plan.indices.tolist())
        assert len(S) == plan.kept == size - m + k
        assert len(S & set(W)) == k
        assert set(range(size)) - set(W) <= S  # nobody outside W is ever left out
        assert bool(W) or torch.equal(plan.table, torch.ones(size))
        for z in S:
            literal = reference.rescaling_factor(P[z])
            if rounding == "exact" and z in W:
                literal = m / k  # which is 1/(1-r) wherever (1-r)m is a whole number
                assert stay * m != k or literal == pytest.approx(reference.rescaling_factor(P[z]), rel=1e-12)
            assert plan.table[z].item() == torch.tensor(literal).item()
        if rounding == "exact":
            within = Fraction(1, 2) if k > 1 else 1  # rounding moves |S| by half a sample, or keeps the last one
            assert abs(size / plan.growth - size / reference.growth(P)) <= within + 1e-9

        came = train_on(train_data, made_up_losses(size, t, seed), batch_size=8)
        assert set(came) == S
        H = reference.updated_scores(H, came)
        assert train_data.scores.tolist() == H
        assert train_data.epoch == t + 1

    pruned = [report.epoch for report in train_data.history if report.saved > 0]
    assert pruned, "the run must prune, or it shows nothing"
    assert max(pruned) < Fraction(str(delta)) * C
    assert 0 not in pruned


def test_weights_applied_in_a_real_training_are_the_literal_ones() -> None:
    """A linear model. Each step's loss and gradient are worked out beside it from the equations alone."""
    size, C, r, delta = 60, 12, 0.5, 0.75
    draw = torch.Generator().manual_seed(7)
    x = torch.randn(size, 3, generator=draw)
    y = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.3 * torch.randn(size, generator=draw)
    train_data = infobatch.InfoBatch(
        TensorDataset(x, y, torch.arange(size)), C, r, delta, rounding="paper", compensate="loss"
    )
    loader = torch.utils.data.DataLoader(train_data, batch_size=16, sampler=train_data.sampler)
    model = torch.nn.Linear(3, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    H = reference.initial_scores(size)
    rescaled = short = 0
    for t in range(train_data.epoch, C):
        P = reference.annealed_pruning_probability(H, r, t, delta, C)
        L: dict[int, float] = {}
        for inputs, targets, z in loader:
            over = 16 if any(P) else len(z)  # a pruned epoch's last batch counts for what it holds
            short += len(z) < over
            losses = (model(inputs).squeeze(1) - targets).square()
            gamma = [reference.rescaling_factor(P[i]) for i in z.tolist()]
            rescaled += sum(factor != 1 for factor in gamma)
            error = (model(inputs).squeeze(1) - targets).detach()
            by_hand = torch.zeros(3)
            for i in range(len(gamma)):
                by_hand += gamma[i] * 2 * error[i] * inputs[i] / over

            optimizer.zero_grad()
            loss = train_data.update(losses)
            loss.backward()
            optimizer.step()

            literal = sum(g * lo for g, lo in zip(gamma, losses.tolist(), strict=True)) / over
            assert loss.item() == pytest.approx(literal, rel=1e-6)
            torch.testing.assert_close(model.weight.grad[0], by_hand, rtol=1e-5, atol=1e-6)
            L |= dict(zip(z.tolist(), losses.tolist(), strict=True))
        H = reference.updated_scores(H, L)
        assert train_data.scores.tolist() == H
    assert rescaled > 50
    assert short > 3


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_expected_weight_is_one(seed: int) -> None:
    """Why it is unbiased: over many draws each sample's weight, 0 when left out, has the mean 1."""
    scores = torch.rand(20, generator=torch.Generator().manual_seed(seed))
    draws = 2000
    book = infobatch.epoch.scores.ScoreTable(20)
    book.scores.copy_(scores)
    method = infobatch.methods.infobatch(0.5, 1.0)
    moment = infobatch.methods.method.Moment(1, 2)
    total = sum(method.draw(book, moment, seed=draw).table.double() for draw in range(draws))
    # one weight has a standard deviation of at most about 1.1, so 5 sigma of the mean are 5 * 1.1 / sqrt(2000)
    assert torch.all((total / draws - 1).abs() < 0.125)
