"""Masked images: one reconstruction loss per image, and scores that do not depend on one mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lots import lot
from plans import expected_gradient, gradient
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import infobatch
from infobatch import InputError, methods, variations
from infobatch.adapters import masked_image_loss

BATCH, CHANNELS, HEIGHT, WIDTH, PATCH = 5, 3, 8, 12, 4
PATCHES, VALUES = 6, PATCH * PATCH * CHANNELS
IMAGES = torch.rand(BATCH, CHANNELS, HEIGHT, WIDTH, generator=lot(), dtype=torch.float64)
LOGITS = torch.randn(BATCH, PATCHES, VALUES, generator=lot(1), dtype=torch.float64)
MASK = (torch.rand(BATCH, PATCHES, generator=lot(2)).argsort(1) < 4).double()


def literal(logits: Tensor, mask: Tensor, images: Tensor, norm: bool) -> Tensor:
    """Patch by patch, pixel by pixel."""
    found = []
    for image in range(len(images)):
        errors = []
        for patch in range(logits.shape[1]):
            row, column = divmod(patch, images.shape[3] // PATCH)
            window = images[image, :, row * PATCH : (row + 1) * PATCH, column * PATCH : (column + 1) * PATCH]
            pixels = [window[c, y, x] for y in range(PATCH) for x in range(PATCH) for c in range(CHANNELS)]
            target = torch.stack(pixels)
            if norm:
                target = (target - target.mean()) / (target.var() + 1e-6).sqrt()
            if mask[image, patch]:
                errors.append((logits[image, patch] - target).square().mean())
        found.append(torch.stack(errors).mean() if errors else torch.tensor(torch.nan, dtype=logits.dtype))
    return torch.stack(found)


@pytest.mark.parametrize("norm", [False, True])
def test_each_image_literally(norm: bool) -> None:
    mask = MASK.clone()
    mask[1] = 0
    mask[2, 0] = 1 - mask[2, 0]  # unequal counts
    logits = LOGITS.clone().requires_grad_()
    loss, score = masked_image_loss(logits, mask, IMAGES, norm_pix_loss=norm)
    expected = literal(LOGITS, mask, IMAGES, norm)
    assert expected.isnan().tolist() == [False, True, False, False, False]
    torch.testing.assert_close(score, expected, equal_nan=True)
    torch.testing.assert_close(loss.detach(), expected.nan_to_num(0))
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())
    assert bool((logits.grad[mask == 0] == 0).all())


@pytest.mark.parametrize("norm", [False, True])
def test_the_mean_is_the_loss_of_the_model_with_its_gradient(norm: bool) -> None:
    transformers = pytest.importorskip("transformers")
    small: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    small |= {"num_attention_heads": 2, "decoder_hidden_size": 16, "decoder_intermediate_size": 16}
    small |= {"decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2, "image_size": 8, "patch_size": PATCH}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(**small, norm_pix_loss=norm)).double()
        images = IMAGES[..., :8]
        out = model(images)
    loss, score = masked_image_loss(out.logits, out.mask, images, norm_pix_loss=model.config.norm_pix_loss)
    torch.testing.assert_close(loss.mean(), out.loss, rtol=1e-12, atol=0.0)
    assert len(score.unique()) == BATCH
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    mine, theirs = (
        torch.autograd.grad(one, parameters, retain_graph=True, allow_unused=True) for one in (loss.mean(), out.loss)
    )
    compared = 0
    for one, other in zip(mine, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-12)
            compared += 1
    assert compared > 20


# ---- the score -------------------------------------------------------------------------------------------------


def ranks(values: Tensor) -> Tensor:
    return values.argsort().argsort().double()


def rank_correlation(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([ranks(a), ranks(b)]))[0, 1])


def run_with_random_masks(train: infobatch.Pruned, errors: Tensor, num_epochs: int) -> None:
    """A model that is done learning: what differs from epoch to epoch is which patches are masked."""
    side, noise, weight = 4, lot(4), nn.Parameter(torch.ones(()))
    images = torch.zeros(len(errors), 1, side * 2, side * 2)
    logits = errors.sqrt()[..., None].expand(-1, -1, 4)
    for _ in range(num_epochs):
        for (at,) in infobatch.DataLoader(train, batch_size=50):
            mask = torch.rand(len(at), side * side, generator=noise).argsort(1) < 12
            loss, score = masked_image_loss(weight * logits[at], mask, images[at])
            train.update(loss, score=score).backward()  # type: ignore[no-untyped-call]
        assert train.epoch


def test_averaged_scores_rank_images_rather_than_masks() -> None:
    """Over ten epochs; the truth is the expected loss of each image over all masks."""
    size = 400
    level = torch.rand(size, 1, generator=lot(5)) * 0.2 + 1.0
    errors = level * -torch.rand(size, 16, generator=lot(6)).clamp(min=1e-6).log()  # few patches make up the loss
    errors *= (level / errors.mean(1, keepdim=True)) ** 0.9  # so that images are nearly alike
    truth = errors.mean(1)
    found, misplaced = [], []
    for method in (methods.infobatch(0.5, delta=1), variations.averaged(methods.infobatch(0.5, delta=1))):
        train = infobatch.Pruned(TensorDataset(torch.arange(size)), method, 11)
        run_with_random_masks(train, errors, 10)
        scores = train._scores.memory.get("smooth", train.scores)
        found.append(rank_correlation(scores, truth))
        pruned = train.plan().table == 0
        misplaced.append(float((truth[pruned] > truth.mean()).float().mean()))
    assert found[0] < 0.4
    assert found[1] > 0.6
    assert misplaced[1] < misplaced[0] - 0.1


def test_the_average_is_the_mean_first_and_moves_then() -> None:
    """Literally, and only where a score came."""
    train = infobatch.Pruned(TensorDataset(torch.arange(4)), variations.averaged(methods.infobatch(), 0.4), 6)
    given = torch.tensor([[4.0, 1.0, torch.nan, 2.0], [2.0, 2.0, 6.0, torch.nan], [9.0, 3.0, 2.0, 5.0]])
    seen: list[list[float]] = [[], [], [], []]
    weight = nn.Parameter(torch.ones(4))
    for epoch in range(3):
        for (at,) in infobatch.DataLoader(train, batch_size=4):
            score = given[epoch, at]
            train.update(weight[at], score=score).backward()  # type: ignore[no-untyped-call]
            for index in at[score.isfinite()].tolist():
                seen[index].append(float(given[epoch, index]))
    assert train.epoch == 3
    expected = []
    for values in seen:
        mean = values[0]
        for count, value in enumerate(values[1:], 2):
            mean += max(0.4, 1 / count) * (value - mean)
        expected.append(mean)
    torch.testing.assert_close(train._scores.memory["smooth"], torch.tensor(expected))


# ---- plans, both engines, compiled, in half precision ----------------------------------------------------------------


def test_unbiased_over_all_plans() -> None:
    """Whatever is masked: the masks are those of the samples."""
    scores = torch.tensor([0.1, 5.0, 0.2, 0.3, 4.0, 0.1, 0.2])
    images = torch.rand(7, 1, 4, 4, generator=lot(7))
    masks = torch.rand(7, 4, generator=lot(8)).argsort(1) < 3
    net = nn.Linear(16, 16)

    def losses_of(indices: Tensor, weights: Tensor) -> Tensor:
        del weights
        logits = net(images[indices].flatten(1)).view(-1, 4, 4)
        return masked_image_loss(logits, masks[indices], images[indices]).loss

    full = gradient(net, losses_of(torch.arange(7), scores).mean())
    torch.testing.assert_close(expected_gradient(net, losses_of, scores), full, rtol=1e-5, atol=1e-6)


def test_both_engines() -> None:
    images = torch.rand(60, 1, 4, 4, generator=lot(9))
    train = infobatch.Pruned(TensorDataset(images), variations.averaged(methods.infobatch()), 6)
    net, noise = nn.Linear(16, 16), lot(10)

    def losses(small: nn.Module, batch: Any) -> Tensor:
        x, mask = batch
        return masked_image_loss(small(x.flatten(1)).view(-1, 4, 4), mask, x).loss

    sieve = infobatch.Sieve(infobatch.sieve.Proxy(nn.Linear(16, 16), losses=losses), infobatch.sieve.hardest(keep=0.5))
    for _ in range(3):
        for (x,) in infobatch.DataLoader(train, batch_size=20):
            x, mask, _ = sieve(x, torch.rand(len(x), 4, generator=noise).argsort(1) < 3)
            loss, score = masked_image_loss(net(x.flatten(1)).view(-1, 4, 4), mask, x)
            loss, score = sieve.expand(loss, score=score)
            train.update(loss, score=score).backward()  # type: ignore[no-untyped-call]
    assert bool(train.scores.isfinite().any())
    assert train.epoch == 3


@pytest.mark.parametrize("norm", [False, True])
def test_compiled_and_eager_agree(norm: bool) -> None:
    def call(logits: Tensor) -> tuple[Tensor, Tensor]:
        return masked_image_loss(logits, MASK, IMAGES, norm_pix_loss=norm)

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="eager")
    for mine, other in zip(compiled(LOGITS), call(LOGITS), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    net = nn.Linear(4, VALUES)
    with torch.autocast("cpu", dtype=dtype):
        logits = net(torch.ones(BATCH, PATCHES, 4))
        assert logits.dtype == dtype
        loss, score = masked_image_loss(logits, MASK, IMAGES.float(), norm_pix_loss=True)
        loss.mean().backward()
    assert loss.dtype == score.dtype == torch.float32
    assert net.weight.grad is not None
    assert bool(net.weight.grad.isfinite().all())


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"logits": LOGITS.flatten(1)}, "logits"),
        ({"logits": [1.0]}, "logits"),
        ({"logits": LOGITS.long()}, "floating-point"),
        ({"logits": LOGITS[:, :5]}, "class token"),
        ({"logits": LOGITS[..., :47]}, "patch_size"),
        ({"logits": LOGITS[..., :2]}, "patch_size"),
        ({"logits": LOGITS[:3]}, "patches"),
        ({"mask": MASK[:, :5]}, "mask"),
        ({"mask": MASK[0]}, "mask"),
        ({"mask": None}, "mask"),
        ({"pixel_values": IMAGES[0]}, "pixel_values"),
        ({"pixel_values": (IMAGES * 255).byte()}, "pixel_values"),
        ({"pixel_values": IMAGES[..., :10]}, "patch_size"),
        ({"pixel_values": IMAGES[:0], "logits": LOGITS[:0], "mask": MASK[:0]}, "not empty"),
    ],
)
def test_wrong_arguments_are_refused(change: dict[str, Any], word: str) -> None:
    good: dict[str, Any] = {"logits": LOGITS, "mask": MASK, "pixel_values": IMAGES}
    masked_image_loss(**good)
    with pytest.raises(InputError, match=word):
        masked_image_loss(**{**good, **change})


@pytest.mark.parametrize("share", [0, 1.5, "a"])
def test_a_share_that_averages_nothing_is_refused(share: Any) -> None:
    with pytest.raises(InputError, match="share"):
        variations.averaged(methods.infobatch(), share)
    with pytest.raises(InputError, match="second"):
        variations.averaged(variations.averaged(methods.infobatch()))
