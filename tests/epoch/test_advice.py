"""A warning names the line of the user's loop that led to it, not one of ours or of torch's."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import infobatch
from infobatch import InfoBatchWarning

SOURCE = Path(__file__).read_text().splitlines()
LOADERS: dict[str, Callable[[infobatch.Pruned], Iterable[Any]]] = {
    "ours": lambda train: infobatch.DataLoader(train, batch_size=8),
    "torch's": lambda train: torch.utils.data.DataLoader(train, batch_size=8, sampler=train.sampler),
}


def pruned(method: Any, **given: Any) -> infobatch.Pruned:
    return infobatch.Pruned(torch.utils.data.TensorDataset(torch.arange(64.0)), method, 8, **given)


def lines_of(work: Callable[[], None], about: str) -> list[str]:
    """The lines that the warnings about something name; all of this file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
    mine = [each for each in caught if about in str(each.message)]
    assert {each.filename for each in mine} == {__file__}
    assert {each.category for each in mine} == {InfoBatchWarning}
    return [SOURCE[each.lineno - 1].strip() for each in mine]


@pytest.mark.parametrize("loader", LOADERS)
def test_a_warning_at_the_start_of_an_epoch_names_the_loop(loader: str) -> None:
    train = pruned(infobatch.methods.random(ratio=0.7), compensate="loss")
    batches = LOADERS[loader](train)

    def two_epochs() -> None:
        for _ in range(2):
            for (x,) in batches:  # here
                train.update(x)

    assert lines_of(two_epochs, "a step stands for") == ["for (x,) in batches:  # here"]


@pytest.mark.parametrize("loader", LOADERS)
def test_a_warning_at_the_end_of_an_epoch_names_what_ended_it(loader: str) -> None:
    train = pruned(infobatch.methods.full())
    batches = LOADERS[loader](train)

    def an_epoch() -> None:
        for (x,) in batches:
            train.update(torch.where(x < 3, torch.nan, x))
        assert train.epoch == 1  # asked

    assert lines_of(an_epoch, "were not finite") == ["assert train.epoch == 1  # asked"]


def test_a_warning_of_pace_names_the_call_of_pace() -> None:
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    train = pruned(infobatch.methods.infobatch(), compensate="loss")

    def pacing() -> None:
        infobatch.pace(scheduler, train, 1)  # named

    assert lines_of(pacing, "scale of a gradient") == ["infobatch.pace(scheduler, train, 1)  # named"]


@pytest.mark.parametrize(
    ("settings", "said"), [({"warmup": 20}, 1), ({"warmup": 17}, 0), ({"warmup": 50}, 1), ({"delta": 0.0}, 0)]
)
def test_a_run_too_short_to_prune_is_told(
    recwarn: pytest.WarningsRecorder, settings: dict[str, Any], said: int
) -> None:
    warnings.simplefilter("always")
    infobatch.Pruned(range(40), infobatch.methods.infobatch(**settings), 20)
    infobatch.Pruned(range(40), infobatch.methods.full(), 20)
    assert ["prunes nothing" in str(each.message) for each in recwarn] == [True] * said


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (infobatch.methods.infobatch(), 1),
        (infobatch.methods.seta(), 1),
        (infobatch.methods.full(), 0),  # nobody expects it to prune
        (infobatch.methods.random_star(), 0),  # needs no loss to prune
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_a_run_of_one_epoch_is_told_that_it_prunes_nothing(
    recwarn: pytest.WarningsRecorder, method: infobatch.methods.Method, said: int
) -> None:
    warnings.simplefilter("always")
    train = infobatch.Pruned(range(40), method, 1)
    assert [each.category for each in recwarn] == [InfoBatchWarning] * said
    assert ["prunes nothing" in str(each.message) for each in recwarn] == [True] * said
    assert (train.plan().kept == 40) == (method.name != "random_star")


@pytest.mark.parametrize(
    ("epochs", "delta", "said"), [(7, 0.875, 1), (3, 0.7, 1), (8, 0.875, 0), (4, 0.75, 0), (7, 1.0, 0)]
)
def test_a_run_too_short_to_end_on_all_data_is_told(
    recwarn: pytest.WarningsRecorder, epochs: int, delta: float, said: int
) -> None:
    warnings.simplefilter("always")
    train = infobatch.InfoBatch(range(40), epochs, delta=delta)
    assert ["no epoch on full data is left" in str(each.message) for each in recwarn] == [True] * said
    for each in recwarn:
        (smaller,) = re.findall(r"train longer, or use a smaller delta, e\.g\. delta=(\S+)$", str(each.message))
        infobatch.InfoBatch(range(40), epochs, delta=float(smaller))
    assert len(recwarn) == said
    infobatch.Pruned(range(40), infobatch.methods.seta(), epochs)  # prunes to its end, however long
    assert len(recwarn) == said
    infobatch.Pruned(range(40), infobatch.variations.annealed(infobatch.methods.seta(), delta), epochs)
    assert len(recwarn) == 2 * said
    last = infobatch.methods.when.Moment(epochs - 1, epochs)
    assert said == (train.method.schedule(last) and delta < 1)
