"""Checks of the arguments of methods. Each returns the value in the form in which it is kept."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..checks import check_count, is_number
from ..errors import InputError, message


def check_ratio(ratio: float) -> float:
    if not is_number(ratio) or not 0 <= ratio < 1:
        remedy = "It is the share pruned among the prunable samples; the papers use 0.5."
        raise InputError(message("a ratio in [0, 1)", repr(ratio), remedy))
    return float(ratio)


def check_fraction(name: str, value: float) -> float:
    """Return a number in (0, 1]."""
    if not is_number(value) or not 0 < value <= 1:
        raise InputError(message(f"{name} in (0, 1]", repr(value), "It is a fraction; 0.4 means 40 %."))
    return float(value)


def check_open_fraction(name: str, value: float) -> float:
    """Return a number in (0, 1)."""
    if not is_number(value) or not 0 < value < 1:
        raise InputError(message(f"{name} in (0, 1)", repr(value), "It is a fraction; 0.4 means 40 %."))
    return float(value)


def check_fractions(name: str, given: Any) -> tuple[float, ...]:
    """Return a tuple of numbers in [0, 1]."""
    if not isinstance(given, (tuple, list)):
        raise InputError(message(f"{name} as a tuple of fractions", repr(given), "Pass a tuple such as the default."))
    return tuple(0.0 if each == 0 else check_fraction(name, each) for each in given)


def check_number(name: str, value: float, remedy: str) -> float:
    if not is_number(value):
        raise InputError(message(f"{name} as a number", repr(value), remedy))
    return float(value)


def check_positive(name: str, value: int, least: int = 1) -> int:
    return check_count(name, value, least, "Pass a whole number.")


def check_labels(given: Any) -> Tensor:
    """Return the class of each sample as 0, 1, 2, ... without a gap, in the order of the labels."""
    expected, remedy = "labels as integers, one per sample", "Pass the targets; number classes that have names."
    try:
        labels: Tensor = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(message(expected, type(given).__name__, remedy)) from error
    is_integer = not labels.is_floating_point() and not labels.is_complex() and labels.dtype != torch.bool
    if labels.ndim != 1 or not is_integer or not labels.numel():
        raise InputError(message(expected, f"{labels.dtype} of shape {list(labels.shape)}", remedy))
    labels = labels.detach().long()
    if int(labels.min()) < 0:
        raise InputError(message("labels of at least 0", str(int(labels.min())), "Drop samples without a class."))
    classes: Tensor = torch.unique(labels, return_inverse=True)[1]
    return classes


def fingerprint(places: Tensor, values: Tensor) -> str:
    """Eight hexadecimal digits that differ if any of these values at these places does."""
    mixed = (places * 0x2545F4914F6CDD1D) ^ (values * 0x369DEA0F31A53F85)
    return f"{(int(mixed.sum()) >> 32) % 2**32:08x}"


def fingerprint_labels(labels: Tensor) -> str:
    return fingerprint(torch.arange(len(labels), device=labels.device), labels + 1)
