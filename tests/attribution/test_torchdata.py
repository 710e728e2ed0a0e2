"""torchdata's StatefulDataLoader: resumed in the middle of an epoch, exactly, with our scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import infobatch

stateful = pytest.importorskip("torchdata.stateful_dataloader")

pytestmark = pytest.mark.filterwarnings("ignore:.set_vital. is deprecated:UserWarning")  # torchdata's own

SIZE, BATCH, EPOCHS = 64, 4, 4


def make(workers: int, **options: Any) -> tuple[infobatch.InfoBatch, Any]:
    train = infobatch.InfoBatch(TensorDataset(torch.arange(SIZE)), EPOCHS, delta=1.0, seed=1)
    loader = stateful.StatefulDataLoader(train, batch_size=BATCH, sampler=train.sampler, num_workers=workers, **options)
    return train, loader


def walk(train: Any, loader: Any, stop: tuple[int, int] | None = None) -> tuple[list[Any], Any]:
    """Train to the end, or to (epoch, step); a loss is the sample's index, so scores tell whose they were."""
    seen: list[Any] = []
    for epoch in range(train.epoch, EPOCHS):
        for step, (ids,) in enumerate(loader):
            train.update(ids.float())
            seen.append((epoch, ids.tolist()))
            if stop == (epoch, step):
                return seen, {"data": train.state_dict(), "loader": loader.state_dict()}
    return seen, None


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [(0, 0), (1, 3), (2, 6)])
def test_resume_is_exact(workers: int, stop: tuple[int, int]) -> None:
    whole, _ = walk(*make(workers))
    first, state = walk(*make(workers), stop)
    train, loader = make(workers)
    train.load_state_dict(state["data"])
    loader.load_state_dict(state["loader"])
    rest, _ = walk(train, loader)
    assert first + rest == whole
    assert torch.equal(train.scores, torch.arange(SIZE).float())


def test_scores_are_not_in_the_loaders_state_but_ours() -> None:
    """With workers the loader's state is older than its batches; ours knows every loss."""
    train, loader = make(2)
    _, state = walk(train, loader, (0, 3))
    fresh = state["data"]["running"]["fresh"]
    assert int((fresh >= 0).sum()) == 4 * BATCH


def test_the_loaders_state_alone_is_refused() -> None:
    _, state = walk(*make(0), (1, 3))
    train, loader = make(0)
    loader.load_state_dict({**state["loader"], "_dataset_state": None})
    with pytest.raises(infobatch.StateError, match=r"train_data\.state_dict"):
        next(iter(loader))
    assert train.epoch == 0


def test_a_loader_that_drops_batches_on_resume_is_refused() -> None:
    train, loader = make(2, snapshot_every_n_steps=3)
    (ids,) = next(iter(loader))
    with pytest.raises(infobatch.MisalignedError, match="snapshot_every_n_steps"):
        train.update(ids.float())
