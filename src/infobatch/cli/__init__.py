"""The command line: parsing and printing. ``infobatch.lab`` does the work."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from ..errors import installing

EXTRA = {"cyclopts", "rich", "attrs", "attr", "docstring_parser", "rich_rst"}

LOCKS = "fcntl"
"""Not an installable package: lab/runs/records.py says what to do without it."""


def main(words: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        words: The arguments; those of the process if None.

    Returns:
        The exit code: 0 done, 1 a check failed, 2 bad input, 130 interrupted.
    """
    _replace_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without "±" shows "?"
    try:
        from .app import run
    except ModuleNotFoundError as error:
        if error.name not in {*EXTRA, LOCKS}:
            raise
        missing = f"the command line needs {error.name}: {installing('lab')}"
        print(f"infobatch: {error if error.name == LOCKS else missing}", file=sys.stderr)
        return 2
    return run(sys.argv[1:] if words is None else words)


def _replace_closed_streams() -> None:
    """Replace standard streams that the shell has closed, as >&- does.

    Otherwise a file of ours would get their number, and a library that prints would write into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - open until the process ends
