"""Each framework on a GPU: what a plain loop leaves there, also when stopped and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning.pytorch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import accelerate_run
import lightning_loop
import transformers_loop
from accelerate_run import Run, start_anew
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning_loop import QUIET, PacedModule, wrap
from transformers_loop import Save

DEVICE = "cuda"
pytestmark = [pytest.mark.gpu, *QUIET]


def near(here: Any, there: Any) -> None:
    torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-6)


def test_lightning() -> None:
    net, train, steps = lightning_loop.plain(with_pace=True, device=DEVICE)
    module = PacedModule(wrap())
    trainer = lightning_loop.fit(module, accelerator=DEVICE, devices=1)
    assert trainer.global_step == steps
    assert module.train_data.scores.device.type == DEVICE
    assert [report.kept for report in module.train_data.history] == [report.kept for report in train.history]
    near(module.train_data.scores, train.scores)
    near(list(module.net.cpu().parameters()), list(net.cpu().parameters()))


def test_lightning_resumed(tmp_path: Path) -> None:
    whole, rest = PacedModule(wrap()), PacedModule(wrap())
    options: dict[str, Any] = {"accelerator": DEVICE, "devices": 1}
    saves = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=1, save_top_k=-1, filename="{step}")
    lightning_loop.fit(whole, saves, **options)
    lightning_loop.fit(rest, ckpt_path=tmp_path / "step=29.ckpt", **options)
    assert rest.train_data.history == whole.train_data.history
    near(rest.train_data.scores, whole.train_data.scores)
    near(list(rest.net.parameters()), list(whole.net.parameters()))


def test_transformers(tmp_path: Path) -> None:
    given: dict[str, Any] = {"use_cpu": DEVICE == "cpu", "dataloader_pin_memory": True, "output_dir": str(tmp_path)}
    models = [transformers_loop.bert() for _ in range(3)]
    datas = [transformers_loop.pruned(transformers_loop.classes()) for _ in range(3)]
    transformers_loop.without(models[0], datas[0], device=DEVICE)
    transformers_loop.with_trainer(models[1], datas[1], callbacks=[Save([20])], **given)
    checkpoint = str(tmp_path / "checkpoint-20")
    transformers_loop.with_trainer(models[2], datas[2], resume=checkpoint, **given)
    for model, data in zip(models[1:], datas[1:], strict=True):
        assert data.scores.device.type == DEVICE
        assert [report.kept for report in data.history] == [report.kept for report in datas[0].history]
        near(data.scores, datas[0].scores)
        near(transformers_loop.weights(model.cpu()), transformers_loop.weights(models[0].cpu()))


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_accelerate(precision: str, tmp_path: Path) -> None:
    expected = accelerate_run.plain(Run(2, precision=precision, device=DEVICE))
    whole = accelerate_run.accelerated(Run(2, precision=precision, device=DEVICE))
    start_anew()
    accelerate_run.accelerated(Run(2, precision=precision, device=DEVICE, save=(3, 3), folder=str(tmp_path)))
    start_anew()
    resumed = accelerate_run.accelerated(Run(2, precision=precision, device=DEVICE, folder=str(tmp_path), load=True))
    for result in (whole, resumed):
        assert result["scores"].device.type == DEVICE
        assert [one["kept"] for one in result["history"]] == [one["kept"] for one in expected["history"]]
        near(result["scores"], expected["scores"])
        near(result["model"], expected["model"])
        assert result["ends"] == expected["ends"]
