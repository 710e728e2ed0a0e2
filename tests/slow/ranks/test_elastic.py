"""Ranks come and go: resumed on any number of them, killed and restarted, or left waiting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import run_ranks

import infobatch
from infobatch.ranks import exchange as distributed

SCRIPT = Path(__file__).with_name("train.py")
STOP = (2, 2)


def flat(entry: dict[str, Any]) -> list[int]:
    return [i for batch in entry["delivered"] for i in batch]


def interleaved(entries: list[dict[str, Any]]) -> list[int]:
    return [i for together in zip(*(flat(entry) for entry in entries), strict=True) for i in together]


@pytest.fixture(scope="module")
def uninterrupted(launch_once: Any) -> dict[str, Any]:
    return launch_once(1, [{"name": "whole"}])["whole"][0]


@pytest.fixture(scope="module")
def stopped(launch_once: Any) -> tuple[str, list[dict[str, Any]]]:
    """Two ranks, stopped in the middle of epoch 2."""
    path = str(launch_once.folder / "mid.pt")
    ranks = launch_once(2, [{"name": "stopped", "checkpoint": path, "stop": STOP}])["stopped"]
    return path, ranks


@pytest.mark.parametrize("world", [1, 3, 4])
def test_saved_on_two_ranks_resumed_on_others(launch_once: Any, uninterrupted: Any, stopped: Any, world: int) -> None:
    path, before = stopped
    ranks = launch_once(world, [{"name": f"resumed-{world}", "checkpoint": path}])[f"resumed-{world}"]
    epoch = STOP[0]
    plan = uninterrupted["log"][epoch]["plan"].tolist()
    first = interleaved([rank["log"][-1] for rank in before])
    rest = interleaved([rank["log"][0] for rank in ranks])
    assert ranks[0]["log"][0]["epoch"] == epoch
    assert (first + rest)[: len(plan)] == plan, "every sample of the epoch, once, in the plan's order"
    fillers = set(range(len(uninterrupted["log"][0]["plan"]))) - set(plan)
    assert set((first + rest)[len(plan) :]) <= {rest[0]} | fillers, "and after that ghosts only"
    for rank in ranks:
        done = len(first) / world
        _, past, total = rank["log"][0]["progress"]
        assert abs(past - done) < 1
        comes = [z for z in flat(rank["log"][0]) if z not in fillers]
        assert total == past + len(comes), "what comes for this rank, not for all"
        for mine, theirs in zip(rank["log"][1:], uninterrupted["log"][epoch + 1 :], strict=True):
            assert torch.equal(mine["plan"], theirs["plan"])
        for key, value in uninterrupted["model"].items():
            torch.testing.assert_close(rank["model"][key], value, rtol=1e-4, atol=1e-6)


def test_a_short_last_batch_alone_counts_as_on_two_ranks(launch_once: Any) -> None:
    """What is left is 9 samples, and a whole batch was 16: eight on each rank, who was alone afterwards."""
    where = {"checkpoint": str(launch_once.folder / "before_last.pt"), "size": 96}
    launch_once(2, [{"name": "before-last", "stop": (2, 3), **where}])
    rest = launch_once(1, [{"name": "last", **where}])["last"][0]
    whole = launch_once(1, [{"name": "whole-96", "size": 96}])["whole-96"][0]
    assert [len(entry["plan"]) % 16 for entry in whole["log"]] == [0, 3, 9, 13, 0]
    torch.testing.assert_close(rest["model"], whole["model"], rtol=1e-4, atol=1e-6)


def test_torchrun_restarts_after_kill_9(launch: Any, uninterrupted: Any) -> None:
    """One of two ranks is killed for real; torchrun starts both again and they go on from the last checkpoint."""
    path = str(launch.folder / "last.pt")
    run = {"name": "killed", "checkpoint": path, "every": 2, "die": (1, 2, 3)}
    ranks = launch(2, [run], restarts=3)["killed"]  # one for the kill; gloo may miss a restarting peer's port
    for rank in ranks:
        assert rank["log"][0]["epoch"] == 2, "resumed in the epoch it was killed in"
        torch.testing.assert_close(rank["log"][-1]["scores"], uninterrupted["log"][-1]["scores"], rtol=1e-4, atol=1e-6)
        for key, value in uninterrupted["model"].items():
            torch.testing.assert_close(rank["model"][key], value, rtol=1e-4, atol=1e-6)


def test_a_rank_that_dies_leaves_the_others_with_a_message(tmp_path: Path) -> None:
    """No torchrun, so nobody kills the survivor: it must fail by itself, at the exchange, and say why."""
    runs = tmp_path / "runs.json"
    runs.write_text(json.dumps([{"name": "left", "wrap": "none", "die": (1, 1, 1)}]))
    assert run_ranks(2, SCRIPT, runs, tmp_path, check=False).codes[1] == -9
    error = torch.load(tmp_path / "left.2.0", weights_only=True)["error"]
    assert "all 2 ranks to exchange the epoch's losses" in error
    assert "Another rank has died" in error


def test_a_launched_process_without_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    train = infobatch.InfoBatch(torch.utils.data.TensorDataset(torch.zeros(8)), 2)
    with pytest.raises(infobatch.RankError, match="init_process_group"):
        next(iter(train.sampler))


def test_an_empty_world_size_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "")
    train = infobatch.InfoBatch(torch.utils.data.TensorDataset(torch.zeros(8)), 2)
    assert len(list(train.sampler)) == 8


def test_another_world_in_the_same_process() -> None:
    train = infobatch.InfoBatch(torch.utils.data.TensorDataset(torch.zeros(8)), 2)
    loader = infobatch.DataLoader(train, batch_size=4)
    for (x,) in loader:
        train.update(x)
    train._epoch.ranks = distributed.Ranks(1, 3)
    with pytest.raises(infobatch.RankError, match=r"rank 1 of 3.*rank 0 of 1.*load it"):
        next(iter(loader))


def test_a_destroyed_group() -> None:
    train = infobatch.InfoBatch(torch.utils.data.TensorDataset(torch.zeros(8)), 2, group=object())
    with pytest.raises(infobatch.RankError, match="destroyed"):
        next(iter(train.sampler))


@pytest.mark.parametrize("world", range(1, 6))
@pytest.mark.parametrize("count", range(1, 14))
def test_shares_are_even_and_cover_once(count: int, world: int) -> None:
    plan = torch.randperm(100)[:count]
    shares = [distributed.take_slice(plan, distributed.Ranks(rank, world)) for rank in range(world)]
    assert len({len(mine) for mine in shares}) == 1
    whole = torch.stack(shares, 1).flatten()
    assert torch.equal(whole[:count], plan)
    assert (whole[count:] == plan[0]).all()
    assert len(whole) - count == distributed.ghosts(count, world) < world


@pytest.mark.parametrize("at", ["inside", "end"])
def test_a_rank_that_saves_alone_does_not_wait_forever(at: str, tmp_path: Path) -> None:
    """At the end of an epoch its state is that of all ranks; inside, it lacks their new losses and says so."""
    script = tmp_path / "alone.py"
    script.write_text(
        f"""
import sys, warnings, torch, infobatch, torch.distributed as dist
from infobatch.ranks import exchange
from torch.utils.data import TensorDataset
exchange.PATIENCE = 1.0
dist.init_process_group("gloo")
rank = dist.get_rank()
make = lambda: infobatch.Pruned(TensorDataset(torch.arange(40.0)), infobatch.methods.random(0.5), 8)
train, saved = make(), None
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for epoch in range(5):
        for step, (x,) in enumerate(infobatch.DataLoader(train, 2)):
            train.update(x + 100 * epoch)
            if rank == 0 and (epoch, step) == ((2, 1) if "{at}" == "inside" else (2, 4)):
                saved = train.state_dict()
                infobatch.save(saved, sys.argv[1] + ".pt")
dist.barrier()
torch.save([saved, train.scores, [str(one.message) for one in caught]], sys.argv[1] + str(rank))
"""
    )
    run_ranks(2, script, tmp_path / "out")
    (saved, scores, told), (_, other, quiet) = (torch.load(tmp_path / f"out{rank}") for rank in range(2))
    assert torch.equal(scores, other)
    assert quiet == []
    assert [("on all ranks" in text) for text in told] == [True] * (at == "inside")
    train = infobatch.Pruned(torch.utils.data.TensorDataset(torch.arange(40.0)), infobatch.methods.random(0.5), 8)
    train.load_state_dict(saved)
    assert train.progress == ((2, 8, 20) if at == "inside" else (3, 0, 20))
    remaining = [int(x) for (x,) in infobatch.DataLoader(train, 1) if train.update(x + 200.0) is not None]
    assert len(remaining) == (12 if at == "inside" else 20)
    known = train.scores
    assert torch.equal(known % 100, torch.arange(40.0))


@pytest.mark.parametrize("at", ["inside", "end"])
def test_a_rank_that_saves_its_shard_alone_does_not_wait(at: str, tmp_path: Path) -> None:
    """Inside an epoch its shard needs nobody; at the end the ranks must talk: refused, and training goes on."""
    script = tmp_path / "shard.py"
    script.write_text(
        f"""
import sys, torch, infobatch, torch.distributed as dist
from infobatch.ranks import exchange
from torch.utils.data import TensorDataset
exchange.PATIENCE = 1.0
dist.init_process_group("gloo")
rank, said = dist.get_rank(), []
train = infobatch.Pruned(TensorDataset(torch.arange(40.0)), infobatch.methods.random(0.5), 8, shard_scores=True)
for epoch in range(5):
    for step, (x,) in enumerate(infobatch.DataLoader(train, 2)):
        train.update(x + 100 * epoch)
        if rank == 0 and (epoch, step) == ((2, 1) if "{at}" == "inside" else (2, 4)):
            try:
                said.append(type(train.state_dict()).__name__)
            except infobatch.RankError as error:
                said.append(str(error))
dist.barrier()
torch.save([said, train.epoch], sys.argv[1] + str(rank))
"""
    )
    run_ranks(2, script, tmp_path / "out")
    (said, epoch), (_, other) = (torch.load(tmp_path / f"out{rank}") for rank in range(2))
    assert epoch == other == 5
    (said,) = said
    assert said == "dict" if at == "inside" else "on all ranks" in said
