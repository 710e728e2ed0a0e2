#!/usr/bin/env python3
"""CIFAR speedruns at equal compute: full data, a shorter run, InfoBatch, and methods of infobatch.sieve.

Every run has a budget, counted in FLOPs: forward, backward and the cost of looking. It is written in epochs of the
large network on full data: ``--budget 24`` is the FLOPs of 24 such epochs. The learning rate follows the share of the
budget that is spent, and the run stops when it is spent. So two runs with the same budget cost the same, whatever
their methods do. ``--method infobatch`` runs for ``--epochs`` instead.

data: a folder per data set with train_x.npy, test_x.npy (uint8, N x 32 x 32 x 3), train_y.npy, test_y.npy

examples
  speedrun.py --data DIR --budget 36.4 --seeds 0-19                      # full data: 37 epochs without short batches
  speedrun.py --data DIR --budget 24 --seeds 0-19                        # the shorter run
  speedrun.py --data DIR --method 'adaptive()' --budget 24 --seeds 0-19  # the sieve's default
  speedrun.py --data DIR --method 'hardest(keep=0.5)' --dataset cifar100
  speedrun.py --data DIR --method 'lot(keep=0.7)' --look own
  speedrun.py --data DIR --method infobatch --epochs 37
  speedrun.py --data DIR --jobs queue.txt         # one line of options per job; several processes may share it
  speedrun.py --tiny --method 'adaptive()'        # a rehearsal on a CPU, with made-up images
  speedrun.py --summary records/*.jsonl           # means, spread and differences from the shorter run

Choose settings with --holdout 5000 (scored on training samples set aside), report them without it.
One JSON line per run is appended to --records.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from data import NAMES, Data, hold_out, make_up, read
from nets import BATCH, Learner, Net, memoize, set_rate
from summary import read as read_records
from summary import summarize
from training import label, parse_method, train_one


def parse_seeds(text: str) -> list[int]:
    """Return the seeds of ``3`` or ``0-19``."""
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", default="data", help="folder that holds cifar10/ and cifar100/")
    p.add_argument("--dataset", choices=["cifar10", "cifar100"], default="cifar10")
    p.add_argument("--method", default="full", help="full, infobatch, or a call such as 'hardest(keep=0.5)'")
    p.add_argument("--look", choices=["proxy", "own"], default="proxy", help="whose losses decide")
    p.add_argument("--budget", type=float, default=24.0, help="FLOPs of the run, in epochs of full data")
    p.add_argument("--epochs", type=int, default=37, help="epochs of --method infobatch")
    p.add_argument("--seeds", type=parse_seeds, default=[0], metavar="A-B")
    p.add_argument("--proxy", type=int, nargs=3, default=[64, 128, 128], help="widths of the proxy (depth 2)")
    p.add_argument("--every", type=int, default=4, help="the proxy trains on every n-th batch")
    p.add_argument("--widths", type=int, nargs=3, default=[128, 384, 512], help="widths of the large network (depth 3)")
    p.add_argument("--ahead", action=argparse.BooleanOptionalAction, default=True, help="look one batch ahead")
    p.add_argument("--holdout", type=int, default=0, help="score on this many training samples set aside")
    is_cuda = torch.cuda.is_available()
    p.add_argument("--dtype", choices=["float16", "bfloat16", "float32"], default="float16" if is_cuda else "float32")
    p.add_argument("--compile", action=argparse.BooleanOptionalAction, default=is_cuda, help="torch.compile")
    p.add_argument("--alone", action="store_true", help="mark the record: nothing else ran, so seconds may be quoted")
    p.add_argument("--records", type=Path, default=Path("records.jsonl"))
    p.add_argument("--jobs", type=Path, help="file with one line of options per job, each claimed by one process")
    p.add_argument("--jobs-end", type=Path, help="with --jobs: wait for more lines until this file exists")
    p.add_argument("--tiny", action="store_true", help="4,096 made-up images and narrow networks, for a rehearsal")
    p.add_argument("--summary", nargs="+", type=Path, metavar="JSONL", help="print means and differences, and leave")
    p.add_argument("--field", default="accuracy_tta", help="with --summary: accuracy or accuracy_tta")
    return p


def claim(path: Path, number: int) -> bool:
    """True for exactly one of the processes that share a job file."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(f"{path}.{number}.claim", os.O_CREAT | os.O_EXCL))
        return True
    return False


def jobs(args: argparse.Namespace) -> Iterator[argparse.Namespace]:
    """Yield parsed jobs: the command line itself, or lines of the job file that nobody has claimed."""
    if not args.jobs:
        yield args
        return
    shared, number = sys.argv[1:], 0
    while True:
        lines = args.jobs.read_text().splitlines() if args.jobs.exists() else []
        if number < len(lines):
            words = shlex.split(lines[number], comments=True)
            if words and claim(args.jobs, number):
                yield parser().parse_args([*shared, *words])
            number += 1
        elif args.jobs_end is None or args.jobs_end.exists():
            return
        else:
            time.sleep(0.5)


def load(job: argparse.Namespace, device: torch.device) -> Data:
    """Load the data of a job."""
    if job.tiny:
        arrays = make_up(100 if job.dataset == "cifar100" else 10, 5120)
    else:
        folder = Path(job.data, job.dataset)
        if not folder.is_dir():
            sys.exit(f"no data under {folder}: expected {', '.join(f'{name}.npy' for name in NAMES)}; see --help")
        arrays = read(folder)
    return Data(hold_out(arrays, job.holdout) if job.holdout else arrays, device, getattr(torch, job.dtype))


def sizes_of(job: argparse.Namespace) -> set[int]:
    """Return the batch sizes of the large network that are worth compiling."""
    method = parse_method(job.method)
    shares = () if method is None else (method.settings.get("keep", 1.0), *method.settings.get("sizes", ()))
    return {BATCH, *(round(share * BATCH) for share in shares)} if job.compile else set()


def warm_up(learner: Learner, data: Data) -> None:
    """Compile for every size before the clock starts."""
    optimizer = learner.start(data.x[:5000])
    set_rate(optimizer, 0.0)
    for size in sorted(learner.sizes):
        x, y = data.x[:size].clone(), data.y[:size].clone()
        for _ in range(2):
            learner.losses(x, y).sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            learner.losses(x, y)


def main() -> None:
    args = parser().parse_args()
    if args.summary:
        print("\n".join(summarize(read_records(args.summary), args.field)))
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    sets: dict[tuple[str, int], Data] = {}

    @memoize
    def learner(widths: list[int], depth: int, classes: int, dtype: str, sizes: list[int]) -> Learner:
        began = time.perf_counter()
        made = Learner(Net(widths, depth, classes), device, getattr(torch, dtype), set(sizes))
        warm_up(made, data)
        print(f"widths {widths} ready after {time.perf_counter() - began:.1f} s", flush=True)
        return made

    for job in jobs(args):
        if job.tiny:
            job.widths, job.proxy = [16, 32, 32], [8, 8, 8]
        which = job.dataset, job.holdout
        if which not in sets:
            sets[which] = load(job, device)
        data, classes = sets[which], 100 if job.dataset == "cifar100" else 10
        model = learner(job.widths, 3, classes, job.dtype, sorted(sizes_of(job)))
        method = parse_method(job.method)
        needs_proxy = method is not None and method.needs_look and job.look == "proxy"
        # bfloat16, whose gradients of a mean do not underflow
        dtype = "float32" if job.dtype == "float32" else "bfloat16"
        whole = [BATCH] if job.compile else []
        proxy = learner(job.proxy, 2, classes, dtype, whole) if needs_proxy else None
        for seed in job.seeds:
            record = train_one(job, seed, data, model, proxy)
            record["dataset"] = f"tiny-{job.dataset}" if job.tiny else job.dataset
            with job.records.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(
                f"{record['dataset']} {label(job)} seed {seed}: {record['accuracy']:.2f}, with views "
                f"{record['accuracy_tta']:.2f}, cost {record['cost_epochs']:.2f} epochs (looking "
                f"{record['looking']:.1%}), kept {record['kept_share']:.2f}, {record['seconds']:.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
