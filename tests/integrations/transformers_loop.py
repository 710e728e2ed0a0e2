"""One task, trained with the Trainer and in a plain loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    get_scheduler,
)

import infobatch
from infobatch.integrations.transformers import PrunedTrainer

SIZE, EPOCHS, BATCH, VOCABULARY = 101, 5, 12, 20
SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
RATE = 0.3


def classes() -> list[dict[str, Any]]:
    tokens = torch.randint(0, VOCABULARY, (SIZE, 6), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": int(row[0] > 12), "number": i} for i, row in enumerate(tokens)]


def sentences() -> list[dict[str, Any]]:
    """Samples with different numbers of labels: -100 is not predicted."""
    samples = []
    for i, sample in enumerate(classes()):
        labels = sample["input_ids"].clone()
        labels[2 + i % 5 :] = -100
        samples.append({"input_ids": sample["input_ids"], "labels": labels})
    return samples


def bert() -> nn.Module:
    """Make a model with dropout, so that random numbers must be drawn in the same order."""
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
    device: str = "cpu",
    **loader: Any,
) -> infobatch.Paced:
    """Train in the loop of the README."""
    batches = infobatch.DataLoader(
        train, BATCH, collate_fn=default_data_collator, generator=torch.Generator(), **loader
    )
    optimizer = sgd(model.to(device))
    steps = -(-len(batches) // accumulate)
    schedule = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=EPOCHS * steps)
    scheduler = infobatch.pace(schedule, train, steps)
    model.train()
    torch.manual_seed(9)
    for _ in range(EPOCHS):
        for number, given in enumerate(batches):
            total = len(batches)
            batch = {name: value.to(device) for name, value in given.items()}
            indices = batch.pop("number", None)
            group = min(accumulate, total - number // accumulate * accumulate)
            pruned = train.plan().kept < SIZE
            loss = train.update(losses(model, batch), indices if named else None)
            (loss / (accumulate if pruned else group)).backward()  # all samples of a pruned epoch count equally
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


class Save(TrainerCallback):
    def __init__(self, steps: list[int]) -> None:
        self.steps = steps

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_save |= state.global_step in self.steps
