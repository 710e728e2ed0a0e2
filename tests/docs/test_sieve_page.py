"""docs/sieve.md lists every method once, and its figures are those of the speedrun's page."""

from __future__ import annotations

import re
from pathlib import Path

from infobatch.sieve import SIEVE_METHODS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sieve.md").read_text()
CARDS = (ROOT / "docs" / "methods" / "sieve.md").read_text()
SPEEDRUN = (ROOT / "research" / "speedrun" / "README.md").read_text().replace("+-", "±")
FIGURE = re.compile(r"[+-]?\d+\.\d\d(?: ± \d+\.\d\d)?(?: \(\d+\))?")


def test_every_method_is_in_the_table() -> None:
    table = PAGE.split("\n## Methods\n")[1].split("\n## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)\(", table, re.MULTILINE)) == sorted(SIEVE_METHODS)


def test_our_figures_are_those_of_the_speedrun() -> None:
    table = PAGE.split("<!-- ours -->")[1].split("<!-- end -->")[0]
    cells = {cell.strip() for row in table.splitlines()[3:] for cell in row.split("|")[2:-1]} - {""}
    assert len(cells) >= 10
    shown = set(FIGURE.findall(SPEEDRUN))
    assert not {cell for cell in cells if cell not in shown}, "bring docs/sieve.md in line with research/speedrun"


def test_the_cards_figures_are_those_of_the_speedrun() -> None:
    measured = re.findall(r"[+-]\d+\.\d\d ± \d+\.\d\d", CARDS)
    assert len(measured) >= 4
    assert not [figure for figure in measured if figure not in SPEEDRUN], "bring docs/methods/sieve.md in line"
