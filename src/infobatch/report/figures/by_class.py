"""Draw figures per class: the share pruned, the change of the metric, and one against the other."""

from __future__ import annotations

from .. import series
from ..series import Study
from .figure import Figure, csv_link, difference_text, format_value, keys, label_styles, metric_name, signed
from .svg import CARD, GRID, MUTED, Plot, Tip, clip

MOST_ROWS = 20
"""With more classes, only the lowest and the highest are shown."""
MOST_DOTS = 200
"""Per label, in the figure of change against saving."""

ByClass = dict[str, list[tuple[float, float] | None]]


def by_class(study: Study) -> tuple[list[Figure], list[str]]:
    """Draw the figures there are numbers for, and list the labels left out because their classes differ."""
    names = series.class_names(study.runs)
    if not names:
        return [], []
    others = [label for label, members in study.sets.items() if series.class_names(members) != names]
    saving, change = ByClass(), ByClass()
    for label in study.sets:
        if label in others:
            continue
        saved = series.by_class(map(series.class_saving, study.shown(label)), len(names))
        if saved is not None and study.prunes(label):
            saving[label] = saved
        moved = series.by_class((series.class_change(*pair) for pair in study.pairs(label)), len(names))
        if moved is not None:
            change[label] = moved
    figures = []
    if saving:
        caption = "The share of each class pruned over the whole run. Hard classes have high losses and are kept."
        figures.append(_rows(study, "class-saving", "Saving per class", "% pruned", names, saving, caption))
    if change:
        caption = (
            "Compared with full data over the same seeds; lines show one standard deviation. Classes have few test "
            "samples, so single classes change by chance."
        )
        title = f"Change of {metric_name(study)} per class"
        figures.append(_rows(study, "class-change", title, difference_text(study), names, change, caption))
    both = [label for label in saving if label in change]
    if both and len(names) >= 5:
        figures.append(_against(study, names, {label: saving[label] for label in both}, change))
    return figures, others


def _rows(study: Study, key: str, title: str, unit: str, names: list[str], values: ByClass, caption: str) -> Figure:
    styles, lead, change = label_styles(study), next(iter(values)), key == "class-change"
    places = study.comparison.metric_info.places if change else 2
    known = [place for place in range(len(names)) if any(found[place] is not None for found in values.values())]
    shown = sorted(known, key=lambda place: (values[lead][place] or (0.0,))[0])
    if len(shown) > MOST_ROWS:
        half = MOST_ROWS // 2
        shown = shown[:half] + shown[-half:]
        caption += f" The {half} lowest and the {half} highest of {len(known)} classes by {clip(lead, 40)}."
    each = max(21.0, 7.0 * len(values) + 6) if change else 21.0
    left = 12 + 7.2 * max(len(clip(names[place], 14)) for place in shown)
    plot = Plot(52 + each * len(shown), left=left, top=6)
    for row, place in enumerate(shown):
        plot.axes.axhline(row, color=GRID, linewidth=0.8, zorder=0)
        for turn, (label, found) in enumerate(values.items()):
            one, style = found[place], styles[label]
            y = row + (turn - (len(values) - 1) / 2) * 7 / each if change else row
            if one is not None:
                if change and one[1]:
                    ends = [one[0] - one[1], one[0] + one[1]]
                    plot.axes.plot(ends, [y, y], color=style.colour, linewidth=1.2, alpha=0.55)
                plot.axes.plot([one[0]], [y], style.marker, color=style.colour, markersize=6.5, markeredgecolor=CARD)
    plot.axes.set_yticks(range(len(shown)), [clip(names[place], 14) for place in shown])
    plot.axes.set_ylim(len(shown) - 0.5, -0.5)
    plot.axes.margins(x=0.06)
    plot.axes.set_xlabel(unit)
    if change:
        plot.axes.axvline(0, color=MUTED, linewidth=1)
    start, top, width, _ = plot.frame()
    for row, place in enumerate(shown):
        texts = [
            (
                styles[label].colour,
                f"{clip(label, 22)} {_value(one[0], places, change)} ± {one[1]:.{places}f}",
            )
            for label, found in values.items()
            if (one := found[place]) is not None
        ]
        plot.tips.append(Tip(0, top + row * each, start + width, each, names[place], tuple(texts)))
    table = [
        [label, names[place], *(one or (None, None))]
        for label, found in values.items()
        for place, one in enumerate(found)
    ]
    return Figure(
        key,
        title,
        plot.svg(key, f"{title} of {len(values)} labels, {len(shown)} classes"),
        caption,
        keys(styles, values),
        csv_link(["method", "class", unit, "std"], table),
    )


def _value(value: float, places: int, change: bool) -> str:
    return signed(value, places) if change else format_value("{:.2f}", value)


def _against(study: Study, names: list[str], saving: ByClass, change: ByClass) -> Figure:
    styles, plot = label_styles(study), Plot()
    table: list[tuple[str, str, float, float]] = []
    info, unit = study.comparison.metric_info, f"change of {metric_name(study)}"
    caption = f"One dot per class. A slope would mean that classes lose {metric_name(study)} where they are pruned."
    if not info.higher_is_better:
        caption = f"One dot per class; {info.direction}. A slope would mean that it depends on how much is pruned."
    drawn = []
    for label in saving:
        dots = [
            (label, name, saved[0], moved[0])
            for name, saved, moved in zip(names, saving[label], change[label], strict=True)
            if saved is not None and moved is not None
        ]
        table += dots
        if len(dots) > MOST_DOTS:
            caption = caption.replace("per class.", f"per class, {MOST_DOTS} of {len(names)} drawn.")
            dots = dots[:: -(-len(dots) // MOST_DOTS)]
        drawn += dots
        style = styles[label]
        at = [dot[2] for dot in dots], [dot[3] for dot in dots]
        plot.axes.plot(*at, style.marker, color=style.colour, markersize=6.5, markeredgecolor=CARD)
    plot.axes.axhline(0, color=MUTED, linewidth=1)
    plot.name(f"{unit}, {clip(info.scale, 20)}" if info.scale else unit, "% of the class pruned")
    plot.axes.margins(0.06, 0.1)
    plot.fit_left()
    for label, name, saved, moved in drawn:
        x, y = plot.pixels(saved, moved)
        text = f"{clip(label, 22)} {format_value('{:.1f} %', saved)}, {signed(moved, info.places)}"
        plot.tips.append(Tip(x - 5, y - 5, 10, 10, name, ((styles[label].colour, text),)))
    return Figure(
        "class-both",
        "Change against saving",
        plot.svg("class-both", f"Change of {metric_name(study)} against saving, one dot per class"),
        caption,
        keys(styles, saving),
        csv_link(["method", "class", "% pruned", f"change, {difference_text(study)}"], table),
    )
