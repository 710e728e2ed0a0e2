"""With Hugging Face's Trainer, training gives the same result as in a plain loop, to the bit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import run_ranks

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers_loop import (
    BATCH,
    EPOCHS,
    SIZE,
    Save,
    assert_same,
    bert,
    classes,
    pruned,
    settings,
    trainer,
    with_trainer,
    without,
)

import infobatch
from infobatch.errors import EpochError, InputError, StateError
from infobatch.integrations.transformers import FILE, PrunedTrainer

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("given", "loop"),
    [
        ({}, {}),
        ({"gradient_accumulation_steps": 3}, {"accumulate": 3}),
        ({"dataloader_drop_last": True}, {"drop_last": True}),
        ({"dataloader_num_workers": 1, "dataloader_persistent_workers": True}, {"num_workers": 1}),
    ],
    ids=["plain", "accumulated", "drop_last", "workers"],
)
def test_what_a_plain_loop_leaves(given: dict[str, Any], loop: dict[str, Any]) -> None:
    model, train, other, expected = bert(), pruned(classes()), bert(), pruned(classes())
    made = with_trainer(model, train, **given)
    scheduler = without(other, expected, **loop)
    assert_same(model, train, other, expected)
    assert made.lr_scheduler.state_dict() == scheduler.state_dict()


# ---- around training -----------------------------------------------------------------------------------------


def test_evaluation_logs_and_the_end_of_a_schedule() -> None:
    train = pruned(classes())
    made = with_trainer(
        bert(), train, eval_dataset=classes()[:20], eval_strategy="epoch", save_strategy="steps", save_steps=1000
    )
    state, full = made.state, -(-SIZE // BATCH)
    assert [log["epoch"] for log in state.log_history if "eval_loss" in log] == [1, 2, 3, 4, 5]
    assert state.global_step == state.max_steps == sum(-(-report.kept // BATCH) for report in train.history)
    assert [log["step"] for log in state.log_history if "loss" in log] == list(range(3, state.global_step + 1, 3))
    assert made.lr_scheduler.scheduler.last_epoch == full * EPOCHS
    assert made.lr_scheduler.get_last_lr() == [0.0]
    assert Path("out", f"checkpoint-{state.global_step}").is_dir()  # the Trainer saves at the end, wherever that is
    last = state.log_history[-1]
    samples = sum(report.kept for report in train.history)
    assert last["train_samples_per_second"] * last["train_runtime"] == pytest.approx(samples, rel=1e-2)


def test_evaluation_by_steps_ends_with_the_last() -> None:
    made = with_trainer(bert(), pruned(classes()), eval_dataset=classes()[:20], eval_strategy="steps", eval_steps=10)
    steps = [log["step"] for log in made.state.log_history if "eval_loss" in log]
    assert steps == [*range(10, made.state.global_step, 10), made.state.global_step]


def test_an_optimizer_that_does_not_see_a_loss_grow_is_named() -> None:
    train = pruned(classes(), compensate="loss")
    made = PrunedTrainer(bert(), TrainingArguments(**settings()), train_dataset=train)
    with pytest.warns(infobatch.InfoBatchWarning, match="AdamW") as seen:
        made.train()
    assert seen[0].filename == __file__


class Stop(TrainerCallback):
    def __init__(self, what: str, step: int) -> None:
        self.what, self.step = what, step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            setattr(control, self.what, True)


def test_training_may_be_stopped() -> None:
    train = pruned(classes())
    made = with_trainer(bert(), train, callbacks=[Stop("should_training_stop", 13)])
    assert made.state.global_step == 13
    assert train.progress[:2] == (1, 4 * BATCH)


def test_an_epoch_may_not() -> None:
    made = trainer(bert(), pruned(classes()), callbacks=[Stop("should_epoch_stop", 13)])
    with pytest.raises(EpochError, match=r"after 48 of its \d+ samples.*should_epoch_stop"):
        made.train()


# ---- stop and go on ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_resumed_run_equals_an_uninterrupted_one(accumulate: int) -> None:
    given: Any = {"gradient_accumulation_steps": accumulate, "logging_steps": 1}
    given |= {"eval_dataset": classes()[:20], "eval_strategy": "steps", "eval_steps": 5}
    counted = pruned(classes())
    with_trainer(bert(), counted, **given)
    lengths = [math.ceil(report.kept / BATCH / accumulate) for report in counted.history]
    ends = [sum(lengths[: epoch + 1]) for epoch in range(EPOCHS)]
    # in a full epoch, at its end, in a pruned one, at the end of one, in the last one
    steps = [2, ends[0], ends[1] + 3, ends[2], ends[3] + 2] if accumulate == 1 else [ends[0] + 1, ends[3] + 1]
    model, train = bert(), pruned(classes())
    whole = with_trainer(model, train, callbacks=[Save(steps)], **given)
    for step in steps:
        again, data = bert(), pruned(classes())
        resumed = with_trainer(again, data, resume=f"out/checkpoint-{step}", **given)
        assert_same(again, data, model, train)
        assert resumed.lr_scheduler.state_dict() == whole.lr_scheduler.state_dict()
        assert logs_of(resumed) == logs_of(whole)
        assert resumed.state.global_step == resumed.state.max_steps == whole.state.global_step


def logs_of(made: Trainer) -> list[dict[str, Any]]:
    """Return what was logged before the final summary, without times."""
    logs = made.state.log_history[:-1]
    return [{name: value for name, value in log.items() if "time" not in name and "second" not in name} for log in logs]


def test_what_cannot_be_resumed(tmp_path: Path) -> None:
    whole = with_trainer(bert(), pruned(classes()), callbacks=[Save([5])])
    with pytest.raises(EpochError, match=r"epoch 5 with 0 samples done.*resume_from_checkpoint"):
        whole.train()
    with pytest.raises(StateError, match=r"9 steps per full epoch.*; got 17\."):
        with_trainer(bert(), pruned(classes()), "out/checkpoint-5", per_device_train_batch_size=6)
    Path("out/checkpoint-5", FILE).unlink()
    with pytest.raises(StateError, match=f"a checkpoint with {FILE}"):
        with_trainer(bert(), pruned(classes()), "out/checkpoint-5")


# ---- what cannot be ------------------------------------------------------------------------------------------


class OwnLoader(Trainer):
    def get_train_dataloader(self) -> Any:
        return super().get_train_dataloader()


class PrunedOwnLoader(PrunedTrainer, OwnLoader):
    pass


class LateLoader(PrunedTrainer):
    def get_train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(self.train_dataset, BATCH, collate_fn=self.data_collator)


class NoList(list[Any]):
    def __getitems__(self, indices: list[int]) -> Any:
        return tuple(self[index] for index in indices)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"num_train_epochs": 6}, "num_train_epochs=5"),
        ({"max_steps": 10}, "max_steps=10"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"}, "reduce_lr_on_plateau"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size"),
        ({"enable_jit_checkpoint": True}, "enable_jit_checkpoint"),
        ({"ignore_data_skip": True}, "ignore_data_skip"),
        ({"train_sampling_strategy": "group_by_length"}, "group_by_length"),
        ({"accelerator_config": {"split_batches": True}}, "split_batches"),
        ({"accelerator_config": {"dispatch_batches": True}}, "dispatch_batches"),
        ({"kind": PrunedOwnLoader}, "a custom training loader"),
        ({"kind": LateLoader}, "a custom training loader"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_settings_that_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        trainer(bert(), pruned(classes()), eval_dataset=classes()[:20], **given)


def test_training_data_that_are_refused() -> None:
    with pytest.raises(InputError, match=r"InfoBatch.*got list"):
        trainer(bert(), classes())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="shard_scores=True"):
        trainer(bert(), pruned(classes(), shard_scores=True))
    needy = infobatch.Pruned(classes(), infobatch.methods.kakurenbo(), EPOCHS)
    with pytest.raises(InputError, match=r"kakurenbo.*losses"):
        trainer(bert(), needy)
    with pytest.raises(InputError, match="got tuple"):
        trainer(bert(), pruned(NoList(classes()))).train()
    late = trainer(bert(), pruned(classes()))
    late.args.num_train_epochs = 6
    with pytest.raises(InputError, match="num_train_epochs=5"):
        late.train()


def test_epochs_without_a_batch() -> None:
    """Of 101 samples one batch of 95 is whole; of fewer, none."""
    made = trainer(bert(), pruned(classes()), dataloader_drop_last=True, per_device_train_batch_size=95)
    with pytest.raises(EpochError, match=r"drop_last=True and \d+ samples.*epoch 1"):
        made.train()


def test_without_training_data_it_evaluates() -> None:
    made = PrunedTrainer(bert(), TrainingArguments(**settings()), eval_dataset=classes())
    assert made.evaluate()["eval_loss"] > 0
    with pytest.raises(ValueError, match="train_dataset"):
        made.train()


# ---- ranks ---------------------------------------------------------------------------------------------------


def test_two_ranks_leave_what_two_ranks_of_a_plain_loop_leave(tmp_path: Path) -> None:
    run_ranks(2, Path(__file__).with_name("transformers_run.py"), tmp_path)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        plain, whole, resumed = found["plain"], found["trainer"], found["resumed"]
        assert whole["kept"] == plain["kept"]
        assert min(whole["kept"]) < SIZE == whole["kept"][-1]
        for other in (plain, resumed):
            torch.testing.assert_close(whole["scores"], other["scores"], rtol=0, atol=0)
            torch.testing.assert_close(whole["weights"], other["weights"], rtol=0, atol=0)
        assert whole["steps"] == sum(math.ceil(kept / 2 / BATCH) for kept in whole["kept"])
