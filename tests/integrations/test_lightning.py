"""Under Lightning, training gives the same result as in a plain loop, to the bit."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import as_spawned, run_ranks
from torch.multiprocessing import ProcessRaisedException
from torch.optim.lr_scheduler import CosineAnnealingLR

import infobatch
from infobatch.errors import InfoBatchWarning, InputError, MisalignedError

pytest.importorskip("lightning.pytorch")

from lightning.pytorch.callbacks import (
    GradientAccumulationScheduler,
    LearningRateFinder,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.tuner import Tuner
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning_loop import (
    BATCH,
    EPOCHS,
    FULL,
    LR,
    QUIET,
    Module,
    PacedModule,
    assert_same,
    fit,
    plain,
    samples,
    trainer_with,
    wrap,
)

from infobatch.integrations.lightning import Pruning

pytestmark = [pytest.mark.slow, *QUIET]


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


class Unsized:
    """Sorts what comes, a few batches at a time, as one does with texts by their length."""

    def __init__(self, sampler: Any, samples: Any) -> None:
        self.sampler, self.samples = sampler, samples

    def __iter__(self) -> Iterator[list[int]]:
        order = list(self.sampler)
        for start in range(0, len(order), 4 * BATCH):
            bucket = sorted(order[start : start + 4 * BATCH])
            yield from (bucket[i : i + BATCH] for i in range(0, len(bucket), BATCH))


class Buckets(Unsized):
    def __len__(self) -> int:
        return math.ceil(len(self.samples) / BATCH)


def with_buckets(train: Any, samples: Any) -> Module:
    """A batch sampler that takes its length from those samples."""
    return Module(train, batch_size=1, batch_sampler=Buckets(train.sampler, samples))


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_batch_sampler_of_the_right_length(accumulate: int) -> None:
    train = wrap()
    module = with_buckets(train, train.sampler)
    trainer = fit(module, accumulate_grad_batches=accumulate)
    lengths = [math.ceil(report.kept / BATCH) for report in train.history]
    assert min(lengths) < FULL
    assert module.validated == [(epoch, length - 1) for epoch, length in enumerate(lengths)]
    assert trainer.global_step == sum(math.ceil(length / accumulate) for length in lengths)


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

    with pytest.raises(MisalignedError, match=r"epoch 0 after 0\. Return train_data\.update"):
        fit(Forgets(wrap()))


def test_an_epoch_that_is_broken_off_is_refused() -> None:
    class Breaks(Module):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if (self.current_epoch, batch_idx) == (1, 3) else None

    with pytest.raises(MisalignedError, match=r"epoch 1 after 24\..*on_train_batch_start"):
        fit(Breaks(wrap()))


def test_a_batch_sampler_of_the_length_of_all_data_is_refused() -> None:
    module = with_buckets(train := wrap(), train.dataset)
    with pytest.raises(InputError, match=r"in epoch 1; got 13 from the __len__ of Buckets"):
        fit(module)
    assert [epoch for epoch, _ in module.validated] == [0]


def test_a_batch_sampler_that_says_too_little_is_refused() -> None:
    with pytest.raises(MisalignedError, match=r"epoch 0 after 80\. .*__len__"):
        fit(with_buckets(wrap(), range(10 * BATCH)))


def test_a_batch_sampler_without_a_length_is_refused() -> None:
    train = wrap()
    with pytest.raises(InputError, match="got Unsized"):
        fit(Module(train, batch_size=1, batch_sampler=Unsized(train.sampler, train.sampler)))


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
        ({"fast_dev_run": True}, "fast_dev_run"),
        ({"limit_train_batches": 0.5}, "limit_train_batches=.* Subset"),
        ({"limit_train_batches": 4}, "limit_train_batches=.* Subset"),
        ({"overfit_batches": 2}, "overfit_batches=.* Subset"),
        ({"reload_dataloaders_every_n_epochs": 1}, "reload_dataloaders_every_n_epochs"),
        ({"val_check_interval": 4}, "val_check_interval"),
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


def test_a_time_may_say_when_to_validate() -> None:
    module = Module(wrap())
    fit(module, val_check_interval=datetime.timedelta(microseconds=1))
    assert module.validated == [step[:2] for step in module.steps]


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

    with pytest.raises(InputError, match=r"infobatch\.DataLoader"):
        fit(Odd(train))


class TakesIterator(Module):
    """Lightning hands the iterator of the loader to such a step, which fetches as many batches as it likes."""

    def training_step(self, dataloader_iter: Any) -> Any:  # type: ignore[override]
        batch, number, _ = next(dataloader_iter)
        return super().training_step(batch, number)


@pytest.mark.filterwarnings("ignore:.*`dataloader_iter`")
def test_a_step_that_takes_the_iterator_is_refused() -> None:
    module = TakesIterator(wrap())
    with pytest.raises(InputError, match=r"training_step.*dataloader_iter"):
        fit(module)
    assert not module.steps
    assert module.train_data.epoch == 0


def test_data_that_cannot_work_is_refused() -> None:
    with pytest.raises(InputError, match="InfoBatch"):
        Pruning(samples())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="shard_scores"):
        Pruning(infobatch.InfoBatch(samples(), EPOCHS, 0.5, 0.8, shard_scores=True))


def test_a_copy_in_another_process_is_refused() -> None:
    """As with ddp_spawn, which sends everything through pickle."""
    copy = as_spawned(Pruning(wrap()))
    with pytest.raises(InputError, match=r'strategy="ddp"'):
        trainer_with(copy).fit(Module(wrap()))


@pytest.mark.parametrize("strategy", ["ddp_fork", "ddp_notebook"])
def test_processes_that_end_with_the_training_are_refused(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_PORT", "set anew by Lightning, and unset afterwards")
    monkeypatch.delenv("MASTER_PORT")
    module = Module(wrap())
    with pytest.raises(ProcessRaisedException, match=r'child processes.*strategy="ddp"'):
        fit(module, strategy=strategy, devices=2, use_distributed_sampler=False)


# ---- other callbacks -------------------------------------------------------------------------------------


class WithNorm(Module):
    def __init__(self, train_data: Any, **loader: Any) -> None:
        super().__init__(train_data, drop_last=True, **loader)
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))


def outside(kind: Any) -> Any:
    """A module that does not hold the data: those that average weights copy it."""
    train = wrap()

    class Outside(kind):  # type: ignore[misc]
        train_data = train

        def __setattr__(self, name: str, value: Any) -> None:
            if name != "train_data":
                super().__setattr__(name, value)

    return Outside(train)


def test_stochastic_weight_averaging() -> None:
    module = outside(Module)
    fit(module, StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=0.5))
    assert len(module.train_data.history) == EPOCHS


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (WithNorm, r"num_epochs=6 .* BatchNorm.* WeightAveraging"),
        (PacedModule, r"that infobatch\.pace alone sets; got StochasticWeightAveraging, .* WeightAveraging"),
    ],
)
def test_an_averaging_that_cannot_work_is_refused(kind: Any, text: str) -> None:
    module = outside(kind)
    with pytest.raises(InputError, match=text):
        fit(module, StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=0.5))
    assert not module.steps


def test_the_averaging_that_is_named_in_its_place() -> None:
    class Both(WithNorm, PacedModule):
        full = 12  # of 13 the last is dropped

    module = outside(Both)
    fit(module, WeightAveraging())
    assert len(module.train_data.history) == EPOCHS
    assert module.pace.get_last_lr() == pytest.approx([0.0], abs=1e-9)


@pytest.mark.parametrize("tuner", [True, False])
def test_a_search_for_a_rate_beside_pace_is_refused(tuner: bool) -> None:
    module = PacedModule(wrap())
    module.lr = LR
    search = LearningRateFinder(num_training_steps=10)
    trainer = trainer_with(Pruning(module.train_data), *(() if tuner else (search,)))
    begin = partial(Tuner(trainer).lr_find, num_training=10) if tuner else trainer.fit
    with pytest.raises(InputError, match="LearningRateFinder"):
        begin(module)
    assert not module.steps


@pytest.mark.parametrize("tuner", [True, False])
def test_a_search_for_a_rate_leaves_the_data_as_it_was(tuner: bool) -> None:
    module = Module(wrap())
    module.lr = LR
    options = {"early_stop_threshold": None}
    if tuner:
        trainer = trainer_with(Pruning(module.train_data))
        Tuner(trainer).lr_find(module, num_training=2 * FULL, **options)
        assert module.train_data.progress[:2] == (0, 0)
        trainer.fit(module)
    else:
        fit(module, LearningRateFinder(num_training_steps=2 * FULL, **options))
    assert module.lr != LR
    lengths = [math.ceil(report.kept / BATCH) for report in module.train_data.history]
    assert len(lengths) == EPOCHS
    assert [step[:2] for step in module.steps[-sum(lengths) :]] == [
        (e, i) for e, length in enumerate(lengths) for i in range(length)
    ]


# ---- schedulers ------------------------------------------------------------------------------------------


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


def test_an_accumulation_that_a_callback_sets() -> None:
    net, train, steps = plain(True, 3)
    module = PacedModule(wrap())
    module.full = math.ceil(FULL / 3)
    trainer = fit(module, GradientAccumulationScheduler({0: 3}))
    assert_same(module.net, module.train_data, net, train)
    assert trainer.global_step == steps


def test_an_accumulation_that_changes_is_refused_where_steps_are_paced() -> None:
    module = PacedModule(wrap())
    with pytest.raises(InputError, match=r"GradientAccumulationScheduler with \[1, 4\]"):
        fit(module, GradientAccumulationScheduler({3: 4}))
    module = PacedModule(wrap())
    module.interval, module.full = "epoch", 1
    fit(module, GradientAccumulationScheduler({3: 4}))
    assert module.pace.scheduler.last_epoch == EPOCHS


def test_a_schedule_of_epochs() -> None:
    module = PacedModule(wrap())
    module.interval, module.full = "epoch", 1
    fit(module)
    assert module.pace.scheduler.last_epoch == EPOCHS


def test_a_pace_that_no_checkpoint_would_hold_is_refused() -> None:
    module = PacedModule(wrap())
    module.given = False
    with pytest.raises(InputError, match="no scheduler"):
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

    with pytest.warns(InfoBatchWarning, match="infobatch.pace"):
        fit(Early(wrap()))
