"""Static methods in the lab: train a proxy, let a selector choose a subset, train on the subset.

The proxy is a small net. Its evidence is kept as long as the process lives, so that all selectors of a seed use the
same one. Each run is charged for the full cost of the proxy, as if it had trained it alone.
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
from ..tasks.nested import take
from ..tasks.nets import make_net
from ..tasks.task import Arrays, Task
from .method_text import parse_method, parse_sieve, parse_static
from .settings import Settings

PROXY: dict[str, Any] = {"model": "mlp", "epochs": 10, "runs": 3, "early": 4, "batch_size": 128, "lr": 0.05}
"""The settings of every proxy: small, quick, and the same for all selectors; a method may name other ``runs``."""

_cache: dict[str, Any] = {}
"""The most recent evidence and what it was gathered from; only one, since features are large."""


@dataclass(frozen=True, eq=False)
class Choice:
    """The samples that a static method chose: their indices in the task's data, and their weights."""

    indices: Tensor
    weights: Tensor


@dataclass(frozen=True, eq=False)
class Prepared:
    """What a run trains on, and with which method."""

    task: Task
    method: Method
    choice: Choice | None = None
    """None if all samples are used."""
    seconds: float = 0.0
    """What proxy and selector cost, also if the proxy came from the cache."""


def gather_evidence(task: Task, seed: int, device: torch.device, runs: int = 0) -> tuple[Evidence, float]:
    """Return evidence of the task's training samples and the seconds that took.

    It comes from a proxy that is trained ``runs`` times or, if the task makes features of its own, consists of these.
    """
    assert isinstance(task.train, Arrays)
    runs = runs or PROXY["runs"]
    source = {"train": task.train, "seed": seed, "device": device, "runs": runs}
    if not all(_cache.get(name) == value for name, value in source.items()):  # Arrays compare by identity
        _cache.clear()
        start = perf_counter()
        if task.features is not None:
            labels = task.train.class_labels if task.classes else None
            evidence = Evidence(len(task.train), labels=labels, features=task.features(seed, device))
        else:
            evidence = _train_proxy(task, task.train, seed, device, runs)
        _cache.update(source, evidence=evidence, seconds=perf_counter() - start)
    return _cache["evidence"], _cache["seconds"]


def _train_proxy(task: Task, train: Arrays, seed: int, device: torch.device, runs: int) -> Evidence:
    inputs = _normalised(task, train.inputs)
    make_proxy = partial(make_net, PROXY["model"], tuple(inputs.shape[1:]), len(task.classes))
    settings = {**{name: value for name, value in PROXY.items() if name != "model"}, "runs": runs}
    data = TensorDataset(inputs, train.labels)
    return selection.gather(make_proxy, data, seed=seed, device=device, **settings)


def prepare(settings: Settings, task: Task, device: torch.device, choice: Choice | None = None) -> Prepared:
    """Select the subset of a static method; for any other method return the task unchanged.

    Args:
        settings: What to train.
        task: The task.
        device: Where the proxy is trained.
        choice: What an interrupted run had chosen: another machine might choose differently.

    Returns:
        The task to train on and the method to train with: full data, or ``then`` of the static method.

    Raises:
        InputError: If the task's samples are not arrays with classes, and it makes no features of them either.
    """
    static = parse_static(settings.method)
    if static is None:
        labels = task.train.class_labels if isinstance(task.train, Arrays) else None
        sieved = parse_sieve(settings.method)
        text = settings.method if sieved is None else sieved.then or "full"
        return Prepared(task, parse_method(text, labels))
    train = task.train
    if not isinstance(train, Arrays) or (task.features is None and not _has_classes(task, train)):
        expected = "samples in memory, with classes or a task's own features, for a static method"
        raise InputError(message(expected, task.name, "infobatch.selection works with any data set."))
    seconds = 0.0
    if choice is None:
        evidence, seconds = gather_evidence(task, settings.seed, device, static.runs)
        start = perf_counter()
        chosen = selection.SELECTORS[static.name](evidence, seed=settings.seed, **static.settings)
        choice = Choice(chosen.indices, chosen.weights)
        seconds += perf_counter() - start
    train = Arrays(take(train.inputs, choice.indices), take(train.labels, choice.indices))
    subset = replace(task, train=train)
    if static.then:
        method = parse_method(static.then, train.class_labels)
    elif bool((choice.weights == 1).all()):
        method = methods.full()
    else:
        indices = torch.arange(len(train))
        method = methods.static(Selection(indices, size=len(train), weights=choice.weights, method=static.name))
    return Prepared(subset, method, choice, seconds)


def _has_classes(task: Task, train: Arrays) -> bool:
    return bool(task.classes) and train.class_labels is not None and isinstance(train.inputs, Tensor)


def _normalised(task: Task, inputs: Tensor) -> Tensor:
    if inputs.dtype != torch.uint8:
        return inputs
    mean = torch.tensor(task.mean or 0.0).reshape(-1, 1, 1)
    std = torch.tensor(task.std or 1.0).reshape(-1, 1, 1)
    return (inputs.float() / 255 - mean) / std
