"""The runs still wanted, most informative first. A run is its settings; what has a record is not run again.

little      a small ResNet on 3,000 small images, 30 epochs, 20 seeds, on a CPU: which ideas deserve more
again       what that left open, with other seeds
crops       the same task with crops and flips, 60 epochs: no net learns it by heart
rates       the same at a rate eight times as large: how much growth it bears
adamw       the same with AdamW, at four rates
parts       the same: Tables 4 and 5 and Figure 3 in little
optimizers  the first, with AdamW, LARS and LAMB
screen      a small net on CIFAR-100, 30 epochs: underfits, so little took its place
short       ResNet-18, 30 epochs: the headline, in little
tables      the same: Tables 4 and 5 of the paper, and AdamW
layerwise   the same with LARS and LAMB: Table 7
digits, fashion   every method on small data
mlp         a few of them at five rates, with SGD and AdamW
headline    ResNet-18, 200 epochs: the paper's setting, the same for all
controls    the same at 0.085, where full data do better
tuned       more seeds of that, and as few steps
alike       other ways to save as much
precise     more seeds of its first rows
growth      what should grow: the rate, the loss or nothing, on CIFAR-10 and CIFAR-100
cifar10     the headline on CIFAR-10
high        the same at 0.2, the rate the paper names
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from infobatch.lab.settings import Settings
from infobatch.selection import SELECTORS

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

TINY: dict[str, Any] = {"task": "digits", "model": "conv", "amp": "none", "threads": 1, "device": "cpu"}
"""To rehearse."""

LR = {"compensate": "lr"}
STILL = {"compensate": "none"}
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


def grouped(base: dict[str, Any], groups: list[list[dict[str, Any]]], seeds: int | range) -> Iterator[Settings]:
    """Each group over all its seeds before the next group; inside a group, seed by seed, so that pairs come early."""
    for group in groups:
        for seed, change in product(range(seeds) if isinstance(seeds, int) else seeds, group):
            yield Settings.of({**base, **change, "seed": seed})


def screen(seeds: int = 20) -> Iterator[Settings]:
    return grouped(SCREEN, SCREENED, seeds)


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


def little(seeds: int = 20) -> Iterator[Settings]:
    return grouped(LITTLE, LITTLE_GROUPS, seeds)


def again(seeds: int = 40) -> Iterator[Settings]:
    """What the little task left open, and both together, with seeds that had no part in leaving it open."""
    changes: list[dict[str, Any]] = [
        {"method": "infobatch", **LR},
        {"method": "infobatch", **LR, "ideas": "weighted_norm"},
        {"method": "infobatch:class_floor=0.5", **LR},
        {"method": "infobatch:class_floor=0.5", **LR, "ideas": "weighted_norm"},
    ]
    return grouped(LITTLE, [changes], range(100, 100 + seeds))


CROPS: dict[str, Any] = {**LITTLE, "task": "little:crops", "epochs": 60, "eval_every": 60}


def crops(seeds: int = 20) -> Iterator[Settings]:
    """The little task with crops and flips, twice as long: where a net cannot learn its data by heart."""
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


def rates(seeds: int = 10) -> Iterator[Settings]:
    """How much growth a rate bears: at 0.1, and at 0.8, where full data do nearly as well; then rates in between."""
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


def adamw(seeds: int = 8) -> Iterator[Settings]:
    """What should grow with AdamW, and whether that rate, too, wants room: at 0.01, a quarter of it, and between."""
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


def parts(seeds: int = 10) -> Iterator[Settings]:
    """Tables 4 and 5 and Figure 3 of the paper in little: what each part adds, where to prune, how far."""
    groups = [
        ["infobatch", "infobatch:delta=1.0,rescale=False", "infobatch:delta=1.0", "infobatch:rescale=False"],
        ["random_star:ratio=0.3", "above_mean", "random:ratio=0.365", "random:ratio=0.18"],
        [f"infobatch:ratio={ratio}" for ratio in (0.3, 0.4, 0.6, 0.7)],
        [f"infobatch:delta={delta}" for delta in (0.75, 0.8, 0.9, 0.95)],
    ]
    return grouped(CROPS, [[{"method": method} for method in group] for group in groups], seeds)


def optimizers(seeds: int = 10) -> Iterator[Settings]:
    """The paper's Table 7 in little: those that do not see how large a loss is, beside SGD in ``little``."""
    kinds: list[dict[str, Any]] = [
        {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.05},
        {"optimizer": "lars", "lr": 4.0},
        {"optimizer": "lamb", "lr": 0.03, "weight_decay": 0.01},
    ]
    slower: list[dict[str, Any]] = [{"optimizer": "lamb", "lr": 0.015, "weight_decay": 0.01}]  # does it bear growth?
    groups = [
        [{**kind, **change} for kind, change in product(some, LITTLE_GROUPS[0][:4])] for some in (kinds, slower)
    ]
    return grouped(LITTLE, groups, seeds)


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


def tables(seeds: int = 3) -> Iterator[Settings]:
    """Tables 4 and 5 with the headline's net in 30 epochs, and AdamW; full data and both parts are in ``short``."""
    parts = ["infobatch:delta=1.0,rescale=False", "infobatch:delta=1.0", "infobatch:rescale=False", "above_mean"]
    adamw: dict[str, Any] = {"optimizer": "adamw", "lr": 0.001, "weight_decay": 0.05}
    groups = [[{"method": method} for method in parts], [{**adamw, **row} for row in THREE]]
    return grouped(SHORT, groups, seeds)


def layerwise(seeds: int = 3) -> Iterator[Settings]:
    """Optimizers of Table 7 that do not see how large a loss is: of pytorch_optimizer, and no graph holds them."""
    kinds: list[dict[str, Any]] = [
        {"optimizer": "lars", "lr": 2.3},
        {"optimizer": "lamb", "lr": 0.01, "weight_decay": 0.01},
    ]
    groups = [[{**kind, **row} for row in THREE] for kind in kinds]
    return grouped(SHORT, groups, seeds)


def headline(seeds: int = 5) -> Iterator[Settings]:
    """All at one cost but the first: a third left out, or a third fewer steps (what InfoBatch comes to here).

    Then what may save 40 %, and random pruning and fewer steps at that cost: five seeds, fixed before the first run.
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


def controls(seeds: int = 3) -> Iterator[Settings]:
    """As few steps of full data at the rate the authors' tiers come to: they did better than all that was pruned.

    Then whether 0.05 is too small for full data, too (it is), and what pruning loses at 0.085.
    """
    first: list[dict[str, Any]] = [{"method": "full", "steps": 46_200}]
    others: list[dict[str, Any]] = [
        {"method": "full"},
        {"method": "author_tiers", **LR},
        {"method": "infobatch", **LR},
    ]
    last: list[dict[str, Any]] = [{"method": "author_tiers", **STILL}]
    return grouped({**HEADLINE, "lr": 0.085}, [first, others, last], seeds)


def tuned(seeds: int = 5) -> Iterator[Settings]:
    """One look at twice the rate, and five seeds of what the first row rests on at 0.085, fixed beforehand."""
    twice: list[dict[str, Any]] = [{"method": "full", "lr": 0.17}]
    rows: list[dict[str, Any]] = [{"method": "full"}, {"method": "infobatch", **LR}, {"method": "infobatch", **STILL}]
    control: list[dict[str, Any]] = [{"method": "full", "steps": 53_600}]
    published: list[dict[str, Any]] = [{"method": "infobatch"}, {"method": "full", "steps": 46_200}]
    ten: list[dict[str, Any]] = [{"method": "full", "task": "cifar10", "lr": 0.1}]
    at = {**HEADLINE, "lr": 0.085}
    yield from grouped(at, [twice], 1)
    yield from grouped(at, [rows, control, published], seeds)
    yield from grouped(at, [ten], 1)


def alike(seeds: int = 3) -> Iterator[Settings]:
    """Other ways to save as much."""
    changes: list[dict[str, Any]] = [
        {"method": "saving:share=0.41", **LR},
        {"method": "full", "steps": 52_200, "lr": 0.075},
        {"method": "random:ratio=0.38", **LR},
    ]
    return grouped(HEADLINE, [changes], seeds)


def precise(seeds: int = 3) -> Iterator[Settings]:
    """More seeds for what the first table rests on, decided after its first five: a second look."""
    changes: list[dict[str, Any]] = [
        {"method": "full"},
        {"method": "author_tiers", **LR},
        {"method": "infobatch", **LR},
    ]
    return grouped(HEADLINE, [changes], range(5, 5 + seeds))


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


def cifar10(seeds: int = 5) -> Iterator[Settings]:
    """The headline on CIFAR-10 at its rate, where full data do no worse than at the paper's 0.2."""
    rows: list[dict[str, Any]] = [
        {"method": "full"},
        {"method": "infobatch", **LR},
        {"method": "author_tiers", **LR},
        {"method": "infobatch"},
        {"method": "full", "steps": 46_200},
        {"method": "random:ratio=0.47", **LR},
    ]
    return grouped({**HEADLINE, "task": "cifar10"}, [rows], seeds)


def high(seeds: int = 3) -> Iterator[Settings]:
    """CIFAR-10 at 0.2. There a growing rate loses, and what lets it alone comes first."""
    rows: list[dict[str, Any]] = [
        {"method": "full"},
        {"method": "infobatch"},
        {"method": "infobatch", **STILL},
        {"method": "author_tiers", **STILL},
        {"method": "full", "steps": 46_200},
    ]
    return grouped({**HEADLINE, "task": "cifar10", "lr": 0.2}, [rows], seeds)


def small(task: str, seeds: int, **settings: Any) -> Iterator[Settings]:
    """Our Table 1 for small data: every method at 30, 50 and 70 % left out, full data, full data with as few steps.

    Seed by seed, so that whatever time there is gives whole columns; selectors that take minutes come last.
    """
    size = {"digits": 1257, "fashion_mnist": 60_000}[task]
    common = {"task": task, "gallery": 0, "compensate": "loss", **settings}
    for seed in range(seeds):
        base = {**common, "seed": seed}
        yield Settings.of({**base, "method": "full"})
        for method in ("infobatch", "tiers", "author_tiers", "kakurenbo", "ies", "bls"):
            yield Settings.of({**base, "method": method, **(LR if method == "kakurenbo" else {})})
        for ratio in (0.3, 0.5, 0.7):
            steps = round((1 - ratio) * settings["epochs"] * -(-size // settings["batch_size"]))
            yield Settings.of({**base, "method": "full", "steps": steps})
            for method in dynamic(ratio):
                yield Settings.of({**base, "method": method})
            for name in SELECTORS:
                if name not in SLOW:
                    yield Settings.of({**base, "method": static(name, ratio)})
    for seed, method in product(range(seeds), ("infobatch", "tiers", "author_tiers")):
        yield Settings.of({**common, "seed": seed, "method": method, **LR})  # as by default
    for seed, ratio, name in product(range(seeds), (0.3, 0.5, 0.7), SLOW):
        fewer = ",rounds=20" if (task, name) == ("fashion_mnist", "grad_match") else ""
        yield Settings.of({**common, "seed": seed, "method": static(name, ratio) + fewer})


SLOW = ("craig", "grad_match")


def static(name: str, ratio: float) -> str:
    balanced = ",balanced=True" if name != "random" else ""
    return f"static.{name}:share={round(1 - ratio, 2)}{balanced}"


def dynamic(ratio: float) -> list[str]:
    """The dynamic methods with a budget, at about ``ratio`` left out of a pruned epoch."""
    keep = 1 - ratio
    return [
        f"saving:share={ratio}",
        f"random:ratio={ratio}",
        f"random_star:ratio={ratio}",
        f"rising:ratio={ratio}",
        f"epsilon_greedy:ratio={ratio},every=2",
        f"ucb:ratio={ratio},every=2",
        f"ucb:ratio={ratio},every=2,unbiased=0.25",
        f"dynamic_uncertainty:ratio={ratio},window=3",
        f"seta:ratio={round(1 - keep / 0.8, 4)},share=0.8",
        f"seta:ratio={round(1 - keep / 0.8, 4)},share=0.8,unbiased=0.25",
        f"rs2:ratio={ratio}",
        f"order_dp:some=0.9,best={round(keep / 0.9, 4)}",
        f"rcap:ratio={ratio}",
        f"eswp:ratio={ratio}",
    ]


def digits(seeds: int = 5) -> Iterator[Settings]:
    return small("digits", seeds, model="conv", epochs=20, batch_size=64, lr=0.05, eval_every=20, threads=1)


def fashion(seeds: int = 5) -> Iterator[Settings]:
    """A net and a batch with which a run takes seconds on one CPU core."""
    sizes: dict[str, Any] = {"model": "mlp64", "augment": False, "epochs": 10, "batch_size": 512, "lr": 0.1}
    return small("fashion_mnist", seeds, **sizes, eval_every=10, threads=1)


def mlp(seeds: int = 10) -> Iterator[Settings]:
    """Fashion-MNIST as above for 20 epochs at five rates: does a rate that is too small flatter here, too?

    And with AdamW: does the rate of full data carry over where nothing grows?
    """
    rows: list[dict[str, Any]] = [
        {"method": "full"},
        {"method": "infobatch", **LR},
        {"method": "author_tiers", **LR},
        {"method": "random:ratio=0.47", **LR},
        {"method": "full", "steps": 1_410},  # as author_tiers
    ]
    base: dict[str, Any] = {
        "task": "fashion_mnist", "model": "mlp64", "augment": False, "epochs": 20, "batch_size": 512,
        "eval_every": 20, "gallery": 0, "threads": 1, "device": "cpu", "compensate": "loss",
    }  # fmt: skip
    still: list[dict[str, Any]] = [{"method": "author_tiers", **STILL}, {"method": "infobatch", **STILL}]
    sgd, adamw = (0.02, 0.05, 0.1, 0.2, 0.4), (0.002, 0.005, 0.01, 0.02, 0.05)
    kind: dict[str, Any] = {"optimizer": "adamw", "weight_decay": 0.01}
    groups = [[{**row, "lr": lr} for lr, row in product(sgd, some)] for some in (rows, still)]
    others = [{**kind, **row, "lr": lr} for lr, row in product(adamw, [*rows, *still])]
    return grouped(base, [*groups, others], seeds)


QUEUES = {
    "little": little,
    "again": again,
    "crops": crops,
    "rates": rates,
    "adamw": adamw,
    "parts": parts,
    "optimizers": optimizers,
    "screen": screen,
    "short": short,
    "tables": tables,
    "layerwise": layerwise,
    "headline": headline,
    "controls": controls,
    "tuned": tuned,
    "alike": alike,
    "precise": precise,
    "growth": growth,
    "cifar10": cifar10,
    "high": high,
    "digits": digits,
    "fashion": fashion,
    "mlp": mlp,
}
