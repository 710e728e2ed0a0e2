"""Static methods in the lab: a proxy is trained first, then a selector chooses, then the subset is trained on.

The proxy is the task's own net, or a small one for images; its evidence is kept while the process lives, so that all
selectors of a seed look at the same one. What it cost counts as setup of each run that uses it, as if it were alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from .. import methods, selection
from ..errors import InputError, message
from ..method import Method
from ..selection import Evidence, Selection
from .nets import make_net
from .settings import Settings, parse_method, parse_static
from .tasks import Arrays, Task

PROXY: dict[str, Any] = {"model": "mlp", "epochs": 10, "runs": 3, "early": 4, "batch_size": 128, "lr": 0.05}
"""The settings of every proxy: small, quick, and the same for all selectors."""

_known: dict[tuple[str, int, int], tuple[Evidence, float]] = {}


@dataclass(frozen=True, eq=False)
class Prepared:
    """What is trained on, by which method, and the seconds of a proxy that was there already."""

    task: Task
    method: Method
    spared: float = 0.0


def evidence_of(task: Task, seed: int, device: torch.device) -> tuple[Evidence, float]:
    """What a proxy learns of the task's training samples, and the seconds spared by having it already."""
    if not isinstance(task.train, Arrays):
        raise InputError(message("samples in memory, for a static method", task.name, "Choose from a file's list."))
    key = (task.name, id(task.train), seed)
    there, start = key in _known, perf_counter()
    if not there:
        _known.clear()  # one at a time: features are large
        inputs = _scaled(task, task.train.inputs)
        made = partial(make_net, PROXY["model"], tuple(inputs.shape[1:]), len(task.classes))
        settings = {name: value for name, value in PROXY.items() if name != "model"}
        data = TensorDataset(inputs, task.train.labels)
        evidence = selection.gather(made, data, seed=seed, device=device, **settings)
        _known[key] = evidence, perf_counter() - start
    return _known[key][0], _known[key][1] if there else 0.0


def prepare(settings: Settings, task: Task, device: torch.device) -> Prepared:
    """For a static method the chosen subset, and full data or ``then`` on it; for any other the task as it is."""
    labels = task.train.labels if isinstance(task.train, Arrays) else None
    static = parse_static(settings.method)
    if static is None:
        return Prepared(task, parse_method(settings.method, labels))
    evidence, spared = evidence_of(task, settings.seed, device)
    chosen = selection.SELECTORS[static.name](evidence, seed=settings.seed, **static.settings)
    assert isinstance(task.train, Arrays)
    picked = chosen.indices
    train = Arrays(task.train.inputs[picked], task.train.labels[picked])
    smaller = replace(task, train=train, texts=_texts(task, picked))
    if static.then:
        return Prepared(smaller, parse_method(static.then, train.labels), spared)
    if bool((chosen.weights == 1).all()):
        return Prepared(smaller, methods.full(), spared)
    everyone = Selection(torch.arange(len(picked)), size=len(picked), weights=chosen.weights, method=static.name)
    return Prepared(smaller, methods.static(everyone), spared)


def _texts(task: Task, picked: Tensor) -> Callable[[int], str] | None:
    texts = task.texts
    return None if texts is None else (lambda at: texts(int(picked[at])))


def _scaled(task: Task, inputs: Tensor) -> Tensor:
    if inputs.dtype != torch.uint8:
        return inputs
    mean = torch.tensor(task.mean or 0.0).reshape(-1, 1, 1)
    std = torch.tensor(task.std or 1.0).reshape(-1, 1, 1)
    return (inputs.float() / 255 - mean) / std
