"""What each method would have saved, from the losses of a run that pruned nothing.

>>> losses = torch.rand(10, 1000).sort(0, descending=True).values  # ten epochs, a thousand samples
>>> half, = estimate(losses, ["random:ratio=0.5"])
>>> half.kept  # epoch 0 knows nothing yet, and the last eighth of a run is full
(1000.0, 500.0, 500.0, 500.0, 500.0, 500.0, 500.0, 500.0, 500.0, 1000.0)
>>> half.saved
0.4
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...checks import is_count
from ...epoch.scores import UNSEEN, ScoreBook
from ...epoch.summary import report
from ...errors import InputError, counted, message
from ...methods import METHODS
from ...methods.method import Method
from ...methods.when import Moment
from ..train.settings import losses_alone, parse_method
from .logs import check_table

UNKNOWN = (
    "These are the losses of the run that was logged; a pruned run takes fewer steps, and its losses would differ.",
    "Whether the accuracy would hold is not in the losses: compare runs for that.",
)


@dataclass(frozen=True)
class Estimate:
    """One method over the logged losses; each number is a mean over the seeds."""

    method: str
    saved: float
    """The share of the whole run's samples that would have been left out."""
    spread: float
    """The standard deviation of ``saved`` over the seeds; 0 with one seed."""
    kept: tuple[float, ...]
    """Samples kept in each epoch."""
    effective_size: float
    """Kish's effective sample size, mean over the epochs."""
    noise: float
    """The noise-to-signal ratio of a step, squared, against full data, in the worst epoch that prunes; 1 where none
    does. The paper wants at most 1."""
    largest_weight: float
    unknown: tuple[str, ...]
    """What this estimate cannot know."""


def estimate(
    losses: Tensor,
    methods: Sequence[str | Method] | None = None,
    num_epochs: int | None = None,
    seeds: int = 1,
) -> list[Estimate]:
    """Let each method prune as if these had been the losses, [epochs, samples] with NaN where a sample was not seen.

    A sample that is left out keeps its score, as in training. Without ``methods``: all but those in ``left_out``.
    A ``num_epochs`` beyond the log repeats its last epoch.
    """
    check_table(losses, "losses")
    losses = losses.detach()
    logged = losses.shape[0]
    num_epochs = logged if num_epochs is None else num_epochs
    for name, value, least, remedy in (
        ("epochs", num_epochs, logged, "So many are in the log; leave it out for exactly those."),
        ("seeds", seeds, 1, "Each is a draw of every method."),
    ):
        if not is_count(value, least):
            raise InputError(message(f"a whole number of {name} from {least} on", repr(value), remedy))
    if methods is None:
        passed_over = left_out(num_epochs)
        methods = [name for name in METHODS if name not in passed_over]
    chosen = [_method(method, num_epochs, losses.shape[1]) for method in methods]
    unknown = (*UNKNOWN, *_gaps(losses, num_epochs))
    return [_summary(method, [_replay(losses, method, num_epochs, seed) for seed in range(seeds)], unknown)
            for method in chosen]  # fmt: skip


@dataclass(frozen=True)
class _Replay:
    kept: list[int]
    effective: list[float]
    noise: float
    weight: float
    size: int

    @property
    def saved(self) -> float:
        return 1 - sum(self.kept) / (len(self.kept) * self.size)


def _replay(losses: Tensor, method: Method, num_epochs: int, seed: int) -> _Replay:
    logged, size = losses.shape
    book = ScoreBook(size)
    book.keep(method.memory, ())
    kept, effective, noise, weight = [], [], [], 0.0
    for epoch in range(num_epochs):
        plan = method.draw(book, Moment(epoch, num_epochs), seed)
        now = report(plan, book.scores, book.planned)
        kept.append(now.kept)
        effective.append(now.effective_size)
        noise += [now.noise] if now.saved else []
        weight = max(weight, plan.table.max().item())
        row = losses[min(epoch, logged - 1)].to(torch.float32)
        book.fresh.copy_(torch.where((plan.table != 0) & ~torch.isnan(row), row, UNSEEN))
        book.remember(method.memory, plan)
        book.merge()
        book.planned += plan.kept
    return _Replay(kept, effective, max(noise, default=1.0), weight, size)


def _summary(method: Method, replays: list[_Replay], unknown: tuple[str, ...]) -> Estimate:
    saved = [replay.saved for replay in replays]
    return Estimate(
        method=repr(method),
        saved=statistics.fmean(saved),
        spread=statistics.stdev(saved) if len(saved) > 1 else 0.0,
        kept=tuple(statistics.fmean(epoch) for epoch in zip(*(replay.kept for replay in replays), strict=True)),
        effective_size=statistics.fmean(itertools.chain.from_iterable(replay.effective for replay in replays)),
        noise=statistics.fmean(replay.noise for replay in replays),
        largest_weight=max(replay.weight for replay in replays),
        unknown=unknown,
    )


def left_out(num_epochs: int) -> dict[str, str]:
    """The methods that are not tried unless they are named, and why."""
    why = {}
    for name in METHODS:
        method = parse_method(name)
        if not losses_alone(method):
            why[name] = "more than losses is needed"
        elif not _long_enough(method, num_epochs):
            why[name] = "the run is too short"
    return why


def _method(given: str | Method, num_epochs: int, size: int) -> Method:
    """A method that a person made with labels of these very samples needs no more of them."""
    method = parse_method(given) if isinstance(given, str) else given
    if not losses_alone(method, size):
        remedy = "A log of losses has no labels and no more."
        raise InputError(message("a method that needs losses alone", repr(method), remedy))
    method.check_epochs(num_epochs, method.schedule)
    return method


def _long_enough(method: Method, num_epochs: int) -> bool:
    try:
        method.check_epochs(num_epochs, method.schedule)
    except InputError:
        return False
    return True


def _gaps(losses: Tensor, num_epochs: int) -> list[str]:
    logged, size = losses.shape
    missing = sum(size - int(torch.count_nonzero(torch.isfinite(row))) for row in losses)
    gaps = []
    if logged > size:
        gaps.append(
            f"The log has more epochs ({logged}) than samples ({size}): a row is read as an epoch, a column as "
            "a sample. If it is the other way round, transpose it."
        )
    if missing:
        share = missing / (logged * size)
        gaps.append(
            f"Missing or not finite: {counted(missing, 'loss')} ({share:.1%}); a sample keeps the score it had."
        )
    if num_epochs > logged:
        gaps.append(f"Epochs {logged} to {num_epochs - 1} are not in the log; its last epoch stands for them.")
    return gaps
