"""One task, trained under Lightning and in a plain loop."""

from __future__ import annotations

import math
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import TensorDataset

import infobatch
from infobatch.integrations.lightning import Pruning

QUIET = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Be aware that when using .ckpt_path., callbacks.*ModelCheckpoint"),
]

SIZE, EPOCHS, BATCH, LR = 101, 6, 8, 0.1
FULL = math.ceil(SIZE / BATCH)


def samples() -> TensorDataset:
    noise = torch.Generator().manual_seed(7)
    x = torch.randn(SIZE, 4, generator=noise)
    return TensorDataset(x, (x.sum(1, keepdim=True) + 0.3 * torch.randn(SIZE, 1, generator=noise)).sin())


def wrap(num_epochs: int = EPOCHS, **how: Any) -> infobatch.InfoBatch:
    return infobatch.InfoBatch(samples(), num_epochs, 0.5, 0.8, seed=3, **how)


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def paced(optimizer: Any, train: infobatch.Pruned, full: int = FULL) -> Any:
    return infobatch.pace(CosineAnnealingLR(optimizer, T_max=EPOCHS * full), train, steps_per_epoch=full)


class Module(pl.LightningModule):
    """The module of the docs page, recording its training and validation steps."""

    def __init__(self, train_data: Any, **loader: Any) -> None:
        super().__init__()
        self.net = make_net()
        self.train_data = train_data
        self.loader = {"batch_size": BATCH, **loader}
        self.steps: list[tuple[int, int, int]] = []
        self.validated: list[tuple[int, int]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        self.steps.append((self.current_epoch, batch_idx, len(x)))
        return self.train_data.update((self.net(x) - y).square().squeeze(1))

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if not self.trainer.sanity_checking:
            self.validated.append((self.current_epoch, self.trainer.fit_loop.batch_idx))

    def train_dataloader(self) -> Any:
        return infobatch.DataLoader(self.train_data, **self.loader)

    def val_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(samples(), batch_size=SIZE)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=LR, momentum=0.9)


class PacedModule(Module):
    interval, full, given = "step", FULL, True

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        self.pace = paced(optimizer, self.train_data, self.full)
        scheduler = {"scheduler": self.pace, "interval": self.interval}
        return {"optimizer": optimizer, "lr_scheduler": scheduler} if self.given else optimizer

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        scheduler.step()


def trainer_with(*callbacks: Any, **options: Any) -> Any:
    saves = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    options = {"max_epochs": EPOCHS, "enable_checkpointing": saves, **quiet, **options}
    return pl.Trainer(callbacks=list(callbacks), **options)


def fit(module: Any, *callbacks: Any, ckpt_path: Any = None, **options: Any) -> Any:
    trainer = trainer_with(Pruning(module.train_data), *callbacks, **options)
    trainer.fit(module, ckpt_path=ckpt_path)
    return trainer


def plain(with_pace: bool = False, accumulate: int = 1, device: str = "cpu", **options: Any) -> tuple[Any, Any, int]:
    """Train in the loop of the README."""
    train, net = wrap(), make_net().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9)
    scheduler = paced(optimizer, train, math.ceil(FULL / accumulate)) if with_pace else None
    loader, steps = infobatch.DataLoader(train, batch_size=BATCH, **options), 0
    for _ in range(EPOCHS):
        for count, batch in enumerate(loader, start=1):
            x, y = (part.to(device) for part in batch)
            (train.update((net(x) - y).square().squeeze(1)) / accumulate).backward()
            if count % accumulate == 0 or count == len(loader):
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
                if scheduler is not None:
                    scheduler.step()
    return net, train, steps


def assert_same(net: Any, train: Any, other: Any, other_train: Any) -> None:
    assert [report.kept for report in train.history] == [report.kept for report in other_train.history]
    assert len(train.history) == EPOCHS
    assert torch.equal(train.scores, other_train.scores)
    for one, two in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def ends(steps: list[tuple[int, int, int]]) -> list[int]:
    """Return the number of steps made by the end of each epoch."""
    epochs = [epoch for epoch, _, _ in steps]
    return [len(epochs) - epochs[::-1].index(epoch) for epoch in range(EPOCHS)]
