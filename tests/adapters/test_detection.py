"""Losses of detectors per image: dense ones, and those that predict a set."""

from __future__ import annotations

from typing import Any

import plans
import pytest
import torch
from lots import lot
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import infobatch
from infobatch import InputError
from infobatch.adapters import per_image, set_prediction_loss

COUNTS = torch.tensor([2, 0, 3, 1])
OF = torch.tensor([2, 0, 3, 2, 0, 2])  # boxes are not in the order of images
ANCHORS = 7


class Dense(nn.Module):
    """A dense detector: of each anchor a box, a class and an objectness; the first anchors are those with an object."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 6)

    def parts(self, x: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return box losses of positive anchors, class and objectness losses of all, and whose the boxes are."""
        out = self.net(x)
        positive = torch.arange(x.shape[1]) < counts[:, None]
        image, anchor = positive.nonzero().unbind(1)
        boxes = F.smooth_l1_loss(out[..., :4][image, anchor], x[image, anchor, :1].expand(-1, 4), reduction="none")
        classes = F.binary_cross_entropy_with_logits(out[..., 4:], positive[..., None] * x[..., :2], reduction="none")
        return boxes, classes, image

    def framework(self, x: Tensor, counts: Tensor) -> Tensor:
        """The loss of the whole batch, as a detector writes it."""
        boxes, classes, _ = self.parts(x, counts)
        positives = max(int(counts.sum()), 1)
        return 2.0 * boxes.sum() / positives + classes.sum() / positives + classes.mean()

    def adapted(
        self, x: Tensor, counts: Tensor, normalizer: float | None = None
    ) -> tuple[Tensor, Tensor]:  # as a user would write it
        boxes, classes, image = self.parts(x, counts)
        box = per_image(boxes, counts, image, normalizer=normalizer)
        cls = per_image(classes, counts, normalizer=normalizer)
        cells = per_image(classes, torch.full_like(counts, classes[0].numel()))
        return 2.0 * box.loss + cls.loss + cells.loss, 2.0 * box.score + cls.score + cells.score


@pytest.mark.parametrize("counts", [COUNTS, torch.zeros_like(COUNTS)], ids=["objects", "no object at all"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_mean_is_the_loss_of_the_framework(counts: Tensor, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net, x = Dense().to(dtype), torch.rand(4, ANCHORS, 3, dtype=dtype)
    loss, _ = net.adapted(x, counts)
    expected = net.framework(x, counts)
    torch.testing.assert_close(loss.mean(), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(plans.gradient(net, loss.mean()), plans.gradient(net, expected))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_losses_of_boxes_as_summed_image_by_image(dtype: torch.dtype) -> None:
    losses = torch.rand(6, 4, generator=lot()).to(dtype)
    loss, score = per_image(losses.requires_grad_(), COUNTS, OF)
    assert loss.dtype == score.dtype == torch.float32
    assert not score.requires_grad
    for image, count in enumerate(COUNTS.tolist()):
        total = sum(
            float(row.detach().float().sum()) for row, of in zip(losses, OF.tolist(), strict=True) if of == image
        )
        assert loss[image].item() == pytest.approx(total * 4 / 6)
        assert score[image].item() == pytest.approx(total / max(count, 1))
    assert score[1] == 0  # known


def test_the_score_is_that_of_the_image_alone() -> None:
    net, x = Dense(), torch.rand(4, ANCHORS, 3)
    _, score = net.adapted(x, COUNTS)
    alone = [net.adapted(x[at : at + 1], COUNTS[at : at + 1])[1] for at in range(4)]
    torch.testing.assert_close(score, torch.cat(alone))


def test_a_normalizer_of_the_framework() -> None:
    losses = torch.rand(6, generator=lot())
    for normalizer in (8.0, torch.tensor(8.0), torch.tensor([8])):
        torch.testing.assert_close(per_image(losses, COUNTS, OF, normalizer=normalizer).loss.mean(), losses.sum() / 8)
    scores = torch.tensor([0.5, 0.25, 3.0, 0.0])  # sums of target scores, as in YOLOv8
    torch.testing.assert_close(per_image(losses, scores, OF).loss.mean(), losses.sum() / 3.75)


def test_with_a_fixed_normalizer_the_expected_gradient_is_exact() -> None:
    torch.manual_seed(0)
    net, x, counts = Dense(), torch.rand(8, ANCHORS, 3), torch.arange(8) % 4
    scores = net.adapted(x, counts)[1]

    def fixed(indices: Tensor, weights: Tensor) -> Tensor:
        return net.adapted(x[indices], counts[indices], normalizer=1.5 * len(indices))[0]

    def by_batch(indices: Tensor, weights: Tensor) -> Tensor:
        return net.adapted(x[indices], counts[indices])[0]

    everything = torch.arange(8), torch.ones(8)
    expected = plans.gradient(net, fixed(*everything).mean())
    torch.testing.assert_close(expected, plans.gradient(net, net.framework(x, counts)))  # 1.5 is their mean
    torch.testing.assert_close(plans.expected_gradient(net, fixed, scores), expected)
    assert not torch.allclose(plans.expected_gradient(net, by_batch, scores), expected, rtol=1e-3)


def test_both_engines_with_a_dense_detector() -> None:
    torch.manual_seed(0)
    net, small = Dense(), Dense()
    x, counts = torch.rand(64, ANCHORS, 3), torch.arange(64) % 4
    train = infobatch.InfoBatch(TensorDataset(x, counts), 8)
    look = infobatch.sieve.Proxy(small, losses=lambda net, batch: net.adapted(*batch)[0])
    sieve = infobatch.Sieve(look, infobatch.sieve.hardest(keep=0.5))
    for _ in range(3):
        for batch in infobatch.DataLoader(train, batch_size=16):
            (rows, number), _ = sieve(tuple(batch))
            loss, score = sieve.expand(net.adapted(rows, number)[0])
            train.update(loss, score=score).backward()
    assert net.net.weight.grad is not None
    assert bool(net.net.weight.grad.isfinite().all())

    alone = infobatch.InfoBatch(TensorDataset(torch.arange(64)), 8)
    for _ in range(2):
        for (indices,) in infobatch.DataLoader(alone, batch_size=16):
            loss, score = net.adapted(x[indices], counts[indices])
            alone.update(loss, score=score).backward()
    assert not alone.scores.isnan().any()  # images without objects are known
    assert alone.plan().kept < 64


def test_no_row_of_losses_at_all() -> None:
    losses = torch.zeros(0, 4, requires_grad=True)
    loss, score = per_image(losses, torch.zeros(3, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    assert loss.tolist() == score.tolist() == [0, 0, 0]
    loss.mean().backward()


@pytest.mark.parametrize("with_image", [True, False])
def test_per_image_compiles_into_one_graph(with_image: bool) -> None:
    def reduce(losses: Tensor) -> tuple[Tensor, Tensor]:
        one = per_image(losses, COUNTS, OF) if with_image else per_image(losses[:4], COUNTS)
        return one.loss, one.score

    losses = torch.rand(6, 2, generator=lot())
    compiled = torch.compile(reduce, fullgraph=True, backend="eager")
    for mine, plain in zip(compiled(losses), reduce(losses), strict=True):
        assert torch.equal(mine, plain)


L = torch.ones(6, 2)


@pytest.mark.parametrize(
    ("losses", "counts", "image", "normalizer", "word"),
    [
        (torch.tensor(1.0), COUNTS, None, None, "reduction"),
        (L.long(), COUNTS, OF, None, "floating-point"),
        (L, COUNTS, None, None, "image"),
        (L, 6, OF, None, "counts"),
        (L, COUNTS[:, None], OF, None, "counts"),
        (L, COUNTS > 1, OF, None, "counts"),
        (L, COUNTS[:0], OF, None, "counts"),
        (L, COUNTS, OF[:4], None, "image"),
        (L, COUNTS, OF.float(), None, "int64"),
        (L, COUNTS, OF + 2, None, "positions"),
        (L, COUNTS.to("meta"), OF, None, "device"),
        (L, COUNTS, OF, 0, "normalizer"),
        (L, COUNTS, OF, torch.ones(2), "normalizer"),
    ],
)
def test_wrong_dense_losses_are_refused(losses: Any, counts: Any, image: Any, normalizer: Any, word: str) -> None:
    with pytest.raises(InputError, match=word):
        per_image(losses, counts, image, normalizer=normalizer)


# ---- set prediction --------------------------------------------------------------------------------------------


def make_boxes(count: int, generator: torch.Generator) -> Tensor:
    """Return centers and sizes of boxes, of which some overlap and some do not."""
    return torch.rand(count, 4, generator=generator) * torch.tensor([1.0, 1.0, 0.6, 0.6]) + 0.05


def make_labels(counts: list[int], classes: int = 4, seed: int = 0) -> list[dict[str, Tensor]]:
    generator = lot(seed)
    return [
        {
            "class_labels": torch.randint(classes, (count,), generator=generator),
            "boxes": make_boxes(count, generator),
        }
        for count in counts
    ]


def make_model(kind: str, auxiliary: bool) -> nn.Module:
    """Return a tiny detector of transformers."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("scipy")
    torch.manual_seed(0)
    if kind == "yolos":
        config = transformers.YolosConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=[32, 32],
            patch_size=16, num_detection_tokens=6, use_mid_position_embeddings=False, num_labels=4,
        )  # fmt: skip
        return transformers.YolosForObjectDetection(config).eval()
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    config = transformers.DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone, d_model=16,
        encoder_layers=1, decoder_layers=3, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16,
        decoder_ffn_dim=16, num_queries=6, num_labels=4, auxiliary_loss=auxiliary, dropout=0.0,
    )  # fmt: skip
    return transformers.DetrForObjectDetection(config).eval()


def match(model: Any, outputs: Any, labels: list[dict[str, Tensor]]) -> tuple[list[Any], list[Any]]:
    from transformers.loss.loss_for_object_detection import HungarianMatcher

    config = model.config
    matcher = HungarianMatcher(config.class_cost, config.bbox_cost, config.giou_cost)
    layers = [outputs, *(outputs.auxiliary_outputs or ())]
    return layers, [matcher(layer, labels) for layer in layers]


@pytest.mark.parametrize("counts", [[2, 0, 3], [0, 0, 0], [1, 8, 1]], ids=["some empty", "all empty", "too many"])
@pytest.mark.parametrize(("kind", "auxiliary"), [("yolos", False), ("detr", False), ("detr", True)])
def test_the_mean_is_the_loss_of_transformers(kind: str, auxiliary: bool, counts: list[int]) -> None:
    model: Any = make_model(kind, auxiliary)
    x, labels = torch.randn(3, 3, 32, 32), make_labels(counts)
    first, second = (model(x, labels=labels) for _ in range(2))
    layers, indices = match(model, second, labels)
    assert len(layers) == (3 if auxiliary else 1)
    loss, score = set_prediction_loss(layers, labels, indices)
    torch.testing.assert_close(loss.mean(), first.loss, rtol=1e-6, atol=0)  # transformers cannot do float64
    mine, theirs = (gradient(model, one) for one in (loss.mean(), first.loss))
    assert theirs.abs().max() > 0.1
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6 * float(theirs.abs().max()))
    assert score.isfinite().all()
    assert not score.requires_grad


def gradient(net: nn.Module, loss: Tensor) -> Tensor:
    parameters = [one for one in net.parameters() if one.requires_grad]  # the first layers of DETR are frozen
    parts = torch.autograd.grad(loss, parameters, allow_unused=True)
    return torch.cat([one.flatten() for one in parts if one is not None])


def make_outputs(size: int, seed: int = 0, queries: int = 5) -> dict[str, Tensor]:
    generator = lot(seed)
    return {
        "logits": torch.randn(size, queries, 5, generator=generator),
        "pred_boxes": make_boxes(size * queries, generator).reshape(size, queries, 4),
    }


def match_in_order(labels: list[dict[str, Tensor]], queries: int = 5) -> list[tuple[Tensor, Tensor]]:
    """Match the last queries with the objects in reverse, without looking."""
    counts = [len(one["class_labels"]) for one in labels]
    return [(queries - count + torch.arange(count), torch.arange(count).flip(0)) for count in counts]


def literal(outputs: dict[str, Tensor], labels: Any, matched: Any, eos: float, box: float, giou: float) -> list[float]:
    """The score of each image, query by query."""
    scores = []
    for at, (queries, targets) in enumerate(matched):
        mates = dict(zip(queries.tolist(), targets.tolist(), strict=True))
        losses, weights, boxes = 0.0, 0.0, 0.0
        for query in range(outputs["logits"].shape[1]):
            log = outputs["logits"][at, query].log_softmax(0)
            weight = 1.0 if query in mates else eos
            label = int(labels[at]["class_labels"][mates[query]]) if query in mates else 4
            losses, weights = losses - weight * float(log[label]), weights + weight
            if query not in mates:
                continue
            one, other = outputs["pred_boxes"][at, query].tolist(), labels[at]["boxes"][mates[query]].tolist()
            boxes += box * sum(abs(a - b) for a, b in zip(one, other, strict=True))
            sides = [[(c[i] - c[i + 2] / 2, c[i] + c[i + 2] / 2) for i in (0, 1)] for c in (one, other)]
            inter = hull = 1.0
            for (low, high), (other_low, other_high) in zip(*sides, strict=True):
                inter *= max(0.0, min(high, other_high) - max(low, other_low))
                hull *= max(high, other_high) - min(low, other_low)
            union = one[2] * one[3] + other[2] * other[3] - inter
            boxes += giou * (1 - inter / union + (hull - union) / hull)
        scores.append(losses / weights + boxes / max(len(mates), 1))
    return scores


def test_scores_as_counted_query_by_query() -> None:
    labels = make_labels([2, 0, 3])
    layers, matched = [make_outputs(3), make_outputs(3, 1)], match_in_order(labels)
    _, score = set_prediction_loss(layers, labels, [matched, matched], no_object=0.3, box=2.0, giou=0.5)
    expected = [
        sum(pair) for pair in zip(*(literal(one, labels, matched, 0.3, 2.0, 0.5) for one in layers), strict=True)
    ]
    torch.testing.assert_close(score, torch.tensor(expected))
    for at in range(3):  # as alone
        part = [{name: value[at : at + 1] for name, value in one.items()} for one in layers]
        alone = set_prediction_loss(
            part, labels[at : at + 1], [matched[at : at + 1]] * 2, no_object=0.3, box=2.0, giou=0.5
        )
        torch.testing.assert_close(alone.score, score[at : at + 1])


def test_the_number_of_boxes_over_ranks() -> None:
    """With accelerate, box losses are divided by the mean over ranks, and class losses by this rank's weights."""
    labels, outputs = make_labels([2, 0, 3]), make_outputs(3)
    matched = match_in_order(labels)
    mine = set_prediction_loss([outputs], labels, [matched], num_boxes=torch.tensor(10.0)).loss
    plain = set_prediction_loss([outputs], labels, [matched]).loss
    classes = set_prediction_loss([outputs], labels, [matched], box=0.0, giou=0.0).loss
    torch.testing.assert_close(mine - classes, (plain - classes) / 2)


class SetPredictor(nn.Module):
    """Predicts five boxes; the objects of an image are padded."""

    def __init__(self) -> None:
        super().__init__()
        self.logits, self.boxes = nn.Linear(3, 25), nn.Linear(3, 20)

    def adapted(self, x: Tensor, classes: Tensor, boxes: Tensor, counts: Tensor, **options: Any) -> Any:
        outputs = {
            "logits": self.logits(x).reshape(-1, 5, 5),
            "pred_boxes": self.boxes(x).reshape(-1, 5, 4).sigmoid(),
        }
        labels = [
            {"class_labels": classes[at, :count], "boxes": boxes[at, :count]}
            for at, count in enumerate(counts.tolist())
        ]
        return set_prediction_loss([outputs], labels, [match_in_order(labels)], **options)


def make_images(size: int) -> tuple[Tensor, ...]:
    generator = lot()
    boxes = torch.rand(size, 3, 4, generator=generator) * 0.4 + 0.2
    classes = torch.randint(4, (size, 3), generator=generator)
    return torch.randn(size, 3, generator=generator), classes, boxes, torch.arange(size) % 4


def test_with_a_fixed_number_of_boxes_the_expected_gradient_is_exact() -> None:
    torch.manual_seed(0)
    net, images = SetPredictor(), make_images(8)

    def losses_of(indices: Tensor, weights: Tensor) -> Tensor:
        return net.adapted(*(part[indices] for part in images), boxes_per_image=1.5).loss

    loss, scores = net.adapted(*images)
    expected = plans.gradient(net, losses_of(torch.arange(8), torch.ones(8)).mean())
    torch.testing.assert_close(expected, plans.gradient(net, loss.mean()))  # 1.5 is their mean
    torch.testing.assert_close(plans.expected_gradient(net, losses_of, scores), expected)


def test_both_engines_with_a_set_prediction() -> None:
    torch.manual_seed(0)
    net, small = SetPredictor(), SetPredictor()
    train = infobatch.InfoBatch(TensorDataset(*make_images(64)), 8)
    look = infobatch.sieve.Proxy(small, losses=lambda net, batch: net.adapted(*batch).loss)
    sieve = infobatch.Sieve(look, infobatch.sieve.hardest(keep=0.5))
    for _ in range(3):
        for batch in infobatch.DataLoader(train, batch_size=16):
            parts, _ = sieve(tuple(batch))
            loss, score = sieve.expand(net.adapted(*parts).loss)
            train.update(loss, score=score).backward()
    assert net.logits.weight.grad is not None
    assert bool(net.logits.weight.grad.isfinite().all())
    assert not train.scores.isnan().all()


def test_a_set_prediction_compiles_into_one_graph() -> None:
    labels, outputs = make_labels([2, 0, 3]), make_outputs(3)
    matched = match_in_order(labels)

    def reduce(outputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        one = set_prediction_loss([outputs], labels, [matched])
        return one.loss, one.score

    compiled = torch.compile(reduce, fullgraph=True, backend="eager")
    for mine, plain in zip(compiled(outputs), reduce(outputs), strict=True):
        torch.testing.assert_close(mine, plain)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision(dtype: torch.dtype) -> None:
    labels, outputs = make_labels([2, 0, 3]), make_outputs(3)
    half = {name: one.to(dtype).requires_grad_() for name, one in outputs.items()}
    with torch.autocast("cpu", dtype):
        loss, score = set_prediction_loss([half], labels, [match_in_order(labels)])
    assert loss.dtype == score.dtype == torch.float32
    wide = set_prediction_loss([{name: one.float() for name, one in half.items()}], labels, [match_in_order(labels)])
    torch.testing.assert_close(loss, wide.loss)
    loss.mean().backward()
    assert all(one.grad is not None and bool(one.grad.isfinite().all()) for one in half.values())


LABELS, OUTPUTS = make_labels([2, 0, 3]), make_outputs(3)
MATCHED = match_in_order(LABELS)


@pytest.mark.parametrize(
    ("layers", "labels", "indices", "options", "word"),
    [
        (OUTPUTS, LABELS, [MATCHED], {}, "list of layers"),
        ([], LABELS, [], {}, "list of layers"),
        ([{"logits": OUTPUTS["logits"]}], LABELS, [MATCHED], {}, "pred_boxes"),
        ([{**OUTPUTS, "pred_boxes": OUTPUTS["pred_boxes"][:, :3]}], LABELS, [MATCHED], {}, "pred_boxes"),
        ([{**OUTPUTS, "pred_boxes": OUTPUTS["logits"]}], LABELS, [MATCHED], {}, "pred_boxes"),
        ([{**OUTPUTS, "logits": OUTPUTS["logits"].long()}], LABELS, [MATCHED], {}, "logits"),
        ([OUTPUTS], LABELS[:2], [MATCHED], {}, "3 images"),
        ([OUTPUTS], [{"labels": torch.tensor([1])}] * 3, [MATCHED], {}, "class_labels"),
        ([OUTPUTS], [{**LABELS[0], "boxes": torch.zeros(1, 4)}] * 3, [MATCHED], {}, "class_labels"),
        ([OUTPUTS], [{k: v.to("meta") for k, v in one.items()} for one in LABELS], [MATCHED], {}, "labels on meta"),
        ([OUTPUTS], LABELS, MATCHED, {}, "matcher"),
        ([OUTPUTS, OUTPUTS], LABELS, [MATCHED], {}, "matcher"),
        ([OUTPUTS], LABELS, [MATCHED[:2]], {}, "matcher"),
        ([OUTPUTS], LABELS, [MATCHED], {"no_object": 0}, "no_object"),
        ([OUTPUTS], LABELS, [MATCHED], {"giou": -1}, "giou"),
        ([OUTPUTS], LABELS, [MATCHED], {"num_boxes": 0}, "num_boxes"),
        ([OUTPUTS], LABELS, [MATCHED], {"boxes_per_image": "2"}, "boxes_per_image"),
    ],
)
def test_wrong_set_predictions_are_refused(layers: Any, labels: Any, indices: Any, options: Any, word: str) -> None:
    with pytest.raises(InputError, match=word):
        set_prediction_loss(layers, labels, indices, **options)
