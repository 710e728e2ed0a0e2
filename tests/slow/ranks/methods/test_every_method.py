"""Every method with two ranks: both have the same plans, those that one rank would have, also after a stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from every_method import perform

from infobatch.methods import METHODS

STOPPED = ("ucb", "kakurenbo", "ies", "rs2")
RUNS: list[dict[str, Any]] = [
    *({"name": f"{name}-{varied}", "method": name, "varied": varied} for name in METHODS for varied in (False, True)),
    *({"name": f"{name}-stopped", "method": name, "varied": True, "stop": 2} for name in STOPPED),
]


@pytest.mark.filterwarnings("ignore::infobatch.InfoBatchWarning")
def test_ranks_agree_with_each_other_and_with_one_alone(launch: Any) -> None:
    """In one test, for starting the ranks is what takes the time."""
    launch.script = Path(__file__).with_name("every_method.py")
    together = launch(2, RUNS)
    for run in RUNS:
        one, two = together[run["name"]]
        assert_same(one, two, run["name"])
        if run["method"] not in ("bls", "repb"):  # whose scores depend on a rank's own batches
            assert_same(one, perform(run["method"], run["varied"], world=1), run["name"])


def assert_same(one: dict[str, Any], other: dict[str, Any], name: str) -> None:
    for mine, theirs in zip(one["plans"], other["plans"], strict=True):
        assert torch.equal(mine, theirs), name
    for column, table in one["memory"].items():
        torch.testing.assert_close(table, other["memory"][column], rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(one["scores"], other["scores"], rtol=0, atol=0, equal_nan=True)
