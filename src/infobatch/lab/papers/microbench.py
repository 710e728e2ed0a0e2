"""Measure what needs no training: the cost of sorting, planning and pruning, and the learning-rate curve.

Each function returns numbers by row name; a recipe names the function in ``measure`` and the rows in its cells.
``tick`` is called with a line of text as the work proceeds.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch

from ... import methods
from ...dataset import Pruned
from ...epoch.scores import ScoreTable
from ...loader import DataLoader
from ...methods.method import Moment
from ..train.optimizers import rate_table
from ..train.settings import Settings

Rows = dict[str, float]
Tick = Callable[[str], None]
Work = Callable[[], object]

SIZES = {"1.28M": 1_280_000, "14M": 14_000_000}
IMAGENET = 1_281_167
ROUNDS, FEW = 11, 3
PERCENT = 20  # the papers' quantile


def silent(text: str) -> None:
    """Ignore progress."""
    del text


def operations(quick: bool = False, tick: Tick = silent) -> Rows:
    """Measure milliseconds of sort, percentile, mean and a complete plan, by "LIBRARY OPERATION, SIZE".

    Uses one CPU thread, as numpy does, and its CPU time, so that a busy machine does not matter. ``quick`` measures
    only the smaller size, and fewer times. There are rows for the GPU if there is one.
    """
    sizes = {"1.28M": SIZES["1.28M"]} if quick else SIZES
    rounds = FEW if quick else ROUNDS
    rows: Rows = {}
    for name, size in sizes.items():
        tick(f"{name} scores on the CPU")
        scores = torch.empty(size).log_normal_(generator=torch.Generator().manual_seed(0))
        works = {**_numpy(scores), **_torch("torch", scores)}
        with one_thread():
            cpu_seconds = in_turns(works, rounds, process_time)
        rows |= {f"{what}, {name}": 1e3 * took for what, took in cpu_seconds.items()}
        if torch.cuda.is_available():
            tick(f"{name} scores on the GPU")
            gpu_seconds = in_turns(_torch("gpu", scores.cuda()), rounds, perf_counter, torch.cuda.synchronize)
            rows |= {f"{what}, {name}": 1e3 * took for what, took in gpu_seconds.items()}
    return rows


def overhead(quick: bool = False, tick: Tick = silent) -> Rows:
    """Measure what pruning itself costs for as many samples as ImageNet-1K: plans and ``update``, on one thread.

    Returns the median of a few epochs times the number of epochs: "90 epochs, s", "90 epochs, h" and the same for 200.
    Rows that begin with "UCB" are for that method, which sorts in every epoch, at about the same saving.
    """
    size = IMAGENET // 10 if quick else IMAGENET
    epochs = FEW if quick else 7
    rows: Rows = {}
    for name, method in {"": methods.infobatch(), "UCB, ": methods.ucb(every=1)}.items():
        epoch_seconds = _time_epoch(method, size, epochs, tick) * (IMAGENET / size)
        for run in (90, 200):
            rows |= {
                f"{name}{run} epochs, s": run * epoch_seconds,
                f"{name}{run} epochs, h": run * epoch_seconds / 3600,
            }
    return rows


def _time_epoch(method: methods.Method, size: int, epochs: int, tick: Tick, batch: int = 1024) -> float:
    """Return the seconds for plan and updates of a pruned epoch, including the merge of the previous losses."""
    train_data = Pruned(range(size), method, 100)
    generator = torch.Generator().manual_seed(0)
    took = []
    with one_thread():
        for epoch in range(epochs):
            tick(f"{method.name}: epoch {epoch + 1} of {epochs}")
            start = process_time()
            train_data.plan()
            spent = process_time() - start
            for count in DataLoader(train_data, batch_size=batch, collate_fn=len):
                loss = torch.empty(count).log_normal_(generator=generator)
                start = process_time()
                train_data.update(loss)
                spent += process_time() - start
            took.append(spent)
    return statistics.median(took[1:])  # the first is full


def onecycle(quick: bool = False, tick: Tick = silent) -> Rows:
    """Return where the lab's OneCycle schedule starts, when it peaks and where it ends."""
    del quick, tick
    steps = 10_000
    rates = rate_table(Settings(lr=1.0, schedule="onecycle"), steps)
    return {"start": rates[0], "highest at": rates.index(max(rates)) / steps, "end": rates[-1]}


def environment() -> dict[str, Any]:
    """Describe where a measurement was made, without names of hosts or people."""
    return {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "cpu": processor(),
        "processors": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_turns(
    works: dict[str, Work], rounds: int, clock: Callable[[], float], wait: Callable[[], object] = lambda: None
) -> Rows:
    """Return the median seconds of each, measured in turns so that a slow phase affects all; one round warms up."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds + 1):
        for name, work in works.items():
            wait()
            start = clock()
            work()
            wait()
            times[name].append(clock() - start)
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def _numpy(scores: torch.Tensor) -> dict[str, Work]:
    values = scores.numpy()
    nth = len(values) * PERCENT // 100
    return {
        "numpy sort": lambda: np.sort(values),
        "numpy percentile": lambda: np.percentile(values, PERCENT),
        "numpy partition": lambda: np.partition(values, nth),
        "numpy mean": lambda: values.mean(),
    }


def _torch(library: str, scores: torch.Tensor) -> dict[str, Work]:
    nth = len(scores) * PERCENT // 100
    return {
        f"{library} sort": lambda: scores.sort(),
        f"{library} percentile": lambda: scores.kthvalue(nth),
        f"{library} mean": lambda: scores.mean(),
        f"{library} plan by the mean": _plan(scores, methods.infobatch()),
        f"{library} plan by quantiles": _plan(scores, methods.author_tiers()),
        f"{library} randperm": lambda: torch.randperm(len(scores), device=scores.device),
    }


def _plan(scores: torch.Tensor, method: methods.Method) -> Work:
    book = ScoreTable(len(scores), scores.device)
    book.scores.copy_(scores)
    book.planned = len(scores)
    return lambda: book.begin(method.draw(book, Moment(1, 100), 0))


def processor() -> str:
    """Return the model of the processor if the system reports it, otherwise its family."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())
