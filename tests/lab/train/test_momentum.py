"""OneCycle's momentum: step by step that of torch's own scheduler, if it is to cycle."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from small_task import QUICK, facts, made
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR

import infobatch
from infobatch.errors import InputError
from infobatch.lab.tasks.nets import make_net
from infobatch.lab.tasks.task import Arrays
from infobatch.lab.train import cuda_graph, loop
from infobatch.lab.train.optimizers import OPTIMIZERS, make_optimizer
from infobatch.lab.train.settings import Settings

STEPS = math.ceil(150 / 16)
Values = list[tuple[float, float]]


def value(optimizer: torch.optim.Optimizer) -> tuple[float, float]:
    """Learning rate, and momentum or first beta."""
    (group,) = optimizer.param_groups
    return group["lr"], group["betas"][0] if "betas" in group else group["momentum"]


def recorded(settings: Settings) -> tuple[Values, loop.Training]:
    """What the lab's optimizer had when it took each step of a run."""
    seen: Values = []
    lab = loop.Training(settings, made())
    lab.optimizer.register_step_pre_hook(lambda optimizer, *_: seen.append(value(optimizer)))
    while not lab.is_finished:
        lab.epoch(lambda: False)
    return seen, lab


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_the_momentum_is_that_of_torch(optimizer: str) -> None:
    """On full data, with the defaults of OneCycleLR, which moves both."""
    given = {"method": "full", "optimizer": optimizer, "lr": 0.01, "epochs": 4, "cycle_momentum": True}
    settings = Settings.of({**QUICK, **given})
    seen, _ = recorded(settings)
    own = make_optimizer(torch.nn.Linear(1, 1), settings)
    expected: Values = []
    scheduler = OneCycleLR(own, 0.01, 4 * STEPS)
    for step in range(4 * STEPS):
        expected.append(value(own))
        own.step()
        if step + 1 < 4 * STEPS:
            scheduler.step()
    torch.testing.assert_close(torch.tensor(seen), torch.tensor(expected))
    momenta = [momentum for _, momentum in seen]
    assert max(momenta) == pytest.approx(0.95)
    assert min(momenta) == pytest.approx(0.85, abs=1e-3)


def test_in_pruned_epochs_it_follows_the_data() -> None:
    """The lines of the documentation with torch's scheduler, written out: the same momenta and the same weights."""
    task, settings = made(), Settings.of({**QUICK, "cycle_momentum": True})
    seen, lab = recorded(settings)
    assert isinstance(task.train, Arrays)
    torch.manual_seed(0)
    model = make_net("mlp", (1, 6, 6), 3)
    data, optimizer = infobatch.InfoBatch(task.train, 8), make_optimizer(model, settings)
    scheduler = infobatch.pace(OneCycleLR(optimizer, settings.lr, 8 * STEPS), data, STEPS)
    expected: Values = []
    for _ in range(8):
        for images, labels in infobatch.DataLoader(data, batch_size=16):
            expected.append(value(optimizer))
            x = (images.float() - 0.3 * 255) * (1 / (torch.tensor([0.2]).reshape(-1, 1, 1) * 255))
            optimizer.zero_grad()
            data.update(F.cross_entropy(model(x), labels, reduction="none")).backward()
            optimizer.step()
            scheduler.step()
    assert len(seen) < 8 * STEPS
    torch.testing.assert_close(torch.tensor(seen), torch.tensor(expected))
    for name, weight in model.state_dict().items():
        assert torch.allclose(lab.model.state_dict()[name], weight, rtol=1e-4, atol=1e-6), name


def test_it_stays_where_nothing_is_said() -> None:
    seen, _ = recorded(Settings.of({**QUICK, "momentum": 0.7}))
    assert {momentum for _, momentum in seen} == {0.7}


def test_a_resumed_run_goes_on_with_it(tmp_path: Path) -> None:
    settings = Settings.of({**QUICK, "cycle_momentum": True})
    whole = list(loop.run(settings, task=made()))
    calls = iter(range(25))
    first = list(loop.run(settings, task=made(), keep=tmp_path / "c.pt", stop=lambda: next(calls, None) is None))
    assert first[-1]["kind"] == "pause"
    second = list(loop.run(settings, task=made(), keep=tmp_path / "c.pt", resume=True))
    assert second[-1]["metric"] == whole[-1]["metric"]
    assert second[-1]["test_loss"] == whole[-1]["test_loss"]
    assert facts()[-1]["test_loss"] != whole[-1]["test_loss"]


def test_no_graph_is_captured_then() -> None:
    """The momentum of a captured step could not change."""
    settings, cuda = Settings.of({**QUICK, "method": "full"}), torch.device("cuda")
    assert cuda_graph.can_capture(made(), settings, cuda)
    assert not cuda_graph.can_capture(made(), settings.but(cycle_momentum=True), cuda)


@pytest.mark.parametrize("schedule", ["cosine", "step", "constant"])
def test_other_schedules_have_no_cycle(schedule: str) -> None:
    with pytest.raises(InputError, match="onecycle with cycle_momentum"):
        Settings.of({"schedule": schedule, "cycle_momentum": True})


def test_a_checkpoint_from_before_a_setting_has_its_default() -> None:
    settings = Settings.of(QUICK)
    older: dict[str, Any] = settings.plain()
    del older["cycle_momentum"], older["crop_padding"]
    assert settings.resumes(older)
    assert not settings.but(cycle_momentum=True).resumes(older)
    assert not settings.resumes({**older, "unknown": 1})
    assert Settings.from_record({"format": 2, "settings": older}) == settings
