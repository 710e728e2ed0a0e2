"""The runs still wanted, most informative first. A run is its settings; what has a record is not run again.

screen      a small net, 30 epochs, many seeds: which ideas deserve the headline's time
short       ResNet-18, 30 epochs: the headline, in little
headline    ResNet-18, 200 epochs: the paper's setting, the same for all
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from infobatch.lab.settings import Settings

COMMON: dict[str, Any] = {
    "batch_size": 128,
    "schedule": "onecycle",
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "label_smoothing": 0.1,
    "amp": "bf16",
    "channels_last": True,
    "gallery": 0,
}
SCREEN: dict[str, Any] = {**COMMON, "task": "cifar100", "model": "resnet8", "epochs": 30, "lr": 0.1, "eval_every": 30}
HEADLINE: dict[str, Any] = {
    **COMMON,
    "task": "cifar100",
    "model": "resnet18",
    "epochs": 200,
    "lr": 0.05,
    "eval_every": 10,
}

LR = {"compensate": "lr"}
SCREENED: list[list[dict[str, Any]]] = [
    [
        {"method": "full"},
        {"method": "infobatch"},
        {"method": "infobatch", **LR},
        {"method": "random:ratio=0.33"},
        {"method": "random:ratio=0.33", **LR},
        {"method": "one_walk"},
    ],
    [
        {"method": "infobatch", **LR, "ideas": "sqrt_growth"},
        {"method": "infobatch", **LR, "ideas": "no_growth"},
        {"method": "infobatch", "ideas": "normalise"},
        {"method": "infobatch", "ideas": "average"},
        {"method": "infobatch", "ideas": "recalibrate"},
        {"method": "rising:ratio=0.33"},
        {"method": "rising:ratio=0.33", **LR},
        {"method": "tiers"},
        {"method": "tiers", **LR},
    ],
    [
        {"method": "ramp"},
        {"method": "ramp", **LR},
        {"method": "infobatch:delta=0.7"},
        {"method": "infobatch:delta=0.95"},
        {"method": "infobatch:warmup=5"},
        {"method": "infobatch:ratio=0.3"},
        {"method": "infobatch:ratio=0.7"},
        {"method": "infobatch:ratio=0.7", **LR},
        {"method": "rising:ratio=0.45", **LR},
        {"method": "random:ratio=0.45", **LR},
    ],
]


def screen(seeds: int = 20) -> Iterator[Settings]:
    """Each group over all its seeds before the next group; inside a group, seed by seed, so that pairs come early."""
    for group in SCREENED:
        for seed in range(seeds):
            for change in group:
                yield Settings.of({**SCREEN, **change, "seed": seed})


def short(seeds: int = 5) -> Iterator[Settings]:
    """The headline's net and rate in 30 epochs, where a gap is larger; the last is full data with as few steps."""
    changes: list[dict[str, Any]] = [
        *SCREENED[0][:5],
        {"method": "rising:ratio=0.33", **LR},
        {"method": "full", "steps": 8400},
    ]
    for seed in range(seeds):
        for change in changes:
            yield Settings.of({**HEADLINE, "epochs": 30, "eval_every": 30, **change, "seed": seed})


def headline(seeds: int = 5) -> Iterator[Settings]:
    for seed in range(seeds):
        for change in SCREENED[0][:4]:
            yield Settings.of({**HEADLINE, **change, "seed": seed})


QUEUES = {"screen": screen, "short": short, "headline": headline}
