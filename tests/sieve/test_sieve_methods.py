"""Methods: arguments out of their range are refused at once, and each ranks in the direction its card says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from infobatch import InputError, Sieve
from infobatch.sieve import (
    SIEVE_METHODS,
    adaptive,
    band,
    es,
    hardest,
    rho_loss,
    selective_backprop,
    small_loss,
    tokens,
)

SHARES: dict[str, Callable[[Any], Any]] = {
    "tokens": lambda keep: tokens(lambda batch: batch, keep=keep),
    "tuned band": lambda keep: band(0.1, skip=keep),
    "adaptive": lambda keep: adaptive(threshold=keep),
    "sizes": lambda keep: adaptive(sizes=(0.5, keep)),
    "floor of a class": lambda keep: hardest(1.0, class_floor=keep, labels=lambda batch: batch) if keep else hardest(0),
    **{name: make for name, make in SIEVE_METHODS.items() if name not in ("tokens", "adaptive")},
}
LOSSES = torch.tensor([0.5, 3.0, 0.1, 2.0, 0.7, 1.0, 0.2, 4.0])


@pytest.mark.parametrize("keep", [0, 0.0, -0.1, 1.0001, 2, torch.nan, torch.inf, "half", None, True, [0.5]])
@pytest.mark.parametrize("name", SHARES)
def test_a_share_must_be_in_0_to_1(name: str, keep: Any) -> None:
    with pytest.raises(InputError):
        SHARES[name](keep)


@pytest.mark.parametrize("name", [name for name in SHARES if name != "tuned band"])
def test_the_ends_of_the_range(name: str) -> None:
    small, whole = 1e-3, 1
    assert SHARES[name](small)
    assert name == "band" or SHARES[name](whole)


@pytest.mark.parametrize(("keep", "skip"), [(0.5, 0.51), (0.9, 0.2), (1.0, 0.1), (1.0, 1.0)])
def test_a_band_wider_than_the_batch_is_refused(keep: float, skip: float) -> None:
    with pytest.raises(InputError, match=r"keep \+ skip"):
        band(keep, skip=skip)


@pytest.mark.parametrize("percent", range(1, 100))
def test_a_band_as_wide_as_the_batch_is_not(percent: int) -> None:
    assert band(percent / 100, skip=(100 - percent) / 100)


def test_the_band_skips_a_share_of_the_batch() -> None:
    kept, _ = Sieve(lambda batch: batch, band(0.5, skip=0.25))(LOSSES)
    assert sorted(kept.tolist()) == pytest.approx([0.5, 0.7, 1.0, 2.0])


def test_hardest_keeps_the_hardest_and_small_loss_the_easiest() -> None:
    kept, weight = Sieve(lambda batch: batch, hardest(0.5))(LOSSES)
    assert sorted(kept.tolist()) == pytest.approx([1.0, 2.0, 3.0, 4.0])
    assert weight.tolist() == [1.0] * 4
    kept, weight = Sieve(lambda batch: batch, small_loss(0.5, begin=0.0))(LOSSES)
    assert sorted(kept.tolist()) == pytest.approx([0.1, 0.2, 0.5, 0.7])
    assert weight.tolist() == [2.0] * 4  # a mean over the rows passed on


def test_small_loss_begins_when_the_look_can_tell() -> None:
    sieve = Sieve(lambda batch: batch, small_loss(0.5, begin=0.3), num_steps=10)
    assert [len(sieve(LOSSES)[0]) for _ in range(10)] == [8] * 3 + [4] * 7


@pytest.mark.parametrize("method", [rho_loss(0.25), es(0.25), small_loss(0.25, begin=0)], ids=lambda one: one.name)
def test_published_methods_step_by_the_mean_over_the_rows_passed_on(method: Any) -> None:
    sieve = Sieve(lambda batch: batch, method)
    kept, _ = sieve(LOSSES)
    assert float(sieve.reduce(kept)) == pytest.approx(float(kept.mean()))


@pytest.mark.parametrize(
    "make",
    [
        lambda: adaptive(sizes=()),
        lambda: adaptive(sizes=(0.0, 0.5)),
        lambda: adaptive(sizes=0.5),
        lambda: adaptive(every=0),
        lambda: adaptive(every=1),  # then all would pass whole
        lambda: adaptive(every=1.5),
        lambda: selective_backprop(begin=0.5, end=0.5),
        lambda: selective_backprop(begin=0.9, end=0.5),
        lambda: selective_backprop(whole_every=-1),
        lambda: hardest(0.5, class_floor=0.25),
        lambda: hardest(0.25, class_floor=0.5, labels=lambda batch: batch),
        lambda: tokens(0.5),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(InputError):
        make()


@pytest.mark.parametrize(
    "labels",
    [torch.zeros(8), torch.zeros(7).long(), torch.zeros(8, 1).long(), [0] * 8, None],
    ids=["numbers", "too few", "a column", "a list", "nothing"],
)
def test_classes_are_one_integer_per_row(labels: Any) -> None:
    sieve = Sieve(lambda batch: batch, hardest(0.5, class_floor=0.25, labels=lambda batch: labels))
    with pytest.raises(InputError, match="one class per row"):
        sieve(LOSSES)


@pytest.mark.parametrize("method", [hardest, "hardest", None, 0.5, hardest(0.5).rule])
def test_a_method_is_made_by_calling_it(method: Any) -> None:
    if method is not None:
        with pytest.raises(InputError, match="call it"):
            Sieve(lambda batch: batch, method)
    else:
        assert Sieve(lambda batch: batch, method).method.name == "adaptive"


def test_a_method_of_part_of_the_run_needs_its_length() -> None:
    with pytest.raises(InputError, match="num_steps"):
        Sieve(lambda batch: batch, selective_backprop())
