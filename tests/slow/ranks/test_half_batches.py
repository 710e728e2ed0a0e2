"""A checkpoint inside a batch: parts with indices are done, the rest of the batch comes again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from launching import run_ranks
from torch.utils.data import TensorDataset

import infobatch
from infobatch import InfoBatch

SIZE = 64
SCRIPT = """
import torch.distributed as dist
from test_half_batches import resumed, train
dist.init_process_group("gloo")
for sharded in (False, True):
    state = train(sharded, 1)
    assert state["done"] == (12 if sharded else 24), state["done"]
    after = resumed(state, sharded)
    assert after.scores.tolist() == after.owned.tolist(), after.scores
dist.destroy_process_group()
"""


def fresh(sharded: bool) -> InfoBatch:
    return InfoBatch(TensorDataset(torch.arange(SIZE).float()), 8, shard_scores=sharded)


def train(sharded: bool, whole: int, *, stock: bool = False) -> dict[str, Any]:
    """So many batches, and half of one more."""
    data = fresh(sharded)
    loader: Any = infobatch.DataLoader(data, batch_size=8)
    if stock:
        loader = torch.utils.data.DataLoader(data, batch_size=8, sampler=data.sampler)
    batches = iter(loader)
    for _ in range(whole):
        (x,) = next(batches)
        data.update(x, indices=x.long())  # every sample's value is its index
    (x,) = next(batches)
    data.update(x[:4], indices=x[:4].long())
    return data.state_dict()


def resumed(state: dict[str, Any], sharded: bool) -> InfoBatch:
    data = fresh(sharded)
    data.load_state_dict(state)
    for (x,) in infobatch.DataLoader(data, batch_size=8):
        data.update(x)
    return data


@pytest.mark.parametrize("stock", [False, True], ids=["ours", "stock"])
@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
@pytest.mark.parametrize("whole", [0, 1])
def test_alone(whole: int, sharded: bool, stock: bool) -> None:
    state = train(sharded, whole, stock=stock)
    assert state["done"] == 8 * whole + 4
    after = resumed(state, sharded)
    assert after.scores.tolist() == after.owned.tolist()
    assert (after.epoch, after.history[0].kept) == (1, SIZE)


def test_on_two_ranks(tmp_path: Path) -> None:
    script = Path(tmp_path, "half.py")
    here = Path(__file__).parent
    script.write_text(f"import sys; sys.path.insert(0, {str(here)!r})\n{SCRIPT}")
    run_ranks(2, script)
