"""Under Accelerate, training gives the same result as in a plain loop, to the bit."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import run_ranks
from torch.utils.data import DataLoader, TensorDataset

import infobatch

pytest.importorskip("accelerate")

from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DataLoaderConfiguration, DistributedType, GradientAccumulationPlugin

from infobatch.integrations.accelerate import prepare

sys.path.insert(0, str(Path(__file__).parent))
from accelerate_run import BATCH, EPOCHS, SIZE, Parts, Run, accelerated, plain, start_anew

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    start_anew()
    yield
    start_anew()


def assert_same(here: dict[str, Any], there: dict[str, Any]) -> None:
    assert here["history"] == there["history"]
    assert torch.equal(here["scores"], there["scores"])
    for name, value in here["model"].items():
        assert torch.equal(value, there["model"][name]), name
    assert here["ends"] == there["ends"]
    for mine, other in zip(here["log"], there["log"], strict=True):
        assert mine["epoch"] == other["epoch"]
        assert mine["rates"] == other["rates"]
        assert len(mine["batches"]) == len(other["batches"])
        assert all(torch.equal(one, two) for one, two in zip(mine["batches"], other["batches"], strict=True))


# ---- the same training ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "run",
    [
        Run(),
        Run(paced=False),
        Run(precision="bf16"),
        Run(accumulate=4),
        Run(accumulate=4, options={"num_workers": 2, "persistent_workers": True}),
        Run(options={"drop_last": True}, paced=False),
        Run(ragged=True, paced=False),
    ],
    ids=["paced", "loss", "bf16", "accumulated", "workers", "drop_last", "ragged"],
)
def test_it_is_the_plain_loop(run: Run) -> None:
    ours = accelerated(run)
    assert_same(ours, plain(run))
    assert all(note["validated"] == 12 for note in ours["log"])
    assert not any(note["left over"] for note in ours["log"])
    assert len({report["kept"] for report in ours["history"]}) > 2


def test_every_epoch_has_its_own_length_and_the_last_ones_are_whole() -> None:
    log = accelerated(Run())["log"]
    full = -(-SIZE // BATCH)
    assert [len(note["batches"]) for note in log] == [note["length"] for note in log]
    assert all(set(note["now"]) == {note["length"]} for note in log)  # also in the last batch, after its update
    assert min(note["length"] for note in log) < full
    assert log[0]["length"] == log[-1]["length"] == log[-2]["length"] == full


@pytest.mark.parametrize("accumulate", [1, 4])
def test_the_scheduler_ends_where_the_full_run_would(accumulate: int) -> None:
    run = Run(accumulate)
    ours = accelerated(run)
    assert ours["ends"] == EPOCHS * Parts(run).steps
    assert ours["log"][-1]["rates"][-1] == pytest.approx(0, abs=1e-9)


def test_the_scheduler_waits_for_an_optimizer_that_overflowed() -> None:
    parts = Parts(Run())
    optimizer, scheduler = prepare(Accelerator(cpu=True), parts.optimizer, parts.scheduler)
    for batch in parts.loader:
        parts.train.update(parts.losses(batch[1], batch))
        parts.optimizer.step()
        break
    optimizer._is_overflow = True  # as the scaler of half precision leaves it
    scheduler.step()
    assert parts.cosine.last_epoch == 0
    optimizer._is_overflow = False
    scheduler.step()
    assert parts.cosine.last_epoch == 1


def test_without_a_length_an_accumulation_still_ends_with_its_epoch() -> None:
    ours = accelerated(Run(accumulate=4, ragged=True, paced=False))
    assert not any(note["left over"] for note in ours["log"])
    assert all(len(note["rates"]) == -(-len(note["batches"]) // 4) for note in ours["log"])


def left_in_the_middle(held_out: Any) -> None:
    for _ in held_out:
        break


def test_a_validation_inside_the_epoch_that_is_left_in_the_middle() -> None:
    run = Run(accumulate=4, within=left_in_the_middle)
    ours = accelerated(run)
    assert not any(note["left over"] for note in ours["log"])
    assert_same(ours, plain(run))


def test_a_break_leaves_nothing_behind() -> None:
    parts, accelerator = Parts(Run(paced=False)), Accelerator(cpu=True)
    loader = prepare(accelerator, parts.loader)
    for _ in range(2):
        for batch in loader:
            assert accelerator.gradient_state.active_dataloader is loader
            parts.train.update(parts.losses(batch[1], batch))
            break
        assert not accelerator.gradient_state.in_dataloader
    assert parts.train.epoch == 1
    assert parts.train.history[0].kept == SIZE


# ---- stop and go on ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop", "paced"),
    [
        ((0, 0), True),
        ((0, 16), True),
        ((2, 3), True),
        ((2, 3), False),
        ((5, 7), True),
        ((7, 2), True),
    ],
)
def test_a_run_resumed_anywhere_equals_an_uninterrupted_one(stop: tuple[int, int], paced: bool, tmp_path: Path) -> None:
    whole = accelerated(Run(paced=paced))
    start_anew()
    assert accelerated(Run(paced=paced, save=stop, folder=str(tmp_path))) == {}
    start_anew()
    resumed = accelerated(Run(paced=paced, folder=str(tmp_path), load=True))
    first = resumed["log"][0]
    done = [note for note in whole["log"] if note["epoch"] < first["epoch"]]
    already = len(whole["log"][len(done)]["batches"]) - len(first["batches"])
    before = {key: whole["log"][len(done)][key][:already] for key in ("batches", "rates")}
    resumed["log"] = [*done, {**first, **{key: before[key] + first[key] for key in before}}, *resumed["log"][1:]]
    assert_same(resumed, whole)
    assert (first["epoch"], already) == ((1, 0) if stop == (0, 16) else (stop[0], stop[1] + 1))


def test_a_pass_draws_no_random_numbers_that_a_net_might_draw() -> None:
    """Or a resumed epoch, which is one pass more, would go on with another dropout."""
    parts = Parts(Run())
    loader = prepare(Accelerator(cpu=True), parts.loader)
    before = torch.get_rng_state()
    for inputs, _ in loader:
        parts.train.update(inputs.sum(1))
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_prepared_twice_is_saved_once() -> None:
    parts, accelerator = Parts(Run()), Accelerator(cpu=True)
    for _ in range(2):
        prepare(accelerator, parts.loader, parts.scheduler)
    assert accelerator._custom_objects == [parts.train, parts.scheduler]


def test_an_accumulation_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    whole = accelerated(Run(4))
    start_anew()
    accelerated(Run(4, save=(2, 3), folder=str(tmp_path)))
    start_anew()
    resumed = accelerated(Run(4, folder=str(tmp_path), load=True))
    assert_same({**resumed, "log": []}, {**whole, "log": []})


def test_what_was_written_is_plain(tmp_path: Path) -> None:
    accelerated(Run(save=(2, 3), folder=str(tmp_path)))
    state, paced = (infobatch.load(tmp_path / f"custom_checkpoint_{number}.pkl") for number in range(2))
    parts = Parts(Run())
    parts.train.load_state_dict(state)
    parts.scheduler.load_state_dict(paced)
    assert parts.train.progress[:2] == (2, 4 * BATCH)


# ---- where batches go ----------------------------------------------------------------------------------------


class Parcel:
    def __init__(self, samples: Any) -> None:
        self.x = torch.stack([x for x, _ in samples])
        self.sent: Any = None

    def to(self, device: Any, non_blocking: bool = False) -> Parcel:
        self.sent = (device, non_blocking)
        return self


@pytest.mark.parametrize("placed", [True, False])
@pytest.mark.parametrize("non_blocking", [True, False])
def test_batches_go_to_the_device(placed: bool, non_blocking: bool) -> None:
    train = Parts(Run()).train
    loader = infobatch.DataLoader(train, batch_size=20, collate_fn=Parcel)
    config = DataLoaderConfiguration(non_blocking=non_blocking)
    accelerator = Accelerator(cpu=True, device_placement=placed, dataloader_config=config)
    sent = []
    for parcel in prepare(accelerator, loader):
        train.update(parcel.x.sum(1))
        sent.append(parcel.sent)
    assert sent == [(torch.device("cpu"), non_blocking) if placed else None] * 6


def test_order_and_number_are_kept() -> None:
    parts, accelerator = Parts(Run()), Accelerator(cpu=True)
    test = DataLoader(TensorDataset(torch.ones(4)))
    back = prepare(accelerator, parts.loader, parts.model, parts.scheduler, parts.optimizer, test)
    assert len(back) == 5
    assert back[1] is parts.model
    assert back[0].dataset is parts.train
    assert back[2].get_last_lr() == [0.02]
    assert back[3].optimizer is parts.optimizer
    assert prepare(accelerator, *back) == back
    assert prepare(accelerator, back[0]) is back[0]


def test_what_scripts_ask_of_what_is_prepared() -> None:
    parts, other = Parts(Run()), Parts(Run())
    loader, scheduler = prepare(Accelerator(cpu=True), parts.loader, parts.scheduler)
    assert loader.batch_size == BATCH
    for epoch in range(2):
        loader.set_epoch(epoch)
        for batch in loader:
            parts.train.update(parts.losses(batch[1], batch))
            parts.optimizer.step()
            scheduler.step()
    assert parts.train.epoch == 2
    state = scheduler.state_dict()
    start_anew()
    again = prepare(Accelerator(cpu=True), other.scheduler)
    again.load_state_dict(state)
    assert other.cosine.last_epoch == parts.cosine.last_epoch == 2 * parts.steps


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "persistent_workers": True}], ids=["", "workers"])
def test_from_iter_on_the_length_is_that_of_the_new_pass(options: dict[str, Any]) -> None:
    """Accelerate's own examples take so many batches of an iterator that they never exhaust."""
    parts, lengths = Parts(Run(options=options, paced=False)), []
    loader = prepare(Accelerator(cpu=True), parts.loader)
    for _ in range(EPOCHS):
        batches = iter(loader)
        lengths.append(len(loader))
        for _ in range(lengths[-1]):
            batch = next(batches)
            parts.train.update(parts.losses(parts.model(batch[0]), batch)).backward()
        del batches
        assert len(loader) == lengths[-1]
    assert lengths == [-(-epoch.kept // BATCH) for epoch in parts.train.history]
    assert len(set(lengths)) > 1


def test_a_scheduler_paced_through_a_prepared_optimizer_is_not_called_unpaced(
    watched: None, recwarn: pytest.WarningsRecorder
) -> None:
    parts, accelerator = Parts(Run()), Accelerator(cpu=True)
    optimizer, loader = prepare(accelerator, parts.optimizer, parts.loader)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * parts.steps)
    scheduler = prepare(accelerator, infobatch.pace(cosine, parts.train, parts.steps))
    for _ in range(EPOCHS):
        for batch in loader:
            accelerator.backward(parts.train.update(parts.losses(parts.model(batch[0]), batch)))
            optimizer.step()
            scheduler.step()
    assert min(epoch.kept for epoch in parts.train.history) < SIZE
    assert not [one for one in recwarn if "pace" in str(one.message)]


# ---- what is refused -----------------------------------------------------------------------------------------


def refused(text: str) -> Any:
    return pytest.raises(infobatch.InputError, match=text)


def test_accelerators_own_prepare_is_named_with_the_remedy() -> None:
    """It reads one batch ahead, which the first update shows."""
    parts = Parts(Run())
    batches = iter(Accelerator(cpu=True).prepare(parts.loader))
    x, _ = next(batches)
    with pytest.raises(infobatch.MisalignedError, match=r"integrations\.accelerate\.prepare"):
        parts.train.update(x.sum(1))


def test_torchs_loader_is_refused() -> None:
    train, accelerator = Parts(Run()).train, Accelerator(cpu=True)
    with refused(r"infobatch\.DataLoader"):
        prepare(accelerator, DataLoader(train, batch_size=4, sampler=train.sampler))
    batches = torch.utils.data.BatchSampler(train.sampler, 4, False)
    with refused(r"infobatch\.DataLoader"):
        prepare(accelerator, DataLoader(train, batch_sampler=batches))
    prepare(accelerator, DataLoader(train.full(), batch_size=4))


def test_batches_must_not_be_skipped() -> None:
    accelerator = Accelerator(cpu=True)
    loader = prepare(accelerator, Parts(Run()).loader)
    with refused("skip_first_batches"):
        skip_first_batches(loader, 2)
    with refused("skip_first_batches"):
        accelerator.skip_first_batches(loader, 2)


def test_a_loader_of_pairs_is_refused() -> None:
    with refused("with_indices"):
        prepare(Accelerator(cpu=True), infobatch.DataLoader(Parts(Run()).train, with_indices=True))


def test_shared_out_batches_are_refused() -> None:
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
    with refused("dispatch_batches"):
        prepare(accelerator, Parts(Run()).loader)


@pytest.mark.parametrize("kind", [DistributedType.XLA, DistributedType.MEGATRON_LM])
def test_foreign_ways_to_load_are_refused(kind: Any) -> None:
    accelerator = Accelerator(cpu=True)
    accelerator.state.distributed_type = kind
    with refused(str(kind.value)):
        prepare(accelerator, Parts(Run()).loader)


def test_the_accelerator_comes_first() -> None:
    parts = Parts(Run())
    with refused("Accelerator first; got Sequential"):
        prepare(parts.model, parts.loader)


def test_a_scheduler_and_what_paces_it_are_refused() -> None:
    parts = Parts(Run())
    with refused("each scheduler once"):
        prepare(Accelerator(cpu=True), parts.cosine, parts.scheduler)


def test_more_steps_than_there_are_is_refused() -> None:
    parts = Parts(Run())
    for steps, accumulate, whole in [(17, 1, True), (17, 4, False), (5, 4, True), (1, 4, True)]:
        start_anew()
        plugin = GradientAccumulationPlugin(accumulate, sync_with_dataloader=whole)
        accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=plugin)
        prepare(accelerator, parts.loader, infobatch.pace(parts.cosine, parts.train, steps))
        if whole and steps > 1:
            with refused(f"at most {steps}, .*; got {steps + 1}"):
                prepare(accelerator, parts.loader, infobatch.pace(parts.cosine, parts.train, steps + 1))


def test_a_batch_left_out_is_seen_at_the_next_update() -> None:
    parts = Parts(Run())
    batches = iter(prepare(Accelerator(cpu=True), parts.loader))
    next(batches)
    batch = next(batches)
    with pytest.raises(infobatch.MisalignedError, match=r"earlier batch|waits"):
        parts.train.update(parts.losses(batch[1], batch))


def test_two_updates_for_a_batch_are_seen() -> None:
    parts = Parts(Run())
    batch = next(batches := iter(prepare(Accelerator(cpu=True), parts.loader)))
    parts.train.update(parts.losses(batch[1], batch))
    with pytest.raises(infobatch.MisalignedError, match=r"earlier batch|waits"):
        parts.train.update(parts.losses(batch[1], batch))
    del batches


# ---- two processes -------------------------------------------------------------------------------------------


def test_two_processes(tmp_path: Path) -> None:
    run_ranks(2, Path(__file__).with_name("accelerate_run.py"), tmp_path)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for results in ranks:
        for accumulate in (1, 4):
            assert_same(results[f"accelerated {accumulate}"], results[f"plain {accumulate}"])
        whole, resumed = results["accelerated 4"], results["resumed"]
        assert_same({**resumed, "log": []}, {**whole, "log": []})
        said = results["refusals"]
        assert "different data, 2" in said["group"]
        assert "shard_scores" in said["shards"]
        assert "steps_per_epoch" in said["steps"]
        assert "split_batches" in said["split"]
    assert ranks[0]["random"] == ranks[1]["random"]
    for epoch in range(EPOCHS):  # each sample once, but for the one that makes the parts equally long
        mine, other = (torch.cat(results["accelerated 1"]["log"][epoch]["batches"]) for results in ranks)
        kept = ranks[0]["accelerated 1"]["history"][epoch]["kept"]
        assert len(mine) == len(other)
        fillers = len(mine) - -(-kept // 2)  # a ghost, the same on both, where the last batch would be a single sample
        assert fillers in (0, 1)
        assert len(torch.cat([mine, other]).unique(dim=0)) == kept + fillers
