"""Methods and variations refuse what they cannot work with, where it is first visible."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import infobatch
from infobatch import methods, selection, variations
from infobatch.methods.arguments import check_labels


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: methods.rising(power=-1), "power"),
        (lambda: methods.rising(floor=0), "floor"),
        (lambda: methods.ucb(1.0), "ratio"),
        (lambda: methods.seta(share=1.5), "share"),
        (lambda: methods.seta(groups=0), "groups"),
        (lambda: methods.ies(0), "bound"),
        (lambda: methods.order_dp(0, 0.5), "some"),
        (lambda: methods.rcap(torch.rand(4)), "labels"),
        (lambda: methods.rcap(torch.tensor([0, -1])), "labels of at least 0"),
        (lambda: methods.dynamic_uncertainty(window=1), "window"),
        (lambda: variations.unbiased(methods.seta(), 0), "floor"),
        (lambda: variations.class_floor(methods.full(), torch.arange(3), 1.5), "floor"),
        (lambda: variations.noise_guard(methods.full(), patience=0), "patience"),
        (lambda: variations.annealed(methods.full(), 2), "delta"),
        (lambda: variations.annealed(methods.full(), "late"), "delta"),
        (lambda: variations.annealed(methods.full(), True), "delta"),
        (lambda: variations.noise_guard(variations.noise_guard(methods.full())), "one noise guard"),
        (lambda: variations.unbiased(methods.seta), "call it"),
        (lambda: variations.plain(3), "a method"),
        (lambda: methods.bls(0.5), "a method"),
        (lambda: methods.rising(0.8), "floor of at most"),
        (lambda: methods.ucb(c="x"), "c as a number"),
        (lambda: methods.ucb(c=math.nan), "c as a number"),
        (lambda: methods.ies(math.inf), "bound"),
        (lambda: methods.ies(10**400), "bound"),
        (lambda: methods.ucb(c=10**400), "c as a number"),
        (lambda: methods.kakurenbo(steps=(2.0, 1.0), at=(0.5,)), "steps"),
        (lambda: methods.kakurenbo(steps=1.0), "steps as a tuple"),
        (lambda: methods.kakurenbo(at=(0.6, 0.3, 0.8)), "ascending order"),
        (lambda: methods.rcap(["cat", "dog"]), "labels as integers"),
        (lambda: methods.rcap(None), "labels as integers"),
        (lambda: methods.rcap([0, 1], temperature=math.inf), "temperature"),
        (lambda: variations.class_floor(methods.rcap([0, 1, 0]), [0, 1]), "3 labels"),
    ],
)
def test_bad_settings_are_refused(make: object, complaint: str) -> None:
    with pytest.raises(infobatch.InputError, match=complaint):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    "make",
    [
        lambda two: methods.infobatch(warmup=two),
        lambda two: methods.saving(0.2, warmup=two),
        lambda two: methods.ucb(every=two),
        lambda two: methods.epsilon_greedy(every=two),
        lambda two: methods.seta(groups=two),
        lambda two: methods.dynamic_uncertainty(window=two),
        lambda two: variations.noise_guard(methods.full(), patience=two),
    ],
)
def test_whole_numbers_of_any_library_are_counts_and_kept_as_plain_ones(make: Callable[[Any], Any]) -> None:
    numpy = pytest.importorskip("numpy")
    plain = make(2)
    for two in (numpy.int64(2), numpy.uint8(2), torch.tensor(2)):
        assert repr(make(two)) == repr(plain)  # by which a checkpoint knows the method
        assert pickle.dumps(make(two)) == pickle.dumps(plain)
    for none in (numpy.float64(2), numpy.bool_(True), torch.tensor(True), torch.tensor(2.0), torch.tensor([2, 2])):
        with pytest.raises(infobatch.InputError):
            make(none)


@pytest.mark.parametrize("kind", ["uint8", "uint16", "int32", "uint64"])
def test_labels_come_in_many_kinds(kind: str) -> None:
    numpy = pytest.importorskip("numpy")
    labels = torch.tensor([3, 0, 3, 7])
    for given_as in (labels.tolist(), labels.numpy().astype(kind), labels.to(getattr(torch, kind))):
        assert check_labels(given_as).tolist() == [1, 0, 1, 2]
    assert check_labels(numpy.array([2**40, 0])).tolist() == [1, 0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: methods.rcap(torch.arange(7) % 2),
        lambda: variations.class_floor(methods.random(), torch.arange(7) % 2),
        lambda: methods.static(selection.Selection(torch.tensor([0, 2]), size=7)),
    ],
)
def test_what_belongs_to_other_samples_is_refused_at_once(make: Callable[[], methods.Method]) -> None:
    with pytest.raises(infobatch.InputError, match="for 10 samples"):
        infobatch.Pruned(list(range(10)), make(), 5)


def test_a_run_goes_on_with_its_own_selection_alone() -> None:
    """As many samples by a method of the same name are not the same choice."""
    one, other = (selection.Selection(torch.tensor(chosen), size=7, method="el2n") for chosen in ([0, 2], [0, 3]))
    heavy = selection.Selection(torch.tensor([0, 2]), 7, torch.tensor([0.5, 1.5]), "el2n")
    data = torch.utils.data.TensorDataset(torch.arange(7))
    state = infobatch.Pruned(data, one, 5).state_dict()
    infobatch.Pruned(data, one, 5).load_state_dict(state)
    for another in (other, heavy):
        with pytest.raises(infobatch.StateError, match="mark"):
            infobatch.Pruned(data, another, 5).load_state_dict(state)


def test_a_share_is_the_same_in_whatever_way_it_is_written() -> None:
    """Or a run could not go on from its own checkpoint."""
    for delta in (np.float64(0.875), 0.875):
        assert methods.seta(delta=delta).terms == methods.seta().terms
    assert methods.seta(delta=1).terms == methods.seta(delta=1.0).terms
