"""One study and one page of it for all tests of the report: a page takes seconds to draw."""

from __future__ import annotations

import pytest
from facts import study
from markupsafe import Markup

from infobatch import report
from infobatch.lab.runs.records import Run
from infobatch.report.figures.svg import Plot


@pytest.fixture(scope="session")
def runs() -> list[Run]:
    return study()


@pytest.fixture(scope="session")
def drawn(runs: list[Run]) -> str:
    return report.html(runs)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build the figures of a page without writing them as SVG, which takes most of the time of a page."""
    monkeypatch.setattr(Plot, "svg", lambda *_: Markup('<svg class="plot" role="img" aria-label="not drawn"></svg>'))
