"""Small training runs on any number of ranks, for the tests to hold against each other.

Started alone or by torchrun, with a JSON file of runs; each run's plans, scores and model go to a file per rank.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import infobatch

sys.path.insert(0, str(Path(__file__).parent))
from leave import leave


@dataclass(frozen=True)
class Run:
    name: str
    size: int = 101
    epochs: int = 5
    batch: int = 12
    """Samples a step on all ranks together."""
    workers: int = 0
    loader: str = "own"
    wrap: str = "ddp"
    dtype: str = "float32"
    device: str = "cpu"
    """One for all ranks."""
    drop_last: bool = False
    explicit: bool = False
    compensate: str = "loss"
    checkpoint: str = ""
    every: int = 0
    """Write the checkpoint every so many steps."""
    stop: tuple[int, int] | None = None
    """(epoch, step) to save at and stop."""
    die: tuple[int, int, int] | None = None
    """(rank, epoch, step) to be killed at, in the first attempt."""
    differ: str = ""
    """What the last rank is given differently."""
    mesh: int = 0
    """The width of tensor-parallel groups; the data-parallel ones share the data."""
    backend: str = ""
    """Of a group of its own, as "cuda:gloo": like NCCL it takes nothing that is not on a GPU. Such runs ask for their
    state before each update, too."""


def wrapped(model: nn.Module, how: str, group: Any) -> nn.Module:
    if how == "ddp":
        return DistributedDataParallel(model, process_group=group)
    if how == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    if how == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    options = StateDictOptions(full_state_dict=True)
    state = get_model_state_dict(model, options=options) if dist.is_initialized() else model.state_dict()
    return {key: value.clone() for key, value in state.items()}


def batches(loader: Any, run: Run, epoch: int, rank: int) -> Iterator[tuple[int, Any]]:
    for step, batch in enumerate(loader):
        first_try = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        if first_try and run.die is not None and tuple(run.die) == (rank, epoch, step):
            os.kill(os.getpid(), signal.SIGKILL)
        yield step, batch


def perform(run: Run, rank: int, world: int) -> dict[str, Any]:
    group = None
    if run.mesh:
        mesh = init_device_mesh("cpu", (world // run.mesh, run.mesh), mesh_dim_names=("dp", "tp"))
        group = mesh["dp"].get_group()
        world //= run.mesh
    if run.backend and dist.is_initialized():
        group = dist.new_group(backend=run.backend)
    odd = run.differ if rank == world - 1 else ""
    noise = torch.Generator().manual_seed(7)
    size = run.size + (odd == "size")
    x = torch.randn(size, 4, generator=noise)
    y = (x.sum(1, keepdim=True) + 0.3 * torch.randn(size, 1, generator=noise)).sin()
    train = infobatch.InfoBatch(
        TensorDataset(x, y, torch.arange(size)),
        run.epochs + (odd == "epochs"),
        0.25 if odd == "ratio" else 0.5,
        0.8,
        seed=3 + (odd == "seed"),
        compensate=run.compensate,
        group=group,
    )
    torch.manual_seed(0)
    bare = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(run.device)
    model = wrapped(bare, run.wrap, group) if dist.is_initialized() else bare
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
    pace = infobatch.pace(scheduler, train, 10)
    options: dict[str, Any] = {
        "batch_size": run.batch // world + (odd == "batch"),
        "num_workers": run.workers,
        "drop_last": run.drop_last or odd == "drop_last",
    }
    own = run.loader == "own"
    loader: Any = infobatch.DataLoader(train, **options) if own else DataLoader(train, sampler=train.sampler, **options)
    if run.checkpoint and Path(run.checkpoint).exists():
        state = infobatch.load(run.checkpoint)
        train.load_state_dict(state["data"])
        bare.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        pace.load_state_dict(state["pace"])

    log: list[dict[str, Any]] = []
    for epoch in range(train.epoch, run.epochs):
        entry: dict[str, Any] = {"epoch": epoch, "plan": train.plan().indices, "delivered": [], "steps": 0}
        entry["progress"] = train.progress
        log.append(entry)
        for step, batch in batches(loader, run, epoch, rank):
            if run.backend:
                train.state_dict()
            xs, ys, ids = (part.to(run.device) for part in batch)
            loss = (model(xs) - ys).square().squeeze(1).to(getattr(torch, run.dtype))
            value = train.update(loss, ids) if run.explicit else train.update(loss)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            pace.step()
            entry["delivered"].append(ids.tolist())
            entry["steps"] += 1
            stop = run.stop is not None and tuple(run.stop) == (epoch, step)
            if stop or (run.every and (step + 1) % run.every == 0):
                state = {
                    "data": train.state_dict(),
                    "model": weights_of(model),
                    "optimizer": optimizer.state_dict(),
                    "pace": pace.state_dict(),
                }
                if rank == 0:
                    infobatch.save(state, run.checkpoint)
            if stop:
                return {"log": log, "model": weights_of(model)}
        entry["scores"] = train.scores
    return {"log": log, "model": weights_of(model)}


def join() -> None:
    """As init_process_group does, but torchrun's store outlives a restart, and gloo must not find the addresses of
    ranks that are gone."""
    limit = timedelta(seconds=60)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if attempt == "0":
        dist.init_process_group("gloo", timeout=limit)
        return
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=limit)
    fresh = dist.PrefixStore(f"attempt-{attempt}", store)
    dist.init_process_group("gloo", store=fresh, rank=rank, world_size=world, timeout=limit)


def main() -> None:
    runs, out = [Run(**run) for run in json.loads(Path(sys.argv[1]).read_text())], Path(sys.argv[2])
    torch.set_num_threads(1)
    launched = "RANK" in os.environ
    if launched:
        join()
    rank, world = (dist.get_rank(), dist.get_world_size()) if launched else (0, 1)
    for run in runs:
        try:
            result = perform(run, rank, world)
        except infobatch.InfoBatchError as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        torch.save(result, out / f"{run.name}.{world}.{rank}")
    if all(run.die is None for run in runs) or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        leave()


if __name__ == "__main__":
    main()
