"""What per_sample divides by: the mean over the batch is the loss of the script that it replaces."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lots import lot
from plans import expected_gradient, gradient, train
from torch import Tensor, nn
from torch.nn import functional as F

import infobatch
from infobatch import InputError, Sieve, per_sample
from infobatch.sieve import Proxy, hardest

BATCH, LENGTH, VOCABULARY = 5, 7, 4
IDS = torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=lot())
COUNTS = torch.tensor([7, 1, 0, 3, 5])
LABELS = torch.where(torch.arange(LENGTH) < COUNTS[:, None], IDS.roll(1, 0), -100)
AVERAGES = ["sample", "batch", "all", "sum", 11, torch.tensor(11), torch.tensor(5.5)]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(VOCABULARY, 6), nn.Linear(6, VOCABULARY)).double()


def token_losses(net: nn.Module, rows: Tensor | None = None) -> Tensor:
    rows = torch.arange(BATCH) if rows is None else rows
    return F.cross_entropy(net(IDS[rows]).transpose(1, 2), LABELS[rows], reduction="none")


def script(net: nn.Module, average: Any) -> Tensor:
    """Return what a script calls backward on, by torch's own reductions where it has them."""
    logits = net(IDS).transpose(1, 2)
    if average == "batch":
        return F.cross_entropy(logits, LABELS)
    if average == "all":
        return F.cross_entropy(logits, LABELS, reduction="none").mean()
    if average == "sample":
        one_by_one = [F.cross_entropy(logits[i, :, :n].T, LABELS[i, :n]) for i, n in enumerate(COUNTS.tolist()) if n]
        return torch.stack(one_by_one).sum() / BATCH
    total = F.cross_entropy(logits, LABELS, reduction="sum")
    return total if average == "sum" else total / average


@pytest.mark.parametrize("average", AVERAGES, ids=str)
def test_the_mean_of_the_losses_is_the_loss_of_the_script(average: Any) -> None:
    net = model()
    loss, _ = per_sample(token_losses(net), LABELS != -100, average)
    expected = script(net, average)
    torch.testing.assert_close(loss.mean(), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient(net, loss.mean()), gradient(net, expected), rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("average", AVERAGES, ids=str)
def test_the_score_is_the_own_mean_of_the_sample(average: Any) -> None:
    losses = token_losses(model())
    loss, score = per_sample(losses, LABELS != -100, average)
    for i, count in enumerate(COUNTS.tolist()):
        torch.testing.assert_close(score[i], losses[i, :count].mean().detach(), equal_nan=True)
    assert not score.requires_grad
    assert loss[2] == 0


@pytest.mark.parametrize("average", AVERAGES, ids=str)
def test_without_a_mask_all_elements_count(average: Any) -> None:
    losses = torch.rand(4, 3, 2, generator=lot(), dtype=torch.float64, requires_grad=True)
    loss, score = per_sample(losses, None, average)
    masked, _ = per_sample(losses, torch.ones(4, 1, 1), average)
    torch.testing.assert_close(loss, masked, rtol=1e-12, atol=0)
    torch.testing.assert_close(score, losses.detach().mean((1, 2)), rtol=1e-12, atol=0)
    divisor = {"sample": 24, "batch": 24, "all": 24, "sum": 1}[average] if isinstance(average, str) else average
    torch.testing.assert_close(loss.mean(), losses.sum() / divisor, rtol=1e-12, atol=0)


@pytest.mark.parametrize("average", ["sample", "batch", "all"])
def test_without_a_mask_they_are_exactly_the_means(average: Any) -> None:
    losses = torch.rand(5, 3, 4, generator=lot())
    loss, score = per_sample(losses, average=average)
    assert torch.equal(loss, losses.flatten(1).mean(1))
    assert torch.equal(score, loss)


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_that_average_their_gradients_share_a_number(ranks: int) -> None:
    net, rows = model(), torch.arange(BATCH)
    number = (LABELS != -100).sum() / ranks
    parts = rows.tensor_split(ranks)
    mean = torch.stack([per_sample(token_losses(net, i), LABELS[i] != -100, number).loss.mean() for i in parts]).mean()
    torch.testing.assert_close(mean, script(net, "batch"), rtol=1e-12, atol=0)


@pytest.mark.parametrize("average", ["batch", 11])
def test_batches_of_any_size_accumulate_to_the_step(average: Any) -> None:
    """Only with the number of elements of the step do parts of unequal size add up to it."""
    net = model()
    number = int(COUNTS.sum()) if average == 11 else average
    parts = [torch.tensor([0]), torch.tensor([1, 2, 3, 4])]
    got = sum(
        gradient(net, per_sample(token_losses(net, rows), LABELS[rows] != -100, number).loss.mean()) for rows in parts
    )
    assert isinstance(got, Tensor)
    expected = gradient(net, F.cross_entropy(net(IDS).transpose(1, 2), LABELS))
    assert torch.allclose(got if average == 11 else got / 2, expected, rtol=1e-10) == (average == 11)


@pytest.mark.parametrize("average", [*AVERAGES, torch.tensor(0)], ids=str)
def test_a_batch_without_a_valid_element_has_no_gradient_and_no_scores(average: Any) -> None:
    losses = torch.full((3, 4), torch.nan, requires_grad=True)
    loss, score = per_sample(losses, torch.zeros(3, 4), average)
    assert loss.tolist() == [0, 0, 0]
    assert bool(score.isnan().all())
    loss.mean().backward()
    assert losses.grad is not None
    assert not losses.grad.any()


@pytest.mark.parametrize("average", ["batch", "sum", 6])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_single(dtype: torch.dtype, average: Any) -> None:
    losses = torch.full((2, 100_000), 3.0, dtype=dtype)
    mask = torch.ones(2, 1)
    loss, _ = per_sample(losses, mask, average)
    assert loss.dtype == torch.float32
    assert float(loss.mean()) == {"batch": 3.0, "sum": 600_000.0, 6: 100_000.0}[average]


@pytest.mark.parametrize("average", AVERAGES, ids=str)
def test_it_compiles_to_one_graph(average: Any) -> None:
    losses, mask = torch.rand(5, 7, generator=lot()), LABELS != -100
    compiled = torch.compile(per_sample, fullgraph=True, backend="eager")
    for got, expected in zip(compiled(losses, mask, average), per_sample(losses, mask, average), strict=True):
        torch.testing.assert_close(got, expected, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("average", "word"),
    [
        ("mean", "average as one of"),
        (None, "gives no number"),
        (0, "positive"),
        (-1.0, "positive"),
        (True, "positive"),
        (float("nan"), "positive"),
        (torch.tensor([1, 2]), "one value"),
        (torch.tensor(True), "one value"),
        (torch.tensor(3, device="meta"), "device"),
    ],
    ids=str,
)
def test_other_averages_are_refused(average: Any, word: str) -> None:
    with pytest.raises(InputError, match=word):
        per_sample(torch.ones(3, 2), None, average)


# ---- pruning ----------------------------------------------------------------------------------------------------

SCORES = torch.tensor([0.1, 0.2, 0.3, 5.0, 0.2])


def full_gradient(net: nn.Module, average: Any) -> Tensor:
    return gradient(net, per_sample(token_losses(net), LABELS != -100, average).loss.mean())


def mean_over_plans(net: nn.Module, average: Any) -> Tensor:
    """The mean over the plan times its weights, which have mean 1 on it, as ``update`` returns it."""

    def losses_of(rows: Tensor, weights: Tensor) -> Tensor:
        loss = per_sample(token_losses(net, rows), LABELS[rows] != -100, average).loss
        return loss * BATCH / len(rows) if average == 16 else loss

    return expected_gradient(net, losses_of, SCORES)


@pytest.mark.parametrize("average", ["sample", "all", 16])
def test_pruning_is_unbiased(average: Any) -> None:
    net = model()
    torch.testing.assert_close(mean_over_plans(net, average), full_gradient(net, average), rtol=1e-10, atol=1e-15)


def test_the_mean_over_the_batch_is_unbiased_only_approximately() -> None:
    net = model()
    got, expected = mean_over_plans(net, "batch"), full_gradient(net, "batch")
    assert not torch.allclose(got, expected, rtol=1e-3)
    assert F.cosine_similarity(got, expected, dim=0) > 0.9


@pytest.mark.parametrize("average", ["batch", "sum"])
def test_scores_under_any_average_are_those_of_the_samples(average: Any) -> None:
    net = model()
    data = infobatch.InfoBatch(range(BATCH), num_epochs=8)
    expected = per_sample(token_losses(net), LABELS != -100).score.float()
    train(data, 2, lambda rows: per_sample(token_losses(net, rows), LABELS[rows] != -100, average))
    torch.testing.assert_close(data.scores, expected, equal_nan=True)


def test_a_sieve_looks_with_own_means_and_trains_on_the_mean_over_the_batch() -> None:
    net, data = model(), infobatch.InfoBatch(range(BATCH), num_epochs=8)
    small = model()
    look = Proxy(small, losses=lambda net, rows: per_sample(token_losses(net, rows), LABELS[rows] != -100).loss)
    sieve = Sieve(look, hardest(keep=0.5))
    known = per_sample(token_losses(net), LABELS != -100).score.float()
    for batch in infobatch.DataLoader(data, batch_size=4):
        rows, _ = sieve(batch)
        found = per_sample(token_losses(net, rows), LABELS[rows] != -100, "batch")
        loss, score = sieve.expand(found.loss, score=found.score)
        data.update(loss, score=score).backward()
    seen = data.scores.isfinite()
    assert int(seen.sum()) >= 2
    torch.testing.assert_close(data.scores[seen], known[seen])
