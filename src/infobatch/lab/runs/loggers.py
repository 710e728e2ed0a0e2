"""Log the facts of a run to TensorBoard and Weights & Biases, under the names they have in its record.

>>> flatten({"kind": "epoch", "epoch": 3, "metric": 97.5, "test_loss": None, "seconds": {"step": 0.25}})
{'epoch/metric': 97.5, 'seconds/step': 0.25}
"""

from __future__ import annotations

import importlib
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from ...errors import InputError, message
from ..format import suggest
from .records import Fact

MODES = ("offline", "online")
RESULTS = ("end/metric", "end/test_loss", "end/saved")
"""The results that TensorBoard shows beside the hyper-parameters."""


class Hook(Protocol):
    """A logger: called with each fact of a run, and closed after the last."""

    def __call__(self, fact: Fact) -> None:
        """Log one fact."""
        ...

    def close(self) -> None:
        """Finish; the logger may be used again."""
        ...


def flatten(fact: Fact) -> dict[str, float]:
    """Return the numbers of an ``epoch`` or ``end`` fact by name; lists, texts and missing values are left out."""
    kind = fact["kind"]
    if kind not in ("epoch", "end"):
        return {}
    return {name: float(value) for name, value in _numbers(fact, kind) if name != "epoch/epoch"}


def _numbers(fact: Fact, kind: str) -> Iterator[tuple[str, float]]:
    for name, value in fact.items():
        if isinstance(value, dict):
            group = name if kind == "epoch" else f"{kind}/{name}"
            yield from ((f"{group}/{inner}", number) for inner, number in value.items() if _is_number(number))
        elif _is_number(value):
            yield f"{kind}/{name}", value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _hparam(value: Any) -> bool | int | float | str:
    return value if isinstance(value, (bool, int, float, str)) else json.dumps(value)


class TensorBoard:
    """Log to TensorBoard: ``TensorBoard("runs/NAME/board")``, then ``tensorboard --logdir runs``.

    Settings are logged as hyper-parameters; a step is an epoch. A resumed run continues in the same folder, and the
    epochs it repeats are purged first.

    Args:
        folder: Where the event files go.

    Raises:
        InputError: If tensorboard is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        self._board = _import("torch.utils.tensorboard", "tensorboard")
        self._summary = _import("torch.utils.tensorboard.summary", "tensorboard")
        self._folder = str(folder)
        self._writer: Any = None

    def __call__(self, fact: Fact) -> None:
        kind, numbers = fact["kind"], flatten(fact)
        if kind == "resume":
            self.close()
            self._open(purge_step=fact["epoch"])
        elif self._writer is None:
            self._open()
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, fact["epoch" if kind == "epoch" else "epochs"])
        if kind in ("start", "end"):
            self._log_hparams(fact)
        self._writer.flush()  # so that a killed run has logged everything it did

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self, purge_step: int | None = None) -> None:
        self._writer = self._board.SummaryWriter(self._folder, purge_step=purge_step)

    def _log_hparams(self, fact: Fact) -> None:
        """Log the hyper-parameters beside the scalars: ``add_hparams`` would start another run."""
        settings = {name: _hparam(value) for name, value in fact.get("settings", {}).items()}
        experiment, begin, end = self._summary.hparams(settings, dict.fromkeys(RESULTS, 0.0))
        for summary in (experiment, begin) if fact["kind"] == "start" else (end,):
            self._writer.file_writer.add_summary(summary)


class WandB:
    """Log to Weights & Biases: ``WandB("project", folder="runs/NAME")`` writes below that folder and uploads nothing.

    ``wandb sync FOLDER/wandb/offline-run-*`` uploads it later. A resumed run keeps its id, in ``FOLDER/wandb-id``, so
    that it stays one run there.

    Args:
        project: The project's name.
        mode: "offline" or "online".
        folder: The folder of the run.

    Raises:
        InputError: If wandb is not installed or the mode is unknown.
    """

    def __init__(self, project: str, mode: str = "offline", folder: str | Path = ".") -> None:
        if mode not in MODES:
            raise InputError(message("mode offline or online", repr(mode), suggest(mode, MODES)))
        self._wandb = _import("wandb", "wandb")
        self._project, self._mode, self._folder = project, mode, Path(folder)
        self._run: Any = None
        self._ended = False

    def __call__(self, fact: Fact) -> None:
        kind, numbers = fact["kind"], flatten(fact)
        if kind in ("start", "resume"):
            self.close()
        if self._run is None:
            self._begin(fact)
        if kind == "epoch":
            self._run.log(numbers, step=fact["epoch"])
        elif kind == "end":
            self._run.summary.update(numbers)
            self._ended = True

    def close(self) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if self._ended else 1)
            self._run = None

    def _begin(self, fact: Fact) -> None:
        self._ended = False
        id_file = self._folder / "wandb-id"
        self._folder.mkdir(parents=True, exist_ok=True)
        if fact["kind"] == "start" or not id_file.exists():
            id_file.write_text(secrets.token_hex(4))
        self._run = self._wandb.init(
            project=self._project,
            mode=self._mode,
            dir=str(self._folder),
            id=id_file.read_text().strip(),
            name=fact.get("run"),
            resume="allow",
            config={**fact["settings"], "environment": fact["environment"]} if fact["kind"] == "start" else None,
            settings=self._wandb.Settings(console="off", silent=True),
        )


def _import(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            message(f"the package {package}", f"none ({error})", f"Install it: pip install {package}.")
        ) from error
