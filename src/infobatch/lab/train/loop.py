"""The one training loop of the lab. It yields facts; others write, show or log them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import torch
from torch import Tensor

from ... import files as checkpoint
from ...dataset import Pruned
from ...epoch.scores import ScoreBook
from ...errors import InputError, message
from ...plan import Plan
from ...rates import set_rate
from ..runs import facts as telling
from ..runs.facts import Everyone
from ..runs.interrupt import Stop, never
from ..runs.records import Fact
from ..runs.resume import fitting, load_optimizer, load_random_state, random_state, read_state
from ..tasks.catalogue import make_task
from ..tasks.nets import fingerprint, lone, net_for
from ..tasks.task import Arrays, Task, check_range, check_scores
from .batches import TEST_BATCH, Batch, Draws, Prepare, Resident, draws, make_feed, move, resident, size_of
from .clock import Clock
from .cuda_graph import Captured, capturable, tuning
from .optimizers import make_optimizer
from .rate_curve import epoch_rates, rate_table
from .settings import Settings, find_device
from .static import Choice, prepare
from .trial import Trial

CHECKPOINT_SECONDS = 20.0

Tick = Callable[[float], None]
"""Told how many epochs are done, fractions included."""


def run(
    settings: Settings,
    *,
    task: Task | None = None,
    name: str = "",
    keep: str | os.PathLike[str] | None = None,
    resume: bool = False,
    stop: Stop = never,
    tick: Tick | None = None,
) -> Iterator[Fact]:
    """Train once; yield what happens, from ``start`` to ``end`` (see docs/lab.md).

    ``keep`` is the file a checkpoint is kept in, and ``resume`` goes on from it. Where ``stop()`` becomes true the
    run saves itself after the batch at hand, yields ``pause`` and ends.
    """
    task = task or make_task(settings.task, settings.data)
    path = Path(keep) if keep is not None else None
    state = read_state(path, settings, task) if resume and path is not None else None
    training = Training(settings, task, tick, state)
    if state is not None:
        yield telling.resumed(training.train_data.epoch, training.environment)
    else:
        yield training.start(name)
    saved, asked = perf_counter(), False

    def ask() -> bool:
        nonlocal asked
        asked = asked or stop()
        return asked

    while not training.over:
        fact = training.epoch(ask)
        if fact is not None:
            yield fact  # written down before the checkpoint: an epoch may be told twice, but never lost
        if asked and not training.over:
            if path is not None:
                checkpoint.save(training.state(), path)
            yield telling.paused(training.train_data.epoch)
            return
        if path is not None and not training.over and perf_counter() - saved > CHECKPOINT_SECONDS:
            checkpoint.save(training.state(), path)
            saved = perf_counter()
    if settings.gallery:
        yield training.gallery()
    yield training.end()


class Training:
    """A run in the making: everything that changes while it goes on."""

    def __init__(
        self, settings: Settings, task: Task, tick: Tick | None = None, state: dict[str, Any] | None = None
    ) -> None:
        began = perf_counter()
        self.settings = settings
        self.tick: Tick = tick or (lambda epochs: None)  # noqa: ARG005
        self.device = find_device(settings.device)
        self.clock = Clock(self.device)
        if settings.threads:
            torch.set_num_threads(settings.threads)
        start = perf_counter()
        known = Choice(**state["choice"]) if state is not None and state.get("choice") else None
        prepared = prepare(settings, task, self.device, known)
        choosing = perf_counter() - start
        self.choice = prepared.choice
        labels = task.train.labels.to(self.device) if isinstance(task.train, Arrays) else None
        self.everyone = Everyone(task, None if self.choice is None else self.choice.indices, labels)
        task, method = prepared.task, prepared.method
        self.task, size = task, size_of(task.train)
        self.full_steps = math.ceil(size / settings.batch_size)
        self.total_steps = settings.steps or settings.epochs * self.full_steps
        self.epochs = math.ceil(self.total_steps / self.full_steps)
        if settings.steps and method.name != "full":
            raise InputError(message("steps with the method full", settings.method, "Pruned runs end by epochs."))
        self.train_data = Pruned(task.train, method, self.epochs, seed=settings.seed, compensate=settings.grows)
        self.train_data.paced = True  # the rates below grow
        self.train_data.to(self.device)
        torch.manual_seed(settings.seed)
        self.model = net_for(task, settings).to(self.device)
        if settings.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.trial = Trial(settings, self.model, self.device)
        if self.trial.idea.looks_up and not resident(task, settings):
            remedy = "Data in memory and feed=resident, or another idea."
            raise InputError(message(f"data in the device's memory, for {settings.ideas}", "a loader", remedy))
        self.captured = capturable(task, settings, self.device) and not self.trial.idea.steers
        self.optimizer = make_optimizer(self.model, settings, captured=self.captured)
        self.forward: Callable[[Any], Any] = torch.compile(self.model) if settings.compile else self.model
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=settings.amp == "fp16")
        fewer = settings.epochs * self.full_steps / self.total_steps if settings.grows == "lr" else 1.0
        self.rates = rate_table(settings, self.total_steps, growth=max(fewer, 1.0))
        self.feed = make_feed(task, self.train_data, settings, self.device)
        self.prepare = Prepare(task, settings, self.device)
        self.visits = torch.zeros(size, dtype=torch.int32, device=self.device)
        self.steps = 0
        self.samples = 0
        self.best = -math.inf
        self.loss_sum = torch.zeros((), device=self.device)
        self._done = 0
        """Samples of the running epoch done; not 0 only between a pause and the end of that epoch."""
        self._tested: dict[str, Any] = {}
        self._try_score()
        self.clock.spend("selection", prepared.seconds)
        self.clock.spend("setup", self.clock.now() - began - choosing)
        if state is not None:
            with fitting():
                self._load(state)

    # ---- an epoch ----------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        return self.steps >= self.total_steps or self.train_data.epoch >= self.epochs

    def epoch(self, stop: Stop) -> Fact | None:
        """Train an epoch, or what is left of it. None where ``stop`` cut it short."""
        if self.captured:
            with self.clock.on("setup"):
                _ = self._captured
        with self.clock.on("planning"):
            plan = cast(Plan, self.train_data.plan())
        epoch, batch = plan.epoch, self.settings.batch_size
        left = self.total_steps - self.steps + self._done // batch
        steps = min(math.ceil(plan.kept / batch), left)
        kept, scores = min(plan.kept, steps * batch), self.train_data.scores
        facts = telling.of_plan(plan, kept, scores, self.samples, self.everyone, self.epochs)
        rates = epoch_rates(self.rates, epoch, steps, plan.kept, plan.size, self.settings, self.full_steps)

        self.trial.begin(plan.growth, self.optimizer)
        finished = self._walk(plan, rates, stop)
        with self.clock.on("planning"):
            if finished and "hidden" in self.train_data.method.needs and not self.over:
                self._look()
            history = self.train_data.history  # where an epoch is through, its losses become scores here
        if not finished:
            return None
        self.samples += self._done
        facts |= {"steps": steps, "lr": rates[-1], "train_loss": float(self.loss_sum) / self._done}
        self.visits[plan.indices[: self._done]] += 1
        self._done = 0
        self.loss_sum.zero_()
        if self.over or (epoch + 1) % self.settings.eval_every == 0:
            with self.clock.on("test"):
                self._tested = self.test()
            facts |= {"metric": self._tested["metric"], "test_loss": self._tested["test_loss"]}
            self.best = max(self.best, self._tested["metric"])
        facts["not_finite"] = history[epoch].not_finite if len(history) > epoch else 0
        self.tick(float(epoch + 1))
        return {"kind": "epoch", **facts, "seconds": self.clock.end_epoch()}

    def _walk(self, plan: Plan, rates: list[float], stop: Stop) -> bool:
        """The steps of a plan that are not done yet. False where ``stop`` cut them short."""
        self.feed.seconds = 0.0
        with self.clock.on("step"):
            draw = draws(self.task, self.settings, plan.epoch, plan.kept, self.device)
            self.model.train()
            finished = self._steps(plan, draw, rates, stop)
        self.clock.spend("step", -self.feed.seconds)
        self.clock.spend("data", self.feed.seconds)
        return finished

    @cached_property
    def _captured(self) -> Captured:
        return Captured(self)

    def _steps(self, plan: Plan, draw: Draws, rates: list[float], stop: Stop) -> bool:
        batch = self.settings.batch_size
        if self.captured:
            self._captured.stage(plan.indices, draw, rates, self._done // batch)
        feed = self.feed.epoch(draw, self._done) if not self.captured else self._captured.tail(plan, draw, len(rates))
        for at in range(self._done // batch, len(rates)):
            if self.captured and (at + 1) * batch <= plan.kept:
                self._captured.graph.replay()
                count = batch
            else:
                piece = next(feed)
                for group in self.optimizer.param_groups:
                    set_rate(group, rates[at])
                count = len(piece.labels)
                with nullcontext() if count == batch else tuning(False):  # or each new size takes cuDNN seconds
                    self.step(piece)
            self._done += count
            self.steps += 1
            if at % 16 == 0:
                self.tick(plan.epoch + self._done / plan.kept)
            if stop() and at + 1 < len(rates):
                return False
        return True

    def step(self, batch: Batch) -> None:
        """One step of training, on whatever device and feed; also what a graph captures."""
        # A compiled net is for whole batches: each new size of a last batch would be compiled anew.
        net = self.forward if len(batch.labels) == self.settings.batch_size else self.model
        book = cast(ScoreBook, self.train_data._book)
        self.trial.meet(book, batch.indices)
        with lone(self.model) if len(batch.labels) == 1 else nullcontext():
            outputs = self._answer(net, batch.inputs, batch.draw)
        losses = self.task.loss(outputs, batch.labels, self.settings.label_smoothing)
        self.loss_sum.add_(losses.detach().sum())
        loss = self.train_data.update(
            losses,
            batch.indices,
            score=self.trial.score(losses, book, batch.indices),
            confidence=self._confidence(outputs, batch.labels),
        )
        loss = self.trial.loss(loss, len(losses), book, batch.indices)
        self.optimizer.zero_grad(set_to_none=not self.captured)
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.trial.stepped(self.model)

    def _answer(self, net: Callable[[Any], Any], inputs: Any, draw: Draws | None = None) -> Any:
        with self._autocast():
            return net(self.prepare(inputs, draw))

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.settings.amp == "none":
            return nullcontext()
        kind = torch.bfloat16 if self.settings.amp == "bf16" else torch.float16
        # In a graph the copies of the weights must be made anew in each step, so they are not cached.
        return torch.autocast(self.device.type, kind, cache_enabled=not self.captured)

    def _confidence(self, outputs: Any, labels: Tensor) -> Tensor | None:
        """The probability of the right answer, where the method asks for it."""
        if "confidence" not in self.train_data.method.needs:
            return None
        chances: Tensor = outputs.detach().float().softmax(1)
        return chances.gather(1, labels[:, None]).squeeze(1)

    @torch.no_grad()
    def _look(self) -> None:
        """A forward pass over those left out, where the method wants to know how they fare."""
        self.model.eval()
        own = torch.Generator()  # or the loader would draw from the global one
        for (inputs, labels), indices in self.train_data.hidden(batch_size=TEST_BATCH, generator=own):
            outputs = self._answer(self.model, move(inputs, self.device))
            labels = labels.to(self.device)
            losses = self.task.loss(outputs, labels, self.settings.label_smoothing)
            self.train_data.observe(losses, indices, confidence=self._confidence(outputs, labels))

    @torch.no_grad()
    def test(self) -> dict[str, Any]:
        """Loss and metric on the test set, of all samples and of each class."""
        net = self.trial.to_test(self.model)
        if self.trial.idea.recalibrate:
            with self._autocast():
                self.trial.recalibrate(net, self._some_of_all(self.trial.idea.recalibrate))
        net.eval()
        losses, scores, labels = [], [], []
        for inputs, targets in self.feed.test():
            outputs = self._answer(net, inputs)
            losses.append(self.task.loss(outputs, targets, 0.0))
            scores.append(check_scores(self.task.score(outputs, targets), len(targets)))
            labels.append(targets)
        judged = check_range(torch.cat(scores).to(self.device))
        return telling.judged(torch.cat(losses), judged, torch.cat(labels), len(self.task.classes))

    @torch.no_grad()
    def _try_score(self) -> None:
        """On a few test samples: a score that cannot be right is said before anything is trained or written."""
        before = random_state(self.device)
        self.model.eval()
        for inputs, labels in self.feed.few():
            check_range(check_scores(self.task.score(self._answer(self.model, inputs), labels), len(labels)))
        load_random_state(before, self.device)

    def _some_of_all(self, count: int) -> Iterator[Any]:
        """So many batches of all data, with the crops of an epoch that never comes."""
        draw = draws(self.task, self.settings, self.epochs, count * self.settings.batch_size, self.device)
        for batch in cast(Resident, self.feed).all(draw, count):
            yield self.prepare(batch.inputs, batch.draw)

    # ---- facts -------------------------------------------------------------------------------------------

    def start(self, name: str) -> Fact:
        return telling.started(name, self.settings, self.everyone.task, fingerprint(self.model), self.environment)

    @property
    def environment(self) -> dict[str, Any]:
        return telling.place(self.device, self.feed, self.captured)

    def gallery(self) -> Fact:
        return telling.gallery(self.everyone, self.visits, self.train_data.scores, self.settings.gallery)

    def end(self) -> Fact:
        counts = {"best": self.best, "epochs": self.epochs, "steps": self.steps, "samples": self.samples}
        full = self.settings.epochs * self.everyone.size
        not_finite = sum(each.not_finite for each in self.train_data.history)
        return telling.ended(self._tested, counts, full, not_finite, self.clock.total(), self.everyone, self.visits)

    # ---- checkpoints -------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "settings": self.settings.plain(),
            "data": self.everyone.task.data,
            "choice": None if self.choice is None else asdict(self.choice),
            "model": self.model.state_dict(),
            "trial": self.trial.state(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "train_data": self.train_data.state_dict(),
            "counts": {"steps": self.steps, "samples": self.samples, "done": self._done, "best": self.best},
            "seconds": self.clock.seconds,
            "spent": self.clock.epoch,
            "tested": self._tested,
            "visits": self.visits,
            "loss_sum": self.loss_sum,
            **random_state(self.device),
        }

    def _load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.trial.load(state.get("trial", {}))
        load_optimizer(self.optimizer, state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.train_data.load_state_dict(state["train_data"])
        self.train_data.to(self.device)
        self.steps, self.samples = state["counts"]["steps"], state["counts"]["samples"]
        self._done, self.best = state["counts"]["done"], state["counts"]["best"]
        self.clock.seconds |= state["seconds"]
        self.clock.epoch |= state.get("spent", {})
        self._tested = dict(state["tested"])
        self.visits.copy_(state["visits"])
        self.loss_sum.copy_(state["loss_sum"])
        load_random_state(state, self.device)
