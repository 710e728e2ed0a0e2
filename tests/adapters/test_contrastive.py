"""CLIP, InfoNCE, retrieval: one loss per pair, both directions."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch
from lots import lot
from plans import all_plans, expected_gradient, gradient
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import infobatch
from infobatch import InputError
from infobatch.adapters import contrastive_loss

BATCH = 6
FORWARD = torch.randn(BATCH, BATCH, generator=lot(), dtype=torch.float64) * 3
BACKWARD = torch.randn(BATCH, BATCH, generator=lot(1), dtype=torch.float64) * 3


def literal(similarity: Tensor, positives: list[int], weights: Tensor | None = None) -> Tensor:
    """InfoNCE row by row; each column but the row's own counts by its weight."""
    found = []
    for row, own in zip(similarity, positives, strict=True):
        total = row[own].exp()
        for column, value in enumerate(row):
            if column != own:
                total = total + value.exp() * (1.0 if weights is None else weights[column])
        found.append(total.log() - row[own])
    return torch.stack(found)


def test_both_directions_literally() -> None:
    loss, score = contrastive_loss(FORWARD, BACKWARD)
    own = list(range(BATCH))
    expected = (literal(FORWARD, own) + literal(BACKWARD, own)) / 2
    torch.testing.assert_close(loss, expected)
    assert torch.equal(loss, score)
    torch.testing.assert_close(contrastive_loss(FORWARD).loss, literal(FORWARD, own))


def test_the_mean_is_the_loss_of_a_clip_model_with_its_gradient() -> None:
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.CLIPConfig(
        text_config={**small, "vocab_size": 20, "max_position_embeddings": 6, "eos_token_id": 19},
        vision_config={**small, "image_size": 8, "patch_size": 4},
        projection_dim=8,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.CLIPModel(config).double()
    ids = torch.randint(0, 19, (BATCH, 6), generator=lot(2))
    out = model(ids, torch.randn(BATCH, 3, 8, 8, generator=lot(3)).double(), return_loss=True)
    loss, _ = contrastive_loss(out.logits_per_text, out.logits_per_image)
    torch.testing.assert_close(loss.mean(), out.loss, rtol=1e-12, atol=0.0)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    mine, theirs = (
        torch.autograd.grad(one, parameters, retain_graph=True, allow_unused=True) for one in (loss.mean(), out.loss)
    )
    assert any(one is not None for one in mine)
    for one, other in zip(mine, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("directions", [("query_to_doc",), ("query_to_doc", "doc_to_query")], ids=len)
def test_the_mean_is_the_ranking_loss_of_sentence_transformers(directions: tuple[str, ...]) -> None:
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    texts = [torch.randn(BATCH, 8, generator=lot(seed), dtype=torch.float64) for seed in (4, 5, 6)]  # hard negatives
    theirs = losses.MultipleNegativesRankingLoss(nn.Identity(), directions=directions, partition_mode="per_direction")
    expected = theirs.compute_loss_from_embeddings(texts, torch.tensor(0))
    queries, *docs = (F.normalize(text) for text in texts)
    similarity = 20 * queries @ torch.cat(docs).T
    reverse = 20 * docs[0] @ queries.T if len(directions) == 2 else None
    torch.testing.assert_close(contrastive_loss(similarity, reverse).loss.mean(), expected, rtol=1e-12, atol=0.0)


def test_hard_negatives_are_further_columns() -> None:
    similarity = torch.cat([FORWARD, BACKWARD], 1)
    own = list(range(BATCH))
    torch.testing.assert_close(contrastive_loss(similarity).loss, literal(similarity, own))
    weights = torch.rand(BATCH, generator=lot(7)) + 0.5
    found = contrastive_loss(similarity, BACKWARD, weights=weights).loss
    forward = literal(similarity, own, torch.cat([weights, torch.ones(BATCH)]))
    torch.testing.assert_close(found, (forward + literal(BACKWARD, own, weights)) / 2, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("world", [2, 3])
def test_the_rows_of_each_rank_against_the_columns_of_all(world: int) -> None:
    """Together they are the loss on one rank: nothing but the positives changes."""
    size, weights = BATCH // world, torch.rand(BATCH, generator=lot(8)) + 0.5
    found = []
    for rank in range(world):
        rows = slice(rank * size, (rank + 1) * size)
        own = torch.arange(size) + rank * size
        found.append(contrastive_loss(FORWARD[rows], BACKWARD[rows], positives=own, weights=weights).loss)
    torch.testing.assert_close(torch.cat(found), contrastive_loss(FORWARD, BACKWARD, weights=weights).loss)


def test_columns_filled_with_infinity_take_no_part() -> None:
    same = torch.zeros(BATCH, BATCH, dtype=torch.bool)
    same[0, 3] = same[3, 0] = True  # two samples with one text
    similarity = FORWARD.clone().requires_grad_()
    loss, _ = contrastive_loss(similarity.masked_fill(same, -torch.inf))
    without = torch.arange(BATCH) != 3
    torch.testing.assert_close(loss[0].detach(), literal(FORWARD[:1, without], [0])[0])
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert similarity.grad is not None
    assert bool(similarity.grad.isfinite().all())
    assert bool((similarity.grad[same] == 0).all())


def test_a_column_of_weight_0_only_fills_a_place() -> None:
    weights = torch.ones(BATCH, dtype=torch.float64).index_fill(0, torch.tensor([BATCH - 1]), 0.0)
    loss = contrastive_loss(FORWARD, weights=weights).loss
    torch.testing.assert_close(loss[:-1], contrastive_loss(FORWARD[:-1, :-1]).loss)
    assert bool(loss.isfinite().all())


def test_a_pair_without_negatives_is_unknown() -> None:
    """Its loss is 0 whatever the model knows: it would be the first to be pruned."""
    loss, score = contrastive_loss(FORWARD[:1, :1], BACKWARD[:1, :1])
    assert loss.tolist() == [0.0]
    assert bool(score.isnan().all())
    assert bool(contrastive_loss(FORWARD[:1, :2]).score.isfinite().all())


def test_short_batches_give_no_scores() -> None:
    """The losses in a short batch are smaller; ``in_batch_loss`` holds for a given score, too."""
    x = F.normalize(torch.randn(45, 4, generator=lot(9)))
    train = infobatch.InfoBatch(TensorDataset(x, x), 6, in_batch_loss=True)
    net, lost = nn.Linear(4, 4), []
    for _ in range(4):
        before, short = train.scores, None
        for a, b in infobatch.DataLoader(train, batch_size=10):
            short = train.batch_indices if len(a) < 10 else short
            similarity = net(a) @ b.T
            loss, score = contrastive_loss(similarity, similarity.T)
            train.update(loss, score=score).backward()  # type: ignore[no-untyped-call]
        assert short is not None
        lost.append(torch.equal(train.scores[short].nan_to_num(-1), before[short].nan_to_num(-1)))
    assert lost == [True] * 4
    assert train.history[1].kept < 45


# ---- what pruning leaves unbiased --------------------------------------------------------------------------------

N = 9
QUERIES = torch.randn(N, 4, generator=lot(10))
DOCS = QUERIES + 0.5 * torch.randn(N, 4, generator=lot(11))


def make_net() -> nn.Linear:
    net = nn.Linear(4, 4, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.eye(4))
    return net


SCORES = contrastive_loss(make_net()(QUERIES) @ DOCS.T).score


def test_with_candidates_of_their_own_pruned_queries_are_unbiased() -> None:
    """Exactly: the columns are all documents, whatever the plan drew."""
    net = make_net()

    def losses_of(indices: Tensor, weights: Tensor) -> Tensor:
        del weights
        return contrastive_loss(net(QUERIES[indices]) @ DOCS.T, positives=indices).loss

    full = gradient(net, contrastive_loss(net(QUERIES) @ DOCS.T).loss.mean())
    torch.testing.assert_close(expected_gradient(net, losses_of, SCORES), full, rtol=1e-5, atol=1e-6)


def batches_gradient(net: nn.Module, table: Tensor, losses_of: Any) -> Tensor:
    """The mean gradient over all batches of four that can be drawn from a plan with these weights."""
    batches = [torch.tensor(batch) for batch in combinations(table.nonzero().flatten().tolist(), 4)]
    return torch.stack([gradient(net, (losses_of(i, table[i]) * table[i]).mean()) for i in batches]).mean(0)


def test_with_negatives_of_the_batch_weighted_columns_are_less_biased() -> None:
    """Neither is exact: on each of four small data sets compared with batches of the same size without pruning."""
    net, biases = make_net(), []
    for seed in range(4):
        queries = torch.randn(N, 4, generator=lot(20 + seed))
        docs = queries + 0.5 * torch.randn(N, 4, generator=lot(30 + seed))

        def plain(i: Tensor, _: Tensor, queries: Tensor = queries, docs: Tensor = docs) -> Tensor:
            return contrastive_loss(net(queries[i]) @ docs[i].T).loss

        def weighted(i: Tensor, w: Tensor, queries: Tensor = queries, docs: Tensor = docs) -> Tensor:
            return contrastive_loss(net(queries[i]) @ docs[i].T, weights=w).loss

        full = batches_gradient(net, torch.ones(N), plain)
        tables = [one * float(one.count_nonzero() / N) for one in all_plans(plain(torch.arange(N), full).detach())]
        for losses_of in (plain, weighted):
            found = torch.stack([batches_gradient(net, table, losses_of) for table in tables]).mean(0)
            biases.append(float((found - full).norm() / full.norm()))
    bias, left = torch.tensor(biases).view(4, 2).unbind(1)
    assert bool((bias > 0.1).all())
    assert bool((left < bias).all())
    assert left.mean() < 0.75 * bias.mean()


# ---- both engines, compiled, in half precision ---------------------------------------------------------------------


def test_both_engines() -> None:
    x = torch.randn(60, 4, generator=lot(12))
    train, net = infobatch.InfoBatch(TensorDataset(x, x + 0.1), 6, in_batch_loss=True), nn.Linear(4, 4)

    def losses(small: nn.Module, batch: Any) -> Tensor:
        a, b = batch
        return contrastive_loss(small(a) @ b.T, (small(a) @ b.T).T).loss

    proxy = infobatch.sieve.Proxy(nn.Linear(4, 4), losses=losses)
    sieve = infobatch.Sieve(proxy, infobatch.sieve.hardest(keep=0.5))
    for _ in range(3):
        for a, b in infobatch.DataLoader(train, batch_size=20):
            a, b, _ = sieve(a, b)
            loss, score = sieve.expand(losses(net, (a, b)))
            train.update(loss, score=score).backward()  # type: ignore[no-untyped-call]
    assert bool(train.scores.isfinite().any())
    for batch in infobatch.DataLoader(train, batch_size=20):
        batch, _ = sieve(batch)
        sieve.reduce(losses(net, batch)).backward()  # type: ignore[no-untyped-call]
        train.skip()


def test_compiled_and_eager_agree() -> None:
    def call(similarity: Tensor) -> tuple[Tensor, Tensor]:
        return contrastive_loss(similarity, similarity.T, weights=torch.ones(BATCH), positives=torch.arange(BATCH))

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="eager")
    for mine, other in zip(compiled(FORWARD), call(FORWARD), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    net, x = nn.Linear(4, 4), torch.randn(BATCH, 4, generator=lot(13))
    with torch.autocast("cpu", dtype=dtype):
        similarity = net(x) @ x.T
        assert similarity.dtype == dtype
        loss, score = contrastive_loss(similarity, similarity.T, weights=torch.ones(BATCH))
        loss.mean().backward()
    assert loss.dtype == score.dtype == torch.float32
    outside = contrastive_loss(similarity.detach(), similarity.detach().T).loss
    assert outside.dtype == torch.float32
    torch.testing.assert_close(outside, loss.detach())
    assert net.weight.grad is not None
    assert bool(net.weight.grad.isfinite().all())


@pytest.mark.parametrize(
    ("given", "more", "word"),
    [
        ([FORWARD[0]], {}, "similarities"),
        ([[1.0]], {}, "similarities"),
        ([FORWARD.long()], {}, "floating-point"),
        ([FORWARD[:0]], {}, "not empty"),
        ([FORWARD, FORWARD[:3]], {}, "logits_per_image"),
        ([FORWARD[:, :3]], {}, "positives"),
        ([FORWARD, FORWARD[:, :3]], {}, "positives"),
        ([FORWARD], {"positives": torch.arange(3)}, "own column"),
        ([FORWARD], {"positives": torch.arange(BATCH).float()}, "int64"),
        ([FORWARD], {"positives": torch.arange(BATCH) + 1}, "from 0 to 5"),
        ([FORWARD], {"weights": torch.ones(7)}, "weights_of"),
        ([FORWARD], {"weights": torch.ones(6, 6)}, "weights_of"),
        ([FORWARD], {"weights": [1.0]}, "weights_of"),
    ],
)
def test_wrong_arguments_are_refused(given: list[Any], more: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        contrastive_loss(*given, **more)
