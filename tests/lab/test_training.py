"""The lab's loop against a plain one written out here, and against itself by other ways."""

from __future__ import annotations

import base64
import math
import subprocess
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import infobatch
from infobatch.errors import InputError, StateError
from infobatch.lab import captured, proxies, resuming, telling, training
from infobatch.lab.nets import make_net
from infobatch.lab.optim import make_optimizer, make_scheduler
from infobatch.lab.rates import epoch_rates, rate_table
from infobatch.lab.records import Fact
from infobatch.lab.settings import Settings, parse_method
from infobatch.lab.tasks import Arrays, Task
from infobatch.plan import Plan

pytestmark = pytest.mark.filterwarnings("ignore:.*noise-to-signal:infobatch.InfoBatchWarning")

QUICK: dict[str, Any] = {"epochs": 8, "batch_size": 16, "lr": 0.05, "threads": 1, "model": "mlp", "gallery": 2}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def made(size: int = 150, **given: Any) -> Task:
    """Small images whose class is where they are bright."""
    draw = torch.Generator().manual_seed(1)

    def some(count: int) -> Arrays:
        labels = torch.randint(3, (count,), generator=draw)
        images = torch.randint(0, 120, (count, 1, 6, 6), generator=draw, dtype=torch.uint8)
        for label in range(3):
            images[labels == label, :, 2 * label : 2 * label + 2] += 60
        return Arrays(images, labels)

    return Task("made", some(size), some(60), ("a", "b", "c"), **{"mean": (0.3,), "std": (0.2,), **given})


def facts(task: Task | None = None, **given: Any) -> list[Fact]:
    return list(training.run(Settings.of({**QUICK, **given}), task=task or made()))


def test_the_loop_is_the_plain_loop() -> None:
    """Three lines, pace and a loader, written out: the same losses, weights, rates and answers."""
    task, settings = made(), Settings.of({**QUICK, "compensate": "lr", "label_smoothing": 0.1})
    assert isinstance(task.train, Arrays)
    assert isinstance(task.test, Arrays)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = make_net("mlp", (1, 6, 6), 3)
    data = infobatch.InfoBatch(task.train, 8, compensate="lr")
    optimizer = make_optimizer(model, settings)
    steps = math.ceil(150 / 16)
    scheduler = infobatch.pace(make_scheduler(optimizer, settings, 8 * steps), data, steps)
    rates, kept = [], []
    for _ in range(8):
        kept.append(data.plan().kept)
        for images, labels in infobatch.DataLoader(data, batch_size=16):
            rates.append(scheduler.get_last_lr()[0])
            x = (images.float() - 0.3 * 255) * (1 / (torch.tensor([0.2]).reshape(-1, 1, 1) * 255))
            loss = data.update(F.cross_entropy(model(x), labels, reduction="none", label_smoothing=0.1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
    x = (task.test.inputs.float() - 0.3 * 255) / (0.2 * 255)
    metric = 100 * (model(x).argmax(1) == task.test.labels).double().mean().item()

    told = list(training.run(settings, task=task))
    assert [fact["kept"] for fact in told if fact["kind"] == "epoch"] == kept
    assert told[-1]["metric"] == pytest.approx(metric)
    assert told[-1]["samples"] == sum(kept)
    lab = training.Training(settings, task)
    table = rate_table(settings, 8 * steps)
    mine = []
    for epoch, count in enumerate(kept):
        mine += epoch_rates(table, epoch, math.ceil(count / 16), count, 150, settings, steps)
    assert mine == pytest.approx(rates)
    assert lab.full_steps == steps


@pytest.mark.parametrize("workers", [0, 2])
def test_both_feeds_train_the_same(workers: int) -> None:
    task = made(pad=1, flip=True)
    resident, loaded = facts(task, feed="resident"), facts(task, feed="loader", workers=workers)
    for one, other in zip(resident, loaded, strict=True):
        if one["kind"] in ("epoch", "end"):
            for key in set(one) - {"seconds", "time"}:
                assert one[key] == other[key], (one["kind"], key)
    assert [fact["environment"]["feed"] for fact in (resident[0], loaded[0])] == ["resident", "loader"]


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 3))


@pytest.mark.parametrize("feed", ["resident", "loader"])
@pytest.mark.parametrize("method", ["infobatch", "full", "kakurenbo", "static.el2n:then=infobatch"])
def test_a_run_may_pause_at_any_batch_and_go_on(tmp_path: Path, feed: str, method: str) -> None:
    """Bit for bit, and with a net that draws from the global generator."""
    task = made(pad=1, flip=True, make_model=with_dropout)
    settings = Settings.of({**QUICK, "epochs": 8, "feed": feed, "method": method, "model": "task"})
    whole = list(training.run(settings, task=task))
    for pause_at in (1, 13, 31):
        count = 0

        def stop(last: int = pause_at) -> bool:
            nonlocal count
            count += 1
            return count >= last

        path = tmp_path / f"{pause_at}.pt"
        first = list(training.run(settings, task=task, keep=path, stop=stop))
        assert first[-1]["kind"] == "pause"
        second = list(training.run(settings, task=task, keep=path, resume=True))
        assert second[0]["kind"] == "resume"
        again = [*first[:-1], *second[1:]]
        assert [fact["kind"] for fact in again] == [fact["kind"] for fact in whole]
        for one, other in zip(whole[1:], again[1:], strict=True):
            for key in set(one) - {"seconds", "time"}:
                assert one[key] == other[key], (pause_at, one["kind"], key)
        for part in ("data", "step", "planning", "test"):  # an epoch in two parts took both
            told = sum(fact["seconds"][part] for fact in again if fact["kind"] == "epoch")
            assert told == pytest.approx(again[-1]["seconds"][part], abs=1e-4)


def test_a_run_with_epochs_of_one_batch_can_be_stopped(tmp_path: Path) -> None:
    settings = Settings.of({**QUICK, "batch_size": 150})
    first = list(training.run(settings, task=made(), keep=tmp_path / "c.pt", stop=lambda: True))
    assert [fact["kind"] for fact in first] == ["start", "epoch", "pause"]
    second = list(training.run(settings, task=made(), keep=tmp_path / "c.pt", resume=True))
    assert second[-1]["test_loss"] == facts(batch_size=150)[-1]["test_loss"]


@pytest.mark.parametrize("feed", ["resident", "loader"])
def test_no_loader_draws_from_the_global_generator(feed: str) -> None:
    lab = training.Training(Settings.of({**QUICK, "feed": feed, "method": "kakurenbo"}), made())
    before = torch.get_rng_state()
    while not lab.over:
        lab.epoch(lambda: False)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    settings, path = Settings.of(QUICK), tmp_path / "checkpoint.pt"
    list(training.run(settings, task=made(), keep=path, stop=lambda: True))
    with pytest.raises(StateError, match="these settings"):
        list(training.run(settings.but(lr=0.1), task=made(), keep=path, resume=True))


def test_a_static_method_pays_for_its_proxy_and_is_told_of_all_data() -> None:
    proxies._known.clear()
    task = made(texts=lambda index: f"row {index}")
    assert isinstance(task.train, Arrays)
    for method in ("static.el2n:share=0.6", "static.craig:share=0.6"):  # the second finds the proxy trained
        told = facts(task, method=method, gallery=150)
        start, end, epochs = told[0], told[-1], [fact for fact in told if fact["kind"] == "epoch"]
        assert (start["size"], end["samples"], end["saved"]) == (150, 8 * 90, pytest.approx(0.4))
        assert end["class_size"] == task.train.labels.bincount().tolist()
        assert sum(end["class_kept"]) == end["samples"]
        assert {(fact["size"], fact["kept"], round(fact["saved"], 9)) for fact in epochs} == {(150, 90, 0.4)}
        assert epochs[-1]["saved_so_far"] == pytest.approx(end["saved"])
        assert end["seconds"]["selection"] > 2 * end["seconds"]["setup"]
        assert end["seconds"]["total"] > end["seconds"]["selection"]
        for each in told[-2]["most"]:
            image = task.train.inputs[each["index"]]
            assert base64.b64decode(each["image"]["bytes"]) == image.numpy().tobytes()
            assert each["label"] == "abc"[task.train.labels[each["index"]]]
            assert each["text"] == f"row {each['index']}"
            assert each["kept"] in (0, 8)
            assert (each["loss"] is None) == (each["kept"] == 0)
        assert sum(each["kept"] for each in told[-2]["most"]) == end["samples"]
    assert facts(task)[-1]["seconds"]["selection"] == 0


def test_a_run_goes_on_with_what_it_had_chosen(tmp_path: Path) -> None:
    """Another machine might choose others; and the proxy is not trained again."""
    task, settings = made(), Settings.of({**QUICK, "method": "static.grand"})
    whole = list(training.run(settings, task=task))
    list(training.run(settings, task=task, keep=tmp_path / "c.pt", stop=lambda: True))
    state = torch.load(tmp_path / "c.pt")
    other = torch.randperm(150)[: len(state["choice"]["indices"])].sort().values
    state["choice"]["indices"] = other
    torch.save(state, tmp_path / "other.pt")
    again = list(training.run(settings, task=task, keep=tmp_path / "other.pt", resume=True))
    lab = training.Training(settings, task, state=resuming.read_state(tmp_path / "other.pt", settings, task))
    assert lab.choice is not None
    assert torch.equal(lab.choice.indices, other)
    assert again[-1]["seconds"]["selection"] > 0  # what it took at first
    assert again[-1]["class_kept"] == (8 * made().train.labels[other].bincount(minlength=3)).tolist()  # type: ignore[union-attr]
    assert whole[-1]["samples"] == again[-1]["samples"]


def test_a_checkpoint_of_other_data_is_refused(tmp_path: Path) -> None:
    settings, path = Settings.of(QUICK), tmp_path / "checkpoint.pt"
    list(training.run(settings, task=made(), keep=path, stop=lambda: True))
    with pytest.raises(StateError, match=r"on these data.*size 150, not 151"):
        list(training.run(settings, task=made(151), keep=path, resume=True))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("captured", [True, False])
def test_a_checkpoint_made_with_a_captured_step_goes_on_without_and_the_other_way(
    optimizer: str, captured: bool
) -> None:
    settings = Settings.of({"optimizer": optimizer, "lr": 0.01})
    theirs, mine = nn.Linear(3, 2), nn.Linear(3, 2)
    mine.load_state_dict(theirs.state_dict())
    before = make_optimizer(theirs, settings)
    after = make_optimizer(mine, settings, captured=captured)
    inputs = torch.rand(5, 3)
    theirs(inputs).sum().backward()
    mine(inputs).sum().backward()
    before.step()
    state = deepcopy(before.state_dict())
    if not captured:  # as it comes from a GPU
        graph = {"lr": torch.tensor(0.5), "fused": True, "capturable": True}
        group = state["param_groups"][0]
        group |= {key: value for key, value in graph.items() if key in group}
    flags = {key: after.param_groups[0].get(key) for key in resuming.HOW}
    resuming.load_optimizer(after, state)
    assert {key: after.param_groups[0].get(key) for key in resuming.HOW} == flags
    assert isinstance(after.param_groups[0]["lr"], torch.Tensor) == captured
    mine.load_state_dict(theirs.state_dict())
    for group in after.param_groups:  # the CPU steps without a graph
        group |= {"capturable": False} if "capturable" in group else {}
    before.step()
    after.step()
    assert torch.allclose(theirs.weight, mine.weight)


def test_a_graph_is_captured_from_a_whole_batch_and_from_no_more_than_one() -> None:
    """The warm-up, on the CPU: on a GPU, indices past the end would stop the device."""

    class Warm(captured.Captured):
        def _capture(self) -> Any:
            self.warm_up()

    cuda = torch.device("cuda")
    for batch in (16, 76, 150, 151):
        settings = Settings.of({**QUICK, "batch_size": batch})
        assert captured.capturable(made(), settings, cuda) == (batch <= 150)
        if batch <= 150:
            lab = training.Training(settings, made(pad=1, flip=True))
            lab.optimizer = make_optimizer(lab.model, settings, captured=True)
            seen: list[Any] = []
            lab.step = seen.append  # type: ignore[method-assign]
            Warm(lab)
            first = cast(Plan, lab.train_data.plan()).indices[:batch]
            assert [piece.indices.tolist() for piece in seen] == 3 * [first.tolist()]
    assert not captured.capturable(made(), Settings.of({**QUICK, "feed": "loader"}), cuda)
    assert not captured.capturable(made(), Settings.of(QUICK), torch.device("cpu"))


@pytest.mark.parametrize("feed", ["resident", "loader"])
def test_cudnn_tries_out_no_size_of_a_last_batch(feed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pruned epoch ends in another one. For whole batches it is as the caller said, and so after a run."""
    seen: set[tuple[bool, bool, bool]] = set()
    step, flags = training.Training.step, torch.backends.cudnn

    def look(self: training.Training, batch: Any) -> None:
        seen.add((len(batch.labels) == 16, flags.benchmark, flags.enabled))
        step(self, batch)

    monkeypatch.setattr(training.Training, "step", look)
    monkeypatch.setattr(flags, "benchmark", True)
    facts(feed=feed)
    assert seen == {(True, True, True), (False, False, True)}
    with pytest.raises(ZeroDivisionError), captured.tuning(False):
        _ = 1 // 0
    assert flags.benchmark


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("batch", [16, 70, 150, 151])
def test_on_a_gpu_a_run_is_the_same_with_a_graph_and_without_and_half_and_half(
    tmp_path: Path, optimizer: str, batch: int
) -> None:
    rate = 0.05 if optimizer == "sgd" else 0.001
    with_graph = Settings.of({**QUICK, "method": "full", "batch_size": batch, "optimizer": optimizer, "lr": rate})
    without = with_graph.but(graph=False)
    losses = []
    for first, second in ((with_graph, with_graph), (without, without), (with_graph, without), (without, with_graph)):
        calls, path = iter(range(5)), tmp_path / "c.pt"
        told = list(training.run(first, task=made(), keep=path, stop=lambda calls=calls: next(calls, None) is None))
        assert told[-1]["kind"] == "pause"
        told += training.run(second, task=made(), keep=path, resume=True)
        losses.append([fact["train_loss"] for fact in told if fact["kind"] == "epoch"])
        assert told[0]["environment"]["graph"] == (first.graph and batch <= 150)
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=1e-2)


@pytest.mark.parametrize("feed", ["resident", "loader"])
def test_a_last_batch_of_one_trains_with_batch_norm(feed: str) -> None:
    """Of the layers that would see one value, only the statistics are used; the others do as ever."""
    layers = [
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.Flatten(),
        nn.Linear(64, 8),
        nn.BatchNorm1d(8),
        nn.Linear(8, 3),
    ]
    told = facts(made(145, make_model=lambda: nn.Sequential(*layers)), model="task", method="full", feed=feed)
    assert told[-1]["samples"] == 8 * 145
    assert told[-1]["steps"] == 8 * 10
    assert int(layers[1].num_batches_tracked) == 80  # type: ignore[arg-type]
    assert int(layers[4].num_batches_tracked) == 72  # type: ignore[arg-type]
    assert told[-1]["metric"] > 60


def test_a_class_without_test_samples_has_no_metric() -> None:
    task = made()
    assert isinstance(task.test, Arrays)
    there = task.test.labels != 1
    end = facts(replace(task, test=Arrays(task.test.inputs[there], task.test.labels[there])))[-1]
    assert end["class_metric"][1] is None
    assert min(end["class_metric"][0], end["class_metric"][2]) > 60


def test_equal_steps_end_where_they_should() -> None:
    told = facts(method="full", steps=25)
    epochs = [fact for fact in told if fact["kind"] == "epoch"]
    assert [fact["steps"] for fact in epochs] == [10, 10, 5]
    assert told[-1]["steps"] == 25
    assert told[-1]["samples"] == 150 + 150 + 5 * 16
    assert told[-1]["saved"] == pytest.approx(1 - (300 + 80) / 1200)  # less than the full run it stands beside
    assert epochs[-1]["lr"] < 1e-4  # the schedule is pressed into them
    last, end = epochs[-1], told[-1]
    assert end["epochs"] == len(epochs)
    assert (last["kept"], last["effective_size"], last["weights"]) == (80, 80, {"values": [1.0], "counts": [80]})
    assert last["saved"] == pytest.approx(1 - 80 / 150)
    assert last["saved_so_far"] == pytest.approx(1 - (300 + 80) / 450)
    assert (last["growth"], last["noise"]) == (1, 1)  # nothing was pruned
    assert [sum(counts) for counts in zip(*(fact["class_kept"] for fact in epochs), strict=True)] == end["class_kept"]
    with pytest.raises(InputError, match="full"):
        facts(method="infobatch", steps=25)


def test_what_is_told_adds_up() -> None:
    told = facts()
    epochs = [fact for fact in told if fact["kind"] == "epoch"]
    end, start, samples = told[-1], told[0], told[-2]
    assert [fact["kind"] for fact in told] == ["start"] + ["epoch"] * 8 + ["samples", "end"]
    assert end["samples"] == sum(fact["kept"] for fact in epochs)
    assert end["steps"] == sum(fact["steps"] for fact in epochs)
    assert end["saved"] == pytest.approx(1 - end["samples"] / 1200)
    assert end["saved"] == pytest.approx(epochs[-1]["saved_so_far"])
    assert sum(end["class_size"]) == 150
    assert sum(end["class_kept"]) == end["samples"]
    for fact in epochs:
        assert sum(fact["class_kept"]) == sum(fact["weights"]["counts"]) == fact["kept"]
        total = sum(w * n for w, n in zip(fact["weights"]["values"], fact["weights"]["counts"], strict=True))
        assert total == pytest.approx(150)
        if fact.get("losses"):
            assert sum(fact["losses"]["before"]) == 150
            assert sum(fact["losses"]["after"]) == fact["kept"]
            assert sum(fact["losses"]["rescaled"]) == pytest.approx(150, abs=0.1)
    assert start["settings"] == Settings.of(QUICK).plain()
    assert samples["most"][0]["kept"] == 8
    assert samples["least"][0]["kept"] == min(each["kept"] for each in samples["least"])
    assert end["seconds"]["total"] == pytest.approx(
        sum(v for k, v in end["seconds"].items() if k != "total"), abs=1e-4
    )


def test_a_run_can_be_made_again_from_its_record() -> None:
    first = facts()
    second = list(training.run(Settings.of(first[0]["settings"]), task=made()))
    assert second[-1]["metric"] == first[-1]["metric"]
    assert second[-1]["test_loss"] == first[-1]["test_loss"]


def test_a_commit_is_told_of_a_repository_that_has_this_code_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment that lies inside a person's own repository is not the repository's."""
    package = tmp_path / ".venv" / "telling.py"
    package.parent.mkdir()
    package.touch()
    (tmp_path / "theirs.py").touch()

    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        return subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    git("add", "theirs.py")
    git("commit", "-qm", "first")
    monkeypatch.setattr(telling, "__file__", str(package))
    assert telling.git_state() is None
    git("add", "-f", ".venv")
    git("commit", "-qm", "second")
    assert telling.git_state() == {"commit": git("rev-parse", "HEAD").strip(), "dirty": False}


def test_tests_come_when_asked_for_and_at_the_end() -> None:
    epochs = [fact for fact in facts(eval_every=3) if fact["kind"] == "epoch"]
    assert [fact["epoch"] for fact in epochs if fact["metric"] is not None] == [2, 5, 7]


@pytest.mark.parametrize(
    "given",
    [
        {"optimizer": "adam", "lr": 0.001},
        {"optimizer": "adamw", "lr": 0.001},
        {"optimizer": "radam", "lr": 0.001},
        {"optimizer": "lars", "lr": 0.5},
        {"optimizer": "lamb", "lr": 0.01},
        {"schedule": "cosine"},
        {"schedule": "step"},
        {"schedule": "constant"},
        {"amp": "bf16", "model": "conv", "channels_last": True},
        {"nesterov": True},
        {"ideas": "sqrt_growth", "compensate": "lr"},
        {"ideas": "average+normalise"},
        {"ideas": "recalibrate", "model": "conv"},
        {"method": "one_walk"},
        {"method": "ramp"},
        {"method": "rising:ratio=0.3"},
        {"method": "kakurenbo", "compensate": "lr"},
        {"method": "ies:bound=0.05"},
        {"method": "rcap:class_floor=0.5"},
        {"method": "bls:inner=seta,unbiased=0.3,annealed=0.9"},
        {"method": "dynamic_uncertainty:window=3,noise_guard=0.1"},
    ],
    ids=str,
)
def test_every_setting_trains(given: dict[str, Any]) -> None:
    told = facts(**{**given, "epochs": 10})
    assert told[-1]["metric"] > 60, told[-1]["metric"]
    assert math.isfinite(told[-1]["test_loss"])


def test_a_task_of_floats_without_classes_and_with_its_own_net() -> None:
    inputs = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
    data = Arrays(inputs, inputs.sum(1))
    task = Task(
        "line",
        data,
        data,
        (),
        loss=lambda outputs, targets, smoothing: (outputs.squeeze(1) - targets).square(),
        score=lambda outputs, targets: ((outputs.squeeze(1) - targets).abs() < 0.5).float(),
        make_model=lambda: torch.nn.Linear(4, 1),
        metric="close, %",
        texts=lambda index: f"row {index}",
    )
    told = facts(task, model="task", epochs=20, lr=0.03)
    assert told[-1]["metric"] > 90
    assert told[-1]["class_metric"] is None
    assert told[-2]["most"][0]["text"].startswith("row ")
    assert "image" not in told[-2]["most"][0]


@pytest.mark.filterwarnings("ignore:.*not finite:infobatch.InfoBatchWarning")
def test_a_loss_that_is_not_finite_is_counted() -> None:
    def odd(outputs: torch.Tensor, labels: torch.Tensor, smoothing: float) -> torch.Tensor:
        losses = F.cross_entropy(outputs, labels, reduction="none")
        return torch.where(torch.arange(len(labels)) == 0, torch.nan, losses) if torch.is_grad_enabled() else losses

    told = facts(made(loss=odd), method="full", epochs=1)
    assert told[1]["not_finite"] == told[-1]["not_finite"] == 10  # one a batch


def test_crops_and_flips_are_what_they_say() -> None:
    from infobatch.lab.feeding import Draws, crop_and_flip

    images = torch.randint(0, 255, (5, 3, 4, 4), dtype=torch.uint8)
    shifts, flips = torch.randint(0, 3, (5, 2)), torch.tensor([True, False, True, False, True])
    got = crop_and_flip(images, Draws(shifts, flips), 1)
    for at in range(5):
        padded = torch.zeros(3, 6, 6, dtype=torch.uint8)
        padded[:, 1:5, 1:5] = images[at]
        row, column = shifts[at].tolist()
        expected = padded[:, row : row + 4, column : column + 4]
        assert torch.equal(got[at], expected.flip(2) if flips[at] else expected)


def test_one_walk_keeps_as_many_of_each_kind_as_the_paper() -> None:
    from infobatch.scorebook import ScoreBook

    book = ScoreBook(300)
    book.scores.copy_(torch.rand(300, generator=torch.Generator().manual_seed(0)))
    moment = infobatch.schedules.Moment(1, 10)
    mine, paper = (parse_method(name).draw(book, moment, 3) for name in ("one_walk", "infobatch"))
    assert mine.kept == paper.kept
    assert float(mine.table.sum()) == pytest.approx(300)
    assert sorted(mine.table.unique().tolist()) == pytest.approx(sorted(paper.table.unique().tolist()))
