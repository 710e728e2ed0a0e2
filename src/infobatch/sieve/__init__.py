"""Which rows of this batch: pass on the part that is worth a step, chosen by a fresh look.

>>> import infobatch
>>> infobatch.sieve.hardest(keep=0.5)
hardest(keep=0.5)
>>> sorted(infobatch.sieve.SIEVE_METHODS)[:3]
['adaptive', 'band', 'below_mean']
"""

from . import rules
from .amount import Fixed
from .cost import Flops, SieveSummary, count_bytes, count_flops
from .looks import Look, Own, Reference, Remembered
from .methods import (
    adaptive,
    band,
    below_mean,
    es,
    hardest,
    lot,
    random_rows,
    rho_loss,
    selective_backprop,
    small_loss,
    tokens,
)
from .proxy_look import Proxy
from .rows import select_rows
from .rules import Choice
from .sieve import Sieve
from .sieve_method import SIEVE_CARDS, SIEVE_METHODS, Seen, SieveMethod, register

__all__ = [
    "SIEVE_CARDS",
    "SIEVE_METHODS",
    "Choice",
    "Fixed",
    "Flops",
    "Look",
    "Own",
    "Proxy",
    "Reference",
    "Remembered",
    "Seen",
    "Sieve",
    "SieveMethod",
    "SieveSummary",
    "adaptive",
    "band",
    "below_mean",
    "count_bytes",
    "count_flops",
    "es",
    "hardest",
    "lot",
    "random_rows",
    "register",
    "rho_loss",
    "rules",
    "select_rows",
    "selective_backprop",
    "small_loss",
    "tokens",
]


def __dir__() -> list[str]:
    return [*__all__]
