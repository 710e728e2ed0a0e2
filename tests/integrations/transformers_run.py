"""A plain loop, a PrunedTrainer and one resumed in mid-epoch, on ranks; started by the tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import infobatch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "slow" / "ranks"))
from leave import leave
from transformers_loop import Save, bert, classes, pruned, weights, with_trainer, without

SAVED = 7  # in the second epoch


def facts(model: nn.Module, train: infobatch.Pruned, steps: int = 0) -> dict[str, Any]:
    scores = train.scores  # on every rank, before the history
    kept = [report.kept for report in train.history]
    return {"scores": scores, "kept": kept, "weights": weights(model), "steps": steps}


def main() -> None:
    torch.set_num_threads(1)
    os.chdir(sys.argv[1])
    dist.init_process_group("gloo")
    found = {}

    model, train = bert(), pruned(classes())
    without(DistributedDataParallel(model), train, named=True)
    found["plain"] = facts(model, train)

    model, train = bert(), pruned(classes())
    made = with_trainer(model, train, ddp_backend="gloo", callbacks=[Save([SAVED])])
    found["trainer"] = facts(model, train, made.state.global_step)

    model, train = bert(), pruned(classes())
    with_trainer(model, train, f"out/checkpoint-{SAVED}", ddp_backend="gloo")
    found["resumed"] = facts(model, train)
    torch.save(found, f"{dist.get_rank()}.pt")


if __name__ == "__main__":
    main()
    leave()
