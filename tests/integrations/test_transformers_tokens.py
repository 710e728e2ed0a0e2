"""The Trainer's own loss scale: with nothing pruned, a compute_loss_func trains as the plain Trainer does."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import run_ranks
from torch import Tensor, nn
from torch.nn import functional as F

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import Trainer, default_data_collator
from transformers_loop import Save, assert_same, bert, by_class, classes, pruned, trainer, with_trainer, without
from transformers_tokens import (
    ACCUMULATED,
    BATCH,
    SIZE,
    assert_close,
    by_pruned,
    by_tokens,
    by_trainer,
    flat,
    llama,
    settings,
    sgd,
    texts,
)

import infobatch
from infobatch.adapters import PerSample, language_loss
from infobatch.errors import InputError
from infobatch.integrations.transformers import PrunedTrainer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*prunes nothing")]


# ---- nothing pruned --------------------------------------------------------------------------------------------


def token_sums(outputs: Any, labels: Tensor, num_items_in_batch: Any) -> Tensor:
    """What a compute_loss_func of the plain Trainer returns, one scalar, from the losses of the batch."""
    logits, labels = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    return F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum") / num_items_in_batch


@pytest.mark.parametrize("accumulated", [1, 2, ACCUMULATED, 20])
@pytest.mark.parametrize("plain", [{}, {"compute_loss_func": token_sums}], ids=["the model's loss", "a function"])
def test_a_full_epoch_is_that_of_the_trainer(plain: dict[str, Any], accumulated: int) -> None:
    """The last step of an epoch has fewer batches, and its last batch fewer samples."""
    args = settings(gradient_accumulation_steps=accumulated)
    model, other, train = llama(), llama(), infobatch.InfoBatch(texts(), num_epochs=1)
    theirs = by_trainer(other, texts(), train, args=args, **plain)
    ours = by_pruned(model, train, args=args, compute_loss_func=by_tokens)
    assert_close(model, other, llama())
    assert ours.state.log_history[-1]["train_loss"] == pytest.approx(theirs.state.log_history[-1]["train_loss"])
    assert ours.evaluate(texts())["eval_loss"] == pytest.approx(theirs.evaluate(texts())["eval_loss"])


class NoArguments(nn.Module):
    """A model that takes no arguments for its loss, so the Trainer divides its means by the accumulated batches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(24, 2))

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.body(input_ids)
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


def per_class(outputs: Any, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs["logits"], labels, reduction="none")


@pytest.mark.parametrize("func", [None, per_class])
def test_a_mean_over_each_batch_is_averaged_over_the_accumulated_ones(func: Any) -> None:
    data = classes()[:SIZE]
    model, other, train = NoArguments(), NoArguments(), infobatch.InfoBatch(data, num_epochs=1)
    plain = by_trainer(other, data, train)
    assert not plain.model_accepts_loss_kwargs
    by_pruned(model, train, compute_loss_func=func)
    assert_close(model, other, NoArguments())


def step_of_two_ranks(order: list[int]) -> Tensor:
    """Return the parameters after one step, in which each rank divides by the number of its own tokens."""
    model, losses = llama(), []
    for rank in range(2):
        rows = [texts(16)[i] for i in order[rank::2]]
        tokens = torch.tensor(sum(int((row["labels"][1:] != -100).sum()) for row in rows))
        batch = default_data_collator(rows)
        losses.append(token_sums(model(**batch), batch["labels"], tokens))
    (sum(losses) / 2).backward()
    optimizer, _ = sgd(model)
    optimizer.step()
    return flat(model)


def test_two_ranks_leave_what_one_with_larger_batches_does(tmp_path: Path) -> None:
    """All ranks share the number of tokens; without that, each divides by its own, and the means differ."""
    run_ranks(2, Path(__file__).with_name("transformers_tokens.py"), tmp_path)
    other, train = llama(), infobatch.InfoBatch(texts(16), num_epochs=1)
    by_trainer(other, texts(16), train, args=settings(per_device_train_batch_size=2 * BATCH))
    change = (flat(other) - flat(llama())).norm()
    alone = infobatch.InfoBatch(texts(16), num_epochs=1)
    by_pruned(llama(), alone, args=settings(per_device_train_batch_size=2 * BATCH), compute_loss_func=by_tokens)
    by_rank = step_of_two_ranks(infobatch.InfoBatch(texts(16), num_epochs=1).plan().indices.tolist())
    assert (by_rank - flat(other)).norm() > 1e-2 * change
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert found["over ranks"]["is scaled"] is True
        torch.testing.assert_close(found["over ranks"]["weights"], flat(other), rtol=1e-5, atol=1e-5)
        assert (found["over ranks"]["weights"] - flat(other)).norm() < 1e-4 * change
        assert (found["by rank"]["weights"] - by_rank).norm() < 1e-4 * change
        torch.testing.assert_close(found["over ranks"]["scores"], alone.scores, rtol=1e-5, atol=1e-6)


# ---- whether losses are divided by the number --------------------------------------------------------------------


def named(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """Takes the number and leaves it: a mean over the batch."""
    return F.cross_entropy(outputs.logits, labels, reduction="none")


def anything(outputs: Any, labels: Tensor, **given: Any) -> Tensor:
    assert list(given) == ["num_items_in_batch"]  # as the Trainer calls it: nothing else may arrive here
    return named(outputs, labels)


def bare(outputs: Any, labels: Tensor) -> Tensor:
    return named(outputs, labels)


class Criterion(nn.Module):
    def forward(self, outputs: Any, labels: Tensor) -> Tensor:
        return named(outputs, labels)


class Callable:
    def __call__(self, outputs: Any, labels: Tensor, *, num_items_in_batch: Any) -> Tensor:
        return named(outputs, labels)


@pytest.mark.parametrize(
    "func",
    [named, anything, bare, Criterion(), Callable(), functools.partial(named, num_items_in_batch=7)],
    ids=["named", "anything", "bare", "module", "object", "partial"],
)
def test_losses_without_the_number_are_averaged_over_the_accumulated_batches(func: Any) -> None:
    model, train, other, expected = bert(), pruned(classes()), bert(), pruned(classes())
    made = with_trainer(model, train, compute_loss_func=func, gradient_accumulation_steps=3)
    without(other, expected, by_class, accumulate=3)
    assert made.loss_is_scaled_for_ga is False
    assert_same(model, train, other, expected)


class Divided:
    def __call__(self, outputs: Any, labels: Tensor, **given: Any) -> Tensor:
        losses = F.cross_entropy(outputs.logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none")
        return losses.sum(1) * len(labels) / given["num_items_in_batch"]


def scaled_by_hand(outputs: Any, labels: Tensor, inputs: Any, num_items_in_batch: Any) -> Tensor:
    labels = inputs["labels"]
    return Divided()(outputs, labels, num_items_in_batch=num_items_in_batch)


@pytest.mark.parametrize("func", [Divided(), scaled_by_hand], ids=["object", "inputs"])
def test_losses_per_sample_without_scores_may_be_divided_by_the_number(func: Any) -> None:
    model, other, train = llama(), llama(), infobatch.InfoBatch(texts(), num_epochs=1)
    by_trainer(other, texts(), train)
    by_pruned(model, train, compute_loss_func=func)
    assert_close(model, other, llama())


def test_the_first_batches_may_be_without_labels() -> None:
    """Nothing shows in them, neither in the first step, which has some, nor in the second."""
    data, train = texts(), infobatch.InfoBatch(texts(), num_epochs=1)
    for index in train.plan().indices[: 5 * BATCH].tolist():
        data[index] = {**data[index], "labels": torch.full((8,), -100)}
    train = infobatch.InfoBatch(data, num_epochs=1)
    model, other = llama(), llama()
    by_trainer(other, data, train, args=settings(num_train_epochs=1, gradient_accumulation_steps=2))
    made = by_pruned(
        model, train, args=settings(num_train_epochs=1, gradient_accumulation_steps=2), compute_loss_func=by_tokens
    )
    assert made.loss_is_scaled_for_ga is True
    assert_close(model, other, llama())


def noisy(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> PerSample:
    loss, score = by_tokens(outputs, labels, num_items_in_batch)
    return PerSample(loss * (0.5 + torch.rand_like(loss)), score)


class Told(PrunedTrainer):
    loss_is_scaled_for_ga = True


def test_to_find_out_leaves_no_trace() -> None:
    model, other = llama(), llama()
    for net, kind in ((model, PrunedTrainer), (other, Told)):
        by_pruned(net, infobatch.InfoBatch(texts(), num_epochs=1), kind, compute_loss_func=noisy)
    assert torch.equal(flat(model), flat(other))


def penalized(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> PerSample:
    loss, score = by_tokens(outputs, labels, num_items_in_batch)
    return PerSample(loss + outputs.logits.square().mean((1, 2)) + 0.1, score)


def test_losses_that_depend_on_the_number_in_part_must_be_told() -> None:
    train = infobatch.InfoBatch(texts(), num_epochs=1)
    with pytest.raises(InputError, match=r"or do not depend on it; got losses that.*loss_is_scaled_for_ga = True"):
        by_pruned(llama(), train, compute_loss_func=penalized)
    model = llama()
    by_pruned(model, infobatch.InfoBatch(texts(), num_epochs=1), Told, compute_loss_func=penalized)
    assert not torch.equal(flat(model), flat(llama()))


class Noticing(nn.Module):
    """Takes arguments for its loss, and keeps the number."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.numbers = llama(), []

    def forward(self, input_ids: Tensor, labels: Tensor | None = None, **given: Any) -> Any:
        self.numbers.append(int(given["num_items_in_batch"]))
        return self.net(input_ids, labels=labels, **given)


def test_a_model_has_the_number_as_in_the_trainer() -> None:
    model, other, train = Noticing(), Noticing(), infobatch.InfoBatch(texts(), num_epochs=1)
    by_trainer(other, texts(), train)
    made = PrunedTrainer(model, settings(), train_dataset=train, optimizers=sgd(model))
    made.compute_loss_func = by_tokens  # it may come late
    made.train()
    assert len(model.numbers) == 6
    assert model.numbers == other.numbers


def positional(outputs: Any, labels: Tensor, items: Any) -> Tensor:
    return named(outputs, labels, items)


def test_a_function_that_cannot_be_called_is_refused_at_the_start() -> None:
    with pytest.raises(InputError, match=r"num_items_in_batch=None, inputs=None\); got .*'items'"):
        trainer(bert(), pruned(classes()), compute_loss_func=positional)


# ---- another class's compute_loss --------------------------------------------------------------------------------


class Means(Trainer):
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = model(**inputs)
        loss = by_tokens(outputs, inputs["labels"], num_items_in_batch).loss
        return (loss, outputs) if return_outputs else loss


class PrunedMeans(PrunedTrainer, Means):
    pass


def test_another_class_that_does_not_say_how_it_scales_takes_means_over_its_batches() -> None:
    """It is not told the number, or its losses would be divided twice."""
    model, other = llama(), llama()
    by_pruned(model, infobatch.InfoBatch(texts(), num_epochs=1), PrunedMeans)
    by_pruned(
        other,
        infobatch.InfoBatch(texts(), num_epochs=1),
        compute_loss_func=lambda outputs, labels: language_loss(outputs.logits, labels, shift=True),
    )
    assert_close(model, other, llama())


class Scaled(Means):
    loss_is_scaled_for_ga = True


class PrunedScaled(PrunedTrainer, Scaled):
    pass


def test_another_class_that_scales_its_losses_has_the_number() -> None:
    model, other, train = llama(), llama(), infobatch.InfoBatch(texts(), num_epochs=1)
    by_trainer(other, texts(), train)
    by_pruned(model, train, PrunedScaled)
    assert_close(model, other, llama())


# ---- pruned epochs -----------------------------------------------------------------------------------------------


def by_hand(model: nn.Module, train: infobatch.Pruned, args: Any) -> None:
    """Steps over accumulated batches; each mean over tokens counts for the share of a whole step that it holds."""
    optimizer, _ = sgd(model)
    data, share = texts(40), []
    for _ in range(train.num_epochs):
        plan = train.plan()
        kept = plan.indices.tolist()
        table = dict(zip(kept, (plan.weights / plan.weights.mean()).tolist(), strict=True))  # the loss does not grow
        for start in range(0, plan.kept, BATCH * ACCUMULATED):
            step = kept[start : start + BATCH * ACCUMULATED]
            batches = [step[i : i + BATCH] for i in range(0, len(step), BATCH)]
            tokens = sum(int((data[i]["labels"][1:] != -100).sum()) for i in step)
            is_pruned = plan.kept < len(data)
            scale = len(step) / BATCH / ACCUMULATED if is_pruned and len(batches) < ACCUMULATED else 1.0
            for batch in batches:
                inputs = default_data_collator([data[i] for i in batch])
                loss, score = by_tokens(model(**inputs), inputs["labels"], tokens)
                short = len(batch) / BATCH if is_pruned else 1.0
                weight = torch.tensor([table[i] for i in batch])
                ((loss * weight).mean() * short * scale).backward()
                train.update(loss.detach(), torch.tensor(batch), score=score)
            share.append(scale)
            optimizer.step()
            optimizer.zero_grad()
    assert min(share) < 1


def test_an_incomplete_last_step_of_a_pruned_epoch_counts_for_what_it_holds() -> None:
    model, other = llama(), llama()
    train, expected = (infobatch.InfoBatch(texts(40), num_epochs=5, delta=0.9, seed=1) for _ in range(2))
    by_pruned(model, train, compute_loss_func=by_tokens)
    by_hand(other, expected, settings())
    assert [one.kept for one in train.history] == [one.kept for one in expected.history]
    assert {one.kept % (BATCH * ACCUMULATED) for one in train.history} - {0, 40 % (BATCH * ACCUMULATED)}
    torch.testing.assert_close(train.scores, expected.scores, rtol=1e-4, atol=1e-5)
    assert_close(model, other, llama())


def test_a_resumed_run_finds_out_again_and_equals_an_uninterrupted_one() -> None:
    nets, datas = [llama(), llama()], [infobatch.InfoBatch(texts(40), num_epochs=3, delta=0.9) for _ in range(2)]
    by_pruned(nets[0], datas[0], compute_loss_func=noisy, callbacks=[Save([5])])
    made = PrunedTrainer(nets[1], settings(3), train_dataset=datas[1], optimizers=sgd(nets[1]), compute_loss_func=noisy)
    made.train(resume_from_checkpoint="out/checkpoint-5")
    assert datas[0].history[1].kept < 40
    assert torch.equal(flat(nets[0]), flat(nets[1]))


# ---- several GPUs ------------------------------------------------------------------------------------------------


def test_several_gpus_in_one_process_are_refused() -> None:
    args = settings()
    assert args.n_gpu <= 1
    args._n_gpu = 2
    with pytest.raises(InputError, match=r"2 GPUs in one process.*torchrun"):
        PrunedTrainer(llama(), args, train_dataset=infobatch.InfoBatch(texts(), num_epochs=1))
