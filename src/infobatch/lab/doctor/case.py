"""The loader and data to examine: found by name, and described."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils.data import BatchSampler, Dataset, Sampler
from torch.utils.data import DataLoader as TorchLoader

from ...dataset import Pruned
from ...errors import InputError, message
from ...loader import CarryIndices, DataLoader
from ..format import suggest
from ..import_target import module_of


@dataclass(frozen=True)
class Case:
    """A loader with the data it reads."""

    given: Any
    """What the training loop iterates over: the loader, or something that wraps it."""
    inner: TorchLoader[Any] | None
    """The torch loader in it."""
    data: Pruned | None
    dataset: Any
    """The data set whose indices the scores belong to."""

    @property
    def ours(self) -> bool:
        return isinstance(self.inner, DataLoader)

    @property
    def around(self) -> bool:
        return self.given is not self.inner

    @property
    def drawn_by(self) -> Any:
        """The sampler that the loader itself consumes; its length is never used, because it may have none."""
        assert self.inner is not None
        batches = self.inner.batch_sampler
        return batches if batches is not None else self.inner.sampler

    @property
    def samplers(self) -> list[Any]:
        """All samplers, from the one that makes batches to the innermost."""
        found: list[Any] = []
        todo = [] if self.inner is None else [self.drawn_by]
        while todo and len(found) < 8:
            found.append(todo.pop())
            inside = vars(found[-1]).values() if hasattr(found[-1], "__dict__") else ()
            todo += [one for one in inside if isinstance(one, Sampler) and not any(one is other for other in found)]
        return found

    @property
    def own_batches(self) -> Any:
        """A batch sampler that is not torch's."""
        batches = self.inner.batch_sampler if self.inner is not None else None
        known = type(batches).__module__.startswith(("torch.", "torchdata."))
        return None if batches is None or known else batches

    @property
    def draws_from_plan(self) -> bool:
        return self.data is not None and any(one is self.data.sampler for one in self.samplers)

    @property
    def batch_size(self) -> int | None:
        """None if the loader delivers single samples."""
        assert self.inner is not None
        makes = self.drawn_by
        if self.inner.batch_size is None and (makes is self.inner.batch_sampler or isinstance(makes, BatchSampler)):
            return int(getattr(makes, "batch_size", None) or 1)
        return self.inner.batch_size

    @property
    def collate(self) -> Callable[[Any], Any]:
        assert self.inner is not None
        collate: Callable[[Any], Any] = self.inner.collate_fn
        return collate.collate if isinstance(collate, CarryIndices) else collate

    @property
    def yields_pairs(self) -> bool:
        """True if the loader yields (batch, indices)."""
        return bool(getattr(self.inner, "with_indices", False))

    def line(self, with_indices: bool = False) -> str:
        """Return the call of infobatch.DataLoader that would replace this loader."""
        if self.inner is None:
            return "loader = infobatch.DataLoader(train_data, ...)"
        own = self.own_batches if self.draws_from_plan else None
        batches = f"batch_sampler={type(own).__name__}(train_data.sampler, ...)" if own is not None else ""
        known = str(getattr(self.collate, "__module__", "")).startswith("torch.")
        shown = {
            "num_workers": self.inner.num_workers,
            "collate_fn": None if known else getattr(self.collate, "__name__", "..."),
            "drop_last": self.inner.drop_last and not batches,
            "pin_memory": self.inner.pin_memory,
            "persistent_workers": self.inner.persistent_workers,
            "with_indices": with_indices or self.yields_pairs,
        }
        first = batches or f"batch_size={self.batch_size}"
        rest = [f"{name}={value}" for name, value in shown.items() if value]
        return f"loader = infobatch.DataLoader(train_data, {', '.join([first, *rest])})"

    def __str__(self) -> str:
        if self.inner is None:
            return f"{type(self.given).__name__}, without a torch loader in it"
        around = f"{type(self.given).__name__} around " if self.around else ""
        name = "infobatch.DataLoader" if self.ours else type(self.inner).__name__
        wrapped = f"{type(self.data).__name__} of " if self.data is not None else ""
        return f"{around}{name} over {wrapped}{type(self.dataset).__name__}"


def load(target: str) -> Any:
    """Import MODULE:NAME, and call it if it is a function; errors in the module itself are passed on unchanged."""
    module_name, _, name = target.partition(":")
    if not module_name or not name.isidentifier():
        raise InputError(
            message(
                "MODULE:NAME, for example train:loader",
                repr(target),
                "NAME is a loader, or a function that returns one.",
            )
        )
    module = module_of(target)
    if not hasattr(module, name):
        names = [known for known in vars(module) if not known.startswith("_")]
        raise InputError(message(f"a name in {module_name}", repr(name), suggest(name, names)))
    found = getattr(module, name)
    return found() if callable(found) and not hasattr(found, "__iter__") else found


def find(given: Any) -> Case:
    """Find the loader and the data in a loader, in something that wraps one, or in (train_data, loader)."""
    given_data = None
    if isinstance(given, (tuple, list)) and len(given) == 2 and hasattr(given[1], "__iter__"):
        given_data, given = given
    if isinstance(given, (Dataset, Tensor, str, dict, list, tuple)) or not hasattr(given, "__iter__"):
        remedy = (
            "NAME is a DataLoader, an object that wraps one, or a function that returns it or (train_data, loader)."
        )
        raise InputError(message("a loader", type(given).__name__, remedy))
    inner = _loader_in(given, 3)
    dataset = inner.dataset if inner is not None and not isinstance(given_data, Pruned) else given_data
    if dataset is None:
        remedy = "Return both from a function: return train_data, loader."
        raise InputError(message("a loader with a data set", type(given).__name__, remedy))
    data = dataset if isinstance(dataset, Pruned) else None
    return Case(given, inner, data, dataset if data is None else data.dataset)


def holds_pruned(dataset: Any, depth: int = 5) -> bool:
    """True if pruned training data are inside a Subset or the like."""
    inside = getattr(dataset, "dataset", None)
    return isinstance(inside, Pruned) or (depth > 0 and inside is not None and holds_pruned(inside, depth - 1))


def _loader_in(thing: Any, depth: int) -> TorchLoader[Any] | None:
    if isinstance(thing, TorchLoader):
        return thing
    inside = vars(thing).values() if hasattr(thing, "__dict__") and depth else ()
    return next((found for one in inside if (found := _loader_in(one, depth - 1)) is not None), None)
