"""torch.compile: one graph for each size of a batch, rules in one graph, and compiled functions that stay compiled."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from infobatch import Sieve
from infobatch.sieve import Choice, Own, Proxy, adaptive, hardest, rules

SIZE = 16
criterion = nn.CrossEntropyLoss(reduction="none")


class Counting:
    """A backend that runs each graph as it is and counts them."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        self.graphs += 1
        return graph.forward


@pytest.fixture(autouse=True)
def compiler_forgets() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_a_compiled_function_still_compiles_after_its_flops_were_counted() -> None:
    net, backend = nn.Linear(4, 3), Counting()
    compiled = torch.compile(lambda x, y: criterion(net(x), y), backend=backend, dynamic=False)
    sieve = Sieve(Own(net, losses=lambda _, batch: compiled(*batch)), hardest(keep=0.5))
    x, y, _ = sieve(torch.randn(8, 4), torch.arange(8) % 3)
    assert backend.graphs == 1
    assert sieve.summary().looking == 8 * 2 * 4 * 3

    compiled(x, y).sum().backward()  # another size, and with gradients
    assert backend.graphs == 2
    assert net.weight.grad is not None


# ---- one graph for each size -----------------------------------------------------------------------------------


def learned(share: float) -> tuple[Tensor, Tensor]:
    """A batch of which the model below has learned this share of the rows."""
    y = torch.arange(SIZE) % 3
    x = nn.functional.one_hot(y, 3).float()
    x[: round(share * SIZE)] *= 30
    rows = torch.randperm(SIZE, generator=torch.Generator().manual_seed(0))
    return x[rows], y[rows]


def test_adaptive_compiles_once_for_each_size() -> None:
    """Also where it goes back to a size."""
    model, backend, sizes = nn.Linear(3, 3, bias=False), Counting(), []
    nn.init.eye_(model.weight)
    step = torch.compile(lambda x, y: criterion(model(x), y), backend=backend, dynamic=False, fullgraph=True)
    sieve = Sieve(lambda batch: criterion(batch[0], batch[1]), adaptive(0.9, sizes=(0.25, 0.5), every=4))
    for number in range(60):
        x, y, weight = sieve(*learned((0.0, 0.5, 0.75, 0.0, 0.75)[number // 12]))
        sieve.reduce(step(x, y)).backward()
        sizes.append(len(x))
        assert len(x) == len(y) == len(weight)
        assert backend.graphs == len(set(sizes))
    assert set(sizes) == {4, 8, 16}
    assert sum(one != other for one, other in itertools.pairwise(sizes)) > 10


def test_a_fixed_share_compiles_once_and_so_does_a_compiled_proxy_for_each_of_its_modes() -> None:
    """A proxy is compiled with gradients where it trains, and without where it only looks."""
    model, small, backends = nn.Linear(3, 3), nn.Linear(3, 3), (Counting(), Counting())
    step = torch.compile(model, backend=backends[0], dynamic=False, fullgraph=True)
    look = torch.compile(small, backend=backends[1], dynamic=False, fullgraph=True)
    sieve = Sieve(Proxy(look, criterion), hardest(0.5))
    for _ in range(60):
        x, y, _ = sieve(*learned(0.0))
        sieve.reduce(criterion(step(x), y)).backward()
    assert [backend.graphs for backend in backends] == [1, 2]
    assert sieve.summary().looking > 0


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # by the compiler, of what breaks a graph
def test_a_step_with_the_sieve_inside_gives_the_same_losses() -> None:
    """The sieve itself is left out of the graph."""
    model = nn.Linear(3, 3)

    def train(batch: tuple[Tensor, Tensor], sieve: Sieve) -> Tensor:
        x, y, _ = sieve(*batch)
        return sieve.reduce(criterion(model(x), y))

    compiled, losses = torch.compile(train, backend="eager", dynamic=False), []
    for step in (train, compiled):
        sieve = Sieve(Own(model, criterion), hardest(0.5), seed=3)
        losses.append([step(learned(0.25), sieve).item() for _ in range(8)])
        assert sieve.summary().batches == 8
    assert losses[0] == losses[1]


# ---- rules -----------------------------------------------------------------------------------------------------


def classes(losses: Tensor) -> Tensor:
    return torch.arange(SIZE, device=losses.device) % 3


RULES: dict[str, Callable[[Tensor], Choice | Tensor]] = {
    "choose_hardest": lambda losses: rules.choose_hardest(losses, 6),
    "choose_easiest": lambda losses: rules.choose_easiest(losses, 6),
    "choose_band": lambda losses: rules.choose_band(losses, 6, skip=3),
    "choose_by_lot": lambda losses: rules.choose_by_lot(losses, 6, None, floor=0.1),
    "choose_below_mean": lambda losses: rules.choose_below_mean(losses, 6, None, floor=0.1),
    "choose_by_percentile": lambda losses: rules.choose_by_percentile(losses, 6, None, power=2.0),
    "choose_in_proportion": lambda losses: rules.choose_in_proportion(losses, 6, None),
    "choose_random": lambda losses: rules.choose_random(losses, 6, None),
    "choose_hardest_with_floor": lambda losses: rules.choose_hardest_with_floor(losses, 6, classes(losses), 0.2),
    "choose_tokens": lambda losses: rules.choose_tokens(losses.view(4, 4), classes(losses).view(4, 4) > 0, 0.5),
}


EVERY_RULE = [name for name in vars(rules) if name.startswith("choose_")]


@pytest.mark.parametrize("name", EVERY_RULE)
def test_no_rule_reads_a_value_back(name: str) -> None:
    """On the meta device there is none."""
    with torch.device("meta"):
        found = RULES[name](torch.rand(SIZE))
    rows, weights = found if isinstance(found, tuple) else (None, found)
    assert weights.device.type == "meta"
    assert rows is None or rows.shape == weights.shape == (6,)


@pytest.mark.parametrize("name", EVERY_RULE)
def test_every_rule_is_one_graph_and_chooses_as_without_it(name: str) -> None:
    backend = Counting()
    compiled = torch.compile(RULES[name], backend=backend, dynamic=False, fullgraph=True)
    for seed in range(3):
        losses, found = torch.rand(SIZE, generator=torch.Generator().manual_seed(seed)), []
        losses[seed] = -torch.inf
        for rule in (RULES[name], compiled):
            torch.manual_seed(seed)
            found.append(rule(losses))
        one, other = (item if isinstance(item, tuple) else (item,) for item in found)
        assert all(map(torch.equal, one, other))
    assert backend.graphs == 1
