"""One run: full data, a sieve, or InfoBatch, until its budget or its epochs are spent."""

from __future__ import annotations

import argparse
import ast
import functools
import itertools
import math
import time
from collections.abc import Iterator
from typing import Any

import torch
from data import Data, pad
from nets import BATCH, Learner, SlowWeights, schedule, set_rate
from torch import Tensor

import infobatch
from infobatch.sieve import count_flops

VIEWS = 2000
"""Test images at a time."""
POINTS = 20
"""Points of the trace."""
WARM = 20
"""Steps before the first timed run: ``adaptive()`` has by then decided once about how many rows to keep."""


def parse_method(text: str) -> infobatch.sieve.SieveMethod | None:
    """Return the method that a call such as ``hardest(keep=0.5)`` makes; None for ``full`` and ``infobatch``.

    Raises:
        ValueError: If there is no such method, or it refuses its arguments.
    """
    if text in ("full", "infobatch"):
        return None
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError("not a call with arguments by name")
        make = infobatch.sieve.SIEVE_METHODS[call.func.id]
        return make(**{str(one.arg): ast.literal_eval(one.value) for one in call.keywords})
    except (SyntaxError, KeyError, TypeError, ValueError) as error:
        known = ", ".join(infobatch.sieve.SIEVE_METHODS)
        expected = f"full, infobatch, or a call such as hardest(keep=0.5) of {known}"
        raise ValueError(f"--method: expected {expected}; got {text} ({error})") from error


def warm_steps(job: argparse.Namespace) -> int:
    """Return how many steps to run before anything is timed; a rehearsal is not worth much time."""
    return 3 if job.tiny else WARM


def sizes_of(job: argparse.Namespace) -> set[int]:
    """Return the sizes that batches of the large network have."""
    method = parse_method(job.method)
    shares = () if method is None else (method.settings.get("keep", 1.0), *method.settings.get("sizes", ()))
    return {BATCH, *(round(share * BATCH) for share in shares)}


def count_steps(method: infobatch.sieve.SieveMethod, batches: float, look: float, train: float, every: int) -> int:
    """Return how many steps of a method with fixed shares cost as much as ``batches`` steps on whole batches.

    Args:
        method: The method; which share it passes on may depend on the share of the run that is done.
        batches: The budget.
        look: What a look costs, as a share of a step on a whole batch.
        train: What a look costs in which the proxy trains.
        every: The proxy trains in every n-th look; 0 for never.
    """

    def cost(steps: int) -> float:
        amount, total = method.make_amount(), 0.0
        for step in range(steps):
            share = amount.decide(step, step / steps).share
            is_trained = every > 0 and step % every == 0
            total += share + (train if is_trained else look if share < 1 else 0.0)
        return total

    low, high = 1, 2
    while cost(high) < batches:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(middle) < batches else (low, middle)
    return high


@functools.cache
def side_stream() -> torch.cuda.Stream:
    """Return the stream on which all sieves of a process look ahead: memory is kept for each stream apart."""
    return torch.cuda.Stream()


class Run:
    """The state of one run."""

    def __init__(self, job: argparse.Namespace, seed: int, data: Data, model: Learner, proxy: Learner | None) -> None:
        torch.manual_seed(seed)
        self.job, self.data, self.model = job, data, model
        self.generator = torch.Generator(data.device).manual_seed(seed)
        sample = data.x[:5000]
        self.optimizer = model.start(sample)
        self.slow = SlowWeights(model.net)
        flops = count_flops(model.net, data.x[:2].float())
        self.forward, self.flops = float(flops), flops.step
        """FLOPs of a training step of the large network, per row."""
        self.budget = job.budget * len(data) * self.flops
        self.kept = self.steps = 0
        self.sizes = sizes_of(job)
        self.sieve: infobatch.Sieve | None = None
        self.train_data: infobatch.Pruned | None = None
        self._epoch = self._rows_before = self._rows_in_epoch = 0
        method = parse_method(job.method)
        if method is not None:
            look = self._look(job.look, proxy, sample) if method.needs_look else None
            num_steps = self._count_steps(method, None if look is None else proxy)
            self.sieve = infobatch.Sieve(look, method, num_steps=num_steps, seed=seed)
        elif job.method == "infobatch":
            indices = torch.utils.data.TensorDataset(torch.arange(len(data)))
            self.train_data = infobatch.InfoBatch.paper(indices, job.epochs, seed=seed).to(data.device)

    def _look(self, kind: str, proxy: Learner | None, sample: Tensor) -> infobatch.sieve.Look:
        if kind == "own":
            return infobatch.sieve.Own(self.model.net, losses=lambda _, batch: self.model.losses(*batch[:2]))
        assert proxy is not None
        # The schedule follows the budget instead of the number of steps, which an adaptive method does not know.
        return infobatch.sieve.Proxy(
            proxy.net,
            losses=lambda _, batch: proxy.losses(*batch[:2]),
            optimizer=proxy.start(sample, rows=BATCH),
            every=self.job.every,
            schedule=lambda _: schedule(self.progress),
        )

    def _count_steps(self, method: infobatch.sieve.SieveMethod, proxy: Learner | None) -> int:
        """Return the number of steps for methods that work in a part of the run; no other reads it."""
        if not method.is_windowed:
            return 1
        batches = self.job.budget * len(self.data) / BATCH
        if proxy is None:
            return count_steps(method, batches, self.forward / self.flops, 0.0, 0)
        of_proxy = count_flops(proxy.net, self.data.x[:2].float())
        return count_steps(method, batches, of_proxy / self.flops, of_proxy.step / self.flops, self.job.every)

    @property
    def spent(self) -> float:
        """FLOPs spent so far, looking included."""
        looking = 0.0 if self.sieve is None or self.sieve.look is None else self.sieve.look.spent()
        return self.kept * self.flops + looking

    @property
    def progress(self) -> float:
        """The share of the run that is done."""
        if self.train_data is not None:
            done = (self.kept - self._rows_before) / max(self._rows_in_epoch, 1)
            return (self._epoch - 1 + done) / self.job.epochs
        return min(self.spent / self.budget, 1.0)

    def batches(self) -> Iterator[tuple[Any, ...]]:
        """Yield (images, labels, indices, ...) as the method passes them on."""
        if self.train_data is not None:
            return self.data.epochs(self.generator, self._next_plan)
        source = self.data.epochs(self.generator)
        return source if self.sieve is None else self._passed(self.sieve, source)

    def _passed(self, sieve: infobatch.Sieve, source: Iterator[tuple[Tensor, ...]]) -> Iterator[tuple[Any, ...]]:
        """Yield what a sieve passes on."""
        if self.job.ahead and self.job.look == "proxy":
            if self.data.device.type == "cuda":
                sieve._stream = side_stream()
            return sieve.ahead(source)
        return (sieve(*batch) for batch in source)

    def _next_plan(self) -> Tensor | None:
        """Return the samples of InfoBatch's next epoch; None after the last."""
        assert self.train_data is not None
        if self._epoch == self.job.epochs:
            return None
        indices = self.train_data.plan().indices
        self._epoch, self._rows_before, self._rows_in_epoch = self._epoch + 1, self.kept, len(indices)
        return indices

    def reduce(self, losses: Tensor, indices: Tensor) -> Tensor:
        """Return the loss to call backward on, as a mean."""
        if self.sieve is not None:
            return self.sieve.reduce(losses)
        if self.train_data is not None:
            return self.train_data.update(losses, indices)
        return losses.mean()

    def warm_up(self) -> None:
        """Compile, and choose kernels, for everything that will be timed. This run is then of no use; make another."""
        self.train(warm_steps(self.job))
        torch.backends.cudnn.benchmark = True
        look = None if self.sieve is None else self.sieve.look
        for size in sorted(self.model.sizes & self.sizes):
            source = self.data.epochs(self.generator)
            if look is not None and size < BATCH:
                # The sieve itself, since compiled code is for the settings it is called with. It looks in every step.
                method = infobatch.sieve.hardest(keep=size / BATCH)
                source = self._passed(infobatch.Sieve(look, method, num_steps=1), source)
            # the proxy trains in the first step and in the last but one
            for x, y, *_ in itertools.islice(source, 2 if self.job.tiny else self.job.every + 2):
                self._step(self.model.losses(x[:size], y[:size]).mean())

    def train(self, steps: int | None = None) -> list[dict[str, Any]]:
        """Train until the end, or for some steps; return a trace. Nothing in the loop waits for the device."""
        trace: list[dict[str, Any]] = []
        for x, y, indices, *_ in itertools.islice(self.batches(), steps):
            progress = self.progress
            if progress >= 1:
                break
            # InfoBatch ends each epoch with a batch of another size, for which trying kernels takes longer than a step.
            torch.backends.cudnn.benchmark = len(y) in self.model.sizes
            loss = self._learn(x, y, indices, schedule(progress))
            self.kept += len(y)
            self.steps += 1
            if self.steps % 5 == 0:
                self.slow.pull(1 - 0.95**5 * progress**3)
            if len(trace) <= POINTS * progress:
                trace.append(self._point(progress, loss, len(y)))
        self.slow.pull(0.0)
        return trace

    def _learn(self, x: Tensor, y: Tensor, indices: Tensor, rate: float) -> Tensor:
        """Take a step of the large network, and return the loss before it."""
        loss = self.reduce(self.model.losses(x, y), indices)
        set_rate(self.optimizer, rate)
        self._step(loss)
        return loss

    def _step(self, loss: Tensor) -> None:
        # The gradient of the sum, as in the record: it does not underflow in half precision.
        (BATCH * loss).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _point(self, progress: float, loss: Tensor, rows: int) -> dict[str, Any]:
        point = {"progress": round(progress, 3), "rows": rows, "loss": loss.detach()}
        carried = getattr(getattr(self.sieve, "_amount", None), "carried", None)
        return {**point, "carried": [round(one, 3) for one in carried]} if carried else point


@torch.no_grad()
def evaluate(model: Learner, data: Data) -> tuple[float, float]:
    """Return the accuracy in percent on plain images, and averaged over mirrored and shifted views."""
    model.net.eval()
    plain = views = 0
    for start in range(0, len(data.test_x), VIEWS):
        x, y = data.test_x[start : start + VIEWS], data.test_y[start : start + VIEWS]

        def both(view: Tensor) -> Tensor:
            return model.predict(view) + model.predict(view.flip(2))

        padded = pad(x, 1)
        shifted = both(padded[:, :32, :32].contiguous()) + both(padded[:, 2:, 2:].contiguous())
        plain += int((model.predict(x).argmax(1) == y).sum())
        views += int(((0.5 * both(x) + 0.25 * shifted).argmax(1) == y).sum())
    model.net.train()
    return 100 * plain / len(data.test_x), 100 * views / len(data.test_x)


def train_one(job: argparse.Namespace, seed: int, data: Data, model: Learner, proxy: Learner | None) -> dict[str, Any]:
    """Train one run and return its record."""
    run = Run(job, seed, data, model, proxy)
    _wait(data.device)
    began = time.perf_counter()
    trace = run.train()
    _wait(data.device)
    seconds = time.perf_counter() - began
    for point in trace:
        point["loss"] = round(float(point["loss"]), 4)
        if not math.isfinite(point["loss"]):
            raise ArithmeticError(f"at {point['progress']:.0%} of the run the loss was not finite; try --dtype float32")
    plain, views = evaluate(model, data)
    looking = run.spent - run.kept * run.flops
    return {
        "format": 2,
        **identity(job, seed),
        "method": job.method,
        "look": job.look if proxy is not None or job.look == "own" else None,
        "widths": job.widths,
        "proxy": job.proxy if proxy is not None else None,
        "steps": run.steps,
        "epochs": round(run.steps * BATCH / len(data), 2),
        "kept_share": round(run.kept / run.steps / BATCH, 4),
        "accuracy": plain,
        "accuracy_tta": views,
        "cost_epochs": round(run.spent / (len(data) * run.flops), 3),
        "looking": round(looking / run.spent, 4),
        "seconds": round(seconds, 2),
        "ahead": job.ahead,
        "compiled": job.compile,
        "dtype": job.dtype,
        "infobatch": infobatch.__version__,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if data.device.type == "cuda" else "cpu",
        "trace": trace,
    }


def identity(job: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Return what tells a run from all others."""
    return {
        "dataset": f"tiny-{job.dataset}" if job.tiny else job.dataset,
        "holdout": job.holdout,
        "label": label(job),
        "budget": None if job.method == "infobatch" else job.budget,
        "seed": seed,
        "alone": job.alone,
    }


def label(job: argparse.Namespace) -> str:
    """Name the method of a job, with what differs from the defaults."""
    method = parse_method(job.method)
    if method is None:
        return job.method if job.method == "full" else f"{job.method}, {job.epochs} epochs"
    if not method.needs_look:
        return repr(method)
    if job.look == "own":
        return f"{method!r}, own"
    width = [] if job.proxy == [64, 128, 128] else [f"proxy {job.proxy[0]}"]
    rest = [*([] if job.every == 4 else [f"every {job.every}"]), *([] if job.ahead else ["not ahead"])]
    return ", ".join([repr(method), *width, *rest])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
