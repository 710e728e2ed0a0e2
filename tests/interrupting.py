"""Ctrl-C at a line of the package."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import infobatch

PACKAGE = str(Path(infobatch.__file__).parent)


class Interrupt:
    """Raises KeyboardInterrupt before the line of this number of the package, counted from 1."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __enter__(self) -> Interrupt:
        sys.settrace(lambda frame, *_: self.line if frame.f_code.co_filename.startswith(PACKAGE) else None)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def line(self, _: Any, event: str, __: Any) -> Any:
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self.line
