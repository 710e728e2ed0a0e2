"""The facts a run yields: dicts of plain values, as docs/lab.md lists them."""

from __future__ import annotations

import base64
import math
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ... import __version__
from ...plan import Plan, estimate_noise
from ..metrics.metric import Metric, by_class, value_of
from ..tasks.task import Arrays, Task
from ..train.batches import size_of
from ..train.settings import Settings
from .records import FORMAT, Fact, now

BINS = 40
HISTOGRAMS = 10
MOST_WEIGHTS = 16


@dataclass(frozen=True, eq=False)
class AllSamples:
    """All training samples of a task, including those that a static method did not choose: facts cover all of them."""

    task: Task
    chosen: Tensor | None
    """The indices of the samples trained on; None if all are."""
    labels: Tensor | None
    """On the device of the run; None if the data are not in memory."""

    @property
    def size(self) -> int:
        """The number of samples."""
        return size_of(self.task.train)

    def spread(self, values: Tensor, others: float = 0) -> Tensor:
        """Put the values of the chosen samples at their indices in all data; the rest get ``others``."""
        if self.chosen is None:
            return values
        full = torch.full((self.size,), others, dtype=values.dtype, device=values.device)
        return full.index_copy(0, self.chosen.to(values.device), values)

    def by_class(self, counts: Tensor) -> list[int] | None:
        """Sum counts per class; None if there are no classes."""
        if self.labels is None or not self.task.classes:
            return None
        sums = torch.zeros(len(self.task.classes), dtype=torch.int64, device=self.labels.device)
        return cast(list[int], sums.index_add_(0, self.labels, counts.long()).tolist())

    def class_sizes(self) -> list[int] | None:
        """Count the samples of each class; None if there are no classes."""
        return None if self.labels is None else self.by_class(torch.ones_like(self.labels))


# ---- start, pause, resume, end -------------------------------------------------------------------------------


def started(
    name: str, settings: Settings, task: Task, net: str, environment: dict[str, Any], sieve: Fact | None = None
) -> Fact:
    """Return the ``start`` fact of a run; ``net`` is the fingerprint of its net, ``sieve`` says how its sieve looks."""
    return {
        "kind": "start",
        "format": FORMAT,
        "run": name or settings.key,
        "time": now(),
        "settings": settings.plain(),
        **task.data,
        "net": net,
        **({} if sieve is None else {"sieve": sieve}),
        "metric": task.metric_info.text,
        "metric_info": task.metric_info.plain(),
        "environment": environment,
    }


def paused(epoch: int) -> Fact:
    """Return the ``pause`` fact of a run interrupted in this epoch."""
    return {"kind": "pause", "time": now(), "epoch": epoch}


def resumed(epoch: int, environment: dict[str, Any]) -> Fact:
    """Return the ``resume`` fact of a run that continues in this epoch."""
    return {"kind": "resume", "time": now(), "epoch": epoch, "environment": environment}


def ended(
    tested: Fact,
    counts: dict[str, Any],
    *,
    cost: Fact,
    not_finite: int,
    seconds: dict[str, float],
    all_samples: AllSamples,
    visits: Tensor,
) -> Fact:
    """Return the ``end`` fact of a run.

    Args:
        tested: The result of the last test.
        counts: Best metric, epochs, steps and samples.
        cost: What it cost beside full data, from ``cost_of``.
        not_finite: How many losses were not finite.
        seconds: Where the time went.
        all_samples: The task's samples.
        visits: How often each sample was trained on.

    Returns:
        The fact.
    """
    return {
        "kind": "end",
        "time": now(),
        "metric": tested.get("metric"),
        "test_loss": tested.get("test_loss"),
        **counts,
        **cost,
        "not_finite": not_finite,
        "seconds": seconds,
        "class_size": all_samples.class_sizes(),
        "class_kept": all_samples.by_class(all_samples.spread(visits)),
        "class_metric": tested.get("class_metric"),
    }


def cost_of(samples: int, full_samples: int, steps: int, looking: float | None = None) -> Fact:
    """Say what a run cost beside full data.

    Args:
        samples: How many samples it trained on.
        full_samples: How many a run on full data would have trained on.
        steps: The steps that it took; with looking, those of full data.
        looking: The FLOPs of looking as a share of those of full data; None for a method that does not look.

    Returns:
        ``same_cost_steps`` is the number of steps on full data that cost as much.

    >>> cost_of(600, 1000, 100, looking=0.05)["same_cost_steps"]
    65
    """
    compute = samples / full_samples + (looking or 0.0)
    same = steps if looking is None else max(1, round(compute * steps))
    fact = {"full_samples": full_samples, "saved": 1 - samples / full_samples, "compute": compute}
    return {**fact, **({} if looking is None else {"looking": looking}), "same_cost_steps": same}


# ---- an epoch ------------------------------------------------------------------------------------------------


def first_of(plan: Plan, count: int) -> Plan:
    """Return a plan of its first ``count`` samples: a run limited by steps may end before the last."""
    if count == plan.kept:
        return plan
    used = plan.indices[:count]
    return Plan(plan.epoch, used, torch.zeros_like(plan.table).index_copy(0, used, plan.weights[:count]))


def of_epoch(plan: Plan, used: Plan, scores: Tensor, trained: int, all_samples: AllSamples, epochs: int) -> Fact:
    """Describe an epoch by its plan; what only training shows is left empty.

    Args:
        plan: The plan.
        used: The part of it that was trained on.
        scores: The scores the plan was drawn from.
        trained: How many samples earlier epochs trained on.
        all_samples: The task's samples.
        epochs: The number of epochs of the run.

    Returns:
        The fact.
    """
    size, kept = all_samples.size, used.kept
    values, counts = torch.unique(used.table[used.table != 0], return_counts=True)
    if len(values) > MOST_WEIGHTS:
        values, counts = torch.unique(used.table[used.table != 0].round(decimals=1), return_counts=True)
    order = counts.argsort(descending=True)[:MOST_WEIGHTS].sort().values
    fact: Fact = {
        "epoch": plan.epoch, "kept": kept, "size": size, "saved": 1 - kept / size,
        "saved_so_far": 1 - (trained + kept) / ((plan.epoch + 1) * size),
        "growth": plan.growth, "effective_size": used.effective_size, "noise": estimate_noise(plan, scores),
        "not_finite": 0, "steps": 0, "lr": 0.0, "train_loss": None, "metric": None, "test_loss": None,
        "weights": {"values": values[order].tolist(), "counts": counts[order].tolist()},
        "class_kept": all_samples.by_class(all_samples.spread(used.table.ne(0))),
    }  # fmt: skip
    every = max(1, epochs // HISTOGRAMS)
    if plan.epoch % every == every - 1 and plan.epoch:
        fact["losses"] = histogram(scores, used.table)
    return fact


def histogram(scores: Tensor, weights: Tensor) -> Fact | None:
    """Bin the scores a plan was drawn from: all, the kept ones, and the kept ones with their weights.

    Args:
        scores: One score per sample; NaN if it has none.
        weights: One weight per sample; 0 if it is pruned.

    Returns:
        The bins, or None if no sample has a score.
    """
    known = ~torch.isnan(scores)
    scores, weights = scores[known].double().cpu(), weights[known].double().cpu()
    if not len(scores):
        return None
    low, high = float(scores.min()), float(scores.quantile(0.999) if len(scores) < 1 << 24 else scores.max())
    if not high > low:
        high = low + 1e-6
    edges = torch.linspace(low, high, BINS + 1, dtype=torch.float64)
    inside = scores.clamp(low, high)  # the last bin also holds the few scores beyond it
    kept = weights != 0

    def count(values: Tensor, weight: Tensor | None = None) -> list[float]:
        return [round(float(n), 3) for n in torch.histogram(values, edges, weight=weight).hist]

    return {
        "edges": [round(edge, 6) for edge in edges.tolist()],
        "before": count(inside),
        "after": count(inside[kept]),
        "rescaled": count(inside[kept], weights[kept]),
    }


def of_test(losses: Tensor, metric: Metric, classes: int) -> Fact:
    """Summarise a test: its loss and its metric, over all samples and per class."""
    loss = float(losses.double().mean())
    return {"metric": value_of(metric), "test_loss": loss, "class_metric": by_class(metric, classes)}


# ---- the environment -----------------------------------------------------------------------------------------


def git_state() -> dict[str, Any] | None:
    """Return the commit of the running code if it comes from a checkout, else None.

    A repository that merely contains the installation, such as a project with a virtual environment inside, does not
    track this file and does not count.
    """
    here = Path(__file__).resolve()
    folder = here.parent
    try:
        _git(folder, "ls-files", "--error-unmatch", here.name)
        status = _git(folder, "status", "--porcelain=v2", "--branch", "--no-ahead-behind", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    lines = status.splitlines()
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), "(initial)")
    if commit == "(initial)":  # what git prints if there is no commit yet
        return None
    return {"commit": commit, "dirty": any(not line.startswith("# ") for line in lines)}


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def environment(device: torch.device, captured: bool, resident: bool) -> dict[str, Any]:
    """Describe the software and hardware of a run.

    Args:
        device: Where it trains.
        captured: Whether its step is a CUDA graph.
        resident: Whether its data are in device memory.

    Returns:
        Plain values by name.
    """
    return {
        "infobatch": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": device.type,
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "cpu": f"{os.cpu_count()} cores, {platform.machine()}",
        "threads": torch.get_num_threads(),
        "platform": sys.platform,
        "feed": "resident" if resident else "loader",
        "graph": captured,
        "git": git_state(),
    }


# ---- the gallery ---------------------------------------------------------------------------------------------


def gallery(all_samples: AllSamples, visits: Tensor, scores: Tensor, count: int) -> Fact:
    """Return the ``samples`` fact: the samples that were trained on most and least often."""
    visits, scores = all_samples.spread(visits), all_samples.spread(scores, math.nan)
    tie_breaker = torch.rand(len(visits), generator=torch.Generator().manual_seed(0)).to(visits.device)
    order = (visits + tie_breaker).argsort(descending=True)
    count = min(count, len(order))

    def describe(indices: Tensor) -> list[Fact]:
        return [sample(all_samples.task, at, int(visits[at]), float(scores[at])) for at in indices.tolist()]

    return {"kind": "samples", "most": describe(order[:count]), "least": describe(order.flip(0)[:count])}


def sample(task: Task, index: int, kept: int, loss: float) -> Fact:
    """Describe a training sample for the report: label, image or text, and how often it was kept."""
    fact: Fact = {"index": index, "kept": kept, "loss": loss if math.isfinite(loss) else None}
    train = task.train
    if isinstance(train, Arrays):
        labels, image = train.class_labels, train[index][0]
        label = None if labels is None else int(labels[index])
        fact["label"] = task.classes[label] if task.classes and label is not None else label
        if isinstance(image, Tensor) and image.dtype == torch.uint8 and image.dim() == 3:
            data = base64.b64encode(image.cpu().numpy().tobytes()).decode()
            fact["image"] = {"shape": list(image.shape), "bytes": data}
    if task.texts is not None:
        fact["text"] = task.texts(index)
    return fact
