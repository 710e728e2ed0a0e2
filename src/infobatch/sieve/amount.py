"""How many rows of the next batch to pass on: a fixed share, or one that follows from measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..checks import describe
from ..errors import InputError, message
from ..methods.arguments import check_fraction
from .sieve_state import DAMAGED, check_fields, check_measured


class Decision(NamedTuple):
    """What to do with one batch."""

    share: float
    """The share of its rows to pass on."""
    is_measured: bool = False
    """Whether to look at it although it passes whole, and to report how much its hardest rows carried."""


class Amount(Protocol):
    """Decides how many rows to pass on."""

    @property
    def is_constant(self) -> bool:
        """Whether every batch is treated alike, so that one batch can be captured in a CUDA graph for all."""
        ...

    def decide(self, step: int, progress: float | None) -> Decision:
        """Return what to do with the batch of this step; ``progress`` is the share of the run that is done."""
        ...

    def observe(self, order: Tensor, losses: Tensor) -> None:
        """Take the model's losses of a measured batch, and the order in which the look ranked its rows."""
        ...

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Fixed:
    """The same share of every batch, in part of the run.

    Args:
        keep: The share.
        begin: The share of the run after which to begin; before it, batches pass whole.
        end: The share of the run at which to end.
        whole_every: Pass every n-th batch whole; 0 for none.

    Raises:
        InputError: If ``keep`` is not in (0, 1].

    >>> from infobatch.sieve import Fixed
    >>> amount = Fixed(0.5, begin=0.25)
    >>> amount.decide(step=1, progress=0.1).share, amount.decide(step=3, progress=0.3).share
    (1.0, 0.5)
    """

    def __init__(self, keep: float, begin: float = 0.0, end: float = 1.0, whole_every: int = 0) -> None:
        self.keep = check_fraction("keep", keep)
        self.begin, self.end, self.whole_every = begin, end, whole_every
        self.is_constant = (begin, end, whole_every) == (0.0, 1.0, 0)

    def decide(self, step: int, progress: float | None) -> Decision:
        """Decide what to do with the batch of this step.

        Args:
            step: The number of the batch, from 0.
            progress: The share of the run that is done; None if it is unknown.

        Returns:
            The share of its rows to pass on, as a ``Decision``.
        """
        is_past_end = progress is not None and progress >= self.end and self.end < 1  # a run may go on for longer
        is_inside = progress is None or (self.begin <= progress and not is_past_end)
        is_whole = self.whole_every > 0 and step % self.whole_every == 0
        return Decision(self.keep if is_inside and not is_whole else 1.0)

    def observe(self, order: Tensor, losses: Tensor) -> None:
        """Do nothing: nothing is measured.

        Args:
            order, losses: Ignored.

        >>> import torch
        >>> from infobatch.sieve import Fixed
        >>> Fixed(0.5).observe(torch.arange(4), torch.rand(4))
        """

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state: nothing changes in the course of a run.

        >>> from infobatch.sieve import Fixed
        >>> Fixed(0.5).state_dict()
        {}
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Check that a state is empty.

        Args:
            state: What ``state_dict`` returned.

        Raises:
            StateError: If it is not.

        >>> from infobatch.sieve import Fixed
        >>> Fixed(0.5).load_state_dict({})
        """
        check_fields(state, set(), "the measurements of this method", DAMAGED)


class Measured:
    """The smallest of a few shares whose rows, ranked by the look, carry enough of the model's gradient.

    Every ``every`` batches a whole batch is passed on. The model trains on all of it, and its own losses show how much
    of the gradient the rows carry that the look ranks first. Where the rows ranked first carry little more than others,
    because most of the batch is not learned yet or the look ranks badly, batches pass whole and are not looked at.

    The result is read one measurement later, so that nothing waits for the device, and which step uses it does not
    depend on timing.

    Args:
        sizes: The shares to choose from; the whole batch is always one of them.
        threshold: The share of the gradient that the rows must carry.
        every: The number of batches from one measurement to the next.
        mass: How large a row's gradient is, judged from its loss: a function of all losses of the batch.
        inertia: How much of the old value a moving average over measurements keeps.
    """

    is_constant = False

    def __init__(
        self,
        sizes: Sequence[float],
        threshold: float,
        every: int,
        mass: Callable[[Tensor], Tensor],
        inertia: float = 0.7,
    ) -> None:
        self.sizes, self.threshold, self.every, self.mass, self.inertia = sizes, threshold, every, mass, inertia
        self.share = 1.0
        self.carried: list[float] = []
        """The share of the gradient that the rows of each size carry, averaged over measurements."""
        self._pending: Tensor | None = None
        self._copied: torch.cuda.Event | None = None

    def decide(self, step: int, progress: float | None) -> Decision:
        del progress
        if step % self.every:
            return Decision(self.share)
        if self._pending is not None:  # None where the losses of that batch never came: then the share stays
            self._take()
        return Decision(1.0, is_measured=True)

    def observe(self, order: Tensor, losses: Tensor) -> None:
        mass = self.mass(losses.detach().float())
        if not isinstance(mass, Tensor) or mass.shape != losses.shape:
            expected = f"mass(losses) to return one number per row, shape {list(losses.shape)}"
            raise InputError(message(expected, describe(mass), "For squared errors pass mass=torch.sqrt."))
        carried = measure(mass[order], self.sizes)
        self._pending = carried.to("cpu", non_blocking=True)
        if carried.device.type == "cuda":
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    def state_dict(self) -> dict[str, Any]:
        pending = None if self._pending is None else self._read()
        return {"share": self.share, "carried": list(self.carried), "pending": pending}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_measured(state, tuple(self.sizes))
        self.share, self.carried = state["share"], list(state["carried"])
        self._pending = None if state["pending"] is None else torch.tensor(state["pending"], dtype=torch.float32)
        self._copied = None

    def _take(self) -> None:
        """Let the last measurement decide about the batches up to the next one."""
        latest, self._pending = self._read(), None
        old = self.carried or latest
        self.carried = [self.inertia * one + (1 - self.inertia) * other for one, other in zip(old, latest, strict=True)]
        enough = [size for size, share in zip(self.sizes, self.carried, strict=True) if share >= self.threshold]
        self.share = min(enough, default=1.0)

    def _read(self) -> list[float]:
        assert self._pending is not None
        if self._copied is not None:
            self._copied.synchronize()
        return [float(value) for value in self._pending]


def measure(mass: Tensor, sizes: Sequence[float]) -> Tensor:
    """Return the share of the sum that the first entries hold, for each size as a share of their number.

    An entry that is not finite counts as 0. If nothing is left, each size holds its own share.

    >>> measure(torch.tensor([4.0, 2.0, 1.0, 1.0]), [0.5, 0.75])
    tensor([0.7500, 0.8750])
    """
    mass = torch.where(mass.isfinite(), mass, 0)
    total = mass.sum()
    first = [mass[: count_kept(size, len(mass))].sum() for size in sizes]
    return torch.stack([torch.where(total > 0, sum_ / total, size) for sum_, size in zip(first, sizes, strict=True)])


def count_kept(share: float, size: int) -> int:
    """Return how many rows of a batch a share of it is: rounded, and at least 2, since BatchNorm refuses a single row.

    >>> count_kept(0.5, 9), count_kept(0.25, 3), count_kept(0.25, 1)
    (4, 2, 1)
    """
    return min(size, max(2, round(share * size)))


def unlearned(losses: Tensor) -> Tensor:
    """Return 1 - exp(lowest loss - loss): for a cross-entropy, the probability the model does not give the target yet.

    The lowest loss of the batch stands for what is left of the loss when a row is learned, as with smoothed labels.
    """
    lowest = torch.where(losses.isfinite(), losses, torch.inf).amin()
    return -torch.expm1(lowest - losses)
