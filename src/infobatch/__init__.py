"""Unbiased dynamic data pruning for PyTorch in three lines.

>>> import infobatch
>>> infobatch.__version__
'0.1.0'
"""

from . import methods, variations
from .checkpoint import load, save
from .dataset import Pruned
from .errors import (
    EpochError,
    InfoBatchError,
    InfoBatchWarning,
    InputError,
    MisalignedError,
    RankError,
    StateError,
)
from .loader import DataLoader
from .pacing import Paced, full_steps, pace
from .paper import InfoBatch
from .plan import Plan
from .telemetry import EpochReport

__version__ = "0.1.0"

__all__ = [
    "DataLoader",
    "EpochError",
    "EpochReport",
    "InfoBatch",
    "InfoBatchError",
    "InfoBatchWarning",
    "InputError",
    "MisalignedError",
    "Paced",
    "Plan",
    "Pruned",
    "RankError",
    "StateError",
    "full_steps",
    "load",
    "methods",
    "pace",
    "save",
    "variations",
]
