"""Hugging Face's Trainer: epochs of different lengths, losses per sample, and checkpoints that hold the plan.

The Trainer asks for the length of an epoch once and derives everything from it: steps, learning rates, gradient
accumulation and where to resume. Here each epoch has its own length. The loader is not passed to Accelerate, which
would read ahead and repeat samples to fill the batches of all ranks; the sampler already distributes the plan over
the ranks. The Trainer fetches batches before it uses them, so each batch carries the indices of its samples.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from typing import Any

import accelerate  # noqa: F401  (the Trainer needs it; fail here with a short message)
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import Trainer
from transformers.trainer_utils import seed_worker

from ..adapters.per_sample import PerSample
from ..attribution.views import Fetched, WithIndices, check_wrapped
from ..errors import EpochError, InputError, MisalignedError, RankError, StateError, message
from ..files import load, save
from ..ranks.exchange import find
from ..schedule.pace import Paced, full_steps, pace
from ..sieve.undisturbed import kept_random_state
from .transformers_loss import (
    CROSS_ENTROPY,
    IGNORED,
    LOSS_PER_SAMPLE,
    LossFunction,
    compare,
    describe,
    find_scale,
    find_shift,
    fit,
    losses_per_sample,
    mean_over_labels,
    own_candidates,
)

__all__ = ["PrunedTrainer"]

FILE = "infobatch.pt"
"""The file in a checkpoint folder that holds the state of the training data."""
INDEX = "infobatch_index"
"""The key under which a batch carries the indices of its samples."""
HOOKS = (
    "_finalize_training",
    "_init_training_state",
    "_maybe_log_save_evaluate",
    "_run_epoch",
    "_save_optimizer_and_scheduler",
    "set_initial_training_values",
)
"""Private methods of the Trainer that are overridden here."""
LOADER_METHODS = ("get_train_dataloader", "_get_train_sampler")

if missing := [name for name in HOOKS if not hasattr(Trainer, name)]:
    text = message(
        "transformers 5.22 or a similar version", f"a Trainer without {missing}", "Install transformers 5.22."
    )
    raise ImportError(text)


def __dir__() -> list[str]:
    return [*__all__]


class PrunedTrainer(Trainer):
    """A ``transformers.Trainer`` whose ``train_dataset`` is pruned data.

    Whatever computes the loss, a ``compute_loss_func`` or the ``compute_loss`` of another class, must return one loss
    per sample. Without either, the loss is the cross entropy of the model's ``logits``, averaged over the labeled
    tokens of a sample, and each batch is checked against the loss that the model itself returns. A sample without a
    labeled token keeps the score it had.

    To combine it with another Trainer, write ``class PrunedSeq2SeqTrainer(PrunedTrainer, Seq2SeqTrainer)``.

    Args:
        *args, **kwargs: Those of ``transformers.Trainer``. ``train_dataset`` must be pruned data.
        compute_loss_func: Called as ``f(outputs, labels)``, and with ``num_items_in_batch`` and ``inputs`` if it has
            parameters of these names. It returns losses, shape [batch], or a ``PerSample``, as ``infobatch.per_sample``
            and the adapters do. ``num_items_in_batch`` is the number of labels in all batches that are accumulated for
            a step, None without ``labels``. ``inputs`` is the whole batch; in training it holds the indices of its
            samples as ``inputs["infobatch_index"]``.

    Attributes:
        loss_is_scaled_for_ga: As in the Trainer: True if the mean of the losses is their sum over the batch divided by
            ``num_items_in_batch``, False if it is a mean over the batch, which is divided by the number of accumulated
            batches. By default None: the first batch shows it.

    Raises:
        InputError: If a setting cannot work with pruned data, or a loss is not per sample.

    Example:
        >>> import torch, infobatch
        >>> from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
        >>> from infobatch.integrations.transformers import PrunedTrainer
        >>> data = [{"input_ids": torch.tensor([i % 7, i % 5]), "labels": int(i % 7 == 0)} for i in range(70)]
        >>> size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        >>> model = BertForSequenceClassification(BertConfig(vocab_size=7, **size))
        >>> train_data = infobatch.InfoBatch(data, num_epochs=3, delta=1)
        >>> args = TrainingArguments(
        ...     "out", num_train_epochs=3, learning_rate=0.02, use_cpu=True, dataloader_pin_memory=False,
        ...     disable_tqdm=True, report_to="none", save_strategy="no",
        ... )
        >>> done = PrunedTrainer(model, args, train_dataset=train_data).train()  # doctest: +ELLIPSIS
        {'train_runtime': ...}
        >>> len(train_data.history), train_data.history[-1].kept < 70
        (3, True)
    """

    args: Any
    model: Any
    lr_scheduler: Any
    train_dataset: Any
    compute_loss_func: Any
    loss_is_scaled_for_ga: bool | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._steps_per_epoch = 0
        """Optimizer steps in a full epoch."""
        self._updated = False
        """Whether the losses of the current batch were recorded."""
        self._shift: int | None = None
        """How many tokens the labels are shifted against the logits; known after the first batch."""
        self._worst: Tensor | None = None
        """The largest difference so far between our loss and the model's own; see ``compare``."""
        self._get_loss_function()
        if self.train_dataset is not None:
            self._check_settings()

    # ---- data --------------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> DataLoader[Any]:
        if self.train_dataset is None:
            return super().get_train_dataloader()  # raises the Trainer's own error
        args = self.args
        return DataLoader(
            WithIndices(self.train_dataset),
            batch_size=self._train_batch_size,
            sampler=self.train_dataset.sampler,
            drop_last=args.dataloader_drop_last,
            collate_fn=IndexedCollator(
                self._get_collator_with_removed_columns(self.data_collator, description="Training")
            ),
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            multiprocessing_context=args.dataloader_multiprocessing_context,
            prefetch_factor=args.dataloader_prefetch_factor,
            in_order=args.dataloader_in_order,
            worker_init_fn=partial(seed_worker, num_workers=args.dataloader_num_workers, rank=args.process_index),
            generator=torch.Generator(),  # separate from dropout's: a resumed epoch opens the loader once more
        )

    # ---- epochs ------------------------------------------------------------------------------------------

    def set_initial_training_values(self, args: Any, dataloader: Any) -> tuple[int, int, int, int, int, int, int]:
        """Return the Trainer's counts as for full data: schedulers are built for these."""
        del dataloader
        self._check_settings()
        size, epochs = len(self.train_dataset), self.train_dataset.num_epochs
        batches = full_steps(self.train_dataset, self._train_batch_size, drop_last=args.dataloader_drop_last)
        self._steps_per_epoch = steps = math.ceil(batches / args.gradient_accumulation_steps)
        return epochs, steps, size, size * epochs, self.get_total_train_batch_size(args), batches, steps * epochs

    def _init_training_state(
        self, max_steps: int, num_update_steps_per_epoch: int, num_train_epochs: int, checkpoint: Any, trial: Any
    ) -> tuple[int, int]:
        """Return the epoch to start with, and 0 batches to skip: the sampler leaves out what is done already."""
        trainer: Any = super()
        trainer._init_training_state(max_steps, num_update_steps_per_epoch, num_train_epochs, checkpoint, trial)
        if checkpoint is not None:
            self._load_train_data(os.path.join(checkpoint, FILE))
        elif (progress := self.train_dataset.progress)[:2] != (0, 0):
            raise EpochError(
                message(
                    "training data before its first epoch",
                    f"epoch {progress[0]} with {progress[1]} samples done",
                    "Wrap the data again for each call of train(), or resume with resume_from_checkpoint.",
                )
            )
        return self.train_dataset.epoch, 0

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        scheduler = super().create_scheduler(num_training_steps, optimizer)
        if not isinstance(scheduler, Paced):
            self.lr_scheduler = pace(scheduler, self.train_dataset, self._steps_per_epoch)
        return self.lr_scheduler

    def _run_epoch(
        self,
        model: Any,
        epoch: int,
        train_dataloader: Any,
        steps_in_epoch: int,
        num_update_steps_per_epoch: int,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Run an epoch with its own number of batches and steps."""
        del steps_in_epoch, num_update_steps_per_epoch
        data = self.train_dataset
        batches = data.sampler.count_batches(train_dataloader)
        if not batches:
            raise EpochError(
                message(
                    "at least one batch per epoch",
                    f"none, with dataloader_drop_last=True and {data.plan().kept} samples kept in epoch {epoch}",
                    "Leave dataloader_drop_last out, or use smaller batches.",
                )
            )
        steps = math.ceil(batches / self.args.gradient_accumulation_steps)
        self.state.max_steps = self.state.global_step + steps + (data.num_epochs - epoch - 1) * self._steps_per_epoch
        train_dataloader.generator.manual_seed(self.args.seed + self.state.global_step)
        trainer: Any = super()
        trainer._run_epoch(model, epoch, train_dataloader, batches, steps, *args, **kwargs)
        self._check_worst()
        stopped = self.control.should_training_stop and self.state.global_step < self.state.max_steps
        if data.epoch == epoch and not stopped:
            raise EpochError(
                message(
                    "each epoch to run to its end, unless the training stops",
                    f"an end of epoch {epoch} after {data.progress[1]} of its {data.progress[2]} samples",
                    "A callback has set should_epoch_stop: let it set should_training_stop instead.",
                )
            )

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        epoch, done, total = self.train_dataset.progress
        self.state.epoch = epoch + done / total  # counted from the start of the epoch, also after resuming
        step = self.state.global_step
        if self.control.should_save or step & (step - 1) == 0:  # 1, 2, 4, ...: the check waits for the device
            self._check_worst()
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _finalize_training(self, trial: Any, num_train_samples: int, start_time: float) -> Any:
        """Report the samples that were trained on; the Trainer scales the number by this call's share of the steps."""
        _ = self.train_dataset.scores  # ranks exchange the losses of the last epoch here
        trained = sum(report.kept for report in self.train_dataset.history)
        num_train_samples = trained * self.state.max_steps // max(self.state.global_step, 1)
        trainer: Any = super()
        return trainer._finalize_training(trial, num_train_samples, start_time)

    # ---- one step ----------------------------------------------------------------------------------------

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        self._updated = False
        loss: Tensor = super().training_step(*args, **kwargs)
        if not self._updated:
            raise MisalignedError(
                message(
                    "each training batch to reach PrunedTrainer.compute_loss with its indices",
                    "one that did not",
                    "Call super().compute_loss in your method, or define it in a class that follows PrunedTrainer, as "
                    "in class Mine(PrunedTrainer, Yours), and return one loss per sample. Keep this class's loader.",
                )
            )
        return loss

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None, **kwargs: Any
    ) -> Any:
        """Return the weighted mean in training, and the Trainer's own loss in evaluation."""
        number, func, score = num_items_in_batch, self._get_loss_function(), None
        if func is not None:
            func.inputs, func.score = dict(inputs), None
        if INDEX not in inputs:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch=number, **kwargs)
        inputs = dict(inputs)
        indices = inputs.pop(INDEX)
        is_own = any("compute_loss" in vars(kind) for kind in self._neighbours()[1])
        if is_own:
            given = {"num_items_in_batch": number} if self.loss_is_scaled_for_ga else {}
            loss, outputs = super().compute_loss(model, inputs, True, **given)
            score = None if func is None else func.score
        elif func is None:
            (loss, score), outputs = self._cross_entropy(model, inputs)
        else:
            loss, outputs = self._call(func, model, inputs, number)
            score = func.score
        if self.loss_is_scaled_for_ga is None and (is_own or func is None):
            self.loss_is_scaled_for_ga = False  # a mean over its batch
        if isinstance(loss, Tensor) and loss.ndim == 1 and len(loss) != len(indices):
            raise MisalignedError(
                message(
                    f"one loss for each of the {len(indices)} samples",
                    str(len(loss)),
                    "Neither the data_collator nor the loss may drop, repeat or split samples.",
                )
            )
        scale = self._accumulation_scale()  # before the update, which may end the epoch
        if self.loss_is_scaled_for_ga and not is_own and number is not None and self.args.average_tokens_across_devices:
            scale *= self.accelerator.num_processes  # the number is that of all ranks, whose gradients are averaged
        mean = self.train_dataset.update(loss, indices, score=score)
        if scale != 1.0:
            mean = mean * scale
        self._updated = True
        return (mean, outputs) if return_outputs else mean

    def _get_loss_function(self) -> LossFunction | None:
        """Return the ``compute_loss_func``, wrapped so that it is called with what it takes."""
        if self.compute_loss_func is not None and not isinstance(self.compute_loss_func, LossFunction):
            self.compute_loss_func = LossFunction(self.compute_loss_func)
        return self.compute_loss_func

    def _call(self, func: LossFunction, model: Any, inputs: dict[str, Any], number: Any) -> tuple[Any, Any]:
        """Run the model as the Trainer does for a ``compute_loss_func``, and return the losses and the outputs."""
        labels = inputs.pop("labels", None)
        if self.model_accepts_loss_kwargs and number is not None:
            inputs["num_items_in_batch"] = number
        outputs = model(**inputs)
        doubled = None
        if self.loss_is_scaled_for_ga is None:
            is_alone = self.args.gradient_accumulation_steps == self.args.world_size == 1
            if number is None or not func.takes_number or is_alone:
                self.loss_is_scaled_for_ga = False
            else:
                with torch.no_grad(), kept_random_state(self.args.device):
                    doubled = func(outputs, labels, num_items_in_batch=2 * number)
        loss = func(outputs, labels, num_items_in_batch=number)
        if doubled is not None:
            self.loss_is_scaled_for_ga = find_scale(loss, doubled)
        func.inputs = None
        return loss, outputs

    def _accumulation_scale(self) -> float:
        """Return a factor by which an incomplete last accumulation of a pruned epoch counts for what it holds.

        The Trainer divides by the number of batches that it has accumulated, or of their labels, however few.
        """
        complete: int = self.args.gradient_accumulation_steps
        if complete == 1 or (current := int(self.current_gradient_accumulation_steps)) == complete:
            return 1.0
        plan = self.train_dataset.plan()
        fits_one_step = plan.kept <= current * self.args.train_batch_size * self.args.world_size
        if fits_one_step or plan.kept == plan.size:
            return 1.0
        if not self.loss_is_scaled_for_ga:
            return current / complete
        batch: int = self.args.train_batch_size
        rest: int = math.ceil(plan.kept / self.args.world_size) % (complete * batch)  # on each rank
        if self.args.dataloader_drop_last:
            rest -= rest % batch
        return rest / (complete * batch)

    def _cross_entropy(self, model: Any, inputs: dict[str, Any]) -> tuple[PerSample, Any]:
        """Compute the loss per sample from the logits, and compare its mean with the loss that the model returns.

        The labels stay in the batch: the logits may depend on them, and the model's own loss does.
        """
        outputs: Any = model(**inputs)
        labels, logits, own = inputs.get("labels"), _get(outputs, "logits"), _get(outputs, "loss")
        if not isinstance(logits, Tensor) or not isinstance(labels, Tensor) or not fit(logits, labels):
            got = f"a {type(outputs).__name__} with logits {describe(logits)} and labels {describe(labels)}"
            raise InputError(message("one class per sample or token, and logits for it", got, LOSS_PER_SAMPLE))
        extra = _get(outputs, "aux_loss")
        if not isinstance(own, Tensor) or own.numel() != 1 or extra is not None:
            raise InputError(
                message(CROSS_ENTROPY, f"a loss {describe(own)} and an aux_loss {describe(extra)}", LOSS_PER_SAMPLE)
            )
        if self._shift is None and bool((labels != IGNORED).any()):
            self._shift = find_shift(own, logits, labels)
        shift, smoothing = self._shift or 0, self.args.label_smoothing_factor
        found, counts = losses_per_sample(logits, labels, shift, smoothing)
        if self._shift is not None:
            is_computed = smoothing == 0 and own.itemsize > 2
            ours = (
                [mean_over_labels(found.loss.detach(), counts)]
                if is_computed
                else own_candidates(own, logits.detach(), labels, shift)
            )
            compared = compare(own.detach(), ours)
            worst = compared if self._worst is None else self._worst
            self._worst = torch.where(compared[0] > worst[0], compared, worst)
        return found, outputs

    def _check_worst(self) -> None:
        if self._worst is not None:
            distance, own, ours = self._worst.tolist()
            if distance > 1:
                got = f"a loss of {own} and a cross entropy of {ours} in a recent batch"
                raise InputError(message(CROSS_ENTROPY, got, LOSS_PER_SAMPLE))

    # ---- checkpoints -------------------------------------------------------------------------------------

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        state = {"train_data": self.train_dataset.state_dict(), "steps_per_epoch": self._steps_per_epoch}
        if self.args.should_save:
            save(state, os.path.join(output_dir, FILE))

    def _load_train_data(self, path: str) -> None:
        if not os.path.isfile(path):
            remedy = "It was saved by another Trainer or with save_only_model=True: use one that PrunedTrainer saved."
            raise StateError(message(f"a checkpoint with {FILE}", os.path.dirname(path), remedy))
        state = load(path)
        if state["steps_per_epoch"] != self._steps_per_epoch:
            raise StateError(
                message(
                    f"{state['steps_per_epoch']} steps per full epoch, as in the checkpoint",
                    str(self._steps_per_epoch),
                    "Schedulers count steps: keep batch size x accumulation x ranks unchanged.",
                )
            )
        self.train_dataset.load_state_dict(state["train_data"])

    # ---- checks ------------------------------------------------------------------------------------------

    def _neighbours(self) -> tuple[list[type], list[type]]:
        """Return the classes before this one in the method resolution order, and those between it and the Trainer."""
        kinds = list(type(self).__mro__)
        here = kinds.index(PrunedTrainer)
        return kinds[:here], kinds[here + 1 : kinds.index(Trainer)]

    def _check_settings(self) -> None:
        args, data, config = self.args, self.train_dataset, self.args.accelerator_config
        check_wrapped(data, "Wrap the data first, and pass that as train_dataset.")
        if args.num_train_epochs != data.num_epochs:
            expected = f"num_train_epochs={data.num_epochs}, as in the training data"
            remedy = "Pass the same number to both: the last epochs use all samples, so the end must be known."
            raise InputError(message(expected, str(args.num_train_epochs), remedy))
        schedule, order = getattr(args.lr_scheduler_type, "value", ""), args.train_sampling_strategy
        mesh = self.get_tp_size() * self.get_cp_size() * self.get_sp_size()
        has_loader = any(
            name in vars(kind) for kinds in self._neighbours() for kind in kinds for name in LOADER_METHODS
        )
        by_metric = schedule in ("reduce_lr_on_plateau", "greedy")
        needs_more = bool(data.method.channels or data.method.observes_hidden)
        refused = [
            (args.max_steps > 0, f"max_steps={args.max_steps}", "Pass num_train_epochs: plans are made per epoch."),
            (by_metric, f"lr_scheduler_type={schedule!r}", "Use a schedule that counts steps."),
            (args.auto_find_batch_size, "auto_find_batch_size=True", "It would restart in the middle of an epoch."),
            (args.enable_jit_checkpoint, "enable_jit_checkpoint=True", "It saves between a loss and its step."),
            (args.ignore_data_skip, "ignore_data_skip=True", "Leave it out: nothing is skipped on resuming."),
            (order != "random", f"train_sampling_strategy={order!r}", "The plan determines the order."),
            (has_loader, "a custom training loader or sampler", "The plan determines the samples and their order."),
            (config.split_batches, "split_batches=True", "per_device_train_batch_size is the batch of one rank."),
            (config.dispatch_batches, "dispatch_batches=True", "Every rank loads its own part of the plan."),
            (args.n_gpu > 1, f"{args.n_gpu} GPUs in one process", "Start it with torchrun, one process per GPU."),
            (self.is_deepspeed_enabled, "DeepSpeed", "It steps and saves by itself: use DDP."),
            (mesh > 1, "ranks that share a batch", "Only data parallelism is supported: use DDP."),
            (data.shard_scores, "shard_scores=True", "Leave it out: a checkpoint holds the scores in one table."),
            (needs_more, repr(data.method), "It needs more than losses; PrunedTrainer records losses only."),
        ]
        for is_wrong, got, remedy in refused:
            if is_wrong:
                raise InputError(message("settings that PrunedTrainer supports", got, remedy))
        if (world := find(data.group).world) != args.world_size:
            remedy = "Leave group out: all ranks of the Trainer share the data."
            raise RankError(message(f"training data for {args.world_size} ranks", str(world), remedy))


class IndexedCollator:
    """A collator that adds the indices of the samples to each batch. Runs in the workers.

    Args:
        collate: The ``data_collator`` of the Trainer, which makes a dict of a list of samples.

    Example:
        >>> samples = Fetched([{"x": 1.0}, {"x": 2.0}])
        >>> samples.indices = [7, 3]
        >>> collator = IndexedCollator(torch.utils.data.default_collate)
        >>> collator(samples)["infobatch_index"]
        tensor([7, 3])
    """

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: Any) -> Any:
        """Collate samples that come with their indices, and add these to the batch.

        Raises:
            InputError: If the samples are not in a list as fetched, or the batch is not a dict.
        """
        batch = self.collate(samples)
        if not isinstance(samples, Fetched) or not isinstance(batch, MutableMapping):
            got = f"{type(samples).__name__}, collated to {type(batch).__name__}"
            remedy = "The data set's __getitems__ must return a list, and the data_collator a dict."
            raise InputError(message("samples in a list and a batch as a dict", got, remedy))
        batch[INDEX] = torch.tensor(samples.indices)
        return batch


def _get(outputs: Any, name: str) -> Any:
    return outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)
