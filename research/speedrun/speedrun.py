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
  speedrun.py --data DIR --method 'selective_backprop()' --look own
  speedrun.py --data DIR --method infobatch --epochs 37
  speedrun.py --data DIR --jobs queue.txt --minutes 9   # one line of options per job; several processes may share it
  speedrun.py --tiny --method 'adaptive()'              # a rehearsal on a CPU, with made-up images
  speedrun.py --summary records/*.jsonl                 # means, spread and differences from the shorter run

Choose settings with --holdout 5000 (scored on training samples set aside), report them without it.
One JSON line per run is appended to --records. With --jobs, runs that are there already are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from data import NAMES, Data, hold_out, make_up, read
from nets import BATCH, Learner, Net
from summary import read as read_records
from summary import summarize
from training import Run, identity, label, parse_method, train_one

Job = argparse.Namespace


def parse_seeds(text: str) -> list[int]:
    """Return the seeds of ``3`` or ``0-19``."""
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", default="data", help="folder that holds a folder per data set")
    p.add_argument("--dataset", default="cifar10", help="name of that folder: cifar10, cifar100, ...")
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
    p.add_argument("--jobs", type=Path, help="file with one line of options per job, shared by all processes given it")
    p.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after so many minutes")
    p.add_argument("--tiny", action="store_true", help="4,096 made-up images and narrow networks, for a rehearsal")
    p.add_argument("--summary", nargs="+", type=Path, metavar="JSONL", help="print means and differences, and leave")
    p.add_argument("--field", default="accuracy_tta", help="with --summary: accuracy or accuracy_tta")
    return p


def runs(args: Job) -> Iterator[tuple[Job, int]]:
    """Yield jobs and seeds: of the command line, or those of the job file that no process has begun."""
    if args.jobs is None:
        parse_method(args.method)
        yield from ((args, seed) for seed in args.seeds)
        return
    for number, job in read_jobs(args.jobs):
        for seed in job.seeds:
            if claim(args.jobs, number, seed) and not is_done(job, seed):
                yield job, seed


def read_jobs(path: Path) -> list[tuple[int, Job]]:
    """Return all jobs of a file with the numbers of their lines, so that a bad line is seen before the first run."""
    jobs = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        words = shlex.split(line, comments=True)
        if words:
            job = parser().parse_args([*sys.argv[1:], *words])
            parse_method(job.method)
            jobs.append((number, job))
    return jobs


def claim(path: Path, number: int, seed: int) -> bool:
    """True for exactly one of the processes that share a job file."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(f"{path}.{number}.{seed}.claim", os.O_CREAT | os.O_EXCL))
        return True
    return False


def is_done(job: Job, seed: int) -> bool:
    """Whether the records hold this run."""
    wanted = identity(job, seed).items()
    return job.records.exists() and any(
        "format" in record and wanted <= record.items() for record in read_records([job.records])
    )


def load(job: Job, device: torch.device) -> Data:
    """Load the data of a job."""
    if job.tiny:
        arrays = make_up(100 if job.dataset == "cifar100" else 10, 5120)
    else:
        folder = Path(job.data, job.dataset)
        if not folder.is_dir():
            expected = ", ".join(f"{name}.npy" for name in NAMES)
            raise FileNotFoundError(f"no data under {folder}: expected {expected}; see --help")
        arrays = read(folder)
    return Data(hold_out(arrays, job.holdout) if job.holdout else arrays, device, getattr(torch, job.dtype))


def sizes_of(job: Job) -> set[int]:
    """Return the sizes that batches of the large network have."""
    method = parse_method(job.method)
    shares = () if method is None else (method.settings.get("keep", 1.0), *method.settings.get("sizes", ()))
    return {BATCH, *(round(share * BATCH) for share in shares)}


class Made:
    """Data and networks, made once per process: compiling takes a minute."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._made: dict[str, Data | Learner] = {}
        self._warm: set[tuple[Any, ...]] = set()

    def data(self, job: Job) -> Data:
        key = f"{job.dataset} {job.holdout} {job.dtype}"
        return self._get(key, lambda: load(job, self.device))

    def learner(self, job: Job, widths: list[int], depth: int, classes: int, dtype: str, sizes: set[int]) -> Learner:
        def make() -> Learner:
            net = Net(widths, depth, classes)
            return Learner(net, self.device, getattr(torch, dtype), sizes, compiles=job.compile)

        return self._get(f"{widths} {depth} {classes} {dtype} {sorted(sizes)} {job.compile}", make)

    def warm_up(self, job: Job, seed: int, data: Data, model: Learner, proxy: Learner | None) -> None:
        """Run a few steps of a job before the first one is timed."""
        key = job.method, job.look, id(model), id(proxy)
        if key in self._warm:
            return
        began = time.perf_counter()
        Run(job, seed, data, model, proxy).warm_up()
        self._warm.add(key)
        print(f"{label(job)}: warm after {time.perf_counter() - began:.1f} s", flush=True)

    def _get(self, key: str, make: Callable[[], Any]) -> Any:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]


def perform(job: Job, seed: int, made: Made) -> None:
    """Train one run and append its record."""
    if job.tiny:
        job.widths, job.proxy = [16, 32, 32], [8, 8, 8]
    data, method = made.data(job), parse_method(job.method)
    model = made.learner(job, job.widths, 3, data.classes, job.dtype, sizes_of(job))
    proxy = None
    if method is not None and method.needs_look and job.look == "proxy":
        # bfloat16, in which gradients of a mean do not underflow
        dtype = "float32" if job.dtype == "float32" else "bfloat16"
        proxy = made.learner(job, job.proxy, 2, data.classes, dtype, {BATCH})
    made.warm_up(job, seed, data, model, proxy)
    record = train_one(job, seed, data, model, proxy)
    with job.records.open("a") as file:
        file.write(json.dumps(record) + "\n")
    print(
        f"{record['dataset']} {label(job)} seed {seed}: {record['accuracy']:.2f}, with views "
        f"{record['accuracy_tta']:.2f}, cost {record['cost_epochs']:.2f} epochs (looking {record['looking']:.1%}), "
        f"kept {record['kept_share']:.2f}, {record['seconds']:.1f} s",
        flush=True,
    )


def main() -> None:
    args = parser().parse_args()
    if args.summary:
        print("\n".join(summarize(read_records(args.summary), args.field)))
        return
    began, failed = time.monotonic(), 0
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch._dynamo.config.recompile_limit = 64  # every size, mode and network is a variant of one function
    made = Made(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    for job, seed in runs(args):
        try:
            perform(job, seed, made)
        except Exception:  # the rest of the queue must not wait for a person
            failed += 1
            print(f"failed: {label(job)} seed {seed}", traceback.format_exc(), sep="\n", file=sys.stderr, flush=True)
        if time.monotonic() - began > 60 * args.minutes:
            break
    sys.exit(f"{failed} runs failed" if failed else 0)


if __name__ == "__main__":
    main()
