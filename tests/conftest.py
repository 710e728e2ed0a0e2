"""Frameworks keep settings in the environment and in objects of their own: nothing of that outlives a test.

And all machines run the same tests: without ``-m gpu`` a GPU is not seen, with it nothing runs but what needs one.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

from infobatch.epoch import advice

SLOW = Path(__file__).parent / "slow"
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")  # a busy machine is not a fault


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("markexpr") != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SLOW in item.path.parents:
            item.add_marker(pytest.mark.slow)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no GPU here, or no -m gpu"))


def pytest_collection_finish() -> None:
    """What is imported stays: to look through all of it takes most of a second, again at every collection of garbage
    and, page by page, in every process that is forked."""
    gc.collect()
    gc.freeze()


FIND_SCHEDULERS = advice.find_schedulers


@pytest.fixture
def watched(nothing_left_behind: None) -> None:
    """Let the library look for schedulers, as it does outside of these tests."""
    advice.find_schedulers = FIND_SCHEDULERS


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    before, dtype = dict(os.environ), torch.get_default_dtype()
    advice.find_schedulers = list  # other tests have schedulers of their own
    yield
    torch.set_default_dtype(dtype)
    if before != os.environ:
        os.environ.clear()
        os.environ.update(before)
    if "accelerate.state" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
