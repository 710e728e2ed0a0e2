"""Counting FLOPs leaves compiled functions compiled."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from infobatch import Sieve
from infobatch.sieve import Own, hardest


def test_a_compiled_function_still_compiles_after_its_flops_were_counted() -> None:
    net, criterion = nn.Linear(4, 3), nn.CrossEntropyLoss(reduction="none")
    compiled_graphs = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> object:
        compiled_graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x, y: criterion(net(x), y), backend=backend, dynamic=False)
    sieve = Sieve(Own(net, losses=lambda _, batch: compiled(*batch)), hardest(keep=0.5))
    x, y, _ = sieve(torch.randn(8, 4), torch.arange(8) % 3)
    assert len(compiled_graphs) == 1
    assert sieve.summary().looking == 8 * 2 * 4 * 3

    compiled(x, y).sum().backward()  # another size, and with gradients
    assert len(compiled_graphs) == 2
    assert net.weight.grad is not None
