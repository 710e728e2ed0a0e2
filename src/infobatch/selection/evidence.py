"""What is known about each sample before a selection: the input of every selector."""

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
"""Numbers checked at once, so that a check does not double the memory."""
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
    """What is known about N samples, in the order of the data set. Everything but ``size`` may be left out.

    ``selection.gather`` trains a proxy and returns one; you can also build it from the outputs of any model.

    Raises:
        InputError: If shapes, types, devices or values do not fit together.

    >>> import torch
    >>> from infobatch.selection import Evidence
    >>> evidence = Evidence(3, labels=torch.tensor([0, 1, 1]), features=torch.randn(3, 5))
    >>> evidence, evidence.device
    (Evidence(3 samples: labels, features), device(type='cpu'))
    """

    size: int
    labels: Tensor | None = None
    """[N] int64, the class of each sample."""
    features: Tensor | None = None
    """[N, d], the inputs of the last layer."""
    logits: Tensor | None = None
    """[N, K], the outputs of the last layer, not probabilities."""
    head: Tensor | None = None
    """[K, d], the weights of the last layer."""
    bias: bool = True
    """Whether the last layer has a bias. If so, its gradient counts as well."""
    correct: Tensor | None = None
    """[T, N] bool, whether the sample was classified correctly in epoch t."""
    aum: Tensor | None = None
    """[N], the logit of the label minus the largest other one, averaged over the epochs (area under the margin)."""
    error_norms: Tensor | None = None
    """[R, N], |softmax - onehot| early in run r."""
    grad_norms: Tensor | None = None
    """[S, N], the norm of the sample's gradient early in run s."""
    validation: Evidence | None = None
    """The evidence of held-out data."""

    def __post_init__(self) -> None:
        check_count("size", self.size, 1, "Pass len(data_set).")
        _check_shapes(self)
        for name, table in self.tables().items():
            _check_values(name, table)
            object.__setattr__(self, name, table.detach())  # no gradients are needed
        if self.labels is not None and self.logits is not None:
            low, high = (int(end) for end in self.labels.aminmax())
            if high >= self.logits.shape[1]:
                remedy = "The logits have one column per class."
                raise InputError(message(f"labels below {self.logits.shape[1]}", f"{low} to {high}", remedy))
        if self.validation is not None:
            _check_validation(self, self.validation)

    def __repr__(self) -> str:
        known = [*self.tables(), *(["validation"] if self.validation is not None else [])]
        return f"Evidence({self.size} samples: {', '.join(known) or 'nothing'})"

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return next((table.device for table in self.tables().values()), torch.device("cpu"))

    def tables(self) -> dict[str, Tensor]:
        """Return the tensors that are present, by name.

        >>> import torch
        >>> from infobatch.selection import Evidence
        >>> Evidence(2, labels=torch.tensor([0, 1])).tables()
        {'labels': tensor([0, 1])}
        """
        found = ((name, getattr(self, name)) for name in SHAPES)
        return {name: table for name, table in found if table is not None}

    def need(self, *names: str) -> tuple[Tensor, ...]:
        """Return some of the tensors, if all of them are present.

        Args:
            names: The names of the tensors.

        Raises:
            InputError: If one is missing; the message names it.

        >>> import torch
        >>> from infobatch.selection import Evidence
        >>> Evidence(2, labels=torch.tensor([0, 1])).need("labels")
        (tensor([0, 1]),)
        """
        missing = [name for name in names if getattr(self, name) is None]
        if missing:
            remedy = (
                f"selection.gather(model, data_set, ...) returns them; or pass Evidence({missing[0]}=...) yourself."
            )
            raise InputError(
                message(f"evidence with {', '.join(names)}", f"evidence without {', '.join(missing)}", remedy)
            )
        return tuple(getattr(self, name) for name in names)

    def probabilities(self) -> Tensor:
        """Return the softmax of the logits, [N, K].

        Raises:
            InputError: If there are no logits.

        >>> import torch
        >>> from infobatch.selection import Evidence
        >>> Evidence(1, logits=torch.zeros(1, 2)).probabilities()
        tensor([[0.5000, 0.5000]])
        """
        (logits,) = self.need("logits")
        return logits.softmax(1)

    def errors(self) -> Tensor:
        """Return softmax - onehot, [N, K]: the gradient of the cross entropy with respect to the logits.

        Raises:
            InputError: If there are no logits or no labels.

        >>> import torch
        >>> from infobatch.selection import Evidence
        >>> Evidence(1, labels=torch.tensor([1]), logits=torch.zeros(1, 2)).errors()
        tensor([[ 0.5000, -0.5000]])
        """
        logits, labels = self.need("logits", "labels")
        return logits.softmax(1) - F.one_hot(labels, logits.shape[1])

    def last_layer(self) -> tuple[Tensor, Tensor]:
        """Return the errors e [N, K] and inputs f of the last layer: the gradient of sample i there is e_i f_i^T.

        Two gradients have the inner product (e_i . e_j)(f_i . f_j), so no N x Kd matrix is needed. If the layer
        has a bias, f has a last column of ones for it.

        Raises:
            InputError: If there are no features, no logits or no labels.

        >>> import torch
        >>> from infobatch.selection import Evidence
        >>> evidence = Evidence(3, labels=torch.tensor([0, 1, 1]), logits=torch.randn(3, 2), features=torch.randn(3, 5))
        >>> [tensor.shape for tensor in evidence.last_layer()]
        [torch.Size([3, 2]), torch.Size([3, 6])]
        """
        (features,) = self.need("features")
        if self.bias:
            features = torch.cat([features, features.new_ones(self.size, 1)], 1)
        return self.errors().to(features.dtype), features

    def to(self, device: torch.device | str) -> Evidence:
        """Return the same evidence on another device.

        Args:
            device: The device.

        >>> import torch
        >>> from infobatch.selection import Evidence
        >>> Evidence(2, labels=torch.tensor([0, 1])).to("cpu")
        Evidence(2 samples: labels)
        """
        moved: dict[str, Any] = {name: table.to(device) for name, table in self.tables().items()}
        if self.validation is not None:
            moved["validation"] = self.validation.to(device)
        return replace(self, **moved)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the evidence to a file, completely or not at all; ``Evidence.load`` reads it back.

        Args:
            path: The file to write.

        Raises:
            OSError: If the file cannot be written.

        >>> import os, tempfile, torch
        >>> from infobatch.selection import Evidence
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Evidence(2, labels=torch.tensor([0, 1])).save(os.path.join(folder, "evidence.pt"))
        """
        checkpoint.save(_state(self), path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Evidence:
        """Read what ``save`` wrote, onto the CPU. No code in the file is executed.

        Args:
            path: The file to read.

        Returns:
            The evidence.

        Raises:
            StateError: If the file is damaged, or holds something else.
            OSError: If there is no such file, or no permission to read it.

        >>> import os, tempfile, torch
        >>> from infobatch.selection import Evidence
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "evidence.pt")
        ...     Evidence(2, labels=torch.tensor([0, 1])).save(path)
        ...     Evidence.load(path)
        Evidence(2 samples: labels)
        """
        state = checkpoint.load(path)
        try:
            return _from_state(state)
        except InputError as error:
            got = f"{os.fspath(path)}, which is not ({error})"
            raise StateError(message("evidence written by save", got, "Gather it.")) from error


def _state(evidence: Evidence) -> dict[str, Any]:
    values = {field.name: getattr(evidence, field.name) for field in fields(evidence)}
    if evidence.validation is not None:
        values["validation"] = _state(evidence.validation)
    return {"format": FORMAT} | values


def _from_state(state: Any) -> Evidence:
    names = {field.name for field in fields(Evidence)}
    if not isinstance(state, dict) or state.get("format") != FORMAT or set(state) != {"format", *names}:
        raise InputError(message("a saved Evidence", "other contents", "The file is damaged."))
    values = {name: state[name] for name in names}
    if values["validation"] is not None:
        values["validation"] = _from_state(values["validation"])
    return Evidence(**values)


def _check_shapes(evidence: Evidence) -> None:
    """Check that each letter of ``SHAPES`` stands for one number and all tensors are on one device."""
    known = {"N": (evidence.size, "size")}
    device = None
    for name, letters in SHAPES.items():
        table = getattr(evidence, name)
        if table is None:
            continue
        if not isinstance(table, Tensor) or table.is_meta or table.layout != torch.strided:
            remedy = "Pass a dense tensor with values."
            raise InputError(message(f"{name} as a tensor", type(table).__name__, remedy))
        if table.ndim != len(letters) or 0 in table.shape:
            got = f"shape {list(table.shape)}"
            raise InputError(message(f"{name} of shape [{', '.join(letters)}]", got, "No dimension may be empty."))
        for letter, length in zip(letters, table.shape, strict=True):
            expected, source = known.setdefault(letter, (length, name))
            if expected != length:
                remedy = "All tensors must come from the same samples and the same model."
                raise InputError(message(f"{letter} = {expected} in {name}, as in {source}", str(length), remedy))
        device = device or table.device
        if table.device != device:
            remedy = "Move all tensors to one device."
            raise InputError(message(f"{name} on {device}, like the other tensors", str(table.device), remedy))


def _check_validation(evidence: Evidence, validation: Any) -> None:
    """Check that held-out evidence comes from the same model and is on the same device."""
    if not isinstance(validation, Evidence):
        remedy = "Gather it from the held-out data."
        raise InputError(message("validation as Evidence", type(validation).__name__, remedy))
    ours, theirs = evidence.tables(), validation.tables()
    for name in ("features", "logits"):
        if name in ours and name in theirs and ours[name].shape[1] != theirs[name].shape[1]:
            expected = f"{ours[name].shape[1]} columns in the {name} of validation"
            remedy = "Both must come from the same model."
            raise InputError(message(expected, str(theirs[name].shape[1]), remedy))
    if ours and theirs and evidence.device != validation.device:
        remedy = "Move it with validation.to(device)."
        raise InputError(
            message(f"validation on {evidence.device}, like the other tensors", str(validation.device), remedy)
        )


def _check_values(name: str, table: Tensor) -> None:
    if name == "labels":
        if table.dtype != torch.int64 or bool((table < 0).any()):
            got = "negative labels" if table.dtype == torch.int64 else str(table.dtype)
            raise InputError(message("labels as int64 of at least 0", got, "Number the classes."))
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
        got = f"NaN or infinity in {bad} of {table.numel()} places" if bad < table.numel() else "only NaN or infinity"
        remedy = "The model that made them has diverged, or its inputs are not finite."
        raise InputError(message(f"finite {name}", got, remedy))
