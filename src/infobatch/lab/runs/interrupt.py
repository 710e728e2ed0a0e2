"""Turn Ctrl-C and SIGTERM into a question that the training loop asks after each batch."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Stop = Callable[[], bool]
"""Returns true if the run should stop after the current batch."""


def never() -> bool:
    """Return False: the run is never stopped."""
    return False


@contextmanager
def interruptible(on_request: Callable[[], object] = never) -> Iterator[Stop]:
    """Yield a function that returns true after the first Ctrl-C or SIGTERM; the second one ends the process.

    The second signal gets the system's default handler, since Python's would wait for a long call into C. Records are
    complete line by line and checkpoints are replaced atomically, so only the work since the last of them is lost.

    Args:
        on_request: Called at the first signal.
    """
    received: list[int] = []
    main_process = os.getpid()
    signals = (signal.SIGINT, signal.SIGTERM)

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        if os.getpid() != main_process:
            return  # a loader's worker, which is needed until the run has saved itself
        received.append(number)
        for each in signals:
            signal.signal(each, signal.SIG_DFL)
        on_request()

    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        yield never
        return
    previous = {number: signal.signal(number, handle) for number in signals}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
