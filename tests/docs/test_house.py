"""docs/architecture.md shows what tools/house.py measures."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import house  # noqa: E402


def test_the_page_shows_what_is_measured() -> None:
    """Lines may differ by 2 percent, so that not every commit has to count them again."""
    command = [sys.executable, str(ROOT / "tools" / "house.py"), "--json"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    page = house.PAGE.read_text().split(house.OPEN)[1].split(house.CLOSE)[0]
    for name, _, now, _ in house.rows(found):
        row = re.search(rf"^\| {re.escape(name)} \|.*\| (\S.*?) \| [^|]*\|$", page, re.MULTILINE)
        assert row is not None, name
        if "lines" in name or "the same" in name:
            measured, shown = (int(one.replace(",", "")) for one in (now, row.group(1)))
            assert abs(measured - shown) < 0.02 * measured, "python tools/house.py --write"
        else:
            assert row.group(1) == now, f"{name}: python tools/house.py --write"
