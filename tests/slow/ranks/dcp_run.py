"""Saves or loads a run's state with torch.distributed.checkpoint on any number of ranks; started by the tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.utils.data import TensorDataset

import infobatch
from infobatch.integrations.dcp import Sharded

sys.path.insert(0, str(Path(__file__).parent))
from leave import leave

SIZE, BATCH = 50, 4


def main() -> None:
    what, folder, out = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    group: Any = None
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        group = dist.new_group(backend=sys.argv[4]) if sys.argv[4:] else None
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    train = infobatch.InfoBatch(TensorDataset(torch.arange(SIZE)), 6, seed=5, group=group)
    loader = infobatch.DataLoader(train, batch_size=BATCH // world)
    if what == "load":
        dcp.load({"data": Sharded(train)}, checkpoint_id=folder)
    seen = []
    for epoch in range(train.epoch, 4):
        for step, (ids,) in enumerate(loader):
            train.update(ids.float() + 0.25)
            seen.append([epoch, ids.tolist()])
            if what == "save" and (epoch, step) == (2, 3):
                dcp.save({"data": Sharded(train)}, checkpoint_id=folder)
                torch.save({"seen": seen, "state": train.state_dict()}, f"{out}.{rank}")
                return
    torch.save({"seen": seen, "scores": train.scores, "plan": train.plan().indices}, f"{out}.{rank}")


if __name__ == "__main__":
    main()
    leave()
