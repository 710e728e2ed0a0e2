"""All selectors by name, with the facts on their cards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import bins, gradients, greedy, scoring
from .selection import Selection


@dataclass(frozen=True)
class Selector:
    """A static method: ``selector(evidence, share, balanced=False, seed=0) -> Selection``.

    >>> from infobatch import selection
    >>> el2n = selection.SELECTORS["el2n"]
    >>> el2n.name, el2n.keeps, el2n.needs
    ('el2n', 'the largest errors early in training', ('error_norms',))
    >>> el2n.rule
    'Keep the samples with the largest error early in training, averaged over the runs.'
    """

    choose: Callable[..., Selection]
    keeps: str
    """Which samples it keeps, in a phrase."""
    source: str
    """The publication that proposed it."""
    needs: tuple[str, ...]
    """What the evidence must hold, besides labels if ``balanced=True``."""
    cost: str
    """Time, in N samples, k kept, d features, K classes; memory if it is more than O(N)."""
    weights: str = "1"
    """The weights of the chosen samples."""

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.choose.__name__

    @property
    def rule(self) -> str:
        """The first line of its docstring."""
        return (self.choose.__doc__ or "").strip().splitlines()[0]

    def __call__(self, evidence: Any, share: float, **settings: Any) -> Selection:
        """Select samples, as the function does.

        Args:
            evidence: What is known about each sample.
            share: The fraction of the samples to keep.
            settings: The other arguments of the function.

        Returns:
            The samples to train on.

        Raises:
            InputError: If an argument is out of range, or the evidence lacks something.

        >>> from infobatch import selection
        >>> selection.SELECTORS["random"](selection.Evidence(10), 0.3)
        Selection(random: 3 of 10, share=0.3, balanced=False, seed=0)
        """
        return self.choose(evidence, share, **settings)


BY_SCORE = (
    Selector(scoring.random, "a uniformly random subset", "the control", (), "O(N)"),
    Selector(
        scoring.least_confidence,
        "the lowest probability of the most likely class",
        "Coleman et al., ICLR 2020",
        ("logits",),
        "O(NK)",
    ),
    Selector(
        scoring.entropy, "predictions with the largest entropy", "Coleman et al., ICLR 2020", ("logits",), "O(NK)"
    ),
    Selector(
        scoring.margin,
        "the smallest gap between the two most likely classes",
        "Coleman et al., ICLR 2020",
        ("logits",),
        "O(NK)",
    ),
    Selector(
        scoring.forgetting,
        "samples never learned, then those most often forgotten",
        "Toneva et al., ICLR 2019",
        ("correct",),
        "O(TN) for T epochs",
    ),
    Selector(
        scoring.grand,
        "the largest gradients early in training",
        "Paul et al., NeurIPS 2021",
        ("grad_norms",),
        "O(RN) for R runs",
    ),
    Selector(
        scoring.el2n,
        "the largest errors early in training",
        "Paul et al., NeurIPS 2021",
        ("error_norms",),
        "O(RN) for R runs",
    ),
    Selector(
        scoring.deepfool,
        "features nearest to a decision boundary",
        "Ducoffe and Precioso, 2018",
        ("logits", "head"),
        "O(NK + K²d)",
    ),
    Selector(
        scoring.influence,
        "samples whose removal would move the last layer furthest",
        "Koh and Liang, ICML 2017",
        ("labels", "logits", "features"),
        "O(N(d + K)²)",
    ),
)
GRADIENTS = ("labels", "logits", "features")
CLUSTERS = "samples represented by a pick, mean 1"
GREEDY = (
    Selector(
        greedy.k_center,
        "samples far from those already picked",
        "Sener and Savarese, ICLR 2018",
        ("features",),
        "O(Nkd)",
    ),
    Selector(
        greedy.herding,
        "samples whose mean stays nearest to the mean of all",
        "Welling, ICML 2009",
        ("features",),
        "O(Nkd)",
    ),
    Selector(
        greedy.contextual_diversity,
        "as k_center, by the distance between predictions",
        "Agarwal et al., ECCV 2020",
        ("logits",),
        "O(NkK)",
    ),
    Selector(
        greedy.graph_cut,
        "samples similar to all others and not to each other",
        "Iyer and Bilmes, NeurIPS 2013",
        ("features",),
        "O(Nkd)",
    ),
    Selector(
        greedy.facility_location,
        "samples that together are similar to all others",
        "Iyer and Bilmes, NeurIPS 2013",
        ("features",),
        "O(N²d log N); 8 KiB per sample",
    ),
    Selector(
        greedy.craig,
        "samples whose gradients stand for those of all others",
        "Mirzasoleiman et al., ICML 2020",
        GRADIENTS,
        "O(N²(d + K) log N); 8 KiB per sample",
        CLUSTERS,
    ),
    Selector(
        gradients.glister,
        "samples that lower the loss on held-out data most",
        "Killamsetty et al., AAAI 2021",
        GRADIENTS,
        "O(NKd) per round, 100 rounds",
    ),
    Selector(
        gradients.grad_match,
        "samples whose weighted gradients add up to that of all",
        "Killamsetty et al., ICML 2021",
        GRADIENTS,
        "O(NKd) per round, 100 rounds",
        "what matches the full gradient, mean 1",
    ),
    Selector(
        gradients.dp,
        "all but the samples whose joint absence moves the last layer least",
        "Yang et al., ICLR 2023",
        GRADIENTS,
        "O(N(d + K)²), and O((pool + 4N/pool)Kd) per sample left out",
    ),
    Selector(
        bins.ccs,
        "equally many from each bin of scores, without the hardest",
        "Zheng et al., ICLR 2023",
        ("aum",),
        "O(N log N)",
    ),
    Selector(bins.dq, "the same share of each bin, by graph cut", "Zhou et al., ICCV 2023", ("features",), "O(N²d)"),
)
"""Methods that judge samples together instead of one by one: greedy.py, gradients.py, bins.py."""

SELECTORS: dict[str, Selector] = {selector.name: selector for selector in (*BY_SCORE, *GREEDY)}
