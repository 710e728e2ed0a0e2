"""All selectors by name, with the facts on their cards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import bins, gradients, greedy, scoring
from .selection import Selection


@dataclass(frozen=True)
class Selector:
    """A static method: ``selector(evidence, share, balanced=False, seed=0) -> Selection``."""

    choose: Callable[..., Selection]
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
        return self.choose.__name__

    @property
    def rule(self) -> str:
        """The first line of its docstring."""
        return (self.choose.__doc__ or "").strip().splitlines()[0]

    def __call__(self, evidence: Any, share: float, **settings: Any) -> Selection:
        return self.choose(evidence, share, **settings)


BY_SCORE = (
    Selector(scoring.random, "the control", (), "O(N)"),
    Selector(scoring.least_confidence, "Coleman et al., ICLR 2020", ("logits",), "O(NK)"),
    Selector(scoring.entropy, "Coleman et al., ICLR 2020", ("logits",), "O(NK)"),
    Selector(scoring.margin, "Coleman et al., ICLR 2020", ("logits",), "O(NK)"),
    Selector(scoring.forgetting, "Toneva et al., ICLR 2019", ("correct",), "O(TN) for T epochs"),
    Selector(scoring.grand, "Paul et al., NeurIPS 2021", ("grad_norms",), "O(RN) for R runs"),
    Selector(scoring.el2n, "Paul et al., NeurIPS 2021", ("error_norms",), "O(RN) for R runs"),
    Selector(scoring.deepfool, "Ducoffe and Precioso, 2018", ("logits", "head"), "O(NK + KKd)"),
    Selector(scoring.influence, "Koh and Liang, ICML 2017", ("labels", "logits", "features"), "O(N(d + K)(d + K))"),
)
GRADIENTS = ("labels", "logits", "features")
CLUSTERS = "samples represented by a pick, mean 1"
GREEDY = (
    Selector(greedy.k_center, "Sener and Savarese, ICLR 2018", ("features",), "O(Nkd)"),
    Selector(greedy.herding, "Welling, ICML 2009", ("features",), "O(Nkd)"),
    Selector(greedy.contextual_diversity, "Agarwal et al., ECCV 2020", ("logits",), "O(NkK)"),
    Selector(greedy.graph_cut, "Iyer and Bilmes, NeurIPS 2013", ("features",), "O(Nkd)"),
    Selector(
        greedy.facility_location, "Iyer and Bilmes, NeurIPS 2013", ("features",), "O(NNd log N); 8 KiB per sample"
    ),
    Selector(
        greedy.craig, "Mirzasoleiman et al., ICML 2020", GRADIENTS, "O(NN(d + K) log N); 8 KiB per sample", CLUSTERS
    ),
    Selector(gradients.glister, "Killamsetty et al., AAAI 2021", GRADIENTS, "O(NKd) per round, 100 rounds"),
    Selector(
        gradients.grad_match,
        "Killamsetty et al., ICML 2021",
        GRADIENTS,
        "O(NKd) per round, 100 rounds",
        "what matches the full gradient, mean 1",
    ),
    Selector(
        gradients.dp,
        "Yang et al., ICLR 2023",
        GRADIENTS,
        "O(N(d + K)(d + K)), and O((pool + 4N/pool)Kd) per sample left out",
    ),
    Selector(bins.ccs, "Zheng et al., ICLR 2023", ("aum",), "O(N log N)"),
    Selector(bins.dq, "Zhou et al., ICCV 2023", ("features",), "O(NNd)"),
)
"""Methods that judge samples together instead of one by one: greedy.py, gradients.py, bins.py."""

SELECTORS: dict[str, Selector] = {selector.name: selector for selector in (*BY_SCORE, *GREEDY)}
