"""docs/architecture.md shows the import order of tools/layers.py, and a row for every folder."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import layers  # noqa: E402

PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_the_page_shows_the_layers() -> None:
    assert layers.filled(PAGE) == PAGE, "python tools/layers.py --write"


def test_every_folder_has_a_row() -> None:
    for folder in {path.parent.relative_to(layers.PACKAGE).parts[0] for path in layers.PACKAGE.glob("*/*.py")}:
        assert re.search(rf"^\| {folder}/ \|", PAGE, re.MULTILINE), folder


def test_no_folder_is_crowded_and_no_name_is_used_twice() -> None:
    names = [path for path in layers.PACKAGE.rglob("*.py") if not path.stem.startswith("__")]
    folders = [path.parent for path in names]
    assert max(folders.count(folder) for folder in set(folders)) <= 14
    assert len({path.name for path in names}) == len(names)


def test_no_file_is_long() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in layers.PACKAGE.rglob("*.py")}
    assert not {name: count for name, count in lines.items() if count > 500}
