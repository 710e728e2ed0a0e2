"""Frameworks keep settings in the environment and in objects of their own: nothing of that outlives a test."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    before = dict(os.environ)
    yield
    if before != os.environ:
        os.environ.clear()
        os.environ.update(before)
    if "accelerate.state" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
