"""The estimate against a real pruned run on losses that no training moves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import Dataset

import infobatch
from infobatch.errors import InputError
from infobatch.lab.estimate.savings import Estimate, estimate, untried_methods
from infobatch.methods import METHODS

pytestmark = pytest.mark.filterwarnings("ignore::infobatch.InfoBatchWarning")
nan = math.nan


class Positions(Dataset[int]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


def trained(losses: Tensor, method: infobatch.methods.Method, num_epochs: int, seed: int = 0) -> infobatch.Pruned:
    """A real pruned run in which sample i of epoch t has the loss that the table says."""
    data = infobatch.Pruned(Positions(losses.shape[1]), method, num_epochs, seed=seed)
    loader = infobatch.DataLoader(data, batch_size=32)
    for epoch in range(num_epochs):
        for indices in loader:
            data.update(losses[min(epoch, len(losses) - 1)][indices])
    return data


def table(epochs: int, samples: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(epochs, samples, generator=generator).square() / torch.arange(1, epochs + 1)[:, None]


# ---- against the real thing ------------------------------------------------------------------------------------


WANT_MORE = ("dynamic_uncertainty", "kakurenbo", "ies", "rcap", "bls", "repb")
FROM_LOSSES = [name for name in METHODS if name not in WANT_MORE]


@pytest.mark.parametrize("name", ["infobatch:class_floor=0.5", "bls:inner=infobatch", "rcap:ratio=0.5"])
def test_settings_that_need_more_than_losses_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="only losses"):
        estimate(table(4, 40), [name])


def test_a_method_with_labels_of_its_own_is_replayed() -> None:
    labels = torch.arange(300) % 3
    floor = infobatch.variations.class_floor(infobatch.methods.infobatch(ratio=0.9), labels, 0.5)
    losses = table(8, 300)
    for method in (floor, infobatch.methods.rcap(labels)):
        (found,) = estimate(losses, [method])
        assert found.kept == tuple(report.kept for report in trained(losses, method, 8).history)
        with pytest.raises(InputError, match="only losses"):
            estimate(losses[:, 1:], [method])


@pytest.mark.parametrize("name", WANT_MORE)
def test_methods_that_need_more_than_losses_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="only losses"):
        estimate(table(10, 30), [name])


@pytest.mark.parametrize("name", FROM_LOSSES)
def test_the_replay_is_the_run(name: str) -> None:
    losses, method = table(10, 300), METHODS[name]()
    real, (replayed,) = trained(losses, method, 10), estimate(losses, [name])
    assert replayed.method == repr(method)
    assert replayed.kept == tuple(report.kept for report in real.history)
    assert replayed.saved == pytest.approx(real.history[-1].saved_so_far, abs=1e-12)
    assert replayed.noise == max((report.noise for report in real.history if report.saved), default=1)
    assert replayed.effective_size == pytest.approx(sum(report.effective_size for report in real.history) / 10)
    assert replayed.spread == 0


def test_a_sample_left_out_keeps_its_score() -> None:
    """Losses that jump between epochs: who was last seen when decides everything."""
    losses = torch.rand(12, 200, generator=torch.Generator().manual_seed(1))
    for name in ("infobatch", "tiers", "saving:share=0.5"):
        (replayed,) = estimate(losses, [name])
        real = trained(losses, infobatch.lab.train.method_text.parse_method(name), 12)
        assert replayed.kept == tuple(report.kept for report in real.history)


def test_seeds_are_those_of_runs() -> None:
    losses, method = torch.rand(8, 120), infobatch.methods.infobatch()
    shares = [trained(losses, method, 8, seed).history[-1].saved_so_far for seed in range(3)]
    (replayed,) = estimate(losses, [method], seeds=3)
    assert replayed.saved == pytest.approx(float(np.mean(shares)))
    assert replayed.spread == pytest.approx(float(np.std(shares, ddof=1)))


def test_losses_that_are_not_there_are_kept_out_of_the_scores() -> None:
    losses = table(9, 150)
    losses[::2, :40] = nan
    losses[3, 60] = math.inf
    method = infobatch.methods.infobatch()
    real, (replayed,) = trained(losses, method, 9), estimate(losses, [method])
    assert replayed.kept == tuple(report.kept for report in real.history)
    missing = 5 * 40 + 1
    assert any(f"{missing} losses" in text for text in replayed.unknown)


def test_epochs_beyond_the_log_repeat_its_last() -> None:
    losses = table(4, 150)
    (replayed,) = estimate(losses, ["infobatch"], num_epochs=16)
    real = trained(losses, infobatch.methods.infobatch(), 16)
    assert replayed.kept == tuple(report.kept for report in real.history)
    assert any("Epochs 4 to 15" in text for text in replayed.unknown)


@pytest.mark.parametrize(("epochs", "samples"), [(100, 6), (6, 6), (6, 100)])
def test_a_log_that_may_lie_the_other_way_round_says_how_it_is_read(epochs: int, samples: int) -> None:
    (one,) = estimate(torch.rand(epochs, samples), ["infobatch"])
    said = [text for text in one.unknown if "transpose" in text]
    assert len(said) == (epochs > samples)
    assert all("more epochs (100) than samples (6)" in text for text in said)


# ---- laws ------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.integers(1, 60), st.integers(0, 9), st.sampled_from([0.0, 0.3, 1.0]))
def test_laws(epochs: int, samples: int, seed: int, missing: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    losses = torch.rand(epochs, samples, generator=generator)
    losses[torch.rand(epochs, samples, generator=generator) < missing] = nan
    losses[0, 0] = 1.0
    before = losses.clone()
    for one in estimate(losses):
        assert len(one.kept) == epochs
        assert all(0 <= kept <= samples for kept in one.kept)
        assert one.saved == pytest.approx(1 - sum(one.kept) / (epochs * samples))
        assert 0 <= one.effective_size <= samples + 1e-6
        assert one.largest_weight >= 1
        if not one.method.startswith(("random_star", "rs2", "order_dp")):  # they draw before they look
            assert one.kept[0] == samples, "nothing is known before the first epoch"
        if one.method == "full()":
            assert one.saved == 0
    assert torch.equal(losses.nan_to_num(-1), before.nan_to_num(-1))


def test_the_largest_weight_is_the_one_the_rule_gives() -> None:
    losses = torch.rand(10, 1000)
    found = {one.method.split("(")[0]: one for one in estimate(losses, ["infobatch", "author_tiers", "random_star"])}
    assert found["infobatch"].largest_weight == pytest.approx(2, rel=0.02)
    assert found["author_tiers"].largest_weight == pytest.approx(4, rel=0.02)
    assert found["random_star"].largest_weight == 1


def test_only_methods_that_can_keep_their_promise_are_tried() -> None:
    assert not any(one.method.startswith("saving") for one in estimate(torch.rand(1, 9)))
    assert any(one.method.startswith("saving") for one in estimate(torch.rand(20, 9)))
    with pytest.raises(InputError, match="saving of at most"):
        estimate(torch.rand(1, 9), ["saving"])


@pytest.mark.parametrize("epochs", [1, 20])
def test_methods_that_are_not_tried_are_told_with_the_reason(epochs: int) -> None:
    tried = {one.method.partition("(")[0] for one in estimate(torch.rand(epochs, 9))}
    told = untried_methods(epochs)
    assert tried.isdisjoint(told)
    assert tried | told.keys() == set(METHODS)
    assert {told[name] for name in WANT_MORE if name not in ("bls", "repb")} == {"needs more than losses"}
    for name in ("bls", "repb"):
        assert "how samples were batched" in told[name]
    assert {name: why for name, why in told.items() if name not in WANT_MORE} == (
        {"saving": "the run is too short"} if epochs == 1 else {}
    )


def test_it_says_what_it_cannot_know() -> None:
    (one,) = estimate(torch.rand(8, 20), ["infobatch"])
    assert isinstance(one, Estimate)
    assert "would differ" in one.unknown[0]
    assert len(one.unknown) == 2


# ---- bad input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda: estimate(torch.rand(3)),
        lambda: estimate(torch.ones(3, 4, dtype=torch.int64)),
        lambda: estimate(torch.rand(3, 4), num_epochs=2),
        lambda: estimate(torch.rand(3, 4), seeds=0),
        lambda: estimate(torch.full((3, 4), nan)),
    ],
)
def test_bad_input(call: Any) -> None:
    with pytest.raises(InputError, match="expected"):
        call()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"num_epochs": 2}, "expected a whole number of epochs from 3 on; got 2."),
        ({"num_epochs": True}, "expected a whole number of epochs from 3 on; got True"),
        ({"seeds": 0}, "expected a whole number of seeds from 1 on; got 0"),
    ],
)
def test_numbers_are_told_in_words_that_any_caller_knows(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=f"^{said}"):
        estimate(torch.rand(3, 4), **given)


def test_an_unknown_method_suggests_a_near_one() -> None:
    with pytest.raises(InputError, match="Did you mean infobatch"):
        estimate(torch.rand(3, 4), ["infobach"])


def test_a_selection_is_no_method_here() -> None:
    """What chooses before training has no losses to choose by."""
    with pytest.raises(infobatch.InputError, match="before training"):
        estimate(torch.rand(3, 5), ["static.el2n"])
