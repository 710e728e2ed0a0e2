"""Tasks beyond class labels: masks and nested targets, metrics of any direction, augmentation that changes targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from general_task import IGNORED, SETTINGS, masks, per_pixel
from sklearn.metrics import jaccard_score
from small_task import QUICK, facts, made
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from infobatch import adapters
from infobatch.errors import InputError
from infobatch.lab.metrics import Accuracy, MeanIoU, MeanScore, Named
from infobatch.lab.runs.records import Fact
from infobatch.lab.runs.runner import train_one
from infobatch.lab.tasks.task import Arrays, Task, confidence_in_class, known_losses, split_losses
from infobatch.lab.train import loop
from infobatch.lab.train.settings import Settings


def trained(task: Task, **given: Any) -> list[Fact]:
    return list(loop.run(Settings.of({**SETTINGS, **given}), task=task))


PADDED = ("train_loss",)
"""A loader fills up a last batch of one sample, whose loss then counts here."""


def same(ours: list[Fact], theirs: list[Fact], but: tuple[str, ...] = ()) -> None:
    assert [fact["kind"] for fact in ours] == [fact["kind"] for fact in theirs]
    for one, other in zip(ours[1:], theirs[1:], strict=True):
        for key in set(one) - {"seconds", "time", *but}:
            assert one[key] == other[key], (one["kind"], key)


def finished(settings: Settings, task: Task) -> loop.Training:
    training = loop.Training(settings, task)
    while not training.is_finished:
        training.epoch(lambda: False)
    return training


# ---- masks -------------------------------------------------------------------------------------------------------


def test_masks_are_trained_on_and_measured() -> None:
    task = masks()
    assert isinstance(task.test, Arrays)
    training = finished(Settings.of({**SETTINGS, "epochs": 12}), task)
    told = training.test()
    with torch.no_grad():
        outputs = training.model.eval()(training.preprocess(task.test.inputs))
    valid = task.test.labels != IGNORED
    truth, predicted = task.test.labels[valid].numpy(), outputs.argmax(1)[valid].numpy()
    assert told["metric"] == pytest.approx(100 * jaccard_score(truth, predicted, average="macro"))
    assert told["class_metric"] == pytest.approx(100 * jaccard_score(truth, predicted, average=None), abs=1e-4)
    assert told["metric"] > 60
    losses = F.cross_entropy(outputs, task.test.labels.long(), reduction="none", ignore_index=IGNORED)
    by_image = [float(row[ok].mean()) for row, ok in zip(losses, valid, strict=True)]
    assert told["test_loss"] == pytest.approx(np.mean(by_image), rel=1e-5)


def test_the_record_says_what_was_measured() -> None:
    start, *_, end = trained(masks(), epochs=2)
    assert start["metric"] == "mean IoU, %"
    assert start["metric_info"] == {"name": "mean IoU", "unit": "%", "higher_is_better": True, "margin": 0.3}
    assert len(end["class_metric"]) == 3
    assert end["class_kept"] is end["class_size"] is None  # a sample has no class
    assert facts(method="full", epochs=1)[0]["metric_info"]["name"] == "accuracy"
    stated = trained(masks(margin=1.5), method="full", epochs=1)[0]
    assert stated["metric_info"]["margin"] == 1.5


def as_data_set(arrays: Any) -> Dataset[Any]:
    class Read(Dataset[Any]):
        def __len__(self) -> int:
            return len(arrays)

        def __getitem__(self, index: int) -> Any:
            if not 0 <= index < len(arrays):
                raise IndexError(index)
            return arrays[index]

    return Read()


@pytest.mark.parametrize("method", ["infobatch", "sieve.hardest:look=own,keep=0.5"])
def test_masks_come_from_either_feed(method: str) -> None:
    task = masks()
    resident = trained(task, method=method)
    same(resident, trained(task, method=method, feed="loader"), but=PADDED)
    read = replace(task, train=as_data_set(task.train), test=as_data_set(task.test))
    same(resident, trained(read, method=method), but=("most", "least", *PADDED))


def test_masks_are_not_cropped_without_their_images() -> None:
    for given in ({"pad": 2}, {"flip": True}):
        with pytest.raises(InputError, match=r"pad=0 and flip=False with masks.*augment"):
            masks(**given)


@pytest.mark.parametrize("method", ["static.random", "sieve.hardest:class_floor=0.5"])
def test_methods_that_need_the_class_of_a_sample_say_so(method: str) -> None:
    with pytest.raises(InputError, match="with classes"):
        trained(masks(), method=method)


# ---- nested targets ----------------------------------------------------------------------------------------------


def nested(make: Callable[[Tensor], Any], loss: Callable[..., Tensor], score: Callable[..., Tensor]) -> Task:
    inputs = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    data = Arrays({"x": inputs}, make(inputs))

    class Net(nn.Linear):
        def forward(self, x: Any) -> Tensor:
            return super().forward(x["x"])

    return Task("nested", data, data, (), loss=loss, score=score, make_model=lambda: Net(4, 2), metric="close, %")


@pytest.mark.parametrize("method", ["infobatch", "sieve.hardest:look=own,keep=0.5"])
def test_targets_may_be_nested(method: str) -> None:
    def squared(outputs: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return (outputs[:, 0] - first).square() + (outputs[:, 1] - second).square()

    def by_name(outputs: Tensor, targets: Any, _: float) -> Tensor:
        return squared(outputs, targets["sum"], targets["more"][0])

    def by_place(outputs: Tensor, targets: Any, _: float) -> Tensor:
        return squared(outputs, targets[0], targets[1])

    def stacked(outputs: Tensor, targets: Any, _: float) -> Tensor:
        return squared(outputs, targets[:, 0], targets[:, 1])

    def close(outputs: Tensor, targets: Any) -> Tensor:
        del targets
        return (outputs[:, 0].abs() < 1).float()

    runs = []
    for feed in ("resident", "loader"):
        for make, loss in (
            (lambda x: {"sum": x.sum(1), "more": [x[:, 0]]}, by_name),
            (lambda x: [x.sum(1), x[:, 0]], by_place),
            (lambda x: torch.stack([x.sum(1), x[:, 0]], 1), stacked),
        ):
            runs.append(trained(nested(make, loss, close), method=method, feed=feed, lr=0.02, epochs=20))
    for other in runs[1:]:
        same(runs[0], other, but=PADDED)
    assert runs[0][-1]["test_loss"] < 0.1
    assert runs[0][-2]["most"][0]["label"] is None


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        ({"a": torch.zeros(4), "b": torch.zeros(5)}, "one row per sample in each tensor; got labels with 4 and 5 rows"),
        ({"a": torch.zeros(4), "b": "text"}, r"labels as a tensor \[N, ...\]; got dict"),
        ({}, r"labels as a tensor \[N, ...\]; got dict"),
        ([torch.zeros(3)], "as many labels as inputs; got 4 inputs and 3 labels"),
    ],
)
def test_nested_targets_that_cannot_be_right_are_refused(labels: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        Arrays(torch.zeros(4, 2), labels)


# ---- metrics -----------------------------------------------------------------------------------------------------


def error_rate() -> Named:
    wrong = MeanScore(lambda outputs, labels: (outputs.argmax(1) != labels).float())
    return Named(wrong, "error rate", higher_is_better=False, margin=0.003, scale=0.01)


def test_the_best_of_a_metric_is_its_lowest_where_lower_is_better() -> None:
    accurate, wrong = facts(), facts(made(metric=error_rate()))
    for one, other in zip(accurate, wrong, strict=True):
        if one.get("metric") is not None and one["kind"] != "start":
            assert other["metric"] == pytest.approx(1 - one["metric"] / 100)
    assert wrong[-1]["best"] == min(fact["metric"] for fact in wrong if fact["kind"] == "epoch")
    assert wrong[-1]["best"] == pytest.approx(1 - accurate[-1]["best"] / 100)
    assert wrong[-1]["class_metric"] == pytest.approx([1 - each / 100 for each in accurate[-1]["class_metric"]])
    assert wrong[0]["metric_info"]["higher_is_better"] is False


def test_the_best_survives_a_pause(tmp_path: Path) -> None:
    task, settings, calls = made(metric=error_rate()), Settings.of(QUICK), iter(range(40))
    told = list(loop.run(settings, task=task, keep=tmp_path / "c.pt", stop=lambda: next(calls, None) is None))
    assert told[-1]["kind"] == "pause"
    told = list(loop.run(settings, task=task, keep=tmp_path / "c.pt", resume=True))
    assert told[-1]["best"] == facts(task)[-1]["best"]


def test_a_run_goes_on_with_the_metric_it_began_with(tmp_path: Path) -> None:
    settings, calls = Settings.of(QUICK), iter(range(4))
    task = made(metric=error_rate())
    train_one(settings, tmp_path / "run", task=task, stop=lambda: next(calls, None) is None)
    with pytest.raises(InputError, match=r"error rate, lower is better, margin 0.003\); got accuracy, %, higher"):
        train_one(settings, tmp_path / "run", task=made(), resume=True)
    assert train_one(settings, tmp_path / "run", task=task, resume=True).end is not None


def test_a_metric_of_torchmetrics_works_as_it_is() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    theirs = torchmetrics.classification.MulticlassAccuracy(3, average="micro")
    theirs.update(torch.eye(3), torch.tensor([0, 0, 0]))
    ours = facts()
    told = facts(made(metric=theirs, margin=0.003))
    assert told[-1]["metric"] == pytest.approx(ours[-1]["metric"] / 100)
    assert told[0]["metric_info"]["margin"] == 0.003
    assert float(theirs.compute()) == pytest.approx(1 / 3)  # each run measures with a copy
    with pytest.raises(InputError, match="margin above 0 for the metric MulticlassAccuracy"):
        made(metric=theirs)


def test_metrics_that_cannot_be_right_are_refused_before_anything_is_trained() -> None:
    def untrained(*given: Any) -> Tensor:
        raise AssertionError("a step was made")

    class Two(Accuracy):
        def compute(self) -> Any:
            return {"top1": 1.0, "top5": 2.0}

    for metric, complaint in ((MeanIoU(4), r"outputs \[N, 4, ...\]"), (Two(), "one number")):
        with pytest.raises(InputError, match=complaint):
            facts(made(metric=metric, loss=untrained))
    with pytest.raises(InputError, match=r"the class Accuracy"):
        made(metric=Accuracy)
    with pytest.raises(InputError, match="margin above 0, in points"):
        made(margin=0.0)


def test_a_test_set_in_which_nothing_counts_has_no_value() -> None:
    task = masks()
    assert isinstance(task.test, Arrays)
    hollow = torch.full_like(task.test.labels, IGNORED)
    nothing = Arrays(task.test.inputs, hollow)
    with pytest.raises(InputError, match="a pixel to measure"):
        trained(replace(task, test=nothing), method="full", epochs=1)
    images = torch.cat([nothing.inputs.repeat(4, 1, 1, 1), task.test.inputs])
    late = Arrays(images, torch.cat([hollow.repeat(4, 1, 1), task.test.labels]))  # of the first 64, nothing counts
    told = [trained(replace(task, test=test), method="full", epochs=1)[-1] for test in (late, task.test)]
    assert told[0]["metric"] == told[1]["metric"]
    assert told[0]["test_loss"] == pytest.approx(told[1]["test_loss"])


@pytest.mark.parametrize("in_memory", [True, False])
def test_every_batch_of_a_test_set_counts(in_memory: bool) -> None:
    inputs = torch.randn(2100, 4, generator=torch.Generator().manual_seed(0))
    test = Arrays(inputs, (inputs[:, 0] > 0).long())
    train = Arrays(inputs[:40], test.labels[:40])
    task = Task("many", train, test if in_memory else as_data_set(test), ("no", "yes"))
    training = finished(Settings.of({**QUICK, "method": "full", "epochs": 2}), task)
    with torch.no_grad():
        hits = training.model.eval()(inputs).argmax(1) == test.labels
    told = training.test()
    assert told["metric"] == pytest.approx(100 * hits.double().mean().item())
    each = [100 * hits[test.labels == label].double().mean().item() for label in (0, 1)]
    assert told["class_metric"] == pytest.approx(each, abs=1e-4)


# ---- losses with scores ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["infobatch", "kakurenbo", "sieve.random_rows:keep=0.5"])
def test_scores_that_a_loss_returns_are_the_ones_recorded(method: str) -> None:
    def scored(outputs: Tensor, labels: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
        losses = F.cross_entropy(outputs, labels, reduction="none", label_smoothing=label_smoothing)
        return losses, torch.where(labels == 1, torch.nan, 10.0 + labels)

    task = made(loss=scored)
    training = loop.Training(Settings.of({**QUICK, "method": method}), task)
    for _ in range(3):
        training.epoch(lambda: False)
    training.train_data.plan()
    assert training.observed > 0 or method != "kakurenbo"
    scores, labels = training.train_data.scores, task.train.labels  # type: ignore[union-attr]
    for label in (0, 2):
        found = scores[labels == label]
        assert set(found[~found.isnan()].tolist()) == {10.0 + label}
        assert method.startswith("sieve") or not found.isnan().any()
    assert scores[labels == 1].isnan().all()  # unknown, so that they keep what they had: nothing


def test_a_test_loss_leaves_out_what_is_unknown() -> None:
    losses, score = torch.tensor([1.0, 0.0, torch.nan]), torch.tensor([1.0, torch.nan, torch.nan])
    assert known_losses(losses, score)[0] == 1.0
    assert len(known_losses(losses, score)) == 2  # a loss that is not finite is not hidden
    assert known_losses(losses, None) is losses
    with pytest.raises(InputError, match=r"a tensor, or \(loss, score\).*got list"):
        split_losses([1.0])


@pytest.mark.parametrize("method", ["infobatch", "sieve.hardest:look=own,keep=0.5", "sieve.lot:net=task,keep=0.5"])
def test_an_adapter_plugs_in(method: str) -> None:
    def loss(outputs: Tensor, targets: Tensor, _: float) -> Any:
        return adapters.segmentation_loss(outputs, targets, ignore_index=IGNORED)

    told = trained(masks(loss=loss), method=method, epochs=12)
    assert told[-1]["metric"] > 60
    assert told[-1]["saved"] > 0.1


# ---- confidence --------------------------------------------------------------------------------------------------


def test_confidences_are_the_tasks_own() -> None:
    def untrained(*given: Any) -> Tensor:
        raise AssertionError("a step was made")

    with pytest.raises(InputError, match=r"one class per sample.*confidence=function"):
        trained(masks(loss=untrained), method="kakurenbo")
    seen = []

    def confidence(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(len(targets))
        return outputs.softmax(1).amax(1).mean((1, 2))

    assert trained(masks(confidence=confidence), method="kakurenbo", epochs=8)[-1]["saved"] > 0
    assert seen
    usual = facts(method="kakurenbo")

    def in_class(outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.stack([row.softmax(0)[label] for row, label in zip(outputs, targets, strict=True)])

    own = facts(made(confidence=in_class), method="kakurenbo")
    assert own[-1]["samples"] == usual[-1]["samples"]
    assert own[-1]["test_loss"] == pytest.approx(usual[-1]["test_loss"], rel=1e-3)


def test_the_usual_confidence_is_that_in_the_class_or_in_the_classes_of_a_mixture() -> None:
    outputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    labels, shares = torch.tensor([0, 2, 1, 1, 0]), torch.tensor([1.0, 0.7, 0.5, 0.0, 0.2])
    hard, soft = torch.eye(3)[labels], torch.eye(3)[labels.flip(0)]
    mixture = shares[:, None] * hard + (1 - shares[:, None]) * soft
    for row in range(5):
        odds = [float(value) for value in outputs[row].exp()]
        in_class = [one / sum(odds) for one in odds]
        expected = in_class[labels[row]]
        other = in_class[labels.flip(0)[row]]
        assert float(confidence_in_class(outputs, labels)[row]) == pytest.approx(expected)
        mean = float(shares[row]) * expected + (1 - float(shares[row])) * other
        assert float(confidence_in_class(outputs, mixture)[row]) == pytest.approx(mean)


# ---- augmentation ------------------------------------------------------------------------------------------------


def mixed(inputs: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """MixUp with the batch reversed; labels become soft."""
    share = torch.rand(len(inputs), 1, generator=generator, device=inputs.device)
    soft = F.one_hot(targets, 3).float()
    wide = share[..., None, None]
    return wide * inputs + (1 - wide) * inputs.flip(0), share * soft + (1 - share) * soft.flip(0)


@pytest.mark.parametrize("method", ["infobatch", "kakurenbo", "sieve.hardest:look=own,keep=0.5"])
def test_an_augmentation_may_mix_samples_and_their_targets(method: str) -> None:
    task = made(augment=mixed)
    resident = facts(task, method=method)
    assert resident[-1]["metric"] > 60
    same(resident, facts(task, method=method, feed="loader"))
    assert resident[-1]["test_loss"] != facts(method=method)[-1]["test_loss"]


def test_an_augmentation_is_left_out_where_others_are() -> None:
    same(facts(made(augment=mixed), augment=False), facts(augment=False))


def test_each_batch_has_its_own_draws_and_has_them_again(tmp_path: Path) -> None:
    """Drawn from seed, epoch and place: whatever was drawn before, and after a pause at any batch."""
    drawn: list[float] = []

    def noting(inputs: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        drawn.append(float(torch.rand((), generator=generator)))
        torch.rand(3, generator=generator)
        return mixed(inputs, targets, generator)

    task, settings = made(augment=noting, make_model=None), Settings.of({**QUICK, "epochs": 4})
    whole = list(loop.run(settings, task=task))
    first, drawn = drawn, []
    assert len(set(first)) == len(first) == whole[-1]["steps"]
    for pause in (1, 13, 22):
        calls, path = iter(range(pause)), tmp_path / f"{pause}.pt"
        list(loop.run(settings, task=task, keep=path, stop=lambda calls=calls: next(calls, None) is None))
        torch.rand(5)
        same(whole[-2:], [whole[-2], list(loop.run(settings, task=task, keep=path, resume=True))[-1]])
        assert drawn == first
        drawn = []
    list(loop.run(settings.but(seed=1), task=task))
    assert not set(drawn) & set(first)


def flipped(inputs: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    turn = torch.rand(len(inputs), generator=generator) < 0.5
    return (
        torch.where(turn[:, None, None, None], inputs.flip(3), inputs),
        torch.where(turn[:, None, None], targets.flip(2), targets),
    )


def test_masks_and_images_are_flipped_together() -> None:
    told = trained(masks(augment=flipped, loss=per_pixel), epochs=12)
    assert told[-1]["metric"] > 60


@pytest.mark.parametrize(
    ("augment", "complaint"),
    [
        (lambda inputs, targets, generator: inputs, "inputs and targets from the task's augment; got Tensor"),
        (lambda inputs, targets, generator: (inputs, "text"), "got tuple"),
        (lambda inputs, targets, generator: (inputs[1:], targets[1:]), "16 rows in all .*; got 15 rows"),
        (lambda inputs, targets, generator: (inputs.repeat(2, 1, 1, 1), targets), "got 16 and 32 rows"),
    ],
)
def test_an_augmentation_that_loses_track_is_refused(augment: Callable[..., Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        facts(made(augment=augment))


def test_functions_with_other_arguments_are_refused() -> None:
    with pytest.raises(InputError, match=r"augment as a function \(inputs, targets, generator\); got"):
        made(augment=lambda inputs, targets: (inputs, targets))
    with pytest.raises(InputError, match=r"confidence as a function \(outputs, targets\)"):
        made(confidence=lambda outputs: outputs)
