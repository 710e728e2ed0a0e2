"""One study and one page of it for all tests of the report: a page takes seconds to draw."""

from __future__ import annotations

import pytest
from facts import study

from infobatch import report
from infobatch.lab.runs.records import Run


@pytest.fixture(scope="session")
def runs() -> list[Run]:
    return study()


@pytest.fixture(scope="session")
def drawn(runs: list[Run]) -> str:
    return report.html(runs)
