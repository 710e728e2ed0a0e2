"""One run: full data, a sieve, or InfoBatch, until its budget or its epochs are spent."""

from __future__ import annotations

import argparse
import ast
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from data import Data, pad
from nets import BATCH, Learner, SlowWeights, schedule, set_rate
from torch import Tensor

import infobatch
from infobatch.sieve.cost import STEP, count_flops

VIEWS = 2000
"""Test images at a time."""
POINTS = 20
"""Points of the trace."""


def parse_method(text: str) -> infobatch.sieve.SieveMethod | None:
    """Return the method that a call such as ``hardest(keep=0.5)`` makes; None for ``full`` and ``infobatch``."""
    if text in ("full", "infobatch"):
        return None
    try:
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Name)
        make = infobatch.sieve.SIEVE_METHODS[call.func.id]
        return make(**{str(one.arg): ast.literal_eval(one.value) for one in call.keywords})
    except (SyntaxError, AssertionError, KeyError, TypeError, ValueError) as error:
        known = ", ".join(infobatch.sieve.SIEVE_METHODS)
        sys.exit(
            f"--method takes full, infobatch, or a call such as hardest(keep=0.5) of {known}; got {text} ({error})"
        )


class Run:
    """The state of one run."""

    def __init__(self, job: argparse.Namespace, seed: int, data: Data, model: Learner, proxy: Learner | None) -> None:
        torch.manual_seed(seed)
        self.job, self.data, self.model = job, data, model
        self.generator = torch.Generator(data.device).manual_seed(seed)
        sample = data.x[:5000]
        self.optimizer = model.start(sample)
        self.slow = SlowWeights(model.net)
        self.flops = STEP * count_flops(model.net, data.x[:2].float())
        """FLOPs of a training step of the large network, per row."""
        self.budget = job.budget * len(data) * self.flops
        self.kept = self.rows = self.steps = 0
        self.epoch = 0
        self.sieve: infobatch.Sieve | None = None
        self.train_data: infobatch.Pruned | None = None
        method = parse_method(job.method)
        if method is not None:
            look = self._look(job.look, proxy, sample) if method.needs_look else None
            most = round(job.budget * len(data) / BATCH / min(0.05, method.settings.get("keep", 1)))
            self.sieve = infobatch.Sieve(look, method, num_steps=most, seed=seed)
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

    @property
    def spent(self) -> float:
        """FLOPs spent so far, looking included."""
        looking = 0.0 if self.sieve is None or self.sieve.look is None else self.sieve.look.spent()
        return self.kept * self.flops + looking

    @property
    def progress(self) -> float:
        """The share of the run that is done."""
        if self.train_data is not None:
            epoch, done, total = self.train_data.progress
            return (epoch + done / total) / self.job.epochs
        return min(self.spent / self.budget, 1.0)

    def batches(self) -> Iterator[tuple[Any, ...]]:
        """Yield (images, labels, indices, ...) as the method passes them on."""
        if self.train_data is not None:
            train_data = self.train_data
            return self.data.epochs(self.generator, lambda _: train_data.plan().indices)
        source = self.data.epochs(self.generator)
        if self.sieve is None:
            return source
        if self.job.ahead and self.job.look == "proxy":
            return self.sieve.ahead(source)
        return (self.sieve(*batch) for batch in source)

    def reduce(self, losses: Tensor, indices: Tensor) -> Tensor:
        """Return the loss to call backward on, as a mean."""
        if self.sieve is not None:
            return self.sieve.reduce(losses)
        if self.train_data is not None:
            return self.train_data.update(losses, indices)
        return losses.mean()

    def train(self) -> list[dict[str, Any]]:
        """Train until the end; return a trace."""
        trace: list[dict[str, Any]] = []
        for x, y, indices, *_ in self.batches():
            progress = self.progress
            if progress >= 1 or (self.train_data is not None and self.train_data.epoch >= self.job.epochs):
                break
            losses = self.model.losses(x, y)
            loss = self.reduce(losses, indices)
            (BATCH * loss).backward()  # the sum, as in the record: larger gradients do not underflow in half precision
            set_rate(self.optimizer, schedule(progress))
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.kept += len(y)
            self.steps += 1
            if self.steps % 5 == 0:
                self.slow.pull(1 - 0.95**5 * progress**3)
            if len(trace) <= POINTS * progress:
                trace.append(self._point(progress, loss, len(y)))
            if self.train_data is not None and progress > 1 - 1e-9:
                break
        self.slow.pull(0.0)
        return trace

    def _point(self, progress: float, loss: Tensor, rows: int) -> dict[str, Any]:
        if not loss.isfinite():
            sys.exit(f"step {self.steps}: the loss is not finite; try --no-compile or --dtype float32")
        point = {"progress": round(progress, 3), "rows": rows, "loss": round(float(loss.detach()), 4)}
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
    plain, views = evaluate(model, data)
    unit = len(data) * run.flops
    looking = run.spent - run.kept * run.flops
    return {
        "format": 2,
        "dataset": job.dataset,
        "label": label(job),
        "seed": seed,
        "budget": None if job.method == "infobatch" else job.budget,
        "holdout": job.holdout,
        "widths": job.widths,
        "proxy": job.proxy if proxy is not None else None,
        "steps": run.steps,
        "epochs": round(run.steps * BATCH / len(data), 2),
        "kept_share": round(run.kept / run.steps / BATCH, 4),
        "accuracy": plain,
        "accuracy_tta": views,
        "cost_epochs": round(run.spent / unit, 3),
        "looking": round(looking / run.spent, 4),
        "seconds": round(seconds, 2),
        "alone": job.alone,
        "ahead": job.ahead,
        "compiled": job.compile,
        "dtype": job.dtype,
        "infobatch": infobatch.__version__,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if data.device.type == "cuda" else "cpu",
        "trace": trace,
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
    return ", ".join([repr(method), *width, *([] if job.every == 4 else [f"every {job.every}"])])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
