"""One loss per image from pixels: against models of transformers, and mmsegmentation's rule written out."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from lots import lot
from plans import expected_gradient, gradient, train
from torch import Tensor, nn
from torch.nn import functional as F

import infobatch
from infobatch import InputError, Sieve
from infobatch.adapters import segmentation_loss
from infobatch.sieve import Proxy, hardest

BATCH, CLASSES, SIZE, IGNORED = 5, 4, 12, 255


def make_labels() -> Tensor:
    labels = torch.randint(0, CLASSES, (BATCH, SIZE, SIZE), generator=lot())
    shares = torch.tensor([0.0, 0.9, 1.0, 0.3, 0.5])  # of ignored pixels
    ignored = torch.rand(labels.shape, generator=lot(1)) < shares[:, None, None]
    return labels.masked_fill(ignored, IGNORED)


LABELS = make_labels()
IMAGES = torch.randn(BATCH, 3, SIZE, SIZE, generator=lot(2), dtype=torch.float64)
WEIGHTS = torch.tensor([0.5, 2.0, 0.0, 1.5], dtype=torch.float64)


class Net(nn.Module):
    """Two heads at other sizes than the labels."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Conv2d(3, 6, 3, 2, 1)
        self.heads = nn.ModuleList([nn.Conv2d(6, CLASSES, 1), nn.Conv2d(6, CLASSES, 3, 3)])
        self.double()

    def forward(self, x: Tensor) -> list[Tensor]:
        return [head(self.body(x)) for head in self.heads]


def resized(logits: Tensor) -> Tensor:
    return F.interpolate(logits, size=(SIZE, SIZE), mode="bilinear", align_corners=False)


def literal_scores(heads: list[Tensor], weights: list[float], class_weights: Tensor | None = None) -> Tensor:
    """Torch's own mean for one image after the other; NaN without a valid pixel."""
    found = []
    for i in range(BATCH):
        means = [
            F.cross_entropy(resized(x)[i : i + 1], LABELS[i : i + 1], class_weights, ignore_index=IGNORED)
            for x in heads
        ]
        found.append(sum(w * mean for w, mean in zip(weights, means, strict=True)))
    return torch.stack([torch.as_tensor(one) for one in found]).detach()


def literal_loss(heads: list[Tensor], weights: list[float], average: Any) -> Tensor:
    total: Any = 0
    for logits, weight in zip(heads, weights, strict=True):
        losses = F.cross_entropy(resized(logits), LABELS, ignore_index=IGNORED, reduction="none")
        if average == "batch":
            mean = F.cross_entropy(resized(logits), LABELS, ignore_index=IGNORED)
        elif average == "all":
            mean = losses.mean()  # mmsegmentation's weight_reduce_loss with avg_non_ignore=False
        elif average == "sum":
            mean = losses.sum()
        elif average == "sample":
            mean = literal_scores_with_gradient(losses).sum() / BATCH
        else:
            mean = losses.sum() / average
        total = total + weight * mean
    return torch.as_tensor(total)


def literal_scores_with_gradient(losses: Tensor) -> Tensor:
    valid = LABELS != IGNORED
    return torch.stack([one[mask].mean() for one, mask in zip(losses, valid, strict=True) if mask.any()])


@pytest.mark.parametrize("average", ["sample", "batch", "all", "sum", 300, torch.tensor(300)], ids=str)
def test_the_heads_are_averaged_separately_and_summed(average: Any) -> None:
    net, weights = Net(), [1.0, 0.4]
    heads = net(IMAGES)
    loss, score = segmentation_loss(heads, LABELS, weights, average=average)
    expected = literal_loss(heads, weights, average)
    torch.testing.assert_close(loss.mean(), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient(net, loss.mean()), gradient(net, literal_loss(net(IMAGES), weights, average)))
    torch.testing.assert_close(score, literal_scores(heads, weights), rtol=1e-12, atol=0, equal_nan=True)
    assert loss[2] == 0
    assert score.isnan().tolist() == [False, False, True, False, False]
    assert not score.requires_grad


@pytest.mark.parametrize("average", ["batch", "sample"])
def test_class_weights_are_those_of_torch(average: Any) -> None:
    net = Net()
    logits = net(IMAGES)[0]
    loss, score = segmentation_loss(logits, LABELS, class_weights=WEIGHTS, average=average)
    scores = literal_scores([logits], [1.0], WEIGHTS)
    torch.testing.assert_close(score, scores, rtol=1e-12, atol=0, equal_nan=True)
    if average == "batch":
        expected = F.cross_entropy(resized(logits), LABELS, WEIGHTS, ignore_index=IGNORED)
    else:
        expected = scores.nan_to_num(0).mean()
    torch.testing.assert_close(loss.mean(), expected, rtol=1e-12, atol=0)


def test_an_image_of_classes_without_weight_is_unknown() -> None:
    labels = torch.full((2, 4, 4), 2)
    labels[1] = 1
    logits = torch.rand(2, CLASSES, 4, 4, generator=lot(), requires_grad=True)
    loss, score = segmentation_loss(logits, labels, class_weights=WEIGHTS)
    assert loss[0] == 0
    assert score.isnan().tolist() == [True, False]
    loss.mean().backward()
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
@pytest.mark.parametrize("ignored", [255, 0])
def test_labels_may_be_any_integers(dtype: torch.dtype, ignored: int) -> None:
    logits = Net()(IMAGES)[0]
    loss, _ = segmentation_loss(logits, LABELS.clamp(max=3).to(dtype), ignore_index=ignored)
    expected = F.cross_entropy(resized(logits), LABELS.clamp(max=3), ignore_index=ignored)
    torch.testing.assert_close(loss.mean(), expected, rtol=1e-12, atol=0)


def test_a_batch_without_a_valid_pixel_changes_nothing() -> None:
    logits = torch.rand(2, CLASSES, 4, 4, generator=lot(), requires_grad=True)
    loss, score = segmentation_loss(logits, torch.full((2, 4, 4), IGNORED))
    assert loss.tolist() == [0, 0]
    assert bool(score.isnan().all())
    loss.mean().backward()
    assert logits.grad is not None
    assert not logits.grad.any()


# ---- frameworks -------------------------------------------------------------------------------------------------


def outputs_of(modules: list[nn.Module]) -> list[Tensor]:
    """Return a list that is filled with what each of the modules returns."""
    found: list[Tensor] = []
    for module in modules:
        module.register_forward_hook(lambda _module, _args, output: found.append(output))
    return found


def assert_like_the_model(model: Any, heads: list[Tensor], weights: list[float]) -> None:
    """The model's own loss and gradients, from its heads' logits."""
    images = torch.randn(BATCH, 3, 64, 64, generator=lot(2), dtype=torch.float64)
    labels = F.interpolate(LABELS[:, None].float(), (64, 64)).long().squeeze(1)
    outputs = model(pixel_values=images, labels=labels)
    assert len(heads) == len(weights)
    loss, score = segmentation_loss(heads, labels, weights)
    assert score.isnan().tolist() == [False, False, True, False, False]
    torch.testing.assert_close(loss.mean(), outputs.loss, rtol=1e-12, atol=0)
    parameters = [one for one in model.parameters() if one.requires_grad]
    ours = torch.autograd.grad(loss.mean(), parameters, retain_graph=True, allow_unused=True)
    for own, other in zip(ours, torch.autograd.grad(outputs.loss, parameters, allow_unused=True), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-8, atol=1e-14)


def test_upernet_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_sizes": [4, 6, 8, 10], "depths": [1, 1, 1, 1], "num_stages": 4}
    backbone = transformers.ConvNextConfig(**sizes, out_features=["stage1", "stage2", "stage3", "stage4"])
    config = transformers.UperNetConfig(
        backbone_config=backbone, hidden_size=8, auxiliary_channels=8, auxiliary_in_channels=8, num_labels=CLASSES
    )
    torch.manual_seed(0)
    model = transformers.UperNetForSemanticSegmentation(config).double().train()
    heads = outputs_of([model.decode_head, model.auxiliary_head])
    assert_like_the_model(model, heads, [1.0, config.auxiliary_loss_weight])


def test_segformer_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.SegformerConfig(
        hidden_sizes=[4, 4, 8, 8],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 1, 2, 2],
        decoder_hidden_size=8,
        num_labels=CLASSES,
        hidden_dropout_prob=0.0,
        classifier_dropout_prob=0.0,
        drop_path_rate=0.0,
    )
    torch.manual_seed(0)
    model = transformers.SegformerForSemanticSegmentation(config).double().train()
    assert_like_the_model(model, outputs_of([model.decode_head]), [1.0])


# ---- precision, graphs, pruning ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_single(dtype: torch.dtype) -> None:
    labels = torch.zeros(2, 300, 300, dtype=torch.int64)
    logits = torch.zeros(2, CLASSES, 300, 300, dtype=dtype)
    loss, score = segmentation_loss(logits, labels, average="sum")
    assert loss.dtype == score.dtype == torch.float32
    torch.testing.assert_close(loss, torch.full((2,), 2 * 90_000 * math.log(4)))


def test_under_autocast() -> None:
    net = Net().float()
    with torch.autocast("cpu", torch.bfloat16):
        loss, score = segmentation_loss(net(IMAGES.float()), LABELS, [1.0, 0.4])
    assert loss.dtype == score.dtype == torch.float32
    expected = segmentation_loss(net(IMAGES.float()), LABELS, [1.0, 0.4])
    torch.testing.assert_close(score, expected.score, rtol=0.05, atol=0, equal_nan=True)
    loss.mean().backward()


@pytest.mark.parametrize("class_weights", [None, WEIGHTS])
def test_it_compiles_to_one_graph(class_weights: Tensor | None) -> None:
    heads = [one.detach() for one in Net()(IMAGES)]
    compiled = torch.compile(segmentation_loss, fullgraph=True, backend="eager")
    got = compiled(heads, LABELS, [1.0, 0.4], class_weights=class_weights)
    expected = segmentation_loss(heads, LABELS, [1.0, 0.4], class_weights=class_weights)
    torch.testing.assert_close(got.loss, expected.loss)
    torch.testing.assert_close(got.score, expected.score, equal_nan=True)


SCORES = torch.tensor([0.1, 0.2, 0.3, 5.0, 0.2])


@pytest.mark.parametrize("average", ["sample", "all"])
def test_pruning_is_unbiased(average: Any) -> None:
    net = Net()

    def losses_of(rows: Tensor, weights: Tensor) -> Tensor:
        return segmentation_loss(net(IMAGES[rows]), LABELS[rows], [1.0, 0.4], average=average).loss

    full = gradient(net, segmentation_loss(net(IMAGES), LABELS, [1.0, 0.4], average=average).loss.mean())
    torch.testing.assert_close(expected_gradient(net, losses_of, SCORES), full, rtol=1e-10, atol=1e-15)


def test_scores_do_not_depend_on_the_batch() -> None:
    net, data = Net(), infobatch.InfoBatch(range(BATCH), num_epochs=8)
    train(data, 2, lambda rows: segmentation_loss(net(IMAGES[rows]), LABELS[rows], [1.0, 0.4]))
    expected = literal_scores(net(IMAGES), [1.0, 0.4]).float()
    torch.testing.assert_close(data.scores, expected, equal_nan=True)


def test_a_sieve_chooses_images() -> None:
    net, small, data = Net(), Net(), infobatch.InfoBatch(range(BATCH), num_epochs=8)

    def losses(net: nn.Module, rows: Tensor) -> Tensor:
        return segmentation_loss(net(IMAGES[rows])[0], LABELS[rows], average="sample").loss

    sieve = Sieve(Proxy(small, losses=losses), hardest(keep=0.5))
    for batch in infobatch.DataLoader(data, batch_size=4):
        rows, _ = sieve(batch)
        found = segmentation_loss(net(IMAGES[rows]), LABELS[rows], [1.0, 0.4])
        loss, score = sieve.expand(found.loss, score=found.score)
        data.update(loss, score=score).backward()
    seen = data.scores.isfinite()
    assert 0 < int(seen.sum()) < BATCH
    torch.testing.assert_close(data.scores[seen], literal_scores(net(IMAGES), [1.0, 0.4]).float()[seen])


GOOD: dict[str, Any] = {"logits": torch.zeros(2, 3, 4, 4), "labels": torch.zeros(2, 4, 4, dtype=torch.int64)}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"logits": "x"}, "logits"),
        ({"logits": []}, "logits"),
        ({"logits": [1.0]}, "logits of shape"),
        ({"logits": torch.zeros(2, 3, 4)}, "logits of shape"),
        ({"logits": torch.zeros(2, 3, 4, 4).long()}, "floating-point logits"),
        ({"logits": torch.zeros(2, 1, 4, 4)}, "binary_cross_entropy"),
        ({"logits": [GOOD["logits"]] * 2}, "head_weights"),
        ({"head_weights": (1.0, 0.4)}, "head_weights"),
        ({"head_weights": ("a",)}, "head_weights"),
        ({"labels": torch.zeros(2, 1, 4, 4).long()}, "squeeze"),
        ({"labels": torch.zeros(3, 4, 4).long()}, "labels"),
        ({"labels": torch.zeros(2, 4, 4)}, r"labels\.long\(\)"),
        ({"labels": torch.zeros(2, 4, 4, dtype=torch.bool)}, r"labels\.long\(\)"),
        ({"labels": torch.zeros(2, 0, 4).long()}, "labels"),
        ({"labels": torch.zeros(2, 4, 4, device="meta").long()}, "on meta"),
        ({"class_weights": torch.ones(4)}, "class_weights"),
        ({"class_weights": [1.0, 1.0, 1.0]}, "class_weights"),
        ({"class_weights": torch.ones(3).long()}, "class_weights"),
        ({"average": "mean"}, "average"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(change: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        segmentation_loss(**{**GOOD, **change})
