"""Runs with shard_scores=True on any number of ranks, without a model: the loss of a sample is a function of it.

Started alone or by torchrun, with a JSON file of runs; each rank writes down what came to it, at what weight.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

import infobatch
from infobatch.ranks.shards import ShardSlice

sys.path.insert(0, str(Path(__file__).parent))
from leave import leave


@dataclass(frozen=True)
class Run:
    name: str
    size: int = 203
    epochs: int = 5
    batch: int = 8
    """Samples a step and rank."""
    method: str = "infobatch"
    loader: str = "own"
    compensate: str = "loss"
    drop_last: bool = False
    save: str = ""
    """Where each rank puts its state at ``stop``, (epoch, step), and leaves."""
    stop: tuple[int, int] | None = None
    resume: tuple[str, int] | None = None
    """The states to go on from, and how many ranks wrote them."""
    differ: bool = False
    interrupted: bool = False
    """Each update is cut off where it would write its losses down, and made again."""


def loss_of(ids: torch.Tensor, epoch: int) -> torch.Tensor:
    """Skewed, with ties, and another one each epoch."""
    return ((ids * 37 + 11 * epoch) % 101).float().pow(2) / 100


def cut_off(train: Any, loss: torch.Tensor) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with patch.object(ShardSlice, "note", interrupt), suppress(KeyboardInterrupt):
        train.update(loss)


def perform(run: Run, rank: int, world: int) -> dict[str, Any]:
    method = infobatch.methods.METHODS[run.method]()
    if run.differ and rank == world - 1:
        method = infobatch.methods.infobatch(ratio=0.25)
    train = infobatch.Pruned(
        TensorDataset(torch.arange(run.size)),
        method,
        run.epochs,
        seed=3,
        compensate=run.compensate,
        shard_scores=True,
    )
    if run.resume is not None:
        where, ranks = run.resume
        states = [infobatch.load(f"{where}.{other}") for other in range(ranks)]
        train.load_state_dict(states[rank] if ranks == world else states)
    options: dict[str, Any] = {"batch_size": run.batch, "drop_last": run.drop_last}
    own = run.loader == "own"
    loader: Any = infobatch.DataLoader(train, **options) if own else DataLoader(train, sampler=train.sampler, **options)
    log: list[dict[str, Any]] = []
    for epoch in range(train.epoch, run.epochs):
        plan = train.plan()
        entry: dict[str, Any] = {"epoch": epoch, "kept": plan.kept, "weight_sum": plan.weight_sum, "steps": []}
        entry["length"] = len(loader)
        log.append(entry)
        for step, (ids,) in enumerate(loader):
            loss = loss_of(ids, epoch).requires_grad_()
            if run.interrupted:
                cut_off(train, loss)
            value = train.update(loss, ids) if run.loader == "named" else train.update(loss)
            weights = train._scores.look_up(ids)
            entry["steps"].append((ids.tolist(), weights.tolist(), value.item(), train.progress))
            if run.stop is not None and tuple(run.stop) == (epoch, step):
                infobatch.save(train.state_dict(), f"{run.save}.{rank}")
                return {"log": log}
        entry["scores"], entry["owned"] = train.scores, train.owned
    return {"log": log, "history": [(one.kept, one.noise, one.not_finite) for one in train.history]}


def main() -> None:
    runs, out = [Run(**run) for run in json.loads(Path(sys.argv[1]).read_text())], Path(sys.argv[2])
    torch.set_num_threads(1)
    launched = "RANK" in os.environ
    if launched:
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, world = (dist.get_rank(), dist.get_world_size()) if launched else (0, 1)
    for run in runs:
        try:
            result = perform(run, rank, world)
        except infobatch.InfoBatchError as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        torch.save(result, out / f"{run.name}.{world}.{rank}")
    leave()


if __name__ == "__main__":
    main()
