"""A sieve on two ranks: none waits for the other, and DDP's gradient is the mean over their whole batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sieved_ranks import SIZE, STEPS, batch_of, criterion, network
from torch import Tensor

RUNS: list[dict[str, Any]] = [
    *(
        {"name": f"{look}-{method}-{accumulate}", "look": look, "method": method, "accumulate": accumulate}
        for look in ("proxy", "own", "reference")
        for method in ("hardest", "lot", "adaptive")
        for accumulate in (1, 3)
        if look != "reference" or accumulate == 1
    ),
    *(
        {"name": f"own-{method}-{wrap}", "look": "own", "method": method, "wrap": wrap}
        for wrap in ("fsdp1", "fsdp2")
        for method in ("hardest", "adaptive")
    ),
    {"name": "proxy-adaptive-fsdp2", "look": "proxy", "method": "adaptive", "wrap": "fsdp2"},
    {"name": "reference-adaptive-fsdp2", "look": "reference", "method": "adaptive", "wrap": "fsdp2"},
]
REFUSED = ("own-adaptive-fsdp1", "own-adaptive-fsdp2", "reference-adaptive-fsdp2")


@pytest.fixture(scope="module")
def found(launch_once: Any) -> dict[str, list[Any]]:
    """All runs on one pair of ranks, for starting these is what takes the time."""
    launch_once.script = Path(__file__).with_name("sieved_ranks.py")
    return dict(launch_once(2, RUNS))


def kept_by(rank: dict[str, Any]) -> list[int]:
    return [len(x) for entry in rank["log"] for x, _, _ in entry["kept"]]


@pytest.mark.parametrize("name", [run["name"] for run in RUNS if run["name"] not in REFUSED])
def test_no_rank_waits_and_both_have_one_model(name: str, found: dict[str, list[Any]]) -> None:
    one, two = found[name]
    assert len(one["log"]) == len(two["log"]) == STEPS
    for mine, theirs in zip(one["log"], two["log"], strict=True):
        for key, value in mine["after"].items():
            assert "running" in key or torch.equal(value, theirs["after"][key])  # DDP takes statistics over later
    assert not torch.equal(one["log"][0]["before"]["0.weight"], one["log"][-1]["after"]["0.weight"])
    counts = [kept_by(rank) for rank in (one, two)]
    for rank, kept in zip((one, two), counts, strict=True):
        assert rank["rows"] == (SIZE * len(kept), sum(kept))
    if "adaptive" in name:  # each rank by its own measurements
        assert {*counts[0]} == {8, 16}
        assert {*counts[1]} == {16}
    else:
        assert {*counts[0]} == {*counts[1]} == {8}
    if one["proxy"]:  # which is never synchronized
        assert not torch.equal(one["proxy"]["0.weight"], two["proxy"]["0.weight"])


@pytest.mark.parametrize("run", [run for run in RUNS if "wrap" not in run], ids=lambda run: run["name"])
def test_the_gradient_is_the_mean_over_ranks_and_batches(run: dict[str, Any], found: dict[str, list[Any]]) -> None:
    """Of each, the weighted sum over the rows passed on, divided by the rows of the whole batch."""
    ranks = found[run["name"]]
    for step in range(STEPS):
        entries = [rank["log"][step] for rank in ranks]
        expected: dict[str, Tensor] = {}
        for entry in entries:
            assert len(entry["kept"]) == run["accumulate"]
            for x, y, weight in entry["kept"]:
                model = network()
                model.load_state_dict(entry["before"])
                losses = criterion(model(x), y)
                ((weight * losses).sum() / SIZE / run["accumulate"] / len(ranks)).backward()
                for name, one in model.named_parameters():
                    assert one.grad is not None
                    expected[name] = expected.get(name, torch.zeros_like(one)) + one.grad
        for entry in entries:
            for name, gradient in entry["gradients"].items():
                torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)


def test_the_rows_passed_on_are_rows_of_the_rank(found: dict[str, list[Any]]) -> None:
    for name in ("own-hardest-3", "proxy-lot-1"):
        for number, rank in enumerate(found[name]):
            kept = [x for entry in rank["log"] for x, _, _ in entry["kept"]]
            for at, x in enumerate(kept):
                whole = batch_of(number, at)[0].tolist()
                assert all(row in whole for row in x.tolist())


@pytest.mark.parametrize("name", ["own-hardest-fsdp1", "own-hardest-fsdp2"])
def test_a_sharded_model_looks_as_a_whole_one(name: str, found: dict[str, list[Any]]) -> None:
    for sharded, whole in zip(found[name], found["own-hardest-1"], strict=True):
        for mine, theirs in zip(sharded["log"], whole["log"], strict=True):
            assert torch.equal(mine["kept"][0][0], theirs["kept"][0][0])
        torch.testing.assert_close(sharded["log"][-1]["after"]["0.weight"], whole["log"][-1]["after"]["0.weight"])


@pytest.mark.parametrize("name", REFUSED)
def test_a_sharded_model_that_some_ranks_would_not_run_is_refused(name: str, found: dict[str, list[Any]]) -> None:
    """Where one rank looks at a batch and the other passes it whole, the first would wait for weights."""
    for rank in found[name]:
        assert "InputError" in rank["error"]
        assert "FSDP" in rank["error"]
        assert "hardest(keep=0.5)" in rank["error"]
