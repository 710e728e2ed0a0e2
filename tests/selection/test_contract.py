"""What every registered selector promises, whatever its rule."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import slow_after
from torch import Tensor
from torch.utils.data import DataLoader, Subset, TensorDataset

from infobatch.errors import InputError
from infobatch.selection import SELECTORS, Evidence, Selection, Selector

every_selector = pytest.mark.parametrize("choose", SELECTORS.values(), ids=SELECTORS)

SIZES = [30, 20, 8, 2]
LABELS = torch.cat([torch.full((size,), label) for label, size in enumerate(SIZES)])
N, K, D = 60, 4, 6


def evidence_of(labels: Tensor, features: Tensor, classes: int = K, seed: int = 1, **known: Any) -> Evidence:
    """All that selectors may ask for, of samples that share what their features share."""
    lot = torch.Generator().manual_seed(seed)
    head = torch.randn(classes, features.shape[1], generator=lot, dtype=features.dtype)
    logits = features @ head.T
    rows = torch.stack([features[:, 0], features[:, -1], features.sum(1)])  # same features, same history
    facts = {
        "logits": logits,
        "head": head,
        "correct": torch.cat([rows > 0, rows < 0.5]),
        "aum": rows[2],
        "error_norms": rows.abs(),
        "grad_norms": rows.abs() * 2,
    }
    held_out = Evidence(
        len(labels), labels=labels, features=features, **{key: facts[key] for key in ("logits", "head")}
    )
    return Evidence(len(labels), labels=labels, features=features, validation=held_out, **(facts | known))


def points(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def usual() -> Evidence:
    order = torch.randperm(N, generator=torch.Generator().manual_seed(3))
    return evidence_of(LABELS[order], points(N))


def alike(count: int, classes: int = K) -> Evidence:
    """Samples that nothing tells apart."""
    return evidence_of(torch.zeros(count, dtype=torch.int64), torch.ones(count, D), classes)


def check(chosen: Selection, choose: Selector, size: int, share: float) -> None:
    assert isinstance(chosen, Selection)
    assert len(chosen) == max(1, round(share * size))
    assert chosen.indices.dtype == torch.int64
    assert list(chosen) == sorted(set(chosen))
    assert 0 <= chosen[0] <= chosen[-1] < size == chosen.size
    assert chosen.weights.dtype == torch.float32
    assert chosen.weights.shape == chosen.indices.shape
    if choose.weights == "1":
        assert bool((chosen.weights == 1).all())
    elif "mean 1" in choose.weights:
        assert chosen.weights.mean().item() == pytest.approx(1, abs=1e-4)
    assert chosen.method == choose.name
    assert chosen.scores is None or chosen.scores.shape == (size,)


@every_selector
@pytest.mark.parametrize("share", slow_after(3, [0.001, 0.33, 1.0, 0.1, 0.5, 0.975, 1]))
@pytest.mark.parametrize("dtype", slow_after(1, [torch.float32, torch.float64]))
def test_keeps_exactly_the_share(choose: Selector, share: float, dtype: torch.dtype) -> None:
    order = torch.randperm(N, generator=torch.Generator().manual_seed(3))
    chosen = choose(evidence_of(LABELS[order], points(N).to(dtype)), share)
    check(chosen, choose, N, share)
    assert chosen.settings.items() >= {"share": share, "balanced": False, "seed": 0}.items()


@every_selector
def test_same_seed_same_choice_and_nothing_else_touched(choose: Selector) -> None:
    evidence = usual()
    before = {name: table.clone() for name, table in evidence.tables().items()}
    state = torch.get_rng_state()
    first = choose(evidence, 0.4, seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)  # a global state of which nothing is read
    for five in (5, torch.tensor(5)):  # whole numbers of any library, kept as a plain one
        again = choose(evidence, 0.4, seed=five)
        assert (again, type(again.settings["seed"])) == (first, int)
    torch.set_rng_state(state)
    assert all(torch.equal(table, before[name]) for name, table in evidence.tables().items())


@every_selector
@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("classes", slow_after(1, [K, 1]))
def test_ties_are_broken_by_seed_not_by_position(choose: Selector, balanced: bool, classes: int) -> None:
    """One class, constant features: each of the samples is kept under some seed, and left out under another."""
    evidence = alike(12, classes)
    kept = torch.zeros(12)
    for seed in range(25):
        chosen = choose(evidence, 0.5, seed=seed, balanced=balanced)
        check(chosen, choose, 12, 0.5)
        kept[chosen.indices] += 1
    assert kept.min() > 0
    assert kept.max() < 25


@every_selector
def test_position_does_not_matter(choose: Selector) -> None:
    """Where the seed has no say, the same samples are chosen in whatever order they lie."""
    evidence = usual()
    picks = [choose(evidence, 0.3, seed=seed) for seed in range(3)]
    if any(pick != picks[0] for pick in picks):
        pytest.skip("draws lots without ties")
    order = torch.randperm(N, generator=torch.Generator().manual_seed(8))
    moved: dict[str, Any] = {
        name: table if name == "head" else table[..., order] if table.shape[-1] == N else table[order]
        for name, table in evidence.tables().items()
    }
    shuffled = choose(Evidence(N, validation=evidence.validation, **moved), 0.3)
    assert sorted(order[shuffled.indices].tolist()) == list(picks[0])


@every_selector
@pytest.mark.parametrize(("share", "quota"), [(0.5, [10, 10, 8, 2]), (0.2, [3, 3, 4, 2]), (1.0, SIZES)])
def test_balanced_asks_as_many_of_each_class(choose: Selector, share: float, quota: list[int]) -> None:
    evidence = usual()
    assert evidence.labels is not None
    chosen = choose(evidence, share, balanced=True)
    check(chosen, choose, N, share)
    kept = [some for some, _ in chosen.kept_by_class(evidence.labels).values()]
    assert kept[3] == quota[3]
    assert sorted(kept) == sorted(quota)  # who gives one more where it does not divide is the seed's to say
    assert chosen.settings["balanced"] is True


@every_selector
def test_balanced_needs_one_a_class(choose: Selector) -> None:
    with pytest.raises(InputError, match="per class"):
        choose(usual(), 0.05, balanced=True)


@every_selector
@pytest.mark.parametrize("share", slow_after(2, [0, float("nan"), -0.1, 1.01, float("inf"), "0.3", True, None]))
def test_bad_shares_are_refused(choose: Selector, share: Any) -> None:
    with pytest.raises(InputError, match="share above 0"):
        choose(usual(), share)


@every_selector
@pytest.mark.parametrize("bad", slow_after(1, [{"seed": -1}, {"seed": 0.5}, {"balanced": 1}]))
def test_bad_settings_are_refused(choose: Selector, bad: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="expected"):
        choose(usual(), 0.5, **bad)


@every_selector
def test_needs_what_its_card_says(choose: Selector) -> None:
    """That much evidence is enough, and each part of it missing is named."""
    evidence = usual()
    needed = {name: getattr(evidence, name) for name in choose.needs}
    check(choose(Evidence(N, **needed), 0.4), choose, N, 0.4)
    assert choose(Evidence(N, **needed), 0.4) == choose(evidence, 0.4)
    for name in choose.needs:
        with pytest.raises(InputError, match="held-out" if name == "validation" else name):
            choose(Evidence(N, **{key: value for key, value in needed.items() if key != name}), 0.4)
    assert choose.source
    assert choose.cost
    assert choose.rule.endswith(".")


@every_selector
def test_travels_between_processes(choose: Selector) -> None:
    evidence = usual()
    chosen = pickle.loads(pickle.dumps(choose))(evidence, 0.3)
    again = pickle.loads(pickle.dumps(chosen))
    assert again == chosen == choose(evidence, 0.3)
    assert again.settings == chosen.settings


@every_selector
def test_saves_and_loads(choose: Selector, tmp_path: Path) -> None:
    chosen = choose(usual(), 0.3, seed=2)
    chosen.save(tmp_path / "chosen.pt")
    again = Selection.load(tmp_path / "chosen.pt")
    assert again == chosen
    assert (again.method, again.settings) == (chosen.method, chosen.settings)
    assert (again.scores is None) == (chosen.scores is None)
    assert again.scores is None or torch.equal(again.scores, chosen.scores)
    assert Selection.read(tmp_path / "chosen.pt", N).indices.equal(chosen.indices)


@every_selector
def test_torch_takes_it_for_a_subset(choose: Selector) -> None:
    chosen = choose(usual(), 0.3)
    data = Subset(TensorDataset(torch.arange(N)), chosen)
    seen = torch.cat([batch for (batch,) in DataLoader(data, batch_size=7)])
    assert torch.equal(seen, chosen.indices)


@every_selector
@pytest.mark.parametrize("share", slow_after(1, [0.5, 0.25, 0.9]))
@pytest.mark.parametrize("balanced", slow_after(1, [True, False]))
def test_duplicates(choose: Selector, share: float, balanced: bool) -> None:
    labels, features = torch.arange(20) % K, points(20)
    chosen = choose(evidence_of(labels.repeat(2), features.repeat(2, 1)), share, balanced=balanced)
    check(chosen, choose, 40, share)


@every_selector
@pytest.mark.parametrize("balanced", slow_after(1, [True, False]))
def test_one_class(choose: Selector, balanced: bool) -> None:
    chosen = choose(evidence_of(torch.full((20,), 2), points(20)), 0.3, balanced=balanced)
    check(chosen, choose, 20, 0.3)


@every_selector
@pytest.mark.parametrize("value", slow_after(2, [0.0, -1e4, 1.0, 1e4]))
def test_constant_features(choose: Selector, value: float) -> None:
    """With labels that differ: nothing to tell apart but those."""
    chosen = choose(evidence_of(torch.arange(20) % K, torch.full((20, D), value)), 0.3, balanced=True)
    check(chosen, choose, 20, 0.3)


@every_selector
def test_saturated_predictions(choose: Selector) -> None:
    """Probabilities of exactly 0 and 1: no log(0), no division by it."""
    check(choose(evidence_of(LABELS, points(N) * 1e4), 0.3), choose, N, 0.3)


@every_selector
def test_one_sample(choose: Selector) -> None:
    assert list(choose(alike(1), 0.5)) == [0]


@every_selector
@pytest.mark.gpu
def test_same_choice_on_a_gpu(choose: Selector) -> None:
    evidence = usual()
    for balanced in (False, True):
        there = choose(evidence.to("cuda"), 0.3, balanced=balanced)
        assert torch.equal(there.indices, choose(evidence, 0.3, balanced=balanced).indices)
