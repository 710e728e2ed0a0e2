"""The wrapped data set, as loaders and their workers see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils.data import Dataset, RandomSampler, Sampler

from ..checks import check_loss
from ..errors import message
from ..plan import generator_for


class Fetched(list[Any]):
    """The samples of a batch, with the indices they came from."""

    indices: Sequence[int]


class View(Dataset[Any]):
    """The wrapped data set, sample by sample: the part of a ``Pruned`` that is sent to a loader's workers."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]

    def __getitems__(self, indices: Sequence[int]) -> Any:
        many = getattr(self.dataset, "__getitems__", None)
        samples = many(indices) if many else [self.dataset[index] for index in indices]
        if type(samples) is not list:
            return samples  # a batch in its own format: leave it, and let the loader count
        fetched = Fetched(samples)
        fetched.indices = indices
        return fetched


COPY = message(
    "the train_data of this process",
    "a copy from another process, which has no scores",
    "Wrap the data in each process that trains: the ranks divide the plan themselves.",
)


class Copied(View):
    """What reaches another process: samples for a loader's workers, and nothing to train with."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(name if name.startswith("_") else f"no {name} here: {COPY}")


class FullView(View):
    """All samples, for passes that do not train: evaluation, BatchNorm statistics, a learning-rate search.

    It has the ``sampler`` and ``update`` of the pruned data set, so a loop runs unchanged, but records nothing.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        super().__init__(dataset)
        self.sampler: Sampler[int] = RandomSampler(dataset, generator=generator_for(seed, -1, torch.device("cpu")))

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
        return View, (self.dataset,)  # for workers: the sampler stays here
