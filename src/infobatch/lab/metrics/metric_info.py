"""What a report must know of a metric: its name, its unit, which direction is better, and how much may be lost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeGuard

from ..format import format_number

PERCENT = "%"
MARGIN = 0.3
"""The margin of a metric in percent, in points, unless a task states another one."""
FEWEST_PLACES, MOST_PLACES = 2, 6


@dataclass(frozen=True)
class MetricInfo:
    """A metric as records name it.

    >>> MetricInfo().text, MetricInfo().amount(0.25)
    ('accuracy, %', '0.25 points')
    >>> perplexity = MetricInfo("perplexity", "", higher_is_better=False, margin=0.05)
    >>> perplexity.text, perplexity.amount(0.25), perplexity.gain(-0.25)
    ('perplexity', '0.250', 0.25)
    """

    name: str = "accuracy"
    unit: str = PERCENT
    """May be empty."""
    higher_is_better: bool = True
    margin: float = MARGIN
    """How much a method may lose and still count as lossless, in the unit of the metric."""

    @classmethod
    def of_text(cls, text: str) -> MetricInfo:
        """Read a title such as "accuracy, %", all that older records hold; higher is better.

        >>> MetricInfo.of_text("close, %").name, MetricInfo.of_text("mean IoU").unit
        ('close', '')
        """
        name, _, unit = text.partition(", ")
        return cls(name, unit)

    @classmethod
    def of_record(cls, start: Mapping[str, Any]) -> MetricInfo:
        """Read the metric of a run from its ``start`` fact; without one it is the accuracy in percent."""
        title, given = start.get("metric"), start.get("metric_info")
        info = cls.of_text(title) if isinstance(title, str) and title else cls()
        if not isinstance(given, dict):
            return info
        name, unit, margin = given.get("name"), given.get("unit"), given.get("margin")
        return cls(
            name if isinstance(name, str) and name else info.name,
            unit if isinstance(unit, str) else info.unit,
            given.get("higher_is_better") is not False,
            float(margin) if is_margin(margin) else MARGIN,
        )

    def plain(self) -> dict[str, Any]:
        """Return it as values that JSON can hold."""
        return asdict(self)

    @property
    def text(self) -> str:
        """Name and unit, as a heading."""
        return f"{self.name}, {self.unit}" if self.unit else self.name

    @property
    def direction(self) -> str:
        """Which direction is better, in words."""
        return "higher is better" if self.higher_is_better else "lower is better"

    @property
    def scale(self) -> str:
        """What differences are counted in: "points" for percentages, else the unit; empty without one."""
        return "points" if self.unit == PERCENT else self.unit

    @property
    def places(self) -> int:
        """Decimals of a value."""
        return places_for(self.margin)

    def value(self, value: float) -> str:
        """Format a value of the metric, without its unit."""
        return format_number(f"{{:.{self.places}f}}", value)

    def signed(self, value: float) -> str:
        """Format a difference, without its unit."""
        return format_number(f"{{:+.{self.places}f}}", value)

    def amount(self, value: float) -> str:
        """Format the size of a difference, with what it is counted in."""
        return self.with_scale(self.value(value))

    def with_scale(self, number: str) -> str:
        """Put after a number what differences are counted in."""
        return f"{number} {self.scale}" if self.scale else number

    def gain(self, difference: float) -> float:
        """Return a difference so that more is better."""
        return difference if self.higher_is_better else -difference


def places_for(margin: float) -> int:
    """Return how many decimals a value needs: one more than its margin has, and at least two.

    >>> places_for(0.3), places_for(0.003), places_for(math.inf)
    (2, 4, 2)
    """
    first = math.floor(math.log10(margin)) if math.isfinite(margin) else 0
    return min(MOST_PLACES, max(FEWEST_PLACES, 1 - first))


def is_margin(value: Any) -> TypeGuard[float]:
    """True for a finite number above 0."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
