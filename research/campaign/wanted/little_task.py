"""A small ResNet on 3,000 small images, on a CPU: experiments that need many seeds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from infobatch.lab.train.settings import Settings

from .queue import LR, STILL, UNWEIGHTED, grouped, whole_last

LITTLE: dict[str, Any] = {
    "task": "little:task", "model": "task", "epochs": 30, "batch_size": 64, "lr": 0.1, "schedule": "onecycle",
    "momentum": 0.9, "weight_decay": 5e-4, "channels_last": True, "eval_every": 30, "gallery": 0,
    "compensate": "loss", "device": "cpu", "threads": 1,
}  # fmt: skip
LITTLE_GROUPS: list[list[dict[str, Any]]] = [
    [
        {"method": "full"},
        {"method": "infobatch"},
        {"method": "infobatch", **LR},
        {"method": "full", "steps": 960},
        {"method": "random:ratio=0.365"},
        {"method": "random:ratio=0.365", **LR},
    ],
    [
        {"method": "infobatch", "ideas": "decay"},
        {"method": "infobatch", **LR, "ideas": "sqrt_growth"},
        {"method": "infobatch", **LR, "ideas": "no_growth"},
        {"method": "infobatch", **LR, "ideas": "momentum"},
        {"method": "infobatch", **LR, "ideas": "normalise"},
        {"method": "infobatch", **LR, "ideas": "weighted_norm"},
        {"method": "infobatch", **LR, "ideas": "recalibrate"},
        {"method": "infobatch", **LR, "ideas": "average"},
        {"method": "full", "steps": 960, "lr": 0.15},
    ],
    [
        {"method": "rising:ratio=0.365", **LR},
        {"method": "tiers", **LR},
        {"method": "ramp", **LR},
        {"method": "infobatch:class_floor=0.5", **LR},
        {"method": "infobatch:delta=0.7", **LR},
        {"method": "infobatch:delta=0.95", **LR},
        {"method": "infobatch:warmup=5", **LR},
        {"method": "infobatch:ratio=0.3", **LR},
        {"method": "infobatch:ratio=0.63", **LR},
        {"method": "random:ratio=0.47", **LR},
        {"method": "full", "steps": 835},
    ],
    [
        {"method": "author_tiers", **LR},
        {"method": "rising:ratio=0.47", **LR},
    ],
    [
        {"method": "full", "ideas": "ema"},
        {"method": "infobatch", **LR, "ideas": "ema"},
        {"method": "infobatch:class_floor=0.5", **LR, "ideas": "weighted_norm"},
        {"method": "author_tiers:class_floor=0.5", **LR, "ideas": "weighted_norm"},
    ],
    [
        {"method": "saving:share=0.41", **LR},
    ],
]


@whole_last
def little(seeds: int = 20) -> Iterator[Settings]:
    return grouped(LITTLE, LITTLE_GROUPS, seeds)


@whole_last
def again(seeds: int = 40) -> Iterator[Settings]:
    """The two changes that ``little`` left undecided, separately and together, with new seeds."""
    changes: list[dict[str, Any]] = [
        {"method": "infobatch", **LR},
        {"method": "infobatch", **LR, "ideas": "weighted_norm"},
        {"method": "infobatch:class_floor=0.5", **LR},
        {"method": "infobatch:class_floor=0.5", **LR, "ideas": "weighted_norm"},
    ]
    return grouped(LITTLE, [changes], range(100, 100 + seeds))


CROPS: dict[str, Any] = {**LITTLE, "task": "little:crops", "epochs": 60, "eval_every": 60}


@whole_last
def crops(seeds: int = 20) -> Iterator[Settings]:
    """The little task with crops and flips, for twice as many epochs, so that the network cannot memorize its data."""
    changes: list[dict[str, Any]] = [
        {"method": "full"},
        {"method": "infobatch", **LR},
        {"method": "author_tiers", **LR},
        {"method": "random:ratio=0.365", **LR},
        {"method": "random:ratio=0.47", **LR},
        {"method": "full", "steps": 1_920},
        {"method": "full", "steps": 1_670},
    ]
    more = [{"method": "saving:share=0.41", **LR}, {"method": "infobatch:ratio=0.63", **LR}]
    return grouped(CROPS, [changes, more], seeds)


@whole_last
def rates(seeds: int = 10) -> Iterator[Settings]:
    """How much growth a learning rate tolerates: at 0.1 and at 0.8, then at the rates in between."""
    changes: list[dict[str, Any]] = [
        {"method": "full"},
        {"method": "full", "steps": 1_670},
        {"method": "author_tiers"},
        {"method": "author_tiers", **LR},
        {"method": "author_tiers", **LR, "ideas": "peak"},
        {"method": "author_tiers", **LR, "ideas": "sqrt_growth"},
        {"method": "author_tiers", **LR, "ideas": "no_growth"},
    ]
    grid = [{**change, "lr": lr} for lr, change in product((0.8, 0.1), changes)]
    pruned: list[dict[str, Any]] = [
        {"method": method, **what} for method, what in product(("author_tiers", "infobatch"), (LR, STILL))
    ]
    between = [{**change, "lr": lr} for lr, change in product((0.4, 0.2), [{"method": "full"}, *pruned, changes[1]])]
    ends = [{**change, "lr": lr} for lr, change in product((0.8, 0.1), pruned[2:])]
    return grouped(CROPS, [grid, between + ends], seeds)


def tails(seeds: int = 10) -> Iterator[Settings]:
    """InfoBatch with its short last batch weighted by its samples; compare with the same runs in ``rates``.

    Then a shorter run for as many steps as InfoBatch takes: at each rate, and at 0.2 with other seeds.
    """
    pruned: dict[str, Any] = {"method": "infobatch"}
    rows = [{**pruned, **what, "lr": lr} for lr, what in product((0.1, 0.2, 0.4), (LR, STILL))]
    alike: list[dict[str, Any]] = [{"method": "random:ratio=0.365", **LR, "lr": lr} for lr in (0.1, 0.2)]
    shorter: list[dict[str, Any]] = [{"method": "full", "steps": 1_990, "lr": lr} for lr in (0.2, 0.1, 0.4)]
    yield from grouped(CROPS, [rows, alike, shorter], seeds)
    yield from grouped(CROPS, [[{**pruned, **STILL, "lr": 0.2}, shorter[0]]], range(seeds, seeds + 20))


def unweighted_crops(seeds: int = 10) -> Iterator[Settings]:
    """Methods that keep high losses without weights, which were best with an MLP, on the little task with crops.

    Then variants that show what helps: the weights, averaging losses, the share left out, full data at the end. Last,
    the best of them with other seeds.
    """
    yield from grouped(CROPS, [[{"method": name, "lr": lr} for name in UNWEIGHTED] for lr in (0.2, 0.1, 0.4)], seeds)
    others = (
        "infobatch:ratio=0.63,rescale=False",
        "ucb:ratio=0.47,every=2,unbiased=0.25,annealed=0.875",
        "ucb:ratio=0.6,every=2,annealed=0.875",
        "ucb:ratio=0.47,every=2",
        "epsilon_greedy:ratio=0.47,every=2,annealed=0.875",
        "order_dp:some=0.9,best=0.59,annealed=0.875",
        "ucb:ratio=0.47,every=2,annealed=0.75",
        "ucb:ratio=0.47,every=10,annealed=0.875",
        "ucb:ratio=0.7,every=2,annealed=0.875",
    )
    at = {**CROPS, "lr": 0.2}
    yield from grouped(at, [*([{"method": name}] for name in others), [{"method": others[1], **STILL}]], seeds)
    alike: list[dict[str, Any]] = [{"method": "infobatch:ratio=0.63", **STILL}, {"method": "full", "steps": 1_670}]
    best: list[dict[str, Any]] = [{"method": name} for name in ("full", UNWEIGHTED[0], others[5], others[0])]
    fresh = range(seeds, seeds + 20)  # which had no part in what is best
    exact: list[dict[str, Any]] = [{"method": "full", "steps": steps} for steps in (1_752, 1_786)]  # InfoBatch's own
    yield from grouped(at, [[*best, *alike], exact], fresh)


def noisy(seeds: int = 10) -> Iterator[Settings]:
    """With a fifth of the labels drawn at random: do methods that favour high losses fail, and does a guard help?"""
    rows: list[dict[str, Any]] = [
        {"method": "full"},
        {"method": UNWEIGHTED[0]},
        {"method": UNWEIGHTED[1]},
        {"method": "infobatch", **STILL},
        {"method": "infobatch", **LR},
        {"method": "full", "steps": 1_670},
        {"method": "random:ratio=0.47", **LR},
        {"method": "author_tiers", **LR},
    ]
    guarded = [{"method": f"{name},noise_guard=0.2"} for name in UNWEIGHTED]
    return grouped({**CROPS, "task": "little:noisy", "lr": 0.2}, [rows, guarded], seeds)


@whole_last
def adamw(seeds: int = 8) -> Iterator[Settings]:
    """With AdamW: growing the learning rate, the loss or nothing, at 0.01, at a quarter of it, and between."""
    rows: list[dict[str, Any]] = [
        {"method": "full"},
        {"method": "author_tiers", **LR},
        {"method": "author_tiers"},
        {"method": "author_tiers", **STILL},
        {"method": "full", "steps": 1_670},
    ]
    kind: dict[str, Any] = {"optimizer": "adamw", "weight_decay": 0.05}
    larger = [{"method": "full", "steps": 1_670, "lr": lr} for lr in (0.019, 0.00475)]  # what the tiers' grow to
    first = [{**row, "lr": lr} for lr, row in product((0.01, 0.0025), rows)]
    others = [{**row, "lr": lr} for lr, row in product((0.005, 0.02), [*rows[:2], *rows[3:]])]  # each at its best
    return grouped({**CROPS, **kind}, [first, larger, others], seeds)


@whole_last
def parts(seeds: int = 10) -> Iterator[Settings]:
    """Tables 4 and 5 and Figure 3 of the paper on a small task: what each part adds, where to prune, how far."""
    groups = [
        ["infobatch", "infobatch:delta=1.0,rescale=False", "infobatch:delta=1.0", "infobatch:rescale=False"],
        ["random_star:ratio=0.3", "above_mean", "random:ratio=0.365", "random:ratio=0.18"],
        [f"infobatch:ratio={ratio}" for ratio in (0.3, 0.4, 0.6, 0.7)],
        [f"infobatch:delta={delta}" for delta in (0.75, 0.8, 0.9, 0.95)],
    ]
    return grouped(CROPS, [[{"method": method} for method in group] for group in groups], seeds)


@whole_last
def optimizers(seeds: int = 10) -> Iterator[Settings]:
    """The paper's Table 7 on a small task: optimizers that ignore the scale of the loss; SGD is in ``little``."""
    kinds: list[dict[str, Any]] = [
        {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.05},
        {"optimizer": "lars", "lr": 4.0},
        {"optimizer": "lamb", "lr": 0.03, "weight_decay": 0.01},
    ]
    slower: list[dict[str, Any]] = [{"optimizer": "lamb", "lr": 0.015, "weight_decay": 0.01}]  # does it bear growth?
    groups = [[{**kind, **change} for kind, change in product(some, LITTLE_GROUPS[0][:4])] for some in (kinds, slower)]
    return grouped(LITTLE, groups, seeds)
