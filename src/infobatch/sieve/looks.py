"""Looks: a fresh loss for each row of a batch, from a small network, the model itself, or anything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..attribution.views import check_wrapped
from ..checks import describe
from ..errors import InputError, message
from ..methods.arguments import check_fraction
from .cost import STEP, Flops, count_bytes, count_forward, net_of, step_over_forward
from .passed import leaves_of
from .rows import check_alike, device_of, select_rows
from .sieve_state import LOOK_COUNTS, REBUILD, check_counts, check_fields
from .undisturbed import is_sharded, networks_of, undisturbed, unwrap

FEW = 8
"""Rows on which a training step of the model is tried, to count its FLOPs."""
Losses = Callable[[Any, Any], Tensor]
"""(network, batch) -> losses of shape [batch]."""


class Look:
    """A look at a batch: one loss per row, before the model sees it. Subclass it and write ``look``.

    ``look`` is called without gradients. Torch's random states are restored afterwards, and the modes of networks that
    are attributes of the look, but not BatchNorm statistics; ``Own(model, losses=function)`` restores these as well.

    >>> import torch
    >>> from infobatch.sieve import Look
    >>> class Norm(Look):
    ...     def look(self, batch):
    ...         return batch[0].flatten(1).norm(dim=1)
    >>> Norm().look([torch.tensor([[3.0, 4.0], [0.0, 1.0]])])
    tensor([5., 1.])
    """

    reads_model = False
    """Whether it reads the weights of the model that trains, so that it cannot run one batch ahead."""
    _watched: list[nn.Module] | None = None
    """The modules whose modes are restored after each look, once they have been found."""

    def look(self, batch: Any) -> Tensor:
        """Return the losses of a batch, shape [batch], without a gradient; see the example of the class.

        Args:
            batch: The whole batch.
        """
        raise NotImplementedError

    def visit(self, batch: Any, step: int, progress: float | None, *, is_needed: bool) -> Tensor | None:
        """Take each batch in turn, to learn from it, and return its losses if they are needed or come for free.

        Args:
            batch: The whole batch.
            step: How many batches have been visited before.
            progress: The share of the run that is done; None if it is unknown.
            is_needed: Whether the losses are needed.

        Returns:
            The losses, shape [batch]; None if they are not needed and would cost something.

        >>> import torch, infobatch
        >>> own = infobatch.sieve.Own(torch.nn.Linear(4, 2), torch.nn.CrossEntropyLoss(reduction="none"))
        >>> batch = torch.randn(8, 4), torch.arange(8) % 2
        >>> own.visit(batch, step=0, progress=None, is_needed=True).shape
        torch.Size([8])
        >>> own.visit(batch, step=1, progress=None, is_needed=False)  # not looked at: returns None
        """
        del step, progress
        return self.look(batch) if is_needed else None

    def model_losses(self, losses: Tensor) -> Tensor | None:
        """Return the model's own losses of the batch looked at last, if the look knows them; otherwise None.

        Args:
            losses: What the look returned for that batch.

        >>> import torch, infobatch
        >>> infobatch.sieve.Look().model_losses(torch.rand(8))  # returns None: only ``Own`` knows them
        """
        del losses
        return None

    def _check_model(self, losses: Tensor, *, is_ahead: bool) -> None:
        """Check, from losses of the model that trains, that it is not trained by this look as well.

        Nor may a look that runs beside the training step read the model.
        """
        if not is_ahead:
            return
        name, depth = (
            ("a function", 2) if isinstance(self, Called) else (type(self).__name__, 1)
        )  # what it names itself
        read = {id(one) for net in networks_of(self, depth) for one in net.parameters()}
        if any(id(leaf) in read for leaf in leaves_of(losses)):
            got = f"{name}, which reads parameters of the model that is being trained meanwhile"
            remedy = "Call the sieve on each batch instead of sieve.ahead(loader)."
            raise InputError(message("a look that runs beside the training step, such as Proxy", got, remedy))

    def _modules(self) -> list[nn.Module]:
        """Return the modules whose modes the sieve restores after each look."""
        if self._watched is None:
            found = dict.fromkeys(module for net in networks_of(self) for module in net.modules())
            self._watched = [*found]
        return self._watched

    def _is_sharded(self) -> bool:
        """Whether all ranks must look at once, since a network of it is sharded over them."""
        return False

    def spent(self) -> float:
        """Return the FLOPs spent so far.

        >>> import torch, infobatch
        >>> own = infobatch.sieve.Own(torch.nn.Linear(4, 2), torch.nn.CrossEntropyLoss(reduction="none"))
        >>> losses = own.look((torch.randn(8, 4), torch.arange(8) % 2))
        >>> own.spent(), own.model_flops()  # 8 rows, each 2 * 4 * 2
        (128.0, 16.0)
        """
        return 0.0

    def held(self) -> int:
        """Return the bytes of memory held for looking; 0 if it needs nothing but the model, or is not known.

        >>> import torch, infobatch
        >>> proxy = infobatch.sieve.Proxy(torch.nn.Linear(4, 2), torch.nn.CrossEntropyLoss(reduction="none"))
        >>> proxy.held()  # 10 parameters in float32, and their gradients; with AdamW's state after its first step
        80
        """
        return 0

    def model_flops(self) -> Flops | None:
        """Return the FLOPs of the model per row, if the look knows them; see ``spent``."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return what changes in the course of a run; see ``load_state_dict``."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state_dict`` was called.

        Args:
            state: What ``state_dict`` returned.

        Raises:
            StateError: If the state is damaged, or belongs to another look. Nothing is loaded then.

        >>> import torch, infobatch
        >>> proxy = infobatch.sieve.Proxy(torch.nn.Linear(4, 2), torch.nn.CrossEntropyLoss(reduction="none"))
        >>> proxy.load_state_dict(proxy.state_dict())
        """
        check_fields(state, set(), "the state of a look", REBUILD)


class Called(Look):
    """Any function of a batch that returns one number per row."""

    def __init__(self, function: Callable[[Any], Tensor]) -> None:
        self.function = function

    def look(self, batch: Any) -> Tensor:
        return self.function(batch)


class NetworkLook(Look):
    """A look by a network: keeps its losses function and counts its FLOPs."""

    def __init__(self, net: nn.Module, criterion: Any, losses: Losses | None) -> None:
        if not isinstance(net, nn.Module):
            raise InputError(message("a network as torch.nn.Module", type(net).__name__, "Pass it first."))
        self.net = net
        self._losses = make_losses(criterion, losses)
        self._flops = Flops(0.0)
        """Per row; 0 before they are counted."""
        self._is_counted = False
        self._rows_looked = 0
        self._rows_trained = 0

    def _modules(self) -> list[nn.Module]:
        return []  # it runs its network undisturbed

    def _is_sharded(self) -> bool:
        return is_sharded(self.net)

    def spent(self) -> float:
        return self._flops * self._rows_looked + self._flops.step * self._rows_trained

    def state_dict(self) -> dict[str, Any]:
        counts = (float(self._flops), self._flops.step, self._rows_looked, self._rows_trained)
        return dict(zip(LOOK_COUNTS, counts, strict=True))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_counts(state)
        forward, step, self._rows_looked, self._rows_trained = (state[name] for name in LOOK_COUNTS)
        self._flops = Flops(forward, step)
        self._is_counted = forward > 0

    def _count_flops(self, batch: Any, rows: int) -> None:
        """Count the FLOPs per row, once. A compiled network is counted without its compilation."""
        device = device_of(batch)
        is_capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if self._is_counted or is_capturing or not rows:
            return
        self._is_counted = True
        net, part = net_of(self.net), self._part_to_step_on(batch, rows)
        forward = count_forward(net, lambda: self._losses(net, batch), device, rows)
        factor = STEP if part is None else step_over_forward(net, lambda: self._losses(net, part), device)
        self._flops = Flops(forward, factor * forward)

    def _part_to_step_on(self, batch: Any, rows: int) -> Any:
        """Return the part of a batch on which a training step may be tried; None if the network never takes one."""
        del batch, rows
        return None

    def _run(self, batch: Any, *, is_frozen: bool = False) -> Tensor:
        """Return the losses of the network without leaving a trace in it; a frozen one is set to evaluation mode."""
        net = unwrap(self.net)
        with undisturbed(net, device_of(batch)):
            if is_frozen:
                net.eval()
            losses = self._losses(net, batch)
            rows = len(losses) if isinstance(losses, Tensor) and losses.ndim else 0
            self._count_flops(batch, rows)  # in these modes
        self._rows_looked += rows
        return losses


class Own(NetworkLook):
    """The model's own losses, from a forward pass without gradients. It costs a third of a training step per row.

    Modes, buffers and random states are left as they were; BatchNorm normalizes by the whole batch.

    Args:
        model: The model that trains.
        criterion: A criterion with ``reduction="none"``, for batches (inputs, targets, ...).
        losses: For other batches, a function (model, batch) that returns one loss per row.

    Raises:
        InputError: If the model is no module, or the criterion reduces its losses.

    >>> import torch, infobatch
    >>> criterion = torch.nn.CrossEntropyLoss(reduction="none")
    >>> model = torch.nn.Linear(8, 3)
    >>> sieve = infobatch.Sieve(infobatch.sieve.Own(model, criterion), infobatch.sieve.hardest(keep=0.5))
    >>> x, y, weight = sieve(torch.randn(32, 8), torch.arange(32) % 3)
    >>> len(x)
    16
    """

    reads_model = True

    def __init__(self, model: nn.Module, criterion: Any = None, *, losses: Losses | None = None) -> None:
        super().__init__(model, criterion, losses)

    def look(self, batch: Any) -> Tensor:
        return self._run(batch)

    def model_losses(self, losses: Tensor) -> Tensor | None:
        return losses

    def model_flops(self) -> Flops | None:
        return self._flops or None

    def _part_to_step_on(self, batch: Any, rows: int) -> Any:
        try:  # a few rows: the whole batch may be too large to train on
            return select_rows(batch, torch.arange(min(rows, FEW), device=device_of(batch)), rows)
        except InputError:
            return None


class Reference(NetworkLook):
    """Learnability: the loss of another look, minus that of a frozen reference network (RHO-LOSS).

    Rows that the reference finds hard, too, such as wrong labels, are not worth a step.

    Args:
        net: The reference, trained beforehand; it is set to evaluation mode while it looks.
        criterion: A criterion with ``reduction="none"``, for batches (inputs, targets, ...).
        of: The look from whose losses those of the reference are subtracted, such as ``Own(model, criterion)``.
        losses: For other batches, a function (net, batch) that returns one loss per row.

    Raises:
        InputError: If ``net`` is no module, the criterion reduces its losses, or ``of`` is no look.

    >>> import torch, infobatch
    >>> criterion = torch.nn.CrossEntropyLoss(reduction="none")
    >>> model, reference = torch.nn.Linear(8, 3), torch.nn.Linear(8, 3)  # the reference: trained on held-out data
    >>> look = infobatch.sieve.Reference(reference, criterion, of=infobatch.sieve.Own(model, criterion))
    >>> sieve = infobatch.Sieve(look, infobatch.sieve.rho_loss(keep=0.25))
    >>> x, y, weight = sieve(torch.randn(32, 8), torch.arange(32) % 3)
    >>> len(x)
    8
    """

    def __init__(self, net: nn.Module, criterion: Any = None, *, of: Look, losses: Losses | None = None) -> None:
        super().__init__(net, criterion, losses)
        if not isinstance(of, Look):
            raise InputError(message("a look in of", type(of).__name__, "For example of=Own(model, criterion)."))
        self.of = of
        self.reads_model = of.reads_model

    def look(self, batch: Any) -> Tensor:
        return self._subtract(self.of.look(batch), batch)

    def visit(self, batch: Any, step: int, progress: float | None, *, is_needed: bool) -> Tensor | None:
        losses = self.of.visit(batch, step, progress, is_needed=is_needed)
        return self._subtract(losses, batch) if is_needed and losses is not None else None

    def _modules(self) -> list[nn.Module]:
        return self.of._modules()

    def _is_sharded(self) -> bool:
        return super()._is_sharded() or self.of._is_sharded()

    def spent(self) -> float:
        return super().spent() + self.of.spent()

    def held(self) -> int:
        return count_bytes(self.net) + self.of.held()

    def _check_model(self, losses: Tensor, *, is_ahead: bool) -> None:
        self.of._check_model(losses, is_ahead=is_ahead)

    def model_flops(self) -> Flops | None:
        return self.of.model_flops()

    def state_dict(self) -> dict[str, Any]:
        return {"counts": super().state_dict(), "of": self.of.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_fields(state, {"counts", "of"}, "the state of a look", REBUILD)
        check_counts(state["counts"])
        self.of.load_state_dict(state["of"])
        super().load_state_dict(state["counts"])

    def _subtract(self, losses: Tensor, batch: Any) -> Tensor:
        others = self._run(batch, is_frozen=True)
        check_alike(losses, others)
        return losses - others


class Remembered(Look):
    """A mix of a fresh loss and the remembered one of the same sample, for training data with a memory (ES).

    Args:
        look: The fresh look.
        train_data: The ``InfoBatch`` or ``Pruned`` data set whose loader delivers the batches.
        share: The weight of the remembered score; a sample without one is judged by its fresh loss.
        column: What to read instead of the score: a column of the method's memory, such as "slow" of ``eswp``.

    Raises:
        InputError: If an argument is out of its range, or the data set does not remember what is asked for.

    >>> import torch, infobatch
    >>> criterion = torch.nn.CrossEntropyLoss(reduction="none")
    >>> model, data = torch.nn.Linear(8, 3), torch.utils.data.TensorDataset(torch.randn(32, 8), torch.arange(32) % 3)
    >>> train_data = infobatch.InfoBatch(data, num_epochs=8)
    >>> look = infobatch.sieve.Remembered(infobatch.sieve.Own(model, criterion), train_data, share=0.2)
    >>> sieve = infobatch.Sieve(look, infobatch.sieve.es(keep=0.5))
    >>> for x, y in infobatch.DataLoader(train_data, batch_size=8):
    ...     x, y, weight = sieve(x, y)
    ...     loss, score = sieve.expand(criterion(model(x), y))
    ...     loss = train_data.update(loss, score=score)
    """

    def __init__(self, look: Look, train_data: Any, share: float, column: str | None = None) -> None:
        check_memory(train_data, column)
        self.inner, self.train_data, self.column = look, train_data, column
        self.share = check_fraction("share", share)
        self.reads_model = True  # what is remembered changes with the model's losses
        self._fresh: Tensor | None = None
        """What the fresh look returned last."""

    def look(self, batch: Any) -> Tensor:
        return self._mix(self.inner.look(batch))

    def visit(self, batch: Any, step: int, progress: float | None, *, is_needed: bool) -> Tensor | None:
        fresh = self.inner.visit(batch, step, progress, is_needed=is_needed)
        return self._mix(fresh) if is_needed and fresh is not None else None

    def model_losses(self, losses: Tensor) -> Tensor | None:
        del losses
        return None if self._fresh is None else self.inner.model_losses(self._fresh)

    def _modules(self) -> list[nn.Module]:
        return self.inner._modules()

    def _is_sharded(self) -> bool:
        return self.inner._is_sharded()

    def spent(self) -> float:
        return self.inner.spent()

    def held(self) -> int:
        return self.inner.held()

    def _check_model(self, losses: Tensor, *, is_ahead: bool) -> None:
        self.inner._check_model(losses, is_ahead=is_ahead)

    def model_flops(self) -> Flops | None:
        return self.inner.model_flops()

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)

    def _mix(self, fresh: Tensor) -> Tensor:
        self._fresh = fresh
        table = self.train_data._scores
        values = table.scores if self.column is None else table.memory[self.column]
        indices = self.train_data.batch_indices.to(values.device)
        remembered = values.index_select(0, indices)
        check_alike(remembered, fresh)
        remembered = remembered.to(fresh.device)
        return torch.where(remembered.isnan(), fresh, torch.lerp(fresh.float(), remembered.float(), self.share))


def make_losses(criterion: Any, losses: Losses | None) -> Losses:
    """Return a function (network, batch) -> losses from a criterion for batches (inputs, targets, ...)."""
    if (criterion is None) == (losses is None):
        expected = "a criterion for batches (inputs, targets), or losses=function(net, batch) for others"
        got = "neither" if criterion is None else "both"
        raise InputError(message(expected, got, "For example torch.nn.CrossEntropyLoss(reduction='none')."))
    if not callable(criterion if losses is None else losses):
        got = repr(criterion if losses is None else losses)[:80]
        raise InputError(
            message("a function as the criterion or losses", got, "For example losses=function(net, batch).")
        )
    if losses is not None:
        return losses
    if getattr(criterion, "reduction", "none") != "none":
        got = f"reduction={criterion.reduction!r}"
        raise InputError(message('a criterion with reduction="none"', got, "A look needs one loss per row."))

    def of_pair(net: Any, batch: Any) -> Tensor:
        if not isinstance(batch, (list, tuple)) or len(batch) < 2:
            remedy = "Pass losses=function(net, batch), which returns one loss per row."
            raise InputError(message("a batch (inputs, targets, ...) for a criterion", describe(batch), remedy))
        outputs = net(batch[0])
        try:
            result: Tensor = criterion(outputs, batch[1])
        except (TypeError, AttributeError) as error:
            if isinstance(outputs, Tensor):
                raise
            expected = "from the network of a look a tensor for the criterion"
            remedy = "Pass losses=function(net, batch), which returns one loss per row."
            raise InputError(message(expected, describe(outputs), remedy)) from error
        return result

    return of_pair


def check_memory(train_data: Any, column: str | None) -> None:
    """Check that a data set remembers what a look asks for, of all samples."""
    check_wrapped(train_data, "Pass what was given to the loader that delivers the batches.")
    if train_data.shard_scores:
        remedy = "Leave out shard_scores=True."
        raise InputError(message("the scores of all samples on every rank", "a shard on each", remedy))
    known = getattr(train_data._scores, "memory", {})
    if column is not None and column not in known:
        remedy = 'For example column="slow" with infobatch.methods.eswp(); leave it out to read the scores.'
        expected = f"a column that {train_data.method!r} remembers ({', '.join(known) or 'it has none'})"
        raise InputError(message(expected, repr(column), remedy))


def make_look(look: Any, *, is_needed: bool) -> Look | None:
    """Return a look as it is, and a function as one; None where none is given or needed.

    Raises:
        InputError: If it can be neither, or is missing.
    """
    if isinstance(look, Look):
        return look
    if look is None and not is_needed:
        return None
    if callable(look) and not isinstance(look, nn.Module):
        return Called(look)
    got = "None" if look is None else f"a {type(look).__name__}"
    remedy = "Wrap a small network: Proxy(net, criterion); or the model itself: Own(model, criterion)."
    raise InputError(message("a look, or a function (batch) -> losses", got, remedy))
