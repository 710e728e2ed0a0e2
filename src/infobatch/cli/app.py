"""Combine the commands into one program; expected errors become one line on stderr and an exit code."""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import Any

from cyclopts import App, CycloptsError

from .. import __version__
from ..errors import InfoBatchError, InfoBatchWarning
from ..lab.runs.records import line
from .inspect_commands import doctor, estimate, methods, report, tasks
from .options import Answer
from .train_commands import STOPPED, compare, reproduce, train

app = App(
    name="infobatch",
    help="Train on less data, and measure what that saves and what it costs compared with full data.",
    version=__version__,
    help_format="plaintext",
    result_action="return_value",
    exit_on_error=False,
    print_error=False,
    suppress_keyboard_interrupt=False,
)
COMMANDS: tuple[Callable[..., Answer], ...] = (compare, train, report, reproduce, estimate, doctor, methods, tasks)
for place, command in enumerate(COMMANDS):
    app.command(command, sort_key=place)
app.register_install_completion_command(help="Install completion of commands and options for your shell.")
_DEFAULT_SHOWWARNING = warnings.showwarning


def run(words: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    warnings.showwarning = _show_warning
    out = sys.stdout
    try:
        command, bound, _ = app.parse_args(words)
        with _all_to_stderr() if bound.arguments.get("json") else nullcontext():
            answer = command(*bound.args, **bound.kwargs) or Answer()  # None after --help
        if answer.plain is not None:
            out.write(line(answer.plain))
            out.flush()
        return int(answer.code)
    except (InfoBatchError, CycloptsError) as error:
        return _print_error(str(error))
    except KeyboardInterrupt:
        _print_error("stopped at once; everything recorded so far is intact")
        return STOPPED
    except BrokenPipeError:  # for example "infobatch methods | head"
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _print_error(str(error))


@contextmanager
def _all_to_stderr() -> Iterator[None]:
    """Keep stdout for JSON: whatever a user's module, a C library or another process prints goes to stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        ctypes.CDLL(None).fflush(None)  # C buffers text and would print it when the process ends
        os.dup2(kept, 1)
        os.close(kept)


def _print_error(text: str) -> int:
    print(f"infobatch: {text}", file=sys.stderr)
    return 2


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    if issubclass(category, InfoBatchWarning):
        print(f"infobatch: warning: {message}", file=sys.stderr)
    else:
        _DEFAULT_SHOWWARNING(message, category, *where, **more)
