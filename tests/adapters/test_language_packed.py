"""Packed sequences: one loss for each, as if it were alone, and attributed to its sample of the data set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lots import lot
from plans import gradient
from torch import Tensor, nn
from torch.nn import functional as F

import infobatch
from infobatch import InputError
from infobatch.adapters import PerSample, chunked_language_loss, language_loss

VOCABULARY, FEATURES = 11, 6
LENGTHS = [3, 1, 5, 2, 4, 2]
TEXTS = [torch.randint(0, VOCABULARY, (length,), generator=lot(i)) for i, length in enumerate(LENGTHS)]


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(VOCABULARY, FEATURES), nn.Linear(FEATURES, VOCABULARY)).double()


def alone(net: nn.Module, text: Tensor, shift: bool) -> Tensor:
    """The mean loss of a text on its own; NaN without a token to predict."""
    logits = net(text[None])[0]
    return F.cross_entropy(logits[:-1], text[1:]) if shift else F.cross_entropy(logits, text)


def whole(net: Any, ids: Tensor, labels: Tensor | None = None, **given: Any) -> PerSample:
    return language_loss(net(ids), ids if labels is None else labels, **given)


def chunked(net: Any, ids: Tensor, labels: Tensor | None = None, **given: Any) -> PerSample:
    return chunked_language_loss(net[0](ids), net[1], ids if labels is None else labels, chunk_size=4, **given)


BOTH = pytest.mark.parametrize("losses", [whole, chunked])


def flat(texts: list[Tensor], start: int = 0) -> tuple[Tensor, Tensor]:
    """One row with all of them, and the positions of their tokens."""
    return torch.cat(texts)[None], torch.cat([torch.arange(start, start + len(one)) for one in texts])[None]


@BOTH
@pytest.mark.parametrize("shift", [True, False])
@pytest.mark.parametrize("start", [0, 2])  # where RoBERTa's positions begin
@pytest.mark.parametrize("counted", [True, False])
def test_each_sequence_has_the_loss_it_has_alone(
    losses: Callable[..., PerSample], shift: bool, start: int, counted: bool
) -> None:
    net = model()
    ids, positions = flat(TEXTS, start)
    loss, score = losses(net, ids, shift=shift, position_ids=positions, count=6 if counted else None, average="sample")
    expected = torch.stack([alone(net, text, shift) for text in TEXTS])
    assert expected.isnan().tolist() == [shift and length == 1 for length in LENGTHS]
    torch.testing.assert_close(score, expected.detach(), rtol=1e-12, atol=0, equal_nan=True)
    torch.testing.assert_close(loss, expected.nan_to_num(0), rtol=1e-12, atol=0)
    full = gradient(net, torch.stack([one for one in expected if not one.isnan()]).sum())
    torch.testing.assert_close(gradient(net, loss.sum()), full, rtol=1e-9, atol=1e-14)


@BOTH
@pytest.mark.parametrize("average", ["batch", "sum", 7])
def test_averages_are_over_the_sequences(losses: Callable[..., PerSample], average: Any) -> None:
    net = model()
    ids, positions = flat(TEXTS)
    loss, _ = losses(net, ids, shift=True, position_ids=positions, count=6, average=average)
    total = sum(alone(net, text, True) * (len(text) - 1) for text in TEXTS if len(text) > 1)
    tokens = sum(LENGTHS) - len(LENGTHS)
    assert loss.shape == (6,)
    torch.testing.assert_close(loss.mean(), total / {"batch": tokens, "sum": 1, 7: 7}[average], rtol=1e-12, atol=0)


def test_rows_begin_sequences_and_padding_may_follow_the_last() -> None:
    net = model()
    rows = [torch.cat([TEXTS[0], TEXTS[2]]), torch.cat([TEXTS[4], TEXTS[3]])]
    ids = torch.stack([rows[0], F.pad(rows[1], (0, 2))])
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4], [0, 1, 2, 3, 0, 1, 0, 0]])
    labels = ids.clone()
    labels[1, 6:] = -100
    loss, score = language_loss(net(ids), labels, shift=True, position_ids=positions, count=4)
    expected = torch.stack([alone(net, TEXTS[i], True).detach() for i in (0, 2, 4, 3)])
    torch.testing.assert_close(score, expected, rtol=1e-12, atol=0)
    ids = torch.where(labels == -100, 5, ids)  # what stands in the padding does not matter
    assert torch.equal(language_loss(net(ids), labels, shift=True, position_ids=positions, count=4).loss, loss)


@BOTH
@pytest.mark.parametrize("shift", [True, False])
def test_sequence_ids_may_come_in_any_order_with_padding_between(losses: Callable[..., PerSample], shift: bool) -> None:
    net = model()
    order, pad = [4, 0, 5, 2], torch.tensor([7, 7, 7])
    ids = torch.cat([torch.cat([TEXTS[i], pad]) for i in order])[None]
    sequence = torch.cat([F.pad(torch.full((LENGTHS[i],), i), (0, 3), value=-1) for i in order])[None]
    loss, score = losses(net, ids, shift=shift, sequence_ids=sequence.int(), count=6, average="sample")
    expected = torch.full((6,), torch.nan, dtype=torch.float64)
    for i in order:
        expected[i] = alone(net, TEXTS[i], shift).detach()
    torch.testing.assert_close(score, expected, rtol=1e-12, atol=0, equal_nan=True)
    torch.testing.assert_close(loss, expected.nan_to_num(0), rtol=1e-12, atol=0)


@pytest.mark.parametrize("count", [5, 7])
def test_a_number_of_sequences_that_cannot_be_right_is_refused(count: int) -> None:
    net = model()
    ids, positions = flat(TEXTS)
    with pytest.raises(InputError, match=f"tokens of {count} sequences; got 6"):
        language_loss(net(ids), ids, shift=True, position_ids=positions, count=count)


def test_an_id_beyond_the_batch_is_refused() -> None:
    net = model()
    ids, _ = flat(TEXTS)
    with pytest.raises(InputError, match="tokens of 3 sequences; got 4"):
        language_loss(net(ids), ids, shift=True, sequence_ids=torch.full_like(ids, 3), count=3)


@BOTH
@pytest.mark.parametrize("count", [5, 6, 7])
def test_in_a_graph_a_wrong_number_gives_nan_and_no_gradient(losses: Callable[..., PerSample], count: int) -> None:
    net = model()
    ids, positions = flat(TEXTS)

    def step() -> PerSample:
        return losses(net, ids, shift=True, position_ids=positions, count=count)

    loss, score = torch.compile(step, fullgraph=True, backend="eager")()
    got = gradient(net, loss.mean())
    if count == 6:
        torch.testing.assert_close(score, step().score, equal_nan=True)
        torch.testing.assert_close(got, gradient(net, step().loss.mean()))
    else:
        assert bool(loss.isnan().all())
        assert bool(score.isnan().all())
        assert not got.any()


# ---- loops with packs -------------------------------------------------------------------------------------------

ITEMS = [{"input_ids": text.tolist(), "labels": text.tolist()} for text in TEXTS * 4]


def first_scores(net: nn.Module, texts: list[Tensor]) -> Tensor:
    return torch.stack([alone(net, text, True).detach().float() for text in texts])


def llama() -> Any:
    transformers = pytest.importorskip("transformers")
    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(vocab_size=VOCABULARY, use_cache=False, **size)
    ).eval()


@pytest.mark.parametrize("labels", ["separated", "all"])
def test_padding_free_batches_of_transformers(labels: str) -> None:
    """A model that attends within sequences gives each the loss it has alone, whatever it is packed with."""
    transformers = pytest.importorskip("transformers")
    net, data = llama(), infobatch.InfoBatch(ITEMS, num_epochs=8)
    collate = transformers.DataCollatorWithFlattening()
    sizes = []
    for batch in infobatch.DataLoader(data, batch_size=5, collate_fn=collate):
        outputs = net(**batch)
        assert outputs.logits.shape[0] == 1
        given = {"position_ids": batch["position_ids"], "count": len(data.batch_indices)}
        targets = batch["labels"] if labels == "separated" else batch["input_ids"]
        loss, score = language_loss(outputs.logits, targets, shift=True, **given)
        torch.testing.assert_close(loss.mean(), outputs.loss, rtol=1e-6, atol=0)  # the separators are in its labels
        data.update(loss, score=score).backward()
        sizes.append(len(loss))
    assert sizes == [5, 5, 5, 5, 4]
    known = [net(input_ids=one[None], labels=one[None]).loss.detach() for one in TEXTS]  # NaN of a single token
    expected = torch.stack(known * 4)
    assert int(expected.isnan().sum()) == 4
    torch.testing.assert_close(data.scores, expected, rtol=1e-5, atol=0, equal_nan=True)


def test_a_collate_fn_that_sorts_says_which_sample_is_where() -> None:
    """As for best-fit packing: sequence ids are positions in the list that collate_fn was given."""

    def longest_first(samples: list[Tensor]) -> tuple[Tensor, Tensor]:
        order = sorted(range(len(samples)), key=lambda i: -len(samples[i]))
        rows = [torch.cat([samples[i] for i in part]) for part in (order[::2], order[1::2])]
        which = [torch.cat([torch.full_like(samples[i], i) for i in part]) for part in (order[::2], order[1::2])]
        length = max(map(len, rows))
        return tuple(
            torch.stack([F.pad(row, (0, length - len(row)), value=value) for row in part])
            for part, value in ((rows, 0), (which, -1))
        )

    net, texts = model(), TEXTS * 4
    data = infobatch.InfoBatch(texts, num_epochs=8)
    for ids, which in infobatch.DataLoader(data, batch_size=6, collate_fn=longest_first):
        samples = len(data.batch_indices)
        loss, score = language_loss(net(ids), ids, shift=True, sequence_ids=which, count=samples)
        data.update(loss, score=score).backward()
    torch.testing.assert_close(data.scores, first_scores(net, texts), equal_nan=True)


def test_a_pack_that_is_an_item_of_the_data_set_is_one_sample() -> None:
    net = model()
    packs = [flat([TEXTS[i], TEXTS[j]]) for i, j in ((0, 3), (4, 1), (2, 5))] * 4
    data = infobatch.InfoBatch(packs, num_epochs=8)
    for ids, positions in infobatch.DataLoader(data, batch_size=1):
        labels = ids[0].masked_fill(positions[0] == 0, -100)
        loss, score = language_loss(net(ids[0]), labels, shift=True)
        data.update(loss, score=score).backward()
    for (ids, positions), score in zip(packs, data.scores, strict=True):
        inside = positions[0, 1:] > 0
        expected = F.cross_entropy(net(ids)[0, :-1][inside], ids[0, 1:][inside])
        torch.testing.assert_close(score, expected.detach().float())


def test_batches_of_about_as_many_tokens_each() -> None:
    """A batch sampler around that of the data may put any number of samples into a pack."""

    class ByTokens(torch.utils.data.Sampler[list[int]]):
        def __init__(self, sampler: Any) -> None:
            self.sampler = sampler

        def __iter__(self) -> Any:
            batch: list[int] = []
            for index in self.sampler:
                batch.append(index)
                if sum(LENGTHS[i % 6] for i in batch) >= 8:
                    yield batch
                    batch = []
            if batch:
                yield batch

    net, texts = model(), TEXTS * 4
    data = infobatch.InfoBatch(texts, num_epochs=8)
    sizes = set()
    for ids, positions in infobatch.DataLoader(data, batch_sampler=ByTokens(data.sampler), collate_fn=flat):
        samples = len(data.batch_indices)
        loss, score = language_loss(net(ids), ids, shift=True, position_ids=positions, count=samples)
        data.update(loss, score=score).backward()
        sizes.add(samples)
    assert len(sizes) > 1
    torch.testing.assert_close(data.scores, first_scores(net, texts), equal_nan=True)
