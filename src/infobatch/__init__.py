"""Unbiased dynamic data pruning for PyTorch in a few lines.

>>> import infobatch
>>> infobatch.__version__
'0.1.0'
"""

from importlib import import_module
from types import ModuleType

from . import methods, sieve
from .adapters.per_sample import per_sample
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
from .files import load, save
from .loader import DataLoader
from .methods import variations
from .paper import InfoBatch
from .plan import EpochSummary, Plan
from .schedule.pace import Paced, full_steps, pace
from .sieve import Sieve

__version__ = "0.1.0"

__all__ = [
    "DataLoader",
    "EpochError",
    "EpochSummary",
    "InfoBatch",
    "InfoBatchError",
    "InfoBatchWarning",
    "InputError",
    "MisalignedError",
    "Paced",
    "Plan",
    "Pruned",
    "RankError",
    "Sieve",
    "StateError",
    "full_steps",
    "load",
    "methods",
    "pace",
    "per_sample",
    "save",
    "sieve",
    "variations",
]


_LAZY = ("adapters", "selection", "testing")
"""Public modules that ``import infobatch`` leaves alone; they are imported where they are first used."""


def __getattr__(name: str) -> ModuleType:
    if name in _LAZY:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *_LAZY, "__version__"]
