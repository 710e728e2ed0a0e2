"""Examine a user's loader: does every loss reach its sample? If not, why, and what helps?

``examine("train:loader")`` runs two epochs of the loader that ``train.py`` makes, through the same ``update`` that
training calls. It works on copies: the loader, its sampler and the training data stay unchanged.

    case       the loader and data to examine
    tracing    find which sample is in which row of a batch, by its content
    probe      make some passes and record where each loss went
    content    whether items belong to their index, or overlap
    sandbox    set up these passes on copies: unchanged, and with the remedy
    findings   the questions and their answers
"""

from __future__ import annotations

import random
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...checks import check_count
from ...errors import InfoBatchWarning, InputError, plural
from . import findings
from .case import Case, find, load
from .findings import Check, Status
from .probe import Trial
from .sandbox import Sandbox

__all__ = ["Check", "Diagnosis", "Status", "examine"]


@dataclass(frozen=True)
class Diagnosis:
    """What was checked, and what was found."""

    target: str
    loader: str
    """A description of the loader."""
    samples: int
    """How many samples of the data set were used."""
    epochs: int
    """How many passes were made."""
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """True if no check found a problem."""
        return not any(check.status == "problem" for check in self.checks)

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        status = Counter(check.status for check in self.checks)
        warned = [check.name for check in self.checks if check.status == "warning" and check.name != "wrapping"]
        warnings = f" With warnings: see {', '.join(warned)}." if warned else ""
        named = any(check.name == findings.INDICES for check in self.checks)
        if not self.ok:
            found = [check.name for check in self.checks if check.status == "problem"]
            return f"{plural(len(found), 'problem')} found: {', '.join(found)}. Fix them and run the doctor again."
        if status["not checkable"]:
            skipped = f"{status['not checkable']} of {len(self.checks)} checks"
            return f"No problem found, but {skipped} could not be made.{warnings}"
        if any(check.name == "wrapping" and check.status == "warning" for check in self.checks):
            lines = "the lines above and update(loss, indices)" if named else "the lines above"
            return f"Nothing is pruned yet. With {lines}, every loss would reach its sample.{warnings}"
        return f"Every loss reaches its sample{' if the loop calls update(loss, indices)' * named}.{warnings}"

    def plain(self) -> dict[str, Any]:
        """Return the diagnosis as values that JSON can hold."""
        return {**asdict(self), "ok": self.ok, "verdict": self.verdict}


def examine(target: str, *, epochs: int = 2, limit: int | None = None) -> Diagnosis:
    """Examine a loader.

    Args:
        target: MODULE:NAME of a loader, or of a function that returns one or (train_data, loader). The current folder
            is searched, too.
        epochs: Passes over the loader.
        limit: Use only the first samples of the data set, this many; all by default.

    Returns:
        The diagnosis. Errors in the user's own code are part of it.

    Raises:
        InputError: If there is no such name, or it is not a loader.
    """
    for name, value in (("epochs", epochs), ("limit", 1 if limit is None else limit)):
        check_count(name, value, 1, "Leave it out.")
    with _isolated(), tempfile.TemporaryDirectory(prefix="infobatch-doctor-") as folder:
        try:
            given = load(target)
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            return Diagnosis(target, "none", 0, 0, (findings.no_import(error),))
        return _diagnose(target, find(given), epochs, limit, Path(folder))


@contextmanager
def _isolated() -> Iterator[None]:
    """Hide our own arguments from an imported script, and afterwards restore sys.path and all random states."""
    path, words, python, numpys = list(sys.path), list(sys.argv), random.getstate(), np.random.get_state()
    del sys.argv[1:]
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore", InfoBatchWarning)  # about losses, which are only running numbers here
            yield
    finally:
        sys.path[:], sys.argv[:] = path, words
        random.setstate(python)
        np.random.set_state(numpys)


def _diagnose(target: str, case: Case, epochs: int, limit: int | None, folder: Path) -> Diagnosis:
    readable = findings.data_set(case)
    if readable.status == "problem":
        return Diagnosis(target, str(case), 0, 0, (readable,))
    size = min(len(case.dataset), limit or len(case.dataset))
    checks = [readable, findings.wrapping(case), findings.sampler(case), findings.batch_sampler(case)]
    checks += [findings.workers(case), findings.drop_last(case, size)]
    sandbox = Sandbox(case, size, epochs, folder)
    trial = sandbox.first()
    if trial is None:
        checks.append(findings.out_of_reach(case))
    else:
        checks += _check_passes(case, sandbox, trial.run(epochs))
    made = tuple(check for check in checks if check is not None)
    return Diagnosis(target, str(case), size, len(trial.traces) if trial is not None else 0, made)


def _check_passes(case: Case, sandbox: Sandbox, trial: Trial) -> list[Check | None]:
    """Check what the passes showed; if training would have stopped, try the remedy, too."""
    failed, fixed = trial.failed, None
    if failed is not None and not failed.crash and not failed.changed_counts and (case.around or not case.ours):
        fixed = sandbox.with_remedy()
    checks: list[Check | None] = [findings.passes(case, trial), findings.batch_size(trial)]
    named = sandbox.by_index(trial)
    order = sandbox.order(fixed or named or trial)
    if not trial.crashed:
        losses = findings.losses(named or trial, order, findings.lines(case, fixed))
        indices = findings.pairs(case) if named is None else findings.indices(trial)
        if named is None or order == "apart":
            inside = findings.order_inside(order, fixed or named or trial)
            checks += findings.without_repeats(losses, indices, inside)
        else:
            checks += [losses, indices]
        checks += [findings.every_sample(case, trial), findings.positions(trial, sandbox.follows_index)]
        checks += [findings.copies(trial), findings.unit(case, sandbox.size)]
    if fixed is not None:
        checks.append(findings.remedy(case, fixed, order))
    return checks
