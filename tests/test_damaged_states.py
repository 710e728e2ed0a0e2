"""Damaged states, drawn at random: each is refused and changes nothing, or loads, and training goes on."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import TensorDataset

import infobatch
from infobatch import methods

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # also those of this package

SIZE, EPOCHS = 12, 4
DATA = TensorDataset(torch.linspace(0, 1, SIZE))
State = dict[str, Any]


def new(kind: str) -> infobatch.Pruned:
    if kind == "memory":
        return infobatch.Pruned(DATA, methods.kakurenbo(), EPOCHS)
    return infobatch.InfoBatch(DATA, EPOCHS, shard_scores=kind == "shards")


def train(data: infobatch.Pruned, steps: int | None = None) -> infobatch.Pruned:
    """Train to the end, or for a number of steps."""
    done = 0
    for _ in range(data.epoch, EPOCHS):
        for (x,) in infobatch.DataLoader(data, batch_size=3):
            data.update(x, **({"confidence": 1 - x} if data.method.channels else {}))
            done += 1
            if done == steps:
                return data
    return data


STEPS = {"new": 0, "inside the first epoch": 2, "between two": 4, "inside a pruned one": 6}
KINDS = ("table", "memory", "shards")
STATES = {(kind, when): train(new(kind), steps).state_dict() if steps else new(kind).state_dict()
          for kind in KINDS for when, steps in STEPS.items()}  # fmt: skip


def equal(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(two, Tensor) and torch.equal(one.nan_to_num(7), two.nan_to_num(7))
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(equal(one[key], two[key]) for key in one)
    return type(one) is type(two) and bool(one == two)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a state, as the keys that lead there."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    return [path, *(place for key, item in inside for place in places(item, (*path, key)))]


def changed(state: Any, place: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    """The state with ``change`` applied to the value at ``place``."""
    if not place:
        return change(state)
    made = list(state) if isinstance(state, (list, tuple)) else dict(state)
    made[place[0]] = changed(made[place[0]], place[1:], change)
    return type(state)(made)


def without(value: Any, number: int) -> Any:
    if isinstance(value, (dict, list, tuple)) and value:
        gone = number % len(value)
        if isinstance(value, dict):
            return {key: item for at, (key, item) in enumerate(value.items()) if at != gone}
        return type(value)(item for at, item in enumerate(value) if at != gone)
    return value


def nested(depth: int) -> Any:
    """A list of two lists of two lists ...: small in memory, and endless to anyone who prints it."""
    made: Any = []
    for _ in range(depth):
        made = [made, made]
    return made


JUNK: list[Any] = [
    *(None, True, False, -1, 0, 1, 3, 7, 2**31, 2**63, 10**30, 10**400, 10**5000, -(10**30), 1.0, 1.5, -0.5, 1e300),
    *(float("nan"), float("inf"), -float("inf"), "", "1", "cuda", b"1", 1j, [], {}, (), [1], {"a": 1}, (1, 2), {1}),
    *([[[]]], {1: 2, "x": 3, None: 4}, np.zeros(3), np.float32(1), np.array("x"), object(), 1 << 3000),
    *(torch.tensor(3), torch.tensor(float("nan")), torch.zeros(0), torch.zeros(SIZE), torch.arange(SIZE)),
    *(torch.zeros(1).expand(10**12), torch.empty(SIZE, device="meta"), torch.zeros(SIZE, dtype=torch.complex64)),
    *(torch.full((SIZE,), torch.nan), torch.full((SIZE,), torch.inf), torch.ones(SIZE, dtype=torch.bool)),
    *(torch.zeros(SIZE, requires_grad=True), torch.zeros(SIZE).to_sparse(), torch.zeros(SIZE, 1)),
]

TENSORS: list[Callable[[Tensor], Any]] = [
    Tensor.double, Tensor.half, Tensor.long, Tensor.int, Tensor.bool, Tensor.neg, Tensor.tolist, Tensor.numpy,
    Tensor.to_sparse, torch.zeros_like, torch.ones_like, lambda t: t[:-1], lambda t: torch.cat([t, t]),
    lambda t: t[None], lambda t: t[:1].expand(t.shape), lambda t: t.flip(0), lambda t: t.roll(1), lambda t: t + 1,
    lambda t: t - 1, lambda t: t * 1e30, lambda t: t / 0, lambda t: t * 0 + 2, lambda t: t.to("meta"),
    lambda t: torch.full_like(t, 3e38) if t.is_floating_point() else t.fill_(100),
    lambda t: t.requires_grad_() if t.is_floating_point() else t, lambda t: torch.nn.Parameter(t.float(), False),
    lambda t: t.to(torch.complex64), lambda t: torch.full_like(t, torch.nan) if t.is_floating_point() else t * 0,
]  # fmt: skip


@st.composite
def damages(draw: st.DrawFn, state: Any) -> Any:
    """One or two changes of a state: a value replaced, taken away or added, a number shifted, a tensor mistreated."""
    known, state = places(state), copy.deepcopy(state)
    for _ in range(draw(st.integers(1, 2))):
        place = draw(st.sampled_from(known))
        if place not in places(state):  # the first change took it away
            continue
        value = state
        for key in place:
            value = value[key]
        kinds = ["replace", "replace"]
        kinds += ["remove", "add"] * isinstance(value, (dict, list, tuple))
        is_small = isinstance(value, Tensor) and value.numel() < 1000
        kinds += ["tensor"] * 6 * is_small
        kinds += ["element"] * 6 * (is_small and value.dim() == 1 and value.numel() > 0)
        kinds += ["number"] * 4 * (type(value) in (int, float))
        kind, number = draw(st.sampled_from(kinds)), draw(st.integers(0, 30))
        junk = draw(st.sampled_from(JUNK))
        if kind == "replace":
            state = changed(state, place, lambda _, junk=junk: junk)
        elif kind == "remove":
            state = changed(state, place, lambda value, number=number: without(value, number))
        elif kind == "add" and isinstance(value, dict):
            key = draw(st.sampled_from(["more", 1, None, ("x",)]))
            state = changed(state, place, lambda value, key=key, junk=junk: {**value, key: junk})
        elif kind == "add":
            state = changed(state, place, lambda value, junk=junk: type(value)([*value, junk]))
        elif kind == "number":
            factor = draw(st.sampled_from([-1, 0, 2, 10**20]))
            shift = draw(st.sampled_from([-1, 0, 1]))
            state = changed(state, place, lambda value, a=factor, b=shift: value * a + b)
        elif kind == "tensor":
            try:
                state = changed(state, place, draw(st.sampled_from(TENSORS)))
            except (RuntimeError, TypeError):  # what it cannot do to itself is no damage
                continue
        elif kind == "element":
            new = draw(st.sampled_from([-1.0, 0.0, 1.0, 2.0, 3e38, 5e37, torch.nan, torch.inf, -torch.inf]))
            state = changed(state, place, lambda value, new=new, at=number: with_element(value, at, new))
    return state


def with_element(value: Tensor, at: int, new: float) -> Tensor:
    made = value.clone()
    if made.layout == torch.strided and not made.is_meta and (made.is_floating_point() or 0 <= new < 100):
        made[at % made.numel()] = new
    return made


def refusal(data: infobatch.Pruned, state: Any) -> str | None:
    """Load a state; return why it was refused, or None."""
    try:
        data.load_state_dict(state)
    except infobatch.StateError as error:
        return str(error)
    return None


def check(kind: str, state: Any) -> bool:
    """Load a state into data that is being trained; return whether it was accepted."""
    data = train(new(kind), 5)
    before = copy.deepcopy(data.state_dict())
    why = refusal(data, state)
    if why is not None:
        assert len(why) < 2000
        assert equal(data.state_dict(), before)
        return False
    train(data)
    assert data.epoch >= EPOCHS
    assert len(repr(data.history)) < 10**6
    data.state_dict()
    return True


@pytest.mark.parametrize("when", STEPS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_state_is_refused_or_training_goes_on(kind: str, when: str) -> None:
    attempts(kind, when, 25)


@pytest.mark.slow
@pytest.mark.parametrize("when", STEPS)
@pytest.mark.parametrize("kind", KINDS)
def test_many_damaged_states(kind: str, when: str) -> None:
    attempts(kind, when, 400)


def attempts(kind: str, when: str, count: int) -> None:
    @settings(max_examples=count, deadline=None, database=None, derandomize=True,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(damages(STATES[kind, when]))
    def attempt(state: Any) -> None:
        check(kind, state)

    attempt()


@pytest.mark.parametrize("when", STEPS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_undamaged_states_are_accepted(kind: str, when: str) -> None:
    assert check(kind, copy.deepcopy(STATES[kind, when]))
    assert check(kind, pickle.loads(pickle.dumps(STATES[kind, when])))


@pytest.mark.parametrize("kind", KINDS)
def test_every_value_replaced_by_every_other(kind: str) -> None:
    """A state with junk in one place costs next to nothing to refuse."""
    data = train(new(kind), 5)
    before = copy.deepcopy(data.state_dict())
    state = STATES[kind, "inside a pruned one"]
    for place in places(state):
        for junk in [*JUNK, nested(60)]:
            why = refusal(data, changed(state, place, lambda _, junk=junk: junk))
            if why is None:
                data.load_state_dict(before)
            else:
                assert len(why) < 2000
                assert equal(data.state_dict(), before)
