"""Losses per sample with Hugging Face's Trainer: of classes, of tokens, custom ones, and those that are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    MixtralConfig,
    MixtralForCausalLM,
    Seq2SeqTrainer,
    Trainer,
    default_data_collator,
)
from transformers_loop import (
    BATCH,
    SMALL,
    VOCABULARY,
    assert_same,
    bert,
    by_answer,
    by_token,
    classes,
    gpt,
    llama,
    pruned,
    sentences,
    t5,
    trainer,
    weights,
    with_trainer,
    without,
)

import infobatch
from infobatch.errors import InputError, MisalignedError
from infobatch.integrations.transformers import PrunedTrainer

pytestmark = pytest.mark.slow


class Answers(PrunedTrainer, Seq2SeqTrainer):
    """Combined with a subclass of Trainer."""


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
    """Both shifts give the same loss then; only the gradients differ."""
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
def test_a_custom_loss(given: dict[str, Any]) -> None:
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
            "cross entropy.*one loss per sample",
        ),
        (lambda: trainer(mixtral(), pruned(sentences())), InputError, "and an aux_loss.*one loss per sample"),
        (
            lambda: trainer(odd_bert(num_labels=1), pruned(with_labels(float))),
            InputError,
            r"torch.float32 \[12\].*one loss per sample",
        ),
        (
            lambda: trainer(
                odd_bert(problem_type="multi_label_classification"),
                pruned(with_labels(lambda label: [float(label), 1.0])),
            ),
            InputError,
            r"torch.float32 \[12, 2\].*one loss per sample",
        ),
    ],
    ids=["a mean", "past ours", "more than cross entropy", "aux_loss", "a number", "many labels"],
)
def test_a_loss_that_is_not_per_sample_is_refused(run: Any, error: Any, words: str) -> None:
    made = run()
    with pytest.raises(error, match=words):
        made.train()


def test_a_first_batch_without_labels_tells_nothing() -> None:
    """The shift is found in the second batch; nothing is known of a sample without labels."""
    samples, train = sentences(), pruned(sentences())
    for index in train.plan().indices[:BATCH].tolist():
        samples[index]["labels"] = torch.full((6,), -100)
    train = pruned(samples)
    with_trainer(llama(), train)
    silent = torch.tensor([bool((sample["labels"] == -100).all()) for sample in samples])
    assert int(silent.sum()) == BATCH
    assert torch.equal(train.scores.isnan(), silent)
    assert all(report.not_finite == 0 for report in train.history)


def by_masked_token(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Any:
    losses = F.cross_entropy(outputs.logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none")
    return infobatch.per_sample(losses, labels[:, 1:] != -100)


def test_a_custom_loss_may_say_that_nothing_is_known() -> None:
    samples = sentences()
    for sample in samples[::5]:
        sample["labels"] = torch.full((6,), -100)
    models, datas = [gpt() for _ in range(2)], [pruned(samples) for _ in range(2)]
    with_trainer(models[0], datas[0])
    made = with_trainer(models[1], datas[1], compute_loss_func=by_masked_token)
    silent = torch.arange(len(samples)) % 5 == 0
    for data in datas:
        assert torch.equal(data.scores.isnan(), silent)
    assert [report.kept for report in datas[0].history] == [report.kept for report in datas[1].history]
    torch.testing.assert_close(weights(models[0]), weights(models[1]), rtol=1e-4, atol=1e-5)
    assert made.evaluate(samples)["eval_loss"] > 0


class Logged(PrunedTrainer):
    """Before PrunedTrainer in the class order: super().compute_loss returns the weighted mean."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        return super().compute_loss(model, inputs, return_outputs, **kwargs)


def test_a_class_in_front_may_call_ours() -> None:
    model, train, other, expected = bert(), pruned(classes()), bert(), pruned(classes())
    with_trainer(model, train, kind=Logged)
    without(other, expected)
    assert_same(model, train, other, expected)
