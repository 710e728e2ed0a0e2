"""Methods that divide the samples into bins first and then draw from every bin."""

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
    """Drop the hardest samples, which may be mislabeled, then draw equally many from each bin of scores.

    Zheng et al. (ICLR 2023). The remaining range of scores is cut into bins of equal width; a bin that holds fewer
    samples than it should give is used entirely.

    Args:
        evidence: What is known about each sample; needs ``aum``.
        share: The fraction of the samples to keep, above 0 and at most 1.
        balanced: Whether to keep the same number of samples per class. Needs ``labels``.
        seed: Settles ties, and determines all random draws.
        score: The name of the score, one of ``scoring.SCORES``; the evidence must hold what it needs.
        cutoff: The fraction of hardest samples dropped, or less if too few would remain. The paper tunes it: up to
            0.3, and more if only a tenth of the samples is kept.
        bins: The number of bins.

    Returns:
        The samples to train on.

    Raises:
        InputError: If an argument is out of range, or the evidence lacks something.

    >>> import torch
    >>> from infobatch import selection
    >>> evidence = selection.Evidence(10, aum=torch.arange(10.0))  # a small margin is hard
    >>> list(selection.ccs(evidence, 0.5, cutoff=0.5))
    [5, 6, 7, 8, 9]
    """
    if not isinstance(score, str) or score not in SCORES:
        raise InputError(message(f"one of {', '.join(SCORES)}", repr(score), "Leave it out for aum."))
    if not is_number(cutoff) or not 0 <= cutoff < 1:
        raise InputError(
            message("a cutoff from 0 to below 1", repr(cutoff), "It is the fraction of hardest samples dropped.")
        )
    check_count("bins", bins, 1, "Leave it out for the default.")
    generator = budget.make_generator(seed, 1)
    budget.count_kept(evidence.size, share)  # refuse a bad share before any work is done
    scores = SCORES[score](evidence)
    budget.check_scores(scores)

    def pick(members: Tensor, k: int) -> tuple[Tensor, None]:
        return draw_stratified(scores[members], k, cutoff, bins, generator), None

    settings = {"score": score, "cutoff": float(cutoff), "bins": bins}
    return choose("ccs", evidence, share, balanced, seed, pick, scores=scores, settings=settings)


def dq(
    evidence: Evidence, share: float, *, balanced: bool = False, seed: int = 0, bins: int = 10, lam: float = 1.0
) -> Selection:
    """Divide all samples into bins by graph cut, then draw the same fraction of each bin at random.

    Dataset quantization: Zhou et al. (ICCV 2023), without their image patches. Each bin is chosen by graph cut from the
    samples that the earlier bins left.

    Args:
        evidence: What is known about each sample; needs ``features``.
        share: The fraction of the samples to keep, above 0 and at most 1.
        balanced: Whether to keep the same number of samples per class. Needs ``labels``.
        seed: Settles ties, and determines all random draws.
        bins: The number of bins.
        lam: The penalty on similar samples, as in ``graph_cut``.

    Returns:
        The samples to train on.

    Raises:
        InputError: If an argument is out of range, or the evidence lacks something.

    >>> import torch
    >>> from infobatch import selection
    >>> selection.dq(selection.Evidence(40, features=torch.randn(40, 3)), 0.5)
    Selection(dq: 20 of 40, share=0.5, balanced=False, seed=0, bins=10, lam=1.0)
    """
    check_positive("lam", lam)
    check_count("bins", bins, 1, "Leave it out for the default.")
    (features,) = evidence.need("features")
    generator = budget.make_generator(seed, 1)

    def pick(members: Tensor, k: int) -> tuple[Tensor, None]:
        parts = quantize(normalize_rows(features[members]), bins, lam)
        given = divide_in_proportion([len(part) for part in parts], k, generator)
        return torch.cat([_draw(part, many, generator) for part, many in zip(parts, given, strict=True)]), None

    return choose("dq", evidence, share, balanced, seed, pick, settings={"bins": bins, "lam": float(lam)})


def draw_stratified(scores: Tensor, k: int, cutoff: float, bins: int, generator: torch.Generator) -> Tensor:
    """Return k positions below the cutoff, equally many per bin. Of equal scores the first is dropped last."""
    size = len(scores)
    left = scores.argsort(stable=True)[: size - min(round(cutoff * size), size - k)]
    within = scores[left].double()
    known = within[within.isfinite()]
    low, high = (float(end) for end in known.aminmax()) if len(known) else (0.0, 0.0)
    within = within.clamp(low, high)  # samples never learned have an infinite score: they go into the last bin
    bin_of = (((within - low) / ((high - low) or 1.0)) * bins).long().clamp_(max=bins - 1)
    parts = [left[bin_of == place] for place in range(bins)]
    draw = torch.randperm(bins, generator=generator, device=budget.CPU).tolist()
    chosen = []
    for done, place in enumerate(sorted(range(bins), key=lambda place: (len(parts[place]), draw[place]))):
        chosen.append(_draw(parts[place], min(len(parts[place]), k // (bins - done)), generator))
        k -= len(chosen[-1])
    return torch.cat(chosen)


def quantize(x: Tensor, bins: int, lam: float) -> list[Tensor]:
    """Divide rows of length 1 into the bins of DQ, of nearly equal sizes.

    Of the last two samples either gives the same gain, so the first is taken: rounding must not decide.
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
    """Divide k in proportion to the sizes, rounding up the largest remainders; ties are settled at random."""
    total = sum(sizes)
    given = [k * size // total for size in sizes]
    draw = torch.randperm(len(sizes), generator=generator, device=budget.CPU).tolist()
    order = sorted(range(len(sizes)), key=lambda part: (-(k * sizes[part] % total), draw[part]))
    for part in order[: k - sum(given)]:
        given[part] += 1
    return given


def _draw(part: Tensor, many: int, generator: torch.Generator) -> Tensor:
    draw = torch.randperm(len(part), generator=generator, device=budget.CPU)[:many]
    return part[draw.to(part.device)]
