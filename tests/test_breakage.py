"""What once went wrong under rough handling, each with the smallest run that shows it."""

from __future__ import annotations

import copy
import pickle
import threading
import weakref
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, Subset, TensorDataset

import infobatch
from infobatch.epoch.scores import TableSlice


def indices_as_data(size: int) -> TensorDataset:
    return TensorDataset(torch.arange(size).float())


@pytest.mark.parametrize("kind", ["ours", "stock"])
def test_a_checkpoint_leaves_out_losses_of_an_incomplete_batch(kind: str) -> None:
    """A collate that drops a sample shifts the rest of its batch; a resumed run must not take them for scores."""
    items = [float(i) for i in range(12)]

    def drop(batch: list[float]) -> torch.Tensor:
        return torch.tensor([value for value in batch if value != 5.0])

    def loader(train: Any, collate: Any) -> Any:
        if kind == "ours":
            return infobatch.DataLoader(train, 4, collate_fn=collate)
        return DataLoader(train, 4, sampler=train.sampler, collate_fn=collate)

    first = infobatch.InfoBatch(items, 3)
    for x in loader(first, drop):
        with pytest.raises(infobatch.MisalignedError, match="all 4 losses") if len(x) < 4 else nullcontext():
            first.update(x)
        state = first.state_dict()
        if len(x) < 4:
            break
    train = infobatch.InfoBatch(items, 3)
    train.load_state_dict(state)
    for x in loader(train, torch.tensor):
        train.update(x)
    assert torch.equal(train.scores, torch.tensor(items))


def test_saving_never_rests_on_one_sample() -> None:
    train = infobatch.InfoBatch([float(i) for i in range(1000)], 10, saving=0.4)
    for x in infobatch.DataLoader(train, 100):
        train.update(torch.where(x % 2 == 0, x.float(), torch.inf))
    with pytest.warns(infobatch.InfoBatchWarning, match="not finite"):
        plan = train.plan()
    assert plan.table.max() <= 10
    assert plan.table.sum() == pytest.approx(1000)


def test_many_writers_leave_one_whole_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"

    def write(number: int) -> None:
        for _ in range(20):
            infobatch.save({"a": torch.full((30_000 + number * 5_000,), float(number))}, path)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        if path.exists():
            values = infobatch.load(path)["a"]
            assert values.numel() == 30_000 + int(values[0]) * 5_000
    for writer in writers:
        writer.join()
    assert [left.name for left in tmp_path.iterdir()] == ["state.pt"]


def test_save_writes_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "last.pt").symlink_to(tmp_path / "real" / "state.pt")
    infobatch.save({"a": 1}, tmp_path / "last.pt")
    assert (tmp_path / "last.pt").is_symlink()
    assert infobatch.load(tmp_path / "real" / "state.pt") == {"a": 1}


def test_an_epoch_without_a_batch_is_said_so() -> None:
    train = infobatch.InfoBatch(indices_as_data(100), 3)
    for (x,) in infobatch.DataLoader(train, 80, drop_last=True):
        train.update(x)
    with pytest.raises(infobatch.InputError, match="drop_last"):
        list(infobatch.DataLoader(train, 80, drop_last=True))
    for (x,) in infobatch.DataLoader(train, 40, drop_last=True):
        train.update(x)


def test_losses_with_and_without_indices_do_not_mix() -> None:
    train = infobatch.InfoBatch(indices_as_data(6), 5)
    ids = train.plan().indices[:2]
    train.update(ids.float(), ids)
    (x,) = next(iter(infobatch.DataLoader(train, 4)))
    with pytest.raises(infobatch.MisalignedError, match="both"):
        train.update(x)


def test_an_update_that_fails_can_be_repeated() -> None:
    train = infobatch.InfoBatch(indices_as_data(16), 4)
    batches = iter(infobatch.DataLoader(train, 4))
    (x,) = next(batches)
    with pytest.raises(RuntimeError):
        torch.func.grad(lambda weight: train.update(x * weight))(torch.tensor(2.0))
    train.update(x)
    for (x,) in batches:
        train.update(x)
    assert torch.equal(train.scores, torch.arange(16).float())


def test_eight_bit_losses_are_refused() -> None:
    train = infobatch.InfoBatch(indices_as_data(4), 2)
    (x,) = next(iter(infobatch.DataLoader(train, 4)))
    with pytest.raises(infobatch.InputError, match="float8"):
        train.update(x.to(torch.float8_e4m3fn))
    train.update(x)


def test_made_in_inference_mode_used_outside() -> None:
    with torch.inference_mode():
        train = infobatch.InfoBatch(indices_as_data(16), 3)
        batches = iter(infobatch.DataLoader(train, 4))
        (x,) = next(batches)
    factor = torch.ones(1, requires_grad=True)
    train.update(x.clone() * factor).backward()
    for (x,) in batches:
        train.update(x * factor).backward()
    assert torch.equal(train.scores, torch.arange(16).float())


def test_after_a_misattribution_training_can_go_on() -> None:
    class Doubling(BatchSampler):
        def __init__(self, sampler: Any) -> None:
            self.sampler = sampler

        def __iter__(self) -> Any:
            everyone = [index // 2 * 2 for index in self.sampler]
            yield from (everyone[at : at + 4] for at in range(0, len(everyone), 4))

        def __len__(self) -> int:
            return 4

    train = infobatch.InfoBatch(indices_as_data(16), 6)
    for (x,) in infobatch.DataLoader(train, batch_sampler=Doubling(train.sampler)):
        train.update(x)
    with pytest.raises(infobatch.MisalignedError, match="16 losses for 8 samples"):
        train.state_dict()
    assert torch.isnan(train.scores).all()
    for (x,) in infobatch.DataLoader(train, 4):
        train.update(x)
    assert torch.equal(train.scores, torch.arange(16).float())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_set_that_makes_whole_batches_keeps_their_form(workers: int) -> None:
    class Whole(Dataset[Any]):
        def __len__(self) -> int:
            return 18

        def __getitem__(self, index: int) -> Any:
            return {"x": index}

        def __getitems__(self, indices: list[int]) -> Any:
            return {"x": torch.tensor(indices)}

    train = infobatch.InfoBatch(Whole(), 4, delta=1.0)
    loader = infobatch.DataLoader(train, 4, collate_fn=_as_it_is, num_workers=workers)
    for _ in range(3):
        for batch in loader:
            train.update(batch["x"].float())
    assert torch.equal(train.scores, torch.arange(18).float())


def _as_it_is(batch: Any) -> Any:
    return batch


def test_a_copy_is_refused() -> None:
    train = infobatch.InfoBatch(indices_as_data(4), 2)
    for copied in (copy.copy, copy.deepcopy):
        with pytest.raises(infobatch.InputError, match="state_dict"):
            copied(train)


def test_the_look_up_the_stack_keeps_nothing_of_the_loop_alive() -> None:
    """Reading a frame's variables makes Python keep them; a training loop's last loss must not live on that way."""

    class Large:
        pass

    train = infobatch.InfoBatch(indices_as_data(8), 2)
    large = Large()
    gone = weakref.ref(large)
    indices = iter(train.sampler)
    next(indices)
    del large
    assert gone() is None


def test_evaluation_on_the_pruned_loader_is_noticed() -> None:
    """With workers and torch's own loader a pass without updates looks like a peek; three of them do not."""
    data = infobatch.InfoBatch(TensorDataset(torch.rand(64)), 8)
    loader = DataLoader(data, batch_size=8, sampler=data.sampler, num_workers=1)

    def train_and_test() -> None:
        for (x,) in loader:
            data.update(x)
        for _ in loader:
            pass

    for _ in range(3):
        train_and_test()
    with pytest.warns(infobatch.InfoBatchWarning, match=r"train_data\.full\(\)"):
        train_and_test()


def test_after_an_interrupt_inside_update_that_batch_waits_again(monkeypatch: pytest.MonkeyPatch) -> None:
    data = infobatch.InfoBatch(TensorDataset(torch.arange(32.0)), 8)
    batches = iter(infobatch.DataLoader(data, batch_size=8))
    data.update(next(batches)[0])
    (interrupted,) = next(batches)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TableSlice, "note", interrupt)
        with pytest.raises(KeyboardInterrupt):
            data.update(interrupted)
    data.update(interrupted)
    for (x,) in batches:
        data.update(x)
    assert data.epoch == 1
    assert torch.equal(data.scores, torch.arange(32.0))


def test_a_loader_over_other_data_is_refused() -> None:
    """The sampler's positions would mean other samples there."""
    everything = indices_as_data(20)
    train = infobatch.InfoBatch(Subset(everything, range(10, 20)), 8)
    permuted = Subset(train, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0])
    for other in (everything, permuted, Subset(train.dataset, range(9, -1, -1))):
        with pytest.raises(infobatch.MisalignedError, match="a loader over train_data"):
            next(iter(DataLoader(other, 5, sampler=train.sampler)))
    for own in (train, train.dataset):
        next(iter(DataLoader(own, 5, sampler=train.sampler)))


def test_a_data_set_that_grows_is_refused() -> None:
    items = [float(i) for i in range(8)]
    train = infobatch.InfoBatch(items, 8)
    for x in infobatch.DataLoader(train, 4):
        train.update(x.float())
    items.append(8.0)
    with pytest.raises(infobatch.MisalignedError, match=r"8 samples.*got 9"):
        next(iter(infobatch.DataLoader(train, 4)))


def test_compiled_and_eager_updates_of_one_epoch_are_counted_together() -> None:
    train = infobatch.InfoBatch(indices_as_data(12), 8)
    compiled = torch.compile(train.update, backend="eager", dynamic=True)
    indices = train.plan().indices
    for at, update in ((0, train.update), (4, compiled), (8, compiled)):
        some = indices[at : at + 4]
        assert train.progress[:2] == (0, at)
        update(some.float(), some)
    assert (train.epoch, len(train.history)) == (1, 1)
    assert torch.equal(train.scores, torch.arange(12.0))


def test_a_loader_cannot_be_pickled_without_its_plan() -> None:
    train = infobatch.InfoBatch(indices_as_data(8), 8)
    with pytest.raises(infobatch.InputError, match="one owner of the"):
        pickle.dumps(DataLoader(train, 4, sampler=train.sampler))
    with pytest.raises(infobatch.InputError, match="one owner of the plan"):
        pickle.dumps(train.sampler)


# ---- an epoch that is lost -----------------------------------------------------------------------------------


def lose(train_data: infobatch.Pruned, loader: Any, after: Any = lambda: None, *, twice: bool) -> None:
    """An epoch by name, in which some batches come twice."""
    for (z,) in loader:
        for _ in range(1 + (twice and int(z[0]) % 2)):
            train_data.update(z.float(), z)
        after()


def test_an_epoch_whose_losses_are_lost_is_an_epoch_all_the_same() -> None:
    """It was trained: its report is there, what was saved so far is true, and a scheduler goes on."""
    train_data = infobatch.Pruned(TensorDataset(torch.arange(100)), infobatch.methods.saving(0.25), 10)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = infobatch.pace(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), train_data, 10)
    loader = infobatch.DataLoader(train_data, batch_size=10)

    def step() -> None:
        optimizer.step()
        scheduler.step()

    for epoch in range(10):
        twice = epoch in (0, 4)
        with pytest.raises(infobatch.MisalignedError, match="twice") if twice else nullcontext():
            lose(train_data, loader, step, twice=twice)
        assert train_data.epoch == epoch + 1
    assert [report.epoch for report in train_data.history] == list(range(10))
    kept = sum(report.kept for report in train_data.history)
    assert train_data.history[-1].saved_so_far == pytest.approx(1 - kept / 1000)
    assert 0.2 < train_data.history[-1].saved_so_far < 0.3


def test_a_look_at_the_left_out_before_the_first_epoch_sees_nobody() -> None:
    train_data = infobatch.Pruned(TensorDataset(torch.rand(20)), infobatch.methods.ies(), 8)
    assert list(train_data.hidden(4)) == []


class Dropping(BatchSampler):
    """A batch sampler of one's own: what it drops is known at its end."""


@pytest.mark.parametrize("named", [True, False])
def test_an_epoch_ends_with_its_last_batch_where_a_batch_sampler_drops_some(named: bool) -> None:
    train_data = infobatch.InfoBatch(indices_as_data(18), 4, delta=0.5)
    loader = infobatch.DataLoader(train_data, batch_sampler=Dropping(train_data.sampler, 4, True))
    for epoch in range(4):
        for (x,) in loader:
            train_data.update(x, x.long()) if named else train_data.update(x)
        assert train_data.epoch == epoch + 1
    assert len(train_data.history) == 4


def test_a_repr_names_the_epoch_that_comes() -> None:
    train_data = infobatch.InfoBatch(indices_as_data(8), 8)
    for (x,) in infobatch.DataLoader(train_data, batch_size=4):
        train_data.update(x)
    assert "1 of 8 epochs done" in repr(train_data)
    assert train_data._epoch.epoch == 0, "and closes nothing"
