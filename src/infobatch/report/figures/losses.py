"""Draw loss distributions: before pruning, after pruning, after rescaling."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from ...lab.runs.records import Fact, Run
from .. import series
from ..series import Study, numbers
from .figure import Figure, Key, csv_link, patch, swatch
from .svg import LINES, PARTS, Plot, Style, Tip, short, short_ticks

MOST = 6
"""The largest number of these figures on a page."""
STAGES = ("before pruning", "after pruning", "after rescaling")
COLOURS = (PARTS[4], LINES[1], LINES[0])
DASH = (4, 1.6)
PEAK = 0.4
"""The share of the samples in one bin above which the axis is logarithmic."""

Histogram = tuple[list[float], list[float], list[float], list[float]]


def distributions(study: Study) -> tuple[list[Figure], list[str]]:
    """Draw one figure per method, from its run with the lowest seed, and list the labels beyond ``MOST``."""
    found = []
    for label in filter(study.prunes, study.sets):
        run = study.first(label)
        known = [
            (fact["epoch"] + 1, histogram)
            for fact in run.epochs
            if series.pruned(fact) and (histogram := _histogram(fact)) is not None
        ]
        if known:
            found.append((label, run, known[:1] if len(known) == 1 else [known[0], known[-1]]))
    figures = [_draw(f"losses-{place}", *one) for place, one in enumerate(found[:MOST])]
    return figures, [label for label, *_ in found[MOST:]]


def _draw(key: str, label: str, run: Run, panels: list[tuple[int, Histogram]]) -> Figure:
    plot = Plot(64 + 130 * len(panels), panels=len(panels))
    table: list[list[Any]] = []
    for panel, (epoch, (edges, before, after, rescaled)) in enumerate(panels):
        axes = plot.all[panel]
        axes.stairs(before, edges, fill=True, color=COLOURS[0], alpha=0.6)
        axes.stairs(after, edges, color=COLOURS[1], linewidth=1.7)
        axes.stairs(rescaled, edges, color=COLOURS[2], linewidth=1.7, linestyle=(0, DASH))
        axes.set_xlim(edges[0], edges[-1])
        most = max(*before, *rescaled, 1.0)
        steep = max(before) > PEAK * sum(before)  # late in a run nearly all losses are close to 0
        y = f"samples{', log' if steep else ''}, epoch {epoch}"
        plot.name(y, "loss" if panel == len(panels) - 1 else "", panel)
        if steep:
            axes.set_yscale("log")
            axes.set_ylim(0.7, 2 * most)
            axes.yaxis.set_major_locator(LogLocator(numticks=4))
            axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter(FuncFormatter(short))
        else:
            axes.set_ylim(0, 1.08 * most)
            short_ticks(axes, "y", 3)
        short_ticks(axes)
        table += [[epoch, *row] for row in zip(edges[:-1], edges[1:], before, after, rescaled, strict=True)]
    plot.fit_left()
    for panel, (_, (edges, *counts)) in enumerate(panels):
        _, top, _, height = plot.frame(panel)
        for place, (low, high) in enumerate(pairwise(edges)):
            start, end = plot.pixels(low, 1, panel)[0], plot.pixels(high, 1, panel)[0]
            texts = [
                (colour, f"{stage} {count[place]:,.0f}")
                for colour, stage, count in zip(COLOURS, STAGES, counts, strict=True)
            ]
            plot.tips.append(Tip(start, top, end - start, height, f"loss {low:.3g} to {high:.3g}", tuple(texts), True))
    marks = (patch(COLOURS[0]), swatch(Style(COLOURS[1], marker="")), swatch(Style(COLOURS[2], DASH, "")))
    return Figure(
        key,
        label,
        plot.svg(key, f"Loss distribution of {label} before pruning, after pruning and after rescaling"),
        f"From the run with seed {run.settings.seed}.",
        tuple(Key(mark, stage) for mark, stage in zip(marks, STAGES, strict=True)),
        csv_link(["epoch", "from", "to", *STAGES], table),
    )


def _histogram(fact: Fact) -> Histogram | None:
    """Read the edges and the three counts of an epoch; None if one is missing or their lengths differ."""
    found = fact.get("losses")
    if not isinstance(found, dict):
        return None
    parts = [numbers(found.get(name)) or [] for name in ("edges", "before", "after", "rescaled")]
    edges, before, after, rescaled = ([value for value in part if value is not None] for part in parts)
    fits = len(edges) - 1 == len(before) == len(after) == len(rescaled) > 0
    return (edges, before, after, rescaled) if fits and edges[0] < edges[-1] else None
