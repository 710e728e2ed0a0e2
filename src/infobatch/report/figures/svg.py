"""Turn matplotlib figures into SVG that uses the page's colours and font, with tooltips.

Figures are drawn in placeholder colours, each of which is replaced by a CSS variable, so that one drawing serves the
light and the dark theme. Text stays text. Tooltips need only CSS; the page runs no scripts.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast
from xml.etree import ElementTree

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

WIDTH = 340
"""Of a figure, in pixels: the width of a phone, so that text is not scaled down."""
LETTERS = 12.5
COLUMNS = 48
"""How many positions along a curve have a tooltip."""
WIDE = 6.7
"""The width of an average tooltip letter in pixels, rounded up."""

ROUND = (1, 2, 2.5, 5, 10)

INK, MUTED, GRID, CARD = "#010101", "#020202", "#030303", "#040404"
LINES = tuple(f"#1000{number:02x}" for number in range(6))
PARTS = tuple(f"#2000{number:02x}" for number in range(7))
VARIABLES = {
    INK: "--ink", MUTED: "--muted", GRID: "--grid", CARD: "--card",
    **{colour: f"--line-{number}" for number, colour in enumerate(LINES)},
    **{colour: f"--part-{number}" for number, colour in enumerate(PARTS)},
}  # fmt: skip

_RC: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "infobatch",
    "text.parse_math": False,  # names may contain dollar signs
    "font.size": LETTERS,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "figure.facecolor": "none",
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": LETTERS,
    "ytick.labelsize": LETTERS,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "xtick.major.pad": 4,
    "ytick.major.pad": 6,
    "lines.linewidth": 1.9,
    "lines.solid_capstyle": "round",
}


@dataclass(frozen=True)
class Style:
    """How a label looks in every figure: distinguished by colour, and without colour by dash and marker."""

    colour: str
    dash: tuple[float, ...] = ()
    marker: str = "o"

    @property
    def linestyle(self) -> Any:
        return (0, self.dash) if self.dash else "-"


@dataclass(frozen=True)
class Tip:
    """A tooltip: an area in pixels from the top left, and the text to show while the pointer is over it."""

    x: float
    y: float
    width: float
    height: float
    head: str
    lines: tuple[tuple[str | None, str], ...] = ()
    """A colour, or None, and a text."""
    guide: bool = False
    """Whether to draw a thin vertical line in the middle."""


@contextmanager
def page_style() -> Iterator[None]:
    """Use matplotlib's settings for the page, and restore the previous ones afterwards."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        cast(Any, matplotlib.rcParams).update(_RC)
        yield


class Plot:
    """One or more axes on top of each other, with margins in pixels."""

    def __init__(
        self,
        height: float = 236,
        *,
        panels: int = 1,
        left: float = 40,
        right: float = 10,
        top: float = 26,
    ) -> None:
        bottom, gap = 40.0, 52.0
        self.height = height
        self.right, self.tips = right, list[Tip]()
        self.figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)
        each = (height - top - bottom - gap * (panels - 1)) / panels
        self.all: list[Axes] = []
        for number in range(panels):
            low = height - top - (number + 1) * each - number * gap
            place = (left / WIDTH, low / height, (WIDTH - left - right) / WIDTH, each / height)
            self.all.append(self.figure.add_axes(place))

    @property
    def axes(self) -> Axes:
        return self.all[0]

    def name(self, y: str, x: str, panel: int = 0) -> None:
        """Label the axes. The y label stands above its axis, where a phone has room for it."""
        axes = self.all[panel]
        axes.grid(axis="y")
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=ROUND))
        axes.annotate(
            clip(y, 40), (0, 1), (0, 9), "axes fraction", "offset pixels", color=MUTED, ha="left", va="bottom"
        )
        axes.set_xlabel(clip(x, 40), labelpad=4)

    def fit_left(self) -> None:
        """Make room for the longest tick label of all left axes."""
        longest = 0
        for axes in self.all:
            shown = axes.get_ylim()
            places = [place for place in axes.get_yticks() if shown[0] <= place <= shown[1]]
            texts = axes.yaxis.get_major_formatter().format_ticks(places)
            longest = max(longest, *(len(text) for text in texts), 1)
        left = 8 + 7.8 * longest
        for axes in self.all:
            box = axes.get_position()
            axes.set_position((left / WIDTH, box.y0, (WIDTH - left - self.right) / WIDTH, box.height))

    def pixels(self, x: float, y: float, panel: int = 0) -> tuple[float, float]:
        """Return a data point in pixels from the top left."""
        at = self.all[panel].transData.transform((x, y))
        return float(at[0]), self.height - float(at[1])

    def frame(self, panel: int = 0) -> tuple[float, float, float, float]:
        """Return left, top, width and height of the axes in pixels."""
        box = self.all[panel].get_position()
        return box.x0 * WIDTH, (1 - box.y1) * self.height, box.width * WIDTH, box.height * self.height

    def svg(self, key: str, alt: str) -> Markup:
        """Return the figure as SVG. ``key`` prefixes its ids, so that they differ from those of other figures."""
        held = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        self.figure.savefig(held, format="svg", metadata=nothing)
        root = ElementTree.fromstring(held.getvalue())
        _adapt(root, key)
        root.attrib = {"viewBox": f"0 0 {WIDTH} {self.height:g}", "class": "plot", "role": "img", "aria-label": alt}
        for tip in self.tips:
            root.append(_tip(tip, self.height))
        return Markup(ElementTree.tostring(root, encoding="unicode"))


def short(value: float, _: Any = None) -> str:
    """
    >>> short(0), short(1200), short(50000), short(1.28e6)
    ('0', '1.2k', '50k', '1.28M')
    """
    text = f"{value + 0.0:.4g}"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            text = f"{value / size:.3g}{letter}"
            break
    return text.replace("-", "\N{MINUS SIGN}")


def clip(text: str, most: int = 26) -> str:
    """
    >>> clip("a name of many letters", 10)
    'a name of…'
    """
    text = " ".join(str(text).split())
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def short_ticks(axes: Axes, which: str = "x", most: int = 5) -> None:
    """Use few round tick labels, in short form."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(FuncFormatter(short))
    axis.set_major_locator(MaxNLocator(most, steps=ROUND))


@dataclass(frozen=True)
class Drawn:
    """One curve with a band of one standard deviation."""

    label: str
    style: Style
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float]
    texts: Sequence[str]
    """The tooltip of each point."""
    pieces: Sequence[slice]
    """Stretches of points to join; the line breaks between them."""
    bounds: tuple[float, float] = (-math.inf, math.inf)
    """The range of possible values, to which the band is clipped."""


def draw_lines(plot: Plot, lines: Sequence[Drawn], head: str, *, by_epoch: bool = True) -> None:
    """Draw curves with bands and tooltips. ``head`` is the first line of a tooltip, such as "epoch {}"."""
    axes = plot.axes
    for line in lines:
        for piece in line.pieces:
            _piece(axes, line, piece)
    every = np.concatenate([np.asarray(line.x, float) for line in lines])
    first, last = float(every.min()), float(every.max())
    pad = 0.02 * (last - first) or 0.5
    axes.set_xlim(first - pad, last + pad)
    if by_epoch:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=(1, 2, 5, 10)))
    else:
        short_ticks(axes)
    plot.fit_left()
    _add_tooltips(plot, lines, head, by_epoch)


def _piece(axes: Axes, line: Drawn, piece: slice) -> None:
    """Draw one unbroken stretch of a line with its band; a single point is a marker with a bar."""
    x, y, spread = (np.asarray(values[piece], float) for values in (line.x, line.y, line.spread))
    low, high = (np.clip(edge, *line.bounds) for edge in (y - spread, y + spread))
    colour, alone = line.style.colour, len(x) == 1
    if spread.max() > 0 and alone:
        axes.plot([x[0], x[0]], [low[0], high[0]], color=colour, alpha=0.55, linewidth=1.2)
    elif spread.max() > 0:
        axes.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0)
    marker = line.style.marker if alone else ""
    axes.plot(x, y, color=colour, linestyle=line.style.linestyle, marker=marker, markersize=5)


def _add_tooltips(plot: Plot, lines: Sequence[Drawn], head: str, by_epoch: bool) -> None:
    """Divide the plot into vertical strips, each with the values of all lines close to it."""
    left, top, width, height = plot.frame()
    every = np.unique(np.concatenate([np.asarray(line.x, float) for line in lines]))
    if by_epoch and len(every) <= COLUMNS:
        middles = every
    else:
        middles = np.linspace(every[0], every[-1], min(COLUMNS, len(every)))
        if by_epoch:
            middles = every[np.unique(np.abs(every[None] - middles[:, None]).argmin(1))]
    places = np.array([plot.pixels(middle, 0)[0] for middle in middles])
    between = (places[1:] + places[:-1]) / 2
    starts, ends = np.r_[left, between], np.r_[between, left + width]
    reach = (middles[-1] - middles[0]) / max(1, len(middles) - 1) * 0.75 or 0.5
    for middle, start, end in zip(middles, starts, ends, strict=True):
        shown = []
        for line in lines:
            nearest = int(np.abs(np.asarray(line.x, float) - middle).argmin())
            if abs(line.x[nearest] - middle) <= reach:
                shown.append((line.style.colour, f"{clip(line.label, 20)} {line.texts[nearest]}"))
        text = head.format(f"{middle:,.0f}")
        plot.tips.append(Tip(start, top, end - start, height, text, tuple(shown), guide=True))


def _adapt(root: ElementTree.Element, key: str) -> None:
    """Remove matplotlib's metadata, replace colours by variables, and prefix ids with ``key``."""
    for parent in root.iter():
        for child in list(parent):
            if _tag(child) in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = _tag(element)
        element.text = element.text if element.tag == "text" else None
        element.tail = None
        for name in list(element.attrib):
            value = element.attrib.pop(name)
            name = name.partition("}")[2] or name
            if name == "style":
                value = _style(value)
            elif name in ("d", "x", "y", "transform"):
                value = _rounded(value)
            element.attrib[name] = value
    text = " ".join(value for element in root.iter() for value in element.attrib.values() if "#" in value)
    used = set(re.findall(r"#([\w-]+)", text))
    for element in root.iter():
        for name, value in list(element.attrib.items()):
            if name == "id":
                if value in used:
                    element.attrib["id"] = f"{key}-{value}"
                else:
                    del element.attrib["id"]
            elif name in ("href", "clip-path"):
                element.attrib[name] = value.replace("#", f"#{key}-")


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _style(value: str) -> str:
    """Drop the font, which the page sets, and replace colours by variables."""
    parts = [part.strip() for part in value.split(";") if part.strip()]
    kept = [part for part in parts if not part.startswith(("font:", "font-family:"))]
    kept += [f"font-size: {LETTERS:g}px" for part in parts if part.startswith("font:")]
    return re.sub(r"#[0-9a-f]{6}", lambda found: f"var({VARIABLES[found[0]]})", "; ".join(kept))


def _rounded(value: str) -> str:
    """Round to a tenth of a pixel and drop redundant spaces, to keep the page small."""
    value = re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), value)
    return re.sub(r"\s*([MLCQz])\s*", r"\1", value)


def _tip(tip: Tip, height: float) -> ElementTree.Element:
    """Build the group that CSS shows while the pointer is over its area."""
    group = ElementTree.Element("g", {"class": "tip"})
    area = {"x": tip.x, "y": tip.y, "width": tip.width, "height": tip.height}
    ElementTree.SubElement(
        group,
        "rect",
        {"class": "area" if tip.guide else "area band", **{name: f"{value:.1f}" for name, value in area.items()}},
    )
    middle = tip.x + tip.width / 2
    box = ElementTree.SubElement(group, "g", {"class": "says"})
    if tip.guide:
        path = f"M{middle:.1f} {tip.y:.1f}v{tip.height:.1f}"
        ElementTree.SubElement(box, "path", {"class": "guide", "d": path})
    shown = tip.lines if len(tip.lines) <= 9 else (*tip.lines[:8], (None, f"and {len(tip.lines) - 8} more"))
    letters = max([len(clip(tip.head, 44)), *(len(text) + 2 * (colour is not None) for colour, text in shown)])
    wide, tall = letters * WIDE + 16, 16.0 * (1 + len(shown)) + 10
    if tip.guide:  # next to the line, on the side with more room
        left = middle + 8 if middle + 8 + wide <= WIDTH else middle - 8 - wide
        top = tip.y + 4
    else:
        left, top = middle - wide / 2, tip.y - tall - 4
        top = top if top >= 0 else tip.y + tip.height + 4
    left, top = max(1.0, min(left, WIDTH - wide - 1)), max(1.0, min(top, height - tall - 1))
    size = {"width": f"{wide:.0f}", "height": f"{tall:.0f}"}
    ElementTree.SubElement(box, "rect", {"class": "paper", "x": f"{left:.0f}", "y": f"{top:.0f}", **size, "rx": "5"})
    text = ElementTree.SubElement(box, "text", {"y": f"{top + 17:.0f}"})
    at = f"{left + 8:.0f}"
    ElementTree.SubElement(text, "tspan", {"x": at, "class": "head"}).text = clip(tip.head, 44)
    for colour, words in shown:
        line = ElementTree.SubElement(text, "tspan", {"x": at, "dy": "16"})
        line.text = words
        if colour is not None:
            line.text, mark = None, ElementTree.SubElement(line, "tspan", {"fill": f"var({VARIABLES[colour]})"})
            mark.text, mark.tail = "■ ", words
    return group
