"""The first signal asks, the second ends; workers and other threads are left alone."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from infobatch.lab.runs.interrupt import interruptible


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_leaves_the_second_to_the_system(number: int) -> None:
    """What the second one does is seen in a process of its own, in cli/test_cli_stopping.py."""
    before, asked = signal.getsignal(number), []
    with interruptible(lambda: asked.append(1)) as stop:
        assert not stop()
        os.kill(os.getpid(), number)
        assert stop()
        assert asked == [1]
        assert signal.getsignal(number) is signal.SIG_DFL
    assert signal.getsignal(number) is before


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_worker_of_the_loader_is_not_stopped() -> None:
    asked: list[int] = []
    with interruptible(lambda: asked.append(1)) as stop:
        child = os.fork()
        if not child:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            os._exit(len(asked) + stop())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_in_another_thread_signals_stay_as_they_are() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with interruptible() as stop:
            seen.append((stop(), signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, before)]
