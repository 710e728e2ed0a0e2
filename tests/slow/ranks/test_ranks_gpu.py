"""Two ranks that share one GPU, over gloo: NCCL wants one for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from launching import run_ranks

DEVICE = "cuda"
SCRIPT = Path(__file__).with_name("dcp_run.py")
pytestmark = pytest.mark.gpu

RUNS: list[dict[str, Any]] = [
    {"name": "plain", "device": DEVICE},
    {"name": "none", "device": DEVICE, "compensate": "none"},
]


def test_the_same_plans_scores_and_model_as_one_process(launch_once: Any) -> None:
    alone, two = launch_once(1, RUNS), launch_once(2, RUNS)
    for name in alone:
        for rank in two[name]:
            for mine, theirs in zip(rank["log"], alone[name][0]["log"], strict=True):
                assert torch.equal(mine["plan"], theirs["plan"])
                assert mine["scores"].device.type == DEVICE
                torch.testing.assert_close(mine["scores"], theirs["scores"], rtol=1e-3, atol=1e-5)
            torch.testing.assert_close(rank["model"], alone[name][0]["model"], rtol=1e-3, atol=1e-5)


def test_a_group_that_takes_from_a_gpu_alone(launch_once: Any) -> None:
    """As NCCL does, which wants a GPU for each rank."""
    picky = {"name": "picky", "device": DEVICE, "backend": "cuda:gloo"}
    alone, two = launch_once(1, RUNS[:1])["plain"][0], launch_once(2, [picky])["picky"]
    for rank in two:
        for mine, theirs in zip(rank["log"], alone["log"], strict=True):
            assert torch.equal(mine["plan"], theirs["plan"])
        torch.testing.assert_close(rank["model"], alone["model"], rtol=1e-3, atol=1e-5)


def test_parts_for_dcp_in_such_a_group(tmp_path: Path) -> None:
    """With losses in the host's memory, which the exchange takes to the GPU and back."""
    for what in ("save", "load"):
        run_ranks(2, SCRIPT, what, tmp_path / "checkpoint", tmp_path / what, "cuda:gloo")
    for rank in range(2):
        after = torch.load(tmp_path / f"load.{rank}", weights_only=True)
        assert torch.equal(after["scores"], torch.arange(50) + 0.25)


def test_named_samples(launch_once: Any) -> None:
    """Ghosts count in a last batch's mean there, so the ranks are held against each other alone."""
    one, other = launch_once(2, [{"name": "named", "device": DEVICE, "explicit": True}])["named"]
    assert [len(entry["plan"]) < 101 for entry in one["log"]] == [False, True, True, True, False]
    for mine, theirs in zip(one["log"], other["log"], strict=True):
        assert torch.equal(mine["plan"], theirs["plan"])
        assert torch.equal(mine["scores"], theirs["scores"])
        assert not mine["scores"].isnan().any()


def test_a_checkpoint_on_two_goes_on_alone(launch_once: Any, tmp_path: Any) -> None:
    where = {"device": DEVICE, "checkpoint": str(tmp_path / "run.pt"), "size": 96}
    launch_once(2, [{"name": "stopped", "stop": (2, 3), **where}])
    rest = launch_once(1, [{"name": "rest", **where}])["rest"][0]
    whole = launch_once(1, [{"name": "whole", "device": DEVICE, "size": 96}])["whole"][0]
    for mine, theirs in zip(rest["log"][1:], whole["log"][3:], strict=True):
        assert torch.equal(mine["plan"], theirs["plan"])
    torch.testing.assert_close(rest["model"], whole["model"], rtol=1e-3, atol=1e-5)
