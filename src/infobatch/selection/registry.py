"""Every selector by name, with what a card says of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import scores
from .selection import Selection


@dataclass(frozen=True)
class Selector:
    """One way to choose: ``selector(evidence, share, balanced=False, seed=0) -> Selection``."""

    choose: Callable[..., Selection]
    source: str
    """Who proposed it, and when."""
    needs: tuple[str, ...]
    """What the evidence must hold, besides labels where ``balanced=True``."""
    cost: str
    """Time, in N samples, k kept, d features, K classes; memory where it is more than O(N)."""
    weights: str = "1"
    """What the weights of the chosen are."""

    @property
    def name(self) -> str:
        return self.choose.__name__

    @property
    def rule(self) -> str:
        """The first line of its docstring."""
        return (self.choose.__doc__ or "").strip().splitlines()[0]

    def __call__(self, evidence: Any, share: float, **settings: Any) -> Selection:
        return self.choose(evidence, share, **settings)


BY_SCORE = (Selector(scores.random, "", (), "N"),)
GREEDY: tuple[Selector, ...] = ()
"""Choices that look at the samples together: greedy.py, gradients.py, bins.py."""

SELECTORS: dict[str, Selector] = {selector.name: selector for selector in (*BY_SCORE, *GREEDY)}
