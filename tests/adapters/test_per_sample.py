"""One loss per sample out of losses per token or pixel, whatever is masked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lots import lot
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import infobatch
from infobatch import InputError, per_sample

LOSSES = torch.rand(5, 3, 4, generator=lot())
MASK = torch.rand(5, 3, 4, generator=lot(1)) < 0.5
MASK[0] = True
MASK[1] = False


def literal(losses: Tensor, mask: Tensor) -> Tensor:
    """Sample by sample; NaN where there is nothing to average."""
    return torch.stack([one[valid].mean() for one, valid in zip(losses, mask, strict=True)])


@pytest.mark.parametrize("shape", [(5,), (5, 12), (5, 3, 4), (5, 3, 2, 2)], ids=str)
def test_the_mean_over_all_dimensions_but_the_first(shape: tuple[int, ...]) -> None:
    losses = torch.rand(shape, generator=lot())
    loss, score = per_sample(losses)
    torch.testing.assert_close(loss, losses.reshape(5, -1).mean(1))
    assert torch.equal(loss, score)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32], ids=str)
def test_the_mean_over_the_valid_elements(dtype: torch.dtype) -> None:
    loss, score = per_sample(LOSSES, MASK.to(dtype))
    expected = literal(LOSSES, MASK)
    assert expected.isnan().tolist() == [False, True, False, False, False]
    torch.testing.assert_close(score, expected, equal_nan=True)
    torch.testing.assert_close(loss, expected.nan_to_num(0))


def test_one_element_per_sample() -> None:
    loss, score = per_sample(torch.tensor([1.0, 2.0]), torch.tensor([True, False]))
    assert loss.tolist() == [1, 0]
    assert score.nan_to_num(-1).tolist() == [1, -1]


def test_padding_does_not_count() -> None:
    """Four tokens that are padded to twenty have the loss of four tokens."""
    short = torch.rand(2, 4, generator=lot())
    padded = F.pad(short, (0, 16))
    torch.testing.assert_close(per_sample(padded, torch.arange(20) < torch.tensor([[4], [4]])).loss, short.mean(1))
    assert not torch.allclose(padded.mean(1), short.mean(1))


@pytest.mark.parametrize("shape", [(1, 3, 4), (5, 1, 1), (5, 3, 1), (5, 1, 4), (1, 1, 1)], ids=str)
def test_a_mask_is_broadcast_along_dimensions_of_one(shape: tuple[int, ...]) -> None:
    mask = torch.rand(shape, generator=lot(2)) < 0.7
    whole = mask.expand(5, 3, 4)
    torch.testing.assert_close(per_sample(LOSSES, mask).score, literal(LOSSES, whole), equal_nan=True)


def test_the_gradient_is_that_of_the_means_and_0_without_a_valid_element() -> None:
    mine, other = LOSSES.clone().requires_grad_(), LOSSES.clone().requires_grad_()
    loss, score = per_sample(mine, MASK)
    assert loss.requires_grad
    assert not score.requires_grad
    loss.sum().backward()
    literal(other, MASK)[[0, 2, 3, 4]].sum().backward()
    assert mine.grad is not None
    assert other.grad is not None
    torch.testing.assert_close(mine.grad, other.grad)
    assert bool((mine.grad[1] == 0).all())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_valid_may_be_anything(bad: float) -> None:
    """The loss at padding may be undefined, and must not reach loss or gradient."""
    losses = LOSSES.masked_fill(~MASK, bad).requires_grad_()
    loss, _ = per_sample(losses, MASK)
    torch.testing.assert_close(loss.detach(), literal(LOSSES, MASK).nan_to_num(0))
    loss.sum().backward()
    assert losses.grad is not None
    assert bool(losses.grad.isfinite().all())


def test_a_valid_loss_that_is_nan_stays_one() -> None:
    loss, score = per_sample(LOSSES.index_fill(0, torch.tensor([2]), torch.nan), MASK)
    assert loss.isnan().tolist() == [False, False, True, False, False]
    assert score.isnan().tolist() == [False, True, True, False, False]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_half_precision_is_summed_in_single(dtype: torch.dtype, masked: bool) -> None:
    losses = torch.full((2, 100_000), 3.0, dtype=dtype)  # their sum is beyond float16
    loss, _ = per_sample(losses, torch.ones(2, 1) if masked else None)
    assert loss.dtype == torch.float32
    assert loss.tolist() == [3, 3]


@pytest.mark.parametrize(
    ("losses", "mask", "word"),
    [
        (1.0, None, "tensor"),
        (torch.tensor(1.0), None, "reduction"),
        (torch.ones(3, 2, dtype=torch.int64), None, "floating-point"),
        (torch.ones(0, 2), None, "element"),
        (torch.ones(3, 0), None, "element"),
        (torch.ones(3, 2), torch.ones(2, 2), "mask"),
        (torch.ones(3, 3), torch.ones(3), "mask"),  # of samples or of elements?
        (torch.ones(3, 2), [1, 0], "mask"),
        (torch.ones(3, 2), torch.ones(3, 2, 1), "mask"),
    ],
)
def test_wrong_arguments_are_refused(losses: Any, mask: Any, word: str) -> None:
    with pytest.raises(InputError, match=word):
        per_sample(losses, mask)


def test_masked_language_models_prune_no_sentence_for_having_no_masked_token() -> None:
    """The case it is for: every fifth sentence has no masked token, and nothing of it is known."""
    data = TensorDataset(torch.arange(100))
    train = infobatch.InfoBatch(data, 8)
    weight = torch.nn.Parameter(torch.ones(1))
    silent = torch.arange(100) % 5 == 0
    for _ in range(3):
        for (at,) in infobatch.DataLoader(train, batch_size=10):
            tokens = torch.arange(6) * 0.1 + (at[:, None] % 7 + 1)
            mask = (torch.arange(6) % 2 == 0) & ~silent[at][:, None]
            loss, score = per_sample(weight * tokens, mask)
            train.update(loss, score=score).backward()
        assert bool((train.plan().table[silent] == 1).all())
    assert torch.equal(train.scores.isnan(), silent)
    assert weight.grad is not None
    assert bool(weight.grad.isfinite().all())
    assert train.history[2].kept < 100
