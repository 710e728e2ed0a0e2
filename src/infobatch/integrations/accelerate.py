"""Accelerate: the loader and the scheduler of pruned data, beside what ``accelerator.prepare`` prepares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import torch.utils.data
from accelerate import Accelerator
from accelerate.data_loader import DataLoaderStateMixin
from accelerate.utils import DistributedType, send_to_device, synchronize_rng_states

from ..attribution.sampler import PlanSampler
from ..errors import InputError, message
from ..loader import DataLoader, Delivery
from ..ranks.exchange import find
from ..schedule.pace import Paced, full_steps


def prepare(accelerator: Accelerator, *objects: Any) -> Any:
    """Call it in the place of ``accelerator.prepare``, with the same objects: they come back in the same order.

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

    An ``infobatch.DataLoader`` comes back as one that moves its batches to the accelerator's device, and what
    ``infobatch.pace`` returned as one that steps where the optimizer does. Both the training data and what is paced
    are registered for ``save_state`` and ``load_state``. All the rest goes to ``accelerator.prepare``.
    """
    if not isinstance(accelerator, Accelerator):
        remedy = "The order is prepare(accelerator, model, optimizer, loader)."
        raise InputError(message("an accelerate.Accelerator first", type(accelerator).__name__, remedy))
    loaders = [one for one in objects if isinstance(one, DataLoader)]
    paced = [one for one in objects if isinstance(one, Paced)]
    rest = [one for one in objects if not isinstance(one, (DataLoader, Paced))]
    for loader in loaders:
        _check_loader(accelerator, loader)
    for scheduler in paced:
        _check_steps(accelerator, scheduler, [one for one in loaders if one.dataset is scheduler.train_data])
    for one in rest:
        _check_other(one, paced)

    made = accelerator.prepare(*rest) if rest else ()
    theirs = iter((made,) if len(rest) == 1 else made)
    ours: dict[int, Any] = {id(one): Loader(accelerator, one) for one in loaders}
    ours |= {id(one): Scheduler(accelerator, one) for one in paced}
    data = {id(one.dataset): one.dataset for one in loaders}
    known = {id(one) for one in accelerator._custom_objects}  # prepared once more, as a notebook's cell is
    new = [one for one in (*data.values(), *paced) if id(one) not in known]
    if new:
        accelerator.register_for_checkpointing(*new)
    result = tuple(ours[id(one)] if id(one) in ours else next(theirs) for one in objects)
    return result[0] if len(result) == 1 else result


class Loader(DataLoaderStateMixin):  # type: ignore[misc]
    """What :func:`prepare` makes of an ``infobatch.DataLoader``: the same batches, on the accelerator's device.

    Accelerate asks the loader whether the batch at hand is the last one, to end a gradient accumulation there. An
    epoch's length is its own affair, so this reads one batch ahead, and the ledger is told.
    """

    def __init__(self, accelerator: Accelerator, loader: DataLoader) -> None:
        self.loader = loader
        self.gradient_state = accelerator.gradient_state
        self.device = accelerator.device if accelerator.device_placement else None
        self._non_blocking = accelerator.non_blocking
        self._in_step = [kind for kind in accelerator.rng_types if kind != "generator"]
        """Random numbers that Accelerate was asked to keep in step over the ranks. A plan has its own."""
        self._running: Delivery | None = None
        self._seeds = loader.generator is None

    def __iter__(self) -> Iterator[Any]:
        if self._in_step:
            synchronize_rng_states(self._in_step)
        if self._seeds:  # or each pass would draw from the numbers of dropout, and a resumed epoch is one pass more
            self.loader.seed_workers()
        self._running = batches = Delivery(self.loader, lookahead=1)
        self.begin()
        ahead: list[Any] = []
        try:
            for batch in batches:
                if ahead:
                    yield ahead.pop()
                ahead.append(self._placed(batch))
            self.end()
            self.begin()  # in front of a loader whose loop was left in the middle: Accelerate asks the last to begin
            self.end_of_dataloader = True
            if ahead:
                yield ahead.pop()
        finally:
            if self._running is batches:
                self._running = None
                self.end()

    def __len__(self) -> int:
        """Batches of the running pass, or of the coming one. With ranks, between two epochs: on all or none."""
        return len(self.loader if self._running is None else self._running)

    @property
    def dataset(self) -> Any:
        return self.loader.dataset

    @property
    def batch_size(self) -> int | None:
        return self.loader.batch_size

    def set_epoch(self, epoch: int) -> None:
        """Nothing: scripts call it before each epoch, and the data knows in which one it is."""

    @property
    def sampler(self) -> NoReturn:
        raise InputError(
            message(
                "a loader that goes on where the data stands",
                "a look at its sampler, to build another loader of it",
                "After load_state it begins inside the epoch by itself: no skip_first_batches.",
            )
        )

    def _placed(self, batch: Any) -> Any:
        if self.device is None:
            return batch
        return send_to_device(batch, self.device, non_blocking=self._non_blocking)


class Scheduler:
    """What :func:`prepare` makes of a paced scheduler: call ``step`` after ``optimizer.step``, each time.

    As Accelerate's own it does nothing where the optimizer made no step; unlike that, one step is one on any number
    of processes.
    """

    def __init__(self, accelerator: Accelerator, paced: Paced) -> None:
        self._accelerator = accelerator
        self.paced = paced

    def step(self) -> None:
        if self._accelerator.sync_gradients and not self._accelerator.optimizer_step_was_skipped:
            self.paced.step()

    def get_last_lr(self) -> list[float]:
        return self.paced.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        return self.paced.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.paced.load_state_dict(state)


def _check_loader(accelerator: Accelerator, loader: DataLoader) -> None:
    train_data: Any = loader.dataset
    if accelerator.distributed_type in (DistributedType.XLA, DistributedType.MEGATRON_LM):
        remedy = "That one loads data in its own way; train without Accelerate there, or without pruning."
        raise InputError(message("ranks of torch.distributed", str(accelerator.distributed_type.value), remedy))
    if loader.lookahead:
        remedy = "Make the loader without: a loop that reads ahead cannot be told which batch ends the epoch."
        raise InputError(message("lookahead=0", f"lookahead={loader.lookahead}", remedy))
    if accelerator.dispatch_batches or (accelerator.split_batches and accelerator.num_processes > 1):
        got = "dispatch_batches=True" if accelerator.dispatch_batches else "split_batches=True"
        remedy = "Each process loads its own part of the plan, batch_size samples at a time: leave it out."
        raise InputError(message("an Accelerator that does not share out batches", got, remedy))
    spread = accelerator.parallelism_config
    sharing, world = find(train_data.group).world, spread.data_parallel_size if spread else accelerator.num_processes
    if sharing != world:
        expected = f"the number of processes that load different data, {world}, to share the plan"
        remedy = "Pass their group: InfoBatch(..., group=accelerator.torch_device_mesh['dp'].get_group())."
        raise InputError(message(expected, str(sharing), remedy))
    if train_data.shard_scores and world > 1:
        remedy = "Leave it out: save_state writes what one process has, and that would be its part alone."
        raise InputError(message("scores in one table", "shard_scores=True", remedy))


def _check_steps(accelerator: Accelerator, paced: Paced, loaders: list[DataLoader]) -> None:
    """A full epoch cannot make more steps than it has batches, or than accumulation leaves of them."""
    if paced.scheduler is None or not accelerator.gradient_state.sync_with_dataloader:
        return
    for loader in loaders:
        if loader.batch_size is None:
            continue
        accumulate = accelerator.gradient_accumulation_steps
        most = full_steps(paced.train_data, loader.batch_size, drop_last=loader.drop_last, accumulate=accumulate)
        if paced.steps_per_epoch > most:
            raise InputError(
                message(
                    f"steps_per_epoch as the optimizer steps of a full epoch on one process, {most}",
                    str(paced.steps_per_epoch),
                    "That is ceil(batches / gradient_accumulation_steps), with the batches of this process alone; "
                    "build the scheduler for num_epochs times that.",
                )
            )


def _check_other(one: Any, paced: list[Paced]) -> None:
    if isinstance(one, torch.utils.data.DataLoader):
        samplers = (one.sampler, getattr(one.batch_sampler, "sampler", None))
        if any(isinstance(sampler, PlanSampler) for sampler in samplers):
            remedy = "Accelerate reads ahead and shares out once more, which only that one allows for."
            raise InputError(message("infobatch.DataLoader for the training data", type(one).__name__, remedy))
    if any(one is scheduler.scheduler for scheduler in paced):
        remedy = "Pass what infobatch.pace returned alone: it steps that one."
        raise InputError(message("a scheduler once", "it and what paces it", remedy))
