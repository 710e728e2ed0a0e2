"""The wrapped data set, as loaders and their workers see it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from multiprocessing.context import get_spawning_popen
from typing import Any, NoReturn, TypeVar, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, RandomSampler, Sampler

from ..checks import check_loss
from ..errors import InputError, MisalignedError, message
from ..plan import generator_for

Call = TypeVar("Call", bound=Callable[..., Any])
PACKAGE = __name__.partition(".")[0] + "."


class Fetched(list[Any]):
    """The samples of a batch, with the indices they came from."""

    indices: Sequence[int]


class View(Dataset[Any]):
    """The wrapped data set, sample by sample.

    Attributes that a view does not have are those of the wrapped data set, for reading and for writing.
    """

    OWN = frozenset({"dataset"})
    """The attributes that belong to the view, even if the wrapped data set has one of that name."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def _source(self) -> Any:
        """Return what yields the samples."""
        return self.dataset

    def __getitem__(self, index: Any) -> Any:
        return self._source()[index]

    def __getitems__(self, indices: Sequence[int]) -> Any:
        source = self._source()
        many = getattr(source, "__getitems__", None)
        if type(self).__getitem__ is not View.__getitem__:  # a subclass decides what a sample is
            return [self[index] for index in indices]
        if many is None:
            return [source[index] for index in indices]
        asked = list(indices)
        samples = many(indices)
        if list(indices) != asked:
            got = f"{type(source).__name__}.__getitems__, which changes it"
            remedy = "Work on a copy, and return the samples in the order of the indices."
            raise MisalignedError(message("a data set that leaves its list of indices as it is", got, remedy))
        return samples

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in self.OWN:
            raise AttributeError(name)
        try:
            return getattr(self.dataset, name)
        except AttributeError:
            wrapped = type(self.dataset).__name__
            raise AttributeError(f"neither {type(self).__name__} nor the {wrapped} it wraps has {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        is_own = name in self.OWN or name in self.__dict__ or hasattr(type(self), name)
        is_known = hasattr(self.__dict__.get("dataset"), name)
        is_ours = type(self).__module__.startswith(PACKAGE)
        if name.startswith("_") and not is_own and is_known and is_ours:
            wrapped = type(self.dataset).__name__
            raise AttributeError(f"{name} is private to the {wrapped} that is wrapped: set train_data.dataset.{name}")
        if not (is_own or name.startswith("_")) and (is_known or is_ours):
            setattr(self.dataset, name, value)
        else:  # also what is new in a subclass of the user's
            super().__setattr__(name, value)


COPY = message(
    "the train_data of this process",
    "a copy from another process, which has no scores",
    "Wrap the data in each process that trains: the ranks divide the plan themselves.",
)


class WithIndices(View):
    """What a loader fetches from where it collates to batches with indices; others get plain lists."""

    def __getitems__(self, indices: Sequence[int]) -> Any:
        samples = super().__getitems__(indices)
        if type(samples) is not list:
            return samples  # a batch in its own format: leave it, and let the loader count
        fetched = Fetched(samples)
        fetched.indices = indices
        return fetched


class Copied(View):
    """What reaches another process: samples for a loader's workers, and nothing to train with."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(self.__dict__.get("dataset"), name):
            return getattr(self.dataset, name)
        raise AttributeError(name if name.startswith("_") else f"no {name} here: {COPY}")


def locking(method: Call) -> Call:
    """Let no other thread change the epoch while this method of its owner runs.

    Scripts save in the background and show the progress from a thread, and whoever asks may turn the epoch.
    """

    @functools.wraps(method)
    def locked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return method(self, *args, **kwargs)
        with self._epoch.lock:
            return method(self, *args, **kwargs)

    return cast("Call", locked)


class Owner(View):
    """A view with scores, of which there must be only one; the samples alone go to a loader's workers."""

    @classmethod
    def _decides_samples(cls) -> bool:
        """Whether a subclass decides what a sample is, so that the wrapped data set alone does not tell."""
        return cls.__getitem__ is not View.__getitem__ or cls.__getitems__ is not View.__getitems__

    def __deepcopy__(self, memo: Any) -> NoReturn:
        remedy = "Make a new one and load the state_dict() of this one."
        raise InputError(message("one owner of the scores", "a copy", remedy))

    def __copy__(self) -> NoReturn:
        self.__deepcopy__(None)

    def __reduce__(self) -> tuple[type[Copied], tuple[Any]]:
        if get_spawning_popen() is None:
            remedy = "Save its state_dict(), and load that into a new one around the same data."
            raise InputError(message("one owner of the scores", "a pickled copy", remedy))
        if self._decides_samples():
            got = f"{type(self).__name__}, whose __getitem__ does not come with them"
            remedy = "Define it in the wrapped data set, or use forked workers."
            raise InputError(message("samples of the wrapped data set in spawned workers", got, remedy))
        return Copied, (self.dataset,)  # all that a spawned worker needs


def check_wrapped(given: Any, remedy: str = "Wrap the data first, and pass that.") -> None:
    """Check that this is wrapped training data, and not a worker's copy of them."""
    if isinstance(given, Copied):
        raise InputError(COPY)
    if not isinstance(given, Owner):
        expected = "the training data, an infobatch.InfoBatch or Pruned"
        raise InputError(message(expected, type(given).__name__, remedy))


class FullView(View):
    """All samples, for passes that do not train: evaluation, BatchNorm statistics, a learning-rate search.

    It has the ``sampler`` and ``update`` of the pruned data set, so a loop runs unchanged, but records nothing.
    """

    OWN = View.OWN | {"sampler", "_owner"}

    def __init__(self, owner: Owner, seed: int) -> None:
        super().__init__(owner.dataset)
        self._owner = owner if owner._decides_samples() else None
        noise = generator_for(seed, -1, torch.device("cpu"))
        self.sampler: Sampler[int] = RandomSampler(self.dataset, generator=noise)

    def _source(self) -> Any:
        return self.dataset if self._owner is None else self._owner

    def update(
        self,
        loss: Tensor,
        indices: Tensor | None = None,
        *,
        score: Tensor | None = None,
        **channels: Tensor | None,
    ) -> Tensor:
        """Return the mean loss. Takes the arguments of ``Pruned.update`` and ignores all but the first."""
        del indices, score, channels
        check_loss(loss)
        return loss.mean()

    def __reduce__(self) -> tuple[type[View], tuple[Any]]:
        return View, (self._source(),)  # for workers: the sampler stays here
