"""Settings of methods, checked: each returns the value as it is kept."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..checks import count_of, is_number
from ..errors import InputError, message


def ratio_of(ratio: float) -> float:
    if not is_number(ratio) or not 0 <= ratio < 1:
        raise InputError(
            message(
                "a ratio in [0, 1)",
                repr(ratio),
                "It is the share pruned among the prunable; the papers use 0.5.",
            )
        )
    return float(ratio)


def part(name: str, part: float) -> float:
    if not is_number(part) or not 0 < part <= 1:
        raise InputError(message(f"{name} in (0, 1]", repr(part), "It is a share."))
    return float(part)


def count(name: str, value: int, least: int = 1) -> int:
    return count_of(name, value, least, "It is a count.")


def labels_of(given: Any) -> Tensor:
    """Which class each sample is of: 0, 1, 2 and so on without a gap, in the order of the labels."""
    expected, remedy = "labels as whole numbers, one a sample", "Pass the targets; number classes that have names."
    try:
        labels: Tensor = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(message(expected, type(given).__name__, remedy)) from error
    plain = not labels.is_floating_point() and not labels.is_complex() and labels.dtype != torch.bool
    if labels.ndim != 1 or not plain or not labels.numel():
        raise InputError(message(expected, f"{labels.dtype} of shape {list(labels.shape)}", remedy))
    labels = labels.detach().long()
    if int(labels.min()) < 0:
        raise InputError(message("labels from 0 on", str(int(labels.min())), "Leave out samples without a class."))
    places: Tensor = torch.unique(labels, return_inverse=True)[1]
    return places


def mark_of(places: Tensor, values: Tensor) -> str:
    """Eight letters that tell these values at these places from others."""
    mixed = (places * 0x2545F4914F6CDD1D) ^ (values * 0x369DEA0F31A53F85)
    return f"{(int(mixed.sum()) >> 32) % 2**32:08x}"


def mark_of_labels(labels: Tensor) -> str:
    return mark_of(torch.arange(len(labels), device=labels.device), labels + 1)


def number(name: str, value: float, remedy: str) -> float:
    if not is_number(value):
        raise InputError(message(f"{name} as a number", repr(value), remedy))
    return float(value)


def share_of(name: str, share: float) -> float:
    if not is_number(share) or not 0 < share < 1:
        raise InputError(message(f"{name} in (0, 1)", repr(share), "0.4 means 40 %."))
    return float(share)
