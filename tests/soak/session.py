"""A training loop under the eyes of the oracle: every batch, loss and skip goes through here."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

import infobatch

from .oracle import Batch, FaultError, Oracle, SeenPlan, check_step, is_finite, step_factors
from .worlds import World, values_of


def recorded_of(losses: Tensor, kind: str) -> Tensor:
    """What an update records of these losses."""
    if kind == "loss":
        return losses
    if kind == "batch":
        return losses.mean().expand_as(losses)
    values = losses.double()
    return torch.where(is_finite(values), values - values[is_finite(values)].mean(), values).float()


class Losses(Protocol):
    """One loss per sample, and a confidence for the methods that ask for one."""

    def __call__(self, ids: Tensor, epoch: int) -> Tensor: ...

    def channel(self, ids: Tensor, epoch: int) -> Tensor: ...


class Known:
    """Losses that are a function f(i, t) of the sample and the epoch, so that a twin trains on the same."""

    def __init__(self, seed: int, size: int, dtype: torch.dtype, bad: float = 0.0) -> None:
        self.seed, self.size, self.dtype, self.bad = seed, size, dtype, bad

    def __call__(self, ids: Tensor, epoch: int) -> Tensor:
        noise = torch.Generator().manual_seed(self.seed * 1000 + epoch)
        table = torch.randn(self.size, generator=noise).exp() / (1 + epoch)
        table = table.masked_fill(torch.rand(self.size, generator=noise) < self.bad, torch.nan)
        return table[ids].to(self.dtype)

    def channel(self, ids: Tensor, epoch: int) -> Tensor:
        noise = torch.Generator().manual_seed(self.seed * 1000 + epoch + 500)
        return torch.rand(self.size, generator=noise)[ids]


class Fresh:
    """Losses that are new at every update, so that two updates of one sample can be told apart."""

    def __init__(self, seed: int, dtype: torch.dtype, bad: float = 0.0) -> None:
        self.noise, self.dtype, self.bad = torch.Generator().manual_seed(seed), dtype, bad

    def __call__(self, ids: Tensor, epoch: int) -> Tensor:
        losses = torch.randn(len(ids), generator=self.noise).exp() / (1 + epoch)
        spoilt = torch.rand(len(ids), generator=self.noise) < self.bad
        which = torch.randint(0, len(ODD), (len(ids),), generator=self.noise)
        return torch.where(spoilt, torch.tensor(ODD)[which], losses).to(self.dtype)

    def channel(self, ids: Tensor, epoch: int) -> Tensor:
        del epoch
        return torch.rand(len(ids), generator=self.noise)


ODD = (float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1e-40, -3.5, 3.4e38)
"""Losses that are unusual, or no numbers at all."""


class Session:
    """One training, its loader and its oracle."""

    def __init__(self, world: World, losses: Losses, lot: random.Random, oracle: Oracle | None = None) -> None:
        self.world, self.losses, self.lot = world, losses, lot
        self.train = world.make()
        self.loader = world.make_loader(self.train)
        self.oracle = Oracle(world.size) if oracle is None else oracle
        self.oracle.order_matters = self.train.method.score == "loss"
        self.where = torch.arange(world.size)
        """The position of the sample with a given value."""
        self.kept: list[Any] = []
        """Iterators that the loop keeps."""
        self.looks = lot.choice([0.0, 0.0, 0.1, 0.6])
        """How often the loop reads the scores, the history and the like."""
        self.observes = 0.0 if isinstance(losses, Known) else 0.8
        """How often the loop observes the hidden samples, if the method asks for it."""
        self.updates = 0
        self.resumed = -1
        """The epoch that a resumed training began in."""

    # ---- batches -------------------------------------------------------------------------------------------

    def batches(self) -> Iterator[Any]:
        """Return an iterator over the raw batches of one pass."""
        if self.loader is not None:
            return iter(self.loader)
        plan = self.train.plan()
        start = self.train.progress[1]
        left = plan.indices[start:] if start == 0 or not self.oracle.is_strict else self._left(plan.indices)
        return iter([part.clone() for part in left.split(self.world.batch)])

    def _left(self, indices: Tensor) -> Tensor:
        return indices[~self.oracle.done()[indices]]

    def receive(self, raw: Any) -> Batch:
        """Take in a batch of the loader: which samples, of which plan."""
        ids = raw if self.loader is None else self.where[values_of(raw)]
        self.follow()
        plan = self.see_plan()
        outside = int((plan.table[ids] == 0).sum())
        is_filled = outside == 1 and len(ids) == 2 and plan.is_pruned  # a ghost beside a single last sample
        if self.oracle.is_strict and self.loader is not None and outside and not is_filled:
            raise FaultError(f"the loader delivered samples that are not in the plan of epoch {plan.epoch}")
        if self.oracle.is_strict and self.loader is not None and bool(self.oracle.done()[ids].any()):
            raise FaultError("the loader delivered samples that had their loss, or were skipped, in this very epoch")
        asks = self.world.mode != "whole" and self.loader is not None
        indices = self.train.batch_indices.clone() if asks else None
        if indices is not None and not torch.equal(indices, ids):
            raise FaultError(f"batch_indices is {indices.tolist()} for the samples {ids.tolist()}")
        return Batch(ids, plan, ids if self.loader is None else indices)

    def see_plan(self) -> SeenPlan:
        plan = SeenPlan.of(self.train.plan(), self.train.compensate)
        self.oracle.see_plan(plan, self.train.method, self.world.epochs)
        return plan

    # ---- losses --------------------------------------------------------------------------------------------

    def update(self, batch: Batch, losses: Tensor | None = None) -> None:
        """Update with this batch in the way of this world, and check what comes back."""
        if losses is None:
            losses = self.losses(batch.ids, batch.plan.epoch)
        if self.world.mode == "parts" and batch.indices is not None and len(batch.ids) > 1:
            self._update_in_parts(batch, losses)
            return
        got = self.give(batch.ids, losses, None if self.world.mode == "whole" else batch.indices)
        weights, factors = self._check_step(got, batch, losses, self._name(batch))
        if len(weights) == len(losses) and self.looks and bool(torch.isfinite(losses).all()):
            self._check_gradient_weights(weights, factors)

    def _check_step(self, got: Tensor, batch: Batch, losses: Tensor, what: str) -> tuple[Tensor, list[float]]:
        """Check a step against the samples of the plan: a ghost counts for nothing, whatever its loss.

        Returns the weights of those samples, and the factors that were right.
        """
        real = batch.plan.table[batch.ids] > 0
        weights = batch.plan.weights[batch.ids[real]]
        factors = step_factors(len(weights), self.world.known_batch, batch.plan)
        check_step(got, losses[real], weights, factors, what)
        return weights, factors

    def _check_gradient_weights(self, weights: Tensor, factors: list[float]) -> None:
        used = self.train.batch_weights
        if factors != [0.0] and not any(torch.allclose(used, weights * factor, rtol=1e-4) for factor in factors):
            raise FaultError(f"batch_weights are {used.tolist()[:4]}..., not {weights.tolist()[:4]}... x {factors}")

    def _update_in_parts(self, batch: Batch, losses: Tensor) -> None:
        """The parts of a batch, each times its share of the batch, sum to the step of the whole batch."""
        assert batch.indices is not None
        cut = self.lot.randint(1, len(losses) - 1)
        total = torch.zeros((), dtype=torch.float64)
        for part, indices in zip(losses.split(cut), batch.indices.split(cut), strict=True):
            step = self.give(indices, part, indices)
            total = total + step.detach().double() * (len(part) / len(losses))
        self._check_step(total, batch, losses, f"the parts of {self._name(batch)}")

    def _name(self, batch: Batch) -> str:
        """Say in words what kind of batch this is."""
        size, known = len(batch.ids), self.world.known_batch
        name = "a batch" if known is None else "a whole batch" if size == known else "a short batch"
        name += " with indices" if self.world.mode != "whole" and self.loader is not None else ""
        name += " of a pruned epoch" if batch.plan.is_pruned else " of a full epoch"
        return f"{name} that was resumed" if batch.plan.epoch == self.resumed else name

    def give(self, ids: Tensor, losses: Tensor, indices: Tensor | None) -> Tensor:
        """Call update(), and tell the oracle how it ended."""
        train = self.train
        channels = {name: self.losses.channel(ids, self.oracle.epoch) for name in train.method.channels}
        recorded = recorded_of(losses, train.method.score)
        given = losses.clone().requires_grad_(self.lot.random() < 0.2)
        try:
            step = train.update(given, **channels) if indices is None else train.update(given, indices, **channels)
        except BaseException:
            self.oracle.offer(ids, recorded)
            raise
        self.updates += 1
        self.oracle.record(ids, recorded)
        return step

    def skip(self, batch: Batch) -> None:
        self.train.skip()
        self.oracle.skip(batch.ids)

    # ---- looking -------------------------------------------------------------------------------------------

    def follow(self, *, may_be_empty: bool = False) -> None:
        """Let the oracle follow the training into the epoch it is in, and compare the scores."""
        oracle, before = self.oracle, self.oracle.epoch
        epoch = self.train.epoch
        oracle.follow(epoch, may_be_empty=may_be_empty or self.world.drop_last)
        if oracle.epoch != before:
            oracle.check_scores(self.train.scores)
            oracle.settle()
            oracle.check_history(self.train.history)

    def look(self) -> None:
        """Do what loops do to log: none of it may change anything."""
        train = self.train
        self.follow()
        what = self.lot.choice(["scores", "history", "progress", "plan", "length", "text", "state"])
        if what == "scores":
            self.oracle.check_scores(train.scores)
        elif what == "history":
            self.oracle.check_history(train.history)
        elif what == "progress":
            epoch, done, total = train.progress
            if epoch != train.epoch or not 0 <= done <= total:
                raise FaultError(f"progress is {(epoch, done, total)} in epoch {train.epoch}")
        elif what == "plan":
            self.see_plan()
        elif what == "length" and self.loader is not None and self.world.sampler not in ("buckets", "ragged"):
            len(self.loader)
        elif what == "state":
            self.save()
        else:
            repr(train)

    # ---- checkpoints ---------------------------------------------------------------------------------------

    def save(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a state_dict and what the oracle knows of the same moment."""
        self.follow()
        state = self.train.state_dict()
        self.follow()
        self.oracle.check_scores(state["scores"])
        if state["epoch"] != self.oracle.epoch and self.oracle.is_strict:
            raise FaultError(f"a state of epoch {state['epoch']} in epoch {self.oracle.epoch}")
        return state, self.oracle.snapshot()

    def resume(self, state: dict[str, Any], snapshot: dict[str, Any], world: World | None = None) -> None:
        """Go on from a state in a new object, through a loader of ``world``."""
        self.world = self.world if world is None else world
        self.train = self.world.make()
        self.train.load_state_dict(state)
        self.oracle.restore(snapshot)
        self.resumed = self.oracle.epoch if self.oracle.done().any() else -1
        self.loader = self.world.make_loader(self.train)
        self.kept.clear()
        if self.train.epoch != self.oracle.epoch and self.oracle.is_strict:
            raise FaultError(f"resumed in epoch {self.train.epoch} from a state of epoch {self.oracle.epoch}")
        self.oracle.check_scores(self.train.scores)
        self.oracle.check_history(self.train.history)

    # ---- whole passes --------------------------------------------------------------------------------------

    def ordinary_pass(self, stop: int | None = None) -> None:
        """One pass in the way of this world; after ``stop`` batches it is left."""
        before = self.oracle.epoch, self.oracle.done()
        iterator, arrived, waiting = self.batches(), list[Batch](), None
        for raw in iterator:
            batch: Batch | None = self.receive(raw)
            assert batch is not None
            arrived.append(batch)
            if self.world.mode == "ahead":
                batch, waiting = waiting, batch
            if batch is not None:
                self.update(batch)
            if self.lot.random() < self.looks:
                self.look()
            if len(arrived) == stop:
                return
        if waiting is not None:
            self.update(waiting)
        if not arrived:
            self.follow(may_be_empty=True)
            return
        plan = arrived[0].plan
        left = plan.indices if plan.epoch != before[0] else plan.indices[~before[1][plan.indices]]
        came = torch.cat([batch.ids for batch in arrived])
        self.end_of_pass(plan.epoch, came[plan.table[came] > 0], left)

    def end_of_pass(self, epoch: int, came: Tensor, left: Tensor) -> None:
        """Check that a whole pass brought every sample that was left, in order, and ended the epoch."""
        oracle, world = self.oracle, self.world
        if oracle.is_strict and not world.drop_last and not oracle.maybe:
            if not world.in_order:
                came, left = came.sort().values, left.sort().values
            if not torch.equal(came, left):
                raise FaultError(f"a pass delivered {len(came)} samples, not the {len(left)} that were left, in order")
        self.follow()
        if oracle.is_strict and oracle.epoch == epoch:
            raise FaultError(f"epoch {epoch} did not end after its last update")
        if self.train.method.observes_hidden and self.lot.random() < self.observes:
            self.observe_hidden()

    def observe_hidden(self) -> None:
        """A forward pass over what the last epoch left out: its losses become scores at once."""
        oracle = self.oracle
        for _, indices in self.train.hidden(batch_size=self.world.batch):
            losses = self.losses(indices, oracle.epoch)
            oracle.given.append((indices, losses.float()))
            self.train.observe(losses, indices, confidence=self.losses.channel(indices, oracle.epoch))
            values = losses.float()
            oracle.scores[indices] = torch.where(is_finite(values), values, oracle.scores[indices])
        oracle.check_scores(self.train.scores)
        del oracle.plans[oracle.epoch :]  # the next plan depends on what was observed

    def cell(self) -> None:
        """The notebook's cell: what a user runs, and runs again after an interrupt."""
        for _ in range(self.train.epoch, self.world.epochs):
            self.ordinary_pass()

    def finish(self) -> None:
        """Check what is left to check when the training is over."""
        self.follow()
        self.oracle.check_scores(self.train.scores)
        self.oracle.check_history(self.train.history)


def twin_of(world: World, losses: Known) -> tuple[list[Any], Tensor]:
    """Train without a loader and without an interruption; return the plans and the final scores."""
    train, plans = world.make(), []
    for epoch in range(world.epochs):
        plan = SeenPlan.of(train.plan(), train.compensate)
        plans.append(plan)
        for some in plan.indices.split(max(1, world.batch)):
            channels = {name: losses.channel(some, epoch) for name in train.method.channels}
            train.update(losses(some, epoch), some, **channels)
    return plans, train.scores


def save_and_load(state: Any, path: str) -> Any:
    infobatch.save(state, path)
    return infobatch.load(path)
