"""The methods by name, each a short composition of a policy and a schedule.

>>> import infobatch
>>> infobatch.methods.infobatch(ratio=0.5, delta=0.875)
infobatch(ratio=0.5, delta=0.875)
>>> sorted(infobatch.methods.METHODS)
['above_mean', 'author_tiers', 'full', 'infobatch', 'random', 'random_star', 'saving', 'tiers']
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from . import policies
from .errors import InputError, message
from .plan import Plan, generator_for
from .plan import full as full_plan
from .policies import MOST, Policy, Rounding, Scores
from .schedules import Moment, Schedule, after, all_of, until


def _any_number(num_epochs: int) -> None:
    del num_epochs


@dataclass(frozen=True)
class Method:
    """A policy that says whom to keep, and a schedule that says when to ask it."""

    name: str
    settings: dict[str, Any]
    policy: Policy
    schedule: Schedule
    rescale: bool = True
    check: Callable[[int], None] = _any_number
    """Refuses a number of epochs under which the method cannot do what it promises."""

    def draw(self, book: Scores, moment: Moment, seed: int) -> Plan:
        """The plan of one epoch: a pure function of the scores, the epoch and the seed."""
        generator = generator_for(seed, moment.epoch, book.scores.device)
        if not self.schedule(moment):
            return full_plan(book.size, moment.epoch, generator)
        plan = self.policy(book, moment, generator)
        if self.rescale:
            return plan
        return Plan(plan.epoch, plan.indices, (plan.table != 0).float())

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.settings.items())})"


def infobatch(
    ratio: float = 0.5,
    delta: float = 0.875,
    *,
    warmup: int = 0,
    rescale: bool = True,
    rounding: Rounding = "exact",
) -> Method:
    """The paper's rule: prune ``ratio`` of the samples below the mean loss, weigh up the rest, end on full data.

    ``delta=1`` turns annealing off, ``rescale=False`` the weights (Table 4). ``rounding="paper"`` keeps
    int((1-r)m) samples at weight 1/(1-r) in place of the exact count and weight.
    """
    ratio = _ratio(ratio)
    if rounding not in ("exact", "paper"):
        raise InputError(message('rounding "exact" or "paper"', repr(rounding), "Leave it out for exact."))
    if not isinstance(rescale, bool):
        raise InputError(message("rescale as True or False", repr(rescale), "False turns the weights off."))
    return _method(
        "infobatch",
        partial(policies.below_mean, ratio=ratio, rounding=rounding),
        delta,
        warmup,
        rescale,
        ratio=ratio,
        rounding=rounding,
    )


def tiers(
    ratio: float = 0.5,
    delta: float = 0.875,
    *,
    low_ratio: float = 0.75,
    low_share: float = 0.2,
    warmup: int = 0,
) -> Method:
    """The papers' more aggressive setting: 0.75 for the lowest 20 %, 0.5 from there up to the mean."""
    ratio, low_ratio, low_share = _ratio(ratio), _ratio(low_ratio), _share("low_share", low_share)
    policy = partial(policies.below_mean_in_tiers, ratio=ratio, low_ratio=low_ratio, low_share=low_share)
    return _method("tiers", policy, delta, warmup, ratio=ratio, low_ratio=low_ratio, low_share=low_share)


def author_tiers(delta: float = 0.875, *, warmup: int = 0) -> Method:
    """The author's ImageNet script: keep 25 % below the 20th percentile, 50 % up to the 85th, the rest always."""
    policy = partial(policies.quantile_tiers, tiers=((0.2, 0.75), (0.85, 0.5)))
    return _method("author_tiers", policy, delta, warmup)


def above_mean(ratio: float = 0.5, delta: float = 0.875, *, warmup: int = 0) -> Method:
    """Table 5's opposite: prune among the samples above the mean."""
    ratio = _ratio(ratio)
    return _method("above_mean", partial(policies.above_mean, ratio=ratio), delta, warmup, ratio=ratio)


def random(ratio: float = 0.3, delta: float = 0.875, *, warmup: int = 0) -> Method:
    """Table 5's control: prune anyone with probability ``ratio``, with rescaling and annealing."""
    ratio = _ratio(ratio)
    return _method("random", partial(policies.uniform, ratio=ratio), delta, warmup, ratio=ratio)


def random_star(ratio: float = 0.3) -> Method:
    """Table 1's Random*: a fresh random subset every epoch, the first included; no rescaling, no annealing."""
    ratio = _ratio(ratio)
    policy = partial(policies.uniform, ratio=ratio, unscored=True)
    return _method("random_star", policy, 1.0, 0, False, ratio=ratio)


def saving(share: float = 0.4, delta: float = 0.875, *, ratio: float = 0.5, warmup: int = 0) -> Method:
    """Ask for a share of the whole run: a controller sets each epoch's threshold so that the run ends there."""
    share, ratio = _share("saving", share), _ratio(ratio)
    if ratio == 0:
        raise InputError(message("a ratio above 0", "0", "The ratio is the share that goes among the prunable."))
    schedule = all_of(until(delta), after(warmup))
    settings = {"share": share, "delta": float(delta), "ratio": ratio, "warmup": warmup}
    policy = partial(policies.spend, saving=share, ratio=ratio, schedule=schedule)
    return Method("saving", settings, policy, schedule, check=partial(_reachable, share=share, schedule=schedule))


def full() -> Method:
    """Every sample, every epoch: the baseline, through the same code."""
    return Method("full", {}, partial(policies.uniform, ratio=0.0), until(0.0))


METHODS: dict[str, Callable[..., Method]] = {
    maker.__name__: maker for maker in (full, infobatch, tiers, author_tiers, above_mean, random, random_star, saving)
}


@dataclass(frozen=True)
class Card:
    """A method in a line of a table."""

    source: str
    leaves_out: str
    cost: str = "O(N): a mean and a draw"
    """Of a plan for N samples, beside the shuffle that any epoch pays."""
    weights: str = "unbiased"
    needs: str = "losses"


_RANK, _DRAW = "O(N): a k-th value and a draw", "O(N): a draw"
CARDS: dict[str, Card] = {
    "full": Card("baseline", "nobody: the baseline, through the same code", "none", "all 1", "nothing"),
    "infobatch": Card("the paper, eq. 3", "a share `ratio` of the samples with a loss below the mean"),
    "tiers": Card("the papers", "75 % of the lowest fifth, 50 % from there up to the mean", _RANK),
    "author_tiers": Card("the author's script", "75 % below the 20th percentile, 50 % up to the 85th", _RANK),
    "above_mean": Card("the paper, Table 5", "a share of those above the mean: the paper's opposite"),
    "random": Card("the paper, Table 5", "anyone: the control to compare with", _DRAW),
    "random_star": Card("the paper, Table 1", "anyone, from the first epoch to the last", _DRAW, "all 1", "nothing"),
    "saving": Card("this package", "as many as it takes to save 40 % of the whole run", _RANK),
}


def _method(name: str, policy: Policy, delta: float, warmup: int, rescale: bool = True, **settings: Any) -> Method:
    schedule = all_of(until(delta), after(warmup))
    settings |= {"delta": float(delta), "warmup": warmup, "rescale": rescale}
    plain = {"warmup": 0, "rescale": True, "rounding": "exact"}
    shown = {key: value for key, value in settings.items() if plain.get(key) != value}
    return Method(name, shown, policy, schedule, rescale)


def _ratio(ratio: float) -> float:
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 <= ratio < 1:
        raise InputError(
            message(
                "a ratio in [0, 1)",
                repr(ratio),
                "It is the share pruned among the prunable; the papers use 0.5.",
            )
        )
    return float(ratio)


def _share(name: str, share: float) -> float:
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share < 1:
        raise InputError(message(f"{name} in (0, 1)", repr(share), "0.4 means 40 %."))
    return float(share)


def _reachable(num_epochs: int, share: float, schedule: Schedule) -> None:
    pruning = sum(schedule(Moment(epoch, num_epochs)) for epoch in range(1, num_epochs))
    most = MOST * pruning / num_epochs
    if share > most:
        raise InputError(
            message(
                f"a saving of at most {most:.3f} of the run (epoch 0 and the annealing epochs are full, and no "
                f"epoch drops more than {MOST:.0%}: {pruning} of {num_epochs} epochs prune)",
                f"saving={share}",
                "Ask for less, train more epochs, or raise delta.",
            )
        )
