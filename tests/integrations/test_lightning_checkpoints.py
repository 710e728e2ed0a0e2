"""A run resumed from a Lightning checkpoint gives the same result as an uninterrupted one, or an error."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import infobatch
from infobatch.errors import InfoBatchWarning, StateError

pl = pytest.importorskip("lightning.pytorch")

from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint  # noqa: E402
from lightning_loop import (  # noqa: E402
    BATCH,
    EPOCHS,
    FULL,
    QUIET,
    Module,
    PacedModule,
    assert_same,
    ends,
    fit,
    plain,
    trainer_with,
    wrap,
)

from infobatch.integrations.lightning import Pruning  # noqa: E402

pytestmark = [pytest.mark.slow, *QUIET]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """An undisturbed run, and its checkpoints after each step."""
    folder = tmp_path_factory.mktemp("steps")
    module = PacedModule(wrap())
    every = ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1)
    fit(module, every)
    return module, folder


@pytest.mark.parametrize(
    "where", ["first", "in full", "end of full", "in pruned", "end of pruned", "before full", "last"]
)
def test_resumed_at_any_step_it_ends_as_if_undisturbed(saved: Any, where: str) -> None:
    whole, folder = saved
    end = ends(whole.steps)
    step = {
        "first": 1,
        "in full": 5,
        "end of full": end[0],
        "in pruned": end[1] + 3,
        "end of pruned": end[1],
        "before full": end[4],  # the epoch that comes is longer than the one that ended
        "last": end[5],
    }[where]
    module = PacedModule(wrap())
    trainer = fit(module, ckpt_path=folder / f"step={step}.ckpt")
    assert module.steps == whole.steps[step:]
    assert_same(module.net, module.train_data, whole.net, whole.train_data)
    assert module.pace.scheduler.last_epoch == EPOCHS * FULL
    assert trainer.global_step == len(whole.steps)
    assert trainer.fit_loop.epoch_loop._batches_that_stepped == len(whole.steps)  # the step that loggers are told
    assert module.validated == whole.validated[len(whole.validated) - len(module.validated) :]
    assert len(module.validated) == sum(step < last for last in end)


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_resumed_again_and_again(tmp_path: Path, steps: int) -> None:
    """Each process is killed after so many steps, and the next goes on from its last checkpoint."""
    net, train, count = plain(with_pace=True)

    class Kill(pl.Callback):
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            if len(trainer.lightning_module.steps) == steps:
                raise InterruptedError

    path, trained = None, []
    for _ in range(count // steps + 1):
        module = PacedModule(wrap())
        latest = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
        try:
            trainer = fit(module, Kill(), latest, ckpt_path=path)
        except InterruptedError:
            path = max(tmp_path.glob("*.ckpt"), key=lambda found: int(found.stem.split("=")[1]))
        trained += module.steps
        if module.train_data.epoch == EPOCHS:
            break
    lengths = [math.ceil(report.kept / BATCH) for report in train.history]
    assert [step[:2] for step in trained] == [(e, i) for e, length in enumerate(lengths) for i in range(length)]
    assert trainer.global_step == count
    assert_same(module.net, module.train_data, net, train)


@pytest.mark.parametrize("interval", [1.0, 0.5])
def test_resumed_after_validation(tmp_path: Path, interval: float) -> None:
    whole = PacedModule(wrap())
    each = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, save_on_train_epoch_end=False)
    fit(whole, each, val_check_interval=interval)
    paths = sorted(tmp_path.glob("*.ckpt"), key=lambda found: int(found.stem.split("=")[1]))
    assert len(paths) == EPOCHS / interval
    for path in paths[3::4]:
        module = PacedModule(wrap())
        fit(module, ckpt_path=path, val_check_interval=interval)
        assert module.steps == whole.steps[len(whole.steps) - len(module.steps) :]
        assert module.validated == whole.validated[len(whole.validated) - len(module.validated) :]
        assert len(module.validated) == len(paths) - 1 - paths.index(path)
        assert_same(module.net, module.train_data, whole.net, whole.train_data)


def test_what_lightning_loses_in_the_middle_of_an_accumulation_is_said(tmp_path: Path) -> None:
    class Save(pl.Callback):
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            if len(trainer.lightning_module.steps) == 5:
                trainer.save_checkpoint(tmp_path / "five.ckpt")

    fit(Module(wrap()), Save(), accumulate_grad_batches=3)
    module = Module(wrap())
    with pytest.warns(InfoBatchWarning, match="2 batches are lost"):
        fit(module, ckpt_path=tmp_path / "five.ckpt", accumulate_grad_batches=3)
    assert [report.epoch for report in module.train_data.history] == list(range(EPOCHS))


@pytest.mark.parametrize(("last", "updated"), [(False, False), (False, True), (True, False), (True, True)])
def test_resumed_where_an_exception_came(saved: Any, tmp_path: Path, last: bool, updated: bool) -> None:
    """Inside a batch, before or after its losses came: Lightning has not counted it, and train_data may have."""
    whole, _ = saved
    at = (1, [step for step in whole.steps if step[0] == 1][-1][1] if last else 3)

    class Fails(PacedModule):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if at == (self.current_epoch, batch_idx) and not updated:
                raise InterruptedError
            loss = super().training_step(batch, batch_idx)
            if at == (self.current_epoch, batch_idx):
                raise InterruptedError
            return loss

    with pytest.raises(InterruptedError):
        fit(Fails(wrap()), ModelCheckpoint(tmp_path, "failed", save_on_exception=True, every_n_epochs=9))
    module = PacedModule(wrap())
    if last and updated:
        with pytest.raises(StateError, match=r"train_data in epoch 1.* got epoch 2"):
            fit(module, ckpt_path=tmp_path / "failed.ckpt")
        return
    with pytest.warns(InfoBatchWarning, match="saved inside a batch"):
        fit(module, ckpt_path=tmp_path / "failed.ckpt")
    assert [report.epoch for report in module.train_data.history] == list(range(EPOCHS))
    assert [epoch for epoch, _ in module.validated] == list(range(1, EPOCHS))
    if not updated:
        assert_same(module.net, module.train_data, whole.net, whole.train_data)


def test_evaluation_of_a_checkpoint_leaves_the_scores_alone(saved: Any) -> None:
    _, folder = saved
    module = PacedModule(wrap())
    trainer = fit(module)
    before = module.train_data.scores
    trainer.validate(module, ckpt_path=folder / "step=5.ckpt", verbose=False)
    assert module.train_data.epoch == EPOCHS
    assert torch.equal(module.train_data.scores, before)


@pytest.mark.parametrize("step", [5, 13, 20, 31])
@pytest.mark.parametrize("own_loader", [True, False])
def test_a_checkpoint_without_the_scores_is_refused(saved: Any, tmp_path: Path, step: int, own_loader: bool) -> None:
    """From a run without the callback; with our loader or with another."""
    _, folder = saved
    state = torch.load(folder / f"step={step}.ckpt", weights_only=False)
    del state["callbacks"]["Pruning"]
    if not own_loader:
        del state["loops"]["fit_loop"]["state_dict"]["combined_loader"]
    torch.save(state, tmp_path / "without.ckpt")
    with pytest.raises(StateError, match=r"train_data\.state_dict" if own_loader else "saved with this callback"):
        fit(PacedModule(wrap()), ckpt_path=tmp_path / "without.ckpt")


def test_data_from_another_run_is_refused() -> None:
    train = wrap()
    for x, _ in infobatch.DataLoader(train, batch_size=BATCH):
        train.update(x.sum(1))
    with pytest.raises(StateError, match=r"in epoch 0.*; got epoch 1"):
        fit(Module(train))


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("epoch", [0, 1])
def test_a_second_fit_after_one_that_broke_off_is_refused(epoch: int, same: bool) -> None:
    """Also by the same Trainer, which still holds the counts of the first fit."""

    class Breaks(pl.Callback):
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            if trainer.current_epoch == epoch and trainer.fit_loop.batch_idx == 3:
                raise InterruptedError

    module = Module(wrap())
    trainer = trainer_with(Pruning(module.train_data), Breaks())
    with pytest.raises(InterruptedError):
        trainer.fit(module)
    steps = len(module.steps)
    if not same:
        trainer = trainer_with(Pruning(module.train_data))
    with pytest.raises(StateError, match=rf"got epoch ({epoch} with 32|{epoch + 1} with 0) samples done"):
        trainer.fit(module)
    assert len(module.steps) == steps


def test_an_accumulation_that_lightning_does_not_go_on_with_is_said(tmp_path: Path) -> None:
    every = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
    fit(Module(wrap()), every, GradientAccumulationScheduler({0: 4}))
    module = Module(wrap())
    with pytest.warns(InfoBatchWarning, match="instead of every 4"):
        fit(module, GradientAccumulationScheduler({0: 4}), ckpt_path=tmp_path / "step=2.ckpt")
    assert [report.epoch for report in module.train_data.history] == list(range(EPOCHS))
