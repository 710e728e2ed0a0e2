"""All errors of this package, under one base class.

A message says what was expected, what came instead, and what to do. Each class takes only the finished text, so that an
error raised in a loader's worker arrives unchanged in the main process.
"""

import sys
import warnings

BETWEEN = ("infobatch", "torch", "accelerate", "lightning", "transformers")
"""Packages whose lines a warning does not point to: users cannot change anything there."""


class InfoBatchError(Exception):
    """Base of all errors of this package."""


class InputError(InfoBatchError, ValueError):
    """An argument that cannot be right: a wrong shape, type, range or device."""


class MisalignedError(InfoBatchError, RuntimeError):
    """Losses and samples do not belong together, or cannot be shown to."""


class EpochError(InfoBatchError, RuntimeError):
    """More epochs were started than ``num_epochs``."""


class StateError(InfoBatchError, ValueError):
    """A checkpoint that cannot be loaded here. Nothing was changed."""


class RankError(InfoBatchError, RuntimeError):
    """The ranks do not fit together: different settings, a missing group, a rank that did not arrive."""


class InfoBatchWarning(UserWarning):
    """Training continues, but something deserves attention."""


def warn(text: str) -> None:
    """Warn, and point to the line of the user's own code that led here."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, InfoBatchWarning, stacklevel=level)


def message(expected: str, got: str, remedy: str) -> str:
    return f"expected {expected}; got {got}. {remedy}"


def plural(count: int, word: str) -> str:
    """
    >>> plural(1, "loss"), plural(2, "loss"), plural(3, "batch"), plural(0, "epoch")
    ('1 loss', '2 losses', '3 batches', '0 epochs')
    """
    return f"{count} {word}{'' if count == 1 else 'es' if word.endswith(('s', 'tch')) else 's'}"


def installing(extra: str) -> str:
    """Say how to install an extra. A package index may have another project under our name."""
    return f"pip install '.[{extra}]' in the infobatch folder"
