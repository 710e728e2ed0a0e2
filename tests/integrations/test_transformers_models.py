"""Custom models with Hugging Face's Trainer: their loss, their use of labels, and their outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import PretrainedConfig, default_data_collator
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers_loop import (
    BATCH,
    EPOCHS,
    SIZE,
    VOCABULARY,
    assert_same,
    bert,
    classes,
    llama,
    pruned,
    sentences,
    t5,
    trainer,
    with_trainer,
    without,
)

from infobatch.errors import InputError, MisalignedError

pytestmark = pytest.mark.slow


class Bag(nn.Module):
    """Classifies the mean of embedded tokens."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.config = PretrainedConfig()
        self.embed, self.head = nn.EmbeddingBag(VOCABULARY, 8), nn.Linear(8, 2, bias=False)
        nn.init.normal_(self.embed.weight, std=0.05)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.head(self.embed(input_ids))
        return SequenceClassifierOutput(logits=logits) if labels is None else self.answer(logits, labels)

    def answer(self, logits: Tensor, labels: Tensor) -> Any:
        return SequenceClassifierOutput(loss=F.cross_entropy(logits, labels), logits=logits)


class Weighted(Bag):
    def answer(self, logits: Tensor, labels: Tensor) -> Any:
        loss = F.cross_entropy(logits, labels, weight=torch.tensor([1.0, 20.0], dtype=logits.dtype))
        return SequenceClassifierOutput(loss=loss, logits=logits)


class Needy(Bag):
    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:  # type: ignore[override]
        return super().forward(input_ids, labels)


class Margin(Bag):
    """As in ArcFace, the right class must win by a margin during training."""

    margin = 2.0

    def answer(self, logits: Tensor, labels: Tensor) -> Any:
        return super().answer(logits - self.margin * F.one_hot(labels, 2).to(logits.dtype), labels)


class Named(Bag):
    def answer(self, logits: Tensor, labels: Tensor) -> Any:
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Listed(Bag):
    def answer(self, logits: Tensor, labels: Tensor) -> Any:
        return F.cross_entropy(logits, labels), logits


class Normed(Bag):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.BatchNorm1d(8), self.head)


# ---- whether the loss is the model's -------------------------------------------------------------------------


def rare(size: int) -> list[dict[str, Any]]:
    """Return samples of which the first ``size`` batches have one class."""
    samples, first = classes(), set(pruned(classes()).plan().indices[: size * BATCH].tolist())
    return [{**sample, "labels": int(i not in first and i % 5 == 0)} for i, sample in enumerate(samples)]


@pytest.mark.parametrize("given", [{}, {"label_smoothing_factor": 0.1}, {"gradient_accumulation_steps": 2}], ids=str)
def test_class_weights_are_noticed_after_batches_that_do_not_show_them(given: dict[str, Any]) -> None:
    made = trainer(Weighted(), pruned(rare(2)), **given)
    with pytest.raises(InputError, match="recent batch"):
        made.train()
    assert made.state.global_step == 4 // given.get("gradient_accumulation_steps", 1)


@pytest.mark.parametrize("save", [True, False], ids=["before a checkpoint", "before the next epoch"])
def test_class_weights_are_noticed(save: bool) -> None:
    """The check runs at the end of an epoch; the ninth step is the last of the first one."""
    made = trainer(Weighted(), pruned(rare(8)), **({"save_strategy": "epoch"} if save else {}))
    with pytest.raises(InputError, match=r"cross entropy of "):
        made.train()
    assert made.state.global_step == 9
    assert not list(Path("out").glob("checkpoint-*"))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=str)
def test_class_weights_are_noticed_in_half_precision(kind: torch.dtype) -> None:
    """All losses are near ln 2 at first, but their gradients differ."""
    made = trainer(Weighted().to(kind), pruned(classes()))
    with pytest.raises(InputError, match="different gradients"):
        made.train()
    assert made.state.global_step == 0


@pytest.mark.parametrize("make", [bert, llama, t5, Bag])
def test_half_precision_is_accepted(make: Any) -> None:
    train = pruned(classes() if make in (bert, Bag) else sentences())
    with_trainer(make().bfloat16(), train)
    assert len(train.history) == EPOCHS


@pytest.mark.parametrize("margin", [-3.0, -5.0, -8.0])
def test_small_losses_in_half_precision_are_accepted(margin: float) -> None:
    """On a CPU they differ much from those in float32, and so do their gradients."""
    model, train = Margin().bfloat16(), pruned(classes())
    model.margin = margin
    with_trainer(model, train)
    assert train.scores.mean() < 0.06
    assert len(train.history) == EPOCHS


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_step_does_not_look_at_values(kind: torch.dtype, smoothing: float) -> None:
    """Reading values would wait for the device. Tensors on the meta device have none."""
    made = with_trainer(Bag().to(kind), pruned(classes()), label_smoothing_factor=smoothing)
    made._worst = None
    with torch.device("meta"):
        batch = {"input_ids": torch.ones(BATCH, 6, dtype=torch.long), "labels": torch.ones(BATCH, dtype=torch.long)}
    for _ in range(2):
        made._cross_entropy(Bag().to("meta", kind), batch)
    with pytest.raises(NotImplementedError, match="meta"):
        made._check_worst()


# ---- models that need labels ----------------------------------------------------------------------------------


def by_labels(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(**batch).logits, batch["labels"], reduction="none")


@pytest.mark.parametrize("make", [Needy, Margin], ids=["as an argument", "in the logits"])
def test_models_that_need_labels_have_them_in_every_batch(make: type[Bag]) -> None:
    model, train, other, expected = make(), pruned(classes()), make(), pruned(classes())
    with_trainer(model, train)
    without(other, expected, by_labels)
    assert_same(model, train, other, expected)


# ---- outputs ------------------------------------------------------------------------------------------------


def test_a_model_may_return_a_dict() -> None:
    model, train, other, expected = Named(), pruned(classes()), Bag(), pruned(classes())
    made = with_trainer(model, train)
    without(other, expected, by_labels)
    assert_same(model, train, other, expected)
    assert made.evaluate(classes())["eval_loss"] > 0


def test_a_tuple_has_no_names() -> None:
    with pytest.raises(InputError, match=r"logits none and labels torch.int64 \[12\]"):
        with_trainer(Listed(), pruned(classes()))


def fewer(samples: Any) -> Any:
    return default_data_collator(samples[:-1])


def twice(samples: Any) -> Any:
    return default_data_collator([*samples, *samples])


@pytest.mark.parametrize(("collate", "count"), [(fewer, BATCH - 1), (twice, 2 * BATCH)])
def test_a_collator_that_drops_or_repeats_samples(collate: Any, count: int) -> None:
    made = trainer(bert(), pruned(classes()))
    made.data_collator = collate
    with pytest.raises(MisalignedError, match=f"for each of the {BATCH} samples; got {count}.*data_collator"):
        made.train()


def test_a_last_batch_of_one_can_be_left_out() -> None:
    """101 samples are five batches of 20 and a single one."""
    assert SIZE % 20 == 1
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        with_trainer(Normed(), pruned(classes()), per_device_train_batch_size=20)
    train = pruned(classes())
    with_trainer(Normed(), train, per_device_train_batch_size=20, dataloader_drop_last=True)
    assert len(train.history) == EPOCHS
