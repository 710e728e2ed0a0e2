"""A proxy: a small network that looks at the batches, and learns from some of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import check_count
from ..errors import InputError, message
from .cost import count_bytes
from .looks import Losses, NetworkLook
from .passed import leaves_of
from .rows import check_losses
from .sieve_state import REBUILD, check_counts, check_fields, check_optimizer, check_weights
from .undisturbed import unwrap


class Proxy(NetworkLook):
    """A much smaller network that sees the same batches, and trains itself on every n-th of them.

    Its learning rate rises over the first tenth of the run and falls to 0 at its end, if the sieve knows ``num_steps``.

    ``net`` must not be the model that trains, nor share trained parameters with it: the proxy has an optimizer of its
    own, so the model would be trained twice. To look with the model itself, use ``Own``.

    Args:
        net: The small network; a tenth of the model's FLOPs is a good size.
        criterion: A criterion with ``reduction="none"``, for batches (inputs, targets, ...).
        losses: For other batches, a function (net, batch) that returns one loss per row.
        optimizer: Its own optimizer; AdamW with a learning rate of 0.001 by default.
        every: Train on every n-th batch. On the others, a look is one forward pass.
        schedule: The factor on the learning rate, as a function of the share of the run that is done.

    Raises:
        InputError: If ``net`` is no module or has no parameters that train, the optimizer trains none of them or needs
            a closure, as LBFGS does, or the criterion reduces its losses; from
            ``Sieve.reduce`` and ``Sieve.expand``, if the losses of the model depend on parameters of the proxy.

    >>> import torch, infobatch
    >>> criterion = torch.nn.CrossEntropyLoss(reduction="none")
    >>> model, small = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Linear(64, 3)), torch.nn.Linear(8, 3)
    >>> proxy = infobatch.sieve.Proxy(small, criterion)
    >>> sieve = infobatch.Sieve(proxy, infobatch.sieve.hardest(keep=0.5), num_steps=100)
    >>> x, y, weight = sieve(torch.randn(32, 8), torch.arange(32) % 3)
    >>> loss = sieve.reduce(criterion(model(x), y))
    """

    def __init__(
        self,
        net: nn.Module,
        criterion: Any = None,
        *,
        losses: Losses | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        every: int = 4,
        schedule: Callable[[float], float] | None = None,
    ) -> None:
        super().__init__(net, criterion, losses)
        self.every = check_count("every", every, 1, "The proxy trains on every n-th batch; 4 is the default.")
        parameters = [parameter for parameter in net.parameters() if parameter.requires_grad]
        if not parameters:
            remedy = "For a network that stays as it is use Reference, or a function as the look."
            raise InputError(message("a proxy with parameters that train", "none", remedy))
        self.optimizer = torch.optim.AdamW(parameters, lr=1e-3) if optimizer is None else optimizer
        check_trains(self.optimizer, parameters)
        self.schedule = rise_and_fall if schedule is None else schedule
        if not callable(self.schedule):
            remedy = "For a constant rate pass schedule=lambda progress: 1.0."
            raise InputError(message("a schedule as a function of the share done", repr(schedule)[:80], remedy))
        for group in self.optimizer.param_groups:
            group.setdefault("initial_lr", float(group["lr"]))

    def look(self, batch: Any) -> Tensor:
        return self._run(batch)

    def visit(self, batch: Any, step: int, progress: float | None, *, is_needed: bool) -> Tensor | None:
        if step % self.every == 0:
            return self._train(batch, progress)
        return self.look(batch) if is_needed else None

    def _check_model(self, losses: Tensor, *, is_ahead: bool) -> None:
        del is_ahead
        own = {id(parameter) for group in self.optimizer.param_groups for parameter in group["params"]}
        if any(id(leaf) in own for leaf in leaves_of(losses)):
            got = f"one whose {type(unwrap(self.net)).__name__} takes part in the losses of the model"
            remedy = (
                "Pass a small network of its own to Proxy; to look with the model itself use Own(model, criterion)."
            )
            raise InputError(message("a proxy that shares no parameters with the model that trains", got, remedy))

    def held(self) -> int:
        return count_bytes(self.net, self.optimizer)

    def state_dict(self) -> dict[str, Any]:
        return {
            "counts": super().state_dict(),
            "net": unwrap(self.net).state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_fields(state, {"counts", "net", "optimizer"}, "the state of a look", REBUILD)
        check_counts(state["counts"])
        check_weights(unwrap(self.net), state["net"])
        check_optimizer(self.optimizer, state["optimizer"])
        super().load_state_dict(state["counts"])
        unwrap(self.net).load_state_dict(state["net"])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))  # it would go on with these very tensors

    def _part_to_step_on(self, batch: Any, rows: int) -> Any:
        del rows
        return batch

    def _train(self, batch: Any, progress: float | None) -> Tensor:
        """Take one step on a batch, and return the losses before it."""
        factor = 1.0 if progress is None else self.schedule(progress)
        for group in self.optimizer.param_groups:
            set_rate(group, group["initial_lr"] * factor)
        with torch.enable_grad():
            losses = self._losses(self.net, batch)
            check_losses(losses)
            if not losses.requires_grad:
                remedy = "Compute them with gradients; for a network that stays as it is use Reference or a function."
                raise InputError(message("losses of a proxy that depend on its parameters", "constants", remedy))
            self.optimizer.zero_grad()
            losses.float().mean().backward()  # type: ignore[no-untyped-call]
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:  # one bad row must not end the proxy
                    parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
        self.optimizer.step()
        self._count_flops(batch, len(losses))
        self._rows_trained += len(losses)
        return losses.detach()


def check_trains(optimizer: Any, parameters: list[nn.Parameter]) -> None:
    """Check that an optimizer trains some of these parameters, by steps without a closure."""
    remedy = "For example optimizer=torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)."
    if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, torch.optim.LBFGS):
        expected = "a torch optimizer that steps without a closure"
        raise InputError(message(expected, f"a {type(optimizer).__name__}", remedy))
    trained = {id(one) for group in optimizer.param_groups for one in group["params"]}
    if not any(id(one) in trained for one in parameters):
        raise InputError(message("an optimizer of the proxy's parameters", "one of others", remedy))


def rise_and_fall(progress: float) -> float:
    """Return a factor that rises linearly over the first tenth of a run and falls to 0 at its end."""
    return (progress + 0.01) / 0.11 if progress < 0.1 else max(0.0, (1 - progress) / 0.9)


def set_rate(group: dict[str, Any], rate: float) -> None:
    """Set the rate of a group; a rate in a tensor, as for a captured optimizer, keeps its place."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
