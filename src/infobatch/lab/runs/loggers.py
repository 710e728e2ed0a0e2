"""Facts of a run, as they come, to TensorBoard and to Weights & Biases, under the names they have in the records.

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
from ..train.settings import near
from .records import Fact

MODES = ("offline", "online")
RESULTS = ("end/metric", "end/test_loss", "end/saved")
"""What hyper-parameters are held against."""


class Hook(Protocol):
    """Whoever wants to hear of a run: called with each fact, closed when no more will come."""

    def __call__(self, fact: Fact) -> None: ...
    def close(self) -> None: ...


def flatten(fact: Fact) -> dict[str, float]:
    """The numbers of an ``epoch`` or ``end``; lists, texts and what is not known stay in the records."""
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


def _shown(value: Any) -> bool | int | float | str:
    return value if isinstance(value, (bool, int, float, str)) else json.dumps(value)


class TensorBoard:
    """TensorBoard: ``TensorBoard("runs/NAME/board")``, then ``tensorboard --logdir runs``.

    Settings are its hyper-parameters, an epoch is a step. After a ``resume`` it goes on in the same folder, and what
    an interrupted run had written of the epochs that come again is taken back.
    """

    def __init__(self, folder: str | Path) -> None:
        self._board = _need("torch.utils.tensorboard", "tensorboard")
        self._summary = _need("torch.utils.tensorboard.summary", "tensorboard")
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
            self._note_session(fact)
        self._writer.flush()  # a run that is killed has shown all it did

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self, purge_step: int | None = None) -> None:
        self._writer = self._board.SummaryWriter(self._folder, purge_step=purge_step)

    def _note_session(self, fact: Fact) -> None:
        """For the page of hyper-parameters. In the file of the scalars: ``add_hparams`` would begin another run."""
        settings = {name: _shown(value) for name, value in fact.get("settings", {}).items()}
        experiment, begin, end = self._summary.hparams(settings, dict.fromkeys(RESULTS, 0.0))
        for summary in (experiment, begin) if fact["kind"] == "start" else (end,):
            self._writer.file_writer.add_summary(summary)


class WandB:
    """Weights & Biases: ``WandB("project", folder="runs/NAME")`` writes below that folder and sends nothing.

    ``wandb sync FOLDER/wandb/offline-run-*`` sends it later. A resumed run keeps its id, in ``FOLDER/wandb-id``, so
    that its parts are one run there.
    """

    def __init__(self, project: str, mode: str = "offline", folder: str | Path = ".") -> None:
        if mode not in MODES:
            raise InputError(message("mode offline or online", repr(mode), near(mode, MODES)))
        self._wandb = _need("wandb", "wandb")
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
        known = self._folder / "wandb-id"
        self._folder.mkdir(parents=True, exist_ok=True)
        if fact["kind"] == "start" or not known.exists():
            known.write_text(secrets.token_hex(4))
        self._run = self._wandb.init(
            project=self._project,
            mode=self._mode,
            dir=str(self._folder),
            id=known.read_text().strip(),
            name=fact.get("run"),
            resume="allow",
            config={**fact["settings"], "environment": fact["environment"]} if fact["kind"] == "start" else None,
            settings=self._wandb.Settings(console="off", silent=True),
        )


def _need(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as missing:
        raise InputError(
            message(f"the package {package}", f"none ({missing})", f"Install it: pip install {package}.")
        ) from missing
