"""A pickler for ``torch.save`` that copies every tensor on the CPU before anything is written.

Training may continue in another thread while a checkpoint is written. torch computes the checksum of a storage and
writes its bytes one after the other, so a storage that changes in between yields a file that fails its own checksum.
With ``torch.save(state, file, pickle_module=snapshot)`` torch pickles the structure first, which copies the storages,
and then writes the copies. Storages on other devices are left alone: torch copies each to the CPU before it writes it.
"""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from typing import Any

from torch import Tensor
from torch.serialization import DEFAULT_PROTOCOL
from torch.storage import TypedStorage, UntypedStorage


class Pickler(pickle.Pickler):
    """Pickle tensors with copies of their storages.

    Each storage is copied once, as a whole: tied tensors stay tied, and views of one storage take its space once. What
    a tensor reduces to is left to its class, so parameters, sparse and quantized tensors and DTensors need no code.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._copies: dict[int, tuple[UntypedStorage, UntypedStorage]] = {}
        """Original and copy, by address; the original is kept so that its address is not used again."""

    def reducer_override(self, value: Any) -> Any:
        """Return how to pickle a tensor; anything else is pickled as usual."""
        if not isinstance(value, Tensor):
            return NotImplemented
        return self._with_copies(value.__reduce_ex__(DEFAULT_PROTOCOL))  # type: ignore[no-untyped-call]

    def _with_copies(self, part: Any) -> Any:
        if type(part) is tuple:
            return tuple(map(self._with_copies, part))
        if isinstance(part, TypedStorage):
            copied = self._copy(part._untyped_storage)
            return TypedStorage(wrap_storage=copied, dtype=part.dtype, _internal=True)  # type: ignore[no-untyped-call]
        return self._copy(part) if isinstance(part, UntypedStorage) else part

    def _copy(self, storage: UntypedStorage) -> UntypedStorage:
        if storage.device.type != "cpu":
            return storage
        if storage._cdata not in self._copies:
            self._copies[storage._cdata] = storage, storage.clone()  # type: ignore[no-untyped-call]
        return self._copies[storage._cdata][1]


def copy_containers(value: Any) -> Any:
    """Copy dicts, lists and tuples, which another thread may add to, and convert NumPy scalars to Python numbers.

    Learning-rate schedulers put NumPy scalars into an optimizer's state, and ``weights_only`` does not load them.

    >>> import numpy as np
    >>> copy_containers({"lr": np.float64(0.5), "steps": [np.int64(3)]})
    {'lr': 0.5, 'steps': [3]}
    """
    return _copied(value, {})


def _copied(value: Any, made: dict[int, tuple[Any, Any]]) -> Any:
    """Copy a value; ``made`` holds originals and copies, so that a list that contains itself still does."""
    if id(value) in made:
        return made[id(value)][1]
    if isinstance(value, dict):
        items = _copy_dict(value)
        made[id(value)] = value, items
        for key, old in items.items():  # not update(), which adds the counts of a Counter
            items[key] = _copied(old, made)
        return items
    if type(value) is list:
        entries = list(value)
        made[id(value)] = value, entries
        entries[:] = [_copied(old, made) for old in entries]
        return entries
    if type(value) is tuple:
        made[id(value)] = value, tuple(_copied(old, made) for old in value)
        return made[id(value)][1]
    is_scalar = type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0 and hasattr(value, "item")
    return value.item() if is_scalar else value


def _copy_dict(value: dict[Any, Any]) -> dict[Any, Any]:
    """Copy a dict with its class and attributes, as the _metadata of a model's state_dict."""
    if type(value) is not OrderedDict:
        return copy.copy(value)
    items = value.copy()  # copy.copy goes through it in Python, where another thread may add to it
    vars(items).update(vars(value))
    return items
