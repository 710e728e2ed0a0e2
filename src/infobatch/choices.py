"""Policies that look at more than the axis of scores: ranks, groups, classes, chances, memory.

Each is a pure function (book, moment, generator) -> Plan. A sample of which nothing is known stays. Budgets are
exact: ``ratio`` of the N samples go, unless more than that many are unknown. Ties are settled by lot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .plan import Plan, Stratum, choose, full, shuffled_members, stratified
from .schedules import Moment


class Book(Protocol):
    """What a policy may read: the scores, and what the method remembers."""

    @property
    def scores(self) -> Tensor: ...
    @property
    def planned(self) -> int: ...
    @property
    def memory(self) -> Mapping[str, Tensor]: ...
    @property
    def size(self) -> int: ...


@dataclass(frozen=True, eq=False)
class Seen:
    """A book with other scores in it: what a policy that wraps another one shows to it."""

    scores: Tensor
    planned: int
    memory: Mapping[str, Tensor]

    @property
    def size(self) -> int:
        return self.scores.numel()


def budget(size: int, ratio: float) -> int:
    """How many of ``size`` stay: at least one."""
    return max(1, size - round(ratio * size))


def plan_of(mask: Tensor, epoch: int, generator: torch.Generator) -> Plan:
    """These samples, shuffled, each at weight 1."""
    return Plan(epoch, shuffled_members(mask, generator), mask.float())


def highest(values: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """A mask of exactly the ``count`` highest, ties at the edge by lot. NaN counts as highest of all. O(N)."""
    values = torch.where(torch.isnan(values), torch.inf, values)
    if count >= values.numel():
        return torch.ones_like(values, dtype=torch.bool)
    if count <= 0:
        return torch.zeros_like(values, dtype=torch.bool)
    edge = values.kthvalue(values.numel() - count + 1).values
    above = values > edge
    return above | choose(values == edge, count - int(above.sum()), generator)


def keep_highest(values: Tensor, ratio: float, generator: torch.Generator) -> Tensor:
    """All but a share ``ratio``, the lowest; and everyone of whom nothing is known."""
    unknown = int(torch.count_nonzero(torch.isnan(values)))
    return highest(values, max(budget(values.numel(), ratio), unknown), generator)


def draw(chances: Tensor, generator: torch.Generator) -> Tensor:
    """Systematic sampling in the order given: entry i comes with its chance, and their number is their sum, rounded.

    The chances must lie in [0, 1]. Neighbours in the order stand for each other, so an order by score makes the
    sample a stratified one.
    """
    total = round(float(chances.sum(dtype=torch.float64)))
    edges = chances.double().cumsum(0)
    edges = edges * (total / edges[-1].clamp(min=1e-300))
    start = torch.rand((), generator=generator, device=chances.device, dtype=torch.float64)
    steps = (edges + start).floor()
    return torch.diff(steps, prepend=steps.new_zeros(1)) > 0


def scaled_to(sizes: Tensor, total: float, floor: float) -> Tensor:
    """Chances c*size, held between ``floor`` and 1, with c such that they sum to ``total``.

    The sum is a piecewise linear, rising function of c: Newton's step from inside a bracket finds it.
    """
    sizes = sizes.clamp(min=1e-9 * float(sizes.max()))  # nobody's chance is out of reach
    low, high = 0.0, 2.0 / float(sizes.min())
    scale = total / float(sizes.sum())
    for _ in range(100):
        chances = (sizes * scale).clamp(floor, 1.0)
        off = float(chances.sum()) - total
        if abs(off) < 1e-9 * max(total, 1.0) or high - low <= 1e-15 * high:
            break
        low, high = (low, scale) if off > 0 else (scale, high)
        free = float(sizes[(chances > floor) & (chances < 1.0)].sum())
        scale = scale - off / free if free > 0 else (low + high) / 2
        if not low < scale < high:
            scale = (low + high) / 2
    return (sizes * scale).clamp(floor, 1.0)


# ---- policies --------------------------------------------------------------------------------------------------


def rising(
    book: Book, moment: Moment, generator: torch.Generator, *, ratio: float, power: float, floor: float
) -> Plan:
    """Keep with a chance that rises with the score: p ~ H**power, held between ``floor`` and 1; weight 1/p.

    With the loss for the size of a gradient, p ~ H makes the variance of the step least, and p ~ 1 (power 0) is
    uniform pruning. The draw goes through the samples in the order of their scores. The weights are then scaled to
    sum to N, which moves each by about 1/sqrt(N) of what it is.
    """
    scores = book.scores.double()
    known = ~torch.isnan(scores)
    count = int(known.sum())
    if not count:
        return full(book.size, moment.epoch, generator)
    stay = max(budget(book.size, ratio) - (book.size - count), math.ceil(floor * count), 1)
    lowest = min(0.0, float(scores[known].min()))  # a loss below zero: count from the lowest
    sizes = (scores[known] - lowest).clamp(min=0).pow(power)
    if not float(sizes.sum()) > 0:
        sizes = torch.ones_like(sizes)
    chances = scaled_to(sizes, stay, floor)
    members = known.nonzero().squeeze(1)
    lot = torch.randperm(count, generator=generator, device=generator.device)
    order = lot[chances[lot].argsort()]  # equals in random order
    chosen = members[order[draw(chances[order], generator)]]
    table = (~known).double()
    weight = torch.zeros_like(table)
    weight[members] = 1 / chances
    table[chosen] = weight[chosen]
    total = float(table[chosen].sum())
    table[chosen] *= count / total
    return Plan(moment.epoch, shuffled_members(table != 0, generator), table.float())


def top(book: Book, moment: Moment, generator: torch.Generator, *, ratio: float) -> Plan:
    """The highest scores stay."""
    return plan_of(keep_highest(book.scores, ratio, generator), moment.epoch, generator)


def upper_bound(
    book: Book, moment: Moment, generator: torch.Generator, *, ratio: float, c: float, every: int
) -> Plan:
    """UCB: the highest e + c*v stay; chosen anew every so many epochs, and held in between."""
    if moment.epoch % every and bool((book.memory["held"] == 0).any()):
        return plan_of(book.memory["held"] != 0, moment.epoch, generator)
    value = book.memory["average"] + c * book.memory["spread"]
    return plan_of(keep_highest(value, ratio, generator), moment.epoch, generator)


def greedy_or_not(
    book: Book, moment: Moment, generator: torch.Generator, *, ratio: float, epsilon: float, every: int
) -> Plan:
    """Epsilon-greedy: (1-eps)k by the highest average loss, eps*k by lot from the others; held in between."""
    if moment.epoch % every and bool((book.memory["held"] == 0).any()):
        return plan_of(book.memory["held"] != 0, moment.epoch, generator)
    average = book.memory["average"]
    unknown = int(torch.count_nonzero(torch.isnan(average)))
    count = max(budget(book.size, ratio), unknown)
    best = highest(average, max(count - round(epsilon * count), unknown), generator)
    return plan_of(best | choose(~best, count - int(best.sum()), generator), moment.epoch, generator)


def least_uncertain_go(book: Book, moment: Moment, generator: torch.Generator, *, ratio: float, length: int) -> Plan:
    """Dynamic uncertainty: the spread of the right class's probability over the last epochs; the lowest go."""
    past = torch.stack([book.memory[f"p{at}"] for at in range(length)])
    return plan_of(keep_highest(past.std(0), ratio, generator), moment.epoch, generator)


def window_of_groups(
    book: Book, moment: Moment, generator: torch.Generator, *, ratio: float, groups: int, share: float, delta: float
) -> Plan:
    """SeTa: a random (1-p)N; of these a window of loss groups that slides from easy to hard, again and again."""
    some = choose(torch.ones_like(book.scores, dtype=torch.bool), budget(book.size, ratio), generator)
    unknown = torch.isnan(book.scores)
    if moment.epoch >= delta * moment.num_epochs or bool(unknown.all()):
        return plan_of(some | unknown, moment.epoch, generator)
    group = kmeans_1d(book.scores, groups)
    width = max(1, round(groups * share))
    start = moment.epoch % (groups - width + 1)
    inside = (group >= start) & (group < start + width)
    mask = (some & inside) | unknown
    return plan_of(mask if bool(mask.any()) else some, moment.epoch, generator)


def kmeans_1d(values: Tensor, groups: int, rounds: int = 100) -> Tensor:
    """Lloyd's groups of numbers, from equal quantiles on: 0 for the lowest. NaN is in none (-1)."""
    known = ~torch.isnan(values)
    ordered = values[known].double().sort().values
    count = ordered.numel()
    if not count:
        return torch.full_like(values, -1, dtype=torch.int64)
    sums = torch.cat([ordered.new_zeros(1), ordered.cumsum(0)])
    cuts = torch.linspace(0, count, groups + 1, device=values.device).round().long()
    for _ in range(rounds):
        sizes = cuts.diff()
        means = sums[cuts].diff() / sizes.clamp(min=1)
        means = torch.where(sizes > 0, means, torch.cummax(means, 0).values)
        middles = (means[1:] + means[:-1]) / 2
        inner = torch.searchsorted(ordered, middles)
        new = torch.cat([cuts[:1], inner, cuts[-1:]])
        if torch.equal(new, cuts):
            break
        cuts = new
    bounds = ordered[cuts[1:-1].clamp(max=count - 1)]
    bounds = torch.where(cuts[1:-1] >= count, torch.inf, bounds)
    group = torch.searchsorted(bounds, values.double().nan_to_num(), right=True)
    return torch.where(known, group, -1)


def hide_sure(
    book: Book,
    moment: Moment,
    generator: torch.Generator,
    *,
    ratio: float,
    steps: tuple[float, ...],
    at: tuple[float, ...],
    sure: float,
) -> Plan:
    """KAKURENBO: of the lowest F*N losses those go that were told right with a probability of ``sure`` or more."""
    part = sum(moment.epoch >= place * moment.num_epochs for place in at)
    most = round(ratio * steps[part] * book.size)
    unknown = int(torch.count_nonzero(torch.isnan(book.scores)))
    low = ~highest(book.scores, max(book.size - most, unknown), generator)
    hidden = low & (book.memory["confidence"] >= sure)
    return plan_of(~hidden, moment.epoch, generator)


def rest_when_straight(book: Book, moment: Moment, generator: torch.Generator, *, bound: float) -> Plan:
    """IES: a sample rests while the mean of its last three second differences is below ``bound``."""
    bend = (book.memory["bend1"] + book.memory["bend2"] + book.memory["bend3"]) / 3
    awake = ~(bend < bound)
    if not bool(awake.any()):  # everyone would rest: the one that moves most goes on
        awake = highest(bend, 1, generator)
    return plan_of(awake, moment.epoch, generator)


def least_visited(book: Book, moment: Moment, generator: torch.Generator, *, ratio: float) -> Plan:
    """RS2: a shuffled list in blocks of (1-r)N, shuffled anew when it is used up. Those used least come next."""
    return plan_of(highest(-book.memory["visits"], budget(book.size, ratio), generator), moment.epoch, generator)


def top_of_some(book: Book, moment: Moment, generator: torch.Generator, *, some: float, best: float) -> Plan:
    """OrderDP: a random share ``some`` of all, and of these the share ``best`` with the highest scores."""
    drawn = choose(torch.ones_like(book.scores, dtype=torch.bool), max(1, round(some * book.size)), generator)
    count = max(1, round(best * some * book.size))
    scores = torch.where(torch.isnan(book.scores), torch.inf, book.scores)
    unknown = int((torch.isnan(book.scores) & drawn).sum())
    best_of = highest(torch.where(drawn, scores, -torch.inf), max(count, unknown), generator)
    return plan_of(best_of & drawn, moment.epoch, generator)


def by_class(
    book: Book, moment: Moment, generator: torch.Generator, *, ratio: float, labels: Tensor, temperature: float
) -> Plan:
    """RCAP: class budgets ~ sqrt(L_c * n_c / N), inside a class a draw ~ softmax(l / b), losses clipped to log K."""
    labels = labels.to(book.scores.device)
    classes = int(labels.max()) + 1
    losses = book.scores.double().clamp(max=math.log(max(classes, 2)))
    unknown = torch.isnan(losses)
    sizes = torch.bincount(labels, minlength=classes)
    known = torch.bincount(labels[~unknown], minlength=classes)
    total = torch.zeros(classes, dtype=torch.float64, device=losses.device)
    total.index_add_(0, labels[~unknown], losses[~unknown].clamp(min=0))
    mean = total / known.clamp(min=1)
    wish = (mean * sizes / book.size).sqrt()
    count = max(budget(book.size, ratio), int(unknown.sum()))
    quota = shares(wish.tolist(), sizes.tolist(), count)
    # A key of value/b plus Gumbel noise: the highest keys are a draw without replacement ~ softmax(value/b).
    noise = torch.rand(book.size, generator=generator, device=losses.device, dtype=torch.float64)
    key = losses / temperature - (-noise.clamp(1e-12, 1 - 1e-12).log()).log()
    key = torch.where(unknown, torch.inf, key)
    mask = torch.zeros(book.size, dtype=torch.bool, device=losses.device)
    for label, many in enumerate(quota):
        members = (labels == label).nonzero().squeeze(1)
        mask[members[highest(key[members], many, generator)]] = True
    return plan_of(mask | unknown, moment.epoch, generator)


def shares(wishes: list[float], limits: list[int], total: int) -> list[int]:
    """Whole numbers that sum to ``total``, in proportion to the wishes, none above its limit (largest remainders)."""
    total = min(total, sum(limits))
    got = [0] * len(wishes)
    wishes = [max(wish, 0.0) for wish in wishes]
    while (left := total - sum(got)) > 0:
        open_ = [at for at in range(len(wishes)) if got[at] < limits[at]]
        mass = sum(wishes[at] for at in open_)
        parts = {at: left * (wishes[at] / mass if mass > 0 else 1 / len(open_)) for at in open_}
        whole = {at: min(limits[at] - got[at], math.floor(part)) for at, part in parts.items()}
        if any(whole.values()):
            for at, many in whole.items():
                got[at] += many
        else:
            for at in sorted(open_, key=lambda at: parts[at] - math.floor(parts[at]), reverse=True)[:left]:
                got[at] += 1
    return got


def by_weight(book: Book, moment: Moment, generator: torch.Generator, *, ratio: float) -> Plan:
    """ESWP: a draw without replacement in proportion to the evolved weight."""
    weight = book.memory["weight"]
    noise = torch.rand(book.size, generator=generator, device=weight.device, dtype=torch.float64)
    key = weight.double().clamp(min=1e-30).log() - (-noise.clamp(1e-12, 1 - 1e-12).log()).log()
    return plan_of(keep_highest(key, ratio, generator), moment.epoch, generator)


def static(book: Book, moment: Moment, generator: torch.Generator, *, indices: Tensor, weights: Tensor) -> Plan:
    """A fixed selection, every epoch, in a new order; without those it gives no weight."""
    table = torch.zeros_like(book.scores)
    table[indices.to(table.device)] = weights.to(table)
    indices = table.nonzero().squeeze(1)
    lot = torch.randperm(indices.numel(), generator=generator, device=indices.device)
    return Plan(moment.epoch, indices[lot], table)


# ---- around a policy -------------------------------------------------------------------------------------------


def both_sides(plan: Plan, floor: float, generator: torch.Generator) -> Plan:
    """As many samples as the plan has, but some of those it left out, too, and weights that make up for it.

    Two strata: the plan's samples and the others. Of the others a share ``floor`` comes at weight 1/floor, in the
    place of as many of the plan's (up to half of them), chosen at random; both are weighed up to stand for their
    stratum. So the weights sum to N, and the expected gradient is that of all data.
    """
    inside = plan.table != 0
    outside = plan.size - plan.kept
    if not outside:
        return plan
    guests = max(1, min(round(floor * outside), plan.kept // 2))
    stay = max(1, plan.kept - guests)
    strata = [Stratum(inside, stay, plan.kept / stay), Stratum(~inside, guests, outside / guests)]
    return stratified(strata, plan.size, plan.epoch, generator)


def with_floor(plan: Plan, labels: Tensor, floor: float, generator: torch.Generator) -> Plan:
    """At least a share ``floor`` of each class: left-out samples of short classes come back.

    Where the plan's weights are not all 1, those of a short class are shared out over what it has now, so that the
    class weighs what it did.
    """
    labels = labels.to(plan.table.device)
    table, inside = plan.table.clone(), plan.table != 0
    plain = bool((table[inside] == 1).all())
    for label in torch.bincount(labels).nonzero().squeeze(1).tolist():
        members = labels == label
        have = members & inside
        kept, want = int(have.sum()), math.ceil(floor * int(members.sum()))
        if kept >= want:
            continue
        extra = choose(members & ~inside, want - kept, generator)
        mass = float(table[have].sum())
        table[extra] = 1.0
        if not plain and mass > 0:
            heavy = extra | (have & (plan.table != 1))
            light = float(table[have & (plan.table == 1)].sum())
            table[heavy] = (mass - light) / int(heavy.sum()) if mass > light else 1.0
        inside = inside | extra
    return Plan(plan.epoch, shuffled_members(inside, generator), table)
