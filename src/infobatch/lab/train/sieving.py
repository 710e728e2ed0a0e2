"""Sieves in the lab: build the one that a method's text asks for, and note what it passes on.

A sieve sees batches as the model would: augmented, normalised, on the device. It draws from generators of its own, so
that a run with a sieve has the initial weights, plans and augmentations of all other runs of its seed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from ...errors import InputError, message
from ...plan import Plan
from ...sieve import Look, Own, Proxy, Sieve
from ...sieve.cost import Flops, count_flops_of, count_forward
from ...sieve.undisturbed import kept_random_state
from ..tasks.nested import count_rows
from ..tasks.nets import fingerprint, name_relative, named_net, norms_for_one_sample
from ..tasks.task import Arrays, Task, split_losses
from .batches import Preprocess, move, size_of
from .method_text import Sieved, make_sieve_method
from .settings import Settings

SALT = 0x51E7E  # makes the draws of a sieve independent of the plans
PROXY_SALT = 0x9B0C5  # and the initial weights of a proxy independent of the model's
FEW = 8

Autocast = Callable[[], AbstractContextManager[Any]]


class BatchSieve:
    """The sieve of a run, and what it has passed on in the current epoch.

    Args:
        sieved: The method.
        settings: The settings of the run.
        task: The task.
        model: The model that trains.
        num_steps: The number of batches of the run on full data; where epochs are pruned, a run ends before.
        autocast: Makes the context in which networks run.

    Raises:
        InputError: If the proxy's net does not exist or does not fit the task.
    """

    def __init__(
        self, sieved: Sieved, settings: Settings, task: Task, model: nn.Module, num_steps: int, autocast: Autocast
    ) -> None:
        self.task, self.settings, self.model, self.autocast = task, settings, model, autocast
        self.device = next(model.parameters()).device
        self.facts: dict[str, Any] = {"look": sieved.look or None}
        """What the ``start`` fact says about it."""
        has_classes = task.classes and not (isinstance(task.train, Arrays) and task.train.class_labels is None)
        if sieved.settings.get("class_floor") and not has_classes:
            remedy = "Leave class_floor out."
            raise InputError(message("a task with classes, for class_floor", task.name, remedy))
        method = make_sieve_method(sieved.name, sieved.settings)
        look = {"proxy": self._proxy, "own": self._own}[sieved.look](sieved) if sieved.look else None
        self.sieve = Sieve(look, method, num_steps=num_steps, seed=settings.seed ^ SALT)
        self.weights = torch.full((size_of(task.train),), torch.nan, device=self.device)
        """The weight of each sample passed on in this epoch; NaN for all others."""
        self.model_flops = Flops(0.0)
        self._is_net_named = bool(sieved.net)
        self._size = 0
        self._rows = torch.zeros(0, dtype=torch.int64, device=self.device)
        """The rows of the latest batch that were passed on."""

    # ---- a batch -----------------------------------------------------------------------------------------

    def choose(self, inputs: Any, targets: Any, indices: Tensor) -> tuple[Any, Any]:
        """Return the inputs and targets of the rows to train on.

        Args:
            inputs: The inputs of a batch, as the model gets them.
            targets: Its targets.
            indices: Its samples.
        """
        self._size = count_rows(targets)
        rows = torch.arange(self._size, device=self.device)
        inputs, targets, self._rows, weights = self.sieve(inputs, targets, rows)
        self.weights.index_copy_(0, indices.to(self.device).index_select(0, self._rows), weights.float())
        return inputs, targets

    def expand(
        self, losses: Tensor, score: Tensor | None, confidence: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return losses, scores and confidences of the whole batch from the rows trained on.

        Of the other rows nothing is known, unless the look is the model's own.

        Args:
            losses: The losses of the rows trained on.
            score: Their scores, if these are not the losses.
            confidence: Their confidences, if the method uses them.
        """
        whole = self.sieve.expand(losses)
        if score is not None:
            whole = whole._replace(score=whole.score.index_copy(0, self._rows, score.detach().to(whole.score.dtype)))
        if confidence is not None:
            unknown = confidence.new_full((self._size,), torch.nan)
            confidence = unknown.index_copy(0, self._rows, confidence)
        return whole.loss, whole.score, confidence

    # ---- an epoch ----------------------------------------------------------------------------------------

    def end_epoch(self, plan: Plan) -> Plan:
        """Return the part of a plan that was passed on, with its weights, and begin the next epoch."""
        indices = plan.indices.to(self.device)
        used = indices[~self.weights[indices].isnan()]
        weights = plan.table.to(self.device) * self.weights.nan_to_num(0.0)
        self.weights.fill_(torch.nan)
        return Plan(plan.epoch, used, weights)

    # ---- accounting --------------------------------------------------------------------------------------

    def count_flops(self, preprocess: Preprocess) -> None:
        """Count the FLOPs of the model per training sample, without leaving a trace in the model.

        Args:
            preprocess: Turns samples into what the model gets.

        Raises:
            InputError: If torch counts none: without them the cost of a look is unknown. Or if the default proxy is
                larger than the model, so that it can save nothing.
        """
        model, train = self.model, cast(Any, self.task.train)
        some = [train[index][0] for index in range(min(FEW, size_of(train)))]
        inputs = preprocess(move(default_collate(some), self.device))
        self.model_flops = count_flops_of(model, lambda: model(inputs), self.device, len(some))
        if not self.model_flops:
            got = f"a {type(model).__name__} for which it counts none"
            remedy = "It counts matrix products, convolutions and attention; see torch.utils.flop_counter."
            raise InputError(message("a model whose FLOPs torch can count, for a sieve", got, remedy))
        look = self.sieve.look
        if isinstance(look, Proxy) and not self._is_net_named:
            flops = count_forward(look.net, lambda: look.net(inputs), self.device, len(some))
            if flops >= self.model_flops:
                got = f"{self.facts['net']}, the default, with {flops / self.model_flops:.1f} times the model's FLOPs"
                remedy = "Name a smaller one, as in net=mlp16, or choose look=own."
                raise InputError(message("a proxy smaller than the model", got, remedy))

    def looking(self) -> float:
        """Return the cost of looking so far: how many samples the model could have trained on instead."""
        return 0.0 if self.sieve.look is None else self.sieve.look.spent() / self.model_flops.step

    @property
    def not_finite(self) -> int:
        """How many rows had a look that was NaN or infinite."""
        return self.sieve.summary().not_finite

    # ---- checkpoints -------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return everything that changes in the course of a run."""
        return {"sieve": self.sieve.state_dict(), "weights": self.weights}

    def load(self, state: dict[str, Any]) -> None:
        """Continue where ``state`` was taken."""
        self.sieve.load_state_dict(state["sieve"])
        self.weights.copy_(state["weights"])

    # ---- looks -------------------------------------------------------------------------------------------

    def _own(self, sieved: Sieved) -> Look:
        del sieved
        return Own(self.model, losses=self._losses)

    def _proxy(self, sieved: Sieved) -> Look:
        name = sieved.net or name_relative(self.task, self.settings)
        first = cast(Any, self.task.train)[0][0]
        if name != "task" and not isinstance(first, Tensor):
            remedy = f"Choose look=own, as in sieve.{sieved.name}:look=own."
            raise InputError(message(f"inputs as tensors, for the proxy {name}", type(first).__name__, remedy))
        with kept_random_state(self.device):
            torch.manual_seed(self.settings.seed ^ PROXY_SALT)
            net = named_net(name, self.task).to(self.device)
        if self.settings.channels_last:
            net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.facts |= {"net": name, "fingerprint": fingerprint(net), "every": sieved.every}
        return Proxy(net, losses=self._losses, every=sieved.every)

    def _losses(self, net: nn.Module, batch: Any) -> Tensor:
        inputs, targets = batch[0], batch[1]
        with norms_for_one_sample(net) if count_rows(targets) == 1 else nullcontext(), self.autocast():
            outputs = net(inputs)
        return split_losses(self.task.loss(outputs, targets, self.settings.label_smoothing))[0]
