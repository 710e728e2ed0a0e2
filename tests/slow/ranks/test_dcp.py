"""torch.distributed.checkpoint: parts written by two ranks, read by one and by three, in the middle of an epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from launching import run_ranks

import infobatch
from infobatch import methods, variations
from infobatch.errors import StateError
from infobatch.integrations.dcp import Sharded

SCRIPT = Path(__file__).with_name("dcp_run.py")


def start(world: int, what: str, folder: Path, out: Path) -> list[Any]:
    run_ranks(world, SCRIPT, what, folder, out)
    return [torch.load(f"{out}.{rank}", weights_only=True) for rank in range(world)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    folder = tmp_path_factory.mktemp("dcp")
    return folder / "checkpoint", start(2, "save", folder / "checkpoint", folder / "out")


def test_each_rank_writes_its_part(saved: Any) -> None:
    folder, _ = saved
    parts = sorted(path.name for path in folder.glob("*.distcp"))
    assert len(parts) == 2
    sizes = [(folder / part).stat().st_size for part in parts]
    assert max(sizes) < 3 * min(sizes)


@pytest.mark.parametrize("world", [1, 4])
def test_resharded_on_load(saved: Any, tmp_path: Path, world: int) -> None:
    folder, before = saved
    after = start(world, "load", folder, tmp_path / "out")
    plan = before[0]["state"]["running"]["indices"].tolist()
    done = [i for both in zip(*(rank["seen"] for rank in before), strict=True) for _, ids in both for i in ids]
    epoch_2 = [ids for rank in after for epoch, ids in rank["seen"] if epoch == 2]
    rest = {i for ids in epoch_2 for i in ids}
    done_in_2 = set(done[-4 * 4 :])
    fillers = rest - set(plan)  # where the last batch would be a single sample
    assert len(fillers) <= 1
    rest -= fillers
    assert done_in_2 | rest == set(plan)
    ghost = {plan[16]} if len(plan) % world else set()
    assert done_in_2 & rest <= ghost
    for rank in after:
        assert torch.equal(rank["scores"], torch.arange(50) + 0.25)
        assert torch.equal(rank["plan"], after[0]["plan"])


def test_the_state_itself_is_not_for_dcp(saved: Any) -> None:
    """dcp fills what its reader has; a reader between epochs has no running part, and that must not go unnoticed."""
    _, before = saved
    train = infobatch.InfoBatch(torch.utils.data.TensorDataset(torch.arange(50)), 6, seed=5)
    with pytest.raises(StateError, match=r"dcp\.Sharded"):
        train.load_state_dict({**before[0]["state"], "running": None})


@pytest.mark.parametrize(
    "method", [methods.ucb(every=9), variations.unbiased(methods.ucb(every=9)), methods.kakurenbo()]
)
def test_what_methods_remember_travels(method: methods.Method) -> None:
    """Also of the running epoch: whom UCB chose, before weights made a plan of it."""

    def fresh() -> infobatch.Pruned:
        return infobatch.Pruned(torch.utils.data.TensorDataset(torch.arange(50)), method, 6, seed=5)

    def epoch(train: infobatch.Pruned, start: int = 0, stop: int | None = None) -> None:
        some = train.plan().indices[start:stop]
        train.update(some / 50, some, confidence=1 - some / 60)

    whole = fresh()
    epoch(whole)
    epoch(whole, stop=20)
    resumed = fresh()
    Sharded(resumed).load_state_dict(Sharded(whole).state_dict())
    for train in (whole, resumed):
        epoch(train, start=20)
    assert torch.equal(whole.plan().indices, resumed.plan().indices)


def test_another_default_dtype_makes_no_other_state() -> None:
    """In a full epoch the table of weights is all ones, and is made here."""
    train = infobatch.Pruned(range(20), methods.kakurenbo(), 6)
    torch.set_default_dtype(torch.float64)
    between = Sharded(train).state_dict()
    train.update(torch.ones(4), train.plan().indices[:4], confidence=torch.ones(4))
    within = Sharded(train).state_dict()
    Sharded(infobatch.Pruned(range(20), methods.kakurenbo(), 6)).load_state_dict(within)
    for name, table in between.items():
        assert name == "facts" or table.dtype == within[name].dtype != torch.float64, name
