"""What pruning costs, relative to operations that a training run performs anyway.

Both sides of a ratio are measured in this one run, in turns, and the median of the pairs counts: a busy machine
slows both alike. torch.randperm uses one thread whatever it is given, and we use them all; `--threads 1` shows the
other view. Run it with `make bench`; `--quick` only shows that everything works.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from time import perf_counter

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

import infobatch
from infobatch import InfoBatch, Pruned, methods

BATCH = 1024


@dataclass(frozen=True)
class Row:
    what: str
    against: str
    value: float
    limit: float | None
    unit: str = "x"

    @property
    def verdict(self) -> str:
        if self.limit is None:
            return ""
        return "ok" if self.value <= self.limit else "over"


class Blank:
    """A data set that costs nothing, so that only the loader and this package are measured."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices


def seconds(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def ratio(ours: Callable[[], object], theirs: Callable[[], object], repeats: int) -> float:
    """Return the median of ours/theirs, measured alternately after one warm-up."""
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(repeats + 1)][1:]
    return statistics.median(a / b for a, b in pairs)


def scored(size: int) -> InfoBatch:
    """Return InfoBatch at epoch 1, with log-normal scores."""
    train_data = InfoBatch(range(size), 100)
    state = train_data.state_dict()
    state["epoch"] = 1
    state["scores"].log_normal_(generator=torch.Generator().manual_seed(0))
    train_data.load_state_dict(state)
    return train_data


def plan_again(train_data: Pruned) -> Callable[[], object]:
    def plan() -> object:
        train_data._epoch.plan = None  # forget the last one, as the end of an epoch does
        return train_data.plan()

    return plan


# ---- rows ------------------------------------------------------------------------------------------------


def planning(size: int, repeats: int) -> Iterator[Row]:
    against = f"torch.randperm({size / 1e6:g}M)"
    pruned, full = scored(size), Pruned(range(size), methods.full(), 100)
    yield Row("plan a pruned epoch", against, ratio(plan_again(pruned), lambda: torch.randperm(size), repeats), 1.6)
    yield Row("plan a full epoch", against, ratio(plan_again(full), lambda: torch.randperm(size), repeats), 1.6)


def walking(size: int, repeats: int, drop_last: bool) -> Row:
    """Draw the batches of indices of a full epoch and iterate over them, as a loader does."""

    def ours() -> None:
        train_data = Pruned(range(size), methods.full(), 1)
        for _ in BatchSampler(train_data.sampler, BATCH, drop_last):
            pass

    def theirs() -> None:
        for _ in BatchSampler(RandomSampler(range(size)), BATCH, drop_last):
            pass

    what = f"draw and walk an epoch of {size / 1e6:g}M, drop_last={drop_last}"
    return Row(what, "RandomSampler", ratio(ours, theirs, repeats), 1.0)


def updating(feeder: str, epochs: int) -> Row:
    """Call both after each fetch, as in a training loop. The second finds warmer caches, so they take turns."""
    steps = 48  # about CIFAR
    train_data = InfoBatch(Blank(BATCH * steps), epochs, ratio=0.0)
    kind = infobatch.DataLoader if feeder == "infobatch.DataLoader" else DataLoader
    loader = kind(train_data, BATCH, sampler=train_data.sampler, collate_fn=torch.tensor)
    loss, weights = torch.rand(BATCH, requires_grad=True), torch.rand(BATCH)
    first: dict[str, list[float]] = {"ours": [], "theirs": []}
    second: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(epochs):
        for step, indices in enumerate(loader):
            given = (indices,) if feeder == "explicit indices" else ()
            work = {
                "ours": lambda given=given: train_data.update(loss, *given),
                "theirs": lambda: (loss * weights).mean(),
            }
            one, other = ("ours", "theirs") if step % 2 else ("theirs", "ours")
            first[one].append(seconds(work[one]))
            second[other].append(seconds(work[other]))
    ours, theirs = (statistics.median(first[side]) + statistics.median(second[side]) for side in ("ours", "theirs"))
    what = f"update() of {BATCH} on the CPU, {feeder} ({ours / 2 * 1e6:.0f} us)"
    return Row(what, "(loss * w).mean()", ours / theirs, 2.5)


def held(size: int) -> Iterator[Row]:
    """Return the bytes per sample in tensors, between two epochs and inside one."""

    def tensors() -> int:
        gc.collect()
        found = (thing.untyped_storage() for thing in gc.get_objects() if type(thing) is torch.Tensor)
        return sum({storage.data_ptr(): storage.nbytes() for storage in found}.values())

    before = tensors()
    train_data = InfoBatch(Blank(size), 4)
    for count in infobatch.DataLoader(train_data, batch_size=BATCH, collate_fn=len):
        train_data.update(torch.rand(count))
    assert train_data.epoch == 1
    yield Row("held between epochs", "", (tensors() - before) / size, 16, "bytes a sample")
    train_data.plan()
    yield Row("held while an epoch runs", "", (tensors() - before) / size, None, "bytes a sample")


PEAK = """
import torch, infobatch

def resident(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))

after_import = resident("VmRSS")
train_data = infobatch.InfoBatch(range({size}), 100)
train_data._scores.scores.log_normal_(generator=torch.Generator().manual_seed(0))
train_data._epoch.epoch = 1
plan = train_data.plan()
assert plan.kept < plan.size
print(resident("VmHWM") - after_import)
"""


def peak(size: int) -> Iterator[Row]:
    """Return the peak memory of everything the package holds, measured in a separate process.

    Not from getrusage: its peak is inherited from the process that started this one.
    """
    if sys.platform == "linux":
        command = [sys.executable, "-c", PEAK.format(size=size)]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        what = f"peak memory of planning {size / 1e6:g}M, scores included"
        yield Row(what, "", int(answer.stdout) * 1024 / 1e9, 4.0, "GB")


# ---- the run ---------------------------------------------------------------------------------------------


def measurements(quick: bool) -> list[Callable[[], list[Row]]]:
    sizes = (100_000,) if quick else (1_280_000, 14_000_000)
    walk, repeats = (50_000, 3) if quick else (1_000_000, 11)
    feeders = ("stock DataLoader", "infobatch.DataLoader", "explicit indices")
    return [
        *(lambda size=size: list(planning(size, 3 if quick or size > 10e6 else 41)) for size in sizes),
        *(lambda last=last: [walking(walk, repeats, last)] for last in (False, True)),
        *(lambda feeder=feeder: [updating(feeder, 2 if quick else 20)] for feeder in feeders),
        lambda: list(held(10_000 if quick else 100_000)),
        lambda: list(peak(1_000_000 if quick else 100_000_000)),
    ]


def conditions() -> dict[str, object]:
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "processors": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def table(rows: list[Row], about: dict[str, object]) -> Table:
    shown = Table(
        "what",
        "against",
        "measured",
        "limit",
        "",
        title="What pruning costs",
        caption=f"{about}",
        title_justify="left",
    )
    for row in rows:
        limit = "" if row.limit is None else f"{row.limit:g}"
        style = "red" if row.verdict == "over" else None
        shown.add_row(row.what, row.against, f"{row.value:.2f} {row.unit}", limit, row.verdict, style=style)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to check that the script works")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    threads = torch.get_num_threads()
    parser.add_argument("--threads", type=int, default=threads, help=f"threads torch may use (default {threads})")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    about = conditions()
    screen = Console(stderr=True)
    steps = track(measurements(options.quick), "measuring", console=screen, transient=True)
    rows = [row for measure in steps for row in measure()]
    if options.json:
        print(json.dumps({"conditions": about, "rows": [asdict(row) | {"verdict": row.verdict} for row in rows]}))
    else:
        Console().print(table(rows, about))


if __name__ == "__main__":
    main()
