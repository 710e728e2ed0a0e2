"""Runs with a sieve: they disturb nothing of the run, and tell what they passed on and what looking cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_task import QUICK, facts, made
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import infobatch
from infobatch.errors import InputError
from infobatch.lab.tasks.nets import NETS, RELATIVES, make_net
from infobatch.lab.tasks.task import Arrays, Task
from infobatch.lab.train import loop
from infobatch.lab.train.optimizers import make_optimizer, make_scheduler
from infobatch.lab.train.settings import Settings
from infobatch.lab.train.sieving import PROXY_SALT, SALT

STEPS = 10  # of an epoch of 150 samples in batches of 16: nine of 16 rows and one of 6
FIRST = {"mlp": 2 * 36 * 256, "mlp16": 2 * 36 * 16}
FORWARD = {"mlp": FIRST["mlp"] + 2 * 256 * 256 + 2 * 256 * 3, "mlp16": FIRST["mlp16"] + 2 * 16 * 16 + 2 * 16 * 3}
"""FLOPs of the nets per row."""


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 3))


def trained(method: str, task: Task | None = None, epochs: int = 3, **given: Any) -> loop.Training:
    """A run after its last epoch."""
    training = loop.Training(Settings.of({**QUICK, "method": method, "epochs": epochs, **given}), task or made())
    while not training.is_finished:
        training.epoch(lambda: False)
    return training


def epochs_of(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [fact for fact in told if fact["kind"] == "epoch"]


def forward_flops(net: nn.Module, rows: int) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        net(torch.zeros(rows, 1, 6, 6))
    return int(counter.get_total_flops())


# ---- nothing of the run is disturbed ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["sieve.hardest:keep=1,net=mlp16", "sieve.random_rows:keep=1.0", "sieve.lot:keep=1.0,look=own"]
)
@pytest.mark.parametrize("feed", ["resident", "loader"])
def test_a_sieve_that_keeps_all_trains_as_full_data(method: str, feed: str) -> None:
    """Bit for bit, with augmentation, and a net that draws from torch's global generator in each step."""
    task = made(pad=1, flip=True, make_model=with_dropout)
    sieved, full = (trained(name, task, feed=feed, model="task") for name in (method, "full"))
    for name, value in full.model.state_dict().items():
        assert torch.equal(sieved.model.state_dict()[name], value), name
    assert torch.equal(sieved.train_data.scores, full.train_data.scores)
    assert sieved.test() == full.test()
    assert sieved.end()["saved"] == 0
    assert sieved.end()["class_kept"] == full.end()["class_kept"]


@pytest.mark.parametrize("method", ["infobatch", "tiers"])
def test_a_sieve_that_keeps_all_leaves_plans_as_they_are(method: str) -> None:
    sieved, alone = trained(f"sieve.hardest:keep=1,then={method}", epochs=8), trained(method, epochs=8)
    assert torch.equal(sieved.train_data.scores, alone.train_data.scores)
    assert [one.kept for one in sieved.train_data.history] == [one.kept for one in alone.train_data.history]
    assert min(one.kept for one in sieved.train_data.history) < 150
    assert sieved.samples == alone.samples


class Noisy(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """A data set that draws from torch's global generator whenever a sample is read."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((1, 6, 6), index / self.size) + 0.1 * torch.rand(1, 6, 6), index % 3


def test_making_a_sieve_draws_nothing() -> None:
    """Neither for the weights of a proxy, nor for the samples that are read to count FLOPs."""
    task = Task("noisy", Noisy(40), Noisy(20), ("a", "b", "c"), make_model=with_dropout)
    settings = Settings.of({**QUICK, "model": "task"})
    states = []
    for method in ("full", "sieve.hardest:net=mlp16", "sieve.lot:look=own", "sieve.adaptive:net=resnet8w8"):
        training = loop.Training(settings.but(method=method), task)
        states.append((torch.get_rng_state(), training.model.state_dict()))
    for generator, weights in states[1:]:
        assert torch.equal(generator, states[0][0])
        assert all(torch.equal(weights[name], value) for name, value in states[0][1].items())


def test_the_proxy_depends_on_the_seed_and_not_on_the_model() -> None:
    prints = [
        next(loop.run(Settings.of({**QUICK, "method": "sieve.hardest:net=mlp16", **given}), task=made()))["sieve"]
        for given in ({}, {"model": "mlp64"}, {"seed": 1}, {"method": "sieve.lot:net=mlp16"})
    ]
    assert all(one["look"] == "proxy" and one["net"] == "mlp16" and one["every"] == 4 for one in prints)
    nets = []
    for given in ({}, {"model": "mlp64"}, {"seed": 1}):
        training = loop.Training(Settings.of({**QUICK, "method": "sieve.hardest:net=mlp16", **given}), made())
        assert training.sieve is not None
        nets.append(training.sieve.sieve.look.net.state_dict())  # type: ignore[union-attr]
    assert all(torch.equal(nets[1][name], value) for name, value in nets[0].items())
    assert not all(torch.equal(nets[2][name], value) for name, value in nets[0].items())


@pytest.mark.parametrize("then", ["", ",then=infobatch"])
def test_the_loop_is_the_plain_loop_with_a_sieve(then: str) -> None:
    """The lines of the documentation, written out: the same weights, scores, rows and cost."""
    task, settings = made(), Settings.of({**QUICK, "method": f"sieve.lot:keep=0.5,net=mlp16{then}"})
    lab = trained(settings.method, task, epochs=8, feed="loader")
    assert isinstance(task.train, Arrays)
    torch.manual_seed(0)
    model = make_net("mlp", (1, 6, 6), 3)
    torch.manual_seed(0 ^ PROXY_SALT)
    criterion = nn.CrossEntropyLoss(reduction="none")
    proxy = infobatch.sieve.Proxy(make_net("mlp16", (1, 6, 6), 3), criterion)
    data = infobatch.InfoBatch(task.train, 8) if then else infobatch.Pruned(task.train, infobatch.methods.full(), 8)
    optimizer = make_optimizer(model, settings)
    scheduler = infobatch.pace(make_scheduler(optimizer, settings, 8 * STEPS), data, STEPS)
    sieve = infobatch.Sieve(proxy, infobatch.sieve.lot(keep=0.5), num_steps=8 * STEPS, seed=SALT)
    for _ in range(8):
        for images, labels in infobatch.DataLoader(data, batch_size=16):
            x = (images.float() - 0.3 * 255) * (1 / (torch.tensor([0.2]).reshape(-1, 1, 1) * 255))
            x, y, _ = sieve(x, labels)
            loss, score = sieve.expand(criterion(model(x), y))
            optimizer.zero_grad()
            data.update(loss, score=score).backward()
            optimizer.step()
            scheduler.step()
    for name, value in model.state_dict().items():
        assert torch.allclose(lab.model.state_dict()[name], value, rtol=1e-4, atol=1e-6), name
    assert torch.allclose(lab.train_data.scores, data.scores, rtol=1e-3, atol=1e-5, equal_nan=True)
    summary, end = sieve.summary(infobatch.sieve.count_flops(model, x)), lab.end()
    ghosts = sum(one.kept % 16 == 1 for one in data.history)  # they join batches of one; the lab counts samples alone
    assert 0 <= summary.kept - end["samples"] <= ghosts
    assert summary.batches == end["steps"]
    assert end["looking"] * 8 * 150 == pytest.approx(summary.looking / (summary.full or 1) * summary.rows)


# ---- what is told ----------------------------------------------------------------------------------------------


def test_an_epoch_tells_what_was_passed_on() -> None:
    """Of each batch of 16 the hardest half, of the last one of 6 three: 75 of 150 samples."""
    told = facts(method="sieve.hardest:keep=0.5", epochs=4)
    for fact in epochs_of(told):
        assert fact["kept"] == 9 * 8 + 3
        assert fact["saved"] == fact["saved_so_far"] == pytest.approx(0.5)
        assert fact["steps"] == STEPS
        assert fact["weights"] == {"values": [1.0], "counts": [75]}
        assert fact["effective_size"] == 75
        assert fact["growth"] == 1.0  # of the plan: no epoch is pruned
        assert fact["noise"] is None  # estimated for plans only
        assert fact["not_finite"] == 0  # a row left out is unknown, not NaN
        assert sum(fact["class_kept"]) == 75
    end = told[-1]
    assert (end["samples"], end["full_samples"], end["steps"]) == (4 * 75, 4 * 150, 4 * STEPS)
    assert end["saved"] == 0.5
    assert sum(end["class_kept"]) == 4 * 75
    assert end["look_not_finite"] == end["not_finite"] == 0
    assert told[0]["sieve"]["net"] == "mlp32"  # a small relative of the mlp


def test_weights_are_those_of_the_sieve_times_those_of_the_plan() -> None:
    """Rows by lot at weight 1/chance, of plans that keep 60 % at random: many weights, rounded and at most 16."""
    training = loop.Training(Settings.of({**QUICK, "method": "sieve.lot:keep=0.5,then=random", "epochs": 8}), made())
    told = []
    while not training.is_finished:
        told.append(training.epoch(lambda: False) or {})
    sizes = [one.kept for one in training.train_data.history]
    assert len(set(sizes)) > 1
    for fact, planned in zip(told, sizes, strict=True):
        rows = [16] * (planned // 16) + [planned % 16] * (planned % 16 > 0)
        assert fact["kept"] == sum(min(size, max(2, round(0.5 * size))) for size in rows)
        values, counts = fact["weights"]["values"], fact["weights"]["counts"]
        assert 1 < len(values) <= 16
        assert min(values) >= 1.0  # a chance is at most 1
        assert sum(counts) <= fact["kept"]
        total = sum(value * count for value, count in zip(values, counts, strict=True))
        assert total == pytest.approx(150, rel=0.25)  # its expectation is the number of samples
        assert fact["effective_size"] < fact["kept"]


STEP = {"mlp": 3 * FORWARD["mlp"] - FIRST["mlp"], "mlp16": 3 * FORWARD["mlp16"] - FIRST["mlp16"]}
"""FLOPs of a training step per row: of the input of the first layer nobody needs a gradient."""


@pytest.mark.parametrize("every", [1, 3, 4])
def test_looking_costs_what_torch_counts(every: int) -> None:
    """A forward pass of the proxy on every row, and a step of its own instead on every n-th batch."""
    end = facts(method=f"sieve.hardest:keep=0.5,net=mlp16,every={every}", epochs=3)[-1]
    sizes = ([16] * 9 + [6]) * 3
    trained_on = sum(size for at, size in enumerate(sizes) if at % every == 0)
    spent = FORWARD["mlp16"] * (sum(sizes) - trained_on) + STEP["mlp16"] * trained_on
    assert end["looking"] == pytest.approx(spent / (STEP["mlp"] * 450), rel=1e-9)
    assert end["compute"] == pytest.approx(0.5 + end["looking"], rel=1e-9)
    assert end["same_cost_steps"] == round(end["compute"] * 3 * STEPS)


def test_a_look_of_the_model_costs_a_forward_pass() -> None:
    end = facts(method="sieve.hardest:keep=0.25,look=own", epochs=2)[-1]
    assert end["looking"] == pytest.approx(FORWARD["mlp"] / STEP["mlp"])
    assert end["compute"] == pytest.approx((9 * 4 + 2) / 150 + end["looking"])


def shallow() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 256), nn.ReLU(), nn.Linear(256, 3))


@pytest.mark.parametrize("method", ["sieve.hardest:keep=0.5,net=mlp16", "sieve.lot:keep=0.4,look=own"])
def test_a_shorter_run_has_as_many_flops(method: str) -> None:
    """All that torch counts in both, but for the tests, and for counting, which takes about one step."""
    forward, counts = 2 * 36 * 256 + 2 * 256 * 3, []
    step = 3 * forward - 2 * 36 * 256
    settings = Settings.of({**QUICK, "method": method, "epochs": 8, "model": "task"})
    for _ in range(2):
        training, tests = loop.Training(settings, made(make_model=shallow)), 0
        with FlopCounterMode(display=False) as counter:
            while not training.is_finished:
                tests += "metric" in (training.epoch(lambda: False) or {})
        counts.append(counter.get_total_flops() - tests * 60 * forward)
        settings = settings.but(method="full", steps=training.end()["same_cost_steps"])
    assert abs(counts[0] - counts[1]) < 1.5 * 16 * step
    assert counts[0] < 0.95 * 8 * 150 * step


def test_random_rows_cost_no_look() -> None:
    told = facts(method="sieve.random_rows:keep=0.25", epochs=2)
    assert told[-1]["looking"] == 0.0
    assert told[-1]["same_cost_steps"] == round(2 * STEPS * (9 * 4 + 2) / 150)
    assert told[0]["sieve"] == {"look": None}


def test_pruned_samples_that_are_run_through_the_net_cost_a_look() -> None:
    """KAKURENBO looks at hidden samples after each epoch but the last."""
    told = facts(method="kakurenbo", epochs=8)
    end, hidden = told[-1], sum(150 - fact["kept"] for fact in epochs_of(told)[:-1])
    assert hidden > 0
    assert end["looking"] == pytest.approx(hidden / 3 / (8 * 150))
    assert end["compute"] == pytest.approx(end["samples"] / (8 * 150) + end["looking"])


def test_relatives_have_about_a_tenth_of_the_flops() -> None:
    shape = (3, 32, 32)

    def flops(name: str) -> int:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            make_net(name, shape, 10)(torch.zeros(1, *shape))
        return int(counter.get_total_flops())

    for name, relative in RELATIVES.items():
        assert 0.02 < flops(relative) / flops(name) < 0.3, name
    assert set(RELATIVES) <= set(NETS)


def test_a_default_proxy_that_is_larger_than_the_model_is_refused() -> None:
    given = {**QUICK, "model": "conv8"}
    with pytest.raises(InputError, match=r"smaller than the model.*resnet8w8.*net=mlp16"):
        loop.Training(Settings.of({**given, "method": "sieve.hardest"}), made())
    for method in ("sieve.hardest:net=resnet8w8", "sieve.hardest:net=mlp16", "sieve.hardest:look=own"):
        loop.Training(Settings.of({**given, "method": method}), made())


# ---- scores of rows left out -----------------------------------------------------------------------------------


def test_rows_left_out_keep_their_scores() -> None:
    """A sample never passed on has no score; with the model's own look, each has one."""
    training = trained("sieve.hardest:keep=0.25", epochs=1)
    assert int(training.train_data.scores.isnan().sum()) == 150 - (9 * 4 + 2)
    assert torch.equal(training.train_data.scores.isfinite(), training.visits == 1)
    own = trained("sieve.hardest:keep=0.25,look=own", epochs=1)
    assert bool(own.train_data.scores.isfinite().all())


def test_the_confidence_of_rows_left_out_is_unknown() -> None:
    settings = Settings.of({**QUICK, "method": "sieve.hardest:keep=0.25,then=kakurenbo", "epochs": 8})
    training = loop.Training(settings, made())
    training.epoch(lambda: False)
    known = training.train_data.state_dict()["memory"]["confidence"]
    assert torch.equal(known.isfinite(), training.visits == 1)
    assert bool(((known >= 0) & (known <= 1))[known.isfinite()].all())
    while not training.is_finished:
        training.epoch(lambda: False)
    assert training.end()["saved"] > 0.75


def test_the_sieve_sees_batches_as_the_model_gets_them() -> None:
    """Augmented and normalised: the losses that the model's own look finds are those that the step begins with."""
    losses: list[tuple[bool, Tensor]] = []

    def noted(outputs: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        found = F.cross_entropy(outputs, labels, reduction="none", label_smoothing=smoothing)
        losses.append((outputs.requires_grad, found.detach()))
        return found

    given = {**QUICK, "method": "sieve.hardest:keep=0.5,look=own", "epochs": 1, "eval_every": 1, "label_smoothing": 0.1}
    loop.Training(Settings.of(given), made(pad=1, flip=True, loss=noted)).epoch(lambda: False)
    del losses[1:3]  # to count its FLOPs, the first look is repeated, and a step is tried
    steps = [at for at, (is_step, _) in enumerate(losses) if is_step]
    assert len(steps) == STEPS
    for at in steps:
        (_, whole), (_, part) = losses[at - 1], losses[at]
        assert torch.allclose(part.sort().values, whole.sort().values[-round(0.5 * len(whole)) :], atol=1e-6)


# ---- resume ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("feed", ["resident", "loader"])
@pytest.mark.parametrize(
    "method",
    [
        "sieve.hardest:keep=0.5,net=mlp16,every=3",
        "sieve.lot:keep=0.5,net=mlp16,then=infobatch",
        "sieve.adaptive:threshold=0.3,net=mlp16,then=kakurenbo",
        "sieve.selective_backprop:begin=0.1",
        "sieve.below_mean:look=own,then=infobatch",
    ],
)
def test_a_run_with_a_sieve_goes_on_bit_for_bit(tmp_path: Path, method: str, feed: str) -> None:
    """Paused in the middle of an epoch, with a net that draws from the global generator."""
    task = made(pad=1, flip=True, make_model=with_dropout)
    settings = Settings.of({**QUICK, "method": method, "model": "task", "feed": feed})
    whole = list(loop.run(settings, task=task))
    for pause_at in (1, 14, 33):
        count = 0

        def stop(last: int = pause_at) -> bool:
            nonlocal count
            count += 1
            return count >= last

        path = tmp_path / f"{pause_at}.pt"
        first = list(loop.run(settings, task=task, keep=path, stop=stop))
        assert first[-1]["kind"] == "pause"
        torch.manual_seed(999)  # another process
        second = list(loop.run(settings, task=task, keep=path, resume=True))
        again = [*first[:-1], *second[1:]]
        assert [fact["kind"] for fact in again] == [fact["kind"] for fact in whole]
        for one, other in zip(whole[1:], again[1:], strict=True):
            for key in set(one) - {"seconds", "time"}:
                assert one[key] == other[key], (pause_at, one["kind"], key)


# ---- what is refused -------------------------------------------------------------------------------------------


def test_a_net_whose_flops_cannot_be_counted_is_refused() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(36, 3))

        def forward(self, x: Tensor) -> Tensor:
            return (x.flatten(1)[:, :, None] * self.weight).sum(1)

    task = made(make_model=Scale)
    assert facts(task, model="task", method="full", epochs=1)[-1]["metric"] > 0
    with pytest.raises(InputError, match="FLOPs"):
        facts(task, model="task", method="sieve.random_rows", epochs=1)


def test_a_class_floor_without_classes_is_refused() -> None:
    task = made(150)
    task = Task("line", task.train, task.test, (), make_model=with_dropout, loss=lambda out, y, _: F.l1_loss(out, y))
    with pytest.raises(InputError, match="class_floor"):
        loop.Training(Settings.of({**QUICK, "model": "task", "method": "sieve.hardest:class_floor=0.2"}), task)


def test_a_class_floor_keeps_some_of_each_class() -> None:
    told = facts(method="sieve.hardest:keep=0.5,class_floor=0.4", epochs=3)
    for fact in epochs_of(told):
        assert fact["kept"] == 75
        assert all(kept >= 0.4 * size for kept, size in zip(fact["class_kept"], told[-1]["class_size"], strict=True))


def test_steps_are_for_full_data() -> None:
    with pytest.raises(InputError, match="steps"):
        loop.Training(Settings.of({**QUICK, "method": "sieve.hardest", "steps": 20}), made())


def test_unknown_proxies_are_refused() -> None:
    with pytest.raises(InputError, match="resnet8w8"):
        loop.Training(Settings.of({**QUICK, "method": "sieve.hardest:net=resnet8w9"}), made())


def test_a_proxy_of_the_tasks_own_kind() -> None:
    """``net=task`` is another net of the task; inputs that are no tensors have no net of the lab."""
    told = facts(made(make_model=with_dropout), model="task", method="sieve.hardest:net=task", epochs=1)
    assert told[0]["sieve"]["net"] == "task"

    class Dicts(Noisy):
        def __getitem__(self, index: int) -> Any:
            inputs, label = super().__getitem__(index)
            return {"x": inputs}, label

    class OfDict(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = with_dropout()

        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            result: Tensor = self.inner(batch["x"])
            return result

    task = Task("dicts", Dicts(40), Dicts(20), ("a", "b", "c"), make_model=OfDict)
    with pytest.raises(InputError, match="look=own"):
        facts(task, model="task", method="sieve.hardest", epochs=1)
    assert facts(task, model="task", method="sieve.hardest:look=own", epochs=1, gallery=0)[-1]["samples"] == 8 + 8 + 4


def test_a_batch_of_one_row_trains_with_batch_norm() -> None:
    """Of each batch at least two rows are passed on, unless it has only one."""
    layers = [nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)]
    told = facts(
        made(145, make_model=lambda: nn.Sequential(*layers)),
        model="task",
        method="sieve.hardest:keep=0.05,net=mlp16",
        epochs=2,
    )
    assert [fact["kept"] for fact in epochs_of(told)] == [9 * 2 + 1] * 2
