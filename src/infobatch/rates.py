"""The learning rates of an optimizer: plain, as a scheduler leaves them, and in use, grown."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from .checks import is_number
from .errors import InputError, message

SCALE_BLIND = frozenset(
    {
        "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamP", "AdamW", "Adamax", "AdaBelief", "DAdaptAdam", "LAMB",
        "LARS", "Lamb", "Lars", "Lion", "Muon", "NAdam", "Prodigy", "RAdam", "RMSprop", "Ranger", "Rprop", "SignSGD",
        "SOAP", "Shampoo", "SparseAdam",
    }
)  # fmt: skip
"""Optimizers, by class name, whose step hardly depends on the scale of the gradient."""

GROWN = "infobatch_growth"
"""Noted in the optimizer's groups, so that nobody takes a grown rate for a plain one."""


class Rates:
    """Those of one optimizer, one a parameter group. A rate may be a number or a tensor, also on a device."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.growth = 1.0
        """How far the rates in use have grown."""
        self.plain = [
            rate / group[GROWN] if GROWN in group else rate
            for rate, group in zip(self.in_use(), optimizer.param_groups, strict=True)
        ]

    def in_use(self) -> list[Any]:
        return copied([group["lr"] for group in self.optimizer.param_groups])

    def set(self, growth: float, *, note: bool) -> None:
        """The plain rates times ``growth``, from here on in use; with a ``note`` of it in each group."""
        if len(self.plain) != len(self.optimizer.param_groups):
            raise InputError(
                message(
                    f"the {len(self.plain)} parameter groups that were there when it was paced",
                    str(len(self.optimizer.param_groups)),
                    "After adding some call infobatch.pace again; where the scheduler was made for fewer (LambdaLR, "
                    "OneCycleLR), with a new one for the epochs left.",
                )
            )
        for group, plain in zip(self.optimizer.param_groups, self.plain, strict=True):
            set_rate(group, plain * growth)
            if note:
                group[GROWN] = growth

    def shrink(self) -> None:
        """What another training left grown is plain again, and nobody's."""
        if any(GROWN in group for group in self.optimizer.param_groups):
            self.set(1.0, note=False)
            for group in self.optimizer.param_groups:
                group.pop(GROWN, None)

    def strange(self, *, look: bool) -> list[tuple[float, float]]:
        """Rates that are not what was set here, each beside what was; a device is asked only for a ``look``."""
        rates = [
            (group["lr"], plain * self.growth)
            for group, plain in zip(self.optimizer.param_groups, self.plain, strict=False)
        ]
        return [
            (float(rate), float(ours))
            for rate, ours in rates
            if (look or not isinstance(rate, Tensor) or rate.device.type == "cpu") and rate != ours
        ]


def set_rate(group: dict[str, Any], rate: Any) -> None:
    """The learning rate of a parameter group. A tensor is kept where it is: captured graphs read it there."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def copied(rates: list[Any]) -> list[Any]:
    """Rates that do not change when the optimizer's do."""
    return [rate.clone() if isinstance(rate, Tensor) else rate for rate in rates]


def are_rates(found: Any, many: int) -> bool:
    return isinstance(found, list) and len(found) == many and all(is_number(_number(rate)) for rate in found)


def _number(rate: Any) -> Any:
    return rate.item() if isinstance(rate, Tensor) and rate.numel() == 1 else rate


def inner(optimizer: Optimizer) -> Any:
    """Accelerate wraps it."""
    return getattr(optimizer, "optimizer", optimizer)


def scale_blind(optimizer: Optimizer) -> bool:
    """Whether its step hardly depends on the scale of the gradient."""
    return not SCALE_BLIND.isdisjoint(kind.__name__ for kind in type(inner(optimizer)).__mro__)
