"""Fewer steps, the same training: schedulers that follow the data, and what grows in the place of steps.

A pruned epoch has |S|/|D| of the steps, so a scheduler that counts steps would end early. ``pace`` makes it count
data. And each step must go |D|/|S| further: either the loss grows (the paper: weights sum to |D|), or, with
``compensate="lr"``, the weights have mean 1 and the learning rate grows. Plain SGD cannot tell the two apart but
for weight decay, which only keeps pace with the learning rate; optimizers that normalise the gradient do not see
a loss grow at all.
"""

from __future__ import annotations

import warnings
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from .dataset import Pruned
from .errors import InfoBatchWarning, InputError, StateError, message

SCALE_BLIND = frozenset(
    {
        "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamP", "AdamW", "Adamax", "AdaBelief", "DAdaptAdam", "LAMB",
        "LARS", "Lamb", "Lars", "Lion", "Muon", "NAdam", "Prodigy", "RAdam", "RMSprop", "Ranger", "Rprop", "SignSGD",
        "SOAP", "Shampoo", "SparseAdam",
    }
)  # fmt: skip
"""Optimizers, by class name, whose step hardly depends on the scale of the gradient."""


def pace(scheduled: LRScheduler | Optimizer, train_data: Pruned, steps_per_epoch: int | None = None) -> Paced:
    """Wrap a scheduler so that it ends where it would on full data; call the wrapper's ``step`` in its place.

    ``steps_per_epoch`` is how often a full epoch would call ``scheduler.step()``; build the scheduler for that,
    as if nothing were pruned. With an optimizer in place of a scheduler only the growth of the learning rate is
    looked after.

    >>> import torch, infobatch
    >>> data = torch.utils.data.TensorDataset(torch.rand(64, 1))
    >>> train_data = infobatch.InfoBatch(data, num_epochs=5)
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5 * 8)
    >>> scheduler = infobatch.pace(cosine, train_data, steps_per_epoch=8)
    >>> for epoch in range(5):
    ...     for (x,) in infobatch.DataLoader(train_data, batch_size=8):
    ...         loss = train_data.update(x.sum(1))
    ...         optimizer.step()
    ...         scheduler.step()
    >>> cosine.last_epoch, sum(report.kept for report in train_data.history) < 5 * 64
    (40, True)
    """
    return Paced(scheduled, train_data, steps_per_epoch)


class Paced:
    """See :func:`pace`."""

    def __init__(
        self, scheduled: LRScheduler | Optimizer, train_data: Pruned, steps_per_epoch: int | None = None
    ) -> None:
        self.scheduler = None if isinstance(scheduled, Optimizer) else scheduled
        self.optimizer: Optimizer = scheduled if isinstance(scheduled, Optimizer) else scheduled.optimizer
        if self.scheduler is not None and (
            isinstance(steps_per_epoch, bool) or not isinstance(steps_per_epoch, int) or steps_per_epoch < 1
        ):
            raise InputError(
                message(
                    "steps_per_epoch: how often a full epoch would step the scheduler",
                    repr(steps_per_epoch),
                    "With one step a batch that is ceil(len(dataset) / batch_size).",
                )
            )
        self.train_data = train_data
        self.steps_per_epoch = steps_per_epoch or 1
        self._count = 0
        self._growth = 1.0
        self._plain = [group["lr"] for group in self.optimizer.param_groups]
        train_data.paced = True
        self._warn_if_blind()

    def step(self) -> None:
        """Call after each optimizer step, as you would the scheduler's."""
        epoch, done, total = self.train_data.progress
        due = epoch * self.steps_per_epoch + done * self.steps_per_epoch // total
        if self.scheduler is not None and due > self._count:
            self._set(self._plain)
            for _ in range(due - self._count):
                self.scheduler.step()
            self._plain = [group["lr"] for group in self.optimizer.param_groups]
        self._count = max(due, self._count)
        if self.train_data.compensate == "lr":
            self._growth = self.train_data.plan().growth if epoch < self.train_data.num_epochs else 1.0
        self._set([lr * self._growth for lr in self._plain])

    def get_last_lr(self) -> list[float]:
        """The learning rates in use, growth included."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        inner = None if self.scheduler is None else self.scheduler.state_dict()
        return {"count": self._count, "growth": self._growth, "plain": list(self._plain), "scheduler": inner}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if set(state) != {"count", "growth", "plain", "scheduler"} or (state["scheduler"] is None) != (
            self.scheduler is None
        ):
            raise StateError(
                message("the state of a Paced of the same kind", repr(sorted(state)), "Nothing was loaded.")
            )
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self._count, self._growth, self._plain = state["count"], state["growth"], list(state["plain"])

    def _set(self, rates: list[float]) -> None:
        for group, lr in zip(self.optimizer.param_groups, rates, strict=True):
            if isinstance(group["lr"], float):
                group["lr"] = lr
            else:  # a tensor, for capturable optimizers: keep it where it is
                group["lr"].fill_(lr)

    def _warn_if_blind(self) -> None:
        names = {kind.__name__ for kind in type(self.optimizer).__mro__}
        if self.train_data.compensate == "loss" and names & SCALE_BLIND:
            warnings.warn(
                f"{type(self.optimizer).__name__} hardly sees the scale of a gradient, so the growing loss of a "
                'pruned epoch does not make up for its missing steps; compensate="lr" does',
                InfoBatchWarning,
                stacklevel=4,
            )
