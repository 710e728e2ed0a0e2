"""Sharded scores at a hundred million samples: seconds to plan, bytes per sample, seconds to iterate.

Each row is measured in fresh processes, one per rank, on one thread each. Bytes are what the system says the process
took (VmRSS, VmHWM), so nothing that was allocated on the way is left out. `--json` prints one line per row; `--quick`
only shows that everything works.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import socket
import tempfile
from collections import deque
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import track
from rich.table import Table

from infobatch import Pruned, methods
from infobatch.lab.papers.microbench import processor
from infobatch.ranks.shards import ShardedScores

SIZES = (1_000_000, 10_000_000, 100_000_000)
METHODS = {"mean": methods.infobatch(), "quantiles": methods.author_tiers()}


@dataclass(frozen=True)
class Row:
    size: int
    ranks: int
    plan_by_mean_s: float
    plan_by_quantiles_s: float
    close_s: float
    """Seconds to merge the losses of an epoch into scores."""
    tensors: float
    """Bytes per sample of the rank's shard, between epochs."""
    held: float
    """Bytes per sample of the rank's shard, inside an epoch."""
    peak: float
    """Peak bytes per sample of the rank's shard, including planning and merging."""
    walk_1m_s: float


def memory(name: str) -> int:
    """Read a line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":")) * 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def together() -> None:
    if dist.is_initialized():
        dist.barrier()


def timed(work: Any) -> float:
    together()
    start = perf_counter()
    work()
    return perf_counter() - start


def measured(size: int, name: str) -> dict[str, float]:
    """Measure one method: plan a pruned epoch, iterate over a million samples, merge the losses."""
    gc.collect()
    forget_peak()
    before = memory("VmRSS")
    train = Pruned(range(size), METHODS[name], 10, shard_scores=True)
    scores = train._scores
    assert isinstance(scores, ShardedScores)
    scores.scores.log_normal_(generator=torch.Generator().manual_seed(0))
    train._epoch.epoch, scores.planned = 1, size
    plan = timed(train.plan)
    walking, steps = iter(train.sampler), min(1_000_000, len(train.sampler))
    walk = timed(lambda: deque(islice(walking, steps), maxlen=0))
    held = memory("VmRSS") - before
    running = train._epoch.plan  # drawn above
    close = timed(lambda: scores.close(running, None, None))
    peak = memory("VmHWM") - before
    tensors = sum(value.nbytes for value in vars(scores).values() if isinstance(value, torch.Tensor))
    return {
        f"plan_by_{name}_s": plan,
        "close_s": close,
        "tensors": tensors / scores.count,
        "held": held / scores.count,
        "peak": peak / scores.count,
        "walk_1m_s": walk * 1_000_000 / steps,
    }


def work(rank: int, world: int, size: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    for name in METHODS:
        measured(10_000, name)  # loads all libraries before memory is measured
    for name in METHODS:
        Path(folder, f"{name}.{rank}").write_text(json.dumps(measured(size, name)))
    if world > 1:
        dist.destroy_process_group()


def row(size: int, world: int) -> Row:
    """Combine ranks: the slowest one's seconds and the largest one's bytes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (world, size, port, folder), nprocs=world)
        results = [json.loads(path.read_text()) for path in Path(folder).iterdir()]
    names = {name for one in results for name in one}
    return Row(size, world, **{name: max(one.get(name, 0.0) for one in results) for name in names})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    todo = [(size, world) for world in (1, 2) for size in ((50_000,) if options.quick else SIZES)]
    error = Console(stderr=True)
    rows = [row(size, world) for size, world in track(todo, "measuring", console=error, transient=True)]
    machine = {"torch": torch.__version__, "cpus": os.cpu_count(), "processor": processor(), "threads": 1}
    if options.json:
        for one in rows:
            print(json.dumps({**asdict(one), **machine}))
        return
    table = Table(
        title="Scores in parts: seconds, and bytes a sample of a rank's part", caption=str(machine), box=SIMPLE
    )
    for name in ("samples", "ranks", "mean", "tiers", "close", "kept", "walk", "peak", "walk 1M"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in rows:
        seconds = [f"{value:.2f}" for value in (one.plan_by_mean_s, one.plan_by_quantiles_s, one.close_s)]
        sizes = [f"{value:.1f}" for value in (one.tensors, one.held, one.peak)]
        table.add_row(f"{one.size / 1e6:g}M", str(one.ranks), *seconds, *sizes, f"{one.walk_1m_s:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
