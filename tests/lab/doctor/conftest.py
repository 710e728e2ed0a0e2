"""Write modules with loaders to examine."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patients import PRELUDE, numbers


@pytest.fixture
def patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Return a function that writes a module whose ``make()`` runs the given code, and returns its MODULE:NAME."""
    monkeypatch.chdir(tmp_path)
    names = []

    def write(code: str) -> str:
        names.append(f"patient_{next(numbers)}")
        body = code if "\n" in code or code.startswith("return") else f"return {code}"
        Path(f"{names[-1]}.py").write_text(f"{PRELUDE}\ndef make():\n{textwrap.indent(body, '    ')}\n")
        return f"{names[-1]}:make"

    yield write
    for name in names:
        sys.modules.pop(name, None)
