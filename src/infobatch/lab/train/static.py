"""Static methods in the lab: a proxy is trained first, then a selector chooses, then the subset is trained on.

The proxy is a small net of its own; its evidence is kept while the process lives, so that all
selectors of a seed look at the same one. What it cost counts in each run that uses it, as if it were alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from ... import methods, selection
from ...errors import InputError, message
from ...methods.method import Method
from ...selection import Evidence, Selection
from ..tasks.nets import make_net
from ..tasks.task import Arrays, Task
from .settings import Settings, parse_method, parse_static

PROXY: dict[str, Any] = {"model": "mlp", "epochs": 10, "runs": 3, "early": 4, "batch_size": 128, "lr": 0.05}
"""The settings of every proxy: small, quick, and the same for all selectors."""

_known: dict[str, Any] = {}
"""The last evidence, under the names of what it was gathered from: one at a time, since features are large."""


@dataclass(frozen=True, eq=False)
class Choice:
    """The samples a static method chose: places in the task's data, and a weight each."""

    indices: Tensor
    weights: Tensor


@dataclass(frozen=True, eq=False)
class Prepared:
    """What is trained on, and by which method."""

    task: Task
    method: Method
    choice: Choice | None = None
    """None where all samples may come."""
    seconds: float = 0.0
    """What proxy and selector took, also where the proxy was there already."""


def evidence_of(task: Task, seed: int, device: torch.device) -> tuple[Evidence, float]:
    """What a proxy learns of the task's training samples, and the seconds that took."""
    assert isinstance(task.train, Arrays)
    same = {"train": task.train, "seed": seed, "device": device}
    if not all(_known.get(name) == value for name, value in same.items()):  # Arrays are equal to themselves alone
        _known.clear()
        start = perf_counter()
        inputs = _scaled(task, task.train.inputs)
        made = partial(make_net, PROXY["model"], tuple(inputs.shape[1:]), len(task.classes))
        settings = {name: value for name, value in PROXY.items() if name != "model"}
        data = TensorDataset(inputs, task.train.labels)
        evidence = selection.gather(made, data, seed=seed, device=device, **settings)
        _known.update(same, evidence=evidence, seconds=perf_counter() - start)
    return _known["evidence"], _known["seconds"]


def prepare(settings: Settings, task: Task, device: torch.device, choice: Choice | None = None) -> Prepared:
    """For a static method the chosen subset, and full data or ``then`` on it; for any other the task as it is.

    ``choice`` is what the run had chosen before it was interrupted: another machine might choose otherwise.
    """
    static = parse_static(settings.method)
    if static is None:
        labels = task.train.labels if isinstance(task.train, Arrays) else None
        return Prepared(task, parse_method(settings.method, labels))
    if not isinstance(task.train, Arrays) or not task.classes:
        expected = "samples in memory, with classes, for a static method"
        raise InputError(message(expected, task.name, "infobatch.selection chooses from any data set."))
    seconds = 0.0
    if choice is None:
        evidence, seconds = evidence_of(task, settings.seed, device)
        start = perf_counter()
        chosen = selection.SELECTORS[static.name](evidence, seed=settings.seed, **static.settings)
        choice = Choice(chosen.indices, chosen.weights)
        seconds += perf_counter() - start
    train = Arrays(task.train.inputs[choice.indices], task.train.labels[choice.indices])
    smaller = replace(task, train=train)
    if static.then:
        method = parse_method(static.then, train.labels)
    elif bool((choice.weights == 1).all()):
        method = methods.full()
    else:
        everyone = torch.arange(len(train))
        method = methods.static(Selection(everyone, size=len(train), weights=choice.weights, method=static.name))
    return Prepared(smaller, method, choice, seconds)


def _scaled(task: Task, inputs: Tensor) -> Tensor:
    if inputs.dtype != torch.uint8:
        return inputs
    mean = torch.tensor(task.mean or 0.0).reshape(-1, 1, 1)
    std = torch.tensor(task.std or 1.0).reshape(-1, 1, 1)
    return (inputs.float() / 255 - mean) / std
