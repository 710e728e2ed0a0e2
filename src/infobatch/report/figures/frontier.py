"""Draw the metric against compute or time, and which methods no other beats in both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...lab.train.method_text import STATIC
from ..series import Study
from .figure import (
    Figure,
    bounds,
    csv_link,
    is_drawn,
    keys,
    label_styles,
    mean_over_seeds,
    metric_name,
    metric_text,
    metric_title,
    outside,
    worst_drawn,
)
from .svg import CARD, GRID, Plot, Tip, clip, short_ticks

LOOKING = ", and of looking at batches or pruned samples"
PROXIES = "The proxy of a static method is not in it. "


@dataclass(frozen=True)
class Point:
    label: str
    cost: float
    mean: float
    std: float
    n: int
    higher_is_better: bool = True

    def beats(self, other: Point) -> bool:
        """True if it is at least as good in both, and better in one."""
        ahead = self.mean - other.mean if self.higher_is_better else other.mean - self.mean
        return self.cost <= other.cost and ahead >= 0 and (self.cost < other.cost or ahead > 0)


def best(points: list[Point]) -> list[Point]:
    """Return the points that no other beats, in order of cost."""
    kept = [point for point in points if not any(other.beats(point) for other in points)]
    return sorted(kept, key=lambda point: point.cost)


def frontier(study: Study, by: Literal["compute", "time"]) -> Figure | None:
    styles, points, info = label_styles(study), [], study.comparison.metric_info
    for row in study.comparison.rows:
        share = None if row.compute is None else 100 * row.compute
        paid = row.seconds if by == "time" else share
        if paid is not None and row.mean is not None:
            points.append(Point(row.label, paid, row.mean, row.std or 0.0, row.n, info.higher_is_better))
    if not points:
        return None
    plot, ahead, (least, most) = Plot(), best(points), bounds(study)
    plot.axes.plot([one.cost for one in ahead], [one.mean for one in ahead], color=GRID, linewidth=6, zorder=1)
    for one in points:
        style = styles[one.label]
        bar = [[max(0.0, min(one.std, one.mean - least))], [max(0.0, min(one.std, most - one.mean))]]
        plot.axes.errorbar(
            one.cost, one.mean, yerr=bar if one.std else None, color=style.colour, marker=style.marker, markersize=8,
            elinewidth=1.5, markeredgecolor=CARD, markeredgewidth=1, zorder=3,
        )  # fmt: skip
    upward = "Up" if info.higher_is_better else "Down"
    unit = "compute, % of full data" if by == "compute" else "seconds per run"
    plot.name(metric_text(study), unit)
    plot.axes.margins(0.12, 0.16)
    worst = worst_drawn([one.mean for one in points], info)
    drawn = [one for one in points if is_drawn(one.mean, worst, info)]
    if len(drawn) < len(points):
        low, high = min(one.mean for one in drawn), max(one.mean for one in drawn)
        plot.axes.set_ylim(low - 0.2 * (high - low), high + 0.2 * (high - low))
    short_ticks(plot.axes)
    plot.fit_left()
    for one in drawn:
        x, y = plot.pixels(one.cost, one.mean)
        cost = f"{one.cost:.1f} % of the compute" if by == "compute" else f"{one.cost:,.1f} s"
        text = mean_over_seeds(one.mean, one.std, one.n, info.places)
        plot.tips.append(Tip(x - 11, y - 11, 22, 22, one.label, ((styles[one.label].colour, text), (None, cost))))
    return Figure(
        f"frontier-{by}",
        f"{metric_title(study)} against {by}",
        plot.svg(f"frontier-{by}", f"{metric_text(study)} of {len(points)} labels against {unit}"),
        f"{upward} and to the left is better. {_describe_compute(study) if by == 'compute' else ''}"
        f"Bars show one standard deviation over seeds. {_best_in_words(study, ahead)}"
        + outside([clip(one.label, 30) for one in points if one not in drawn], info),
        keys(styles, [one.label for one in points]),
        csv_link(
            ["method", unit, metric_text(study), "std", "n"], [[p.label, p.cost, p.mean, p.std, p.n] for p in points]
        ),
    )


def _describe_compute(study: Study) -> str:
    rows = study.comparison.rows
    looking = LOOKING if any(row.looking for row in rows) else ""
    proxies = PROXIES if any(row.label.startswith(STATIC) for row in rows) else ""
    return f"Compute is that of the samples trained on{looking}. {proxies}"


def _best_in_words(study: Study, ahead: list[Point]) -> str:
    names = "; ".join(clip(one.label, 40) for one in ahead[:4])
    names += f"; and {len(ahead) - 4} more" if ahead[4:] else ""
    if len(ahead) == 1:
        word = "higher" if study.comparison.metric_info.higher_is_better else "lower"
        return f"None costs less or reaches a {word} mean than {names}."
    return f"The grey band joins the methods that no other beats in both cost and {metric_name(study)}: {names}."
