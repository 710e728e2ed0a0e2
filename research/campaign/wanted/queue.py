"""Build a queue: what all its runs share, what changes, and the seeds.

Queues describe the campaign as it was recorded, so some of their runs are no longer trained: those with a learning
rate that grew, or with the experiments in research/ideas. ``run.py`` skips them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from itertools import product
from typing import Any

from infobatch.lab.train.settings import Settings, with_whole_last

LR = {"compensate": "lr"}
"""The learning rate grew in pruned epochs; such runs can be read, not trained."""
STILL = {"compensate": "none"}
UNWEIGHTED = ("ucb:ratio=0.47,every=2,annealed=0.875", "eswp:ratio=0.47,annealed=0.875")
"""Methods that favour high losses without reweighting and end on full data: the best at 40 % with an MLP."""
TINY: dict[str, Any] = {"task": "digits", "model": "conv", "amp": "none", "threads": 1, "device": "cpu"}
"""Settings of a rehearsal."""


def grouped(base: dict[str, Any], groups: list[list[dict[str, Any]]], seeds: int | range) -> Iterator[Settings]:
    """Yield each group over all its seeds before the next; inside a group seed by seed, so that pairs come early."""
    for group in groups:
        for seed, change in product(range(seeds) if isinstance(seeds, int) else seeds, group):
            yield Settings.of({**base, **change, "seed": seed})


Queue = Callable[..., Iterator[Settings]]


def whole_last(queue: Queue) -> Queue:
    """Mark a queue that was recorded while a short last batch still counted as a full one."""

    @wraps(queue)
    def marked(**seeds: int) -> Iterator[Settings]:
        return (settings.but(ideas=with_whole_last(settings.method, settings.ideas)) for settings in queue(**seeds))

    return marked
