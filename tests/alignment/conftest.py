"""No test of alignment waits for ever."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from loop import PATIENCE


@pytest.fixture(autouse=True)
def _no_hanging() -> Iterator[None]:
    """A forked worker may inherit a lock that nobody will open; fail then, do not wait."""

    def expire(*_: Any) -> None:
        raise TimeoutError(f"no progress in {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.alarm(PATIENCE)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
