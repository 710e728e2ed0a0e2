"""The lab's training loop. It yields facts; callers record, display or log them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import torch
from torch import Tensor

from ... import files
from ...dataset import Pruned
from ...errors import InputError, message
from ...plan import Plan
from ...sieve.cost import STEP
from ...sieve.undisturbed import kept_random_state
from ..metrics.metric import NothingMeasuredError, value_of
from ..runs import facts
from ..runs.facts import AllSamples
from ..runs.interrupt import Stop, never
from ..runs.records import Fact
from ..runs.resume import explain_mismatch, load_optimizer, load_random_state, random_state, read_state
from ..tasks.catalogue import make_task
from ..tasks.nested import count_rows
from ..tasks.nets import fingerprint, net_for, norms_for_one_sample
from ..tasks.task import Arrays, Task, confidence_in_class, known_losses, split_losses
from .batches import (
    TEST_BATCH,
    Batch,
    Draws,
    Preprocess,
    augment,
    draw_augmentations,
    is_resident,
    make_feed,
    move,
    size_of,
)
from .clock import Clock
from .cuda_graph import CapturedStep, can_capture, cudnn_benchmark
from .method_text import parse_sieve
from .optimizers import (
    epoch_rates,
    make_optimizer,
    momentum_table,
    rate_table,
    set_learning_rate,
    set_momentum,
)
from .settings import Compensate, Settings, find_device
from .sieving import BatchSieve
from .static import Choice, prepare

CHECKPOINT_SECONDS = 20.0

Tick = Callable[[float], None]
"""Called with the number of epochs done, including fractions."""


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
    """Train once and yield what happens, from ``start`` to ``end``; docs/lab.md lists the facts.

    Args:
        settings: What to train.
        task: The task, if it has been loaded already.
        name: The run's name in its record; by default the key of its settings.
        keep: The checkpoint file.
        resume: Continue from that checkpoint.
        stop: Asked after each batch. Once it returns true, the run saves a checkpoint, yields ``pause`` and ends.
        tick: Called now and then with the number of epochs done.

    Yields:
        One dict of plain values per event.

    Raises:
        InputError: If these settings cannot be trained on this task.
        StateError: If the checkpoint belongs to another run.

    >>> [fact["kind"] for fact in run(Settings(method="full", epochs=1, model="mlp", gallery=0, threads=1))]
    ['start', 'epoch', 'end']
    """
    settings.check_trainable()
    task = task or make_task(settings.task, settings.data)
    path = Path(keep) if keep is not None else None
    state = read_state(path, settings, task) if resume and path is not None else None
    training = Training(settings, task, tick, state)
    if state is not None:
        yield facts.resumed(training.train_data.epoch, training.environment)
    else:
        yield training.start(name)
    last_saved, stop_requested = perf_counter(), False

    def should_stop() -> bool:
        nonlocal stop_requested
        stop_requested = stop_requested or stop()
        return stop_requested

    while not training.is_finished:
        fact = training.epoch(should_stop)
        if fact is not None:
            yield fact  # recorded before the checkpoint: an epoch may be recorded twice, but is never lost
        if stop_requested and not training.is_finished:
            if path is not None:
                files.save(training.state(), path)
            yield facts.paused(training.train_data.epoch)
            return
        if path is not None and perf_counter() - last_saved > CHECKPOINT_SECONDS:
            files.save(training.state(), path)
            last_saved = perf_counter()
    if settings.gallery:
        yield training.gallery()
    yield training.end()


class Training:
    """A run in progress: everything that changes during training.

    Args:
        settings: What to train.
        task: The task.
        tick: Called now and then with the number of epochs done.
        state: The state of a checkpoint to continue from.

    Raises:
        InputError: If these settings cannot be trained on this task.
        StateError: If ``state`` does not fit the net or the run.
    """

    def __init__(
        self, settings: Settings, task: Task, tick: Tick | None = None, state: dict[str, Any] | None = None
    ) -> None:
        settings.check_trainable()
        began = perf_counter()
        self.settings = settings
        self.tick: Tick = tick or (lambda epochs: None)  # noqa: ARG005
        self.device = find_device(settings.device)
        self.clock = Clock(self.device)
        if settings.threads:
            torch.set_num_threads(settings.threads)
        start = perf_counter()
        saved_choice = Choice(**state["choice"]) if state is not None and state.get("choice") else None
        prepared = prepare(settings, task, self.device, saved_choice)
        selection_seconds = perf_counter() - start
        self.choice = prepared.choice
        labels = task.train.class_labels if isinstance(task.train, Arrays) else None
        labels = None if labels is None else labels.to(self.device)
        self.all_samples = AllSamples(task, None if self.choice is None else self.choice.indices, labels)
        task, method = prepared.task, prepared.method
        self.task, size = task, size_of(task.train)
        self.full_steps = math.ceil(size / settings.batch_size)
        """Steps of an epoch on full data."""
        self.total_steps = settings.steps or settings.epochs * self.full_steps
        self.epochs = math.ceil(self.total_steps / self.full_steps)
        sieved = parse_sieve(settings.method)
        if settings.steps and (method.name != "full" or sieved is not None):
            raise InputError(message("steps with the method full", settings.method, "Pruned runs end by epochs."))
        compensate = cast(Compensate, settings.grows)
        self.train_data = Pruned(task.train, method, self.epochs, seed=settings.seed, compensate=compensate)
        self.train_data.to(self.device)
        torch.manual_seed(settings.seed)
        self.model = net_for(task, settings).to(self.device)
        if settings.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.captured = can_capture(task, settings, self.device)
        self.optimizer = make_optimizer(self.model, settings, captured=self.captured)
        self.forward: Callable[[Any], Any] = torch.compile(self.model) if settings.compile else self.model
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=settings.amp == "fp16")
        self.rates = rate_table(settings, self.total_steps)
        self.momenta = momentum_table(settings, self.total_steps)
        self.feed = make_feed(task, self.train_data, settings, self.device)
        self.preprocess = Preprocess(task, settings, self.device)
        self.sieve: BatchSieve | None = None
        if sieved is not None:
            with kept_random_state(self.device):  # a data set may draw from it when it is read
                self.sieve = BatchSieve(sieved, settings, task, self.model, self.total_steps, self._autocast)
                self.sieve.count_flops(self.preprocess)
        self.visits = torch.zeros(size, dtype=torch.int32, device=self.device)
        """How often each sample was trained on."""
        self.steps = 0
        self.samples = 0
        self.observed = 0
        """How many pruned samples were run through the net without training on them."""
        self.metric: Any = task.make_metric()
        if hasattr(self.metric, "to"):
            self.metric.to(self.device)
        self.best = -task.metric_info.gain(math.inf)
        self.loss_sum = torch.zeros((), device=self.device)
        self._epoch_samples = 0
        """Samples trained on in the current epoch; after a pause more than 0 before the epoch continues."""
        self._test_facts: dict[str, Any] = {}
        self._check_metric()
        self.clock.spend("selection", prepared.seconds)
        self.clock.spend("setup", self.clock.now() - began - selection_seconds)
        if state is not None:
            with explain_mismatch():
                self._load(state)

    # ---- an epoch ----------------------------------------------------------------------------------------

    @property
    def is_finished(self) -> bool:
        """True after the last step."""
        return self.steps >= self.total_steps or self.train_data.epoch >= self.epochs

    def epoch(self, stop: Stop) -> Fact | None:
        """Train the current epoch to its end; return its fact, or None if ``stop`` interrupted it."""
        if self.captured:
            with self.clock.on("setup"):
                _ = self._captured_step
        with self.clock.on("planning"):
            plan = cast(Plan, self.train_data.plan())
        epoch, batch_size = plan.epoch, self.settings.batch_size
        remaining = self.total_steps - self.steps + self._epoch_samples // batch_size
        steps = min(math.ceil(plan.kept / batch_size), remaining)
        scores = self.train_data.scores
        rates = epoch_rates(self.rates, plan, steps, batch_size, self.full_steps)

        completed = self._train(plan, rates, stop)
        with self.clock.on("planning"):
            if completed and self.train_data.method.observes_hidden and not self.is_finished:
                self._observe_hidden()
            history = self.train_data.history  # once an epoch is complete, this turns its losses into scores
        if not completed:
            return None
        used = facts.first_of(plan, self._epoch_samples) if self.sieve is None else self.sieve.end_epoch(plan)
        fact = facts.of_epoch(plan, used, scores, self.samples, self.all_samples, self.epochs)
        self.samples += used.kept
        fact |= {"steps": steps, "lr": rates[-1], "train_loss": float(self.loss_sum) / used.kept}
        self.visits[used.indices] += 1
        self._epoch_samples = 0
        self.loss_sum.zero_()
        if self.sieve is not None:
            fact["noise"] = None  # the estimate is for plans
        if self.is_finished or (epoch + 1) % self.settings.eval_every == 0:
            with self.clock.on("test"):
                self._test_facts = self.test()
            fact |= {"metric": self._test_facts["metric"], "test_loss": self._test_facts["test_loss"]}
            self.best = max(self.best, self._test_facts["metric"], key=self.task.metric_info.gain)
        fact["not_finite"] = history[epoch].not_finite if len(history) > epoch else 0
        self.tick(float(epoch + 1))
        return {"kind": "epoch", **fact, "seconds": self.clock.end_epoch()}

    def _train(self, plan: Plan, rates: list[float], stop: Stop) -> bool:
        """Take the remaining steps of a plan; return False if ``stop`` interrupted them."""
        self.feed.seconds = 0.0
        with self.clock.on("step"):
            draws = draw_augmentations(self.task, self.settings, plan.epoch, plan.kept, self.device)
            self.model.train()
            completed = self._take_steps(plan, draws, rates, stop)
        self.clock.spend("step", -self.feed.seconds)
        self.clock.spend("data", self.feed.seconds)
        return completed

    @cached_property
    def _captured_step(self) -> CapturedStep:
        return CapturedStep(self)

    def _take_steps(self, plan: Plan, draws: Draws, rates: list[float], stop: Stop) -> bool:
        batch_size = self.settings.batch_size
        first = self._epoch_samples // batch_size
        if self.captured:
            self._captured_step.stage(plan.indices, draws, rates, first)
            batches = self._captured_step.last_batch(plan, draws, len(rates))
        else:
            batches = self.feed.epoch(draws, self._epoch_samples)
        momenta = epoch_rates(self.momenta, plan, len(rates), batch_size, self.full_steps) if self.momenta else []
        for at in range(first, len(rates)):
            if self.captured and (at + 1) * batch_size <= plan.kept:
                self._captured_step.graph.replay()
                count = batch_size
            else:
                batch = next(batches)
                set_learning_rate(self.optimizer, rates[at])
                if momenta:
                    set_momentum(self.optimizer, momenta[at])
                count = batch.count
                # For a short batch cuDNN's benchmark is off: it would spend seconds on each new size.
                with nullcontext() if count == batch_size else cudnn_benchmark(False):
                    self.step(batch)
            self._epoch_samples += count
            self.steps += 1
            if at % 16 == 0:
                self.tick(plan.epoch + self._epoch_samples / plan.kept)
            if stop() and at + 1 < len(rates):
                return False
        return True

    def step(self, batch: Batch) -> None:
        """Take one training step on a batch, on any device and from any feed; a CUDA graph captures this."""
        # Only full batches go through the compiled net: each size of a last batch would be compiled again.
        net = self.forward if batch.count == self.settings.batch_size else self.model
        inputs = self.preprocess(batch.inputs, batch.draws)
        inputs, targets = augment(self.task, self.settings, inputs, batch.targets, batch.draws)
        if self.sieve is not None:
            indices = self.train_data.batch_indices if batch.indices is None else batch.indices
            inputs, targets = self.sieve.choose(inputs, targets, indices)
        with norms_for_one_sample(self.model) if count_rows(targets) == 1 else nullcontext():
            outputs = self._predict(net, inputs)
        losses, score = split_losses(self.task.loss(outputs, targets, self.settings.label_smoothing))
        self.loss_sum.add_(losses.detach().sum())
        confidence = self._confidence(outputs, targets)
        if self.sieve is not None:
            losses, score, confidence = self.sieve.expand(losses, score, confidence)
        loss = self.train_data.update(losses, batch.indices, score=score, confidence=confidence)
        self.optimizer.zero_grad(set_to_none=not self.captured)
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def _predict(self, net: Callable[[Any], Any], inputs: Any) -> Any:
        """Run the net on preprocessed inputs."""
        with self._autocast():
            return net(inputs)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.settings.amp == "none":
            return nullcontext()
        dtype = torch.bfloat16 if self.settings.amp == "bf16" else torch.float16
        # A graph must copy the weights again in each step, so the copies are not cached.
        return torch.autocast(self.device.type, dtype, cache_enabled=not self.captured)

    def _confidence(self, outputs: Any, targets: Any) -> Tensor | None:
        """The confidence per sample, if the method uses it."""
        if "confidence" not in self.train_data.method.channels:
            return None
        with torch.no_grad():
            return (self.task.confidence or confidence_in_class)(outputs, targets)

    @torch.no_grad()
    def _observe_hidden(self) -> None:
        """Run the pruned samples through the net without training on them, for methods that need their losses."""
        self.model.eval()
        generator = torch.Generator()  # otherwise the loader would draw from torch's global generator
        size = self.settings.batch_size if self.task.test_batch else TEST_BATCH
        for (inputs, targets), indices in self.train_data.hidden(batch_size=size, generator=generator):
            outputs = self._predict(self.model, self.preprocess(move(inputs, self.device)))
            targets = move(targets, self.device)
            losses, score = split_losses(self.task.loss(outputs, targets, self.settings.label_smoothing))
            known = losses if score is None else score
            self.train_data.observe(known, indices, confidence=self._confidence(outputs, targets))
            self.observed += len(losses)

    @torch.no_grad()
    def test(self) -> dict[str, Any]:
        """Compute loss and metric on the test set, over all samples and per class."""
        self.model.eval()
        self.metric.reset()
        losses = []
        for inputs, targets in self.feed.test():
            outputs = self._predict(self.model, self.preprocess(inputs))
            losses.append(known_losses(*split_losses(self.task.loss(outputs, targets, 0.0))))
            self.metric.update(outputs, targets)
        found = facts.of_test(torch.cat(losses), self.metric, len(self.task.classes))
        self.metric.reset()
        return found

    @torch.no_grad()
    def _check_metric(self) -> None:
        """Try the metric on a few test samples, so that a wrong one fails before anything is trained."""
        self.model.eval()
        with kept_random_state(self.device):
            for inputs, targets in self.feed.few():
                outputs = self._predict(self.model, self.preprocess(inputs))
                self._confidence(outputs, targets)
                self.metric.reset()
                self.metric.update(outputs, targets)
                with suppress(NothingMeasuredError):  # the other samples may have something to measure
                    value_of(self.metric)

    # ---- facts -------------------------------------------------------------------------------------------

    def start(self, name: str) -> Fact:
        """Return the ``start`` fact."""
        net, sieve = fingerprint(self.model), None if self.sieve is None else self.sieve.facts
        return facts.started(name, self.settings, self.all_samples.task, net, self.environment, sieve)

    @property
    def environment(self) -> dict[str, Any]:
        """The software and hardware of this run."""
        return facts.environment(self.device, self.captured, is_resident(self.task, self.settings))

    def gallery(self) -> Fact:
        """Return the ``samples`` fact."""
        return facts.gallery(self.all_samples, self.visits, self.train_data.scores, self.settings.gallery)

    def end(self) -> Fact:
        """Return the ``end`` fact."""
        counts = {"best": self.best, "epochs": self.epochs, "steps": self.steps, "samples": self.samples}
        not_finite = sum(each.not_finite for each in self.train_data.history)
        return facts.ended(
            self._test_facts,
            counts,
            cost=self._cost(),
            not_finite=not_finite,
            seconds=self.clock.total(),
            all_samples=self.all_samples,
            visits=self.visits,
        )

    def _cost(self) -> Fact:
        """Return what the run cost beside full data; a look at a sample costs a share of training on it."""
        full_samples = self.settings.epochs * self.all_samples.size
        if self.sieve is None and not self.train_data.method.observes_hidden:
            return facts.cost_of(self.samples, full_samples, self.steps)
        forward = 1 / STEP if self.sieve is None else self.sieve.model_flops / self.sieve.model_flops.step
        looked = self.observed * forward + (0.0 if self.sieve is None else self.sieve.looking())
        full_steps = self.settings.epochs * self.full_steps
        cost = facts.cost_of(self.samples, full_samples, full_steps, looking=looked / full_samples)
        return cost if self.sieve is None else {**cost, "look_not_finite": self.sieve.not_finite}

    # ---- checkpoints -------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return everything a checkpoint needs to continue this run."""
        counts = {"steps": self.steps, "samples": self.samples, "done": self._epoch_samples, "best": self.best}
        counts["observed"] = self.observed
        return {
            "settings": self.settings.plain(),
            "data": self.all_samples.task.data,
            "choice": None if self.choice is None else asdict(self.choice),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "train_data": self.train_data.state_dict(),
            "counts": counts,
            "seconds": self.clock.seconds,
            "spent": self.clock.epoch,
            "tested": self._test_facts,
            "visits": self.visits,
            "loss_sum": self.loss_sum,
            "sieve": None if self.sieve is None else self.sieve.state(),
            **random_state(self.device),
        }

    def _load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        load_optimizer(self.optimizer, state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.train_data.load_state_dict(state["train_data"])
        self.train_data.to(self.device)
        self.steps, self.samples = state["counts"]["steps"], state["counts"]["samples"]
        self._epoch_samples, self.best = state["counts"]["done"], state["counts"]["best"]
        self.observed = state["counts"].get("observed", 0)  # older checkpoints did not count
        self.clock.seconds |= state["seconds"]
        self.clock.epoch |= state.get("spent", {})
        self._test_facts = dict(state["tested"])
        self.visits.copy_(state["visits"])
        self.loss_sum.copy_(state["loss_sum"])
        if self.sieve is not None:
            self.sieve.load(state["sieve"])
        load_random_state(state, self.device)
