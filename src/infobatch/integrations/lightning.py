"""Lightning: each epoch as long as its plan, validation in each, and the scores in its checkpoints.

Lightning asks for the length of an epoch once, before the first, and keeps to it: a shorter one would go without its
validation and a longer one would be cut. Nothing public changes that, so some of its private fields are touched here.
"""

from __future__ import annotations

from typing import Any, TypeVar

import lightning.pytorch as pl
from lightning.pytorch.callbacks import GradientAccumulationScheduler, LearningRateFinder, StochasticWeightAveraging
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher

from ..dataset import Pruned
from ..errors import InputError, MisalignedError, StateError, message, warn
from ..loader import DataLoader
from ..schedule.pace import Paced, full_steps

Kind = TypeVar("Kind", bound=pl.Callback)


class Pruning(pl.Callback):
    """Lets a Trainer train on pruned data, and saves and loads the scores with its checkpoints.

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

    ``fit(ckpt_path=...)`` goes on at the batch where the checkpoint was taken. The shares left out are logged as
    ``infobatch/saved`` and ``infobatch/saved_so_far``.
    """

    def __init__(self, train_data: Pruned) -> None:
        if not isinstance(train_data, Pruned):
            got = type(train_data).__name__
            raise InputError(message("the training data, an infobatch.InfoBatch or Pruned", got, "Wrap it first."))
        if train_data.shard_scores:
            remedy = "Lightning saves the callbacks of one rank alone, and that one would hold a part of the scores."
            raise InputError(message("scores in one table", "shard_scores=True", remedy))
        self.train_data = train_data
        self._fitting = False

    # ---- before the first epoch --------------------------------------------------------------------------

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:  # noqa: ARG002
        self._fitting = stage == "fit"
        if self._fitting:
            self._check_trainer(trainer)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for averaging in beside(trainer, StochasticWeightAveraging):
            self._check_averaging(averaging, pl_module)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        data, loader = self.train_data, self._loader(trainer)
        self._check_schedulers(trainer, pl_module, loader)
        loop: Any = trainer.fit_loop
        loop._combined_loader.limits = float("inf")
        batches, resumed = loop.epoch_loop.batch_progress, loop.epoch_loop.restarting
        if loop.epoch_loop.restarted_on_train_batch_end and batches.is_last_batch:
            # Saved at an epoch's last batch: Lightning would begin the next one in its middle if that is longer.
            loop.epoch_loop._batches_that_stepped += 1
            loop.reset_restart_stage()
            loop.restarting = False
        before = batches.current.processed if resumed else 0  # or counts of a fit before, which Lightning forgets
        done = data.progress[1]
        broken = resumed and batches.current.ready > before  # saved inside a batch, where an exception came
        if broken:
            batches.is_last_batch = False  # not yet: Lightning would leave it out
        inside = before > 0 and not batches.is_last_batch
        ended = loop.restarted_mid_epoch and batches.is_last_batch  # saved by the validation after the last batch
        due = trainer.current_epoch + ended
        if data.epoch != due or (inside and not done) or (done and not inside and not broken):
            raise StateError(
                message(
                    f"train_data in epoch {due}, where the trainer is"
                    + (", with a part of it done" if inside else "" if broken else ", with nothing of it done"),
                    f"epoch {data.epoch} with {done} samples done",
                    "Go on with fit(ckpt_path=...), from a checkpoint that was saved with this callback while epochs "
                    "ran to their ends; for a new run wrap the data anew.",
                )
            )
        if ended:  # by the length of the old epoch Lightning knows that its validation has been
            self._set_length(trainer, before)
        elif done:  # the loader brings what is left, and Lightning counts what was before, too
            self._set_length(trainer, before + len(loader))
            loop._data_fetcher.length = loop.max_batches
            every = batches_a_step(trainer, due)
            if every != trainer.accumulate_grad_batches:
                warn(
                    "GradientAccumulationScheduler speaks where an epoch begins: what is left of this one has a step "
                    f"after each batch, not after {every}, so the run will differ from an undisturbed one"
                )
            if lost := before % every:
                warn(
                    "the checkpoint lies between two steps, and Lightning saves no accumulated gradients: those of "
                    f"{lost} batches are lost, so the run will differ from an undisturbed one"
                )
            elif broken:
                warn("the checkpoint was saved inside a batch: if its losses had come, its gradient is lost")

    # ---- epochs ------------------------------------------------------------------------------------------

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002
        fetcher: Any = trainer.fit_loop._data_fetcher
        if fetcher.done:  # Lightning counts; the loader knows that it is through once it is asked for one more
            next(fetcher.iterator, None)
        self._set_length(trainer, len(self._loader(trainer)))

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        data = self.train_data
        if data.epoch == trainer.current_epoch + 1:
            self._check_length(trainer)
            data.scores  # noqa: B018  with ranks, their losses come together here
            last = data.history[-1]
            shares = {"infobatch/saved": last.saved, "infobatch/saved_so_far": last.saved_so_far}
            pl_module.log_dict(shares, sync_dist=True)  # the same on all ranks, but Lightning would warn
        elif not trainer.should_stop:
            _, done, total = data.progress
            remedy = (
                "Let each epoch run to its end: no -1 from on_train_batch_start, and no batch sampler that brings "
                "more than its __len__ says."
            )
            if not done:
                remedy = (
                    "Return train_data.update(losses) from training_step. With drop_last=True, take smaller batches."
                )
            got = f"epoch {trainer.current_epoch} over after {done}"
            raise MisalignedError(message(f"an epoch of the {total} samples of its plan", got, remedy))

    @staticmethod
    def _set_length(trainer: pl.Trainer, batches: int) -> None:
        trainer.fit_loop.max_batches = batches
        interval = getattr(trainer, "val_check_interval", None)  # it has none if it was told a time
        if isinstance(interval, float):
            trainer.val_check_batch = max(1, int(batches * interval))

    # ---- checkpoints -------------------------------------------------------------------------------------

    def on_save_checkpoint(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,  # noqa: ARG002
        checkpoint: dict[str, Any],  # noqa: ARG002
    ) -> None:
        """A search for a learning rate begins with a checkpoint, and nothing else here is called before it."""
        data = self.train_data
        if beside(trainer, LearningRateFinder) and data.paced and data.compensate == "lr":
            raise InputError(
                message(
                    "a learning rate that infobatch.pace alone sets",
                    "LearningRateFinder or Tuner.lr_find beside it",
                    "Search in a run of its own, in which configure_optimizers returns no pace, and wrap the data "
                    "anew for the training.",
                )
            )

    def state_dict(self) -> dict[str, Any]:
        return self.train_data.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self._fitting:  # test(ckpt_path="best") must not take the scores back
            self.train_data.load_state_dict(state_dict)

    # ---- what cannot work --------------------------------------------------------------------------------

    def _check_trainer(self, trainer: pl.Trainer) -> None:
        if not isinstance(self.train_data, Pruned) or isinstance(trainer.strategy.launcher, _MultiProcessingLauncher):
            remedy = 'The scores would end with them, too: take strategy="ddp", in a notebook a single device.'
            got = "a copy of it in processes that end with the training, as of ddp_spawn, ddp_fork or ddp_notebook"
            raise InputError(message("a strategy that leaves train_data where it is", got, remedy))
        wanted: dict[str, tuple[Any, str]] = {
            "fast_dev_run": (False, "Try the code without this callback first."),
            "max_steps": (-1, "Pruning must know the end in epochs."),
            "max_epochs": (self.train_data.num_epochs, "Say the same number here and to InfoBatch."),
            "overfit_batches": (0, "Prune a small Subset of the data instead."),
            "limit_train_batches": (1.0, "Prune a Subset of the data instead."),
            "reload_dataloaders_every_n_epochs": (0, "One loader follows all plans."),
        }
        for name, (value, remedy) in wanted.items():
            if (got := getattr(trainer, name)) != value:
                raise InputError(message(f"Trainer({name}={value})", repr(got), remedy))
        connector = trainer._accelerator_connector
        if connector.is_distributed and connector.use_distributed_sampler:
            remedy = "The plan is shared out to the ranks already. Give validation a DistributedSampler yourself."
            raise InputError(message("Trainer(use_distributed_sampler=False)", "True", remedy))
        interval = getattr(trainer, "val_check_interval", None)
        if isinstance(interval, int) and interval > 1 and trainer.check_val_every_n_epoch is not None:
            remedy = "A pruned epoch may have fewer. Or count across epochs, with check_val_every_n_epoch=None."
            raise InputError(message("val_check_interval as a share of an epoch", f"{interval} batches", remedy))

    def _check_averaging(self, averaging: StochasticWeightAveraging, pl_module: pl.LightningModule) -> None:
        if averaging.pl_module_contains_batch_norm(pl_module):
            expected = f"the num_epochs={self.train_data.num_epochs} promised, and no epoch more"
            got = "StochasticWeightAveraging and a BatchNorm, for whose statistics it adds one"
            remedy = "Take WeightAveraging or EMAWeightAveraging, which average the statistics, too."
            raise InputError(message(expected, got, remedy))
        if self.train_data.paced:
            got = "StochasticWeightAveraging, which brings its own scheduler"
            remedy = "Take WeightAveraging or EMAWeightAveraging, which leave the rate alone, or no pace."
            raise InputError(message("a learning rate that infobatch.pace alone sets", got, remedy))

    def _check_length(self, trainer: pl.Trainer) -> None:
        """Fewer batches than were said, and Lightning has waited for the last one: no validation, no last step."""
        came, said = trainer.fit_loop.epoch_loop.batch_progress.current.ready, trainer.fit_loop.max_batches
        if came != said:
            epoch, kind = trainer.current_epoch, type(self._loader(trainer).batch_sampler).__name__
            expected = f"a batch sampler with the length of the epoch at hand, {came} in epoch {epoch}"
            remedy = "Count from len(train_data.sampler), which knows the plan: Lightning must see the end come."
            raise InputError(message(expected, f"{said} from the __len__ of {kind}", remedy))

    def _loader(self, trainer: pl.Trainer) -> DataLoader:
        loader: Any = trainer.train_dataloader
        if not isinstance(loader, DataLoader) or loader.dataset is not self.train_data:
            raise InputError(
                message(
                    "one infobatch.DataLoader over the callback's train_data",
                    f"{type(loader).__name__} over {getattr(loader, 'dataset', 'no data set')!r}",
                    "Let train_dataloader return infobatch.DataLoader(train_data, batch_size=...).",
                )
            )
        if not hasattr(loader.sampler if loader.batch_sampler is None else loader.batch_sampler, "__len__"):
            remedy = "Give it a __len__ of the epoch at hand: Lightning must know where an epoch ends."
            raise InputError(message("a batch sampler with a length", type(loader.batch_sampler).__name__, remedy))
        return loader

    def _check_schedulers(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loader: DataLoader) -> None:
        configs = trainer.lr_scheduler_configs
        paced = bool(self.train_data.paces)
        if paced and not any(isinstance(config.scheduler, Paced) for config in configs):
            remedy = 'Return it from configure_optimizers as {"scheduler": ..., "interval": "step"}.'
            raise InputError(message("what infobatch.pace returned", "no scheduler that a checkpoint holds", remedy))
        for config in configs if pl_module.automatic_optimization else ():
            scheduler: Any = config.scheduler
            if not isinstance(scheduler, Paced):
                if config.interval == "step" and not config.reduce_on_plateau:
                    warn("a scheduler that counts the steps of pruned epochs ends early: wrap it in infobatch.pace")
            elif scheduler.scheduler is not None:
                self._check_steps(trainer, config, loader)

    def _check_steps(self, trainer: pl.Trainer, config: Any, loader: DataLoader) -> None:
        accumulation = {batches_a_step(trainer, epoch) for epoch in range(self.train_data.num_epochs)}
        if config.interval != "epoch" and len(accumulation) > 1:
            raise InputError(
                message(
                    "as many batches a step in each epoch, where infobatch.pace counts steps",
                    f"GradientAccumulationScheduler with {sorted(accumulation)}",
                    'Keep to one number, or pace a scheduler of epochs: "interval": "epoch", steps_per_epoch=1.',
                )
            )
        if config.frequency != 1 or loader.batch_size is None:
            return
        wanted, every = 1, max(accumulation)
        if config.interval != "epoch":
            wanted = full_steps(self.train_data, loader.batch_size, drop_last=loader.drop_last, accumulate=every)
        if config.scheduler.steps_per_epoch != wanted:
            raise InputError(
                message(
                    f'steps_per_epoch={wanted} for "interval": "{config.interval}" and '
                    f"accumulate_grad_batches={every}",
                    f"infobatch.pace(..., steps_per_epoch={config.scheduler.steps_per_epoch})",
                    "It is how often a rank would step the scheduler in a full epoch.",
                )
            )


def batches_a_step(trainer: pl.Trainer, epoch: int) -> int:
    """As the Trainer has it, or as a GradientAccumulationScheduler will say when that epoch begins."""
    for scheduler in beside(trainer, GradientAccumulationScheduler):
        return scheduler.get_accumulate_grad_batches(epoch)
    return trainer.accumulate_grad_batches


def beside(trainer: Any, kind: type[Kind]) -> list[Kind]:
    """Other callbacks of the Trainer, of that kind."""
    return [callback for callback in trainer.callbacks if isinstance(callback, kind)]
