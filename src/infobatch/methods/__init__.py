"""Which samples an epoch uses: every method in one place, with its rule, memory, arguments and card.

>>> import infobatch
>>> infobatch.methods.infobatch(ratio=0.5, delta=0.875)
infobatch(ratio=0.5, delta=0.875)
>>> len(infobatch.methods.METHODS)
21

To add one, write a function that returns a ``Method`` and decorate it with ``@register(Card(...))``; see
``methods/rules/`` for examples.
"""

from . import rules
from .method import CARDS, METHODS, Card, Method, register
from .rules import *  # noqa: F403

__all__ = ["CARDS", "METHODS", "Card", "Method", "register", *rules.__all__]


def __dir__() -> list[str]:
    return [*__all__]
