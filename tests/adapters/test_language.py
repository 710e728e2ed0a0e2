"""One loss per sequence of padded batches: against loops, models of transformers and its Trainer's loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lots import lot
from plans import expected_gradient, gradient, train
from torch import Tensor, nn
from torch.nn import functional as F

import infobatch
from infobatch import InputError, Sieve
from infobatch.adapters import chunked_language_loss, language_loss
from infobatch.sieve import Proxy, hardest

BATCH, LENGTH, VOCABULARY, FEATURES = 5, 7, 11, 6
COUNTS = [7, 2, 0, 5, 1]  # labels of each sequence
IDS = torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=lot())
LABELS = torch.where(torch.arange(LENGTH) < torch.tensor(COUNTS)[:, None], IDS, -100)
AVERAGES = ["sample", "batch", "all", "sum", 30, torch.tensor(30)]


class Net(nn.Module):
    """Hidden states that depend on earlier tokens, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Embedding(VOCABULARY, FEATURES)
        self.lm_head = nn.Linear(FEATURES, VOCABULARY)
        self.double()

    def hidden(self, ids: Tensor) -> Tensor:
        return self.body(ids).cumsum(1).tanh()

    def forward(self, ids: Tensor) -> Tensor:
        return self.lm_head(self.hidden(ids))


def whole(net: Net, rows: Tensor, **given: Any) -> infobatch.adapters.PerSample:
    return language_loss(net(IDS[rows]), LABELS[rows], **given)


def chunked(net: Net, rows: Tensor, **given: Any) -> infobatch.adapters.PerSample:
    return chunked_language_loss(net.hidden(IDS[rows]), net.lm_head, LABELS[rows], chunk_size=4, **given)


BOTH = pytest.mark.parametrize("losses", [whole, chunked])
ALL = torch.arange(BATCH)


def sums_and_counts(net: Net, shift: bool) -> tuple[list[Tensor], list[int]]:
    """Token by token: the logits at t predict the label at t + 1, or at t."""
    sums, counts = [], []
    for ids, labels in zip(IDS, LABELS, strict=True):
        logits = net(ids[None])[0]
        known = [t for t in range(LENGTH - shift) if labels[t + shift] != -100]
        losses = [-logits[t].log_softmax(0)[labels[t + shift]] for t in known]
        sums.append(torch.stack(losses).sum() if losses else torch.zeros((), dtype=torch.float64))
        counts.append(len(losses))
    return sums, counts


@BOTH
@pytest.mark.parametrize("shift", [True, False])
@pytest.mark.parametrize("average", AVERAGES, ids=str)
def test_the_loss_is_that_of_a_loop_over_tokens(losses: Callable[..., Any], shift: bool, average: Any) -> None:
    net = Net()
    sums, counts = sums_and_counts(net, shift)
    if average == "sample":
        expected = torch.stack([s / n for s, n in zip(sums, counts, strict=True) if n]).sum() / BATCH
    else:
        divisors = {"batch": sum(counts), "all": BATCH * LENGTH, "sum": 1}
        expected = torch.stack(sums).sum() / (divisors[average] if isinstance(average, str) else average)
    loss, score = losses(net, ALL, shift=shift, average=average)
    torch.testing.assert_close(loss.mean(), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient(net, loss.mean()), gradient(net, expected), rtol=1e-9, atol=1e-14)
    own = torch.stack([s.detach() / n if n else torch.tensor(torch.nan) for s, n in zip(sums, counts, strict=True)])
    torch.testing.assert_close(score, own.double(), rtol=1e-12, atol=0, equal_nan=True)
    assert not score.requires_grad
    assert score.isnan().tolist() == [n == 0 for n in counts]
    assert float(loss[2].detach()) == 0


@BOTH
def test_another_label_may_mean_ignored(losses: Callable[..., Any]) -> None:
    net, own = Net(), torch.where(LABELS == -100, 3, LABELS)
    if losses is whole:
        loss, _ = language_loss(net(IDS), own.int(), shift=True, ignore_index=3)
    else:
        loss, _ = chunked_language_loss(net.hidden(IDS), net.lm_head, own.int(), shift=True, ignore_index=3)
    expected = F.cross_entropy(net(IDS)[:, :-1].flatten(0, 1), own[:, 1:].flatten(), ignore_index=3)
    torch.testing.assert_close(loss.mean(), expected, rtol=1e-12, atol=0)


@BOTH
def test_a_batch_without_labels_changes_nothing(losses: Callable[..., Any]) -> None:
    net = Net()
    loss, score = losses(net, torch.tensor([2, 2]), shift=True)
    assert loss.tolist() == [0, 0]
    assert bool(score.isnan().all())
    assert not gradient(net, loss.mean()).any()


# ---- transformers -----------------------------------------------------------------------------------------------

SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


def llama() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=VOCABULARY, **SMALL))


def bert() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=VOCABULARY, **SMALL))


def t5() -> Any:
    transformers = pytest.importorskip("transformers")
    size = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(vocab_size=VOCABULARY, decoder_start_token_id=0, **size)
    return transformers.T5ForConditionalGeneration(config)


@pytest.mark.parametrize(("make", "shift"), [(llama, True), (bert, False), (t5, False)])
def test_the_mean_is_the_own_loss_of_a_model(make: Callable[[], Any], shift: bool) -> None:
    torch.manual_seed(0)
    model = make().double().eval()
    outputs = model(input_ids=IDS, labels=LABELS)
    loss, _ = language_loss(outputs.logits.double(), LABELS, shift=shift)
    torch.testing.assert_close(loss.mean().float(), outputs.loss.float(), rtol=1e-6, atol=0)
    own = gradient(model, model(input_ids=IDS, labels=LABELS).loss)  # llama's is computed in single precision
    torch.testing.assert_close(gradient(model, loss.mean()), own, rtol=1e-5, atol=1e-7)


def test_hidden_states_of_a_model_give_its_loss() -> None:
    torch.manual_seed(0)
    model = llama()
    hidden = model.model(input_ids=IDS).last_hidden_state
    loss, _ = chunked_language_loss(hidden, model.lm_head, LABELS, shift=True, chunk_size=6)
    own = model(input_ids=IDS, labels=LABELS).loss
    torch.testing.assert_close(loss.mean(), own, rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient(model, loss.mean()), gradient(model, own), rtol=1e-5, atol=1e-7)


@BOTH
def test_micro_batches_add_up_to_the_step_of_the_trainer(losses: Callable[..., Any]) -> None:
    """As ForCausalLMLoss does with num_items_in_batch, the tokens of all micro-batches of a step."""
    loss_utils = pytest.importorskip("transformers.loss.loss_utils")
    net, parts = Net(), [torch.tensor([0]), torch.tensor([1, 2, 3]), torch.tensor([4])]
    number = (LABELS[:, 1:] != -100).sum()
    for rows in parts:
        own = loss_utils.ForCausalLMLoss(net(IDS[rows]), LABELS[rows], VOCABULARY, num_items_in_batch=number)
        torch.testing.assert_close(losses(net, rows, shift=True, average=number).loss.mean().float(), own)
    step = torch.stack([losses(net, rows, shift=True, average=number).loss.mean() for rows in parts]).sum()
    expected = losses(net, ALL, shift=True).loss.mean()
    torch.testing.assert_close(step, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient(net, step), gradient(net, expected), rtol=1e-9, atol=1e-14)


# ---- chunks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_size", [1, 4, 35, 1000])
def test_the_logits_of_all_tokens_are_never_held(chunk_size: int) -> None:
    net, sizes = Net(), []

    def lm_head(states: Tensor) -> Tensor:
        sizes.append(len(states))
        return net.lm_head(states)

    held = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: (held.append(one.shape), one)[1], lambda one: one):
        loss, _ = chunked_language_loss(net.hidden(IDS), lm_head, LABELS, shift=True, chunk_size=chunk_size)
    assert max(sizes) == min(chunk_size, IDS.numel())
    assert VOCABULARY not in [shape[-1] for shape in held if shape]
    torch.testing.assert_close(gradient(net, loss.mean()), gradient(net, whole(net, ALL, shift=True).loss.mean()))
    assert len(sizes) == 2 * -(-IDS.numel() // chunk_size)


def test_chunks_draw_the_same_numbers_again() -> None:
    net, dropout = Net(), nn.Dropout(0.5)
    seen: list[Tensor] = []

    def lm_head(states: Tensor) -> Tensor:
        states = dropout(states)
        seen.append(states.detach())
        return net.lm_head(states)

    loss, _ = chunked_language_loss(net.hidden(IDS), lm_head, LABELS, shift=True, chunk_size=35)
    gradient(net, loss.mean())
    assert torch.equal(*seen)


# ---- precision, graphs, pruning ---------------------------------------------------------------------------------


@BOTH
def test_under_autocast(losses: Callable[..., Any]) -> None:
    net = Net().float()
    with torch.autocast("cpu", torch.bfloat16):
        loss, score = losses(net, ALL, shift=True)
    assert loss.dtype == score.dtype == torch.float32
    torch.testing.assert_close(score, losses(net, ALL, shift=True).score, rtol=0.05, atol=0, equal_nan=True)
    loss.mean().backward()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_single(dtype: torch.dtype) -> None:
    labels = torch.zeros(1, 100_000, dtype=torch.int64)
    loss, _ = language_loss(torch.zeros(1, 100_000, 4, dtype=dtype), labels, shift=False, average="sum")
    torch.testing.assert_close(loss, torch.tensor([100_000 * math.log(4)]))


@BOTH
def test_it_compiles_to_one_graph(losses: Callable[..., Any]) -> None:
    net = Net()
    compiled = torch.compile(lambda: losses(net, ALL, shift=True), fullgraph=True, backend="eager")
    got, expected = compiled(), losses(net, ALL, shift=True)
    torch.testing.assert_close(got.loss, expected.loss)
    torch.testing.assert_close(got.score, expected.score, equal_nan=True)
    torch.testing.assert_close(gradient(net, got.loss.mean()), gradient(net, expected.loss.mean()))


SCORES = torch.tensor([0.1, 0.2, 0.3, 5.0, 0.2])


@BOTH
@pytest.mark.parametrize("average", ["sample", "all"])
def test_pruning_is_unbiased(losses: Callable[..., Any], average: Any) -> None:
    net = Net()
    expected = gradient(net, losses(net, ALL, shift=True, average=average).loss.mean())
    got = expected_gradient(net, lambda rows, _: losses(net, rows, shift=True, average=average).loss, SCORES)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-14)


def test_scores_do_not_depend_on_the_batch() -> None:
    net, data = Net(), infobatch.InfoBatch(range(BATCH), num_epochs=8)
    train(data, 2, lambda rows: whole(net, rows, shift=True))
    sums, counts = sums_and_counts(net, True)
    for score, total, count in zip(data.scores, sums, counts, strict=True):
        assert score.isnan() if not count else abs(float(score) - float(total.detach()) / count) < 1e-6


def test_a_sieve_chooses_sequences() -> None:
    net, data = Net(), infobatch.InfoBatch(range(BATCH), num_epochs=8)
    look = Proxy(Net(), losses=lambda net, rows: whole(net, rows, shift=True, average="sample").loss)
    sieve = Sieve(look, hardest(keep=0.5))
    for batch in infobatch.DataLoader(data, batch_size=4):
        rows, _ = sieve(batch)
        found = whole(net, rows, shift=True)
        loss, score = sieve.expand(found.loss, score=found.score)
        data.update(loss, score=score).backward()
    seen = data.scores.isfinite()
    assert 0 < int(seen.sum()) < BATCH
    torch.testing.assert_close(data.scores[seen], whole(net, ALL, shift=True).score.float()[seen])


# ---- losses of batches ------------------------------------------------------------------------------------------


def fused(net: Net, rows: Tensor) -> Tensor:
    """A kernel that returns one loss: the mean over the tokens of a batch."""
    return F.cross_entropy(net(IDS[rows])[:, :-1].flatten(0, 1), IDS[rows, 1:].flatten())


def test_a_loss_of_the_batch_scores_its_samples_with_bls() -> None:
    net, data = Net(), infobatch.Pruned(range(BATCH), infobatch.methods.bls(), num_epochs=8)
    expected = torch.zeros(BATCH)
    for rows in infobatch.DataLoader(data, batch_size=2):
        loss = fused(net, rows)
        mean = data.update(loss.expand(len(rows)))
        torch.testing.assert_close(gradient(net, mean), gradient(net, fused(net, rows)), rtol=1e-9, atol=1e-14)
        expected[rows] = loss.detach().float()
    torch.testing.assert_close(data.scores, expected)


def test_losses_of_chunks_score_the_samples_of_each_with_bls() -> None:
    net, data = Net(), infobatch.Pruned(range(4), infobatch.methods.bls(), num_epochs=8)
    expected = torch.zeros(4)
    for rows in infobatch.DataLoader(data, batch_size=4):
        for part, indices in zip(rows.split(2), data.batch_indices.split(2), strict=True):
            loss = fused(net, part)
            (data.update(loss.expand(len(part)), indices) * len(part) / len(rows)).backward()
            expected[part] = loss.detach().float()
    torch.testing.assert_close(data.scores, expected)


GOOD: dict[str, Any] = {"labels": torch.zeros(2, 4, dtype=torch.int64), "shift": True}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"values": "x"}, "shape \\[batch, length"),
        ({"values": torch.zeros(2, 4)}, "shape \\[batch, length"),
        ({"values": torch.zeros(2, 4, 3).long()}, "floating-point"),
        ({"values": torch.zeros(2, 0, 3)}, "shape \\[batch, length"),
        ({"labels": torch.zeros(2, 3).long()}, "shift=True shifts"),
        ({"labels": torch.zeros(2, 4)}, "integers"),
        ({"labels": torch.zeros(2, 4, device="meta").long()}, "on meta"),
        ({"average": "mean"}, "average"),
        ({"count": 2}, "position_ids or sequence_ids with count"),
        ({"position_ids": torch.zeros(2, 4)}, "integers"),
        ({"position_ids": torch.zeros(3, 2, 4).long()}, "shape"),
        ({"sequence_ids": torch.zeros(2, 4, device="meta").long()}, "on meta"),
        ({"sequence_ids": torch.zeros(2, 4).long(), "position_ids": torch.zeros(2, 4).long()}, "both"),
        ({"sequence_ids": torch.zeros(2, 4).long(), "count": 0}, "count"),
        ({"chunk_size": 0}, "chunk_size"),
        ({"chunk_size": True}, "chunk_size"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(change: dict[str, Any], word: str) -> None:
    given = {**GOOD, **change}
    values = given.pop("values", torch.zeros(2, 4, 3))
    with pytest.raises(InputError, match=word):
        chunked_language_loss(values, nn.Linear(3, 5), **given)
    if "chunk_size" not in given:
        with pytest.raises(InputError, match=word):
            language_loss(values, **given)
