"""The paper's method in one call: ``InfoBatch`` is ``Pruned`` with the arguments of the authors' code."""

from __future__ import annotations

from typing import Any

from . import checks, methods
from .dataset import Pruned
from .errors import InputError, message
from .methods.cuts import Rounding
from .plan import Compensation

RATIO = 0.5
"""The paper's r."""


class InfoBatch(Pruned):
    """The paper's method around a data set, with the arguments in the order of the authors' code.

    Args:
        dataset: A map-style data set.
        num_epochs: The number of epochs of the whole run.
        ratio: The share pruned among the samples below the mean loss (the paper's r); 0.5 by default.
        delta: Prune while epoch < delta * num_epochs; after that, train on full data.
        saving: The share of the whole run to leave out, in place of ``ratio``; see ``infobatch.methods.saving``.
        warmup, rescale, rounding: See ``infobatch.methods.infobatch``.
        seed, compensate, group, shard_scores, in_batch_loss: See ``Pruned``.

    Raises:
        InputError: If an argument is out of its range, or ``saving`` comes with an argument it takes the place of.

    >>> import torch, infobatch
    >>> data = torch.utils.data.TensorDataset(torch.randn(100, 3))
    >>> train_data = infobatch.InfoBatch(data, 10, 0.5, 0.875)
    >>> loader = torch.utils.data.DataLoader(train_data, batch_size=20, sampler=train_data.sampler)
    >>> for (x,) in loader:
    ...     loss = train_data.update(x.square().sum(1))
    >>> train_data.plan().kept < 100
    True
    """

    def __init__(
        self,
        dataset: Any,
        num_epochs: int,
        ratio: float | None = None,
        delta: float = 0.875,
        *,
        saving: float | None = None,
        warmup: int = 0,
        rescale: bool = True,
        rounding: Rounding = "exact",
        seed: int = 0,
        compensate: Compensation = "none",
        group: Any = None,
        shard_scores: bool = False,
        in_batch_loss: bool = False,
    ) -> None:
        checks.check_epochs(num_epochs)  # before the ratio: the two are swapped most often
        if saving is None:
            ratio = RATIO if ratio is None else ratio
            method = methods.infobatch(ratio, delta, warmup=warmup, rescale=rescale, rounding=rounding)
        elif rescale is not True or rounding != "exact":
            got = f"rescale={rescale!r}, rounding={rounding!r}"
            remedy = "Leave these two at their defaults, or leave saving out."
            raise InputError(message("saving with exact, rescaled weights", got, remedy))
        elif ratio is not None:
            remedy = (
                "Both set how much is pruned: leave one out. For another ratio below the threshold that saving sets, "
                "use Pruned(data, methods.saving(share, ratio=...), num_epochs)."
            )
            raise InputError(message("either saving or ratio", f"saving={saving!r} and ratio={ratio!r}", remedy))
        else:
            method = methods.saving(saving, delta, warmup=warmup)
        options: dict[str, Any] = {"seed": seed, "compensate": compensate, "group": group}
        options |= {"shard_scores": shard_scores, "in_batch_loss": in_batch_loss}
        super().__init__(dataset, method, num_epochs, **options)

    @classmethod
    def paper(
        cls, dataset: Any, num_epochs: int, ratio: float = RATIO, delta: float = 0.875, **options: Any
    ) -> InfoBatch:
        """Return the rule as published: the loss grows, and of m prunable samples int((1-r)m) stay with 1/(1-r).

        Args:
            dataset, num_epochs, ratio, delta: As above.
            options: The other arguments of ``InfoBatch`` except for ``rounding`` and ``compensate``.

        >>> import infobatch
        >>> infobatch.InfoBatch.paper(range(100), num_epochs=10).compensate
        'loss'
        """
        return cls(dataset, num_epochs, ratio, delta, rounding="paper", compensate="loss", **options)
