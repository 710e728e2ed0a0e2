"""Lightning: what a run under its Trainer leaves is what the plain loop leaves, to the bit, also when resumed."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import run_ranks
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import TensorDataset

import infobatch
from infobatch.errors import InfoBatchWarning, InputError, MisalignedError, StateError

pl = pytest.importorskip("lightning.pytorch")

from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from lightning.pytorch.utilities.exceptions import MisconfigurationException  # noqa: E402

from infobatch.integrations.lightning import Pruning  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Be aware that when using .ckpt_path., callbacks.*ModelCheckpoint"),
]

SIZE, EPOCHS, BATCH, LR = 101, 6, 8, 0.1
FULL = math.ceil(SIZE / BATCH)


@pytest.fixture(autouse=True)
def _alone() -> Any:
    """One thread, and no process group that a Trainer left behind."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def samples() -> TensorDataset:
    noise = torch.Generator().manual_seed(7)
    x = torch.randn(SIZE, 4, generator=noise)
    return TensorDataset(x, (x.sum(1, keepdim=True) + 0.3 * torch.randn(SIZE, 1, generator=noise)).sin())


def wrap(num_epochs: int = EPOCHS) -> infobatch.InfoBatch:
    return infobatch.InfoBatch(samples(), num_epochs, 0.5, 0.8, seed=3)


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def paced(optimizer: Any, train: infobatch.Pruned, full: int = FULL) -> Any:
    return infobatch.pace(CosineAnnealingLR(optimizer, T_max=EPOCHS * full), train, steps_per_epoch=full)


class Module(pl.LightningModule):
    """The module of the page, with an eye on what runs when."""

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


def plain(with_pace: bool = False, accumulate: int = 1, **options: Any) -> tuple[Any, Any, int]:
    """The loop of the README."""
    train, net = wrap(), make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9)
    scheduler = paced(optimizer, train, math.ceil(FULL / accumulate)) if with_pace else None
    loader, steps = infobatch.DataLoader(train, batch_size=BATCH, **options), 0
    for _ in range(EPOCHS):
        last = len(loader)
        for count, (x, y) in enumerate(loader, start=1):
            (train.update((net(x) - y).square().squeeze(1)) / accumulate).backward()
            if count % accumulate == 0 or count == last:
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


# ---- the same as the plain loop --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Module, PacedModule])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_leaves_what_the_plain_loop_leaves(kind: Any, accumulate: int) -> None:
    net, train, steps = plain(kind is PacedModule, accumulate)
    module = kind(wrap())
    module.full = math.ceil(FULL / accumulate)
    trainer = fit(module, accumulate_grad_batches=accumulate)
    assert_same(module.net, module.train_data, net, train)
    assert trainer.global_step == steps
    if kind is PacedModule:
        assert module.pace.scheduler.last_epoch == EPOCHS * math.ceil(FULL / accumulate)
        assert module.pace.get_last_lr() == pytest.approx([0.0], abs=1e-9)


def test_every_epoch_is_whole_and_validated() -> None:
    module = Module(wrap())
    trainer = fit(module)
    lengths = [math.ceil(report.kept / BATCH) for report in module.train_data.history]
    assert min(lengths) < FULL
    assert lengths[0] == lengths[-1] == FULL
    assert [epoch for epoch, _, _ in module.steps] == [e for e, length in enumerate(lengths) for _ in range(length)]
    assert module.validated == [(epoch, length - 1) for epoch, length in enumerate(lengths)]
    last = module.train_data.history[-1]
    assert trainer.callback_metrics["infobatch/saved"] == last.saved == 0.0
    assert trainer.callback_metrics["infobatch/saved_so_far"] == pytest.approx(last.saved_so_far)


def test_validation_inside_an_epoch_follows_its_length() -> None:
    module = Module(wrap())
    fit(module, val_check_interval=0.5)
    halves = [math.ceil(report.kept / BATCH) // 2 for report in module.train_data.history]
    assert module.validated == [(e, half * k - 1) for e, half in enumerate(halves) for k in (1, 2)]


@pytest.mark.parametrize("options", [{"num_workers": 2, "persistent_workers": True}, {"drop_last": True}])
def test_other_loaders(options: dict[str, Any]) -> None:
    net, train, _ = plain(**options)
    module = Module(wrap(), **options)
    fit(module)
    assert_same(module.net, module.train_data, net, train)


def test_manual_optimization() -> None:
    class Manual(PacedModule):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, batch_idx))
            optimizer.step()
            self.pace.step()

    net, train, _ = plain(with_pace=True)
    module = Manual(wrap())
    fit(module)
    assert_same(module.net, module.train_data, net, train)


# ---- checkpoints -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """An undisturbed run, and its checkpoints after each step."""
    folder = tmp_path_factory.mktemp("steps")
    module = PacedModule(wrap())
    every = ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1)
    fit(module, every)
    return module, folder


def ends(steps: list[tuple[int, int, int]]) -> list[int]:
    """The step at the end of each epoch."""
    epochs = [epoch for epoch, _, _ in steps]
    return [len(epochs) - epochs[::-1].index(epoch) for epoch in range(EPOCHS)]


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
    with pytest.warns(InfoBatchWarning, match="those of 2 batches are lost"):
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
        with pytest.raises(StateError, match=r"train_data in epoch 1, .* got epoch 2"):
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
    with pytest.raises(StateError, match="in epoch 0, where the trainer is; got epoch 1"):
        fit(Module(train))


# ---- ranks -----------------------------------------------------------------------------------------------


def test_two_ranks_leave_what_the_plain_loop_of_two_leaves(tmp_path: Path) -> None:
    """And resumed in and between epochs they leave it, too."""
    run_ranks(2, Path(__file__).with_name("lightning_ranks.py"), tmp_path)
    ranks = [torch.load(tmp_path / f"rank{rank}", weights_only=True) for rank in range(2)]
    lengths = [math.ceil(math.ceil(kept / 2) / (BATCH / 2)) for kept in ranks[0]["plain"]["kept"]]
    assert min(lengths) < FULL
    for rank in ranks:
        whole = rank["whole"]
        assert whole["validated"] == [(epoch, length - 1) for epoch, length in enumerate(lengths)]
        assert [step[:2] for step in whole["steps"]] == [(e, i) for e, n in enumerate(lengths) for i in range(n)]
        assert rank["plain"]["where"][lengths[0] - 1] == {"epoch": 1, "done": 0}
        for step, resumed in rank["resumed"].items():
            assert resumed["steps"] == whole["steps"][step:]
        for other in (whole, *rank["resumed"].values()):
            assert other["kept"] == ranks[0]["plain"]["kept"]
            assert torch.equal(other["scores"], ranks[0]["plain"]["scores"])
            for name, value in ranks[0]["plain"]["net"].items():
                assert torch.equal(other["net"][name], value)


# ---- epochs that end early -------------------------------------------------------------------------------


def test_losses_that_never_come_are_named() -> None:
    class Forgets(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            del batch_idx
            return self.net(batch[0]).square().mean()

    with pytest.raises(MisalignedError, match=r"over after 0\. Return train_data\.update\(losses\)"):
        fit(Forgets(wrap()))


def test_an_epoch_that_is_broken_off_is_refused() -> None:
    class Breaks(Module):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if (self.current_epoch, batch_idx) == (1, 3) else None

    with pytest.raises(MisalignedError, match=r"epoch 1 over after 24\. Let each epoch run to its end"):
        fit(Breaks(wrap()))


def test_training_may_stop_anywhere() -> None:
    class Stops(Module):
        def on_train_batch_end(self, *args: Any) -> None:
            self.trainer.should_stop = len(self.steps) == FULL + 3

    module = Stops(wrap())
    fit(module)
    assert len(module.steps) == FULL + 3
    assert len(module.train_data.history) == 1


# ---- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_epochs": 5}, r"max_epochs=6\); got 5"),
        ({"max_epochs": None}, r"max_epochs=6\); got 1000"),
        ({"max_steps": 10}, r"max_steps=-1\); got 10"),
        ({"fast_dev_run": True}, "without this callback"),
        ({"limit_train_batches": 0.5}, "limit_train_batches=.* Subset"),
        ({"limit_train_batches": 4}, "limit_train_batches=.* Subset"),
        ({"overfit_batches": 2}, "overfit_batches=.* Subset"),
        ({"reload_dataloaders_every_n_epochs": 1}, "follows all plans"),
        ({"val_check_interval": 4}, "share of an epoch"),
        ({"strategy": "ddp", "devices": 1}, "use_distributed_sampler=False"),
    ],
)
@pytest.mark.filterwarnings("ignore:.max_epochs. was not set")
def test_a_trainer_that_cannot_work_is_refused(options: dict[str, Any], text: str) -> None:
    module = Module(wrap())
    with pytest.raises(InputError, match=text):
        fit(module, **options)
    assert module.train_data.epoch == 0
    assert not module.steps


def test_steps_across_epochs_may_say_when_to_validate() -> None:
    module = Module(wrap())
    fit(module, val_check_interval=7, check_val_every_n_epoch=None)
    assert len(module.validated) == len(module.steps) // 7


@pytest.mark.parametrize("kind", ["torch's", "other data", "two"])
def test_a_loader_that_cannot_work_is_refused(kind: str) -> None:
    train, other = wrap(), wrap()

    class Odd(Module):
        def train_dataloader(self) -> Any:
            if kind == "torch's":
                return torch.utils.data.DataLoader(train, batch_size=BATCH, sampler=train.sampler)
            if kind == "other data":
                return infobatch.DataLoader(other, batch_size=BATCH)
            return [infobatch.DataLoader(train, batch_size=BATCH), infobatch.DataLoader(other, batch_size=BATCH)]

    with pytest.raises(InputError, match=r"one infobatch\.DataLoader over the callback's train_data"):
        fit(Odd(train))


def test_data_that_cannot_work_is_refused() -> None:
    with pytest.raises(InputError, match="Wrap it first"):
        Pruning(samples())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="shard_scores"):
        Pruning(infobatch.InfoBatch(samples(), EPOCHS, 0.5, 0.8, shard_scores=True))


def test_a_copy_in_another_process_is_refused() -> None:
    """As with ddp_spawn, which sends everything through pickle."""
    copy = pickle.loads(pickle.dumps(Pruning(wrap())))
    with pytest.raises(InputError, match=r'strategy="ddp"'):
        trainer_with(copy).fit(Module(wrap()))


# ---- schedulers ------------------------------------------------------------------------------------------


def test_pace_of_an_optimizer_alone(tmp_path: Path) -> None:
    class Alone(PacedModule):
        def configure_optimizers(self) -> Any:
            optimizer = Module.configure_optimizers(self)
            self.rates: list[float] = []
            return [optimizer], [{"scheduler": infobatch.pace(optimizer, self.train_data), "interval": "step"}]

        def on_train_batch_end(self, *args: Any) -> None:
            self.rates += [self.trainer.optimizers[0].param_groups[0]["lr"]]

    whole = Alone(wrap())
    fit(whole, ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1))
    growths = [report.growth for report in whole.train_data.history]
    assert whole.rates[FULL] == pytest.approx(LR * growths[1])
    for step in (ends(whole.steps)[0], ends(whole.steps)[2] + 2, ends(whole.steps)[4]):
        module = Alone(wrap())
        fit(module, ckpt_path=tmp_path / f"step={step}.ckpt")
        assert_same(module.net, module.train_data, whole.net, whole.train_data)


@pytest.mark.parametrize(
    ("interval", "full", "accumulate", "text"),
    [
        ("epoch", FULL, 1, r'steps_per_epoch=1 for "interval": "epoch"'),
        ("step", FULL, 2, "steps_per_epoch=7 .* accumulate_grad_batches=2; got .*steps_per_epoch=13"),
        ("step", 1, 1, "steps_per_epoch=13 "),
    ],
)
def test_a_pace_that_does_not_fit_is_refused(interval: str, full: int, accumulate: int, text: str) -> None:
    module = PacedModule(wrap())
    module.interval, module.full = interval, full
    with pytest.raises(InputError, match=text):
        fit(module, accumulate_grad_batches=accumulate)


def test_a_schedule_of_epochs() -> None:
    module = PacedModule(wrap())
    module.interval, module.full = "epoch", 1
    fit(module)
    assert module.pace.scheduler.last_epoch == EPOCHS


def test_a_pace_that_no_checkpoint_would_hold_is_refused() -> None:
    module = PacedModule(wrap())
    module.given = False
    with pytest.raises(InputError, match="no scheduler that a checkpoint holds"):
        fit(module)


def test_lightning_itself_wants_to_be_told_how_to_step_a_pace() -> None:
    class Untold(PacedModule):
        lr_scheduler_step = Module.lr_scheduler_step

    with pytest.raises(MisconfigurationException, match="lr_scheduler_step"):
        fit(Untold(wrap()))


def test_a_scheduler_that_would_end_early_is_warned_of() -> None:
    class Early(Module):
        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            return [optimizer], [{"scheduler": CosineAnnealingLR(optimizer, EPOCHS * FULL), "interval": "step"}]

    with pytest.warns(InfoBatchWarning, match="wrap it in infobatch.pace"):
        fit(Early(wrap()))
