"""One test per framework: training equals the plain loop, also when resumed inside an epoch, to the bit.

These run with ``make test``. Everything else about a framework is in its own modules, marked slow.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import infobatch


def test_accelerate(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    from accelerate_run import BATCH, SIZE, Run, accelerated, plain, start_anew

    expected = plain(Run(accumulate=4))
    start_anew()
    uninterrupted = accelerated(Run(accumulate=4))
    start_anew()
    accelerated(Run(accumulate=4, save=(2, 3), folder=str(tmp_path)))
    start_anew()
    resumed = accelerated(Run(accumulate=4, folder=str(tmp_path), load=True))
    start_anew()
    for result in (uninterrupted, resumed):
        assert result["history"] == expected["history"]
        assert torch.equal(result["scores"], expected["scores"])
        assert result["ends"] == expected["ends"]
        for name, value in expected["model"].items():
            assert torch.equal(result["model"][name], value), name
    lengths = [len(epoch["batches"]) for epoch in expected["log"]]
    assert lengths == [math.ceil(summary["kept"] / BATCH) for summary in expected["history"]]
    assert min(lengths) < math.ceil(SIZE / BATCH)
    assert [len(epoch["batches"]) for epoch in resumed["log"]] == [lengths[2] - 4, *lengths[3:]]
    for one, two in zip(uninterrupted["log"], expected["log"], strict=True):
        assert one["rates"] == two["rates"]
        assert torch.equal(torch.cat(one["batches"]), torch.cat(two["batches"]))


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:Be aware that when using .ckpt_path., callbacks.*ModelCheckpoint")
@pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")
def test_lightning(tmp_path: Path) -> None:
    pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning_loop import EPOCHS, FULL, PacedModule, assert_same, ends, fit, plain, wrap

    net, train, steps = plain(with_pace=True)
    whole, resumed = PacedModule(wrap()), PacedModule(wrap())
    fit(whole, ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1))
    step = ends(whole.steps)[1] + 3  # inside a pruned epoch
    trainer = fit(resumed, ckpt_path=tmp_path / f"step={step}.ckpt")
    for module in (whole, resumed):
        assert_same(module.net, module.train_data, net, train)
        assert module.pace.scheduler.last_epoch == EPOCHS * FULL
    assert len(whole.steps) == trainer.global_step == steps < EPOCHS * FULL
    assert resumed.steps == whole.steps[step:]
    assert [epoch for epoch, _ in whole.validated] == list(range(EPOCHS))
    assert resumed.validated == whole.validated[2:]


def test_transformers() -> None:
    pytest.importorskip("transformers")
    from transformers_loop import Save, assert_same, bert, classes, pruned, with_trainer, without

    models, datas = [bert() for _ in range(3)], [pruned(classes()) for _ in range(3)]
    scheduler = without(models[0], datas[0], accumulate=3)
    whole = with_trainer(models[1], datas[1], gradient_accumulation_steps=3, callbacks=[Save([4])])
    resumed = with_trainer(models[2], datas[2], resume="out/checkpoint-4", gradient_accumulation_steps=3)
    for trainer, model, data in zip((whole, resumed), models[1:], datas[1:], strict=True):
        assert_same(model, data, models[0], datas[0])
        assert trainer.lr_scheduler.state_dict() == scheduler.state_dict()
        assert trainer.state.global_step == trainer.state.max_steps == whole.state.global_step


@pytest.mark.filterwarnings("ignore:.set_vital. is deprecated:UserWarning")
def test_torchdata() -> None:
    """A loss is the index of its sample, so the scores show which sample each loss was recorded for."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    size, epochs, stop = 64, 4, (1, 3)

    def make() -> tuple[infobatch.InfoBatch, Any]:
        train = infobatch.InfoBatch(TensorDataset(torch.arange(size)), epochs, delta=1.0, seed=1)
        return train, stateful.StatefulDataLoader(train, batch_size=4, sampler=train.sampler)

    def run(train: Any, loader: Any, stop: tuple[int, int] | None = None) -> tuple[list[Any], Any]:
        seen: list[Any] = []
        for epoch in range(train.epoch, epochs):
            for step, (indices,) in enumerate(loader):
                train.update(indices.float())
                seen.append((epoch, indices.tolist()))
                if stop == (epoch, step):
                    return seen, {"data": train.state_dict(), "loader": loader.state_dict()}
        return seen, None

    uninterrupted, _ = run(*make())
    before, state = run(*make(), stop)
    train, loader = make()
    train.load_state_dict(state["data"])
    loader.load_state_dict(state["loader"])
    after, _ = run(train, loader)
    assert before + after == uninterrupted
    assert len(uninterrupted) < epochs * size / 4
    assert torch.equal(train.scores, torch.arange(size).float())
