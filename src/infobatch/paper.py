"""The paper's rule, as a data set."""

from __future__ import annotations

from typing import Any

from . import checks, methods
from .dataset import ORDER, Pruned
from .errors import InputError, message
from .methods.cuts import Rounding
from .plan import Growth


class InfoBatch(Pruned):
    """The paper's method around a data set; the arguments in the order of the poster.

    >>> import torch, infobatch
    >>> data = torch.utils.data.TensorDataset(torch.randn(100, 3))
    >>> train_data = infobatch.InfoBatch(data, 10, 0.5, 0.875)
    >>> loader = torch.utils.data.DataLoader(train_data, batch_size=20, sampler=train_data.sampler)
    >>> for (x,) in loader:
    ...     loss = train_data.update(x.square().sum(1))
    >>> train_data.plan().kept < 100
    True

    ``saving=0.4`` asks for 40 % of the whole run in place of a fixed threshold. ``rescale``, ``warmup`` and
    ``rounding`` are those of ``infobatch.methods.infobatch``. ``compensate`` says what grows when steps get fewer:
    ``"none"``, nothing; ``"lr"``, the learning rate, by ``infobatch.pace``; ``"loss"``, as in the paper.
    ``shard_scores=True`` leaves each rank of the group its part of the scores and of the plan, for data sets that are
    too large for every rank to hold them; the process group must be initialised by then.
    """

    def __init__(
        self,
        dataset: Any,
        num_epochs: int,
        ratio: float = 0.5,
        delta: float = 0.875,
        *,
        seed: int = 0,
        saving: float | None = None,
        warmup: int = 0,
        rescale: bool = True,
        rounding: Rounding = "exact",
        compensate: Growth = "none",
        group: Any = None,
        shard_scores: bool = False,
    ) -> None:
        checks.check_count("num_epochs", num_epochs, 1, ORDER)  # before the ratio: the two are swapped most often
        if saving is None:
            method = methods.infobatch(ratio, delta, warmup=warmup, rescale=rescale, rounding=rounding)
        elif rescale is True and rounding == "exact":
            method = methods.saving(saving, delta, ratio=ratio, warmup=warmup)
        else:
            raise InputError(
                message(
                    "saving with exact, rescaled weights",
                    f"rescale={rescale!r}, rounding={rounding!r}",
                    "Leave these two at their defaults, or leave saving out.",
                )
            )
        super().__init__(
            dataset,
            method,
            num_epochs,
            seed=seed,
            compensate=compensate,
            group=group,
            shard_scores=shard_scores,
        )

    @classmethod
    def paper(
        cls,
        dataset: Any,
        num_epochs: int,
        ratio: float = 0.5,
        delta: float = 0.875,
        *,
        seed: int = 0,
        group: Any = None,
    ) -> InfoBatch:
        """The rule as published: the loss grows, and of m prunable samples int((1-r)m) stay, at weight 1/(1-r)."""
        return cls(dataset, num_epochs, ratio, delta, seed=seed, rounding="paper", compensate="loss", group=group)
