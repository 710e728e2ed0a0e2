"""Loss functions that look at the batch: answers in a text, masked images, and packed sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    DataCollatorWithFlattening,
    ViTMAEConfig,
    ViTMAEForPreTraining,
    default_data_collator,
)
from transformers_tokens import (
    SMALL,
    VOCABULARY,
    assert_close,
    by_pruned,
    by_trainer,
    llama,
    settings,
    texts,
)

import infobatch
from infobatch.adapters import PerSample, language_loss, masked_image_loss
from infobatch.errors import MisalignedError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*prunes nothing")]

SIZE = 20  # seven batches of three, the last of two, in steps of four


def lots(size: tuple[int, ...], high: int, seed: int) -> Tensor:
    return torch.randint(0, high, size, generator=torch.Generator().manual_seed(seed))


def without_dropout(config: type[Any], **given: Any) -> Any:
    return config(**SMALL, **given, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


# ---- targets inside the inputs -----------------------------------------------------------------------------------


def questions() -> list[dict[str, Any]]:
    ids, starts, ends = lots((SIZE, 6), VOCABULARY, 1), lots((SIZE,), 6, 2), lots((SIZE,), 6, 3)
    return [
        {"input_ids": row, "start_positions": int(start), "end_positions": int(end)}
        for row, start, end in zip(ids, starts, ends, strict=True)
    ]


def answering() -> Any:
    torch.manual_seed(0)
    return BertForQuestionAnswering(without_dropout(BertConfig, vocab_size=VOCABULARY))


def by_answer(outputs: Any, labels: None, inputs: dict[str, Tensor]) -> Tensor:
    assert labels is None
    starts = F.cross_entropy(outputs.start_logits, inputs["start_positions"], reduction="none")
    return (starts + F.cross_entropy(outputs.end_logits, inputs["end_positions"], reduction="none")) / 2


def images() -> list[dict[str, Tensor]]:
    """Images, each with the noise by which its patches are masked."""
    pixels = torch.rand(SIZE, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    noise = torch.rand(SIZE, 4, generator=torch.Generator().manual_seed(2))
    return [{"pixel_values": image, "noise": one} for image, one in zip(pixels, noise, strict=True)]


def mae() -> Any:
    torch.manual_seed(0)
    decoder = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    given = {f"decoder_{name}": value for name, value in decoder.items()}
    return ViTMAEForPreTraining(without_dropout(ViTMAEConfig, image_size=8, patch_size=4, mask_ratio=0.5, **given))


def by_patch(outputs: Any, labels: None, num_items_in_batch: Any = None, *, inputs: dict[str, Tensor]) -> PerSample:
    assert labels is None
    assert num_items_in_batch is None
    return masked_image_loss(outputs.logits, outputs.mask, inputs["pixel_values"])


CASES = pytest.mark.parametrize(
    ("make", "samples", "func"), [(answering, questions, by_answer), (mae, images, by_patch)], ids=["answers", "images"]
)


@CASES
def test_targets_inside_the_inputs(make: Any, samples: Any, func: Any) -> None:
    """The Trainer divides the means of such models by the number of accumulated batches."""
    model, other, train = make(), make(), infobatch.InfoBatch(samples(), num_epochs=1)
    by_trainer(other, samples(), train)
    by_pruned(model, train, compute_loss_func=func)
    assert_close(model, other, make())


def alone(net: Any, data: list[Any]) -> Tensor:
    """The loss that the model itself returns for each sample."""
    net.eval()
    with torch.no_grad():
        return torch.stack([net(**default_data_collator([one])).loss for one in data])


@CASES
def test_their_scores_are_what_the_model_says_of_each_sample(make: Any, samples: Any, func: Any) -> None:
    train = infobatch.InfoBatch(samples(), num_epochs=1)
    by_pruned(make(), train, args=settings(gradient_accumulation_steps=20), compute_loss_func=func)  # a step at the end
    torch.testing.assert_close(train.scores, alone(make(), samples()), rtol=1e-5, atol=1e-6)


@CASES
def test_they_are_pruned_and_evaluated(make: Any, samples: Any, func: Any) -> None:
    train = infobatch.InfoBatch(samples(), num_epochs=3, delta=0.9)
    names = ["start_positions", "end_positions"] if make is answering else ["pixel_values"]  # or there is no eval_loss
    made = by_pruned(make(), train, args=settings(3, label_names=names), compute_loss_func=func)
    assert min(one.kept for one in train.history) < SIZE
    mean = float(alone(made.model, samples()).mean())
    assert made.evaluate(samples())["eval_loss"] == pytest.approx(mean, rel=1e-5)


def test_the_inputs_are_the_whole_batch() -> None:
    seen = []

    def looking(outputs: Any, labels: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        assert inputs["labels"] is labels
        assert outputs.loss is None  # the model gets no labels, as in the Trainer
        rows = inputs["input_ids"]
        if "infobatch_index" in inputs:
            seen.extend(zip(inputs["infobatch_index"].tolist(), rows, strict=True))
        inputs.clear()  # it is the function's own
        return language_loss(outputs.logits, labels, shift=True).loss

    data, train = texts(), infobatch.InfoBatch(texts(), num_epochs=1)
    made = by_pruned(llama(), train, compute_loss_func=looking)
    assert sorted(index for index, _ in seen) == list(range(len(data)))
    assert all(torch.equal(data[index]["input_ids"], row) for index, row in seen)
    assert made.evaluate(data)["eval_loss"] > 0


# ---- packed sequences --------------------------------------------------------------------------------------------


def unpadded() -> list[dict[str, list[int]]]:
    """Texts of 3 to 8 tokens, each predicted but the first."""
    rows = [sample["input_ids"][: 3 + i % 6].tolist() for i, sample in enumerate(texts(SIZE))]
    return [{"input_ids": row, "labels": row} for row in rows]


def by_sequence(outputs: Any, labels: Tensor, num_items_in_batch: Any = None, *, inputs: dict[str, Any]) -> PerSample:
    indices = inputs.get("infobatch_index")
    return language_loss(
        outputs.logits,
        labels,
        shift=True,
        position_ids=inputs["position_ids"],
        count=None if indices is None else len(indices),
        average="batch" if num_items_in_batch is None else num_items_in_batch,
    )


def test_packed_sequences_train_as_in_the_trainer() -> None:
    data, given = unpadded(), {"data_collator": DataCollatorWithFlattening()}
    model, other, train = llama(), llama(), infobatch.InfoBatch(data, num_epochs=1)
    plain = by_trainer(other, data, train, **given)
    made = by_pruned(model, train, compute_loss_func=by_sequence, **given)
    assert_close(model, other, llama())
    assert made.evaluate(data)["eval_loss"] == pytest.approx(plain.evaluate(data)["eval_loss"], rel=1e-5)


def test_packed_sequences_are_scored_as_if_they_were_alone() -> None:
    data, net = unpadded(), llama()
    train = infobatch.InfoBatch(data, num_epochs=1)
    args = settings(gradient_accumulation_steps=20)  # one step, after all losses
    by_pruned(llama(), train, args=args, compute_loss_func=by_sequence, data_collator=DataCollatorWithFlattening())
    expected = alone(net, [{name: torch.tensor(row) for name, row in sample.items()} for sample in data])
    torch.testing.assert_close(train.scores, expected, rtol=1e-5, atol=1e-6)


def test_packed_sequences_in_pruned_epochs() -> None:
    train = infobatch.InfoBatch(unpadded(), num_epochs=4, delta=0.9)
    by_pruned(llama(), train, compute_loss_func=by_sequence, data_collator=DataCollatorWithFlattening())
    assert min(one.kept for one in train.history) < SIZE
    assert bool(train.scores.isfinite().all())


def one_for_all(outputs: Any, labels: Tensor) -> PerSample:
    return language_loss(outputs.logits, labels, shift=True)


def test_one_loss_for_a_whole_pack_is_refused() -> None:
    train = infobatch.InfoBatch(unpadded(), num_epochs=1)
    with pytest.raises(MisalignedError, match="one loss for each of the 3 samples; got 1"):
        by_pruned(llama(), train, compute_loss_func=one_for_all, data_collator=DataCollatorWithFlattening())
