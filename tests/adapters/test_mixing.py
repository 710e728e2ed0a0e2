"""MixUp and CutMix: the loss of a row, the score of a sample, the weight of a pair."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lots import lot
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import infobatch
from infobatch import InputError
from infobatch.adapters import mix_targets, mixed_loss

BATCH, CLASSES = 8, 5
LABELS = torch.tensor([0, 3, 1, 4, 2, 1, 0, 2])  # rows 2 and 5 are partners of one class
LOGITS = torch.randn(BATCH, CLASSES, generator=lot(), dtype=torch.float64)
ROLLED = torch.arange(BATCH).roll(1)
ONE_EACH = torch.rand(BATCH, generator=lot(1), dtype=torch.float64)


def targets_of(lam: float | Tensor, labels: Tensor = LABELS, partners: Tensor | None = None) -> Tensor:
    """Literal: one-hot, mixed row by row."""
    partners = torch.arange(len(labels)).flip(0) if partners is None else partners
    found = torch.zeros(len(labels), CLASSES, dtype=torch.float64)
    for row, partner in enumerate(partners.tolist()):
        share = float(lam if isinstance(lam, float) else lam[row])
        found[row, labels[row]] += share
        found[row, labels[partner]] += 1 - share
    return found


# ---- losses ----------------------------------------------------------------------------------------------------


def timm_part(name: str) -> Any:
    """A file of timm, loaded alone: the package needs torchvision."""
    found = importlib.util.find_spec("timm")
    if found is None or found.origin is None:
        pytest.skip("timm is not installed")
    spec = importlib.util.spec_from_file_location(f"timm_{Path(name).stem}", Path(found.origin).parent / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
@pytest.mark.parametrize("cutmix", [0.0, 1.0])
def test_a_batch_of_timm(mode: str, smoothing: float, cutmix: float) -> None:
    """Its targets are explained, and the mean is its criterion's, with its gradient."""
    mixup = timm_part("data/mixup.py").Mixup(
        1.0 - cutmix, cutmix, mode=mode, label_smoothing=smoothing, num_classes=CLASSES
    )
    criterion = timm_part("loss/cross_entropy.py").SoftTargetCrossEntropy()
    _, targets = mixup(torch.rand(BATCH, 3, 8, 8, generator=lot()), LABELS)
    mine, theirs = LOGITS.float().requires_grad_(), LOGITS.float().requires_grad_()
    loss, score = mixed_loss(mine, targets, LABELS)
    expected = criterion(theirs, targets)
    assert torch.equal(loss.mean(), expected)
    assert torch.equal(*(torch.autograd.grad(*pair)[0] for pair in ((loss.mean(), mine), (expected, theirs))))
    assert mode == "elem" or bool(score.isfinite().all())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("each", [False, True])
def test_targets_as_timm_makes_them(smoothing: float, each: bool) -> None:
    target = timm_part("data/mixup.py").mixup_target
    lam = ONE_EACH.float()[:, None] if each else 0.3
    assert torch.equal(mix_targets(LABELS, CLASSES, lam, smoothing=smoothing), target(LABELS, CLASSES, lam, smoothing))


@pytest.mark.parametrize("partners", [None, ROLLED], ids=["flip", "roll"])
@pytest.mark.parametrize("lam", [0.3, 1.0, ONE_EACH], ids=["batch", "unmixed", "elem"])
def test_targets_and_their_loss_literally(lam: float | Tensor, partners: Tensor | None) -> None:
    targets = mix_targets(LABELS, CLASSES, lam, partners=partners)
    torch.testing.assert_close(targets.double(), targets_of(lam, partners=partners), atol=1e-7, rtol=1e-6)
    loss, _ = mixed_loss(LOGITS, targets, LABELS, partners=partners)
    chances = LOGITS.exp() / LOGITS.exp().sum(1, keepdim=True)
    literal = [
        -sum(float(t) * math.log(p) for t, p in zip(*pair, strict=True)) for pair in zip(targets, chances, strict=True)
    ]
    torch.testing.assert_close(loss, torch.tensor(literal, dtype=torch.float64))


def test_torchvision_gives_the_smoothing_to_the_criterion() -> None:
    plain, smoothed = targets_of(0.3), mix_targets(LABELS, CLASSES, 0.3, smoothing=0.1).double()
    mine, theirs = LOGITS.clone().requires_grad_(), LOGITS.clone().requires_grad_()
    loss, score = mixed_loss(mine, plain, LABELS, label_smoothing=0.1)
    expected = nn.CrossEntropyLoss(label_smoothing=0.1)(theirs, plain)
    torch.testing.assert_close(loss.mean(), expected)
    torch.testing.assert_close(
        torch.autograd.grad(loss.mean(), mine)[0], torch.autograd.grad(expected, theirs)[0], rtol=1e-6, atol=1e-12
    )
    upstream = mixed_loss(LOGITS, smoothed, LABELS)
    torch.testing.assert_close(loss.detach(), upstream.loss, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(score, upstream.score, rtol=1e-5, atol=1e-6)


def test_binary_cross_entropy_averages_over_classes() -> None:
    targets = targets_of(0.3)
    loss, score = mixed_loss(LOGITS, targets, LABELS, criterion="bce", score="error")
    assert torch.equal(
        loss.mean(), F.binary_cross_entropy_with_logits(LOGITS, targets, reduction="none").mean(1).mean()
    )
    gaps = (targets - LOGITS.sigmoid()).abs()
    expected = [gaps[row, LABELS[row]] + gaps[BATCH - 1 - row, LABELS[row]] for row in (0, 1, 3)]
    torch.testing.assert_close(score[[0, 1, 3]], torch.stack(expected))


# ---- scores ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lam", [0.5, 0.3, 0.99])
@pytest.mark.parametrize("partners", [None, ROLLED], ids=["flip", "roll"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_scores_of_samples_mixed_with_another_class(lam: float, partners: Tensor | None, smoothing: float) -> None:
    """The author's form and the paper's, sample by sample."""
    targets = mix_targets(LABELS, CLASSES, lam, partners=partners, smoothing=smoothing).double()
    errors = mixed_loss(LOGITS, targets, LABELS, partners=partners, score="error").score
    paper = mixed_loss(LOGITS, targets, LABELS, partners=partners).score
    chances, sums = LOGITS.softmax(1), []
    order = list(reversed(range(BATCH))) if partners is None else partners.tolist()
    for i, y in enumerate(LABELS.tolist()):
        j = order.index(i)
        if y in (LABELS[order[i]], LABELS[j]):
            continue
        expected = (targets[i, y] - chances[i, y]).abs() + (targets[j, y] - chances[j, y]).abs()
        torch.testing.assert_close(errors[i], expected, rtol=1e-5, atol=1e-6)
        sums.append(paper[i] + chances[i, y] + chances[j, y])  # A.3 with its sign turned: only a constant is added
    assert len(sums) >= 5
    torch.testing.assert_close(torch.stack(sums), sums[0].expand(len(sums)), rtol=1e-5, atol=1e-6)


def linear_rows(errors: Tensor, lam: float | Tensor, labels: Tensor) -> Tensor:
    """Logits of a model whose error at the class of a sample is its share times the sample's own error."""
    found = targets_of(lam, labels)
    lam = torch.full((len(labels),), lam, dtype=torch.float64) if isinstance(lam, float) else lam
    for i, j in enumerate(reversed(range(len(labels)))):
        lost = torch.zeros(CLASSES, dtype=torch.float64)
        lost[labels[i]] += lam[i] * errors[i]
        lost[labels[j]] += (1 - lam[i]) * errors[j]
        free = next(c for c in range(CLASSES) if c not in (labels[i], labels[j]))
        found[i] -= lost
        found[i, free] += lost.sum()
    return found.clamp(min=1e-300).log()


@pytest.mark.parametrize("form", ["error", "paper"])
@pytest.mark.parametrize("lam", [0.3, 0.8, ONE_EACH * 0.4 + 0.55], ids=["0.3", "0.8", "elem"])
def test_with_lam_both_samples_of_one_class_are_told_apart(lam: float | Tensor, form: Any) -> None:
    errors = torch.linspace(0.1, 0.6, BATCH, dtype=torch.float64)
    score = mixed_loss(linear_rows(errors, lam, LABELS), targets_of(lam), LABELS, lam=lam, score=form).score
    torch.testing.assert_close(score[[2, 5]], errors[[2, 5]])
    presence = lam + 1 - lam.flip(0) if isinstance(lam, Tensor) else torch.ones(BATCH)
    others = torch.tensor([0, 1, 3, 4, 6, 7])
    torch.testing.assert_close(score[others], (errors * presence)[others])


@pytest.mark.parametrize("lam", [0.5, 0.51])
def test_where_two_samples_of_one_class_cannot_be_told_apart_they_share(lam: float) -> None:
    errors = torch.linspace(0.1, 0.6, BATCH, dtype=torch.float64)
    score = mixed_loss(linear_rows(errors, lam, LABELS), targets_of(lam), LABELS, lam=lam).score
    mean = errors[[2, 5]].mean().expand(2)
    torch.testing.assert_close(score[[2, 5]], mean, rtol=0.05, atol=0.0)
    without = mixed_loss(linear_rows(errors, lam, LABELS), targets_of(lam), LABELS).score
    torch.testing.assert_close(without[[2, 5]], mean)
    torch.testing.assert_close(without[[0, 1, 3, 4, 6, 7]], errors[[0, 1, 3, 4, 6, 7]])


@pytest.mark.parametrize("form", ["error", "paper"])
def test_a_solved_score_is_no_less_than_nothing_and_no_more_than_both_errors(form: Any) -> None:
    """The errors of a real model are not linear: near 0.5 the equations would answer with anything."""
    labels = torch.zeros(BATCH, dtype=torch.int64)
    score = mixed_loss(LOGITS, targets_of(0.56, labels), labels, lam=0.56, score=form).score
    gaps = 1 - LOGITS.softmax(1)[:, 0]
    both = gaps + gaps.flip(0)
    assert bool((score >= 0).all())
    assert bool((score <= both).all())
    torch.testing.assert_close(score + score.flip(0), both)
    assert bool(((score == 0) | (score == both)).any())


def test_one_class_in_a_chain_is_shared_by_shares() -> None:
    """Rolled rows are no pairs, so nothing can be solved."""
    labels, lam = torch.zeros(BATCH, dtype=torch.int64), 0.3
    score = mixed_loss(LOGITS, targets_of(lam, labels, ROLLED), labels, partners=ROLLED, lam=lam).score
    errors = 1 - LOGITS.softmax(1)[:, 0]
    torch.testing.assert_close(score, lam * errors + (1 - lam) * errors.roll(-1), rtol=1e-6, atol=1e-7)


def test_a_sample_that_is_hardly_there_is_unknown() -> None:
    """With one lam per row it may be in neither of its rows, where the sum calls it learned."""
    lam = torch.tensor([0.9, 0.9, 0.6, 0.01, 0.9, 0.3, 0.6, 0.6])
    presence = lam + 1 - lam.flip(0)
    known = torch.tensor([True, True, True, False, True, True, True, True])
    assert torch.equal(presence > 0.5, known)
    targets, gaps = targets_of(lam), targets_of(lam) - LOGITS.softmax(1)
    score = mixed_loss(LOGITS, targets, LABELS).score
    assert torch.equal(score.isfinite(), known)
    torch.testing.assert_close(score[0], gaps[0, 0] + gaps[7, 0])


def ranks(values: Tensor) -> Tensor:
    return values.argsort().argsort().double()


@pytest.mark.parametrize("each", [False, True], ids=["batch", "elem"])
def test_rebuilt_scores_rank_samples_as_their_losses_without_mixing(each: bool) -> None:
    """Far better than the loss of the row does, and the paper's form better than the author's."""
    size, classes, noise = 400, 8, lot(7)
    y = torch.arange(size) % classes
    x = 1.2 * torch.randn(classes, 10, generator=noise)[y] + torch.randn(size, 10, generator=noise)
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, classes))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_((torch.rand(parameter.shape, generator=noise) - 0.5) / 2)
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    found: dict[str, list[Tensor]] = {"loss": [], "error": [], "paper": []}
    for _ in range(40):
        scores = {name: torch.full((size,), torch.nan) for name in found}
        for at in torch.randperm(size, generator=noise).split(50):
            lam = torch.rand((len(at), 1) if each else (), generator=noise)
            logits = net(lam * x[at] + (1 - lam) * x[at].flip(0))
            targets = mix_targets(y[at], classes, lam)
            loss, scores["paper"][at] = mixed_loss(logits, targets, y[at])
            scores["error"][at] = mixed_loss(logits, targets, y[at], score="error").score
            scores["loss"][at] = loss.detach()
            optimizer.zero_grad()
            loss.mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        for name, values in scores.items():
            found[name].append(values)
    truth = ranks(F.cross_entropy(net(x), y, reduction="none").detach())
    means = {name: torch.stack(values[-10:]).nanmean(0) for name, values in found.items()}
    agree = {name: float(torch.corrcoef(torch.stack([ranks(one), truth]))[0, 1]) for name, one in means.items()}
    assert agree["paper"] > 0.75
    assert agree["paper"] > agree["error"] + 0.1 > agree["loss"] + 0.2


def test_partners_that_are_no_permutation_leave_samples_unknown() -> None:
    partners = torch.tensor([1, 1, 0, 0, 0, 0, 0, 0])
    score = mixed_loss(LOGITS, targets_of(0.3, partners=partners), LABELS, partners=partners).score
    assert bool(score[0].isfinite())
    assert not bool(score[2:].isfinite().any())  # no row has them as partners


def test_an_odd_batch_has_a_row_that_is_its_own_partner() -> None:
    labels, logits = LABELS[:5], LOGITS[:5]
    weights = torch.tensor([1.0, 2.0, 4.0, 2.0, 3.0])
    loss, score = mixed_loss(logits, targets_of(0.3, labels), labels, weights=weights)
    plain = mixed_loss(logits, targets_of(0.3, labels), labels).loss
    torch.testing.assert_close(loss / plain, torch.tensor([3.0, 2.0, 1.0, 2.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(score[2], 1 - logits.softmax(1)[2, labels[2]])
    alone = mixed_loss(logits[:1], targets_of(0.3, labels[:1]), labels[:1], weights=weights[1:2])
    torch.testing.assert_close(alone.loss[0], F.cross_entropy(logits[:1], labels[:1]))


def test_an_unmixed_row_needs_no_partner() -> None:
    loss, score = mixed_loss(LOGITS, targets_of(1.0), LABELS, weights=torch.full((BATCH,), 2.0), lam=1.0)
    torch.testing.assert_close(loss, F.cross_entropy(LOGITS, LABELS, reduction="none"))
    own = 1 - LOGITS.softmax(1)[torch.arange(BATCH), LABELS]
    torch.testing.assert_close(score, own)
    other = LABELS.flip(0) != LABELS
    torch.testing.assert_close(mixed_loss(LOGITS, targets_of(1.0), LABELS).score[other], own[other])


# ---- both engines, compiled, in half precision ------------------------------------------------------------------


def test_a_sieve_before_mixing_and_a_sieve_that_looks_at_mixed_rows() -> None:
    data = TensorDataset(torch.randn(60, 3, generator=lot(5)), torch.arange(60) % 3)
    train, net = infobatch.InfoBatch(data, 6), nn.Linear(3, 3)

    def losses(small: nn.Module, batch: Any) -> Tensor:
        x, targets, y = batch
        return mixed_loss(small(x), targets, y).loss

    proxy = infobatch.sieve.Proxy(nn.Linear(3, 3), losses=losses)
    sieve = infobatch.Sieve(proxy, infobatch.sieve.lot(keep=0.5), num_steps=30)
    for _ in range(3):
        for x, y in infobatch.DataLoader(train, batch_size=20):
            mixed, targets = 0.7 * x + 0.3 * x.flip(0), mix_targets(y, 3, 0.7)
            (mixed, targets, _), weight = sieve((mixed, targets, y))
            kept = -(targets * net(mixed).log_softmax(1)).sum(1)  # a part of the rows: no scores of samples
            loss, score = sieve.expand(kept)
            train.update(loss, score=torch.full_like(score, torch.nan)).backward()
    assert train.epoch == 3

    before = infobatch.Sieve(infobatch.sieve.Proxy(nn.Linear(3, 3), nn.CrossEntropyLoss(reduction="none")))
    for x, y in infobatch.DataLoader(train, batch_size=20):
        x, y, weight = before(x, y)
        mixed, targets = 0.7 * x + 0.3 * x.flip(0), mix_targets(y, 3, 0.7)
        loss, score = mixed_loss(net(mixed), targets, y, weights=weight / weight.mean())
        loss, score = before.expand(loss, score=score)
        train.update(loss, score=score).backward()
    assert bool(train.scores.isfinite().any())


def test_compiled_and_eager_agree() -> None:
    def call(logits: Tensor) -> tuple[Tensor, Tensor]:
        targets = mix_targets(LABELS, CLASSES, 0.3, partners=ROLLED, smoothing=0.1)
        return mixed_loss(logits, targets, LABELS, partners=ROLLED, weights=ONE_EACH, lam=0.3)

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="eager")
    for mine, other in zip(compiled(LOGITS), call(LOGITS), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    net = nn.Linear(3, CLASSES)
    x = torch.randn(BATCH, 3, generator=lot(6))
    with torch.autocast("cpu", dtype=dtype):
        logits = net(x)
        loss, score = mixed_loss(logits, targets_of(0.3).to(dtype), LABELS)
        assert logits.dtype == dtype
        loss.mean().backward()  # type: ignore[no-untyped-call]
    assert loss.dtype == score.dtype == torch.float32
    torch.testing.assert_close(loss, mixed_loss(net(x), targets_of(0.3), LABELS).loss, rtol=0.05, atol=0.05)
    assert net.weight.grad is not None
    assert bool(net.weight.grad.isfinite().all())


# ---- bad input -------------------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {"logits": LOGITS, "targets": targets_of(0.3), "labels": LABELS}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"logits": LOGITS[0]}, "logits"),
        ({"logits": [1.0]}, "logits"),
        ({"logits": LOGITS.long()}, "logits"),
        ({"logits": LOGITS[:0], "targets": LOGITS[:0], "labels": LABELS[:0]}, "empty"),
        ({"targets": LABELS}, "mix_targets"),
        ({"targets": targets_of(0.3)[:4]}, "soft targets"),
        ({"labels": LABELS[:4]}, "labels"),
        ({"labels": targets_of(0.3)}, "labels"),
        ({"labels": LABELS + 5}, "labels from 0 to 4"),
        ({"labels": LABELS.roll(3)}, "before mixing"),
        ({"partners": ROLLED}, r"roll\(1\)"),
        ({"partners": ROLLED + 8}, "rows of this batch"),
        ({"partners": ROLLED.float()}, "partners"),
        ({"weights": torch.ones(3)}, "weights_of"),
        ({"weights": torch.ones(BATCH, dtype=torch.int64)}, "weights_of"),
        ({"lam": torch.ones(3)}, "lam"),
        ({"lam": torch.ones(2, 4)}, "lam"),
        ({"criterion": "mse"}, "bce"),
        ({"score": "loss"}, "paper"),
        ({"targets": targets_of(0.3, partners=ROLLED)}, "partners"),
        ({"targets": targets_of(0.3) * torch.nan}, "before mixing"),
    ],
)
def test_wrong_arguments_are_refused(change: dict[str, Any], word: str) -> None:
    mixed_loss(**GOOD)
    with pytest.raises(InputError, match=word):
        mixed_loss(**{**GOOD, **change})
