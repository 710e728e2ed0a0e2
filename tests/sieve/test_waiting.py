"""Losses reach the batch of the sieve that they are from, or are refused."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from interrupting import Interrupt
from sieved_training import criterion
from torch import Tensor, nn

import infobatch
from infobatch import MisalignedError, Sieve
from infobatch.sieve import Own, adaptive, hardest, lot
from infobatch.testing import _flatten, first_difference

SIZE = 8


def batches(count: int) -> list[Tensor]:
    return list(torch.rand(count, SIZE, generator=torch.Generator().manual_seed(1)))


def two(method: Any) -> tuple[Sieve, list[tuple[Tensor, Tensor]]]:
    """A sieve that has passed on two batches."""
    sieve = Sieve(lambda losses: losses, method)
    return sieve, [sieve(batch) for batch in batches(2)]


@pytest.mark.parametrize("call", ["reduce", "expand"])
def test_with_two_batches_on_the_way_losses_need_their_weights(call: str) -> None:
    sieve, ((first, weight), (second, other)) = two(lot(0.5))
    with pytest.raises(MisalignedError, match=r"2 batches of the sieve.*sieve.skip\(\)"):
        getattr(sieve, call)(first)
    assert sieve.reduce(first, weight) == pytest.approx(float((first * weight).sum()) / SIZE)
    assert sieve.reduce(second) == pytest.approx(float((second * other).sum()) / SIZE)  # the only one that waits
    assert sieve.reduce(second, other) == sieve.reduce(second)  # again, as for SAM


def test_scores_of_a_loop_that_reads_ahead_reach_their_samples() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(16.0), torch.arange(16))
    train = infobatch.InfoBatch(data, 8)
    sieve, waiting = Sieve(lambda batch: batch[0], hardest(0.5)), []

    def answer(x: Tensor, weight: Tensor, indices: Tensor) -> None:
        loss, score = sieve.expand(x + 1, weight)
        train.update(loss, indices, score=score)

    for (x, i), indices in infobatch.DataLoader(train, batch_size=4, with_indices=True):
        kept, _, weight = sieve(x, i)
        waiting.append((kept, weight, indices))
        if len(waiting) == 3:
            answer(*waiting.pop(0))
    for one in waiting:
        answer(*one)
    known = train.scores.isfinite()
    assert int(known.sum()) == 8
    assert torch.equal(train.scores[known], torch.arange(1.0, 17.0)[known])


def test_a_batch_that_is_skipped_is_not_waited_for() -> None:
    sieve, ((first, weight), _) = two(hardest(0.5))
    sieve.skip()
    with pytest.raises(MisalignedError, match="Call sieve"):
        sieve.reduce(first)
    with pytest.raises(MisalignedError, match="weights"):
        sieve.reduce(first, weight)
    kept, _ = sieve(batches(1)[0])
    sieve.reduce(kept)


def test_other_weights_are_refused() -> None:
    sieve, ((first, weight), _) = two(hardest(0.5))
    with pytest.raises(MisalignedError, match="the tensor itself"):
        sieve.reduce(first, weight.clone())


def test_a_loop_that_applies_the_weights_itself_keeps_no_batch_alive() -> None:
    sieve = Sieve(lambda losses: losses, hardest(0.5))
    for batch in batches(100):
        sieve(batch)
    assert len(sieve._waiting._batches) <= 16


def test_a_skipped_first_batch_of_a_method_that_measures_is_no_error() -> None:
    sieve = Sieve(lambda losses: losses, adaptive())
    sieve(batches(1)[0])
    sieve.skip()
    kept, _ = sieve(batches(1)[0])
    sieve.reduce(kept)


# ---- interrupts --------------------------------------------------------------------------------------------


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3))


def rows(step: int) -> tuple[Tensor, Tensor]:
    noise = torch.Generator().manual_seed(step)
    return torch.randn(SIZE, 4, generator=noise), torch.randint(3, (SIZE,), generator=noise)


def traces(model: nn.Module) -> dict[str, Any]:
    settings = [(one.training, getattr(one, "track_running_stats", None)) for one in model.modules()]
    return {"settings": settings, "state": copy.deepcopy(model.state_dict()), "random": torch.get_rng_state()}


def test_an_interrupt_at_any_line_of_a_look_changes_neither_the_model_nor_the_decision() -> None:
    model = net()
    sieve = Sieve(Own(model, criterion), adaptive(threshold=0.1, every=2))
    for step in range(3):
        kept, labels, _ = sieve(*rows(step))
        sieve.reduce(criterion(model(kept), labels))
    state, before = sieve.state_dict(), _flatten(traces(model))
    kept, _, weight = sieve(*rows(3))
    for number in itertools.count(1):
        again = Sieve(Own(model, criterion), adaptive(threshold=0.1, every=2))
        again.load_state_dict(state)
        try:
            with Interrupt(number):
                again(*rows(3))
        except KeyboardInterrupt:
            assert first_difference(before, _flatten(traces(model))) is None, f"interrupted at line {number}"
            if again.state_dict()["step"] == state["step"]:  # else it was done, and only its result is lost
                same, _, other = again(*rows(3))
                assert torch.equal(same, kept), f"interrupted at line {number}"
                assert torch.equal(other, weight)
        else:
            break
    assert number > 100
