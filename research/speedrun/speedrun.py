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
  speedrun.py --data DIR --jobs queue.txt --minutes 8 --worker 1/3  # a line of options per job, for three processes
  speedrun.py --tiny --method 'adaptive(threshold=0.4, every=2)'    # a rehearsal on a CPU, with made-up images
  speedrun.py --summary records/*.jsonl                 # means, spread and differences from the shorter run

Choose settings with --holdout 5000 (scored on training samples set aside), report them without it.
One JSON line per run is appended to --records. With --jobs, runs that are there already are left out.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from data import NAMES, Data, hold_out, make_up, read
from jobs import Claims, Clock, append, open_runs, parse_worker, read_jobs
from nets import BATCH, Learner, Net
from summary import read as read_records
from summary import summarize
from training import Run, label, parse_method, sizes_of, train_one

Job = argparse.Namespace
FAILURES = 2
"""Failures in a row after which a process ends: what they have in common is likely to be wrong with it."""


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
    p.add_argument("--device", choices=["cuda", "cpu"], help="cuda; with --tiny whatever there is")
    floats = ["float16", "bfloat16", "float32"]
    p.add_argument("--dtype", choices=floats, help="of autocast: float16; on the CPU float32")
    p.add_argument("--compile", action=argparse.BooleanOptionalAction, help="torch.compile; not on the CPU")
    p.add_argument("--alone", action="store_true", help="mark the record: nothing else ran, so seconds may be quoted")
    p.add_argument("--records", type=Path, default=Path("records.jsonl"))
    p.add_argument("--jobs", type=Path, help="file with one line of options per job, shared by all processes given it")
    p.add_argument("--worker", type=parse_worker, default=(1, 1), metavar="I/N", help="which of N processes this is")
    until = "begin no run that would last longer than this, if it took as long as the longest so far"
    p.add_argument("--minutes", type=float, default=float("inf"), help=until)
    p.add_argument("--tiny", action="store_true", help="4,096 made-up images and narrow networks, for a rehearsal")
    p.add_argument("--summary", nargs="+", type=Path, metavar="JSONL", help="print means and differences, and leave")
    p.add_argument("--field", default="accuracy_tta", help="with --summary: accuracy or accuracy_tta")
    return p


def parse(words: list[str]) -> Job:
    """Return the options of a job, with what follows from the device filled in."""
    job = parser().parse_args(words)
    if job.device is None:
        job.device = "cpu" if job.tiny and not torch.cuda.is_available() else "cuda"
    if job.tiny:
        job.widths, job.proxy = [16, 32, 32], [8, 8, 8]
    if job.dtype is None:
        job.dtype = "float16" if job.device == "cuda" else "float32"
    if job.compile is None:
        job.compile = job.device == "cuda"
    parse_method(job.method)
    return job


def device_of(job: Job) -> torch.device:
    """Return the device of a process.

    Raises:
        SystemExit: If it does not work. A CPU would take hours for a run, so it must be asked for.
    """
    if job.device == "cuda":
        try:
            torch.ones(1, device="cuda").item()
        except (RuntimeError, AssertionError) as error:
            why = str(error).partition("\n")[0]
            sys.exit(f"CUDA does not work: {why}\nRehearse with --tiny, or pass --device cpu if that is meant.")
    return torch.device(job.device)


def runs(args: Job, claims: Claims | None) -> Iterator[tuple[Job, int, int]]:
    """Yield jobs, lines and seeds: of the command line, or those of the job file that are left to do."""
    if args.jobs is None or claims is None:
        yield from ((args, 0, seed) for seed in args.seeds)
    else:
        yield from open_runs(sections_of(args), args.worker, claims)


def sections_of(args: Job) -> list[list[tuple[int, Job]]]:
    """Return the jobs of a job file; options of the command line hold for all of them unless a line has its own."""
    return read_jobs(args.jobs, lambda words: parse([*sys.argv[1:], *words]))


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
        """Return a network, the same for all methods: what is compiled for one is there for the others."""

        def make() -> Learner:
            net = Net(widths, depth, classes)
            return Learner(net, self.device, getattr(torch, dtype), set(), compiles=job.compile)

        made: Learner = self._get(f"{widths} {depth} {classes} {dtype} {job.compile}", make)
        made.sizes |= sizes
        return made

    def warm_up(self, job: Job, seed: int, data: Data, model: Learner, proxy: Learner | None) -> None:
        """Run a few steps of a job before the first one is timed."""
        key = job.method, job.look, job.ahead, id(model), id(proxy)
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


def learners(job: Job, data: Data, made: Made) -> tuple[Learner, Learner | None]:
    """Return the large network of a job, and its proxy if it has one."""
    method = parse_method(job.method)
    model = made.learner(job, job.widths, 3, data.classes, job.dtype, sizes_of(job))
    if method is None or not method.needs_look or job.look != "proxy":
        return model, None
    # bfloat16, in which gradients of a mean do not underflow
    dtype = "float32" if job.dtype == "float32" else "bfloat16"
    return model, made.learner(job, job.proxy, 2, data.classes, dtype, {BATCH})


def perform(job: Job, seed: int, made: Made) -> None:
    """Train one run and append its record."""
    data = made.data(job)
    model, proxy = learners(job, data, made)
    made.warm_up(job, seed, data, model, proxy)
    record = train_one(job, seed, data, model, proxy)
    append(job.records, record)
    print(
        f"{record['dataset']} {label(job)} seed {seed}: {record['accuracy']:.2f}, with views "
        f"{record['accuracy_tta']:.2f}, cost {record['cost_epochs']:.2f} epochs (looking {record['looking']:.1%}), "
        f"kept {record['kept_share']:.2f}, {record['seconds']:.1f} s",
        flush=True,
    )


def prepare(args: Job) -> Made:
    """Check the device and set up torch, once per process."""
    device = device_of(args)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch._dynamo.config.recompile_limit = 64  # every size, mode and network is a variant of one function
    return Made(device)


def work(args: Job, claims: Claims | None, made: Made) -> int:
    """Perform what is left to do, until the time is over or something is wrong; return how many runs failed."""
    clock, failed, in_a_row = Clock(args.minutes), 0, 0
    for job, line, seed in runs(args, claims):
        try:
            perform(job, seed, made)
            in_a_row = 0
        except Exception:  # the rest of the queue must not wait for a person
            failed, in_a_row = failed + 1, in_a_row + 1
            print(f"failed: {label(job)} seed {seed}", traceback.format_exc(), sep="\n", file=sys.stderr, flush=True)
            if claims is not None:
                claims.release(line, seed)
        if in_a_row == FAILURES:
            print(f"stopped after {FAILURES} failures in a row", file=sys.stderr, flush=True)
            break
        if clock.is_over():
            print(f"stopped in time: the longest run took {clock.longest:.0f} s", flush=True)
            break
    return failed


def main() -> None:
    args = parse(sys.argv[1:])
    if args.summary:
        print("\n".join(summarize(read_records(args.summary), args.field)))
        return
    claims = None if args.jobs is None else Claims(args.jobs)
    if claims is not None:
        sections_of(args)  # a bad line is seen before anything else
    failed = work(args, claims, prepare(args))
    if claims is not None:
        print(f"{claims.refused} runs were taken by other processes", flush=True)
        claims.close()
    sys.exit(f"{failed} runs failed" if failed else 0)


if __name__ == "__main__":
    main()
