"""The token average of Hugging Face's Trainer over accumulated batches, with PrunedTrainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lots import lot
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import SequentialSampler, Subset

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import infobatch
from infobatch.adapters import PerSample, language_loss
from infobatch.integrations.transformers import PrunedTrainer

pytestmark = pytest.mark.slow

SIZE, BATCH, ACCUMULATED, VOCABULARY = 17, 3, 4, 20
COUNTS = torch.randint(2, 9, (SIZE,), generator=lot())


def texts() -> list[dict[str, Tensor]]:
    ids = torch.randint(0, VOCABULARY, (SIZE, 8), generator=lot(1))
    counted = zip(ids, COUNTS.tolist(), strict=True)
    return [{"input_ids": row, "labels": F.pad(row[:n], (0, 8 - n), value=-100)} for row, n in counted]


def llama() -> Any:
    torch.manual_seed(0)
    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **size))


def settings(folder: Path, epochs: int) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=epochs,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATED,
        use_cpu=True,
        dataloader_pin_memory=False,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
    )


def sgd(model: Any) -> tuple[Any, None]:
    return torch.optim.SGD(model.parameters(), lr=0.3), None


class InOrder(Trainer):
    """Takes the samples in the order of the data set."""

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        return SequentialSampler(self.train_dataset)


def token_losses(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> PerSample:
    """Every token of a step has the same influence, as in the Trainer."""
    average = "batch" if num_items_in_batch is None else num_items_in_batch
    return language_loss(outputs.logits, labels, shift=True, average=average)


def by_tokens(model: Any, folder: Path, train: infobatch.Pruned) -> PrunedTrainer:
    given = {"train_dataset": train, "optimizers": sgd(model)}
    return PrunedTrainer(model, settings(folder, train.num_epochs), compute_loss_func=token_losses, **given)


@pytest.mark.filterwarnings("ignore:.*prunes nothing")
def test_a_full_epoch_of_accumulated_batches_is_that_of_the_trainer(tmp_path: Path) -> None:
    """The last step of an epoch has fewer batches, and its last batch fewer samples."""
    model, own, train = llama(), llama(), infobatch.InfoBatch(texts(), num_epochs=1)
    order = train.plan().indices.tolist()
    start = [one.detach().clone() for one in own.parameters()]
    assert order != list(range(SIZE))
    by_tokens(model, tmp_path, train).train()
    InOrder(own, settings(tmp_path, 1), train_dataset=Subset(texts(), order), optimizers=sgd(own)).train()
    for ours, theirs, before in zip(model.parameters(), own.parameters(), start, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
        assert not torch.equal(ours, before)


def test_scores_in_pruned_epochs_are_own_means(tmp_path: Path) -> None:
    model, train = llama(), infobatch.InfoBatch(texts(), num_epochs=4, delta=1)
    trainer = by_tokens(model, tmp_path, train)
    trainer.train()
    assert train.history[-1].kept < SIZE
    assert all(1 < score < 5 for score in train.scores.tolist())  # means over tokens, about log(20), not sums
    assert trainer.evaluate(texts())["eval_loss"] > 0
