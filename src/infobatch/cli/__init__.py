"""``infobatch`` on the command line: parsing and printing. The work is done in ``infobatch.lab``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from ..errors import installing

EXTRA = {"cyclopts", "rich", "attrs", "attr", "docstring_parser", "rich_rst"}

LOCKS = "fcntl"
"""No package that could be installed: lab/records.py says what to do without it."""


def main(words: Sequence[str] | None = None) -> int:
    """Runs a command; the exit code: 0 done, 1 a check failed, 2 bad input, 130 interrupted."""
    _stand_in_for_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows no "±" shows "?"
    try:
        from .app import run
    except ModuleNotFoundError as error:
        if error.name not in {*EXTRA, LOCKS}:
            raise
        missing = f"the command line needs {error.name}: {installing('lab')}"
        print(f"infobatch: {error if error.name == LOCKS else missing}", file=sys.stderr)
        return 2
    return run(sys.argv[1:] if words is None else words)


def _stand_in_for_closed_streams() -> None:
    """A shell may close them, as >&- does. The work is done all the same, and no file of ours gets their number: a
    library that prints would write into it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - until the process ends
