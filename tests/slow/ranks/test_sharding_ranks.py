"""Scores in parts on real ranks: who comes, at what weight, and where training goes on."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import infobatch

STOP = (2, 3)
LARGE = ["plain", "stock", "named", "tiers", "saving", "none"]
SMALL = [f"small-{size}" for size in (2, 4, 7)]
RUNS: list[dict[str, Any]] = [
    {"name": "plain"},
    {"name": "stock", "loader": "stock"},
    {"name": "named", "loader": "named"},
    {"name": "tiers", "method": "tiers"},
    {"name": "saving", "method": "saving", "epochs": 8},
    {"name": "none", "compensate": "none"},
    {"name": "drop", "drop_last": True},
    *({"name": name, "size": int(name[6:]), "batch": 2} for name in SMALL),
    {"name": "differ", "differ": True},
    {"name": "interrupted", "size": 7, "batch": 2, "interrupted": True},
]


@pytest.fixture(scope="module")
def two(launch_sharded: Any) -> dict[str, list[Any]]:
    stop = {"name": "stopped", "save": str(launch_sharded.folder / "state"), "stop": STOP}
    return launch_sharded(2, [*RUNS, stop])


@pytest.fixture(scope="module")
def three(launch_sharded: Any, two: Any) -> dict[str, list[Any]]:
    return launch_sharded(3, [*RUNS, {"name": "resumed", "resume": (str(launch_sharded.folder / "state"), 2)}])


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: Any) -> dict[str, list[Any]]:
    return request.getfixturevalue({2: "two", 3: "three"}[request.param])


def entries(results: list[Any]) -> list[tuple[Any, ...]]:
    return list(zip(*(rank["log"] for rank in results), strict=True))


def steps(entry: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The steps of an epoch, each with what every rank did in it. Fails where ranks make unequally many."""
    return list(zip(*(rank["steps"] for rank in entry), strict=True))


def real(entry: tuple[Any, ...]) -> dict[int, float]:
    """The samples that came with a weight, each once, and it."""
    came = [
        (z, w) for step in steps(entry) for ids, weights, *_ in step for z, w in zip(ids, weights, strict=True) if w
    ]
    assert len(dict(came)) == len(came), "no sample twice"
    return dict(came)


@pytest.mark.parametrize("name", LARGE + SMALL)
def test_every_sample_of_the_plan_once_and_weights_sum_to_n(ranks: dict[str, list[Any]], name: str) -> None:
    for entry in entries(ranks[name]):
        came = real(entry)
        assert len({(rank["kept"], rank["length"], rank["weight_sum"]) for rank in entry}) == 1
        assert len(came) == entry[0]["kept"]
        size = int(name[6:]) if name in SMALL else 203
        assert entry[0]["weight_sum"] == pytest.approx(size)
        assert sum(came.values()) == pytest.approx(len(came) if name == "none" else size, rel=1e-6)
        shapes = [[len(ids) for ids, *_ in step] for step in steps(entry)]
        assert all(len(set(lengths)) == 1 for lengths in shapes), "batches of one length on all ranks"
        assert len(shapes) == entry[0]["length"]
        if name in LARGE:
            delivered = sum(map(sum, shapes))
            fillers = len(entry) * (shapes[-1][0] == 2)  # where the last batch would be a single sample
            assert delivered - len(came) < len(entry) + fillers, "levelled: less than one ghost per rank"


@pytest.mark.parametrize("name", ["plain", "tiers", *SMALL])
def test_the_mean_over_ranks_is_the_mean_over_samples(ranks: dict[str, list[Any]], name: str) -> None:
    """In a pruned epoch of several batches over the samples of a whole one, so that each counts alike."""
    size = int(name[6:]) if name in SMALL else 203
    for entry in entries(ranks[name]):
        whole = max(sum(len(ids) for ids, *_ in step) for step in steps(entry))
        alike = entry[0]["kept"] < size and len(steps(entry)) > 1
        for step in steps(entry):
            ids, weights = (torch.tensor([rank[part] for rank in step]).flatten() for part in (0, 1))
            loss = ((ids * 37 + 11 * entry[0]["epoch"]) % 101).float().pow(2) / 100
            values = torch.tensor([rank[2] for rank in step])
            expected = (loss * weights).sum() / (whole if alike else (weights > 0).sum())
            torch.testing.assert_close(values.mean(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [*LARGE, "drop", *SMALL])
def test_losses_reach_the_samples_of_their_rank(ranks: dict[str, list[Any]], name: str) -> None:
    known: dict[int, float] = {}
    for entry in entries(ranks[name]):
        epoch = entry[0]["epoch"]
        known |= {z: ((z * 37 + 11 * epoch) % 101) ** 2 / 100 for z in real(entry)}
        owned = torch.cat([rank["owned"] for rank in entry])
        scores = torch.cat([rank["scores"] for rank in entry])
        assert owned.sort().values.tolist() == list(range(len(owned)))
        expected = torch.tensor([known.get(z, torch.nan) for z in owned.tolist()])
        torch.testing.assert_close(scores, expected, equal_nan=True)


@pytest.mark.parametrize("name", LARGE)
def test_ranks_agree_on_counts_history_and_progress(ranks: dict[str, list[Any]], name: str) -> None:
    first = ranks[name][0]
    for rank in ranks[name]:
        assert rank["history"] == first["history"]
    for entry in entries(ranks[name]):
        for step in steps(entry):
            assert len({rank[3] for rank in step}) == 1, "or their learning rates would part"


@pytest.mark.parametrize("name", ["plain", "tiers", "saving"])
def test_as_many_are_kept_as_one_process_keeps(ranks: dict[str, list[Any]], name: str) -> None:
    """While scores are the same, which they are for the first pruned epoch."""
    method = infobatch.methods.METHODS["infobatch" if name == "plain" else name]()
    train = infobatch.Pruned(TensorDataset(torch.arange(203)), method, len(ranks[name][0]["log"]), seed=3)
    for (ids,) in infobatch.DataLoader(train, 50):
        train.update(((ids * 37) % 101).float().pow(2) / 100)
    assert entries(ranks[name])[1][0]["kept"] == train.plan().kept


def test_an_update_that_was_cut_off_counts_once(ranks: dict[str, list[Any]]) -> None:
    """With seven samples some ranks have a ghost: it, too, may come but once."""
    for rank, undisturbed in zip(ranks["interrupted"], ranks["small-7"], strict=True):
        assert rank["history"] == undisturbed["history"]
        assert [entry["steps"] for entry in rank["log"]] == [entry["steps"] for entry in undisturbed["log"]]
        assert [entry["scores"].tolist() for entry in rank["log"]] == [
            entry["scores"].tolist() for entry in undisturbed["log"]
        ]


def test_different_settings_are_named(ranks: dict[str, list[Any]]) -> None:
    for rank in ranks["differ"]:
        assert "RankError" in rank["error"]
        assert "ratio=0.25" in rank["error"]


def test_saved_on_two_resumed_on_three_and_one(launch_sharded: Any, two: Any, three: Any) -> None:
    whole = entries(two["plain"])[STOP[0]]
    before = entries(two["stopped"])[STOP[0]]
    done, plan = real(before), real(whole)
    assert 0 < len(done) < len(plan)
    resumed = entries(three["resumed"])
    assert [entry[0]["epoch"] for entry in resumed] == list(range(STOP[0], 5))
    rest = real(resumed[0])
    assert {**done, **rest} == plan
    assert not set(done) & set(rest)
    assert sum(real(resumed[1]).values()) == pytest.approx(203, rel=1e-6)

    parts = [infobatch.load(launch_sharded.folder / f"state.{rank}") for rank in range(2)]
    data, method = TensorDataset(torch.arange(203)), infobatch.methods.infobatch()
    train = infobatch.Pruned(data, method, 5, compensate="loss", shard_scores=True)
    train.load_state_dict(parts)
    came = {}
    for (ids,) in infobatch.DataLoader(train, 16):
        loss = (((ids * 37 + 11 * STOP[0]) % 101).float().pow(2) / 100).requires_grad_()
        train.update(loss).backward()
        assert loss.grad is not None
        came |= dict(zip(ids.tolist(), (loss.grad * 16).tolist(), strict=True))
    assert set(came) == set(rest)
    assert came == pytest.approx(rest, rel=1e-5)
    scores = dict(zip(train.owned.tolist(), train.scores.tolist(), strict=True))
    for rank in whole:
        assert [scores[z] for z in rank["owned"].tolist()] == rank["scores"].tolist()


def test_progress_goes_on_where_it_was(two: Any, three: Any) -> None:
    """In samples a rank, rounded: what a scheduler follows neither jumps back nor ahead."""
    stopped = entries(two["stopped"])[STOP[0]][0]["steps"][-1][3]
    after = entries(three["resumed"])[0][0]["steps"]
    shares = [done / total for _, done, total in (stopped, *(step[3] for step in after[:-1]))]
    assert all(a < b for a, b in itertools.pairwise(shares))
    assert shares[1] - shares[0] < 0.2
