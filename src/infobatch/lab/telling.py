"""What a run tells of itself, as plain values."""

from __future__ import annotations

import base64
import math
import os
import platform
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import __version__
from .feeding import Feed, Resident
from .records import Fact
from .tasks import Arrays, Task

BINS = 40


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


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def git_state() -> dict[str, Any] | None:
    """The commit of the code that runs, where it runs from a checkout."""
    folder = Path(__file__).resolve().parent
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        return {"commit": commit, "dirty": bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return None


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
