"""When a run shall stop: Ctrl-C and SIGTERM as a question that the loop asks."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Stop = Callable[[], bool]
"""Whether to stop after the batch at hand."""


def never() -> bool:
    return False


@contextmanager
def interruptible(asked: Callable[[], object] = never) -> Iterator[Stop]:
    """Within, the first Ctrl-C or SIGTERM makes the yielded function true, and the second one ends the process.

    The second is the system's own, since Python's would wait until a long call into C returns. Records are whole
    line by line, and checkpoints are replaced whole, so nothing is lost but the work since the last of them.
    """
    told: list[int] = []
    mine = os.getpid()
    both = (signal.SIGINT, signal.SIGTERM)

    def ask(number: int, frame: FrameType | None) -> None:
        del frame
        if os.getpid() != mine:
            return  # a loader's worker: it lives until the run has saved itself
        told.append(number)
        for each in both:
            signal.signal(each, signal.SIG_DFL)
        asked()

    if threading.current_thread() is not threading.main_thread():  # signals come to the main thread alone
        yield never
        return
    before = {number: signal.signal(number, ask) for number in both}
    try:
        yield lambda: bool(told)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
