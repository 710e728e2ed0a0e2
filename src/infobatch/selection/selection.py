"""A selection of samples, made once before training: indices, weights, and how they were chosen."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset

from .. import files as checkpoint
from ..checks import check_count
from ..errors import InputError, StateError, message
from . import index_files

FORMAT = 1
FIELDS = ("indices", "weights", "size", "method", "settings", "scores")


@dataclass(frozen=True, eq=False, repr=False)
class Selection(Sequence[int]):
    """The samples to train on, in ascending order, each with a weight. Its tensors are on the CPU.

    Pass it to ``infobatch.Pruned`` as the method, or to ``torch.utils.data.Subset`` as the indices.

    Raises:
        InputError: If the indices are not ascending positions in the data set, or the weights do not fit them.

    >>> import torch
    >>> from infobatch.selection import Selection
    >>> chosen = Selection(torch.tensor([1, 4]), size=6)
    >>> list(chosen)
    [1, 4]
    >>> len(torch.utils.data.Subset(range(6), chosen))
    2
    """

    indices: Tensor
    """Positions in the data set: int64, ascending, each once."""
    size: int
    """N, the number of samples it was chosen from."""
    weights: Tensor = field(default=None)  # type: ignore[assignment]  # ones by default
    """float32, one per chosen sample; mean 1 unless the method says otherwise."""
    method: str = "given"
    settings: dict[str, Any] = field(default_factory=dict)
    """The arguments of the method, as numbers and text; ``share``, ``seed`` and ``balanced`` among them."""
    scores: Tensor | None = None
    """The score of every sample of the data set, if the method has scores."""

    def __post_init__(self) -> None:
        check_count("size", self.size, 1, "Pass len(data_set).")
        indices = index_files.check_indices(self.indices, self.size)
        if not bool((indices[1:] > indices[:-1]).all()):
            remedy = "Sort them, and their weights with them."
            raise InputError(message("indices in ascending order", "another order", remedy))
        object.__setattr__(self, "indices", indices)
        weights = self.weights
        if weights is None:
            weights = torch.ones(indices.numel(), dtype=torch.float32, device="cpu")
        object.__setattr__(self, "weights", _check_weights(weights, indices.numel()))
        if self.scores is not None:
            object.__setattr__(self, "scores", _check_scores(self.scores, self.size))
        if not isinstance(self.method, str) or not isinstance(self.settings, dict):
            got = f"{type(self.method).__name__} and {type(self.settings).__name__}"
            raise InputError(message("method as text and settings as a dict", got, "Leave them out."))

    def __len__(self) -> int:
        return self.indices.numel()

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> list[int]: ...
    def __getitem__(self, place: int | slice) -> int | list[int]:
        if isinstance(place, slice):
            chosen: list[int] = self.indices[place].tolist()
            return chosen
        return int(self.indices[place])

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices.tolist())

    def __eq__(self, other: object) -> bool:
        """Compare samples, weights and size; how they were chosen does not matter."""
        if not isinstance(other, Selection):
            return NotImplemented
        same = self.size == other.size and torch.equal(self.indices, other.indices)
        return same and torch.equal(self.weights, other.weights)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        settings = "".join(f", {key}={value!r}" for key, value in self.settings.items())
        return f"Selection({self.method}: {len(self)} of {self.size}{settings})"

    def complement(self) -> Selection:
        """Return the samples left out, with weight 1.

        Raises:
            InputError: If no sample is left out.

        >>> import torch
        >>> from infobatch.selection import Selection
        >>> list(Selection(torch.tensor([1, 4]), size=6).complement())
        [0, 2, 3, 5]
        """
        left = torch.ones(self.size, dtype=torch.bool, device="cpu")
        left[self.indices] = False
        if not bool(left.any()):
            raise InputError(
                message("a selection that leaves samples out", "one of all samples", "Choose a share below 1.")
            )
        return Selection(left.nonzero().squeeze(1), self.size, method=f"all but {self.method}", settings=self.settings)

    def kept_by_class(self, labels: Any) -> dict[int, tuple[int, int]]:
        """Return (number chosen, number of samples) for each class.

        Args:
            labels: The class of each sample of the data set.

        Raises:
            InputError: If there is not one label per sample of the data set.

        >>> import torch
        >>> from infobatch.selection import Selection
        >>> Selection(torch.tensor([1, 4]), size=6).kept_by_class([0, 0, 0, 1, 1, 1])
        {0: (1, 3), 1: (1, 3)}
        """
        try:
            labels = torch.as_tensor(labels).cpu()
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(message("labels as numbers", type(labels).__name__, "Number the classes.")) from error
        if labels.shape != (self.size,):
            remedy = "Pass the labels of the whole data set."
            raise InputError(message(f"{self.size} labels", f"shape {list(labels.shape)}", remedy))
        classes, total = torch.unique(labels, return_counts=True)
        kept = torch.bincount(torch.searchsorted(classes, labels[self.indices]), minlength=len(classes))
        rows = zip(classes.tolist(), kept.tolist(), total.tolist(), strict=True)
        return {label: (chosen, count) for label, chosen, count in rows}

    def subset(self, dataset: Any) -> Subset[Any]:
        """Return ``torch.utils.data.Subset(dataset, self)``, after a check of the length.

        A subset has no weights: if they are not all 1, pass the selection itself to ``infobatch.Pruned``.

        Args:
            dataset: The data set that the samples were chosen from.

        Raises:
            InputError: If the data set has another number of samples.

        >>> import torch
        >>> from infobatch.selection import Selection
        >>> list(Selection(torch.tensor([1, 4]), size=6).subset("abcdef"))
        ['b', 'e']
        """
        if len(dataset) != self.size:
            remedy = "Indices are positions: pass the data set they were chosen from, in the same order."
            raise InputError(message(f"a data set of {self.size} samples", f"one of {len(dataset)}", remedy))
        typed: Dataset[Any] = dataset
        return Subset(typed, self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the selection to a file, completely or not at all; ``Selection.load`` reads it back.

        Args:
            path: The file to write.

        Raises:
            OSError: If the file cannot be written.

        >>> import os, tempfile, torch
        >>> from infobatch.selection import Selection
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Selection(torch.tensor([1, 4]), size=6).save(os.path.join(folder, "chosen.pt"))
        """
        checkpoint.save({"format": FORMAT} | {name: getattr(self, name) for name in FIELDS}, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Selection:
        """Read what ``save`` wrote. No code in the file is executed.

        Args:
            path: The file to read.

        Returns:
            The selection.

        Raises:
            StateError: If the file is damaged, or holds something else.
            OSError: If there is no such file, or no permission to read it.

        >>> import os, tempfile, torch
        >>> from infobatch.selection import Selection
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "chosen.pt")
        ...     Selection(torch.tensor([1, 4]), size=6).save(path)
        ...     Selection.load(path)
        Selection(given: 2 of 6)
        """
        state = checkpoint.load(path)
        if not isinstance(state, dict) or state.get("format") != FORMAT or set(state) != {"format", *FIELDS}:
            remedy = "For a published list of indices use Selection.read(path, size)."
            raise StateError(message("a selection written by save", f"{os.fspath(path)}, which is not one", remedy))
        try:
            return cls(**{name: state[name] for name in FIELDS})
        except InputError as error:
            got = f"{os.fspath(path)}, which is damaged ({error})"
            raise StateError(message("a selection written by save", got, "Choose again.")) from error

    @classmethod
    def read(cls, path: str | os.PathLike[str], size: int) -> Selection:
        """Read a published list of indices (.npy, .npz, .pt, .pth, .txt, .csv, .json) into a data set of ``size``.

        Args:
            path: The file to read.
            size: The number of samples of the data set.

        Returns:
            The selection, with weight 1 for each sample.

        Raises:
            InputError: If the file has another ending, or holds anything but distinct positions in the data set.
            OSError: If there is no such file, or no permission to read it.

        >>> import os, pathlib, tempfile
        >>> from infobatch.selection import Selection
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "list.txt")
        ...     _ = path.write_text("4 1")
        ...     Selection.read(path, size=6)
        Selection(read: 2 of 6, file='list.txt')
        """
        check_count("size", size, 1, "Pass len(data_set).")
        indices = index_files.check_indices(index_files.read_indices(Path(path)), size)
        return cls(indices.sort().values, size, method="read", settings={"file": Path(path).name})


def _check_weights(weights: Any, count: int) -> Tensor:
    if not isinstance(weights, Tensor) or weights.shape != (count,) or not weights.is_floating_point():
        got = f"shape {list(weights.shape)}" if isinstance(weights, Tensor) else type(weights).__name__
        raise InputError(message(f"{count} floating-point weights, one per index", got, "Leave them out for ones."))
    row: Tensor = weights.detach().to("cpu", torch.float32)
    if not bool(row.isfinite().all()) or bool((row < 0).any()):
        remedy = "A weight multiplies a loss."
        raise InputError(message("finite weights of at least 0", "negative or non-finite ones", remedy))
    if not bool(row.any()):
        raise InputError(message("a weight above 0", "none", "Nothing can be trained on an empty selection."))
    return row


def _check_scores(scores: Any, size: int) -> Tensor:
    if not isinstance(scores, Tensor) or scores.shape != (size,) or not scores.is_floating_point():
        got = f"shape {list(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
        raise InputError(message(f"{size} floating-point scores, one per sample", got, "Leave them out."))
    table: Tensor = scores.detach().to("cpu", torch.float32)
    return table
