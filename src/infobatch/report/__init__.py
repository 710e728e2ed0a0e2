"""Runs -> one page with the verdicts, the plots and the numbers behind them.

    from infobatch import report
    from infobatch.lab import records

    report.write(records.read_many("runs"), "report.html")

Another holds our numbers beside the papers', recipe by recipe: ``write_papers``.

A page is one file that needs nothing: no network, no script. It follows the light or dark of the device, has a
switch for it, and is made for a phone as well as for a desk.

What was weighed for the plots. Plotly brings 4.6 MB of script into every page, and Vega-Altair about 1 MB with a
compiler besides; both draw when the page is opened, and both would need a page that lets scripts run, next to names
that come from anywhere. matplotlib's SVG is drawn once and opens at once: letters stay letters, colours become CSS
variables, and values under the pointer are CSS as well. A page that needs no script can forbid them all, and does.
What is given up is zooming; the CSV beside each figure has the numbers.
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
    margin: float = 0.3,
    level: float = 0.95,
    looks: Iterable[int] | None = None,
    against: str = "",
) -> Path:
    """Write the page of these runs, whole or not at all; says where it is.

    ``looks``: the numbers of seeds at which their verdicts were shown, where that is known. ``against``: the label
    that verdicts hold all others against; full data of each one's own settings, if left out.
    """
    return _save(html(runs, margin=margin, level=level, looks=looks, against=against), Path(path), "report.html")


def html(
    runs: Iterable[Run],
    *,
    margin: float = 0.3,
    level: float = 0.95,
    looks: Iterable[int] | None = None,
    against: str = "",
) -> str:
    """The page as text. The same runs give the same page."""
    with _extra():
        from .page import page
        from .series import Study
    return page(Study.of(runs, margin, level, looks, against))


def write_papers(found: Sequence[Outcome], known: Evidence, path: str | os.PathLike[str] = "papers.html") -> Path:
    """Write the page that holds our numbers beside the papers', whole or not at all; says where it is."""
    return _save(papers_html(found, known, path), Path(path), "papers.html")


def papers_html(found: Sequence[Outcome], known: Evidence, path: str | os.PathLike[str] = "papers.html") -> str:
    """That page as text: what came of each recipe, from what is ``known``. Its links begin where ``path`` lies."""
    with _extra():
        from .paper_page import page
    return page(found, known, Path(path))


@contextmanager
def _extra() -> Iterator[None]:
    """What the pages need is imported in here."""
    try:
        yield
    except ImportError as error:
        text = message("matplotlib and jinja2 for the report", f"no {error.name}", installing("lab"))
        raise InputError(text) from error


def _save(text: str, target: Path, name: str) -> Path:
    if target.is_dir():
        raise InputError(message("a file to write to", f"{target}, a folder", f"Take {target / name}."))
    real = Path(os.path.realpath(target))
    real.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as file:
        file.write(text.encode())
    return real
