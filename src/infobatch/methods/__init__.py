"""The methods by name, each a short composition of a policy and a schedule.

>>> import infobatch
>>> infobatch.methods.infobatch(ratio=0.5, delta=0.875)
infobatch(ratio=0.5, delta=0.875)
>>> len(infobatch.methods.METHODS)
20
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..checks import is_number
from ..errors import InputError, message
from ..plan import Plan
from . import cuts as policies
from . import draws as choices
from . import memory
from .arguments import count, labels_of, mark_of, mark_of_labels, number, part, ratio_of, share_of
from .cuts import MOST, Policy, Rounding
from .draws import Book, Seen
from .memory import Memory
from .method import Method as Method
from .method import method_of
from .when import Moment, Schedule, after, all_of, until


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
    ratio = ratio_of(ratio)
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
    ratio, low_ratio, low_share = ratio_of(ratio), ratio_of(low_ratio), share_of("low_share", low_share)
    policy = partial(policies.below_mean_in_tiers, ratio=ratio, low_ratio=low_ratio, low_share=low_share)
    return _method("tiers", policy, delta, warmup, ratio=ratio, low_ratio=low_ratio, low_share=low_share)


def author_tiers(delta: float = 0.875, *, warmup: int = 0) -> Method:
    """The author's ImageNet script: keep 25 % below the 20th percentile, 50 % up to the 85th, the rest always."""
    policy = partial(policies.quantile_tiers, tiers=((0.2, 0.75), (0.85, 0.5)))
    return _method("author_tiers", policy, delta, warmup)


def above_mean(ratio: float = 0.5, delta: float = 0.875, *, warmup: int = 0) -> Method:
    """Table 5's opposite: prune among the samples above the mean."""
    ratio = ratio_of(ratio)
    return _method("above_mean", partial(policies.above_mean, ratio=ratio), delta, warmup, ratio=ratio)


def random(ratio: float = 0.3, delta: float = 0.875, *, warmup: int = 0) -> Method:
    """Table 5's control: prune anyone with probability ``ratio``, with rescaling and annealing."""
    ratio = ratio_of(ratio)
    return _method("random", partial(policies.uniform, ratio=ratio), delta, warmup, ratio=ratio)


def random_star(ratio: float = 0.3) -> Method:
    """Table 1's Random*: a fresh random subset every epoch, the first included; no rescaling, no annealing."""
    ratio = ratio_of(ratio)
    policy = partial(policies.uniform, ratio=ratio, unscored=True)
    return _method("random_star", policy, 1.0, 0, False, ratio=ratio)


def saving(share: float = 0.4, delta: float = 0.875, *, ratio: float = 0.5, warmup: int = 0) -> Method:
    """Ask for a share of the whole run: a controller sets each epoch's threshold so that the run ends there."""
    share, ratio = share_of("saving", share), ratio_of(ratio)
    if ratio == 0:
        raise InputError(message("a ratio above 0", "0", "The ratio is the share that goes among the prunable."))
    schedule = all_of(until(delta), after(warmup))
    settings = {"share": share, "delta": float(delta), "ratio": ratio, "warmup": int(warmup)}
    policy = partial(policies.spend, saving=share, ratio=ratio)
    return Method("saving", settings, policy, schedule, fits=partial(_reachable, share=share))


def full() -> Method:
    """Every sample, every epoch: the baseline, through the same code."""
    return Method("full", {}, partial(policies.uniform, ratio=0.0), until(0.0))


def rising(
    ratio: float = 0.35, delta: float = 0.875, *, power: float = 0.5, floor: float = 0.25, warmup: int = 0
) -> Method:
    """Our own: keep with a chance ~ H**power, at least ``floor``; exactly (1-ratio)N a pruned epoch; weights 1/p."""
    ratio, floor = ratio_of(ratio), share_of("floor", floor)
    if not is_number(power) or not 0 <= power <= 4:
        raise InputError(message("a power in [0, 4]", repr(power), "1 is in proportion to the score, 0 uniform."))
    if Fraction(repr(floor)) + Fraction(repr(ratio)) > 1:
        remedy = "No chance is below the floor, so no fewer than that share stay: lower floor or ratio."
        raise InputError(message(f"a floor of at most 1 - ratio = {1 - ratio:.3g}", repr(floor), remedy))
    policy = partial(choices.rising, ratio=ratio, power=float(power), floor=floor)
    return _method("rising", policy, delta, warmup, ratio=ratio, power=float(power), floor=floor)


def epsilon_greedy(ratio: float = 0.3, *, epsilon: float = 0.1, share: float = 0.8, every: int = 10) -> Method:
    """Raju et al. 2021: the highest average losses, a share ``epsilon`` of the budget by lot; every ten epochs."""
    ratio, epsilon, share = ratio_of(ratio), share_of("epsilon", epsilon), part("share", share)
    every = count("every", every)
    policy = partial(choices.greedy_or_not, ratio=ratio, epsilon=epsilon, every=every)
    settings = {"ratio": ratio, "epsilon": epsilon, "share": share, "every": every}
    return _rival("epsilon_greedy", settings, policy, memory.average(share) | memory.chosen())


def ucb(ratio: float = 0.3, *, c: float = 1.0, share: float = 0.8, every: int = 10) -> Method:
    """Raju et al. 2021: the highest average loss plus ``c`` times its spread; chosen anew every ten epochs."""
    ratio, share, c = ratio_of(ratio), part("share", share), number("c", c, "1 is the usual one.")
    every = count("every", every)
    policy = partial(choices.upper_bound, ratio=ratio, c=c, every=every)
    settings = {"ratio": ratio, "c": c, "share": share, "every": every}
    return _rival("ucb", settings, policy, memory.average(share, spread=True) | memory.chosen())


def dynamic_uncertainty(ratio: float = 0.3, *, window: int = 10) -> Method:
    """He et al. 2023: the spread of the right class's probability over a window of epochs; the least uncertain go.

    ``update`` needs the keyword ``confidence``.
    """
    ratio, window = ratio_of(ratio), count("window", window, 2)
    policy = partial(choices.least_uncertain_go, ratio=ratio, length=window)
    return _rival(
        "dynamic_uncertainty",
        {"ratio": ratio, "window": window},
        policy,
        memory.window(window),
        schedule=after(window),
        needs=frozenset({"confidence"}),
        fits=partial(_longer, window=window),
    )


def seta(ratio: float = 0.1, *, groups: int = 5, share: float = 0.9, delta: float = 0.875) -> Method:
    """SeTa (CVPR 2025): a random (1-ratio)N, of which a window of loss groups slides from easy to hard."""
    ratio, share, groups = ratio_of(ratio), part("share", share), count("groups", groups)
    until(delta)
    delta = float(delta)
    policy = partial(choices.window_of_groups, ratio=ratio, groups=groups, share=share, delta=delta)
    return _rival("seta", {"ratio": ratio, "groups": groups, "share": share, "delta": delta}, policy)


def kakurenbo(
    ratio: float = 0.3,
    *,
    sure: float = 0.7,
    steps: tuple[float, ...] = (1.0, 0.8, 0.6, 0.4),
    at: tuple[float, ...] = (0.3, 0.6, 0.8),
) -> Method:
    """KAKURENBO (NeurIPS 2023): hide the lowest losses that are told right and surely; ``ratio`` falls in steps.

    It is multiplied by each of ``steps``, the next one from each share ``at`` of the run on.

    ``update`` needs the keyword ``confidence``, and each epoch ends with a look at the hidden (``hidden``,
    ``observe``). The source lets the learning rate grow: take compensate="lr".
    """
    ratio, sure, steps, at = ratio_of(ratio), part("sure", sure), _parts("steps", steps), _parts("at", at)
    if len(steps) != len(at) + 1:
        raise InputError(message("one step more than places", f"{len(steps)} and {len(at)}", "See the defaults."))
    if list(at) != sorted(at):
        raise InputError(message("at in rising order", repr(at), "They are shares of the run."))
    policy = partial(choices.hide_sure, ratio=ratio, sure=sure, steps=steps, at=at)
    return _rival(
        "kakurenbo",
        {"ratio": ratio, "sure": sure, "steps": steps, "at": at},
        policy,
        memory.confidence() | memory.held(),
        needs=frozenset({"confidence", "hidden"}),
    )


def ies(bound: float = 1e-3) -> Method:
    """IES (ICLR 2025): a sample rests while its loss moves in a straight line: second differences below ``bound``.

    Each epoch ends with a look at the resting (``hidden``, ``observe``), or they would rest for ever.
    """
    if not is_number(bound) or bound <= 0:
        raise InputError(
            message("a bound above 0", repr(bound), "The source has 1e-3 on CIFAR-10, 2e-3 on CIFAR-100.")
        )
    policy = partial(choices.rest_when_straight, bound=float(bound))
    kept = memory.second_differences() | memory.held()
    return _rival("ies", {"bound": float(bound)}, policy, kept, needs=frozenset({"hidden"}))


def rs2(ratio: float = 0.3) -> Method:
    """RS2 (ICLR 2024): a shuffled list in blocks of (1-ratio)N an epoch, shuffled anew when it is used up."""
    ratio = ratio_of(ratio)
    return _rival("rs2", {"ratio": ratio}, partial(choices.least_visited, ratio=ratio), memory.visits())


def order_dp(some: float = 0.8, best: float = 0.375) -> Method:
    """OrderDP (ICLR 2026): a random share ``some`` of all, of these the share ``best`` with the highest losses."""
    some, best = part("some", some), part("best", best)
    policy = partial(choices.top_of_some, some=some, best=best)
    return _rival("order_dp", {"some": some, "best": best}, policy)


def rcap(labels: Tensor, ratio: float = 0.3, *, temperature: float = 1.0) -> Method:
    """RCAP: class budgets by the root of their losses, and inside a class a draw by softmax of the clipped loss."""
    ratio, labels = ratio_of(ratio), labels_of(labels)
    temperature = number("temperature", temperature, "1 is the default.")
    if temperature <= 0:
        raise InputError(message("a temperature above 0", repr(temperature), "1 is the default."))
    policy = partial(choices.by_class, ratio=ratio, labels=labels, temperature=temperature)
    made = _rival("rcap", {"ratio": ratio, "temperature": temperature}, policy)
    return replace(made, size=len(labels), labels=mark_of_labels(labels))


def eswp(ratio: float = 0.3, *, b1: float = 0.2, b2: float = 0.9) -> Method:
    """ESWP: a draw in proportion to w = b1*s + (1-b1)*l, with s the slow average of the losses."""
    ratio, b1, b2 = ratio_of(ratio), part("b1", b1), part("b2", b2)
    policy = partial(choices.by_weight, ratio=ratio)
    return _rival("eswp", {"ratio": ratio, "b1": b1, "b2": b2}, policy, memory.evolved(b1, b2))


def bls(inner: Method | None = None, *, share: float = 0.9) -> Method:
    """BLS (CVPR 2026): ``inner`` (InfoBatch, if left out) with scores that need a batch's mean loss alone."""
    inner, share = infobatch() if inner is None else method_of(inner), part("share", share)
    return replace(
        inner,
        name="bls",
        settings={"inner": inner, "share": share},
        policy=partial(_on_column, column="batch", policy=inner.policy),
        memory=memory.batch_average(share) | inner.memory,
        score="batch",
    )


def static(selection: Any) -> Method:
    """A fixed selection (``infobatch.selection``), every epoch, at its weights; what ``Pruned`` makes of one.

    The ``mark`` tells it from others, so that no run goes on with another one, and no rank has one of its own.
    """
    indices, weights = torch.as_tensor(selection.indices), torch.as_tensor(selection.weights)
    mark = mark_of(indices, weights.float().view(torch.int32).long())
    settings = {"selection": getattr(selection, "method", "given"), "kept": len(indices), "mark": mark}
    policy = partial(choices.static, indices=indices, weights=weights)
    return Method("static", settings, policy, until(1.0), unbiased=False, size=selection.size)


METHODS: dict[str, Callable[..., Method]] = {
    maker.__name__: maker
    for maker in (
        *(full, infobatch, tiers, author_tiers, above_mean, random, random_star, saving, rising),
        *(epsilon_greedy, ucb, dynamic_uncertainty, seta, kakurenbo, ies, rs2, order_dp, rcap, eswp, bls),
    )
}


def _on_column(book: Book, moment: Moment, generator: torch.Generator, *, column: str, policy: Policy) -> Plan:
    return policy(Seen(book.memory[column], book.planned, book.memory), moment, generator)


def _rival(
    name: str,
    settings: dict[str, Any],
    policy: Policy,
    memory: Memory | None = None,
    schedule: Schedule | None = None,
    needs: frozenset[str] = frozenset(),
    fits: Callable[[int, Schedule], None] | None = None,
) -> Method:
    """As published: every epoch that the rule says, weights 1."""
    made = Method(name, settings, policy, schedule or until(1.0), rescale=False, unbiased=False)
    return replace(made, memory=memory, needs=needs, fits=fits or made.fits)


def _method(name: str, policy: Policy, delta: float, warmup: int, rescale: bool = True, **settings: Any) -> Method:
    schedule = all_of(until(delta), after(warmup))
    settings |= {"delta": float(delta), "warmup": int(warmup), "rescale": rescale}
    plain = {"warmup": 0, "rescale": True, "rounding": "exact"}
    shown = {key: value for key, value in settings.items() if plain.get(key) != value}
    return Method(name, shown, policy, schedule, rescale, unbiased=rescale)


def _parts(name: str, given: Any) -> tuple[float, ...]:
    if not isinstance(given, (tuple, list)):
        raise InputError(message(f"{name} as a tuple of shares", repr(given), "See the defaults."))
    return tuple(0.0 if each == 0 else part(name, each) for each in given)


def _longer(num_epochs: int, schedule: Schedule, window: int) -> None:
    if not any(schedule(Moment(epoch, num_epochs)) for epoch in range(window, num_epochs)):
        remedy = "Nothing is left out before the window is full: train longer, or take a smaller one."
        expected = f"more epochs than the window of {window}, and some of them to prune in"
        raise InputError(message(expected, f"{num_epochs} epochs", remedy))


def _reachable(num_epochs: int, schedule: Schedule, share: float) -> None:
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
