"""The right loss reaches the right sample, or an error is raised: every way to feed, crossed with what loops do.

The oracle: sample ``i`` has the value ``i``, and its loss is its value. So ``scores[i] == i`` wherever a loss came,
in any order, and anything else is a loss on the wrong sample.

``python tests/alignment/test_matrix.py --write`` renders the tables of docs/alignment.md, from matrix.py and the
configurations below.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from loop import FEEDERS, QUIET, Dicts, Loop, Many, N, Numbers, Pairs, as_dict, load
from matrix import ALIGNED, OUTCOMES, ROWS, SETUPS, Row
from torch.utils.data import ConcatDataset, Subset

from infobatch import MisalignedError

PAGE = Path(__file__).parents[2] / "docs" / "alignment.md"

pytestmark = QUIET


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
    [pytest.param(row, *cell, id="-".join((row.name, *cell))) for row in ROWS for cell in row.cells()],
)
def test_event(row: Row, feeder: str, setup: str) -> None:
    for warm in row.warm if setup == "no workers" else row.warm[-1:]:
        assert play(row, feeder, setup, warm) in row.outcome(feeder, setup).split(" / ")


# ---- configurations ----------------------------------------------------------------------------------------------

WORKERS = {"num_workers": 2}
CONFIGURATIONS: dict[str, tuple[dict[str, Any], Callable[[], Any]]] = {
    "no workers": ({}, Numbers),
    "2 workers": (WORKERS, Numbers),
    "2 workers, prefetch_factor=1": ({**WORKERS, "prefetch_factor": 1}, Numbers),
    "2 workers, prefetch_factor=4": ({**WORKERS, "prefetch_factor": 4}, Numbers),
    "persistent_workers": ({**WORKERS, "persistent_workers": True}, Numbers),
    "2 workers by spawn, persistent": (
        {**WORKERS, "multiprocessing_context": "spawn", "persistent_workers": True},
        Numbers,
    ),
    "drop_last": ({"drop_last": True}, Numbers),
    "drop_last, 2 workers": ({**WORKERS, "drop_last": True}, Numbers),
    "drop_last, persistent_workers": ({**WORKERS, "drop_last": True, "persistent_workers": True}, Numbers),
    "pin_memory": ({"pin_memory": True}, Numbers),
    "pin_memory, 2 workers": ({**WORKERS, "pin_memory": True}, Numbers),
    "batch_size=None": ({"batch_size": None}, Numbers),
    "batch_size=None, 2 workers": ({**WORKERS, "batch_size": None}, Numbers),
    "batch_size=1": ({"batch_size": 1}, Numbers),
    "a batch larger than the data set": ({"batch_size": 2 * N}, Numbers),
    "a collate_fn of one's own": ({"collate_fn": as_dict}, Numbers),
    "a collate_fn of one's own, 2 workers": ({**WORKERS, "collate_fn": as_dict}, Numbers),
    "samples as tuples": ({}, Pairs),
    "samples as dicts": ({}, Dicts),
    "samples as dicts, 2 workers": (WORKERS, Dicts),
    "a Subset inside": ({}, lambda: Subset(Numbers(-10, N + 20), range(10, N + 10))),
    "a Subset inside, 2 workers": (WORKERS, lambda: Subset(Numbers(-10, N + 20), range(10, N + 10))),
    "a ConcatDataset inside": (WORKERS, lambda: ConcatDataset([Numbers(0, 25), Numbers(25, N - 25)])),
    "a data set with __getitems__ inside": ({}, Many),
    "a data set with __getitems__ inside, 2 workers": (WORKERS, Many),
    "a Subset of one with __getitems__ inside": ({}, lambda: Subset(Many(-10, N + 20), range(10, N + 10))),
}


@pytest.mark.parametrize("feeder", FEEDERS)
@pytest.mark.parametrize("name", CONFIGURATIONS)
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

TITLES = {"stock": "`torch` loader", "ours": "`infobatch.DataLoader`", "explicit": "`update(loss, indices)`"}


def _told(row: Row, feeder: str) -> str:
    by_setup = {setup: row.outcome(feeder, setup) for who, setup in row.cells() if who == feeder}
    if not by_setup:
        return "-"
    outcomes = list(by_setup.values())
    usual = max(dict.fromkeys(outcomes), key=outcomes.count)
    others: dict[str, list[str]] = {}
    for setup, outcome in by_setup.items():
        if outcome != usual:
            others.setdefault(outcome, []).append(setup)
    return "; ".join([usual, *(f"{outcome} ({' / '.join(setups)})" for outcome, setups in others.items())])


def tables() -> dict[str, list[str]]:
    """The tables of the document, by name, as lines."""
    heads = [TITLES[feeder] for feeder in FEEDERS]
    return {
        "outcomes": [
            "| word | means |",
            "|---|---|",
            *(f"| {word} | {meaning} |" for word, meaning in OUTCOMES.items()),
        ],
        "events": [
            f"| what the loop does | {' | '.join(heads)} |",
            "|---|---|---|---|",
            *(f"| {row.name} | {' | '.join(_told(row, feeder) for feeder in FEEDERS)} |" for row in ROWS),
        ],
        "configurations": [
            f"| configuration | {' | '.join(heads)} |",
            "|---|---|---|---|",
            *(f"| {name} | {' | '.join([ALIGNED] * len(FEEDERS))} |" for name in CONFIGURATIONS),
        ],
    }


def marks(name: str) -> tuple[str, str]:
    return f"<!-- table: {name} -->", "<!-- end -->"


def test_the_document_says_what_the_tests_hold() -> None:
    page = PAGE.read_text()
    for name, lines in tables().items():
        begin, end = marks(name)
        assert page.count(begin) == 1
        assert page.split(begin)[1].split(end)[0].strip().splitlines() == lines
    assert sum(line.startswith("|") for line in page.splitlines()) == sum(map(len, tables().values()))


def write() -> None:
    page = PAGE.read_text()
    for name, lines in tables().items():
        begin, end = marks(name)
        before, rest = page.split(begin)
        page = "\n".join([before + begin, *lines, end + rest.split(end, 1)[1]])
    PAGE.write_text(page)


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/alignment/test_matrix.py --write")
    write()
