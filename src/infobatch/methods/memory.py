"""What a method remembers of each sample besides its last score: a few columns of float32, and how they change.

A column changes when an epoch closes, never inside one. ``on_loss`` is elementwise and applied to the samples whose
loss arrived; ``on_plan`` sees who was in the plan. Both are pure, so ranks that exchange losses agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

Columns = Mapping[str, Tensor]
OnLoss = Callable[[Columns, Tensor, Columns], Columns]
"""(columns, losses, what else is known) -> the columns that change. Known are what came with the losses, whose loss
``arrived``, and the ``scores`` before."""
OnPlan = Callable[[Columns, Tensor, Tensor], Columns]
"""(columns, who was in the plan, whom the method's own rule had chosen) -> the columns that change."""


def _nothing(columns: Columns, *came: object) -> Columns:
    del columns, came
    return {}


@dataclass(frozen=True)
class Memory:
    """Columns by name with the value they begin with."""

    columns: Mapping[str, float]
    on_loss: OnLoss = _nothing
    on_plan: OnPlan = _nothing

    def __or__(self, other: Memory | None) -> Memory:
        if other is None:
            return self
        return Memory(
            {**self.columns, **other.columns},
            partial(_both, first=self.on_loss, second=other.on_loss),
            partial(_both, first=self.on_plan, second=other.on_plan),
        )


def _both(columns: Columns, *came: Tensor, first: Callable[..., Columns], second: Callable[..., Columns]) -> Columns:
    return {**first(columns, *came), **second(columns, *came)}


# ---- the ones that methods use -----------------------------------------------------------------------------


def chosen() -> Memory:
    """Whom the rule chose for the last plan, for methods that choose anew only every so many epochs."""
    return Memory({"chosen": 1.0}, on_plan=_chosen)


def held() -> Memory:
    """Who was in the last plan or looked at since: the others wait for a look."""
    return Memory({"held": 1.0}, on_plan=_held)


def visits() -> Memory:
    """In how many plans each sample was."""
    return Memory({"visits": 0.0}, on_plan=_visits)


def average(share: float, *, spread: bool = False) -> Memory:
    """e <- (1-a)e + a*l, and with ``spread`` v <- (1-a)v + a(l-e)^2 with the old e. The first loss begins e."""
    columns = {"average": torch.nan, "spread": 0.0} if spread else {"average": torch.nan}
    return Memory(columns, partial(_average, share=share, spread=spread))


def batch_average(share: float) -> Memory:
    """H <- a*H + (1-a)*b with b the mean loss of the sample's batch; the first one begins it."""
    return Memory({"batch": torch.nan}, partial(_batch, share=share))


def evolved(b1: float, b2: float) -> Memory:
    """w = b1*s + (1-b1)*l, then s <- b2*s + (1-b2)*l; both begin at the first loss."""
    return Memory({"slow": torch.nan, "weight": torch.nan}, partial(_evolved, b1=b1, b2=b2))


def second_differences() -> Memory:
    """The last two losses and the last three |l_t - 2 l_{t-1} + l_{t-2}|."""
    names = ("loss1", "loss2", "bend1", "bend2", "bend3")
    return Memory(dict.fromkeys(names, torch.nan), _bend)


def window(length: int) -> Memory:
    """The last ``length`` probabilities of the right class, the newest in p0."""
    return Memory(dict.fromkeys((f"p{at}" for at in range(length)), torch.nan), partial(_window, length=length))


def confidence() -> Memory:
    """The last probability of the right class."""
    return Memory({"confidence": torch.nan}, _confidence)


def streak(share: float) -> Memory:
    """How many of its losses in a row were among the highest share of what is known of all samples."""
    return Memory({"streak": 0.0}, partial(_streak, share=share))


def _chosen(columns: Columns, planned: Tensor, chosen: Tensor) -> Columns:
    del columns, planned
    return {"chosen": chosen.float()}


def _held(columns: Columns, planned: Tensor, chosen: Tensor) -> Columns:
    del columns, chosen
    return {"held": planned.float()}


def _visits(columns: Columns, planned: Tensor, chosen: Tensor) -> Columns:
    del chosen
    return {"visits": columns["visits"] + planned}


def _average(columns: Columns, losses: Tensor, came: Columns, *, share: float, spread: bool) -> Columns:
    del came
    old = columns["average"]
    new = {"average": torch.where(torch.isnan(old), losses, (1 - share) * old + share * losses)}
    if spread:
        off = torch.nan_to_num((losses - old).square())
        new["spread"] = (1 - share) * columns["spread"] + share * off
    return new


def _batch(columns: Columns, losses: Tensor, came: Columns, *, share: float) -> Columns:
    del came
    old = columns["batch"]
    return {"batch": torch.where(torch.isnan(old), losses, share * old + (1 - share) * losses)}


def _evolved(columns: Columns, losses: Tensor, came: Columns, *, b1: float, b2: float) -> Columns:
    del came
    slow = torch.where(torch.isnan(columns["slow"]), losses, columns["slow"])
    return {"weight": b1 * slow + (1 - b1) * losses, "slow": b2 * slow + (1 - b2) * losses}


def _bend(columns: Columns, losses: Tensor, came: Columns) -> Columns:
    del came
    bend = (losses - 2 * columns["loss1"] + columns["loss2"]).abs()
    return {
        "bend3": columns["bend2"],
        "bend2": columns["bend1"],
        "bend1": bend,
        "loss2": columns["loss1"],
        "loss1": losses,
    }


def _window(columns: Columns, losses: Tensor, came: Columns, *, length: int) -> Columns:
    del losses
    older = {f"p{at + 1}": columns[f"p{at}"] for at in range(length - 1)}
    return {"p0": came["confidence"], **older}


def _confidence(columns: Columns, losses: Tensor, came: Columns) -> Columns:
    del columns, losses
    return {"confidence": came["confidence"]}


def _streak(columns: Columns, losses: Tensor, came: Columns, *, share: float) -> Columns:
    last = torch.where(came["arrived"] != 0, losses, came["scores"])  # those left out count with their last loss
    known = last[~torch.isnan(last)]
    if not known.numel():
        return {}
    edge = known.kthvalue(max(1, known.numel() - round(share * known.numel()))).values
    return {"streak": torch.where(losses > edge, columns["streak"] + 1, 0.0)}
