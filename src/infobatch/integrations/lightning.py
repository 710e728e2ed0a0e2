"""Lightning: give each epoch the length of its plan, validate in each, and keep the scores in checkpoints.

Lightning asks for the length of an epoch once, before the first one, and relies on it afterwards: a shorter epoch would
not be validated and a longer one would be cut short. There is no public way to change that, so this module sets
some private fields of Lightning's loops.
"""

from __future__ import annotations

from typing import Any, TypeVar

import lightning.pytorch as pl
from lightning.pytorch.callbacks import GradientAccumulationScheduler, LearningRateFinder, StochasticWeightAveraging
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature

from ..attribution.views import check_wrapped
from ..dataset import Pruned
from ..errors import InputError, MisalignedError, StateError, message, warn
from ..loader import DataLoader
from ..schedule.pace import Paced, full_steps

__all__ = ["Pruning"]

_CallbackType = TypeVar("_CallbackType", bound=pl.Callback)
ONE_SETTER = "a learning rate that infobatch.pace alone sets"


def __dir__() -> list[str]:
    return [*__all__]


class Pruning(pl.Callback):
    """A callback that lets a Trainer train on pruned data and saves the scores in its checkpoints.

    ``trainer.fit(ckpt_path=...)`` continues at the batch after which the checkpoint was saved. The fractions of samples
    left out, of the epoch and of all epochs so far, are logged as ``infobatch/saved`` and ``infobatch/saved_so_far``.

    Args:
        train_data: The training data. ``train_dataloader`` must return an ``infobatch.DataLoader`` over it.

    Raises:
        InputError: If ``train_data`` is not pruned data, or its scores are sharded. ``fit`` raises it for settings of
            the Trainer that cannot work with pruned data.

    Example:
        >>> import torch, infobatch
        >>> train_data = infobatch.InfoBatch(torch.utils.data.TensorDataset(torch.rand(64, 1)), num_epochs=8)
        >>> class Module(pl.LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.net = torch.nn.Linear(1, 1)
        ...     def training_step(self, batch, batch_idx):
        ...         return train_data.update(self.net(batch[0]).square().sum(1))
        ...     def train_dataloader(self):
        ...         return infobatch.DataLoader(train_data, batch_size=8)
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD(self.parameters(), lr=0.01)
        >>> quiet = {f"enable_{what}": False for what in ("checkpointing", "progress_bar", "model_summary")}
        >>> trainer = pl.Trainer(max_epochs=8, callbacks=[Pruning(train_data)], logger=False, **quiet)
        >>> trainer.fit(Module())
        >>> len(train_data.history), train_data.history[-1].saved_so_far > 0
        (8, True)
    """

    def __init__(self, train_data: Pruned) -> None:
        check_wrapped(train_data)
        if train_data.shard_scores:
            remedy = "Leave it out: Lightning saves the callbacks of one rank only, which would hold only its shard."
            raise InputError(message("scores in one table", "shard_scores=True", remedy))
        self.train_data = train_data
        self._is_fitting = False

    # ---- before the first epoch --------------------------------------------------------------------------

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:  # noqa: ARG002
        self._is_fitting = stage == "fit"
        if self._is_fitting:
            self._check_trainer(trainer)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        _check_training_step(pl_module)
        for averaging in _find_callbacks(trainer, StochasticWeightAveraging):
            self._check_averaging(averaging, trainer, pl_module)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        data, loader = self.train_data, self._loader(trainer)
        self._check_schedulers(trainer, pl_module, loader)
        loop: Any = trainer.fit_loop
        loop._combined_loader.limits = float("inf")
        batches, is_resumed = loop.epoch_loop.batch_progress, loop.epoch_loop.restarting
        if loop.epoch_loop.restarted_on_train_batch_end and batches.is_last_batch:
            # Saved after the last batch of an epoch: if the next epoch is longer, Lightning would start in its middle.
            loop.epoch_loop._batches_that_stepped += 1
            loop.reset_restart_stage()
            loop.restarting = False
        # Without a checkpoint these are counts of an earlier fit, which Lightning resets later.
        processed = batches.current.processed if is_resumed else 0
        done = data.progress[1]
        is_broken = is_resumed and batches.current.ready > processed  # saved inside a batch, by an exception
        if is_broken:
            batches.is_last_batch = False  # otherwise Lightning would leave this batch out
        is_inside = processed > 0 and not batches.is_last_batch
        has_ended = loop.restarted_mid_epoch and batches.is_last_batch  # saved by the validation after the last batch
        epoch = trainer.current_epoch + has_ended
        if data.epoch != epoch or (is_inside and not done) or (done and not is_inside and not is_broken):
            raise StateError(
                message(
                    f"train_data in epoch {epoch}, like the trainer"
                    + (", with some samples done" if is_inside else "" if is_broken else ", with no samples done"),
                    f"epoch {data.epoch} with {done} samples done",
                    "Resume with fit(ckpt_path=...) from a checkpoint that was saved with this callback. For a new "
                    "run, wrap the data again.",
                )
            )
        if has_ended:  # the length of the old epoch tells Lightning that its validation is over
            self._set_length(trainer, processed)
        elif done:  # the loader yields the remaining batches, but Lightning counts from the start of the epoch
            self._set_length(trainer, processed + loader.count_batches())
            loop._data_fetcher.length = loop.max_batches
            self._warn_lost_gradients(trainer, epoch, processed, is_broken)

    @staticmethod
    def _warn_lost_gradients(trainer: pl.Trainer, epoch: int, processed: int, is_broken: bool) -> None:
        accumulate = _batches_per_step(trainer, epoch)
        if accumulate != trainer.accumulate_grad_batches:
            warn(
                "GradientAccumulationScheduler acts only at the start of an epoch: the rest of this one makes a step "
                f"after each batch instead of every {accumulate}, so the result will differ from an uninterrupted run"
            )
        if lost := processed % accumulate:
            warn(
                "the checkpoint was saved between two steps, and Lightning does not save accumulated gradients: those "
                f"of {lost} batches are lost, so the result will differ from an uninterrupted run"
            )
        elif is_broken:
            warn("the checkpoint was saved inside a batch: if its losses were already recorded, its gradient is lost")

    # ---- epochs ------------------------------------------------------------------------------------------

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002
        fetcher: Any = trainer.fit_loop._data_fetcher
        if fetcher.done:  # Lightning stops by count; the loader notices its end only when asked for one more batch
            next(fetcher.iterator, None)
        self._set_length(trainer, self._loader(trainer).count_batches())

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        data = self.train_data
        if data.epoch == trainer.current_epoch + 1:
            self._check_length(trainer)
            data.scores  # noqa: B018  with several ranks, this is where they exchange their losses
            last = data.history[-1]
            saved = {"infobatch/saved": last.saved, "infobatch/saved_so_far": last.saved_so_far}
            pl_module.log_dict(saved, sync_dist=True)  # equal on all ranks, but Lightning would warn without it
        elif not trainer.should_stop:
            _, done, total = data.progress
            remedy = (
                "Let each epoch run to its end: do not return -1 from on_train_batch_start, and let the __len__ of a "
                "batch sampler count all its batches."
            )
            if not done:
                remedy = (
                    "Return train_data.update(losses) from training_step. With drop_last=True, use smaller batches."
                )
            got = f"an end of epoch {trainer.current_epoch} after {done}"
            raise MisalignedError(message(f"an epoch over all {total} samples of its plan", got, remedy))

    @staticmethod
    def _set_length(trainer: pl.Trainer, batches: int) -> None:
        trainer.fit_loop.max_batches = batches
        interval = getattr(trainer, "val_check_interval", None)  # absent if the Trainer was given a time
        if isinstance(interval, float):
            trainer.val_check_batch = max(1, int(batches * interval))

    # ---- checkpoints -------------------------------------------------------------------------------------

    def on_save_checkpoint(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,  # noqa: ARG002
        checkpoint: dict[str, Any],  # noqa: ARG002
    ) -> None:
        """Refuse a learning-rate search of a paced run. It starts with a checkpoint; no other hook runs earlier."""
        if _find_callbacks(trainer, LearningRateFinder) and _find_paced(trainer):
            raise InputError(
                message(
                    ONE_SETTER,
                    "LearningRateFinder or Tuner.lr_find as well",
                    "Search in a separate run whose configure_optimizers returns no pace, and wrap the data again for "
                    "the training.",
                )
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the training data."""
        return self.train_data.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of the training data, but only in ``fit``: ``test(ckpt_path=...)`` must not reset it."""
        if self._is_fitting:
            self.train_data.load_state_dict(state_dict)

    # ---- checks ------------------------------------------------------------------------------------------

    def _check_trainer(self, trainer: pl.Trainer) -> None:
        if not isinstance(self.train_data, Pruned) or isinstance(trainer.strategy.launcher, _MultiProcessingLauncher):
            remedy = 'The scores would be lost with them: use strategy="ddp", or a single device in a notebook.'
            got = "a strategy that trains copies of it in child processes: ddp_spawn, ddp_fork or ddp_notebook"
            raise InputError(message("a strategy that trains with this train_data", got, remedy))
        required: dict[str, tuple[Any, str]] = {
            "fast_dev_run": (False, "Try the code without this callback first."),
            "max_steps": (-1, "The length of the training must be given in epochs."),
            "max_epochs": (self.train_data.num_epochs, "Pass the same number to the Trainer and to InfoBatch."),
            "overfit_batches": (0, "Prune a small Subset of the data instead."),
            "limit_train_batches": (1.0, "Prune a Subset of the data instead."),
            "reload_dataloaders_every_n_epochs": (0, "One loader serves all epochs."),
        }
        for name, (value, remedy) in required.items():
            if (got := getattr(trainer, name)) != value:
                raise InputError(message(f"Trainer({name}={value})", repr(got), remedy))
        connector = trainer._accelerator_connector
        if connector.is_distributed and connector.use_distributed_sampler:
            remedy = "The plan is already distributed over the ranks. Give validation a DistributedSampler yourself."
            raise InputError(message("Trainer(use_distributed_sampler=False)", "True", remedy))
        interval = getattr(trainer, "val_check_interval", None)
        if isinstance(interval, int) and interval > 1 and trainer.check_val_every_n_epoch is not None:
            remedy = "A pruned epoch may have fewer. Or count across epochs, with check_val_every_n_epoch=None."
            raise InputError(message("val_check_interval as a fraction of an epoch", f"{interval} batches", remedy))

    def _check_averaging(
        self, averaging: StochasticWeightAveraging, trainer: pl.Trainer, pl_module: pl.LightningModule
    ) -> None:
        if averaging.pl_module_contains_batch_norm(pl_module):
            expected = f"exactly num_epochs={self.train_data.num_epochs} epochs"
            got = "StochasticWeightAveraging with a BatchNorm, for which it adds an epoch"
            remedy = "Use WeightAveraging or EMAWeightAveraging, which average the statistics as well."
            raise InputError(message(expected, got, remedy))
        if _find_paced(trainer):
            got = "StochasticWeightAveraging, which replaces the scheduler"
            remedy = "Use WeightAveraging or EMAWeightAveraging, which leave the rate alone, or no pace."
            raise InputError(message(ONE_SETTER, got, remedy))

    def _check_length(self, trainer: pl.Trainer) -> None:
        """Refuse fewer batches than announced: Lightning then misses the last one, with its step and validation."""
        count = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        announced = trainer.fit_loop.max_batches
        if count != announced:
            epoch, kind = trainer.current_epoch, type(self._loader(trainer).batch_sampler).__name__
            expected = f"a batch sampler with the length of the current epoch, {count} in epoch {epoch}"
            remedy = "Compute its __len__ from len(train_data.sampler), which knows the plan."
            raise InputError(message(expected, f"{announced} from the __len__ of {kind}", remedy))

    def _loader(self, trainer: pl.Trainer) -> DataLoader:
        loader: Any = trainer.train_dataloader
        if not isinstance(loader, DataLoader) or loader.dataset is not self.train_data:
            raise InputError(
                message(
                    "one infobatch.DataLoader over the callback's train_data",
                    f"{type(loader).__name__} over {getattr(loader, 'dataset', 'no data set')!r}",
                    "Return infobatch.DataLoader(train_data, batch_size=...) from train_dataloader.",
                )
            )
        if not hasattr(loader.sampler if loader.batch_sampler is None else loader.batch_sampler, "__len__"):
            remedy = "Give it a __len__ for the current epoch: Lightning must know where an epoch ends."
            raise InputError(message("a batch sampler with a length", type(loader.batch_sampler).__name__, remedy))
        return loader

    def _check_schedulers(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loader: DataLoader) -> None:
        if not _find_paced(trainer) and any(isinstance(value, Paced) for value in vars(pl_module).values()):
            remedy = 'Return it from configure_optimizers as {"scheduler": ..., "interval": "step"}.'
            raise InputError(message("what infobatch.pace returned", "no scheduler that a checkpoint holds", remedy))
        for config in trainer.lr_scheduler_configs if pl_module.automatic_optimization else ():
            if isinstance(config.scheduler, Paced):
                self._check_steps(trainer, config, loader)
            elif config.interval == "step" and not config.reduce_on_plateau:
                warn("pruned epochs have fewer steps, so this scheduler will not reach its end: use infobatch.pace")

    def _check_steps(self, trainer: pl.Trainer, config: Any, loader: DataLoader) -> None:
        accumulation = {_batches_per_step(trainer, epoch) for epoch in range(self.train_data.num_epochs)}
        if config.interval != "epoch" and len(accumulation) > 1:
            raise InputError(
                message(
                    "the same number of batches per step in all epochs, if infobatch.pace counts steps",
                    f"GradientAccumulationScheduler with {sorted(accumulation)}",
                    'Use one number, or pace a scheduler of epochs: "interval": "epoch", steps_per_epoch=1.',
                )
            )
        if config.frequency != 1 or loader.batch_size is None:
            return
        expected_steps, accumulate = 1, max(accumulation)
        if config.interval != "epoch":
            expected_steps = full_steps(
                self.train_data, loader.batch_size, drop_last=loader.drop_last, accumulate=accumulate
            )
        if config.scheduler.steps_per_epoch != expected_steps:
            raise InputError(
                message(
                    f'steps_per_epoch={expected_steps} for "interval": "{config.interval}" and '
                    f"accumulate_grad_batches={accumulate}",
                    f"infobatch.pace(..., steps_per_epoch={config.scheduler.steps_per_epoch})",
                    "It is the number of scheduler steps per rank in a full epoch.",
                )
            )


def _check_training_step(module: pl.LightningModule) -> None:
    """Refuse a ``training_step`` that fetches batches itself: Lightning cannot tell how many, or which is the last."""
    if is_param_in_hook_signature(module.training_step, "dataloader_iter", explicit=True):
        remedy = "Let Lightning fetch the batches: an epoch of the plan ends with its last batch, which it must know."
        got = "training_step(self, dataloader_iter)"
        raise InputError(message("training_step(self, batch, batch_idx)", got, remedy))


def _batches_per_step(trainer: pl.Trainer, epoch: int) -> int:
    """Return how many batches make one optimizer step in an epoch.

    A ``GradientAccumulationScheduler`` sets the Trainer's number only when that epoch begins, so it is asked first.
    """
    for scheduler in _find_callbacks(trainer, GradientAccumulationScheduler):
        return scheduler.get_accumulate_grad_batches(epoch)
    return trainer.accumulate_grad_batches


def _find_callbacks(trainer: Any, kind: type[_CallbackType]) -> list[_CallbackType]:
    """Return the Trainer's callbacks of one kind."""
    return [callback for callback in trainer.callbacks if isinstance(callback, kind)]


def _find_paced(trainer: pl.Trainer) -> list[Paced]:
    """Return the paced schedulers that ``configure_optimizers`` returned."""
    schedulers: list[Any] = [config.scheduler for config in trainer.lr_scheduler_configs]
    return [scheduler for scheduler in schedulers if isinstance(scheduler, Paced)]
