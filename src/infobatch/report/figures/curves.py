"""Figures of curves: one number of every epoch, over epochs or over samples seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .. import series
from ..series import Curve, Study
from .figure import Figure, Key, bounds, csv_link, format_value, label_styles, metric_name, metric_text, swatch
from .svg import MUTED, Drawn, Plot, curves, short_ticks

Source = Callable[[Study, str], Curve]
BROKEN = " A line breaks where the seeds behind it change, so that no step in it is the difference between seeds."


@dataclass(frozen=True)
class Wanted:
    """A figure of curves, in words."""

    key: str
    title: str
    source: Source
    y: str
    caption: str
    form: str = "{:.2f}"
    by_samples: bool = False
    late: float = 0.0
    """The share of the run that may lie outside the frame: its beginning, where curves are steep and look alike."""
    from_zero: bool = False
    level: float | None = None
    """A value to mark."""
    bounds: tuple[float, float] = (-math.inf, math.inf)
    """What a value can be."""


def draw(study: Study, *names: str) -> list[Figure | None]:
    wanted = {one.key: one for one in _wanted(study)}
    return [_draw(study, wanted[name]) for name in names]


def _wanted(study: Study) -> list[Wanted]:
    unit, name, positive = metric_text(study), metric_name(study), (0.0, math.inf)
    band = " Lines are means over seeds, bands one standard deviation."
    cut = " The first fifth, and wide bands of the first half, may lie outside the frame."
    return [
        Wanted(
            "metric-epochs", f"{name.capitalize()} by epoch", series.all_of(series.fact("metric")), unit,
            "After each epoch." + cut + band, late=0.2, bounds=bounds(study),
        ),
        Wanted(
            "metric-samples", f"{name.capitalize()} by samples seen",
            series.all_of(series.fact("metric"), by_samples=True), unit,
            "The same against what it cost: at one place, all have trained on as many samples." + band,
            by_samples=True, late=0.2, bounds=bounds(study),
        ),
        Wanted(
            "gap", "Difference to full data, by epoch", series.gap("metric"), "points",
            "With the same seed, after as many epochs. The first half may lie outside the frame." + band,
            form="{:+.2f}", late=0.5, level=0.0,
        ),
        Wanted(
            "test-loss", "Test loss", series.all_of(series.fact("test_loss")), "test loss",
            "Lower is better." + cut + band, form="{:.4f}", late=0.2, bounds=positive,
        ),
        Wanted(
            "train-loss", "Training loss", series.all_of(series.fact("train_loss")), "mean loss of the kept",
            "Unweighted, over the samples kept: where the easy ones are left out it is higher by that alone.",
            form="{:.4f}", late=0.2, bounds=positive,
        ),
        Wanted(
            "learning-rate", "Learning rate", series.all_of(series.fact("lr")), "learning rate",
            "The last of each epoch, with what pacing and compensation made of it.", form="{:.4g}", from_zero=True,
            bounds=positive,
        ),
        Wanted(
            "pruned", "Samples left out, by epoch", series.planned(series.pruned), "samples",
            "The first epoch and the last are full, unless a method says otherwise (the paper's Fig. 4d)." + band,
            form="{:,.0f}", from_zero=True, bounds=positive,
        ),
        Wanted(
            "saved", "Saved so far", series.planned(series.percent("saved_so_far")), "% of all samples",
            "Of all epochs up to this one. It ends at what the run saved.", form="{:.1f} %", from_zero=True,
            bounds=(0.0, 100.0),
        ),
        Wanted(
            "noise", "Noise of a step", series.pruning(series.fact("noise")), "against full data",
            "Squared noise-to-signal ratio of a step, estimated from losses. Uniform pruning has 1 and less is "
            "better; above 1 the paper's bound (appendix B.3) is broken.", form="{:.3f}", level=1.0,
        ),
        Wanted(
            "effective", "Effective sample size", series.pruning(series.effective), "% of all samples",
            "How many equally weighted samples would be worth as much: (Σw)² / Σw². The gap to 100 % is what "
            "leaving out and unequal weights cost together.", form="{:.1f} %",
        ),
        Wanted(
            "largest-weight", "Largest weight, by epoch", series.pruning(series.largest_weight), "weight",
            "What the most weighted sample of an epoch counted for. 1 is an ordinary sample.", form="{:.3g}",
        ),
        Wanted(
            "seconds-epochs", "Seconds an epoch", series.all_of(series.epoch_seconds), "seconds",
            "All that an epoch took: data, steps, planning and its test." + band, form="{:.3g} s", from_zero=True,
            bounds=positive,
        ),
    ]  # fmt: skip


def _draw(study: Study, want: Wanted) -> Figure | None:
    styles = label_styles(study)
    found = [(label, want.source(study, label)) for label in study.sets]
    found = [(label, curve) for label, curve in found if curve.x]
    if all(len(curve.x) == 1 and curve.epochs[0] > 1 for _, curve in found):  # a run's last epoch is no curve
        return None
    plot = Plot()
    axis = "samples seen" if want.by_samples else "epoch"
    plot.name(want.y, axis)
    plot.axes.set_ylim(*_frame([curve for _, curve in found], want))
    if want.form == "{:,.0f}":
        short_ticks(plot.axes, "y")
    if want.level is not None:
        plot.axes.axhline(want.level, color=MUTED, linewidth=1, linestyle=(0, (3, 3)))
    lines = [
        Drawn(
            label,
            styles[label],
            one.x,
            one.mean,
            one.std,
            [_told(want.form, one, i) for i in range(len(one.x))],
            one.pieces,
            _bounds(one, want),
        )
        for label, one in found
    ]
    curves(plot, lines, "{} samples" if want.by_samples else "epoch {}", whole=not want.by_samples)
    table = [
        [label, epoch, *([x] if want.by_samples else []), mean, std, n]
        for label, one in found
        for epoch, x, mean, std, n in zip(one.epochs, one.x, one.mean, one.std, one.n, strict=True)
    ]
    head = ["method", "epoch", *(["samples seen"] if want.by_samples else []), want.y, "std", "n"]
    return Figure(
        want.key,
        want.title,
        plot.svg(want.key, f"{want.title}: {want.y} against {axis}, {len(found)} curves"),
        want.caption + (BROKEN if any(len(one.pieces) > 1 for _, one in found) else ""),
        tuple(Key(swatch(styles[label]), f"{label}, {one.seeds_in_words}") for label, one in found),
        csv_link(head, table),
    )


def _frame(found: Sequence[Curve], want: Wanted) -> tuple[float, float]:
    """The lowest and highest value to show."""
    inside = [] if want.level is None else [want.level]
    for curve in found:
        last = curve.epochs[-1]
        for epoch, mean, std in zip(curve.epochs, curve.mean, curve.std, strict=True):
            if epoch > want.late * last:
                inside.append(mean)
            if epoch > 0.5 * last:  # bands are wide where runs are unsteady, and would press all curves flat
                least, most = _bounds(curve, want)
                inside += [max(mean - std, least), min(mean + std, most)]
    low, high = min(inside), max(inside)
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return 0.0 if want.from_zero else low - pad, high + pad


def _bounds(curve: Curve, want: Wanted) -> tuple[float, float]:
    """Those of the figure, unless the records know better: a loss of one's own may be negative."""
    least, most = want.bounds
    fits = least <= min(curve.mean) and max(curve.mean) <= most
    return want.bounds if fits else (-math.inf, math.inf)


def _told(form: str, curve: Curve, place: int) -> str:
    text = format_value(form, curve.mean[place])
    plain = form.replace("+", "")
    if curve.n[place] > 1 and curve.std[place]:
        text += f" ± {plain.format(curve.std[place])}"
    return f"{text}, n = {curve.n[place]}" if len(set(curve.n)) > 1 else text
