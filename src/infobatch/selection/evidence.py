"""What is known of each sample before a choice is made: the one input of every selector."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import files as checkpoint
from ..checks import check_count
from ..errors import InputError, StateError, message

FORMAT = 1
BLOCK = 1 << 24
"""Numbers looked at in one go, so that a check never doubles the memory."""
SHAPES = {
    "labels": "N",
    "features": "Nd",
    "logits": "NK",
    "head": "Kd",
    "correct": "TN",
    "aum": "N",
    "error_norms": "RN",
    "grad_norms": "SN",
}
FLOATS = (torch.float32, torch.float64)


@dataclass(frozen=True, eq=False, repr=False)
class Evidence:
    """Facts about N samples, in the order of the data set. All but ``size`` may be absent.

    ``proxy.gather`` makes one; any model of your own can, too.

    >>> import torch
    >>> Evidence(3, labels=torch.tensor([0, 1, 1]), features=torch.randn(3, 5))
    Evidence(3 samples: labels, features)
    """

    size: int
    labels: Tensor | None = None
    """[N] int64, the class of each sample."""
    features: Tensor | None = None
    """[N, d], what enters the last layer."""
    logits: Tensor | None = None
    """[N, K], what leaves it: raw, not probabilities."""
    head: Tensor | None = None
    """[K, d], the weights of the last layer."""
    bias: bool = True
    """Whether the last layer has a bias, whose gradient then counts too."""
    correct: Tensor | None = None
    """[T, N] bool, whether the sample was predicted right at its visit in epoch t."""
    aum: Tensor | None = None
    """[N], the logit of the label less the largest other, averaged over the epochs (area under the margin)."""
    error_norms: Tensor | None = None
    """[R, N], |softmax - onehot| early in run r."""
    grad_norms: Tensor | None = None
    """[S, N], the norm of the sample's gradient early in run s."""
    validation: Evidence | None = None
    """The same of held-out data."""

    def __post_init__(self) -> None:
        check_count("size", self.size, 1, "Pass len(data_set).")
        _check_shapes(self)
        for name, table in self.tables().items():
            _check_values(name, table)
            object.__setattr__(self, name, table.detach())  # nothing here is differentiated
        if self.labels is not None and self.logits is not None:
            low, high = (int(end) for end in self.labels.aminmax())
            if high >= self.logits.shape[1]:
                remedy = "The logits have one column a class."
                raise InputError(message(f"labels below {self.logits.shape[1]}", f"{low} to {high}", remedy))
        if self.validation is not None:
            _check_validation(self, self.validation)

    def __repr__(self) -> str:
        known = [*self.tables(), *(["validation"] if self.validation is not None else [])]
        return f"Evidence({self.size} samples: {', '.join(known) or 'nothing else'})"

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return next((table.device for table in self.tables().values()), torch.device("cpu"))

    def tables(self) -> dict[str, Tensor]:
        """The tensors that are there, by name."""
        found = ((name, getattr(self, name)) for name in SHAPES)
        return {name: table for name, table in found if table is not None}

    def need(self, *names: str) -> tuple[Tensor, ...]:
        """These tensors; an error that names the missing ones and says where they come from."""
        missing = [name for name in names if getattr(self, name) is None]
        if missing:
            remedy = f"selection.gather(model, data_set, ...) yields them; or pass Evidence({missing[0]}=...) yourself."
            raise InputError(message(f"evidence with {', '.join(names)}", f"none of {', '.join(missing)}", remedy))
        return tuple(getattr(self, name) for name in names)

    def need_validation(self) -> Evidence:
        """The evidence of held-out data, or an error."""
        if self.validation is None:
            remedy = "Pass validation=held_out_data_set to selection.gather."
            raise InputError(message("evidence of held-out data", "none", remedy))
        return self.validation

    def probabilities(self) -> Tensor:
        """[N, K], the softmax of the logits."""
        (logits,) = self.need("logits")
        return logits.softmax(1)

    def errors(self) -> Tensor:
        """[N, K], softmax - onehot: the gradient of the cross entropy by the logits."""
        logits, labels = self.need("logits", "labels")
        return logits.softmax(1) - F.one_hot(labels, logits.shape[1])

    def last_layer(self) -> tuple[Tensor, Tensor]:
        """Errors e [N, K] and inputs f of the last layer: sample i has the gradient e_i f_i^T there.

        So two gradients have the inner product (e_i . e_j)(f_i . f_j), and no N x Kd matrix is needed. Where
        the layer has a bias, f has a last column of ones for it.
        """
        (features,) = self.need("features")
        if self.bias:
            features = torch.cat([features, features.new_ones(self.size, 1)], 1)
        return self.errors().to(features.dtype), features

    def to(self, device: torch.device | str) -> Evidence:
        """The same on another device."""
        moved: dict[str, Any] = {name: table.to(device) for name, table in self.tables().items()}
        if self.validation is not None:
            moved["validation"] = self.validation.to(device)
        return replace(self, **moved)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it whole or not at all; ``Evidence.load`` reads it back."""
        checkpoint.save(_state(self), path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Evidence:
        """Read what ``save`` wrote, onto the CPU. Nothing in the file is run."""
        state = checkpoint.load(path)
        try:
            return _from_state(state)
        except InputError as error:
            got = f"{os.fspath(path)}, which is none ({error})"
            raise StateError(message("evidence written by save", got, "Gather it.")) from error


def _state(evidence: Evidence) -> dict[str, Any]:
    values = {field.name: getattr(evidence, field.name) for field in fields(evidence)}
    if evidence.validation is not None:
        values["validation"] = _state(evidence.validation)
    return {"format": FORMAT} | values


def _from_state(state: Any) -> Evidence:
    names = {field.name for field in fields(Evidence)}
    if not isinstance(state, dict) or state.get("format") != FORMAT or set(state) != {"format", *names}:
        raise InputError(message("all that evidence is made of", "something else", "It is damaged."))
    values = {name: state[name] for name in names}
    if values["validation"] is not None:
        values["validation"] = _from_state(values["validation"])
    return Evidence(**values)


def _check_shapes(evidence: Evidence) -> None:
    """Every letter of ``SHAPES`` means one number, and all tensors lie together."""
    known = {"N": (evidence.size, "size")}
    device = None
    for name, letters in SHAPES.items():
        table = getattr(evidence, name)
        if table is None:
            continue
        if not isinstance(table, Tensor) or table.is_meta or table.layout != torch.strided:
            remedy = "Make it a plain tensor with values."
            raise InputError(message(f"{name} as a tensor", type(table).__name__, remedy))
        if table.ndim != len(letters) or 0 in table.shape:
            got = f"shape {list(table.shape)}"
            raise InputError(message(f"{name} of shape [{', '.join(letters)}]", got, "No part may be empty."))
        for letter, length in zip(letters, table.shape, strict=True):
            there, whose = known.setdefault(letter, (length, name))
            if there != length:
                remedy = "All belong to the same samples and the same model."
                raise InputError(message(f"{letter} = {there} in {name}, as in {whose}", str(length), remedy))
        device = device or table.device
        if table.device != device:
            remedy = "Move it with Evidence(...).to(device), or before."
            raise InputError(message(f"{name} on {device}, with the rest", str(table.device), remedy))


def _check_validation(evidence: Evidence, validation: Any) -> None:
    """Other samples, but of the same model and in the same place."""
    if not isinstance(validation, Evidence):
        remedy = "Gather it from the held-out data."
        raise InputError(message("validation as Evidence", type(validation).__name__, remedy))
    ours, theirs = evidence.tables(), validation.tables()
    for name in ("features", "logits"):
        if name in ours and name in theirs and ours[name].shape[1] != theirs[name].shape[1]:
            expected = f"{ours[name].shape[1]} columns in the {name} of validation"
            remedy = "Both come from the same model."
            raise InputError(message(expected, str(theirs[name].shape[1]), remedy))
    if ours and theirs and evidence.device != validation.device:
        remedy = "Move it with validation.to(device)."
        raise InputError(message(f"validation on {evidence.device}, with the rest", str(validation.device), remedy))


def _check_values(name: str, table: Tensor) -> None:
    if name == "labels":
        if table.dtype != torch.int64 or bool((table < 0).any()):
            got = "negative ones" if table.dtype == torch.int64 else str(table.dtype)
            raise InputError(message("labels as int64 from 0 on", got, "Number the classes."))
    elif name == "correct":
        if table.dtype != torch.bool:
            raise InputError(message("correct as bool", str(table.dtype), "Pass predicted == labels."))
    elif table.dtype not in FLOATS:
        raise InputError(message(f"{name} as float32 or float64", str(table.dtype), f"Pass {name}.float()."))
    else:
        _check_finite(name, table)


def _check_finite(name: str, table: Tensor) -> None:
    rows = max(1, BLOCK * len(table) // table.numel())
    bad = sum(block.numel() - int(block.isfinite().sum()) for block in torch.split(table, rows))
    if bad:
        got = f"NaN or infinity in {bad} of {table.numel()} places" if bad < table.numel() else "nothing but NaN"
        remedy = "The model that made them has diverged, or the data are broken."
        raise InputError(message(f"finite {name}", got, remedy))
