"""Policies that look at more than the axis of scores: ranks, groups, classes, chances, memory.

Each is a pure function (book, moment, generator) -> Plan. A sample of which nothing is known stays. Budgets are
exact: ``ratio`` of the N samples go, unless more than that many are unknown. Ties are settled by lot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import torch
from torch import Tensor

from ..plan import Plan, Stratum, choose, full, shuffled_members, stratified
from .when import Moment, until


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
    largest = torch.finfo(values.dtype).max  # what a method makes of huge losses may be infinite, too
    values = torch.where(torch.isnan(values), torch.inf, values.clamp(max=largest))
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


UNIT = 1 << 32
"""What 1 is in whole numbers. Their sums are exact, so no device, rank or number of threads draws another plan."""


def draw(chances: Tensor, generator: torch.Generator) -> Tensor:
    """Systematic sampling in the order given: entry i comes with its chance, and their number is their sum, rounded.

    The chances must lie in [0, 1]. Neighbours in the order stand for each other, so an order by score makes the
    sample a stratified one.
    """
    whole = _whole(chances)
    number = round(float(chances.sum(dtype=torch.float64)))
    scaled = _whole(whole.double() * (number / max(int(whole.sum()), 1)))
    size = torch.tensor([len(chances)], device=chances.device)
    return _systematic(scaled, size, torch.tensor([number], device=chances.device), generator)


def _systematic(chances: Tensor, sizes: Tensor, number: Tensor, generator: torch.Generator) -> Tensor:
    """Exactly ``number`` of each group, entry i with its chance in units; groups lie one after another."""
    ends = sizes.cumsum(0)
    edges = chances.cumsum(0)
    edges -= torch.cat([edges.new_zeros(1), edges[ends[:-1] - 1]]).repeat_interleave(sizes)
    edges[ends - 1] = number * UNIT  # what rounding left
    start = torch.randint(UNIT, (len(sizes),), generator=generator, device=chances.device)
    steps = edges.add_(start.repeat_interleave(sizes)).floor_divide_(UNIT)
    return steps > steps.roll(1).index_fill_(0, ends - sizes, 0)


def _whole(chances: Tensor) -> Tensor:
    return (chances.double() * UNIT).round_().long()


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
    return (sizes * _rounded(scale)).clamp(floor, 1.0)


def _rising(chances: Tensor, generator: torch.Generator) -> Tensor:
    """The order in which they rise, equals by lot."""
    lot = torch.randperm(len(chances), generator=generator, device=generator.device)
    return lot[chances[lot].argsort()]


def _rounded(number: float) -> float:
    """To ten digits: the last of a sum depend on the number of threads."""
    return float(f"{number:.9e}")


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
    order = _rising(chances, generator)
    chosen = members[order[draw(chances[order], generator)]]
    table = (~known).double()
    weight = torch.zeros_like(table)
    weight[members] = 1 / chances
    table[chosen] = weight[chosen]
    table[chosen] *= _rounded(count / float(table[chosen].sum()))
    everyone = torch.ones_like(table).index_copy_(0, members, chances)
    indices = shuffled_members(table != 0, generator)
    return Plan(moment.epoch, indices, table.float(), chances=lambda: everyone)


def upper_bound(
    book: Book, moment: Moment, generator: torch.Generator, *, ratio: float, c: float, every: int
) -> Plan:
    """UCB: the highest e + c*v stay; chosen anew every so many epochs, and held in between."""
    if (held := _still(book, moment, every)) is not None:
        return plan_of(held, moment.epoch, generator)
    value = book.memory["average"] + c * book.memory["spread"]
    return plan_of(keep_highest(value, ratio, generator), moment.epoch, generator)


def greedy_or_not(
    book: Book, moment: Moment, generator: torch.Generator, *, ratio: float, epsilon: float, every: int
) -> Plan:
    """Epsilon-greedy: (1-eps)k by the highest average loss, eps*k by lot from the others; held in between."""
    if (held := _still(book, moment, every)) is not None:
        return plan_of(held, moment.epoch, generator)
    average = book.memory["average"]
    unknown = int(torch.count_nonzero(torch.isnan(average)))
    count = max(budget(book.size, ratio), unknown)
    best = highest(average, max(count - round(epsilon * count), unknown), generator)
    return plan_of(best | choose(~best, count - int(best.sum()), generator), moment.epoch, generator)


def _still(book: Book, moment: Moment, every: int) -> Tensor | None:
    """The last choice, where it holds in this epoch."""
    chosen = book.memory["chosen"] != 0
    return chosen if moment.epoch % every and not bool(chosen.all()) else None


def least_uncertain_go(book: Book, moment: Moment, generator: torch.Generator, *, ratio: float, length: int) -> Plan:
    """Dynamic uncertainty: the spread of the right class's probability over the last epochs; the lowest go."""
    past = [book.memory[f"p{at}"] for at in range(length)]
    newest, spread = past[0], torch.zeros_like(book.scores)
    # counted from the newest on, so that what stood still has exactly 0
    mean = sum((each - newest for each in past), spread) / length
    for each in past:
        spread += (each - newest - mean).square()
    return plan_of(keep_highest(spread, ratio, generator), moment.epoch, generator)


def window_of_groups(
    book: Book, moment: Moment, generator: torch.Generator, *, ratio: float, groups: int, share: float, delta: float
) -> Plan:
    """SeTa: a random (1-p)N; of these a window of loss groups that slides from easy to hard, again and again."""
    some = choose(torch.ones_like(book.scores, dtype=torch.bool), budget(book.size, ratio), generator)
    unknown = torch.isnan(book.scores)
    if not until(delta)(moment) or bool(unknown.all()):
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
    cuts = torch.linspace(0, count, groups + 1, dtype=torch.float64, device=values.device).round().long()
    for _ in range(rounds):
        sizes = cuts.diff()
        means = torch.where(sizes > 0, sums[cuts].diff() / sizes.clamp(min=1), -torch.inf)
        means = torch.cummax(means, 0).values  # an empty group stands where the one before it does
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
    part = sum(not until(place)(moment) for place in at)
    most = min(round(ratio * steps[part] * book.size), book.size - 1)
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
    sizes = torch.bincount(labels)
    losses = book.scores.double().clamp(max=math.log(max(len(sizes), 2)))
    unknown = torch.isnan(losses)
    known = (~unknown).nonzero().squeeze(1)
    count = torch.bincount(labels[known], minlength=len(sizes))
    total = sums(labels[known], losses[known].clamp(min=0), len(sizes))
    wish = (total / count.clamp(min=1) * sizes / book.size).sqrt()
    left = max(budget(book.size, ratio) - int(unknown.sum()), 0)
    quota = shares(wish.tolist(), count.tolist(), left, generator)
    known = known[torch.randperm(len(known), generator=generator, device=known.device)]
    key = losses[known] / temperature + _gumbel(len(known), generator)
    lucky = first_of_each(known[key.argsort(descending=True)], labels, quota)
    return plan_of(unknown.index_fill(0, lucky, True), moment.epoch, generator)


def _gumbel(count: int, generator: torch.Generator) -> Tensor:
    """Noise that makes a draw of a ranking: the highest v + noise are one without replacement ~ softmax(v)."""
    noise = torch.rand(count, generator=generator, device=generator.device, dtype=torch.float64)
    return -(-noise.clamp(1e-12, 1 - 1e-12).log()).log()


def sums(labels: Tensor, values: Tensor, classes: int) -> Tensor:
    """Of the values of each class."""
    total = torch.zeros(classes, dtype=torch.int64, device=labels.device)
    return total.index_add_(0, labels, _whole(values)).double() / UNIT


def first_of_each(order: Tensor, labels: Tensor, many: Sequence[int]) -> Tensor:
    """Of the samples in this order, the first ``many[c]`` of each class c."""
    of = labels[order]
    by_class = of.argsort(stable=True)
    counts = torch.bincount(of, minlength=len(many))
    rank = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    wanted = torch.tensor(many, device=order.device).repeat_interleave(counts)
    return order[by_class[rank < wanted]]


def shares(wishes: Sequence[float], limits: Sequence[int], total: int, generator: torch.Generator) -> list[int]:
    """Whole numbers that sum to ``total``, in proportion to the wishes, none above its limit.

    By largest remainders, equals by lot; what goes beyond a limit is shared out among the others.
    """
    got, left = [0] * len(wishes), min(total, sum(limits))
    open_ = list(range(len(wishes)))
    parts = dict.fromkeys(open_, 0.0)
    while open_:
        mass = sum(max(wishes[at], 0.0) for at in open_)
        parts = {at: left * (max(wishes[at], 0.0) / mass if mass > 0 else 1 / len(open_)) for at in open_}
        filled = [at for at in open_ if parts[at] >= limits[at]]
        if not filled:
            break
        for at in filled:
            got[at] = limits[at]
        left = max(left - sum(limits[at] for at in filled), 0)
        open_ = [at for at in open_ if got[at] < limits[at]]
    for at in open_:
        got[at] = math.floor(parts[at])
    lot = torch.randperm(len(open_), generator=generator, device=generator.device).tolist()
    equal = sorted(zip(lot, open_, strict=True))
    behind = sorted((at for _, at in equal), key=lambda at: got[at] - parts[at])
    for at in behind[: left - sum(got[at] for at in open_)]:
        got[at] += 1
    return got


def by_weight(book: Book, moment: Moment, generator: torch.Generator, *, ratio: float) -> Plan:
    """ESWP: a draw without replacement in proportion to the evolved weight."""
    key = book.memory["weight"].double().clamp(min=1e-30).log() + _gumbel(book.size, generator)
    return plan_of(keep_highest(key, ratio, generator), moment.epoch, generator)


def static(book: Book, moment: Moment, generator: torch.Generator, *, indices: Tensor, weights: Tensor) -> Plan:
    """A fixed selection, every epoch, in a new order; without those it gives no weight."""
    table = torch.zeros_like(book.scores)
    table[indices.to(table.device)] = weights.to(table)
    indices = table.nonzero().squeeze(1)
    lot = torch.randperm(indices.numel(), generator=generator, device=indices.device)
    return Plan(moment.epoch, indices[lot], table)


# ---- around a policy -------------------------------------------------------------------------------------------


def both_sides(plan: Plan, known: Tensor, floor: float, generator: torch.Generator) -> Plan:
    """As many samples as the plan has, but some of those it left out, too, and weights that make up for it.

    Two strata: the plan's samples with a score and the left-out. Of the latter a share ``floor`` comes at weight
    1/floor, in the place of as many of the former (up to half of them), chosen at random; both are weighed up to
    stand for their stratum. So the weights sum to N, and the expected gradient is that of all data. Those of the
    plan of whom nothing is known stay as they are, unless it leaves out such as they are.
    """
    left_out = plan.table == 0
    outside = plan.size - plan.kept
    if not outside:
        return plan
    inside = ~left_out if bool((left_out & ~known).any()) else ~left_out & known
    held = int(torch.count_nonzero(inside))
    guests = max(1, min(round(floor * outside), plan.kept // 2))
    stay = max(1, held - min(guests, held // 2))  # more in all, where few have a score
    strata = [Stratum(left_out, guests, outside / guests)]
    if held:
        strata.insert(0, Stratum(inside, stay, held / stay))
    return stratified(strata, plan.size, plan.epoch, generator)


def with_floor(plan: Plan, labels: Tensor, floor: float, generator: torch.Generator) -> Plan:
    """At least a share ``floor`` of each class.

    Where lots were drawn, they are drawn again, class by class: a class that would fall short has all its chances
    raised, and the weights are 1/chance, so that an unbiased plan stays one. Who was sure to stay still is. In any
    other plan those of a short class that were left out come back by lot, at weight 1.
    """
    if plan.kept == plan.size:
        return plan
    labels, share = labels.to(plan.table.device), Fraction(repr(floor))
    least = [math.ceil(share * size) for size in torch.bincount(labels).tolist()]
    if plan.chances is None:
        return _topped_up(plan, labels, least, generator)
    return _by_lot(plan, plan.chances().double(), labels, least, generator)


def _topped_up(plan: Plan, labels: Tensor, least: list[int], generator: torch.Generator) -> Plan:
    inside = plan.table != 0
    have = torch.bincount(labels[inside], minlength=len(least)).tolist()
    need = [max(want - kept, 0) for want, kept in zip(least, have, strict=True)]
    if not any(need):
        return plan
    table = plan.table.index_fill(0, first_of_each(shuffled_members(~inside, generator), labels, need), 1.0)
    return Plan(plan.epoch, shuffled_members(table != 0, generator), table)


def _by_lot(plan: Plan, chances: Tensor, labels: Tensor, least: list[int], generator: torch.Generator) -> Plan:
    """A plan of as many samples, but at least ``least`` of each class, drawn systematically inside each class."""
    table = (chances >= 1).double()
    sure = torch.bincount(labels[table != 0], minlength=len(least)).tolist()
    least = [want - there for want, there in zip(least, sure, strict=True)]
    loose = (table == 0).nonzero().squeeze(1)
    table[loose] = _drawn(chances[loose], labels[loose], least, plan.kept - sum(sure), generator)
    return Plan(plan.epoch, shuffled_members(table != 0, generator), table.float())


def _drawn(chances: Tensor, labels: Tensor, least: list[int], total: int, generator: torch.Generator) -> Tensor:
    """Weights that sum to the number of samples. ``total`` are drawn, but ``least`` of each class, and one anyway."""
    sizes = torch.bincount(labels, minlength=len(least))
    limits, usual = sizes.tolist(), sums(labels, chances, len(sizes)).tolist()
    wanted = zip(shares(usual, limits, total, generator), least, limits, strict=True)
    number = torch.tensor([max(share, few, min(limit, 1)) for share, few, limit in wanted], device=labels.device)
    chances = scaled_in_classes(chances, labels, number)
    order = _rising(chances, generator)
    order = order[labels[order].argsort(stable=True)]
    some = sizes > 0
    chosen = order[_systematic(_whole(chances[order]), sizes[some], number[some], generator)]
    weights = torch.zeros_like(chances).index_copy_(0, chosen, 1 / chances[chosen])
    return weights * _rounded(len(labels) / float(weights.sum()))


def scaled_in_classes(chances: Tensor, labels: Tensor, number: Tensor) -> Tensor:
    """Chances c * chance, at most 1, with a c for each class such that they sum to ``number[class]``."""
    chances = chances.clamp(min=1e-9)  # nobody's chance is out of reach
    free = torch.ones_like(labels, dtype=torch.bool)
    while True:
        room = number - torch.bincount(labels[~free], minlength=len(number))
        mass = sums(labels, torch.where(free, chances, 0.0), len(number))
        scaled = chances * (room / mass.clamp(min=1e-300))[labels]
        over = free & (scaled >= 1)
        if not bool(over.any()):
            return torch.where(free, scaled, 1.0)
        free &= ~over
