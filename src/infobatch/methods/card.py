"""Each method in a line of a table: where it is from, whom it leaves out, what it costs and needs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """A method in a line of a table."""

    source: str
    leaves_out: str
    cost: str = "O(N): a mean and a draw"
    """Of a plan for N samples, beside the shuffle that any epoch pays."""
    weights: str = "unbiased"
    needs: str = "losses"


_RANK, _DRAW, _SORT = "O(N): a k-th value and a draw", "O(N): a draw", "O(N log N): a sort and a draw"
_WINDOW = "O(JN): J epochs' spread, a k-th value and a draw"
_ONES = "all 1"
CARDS: dict[str, Card] = {
    "full": Card("baseline", "nobody: the baseline, through the same code", "none", _ONES, "nothing"),
    "infobatch": Card("the paper, eq. 3", "a share `ratio` of the samples with a loss below the mean"),
    "tiers": Card("the papers", "75 % of the lowest fifth, 50 % from there up to the mean", _RANK),
    "author_tiers": Card("the author's script", "75 % below the 20th percentile, 50 % up to the 85th", _RANK),
    "above_mean": Card("the paper, Table 5", "a share of those above the mean: the paper's opposite"),
    "random": Card("the paper, Table 5", "anyone: the control to compare with", _DRAW),
    "random_star": Card("the paper, Table 1", "anyone, from the first epoch to the last", _DRAW, _ONES, "nothing"),
    "saving": Card("this package", "as many as it takes to save 40 % of the whole run", _RANK),
    "rising": Card("this package", "each with a chance that falls as its loss rises, a share `ratio` in all", _SORT),
    "epsilon_greedy": Card("Raju et al. 2021", "the lowest average losses, but for a tenth by lot", _RANK, _ONES),
    "ucb": Card("Raju et al. 2021", "the lowest average loss plus spread, for ten epochs at a time", _RANK, _ONES),
    "dynamic_uncertainty": Card(
        "He et al. 2023", "those whose confidence moved least over a window", _WINDOW, _ONES, "losses, confidence"
    ),
    "seta": Card("SeTa, CVPR 2025", "loss groups outside a sliding window, and a tenth by lot", _SORT, _ONES),
    "kakurenbo": Card(
        "KAKURENBO, NeurIPS 2023",
        "low losses told right and surely",
        _RANK,
        _ONES,
        "losses, confidence, a look at the left-out",
    ),
    "ies": Card(
        "IES, ICLR 2025", "those whose loss moves in a straight line", "O(N)", _ONES, "losses, a look at the left-out"
    ),
    "rs2": Card("RS2, ICLR 2024", "those that had their turn in this round", _RANK, _ONES, "nothing"),
    "order_dp": Card("OrderDP, ICLR 2026", "all but the highest losses of a random part", _RANK, _ONES),
    "rcap": Card("RCAP (DataCull)", "low losses, by class", _SORT, _ONES, "losses, labels"),
    "eswp": Card("ESWP", "anyone, the likelier the lower an average of its losses", _RANK, _ONES),
    "bls": Card("BLS, CVPR 2026", "as the inner method, by batches' mean losses", weights="as the inner method"),
}
