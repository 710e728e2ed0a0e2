"""Define what a figure consists of: a drawing, a caption, a legend, and the numbers behind it as CSV."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from ...lab.format import format_number
from ...lab.metrics.metric_info import PERCENT, MetricInfo
from ...lab.runs.fields import number
from ..series import Study
from .svg import INK, LINES, MUTED, VARIABLES, Style, clip


@dataclass(frozen=True)
class Key:
    """One entry of a figure's legend."""

    mark: Markup
    text: str


@dataclass(frozen=True)
class Figure:
    key: str
    title: str
    svg: Markup
    caption: str
    keys: tuple[Key, ...]
    csv_link: str
    """The numbers behind it, as a data URL."""


DASHES: tuple[tuple[float, ...], ...] = ((), (4, 2), (1, 1.6), (6, 2, 1, 2))
MARKERS = "os^DvP"


def label_styles(study: Study) -> dict[str, Style]:
    """Choose a style per label: full data in black, shorter runs in grey, methods in colour-blind safe colours."""
    found: dict[str, Style] = {}
    full = methods = controls = 0
    for row in study.comparison.rows:
        if row.verdict.kind == "baseline":
            found[row.label] = Style(INK, DASHES[full % 4], MARKERS[full % 6])
            full += 1
        elif study.sets[row.label][0].settings.method == study.comparison.baseline:
            found[row.label] = Style(MUTED, DASHES[1 + controls % 3], MARKERS[1 + controls % 5])
            controls += 1
        else:
            turn, place = divmod(methods, len(LINES))
            found[row.label] = Style(LINES[place], DASHES[turn % 4], MARKERS[(place + turn) % 6])
            methods += 1
    return found


def metric_text(study: Study) -> str:
    return clip(study.comparison.metric, 40)


def metric_form(study: Study) -> str:
    """Return the format of a value of the metric."""
    return f"{{:.{study.comparison.metric_info.places}f}}"


def difference_text(study: Study) -> str:
    """Return what differences of the metric are counted in, for an axis."""
    info = study.comparison.metric_info
    return clip(info.scale or info.name, 40)


def bounds(study: Study) -> tuple[float, float]:
    """Return the range of the metric: 0 to 100 for a percentage, otherwise unbounded."""
    return (0.0, 100.0) if study.comparison.metric_info.unit == PERCENT else (-math.inf, math.inf)


def metric_name(study: Study) -> str:
    """Return the metric without its unit: "accuracy" for "accuracy, %"."""
    return clip(study.comparison.metric_info.name, 40)


def metric_title(study: Study) -> str:
    """Return the name of the metric as a title begins: "Mean IoU", but "mAP" stays as it is."""
    name = metric_name(study)
    return name[:1].upper() + name[1:] if name[1:2].islower() or len(name) == 1 else name


FAR = 30
"""A value this many times further from the best than the median is not drawn: it would flatten all others."""


def lowest_drawn(values: Sequence[float]) -> float:
    """Return the lowest value to draw, ignoring runs that failed completely.

    >>> lowest_drawn([89.2, 89.0, 88.6, 10.0]), lowest_drawn([-0.4, 0.0])
    (88.6, -0.4)
    >>> lowest_drawn([89.2, 89.2, 89.1]), lowest_drawn([89.2, 89.2])
    (89.1, 89.2)
    """
    top = max(values)
    usual = top - statistics.median(values)
    if not usual:  # half of the values are the best one: judge by the next
        usual = min((top - one for one in values if one < top), default=0.0)
    return min(one for one in values if one >= top - FAR * usual)


def worst_drawn(values: Sequence[float], info: MetricInfo) -> float:
    """Return the worst value to draw: the lowest, or the highest where lower is better.

    >>> worst_drawn([1.0, 1.2, 900.0], MetricInfo("perplexity", "", higher_is_better=False, margin=0.1))
    1.2
    """
    return info.gain(lowest_drawn([info.gain(one) for one in values]))


def is_drawn(value: float, worst: float, info: MetricInfo) -> bool:
    """True if a value is no worse than the worst one drawn."""
    return info.gain(value) >= info.gain(worst)


def outside(labels: Sequence[str], info: MetricInfo) -> str:
    """Say which values are not drawn; empty if all are."""
    side = "Below" if info.higher_is_better else "Above"
    return f" {side} the figure: {', '.join(labels)}." if labels else ""


def signed(value: float, places: int = 2) -> str:
    """Format a number with its sign.

    >>> signed(0.25), signed(-1), signed(-0.001)
    ('+0.25', '−1.00', '0.00')
    """
    return format_value(f"{{:+.{places}f}}", value)


def format_value(form: str, value: float) -> str:
    """Format a number with a proper minus sign; one that rounds to zero has no sign.

    >>> format_value("{:.1f} %", -0.01), format_value("{:.1f} %", -1.5)
    ('0.0 %', '−1.5 %')
    """
    return format_number(form, value).replace("-", "\N{MINUS SIGN}")


def interval_text(low: float | None, high: float | None, places: int = 2) -> str:
    """Format an interval; empty if there is none."""
    return "" if low is None or high is None else f"{signed(low, places)} to {signed(high, places)}"


def with_interval(middle: float, low: float | None, high: float | None, places: int = 2) -> str:
    """Format a number with its interval.

    >>> with_interval(0.5, 0.25, 0.75), with_interval(0.5, None, None)
    ('+0.50 (+0.25 to +0.75)', '+0.50')
    """
    ends = interval_text(low, high, places)
    return f"{signed(middle, places)} ({ends})" if ends else signed(middle, places)


def mean_and_std(mean: float | None, std: float | None, places: int = 2) -> str:
    """Format a mean with its standard deviation; empty if there is none."""
    return "" if mean is None else f"{mean:.{places}f}" + ("" if std is None else f" ± {std:.{places}f}")


def mean_over_seeds(mean: float, std: float, n: int, places: int = 2) -> str:
    """Format a mean over seeds with its standard deviation.

    >>> mean_over_seeds(90.123, 0.25, 3), mean_over_seeds(90.123, 0.0, 1)
    ('90.12 ± 0.25, n = 3', '90.12, n = 1')
    """
    return f"{mean_and_std(mean, std if n > 1 else None, places)}, n = {n}"


def csv_link(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Encode a table as CSV in a data URL."""
    held = io.StringIO()
    writer = csv.writer(held, lineterminator="\n")
    writer.writerow([_cell(value) for value in head])
    writer.writerows([_cell(value) for value in row] for row in rows)
    return "data:text/csv;charset=utf-8," + quote(held.getvalue(), safe=" ,.-+():=_/")


def _cell(value: Any) -> str:
    """Format a cell: numbers with six digits; texts that a spreadsheet would run as a formula are quoted."""
    if value is None:
        return ""
    if number(value) is not None:
        return f"{value + 0.0:.6g}" if isinstance(value, float) else str(value)
    text = str(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def keys(styles: Mapping[str, Style], labels: Iterable[str]) -> tuple[Key, ...]:
    return tuple(Key(swatch(styles[label]), label) for label in labels)


_SHAPES = {
    "o": '<circle cx="12" cy="6" r="3.6" fill="{}"/>',
    "s": '<rect x="8.8" y="2.8" width="6.4" height="6.4" fill="{}"/>',
    "^": '<path d="M12 2l4.2 7.6H7.8z" fill="{}"/>',
    "D": '<path d="M12 1.6l4.4 4.4-4.4 4.4L7.6 6z" fill="{}"/>',
    "v": '<path d="M12 10l4.2-7.6H7.8z" fill="{}"/>',
    "P": '<path d="M10.4 2h3.2v2.4H16v3.2h-2.4V10h-3.2V7.6H8V4.4h2.4z" fill="{}"/>',
    "": "",
}
_SWATCH = '<svg class="mark" viewBox="0 0 24 12" aria-hidden="true">{}</svg>'


def swatch(style: Style) -> Markup:
    """Draw a line for a legend. It contains nothing from a record, so it needs no escaping."""
    dash = f' stroke-dasharray="{" ".join(f"{2 * part:g}" for part in style.dash)}"' if style.dash else ""
    colour = f"var({VARIABLES[style.colour]})"
    line = f'<path d="M0 6h24" stroke="{colour}" stroke-width="2"{dash}/>'
    return Markup(_SWATCH.format(line + _SHAPES[style.marker].format(colour)))


def dot(style: Style) -> Markup:
    """Draw a marker for a legend."""
    return Markup(_SWATCH.format(_SHAPES[style.marker].format(f"var({VARIABLES[style.colour]})")))


def patch(colour: str) -> Markup:
    """Draw a patch of colour for a legend."""
    return Markup(_SWATCH.format(f'<rect x="6" width="12" height="12" rx="2" fill="var({VARIABLES[colour]})"/>'))
