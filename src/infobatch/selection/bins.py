"""Choices that divide the samples first, and then take some of every part."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import check_count, is_number
from ..errors import InputError, message
from . import budget
from .evidence import Evidence
from .greedy import check_positive, choose, normalize_rows, pick_graph_cut
from .scoring import SCORES
from .selection import Selection


def ccs(
    evidence: Evidence,
    share: float,
    *,
    balanced: bool = False,
    seed: int = 0,
    score: str = "aum",
    cutoff: float = 0.1,
    bins: int = 50,
) -> Selection:
    """Drop the hardest, for they may be mislabelled; then as many at random of each part of the scores' range.

    Zheng et al. (ICLR 2023). ``cutoff`` is the share dropped, less where too few would be left; the paper tunes it,
    up to 0.3 and more where a tenth is kept. The range left is cut into ``bins`` of equal width; a bin with fewer
    than its part gives all it has. ``score`` names any of ``scoring.SCORES``.
    """
    if not isinstance(score, str) or score not in SCORES:
        raise InputError(message(f"one of {', '.join(SCORES)}", repr(score), "Leave it out for aum."))
    if not is_number(cutoff) or not 0 <= cutoff < 1:
        raise InputError(message("a cutoff from 0 to below 1", repr(cutoff), "It is the share of the hardest dropped."))
    check_count("bins", bins, 1, "Leave it out for the usual one.")
    generator = budget.make_generator(seed, 1)
    budget.count_kept(evidence.size, share)  # a bad one is told before work is done
    scores = SCORES[score](evidence)
    budget.check_scores(scores)

    def pick(members: Tensor, k: int) -> tuple[Tensor, None]:
        return draw_stratified(scores[members], k, cutoff, bins, generator), None

    settings = {"score": score, "cutoff": float(cutoff), "bins": bins}
    return choose("ccs", evidence, share, balanced, seed, pick, scores=scores, settings=settings)


def dq(
    evidence: Evidence, share: float, *, balanced: bool = False, seed: int = 0, bins: int = 10, lam: float = 1.0
) -> Selection:
    """Graph cut divides all samples into bins, each from what the ones before left; then a share of each at random.

    Dataset quantization: Zhou et al. (ICCV 2023), without their patches. Similarity and ``lam`` as in ``graph_cut``.
    """
    check_positive("lam", lam)
    check_count("bins", bins, 1, "Leave it out for the usual one.")
    (features,) = evidence.need("features")
    generator = budget.make_generator(seed, 1)

    def pick(members: Tensor, k: int) -> tuple[Tensor, None]:
        parts = quantize(normalize_rows(features[members]), bins, lam)
        given = divide_in_proportion([len(part) for part in parts], k, generator)
        return torch.cat([_draw(part, many, generator) for part, many in zip(parts, given, strict=True)]), None

    return choose("dq", evidence, share, balanced, seed, pick, settings={"bins": bins, "lam": float(lam)})


def draw_stratified(scores: Tensor, k: int, cutoff: float, bins: int, generator: torch.Generator) -> Tensor:
    """k places: of those below the cutoff, equally many of each bin. The first of equals is dropped last."""
    size = len(scores)
    left = scores.argsort(stable=True)[: size - min(round(cutoff * size), size - k)]
    within = scores[left].double()
    known = within[within.isfinite()]
    low, high = (float(end) for end in known.aminmax()) if len(known) else (0.0, 0.0)
    within = within.clamp(low, high)  # the never learned, infinitely hard, are in the last bin
    bin_of = (((within - low) / ((high - low) or 1.0)) * bins).long().clamp_(max=bins - 1)
    parts = [left[bin_of == place] for place in range(bins)]
    draw = torch.randperm(bins, generator=generator, device=budget.CPU).tolist()
    chosen = []
    for done, place in enumerate(sorted(range(bins), key=lambda place: (len(parts[place]), draw[place]))):
        chosen.append(_draw(parts[place], min(len(parts[place]), k // (bins - done)), generator))
        k -= len(chosen[-1])
    return torch.cat(chosen)


def quantize(x: Tensor, bins: int, lam: float) -> list[Tensor]:
    """The bins of DQ, for x of length 1: all samples, each in one bin, sizes as equal as can be.

    Of the last two, graph cut gains as much by either: the first is taken, lest rounding decide.
    """
    parts = []
    left = torch.arange(len(x), device=x.device)
    for turn in range(min(bins, len(x)), 1, -1):
        places = pick_graph_cut(x[left], len(left) // turn, lam) if len(left) > 2 else left.new_zeros(1)
        parts.append(left[places])
        alive = torch.ones(len(left), dtype=torch.bool, device=x.device)
        left = left[alive.index_fill_(0, places, False)]
    return [*parts, left]


def divide_in_proportion(sizes: list[int], k: int, generator: torch.Generator) -> list[int]:
    """k shared out in proportion to the sizes; what rounding leaves goes to the largest remainders, ties at random."""
    whole = sum(sizes)
    given = [k * size // whole for size in sizes]
    draw = torch.randperm(len(sizes), generator=generator, device=budget.CPU).tolist()
    order = sorted(range(len(sizes)), key=lambda part: (-(k * sizes[part] % whole), draw[part]))
    for part in order[: k - sum(given)]:
        given[part] += 1
    return given


def _draw(part: Tensor, many: int, generator: torch.Generator) -> Tensor:
    draw = torch.randperm(len(part), generator=generator, device=budget.CPU)[:many]
    return part[draw.to(part.device)]
