"""Scores in parts, on one process and on ranks played one after the other, against one table."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import infobatch
from infobatch import methods
from infobatch.epoch.scores import ScoreTable
from infobatch.epoch.slice import UNSEEN
from infobatch.methods import METHODS, Method
from infobatch.methods.cuts import Cut, TableStats, rule_of
from infobatch.methods.method import Moment, until
from infobatch.plan import Plan, estimate_noise, full
from infobatch.ranks import shard_plan
from infobatch.ranks import shards as sharding
from infobatch.ranks.exchange import Ranks
from infobatch.ranks.shard_plan import ShardPlan, ShardStats, divide
from infobatch.ranks.shards import ShardedScores

modest = settings(deadline=None, max_examples=80, derandomize=True)
ALONE = Ranks()
NOW = Moment(1, 10)
finite = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=True)
score = st.one_of(finite, st.sampled_from([0.0, -0.0, 1.0, 1e-45, -1e-45]), st.just(math.nan))

BY_CUTS = ["full", "infobatch", "tiers", "author_tiers", "above_mean", "random", "random_star", "saving"]


def data_of(size: int) -> TensorDataset:
    return TensorDataset(torch.arange(size))


def books(scores: Tensor) -> tuple[ScoreTable, ShardedScores]:
    """The same scores in one table and in a part that is the whole."""
    whole, part = ScoreTable(scores.numel()), ShardedScores(scores.numel(), ALONE)
    whole.scores.copy_(scores)
    part.scores.copy_(scores[part.samples()])
    whole.planned = part.planned = scores.numel()
    return whole, part


def skewed(size: int, seed: int = 0) -> Tensor:
    return torch.rand(size, generator=torch.Generator().manual_seed(seed)).pow(3)


def stats_of(part: ShardedScores) -> ShardStats:
    return ShardStats(part.scores, part.size, part.planned, ALONE)


def walked(book: ShardedScores, seed: int = 0, epoch: int = 1) -> Tensor:
    return torch.cat(list(book.shuffled_samples(seed, epoch)))


# ---- thresholds ----------------------------------------------------------------------------------------------


@modest
@given(st.lists(score, min_size=1, max_size=60), st.integers(0, 10**6))
def test_nth_and_mean_are_those_of_one_table(values: list[float], pick: int) -> None:
    whole, in_parts = books(torch.tensor(values))
    dense, part = TableStats(whole), stats_of(in_parts)
    assert part.known == dense.known
    assert part.mean() == pytest.approx(dense.mean(), rel=1e-12, nan_ok=True)
    if dense.known:
        n = pick % dense.known + 1
        assert part.nth(n) == dense.nth(n)


def test_nth_over_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_plan, "BLOCK", 1000)
    scores = torch.randn(10_007, generator=torch.Generator().manual_seed(0)).mul(3).round(decimals=2)
    scores[::7] = math.nan
    known = scores[~torch.isnan(scores)]
    part = stats_of(books(scores)[1])
    for n in (1, 2, 500, known.numel() // 2, known.numel()):
        assert part.nth(n) == known.kthvalue(n).values.item()


# ---- plans ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 101, 5000])
@pytest.mark.parametrize("name", BY_CUTS)
def test_a_plan_keeps_as_many_as_one_table_would(name: str, size: int) -> None:
    scores = skewed(size)
    scores[1::11] = math.nan
    whole, part = books(scores)
    method = METHODS[name]()
    dense = method.draw(whole, NOW, seed=3)
    plan = part.draw(method, NOW, seed=3)
    part.begin(plan, 1.0)
    assert isinstance(plan, ShardPlan)
    assert (plan.size, plan.kept, plan.saved, plan.growth) == (dense.size, dense.kept, dense.saved, dense.growth)
    assert plan.weight_sum == pytest.approx(dense.weight_sum)
    assert plan.effective_size == pytest.approx(dense.effective_size)
    indices = walked(part)
    assert indices.unique().numel() == indices.numel() == plan.kept
    weights = part.look_up(torch.arange(size))
    assert (weights > 0).nonzero().squeeze(1).tolist() == indices.sort().values.tolist()
    assert weights.double().sum().item() == pytest.approx(dense.weight_sum, rel=1e-6)
    for weight in dense.table.unique():  # who may go, and at what weight, does not depend on where the scores lie
        assert (weights == weight).sum() == (dense.table == weight).sum()
    if name != "random_star":
        assert (weights[torch.isnan(scores)] == 1).all()


def test_noise_is_that_of_one_table() -> None:
    scores = skewed(3000)
    whole, part = books(scores)
    method = methods.infobatch()
    theirs = estimate_noise(method.draw(whole, NOW, 0), scores)
    assert part.draw(method, NOW, 0).noise == pytest.approx(theirs, rel=0.02)


def test_a_plan_is_a_function_of_scores_epoch_and_seed() -> None:
    def orders(seed: int, epoch: int) -> list[int]:
        part = books(skewed(500))[1]
        part.begin(part.draw(methods.infobatch(), Moment(epoch, 10), seed), 1.0)
        return walked(part, seed, epoch).tolist()

    assert orders(1, 2) == orders(1, 2)
    assert orders(1, 2) != orders(2, 1)
    assert set(orders(1, 2)) != set(orders(1, 3))


counts = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=6)


@modest
@given(counts, st.sampled_from([0.1, 0.5, 0.9]), st.sampled_from([0.3, 0.75]))
def test_ranks_share_out_what_one_table_keeps(rows: list[tuple[int, ...]], one: float, two: float) -> None:
    sizes = [[sum(row), row[1], row[2]] for row in rows]
    cuts = [Cut(-math.inf, 0.0, one), Cut(0.0, 1.0, two)]
    shares = divide(sizes, cuts)
    kept = [sum(share) for share in shares]
    for column, cut in enumerate(cuts, 1):
        members, keep = [size[column] for size in sizes], [share[column] for share in shares]
        assert all(min(1, m) <= k <= m for m, k in zip(members, keep, strict=True))
        if sum(members):
            least = sum(m > 0 for m in members)
            assert cut.keep(sum(members))[0] <= sum(keep) <= cut.keep(sum(members))[0] + least
    even = sum(kept) / len(kept)
    long, short = ([r for r in range(len(kept)) if sign * (kept[r] - even) >= 1] for sign in (1, -1))
    for column in (1, 2):  # nothing is left to shift from a long rank to a short one
        can_give = any(shares[rank][column] > 1 for rank in long)
        can_take = any(shares[rank][column] < sizes[rank][column] for rank in short)
        assert not (can_give and can_take)


def test_a_fair_mix_is_levelled_altogether() -> None:
    """Nearly even parts, as the places give them, end at one length."""
    sizes = [[1000, 480 + 7 * rank, 210 - 5 * rank] for rank in range(8)]
    kept = [sum(share) for share in divide(sizes, [Cut(-math.inf, 0.0, 0.5), Cut(0.0, 1.0, 0.25)])]
    assert max(kept) - min(kept) <= 1


# ---- training ------------------------------------------------------------------------------------------------


def loader_of(train: infobatch.Pruned, how: str, batch_size: int = 16) -> Any:
    if how == "own":
        return infobatch.DataLoader(train, batch_size)
    workers = {"num_workers": 2, "prefetch_factor": 2} if how == "workers" else {}
    return DataLoader(train, batch_size, sampler=train.sampler, **workers)


@pytest.mark.parametrize("how", ["own", "stock", "workers", "named"])
def test_every_loss_reaches_its_sample(how: str) -> None:
    train = infobatch.InfoBatch(data_of(333), 4, seed=5, compensate="loss", shard_scores=True)
    loader = loader_of(train, how)
    for epoch in range(4):
        assert train.plan().kept == len(train.sampler)
        came, total, whole = [], 0.0, 0
        for (ids,) in loader:
            loss = (ids + 1000.0 * epoch).requires_grad_()
            value = train.update(loss, ids) if how == "named" else train.update(loss)
            value.backward()
            whole = max(whole, len(ids))
            total += loss.grad.sum().item() * (len(ids) if epoch == 0 else whole)
            came += ids.tolist()
        assert len(set(came)) == len(came) == train.history[-1].kept
        assert total == pytest.approx(333, rel=1e-5)
        fresh = dict(zip(train.owned.tolist(), train.scores.tolist(), strict=True))
        assert all(fresh[z] == z + 1000 * epoch for z in came)
    assert [report.kept for report in train.history[:2]] == [333, 250]


def test_the_walk_crosses_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches lie across chunks, and what has had its losses is forgotten."""
    monkeypatch.setattr(sharding, "blocks", partial(sharding.blocks, length=64))
    train = infobatch.InfoBatch(data_of(1000), 2, shard_scores=True)
    longest = 0
    for (ids,) in DataLoader(train, 24, sampler=train.sampler):
        train.update(ids.float())
        queue: Any = train._epoch.last
        longest = max(longest, sum(chunk.numel() for _, chunk in queue.slice._window))
    assert torch.equal(train.scores, train.owned.float())
    assert longest < 300


def test_weights_have_mean_one() -> None:
    train = infobatch.InfoBatch(data_of(200), 3, shard_scores=True)
    for _ in range(2):
        weight = 0.0
        for (ids,) in infobatch.DataLoader(train, 10):
            loss = ids.float().requires_grad_()
            train.update(loss).backward()
            weight += (loss.grad * len(ids)).sum().item()
        assert weight == pytest.approx(train.history[-1].kept, rel=1e-5)
    assert train.history[-1].kept == 150


@pytest.mark.filterwarnings("ignore:epoch 0. 1 of 60 losses were not finite:infobatch.InfoBatchWarning")
def test_skipped_and_not_finite_losses_leave_no_score() -> None:
    train = infobatch.InfoBatch(data_of(60), 3, shard_scores=True)
    skipped: list[int] = []
    for step, (ids,) in enumerate(infobatch.DataLoader(train, 10)):
        if step == 1:
            skipped = ids.tolist()
            train.skip()
            continue
        train.update(torch.where(ids == 7, torch.nan, ids.float()))
    scores = dict(zip(train.owned.tolist(), train.scores.tolist(), strict=True))
    assert {z for z, score in scores.items() if math.isnan(score)} == {*skipped, 7}
    assert train.history[0].not_finite == (7 not in skipped)


# ---- misuse --------------------------------------------------------------------------------------------------


def test_named_samples_that_are_not_of_the_plan() -> None:
    train = infobatch.InfoBatch(data_of(50), 4, shard_scores=True)
    for (ids,) in infobatch.DataLoader(train, 10):
        train.update(ids.float())
    left_out = set(range(50)) - set(walked_by(train))
    with pytest.raises(infobatch.MisalignedError, match="left out"):
        train.update(torch.ones(1), torch.tensor([min(left_out)]))
    with pytest.raises(infobatch.InputError, match="indices from 0 to 49"):
        train.update(torch.ones(1), torch.tensor([50]))
    with pytest.raises(infobatch.InputError, match="indices from 0 to 49"):
        train.update(torch.ones(1), torch.tensor([-1]))


def walked_by(train: infobatch.Pruned) -> list[int]:
    train.plan()
    assert isinstance(train._scores, ShardedScores)
    return walked(train._scores, train.seed, train.epoch).tolist()


def test_an_unseen_index_is_counted_where_values_cannot_be_looked_at() -> None:
    """As on a device: such losses go to the spare cell, and the end of the epoch notices."""
    train = infobatch.InfoBatch(data_of(50), 4, shard_scores=True)
    book = train._scores
    assert isinstance(book, ShardedScores)
    for step, (ids,) in enumerate(DataLoader(train, 10, sampler=train.sampler)):
        if step == 0:
            wrong = torch.cat([ids[1:], torch.tensor([50])])
            book.record(wrong, ids.float())
            book.count_named(wrong)
        else:
            train.update(ids.float(), ids)
    with pytest.raises(infobatch.MisalignedError, match="in the plan"):
        train.plan()


def test_two_updates_for_one_batch() -> None:
    train = infobatch.InfoBatch(data_of(50), 4, shard_scores=True)
    (ids,) = next(iter(DataLoader(train, 10, sampler=train.sampler)))
    train.update(ids.float())
    with pytest.raises(infobatch.MisalignedError):
        train.update(ids.float())


def test_general_policies_are_refused() -> None:
    def everyone(book: Any, moment: Moment, generator: torch.Generator) -> Plan:
        return full(book.size, moment.epoch, generator)

    method = Method("everyone", {"x": 1}, everyone, until(1.0))
    infobatch.Pruned(data_of(5), method, 2)
    with pytest.raises(infobatch.InputError, match=r"shard_scores=True.*everyone\(x=1\)"):
        infobatch.Pruned(data_of(5), method, 2, shard_scores=True)
    with pytest.raises(infobatch.InputError, match="True or False"):
        infobatch.InfoBatch(data_of(5), 2, shard_scores=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", BY_CUTS)
def test_every_method_has_a_rule(name: str) -> None:
    assert rule_of(METHODS[name]().policy) is not None


def test_nobody_holds_the_list() -> None:
    plan = infobatch.InfoBatch(data_of(5), 2, shard_scores=True).plan()
    assert plan.kept == 5
    with pytest.raises(AttributeError, match=r"train_data\.sampler"):
        plan.indices  # noqa: B018
    assert not hasattr(plan, "table")


def test_nine_bytes_a_sample() -> None:
    book = ShardedScores(10**6, Ranks(1, 4))
    held = sum(value.nbytes for value in vars(book).values() if isinstance(value, Tensor))
    assert held <= 9 * book.count + 2048


def test_compiled_without_a_graph_break() -> None:
    train = infobatch.InfoBatch(data_of(40), 2, shard_scores=True)
    step = torch.compile(lambda loss, ids: train.update(loss, ids), backend="eager", fullgraph=True)
    for (ids,) in DataLoader(train, 10, sampler=train.sampler):
        step(ids.float(), ids)
    assert torch.equal(train.scores, train.owned.float())


def test_a_table_checkpoint_of_parts_is_refused() -> None:
    dcp = pytest.importorskip("infobatch.integrations.dcp")
    with pytest.raises(infobatch.InputError, match="one file per rank"):
        dcp.Sharded(infobatch.InfoBatch(data_of(4), 2, shard_scores=True))


# ---- checkpoints ---------------------------------------------------------------------------------------------


def epoch_of(train: infobatch.Pruned, stop: int | None = None) -> list[int]:
    came: list[int] = []
    for step, (ids,) in enumerate(infobatch.DataLoader(train, 10)):
        if step == stop:
            break
        train.update((ids * 7 % 101).float() + train.epoch)
        came += ids.tolist()
    return came


@pytest.mark.parametrize("stop", [1, 4, None])
def test_resumed_as_if_never_stopped(tmp_path: Path, stop: int | None) -> None:
    straight, first, second = (infobatch.InfoBatch(data_of(101), 6, seed=1, shard_scores=True) for _ in range(3))
    for train in (straight, first):
        for _ in range(2):
            epoch_of(train)
    whole = epoch_of(straight)
    begun = epoch_of(first, stop)
    infobatch.save(first.state_dict(), tmp_path / "part.pt")
    second.load_state_dict(infobatch.load(tmp_path / "part.pt"))
    assert second.history == first.history
    if stop is not None:
        assert second.progress == first.progress
        assert begun + epoch_of(second) == whole
    for _ in range(2):
        assert epoch_of(second) == epoch_of(straight)
    assert torch.equal(second.scores, straight.scores)
    assert second.history == straight.history


def parts_of(states: dict[str, Any], world: int) -> list[dict[str, Any]]:
    """One rank's state, cut as ``world`` ranks would have saved it."""
    size = states["size"]
    each, parts = -(-size // world), []
    for rank in range(world):
        here = slice(min(rank * each, size), min((rank + 1) * each, size))
        part = {**states, "scores": states["scores"][here]}
        part["shard"] = {"rank": rank, "world": world, "start": here.start}
        running = states["running"]
        if running is not None:
            tables = {"level": running["level"][here], "fresh": running["fresh"][here]}
            weights = (0.0, *reversed(running["weights"][1:]))  # each rank counts its levels its own way
            flipped = torch.where(tables["level"] > 0, len(weights) - tables["level"].long(), 0).byte()
            part["running"] = {**running, **tables, "level": flipped, "weights": weights}
        parts.append(part)
    return parts


@pytest.mark.parametrize("world", [2, 3, 300])
def test_parts_of_any_number_of_ranks_make_one(world: int) -> None:
    first, second = (infobatch.InfoBatch(data_of(400), 4, seed=1, shard_scores=True) for _ in range(2))
    epoch_of(first)
    epoch_of(first, 5)
    state = first.state_dict()
    second.load_state_dict(parts_of(state, world)[::-1])
    back = second.state_dict()
    torch.testing.assert_close(back["scores"], state["scores"], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(back["running"]["fresh"], state["running"]["fresh"])
    everyone = torch.arange(400)
    assert isinstance(first._scores, ShardedScores)
    assert isinstance(second._scores, ShardedScores)
    assert torch.equal(first._scores.look_up(everyone), second._scores.look_up(everyone))


def test_states_that_do_not_fit() -> None:
    train = infobatch.InfoBatch(data_of(40), 4, shard_scores=True)
    epoch_of(train)
    epoch_of(train, 1)
    state = train.state_dict()
    parts = parts_of(state, 3)
    other = infobatch.InfoBatch(data_of(40), 4, shard_scores=True)
    for bad, why in (
        (parts[:2], "without those from 28 on"),
        (parts[1:], "without those from 0 on"),
        (parts[1], "list of all ranks' states"),
        ([], "empty list"),
        ([*parts[:2], {**parts[2], "epoch": 0}], "shards of one epoch"),
        ([*parts[:2], {**parts[2], "running": None}], "shards of one moment"),
        ({**state, "shard": {"rank": 0, "world": 1, "start": 3}}, "from place 0"),
        ({**state, "running": {**state["running"], "level": state["running"]["level"] + 9}}, "a level for each"),
        ({**state, "shard": {"rank": 0, "world": 0, "start": 0}}, "which shard this is"),
        ({**state, "running": {**state["running"], "kept": 7}}, "numbers of a plan of 40"),
        ({**state, "running": {**state["running"], "noise": None}}, "numbers of a plan of 40"),
        ({**state, "running": {**state["running"], "weights": None}}, "a level for each"),
        (infobatch.InfoBatch(data_of(40), 4).state_dict(), "Leave shard_scores out"),
    ):
        with pytest.raises(infobatch.StateError, match=why):
            other.load_state_dict(bad)  # type: ignore[arg-type]
    assert torch.isnan(other.scores).all()
    for one in (state, parts):
        with pytest.raises(infobatch.StateError, match="Pass shard_scores=True"):
            infobatch.InfoBatch(data_of(40), 4).load_state_dict(one)


def test_ranks_own_every_place_once() -> None:
    for size in (1, 2, 7, 100):
        for world in (1, 2, 3, 8):
            parts = [ShardedScores(size, Ranks(rank, world)) for rank in range(world)]
            owned = torch.cat([part.samples() for part in parts])
            assert owned.sort().values.tolist() == list(range(size))
            for part in parts:
                part.level[:-1] = 1
                part.weights[1] = 3.0
                mine = set(part.samples().tolist())
                part.record(torch.arange(size), torch.arange(size).float())
                got = part.look_up(torch.arange(size))
                assert [z for z in range(size) if got[z] == 3] == sorted(mine)
                assert torch.equal(part.fresh[:-1], part.samples().float())
                part.fresh.fill_(UNSEEN)
                if size > part.count:
                    assert int(part.ghost()) not in mine
