"""What a run tells of itself, as plain values."""

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
from ...epoch.summary import report
from ...plan import Plan
from ..tasks.task import Arrays, Task
from ..train.batches import Feed, Resident, size_of
from ..train.settings import Settings
from .records import FORMAT, Fact, now

BINS = 40
HISTOGRAMS = 10


@dataclass(frozen=True, eq=False)
class Everyone:
    """All samples of a task, also those that a static method did not choose: facts are told of all of them."""

    task: Task
    chosen: Tensor | None
    """The places in all data of the samples trained on; None where they are all."""
    labels: Tensor | None
    """On the device of the run; None where the data are not in memory."""

    @property
    def size(self) -> int:
        return size_of(self.task.train)

    def spread(self, values: Tensor, others: float = 0) -> Tensor:
        """Values of the samples trained on, at their places in all data."""
        if self.chosen is None:
            return values
        full = torch.full((self.size,), others, dtype=values.dtype, device=values.device)
        return full.index_copy(0, self.chosen.to(values.device), values)

    def by_class(self, counts: Tensor) -> list[int] | None:
        if self.labels is None or not self.task.classes:
            return None
        sums = torch.zeros(len(self.task.classes), dtype=torch.int64, device=self.labels.device)
        return cast(list[int], sums.index_add_(0, self.labels, counts.long()).tolist())

    def class_sizes(self) -> list[int] | None:
        return None if self.labels is None else self.by_class(torch.ones_like(self.labels))


# ---- beginnings and ends -------------------------------------------------------------------------------------


def started(name: str, settings: Settings, task: Task, net: str, environment: dict[str, Any]) -> Fact:
    return {
        "kind": "start",
        "format": FORMAT,
        "run": name or settings.key,
        "time": now(),
        "settings": settings.plain(),
        **task.data,
        "net": net,
        "metric": task.metric,
        "environment": environment,
    }


def paused(epoch: int) -> Fact:
    return {"kind": "pause", "time": now(), "epoch": epoch}


def resumed(epoch: int, environment: dict[str, Any]) -> Fact:
    return {"kind": "resume", "time": now(), "epoch": epoch, "environment": environment}


def ended(
    tested: Fact,
    counts: dict[str, Any],
    full: int,
    not_finite: int,
    seconds: dict[str, float],
    everyone: Everyone,
    visits: Tensor,
) -> Fact:
    """``full`` is how many samples a run on full data would have trained on, ``visits`` how often each came here."""
    return {
        "kind": "end",
        "time": now(),
        "metric": tested.get("metric"),
        "test_loss": tested.get("test_loss"),
        **counts,
        "full_samples": full,
        "saved": 1 - counts["samples"] / full,
        "not_finite": not_finite,
        "seconds": seconds,
        "class_size": everyone.class_sizes(),
        "class_kept": everyone.by_class(everyone.spread(visits)),
        "class_metric": tested.get("class_metric"),
    }


# ---- an epoch ------------------------------------------------------------------------------------------------


def of_plan(plan: Plan, kept: int, scores: Tensor, before: int, everyone: Everyone, epochs: int) -> Fact:
    """Of a plan's first ``kept`` samples: a run of so many steps may end before the others come.

    ``before`` is how many samples were trained on in the epochs before. What only training shows is left open.
    """
    told, size = report(plan, scores, before), everyone.size
    if kept < plan.kept:
        seen = plan.indices[:kept]
        plan = Plan(plan.epoch, seen, torch.zeros_like(plan.table).index_copy(0, seen, plan.weights[:kept]))
    values, counts = torch.unique(plan.table[plan.table != 0], return_counts=True)
    order = counts.argsort(descending=True)[:16].sort().values
    facts: Fact = {
        "epoch": plan.epoch, "kept": kept, "size": size, "saved": 1 - kept / size,
        "saved_so_far": 1 - (before + kept) / ((plan.epoch + 1) * size),
        "growth": told.growth, "effective_size": plan.effective_size, "noise": told.noise,
        "not_finite": 0, "steps": 0, "lr": 0.0, "train_loss": None, "metric": None, "test_loss": None,
        "weights": {"values": values[order].tolist(), "counts": counts[order].tolist()},
        "class_kept": everyone.by_class(everyone.spread(plan.table.ne(0))),
    }  # fmt: skip
    every = max(1, epochs // HISTOGRAMS)
    if plan.epoch % every == every - 1 and plan.epoch:
        facts["losses"] = histogram(scores, plan.table)
    return facts


def histogram(scores: Tensor, table: Tensor) -> Fact | None:
    """The scores a plan was drawn from: all, the kept, and the kept at their weights."""
    known = ~torch.isnan(scores)
    scores, weights = scores[known].double().cpu(), table[known].double().cpu()
    if not len(scores):
        return None
    low, high = float(scores.min()), float(scores.quantile(0.999) if len(scores) < 1 << 24 else scores.max())
    if not high > low:
        high = low + 1e-6
    edges = torch.linspace(low, high, BINS + 1, dtype=torch.float64)
    inside = scores.clamp(low, high)  # the last bin holds the few that lie beyond
    kept = weights != 0

    def count(values: Tensor, weight: Tensor | None = None) -> list[float]:
        return [round(float(n), 3) for n in torch.histogram(values, edges, weight=weight).hist]

    return {
        "edges": [round(edge, 6) for edge in edges.tolist()],
        "before": count(inside),
        "after": count(inside[kept]),
        "rescaled": count(inside[kept], weights[kept]),
    }


def judged(losses: Tensor, scores: Tensor, labels: Tensor, classes: int) -> Fact:
    """A test: its loss and its metric, of all samples and of each class."""
    scores, by_class = scores.double(), None
    if classes:
        count = torch.bincount(labels, minlength=classes)
        total = torch.zeros_like(count, dtype=torch.float64).index_add_(0, labels, scores)
        both = zip(total.tolist(), count.tolist(), strict=True)
        by_class = [round(100 * value / many, 4) if many else None for value, many in both]
    loss = float(losses.double().mean())
    return {"metric": 100 * float(scores.mean()), "test_loss": loss, "class_metric": by_class}


# ---- where it runs -------------------------------------------------------------------------------------------


def git_state() -> dict[str, Any] | None:
    """The commit of the code that runs, where it runs from a checkout. A repository that happens to lie around it,
    as around an environment in a project's folder, does not track this file."""
    here = Path(__file__).resolve()
    folder = here.parent
    try:
        _git(folder, "ls-files", "--error-unmatch", here.name)
        said = _git(folder, "status", "--porcelain=v2", "--branch", "--no-ahead-behind", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    lines = said.splitlines()
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), "(initial)")
    if commit == "(initial)":  # as git has it where there is no commit yet
        return None
    return {"commit": commit, "dirty": any(not line.startswith("# ") for line in lines)}


def _git(folder: Path, *words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *words], check=True, capture_output=True, text=True
    ).stdout.strip()


def place(device: torch.device, feed: Feed, captured: bool) -> dict[str, Any]:
    """Where it runs, and on what."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "infobatch": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": device.type,
        "gpu": gpu,
        "cpu": f"{os.cpu_count()} cores, {platform.machine()}",
        "threads": torch.get_num_threads(),
        "platform": sys.platform,
        "feed": "resident" if isinstance(feed, Resident) else "loader",
        "graph": captured,
        "git": git_state(),
    }


# ---- samples to look at --------------------------------------------------------------------------------------


def gallery(everyone: Everyone, visits: Tensor, scores: Tensor, count: int) -> Fact:
    """The samples that were trained on most and least often."""
    visits, scores = everyone.spread(visits), everyone.spread(scores, math.nan)
    tie = torch.rand(len(visits), generator=torch.Generator().manual_seed(0)).to(visits.device)
    order = (visits + tie).argsort(descending=True)
    count = min(count, len(order))

    def shown(indices: Tensor) -> list[Fact]:
        return [sample(everyone.task, at, int(visits[at]), float(scores[at])) for at in indices.tolist()]

    return {"kind": "samples", "most": shown(order[:count]), "least": shown(order.flip(0)[:count])}


def sample(task: Task, index: int, kept: int, loss: float) -> Fact:
    """A training sample as a page shows it."""
    fact: Fact = {"index": index, "kept": kept, "loss": loss if math.isfinite(loss) else None}
    train = task.train
    if isinstance(train, Arrays):
        label = int(train.labels[index]) if train.labels.dim() == 1 else None
        fact["label"] = task.classes[label] if task.classes and label is not None else label
        image = train.inputs[index]
        if image.dtype == torch.uint8 and image.dim() == 3:
            data = base64.b64encode(image.cpu().numpy().tobytes()).decode()
            fact["image"] = {"shape": list(image.shape), "bytes": data}
    if task.texts is not None:
        fact["text"] = task.texts(index)
    return fact
