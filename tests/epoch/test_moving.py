"""Scores, plans and walks that move between devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from infobatch.epoch.scores import ScoreTable, TableSlice
from infobatch.methods.memory import average
from infobatch.plan import Plan
from infobatch.ranks.exchange import Ranks
from infobatch.ranks.shards import ShardedScores, ShardSlice

CPU, META = torch.device("cpu"), torch.device("meta")


def numbers(size: int, seed: int) -> Tensor:
    return torch.rand(size, generator=torch.Generator().manual_seed(seed))


def a_book(size: int) -> ScoreTable:
    book, memory = ScoreTable(size), average(0.5)
    book.make_columns(memory, {"confidence"})
    columns = (book.scores, book.fresh, book.weights, book.memory["average"], book.channels["confidence"])
    for seed, column in enumerate(columns):
        column.copy_(numbers(size, seed))
    book.named_count.fill_(7)
    return book


def a_part(size: int) -> ShardedScores:
    book = ShardedScores(size, Ranks())
    book.scores.copy_(numbers(size, 0))
    book.fresh.copy_(numbers(size + 1, 1))
    book.level.random_(0, 3, generator=torch.Generator().manual_seed(2))
    book.weights.copy_(numbers(256, 3))
    book.named_count.fill_(7)
    book.elsewhere_count.fill_(5)
    return book


def a_plan(size: int) -> Plan:
    indices = torch.randperm(size, generator=torch.Generator().manual_seed(0))[: size // 2]
    table = torch.zeros(size).index_fill_(0, indices, 2.0)
    return Plan(1, indices, table, table != 0)


def a_walk(size: int) -> TableSlice:
    walk = TableSlice(a_plan(size).indices, Ranks(), a_book(size))
    walk.losses.copy_(numbers(walk.size, 4))
    return walk


MAKERS: list[Callable[[int], Any]] = [a_book, a_part, a_plan, a_walk]


def tensors(thing: Any) -> dict[str, Tensor]:
    """All that it moves, by name."""
    found = {}
    for name, value in vars(thing).items():
        inner = value if isinstance(value, dict) else {name: value}
        found |= {f"{name}.{key}": one for key, one in inner.items() if isinstance(one, Tensor)}
    return {name: one for name, one in found.items() if not name.startswith("_host")}


def moved(thing: Any, device: torch.device) -> Any:
    return thing.to(device) or thing  # a plan is frozen, and makes another


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Where tensors were told to go, and whether without a wait."""
    told: list[tuple[str, bool]] = []
    plain = Tensor.to

    def told_to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if args and isinstance(args[0], torch.device):
            told.append((args[0].type, kwargs.get("non_blocking", False)))
        return plain(tensor, *args, **kwargs)

    monkeypatch.setattr(Tensor, "to", told_to)
    return told


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("device", [CPU, META], ids=str)
def test_only_what_goes_to_the_cpu_is_waited_for(make: Any, device: torch.device, moves: Any) -> None:
    """A copy from a GPU to the CPU that is not waited for can be read before it is there."""
    thing = make(8)
    count = len(tensors(thing))
    moves.clear()
    moved(thing, device)
    assert moves == [(device.type, device != CPU)] * count


def test_whom_a_loss_is_of_is_waited_for_on_the_cpu(moves: Any) -> None:
    whole, part = a_book(8), a_part(8)
    part._rows = [8]
    some, channels = torch.arange(3), {name: torch.ones(3) for name in whole.channels}
    moves.clear()
    for walk in (TableSlice(a_plan(8).indices, Ranks(), whole), ShardSlice(1, part, 0)):
        walk.note(some, torch.ones(3), channels)
        walk.skip(some)
    assert len(moves) == 5
    assert set(moves) == {("cpu", False)}


@pytest.mark.gpu
@pytest.mark.parametrize("make", MAKERS)
def test_there_and_back_with_every_value(make: Any) -> None:
    """The GPU is kept busy, so a copy that nobody waits for is not there when it is read."""
    size, gpu = 1 << 24, torch.device("cuda")
    expected = {name: one.clone() for name, one in tensors(make(size)).items()}
    there = moved(make(size), gpu)
    assert {one.device.type for one in tensors(there).values()} == {"cuda"}
    torch.cuda._sleep(1_000_000_000)
    back = moved(there, CPU)
    came = {name: torch.equal(one, expected[name]) for name, one in tensors(back).items()}
    assert came == dict.fromkeys(expected, True)
    again = moved(back, gpu)
    came = {name: torch.equal(one.cpu(), expected[name]) for name, one in tensors(again).items()}
    assert came == dict.fromkeys(expected, True)
