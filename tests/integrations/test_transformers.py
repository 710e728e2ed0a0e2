"""Hugging Face's Trainer leaves what a plain loop leaves: scores, plans, learning rates, weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import run_ranks
from torch import Tensor, nn
from torch.nn import functional as F

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    get_scheduler,
)

import infobatch
from infobatch.errors import EpochError, InputError, MisalignedError, StateError
from infobatch.integrations.transformers import FILE, PrunedTrainer

SIZE, EPOCHS, BATCH, VOCABULARY = 101, 5, 12, 20
SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
RATE = 0.3
pytestmark = pytest.mark.filterwarnings(
    "ignore:epoch .* noise-to-signal:infobatch.InfoBatchWarning"
)  # so few samples


@pytest.fixture(autouse=True)
def _one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)


# ---- the same task, with the Trainer and without -------------------------------------------------------------


def classes() -> list[dict[str, Any]]:
    tokens = torch.randint(0, VOCABULARY, (SIZE, 6), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": int(row[0] > 12), "number": i} for i, row in enumerate(tokens)]


def sentences() -> list[dict[str, Any]]:
    """Of unequal length: -100 is not to be predicted."""
    samples = []
    for i, sample in enumerate(classes()):
        labels = sample["input_ids"].clone()
        labels[2 + i % 5 :] = -100
        samples.append({"input_ids": sample["input_ids"], "labels": labels})
    return samples


def bert() -> nn.Module:
    """With dropout: random numbers must be drawn in the same order, too."""
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(vocab_size=VOCABULARY, **SMALL))


def gpt() -> nn.Module:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=8, n_layer=1, n_head=2, n_positions=8))


def llama() -> nn.Module:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **SMALL))


def t5() -> nn.Module:
    torch.manual_seed(0)
    size = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    return T5ForConditionalGeneration(T5Config(vocab_size=VOCABULARY, decoder_start_token_id=0, **size))


def pruned(data: list[dict[str, Any]], **settings: Any) -> infobatch.Pruned:
    return infobatch.InfoBatch(data, EPOCHS, 0.5, 0.7, seed=3, **settings)


def settings(**given: Any) -> dict[str, Any]:
    return {
        "output_dir": "out",
        "num_train_epochs": EPOCHS,
        "per_device_train_batch_size": BATCH,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "report_to": "none",
        "disable_tqdm": True,
        "logging_steps": 3,
        "save_strategy": "no",
        "max_grad_norm": 0.0,
        **given,
    }


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.5)


def trainer(
    model: nn.Module,
    train: infobatch.Pruned,
    kind: type[PrunedTrainer] = PrunedTrainer,
    callbacks: Any = None,
    eval_dataset: Any = None,
    compute_loss_func: Any = None,
    **given: Any,
) -> PrunedTrainer:
    args = (Seq2SeqTrainingArguments if issubclass(kind, Seq2SeqTrainer) else TrainingArguments)(**settings(**given))
    return kind(
        model,
        args,
        train_dataset=train,
        eval_dataset=eval_dataset,
        callbacks=callbacks,
        compute_loss_func=compute_loss_func,
        optimizers=(sgd(model), None),
    )


def with_trainer(model: nn.Module, train: infobatch.Pruned, resume: str | None = None, **given: Any) -> PrunedTrainer:
    made = trainer(model, train, **given)
    torch.manual_seed(9)
    made.train(resume_from_checkpoint=resume)
    return made


def by_class(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    logits = model(input_ids=batch["input_ids"]).logits
    return F.cross_entropy(logits, batch["labels"], reduction="none")


def by_token(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    logits = model(input_ids=batch["input_ids"]).logits
    means = [F.cross_entropy(a[:-1], b[1:]) for a, b in zip(logits, batch["labels"], strict=True)]
    return torch.stack(means)


def by_answer(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    logits = model(**batch).logits
    return torch.stack([F.cross_entropy(a, b) for a, b in zip(logits, batch["labels"], strict=True)])


def without(
    model: nn.Module,
    train: infobatch.Pruned,
    losses: Callable[[nn.Module, dict[str, Tensor]], Tensor] = by_class,
    accumulate: int = 1,
    named: bool = False,
    **loader: Any,
) -> infobatch.Paced:
    """The loop of the README."""
    batches = infobatch.DataLoader(
        train, BATCH, collate_fn=default_data_collator, generator=torch.Generator(), **loader
    )
    optimizer = sgd(model)
    steps = -(-len(batches) // accumulate)
    schedule = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=EPOCHS * steps)
    scheduler = infobatch.pace(schedule, train, steps)
    model.train()
    torch.manual_seed(9)
    for _ in range(EPOCHS):
        total = len(batches)
        for number, batch in enumerate(batches):
            indices = batch.pop("number", None)
            group = min(accumulate, total - number // accumulate * accumulate)
            loss = train.update(losses(model, batch), indices if named else None)
            (loss / group).backward()
            if (number + 1) % accumulate == 0 or number + 1 == total:
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    return scheduler


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach() for parameter in model.parameters()]


def assert_same(model: nn.Module, train: infobatch.Pruned, other: nn.Module, expected: infobatch.Pruned) -> None:
    assert train.history == expected.history
    assert [report.kept < SIZE for report in train.history] == [False, True, True, True, False]
    torch.testing.assert_close(train.scores, expected.scores, rtol=0, atol=0)
    torch.testing.assert_close(weights(model), weights(other), rtol=0, atol=0)


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


# ---- losses --------------------------------------------------------------------------------------------------


class Answers(PrunedTrainer, Seq2SeqTrainer):
    """Around a Trainer that is not the plain one."""


@pytest.mark.parametrize(
    ("make", "kind", "losses"),
    [(gpt, PrunedTrainer, by_token), (llama, PrunedTrainer, by_token), (t5, Answers, by_answer)],
    ids=["causal", "causal by name", "encoder and decoder"],
)
def test_the_loss_of_tokens_is_their_mean_by_sample(make: Any, kind: Any, losses: Any) -> None:
    model, train, other, expected = make(), pruned(sentences()), make(), pruned(sentences())
    made = with_trainer(model, train, kind=kind)
    without(other, expected, losses)
    assert [report.kept for report in train.history] == [report.kept for report in expected.history]
    torch.testing.assert_close(train.scores, expected.scores, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weights(model), weights(other), rtol=1e-4, atol=1e-5)
    assert made.evaluate(sentences())["eval_loss"] > 0


def test_a_model_tells_its_shift_also_where_all_its_logits_are_alike() -> None:
    """Both ways to read the labels give the same loss then; which logits it comes from tells them apart."""
    torch.manual_seed(0)
    size = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 8}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, tie_word_embeddings=False, **size))
    nn.init.zeros_(model.lm_head.weight)
    assert with_trainer(model, pruned(sentences()))._shift == 1


def by_smoothed_class(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    logits = model(input_ids=batch["input_ids"]).logits
    return F.cross_entropy(logits, batch["labels"], reduction="none", label_smoothing=0.2)


def test_labels_are_smoothed() -> None:
    model, train, other, expected = bert(), pruned(classes()), bert(), pruned(classes())
    with_trainer(model, train, label_smoothing_factor=0.2)
    without(other, expected, by_smoothed_class)
    assert_same(model, train, other, expected)


def squares(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    return (outputs.logits.softmax(1) - F.one_hot(labels, 2)).square().sum(1)


def by_squares(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return squares(model(input_ids=batch["input_ids"]), batch["labels"])


class Squares(Trainer):
    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = squares(outputs, labels)
        return (loss, outputs) if return_outputs else loss


class PrunedSquares(PrunedTrainer, Squares):
    pass


@pytest.mark.parametrize(
    "given", [{"compute_loss_func": squares}, {"kind": PrunedSquares}], ids=["compute_loss_func", "compute_loss"]
)
def test_a_loss_of_ones_own(given: dict[str, Any]) -> None:
    model, train, other, expected = bert(), pruned(classes()), bert(), pruned(classes())
    made = with_trainer(model, train, **given)
    without(other, expected, by_squares)
    assert_same(model, train, other, expected)
    model.eval()
    with torch.no_grad():
        mean = float(by_squares(model, default_data_collator(classes())).mean())
    assert made.evaluate(classes())["eval_loss"] == pytest.approx(mean, rel=1e-5)


class Reduced(PrunedTrainer, Trainer):
    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        inputs.pop("infobatch_index", None)
        return Trainer.compute_loss(self, model, inputs, return_outputs)


class Extra(BertForSequenceClassification):
    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        outputs = super().forward(input_ids, labels=labels)
        if outputs.loss is not None:
            outputs.loss = outputs.loss + 0.1
        return outputs


def odd_bert(**config: Any) -> nn.Module:
    return Extra(BertConfig(vocab_size=VOCABULARY, **SMALL, **config))


def mixtral() -> nn.Module:
    experts = {"num_local_experts": 2, "num_key_value_heads": 2, "output_router_logits": True}
    return MixtralForCausalLM(MixtralConfig(vocab_size=VOCABULARY, **SMALL, **experts))


def with_labels(change: Callable[[Any], Any]) -> list[dict[str, Any]]:
    return [{**sample, "labels": change(sample["labels"])} for sample in classes()]


@pytest.mark.parametrize(
    ("run", "error", "words"),
    [
        (
            lambda: trainer(bert(), pruned(classes()), compute_loss_func=lambda *a, **k: squares(*a, **k).mean()),
            InputError,
            'reduction="none"',
        ),
        (lambda: trainer(bert(), pruned(classes()), Reduced), MisalignedError, r"super\(\).compute_loss"),
        (
            lambda: trainer(odd_bert(), pruned(classes())),
            InputError,
            "by the model, .* by its logits.*one loss a sample",
        ),
        (lambda: trainer(mixtral(), pruned(sentences())), InputError, "and an aux_loss.*one loss a sample"),
        (
            lambda: trainer(odd_bert(num_labels=1), pruned(with_labels(float))),
            InputError,
            r"torch.float32 \[12\].*one loss a sample",
        ),
        (
            lambda: trainer(
                odd_bert(problem_type="multi_label_classification"),
                pruned(with_labels(lambda label: [float(label), 1.0])),
            ),
            InputError,
            r"torch.float32 \[12, 2\].*one loss a sample",
        ),
    ],
    ids=["a mean", "past ours", "more than cross entropy", "aux_loss", "a number", "many labels"],
)
def test_a_loss_that_is_none_a_sample(run: Any, error: Any, words: str) -> None:
    made = run()
    with pytest.raises(error, match=words):
        made.train()


def test_a_first_batch_without_labels_tells_nothing() -> None:
    """Which loss it is shows in the second one; a sample without labels has the loss 0."""
    samples, train = sentences(), pruned(sentences())
    for index in train.plan().indices[:BATCH].tolist():
        samples[index]["labels"] = torch.full((6,), -100)
    train = pruned(samples)
    with_trainer(llama(), train)
    silent = torch.tensor([bool((sample["labels"] == -100).all()) for sample in samples])
    assert int(silent.sum()) == BATCH
    assert torch.equal(train.scores == 0, silent)


class Logged(PrunedTrainer):
    """In front of ours: what it calls with super() is the weighted mean already."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        return super().compute_loss(model, inputs, return_outputs, **kwargs)


def test_a_class_in_front_may_call_ours() -> None:
    model, train, other, expected = bert(), pruned(classes()), bert(), pruned(classes())
    with_trainer(model, train, kind=Logged)
    without(other, expected)
    assert_same(model, train, other, expected)


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
    with pytest.warns(infobatch.InfoBatchWarning, match="AdamW hardly sees") as seen:
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


class Save(TrainerCallback):
    def __init__(self, steps: list[int]) -> None:
        self.steps = steps

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_save |= state.global_step in self.steps


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_resumed_run_is_the_undisturbed_one(accumulate: int) -> None:
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
        assert told(resumed) == told(whole)
        assert resumed.state.global_step == resumed.state.max_steps == whole.state.global_step


def told(made: Trainer) -> list[dict[str, Any]]:
    """What was logged before the summary of a call, but for the time it took."""
    logs = made.state.log_history[:-1]
    return [
        {name: value for name, value in log.items() if "time" not in name and "second" not in name} for log in logs
    ]


def test_what_cannot_be_resumed(tmp_path: Path) -> None:
    whole = with_trainer(bert(), pruned(classes()), callbacks=[Save([5])])
    with pytest.raises(EpochError, match=r"epoch 5 with 0 samples done.*resume_from_checkpoint"):
        whole.train()
    with pytest.raises(StateError, match=r"9 steps of a full epoch it was saved with; got 17\."):
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
        ({"num_train_epochs": 6}, "num_train_epochs=5, as promised"),
        ({"max_steps": 10}, "max_steps=10"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"}, "reduce_lr_on_plateau"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size"),
        ({"enable_jit_checkpoint": True}, "enable_jit_checkpoint"),
        ({"ignore_data_skip": True}, "ignore_data_skip"),
        ({"train_sampling_strategy": "group_by_length"}, "group_by_length"),
        ({"accelerator_config": {"split_batches": True}}, "split_batches"),
        ({"accelerator_config": {"dispatch_batches": True}}, "dispatch_batches"),
        ({"kind": PrunedOwnLoader}, "a training loader or sampler of your own"),
        ({"kind": LateLoader}, "a training loader or sampler of your own"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_settings_that_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        trainer(bert(), pruned(classes()), eval_dataset=classes()[:20], **given)


def test_training_data_that_are_refused() -> None:
    with pytest.raises(InputError, match=r"train_dataset as an infobatch\.InfoBatch or Pruned; got list"):
        trainer(bert(), classes())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="shard_scores=True"):
        trainer(bert(), pruned(classes(), shard_scores=True))
    needy = infobatch.Pruned(classes(), infobatch.methods.kakurenbo(), EPOCHS)
    with pytest.raises(InputError, match=r"kakurenbo.* more than losses"):
        trainer(bert(), needy)
    with pytest.raises(InputError, match="samples in a list and a batch by names; got tuple"):
        trainer(bert(), pruned(NoList(classes()))).train()
    late = trainer(bert(), pruned(classes()))
    late.args.num_train_epochs = 6
    with pytest.raises(InputError, match="num_train_epochs=5"):
        late.train()


def test_epochs_without_a_batch() -> None:
    """Of 101 samples one batch of 95 is whole; of fewer, none."""
    made = trainer(bert(), pruned(classes()), dataloader_drop_last=True, per_device_train_batch_size=95)
    with pytest.raises(EpochError, match=r"dataloader_drop_last=True, and \d+ samples kept in epoch 1"):
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
