"""Static selection: choose once, before training, whom to train on.

>>> import torch
>>> from infobatch import selection
>>> evidence = selection.Evidence(10)
>>> selection.random(evidence, 0.3)
Selection(random: 3 of 10, share=0.3, balanced=False, seed=0)
"""

from .evidence import Evidence
from .registry import SELECTORS, Selector
from .scores import random
from .selection import Selection

__all__ = [
    "SELECTORS",
    "Evidence",
    "Selection",
    "Selector",
    "random",
]
