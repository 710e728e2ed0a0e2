"""What a method remembers per sample besides the last score: a few float32 columns, and how they change.

Columns change when an epoch closes, never inside one. ``on_loss`` is elementwise and applied to the samples whose loss
arrived; ``on_plan`` sees which samples were in the plan. Both are pure, so ranks that exchange losses agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

Columns = Mapping[str, Tensor]
OnLoss = Callable[[Columns, Tensor, Columns], Columns]
"""(columns, losses, context) -> the columns that change. The context holds the method's score channels, a mask of the
samples whose loss ``arrived``, and the ``scores`` before this epoch."""
OnPlan = Callable[[Columns, Tensor, Tensor], Columns]
"""(columns, mask of the plan, mask of what the method's own rule had chosen) -> the columns that change."""


def _keep(columns: Columns, *context: object) -> Columns:
    del columns, context
    return {}


@dataclass(frozen=True)
class Memory:
    """Columns by name, each with the value it starts from. ``first | second`` holds the columns of both."""

    columns: Mapping[str, float]
    on_loss: OnLoss = _keep
    on_plan: OnPlan = _keep

    def __or__(self, other: Memory | None) -> Memory:
        if other is None:
            return self
        return Memory(
            {**self.columns, **other.columns},
            partial(_both, first=self.on_loss, second=other.on_loss),
            partial(_both, first=self.on_plan, second=other.on_plan),
        )


def _both(columns: Columns, *context: Tensor, first: Callable[..., Columns], second: Callable[..., Columns]) -> Columns:
    return {**first(columns, *context), **second(columns, *context)}


def average(share: float, *, spread: bool = False) -> Memory:
    """A moving average e <- (1-a)e + a*l; with ``spread`` also v <- (1-a)v + a(l-e)^2 with the old e.

    The first loss of a sample starts its average.
    """
    columns = {"average": torch.nan, "spread": 0.0} if spread else {"average": torch.nan}
    return Memory(columns, partial(_average, share=share, spread=spread))


def _average(columns: Columns, losses: Tensor, context: Columns, *, share: float, spread: bool) -> Columns:
    del context
    old = columns["average"]
    new = {"average": torch.where(torch.isnan(old), losses, (1 - share) * old + share * losses)}
    if spread:
        deviation = torch.nan_to_num((losses - old).square())
        new["spread"] = (1 - share) * columns["spread"] + share * deviation
    return new


def chosen() -> Memory:
    """Which samples the rule chose for the last plan, for methods that choose only every few epochs."""
    return Memory({"chosen": 1.0}, on_plan=_chosen)


def _chosen(columns: Columns, planned: Tensor, chosen: Tensor) -> Columns:
    del columns, planned
    return {"chosen": chosen.float()}


def visits() -> Memory:
    """In how many plans each sample was."""
    return Memory({"visits": 0.0}, on_plan=_count_visits)


def _count_visits(columns: Columns, planned: Tensor, chosen: Tensor) -> Columns:
    del chosen
    return {"visits": columns["visits"] + planned}


def held() -> Memory:
    """Which samples were in the last plan or have been observed since; the others wait for ``Pruned.hidden``."""
    return Memory({"held": 1.0}, on_plan=_held)


def _held(columns: Columns, planned: Tensor, chosen: Tensor) -> Columns:
    del columns, chosen
    return {"held": planned.float()}
