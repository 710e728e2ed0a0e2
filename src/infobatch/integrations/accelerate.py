"""Accelerate: prepare the loader and the paced scheduler that ``accelerator.prepare`` cannot handle itself."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any, NoReturn

import torch.utils.data
from accelerate import Accelerator
from accelerate.data_loader import DataLoaderStateMixin
from accelerate.utils import DistributedType, send_to_device, synchronize_rng_states

from ..attribution.counted import PlanSampler
from ..errors import InputError, message
from ..loader import DataLoader, Delivery
from ..ranks.exchange import find
from ..schedule.pace import Paced, full_steps

__all__ = ["Loader", "Scheduler", "prepare"]


def __dir__() -> list[str]:
    return [*__all__]


def prepare(accelerator: Accelerator, *objects: Any) -> Any:
    """Prepare training objects for an accelerator; call this instead of ``accelerator.prepare``.

    An ``infobatch.DataLoader`` is replaced by a :class:`Loader`, which moves batches to the accelerator's device. The
    result of ``infobatch.pace`` is replaced by a :class:`Scheduler`, which steps only when the optimizer does. The
    training data and the paced scheduler are registered for ``save_state`` and ``load_state``. All other objects are
    passed on to ``accelerator.prepare``.

    Args:
        accelerator: The ``accelerate.Accelerator`` of the run.
        *objects: What you would pass to ``accelerator.prepare``, in any order.

    Returns:
        The prepared objects in the same order, or the object itself if there is only one.

    Raises:
        InputError: If the loader, the scheduler or a setting of the accelerator cannot work with pruned data.

    Example:
        >>> import torch, infobatch
        >>> from accelerate import Accelerator
        >>> from infobatch.integrations.accelerate import prepare
        >>> accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        >>> data = torch.utils.data.TensorDataset(torch.rand(64, 4), torch.rand(64))
        >>> train_data = infobatch.InfoBatch(data, num_epochs=3, delta=1.0)
        >>> loader = infobatch.DataLoader(train_data, batch_size=8)
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> model, optimizer, loader = prepare(accelerator, model, optimizer, loader)
        >>> for epoch in range(train_data.epoch, 3):
        ...     for x, y in loader:
        ...         with accelerator.accumulate(model):
        ...             loss = train_data.update((model(x).squeeze(1) - y).square())
        ...             accelerator.backward(loss)
        ...             optimizer.step()
        ...             optimizer.zero_grad()
        >>> len(train_data.history)
        3
    """
    if not isinstance(accelerator, Accelerator):
        remedy = "The order is prepare(accelerator, model, optimizer, loader)."
        raise InputError(message("an accelerate.Accelerator first", type(accelerator).__name__, remedy))
    loaders = [one for one in objects if isinstance(one, DataLoader)]
    schedulers = [one for one in objects if isinstance(one, Paced)]
    others = [one for one in objects if not isinstance(one, (DataLoader, Paced))]
    for loader in loaders:
        _check_loader(accelerator, loader)
    for paced in schedulers:
        _check_steps(accelerator, paced, [loader for loader in loaders if loader.dataset is paced.train_data])
    for other in others:
        _check_other(other, schedulers)

    prepared_others = accelerator.prepare(*others) if others else ()
    remaining = iter((prepared_others,) if len(others) == 1 else prepared_others)
    prepared: dict[int, Any] = {id(loader): Loader(accelerator, loader) for loader in loaders}
    prepared |= {id(paced): Scheduler(accelerator, paced) for paced in schedulers}
    _register(accelerator, [*(loader.dataset for loader in loaders), *schedulers])
    result = tuple(prepared[id(one)] if id(one) in prepared else next(remaining) for one in objects)
    return result[0] if len(result) == 1 else result


class Loader(DataLoaderStateMixin):  # type: ignore[misc]
    """An ``infobatch.DataLoader`` whose batches arrive on the accelerator's device; made by :func:`prepare`.

    Accelerate asks its loaders whether the current batch is the last one, so that gradient accumulation ends with the
    epoch. Since the length of a pruned epoch is not known to Accelerate, this loader reads one batch ahead.

    Args:
        accelerator: The ``accelerate.Accelerator`` of the run.
        loader: The ``infobatch.DataLoader``, which stays available as ``loader``.

    Example:
        >>> import infobatch
        >>> from accelerate import Accelerator
        >>> from infobatch.integrations.accelerate import prepare
        >>> train_data = infobatch.InfoBatch(range(64), num_epochs=8)
        >>> loader = prepare(Accelerator(cpu=True), infobatch.DataLoader(train_data, batch_size=16))
        >>> for x in loader:
        ...     loss = train_data.update(x / 64)
        >>> len(loader), train_data.epoch
        (4, 1)
    """

    def __init__(self, accelerator: Accelerator, loader: DataLoader) -> None:
        self.loader = loader
        self.gradient_state = accelerator.gradient_state
        self.device = accelerator.device if accelerator.device_placement else None
        self._non_blocking = accelerator.non_blocking
        self._synchronized_rngs = [kind for kind in accelerator.rng_types if kind != "generator"]
        """Random states that Accelerate keeps equal on all ranks. Plans use a generator of their own."""
        self._latest: weakref.ref[Delivery] | None = None
        """The pass that began last, as long as its iterator exists."""
        self._needs_seed = loader.generator is None

    def __iter__(self) -> Iterator[Any]:
        """Begin a pass, at once and not at its first batch: ``len(loader)`` is that of the new pass from here on."""
        if self._synchronized_rngs:
            synchronize_rng_states(self._synchronized_rngs)
        if self._needs_seed:
            # Otherwise each pass would draw from the global random state, and a resumed epoch, which is one more
            # pass, would continue with different dropout.
            self.loader.seed_workers()
        delivery = self.loader.read_ahead()
        self._latest = weakref.ref(delivery)
        return self._deliver(delivery)

    def _deliver(self, delivery: Delivery) -> Iterator[Any]:
        self.begin()
        try:
            for batch in delivery:
                if delivery.is_last:
                    # Accelerate asks the loader that began last. If a validation loop was left early, that is another.
                    self.end()
                    self.begin()
                    self.end_of_dataloader = True
                yield self._move(batch)
        finally:
            if self._find_pass() is delivery:
                self._latest = None
                with contextlib.suppress(AttributeError):  # collected after Accelerate's state was reset
                    self.end()

    def _find_pass(self) -> Delivery | None:
        return None if self._latest is None else self._latest()

    def __len__(self) -> int:
        """Return the number of batches of the latest pass; from ``iter(loader)`` on, of the new one."""
        delivery = self._find_pass()
        return len(self.loader if delivery is None else delivery)

    def count_batches(self) -> int:
        """Return the number of batches of the coming pass, while ``len(loader)`` is that of the latest one.

        On several processes, call it on all of them or on none.
        """
        return self.loader.count_batches()

    @property
    def dataset(self) -> Any:
        """The training data."""
        return self.loader.dataset

    @property
    def batch_size(self) -> int | None:
        """The number of samples per batch on this process."""
        return self.loader.batch_size

    def set_epoch(self, epoch: int) -> None:
        """Do nothing. Scripts call this before each epoch, but the training data count epochs themselves.

        Args:
            epoch: Ignored.
        """

    @property
    def sampler(self) -> NoReturn:
        """Not available: ``skip_first_batches`` would build another loader from it."""
        raise InputError(
            message(
                "a loader that resumes inside an epoch by itself",
                "access to its sampler, to build another loader from it",
                "Remove skip_first_batches: after load_state the loader continues at the right batch.",
            )
        )

    def _move(self, batch: Any) -> Any:
        if self.device is None:
            return batch
        return send_to_device(batch, self.device, non_blocking=self._non_blocking)


class Scheduler:
    """A paced scheduler for Accelerate: call ``step`` after each ``optimizer.step``; made by :func:`prepare`.

    Like Accelerate's own wrapper it does nothing if the optimizer skipped its step. Unlike that wrapper, one call is
    one step on any number of processes.

    Args:
        accelerator: The ``accelerate.Accelerator`` of the run.
        paced: What ``infobatch.pace`` returned, which stays available as ``paced``.

    Example:
        >>> import torch, infobatch
        >>> from accelerate import Accelerator
        >>> from infobatch.integrations.accelerate import prepare
        >>> train_data = infobatch.InfoBatch(range(64), num_epochs=8)
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        >>> linear = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=8 * 4)
        >>> scheduler = infobatch.pace(linear, train_data, steps_per_epoch=4)
        >>> optimizer, scheduler = prepare(Accelerator(cpu=True), optimizer, scheduler)
        >>> for x in infobatch.DataLoader(train_data, batch_size=16):
        ...     loss = train_data.update(x / 64)
        ...     optimizer.step()
        ...     scheduler.step()
        >>> scheduler.get_last_lr()
        [0.875]
    """

    def __init__(self, accelerator: Accelerator, paced: Paced) -> None:
        self._accelerator = accelerator
        self.paced = paced

    def step(self) -> None:
        """Step the scheduler if the optimizer has just stepped."""
        if self._accelerator.sync_gradients and not self._accelerator.optimizer_step_was_skipped:
            self.paced.step()

    def get_last_lr(self) -> list[float]:
        """Return the learning rates in use, one per parameter group."""
        return self.paced.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the paced scheduler, which ``save_state`` writes."""
        return self.paced.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of a paced scheduler, as ``load_state`` does.

        Args:
            state: What ``state_dict`` returned.

        Raises:
            StateError: If it is not the state of a paced scheduler with as many parameter groups.
        """
        self.paced.load_state_dict(state)


def _register(accelerator: Accelerator, objects: list[Any]) -> None:
    """Register objects for ``save_state``, each once, also if a notebook cell prepares them again."""
    known = {id(one) for one in accelerator._custom_objects}
    new = {id(one): one for one in objects if id(one) not in known}
    if new:
        accelerator.register_for_checkpointing(*new.values())


def _check_loader(accelerator: Accelerator, loader: DataLoader) -> None:
    train_data: Any = loader.dataset
    if accelerator.distributed_type in (DistributedType.XLA, DistributedType.MEGATRON_LM):
        remedy = "It loads data in its own way: train without Accelerate there, or without pruning."
        raise InputError(message("ranks of torch.distributed", str(accelerator.distributed_type.value), remedy))
    if loader.with_indices:
        remedy = "Leave it out: the prepared loader reads ahead, and keeps the indices of each batch by itself."
        raise InputError(message("a loader without with_indices", "with_indices=True", remedy))
    if accelerator.dispatch_batches or (accelerator.split_batches and accelerator.num_processes > 1):
        got = "dispatch_batches=True" if accelerator.dispatch_batches else "split_batches=True"
        remedy = "Leave it out: each process loads its own part of the plan, batch_size samples at a time."
        raise InputError(message("an Accelerator that does not distribute batches", got, remedy))
    parallelism = accelerator.parallelism_config
    world = parallelism.data_parallel_size if parallelism else accelerator.num_processes
    group_world = find(train_data.group).world
    if group_world != world:
        expected = f"a plan shared by the processes that load different data, {world}"
        remedy = "Pass their group: InfoBatch(..., group=accelerator.torch_device_mesh['dp'].get_group())."
        raise InputError(message(expected, str(group_world), remedy))
    if train_data.shard_scores and world > 1:
        remedy = "Leave it out: save_state writes the data of one process, which holds only its shard."
        raise InputError(message("scores in one table", "shard_scores=True", remedy))


def _check_steps(accelerator: Accelerator, paced: Paced, loaders: list[DataLoader]) -> None:
    """Refuse more steps per epoch than a full epoch has batches, or accumulation leaves of them."""
    if not accelerator.gradient_state.sync_with_dataloader:
        return
    for loader in loaders:
        if loader.batch_size is None:
            continue
        accumulate = accelerator.gradient_accumulation_steps
        most = full_steps(paced.train_data, loader.batch_size, drop_last=loader.drop_last, accumulate=accumulate)
        if paced.steps_per_epoch > most:
            raise InputError(
                message(
                    f"steps_per_epoch of at most {most}, the optimizer steps of a full epoch on one process",
                    str(paced.steps_per_epoch),
                    "Use infobatch.full_steps(train_data, batch_size, accumulate=gradient_accumulation_steps), and "
                    "build the scheduler for num_epochs times that.",
                )
            )


def _check_other(other: Any, schedulers: list[Paced]) -> None:
    if isinstance(other, torch.utils.data.DataLoader):
        samplers = (other.sampler, getattr(other.batch_sampler, "sampler", None))
        if any(isinstance(sampler, PlanSampler) for sampler in samplers):
            remedy = "Accelerate reads ahead and splits batches again, which only infobatch.DataLoader allows for."
            raise InputError(message("infobatch.DataLoader for the training data", type(other).__name__, remedy))
    if any(other is paced.scheduler for paced in schedulers):
        remedy = "Pass only what infobatch.pace returned: it steps the scheduler."
        raise InputError(message("each scheduler once", "a scheduler together with its infobatch.pace", remedy))
