"""The test that users run on their own loops: it passes right ones, and says what is wrong with the others."""

from __future__ import annotations

import copy
import math
import random
import re
import struct
from collections.abc import Iterator
from functools import partial
from typing import Any

import hypothesis.strategies as st
import numpy
import pytest
import torch
from hypothesis import given
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import TensorDataset

import infobatch
from infobatch.sieve import Own, Proxy, Sieve
from infobatch.testing import _flatten, assert_resumable, choose_stops, first_difference

EPOCHS, BATCH, SIZE = 4, 8, 42
criterion = nn.CrossEntropyLoss(reduction="none")


class Loop:
    """A training with everything in it that changes: both engines, momentum, a schedule, dropout."""

    parts = ("model", "optimizer", "scheduler", "train_data", "sieve")

    def __init__(self, look: str = "proxy", forgotten: str = "", dropout: float = 0.5) -> None:
        x = torch.randn(SIZE, 4)
        self.model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.train_data = infobatch.InfoBatch(TensorDataset(x, x[:, :3].argmax(1)), EPOCHS)
        self.loader = infobatch.DataLoader(self.train_data, batch_size=BATCH)
        steps = infobatch.full_steps(self.train_data, BATCH)
        cycle = OneCycleLR(self.optimizer, max_lr=0.2, total_steps=EPOCHS * steps + 1)
        self.scheduler = infobatch.pace(cycle, self.train_data, steps)
        proxy = Proxy(nn.Linear(4, 3), criterion, every=3)
        self.sieve = Sieve(
            Own(self.model, criterion) if look == "own" else proxy, infobatch.sieve.lot(0.5), num_steps=EPOCHS * steps
        )
        self.look, self.forgotten = look, forgotten

    @property
    def epoch(self) -> int:
        return self.train_data.epoch

    def batches(self) -> Iterator[Any]:
        if self.look == "ahead":
            yield from self.sieve.ahead(self.loader)
            return
        for x, y in self.loader:
            yield (x, y, None) if self.look == "none" else self.sieve(x, y)

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(self.train_data.epoch, EPOCHS):
            for x, y, _ in self.batches():
                losses = criterion(self.model(x), y)
                loss, score = (losses, None) if self.look == "none" else self.sieve.expand(losses)
                mean = self.train_data.update(loss, score=score)
                self.optimizer.zero_grad()
                mean.backward()
                self.optimizer.step()
                self.scheduler.step()
                yield mean

    def state_dict(self) -> dict[str, Any]:
        state = {name: getattr(self, name).state_dict() for name in self.parts if name != self.forgotten}
        return state if self.forgotten == "rng" else {**state, "rng": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self.parts:
            if name != self.forgotten:
                getattr(self, name).load_state_dict(state[name])
        if self.forgotten != "rng":
            torch.set_rng_state(state["rng"])


class Stream:
    """A loop over a stream in batches of one size, with the sieve alone."""

    def __init__(self) -> None:
        self.model = nn.Linear(4, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        method = infobatch.sieve.adaptive(0.6, every=4)
        self.sieve = Sieve(Proxy(nn.Linear(4, 3), criterion), method, num_steps=12)
        self.steps = 0

    def __iter__(self) -> Iterator[float]:
        for step in range(self.steps + 1, 13):
            self.steps = step
            x = torch.randn(BATCH, 4, generator=torch.Generator().manual_seed(step))
            kept, y, _ = self.sieve(x, x[:, :3].argmax(1))
            loss = self.sieve.reduce(criterion(self.model(kept), y))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            yield loss.item()

    def state_dict(self) -> dict[str, Any]:
        parts = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "sieve")}
        return {**parts, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("model", "optimizer", "sieve"):
            getattr(self, name).load_state_dict(state[name])
        self.steps = state["steps"]


class Counter:
    """Ten steps of a sum with momentum, in plain numbers; the loss of step n depends on the speed from step 3 on."""

    def __init__(self) -> None:
        self.steps, self.place, self.speed = 0, 0.0, 0.0

    def __iter__(self) -> Iterator[float]:
        while self.steps < 10:
            self.steps += 1
            self.speed = 0.5 * self.speed + 1
            self.place += self.speed
            yield self.place

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "optimizer": {"place": self.place, "speeds": [self.speed]}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.place = state["steps"], state["optimizer"]["place"]
        self.speed = state["optimizer"]["speeds"][0]


def failure(make: Any, **settings: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        assert_resumable(make, **settings)
    return str(caught.value)


# ---- right loops -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("look", ["none", "proxy", "own", "ahead"])
def test_a_right_loop_passes(look: str) -> None:
    assert_resumable(partial(Loop, look), stops=5)


def test_a_stream_passes() -> None:
    assert_resumable(Stream, stops=13)  # before, between and after all 12 steps


def test_plain_numbers_pass() -> None:
    assert_resumable(Counter, stops=11)


def test_global_random_states_stay() -> None:
    random.seed(5)
    torch.manual_seed(5)
    numpy.random.seed(5)
    before = torch.get_rng_state(), random.getstate(), str(numpy.random.get_state())
    assert_resumable(partial(Loop, "none"), stops=1)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), str(numpy.random.get_state()))


# ---- wrong ones ------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:the data are in epoch:infobatch.InfoBatchWarning")  # of a forgotten scheduler
@pytest.mark.filterwarnings("ignore:the scheduler is .* ahead of the data:infobatch.InfoBatchWarning")
@pytest.mark.parametrize("forgotten", Loop.parts)
def test_a_forgotten_part_is_named(forgotten: str) -> None:
    said = failure(partial(Loop, forgotten=forgotten), stops=2)
    remedy = said.rpartition("Save and load the state of")[2]
    assert forgotten in re.findall(r"\w+", remedy)


@pytest.mark.parametrize("look", ["proxy", "none"])
def test_a_forgotten_random_state_is_named(look: str) -> None:
    assert "torch.get_rng_state()" in failure(partial(Loop, look, forgotten="rng"), stops=2)
    assert_resumable(partial(Loop, look, forgotten="rng", dropout=0.0), stops=2)  # nothing draws from it


class Forgetful(Counter):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.speed = 0.0


def test_the_step_and_the_entry_are_named() -> None:
    """The place after step n + 1 is off by half of the speed that was lost after step n."""
    stop = choose_stops([None] * 11, 1)[0]
    said = failure(Forgetful, stops=1)
    right = [2 * n - 2 + 2 * 0.5**n for n in range(11)]
    lost = 0.5 * (2 - 2 * 0.5**stop)
    assert f"the result of step {stop + 1} is {right[stop + 1] - lost} instead of {right[stop + 1]}" in said
    assert f"after loading, optimizer.speeds.0 is 0.0 instead of {2 - 2 * 0.5**stop}" in said


@pytest.mark.parametrize("kind", [torch, numpy])
def test_results_are_compared_as_they_were_yielded(kind: Any) -> None:
    class InPlace(Forgetful):
        def __iter__(self) -> Iterator[Any]:
            result = kind.zeros(2)
            for result[0] in super().__iter__():
                yield {"loss": [result]}
            result[0] = 0.0

    assert re.search(r"the result of step \d+\.loss\.0 differs in 1 of 2", failure(InPlace))


class ForgetfulInTheEnd(Counter):
    """Its results are right, its last state is not."""

    def __init__(self) -> None:
        super().__init__()
        self.here = 0

    def __iter__(self) -> Iterator[float]:
        for result in super().__iter__():
            self.here += 1
            yield result

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "here": self.here}


def test_states_are_compared_in_the_end() -> None:
    assert "the state at the end.here is" in failure(ForgetfulInTheEnd)


class ForgetfulOnceResumed(Counter):
    """What it saves after it was resumed is not complete."""

    resumed = False

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        if self.resumed and self.steps < 10:
            state["optimizer"]["speeds"] = [0.0]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.resumed = True


def test_a_run_is_stopped_more_than_once() -> None:
    assert_resumable(ForgetfulOnceResumed, stops=1)
    assert "speeds.0" in failure(ForgetfulOnceResumed, stops=3)


class Endless(Counter):
    """Begins anew whenever it is resumed, and never ends then."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = -(10**9)


class Long(Counter):
    """Takes a step more if it is resumed at its end; the step does not change the state."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.resumed = True

    def __iter__(self) -> Iterator[float]:
        yield from super().__iter__()
        if hasattr(self, "resumed"):
            yield 0.0


class Short(Counter):
    """Forgets the last step if it is resumed."""

    def __iter__(self) -> Iterator[float]:
        resumed_at = self.steps
        for result in super().__iter__():
            if resumed_at == 0 or self.steps < 10:
                yield result


def test_the_number_of_steps_is_compared() -> None:
    assert "the result of step 11 is new" in failure(Endless, stops=11)
    assert "the result of step 11 is new" in failure(Long, stops=4)
    assert "the result of step 10 is missing" in failure(Short, stops=11)


class Disturbed(Counter):
    def state_dict(self) -> dict[str, Any]:
        self.speed += 1e-9
        return super().state_dict()


class Arbitrary(Counter):
    made = 0

    def __init__(self) -> None:
        super().__init__()
        Arbitrary.made += 1
        self.speed = float(Arbitrary.made)


@pytest.mark.parametrize("make", [Disturbed, Arbitrary])
def test_saving_and_starting_again_change_nothing(make: Any) -> None:
    assert "saved" in failure(make)


@pytest.mark.parametrize(
    ("value", "name"),
    [(object(), "builtins.object"), (numpy.ones(2), "numpy.ndarray"), (torch.Generator(), "Generator")],
)
def test_entries_that_are_not_plain_are_named(value: Any, name: str) -> None:
    class Odd(Counter):
        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "inner": [1, {"odd": value}]}

    assert name in failure(Odd)


def test_a_training_has_steps() -> None:
    class Idle(Counter):
        def __iter__(self) -> Iterator[float]:
            return iter(())

    assert "at least one step" in failure(Idle)
    with pytest.raises(infobatch.InputError, match="stops"):
        assert_resumable(Counter, stops=0)


# ---- its parts -------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.integers(1, 40))
def test_stops(lengths: list[int], count: int) -> None:
    """``lengths``: the steps of each epoch."""
    epochs = [epoch for epoch, length in enumerate(lengths) for _ in range(length)] + [len(lengths)]
    stops = choose_stops(epochs, count)
    last = sum(lengths)
    assert stops == sorted(set(stops))
    assert len(stops) == min(count, last + 1)
    assert set(stops) <= set(range(last + 1))
    if count >= 6:
        assert {0, last} <= set(stops)
        edges = {sum(lengths[:epoch]) for epoch in range(1, len(lengths))}
        assert not edges or any({edge - 1, edge, edge + 1} <= set(stops) for edge in edges)


PLAIN = st.one_of(
    *(st.integers(-2, 2), st.floats(allow_nan=False), st.text(max_size=2), st.booleans(), st.none()),
    *(st.just([]), st.just({}), st.lists(st.floats(width=32, allow_nan=False), max_size=3).map(torch.tensor)),
)
KEYS = st.text("abc", min_size=1, max_size=2)
TREES = st.recursive(
    PLAIN, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3))
)


def bits(value: Any) -> Any:
    """What is equal for what is the same bit for bit."""
    if isinstance(value, torch.Tensor):
        return "tensor", bits(value.tolist())
    if isinstance(value, float):
        return "float", struct.pack("d", value)
    if isinstance(value, dict):
        return {key: bits(inner) for key, inner in value.items()}
    return [bits(inner) for inner in value] if isinstance(value, list) else (type(value), value)


@given(TREES, TREES)
def test_structures_are_the_same_if_they_are_bit_for_bit(one: Any, other: Any) -> None:
    for pair in ((one, copy.deepcopy(one)), (one, other)):
        found = first_difference(*({"it": 0, **_flatten(value, "it")} for value in pair))
        assert (found is None) == (bits(pair[0]) == bits(pair[1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.cfloat])
def test_tensors(dtype: torch.dtype) -> None:
    tensor = torch.ones(2, 3).to(dtype)
    changed = tensor.clone()
    changed[1, 0] = 0

    def difference(one: Any, other: Any) -> str | None:
        return first_difference(_flatten(one, "a"), _flatten(other, "a"))

    said = f"a differs in 1 of 6 values, first in {changed[1, 0].item()} instead of {tensor[1, 0].item()}"
    assert difference(tensor, changed) == said
    assert difference(tensor, tensor.clone()) is None
    assert difference(tensor.t(), tensor.t().contiguous()) is None
    assert difference(tensor[:, ::2], tensor[:, :2]) is None
    assert difference(tensor[:1].expand(4, 3), tensor[:1].repeat(4, 1)) is None
    assert difference(tensor, tensor.flatten()) is not None
    assert difference(tensor, torch.ones(2, 3, dtype=torch.int32)) is not None
    assert difference(tensor[0, 0], changed[1, 0]) is not None
    assert difference(tensor, "1") is not None


def test_the_sign_of_zero_counts_and_nan_is_nan() -> None:
    same = [math.nan, torch.tensor([math.nan]), torch.empty(0), 0.0]
    assert first_difference(_flatten(same), _flatten(copy.deepcopy(same))) is None
    for one, other in ((0.0, -0.0), (torch.tensor([0.0]), torch.tensor([-0.0])), (1, 1.0), (1, True), ("1", 1)):
        assert first_difference({"a": one}, {"a": other}) is not None
