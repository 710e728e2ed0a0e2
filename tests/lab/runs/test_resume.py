"""A run that paused goes on as one that nobody disturbed, or is refused."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from small_task import QUICK, facts, made
from torch import nn

from infobatch.errors import StateError
from infobatch.lab.runs import resume
from infobatch.lab.train import loop
from infobatch.lab.train.optimizers import make_optimizer
from infobatch.lab.train.settings import Settings


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 3))


@pytest.mark.parametrize("feed", ["resident", "loader"])
@pytest.mark.parametrize(
    "method",
    [
        "infobatch",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("full", "kakurenbo", "static.el2n:then=infobatch")),
    ],
)
def test_a_run_may_pause_at_any_batch_and_go_on(tmp_path: Path, feed: str, method: str) -> None:
    """Bit for bit, and with a net that draws from the global generator."""
    task = made(pad=1, flip=True, make_model=with_dropout)
    settings = Settings.of({**QUICK, "epochs": 8, "feed": feed, "method": method, "model": "task"})
    whole = list(loop.run(settings, task=task))
    for pause_at in (1, 13, 31):
        count = 0

        def stop(last: int = pause_at) -> bool:
            nonlocal count
            count += 1
            return count >= last

        path = tmp_path / f"{pause_at}.pt"
        first = list(loop.run(settings, task=task, keep=path, stop=stop))
        assert first[-1]["kind"] == "pause"
        second = list(loop.run(settings, task=task, keep=path, resume=True))
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
    first = list(loop.run(settings, task=made(), keep=tmp_path / "c.pt", stop=lambda: True))
    assert [fact["kind"] for fact in first] == ["start", "epoch", "pause"]
    second = list(loop.run(settings, task=made(), keep=tmp_path / "c.pt", resume=True))
    assert second[-1]["test_loss"] == facts(batch_size=150)[-1]["test_loss"]


def test_a_run_goes_on_with_what_it_had_chosen(tmp_path: Path) -> None:
    """Another machine might choose others; and the proxy is not trained again."""
    task, settings = made(), Settings.of({**QUICK, "method": "static.grand"})
    whole = list(loop.run(settings, task=task))
    list(loop.run(settings, task=task, keep=tmp_path / "c.pt", stop=lambda: True))
    state = torch.load(tmp_path / "c.pt")
    other = torch.randperm(150)[: len(state["choice"]["indices"])].sort().values
    state["choice"]["indices"] = other
    torch.save(state, tmp_path / "other.pt")
    again = list(loop.run(settings, task=task, keep=tmp_path / "other.pt", resume=True))
    lab = loop.Training(settings, task, state=resume.read_state(tmp_path / "other.pt", settings, task))
    assert lab.choice is not None
    assert torch.equal(lab.choice.indices, other)
    assert again[-1]["seconds"]["selection"] > 0  # what it took at first
    assert again[-1]["class_kept"] == (8 * made().train.labels[other].bincount(minlength=3)).tolist()  # type: ignore[union-attr]
    assert whole[-1]["samples"] == again[-1]["samples"]


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    settings, path = Settings.of(QUICK), tmp_path / "checkpoint.pt"
    list(loop.run(settings, task=made(), keep=path, stop=lambda: True))
    with pytest.raises(StateError, match="these settings"):
        list(loop.run(settings.but(lr=0.1), task=made(), keep=path, resume=True))


def test_a_checkpoint_of_other_data_is_refused(tmp_path: Path) -> None:
    settings, path = Settings.of(QUICK), tmp_path / "checkpoint.pt"
    list(loop.run(settings, task=made(), keep=path, stop=lambda: True))
    with pytest.raises(StateError, match=r"on these data.*size 150, not 151"):
        list(loop.run(settings, task=made(151), keep=path, resume=True))


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
    flags = {key: after.param_groups[0].get(key) for key in resume.MACHINE}
    resume.load_optimizer(after, state)
    assert {key: after.param_groups[0].get(key) for key in resume.MACHINE} == flags
    assert isinstance(after.param_groups[0]["lr"], torch.Tensor) == captured
    mine.load_state_dict(theirs.state_dict())
    for group in after.param_groups:  # the CPU steps without a graph
        group |= {"capturable": False} if "capturable" in group else {}
    before.step()
    after.step()
    assert torch.allclose(theirs.weight, mine.weight)
