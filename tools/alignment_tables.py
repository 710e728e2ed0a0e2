"""Write the tables of docs/alignment.md from the rows that the alignment tests play.

python tools/alignment_tables.py            # fills the tables
python tools/alignment_tables.py --check    # changes nothing; exits with 1 if they are out of date
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "alignment.md"
sys.path.insert(0, str(ROOT / "tests" / "alignment"))

from loop import FEEDERS  # noqa: E402
from matrix import ALIGNED, CONFIGURATIONS, OUTCOMES, ROWS, Row  # noqa: E402

TITLES = {"stock": "`torch` loader", "ours": "`infobatch.DataLoader`", "explicit": "`update(loss, indices)`"}


def _describe(row: Row, feeder: str) -> str:
    by_setup = {setup: row.outcome(feeder, setup) for who, setup in row.cells() if who == feeder}
    if not by_setup:
        return "-"
    outcomes = list(by_setup.values())
    most_common = max(dict.fromkeys(outcomes), key=outcomes.count)
    others: dict[str, list[str]] = {}
    for setup, outcome in by_setup.items():
        if outcome != most_common:
            others.setdefault(outcome, []).append(setup)
    return "; ".join([most_common, *(f"{outcome} ({' / '.join(setups)})" for outcome, setups in others.items())])


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
            *(f"| {row.name} | {' | '.join(_describe(row, feeder) for feeder in FEEDERS)} |" for row in ROWS),
        ],
        "configurations": [
            f"| configuration | {' | '.join(heads)} |",
            "|---|---|---|---|",
            *(f"| {name} | {' | '.join([ALIGNED] * len(FEEDERS))} |" for name in CONFIGURATIONS),
        ],
    }


def marks(name: str) -> tuple[str, str]:
    return f"<!-- table: {name} -->", "<!-- end -->"


def filled(page: str) -> str:
    """Return the page with its tables as they should be."""
    for name, lines in tables().items():
        begin, end = marks(name)
        before, rest = page.split(begin)
        page = "\n".join([before + begin, *lines, end + rest.split(end, 1)[1]])
    return page


if __name__ == "__main__":
    old = PAGE.read_text()
    new = filled(old)
    if "--check" in sys.argv:
        sys.exit("out of date: python tools/alignment_tables.py" if new != old else 0)
    PAGE.write_text(new)
