"""Small data, seconds per run on one core: every method, and a few at several learning rates."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from infobatch.lab.train.settings import Settings
from infobatch.selection import SELECTORS

from .queue import LR, STILL, UNWEIGHTED, grouped, whole_last


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


MLP: dict[str, Any] = {
    "task": "fashion_mnist", "model": "mlp64", "augment": False, "epochs": 20, "batch_size": 512,
    "eval_every": 20, "gallery": 0, "threads": 1, "device": "cpu", "compensate": "loss",
}  # fmt: skip
SGD, ADAMW = (0.02, 0.05, 0.1, 0.2, 0.4), (0.002, 0.005, 0.01, 0.02, 0.05)
DECOUPLED: dict[str, Any] = {"optimizer": "adamw", "weight_decay": 0.01}
GROWN: list[dict[str, Any]] = [{"method": name, **LR} for name in ("infobatch", "author_tiers", "random:ratio=0.47")]
STANDING: list[dict[str, Any]] = [{"method": name, **STILL} for name in ("author_tiers", "infobatch")]


def at_rates(rates: tuple[float, ...], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "lr": lr} for lr, row in product(rates, rows)]


@whole_last
def mlp(seeds: int = 10) -> Iterator[Settings]:
    """Fashion-MNIST with an MLP, 20 epochs at five learning rates: does pruning look better at small ones?

    Then with AdamW: is the best rate for full data also the best without growth?
    """
    full: list[dict[str, Any]] = [{"method": "full"}, {"method": "full", "steps": 1_410}]  # as author_tiers
    own: list[dict[str, Any]] = [
        {"method": "infobatch"},
        {"method": "full", "steps": 1_590},
    ]  # the rule; as many steps
    groups = [at_rates(SGD, some) for some in ([*full, *GROWN], STANDING, own)]
    others = [{**DECOUPLED, **row} for row in at_rates(ADAMW, [*full, *GROWN, *STANDING, *own])]
    return grouped(MLP, [*groups, others], seeds)


def unweighted(seeds: int = 10) -> Iterator[Settings]:
    """Methods that keep high losses without weights, which were best in ``fashion``, at the learning rates of ``mlp``.

    They leave out as much as InfoBatch does there, or as the authors' tiers. Then the best two and their baselines,
    each at its best rate, with twenty seeds that were not used to choose them.
    """
    names = (
        "epsilon_greedy:ratio=0.47,annealed=0.875",
        "order_dp:some=0.9,best=0.59,annealed=0.875",
        "infobatch:rescale=False",
        *UNWEIGHTED,
        "infobatch:ratio=0.63,rescale=False",
    )
    yield from grouped(MLP, [at_rates(SGD, [{"method": name}]) for name in names], seeds)
    best: list[dict[str, Any]] = [{"method": name} for name in ("full", *UNWEIGHTED)]
    against: list[dict[str, Any]] = [{"method": "full", "steps": 1_410}, *GROWN[1:2], *STANDING[:1]]
    weights: list[dict[str, Any]] = [
        STANDING[1],
        {"method": "infobatch:rescale=False"},
        {"method": "full", "steps": 1_590},
    ]
    at = {**MLP, "lr": 0.2}
    yield from grouped(at, [[*best, *against, {**GROWN[0], "lr": 0.1}], weights], range(seeds, seeds + 20))
    yield from grouped({**MLP, **DECOUPLED}, [at_rates(ADAMW, best[1:])], seeds)
