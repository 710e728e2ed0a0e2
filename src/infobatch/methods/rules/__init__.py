"""One file per rule or family of rules. Importing this folder registers them, in the order of the table of methods."""
# ruff: noqa: I001

from .baselines import full, random, random_star, rs2
from .infobatch import above_mean, author_tiers, infobatch, tiers
from .saving import saving
from .rising import rising
from .bandits import epsilon_greedy, ucb
from .dynamic_uncertainty import dynamic_uncertainty
from .seta import seta
from .kakurenbo import kakurenbo
from .ies import ies
from .order_dp import order_dp
from .rcap import rcap
from .eswp import eswp
from .by_batch import bls, repb
from .fixed import static

__all__ = [
    "above_mean",
    "author_tiers",
    "bls",
    "dynamic_uncertainty",
    "epsilon_greedy",
    "eswp",
    "full",
    "ies",
    "infobatch",
    "kakurenbo",
    "order_dp",
    "random",
    "random_star",
    "rcap",
    "repb",
    "rising",
    "rs2",
    "saving",
    "seta",
    "static",
    "tiers",
    "ucb",
]
