"""Own tasks: what cannot be right is said at the start, and inputs may be more than one tensor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from infobatch.errors import InputError
from infobatch.lab.runs import runner
from infobatch.lab.runs.records import read
from infobatch.lab.runs.runner import settle, train_one
from infobatch.lab.tasks.nets import fingerprint, make_net, net_for
from infobatch.lab.tasks.task import Arrays, Task, differences, right
from infobatch.lab.train import loop
from infobatch.lab.train.settings import Settings

QUICK = Settings(epochs=2, batch_size=8, lr=0.05, threads=1, model="mlp", gallery=0)


def some(count: int = 20, classes: int = 3, **given: Tensor) -> Arrays:
    parts = {"inputs": torch.zeros(count, 4), "labels": torch.arange(count) % classes}
    return Arrays(**{**parts, **given})


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: some(labels=torch.zeros(19).long()), "as many labels as inputs; got 20 inputs and 19 labels"),
        (lambda: Arrays([[1.0]], torch.zeros(1).long()), r"inputs as a tensor \[N, ...\]; got list"),
        (lambda: Task("t", some(0), some(), ("a", "b", "c")), "samples in the training set of t; got none"),
        (lambda: Task("t", some(), some(0), ("a", "b", "c")), "samples in the test set of t; got none"),
        (lambda: Task("t", some(classes=5), some(), ("a", "b", "c")), "labels from 0 to 2 in the training .* 0 to 4"),
        (lambda: Task("t", some(), some(classes=5), ("a", "b", "c")), "labels from 0 to 2 in the test .* 0 to 4"),
        (lambda: Task("t", some(labels=-torch.ones(20).long()), some(), ("a",)), "got -1 to -1"),
        (lambda: Task("t", some(labels=torch.rand(20)), some(), ("a", "b", "c")), r"got torch.float32 \[20\]"),
        (lambda: Task("t", iter([1]), some(), ()), "__len__ and __getitem__"),
        (
            lambda: Task("t", (torch.zeros(9, 4), torch.zeros(9).long()), some(), ()),
            r"training .* Arrays\(inputs, labels",
        ),
        (lambda: Task("t", some(), (np.zeros((9, 4)), np.zeros(9)), ()), r"test set .* Arrays\(inputs, labels\)"),
        (
            lambda: Task("t", some(), some(), (), loss=nn.CrossEntropyLoss()),
            r"CrossEntropyLoss.*criterion\(outputs, lab",
        ),
        (lambda: Task("t", some(), some(), (), loss=nn.MSELoss(reduction="none")), "cross_entropy"),
        (lambda: Task("t", some(), some(), (), loss=lambda outputs, labels: outputs), "label_smoothing.*lambda"),
        (lambda: Task("t", some(), some(), (), make_model=nn.Linear(4, 3)), "Linear.*make_model=lambda: "),
    ],
)
def test_a_task_that_cannot_be_right_is_refused(make: Callable[[], Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        make()


class Smoothed(nn.Module):
    def forward(self, outputs: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
        return nn.functional.cross_entropy(outputs, labels, reduction="none", label_smoothing=label_smoothing)


def test_a_loss_may_be_a_module_and_a_data_set_a_list() -> None:
    samples = [(torch.zeros(4), 0), (torch.zeros(4), 1)]
    Task("t", samples, samples, (), loss=Smoothed(), make_model=lambda: nn.Linear(4, 3))  # type: ignore[arg-type]


class Made(Dataset[Any]):
    """A data set of whatever ``item`` makes of its places."""

    def __init__(self, item: Callable[[int], Any], count: int = 20) -> None:
        self.item, self.count = item, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> Any:
        if not 0 <= at < self.count:
            raise IndexError(at)
        return self.item(at)


class First(nn.Module):
    """Of several inputs, the first one counts."""

    def __init__(self, key: Any) -> None:
        super().__init__()
        self.key, self.layer = key, nn.Linear(4, 3)

    def forward(self, inputs: Any) -> Any:
        return self.layer(inputs[self.key])


@pytest.mark.parametrize(
    ("item", "key"),
    [
        (lambda at: ((torch.full((4,), at % 3.0), torch.zeros(2)), at % 3), 0),
        (lambda at: ([torch.full((4,), at % 3.0), torch.zeros(2)], at % 3), 0),
        (lambda at: ({"x": torch.full((4,), at % 3.0), "deep": {"y": [torch.zeros(2)]}}, at % 3), "x"),
    ],
    ids=["tuple", "list", "dict"],
)
def test_an_input_may_have_several_parts(item: Callable[[int], Any], key: Any) -> None:
    task = Task("parts", Made(item), Made(item), ("a", "b", "c"), make_model=lambda: First(key))
    assert list(loop.run(QUICK.but(model="task"), task=task))[-1]["steps"] > 0
    with pytest.raises(InputError, match=r"resnet8.*make_model"):
        list(loop.run(QUICK.but(model="resnet8"), task=task))


@pytest.mark.parametrize("named", ["conv", "mlp", "task", ""])
@pytest.mark.parametrize("has_own", [True, False])
def test_a_net_that_is_named_is_taken_before_the_tasks_own(
    named: str, has_own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = some(inputs=torch.zeros(20, 1, 4, 4))
    make = (lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3))) if has_own else None
    task = Task("pictures", images, images, ("a", "b", "c"), make_model=make)
    monkeypatch.setattr(runner, "make_task", lambda *_: task)
    settings, _ = settle({"model": named} if named else {})
    expected = named or ("task" if has_own else "conv")
    assert settings.model == expected, "the record tells it"
    if expected == "task" and make is None:
        with pytest.raises(InputError, match="a task with its own net"):
            net_for(task, settings)
        return
    wanted = fingerprint(make() if expected == "task" and make else make_net(expected, (1, 4, 4), 3))
    assert fingerprint(net_for(task, settings)) == wanted
    assert fingerprint(net_for(task, Settings(**({"model": named} if named else {})))) == wanted


@pytest.mark.parametrize(
    ("item", "classes", "complaint"),
    [
        (lambda at: (torch.zeros(4), at % 5), "abc", "labels from 0 to 2 in the training set.* to 4"),
        (lambda at: (torch.zeros(4), "a"), "abc", "labels from 0 to 2 .*; got tuple"),
        (lambda at: (torch.zeros(4), "a"), "", "targets that batch to tensors, .*; got tuple"),
        (lambda at: ((torch.zeros(4), "a"), at % 3), "abc", "inputs that batch to tensors; got str in an input"),
        (
            lambda at: (torch.zeros(4), at % 3, at),
            "abc",
            r"samples \(input, label\) in the training set; got 3 parts",
        ),
    ],
)
def test_a_data_set_that_cannot_be_right_is_refused(item: Callable[[int], Any], classes: str, complaint: str) -> None:
    good = Made(lambda at: (torch.zeros(4), at % 3))
    for train, test, named in ((good, Made(item), "test"), (Made(item), good, "training")):
        task = Task("odd", train, test, tuple(classes), make_model=lambda: nn.Linear(4, 3))
        with pytest.raises(InputError, match=complaint.replace("training", named)):
            list(loop.run(QUICK.but(model="task"), task=task))


def wrong_once_trained(outputs: Tensor, labels: Tensor) -> Tensor:
    return right(outputs, labels) + (2.0 if bool(outputs.detach().abs().amax() > 0) else 0.0)


@pytest.mark.parametrize(
    ("score", "complaint"),
    [
        (
            lambda outputs, labels: right(outputs, labels).mean(),
            r"shape \[20\]; got .* shape \[\]. Leave out the mean",
        ),
        (lambda outputs, labels: right(outputs, labels)[:, None], r"shape \[20\]; got .* of shape \[20, 1\]. Reduce"),
        (lambda outputs, labels: right(outputs, labels)[1:], r"shape \[20\]; got .* of shape \[19\]"),
        (lambda outputs, labels: right(outputs, labels).tolist(), "got list. Return a tensor"),
        (lambda outputs, labels: 100 * right(outputs, labels), r"scores in \[0, 1\] .*; got 0 to 100. .*100 times"),
        (lambda outputs, labels: right(outputs, labels) - 1, r"scores in \[0, 1\] .*; got -1 to 0"),
    ],
)
def test_a_score_that_cannot_be_right_is_refused_before_anything_is_trained(
    score: Callable[..., Any], complaint: str, tmp_path: Path
) -> None:
    def untrained(*given: Any) -> Tensor:
        raise AssertionError("a step was made")

    item = Made(lambda at: (torch.zeros(4), at % 3))
    for data in (some(), item):
        task = Task("odd", data, data, ("a", "b", "c"), loss=untrained, score=score)
        with pytest.raises(InputError, match=complaint):
            train_one(QUICK, tmp_path / "run", task=task)
    assert not list(tmp_path.iterdir())


def test_a_score_that_goes_wrong_later_is_told_at_that_test(tmp_path: Path) -> None:
    def make() -> nn.Module:
        model = nn.Linear(4, 3)
        for each in model.parameters():
            nn.init.zeros_(each)
        return model

    task = Task("odd", some(), some(), ("a", "b", "c"), score=wrong_once_trained, make_model=make)
    with pytest.raises(InputError, match=r"scores in \[0, 1\] .*; got 2 to 3"):
        train_one(QUICK.but(model="task"), tmp_path / "run", task=task)
    assert read(tmp_path / "run").end is None


@pytest.mark.parametrize("score", [lambda o, y: o.argmax(1) == y, lambda o, y: torch.full((len(y),), torch.nan)])
def test_a_score_may_be_true_or_false_and_a_net_may_diverge(score: Callable[..., Any]) -> None:
    task = Task("fine", some(), some(), ("a", "b", "c"), score=score)
    assert list(loop.run(QUICK, task=task))[-1]["steps"] > 0


def test_trying_the_score_draws_from_no_generator_of_the_run() -> None:
    def drawing(outputs: Tensor, labels: Tensor) -> Tensor:
        return torch.rand(len(labels))

    def losses(score: Callable[..., Any]) -> list[float]:
        task = Task("t", data, data, ("a", "b", "c"), score=score, make_model=make)
        told = list(loop.run(QUICK.but(model="task", epochs=4, eval_every=4), task=task))
        return [fact["train_loss"] for fact in told if fact["kind"] == "epoch"]

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))

    data = some(inputs=torch.randn(20, 4, generator=torch.Generator().manual_seed(0)))
    assert losses(drawing) == losses(right)


def test_data_in_memory_are_known_by_what_they_are() -> None:
    """Of every kind of number, each value counts; where they lie and how does not."""
    for kind in (torch.uint8, torch.float32, torch.float64, torch.bool, torch.bfloat16):
        inputs = (torch.arange(80).reshape(20, 4) % 7).to(kind)
        tasks = [
            Task("a", some(inputs=inputs), some(), ("x", "y", "z")),
            Task("b", some(inputs=inputs.t().contiguous().t()), some(), ("x", "y", "z")),
        ]
        changed = inputs.clone()
        changed[-1, -1] = not changed[-1, -1]
        other = Task("a", some(inputs=changed), some(), ("x", "y", "z"))
        assert tasks[0].data == tasks[1].data
        assert [text.split()[0] for text in differences(other.data, tasks[0].data)] == ["source"]
    assert Task("files", Made(lambda at: (torch.zeros(4), 0)), some(), ()).data["source"] == ""
    assert Task("named", some(), some(), (), source="mine").data["source"] == "mine"
