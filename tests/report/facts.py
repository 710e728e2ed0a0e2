"""Facts as a run would leave them, from a small model of training: every sample has a difficulty and its loss falls.

Deterministic, and consistent with itself: what is kept is chosen by the losses, histograms and weights follow from
the choice, and the accuracy falls a little with what was left out.
"""

from __future__ import annotations

import base64
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from infobatch.lab.runs import records
from infobatch.lab.runs.records import Run
from infobatch.lab.train.settings import Settings

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
EDGES = 41


def facts(
    method: str = "infobatch",
    seed: int = 0,
    *,
    epochs: int = 30,
    size: int = 2000,
    classes: list[str] | None = CLASSES,
    images: bool = True,
    harm: float = 0.4,
    stop: int | None = None,
    **settings: Any,
) -> list[dict[str, Any]]:
    """All facts of one run; ``stop`` leaves it unfinished after so many epochs. ``harm`` in points a full saving."""
    given = {"task": "cifar10", "model": "resnet18", **settings}
    chosen = Settings(method=method, seed=seed, epochs=epochs, **given)
    # What is luck of the data is the same for all methods of a seed; that is why runs are paired.
    draw, luck = np.random.default_rng(seed), np.random.default_rng([seed, len(method), len(settings)])
    number = len(classes) if classes else 10
    labels = draw.integers(0, number, size)
    hardness = draw.gamma(1.2, 0.6, size) * (0.6 + 0.8 * labels / number)
    final = 94.2 + 0.25 * draw.standard_normal()
    counts = np.bincount(labels, minlength=number)
    share = {"full": 0.0, "random": 0.3}.get(method.split(":")[0], 0.5)
    out: list[dict[str, Any]] = [_start(chosen, size, classes)]
    kept_total, steps_total = 0, 0
    often, kept_of = np.zeros(size, int), np.zeros(number, int)
    seconds_total = dict.fromkeys(("data", "step", "planning", "test"), 0.0)
    last = epochs if stop is None else stop
    if chosen.steps:
        last = max(1, round(chosen.steps * 128 / size))
    for epoch in range(last):
        done = (epoch + 1) / epochs if not chosen.steps else (epoch + 1) / last
        losses = hardness * np.exp(-2.2 * done) * np.exp(0.25 * luck.standard_normal(size)) + 0.01
        weights = np.ones(size)
        if share and 0 < epoch < 0.875 * epochs:
            low = losses < losses.mean() if method.split(":")[0] != "random" else np.ones(size, bool)
            dropped = low & (luck.random(size) < share)
            weights[low] = low.sum() / max(1, (low & ~dropped).sum())
            weights[dropped] = 0.0
        kept = weights > 0
        often += kept
        kept_of += np.bincount(labels[kept], minlength=number)
        kept_total += int(kept.sum())
        steps = -(-int(kept.sum()) // 128)
        steps_total += steps
        saved = 1 - kept_total / (size * (epoch + 1))
        metric = final * (1 - np.exp(-6 * done)) - 8 * (1 - done) * luck.random() - harm * saved
        metric += 0.08 * luck.standard_normal() - (2.0 if chosen.steps else 0.0)
        seconds = {
            "data": 0.05 * steps, "step": 0.21 * steps, "planning": 0.012 if share else 0.004, "test": 0.4,
        }  # fmt: skip
        for name, value in seconds.items():
            seconds_total[name] += value
        values, numbers = np.unique(weights[kept].round(6), return_counts=True)
        out.append(
            {
                "kind": "epoch", "epoch": epoch, "kept": int(kept.sum()), "size": size,
                "saved": 1 - float(kept.mean()), "saved_so_far": saved, "growth": size / float(kept.sum()),
                "effective_size": float(weights.sum() ** 2 / (weights**2).sum()),
                "noise": 0.82 if share == 0.5 and not kept.all() else 1.0,
                "not_finite": 0, "steps": steps, "lr": float(0.1 * min(done / 0.3, (1.001 - done) / 0.7)),
                "train_loss": float(losses[kept].mean()),
                "metric": float(metric), "test_loss": float(0.25 + 1.9 * np.exp(-5 * done)), "seconds": seconds,
                "weights": {"values": values.tolist(), "counts": numbers.tolist()},
                "class_kept": np.bincount(labels[kept], minlength=number).tolist() if classes else None,
                **({"losses": _histogram(losses, weights)} if epoch % max(1, epochs // 10) == 0 else {}),
            }
        )  # fmt: skip
    if stop is not None:
        return out
    order = np.argsort(often, kind="stable")
    pick = {"least": order[:12], "most": order[::-1][:12]}
    out.append(
        {
            "kind": "samples",
            **{
                name: [
                    _sample(int(i), int(often[i]), int(labels[i]), float(losses[i]), images, classes)
                    for i in chosen_ones
                ]
                for name, chosen_ones in pick.items()
            },
        }
    )
    seconds_total["setup"] = 3.0 - seed / 4
    test = 100 - 1.2 * np.arange(number) + 0.4 * luck.standard_normal(number)
    out.append(
        {
            "kind": "end", "metric": float(metric), "test_loss": 0.26, "best": float(metric) + 0.1, "epochs": last,
            "steps": steps_total, "samples": kept_total, "full_samples": size * last,
            "saved": 1 - kept_total / (size * last),
            "seconds": {**seconds_total, "total": sum(seconds_total.values())},
            "class_size": counts.tolist() if classes else None,
            "class_kept": kept_of.tolist() if classes else None,
            "class_metric": test.tolist() if classes else None,
        }
    )  # fmt: skip
    return out


def run(method: str = "infobatch", seed: int = 0, **changes: Any) -> Run:
    return made(facts(method, seed, **changes))


def made(lines: list[dict[str, Any]]) -> Run:
    """Through the file, as the lab's own records go."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / records.FILE
        path.write_text("".join(map(records.line, lines)), encoding="utf-8")
        return records.read(path)


def study(seeds: int = 5, **changes: Any) -> list[Run]:
    """Full data, two methods, and full data with the method's number of steps."""
    runs = []
    for seed in range(seeds):
        pruned = run("infobatch", seed, **changes)
        assert pruned.end is not None
        runs += [
            run("full", seed, **changes),
            pruned,
            run("random", seed, harm=2.5, **changes),
            run("full", seed, steps=pruned.end["steps"], **changes),
        ]
    return runs


def spoiled(value: Any, text: str) -> Any:
    """The same facts with every text replaced, but for those that the reader itself goes by."""
    if isinstance(value, dict):
        own = ("kind", "bytes", "method", "compensate", "schedule", "amp", "feed", "crop_padding", "optimizer", "ideas")
        return {key: inner if key in own else spoiled(inner, text) for key, inner in value.items()}
    if isinstance(value, list):
        return [spoiled(inner, text) for inner in value]
    return text if isinstance(value, str) else value


def attacked(attacks: list[str], **changes: Any) -> list[Run]:
    """Runs whose every text is all the attacks; each comes first in one of them, since long texts are cut."""
    made_of = [facts("full", **changes), facts("infobatch", **changes)]
    made_of.append(facts("infobatch", 1, images=False, compensate="loss", **changes))
    turned = [" ".join(attacks[turn:] + attacks[:turn]) for turn in range(len(made_of))]
    return [made(spoiled(lines, text)) for lines, text in zip(made_of, turned, strict=True)]


def _start(settings: Settings, size: int, classes: list[str] | None) -> dict[str, Any]:
    suffix = f"-{settings.steps}" if settings.steps else ""
    return {
        "kind": "start", "format": 2, "run": f"{settings.method}{suffix}-{settings.seed}",
        "time": "2026-01-05T09:00:00Z", "settings": json.loads(json.dumps(settings.plain())), "size": size,
        "classes": classes or [], "metric": "accuracy, %", "source": "cifar-10-batches-bin, sha256 c4a38c50",
        "environment": {
            "infobatch": "0.1.0", "torch": "2.11.0", "python": "3.11.9", "device": "cuda", "gpu": "NVIDIA H200",
            "cpu": "16 cores", "threads": 16, "platform": "Linux-6.1-x86_64", "feed": "resident", "graph": True,
            "git": {"commit": "405c3fe", "dirty": False},
        },
    }  # fmt: skip


def _histogram(losses: np.ndarray, weights: np.ndarray) -> dict[str, list[float]]:
    edges = np.linspace(0, float(np.quantile(losses, 0.995)), EDGES)
    return {
        "edges": edges.tolist(),
        "before": np.histogram(losses, edges)[0].tolist(),
        "after": np.histogram(losses[weights > 0], edges)[0].tolist(),
        "rescaled": np.histogram(losses, edges, weights=weights)[0].tolist(),
    }


def _sample(index: int, kept: int, label: int, loss: float, images: bool, classes: list[str] | None) -> dict[str, Any]:
    common = {"index": index, "kept": kept, "loss": loss, "label": classes[label] if classes else None}
    if not images:
        return {**common, "text": f"Sample {index}: the quick brown fox jumps over the lazy dog. " * 4}
    y, x = np.mgrid[0:16, 0:16]
    angle = 2 * np.pi * label / 10
    wave = np.sin((x * np.cos(angle) + y * np.sin(angle)) / (1.2 + (index % 5) / 3) + index)
    disc = ((x - 8) ** 2 + (y - 8) ** 2 < 20 + index % 30)[None]
    tint = np.array([0.5 + 0.5 * np.cos(angle + k) for k in (0, 2, 4)])[:, None, None]
    image = np.where(disc, 255 * tint, 90 + 60 * wave[None] * (1 - tint)).clip(0, 255).astype(np.uint8)
    image = np.ascontiguousarray(np.broadcast_to(image, (3, 16, 16)))
    return {**common, "image": {"shape": [3, 16, 16], "bytes": base64.b64encode(image.tobytes()).decode()}}
