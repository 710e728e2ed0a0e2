"""A warning names the line of the user's loop that led to it, not one of ours or of torch's."""

from __future__ import annotations

import gc
import re
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import infobatch
from infobatch import InfoBatchWarning
from infobatch.epoch.advice import find_schedulers

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


@pytest.mark.parametrize(("least", "says"), [(0, True), (3, False)])
def test_a_remedy_is_named_if_no_loss_of_an_epoch_was_finite(least: int, says: bool) -> None:
    train = pruned(infobatch.methods.full())
    for (x,) in LOADERS["ours"](train):
        train.update(torch.where(x >= least, torch.nan, x))
    with pytest.warns(InfoBatchWarning, match="were not finite") as caught:
        _ = train.epoch  # closes the epoch
    assert ["learning rate" in str(one.message) for one in caught if "finite" in str(one.message)] == [says]


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
    last = infobatch.methods.method.Moment(epochs - 1, epochs)
    assert said == (train.method.schedule(last) and delta < 1)


# ---- loops that do not do what they seem to -----------------------------------------------------------------


def told(train: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train()
    return [str(one.message) for one in caught if issubclass(one.category, infobatch.InfoBatchWarning)]


def a_loop(*, paced: bool, every: int | None, method: Any = None, begun: int = 0, make: Any = None) -> None:
    """A plain loop with a scheduler stepped at every so many batches, once per epoch (0), or no scheduler (None)."""
    make = make or (lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 64 // (every or 64)))
    data = torch.utils.data.TensorDataset(torch.rand(64, 1))
    train_data = infobatch.Pruned(data, method or infobatch.methods.infobatch(), 8)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if every is None:
        scheduler: Any = None
    else:
        scheduler = make(optimizer)
    if begun:
        scheduler.load_state_dict(scheduler.state_dict() | {"last_epoch": begun, "_step_count": begun + 1})
    if paced:
        scheduler = infobatch.pace(scheduler, train_data, 8 // every if every else 1)
    for _ in range(8):
        for number, (x,) in enumerate(infobatch.DataLoader(train_data, batch_size=8), 1):
            train_data.update(model(x).square().sum(1)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if every and number % every == 0:
                scheduler.step()
        if every == 0:
            scheduler.step()


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("every", [1, 2])
def test_a_scheduler_that_counts_steps_without_pace_is_noticed(every: int) -> None:
    (text,) = told(lambda: a_loop(paced=False, every=every))
    assert "infobatch.pace(" in text
    assert "CosineAnnealingLR" in text
    assert told(lambda: a_loop(paced=True, every=every)) == []


@pytest.mark.usefixtures("watched")
def test_of_schedulers_in_sequence_the_sequence_is_named() -> None:
    """It is what the loop steps, and what pace has to wrap."""

    def loop() -> None:
        train_data = infobatch.InfoBatch(torch.utils.data.TensorDataset(torch.rand(64)), 3, delta=0.5)
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.01)
        parts: list[Any] = [torch.optim.lr_scheduler.ConstantLR(optimizer) for _ in range(2)]
        scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, parts, [4])
        for _ in range(2):
            for (x,) in infobatch.DataLoader(train_data, batch_size=8):
                train_data.update(x)
                optimizer.step()
                scheduler.step()

    (text,) = told(loop)
    assert text.startswith("SequentialLR was stepped 8 times")


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("every", [0, None])
def test_a_later_training_of_the_process_is_watched_too(every: int | None) -> None:
    """In a notebook, short trials come first, with a scheduler or without one."""

    def trainings() -> None:
        for _ in range(12):
            a_loop(paced=False, every=every)
        a_loop(paced=False, every=1)

    assert len(told(trainings)) == 1


@pytest.mark.usefixtures("watched")
def test_schedulers_are_not_looked_for_again_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    assert find_schedulers() == []
    monkeypatch.setattr(gc, "get_objects", lambda: pytest.fail("looked again"))
    assert find_schedulers() == []
    monkeypatch.undo()
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    own = type("Own", (torch.optim.lr_scheduler.StepLR,), {})(optimizer, 1)
    assert find_schedulers() == [own]
    torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    del own
    assert find_schedulers() == []


@pytest.mark.usefixtures("watched")
def test_a_scheduler_stepped_once_per_epoch_needs_no_pace() -> None:
    assert told(lambda: a_loop(paced=False, every=0)) == []
    assert told(lambda: a_loop(paced=True, every=0)) == []


@pytest.mark.usefixtures("watched")
def test_without_pruning_nothing_is_noticed() -> None:
    assert told(lambda: a_loop(paced=False, every=1, method=infobatch.methods.full())) == []


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize(("begun", "said"), [(20, 1), (0, 0)])
def test_a_scheduler_that_was_resumed_without_the_data_is_noticed(begun: int, said: int) -> None:
    texts = told(lambda: a_loop(paced=True, every=1, begun=begun))
    assert ["train_data.state_dict()" in text for text in texts] == [True] * said


@pytest.mark.usefixtures("watched")
def test_a_scheduler_that_waits_for_a_warm_up_is_no_such_case() -> None:
    def warm_up_then_cosine(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
        return torch.optim.lr_scheduler.SequentialLR(optimizer, [warm_up, cosine], milestones=[4])

    assert told(lambda: a_loop(paced=True, every=1, make=warm_up_then_cosine)) == []


@pytest.mark.usefixtures("watched")
def test_a_training_resumed_in_its_first_epoch_is_no_such_case() -> None:
    data = torch.utils.data.TensorDataset(torch.rand(64, 1))
    states: list[dict[str, Any]] = []

    def loop() -> None:
        train_data = infobatch.InfoBatch(data, 8)
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 64)
        scheduler = infobatch.pace(cosine, train_data, 8)
        for one, state in zip((scheduler, train_data), states, strict=False):
            one.load_state_dict(state)
        for _ in range(train_data.epoch, 8):
            for step, (x,) in enumerate(infobatch.DataLoader(train_data, batch_size=8)):
                train_data.update(model(x).square().sum(1)).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                scheduler.step()
                if not states and step == 2:
                    states[:] = scheduler.state_dict(), train_data.state_dict()
                    return

    assert told(lambda: (loop(), loop())) == []
    assert states[1]["epoch"] == 0


def test_the_callers_variables_stay_as_they_are() -> None:
    """A script may hold on to the dict that locals() returned, as Ignite's example does."""

    def loop() -> dict[str, Any]:
        rate = 0.1
        config = locals()
        a_loop(paced=False, every=0)
        assert rate == 0.1
        return config

    assert loop()["rate"] == 0.1


def test_an_epoch_whose_losses_never_reach_backward_is_noticed() -> None:
    weight = torch.nn.Parameter(torch.ones(1))

    def loop(*, backward: bool) -> None:
        train_data = infobatch.InfoBatch(torch.utils.data.TensorDataset(torch.rand(8)), 2, delta=0.5)
        for _ in range(2):
            for (x,) in infobatch.DataLoader(train_data, batch_size=2):
                loss = train_data.update(x * weight)
                if backward:
                    loss.backward()  # type: ignore[no-untyped-call]
        assert train_data.epoch == 2

    (text,) = [text for text in told(lambda: loop(backward=False)) if "backward" in text]
    assert "full()" in text
    assert not [text for text in told(lambda: loop(backward=True)) if "backward" in text]


@pytest.mark.parametrize(("epochs", "said"), [(1, 0), (4, 1)])
def test_epochs_of_one_batch_without_backward_are_noticed(epochs: int, said: int) -> None:
    """A loop may call backward on the only loss of an epoch after the epoch was closed; not on those of many."""
    weight = torch.nn.Parameter(torch.ones(1))

    def loop() -> None:
        train_data = infobatch.InfoBatch(torch.utils.data.TensorDataset(torch.rand(8)), 8)
        for _ in range(epochs):
            for (x,) in infobatch.DataLoader(train_data, batch_size=8):
                train_data.update(x * weight)
        assert train_data.epoch == epochs

    assert ["backward" in text for text in told(loop)] == [True] * said


@pytest.mark.parametrize("trains", [[False, True, True], [True, True, False], [True] * 3, [False] * 3])
def test_an_epoch_of_losses_without_a_gradient_is_noticed_among_others(trains: list[bool]) -> None:
    """A model evaluated under no_grad, and updates outside of it. If all losses have none, the loop wants it so."""
    weight = torch.nn.Parameter(torch.ones(1))

    def loop() -> None:
        train_data = infobatch.InfoBatch(torch.utils.data.TensorDataset(torch.rand(8)), 3, delta=0.5)
        for has_gradient in trains:
            for (x,) in infobatch.DataLoader(train_data, batch_size=2):
                with torch.set_grad_enabled(has_gradient):
                    losses = x * weight
                loss = train_data.update(losses)
                if has_gradient:
                    loss.backward()  # type: ignore[no-untyped-call]
        assert train_data.epoch == 3

    texts = told(loop)
    assert len(texts) == (len(set(trains)) == 2)
    assert all("full()" in text and f"losses of epoch {trains.index(False)} " in text for text in texts)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_losses_that_cannot_train_are_refused(mode: Any) -> None:
    train_data = infobatch.InfoBatch(torch.utils.data.TensorDataset(torch.rand(8)), 3)
    (x,) = next(iter(infobatch.DataLoader(train_data, batch_size=8)))
    with mode(), pytest.raises(infobatch.MisalignedError, match=r"full\(\)"):
        train_data.update(x)
    assert train_data.epoch == 0
    with mode():
        assert train_data.full().update(x) == x.mean()


@pytest.mark.parametrize("is_given", [False, True])
def test_in_a_short_batch_losses_that_depend_on_the_others_give_no_scores(is_given: bool) -> None:
    data = torch.utils.data.TensorDataset(torch.arange(20.0))
    train_data = infobatch.InfoBatch(data, 3, in_batch_loss=True)
    for (x,) in infobatch.DataLoader(train_data, batch_size=8):
        train_data.update(x + 1, score=x + 1 if is_given else None)
    short = train_data.scores.isnan()
    assert short.sum() == 4
    assert sorted(x.int().tolist()) == short.nonzero().flatten().tolist()
