"""Every method of the registry on any number of ranks: plans, memory and scores, for a test to hold against others.

Losses are functions of the sample and the epoch alone, so that they are the same on one rank and on many.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import TensorDataset

import infobatch
from infobatch import methods, variations

SIZE, EPOCHS, BATCH = 41, 6, 6
LABELS = torch.arange(SIZE) % 3
GIVEN: dict[str, dict[str, Any]] = {
    "rcap": {"labels": LABELS},
    "dynamic_uncertainty": {"window": 2},
    "ies": {"bound": 0.2},
    "ucb": {"every": 2},
    "epsilon_greedy": {"every": 2},
}


def make(name: str, varied: bool) -> methods.Method:
    method = methods.METHODS[name](**GIVEN.get(name, {}))
    if varied:
        guarded = variations.class_floor(variations.noise_guard(method, 0.2, 2), LABELS, 0.3)
        method = variations.annealed(variations.unbiased(guarded), 0.9)
    return method


def judged(indices: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
    """Losses that fall, and the confidences that belong to them."""
    pace = 0.3 + 0.7 * ((indices * 7919) % SIZE) / SIZE
    confidence = 1 - torch.exp(-pace * (epoch + 1) / 2) * (1 + 0.2 * torch.sin(indices * 1.7 + epoch))
    confidence = confidence.clamp(0.01, 0.99)
    return -confidence.log(), confidence


def perform(name: str, varied: bool, world: int, stop: int | None = None) -> dict[str, Any]:
    """A whole run; with ``stop``, saved and taken up again after that many batches of epoch 4."""
    method = make(name, varied)
    train = infobatch.Pruned(TensorDataset(torch.arange(SIZE)), method, EPOCHS, seed=3)
    plans: list[Tensor] = []
    while (epoch := train.epoch) < EPOCHS:
        plans.append(train.plan().indices.clone())
        for step, (indices,) in enumerate(infobatch.DataLoader(train, batch_size=BATCH // world), 1):
            loss, confidence = judged(indices, epoch)
            train.update(loss, confidence=confidence)
            if epoch == 4 and step == stop:
                state, stop = train.state_dict(), None
                train = infobatch.Pruned(TensorDataset(torch.arange(SIZE)), method, EPOCHS, seed=8)
                train.load_state_dict(state)
                plans.pop()
                break
        else:
            if method.observes_hidden and epoch + 1 < EPOCHS:
                for (_,), indices in train.hidden(batch_size=5):
                    loss, confidence = judged(indices, epoch)
                    train.observe(loss, indices, confidence=confidence)
    return {"plans": plans, "scores": train.scores, "memory": train.state_dict()["memory"]}


def main() -> None:
    runs, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    for run in runs:
        found = perform(run["method"], run["varied"], world, run.get("stop"))
        torch.save(found, out / f"{run['name']}.{world}.{rank}")
    if dist.is_initialized():
        leave()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from leave import leave

    main()
