"""Measure how far one has to walk in the house: objects per update, files per epoch, lines by folder.

    python tools/house.py                        # of the code in this checkout
    python tools/house.py --src OTHER/src        # of another checkout, to compare
    python tools/house.py --json                 # for machines
    python tools/house.py --write                # write the table into docs/architecture.md

One ordinary epoch is traced in the main process: 100 samples, batches of 10, once with ``infobatch.DataLoader`` and
once with torch's own loader. Only frames of the core count: what ``Pruned`` needs, without the second engine, the
sieve, and without the adapters. An object is *touched* by an update if one of its methods or properties runs.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import sys
import textwrap
import tokenize
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
OPEN, CLOSE = "<!-- house -->\n", "<!-- end -->"
OURS, STOCK = "infobatch.DataLoader", "torch's DataLoader"
CORE, CODE = "core", "core, without docstrings, comments, blanks"
BEFORE_AND_TARGET = {
    "objects per update": ("6 / 7", "4"),
    "functions per update": ("19 / 30", ""),
    "files per update": ("7 / 8", ""),
    "files per epoch": ("18 / 17", "11"),
    "switches between files per epoch": ("234 / 236", ""),
}
OUTSIDE = ("sieve", "adapters", "integrations", "selection", "testing.py", "lab", "report", "cli")
BLANK = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


@contextmanager
def traced(package: Path, note: Callable[[str, str, Any], None]) -> Iterator[None]:
    """Call ``note(file, function, self)`` for every function of the core that runs."""

    def profile(frame: Any, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(str(package)):
            file = str(Path(name).relative_to(package))
            if file.split("/")[0] not in OUTSIDE and not frame.f_code.co_name.startswith("<"):
                note(file, frame.f_code.co_name, frame.f_locals.get("self"))

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


def measure_epoch(src: Path, *, stock: bool) -> dict[str, int]:
    """Trace the second epoch of a training, and one update in the middle of it."""
    import torch

    import infobatch

    package = Path(infobatch.__file__).resolve().parent
    assert package == (src / "infobatch").resolve(), package
    data = torch.utils.data.TensorDataset(torch.rand(100))
    train = infobatch.InfoBatch(data, num_epochs=10)

    def loader() -> Any:
        if stock:
            return torch.utils.data.DataLoader(train, batch_size=10, sampler=train.sampler)
        return infobatch.DataLoader(train, batch_size=10)

    for (x,) in loader():
        train.update(x)
    calls: list[tuple[str, str]] = []
    one_update: list[tuple[str, str]] = []
    touched: list[Any] = []
    watching = False

    def note(file: str, function: str, owner: Any) -> None:
        calls.append((file, function))
        if watching:
            one_update.append((file, function))
            if owner is not None and all(owner is not other for other in touched):
                touched.append(owner)

    batches = loader()
    with traced(package, note):
        for number, (x,) in enumerate(batches):
            watching = number == 3
            train.update(x)
            watching = False
        _ = train.epoch  # closes the epoch
    switches = sum(one[0] != other[0] for one, other in pairwise(calls))
    return {
        "objects per update": len(touched),
        "functions per update": len(one_update),
        "files per update": len({file for file, _ in one_update}),
        "files per epoch": len({file for file, _ in calls}),
        "functions per epoch": len(set(calls)),
        "switches between files per epoch": switches,
    }


def count_lines(src: Path) -> dict[str, int]:
    """Count the lines of every folder of the package; ``core`` is all but what builds on it."""
    package, lines = src / "infobatch", {CORE: 0, CODE: 0}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts
        folder = f"{parts[0]}/" if len(parts) > 1 else "(top level)"
        text = path.read_text()
        count = len(text.splitlines())
        lines[folder] = lines.get(folder, 0) + count
        if parts[0] not in OUTSIDE:
            lines[CORE] += count
            lines[CODE] += count_code(text)
    return lines


def count_code(text: str) -> int:
    """Count the lines that hold code."""
    strings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            strings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in BLANK:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - strings)


def fullest_folder(src: Path) -> tuple[str, int]:
    counts: dict[str, int] = {}
    for path in (src / "infobatch").rglob("*.py"):
        if path.name != "__init__.py":
            folder = str(path.parent.relative_to(src))
            counts[folder] = counts.get(folder, 0) + 1
    return max(counts.items(), key=lambda item: item[1])


def measure(src: Path) -> dict[str, Any]:
    folder, many = fullest_folder(src)
    return {
        OURS: measure_epoch(src, stock=False),
        STOCK: measure_epoch(src, stock=True),
        "lines": count_lines(src),
        "fullest folder": {folder: many},
    }


def rows(found: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return the rows of docs/architecture.md: what was counted, before, now, and the target."""
    table = []
    for name, (before, target) in BEFORE_AND_TARGET.items():
        title = f"{name}, `{OURS}` / torch's loader" if not table else name
        table.append((title, before, f"{found[OURS][name]} / {found[STOCK][name]}", target))
    lines = found["lines"]
    table.append(("lines of the core, without sieve and adapters", "6,673", f"{lines[CORE]:,}", "5,200"))
    table.append(("the same without docstrings, comments and blanks", "4,552", f"{lines[CODE]:,}", ""))
    (most,) = found["fullest folder"].values()
    return [*table, ("modules in the fullest folder", "36", str(most), "14")]


def text(found: dict[str, Any]) -> str:
    table = [("", "before", "now", "target"), ("---",) * 4, *rows(found)]
    folders = ", ".join(f"{name} {count:,}" for name, count in found["lines"].items() if name not in (CORE, CODE))
    lines = "\n".join("|" + "|".join(f" {cell} " if cell else " " for cell in row) + "|" for row in table)
    by_folder = textwrap.fill(f"Lines by folder: {folders}.", 125)
    return f"{lines.replace('| --- | --- | --- | --- |', '|---|---|---|---|')}\n\n{by_folder}\n"


def write(found: dict[str, Any]) -> None:
    before, rest = PAGE.read_text().split(OPEN)
    PAGE.write_text(f"{before}{OPEN}{text(found)}{CLOSE}{rest.split(CLOSE, 1)[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--src", type=Path, default=ROOT / "src", help="the folder that holds the package")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--write", action="store_true", help="write the table into docs/architecture.md")
    args = parser.parse_args()
    sys.path.insert(0, str(args.src.resolve()))
    found = measure(args.src)
    if args.write:
        write(found)
        return
    if args.json:
        print(json.dumps(found))
        return
    for title, numbers in found.items():
        print(title)
        for name, value in numbers.items():
            print(f"  {name:43}{value:7,}")


if __name__ == "__main__":
    main()
