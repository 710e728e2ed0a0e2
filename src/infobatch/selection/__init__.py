"""Static selection: choose once, before training, which samples to train on.

>>> import torch
>>> from torch.utils.data import Subset, TensorDataset
>>> from infobatch import selection
>>> data = TensorDataset(torch.randn(100, 4), torch.arange(100) % 2)
>>> evidence = selection.gather(torch.nn.Linear(4, 2), data, epochs=4)
>>> chosen = selection.el2n(evidence, 0.3, balanced=True)
>>> chosen
Selection(el2n: 30 of 100, share=0.3, balanced=True, seed=0)
>>> len(Subset(data, chosen))
30
"""

from .bins import ccs, dq
from .evidence import Evidence
from .gradients import dp, glister, grad_match
from .greedy import contextual_diversity, craig, facility_location, graph_cut, herding, k_center
from .proxy import Progress, gather
from .registry import SELECTORS, Selector
from .scoring import deepfool, el2n, entropy, forgetting, grand, influence, least_confidence, margin, random
from .selection import Selection

__all__ = [
    "SELECTORS",
    "Evidence",
    "Progress",
    "Selection",
    "Selector",
    "ccs",
    "contextual_diversity",
    "craig",
    "deepfool",
    "dp",
    "dq",
    "el2n",
    "entropy",
    "facility_location",
    "forgetting",
    "gather",
    "glister",
    "grad_match",
    "grand",
    "graph_cut",
    "herding",
    "influence",
    "k_center",
    "least_confidence",
    "margin",
    "random",
]


def __dir__() -> list[str]:
    return [*__all__]
