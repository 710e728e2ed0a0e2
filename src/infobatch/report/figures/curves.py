"""Draw curves: one number per epoch, over epochs or over the samples seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .. import series
from ..series import Curve, Study
from .figure import (
    Figure,
    Key,
    bounds,
    csv_link,
    difference_text,
    format_value,
    label_styles,
    metric_form,
    metric_text,
    metric_title,
    swatch,
)
from .svg import MUTED, Drawn, Plot, draw_lines, short_ticks

Source = Callable[[Study, str], Curve]
BROKEN = " Shorter runs end at different epochs; where fewer seeds remain, the line is interrupted."

ROUNDING = 1e-9
"""A spread below this share of the value comes from rounding and is not shown."""


@dataclass(frozen=True)
class CurveFigure:
    """What a figure of curves shows and how."""

    key: str
    title: str
    source: Source
    y: str
    caption: str
    form: str = "{:.2f}"
    by_samples: bool = False
    late: float = 0.0
    """The share of the run, from its start, that may be outside the frame: there, curves are steep and alike."""
    from_zero: bool = False
    level: float | None = None
    """A value to mark."""
    bounds: tuple[float, float] = (-math.inf, math.inf)
    """The range of possible values."""


def draw(study: Study, *names: str) -> list[Figure | None]:
    known = {one.key: one for one in _curve_figures(study)}
    return [_draw(study, known[name]) for name in names]


def _curve_figures(study: Study) -> list[CurveFigure]:
    unit, form, positive = metric_text(study), metric_form(study), (0.0, math.inf)
    band = " Lines show means over seeds, bands one standard deviation."
    cut = " The first fifth, and wide bands in the first half, may be outside the frame."
    return [
        CurveFigure(
            "metric-epochs", f"{metric_title(study)} by epoch", series.all_of(series.fact("metric")), unit,
            "After each epoch." + cut + band, form=form, late=0.2, bounds=bounds(study),
        ),
        CurveFigure(
            "metric-samples", f"{metric_title(study)} by samples seen",
            series.all_of(series.fact("metric"), by_samples=True), unit,
            "The same against samples: at the same position, all have trained on the same number of them." + band,
            form=form, by_samples=True, late=0.2, bounds=bounds(study),
        ),
        CurveFigure(
            "gap", "Difference to full data, by epoch", series.gap("metric"), difference_text(study),
            "With the same seed, after the same number of epochs. The first half may be outside the frame." + band,
            form=form.replace(":", ":+"), late=0.5, level=0.0,
        ),
        CurveFigure(
            "test-loss", "Test loss", series.all_of(series.fact("test_loss")), "test loss",
            "Lower is better." + cut + band, form="{:.4f}", late=0.2, bounds=positive,
        ),
        CurveFigure(
            "train-loss", "Training loss", series.all_of(series.fact("train_loss")), "mean loss of kept samples",
            "Unweighted mean over the kept samples. Pruning easy samples raises it by itself.",
            form="{:.4f}", late=0.2, bounds=positive,
        ),
        CurveFigure(
            "learning-rate", "Learning rate", series.all_of(series.fact("lr")), "learning rate",
            "At the end of each epoch, after pacing.", form="{:.4g}", from_zero=True,
            bounds=positive,
        ),
        CurveFigure(
            "pruned", "Pruned samples by epoch", series.planned(series.pruned), "samples",
            "The first and last epochs use all samples, unless a method says otherwise (the paper's Fig. 4d)." + band,
            form="{:,.0f}", from_zero=True, bounds=positive,
        ),
        CurveFigure(
            "saved", "Samples saved so far", series.planned(series.percent("saved_so_far")), "% of all samples",
            "Over all epochs up to this one. The last value is what the run saved.", form="{:.1f} %", from_zero=True,
            bounds=(0.0, 100.0),
        ),
        CurveFigure(
            "noise", "Gradient noise per step", series.pruning(series.fact("noise")), "relative to full data",
            "Squared noise-to-signal ratio of a step, estimated from losses. Uniform pruning has 1, less is better; "
            "values above 1 violate the paper's bound (appendix B.3).", form="{:.3f}", level=1.0,
        ),
        CurveFigure(
            "effective", "Effective sample size", series.pruning(series.effective), "% of all samples",
            "The number of equally weighted samples with the same variance: (Σw)² / Σw². The gap to 100 % is the joint "
            "cost of pruning and of unequal weights.", form="{:.1f} %",
        ),
        CurveFigure(
            "largest-weight", "Largest weight, by epoch", series.pruning(series.largest_weight), "weight",
            "The largest weight of a sample in each epoch. An ordinary sample has weight 1. As drawn. Unless the loss "
            "grows, they are then scaled to mean 1.", form="{:.3g}",
        ),
        CurveFigure(
            "seconds-epochs", "Seconds per epoch", series.all_of(series.epoch_seconds), "seconds",
            "The whole epoch: data, steps, planning and its test." + band, form="{:.3g} s", from_zero=True,
            bounds=positive,
        ),
    ]  # fmt: skip


def _draw(study: Study, spec: CurveFigure) -> Figure | None:
    styles = label_styles(study)
    found = [(label, spec.source(study, label)) for label in study.sets]
    found = [(label, curve) for label, curve in found if curve.x]
    if all(
        len(curve.x) == 1 and curve.epochs[0] > 1 for _, curve in found
    ):  # a single last epoch does not make a curve
        return None
    plot = Plot()
    axis = "samples seen" if spec.by_samples else "epoch"
    plot.name(spec.y, axis)
    plot.axes.set_ylim(*_frame([curve for _, curve in found], spec))
    if spec.form == "{:,.0f}":
        short_ticks(plot.axes, "y")
    if spec.level is not None:
        plot.axes.axhline(spec.level, color=MUTED, linewidth=1, linestyle=(0, (3, 3)))
    lines = [
        Drawn(
            label,
            styles[label],
            one.x,
            one.mean,
            one.std,
            [_value_text(spec.form, one, i) for i in range(len(one.x))],
            one.pieces,
            _bounds(one, spec),
        )
        for label, one in found
    ]
    draw_lines(plot, lines, "{} samples" if spec.by_samples else "epoch {}", by_epoch=not spec.by_samples)
    table = [
        [label, epoch, *([x] if spec.by_samples else []), mean, std, n]
        for label, one in found
        for epoch, x, mean, std, n in zip(one.epochs, one.x, one.mean, one.std, one.n, strict=True)
    ]
    head = ["method", "epoch", *(["samples seen"] if spec.by_samples else []), spec.y, "std", "n"]
    return Figure(
        spec.key,
        spec.title,
        plot.svg(spec.key, f"{spec.title}: {spec.y} against {axis}, {len(found)} curves"),
        spec.caption + (BROKEN if any(len(one.pieces) > 1 for _, one in found) else ""),
        tuple(Key(swatch(styles[label]), f"{label}, {one.seeds_in_words}") for label, one in found),
        csv_link(head, table),
    )


def _frame(found: Sequence[Curve], spec: CurveFigure) -> tuple[float, float]:
    """Return the lowest and the highest value to show."""
    inside = [] if spec.level is None else [spec.level]
    for curve in found:
        last = curve.epochs[-1]
        for epoch, mean, std in zip(curve.epochs, curve.mean, curve.std, strict=True):
            if epoch > spec.late * last:
                inside.append(mean)
            if epoch > 0.5 * last:  # early bands are wide and would flatten all curves
                least, most = _bounds(curve, spec)
                inside += [max(mean - std, least), min(mean + std, most)]
    low, high = min(inside), max(inside)
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return 0.0 if spec.from_zero else low - pad, high + pad


def _bounds(curve: Curve, spec: CurveFigure) -> tuple[float, float]:
    """Return the bounds of the figure, unless values exceed them: a custom loss may be negative."""
    least, most = spec.bounds
    fits = least <= min(curve.mean) and max(curve.mean) <= most
    return spec.bounds if fits else (-math.inf, math.inf)


def _value_text(form: str, curve: Curve, place: int) -> str:
    text = format_value(form, curve.mean[place])
    plain = form.replace("+", "")
    if curve.n[place] > 1 and curve.std[place] > ROUNDING * abs(curve.mean[place]):
        text += f" ± {plain.format(curve.std[place])}"
    return f"{text}, n = {curve.n[place]}" if len(set(curve.n)) > 1 else text
