"""Hugging Face's Trainer: epochs of their own length, one loss a sample, and checkpoints that know the plan.

The Trainer asks for the length of an epoch once and works with it to the end: steps, learning rates, accumulation
and the place to resume at. Here each epoch is told its own. The loader is not given to Accelerate, which would read
ahead and repeat samples to fill the ranks' batches; the sampler shares the plan out to ranks already. Batches are
fetched before they are used, so each carries the indices of its samples.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from typing import Any

import accelerate  # noqa: F401  (the Trainer would miss it later, and say so in many more words)
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import Trainer
from transformers.trainer_utils import seed_worker

from ..attribution.views import Fetched
from ..dataset import Pruned
from ..errors import EpochError, InputError, MisalignedError, RankError, StateError, message
from ..files import load, save
from ..ranks.exchange import find
from ..schedule.pace import Paced, full_steps, pace

FILE = "infobatch.pt"
"""What a checkpoint's folder holds besides the Trainer's own files."""
INDEX = "infobatch_index"
"""Under which name a batch carries its samples' indices."""
IGNORED = -100
"""The label of a token that is not to be predicted, throughout transformers."""
HOOKS = (
    "_finalize_training",
    "_init_training_state",
    "_maybe_log_save_evaluate",
    "_run_epoch",
    "_save_optimizer_and_scheduler",
    "set_initial_training_values",
)
"""Methods of the Trainer that it does not offer to replace, and that are replaced here."""
LOADING = ("get_train_dataloader", "_get_train_sampler")
OWN = "the cross entropy of its logits as the model's loss"
ONE_EACH = "Pass compute_loss_func=f with f(outputs, labels, num_items_in_batch=None) -> one loss a sample."

if missing := [name for name in HOOKS if not hasattr(Trainer, name)]:
    text = message("a transformers as of 5.22", f"a Trainer without {missing}", "Install another version.")
    raise ImportError(text)


class PrunedTrainer(Trainer):
    """``transformers.Trainer`` for a pruned training set.

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

    Around another Trainer: ``class Mine(PrunedTrainer, Seq2SeqTrainer)``. Whatever computes the loss, a
    ``compute_loss_func`` or a ``compute_loss`` of yours, must return one a sample. Without either it is the cross
    entropy of the model's ``logits``, a mean over a sample's tokens; each batch must show it to be the model's loss.
    """

    args: Any
    model: Any
    lr_scheduler: Any
    train_dataset: Any
    loss_is_scaled_for_ga = False  # a mean over its batch: the Trainer divides it where gradients are accumulated

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._steps_per_epoch = 0
        """Of the optimizer, in a full epoch."""
        self._updated = False
        """Whether the batch at hand has told its losses."""
        self._shift: int | None = None
        """How far labels lie behind logits, where the loss is not the user's; known from the first batch on."""
        self._worst: Tensor | None = None
        """Of all batches since then, the one whose loss is farthest from the model's own; see ``_apart``."""
        if self.train_dataset is not None:
            self._check_settings()

    # ---- data --------------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> DataLoader[Any]:
        if self.train_dataset is None:
            return super().get_train_dataloader()  # which says what is missing
        args = self.args
        return DataLoader(
            self.train_dataset,
            batch_size=self._train_batch_size,
            sampler=self.train_dataset.sampler,
            drop_last=args.dataloader_drop_last,
            collate_fn=Indexed(self._get_collator_with_removed_columns(self.data_collator, description="Training")),
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            multiprocessing_context=args.dataloader_multiprocessing_context,
            prefetch_factor=args.dataloader_prefetch_factor,
            in_order=args.dataloader_in_order,
            worker_init_fn=partial(seed_worker, num_workers=args.dataloader_num_workers, rank=args.process_index),
            generator=torch.Generator(),  # not the one that dropout draws from: a resumed epoch opens it once more
        )

    # ---- epochs ------------------------------------------------------------------------------------------

    def set_initial_training_values(self, args: Any, dataloader: Any) -> tuple[int, int, int, int, int, int, int]:
        """As for full data: what the scheduler is built for."""
        del dataloader
        self._check_settings()
        size, epochs = len(self.train_dataset), self.train_dataset.num_epochs
        batches = full_steps(self.train_dataset, self._train_batch_size, drop_last=args.dataloader_drop_last)
        self._steps_per_epoch = steps = math.ceil(batches / args.gradient_accumulation_steps)
        return epochs, steps, size, size * epochs, self.get_total_train_batch_size(args), batches, steps * epochs

    def _init_training_state(
        self, max_steps: int, num_update_steps_per_epoch: int, num_train_epochs: int, checkpoint: Any, trial: Any
    ) -> tuple[int, int]:
        """The epoch to begin with. What is done of it is left out by the plan, so there is nothing to skip."""
        trainer: Any = super()
        trainer._init_training_state(max_steps, num_update_steps_per_epoch, num_train_epochs, checkpoint, trial)
        if checkpoint is not None:
            self._load_train_data(os.path.join(checkpoint, FILE))
        elif (progress := self.train_dataset.progress)[:2] != (0, 0):
            raise EpochError(
                message(
                    "training data at its beginning",
                    f"epoch {progress[0]} with {progress[1]} samples done",
                    "Wrap the data anew for each call of train(), or go on with resume_from_checkpoint.",
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
        """With its own number of batches and steps: those of what is left of the plan."""
        del steps_in_epoch, num_update_steps_per_epoch
        data, batches = self.train_dataset, len(train_dataloader)
        if not batches:
            raise EpochError(
                message(
                    "at least one batch an epoch",
                    f"none: dataloader_drop_last=True, and {data.plan().kept} samples kept in epoch {epoch}",
                    "Leave dataloader_drop_last out, or take a smaller batch.",
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
                    "epochs that run to their end, or an end of training",
                    f"an end of epoch {epoch} alone, after {data.progress[1]} of its {data.progress[2]} samples",
                    "A callback has set should_epoch_stop: let it set should_training_stop, or neither.",
                )
            )

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        epoch, done, total = self.train_dataset.progress
        self.state.epoch = epoch + done / total  # of the whole epoch, in a resumed one, too
        step = self.state.global_step
        if self.control.should_save or step & (step - 1) == 0:  # 1, 2, 4, ...: a look waits for the device
            self._check_worst()
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _finalize_training(self, trial: Any, num_train_samples: int, start_time: float) -> Any:
        """With as many samples as there were; the Trainer takes the share of them that this call's steps have."""
        _ = self.train_dataset.scores  # ranks bring the last epoch's losses together
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
                    "each training batch to pass through PrunedTrainer.compute_loss with its indices",
                    "one that did not",
                    "Call super().compute_loss in yours, or let it return one loss a sample in a class that comes "
                    "after: class Mine(PrunedTrainer, Yours). The loader must be this class's, too.",
                )
            )
        return loss

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, *args: Any, **kwargs: Any) -> Any:
        """In training, the weighted mean; in evaluation, what the Trainer says."""
        if INDEX not in inputs:
            return super().compute_loss(model, inputs, return_outputs, *args, **kwargs)
        inputs = dict(inputs)
        indices = inputs.pop(INDEX)
        if self.compute_loss_func is not None or any("compute_loss" in vars(kind) for kind in self._kinds()[1]):
            loss, outputs = super().compute_loss(model, inputs, True)
        else:
            loss, outputs = self._cross_entropy(model, inputs)
        if isinstance(loss, Tensor) and loss.ndim == 1 and len(loss) != len(indices):
            raise MisalignedError(
                message(
                    f"one loss for each of the {len(indices)} samples",
                    str(len(loss)),
                    "Neither the data_collator nor the loss may drop, repeat or split samples.",
                )
            )
        share = self._share()  # before the update, which may be the last of its epoch
        mean = self.train_dataset.update(loss, indices)
        if share != 1.0:
            mean = mean * share
        self._updated = True
        return (mean, outputs) if return_outputs else mean

    def _share(self) -> float:
        """What lets a short last group of accumulated batches count for what it holds, in a pruned epoch.

        The Trainer divides by the batches of that group.
        """
        whole = self.args.gradient_accumulation_steps
        if whole == 1 or (now := self.current_gradient_accumulation_steps) == whole:
            return 1.0
        plan = self.train_dataset.plan()
        in_one = plan.kept <= now * self.args.train_batch_size * self.args.world_size
        return 1.0 if in_one or plan.kept == plan.size else now / whole

    def _cross_entropy(self, model: Any, inputs: dict[str, Any]) -> tuple[Tensor, Any]:
        """Labels stay in the batch: logits may need them, and the model's own loss, computed beside, is the proof."""
        outputs: Any = model(**inputs)
        labels, logits, own = inputs.get("labels"), _part(outputs, "logits"), _part(outputs, "loss")
        if not isinstance(logits, Tensor) or not isinstance(labels, Tensor) or not _fit(logits, labels):
            got = f"a {type(outputs).__name__} with logits {_kind(logits)} and labels {_kind(labels)}"
            raise InputError(message("a class for each sample or token, and logits for it", got, ONE_EACH))
        extra = _part(outputs, "aux_loss")
        if not isinstance(own, Tensor) or own.numel() != 1 or extra is not None:
            raise InputError(message(OWN, f"a loss {_kind(own)} and an aux_loss {_kind(extra)}", ONE_EACH))
        if self._shift is None and bool((labels != IGNORED).any()):
            self._shift = _find_shift(own, logits, labels)
        shift, smoothing = self._shift or 0, self.args.label_smoothing_factor
        loss, counts = _by_sample(logits, labels, shift, smoothing)
        if self._shift is not None:
            known = smoothing == 0 and own.itemsize > 2
            ours = [_mean(loss.detach(), counts)] if known else _ways(own, logits.detach(), labels, shift)
            apart = _apart(own.detach(), ours)
            worst = apart if self._worst is None else self._worst
            self._worst = torch.where(apart[0] > worst[0], apart, worst)
        return loss, outputs

    def _check_worst(self) -> None:
        if self._worst is not None:
            far, told, found = self._worst.tolist()
            if far > 1:
                got = f"{told} by the model, {found} by its logits, in one of the last batches"
                raise InputError(message(OWN, got, ONE_EACH))

    # ---- checkpoints -------------------------------------------------------------------------------------

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        state = {"train_data": self.train_dataset.state_dict(), "steps_per_epoch": self._steps_per_epoch}
        if self.args.should_save:
            save(state, os.path.join(output_dir, FILE))

    def _load_train_data(self, path: str) -> None:
        if not os.path.isfile(path):
            remedy = "It is of another Trainer, or of save_only_model=True: take one that was written by this class."
            raise StateError(message(f"a checkpoint with {FILE}", os.path.dirname(path), remedy))
        state = load(path)
        if state["steps_per_epoch"] != self._steps_per_epoch:
            raise StateError(
                message(
                    f"the {state['steps_per_epoch']} steps of a full epoch it was saved with",
                    str(self._steps_per_epoch),
                    "Schedulers count steps: keep batch size times accumulation times ranks as it was.",
                )
            )
        self.train_dataset.load_state_dict(state["train_data"])

    # ---- what cannot be --------------------------------------------------------------------------------------

    def _kinds(self) -> tuple[list[type], list[type]]:
        """The classes in front of this one, and those between it and the Trainer."""
        kinds = list(type(self).__mro__)
        here = kinds.index(PrunedTrainer)
        return kinds[:here], kinds[here + 1 : kinds.index(Trainer)]

    def _check_settings(self) -> None:
        args, data, config = self.args, self.train_dataset, self.args.accelerator_config
        if not isinstance(data, Pruned):
            raise InputError(
                message("train_dataset as an infobatch.InfoBatch or Pruned", type(data).__name__, "Wrap it first.")
            )
        if args.num_train_epochs != data.num_epochs:
            expected = f"num_train_epochs={data.num_epochs}, as promised to the training data"
            remedy = "Give both the same: the last epochs run on full data, so pruning must know where the end is."
            raise InputError(message(expected, str(args.num_train_epochs), remedy))
        schedule, order = getattr(args.lr_scheduler_type, "value", ""), args.train_sampling_strategy
        mesh = self.get_tp_size() * self.get_cp_size() * self.get_sp_size()
        own = any(name in vars(kind) for kinds in self._kinds() for kind in kinds for name in LOADING)
        by_metric = schedule in ("reduce_lr_on_plateau", "greedy")
        refused = [
            (args.max_steps > 0, f"max_steps={args.max_steps}", "Say num_train_epochs: plans are made by epoch."),
            (
                by_metric,
                f"lr_scheduler_type={schedule!r}",
                "Take one that counts steps: pace must set the rate, too.",
            ),
            (args.auto_find_batch_size, "auto_find_batch_size=True", "It would begin anew in the midst of an epoch."),
            (args.enable_jit_checkpoint, "enable_jit_checkpoint=True", "It saves between a loss and its step."),
            (args.ignore_data_skip, "ignore_data_skip=True", "Nothing is skipped on resuming: leave it out."),
            (order != "random", f"train_sampling_strategy={order!r}", "The plan says who comes, and when."),
            (own, "a training loader or sampler of your own", "The plan says who comes, and when."),
            (config.split_batches, "split_batches=True", "per_device_train_batch_size is what one rank takes."),
            (config.dispatch_batches, "dispatch_batches=True", "Every rank loads its own part of the plan."),
            (self.is_deepspeed_enabled, "DeepSpeed", "It steps and saves by itself: use DDP."),
            (mesh > 1, "ranks that share a batch", "Only data parallelism is looked after: use DDP."),
            (data.shard_scores, "shard_scores=True", "Checkpoints hold one table: leave it out."),
            (bool(data.method.needs), repr(data.method), "It needs more than losses, and losses are all there is."),
        ]
        for wrong, got, remedy in refused:
            if wrong:
                raise InputError(message("what PrunedTrainer can do", got, remedy))
        if (world := find(data.group).world) != args.world_size:
            remedy = "Leave group out: all ranks of the Trainer share the data."
            raise RankError(message(f"training data for {args.world_size} ranks", str(world), remedy))


class Indexed:
    """Collates as before and puts the indices into the batch. Runs in the workers."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: Any) -> Any:
        batch = self.collate(samples)
        if not isinstance(samples, Fetched) or not isinstance(batch, MutableMapping):
            got = f"{type(samples).__name__}, collated to {type(batch).__name__}"
            remedy = "A __getitems__ of the data set must return a list; the data_collator, a dict."
            raise InputError(message("samples in a list and a batch by names", got, remedy))
        batch[INDEX] = torch.tensor(samples.indices)
        return batch


def _by_sample(logits: Tensor, labels: Tensor, shift: int, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """The mean cross entropy over the labels of each sample, and how many those are. Without any it is 0."""
    logits, labels = _shifted(logits, labels, shift)
    flat = F.cross_entropy(
        logits.flatten(0, -2).float(),
        labels.flatten(),
        ignore_index=IGNORED,
        reduction="none",
        label_smoothing=smoothing,
    )
    counts = (labels != IGNORED).view(len(labels), -1).sum(1)
    return flat.view(len(labels), -1).sum(1) / counts.clamp(min=1), counts


def _shifted(logits: Tensor, labels: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    return (logits[:, :-shift], labels[:, shift:]) if shift else (logits, labels)


def _mean(loss: Tensor, counts: Tensor) -> Tensor:
    """As models of transformers put it together: over all labels of a batch, whosever they are."""
    return (loss * counts).sum() / counts.sum()


def _ways(own: Tensor, logits: Tensor, labels: Tensor, shift: int) -> list[Tensor]:
    """What a model's loss may be by its logits. One of few digits may have been counted with as few, step by step."""
    ways = [_mean(*_by_sample(logits, labels, shift))]
    if own.itemsize <= 2:
        logits, labels = _shifted(logits, labels, shift)
        ways.append(F.cross_entropy(logits.flatten(0, -2).to(own.dtype), labels.flatten(), ignore_index=IGNORED))
    return ways


def _apart(own: Tensor, ours: list[Tensor]) -> Tensor:
    """How far a loss is from the nearest of ours (too far above 1), and both. Does not wait for the device.

    Where ours is no number there is nothing to compare: a batch without labels, or training that went astray. Near 0
    float32 has no digits to compare.
    """
    near = max(1e-4, 2 * torch.finfo(own.dtype).eps)
    told, found = own.reshape(()).float(), torch.stack([way.float() for way in ours])
    far = ((told - found).abs() / (near * found.abs() + 1e-5)).nan_to_num(math.inf).min()
    return torch.stack([torch.where(found[0].isfinite(), far, 0.0), told, found[0]])


def _find_shift(own: Tensor, logits: Tensor, labels: Tensor) -> int:
    """Whether tokens are to predict themselves or the next one: the model's own loss tells."""
    ways = [_ways(own, logits.detach(), labels, shift) for shift in range(labels.ndim)]
    got = f"{own.item()} by the model, {' or '.join(str(ours[0].item()) for ours in ways)} by its logits"
    fits = [shift for shift, ours in enumerate(ways) if ours[0].isfinite() and _apart(own.detach(), ours)[0] <= 1]
    if len(fits) > 1 or (fits and own.itemsize <= 2):  # at a first step all losses are alike, more so in few digits
        (slope,) = torch.autograd.grad(own, logits, retain_graph=True, allow_unused=True)
        if slope is not None:
            fits = [shift for shift in fits if _same_slope(slope, own, logits, labels, shift)]
            got += ", and other slopes"
    if len(fits) != 1:
        raise InputError(message(OWN, got, ONE_EACH))
    return fits[0]


def _same_slope(slope: Tensor, own: Tensor, logits: Tensor, labels: Tensor, shift: int) -> bool:
    """Whether a loss with this slope weighs each label as ours does, as far as few digits tell."""
    logits = logits.detach().requires_grad_()
    slopes = [torch.autograd.grad(way, logits)[0].float() for way in _ways(own, logits, labels, shift)]
    return any(bool((slope.float() - ours).abs().max() <= 0.05 * ours.abs().max()) for ours in slopes)


def _part(outputs: Any, name: str) -> Any:
    return outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)


def _fit(logits: Tensor, labels: Tensor) -> bool:
    return 1 <= labels.ndim <= 2 and logits.shape[:-1] == labels.shape and not labels.is_floating_point()


def _kind(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else "none"
