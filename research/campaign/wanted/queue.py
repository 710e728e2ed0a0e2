"""How a queue is made: what is common to all its runs, what changes, and the seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from itertools import product
from typing import Any

from infobatch.lab.train.settings import Settings, as_before

LR = {"compensate": "lr"}
STILL = {"compensate": "none"}
UNWEIGHTED = ("ucb:ratio=0.47,every=2,annealed=0.875", "eswp:ratio=0.47,annealed=0.875")
"""They favour high losses at weights 1 and end on full data: what came out best at 40 % with an MLP."""
TINY: dict[str, Any] = {"task": "digits", "model": "conv", "amp": "none", "threads": 1, "device": "cpu"}
"""To rehearse."""


def grouped(base: dict[str, Any], groups: list[list[dict[str, Any]]], seeds: int | range) -> Iterator[Settings]:
    """Each group over all its seeds before the next group; inside a group, seed by seed, so that pairs come early."""
    for group in groups:
        for seed, change in product(range(seeds) if isinstance(seeds, int) else seeds, group):
            yield Settings.of({**base, **change, "seed": seed})


Queue = Callable[..., Iterator[Settings]]


def before(queue: Queue) -> Queue:
    """As most of the campaign was run: a short last batch counts as a whole one."""

    @wraps(queue)
    def made(**seeds: int) -> Iterator[Settings]:
        return (settings.but(ideas=as_before(settings.method, settings.ideas)) for settings in queue(**seeds))

    return made
