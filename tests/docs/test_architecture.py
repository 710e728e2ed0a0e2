"""The import order as docs/architecture.md shows it, folders included."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import infobatch

PACKAGE = Path(infobatch.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
PARTS = {path.stem for path in PACKAGE.glob("[!_]*.py")} | {f"{path.parent.name}/" for path in PACKAGE.glob("*/*.py")}


def shown() -> list[list[str]]:
    """The lines of the order: modules and folders, without what is said of them."""
    block = PAGE.split("Imports go one way", 1)[1].split("\n\n")[1]
    return [re.split(r", ", re.split(r"\s{2,}", line.strip())[0]) for line in block.splitlines()]


def imported(part: str) -> set[str]:
    """The other parts that a module or folder imports."""
    files = (PACKAGE / part).rglob("*.py") if part.endswith("/") else [PACKAGE / f"{part}.py"]
    found = set()
    for file in files:
        place = file.relative_to(PACKAGE).parts
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == len(place):  # from the package itself
                names = [node.module.split(".")[0]] if node.module else [alias.name for alias in node.names]
                found |= {each for name in names for each in (name, f"{name}/") if each in PARTS}
    return found


def test_every_part_has_one_place() -> None:
    assert sorted(part for line in shown() for part in line) == sorted(PARTS)


def test_a_line_imports_from_those_above_it() -> None:
    above: set[str] = set()
    for line in shown():
        for part in line:
            assert imported(part) <= above, part
        above |= set(line)


def test_every_folder_has_a_row() -> None:
    for folder in (part for part in PARTS if part.endswith("/")):
        assert re.search(rf"^\|.*\| {folder} \|$", PAGE, re.MULTILINE), folder
