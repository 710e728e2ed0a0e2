"""A sieve on a GPU: inside a captured graph, and one batch ahead on a stream of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from infobatch import InputError, Sieve
from infobatch.sieve import Look, Own, Proxy, SieveMethod, adaptive, hardest, lot

DEVICE = "cuda"
SIZE, KEPT, STEPS = 64, 32, 50
WAIT = 2_000_000
"""Cycles, about a millisecond: whoever does not wait for the other stream is far ahead of it."""
criterion = nn.CrossEntropyLoss(reduction="none")
pytestmark = pytest.mark.gpu


def batch_of(number: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, classes and the numbers of the rows."""
    x = torch.randn(SIZE, 4, generator=torch.Generator().manual_seed(number))
    return x, x[:, :3].argmax(1), torch.arange(SIZE)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3)).to(DEVICE)


def size_of(batch: Any) -> Tensor:
    """A look without a network."""
    x: Tensor = batch[0]
    return x.square().sum(1)


# ---- a captured graph ------------------------------------------------------------------------------------------


class Captured:
    """A whole training step as a graph; ``rows`` and ``weight`` are what the sieve passed on in the latest replay."""

    def __init__(self, model: nn.Module, sieve: Sieve) -> None:
        self.model, self.sieve = model, sieve
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.batch = [one.to(DEVICE) for one in batch_of(0)]
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(beside)
        self.optimizer.zero_grad(set_to_none=True)  # gradients belong to the graph
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=beside):
            self.rows, self.weight = self._step()

    def _step(self) -> tuple[Tensor, Tensor]:
        x, y, rows, weight = self.sieve(*self.batch)
        loss = self.sieve.reduce(criterion(self.model(x), y))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return rows, weight

    def replay(self, number: int) -> tuple[list[int], Tensor]:
        for here, new in zip(self.batch, batch_of(number), strict=True):
            here.copy_(new)
        self.graph.replay()
        return self.rows.tolist(), self.weight.cpu()


def test_a_captured_step_keeps_the_hardest_rows_of_each_new_batch() -> None:
    model = network()
    captured = Captured(model, Sieve(size_of, hardest(0.5)))
    before = [one.detach().clone() for one in model.parameters()]
    for number in range(1, 6):
        rows, weight = captured.replay(number)
        assert rows == size_of(batch_of(number)).topk(KEPT).indices.sort().values.tolist()
        assert weight.tolist() == [1.0] * KEPT
    assert not any(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_a_captured_step_looks_with_the_model_as_it_is_at_each_replay() -> None:
    model = network()
    model[2].p = 0.0
    captured = Captured(model, Sieve(Own(model, criterion), hardest(0.5)))
    for number in range(1, 6):
        x, y, _ = (one.to(DEVICE) for one in batch_of(number))
        with torch.no_grad():
            losses = criterion(model(x), y)
        rows, _ = captured.replay(number)
        kept = torch.zeros(SIZE, dtype=torch.bool, device=DEVICE)
        kept[rows] = True
        assert len(rows) == len(set(rows)) == KEPT
        assert losses[kept].min() >= losses[~kept].max() - 1e-5


def test_a_captured_lot_draws_other_rows_at_each_replay() -> None:
    captured = Captured(network(), Sieve(size_of, lot(0.5)))
    drawn = []
    for _ in range(8):
        rows, weight = captured.replay(7)  # the same batch
        assert rows == sorted(set(rows))
        assert len(rows) == len(weight) == KEPT
        assert bool((weight >= 1).all())
        drawn.append(tuple(rows))
    assert len(set(drawn)) == len(drawn)


def test_the_weights_of_a_captured_lot_make_up_for_the_rows_left_out() -> None:
    captured = Captured(network(), Sieve(size_of, lot(0.5)))
    total, chance, count = torch.zeros(SIZE), torch.zeros(SIZE), 1000
    for _ in range(count):
        rows, weight = captured.replay(7)
        total[rows] += weight
        chance[rows] = 1 / weight
    assert bool((chance > 0).all())
    assert float(chance.sum()) == pytest.approx(KEPT, rel=1e-3)
    deviation = ((1 - chance).clamp(min=0) / chance / count).sqrt()
    assert bool(((total / count - 1).abs() < 5 * deviation + 1e-3).all())


def test_counts_stand_still_while_a_graph_is_replayed_and_go_on_after_it() -> None:
    sieve = Sieve(size_of, lot(0.5))
    captured = Captured(network(), sieve)
    before = str(sieve.summary())
    assert sieve.summary().batches == 4  # three to warm up, one captured
    assert sieve.summary().not_finite == 0  # not what lies in memory that no replay has written yet
    for number in range(3):
        captured.replay(number)
    assert str(sieve.summary()) == before
    rows = [sieve(*captured.batch)[2].tolist() for _ in range(2)]
    assert rows[0] != rows[1]
    assert (sieve.summary().batches, sieve.summary().kept) == (6, 6 * KEPT)


def test_a_proxy_looks_but_does_not_train_inside_a_graph() -> None:
    small = network()
    captured = Captured(network(), Sieve(Proxy(small, criterion, every=1), hardest(0.5)))
    before = [one.detach().clone() for one in small.parameters()]
    for number in range(3):
        assert len(captured.replay(number)[0]) == KEPT
    assert all(torch.equal(old, new) for old, new in zip(before, small.parameters(), strict=True))


def test_a_measured_amount_is_refused_inside_a_graph() -> None:
    sieve, batch = Sieve(size_of, adaptive()), [one.to(DEVICE) for one in batch_of(0)]
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        batch[0] + 1  # torch warns of an empty graph
        with pytest.raises(InputError, match="inside a CUDA graph"):
            sieve(*batch)


# ---- one batch ahead -------------------------------------------------------------------------------------------


def move(batch: Any, wait: bool = False) -> list[Tensor]:
    if wait:
        torch.cuda._sleep(WAIT)
    return [one.to(DEVICE, non_blocking=True) for one in batch]


def slowly(batch: Any) -> Tensor:
    torch.cuda._sleep(WAIT)
    return size_of(batch)


LOOKS: dict[str, Callable[[], Look | Callable[[Any], Tensor]]] = {
    "proxy": lambda: Proxy(network(), criterion),
    "a function": lambda: size_of,
    "a slow function": lambda: slowly,
}
METHODS: dict[str, Callable[[], SieveMethod]] = {
    "hardest": lambda: hardest(0.5),
    "lot": lambda: lot(0.5),
    "adaptive": lambda: adaptive(0.6, every=4),
}


def train(look: str, method: str, *, ahead: bool, wait: bool) -> tuple[list[list[int]], list[Tensor], str]:
    """Return the rows of each step, the parameters of the model at the end, and the summary."""
    model, sieve = network(), Sieve(LOOKS[look](), METHODS[method](), num_steps=STEPS, seed=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = [[one.pin_memory() for one in batch_of(number)] for number in range(STEPS)]
    sieved = sieve.ahead(batches, move=lambda batch: move(batch, wait)) if ahead else (sieve(*move(b)) for b in batches)
    torch.manual_seed(1)
    kept = []
    for x, y, rows, _ in sieved:
        loss = sieve.reduce(criterion(model(x), y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept.append(rows)
    return [rows.tolist() for rows in kept], [one.detach() for one in model.parameters()], str(sieve.summary())


@pytest.mark.parametrize("wait", [False, True], ids=["", "batches come late"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("look", LOOKS)
def test_looking_ahead_changes_nothing(look: str, method: str, wait: bool) -> None:
    """Also where the look is late, or where the batch is."""
    rows, model, summary = train(look, method, ahead=False, wait=False)
    rows_ahead, model_ahead, summary_ahead = train(look, method, ahead=True, wait=wait)
    assert len(rows) == STEPS
    assert rows == rows_ahead
    assert summary == summary_ahead
    for one, other in zip(model, model_ahead, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
