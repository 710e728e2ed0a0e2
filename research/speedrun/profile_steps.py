#!/usr/bin/env python3
"""Where the time of a step goes: full data, and two sieves that pass on half. One JSON line each, on made-up images.

  profile_steps.py            # on a GPU: about a minute, most of it for compiling
  profile_steps.py --tiny     # a rehearsal on a CPU

ms is the time of a step from end to end, host_ms the part of it in which the host was busy handing out work: where both
are alike, the GPU waits for the host. look_ms and model_ms are the parts of the look and of the large network; they
overlap where the look runs beside the step. busy is the share of a step in which the GPU computes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from data import Data, make_up
from jobs import append
from speedrun import Made, learners, parse, prepare
from training import Run, label, warm_steps

METHODS = ("full", "hardest(keep=0.5)", "adaptive(threshold=0.05)")
"""The last keeps half as soon as it has measured once, after 16 batches."""
BUDGET = 1000.0
"""Epochs, so that no run is near its end."""


class Stopwatch:
    """Adds up how long a function takes on the device, without waiting for it."""

    def __init__(self, is_cuda: bool) -> None:
        self.is_cuda = is_cuda
        self._laps: list[tuple[Any, Any]] = []

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is timed."""

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = self._mark()
            result = function(*args, **kwargs)
            self._laps.append((began, self._mark()))
            return result

        return timed

    def restart(self) -> None:
        """Forget what was measured so far."""
        self._laps.clear()

    def milliseconds(self) -> float:
        """Return the sum. The device must have finished."""
        if self.is_cuda:
            return sum(began.elapsed_time(ended) for began, ended in self._laps)
        return 1000 * sum(ended - began for began, ended in self._laps)

    def _mark(self) -> Any:
        if not self.is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def busy_ms(spans: Iterable[tuple[float, float]]) -> float:
    """Return how long at least one of some spans, in microseconds, lasted."""
    total, end = 0.0, float("-inf")
    for first, last in sorted(spans):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total / 1000


def kernels_ms(run: Run, steps: int) -> float | None:
    """Return how long the GPU computes in some steps; None without a GPU."""
    if run.data.device.type != "cuda":
        run.train(steps)
        return None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        run.train(steps)
        torch.cuda.synchronize()
    kernels = [
        (one.time_range.start, one.time_range.end)
        for one in profiler.events() or []
        if one.device_type == torch.autograd.DeviceType.CUDA and not getattr(one, "is_user_annotation", False)
    ]
    return busy_ms(kernels) if kernels else None  # none where the machine lets nobody read them


def measure(job: argparse.Namespace, data: Data, made: Made, steps: int) -> dict[str, Any]:
    """Return the times of a method, per step."""
    is_cuda = data.device.type == "cuda"
    model, proxy = learners(job, data, made)
    began = time.perf_counter()
    made.warm_up(job, 0, data, model, proxy)
    _wait(is_cuda)
    warm = time.perf_counter() - began
    run = Run(job, 0, data, model, proxy)
    looks, models = Stopwatch(is_cuda), Stopwatch(is_cuda)
    run._learn = models.around(run._learn)  # type: ignore[method-assign]
    if run.sieve is not None and run.sieve.look is not None:
        run.sieve.look.visit = looks.around(run.sieve.look.visit)  # type: ignore[method-assign]
    walk = run.batches()
    run.batches = lambda: walk  # type: ignore[method-assign]  # the runs below go on with each other's batches
    run.train(warm_steps(job))
    _wait(is_cuda)
    for watch in (looks, models):
        watch.restart()
    kept, first = run.kept, run.steps
    began = time.perf_counter()
    run.train(steps)
    host = time.perf_counter() - began
    _wait(is_cuda)
    total = time.perf_counter() - began
    done = run.steps - first
    result = {
        "method": label(job),
        "rows": round((run.kept - kept) / done, 1),
        "ms": 1000 * total / done,
        "host_ms": 1000 * host / done,
        "look_ms": looks.milliseconds() / done,
        "model_ms": models.milliseconds() / done,
    }
    first = run.steps
    kernels = kernels_ms(run, steps // 3)
    kernels = None if kernels is None else kernels / (run.steps - first)
    result |= {"kernels_ms": kernels, "busy": None if kernels is None else kernels / result["ms"], "warm_s": warm}
    rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in result.items()}
    return {**rounded, "steps": done, "ahead": job.ahead, "compiled": job.compile, "dtype": job.dtype}


def _wait(is_cuda: bool) -> None:
    if is_cuda:
        torch.cuda.synchronize()


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tiny", action="store_true", help="few images and narrow networks")
    p.add_argument("--device", choices=["cuda", "cpu"])
    p.add_argument("--steps", type=int, help="that are timed: 60; with --tiny 3")
    p.add_argument("--records", type=Path, help="append the lines to this file, too")
    args, rest = p.parse_known_args()
    steps = args.steps or (3 if args.tiny else 60)
    words = [*(["--tiny"] if args.tiny else []), *(["--device", args.device] if args.device else []), *rest]
    made = prepare(parse(words))
    data: Data | None = None
    for method in METHODS if not args.tiny else (*METHODS[:2], "adaptive(threshold=0.05, every=2)"):
        for extra in ([], ["--no-ahead"]) if method != "full" else ([],):
            job = parse([*words, "--budget", str(BUDGET), "--method", method, *extra])
            if data is None:
                data = Data(make_up(10, 5120 if args.tiny else 62500), made.device, getattr(torch, job.dtype))
            result = measure(job, data, made, steps)
            print(json.dumps(result), flush=True)
            if args.records is not None:
                append(args.records, result)


if __name__ == "__main__":
    main()
