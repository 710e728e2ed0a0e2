"""Cases of parametrized tests: the first ones run with ``make test``, the others with ``make test-all``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_after(count: int, cases: Iterable[Any]) -> list[Any]:
    """Mark all but the first ``count`` cases slow."""
    return [case if place < count else pytest.param(case, marks=pytest.mark.slow) for place, case in enumerate(cases)]
