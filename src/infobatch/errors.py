"""Everything this package raises on purpose, under one base class.

A message says what was expected, what came, and what to do. Each class takes the finished text alone, so that
an error raised inside a loader's worker arrives in the main process as itself.
"""


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


def message(expected: str, got: str, remedy: str) -> str:
    return f"expected {expected}; got {got}. {remedy}"
