"""The right loss reaches the right sample, or an error is raised: every way to feed, crossed with what loops do.

The oracle: sample ``i`` has the value ``i``, and its loss is its value. So ``scores[i] == i`` wherever a loss came,
in any order, and anything else is a loss on the wrong sample.

``python tools/alignment_tables.py`` renders the tables of docs/alignment.md from matrix.py.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest
import torch
from loop import FEEDERS, QUIET, Loop, load
from matrix import ALIGNED, CONFIGURATIONS, ROWS, SETUPS, Row

from infobatch import MisalignedError

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import alignment_tables

pytestmark = QUIET
MANY_PROCESSES = {
    name for name, (options, _) in CONFIGURATIONS.items() if options.get("num_workers") and name != "2 workers"
}
QUICK = ("no workers",)
"""Set-ups that ``make test`` plays; the others start processes and are left to ``make test-all``."""


# ---- the matrix --------------------------------------------------------------------------------------------------


def play(row: Row, feeder: str, setup: str, warm: int) -> str:
    """How it ends. ``warm`` ordinary epochs go before; those after it turn whatever waits into scores."""
    loop = Loop(feeder, {**SETUPS[setup], **row.options}, row.data())
    plain = load(loop.train, feeder, {})
    for _ in range(warm):
        loop.epoch(plain)
    loop.mark()
    outcome, due = ALIGNED, set[int]()
    try:
        row.event(loop)
        due = set(loop.updated)
        row.after(loop)
        loop.since.append("pass")
        known = set((~torch.isnan(loop.train.scores)).nonzero().flatten().tolist())
        assert due <= known <= loop.updated
        assert loop.train.epoch > warm
    except MisalignedError:
        outcome = loop.where()
    assert not loop.weights_wrong or (row.in_part and outcome != ALIGNED), "the weights of other samples"
    loop.check()
    loop.kept.clear()
    loop.mark()
    for _ in range(2):
        with contextlib.suppress(MisalignedError):
            loop.epoch(plain)
        loop.check()
    return outcome


@pytest.mark.parametrize(
    ("row", "feeder", "setup"),
    [
        pytest.param(row, *cell, id="-".join((row.name, *cell)), marks=() if cell[1] in QUICK else pytest.mark.slow)
        for row in ROWS
        for cell in row.cells()
    ],
)
def test_event(row: Row, feeder: str, setup: str) -> None:
    for warm in row.warm if setup == "no workers" else row.warm[-1:]:
        assert play(row, feeder, setup, warm) in row.outcome(feeder, setup).split(" / ")


# ---- configurations ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("feeder", FEEDERS)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in MANY_PROCESSES else ()) for name in CONFIGURATIONS],
)
def test_configuration(name: str, feeder: str) -> None:
    options, data = CONFIGURATIONS[name]
    loop = Loop(feeder, options, data())
    for epoch in range(3):
        steps = 0
        for batch in loop.batches():
            assert loop.train.epoch == epoch
            loop.update(batch)
            steps += 1
        assert steps > 0
        if feeder == "explicit" and options.get("drop_last"):
            continue  # only the next pass tells that nothing more will come
        known = (~torch.isnan(loop.train.scores)).nonzero().flatten().tolist()
        assert known == sorted(loop.updated)
    loop.check()
    assert not loop.weights_wrong
    assert len(loop.train.history) >= 2
    assert loop.train.history[1].saved > 0.1


# ---- the document ------------------------------------------------------------------------------------------------


def test_the_document_says_what_the_tests_hold() -> None:
    page = alignment_tables.PAGE.read_text()
    assert alignment_tables.filled(page) == page, "python tools/alignment_tables.py"
