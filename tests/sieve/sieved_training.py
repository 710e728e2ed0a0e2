"""One small training with a sieve, of any look and method, on a stream or on top of InfoBatch."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import infobatch
from infobatch.sieve import (
    Look,
    Own,
    Proxy,
    Reference,
    Remembered,
    SieveMethod,
    adaptive,
    es,
    hardest,
    lot,
    selective_backprop,
)

SIZE, BATCH, EPOCHS = 30, 8, 4
STEPS = EPOCHS * -(-SIZE // BATCH)
criterion = nn.CrossEntropyLoss(reduction="none")

METHODS: dict[str, Callable[[], SieveMethod]] = {
    "constant": lambda: hardest(0.5),
    "adaptive": lambda: adaptive(0.4, sizes=(0.25, 0.5), every=3),
    "windowed": lambda: selective_backprop(0.5, begin=0.2, end=0.8, whole_every=3),
    "by lot": lambda: lot(0.5),
}
BESIDE = ("proxy", "callable", "reference of proxy")
"""Looks that may run beside the training step."""
LOOKS = (*BESIDE, "own", "reference of own")


def net(*, dropout: float = 0.3) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3))


def x_and_y(count: int, seed: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return x, x[:, :3].argmax(1)


class Training:
    """A model with BatchNorm and dropout, and a sieve.

    Args:
        look: One of ``LOOKS``, or "remembered", which needs ``memory``.
        method: One of ``METHODS``.
        memory: Whether to train on ``InfoBatch``; otherwise on a stream.
        ahead: Whether to look one batch ahead.
    """

    def __init__(
        self, look: str = "proxy", method: str = "constant", *, memory: bool = False, ahead: bool = False
    ) -> None:
        self.model, self.ahead, self.steps = net(), ahead, 0
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2, momentum=0.9)
        self.train_data: infobatch.Pruned | None = None
        if memory:
            data = TensorDataset(*x_and_y(SIZE, 0))
            # the levels of ES: over epochs by eswp, inside the batch by the sieve
            self.train_data = infobatch.Pruned(data, infobatch.methods.eswp(), EPOCHS)
            if look != "remembered":
                self.train_data = infobatch.InfoBatch(data, EPOCHS)
            self.loader = infobatch.DataLoader(self.train_data, batch_size=BATCH)
        chosen = es(0.5) if look == "remembered" and method == "by lot" else METHODS[method]()
        self.sieve = infobatch.Sieve(self.make_look(look), chosen, num_steps=STEPS, seed=7)

    def make_look(self, kind: str) -> Look | Callable[[Any], Tensor]:
        if kind == "callable":
            return lambda batch: torch.where(batch[0][:, 3] > 1.5, torch.nan, batch[0].square().sum(1))
        if kind == "remembered":
            return Remembered(Own(self.model, criterion), self.train_data, share=0.2, column="slow")
        if kind.startswith("reference"):
            return Reference(net(), criterion, of=self.make_look(kind.removeprefix("reference of ")))
        return Own(self.model, criterion) if kind == "own" else Proxy(net(), criterion, every=2)

    @property
    def epoch(self) -> int:
        return 0 if self.train_data is None else self.train_data.epoch

    def passes(self) -> Iterator[Any]:
        """The passes over the data that remain, each an iterable of batches."""
        if self.train_data is None:
            yield (x_and_y(BATCH, step) for step in range(self.steps, STEPS))
            return
        for _ in range(self.train_data.epoch, EPOCHS):
            yield self.loader

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batches in self.passes():
            sieved = self.sieve.ahead(batches) if self.ahead else (self.sieve(*batch) for batch in batches)
            for x, y, weight in sieved:
                losses = criterion(self.model(x), y)
                if self.train_data is None:
                    loss = self.sieve.reduce(losses)
                else:
                    loss, score = self.sieve.expand(losses)
                    loss = self.train_data.update(loss, score=score)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.steps += 1
                yield loss, weight

    def state_dict(self) -> dict[str, Any]:
        parts = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "sieve")}
        if self.train_data is not None:
            parts["train_data"] = self.train_data.state_dict()
        return {**parts, "steps": self.steps, "rng": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("model", "optimizer", "sieve", "train_data"):
            if name in state:
                getattr(self, name).load_state_dict(state[name])
        self.steps = state["steps"]
        torch.set_rng_state(state["rng"])


def train(file: Path, kill_at: int, **settings: Any) -> None:
    """Train, from what the file holds, to the end, and save after every step; be killed inside a step."""
    torch.manual_seed(0)
    training = Training(**settings)
    if file.exists():
        training.load_state_dict(torch.load(file, weights_only=True))

    def kill(*_: Any) -> None:
        if training.steps == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    training.model[-1].register_full_backward_hook(kill)
    for _ in training:
        draft = file.with_suffix(".draft")
        torch.save(training.state_dict(), draft)
        draft.replace(file)


if __name__ == "__main__":
    train(
        Path(sys.argv[1]),
        int(sys.argv[2]),
        look=sys.argv[3],
        method=sys.argv[4],
        memory="memory" in sys.argv,
        ahead="ahead" in sys.argv,
    )
