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
from torch import Tensor, nn

from .. import checkpoint
from ..dataset import Pruned
from ..errors import InputError, message
from ..plan import Plan
from ..scorebook import ScoreBook
from ..telemetry import report
from .captured import Captured, capturable
from .catalogue import make_task
from .feeding import TEST_BATCH, Batch, Draws, Prepare, Resident, draws, make_feed, move, resident, size_of
from .nets import lone, make_net
from .optim import make_optimizer
from .proxies import Choice, prepare
from .rates import epoch_rates, rate_table
from .records import FORMAT, Fact
from .resuming import fitting, load_optimizer, read_state
from .settings import Settings
from .tasks import Arrays, Task
from .telling import histogram, now, place, sample
from .trial import Trial

HISTOGRAMS = 10
CHECKPOINT_SECONDS = 20.0
PARTS = ("data", "step", "planning", "test")

Stop = Callable[[], bool]
Tick = Callable[[float], None]
"""Told how many epochs are done, fractions included."""


def run(
    settings: Settings,
    *,
    task: Task | None = None,
    name: str = "",
    keep: str | os.PathLike[str] | None = None,
    resume: bool = False,
    stop: Stop = lambda: False,
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
        yield {
            "kind": "resume",
            "time": now(),
            "epoch": training.train_data.epoch,
            "environment": training.environment,
        }
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
            yield {"kind": "pause", "time": now(), "epoch": training.train_data.epoch}
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
        self.device = _device(settings.device)
        if settings.threads:
            torch.set_num_threads(settings.threads)
        self.whole = task
        """The task before a static method chose among its samples. Facts are told of it."""
        self.all_samples = size_of(task.train)
        start = perf_counter()
        known = Choice(**state["choice"]) if state is not None and state.get("choice") else None
        prepared = prepare(settings, task, self.device, known)
        choosing = perf_counter() - start
        task, method = prepared.task, prepared.method
        self.task, size = task, size_of(task.train)
        self.choice = prepared.choice
        self.full_steps = math.ceil(size / settings.batch_size)
        self.total_steps = settings.steps or settings.epochs * self.full_steps
        self.epochs = math.ceil(self.total_steps / self.full_steps)
        if settings.steps and method.name != "full":
            raise InputError(message("steps with the method full", settings.method, "Pruned runs end by epochs."))
        self.train_data = Pruned(task.train, method, self.epochs, seed=settings.seed, compensate=settings.grows)
        self.train_data.paced = True  # the rates below grow
        self.train_data.to(self.device)
        torch.manual_seed(settings.seed)
        self.model = _model(settings, task).to(self.device)
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
        self.rates = rate_table(settings, self.total_steps)
        self.feed = make_feed(task, self.train_data, settings, self.device)
        self.prepare = Prepare(task, settings, self.device)
        everyone = self.whole.train
        self.labels = everyone.labels.to(self.device) if isinstance(everyone, Arrays) else None
        self.visits = torch.zeros(size, dtype=torch.int32, device=self.device)
        self.steps = 0
        self.samples = 0
        self.best = -math.inf
        self.seconds = dict.fromkeys((*PARTS, "selection", "setup"), 0.0)
        self._spent = dict.fromkeys(PARTS, 0.0)
        """Of the running epoch, also what was spent on it before a pause."""
        self.loss_sum = torch.zeros((), device=self.device)
        self._done = 0
        """Samples of the running epoch done; not 0 only between a pause and the end of that epoch."""
        self._tested: dict[str, Any] = {}
        self.seconds["selection"] = prepared.seconds
        self.seconds["setup"] = self._now() - began - choosing
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
            self._set_up(lambda: self._captured)
        start = self._now()
        plan = cast(Plan, self.train_data.plan())
        self._spend("planning", self._now() - start)
        epoch, batch = plan.epoch, self.settings.batch_size
        left = self.total_steps - self.steps + self._done // batch
        steps = min(math.ceil(plan.kept / batch), left)
        facts = self._plan_facts(plan, min(plan.kept, steps * batch))
        rates = epoch_rates(self.rates, epoch, steps, plan.kept, plan.size, self.settings, self.full_steps)

        self.trial.begin(plan.growth, self.optimizer)
        self.feed.seconds, start = 0.0, self._now()
        draw = draws(self.task, self.settings, epoch, plan.kept, self.device)
        self.model.train()
        finished = self._walk(plan, draw, rates, stop)
        self._spend("step", self._now() - start - self.feed.seconds)
        self._spend("data", self.feed.seconds)
        start = self._now()
        if finished and "hidden" in self.train_data.method.needs and not self.over:
            self._look()
        history = self.train_data.history  # where an epoch is through, its losses become scores here
        self._spend("planning", self._now() - start)
        if not finished:
            return None
        self.samples += self._done
        facts |= {"steps": steps, "lr": rates[-1], "train_loss": float(self.loss_sum) / self._done}
        self.visits[plan.indices[: self._done]] += 1
        self._done = 0
        self.loss_sum.zero_()
        if self.over or (epoch + 1) % self.settings.eval_every == 0:
            start = self._now()
            self._tested = self.test()
            self._spend("test", self._now() - start)
            facts |= {"metric": self._tested["metric"], "test_loss": self._tested["test_loss"]}
            self.best = max(self.best, self._tested["metric"])
        facts["not_finite"] = history[epoch].not_finite if len(history) > epoch else 0
        self.tick(float(epoch + 1))
        spent, self._spent = self._spent, dict.fromkeys(PARTS, 0.0)
        return {"kind": "epoch", **facts, "seconds": _rounded(spent)}

    def _walk(self, plan: Plan, draw: Draws, rates: list[float], stop: Stop) -> bool:
        batch = self.settings.batch_size
        if self.captured:
            self._captured.stage(plan.indices, draw, rates, self._done // batch)
        feed = self.feed.epoch(draw, self._done) if not self.captured else self._tail(plan, draw, len(rates))
        for at in range(self._done // batch, len(rates)):
            if self.captured and (at + 1) * batch <= plan.kept:
                self._captured.graph.replay()
                count = batch
            else:
                piece = next(feed)
                self._set_rate(rates[at])
                self.step(piece)
                count = len(piece.labels)
            self._done += count
            self.steps += 1
            if at % 16 == 0:
                self.tick(plan.epoch + self._done / plan.kept)
            if stop() and at + 1 < len(rates):
                return False
        return True

    def _tail(self, plan: Plan, draw: Draws, steps: int) -> Iterator[Batch]:
        """The last batch, where it is smaller than the others and a graph of its own would not pay."""
        batch = self.settings.batch_size
        where = slice((steps - 1) * batch, steps * batch)
        with torch.backends.cudnn.flags(benchmark=False):  # or each new size would be tried out at length
            yield cast(Resident, self.feed).batch_of(plan.indices[where], draw.at(where))

    def step(self, batch: Batch) -> None:
        """One step of training, on whatever device and feed; also what a graph captures."""
        # A compiled net is for whole batches: each new size of a last batch would be compiled anew.
        net = self.forward if len(batch.labels) == self.settings.batch_size else self.model
        book = cast(ScoreBook, self.train_data._book)
        self.trial.meet(book, batch.indices)
        with self._autocast(), lone(self.model) if len(batch.labels) == 1 else nullcontext():
            outputs = net(self.prepare(batch.inputs, batch.draw))
        losses = self.task.loss(outputs, batch.labels, self.settings.label_smoothing)
        self.loss_sum.add_(losses.detach().sum())
        loss = self.train_data.update(
            losses,
            batch.indices,
            score=self.trial.score(losses, book, batch.indices),
            confidence=self._confidence(outputs, batch.labels),
        )
        loss = self.trial.loss(loss, book, batch.indices)
        self.optimizer.zero_grad(set_to_none=not self.captured)
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.trial.stepped(self.model)

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
            with self._autocast():
                outputs = self.model(self.prepare(move(inputs, self.device)))
            labels = labels.to(self.device)
            losses = self.task.loss(outputs, labels, self.settings.label_smoothing)
            self.train_data.observe(losses, indices, confidence=self._confidence(outputs, labels))

    def _set_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _spend(self, part: str, seconds: float) -> None:
        self.seconds[part] += seconds
        self._spent[part] += seconds

    def _set_up(self, work: Callable[[], Any]) -> None:
        start = self._now()
        work()
        self.seconds["setup"] += self._now() - start

    @cached_property
    def _captured(self) -> Captured:
        return Captured(self)

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
            with self._autocast():
                outputs = net(self.prepare(inputs))
            losses.append(self.task.loss(outputs, targets, 0.0))
            scores.append(self.task.score(outputs, targets))
            labels.append(targets)
        score, label = torch.cat(scores).double(), torch.cat(labels)
        by_class = None
        if self.task.classes:
            count = torch.bincount(label, minlength=len(self.task.classes))
            total = torch.zeros_like(count, dtype=torch.float64).index_add_(0, label, score)
            both = zip(total.tolist(), count.tolist(), strict=True)
            by_class = [round(100 * value / many, 4) if many else None for value, many in both]
        loss = float(torch.cat(losses).double().mean())
        return {"metric": 100 * float(score.mean()), "test_loss": loss, "class_metric": by_class}

    def _some_of_all(self, count: int) -> Iterator[Tensor]:
        """So many batches of all data, in their order, with the crops of an epoch that never comes."""
        feed, batch = cast(Resident, self.feed), self.settings.batch_size
        draw = draws(self.task, self.settings, self.epochs, count * batch, self.device)
        for at in range(count):
            where = slice(at * batch, (at + 1) * batch)
            some = torch.arange(where.start, where.stop, device=self.device) % len(self.visits)
            yield self.prepare(feed.batch_of(some, draw.at(where)).inputs, draw.at(where))

    # ---- facts -------------------------------------------------------------------------------------------

    def start(self, name: str) -> Fact:
        return {
            "kind": "start",
            "format": FORMAT,
            "run": name or self.settings.key,
            "time": now(),
            "settings": self.settings.plain(),
            **self.whole.data,
            "metric": self.task.metric,
            "environment": self.environment,
        }

    @property
    def environment(self) -> dict[str, Any]:
        return place(self.device, self.feed, self.captured)

    def _plan_facts(self, plan: Plan, kept: int) -> Fact:
        """Of a plan's first ``kept`` samples: a run of so many steps may end before the others come."""
        scores, size = self.train_data.scores, self.all_samples
        told = report(plan, scores, self.samples)
        if kept < plan.kept:
            seen = plan.indices[:kept]
            plan = Plan(plan.epoch, seen, torch.zeros_like(plan.table).index_copy(0, seen, plan.weights[:kept]))
        values, counts = torch.unique(plan.table[plan.table != 0], return_counts=True)
        order = counts.argsort(descending=True)[:16].sort().values
        facts: Fact = {
            "epoch": plan.epoch, "kept": kept, "size": size, "saved": 1 - kept / size,
            "saved_so_far": 1 - (self.samples + kept) / ((plan.epoch + 1) * size),
            "growth": told.growth, "effective_size": plan.effective_size, "noise": told.noise,
            "not_finite": 0, "steps": 0, "lr": 0.0, "train_loss": None, "metric": None, "test_loss": None,
            "weights": {"values": values[order].tolist(), "counts": counts[order].tolist()},
            "class_kept": self._by_class(self._of_all(plan.table.ne(0))),
        }  # fmt: skip
        every = max(1, self.epochs // HISTOGRAMS)
        if plan.epoch % every == every - 1 and plan.epoch:
            facts["losses"] = histogram(scores, plan.table)
        return facts

    def _of_all(self, values: Tensor, others: float = 0) -> Tensor:
        """Values of the samples trained on, at their places in all data."""
        if self.choice is None:
            return values
        full = torch.full((self.all_samples,), others, dtype=values.dtype, device=values.device)
        return full.index_copy(0, self.choice.indices.to(values.device), values)

    def _by_class(self, counts: Tensor) -> list[int] | None:
        if self.labels is None or not self.task.classes:
            return None
        sums = torch.zeros(len(self.task.classes), dtype=torch.int64, device=self.device)
        return cast(list[int], sums.index_add_(0, self.labels, counts.long()).tolist())

    def gallery(self) -> Fact:
        """The samples that were trained on most and least often."""
        visits, scores = self._of_all(self.visits), self._of_all(self.train_data.scores, math.nan)
        tie = torch.rand(len(visits), generator=torch.Generator().manual_seed(0)).to(self.device)
        order = (visits + tie).argsort(descending=True)
        count = min(self.settings.gallery, len(order))
        most, least = order[:count].tolist(), order.flip(0)[:count].tolist()
        return {
            "kind": "samples",
            "most": [sample(self.whole, index, int(visits[index]), float(scores[index])) for index in most],
            "least": [sample(self.whole, index, int(visits[index]), float(scores[index])) for index in least],
        }

    def end(self) -> Fact:
        full = self.settings.epochs * self.all_samples
        total = {**self.seconds, "total": sum(self.seconds.values())}
        size = None if self.labels is None else self._by_class(torch.ones_like(self.labels))
        return {
            "kind": "end",
            "time": now(),
            "metric": self._tested.get("metric"),
            "test_loss": self._tested.get("test_loss"),
            "best": self.best,
            "epochs": self.epochs,
            "steps": self.steps,
            "samples": self.samples,
            "full_samples": full,
            "saved": 1 - self.samples / full,
            "not_finite": sum(each.not_finite for each in self.train_data.history),
            "seconds": _rounded(total),
            "class_size": size,
            "class_kept": self._by_class(self._of_all(self.visits)),
            "class_metric": self._tested.get("class_metric"),
        }

    # ---- checkpoints -------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "settings": self.settings.plain(),
            "data": self.whole.data,
            "choice": None if self.choice is None else asdict(self.choice),
            "model": self.model.state_dict(),
            "trial": self.trial.state(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "train_data": self.train_data.state_dict(),
            "counts": {"steps": self.steps, "samples": self.samples, "done": self._done, "best": self.best},
            "seconds": self.seconds,
            "spent": self._spent,
            "tested": self._tested,
            "visits": self.visits,
            "loss_sum": self.loss_sum,
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
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
        self.seconds |= state["seconds"]
        self._spent |= state.get("spent", {})
        self._tested = dict(state["tested"])
        self.visits.copy_(state["visits"])
        self.loss_sum.copy_(state["loss_sum"])
        torch.set_rng_state(state["rng"])
        if state["cuda_rng"] is not None and self.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda_rng"], self.device)

    # ---- small things ------------------------------------------------------------------------------------

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.settings.amp == "none":
            return nullcontext()
        kind = torch.bfloat16 if self.settings.amp == "bf16" else torch.float16
        # In a graph the copies of the weights must be made anew in each step, so they are not cached.
        return torch.autocast(self.device.type, kind, cache_enabled=not self.captured)

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return perf_counter()


def _model(settings: Settings, task: Task) -> nn.Module:
    if task.make_model is not None and settings.model in ("task", Settings.model):
        return task.make_model()
    if settings.model == "task":
        raise InputError(message("a task with its own net", task.name, "Name a model."))
    first = cast(Any, task.train)[0][0]
    if not isinstance(first, Tensor):
        remedy = "Give the task a make_model of its own."
        raise InputError(message(f"inputs as tensors, for the net {settings.model}", type(first).__name__, remedy))
    shape = first.shape
    return make_net(settings.model, tuple(shape), max(len(task.classes), 1))


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(message("a device that is here", repr(name), f"torch says: {error}")) from error
    return device


def _rounded(seconds: dict[str, float]) -> dict[str, float]:
    return {key: round(value, 6) for key, value in seconds.items()}
