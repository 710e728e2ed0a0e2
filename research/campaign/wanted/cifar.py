"""ResNets on CIFAR, on a GPU: the headline, what it depends on, and the tables of the papers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from infobatch.lab.train.settings import Settings

from .queue import LR, STILL, UNWEIGHTED, grouped, whole_last

COMMON: dict[str, Any] = {
    "batch_size": 128,
    "schedule": "onecycle",
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "label_smoothing": 0.1,
    "amp": "bf16",
    "channels_last": True,
    "gallery": 0,
    "compensate": "loss",
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
SHORT: dict[str, Any] = {**HEADLINE, "epochs": 30, "eval_every": 30}
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


@whole_last
def screen(seeds: int = 20) -> Iterator[Settings]:
    return grouped(SCREEN, SCREENED, seeds)


@whole_last
def short(seeds: int = 5) -> Iterator[Settings]:
    """The headline's net and rate in 30 epochs, where a gap is larger; the last is full data with as few steps."""
    changes: list[dict[str, Any]] = [
        *SCREENED[0][:5],
        {"method": "rising:ratio=0.33", **LR},
        {"method": "full", "steps": 8400},
    ]
    ideas: list[dict[str, Any]] = [
        {"method": "infobatch", **LR, "ideas": "sqrt_growth"},
        {"method": "infobatch", **LR, "ideas": "recalibrate"},
        {"method": "infobatch", **LR, "ideas": "average"},
        {"method": "ramp", **LR},
        {"method": "infobatch:ratio=0.63", **LR},
    ]
    return grouped(SHORT, [[*changes, *ideas]], seeds)


THREE: list[dict[str, Any]] = [{"method": "full"}, {"method": "author_tiers"}, {"method": "author_tiers", **LR}]


@whole_last
def tables(seeds: int = 3) -> Iterator[Settings]:
    """Tables 4 and 5 with the headline's net in 30 epochs, and AdamW; full data and both parts are in ``short``."""
    parts = ["infobatch:delta=1.0,rescale=False", "infobatch:delta=1.0", "infobatch:rescale=False", "above_mean"]
    adamw: dict[str, Any] = {"optimizer": "adamw", "lr": 0.001, "weight_decay": 0.05}
    groups = [[{"method": method} for method in parts], [{**adamw, **row} for row in THREE]]
    return grouped(SHORT, groups, seeds)


@whole_last
def layerwise(seeds: int = 3) -> Iterator[Settings]:
    """Optimizers of Table 7 that ignore the scale of the loss; from pytorch_optimizer, without a CUDA graph."""
    kinds: list[dict[str, Any]] = [
        {"optimizer": "lars", "lr": 2.3},
        {"optimizer": "lamb", "lr": 0.01, "weight_decay": 0.01},
    ]
    groups = [[{**kind, **row} for row in THREE] for kind in kinds]
    return grouped(SHORT, groups, seeds)


@whole_last
def headline(seeds: int = 5) -> Iterator[Settings]:
    """ResNet-18 for 200 epochs: full data, then methods that leave out a third, and full data for a third fewer steps.

    Then methods that leave out 40 %, with random pruning and full data for as few steps. Five seeds, fixed before the
    first run.
    """
    changes: list[dict[str, Any]] = [
        {"method": "full"},
        {"method": "infobatch", **LR},
        {"method": "infobatch"},
        {"method": "full", "steps": 52_200},
        {"method": "random:ratio=0.38"},
    ]
    forty: list[dict[str, Any]] = [
        {"method": "author_tiers", **LR},
        {"method": "infobatch:ratio=0.63", **LR},
        {"method": "random:ratio=0.47", **LR},
    ]
    return grouped(HEADLINE, [changes, forty, [{"method": "full", "steps": 46_200}]], seeds)


@whole_last
def controls(seeds: int = 3) -> Iterator[Settings]:
    """The rows of ``headline`` at 0.085, the learning rate that the authors' tiers grow to from 0.05.

    First a shorter run, which did better there than every pruned run at 0.05. Then full data, to see whether 0.05 is
    too small for it (it is), and what pruning loses at 0.085.
    """
    first: list[dict[str, Any]] = [{"method": "full", "steps": 46_200}]
    others: list[dict[str, Any]] = [
        {"method": "full"},
        {"method": "author_tiers", **LR},
        {"method": "infobatch", **LR},
    ]
    last: list[dict[str, Any]] = [{"method": "author_tiers", **STILL}]
    return grouped({**HEADLINE, "lr": 0.085}, [first, others, last], seeds)


@whole_last
def tuned(seeds: int = 5) -> Iterator[Settings]:
    """Full data at 0.17, one seed; then five seeds, fixed beforehand, of the comparisons at 0.085; CIFAR-10 at 0.1."""
    twice: list[dict[str, Any]] = [{"method": "full", "lr": 0.17}]
    rows: list[dict[str, Any]] = [{"method": "full"}, {"method": "infobatch", **LR}, {"method": "infobatch", **STILL}]
    control: list[dict[str, Any]] = [{"method": "full", "steps": 53_600}]
    published: list[dict[str, Any]] = [{"method": "infobatch"}, {"method": "full", "steps": 46_200}]
    ten: list[dict[str, Any]] = [{"method": "full", "task": "cifar10", "lr": 0.1}]
    at = {**HEADLINE, "lr": 0.085}
    yield from grouped(at, [twice], 1)
    yield from grouped(at, [rows, control, published], seeds)
    yield from grouped(at, [ten], 1)


def faster(seeds: int = 3) -> Iterator[Settings]:
    """Full data and InfoBatch at 0.17, because one run of full data in ``tuned`` was better there than at 0.085.

    Then full data for as many steps as InfoBatch takes.
    """
    rows: list[dict[str, Any]] = [{"method": "full"}, {"method": "infobatch", **STILL}, {"method": "infobatch", **LR}]
    control: list[dict[str, Any]] = [{"method": "full", "steps": 53_600}]
    return grouped({**HEADLINE, "lr": 0.17}, [rows, control], seeds)


def weighed(seeds: int = 3) -> Iterator[Settings]:
    """Earlier runs again, with a short last batch weighted by its samples, to see what counting it in full cost.

    In each pruned epoch it had 10 samples of 128 with the authors' tiers, and 4 with random pruning. InfoBatch comes
    first, then two more seeds of it, then all of them in 30 epochs at 0.05, as in ``short``.
    """
    names = ("infobatch", "infobatch:ratio=0.63", "author_tiers", "random:ratio=0.47")
    rows: list[dict[str, Any]] = [{"method": name, **LR} for name in names]
    yield from grouped({**HEADLINE, "lr": 0.085}, [rows[:1], rows[1:]], seeds)
    yield from grouped({**HEADLINE, "lr": 0.085}, [rows[:1]], range(seeds, seeds + 2))
    yield from grouped(SHORT, [rows[:2], rows[2:]], seeds + 2)


def unweighted_cifar(seeds: int = 3) -> Iterator[Settings]:
    """Methods that keep high losses without weights, the best with an MLP, at 40 % and 0.17, and a shorter run.

    Then two more seeds of full data, InfoBatch's rule without weights, the first of the methods at 0.085, and all of
    them in 30 epochs.
    """
    control: list[dict[str, Any]] = [{"method": "full", "steps": 46_200}]
    rows: list[dict[str, Any]] = [{"method": name} for name in UNWEIGHTED]
    same_rule: list[dict[str, Any]] = [{"method": "infobatch:ratio=0.63,rescale=False"}]
    best = {**HEADLINE, "lr": 0.17}
    yield from grouped(best, [[*rows, *control]], seeds)
    yield from grouped(best, [[{"method": "full"}]], range(seeds, seeds + 2))
    yield from grouped(best, [same_rule], seeds)
    yield from grouped({**HEADLINE, "lr": 0.085}, [rows[:1]], seeds)
    yield from grouped(SHORT, [[*rows, *same_rule]], seeds + 2)


@whole_last
def published(seeds: int = 3) -> Iterator[Settings]:
    """The papers' own cells for ResNet-18 on CIFAR-100, where InfoBatch at 0.05 is compared with full data at 0.03.

    The baseline at 0.03 is mixed with the rows of Table 4, because long and short runs together fill an hour better.
    Then how far the ratio can go (Figure 3), and one more seed of the baseline, which has five whatever ``seeds`` says.
    """
    names = ("infobatch:rescale=False", "infobatch:delta=1.0", "infobatch:delta=1.0,rescale=False")
    parts: list[dict[str, Any]] = [{"method": name} for name in names]
    ratios: list[dict[str, Any]] = [{"method": f"infobatch:ratio={ratio}"} for ratio in (0.7, 0.6, 0.3)]
    full: list[dict[str, Any]] = [{"method": "full"}]
    baseline = {**HEADLINE, "lr": 0.03}
    yield from grouped(baseline, [full], range(2))
    yield from grouped(HEADLINE, [parts], range(1))
    yield from grouped(baseline, [full], range(2, 4))
    yield from grouped(HEADLINE, [parts], range(1, seeds))
    yield from grouped(HEADLINE, [ratios], seeds)
    yield from grouped(baseline, [full], range(4, 5))


@whole_last
def alike(seeds: int = 3) -> Iterator[Settings]:
    """Other ways to save as much."""
    changes: list[dict[str, Any]] = [
        {"method": "saving:share=0.41", **LR},
        {"method": "full", "steps": 52_200, "lr": 0.075},
        {"method": "random:ratio=0.38", **LR},
    ]
    return grouped(HEADLINE, [changes], seeds)


@whole_last
def precise(seeds: int = 3) -> Iterator[Settings]:
    """More seeds for what the first table rests on, decided after its first five: a second look."""
    changes: list[dict[str, Any]] = [
        {"method": "full"},
        {"method": "author_tiers", **LR},
        {"method": "infobatch", **LR},
    ]
    return grouped(HEADLINE, [changes], range(5, 5 + seeds))


@whole_last
def growth(seeds: int = 3) -> Iterator[Settings]:
    """What should grow, where the rate has room (0.05) and where it has none (0.2): nothing, the loss or the rate."""
    ten: dict[str, Any] = {"task": "cifar10", "lr": 0.2}
    room: dict[str, Any] = {"task": "cifar10", "lr": 0.05}
    changes: list[dict[str, Any]] = [
        {**room, "method": "full"},
        {"method": "infobatch", **STILL},
        {**room, "method": "infobatch", **LR},
        {**ten, "method": "infobatch", **STILL},
        {**room, "method": "infobatch", **STILL},
        {**room, "method": "author_tiers", **LR},
        {**room, "method": "full", "steps": 46_200},
    ]
    more: list[dict[str, Any]] = [
        {"method": "author_tiers", **STILL},
        {**ten, "method": "author_tiers", **STILL},
        {**ten, "method": "author_tiers"},
    ]
    return grouped(HEADLINE, [changes, more], seeds)


@whole_last
def cifar10(seeds: int = 5) -> Iterator[Settings]:
    """The headline on CIFAR-10 at its rate, where full data reach as much as at the paper's 0.2."""
    rows: list[dict[str, Any]] = [
        {"method": "full"},
        {"method": "infobatch", **LR},
        {"method": "author_tiers", **LR},
        {"method": "infobatch"},
        {"method": "full", "steps": 46_200},
        {"method": "random:ratio=0.47", **LR},
    ]
    return grouped({**HEADLINE, "task": "cifar10"}, [rows], seeds)


@whole_last
def high(seeds: int = 3) -> Iterator[Settings]:
    """CIFAR-10 at 0.2. A growing learning rate does worse there; methods without it come first."""
    rows: list[dict[str, Any]] = [
        {"method": "full"},
        {"method": "infobatch"},
        {"method": "infobatch", **STILL},
        {"method": "author_tiers", **STILL},
        {"method": "full", "steps": 46_200},
    ]
    return grouped({**HEADLINE, "task": "cifar10", "lr": 0.2}, [rows], seeds)
