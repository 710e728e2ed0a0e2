"""Estimate what each method would have saved, from the losses of a run on full data.

>>> losses = torch.rand(10, 1000).sort(0, descending=True).values  # ten epochs, a thousand samples
>>> half, = estimate(losses, ["random:ratio=0.5"])
>>> half.kept  # epoch 0 has no scores yet, and the last eighth of a run uses full data
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
from ...epoch.scores import ScoreTable
from ...epoch.slice import UNSEEN
from ...errors import InputError, message, plural
from ...methods import METHODS
from ...methods.method import Method, Moment
from ...plan import summarize
from ..train.method_text import needs_losses_only, parse_method
from .logs import check_table

UNKNOWN = (
    "The losses are those of the logged run; a pruned run takes fewer steps, so its losses would differ.",
    "The losses do not show whether the accuracy would hold: use infobatch compare for that.",
)

BATCHED = "scores depend on how samples were batched"
"""Why a method is not tried whose scores are means over a batch."""


@dataclass(frozen=True)
class Estimate:
    """One method applied to the logged losses; each number is a mean over the seeds."""

    method: str
    saved: float
    """The share of all samples of the run that would have been left out."""
    spread: float
    """The standard deviation of ``saved`` over the seeds; 0 with one seed."""
    kept: tuple[float, ...]
    """Samples kept in each epoch."""
    effective_size: float
    """Kish's effective sample size, mean over the epochs."""
    noise: float
    """The squared noise-to-signal ratio of a step compared with full data, in the worst pruned epoch; 1 if no epoch is
    pruned. The paper requires at most 1."""
    largest_weight: float
    unknown: tuple[str, ...]
    """What this estimate cannot know."""


def estimate(
    losses: Tensor,
    methods: Sequence[str | Method] | None = None,
    num_epochs: int | None = None,
    seeds: int = 1,
) -> list[Estimate]:
    """Apply each method to logged losses; a sample that is left out keeps its score, as in training.

    Args:
        losses: The losses, [epochs, samples], with NaN for a sample that an epoch did not use.
        methods: Methods, or their texts; by default all except those in ``untried_methods``.
        num_epochs: Epochs of the planned run; beyond the log, its last epoch is repeated.
        seeds: Random draws per method.

    Returns:
        One estimate per method.

    Raises:
        InputError: If the losses are not such a matrix, a number is out of range, or a method needs more than losses.

    Example:
        >>> estimate(torch.rand(8, 100), ["random:ratio=0.5"])[0].saved
        0.375
    """
    check_table(losses, "losses")
    losses = losses.detach()
    logged = losses.shape[0]
    num_epochs = logged if num_epochs is None else num_epochs
    for name, value, least, remedy in (
        ("epochs", num_epochs, logged, "The log has that many; leave it out to use them."),
        ("seeds", seeds, 1, "Each seed is one draw per method."),
    ):
        if not is_count(value, least):
            raise InputError(message(f"a whole number of {name} from {least} on", repr(value), remedy))
    if methods is None:
        untried = untried_methods(num_epochs)
        methods = [name for name in METHODS if name not in untried]
    chosen = [_check_method(method, num_epochs, losses.shape[1]) for method in methods]
    unknown = (*UNKNOWN, *_describe_gaps(losses, num_epochs))
    return [_average(method, [_replay(losses, method, num_epochs, seed) for seed in range(seeds)], unknown)
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
    book = ScoreTable(size)
    book.make_columns(method.memory, ())
    kept, effective, noise, weight = [], [], [], 0.0
    for epoch in range(num_epochs):
        plan = method.draw(book, Moment(epoch, num_epochs), seed)
        now = summarize(plan, book.noise(plan), book.planned)
        kept.append(now.kept)
        effective.append(now.effective_size)
        noise += [now.noise] if now.saved else []
        weight = max(weight, plan.table.max().item())
        row = losses[min(epoch, logged - 1)].to(torch.float32)
        book.fresh.copy_(torch.where((plan.table != 0) & ~torch.isnan(row), row, UNSEEN))
        book.close(plan, None, method.memory)
        book.begin_anew(book.planned + plan.kept)
    return _Replay(kept, effective, max(noise, default=1.0), weight, size)


def _average(method: Method, replays: list[_Replay], unknown: tuple[str, ...]) -> Estimate:
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


def untried_methods(num_epochs: int) -> dict[str, str]:
    """Return the methods that are only tried if they are named, and why."""
    why = {}
    for name in METHODS:
        method = parse_method(name)
        if not needs_losses_only(method):
            why[name] = BATCHED if method.score != "loss" else "needs more than losses"
        elif not _is_long_enough(method, num_epochs):
            why[name] = "the run is too short"
    return why


def _check_method(given: str | Method, num_epochs: int, size: int) -> Method:
    """Check a method; one that was built with the labels of these samples needs no others."""
    method = parse_method(given) if isinstance(given, str) else given
    if not needs_losses_only(method, size):
        remedy = "A log of losses holds no labels or other data."
        if method.score != "loss":
            remedy = f"Its {BATCHED}, and a log does not say which samples shared a batch."
        raise InputError(message("a method that needs only losses", repr(method), remedy))
    method.check_epochs(num_epochs, method.schedule)
    return method


def _is_long_enough(method: Method, num_epochs: int) -> bool:
    try:
        method.check_epochs(num_epochs, method.schedule)
    except InputError:
        return False
    return True


def _describe_gaps(losses: Tensor, num_epochs: int) -> list[str]:
    logged, size = losses.shape
    missing = sum(size - int(torch.count_nonzero(torch.isfinite(row))) for row in losses)
    gaps = []
    if logged > size:
        gaps.append(
            f"The log has more epochs ({logged}) than samples ({size}): rows are read as epochs, columns as "
            "samples. If it is the other way round, transpose it."
        )
    if missing:
        share = missing / (logged * size)
        gaps.append(
            f"Missing or not finite: {plural(missing, 'loss')} ({share:.1%}); such a sample keeps its previous score."
        )
    if num_epochs > logged:
        gaps.append(f"Epochs {logged} to {num_epochs - 1} are not in the log; its last epoch is repeated.")
    return gaps
