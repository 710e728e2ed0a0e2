"""Draw figures with one row per method: differences, savings, seconds, weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import wrap

from ...lab.compare.answer import SHORTEST_TIMED, measures_time
from ...lab.format import percent
from ...lab.runs.fields import mean, table
from .. import series
from ..series import Study, numbers
from .figure import (
    Figure,
    Key,
    csv_link,
    format_value,
    is_drawn,
    label_styles,
    metric_name,
    patch,
    signed,
    with_interval,
    worst_drawn,
)
from .svg import MUTED, PARTS, Plot, Tip, clip, short_ticks

COSTS = (
    ("step", "steps", PARTS[0]), ("data", "data", PARTS[1]), ("test", "tests", PARTS[2]),
    ("planning", "planning", PARTS[3]), ("selection", "selection", PARTS[6]), ("setup", "setup", PARTS[4]),
    ("rest", "the rest", PARTS[5]),
)  # fmt: skip
WEIGHTS = (
    (1 - 1e-6, "below 1", PARTS[5]), (1 + 1e-6, "1", PARTS[4]), (1.5, "1 to 1.5", PARTS[1]),
    (2.5, "1.5 to 2.5", PARTS[0]), (4.0, "2.5 to 4", PARTS[2]), (math.inf, "above 4", PARTS[3]),
)  # fmt: skip
"""Upper bounds. Methods that keep half of the samples have weights around 2, so no bound lies there."""


def _short(name: str, most: int = 40) -> str:
    """Shorten a name but keep its end, where settings distinguish rows.

    >>> _short("a method with a long name", 20)
    'a method with a lon…'
    >>> _short("a method with a long name · lr=0.05", 20)
    'a method… · lr=0.05'
    """
    head, dot, tail = name.rpartition(" · ")
    tail = clip(tail, most // 2)
    return clip(head, most - len(dot + tail)) + dot + tail if dot else clip(name, most)


class Rows(Plot):
    """Axes for bars or dots in rows. Each name stands above its row, so that long names can use the full width.

    Names take one line, or up to two if ``folded``.
    """

    def __init__(self, number: int, each: float = 44, *, folded: bool = False) -> None:
        super().__init__(50 + each * number, left=10, right=14, top=4)
        self.each, self.folded = each, folded
        self.axes.set_ylim(number - 0.5, -0.5)
        self.axes.set_yticks([])
        self.axes.grid(axis="x")

    def row(self, place: int, name: str, far: str = "", lines: Sequence[tuple[str | None, str]] = ()) -> None:
        """Add a row's name, a text at its right end, and its tooltip."""
        shown = "\n".join(wrap(name, 46, max_lines=2, placeholder="…")) if self.folded else _short(name)
        for at, text, side in ((0, shown, "left"), (1, far, "right")):
            self.axes.annotate(
                text, (at, place - 0.5), (0, -4), ("axes fraction", "data"), "offset pixels", va="top", ha=side
            )
        left, top, width, _ = self.frame()
        self.tips.append(Tip(left, top + place * self.each, width, self.each, name, tuple(lines)))

    def middle(self, place: int) -> float:
        """Return the position of a row's bar, below its name."""
        return place + (self.each - 34) / 2 / self.each

    def scale(self, low: float, high: float, unit: str) -> None:
        self.axes.set_xlim(low, high)
        self.axes.set_xlabel(clip(unit, 40))
        short_ticks(self.axes)


def difference(study: Study) -> Figure | None:
    """Draw each method's paired difference to full data with its interval, and the margin."""
    styles, margin, other = label_styles(study), study.comparison.margin, study.comparison.against or "full data"
    info = study.comparison.metric_info
    rows = [(row, row.difference) for row in study.comparison.rows if row.difference is not None]
    if not rows:
        return None
    worst = worst_drawn([0.0, *(one.mean for _, one in rows)], info)
    near = [one for _, one in rows if is_drawn(one.mean, worst, info)]
    scaled = [one for one in near if one.n > 2] or near  # intervals of two seeds would dwarf all others
    ends = [end for one in scaled for end in (one.low, one.high) if end is not None] + [one.mean for one in near]
    edge = info.gain(-margin)
    low, high = min(2 * edge, -edge, *ends), max(2 * edge, -edge, *ends)
    pad = 0.05 * (high - low)
    plot = Rows(len(rows))
    unit = f"{info.scale} of {metric_name(study)}" if info.scale else metric_name(study)
    plot.scale(low - pad, high + pad, unit if info.higher_is_better else f"{unit}, {info.direction}")
    far = high + pad if info.higher_is_better else low - pad
    plot.axes.axvspan(edge, far, color=PARTS[5], alpha=0.25, linewidth=0)
    plot.axes.axvline(0, color=MUTED, linewidth=1)
    plot.axes.axvline(edge, color=MUTED, linewidth=1, linestyle=(0, (3, 3)))
    for place, (row, one) in enumerate(rows):
        style, y = styles[row.label], plot.middle(place)
        if one.low is not None and one.high is not None:
            plot.axes.plot([one.low, one.high], [y, y], color=style.colour, linewidth=2.4)
        plot.axes.plot([one.mean], [y], style.marker, color=style.colour, markersize=7)
        seeds = f"{one.n} {'pair' if one.n == 1 else 'pairs'} of runs"
        arrow = "\N{LEFTWARDS ARROW}" if info.higher_is_better else "\N{RIGHTWARDS ARROW}"
        text = with_interval(one.mean, one.low, one.high, info.places)
        plot.row(
            place,
            row.label,
            "" if one in near else f"{arrow} {signed(one.mean, info.places)}",
            lines=[(style.colour, text), (None, row.verdict.text), (None, seeds)],
        )
    return Figure(
        "difference",
        f"Difference to {other}",
        plot.svg("difference", f"Paired difference to {other} of {len(rows)} labels, with intervals"),
        "The dot is the mean over pairs of runs with the same seed, and the line is its "
        f"{percent(study.comparison.interval_level)} interval. If the whole line is in the shaded area, the method is "
        f"{'no worse' if study.comparison.against else 'lossless'} within {info.with_scale(f'{margin:g}')}."
        + (" Lines of two pairs may be cut off at the edge." if len(scaled) < len(near) else "")
        + (" An arrow marks a value outside the figure." if len(near) < len(rows) else ""),
        (),
        csv_link(
            ["method", "pairs", "mean", "std", "low", "high", "verdict"],
            [[row.label, one.n, one.mean, one.std, one.low, one.high, row.verdict.text] for row, one in rows],
        ),
    )


def savings(study: Study) -> Figure | None:
    """Draw what was saved, samples, time and with a sieve compute, and the time spent on choosing samples."""
    kinds = [("samples saved", PARTS[0]), ("time saved", PARTS[1]), ("spent on choosing", PARTS[3])]
    looks = any(row.looking is not None for row in study.comparison.rows)
    if looks:
        kinds.insert(1, ("compute saved", PARTS[2]))
    rows: list[tuple[str, list[float | None]]] = []
    for row in study.comparison.rows:
        if row.verdict.kind != "baseline" and row.saved is not None and row.compute_saved is not None:
            compute = [100 * row.compute_saved] if looks else []
            choosing = mean(map(series.choosing, study.shown(row.label)))
            rows.append((row.label, [100 * row.saved, *compute, study.time_saved(row.label), choosing]))
    if not rows:
        return None
    timed = all(map(measures_time, study.comparison.rows))
    known = [value for _, values in rows for value in values if value is not None]
    plot = Rows(len(rows), each=58)
    plot.scale(min(0.0, 1.05 * min(known)), max(1.0, 1.05 * max(known)), "%")
    plot.axes.axvline(0, color=MUTED, linewidth=1)
    each = 0.51 / len(kinds)
    offsets = [each * (turn - (len(kinds) - 1) / 2) for turn in range(len(kinds))]
    for place, (label, values) in enumerate(rows):
        for offset, value, (_, colour) in zip(offsets, values, kinds, strict=True):
            plot.axes.barh(plot.middle(place) + offset, value or 0.0, height=each - 0.02, color=colour, linewidth=0)
        texts = ["unknown" if value is None else format_value("{:.2f} %", value) for value in values]
        plot.row(
            place, label, lines=[(colour, f"{name} {text}") for text, (name, colour) in zip(texts, kinds, strict=True)]
        )
    return Figure(
        "savings",
        "Savings and their cost",
        plot.svg("savings", f"Samples saved, time saved and choosing of {len(rows)} labels, in percent"),
        "Compared with full data over the same seeds. Less time than samples is saved if other work takes time: tests, "
        "and choosing samples, by planning or by training a proxy once (compare the paper's Fig. 4b and c)."
        + (" Compute is net of looking at batches, whose time is part of the steps." if looks else "")
        + ("" if timed else f" Runs of less than {SHORTEST_TIMED:g} seconds do not measure time."),
        tuple(Key(patch(colour), name) for name, colour in kinds),
        csv_link(["method", *(f"{name}, %" for name, _ in kinds)], [[label, *values] for label, values in rows]),
    )


def seconds(study: Study) -> Figure | None:
    """Draw what the time of a run was spent on."""
    rows = []
    for label in study.sets:
        runs = [run for run in study.shown(label) if series.seconds(run, "total") is not None]
        total = mean(series.seconds(run, "total") for run in runs)
        if total:
            parts = {name: mean(series.seconds(run, name) for run in runs) or 0.0 for name, *_ in COSTS}
            parts["rest"] = max(0.0, total - sum(parts.values()))
            rows.append((label, parts, total))
    if not rows:
        return None
    used = [cost for cost in COSTS if any(parts[cost[0]] > 0.001 * total for _, parts, total in rows)]
    plot = Rows(len(rows))
    plot.scale(0, 1.02 * max(total for *_, total in rows), "seconds per run")
    for place, (label, parts, total) in enumerate(rows):
        done = 0.0
        for name, _, colour in COSTS:
            plot.axes.barh(plot.middle(place), parts[name], left=done, height=0.32, color=colour, linewidth=0)
            done += parts[name]
        lines = [
            (colour, f"{text} {parts[name]:,.2f} s, {100 * parts[name] / total:.1f} %") for name, text, colour in used
        ]
        plot.row(place, label, f"{total:,.1f} s", lines)
    return Figure(
        "seconds",
        "Where the time went",
        plot.svg("seconds", f"Seconds per run for {len(rows)} labels, by what they were spent on"),
        "Means over seeds. Planning chooses samples between epochs, selection once before the first; scoring and looks "
        "at batches are part of the steps. Elsewhere on this page, seconds do not include setup.",
        tuple(Key(patch(colour), text) for _, text, colour in used),
        csv_link(
            ["method", *(text for _, text, _ in COSTS), "total"],
            [[label, *(parts[name] for name, *_ in COSTS), total] for label, parts, total in rows],
        ),
    )


def weights(study: Study) -> Figure | None:
    """Draw how the samples trained on were weighted, over whole runs."""
    rows = [(label, shares) for label in study.sets if (shares := _shares(study, label)) is not None]
    used = [place for place in range(len(WEIGHTS)) if any(shares[place] for _, shares in rows)]
    if len(used) < 2:
        return None
    plot = Rows(len(rows))
    plot.scale(0, 100, "% of the samples trained on")
    for place, (label, shares) in enumerate(rows):
        done, lines = 0.0, []
        for share, (_, name, colour) in zip(shares, WEIGHTS, strict=True):
            plot.axes.barh(plot.middle(place), share, left=done, height=0.32, color=colour, linewidth=0)
            done += share
            if share:
                lines.append((colour, f"weight {name}: {share:.1f} %"))
        plot.row(place, label, lines=lines)
    return Figure(
        "weights",
        "Weights over the whole run",
        plot.svg("weights", f"Shares of weights for {len(rows)} labels"),
        "A sample has a weight each time it is trained on: 1 if it counts only for itself, more if it also stands in "
        "for pruned samples. As drawn. Unless the loss grows, they are then scaled to mean 1.",
        tuple(Key(patch(WEIGHTS[place][2]), WEIGHTS[place][1]) for place in used),
        csv_link(
            ["method", *(f"weight {name}, %" for _, name, _ in WEIGHTS)], [[label, *shares] for label, shares in rows]
        ),
    )


def _shares(study: Study, label: str) -> list[float] | None:
    """Return the percentage of the samples trained on in each range of weights."""
    counts = [0.0] * len(WEIGHTS)
    for fact in (fact for run in study.shown(label) for fact in run.epochs):
        known = table(fact.get("weights"))
        values, times = numbers(known.get("values")) or [], numbers(known.get("counts")) or []
        for value, count in zip(values, times, strict=False):
            if value is not None and count is not None:
                counts[next(place for place, (top, *_) in enumerate(WEIGHTS) if value <= top)] += count
    total = sum(counts)
    return [100 * count / total for count in counts] if total > 0 else None
