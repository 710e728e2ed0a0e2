"""What must be true. The oracle follows a training loop and knows each score, weight and step size beforehand.

It is told of every batch, loss and skip, and works out the rest from the documentation alone: it shares no code with
the package. What it finds wrong it raises as a ``FaultError``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

LARGEST = torch.finfo(torch.bfloat16).max
"""From here on a loss counts as not finite: bfloat16 losses that overflowed end up here."""


class FaultError(Exception):
    """The package did something that its documentation rules out."""


@dataclass(frozen=True)
class Batch:
    """A batch as the loop received it."""

    ids: Tensor
    """The positions of its samples in the data set."""
    plan: SeenPlan
    indices: Tensor | None = None
    """``train_data.batch_indices``, if the loop asked for them."""


@dataclass(frozen=True)
class SeenPlan:
    """A plan as ``train_data.plan()`` showed it."""

    epoch: int
    indices: Tensor
    table: Tensor
    weights: Tensor
    """The weights in use: as drawn, or scaled to mean 1 over the plan."""

    @classmethod
    def of(cls, plan: Any, compensate: str) -> SeenPlan:
        table = plan.table.clone()
        total = float(table.double().sum())
        scale = 1.0 if compensate == "loss" else plan.indices.numel() / total
        return cls(plan.epoch, plan.indices.clone(), table, table * scale)

    @property
    def kept(self) -> int:
        return self.indices.numel()

    @property
    def is_pruned(self) -> bool:
        return self.kept < self.table.numel()


def is_finite(values: Tensor) -> Tensor:
    return values.abs() < LARGEST


def differ(one: Tensor, other: Tensor, share: float = 1e-6) -> Tensor:
    """Where two score tables differ; NaN equals NaN."""
    return ~torch.isclose(one, other, rtol=share, atol=0.0, equal_nan=True)


def samples(mask: Tensor) -> str:
    found = mask.nonzero().flatten().tolist()
    return f"{found[:8]}{'...' if len(found) > 8 else ''}"


@dataclass
class Oracle:
    """The scores, the losses of the running epoch and the history, as they must be."""

    size: int
    scores: Tensor = field(init=False)
    fresh: Tensor = field(init=False)
    """The losses of the running epoch."""
    has: Tensor = field(init=False)
    """Which samples have a loss in the running epoch."""
    skipped: Tensor = field(init=False)
    epoch: int = 0
    plans: list[SeenPlan | None] = field(default_factory=list)
    """By epoch, the plans that were seen."""
    lost: list[int] = field(default_factory=list)
    """By finished epoch, how many losses were not finite."""
    maybe: dict[int, set[float]] = field(default_factory=dict)
    """Losses whose update was interrupted: they may count or not."""
    given: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Every loss that was ever given, as (samples, losses)."""
    is_strict: bool = True
    """False once the package has refused something: then scores may be old, but never those of another sample."""
    order_matters: bool = True
    """False where an exact twin cannot be expected: scores are then compared with some room."""
    checks: int = 0

    def __post_init__(self) -> None:
        self.scores = torch.full((self.size,), torch.nan)
        self._clear()

    def _clear(self) -> None:
        self.fresh = torch.full((self.size,), torch.nan)
        self.has = torch.zeros(self.size, dtype=torch.bool)
        self.skipped = torch.zeros(self.size, dtype=torch.bool)
        self.maybe = {}

    # ---- what the loop did ---------------------------------------------------------------------------------

    def record(self, ids: Tensor, losses: Tensor) -> None:
        values = losses.detach().float()
        self.given.append((ids, values))
        real = self._has_weight(ids)
        ids, values = ids[real], values[real]
        self.fresh[ids] = values
        self.has[ids] = True
        for index in ids.tolist():
            self.maybe.pop(index, None)

    def _has_weight(self, ids: Tensor) -> Tensor:
        """Which samples of a batch are no ghosts."""
        plan = self.plans[self.epoch] if self.is_strict and self.epoch < len(self.plans) else None
        return torch.ones(len(ids), dtype=torch.bool) if plan is None else plan.table[ids] > 0

    def offer(self, ids: Tensor, losses: Tensor) -> None:
        """Note losses that may have been recorded: the update was interrupted or refused."""
        values = losses.detach().float()
        self.given.append((ids, values))
        for index, value in zip(ids.tolist(), values.tolist(), strict=True):
            self.maybe.setdefault(index, set()).add(value)

    def skip(self, ids: Tensor) -> None:
        self.skipped[ids] = True

    def weaken(self) -> None:
        self.is_strict = False

    def done(self) -> Tensor:
        """Which samples of the running epoch must not come again."""
        return self.has | self.skipped

    # ---- what must follow from it --------------------------------------------------------------------------

    def follow(self, epoch: int, *, may_be_empty: bool = False) -> None:
        """The training says that it is in this epoch: the one it was in, or the next."""
        if epoch == self.epoch:
            return
        if epoch != self.epoch + 1 and self.is_strict:
            if epoch < self.epoch or not may_be_empty:
                raise FaultError(f"the epoch went from {self.epoch} to {epoch}")
            while self.epoch < epoch - 1:
                self.follow(self.epoch + 1, may_be_empty=True)
        if not self.is_strict:
            self.epoch = epoch
            self._clear()
            return
        if not (self.done().any() or self.maybe or may_be_empty):
            raise FaultError(f"epoch {self.epoch} ended without a loss")
        self.scores = torch.where(self.has & is_finite(self.fresh), self.fresh, self.scores)
        self.lost.append(int((self.has & ~is_finite(self.fresh)).sum()) if not self.maybe else -1)
        while len(self.plans) <= self.epoch:
            self.plans.append(None)
        self.epoch += 1
        doubts = self.maybe
        self._clear()
        self.maybe = doubts

    def check_scores(self, scores: Tensor) -> None:
        """Check the scores of a training that is in ``self.epoch``."""
        self.checks += 1
        if not self.is_strict:
            self._check_known(scores)
            return
        wrong = differ(scores, self.scores, 1e-6 if self.order_matters else 1e-2)
        for index, values in self.maybe.items():
            value = float(scores[index])
            if bool(wrong[index]) and value in values:
                wrong[index] = False
                self.scores[index] = value
        if wrong.any():
            first = int(wrong.nonzero()[0])
            got, right = float(scores[first]), float(self.scores[first])
            owner = self._owner_of(got)
            told = "" if owner in (None, first) else f", the loss of sample {owner}"
            raise FaultError(
                f"in epoch {self.epoch} sample {first} has {got}{told}, not {right}; wrong are {samples(wrong)}"
            )

    def settle(self) -> None:
        """After ``check_scores`` at the start of an epoch: what was in doubt is known."""
        self.maybe = {}

    def _owner_of(self, value: float) -> int | None:
        for ids, values in self.given:
            hits = (values == value).nonzero().flatten()
            if hits.numel():
                return int(ids[hits[0]])
        return None

    def _check_known(self, scores: Tensor) -> None:
        """Every score is a loss that this very sample was given."""
        right = torch.isnan(scores)
        for ids, values in self.given:
            right[ids] |= scores[ids] == values
        if not right.all():
            first = int((~right).nonzero()[0])
            owner = self._owner_of(float(scores[first]))
            raise FaultError(
                f"after a refusal, sample {first} has the score {float(scores[first])}, which it was never given"
                + ("" if owner is None else f" (sample {owner} was)")
            )

    def check_history(self, history: Iterable[Any]) -> None:
        entries = list(history)
        epochs = [entry.epoch for entry in entries]
        if epochs != list(range(self.epoch)):
            raise FaultError(f"in epoch {self.epoch} the history has epochs {epochs}")
        kept = 0
        for entry in entries:
            kept += entry.kept
            seen = self.plans[entry.epoch] if entry.epoch < len(self.plans) else None
            if seen is not None and seen.kept != entry.kept:
                raise FaultError(f"the history says {entry.kept} samples kept in epoch {entry.epoch}, not {seen.kept}")
            so_far = 1 - kept / ((entry.epoch + 1) * self.size)
            if not math.isclose(entry.saved_so_far, so_far, abs_tol=1e-9):
                raise FaultError(f"the history says {entry.saved_so_far} saved by epoch {entry.epoch}, not {so_far}")
            lost = self.lost[entry.epoch] if self.is_strict and entry.epoch < len(self.lost) else -1
            if lost not in (-1, entry.not_finite):
                raise FaultError(
                    f"the history says {entry.not_finite} losses were not finite in epoch {entry.epoch}, not {lost}"
                )

    def see_plan(self, plan: SeenPlan, method: Any, num_epochs: int) -> None:
        """Check a plan, and that it is the one seen before in this epoch, if any."""
        if plan.epoch != self.epoch:
            raise FaultError(f"plan() is that of epoch {plan.epoch} in epoch {self.epoch}")
        while len(self.plans) <= self.epoch:
            self.plans.append(None)
        before = self.plans[self.epoch]
        if before is not None and self.is_strict:
            same = torch.equal(before.indices, plan.indices) and torch.equal(before.table, plan.table)
            if not same:
                raise FaultError(f"the plan of epoch {self.epoch} changed inside the epoch")
            return
        check_plan(plan, self.size, method, num_epochs)
        if method.name == "infobatch" and self.is_strict and not self.maybe and self.order_matters:
            check_infobatch(plan, self.scores, method, num_epochs)
        self.plans[self.epoch] = plan

    def snapshot(self) -> dict[str, Any]:
        """Return what is needed to go back to this moment."""
        return {
            "scores": self.scores.clone(),
            "fresh": self.fresh.clone(),
            "has": self.has.clone(),
            "skipped": self.skipped.clone(),
            "epoch": self.epoch,
            "plans": list(self.plans),
            "lost": list(self.lost),
            "maybe": {index: set(values) for index, values in self.maybe.items()},
            "is_strict": self.is_strict,
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        strict = self.is_strict and snapshot["is_strict"]
        for name, value in snapshot.items():
            if isinstance(value, Tensor):
                value = value.clone()
            elif isinstance(value, list):
                value = list(value)
            setattr(self, name, value)
        self.is_strict = strict
        if not self.done().any() and len(self.plans) > self.epoch:
            self.plans[self.epoch] = None  # saved before its first loss, an epoch may be drawn again


# ---- single rules ------------------------------------------------------------------------------------------


def check_plan(plan: SeenPlan, size: int, method: Any, num_epochs: int) -> None:
    """Check what holds for the plan of any method."""
    indices, table = plan.indices, plan.table
    if table.shape != (size,) or not 0 < plan.kept <= size or indices.unique().numel() != plan.kept:
        raise FaultError(f"a plan of {indices.tolist()} for {size} samples")
    if not bool(torch.isfinite(table).all()) or not torch.equal((table > 0).nonzero().flatten(), indices.sort().values):
        raise FaultError("a plan with weights for other samples than its own")
    total = float(table.double().sum())
    if method.unbiased and method.settings.get("rounding") != "paper" and not math.isclose(total, size, rel_tol=1e-4):
        raise FaultError(f"the weights of an unbiased plan sum to {total}, not {size}")
    if not method.rescale and not method.around and not bool((table[indices] == 1).all()):
        raise FaultError("weights other than 1 in a plan of a method that promises 1")


def check_infobatch(plan: SeenPlan, scores: Tensor, method: Any, num_epochs: int) -> None:
    """Check a plan of the paper's rule against the paper: k = round((1-r)m) of m stay, with weight m/k."""
    settings = method.settings
    if set(settings) - {"ratio", "delta"} or method.around:
        return
    known = ~torch.isnan(scores)
    if plan.epoch == 0 or plan.epoch >= settings["delta"] * num_epochs - 1e-9:
        if plan.is_pruned:
            raise FaultError(f"epoch {plan.epoch} is pruned, and should use all data")
        return
    if not known.any():
        return
    values = scores[known].double()
    mean = math.fsum(values.tolist()) / values.numel()
    close = (scores.double() - mean).abs() <= 1e-5 * max(abs(mean), float(values.abs().max()) * 1e-2)
    below = known & (scores.double() < mean)
    if bool((close & known).any()) or not below.any():
        return  # rounding decides, or nobody is below the mean
    count = int(below.sum())
    stay = int((plan.table[below] > 0).sum())
    if stay != 1 and abs(stay - (1 - settings["ratio"]) * count) > 0.5 + 1e-9:
        raise FaultError(f"{stay} of {count} samples below the mean stay with ratio {settings['ratio']}")
    weights = plan.table[below & (plan.table > 0)]
    if not bool((plan.table[~below] == 1).all()) or not torch.allclose(weights, torch.full_like(weights, count / stay)):
        raise FaultError("weights other than 1 and m/k in a plan of the paper's rule")


def step_factors(count: int, batch: int | None, plan: SeenPlan) -> list[float]:
    """Return the factors that the mean of a whole batch may have.

    A batch of b of B samples counts b/B in a pruned epoch. An epoch of a single batch may also stay as without
    pruning, and so may the batches of a loop or batch sampler that has no batch size.
    """
    if batch is None:
        return [0.0]  # any factor up to 1
    if not plan.is_pruned or count >= batch:
        return [1.0]
    return [count / batch, 1.0] if plan.kept <= batch else [count / batch]


def check_step(got: Tensor, losses: Tensor, weights: Tensor, factors: list[float], what: str = "a batch") -> None:
    """Check the scalar that an update returned for ``what``."""
    products = losses.detach().double() * weights.double()
    mean, room = float(products.mean()), 1e-5 + 2e-5 * float(products.abs().nan_to_num().mean())
    value = float(got.detach())
    if got.shape != ():
        raise FaultError(f"update() returned a tensor of shape {list(got.shape)}")
    if float(products.abs().max()) > 1e37:
        return  # the sum may leave the range of float32
    if math.isnan(mean) or math.isinf(mean):
        if not (math.isnan(value) or math.isinf(value)):
            raise FaultError(f"a step of {value} for losses with a mean of {mean}")
        return
    if factors == [0.0]:
        if abs(value) > abs(mean) + room or value * mean < -room:
            raise FaultError(f"a step of {value} for a weighted mean of {mean}")
        return
    if not any(abs(value - mean * factor) <= room for factor in factors):
        share = value / mean if mean else math.nan
        raise FaultError(
            f"for {what} the step is {share:.4g} times the weighted mean of its losses; right is {factors}"
        )
