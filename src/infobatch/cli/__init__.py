"""``infobatch`` on the command line: parsing and printing. The work is done in ``infobatch.lab``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

EXTRA = {"cyclopts", "rich", "attrs", "attr", "docstring_parser", "rich_rst"}


def main(words: Sequence[str] | None = None) -> int:
    """Runs a command; the exit code: 0 done, 1 a check failed, 2 bad input, 130 interrupted."""
    try:
        from .app import run
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        print(f"infobatch: the command line needs {error.name}: pip install 'infobatch[lab]'", file=sys.stderr)
        return 2
    return run(sys.argv[1:] if words is None else words)
