"""Everything this package raises on purpose, under one base class.

A message says what was expected, what came, and what to do. Each class takes the finished text alone, so that
an error raised inside a loader's worker arrives in the main process as itself.
"""

import sys
import warnings

BETWEEN = ("infobatch", "torch", "accelerate", "lightning", "transformers")
"""Packages whose lines a warning does not name: nobody could change anything there."""


class InfoBatchError(Exception):
    """Base of all errors of this package."""


class InputError(InfoBatchError, ValueError):
    """An argument that cannot be right: a wrong shape, type, range or device."""


class MisalignedError(InfoBatchError, RuntimeError):
    """Losses and samples no longer belong together, or can no longer be shown to."""


class EpochError(InfoBatchError, RuntimeError):
    """More epochs were begun than were promised."""


class StateError(InfoBatchError, ValueError):
    """A checkpoint that cannot be loaded here. Nothing was changed."""


class RankError(InfoBatchError, RuntimeError):
    """The ranks do not fit together: different settings, a missing group, a rank that did not come."""


class InfoBatchWarning(UserWarning):
    """Training goes on, but something deserves a look."""


def warn(text: str) -> None:
    """Warn, and name the line of the user's own code that led here."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, InfoBatchWarning, stacklevel=level)


def message(expected: str, got: str, remedy: str) -> str:
    return f"expected {expected}; got {got}. {remedy}"


def counted(many: int, word: str) -> str:
    """
    >>> counted(1, "loss"), counted(2, "loss"), counted(3, "batch"), counted(0, "epoch")
    ('1 loss', '2 losses', '3 batches', '0 epochs')
    """
    return f"{many} {word}{'' if many == 1 else 'es' if word.endswith(('s', 'tch')) else 's'}"


def installing(extra: str) -> str:
    """How to get what an extra brings. Under our name an index may have somebody else's package."""
    return f"pip install '.[{extra}]' in the folder of infobatch"
