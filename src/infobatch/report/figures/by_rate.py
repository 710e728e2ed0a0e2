"""Draw the metric over the learning rate, which a comparison at one rate cannot show."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ...lab.compare.grouping import FULL, usable
from ...lab.compare.naming import SHORTER_RUN
from ...lab.compare.tuning import Point
from ..series import Study, same_seeds, seeds_in_words
from .figure import (
    DASHES,
    MARKERS,
    Figure,
    Key,
    csv_link,
    is_drawn,
    mean_over_seeds,
    metric_text,
    metric_title,
    outside,
    swatch,
    worst_drawn,
)
from .svg import CARD, INK, LINES, MUTED, Plot, Style, Tip, clip


def by_rate(study: Study) -> Figure | None:
    if study.best is None:
        return None
    lines = study.best.by_rate
    styles = {name: _look(name, place) for place, name in enumerate(sorted(lines, key=_last_controls))}
    points = [point for line in lines.values() for point in line]
    info = study.comparison.metric_info
    worst = worst_drawn([one.mean for one in points], info)
    means = [one.mean for one in points if is_drawn(one.mean, worst, info)]
    plot, picked = Plot(), {one.row.label: one.rate for one in study.best.rows}
    for name, style in styles.items():
        shown = [one for one in lines[name] if is_drawn(one.mean, worst, info)]
        for piece in same_seeds([_seeds(study, name, one) for one in shown]):
            joined = shown[piece]
            plot.axes.errorbar(
                [one.rate for one in joined], [one.mean for one in joined], yerr=[one.std for one in joined],
                color=style.colour, linestyle=style.linestyle, marker=style.marker, markersize=6, elinewidth=1.2,
                markeredgecolor=CARD, markeredgewidth=1,
            )  # fmt: skip
    plot.axes.set_xscale("log")
    rates = sorted({one.rate for one in points})
    plot.name(metric_text(study), "learning rate")
    plot.axes.xaxis.set_major_locator(FixedLocator(rates))
    plot.axes.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
    plot.axes.xaxis.set_minor_locator(NullLocator())
    pad = 0.12 * (max(means) - min(means)) or 0.5
    plot.axes.set_ylim(min(means) - pad, max(means) + pad)
    plot.axes.margins(x=0.08)
    plot.fit_left()
    for name, style in styles.items():
        for one in lines[name]:
            if is_drawn(one.mean, worst, info):
                x, y = plot.pixels(one.rate, one.mean)
                text = mean_over_seeds(one.mean, one.std, one.n, info.places)
                best = ((None, "its best rate"),) if picked.get(name) == one.rate else ()
                lines_shown = ((style.colour, text), (None, f"at {one.rate:g}"), *best)
                plot.tips.append(Tip(x - 9, y - 9, 18, 18, name, lines_shown))
    gone = [(name, one.rate) for name in styles for one in lines[name] if not is_drawn(one.mean, worst, info)]
    return Figure(
        "rates",
        f"{metric_title(study)} over the learning rate",
        plot.svg("rates", f"{metric_text(study)} of {len(lines)} labels over {len(rates)} learning rates"),
        "At a single learning rate a method may look better or worse than it is. Bars show one standard deviation over "
        "seeds; points over different seeds are not joined."
        + outside([f"{clip(name, 30)} at {rate:g}" for name, rate in gone], info),
        tuple(Key(swatch(style), f"{name}, {_counted(lines[name])}") for name, style in styles.items()),
        csv_link(
            ["method", "learning rate", metric_text(study), "std", "n"],
            [[name, one.rate, one.mean, one.std, one.n] for name in styles for one in lines[name]],
        ),
    )


def _seeds(study: Study, name: str, point: Point) -> tuple[int, ...]:
    """The seeds behind a mean."""
    members = study.sets[f"{name} · lr={point.rate}"]
    return tuple(run.settings.seed for run in usable(name, members)[0])


def _counted(line: Sequence[Point]) -> str:
    return seeds_in_words([n for n, _ in groupby(one.n for one in line)])


def _last_controls(name: str) -> int:
    return 0 if name == FULL else 2 if name.startswith(SHORTER_RUN) else 1


def _look(name: str, place: int) -> Style:
    kind = _last_controls(name)
    if kind == 0:
        return Style(INK)
    turn, at = divmod(place - 1, len(LINES))
    return Style(MUTED if kind == 2 else LINES[at], DASHES[1 if kind == 2 else turn % 4], MARKERS[(place + turn) % 6])
