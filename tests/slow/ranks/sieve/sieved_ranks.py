"""Training runs with a sieve on two ranks, each with batches of its own, for a test to recompute their gradients."""

from __future__ import annotations

import copy
import json
import os
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import infobatch
from infobatch.sieve import Look, Own, Proxy, Reference, SieveMethod, adaptive, hardest, lot

sys.path.insert(0, str(Path(__file__).parent.parent))
from leave import leave

SIZE, STEPS = 16, 12
criterion = nn.CrossEntropyLoss(reduction="none")
METHODS: dict[str, SieveMethod] = {
    "hardest": hardest(0.5),
    "lot": lot(0.5),
    "adaptive": adaptive(0.55, sizes=(0.5,), every=2),
}


@dataclass(frozen=True)
class Run:
    name: str
    look: str
    method: str
    wrap: str = "ddp"
    accumulate: int = 1
    """Micro-batches for each step of the optimizer."""


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def batch_of(rank: int, number: int) -> tuple[Tensor, Tensor]:
    """On the last of two ranks, all rows are alike: ``adaptive`` keeps all of them there, and half on the first."""
    noise = torch.Generator().manual_seed(100 * rank + number)
    x = torch.randn(SIZE, 4, generator=noise)
    if rank:
        x = x[:1].repeat(SIZE, 1)
    return x, x[:, :3].argmax(1)


def look_of(name: str, model: nn.Module, rank: int) -> Look:
    if name == "own":
        return Own(model, criterion)
    torch.manual_seed(50 + rank)
    proxy = Proxy(network(), criterion, every=2)
    return proxy if name == "proxy" else Reference(network(), criterion, of=Own(model, criterion))


def wrapped(model: nn.Module, how: str) -> nn.Module:
    if how == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    if how == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        return model
    return DistributedDataParallel(model)


def values_of(model: nn.Module) -> dict[str, Tensor]:
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    return {name: value.clone() for name, value in state.items()}


def perform(run: Run, rank: int) -> dict[str, Any]:
    torch.manual_seed(0)
    bare = network()
    model = wrapped(bare, run.wrap)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    look = look_of(run.look, model, rank)
    sieve = infobatch.Sieve(look, METHODS[run.method], seed=rank)
    log: list[dict[str, Any]] = []
    for step in range(STEPS):
        entry: dict[str, Any] = {"before": copy.deepcopy(values_of(model)), "kept": []}
        optimizer.zero_grad()
        for micro in range(run.accumulate):
            is_last = micro == run.accumulate - 1
            with nullcontext() if is_last else model.no_sync():
                x, y, weight = sieve(*batch_of(rank, step * run.accumulate + micro))
                loss = sieve.reduce(criterion(model(x), y)) / run.accumulate
                loss.backward()
            entry["kept"].append((x.clone(), y.clone(), weight.clone()))
        if run.wrap == "ddp":
            entry["gradients"] = {name: one.grad.clone() for name, one in bare.named_parameters()}
        optimizer.step()
        entry["after"] = values_of(model)
        log.append(entry)
    proxy = look.net.state_dict() if isinstance(look, Proxy) else {}
    return {"log": log, "proxy": proxy, "rows": (sieve.summary().rows, sieve.summary().kept)}


def main() -> None:
    runs, out = [Run(**run) for run in json.loads(Path(sys.argv[1]).read_text())], Path(sys.argv[2])
    torch.set_num_threads(1)
    assert "RANK" in os.environ
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, world = dist.get_rank(), dist.get_world_size()
    for run in runs:
        try:
            result = perform(run, rank)
        except infobatch.InfoBatchError as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        torch.save(result, out / f"{run.name}.{world}.{rank}")
    leave()


if __name__ == "__main__":
    main()
