"""Killed at any step and resumed, a training with a sieve is bit for bit the same; damaged states change nothing."""

from __future__ import annotations

import copy
import gc
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import Program
from sieved_training import BATCH, BESIDE, LOOKS, METHODS, STEPS, Training, criterion, x_and_y
from test_damaged_states import JUNK, changed, nested, places
from torch import Tensor, nn

from infobatch import Sieve, StateError
from infobatch.sieve import Own, Proxy, Reference, SieveMethod, adaptive, hardest, lot, random_rows, tokens
from infobatch.testing import _flatten, assert_resumable, first_difference

CASES = [
    *((look, method, memory, False) for memory in (False, True) for look in LOOKS for method in METHODS),
    *((look, method, memory, True) for memory in (False, True) for look in BESIDE for method in METHODS),
    *(("remembered", method, True, False) for method in METHODS),
]


def name(case: tuple[str, str, bool, bool]) -> str:
    look, method, memory, ahead = case
    return f"{look}, {method}{', memory' * memory}{', ahead' * ahead}"


def make(case: tuple[str, str, bool, bool]) -> Training:
    look, method, memory, ahead = case
    return Training(look, method, memory=memory, ahead=ahead)


@pytest.mark.parametrize("case", CASES[::5], ids=name)
def test_resumed_after_some_steps(case: tuple[str, str, bool, bool]) -> None:
    assert_resumable(partial(make, case), stops=6)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=name)
def test_resumed_after_any_step(case: tuple[str, str, bool, bool]) -> None:
    assert_resumable(partial(make, case), stops=STEPS + 1)


@pytest.mark.parametrize("case", CASES, ids=name)
def test_these_trainings_use_what_they_test(case: tuple[str, str, bool, bool]) -> None:
    """Batches pass whole and in part, and a share that is measured changes."""
    torch.manual_seed(0)
    training = make(case)
    shares = {len(weight) / BATCH for _, weight in training}
    assert min(shares) < 1
    if "adaptive" in case or "windowed" in case:
        assert 1 in shares
    if "adaptive" in case:
        assert len(shares) > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "kills"),
    [
        (("proxy", "adaptive", "memory", "ahead"), (0, 5, 6)),
        (("proxy", "by lot", "stream", "ahead"), (1, 8)),
        (("reference of own", "windowed", "memory"), (4,)),
        (("remembered", "by lot", "memory"), (3, 7)),
    ],
)
def test_killed_and_resumed_in_other_processes(words: tuple[str, ...], kills: tuple[int, ...], tmp_path: Path) -> None:
    script, file = Path(__file__).with_name("sieved_training.py"), tmp_path / "state.pt"
    for kill in kills:
        program = Program(script, file, kill, *words)
        said = program.communicate(120)
        assert program.returncode == -signal.SIGKILL, said
        assert (torch.load(file, weights_only=True)["steps"] if kill else file.exists()) == kill
    program = Program(script, file, -1, *words)
    said = program.communicate(120)
    assert program.returncode == 0, said

    program = Program(script, tmp_path / "whole.pt", -1, *words)
    said = program.communicate(120)
    assert program.returncode == 0, said
    right, wrong = (_flatten(torch.load(one, weights_only=True)) for one in (tmp_path / "whole.pt", file))
    assert first_difference(right, wrong) is None


# ---- damaged states, and those of others -----------------------------------------------------------------------


class Small:
    """Steps of a sieve alone, with networks small enough to damage each of their values."""

    def __init__(self, kind: str) -> None:
        self.kind, self.steps = kind, 0
        torch.manual_seed(0)
        training = Training("proxy", "adaptive")
        if kind == "adaptive":
            self.sieve = Sieve(Proxy(nn.Linear(4, 3), criterion, every=2), METHODS["adaptive"](), num_steps=9)
        elif kind == "reference":
            self.sieve = Sieve(training.make_look("reference of own"), lot(0.5))
        elif kind == "no look":
            self.sieve = Sieve(None, random_rows(0.5))
        elif kind == "tokens":
            self.sieve = Sieve(lambda batch: batch[0], tokens(lambda batch: batch[0] > 0, keep=0.5))
        else:
            momentum = torch.optim.SGD((net := nn.Linear(4, 3)).parameters(), lr=0.1, momentum=0.9)
            self.sieve = Sieve(Proxy(net, criterion, optimizer=momentum, every=2), hardest(0.5), num_steps=9)

    def batches(self) -> Iterator[Any]:
        batches = (x_and_y(BATCH, step) for step in range(self.steps, 99))
        return self.sieve.ahead(batches) if self.kind in ("ahead", "tokens") else (self.sieve(*one) for one in batches)

    def train(self, steps: int) -> dict[str, Any]:
        """Take some steps, and return the state inside the loop."""
        for x, _, weight in self.batches():
            self.sieve.reduce(x.square() if self.kind == "tokens" else x.square().sum(1) + 0 * weight)
            self.steps, steps = self.steps + 1, steps - 1
            if not steps:
                return copy.deepcopy(self.sieve.state_dict())
        raise AssertionError


KINDS = ["adaptive", "reference", "no look", "tokens", "ahead"]


def is_refused(kind: str, before: dict[str, Any], damaged: Any) -> bool:
    """Load a state into a sieve in mid-run; if it is refused, nothing may have changed, else training goes on."""
    small = Small(kind)
    small.sieve.load_state_dict(before)
    small.steps = 3
    try:
        small.sieve.load_state_dict(damaged)
    except StateError as error:
        assert len(str(error)) < 2000  # noqa: PT017
        assert first_difference(_flatten(before), _flatten(small.sieve.state_dict())) is None
        return True
    small.train(4)
    small.sieve.summary()
    return False


MAY_MISS = {
    "amsgrad",
    "maximize",
    "foreach",
    "capturable",
    "differentiable",
    "fused",
    "decoupled_weight_decay",
    "nesterov",
}
"""Settings that torch's optimizers add to a state from before they were known."""
IN_OPTIMIZER = ["look", "optimizer", "state"]
"""One entry per parameter that has had a gradient; what an optimizer does not know in it, it leaves alone."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_with_a_field_less_or_more_is_refused(kind: str) -> None:
    state = Small(kind).train(3)
    for *above, key in places(state)[1:]:
        fewer, more = (changed(state, (*above,), change) for change in (partial(without, key=key), with_more))
        assert is_refused(kind, state, fewer) or key in MAY_MISS or above == IN_OPTIMIZER, (*above, key)
        assert is_refused(kind, state, more) or above[:3] == IN_OPTIMIZER, (*above, key)


def without(value: Any, key: Any) -> Any:
    items = [(at, item) for at, item in (value.items() if isinstance(value, dict) else enumerate(value)) if at != key]
    return dict(items) if isinstance(value, dict) else [item for _, item in items]


def with_more(value: Any) -> Any:
    return {**value, "more": 1} if isinstance(value, dict) else [*value, 0.5]


RESHAPED = [lambda t: t[None, None], lambda t: t.new_zeros(0), lambda t: torch.cat([t.flatten()] * 2), Tensor.tolist]
FLOATS = [Tensor.double, Tensor.half]
RETYPED = [*FLOATS, Tensor.long, Tensor.cfloat, Tensor.to_sparse, lambda t: t.to("meta"), Tensor.numpy]


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_of_another_kind_are_refused(kind: str) -> None:
    state = Small(kind).train(3)
    for place in places(state):
        value = look_up(state, place)
        if not isinstance(value, Tensor):
            continue
        is_optimizer = place[:2] == ("look", "optimizer")  # which converts numbers, also those that are no tensors
        for change in RESHAPED if value.numel() > 1 or not is_optimizer else []:
            assert is_refused(kind, state, changed(state, place, change)), (place, change)
        for change in [] if is_optimizer else RETYPED:
            other = change(value)
            is_usable = isinstance(other, Tensor) and (other.dtype, other.device) == (value.dtype, value.device)
            is_usable |= place[0] == "ahead" and value.is_floating_point() and change in FLOATS  # as looks return them
            if not is_usable:
                assert is_refused(kind, state, changed(state, place, lambda _, other=other: other)), (place, change)


def look_up(state: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        state = state[key]
    return state


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_values_replaced_by_any_other_are_refused_or_training_goes_on(kind: str) -> None:
    """Another count, or another setting of an optimizer, cannot be told from the right one."""
    state = Small(kind).train(3)
    for at, place in enumerate(places(state)):
        for junk in [*JUNK[at % 5 :: 5], nested(60)]:
            is_refused(kind, state, changed(state, place, lambda _, junk=junk: junk))


def test_the_state_of_another_sieve_is_refused() -> None:
    def make(method: SieveMethod | None = None, **settings: Any) -> Sieve:
        return Sieve(Proxy(nn.Linear(4, 3), criterion), method or adaptive(), **{"num_steps": 9, **settings})

    state = make().state_dict()
    for other in (
        *(make(hardest(0.5)), make(adaptive(0.7)), make(seed=1)),
        *(Sieve(Proxy(nn.Linear(4, 2), criterion), num_steps=9), Sieve(Own(nn.Linear(4, 3), criterion), num_steps=9)),
        *(
            Sieve(Proxy(nn.Linear(4, 3, dtype=torch.float64), criterion), num_steps=9),
            Sieve(lambda _: None, num_steps=9),
        ),
        Sieve(Reference(nn.Linear(4, 3), criterion, of=Proxy(nn.Linear(4, 3), criterion)), num_steps=9),
    ):
        before = copy.deepcopy(other.state_dict())
        with pytest.raises(StateError, match="Nothing was loaded"):
            other.load_state_dict(state)
        assert first_difference(_flatten(before), _flatten(other.state_dict())) is None


def test_a_proxy_is_loaded_whole_or_not_at_all() -> None:
    """Its network, its optimizer and its counts are checked before the first of them is loaded."""
    proxy, other = (Proxy(nn.Linear(4, 3), criterion) for _ in range(2))
    other.visit(x_and_y(BATCH, 0), 0, None, is_needed=True)
    before, state = copy.deepcopy(proxy.state_dict()), other.state_dict()
    for part in ("net", "optimizer", "counts"):
        for name in state[part]:
            with pytest.raises(StateError):
                proxy.load_state_dict({**state, part: without(state[part], name)})
            assert first_difference(_flatten(before), _flatten(proxy.state_dict())) is None
    proxy.load_state_dict(state)
    assert first_difference(_flatten(state), _flatten(proxy.state_dict())) is None


def test_a_state_that_was_loaded_stays_as_it_is() -> None:
    """Two runs may be resumed from one state in memory."""
    state = Small("ahead").train(3)
    before = copy.deepcopy(state)
    results = []
    for _ in range(2):
        small = Small("ahead")
        small.sieve.load_state_dict(state)
        small.steps = 3
        results.append(small.train(4))
        assert first_difference(_flatten(before), _flatten(state)) is None
    assert first_difference(*map(_flatten, results)) is None


@pytest.mark.parametrize("count", [5, BATCH])
def test_a_decision_for_another_batch_is_not_used(count: int) -> None:
    small, uninterrupted = Small("ahead"), Small("ahead")
    small.sieve.load_state_dict(uninterrupted.train(3))
    batch = x_and_y(count, 77)
    came, expected = (next(one.sieve.ahead([batch])) for one in (small, uninterrupted))
    assert first_difference(*map(_flatten, (came, expected))) is None


def test_a_state_saved_after_the_loop_was_left_knows_the_batch_that_comes() -> None:
    left, inside = Small("ahead"), Small("ahead")
    expected = inside.train(3)
    left.train(3)
    gc.collect()  # the generator is closed
    assert first_difference(*map(_flatten, (left.sieve.state_dict(), expected))) is None
    left.sieve(*x_and_y(BATCH, 50))
    assert left.sieve.state_dict()["ahead"] is None  # the loop went on with another batch


def test_a_measurement_of_some_rows_only_is_damaged() -> None:
    state = Small("ahead").train(3)
    assert state["ahead"]["rows"] is not None
    with pytest.raises(StateError, match="the next batch"):
        Small("ahead").sieve.load_state_dict(state | {"ahead": state["ahead"] | {"is_measured": True}})
