"""The import order of the package: one list, read by the tests and by docs/architecture.md.

    python tools/layers.py            # print the order
    python tools/layers.py --check    # name every import that goes against it, and exit with 1
    python tools/layers.py --write    # write the order into docs/architecture.md

A module may import only from lines above its own, or from its own folder where the folder is a single entry. A folder
stands for all modules below it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "infobatch"

LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "reference", "ranks/permutation", "archive", "snapshot"),
    ("checks", "files"),
    ("plan",),
    ("methods/",),
    ("ranks/exchange", "attribution/views"),
    ("epoch/slice",),
    ("state_checks",),
    ("epoch/scores",),
    ("attribution/queue", "ranks/shard_plan", "epoch/hidden", "epoch/advice"),
    ("attribution/counted", "ranks/shards", "epoch/turn"),
    ("epoch/running",),
    ("state",),
    ("dataset",),
    ("paper", "loader", "schedule/", "adapters/"),
    ("sieve/",),
    ("__init__",),
    ("integrations/", "selection/", "testing"),
    ("lab/",),
    ("report/",),
    ("cli/",),
)


def core_ends() -> int:
    """Return the number of layers that ``import infobatch`` may load."""
    return next(number for number, layer in enumerate(LAYERS, 1) if "__init__" in layer)


def modules() -> dict[str, Path]:
    """Return every module by its path without suffix, as ``epoch/scores``; a package is named by its folder."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).with_suffix("").as_posix()
        found[name.removesuffix("/__init__") if name != "__init__" else name] = path
    return found


def entry_of(module: str) -> str | None:
    """Return the entry of the list that covers a module; None where there is none."""
    folders = [f"{module[:at]}/" for at, letter in enumerate(module) if letter == "/"]
    for entry in (module, f"{module}/", *reversed(folders)):
        if any(entry in layer for layer in LAYERS):
            return entry
    return None


def imports_of(module: str) -> Iterator[str]:
    """Yield the modules of the package that a module imports."""
    known = modules()
    path = known[module]
    here = path.relative_to(PACKAGE).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*here[: len(here) - node.level + 1], *(node.module.split(".") if node.module else ())]
            for alias in node.names:
                inner = "/".join([*base, alias.name])
                yield inner if inner in known else "/".join(base) or "__init__"


def violations() -> list[str]:
    """Describe every module without a place in the list, and every import that goes against it."""
    height = {entry: level for level, layer in enumerate(LAYERS) for entry in layer}
    found = []
    for module, path in modules().items():
        entry = entry_of(module)
        if entry is None:
            if path.name == "__init__.py" and not list(imports_of(module)):
                continue  # the doorway of a folder whose modules have places of their own
            found.append(f"{module} has no place in tools/layers.py")
            continue
        for other in set(imports_of(module)):
            target = entry_of(other)
            if target != entry and (target is None or height[target] >= height[entry]):
                found.append(f"{module} must not import {other}")
    return found


def text() -> str:
    """Return the list as it stands in docs/architecture.md."""
    return "\n".join(f"    {', '.join(layer)}" for layer in LAYERS)


def filled(page: str) -> str:
    """Return docs/architecture.md with this list in it."""
    before, rest = page.split("<!-- layers -->")
    return f"{before}<!-- layers -->\n{text()}\n<!-- end -->{rest.split('<!-- end -->', 1)[1]}"


if __name__ == "__main__":
    if "--write" in sys.argv:
        page = PACKAGE.parents[1] / "docs" / "architecture.md"
        page.write_text(filled(page.read_text()))
        sys.exit()
    if "--check" in sys.argv:
        broken = violations()
        print("\n".join(broken) or "The import order holds.")
        sys.exit(bool(broken))
    print(text())
