"""A folder with a task of our own, and a shell in it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from shell import STARTED, TOY

from infobatch.cli import main


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder with a task of our own in it."""
    (tmp_path / "toy.py").write_text(TOY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("COLUMNS", raising=False)
    yield tmp_path
    for name in ("toy", "loaders"):
        sys.modules.pop(name, None)


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """A command, run here: exit code, stdout, stderr."""

    def call(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(list(words))
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def blank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages with nothing on them, for tests that look at none: drawing one takes longer than the runs on it."""
    monkeypatch.setattr("infobatch.report.html", lambda *_, **__: "<!doctype html>")


@pytest.fixture
def no_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """No records in the checkout, for tests that need none: reading thousands takes a second each time."""
    monkeypatch.setattr("infobatch.lab.papers.gathered.kept_records", list)


@pytest.fixture(autouse=True)
def _nothing_is_left_running() -> Iterator[None]:
    """Where a test fails before it ends what it started."""
    yield
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            process.kill()
            process.communicate()
