from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from infobatch.methods.method import Moment, after, all_of, until

modest = settings(deadline=None, max_examples=100, derandomize=True)

DECIMALS = [f"0.{digits:03d}" for digits in range(1, 1000, 7)] + [
    "0.28",
    "0.07",
    "0.57",
    "0.875",
    "0.1",
    "1.0",
    "0.0",
]


def test_prune_iff_t_below_delta_times_c_as_real_numbers() -> None:
    """Only the epochs around the edge can go wrong, so these are tried for every C up to 200."""
    for decimal in DECIMALS:
        prunes, delta = until(float(decimal)), Fraction(decimal)
        for C in range(1, 201):
            edge = int(delta * C)
            for t in range(max(0, edge - 1), min(C, edge + 2)):
                assert prunes(Moment(t, C)) == (t < delta * C), (decimal, C, t)


def test_floating_point_would_get_the_edge_wrong() -> None:
    """0.28 * 25 is 7.000000000000001 in floating point, one epoch of pruning too many; 0.57 * 100 goes both ways."""
    assert 0.28 * 25 > 7
    assert not until(0.28)(Moment(7, 25))
    assert until(0.28)(Moment(6, 25))


@modest
@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(0, 10**5))
def test_any_decimal_and_any_c(C: int, t: int, hundred_thousandths: int) -> None:
    decimal = Decimal(hundred_thousandths) / 100_000
    assert until(float(decimal))(Moment(t, C)) == (t < Fraction(decimal) * C)


@modest
@given(st.floats(0, 1), st.integers(1, 1000))
def test_pruning_epochs_come_first_and_annealing_last(delta: float, C: int) -> None:
    said = [until(delta)(Moment(t, C)) for t in range(C)]
    assert said == sorted(said, reverse=True)


def test_ends_of_the_range() -> None:
    assert not any(until(0)(Moment(t, 10)) for t in range(10))
    assert all(until(1)(Moment(t, 10)) for t in range(10))
    assert not until(1)(Moment(10, 10))


def test_after_counts_epochs() -> None:
    assert [after(2)(Moment(t, 5)) for t in range(5)] == [False, False, True, True, True]
    assert after(0)(Moment(0, 5))


def test_all_of_wants_every_one() -> None:
    both = all_of(after(1), until(0.5))
    assert [both(Moment(t, 6)) for t in range(6)] == [False, True, True, False, False, False]
    assert all_of()(Moment(0, 1))
