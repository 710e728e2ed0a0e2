"""Thousands of small epochs with ranks, workers and checkpoints: does anything grow, do the ranks stay together?

    torchrun --standalone --nproc-per-node 2 tests/soak/growth.py --epochs 2000

Prints memory and open files after a tenth of the epochs and at the end, and fails where they grew or ranks differ.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

import infobatch

sys.path.insert(0, str(Path(__file__).parent.parent / "slow" / "ranks"))
from leave import leave


def memory() -> int:
    """Resident kilobytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2000)
    args = parser.parse_args()
    warnings.simplefilter("ignore", infobatch.InfoBatchWarning)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    size = 65
    train = infobatch.InfoBatch(TensorDataset(torch.arange(size)), args.epochs, delta=1.0)
    loader = infobatch.DataLoader(train, batch_size=8, num_workers=1, persistent_workers=True)
    noise = torch.Generator().manual_seed(0)
    marks: list[tuple[int, int]] = []
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(args.epochs):
            level = torch.rand(size, generator=noise)
            for step, (ids,) in enumerate(loader):
                train.update(level[ids])
                if step == 1 and epoch % 10 == 0:
                    state = train.state_dict()
                    infobatch.save(state, Path(folder) / "state.pt")
                    infobatch.load(Path(folder) / "state.pt")
            if epoch in (args.epochs // 10, args.epochs - 1):
                marks.append((memory(), len(os.listdir("/proc/self/fd"))))
        scores = train.scores
    gathered = [torch.empty_like(scores) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, scores)
    apart = sum(not torch.equal(gathered[0], other) for other in gathered)
    (early, files), (late, files_late) = marks
    told = f"rank {rank}: {early} kB and {files} files early, {late} kB and {files_late} at the end"
    print(f"{told}; {apart} ranks drifted", flush=True)
    leave(int(apart > 0 or files_late > files or late > early * 1.05))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
