"""Write runs as one HTML page: the answer, the verdicts, the plots, and the numbers behind them.

    from infobatch import report
    from infobatch.lab.runs import records

    report.write(records.read_many("runs"), "report.html")

``write_papers`` writes a second kind of page, which shows our numbers beside the papers', recipe by recipe.

A page is a single file that needs neither network nor scripts. It follows the light or dark theme of the device, has a
switch to override it, and fits a phone as well as a desktop.

Why matplotlib draws the plots: Plotly would add 4.6 MB of JavaScript to every page and Vega-Altair about 1 MB. Both
draw when the page is opened, so scripts would have to be allowed on a page whose names come from arbitrary records.
matplotlib's SVG is drawn once: text stays text, colours become CSS variables, and tooltips are plain CSS. The page
therefore forbids all scripts. The price is that figures cannot be zoomed; each has its numbers as CSV.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError, installing, message
from ..files import replacing
from ..lab.runs.records import Run

if TYPE_CHECKING:
    from ..lab.papers.gathered import Evidence
    from ..lab.papers.judge import Outcome


def write(
    runs: Iterable[Run],
    path: str | os.PathLike[str] = "report.html",
    *,
    margin: float | None = None,
    level: float = 0.95,
    looks: Iterable[int] | None = None,
    against: str = "",
) -> Path:
    """Write the page of these runs. An existing file is replaced only once the new page is complete.

    Args:
        runs: The runs to compare, finished or not.
        path: The file to write; missing folders are created.
        margin: How much of the metric may be lost and still count as lossless; None for what the task stated, else
            0.3 points.
        level: The confidence level of the intervals.
        looks: The numbers of seeds at which verdicts were shown, if that is known.
        against: The label that all others are compared with; by default, full data with the same settings.

    Returns:
        The path of the page, with symbolic links resolved.

    Raises:
        InputError: If there are no runs, an argument is out of range, or ``path`` is a folder.
    """
    target = _checked(path, "report.html")
    return _save(html(runs, margin=margin, level=level, looks=looks, against=against), target)


def html(
    runs: Iterable[Run],
    *,
    margin: float | None = None,
    level: float = 0.95,
    looks: Iterable[int] | None = None,
    against: str = "",
) -> str:
    """Return the page of these runs as text; the same runs give the same page. Arguments as for ``write``."""
    with _extra():
        from .page import page
        from .series import Study
    return page(Study.of(runs, margin, level, looks, against))


def write_papers(found: Sequence[Outcome], known: Evidence, path: str | os.PathLike[str] = "papers.html") -> Path:
    """Write the page that shows our numbers beside the papers'.

    Args:
        found: The outcome of each recipe.
        known: The runs and measurements the outcomes were judged from.
        path: The file to write.

    Returns:
        The path of the page, with symbolic links resolved.
    """
    target = _checked(path, "papers.html")
    return _save(papers_html(found, known, target), target)


def papers_html(found: Sequence[Outcome], known: Evidence, path: str | os.PathLike[str] = "papers.html") -> str:
    """Return that page as text. Its links to records are relative to ``path``."""
    with _extra():
        from .paper_page import page
    return page(found, known, Path(path))


@contextmanager
def _extra() -> Iterator[None]:
    """Explain how to install what the pages need, if an import inside the block fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("infobatch"):
            raise
        text = message("matplotlib and jinja2 for the report", f"no {error.name}", installing("lab"))
        raise InputError(text) from error


def _checked(path: str | os.PathLike[str], name: str) -> Path:
    """Refuse a folder before the page is drawn, which takes seconds."""
    target = Path(path)
    if target.is_dir():
        raise InputError(message("a file to write to", f"{target}, a folder", f"Write to {target / name}."))
    return target


def _save(text: str, target: Path) -> Path:
    real = Path(os.path.realpath(target))
    real.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as file:
        file.write(text.encode())
    return real
