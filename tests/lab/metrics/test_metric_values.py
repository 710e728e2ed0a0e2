"""Each metric has the value of an independent reference, however the test set is cut into batches."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, confusion_matrix, jaccard_score, recall_score

from infobatch.errors import InputError
from infobatch.lab.metrics import Accuracy, ExactMatch, FrechetDistance, MeanIoU, MeanScore, Metric, Perplexity


def fed(metric: Metric, outputs: torch.Tensor, targets: torch.Tensor, cuts: tuple[int, ...] = (1, 4)) -> Metric:
    """Feed a metric in uneven batches, after something that ``reset`` has to forget."""
    metric.update(outputs[:3], targets[:3])
    metric.reset()
    for part, truth in zip(outputs.tensor_split(cuts), targets.tensor_split(cuts), strict=True):
        metric.update(part, truth)
    return metric


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", range(4))
def test_the_mean_iou_is_that_of_scikit_learn(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(9, 5, 4, 3, generator=draw)
    logits[:, 4] = -9.0  # never predicted
    masks = torch.randint(0, 4, (9, 4, 3), generator=draw)  # class 4 occurs in neither: it does not count
    masks[torch.rand(9, 4, 3, generator=draw) < 0.2] = 255
    metric = fed(MeanIoU(5), logits, masks)
    truth, predicted = masks[masks != 255].numpy(), logits.argmax(1)[masks != 255].numpy()
    assert metric.compute() == pytest.approx(100 * jaccard_score(truth, predicted, average="macro"))
    by_class = jaccard_score(truth, predicted, average=None, labels=range(4))
    assert metric.by_class(5) == pytest.approx([*(100 * by_class), None], abs=1e-4)
    assert isinstance(metric, MeanIoU)
    assert metric.confusion.tolist() == confusion_matrix(truth, predicted, labels=range(5)).tolist()
    assert fed(MeanIoU(5), logits.argmax(1), masks).compute() == metric.compute()


def test_bytes_serve_as_masks() -> None:
    logits, masks = drawn(5, 3, 2, 2), torch.arange(20).reshape(5, 2, 2) % 3
    assert fed(MeanIoU(3), logits, masks.byte()).compute() == fed(MeanIoU(3), logits, masks).compute()


@pytest.mark.parametrize(
    ("outputs", "targets", "complaint"),
    [
        (torch.zeros(2, 4, 5, 5), torch.zeros(2, 5, 5).long(), r"outputs \[N, 3, ...\]; got .*2, 4, 5, 5"),
        (torch.zeros(2, 3, 5, 5), torch.zeros(2, 10, 10).long(), r"shape \[2, 5, 5\].*interpolate"),
        (torch.zeros(2, 3, 5, 5), torch.zeros(2, 5, 5), "masks of integers"),
        (torch.zeros(2, 3, 5, 5), torch.full((2, 5, 5), 3), "masks with classes from 0 to 2; got 3 to 3"),
        (torch.zeros(2, 3, 5, 5), torch.full((2, 5, 5), -100), "ignore_index=255"),
        ({"out": torch.zeros(2, 3, 5, 5)}, torch.zeros(2, 5, 5).long(), "got dict"),
    ],
)
def test_masks_that_do_not_fit_are_refused(outputs: torch.Tensor, targets: torch.Tensor, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        MeanIoU(3).update(outputs, targets)


@pytest.mark.parametrize("shift", [False, True])
def test_the_perplexity_is_that_of_a_loop_over_tokens(shift: bool) -> None:
    logits, tokens = drawn(7, 6, 11), torch.arange(42).reshape(7, 6) * 5 % 11
    tokens[2], tokens[4, 1:] = -100, -100
    total, count = 0.0, 0
    for row in range(7):
        for place in range(shift, 6):
            token = int(tokens[row, place])
            if token != -100:
                scores = [math.exp(value) for value in logits[row, place - shift].double().tolist()]
                total, count = total - math.log(scores[token] / sum(scores)), count + 1
    assert fed(Perplexity(0.1, shift=shift), logits, tokens).compute() == pytest.approx(math.exp(total / count), 1e-5)


@pytest.mark.parametrize("shift", [False, True])
def test_an_exact_match_needs_every_token_that_counts(shift: bool) -> None:
    tokens = torch.tensor([[1, 2, 3], [1, 2, -100], [1, -100, 0], [-100, -100, -100], [4, 0, 3], [2, 2, 2]])
    predicted = torch.tensor([[1, 2, 3], [1, 2, 4], [1, 3, 1], [0, 0, 0], [4, 1, 3], [0, 2, 2]])
    truths = ["123", "12", "10", "", "403", "222"] if not shift else ["23", "2", "0", "", "03", "22"]
    found = ["123", "12", "11", "", "413", "022"] if not shift else ["23", "2", "1", "", "13", "22"]
    known = [(a, b) for a, b in zip(truths, found, strict=True) if a]
    logits = torch.eye(5)[predicted]
    outputs = torch.cat([logits[:, 1:], torch.zeros(6, 1, 5)], 1) if shift else logits
    metric = fed(ExactMatch(shift=shift), outputs, tokens)
    assert metric.compute() == pytest.approx(100 * sum(a == b for a, b in known) / len(known))


@pytest.mark.parametrize("metric", [Perplexity(0.1), ExactMatch()])
def test_logits_that_are_not_those_of_the_tokens_are_refused(metric: Metric) -> None:
    with pytest.raises(InputError, match=r"vocabulary"):
        metric.update(torch.zeros(2, 4, 8), torch.zeros(2, 5).long())


def test_the_accuracy_is_that_of_scikit_learn() -> None:
    logits, labels = drawn(40, 4), torch.arange(40) * 7 % 3
    metric = fed(Accuracy(), logits, labels)
    truth, predicted = labels.numpy(), logits.argmax(1).numpy()
    assert metric.compute() == pytest.approx(100 * accuracy_score(truth, predicted))
    recalls = recall_score(truth, predicted, average=None, labels=range(3))
    assert isinstance(metric, Accuracy)
    assert metric.by_class(4) == pytest.approx([*(100 * recalls), None], abs=1e-4)


def test_scores_of_targets_that_are_no_classes_have_no_classes() -> None:
    metric = MeanScore(lambda outputs, targets: (outputs > targets["least"]).float())
    metric.update(torch.ones(4), {"least": torch.tensor([0.0, 2.0, 0.5, 0.1])})
    assert (metric.compute(), metric.by_class(2)) == (75.0, None)
    with pytest.raises(InputError, match=r"shape \[3\]"):
        metric.update(torch.ones(4), {"least": torch.zeros(3)[:, None].expand(3, 4)})


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_the_frechet_distance_is_that_of_its_formula(offset: float) -> None:
    ours, theirs = drawn(50, 6).double() + offset, 0.5 * drawn(50, 6, seed=1).double() @ drawn(6, 6, seed=2).double()
    theirs += offset + 0.3
    metric = fed(FrechetDistance(0.1), ours, theirs)
    a, b = ours.numpy(), theirs.numpy()
    c, d = np.cov(a.T), np.cov(b.T)
    values, vectors = np.linalg.eigh(c)  # a root of the symmetric form, with the same trace as scipy's of the product
    root = vectors @ np.diag(np.sqrt(values)) @ vectors.T
    between = np.sqrt(np.linalg.eigvalsh(root @ d @ root)).sum()
    expected = ((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(c) + np.trace(d) - 2 * between
    assert metric.compute() == pytest.approx(expected, rel=1e-5)


def test_features_are_taken_on_both_sides() -> None:
    pooled = FrechetDistance(0.1, features=lambda images: images.mean((2, 3)))
    images, others = drawn(20, 3, 4, 4), drawn(20, 3, 4, 4, seed=1)
    expected = fed(FrechetDistance(0.1), images.mean((2, 3)), others.mean((2, 3))).compute()
    assert fed(pooled, images, others).compute() == pytest.approx(expected)
    with pytest.raises(InputError, match=r"shape \[N, d\].*\[20, 3, 4, 4\]"):
        FrechetDistance(0.1).update(images, others)


@pytest.mark.parametrize(
    ("metric", "outputs", "targets"),
    [
        (MeanIoU(2), torch.zeros(1, 2, 3), torch.full((1, 3), 255)),
        (Perplexity(0.1), torch.zeros(1, 2, 3), torch.full((1, 2), -100)),
        (ExactMatch(), torch.zeros(1, 2, 3), torch.full((1, 2), -100)),
        (FrechetDistance(0.1), torch.zeros(1, 2), torch.zeros(1, 2)),
        (Accuracy(), None, None),
    ],
)
def test_where_nothing_counts_there_is_no_value(metric: Metric, outputs: torch.Tensor, targets: torch.Tensor) -> None:
    if outputs is not None:
        metric.update(outputs, targets)
    with pytest.raises(InputError, match="to measure"):
        metric.compute()
