"""A task of our own, commands in processes of their own, and what their runs learnt."""

from __future__ import annotations

from typing import Any

from launching import Program

from infobatch.lab.runs.records import Run

TOY = """
import itertools
import os
import time
import torch
from infobatch.lab.train import loop
from infobatch.lab.tasks.task import Arrays, Task, cross_entropy

def make(loss=cross_entropy):
    draw = torch.Generator().manual_seed(0)
    def some(count):
        inputs = torch.randn(count, 10, generator=draw)
        return Arrays(inputs, (inputs[:, 0] + 0.5 * torch.randn(count, generator=draw) > 0).long())
    suits = {"model": "mlp", "epochs": 8, "batch_size": 20, "lr": 0.05, "threads": 1, "gallery": 2}
    return Task("toy", some(200), some(100), ("no", "yes"), defaults=suits, loss=loss)

def guessing():
    from dataclasses import replace
    from infobatch.lab.metrics import Perplexity
    return replace(make(), metric=Perplexity(margin=0.02))

def slow():
    pause = float(os.environ.get("PAUSE", 0))
    if pause:  # in a process that will be stopped
        loop.CHECKPOINT_SECONDS = 0.0  # after every epoch
    batches = itertools.count()  # after some it takes its time, so that it is stopped before it ends
    return make(lambda *given: (time.sleep(pause if next(batches) < 150 else 40 * pause), cross_entropy(*given))[1])

def stuck():
    return make(lambda *given: (time.sleep(60), cross_entropy(*given))[1])
"""

STARTED: list[Program] = []


def start(*words: str) -> Program:
    """A command in a process of its own."""
    process = Program("-m", "infobatch.cli", *words, PAUSE=0.005)
    STARTED.append(process)
    return process


def numbers(run: Run) -> Any:
    """All that a run learnt, without what the clock says and without where it ran."""
    assert run.end is not None
    end = {key: value for key, value in run.end.items() if key not in ("time", "seconds")}
    return end, [{key: value for key, value in epoch.items() if key != "seconds"} for epoch in run.epochs]
