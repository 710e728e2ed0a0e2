"""Two ranks under Lightning and in a plain loop; started by test_lightning.py."""

from __future__ import annotations

import math
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "slow" / "ranks"))
import lightning_loop as one
from leave import leave

import infobatch

PER_RANK = one.BATCH // 2
FULL = math.ceil(math.ceil(one.SIZE / 2) / PER_RANK)


def facts(net: Any, train: Any) -> dict[str, Any]:
    kept = [report.kept for report in train.history]
    weights = {name: value.clone() for name, value in net.state_dict().items()}
    return {"scores": train.scores, "kept": kept, "net": weights}


def under_lightning(folder: Path, ckpt_path: Path | None = None) -> dict[str, Any]:
    module = one.PacedModule(one.wrap(), batch_size=PER_RANK)
    module.full = FULL
    saves = [] if ckpt_path else [ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1)]
    options = {"strategy": "ddp", "devices": 2, "use_distributed_sampler": False}
    one.fit(module, *saves, ckpt_path=ckpt_path, **options)
    return {**facts(module.net, module.train_data), "steps": module.steps, "validated": module.validated}


def in_a_plain_loop() -> dict[str, Any]:
    train, net = one.wrap(), one.make_net()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=one.LR, momentum=0.9)
    scheduler = one.paced(optimizer, train, FULL)
    loader, where = infobatch.DataLoader(train, batch_size=PER_RANK), []
    for _ in range(one.EPOCHS):
        for x, y in loader:
            loss = train.update((model(x) - y).square().squeeze(1))
            where.append(loader.state_dict())  # what Lightning saves of a loader
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
    assert train.scores.isfinite().all()  # brings the last epoch's losses together
    return {**facts(net, train), "where": where}


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    warnings.simplefilter("error", infobatch.InfoBatchWarning)
    warnings.filterwarnings("error", ".*sync_dist=True")
    whole = under_lightning(folder / "steps")
    ends = one.ends(whole["steps"])
    resumed = {
        step: under_lightning(folder / "steps", folder / "steps" / f"step={step}.ckpt")
        for step in (ends[2] + 2, ends[4])
    }
    results = {"whole": whole, "resumed": resumed, "plain": in_a_plain_loop()}
    torch.save(results, folder / f"rank{dist.get_rank()}")


if __name__ == "__main__":
    main()
    leave()
