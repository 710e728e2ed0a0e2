"""Laws that no single module keeps alone."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

import infobatch

SIZE = 60


def skewed() -> Tensor:
    return torch.rand(SIZE, generator=torch.Generator().manual_seed(2)).pow(3)


def a_run(**settings: Any) -> infobatch.InfoBatch:
    return infobatch.InfoBatch(TensorDataset(skewed(), torch.arange(SIZE)), 6, **settings)


def share_of(batch: Tensor, train_data: infobatch.InfoBatch) -> float:
    """What a batch counts for beside a whole one of 8: less if it is short, and its epoch pruned."""
    return len(batch) / 8 if train_data.plan().kept < SIZE else 1.0


# ---- asking changes nothing ----------------------------------------------------------------------------------


def ask(train_data: infobatch.InfoBatch) -> None:
    for _ in range(2):
        assert len(train_data) == SIZE
        len(train_data.sampler)
        iter(train_data.sampler)
        train_data.plan()
        _ = (train_data.sampler, train_data.epoch, train_data.scores, train_data.history, train_data.progress)
        train_data.state_dict()
        train_data.full()
        repr(train_data)


@pytest.mark.parametrize("stock", [False, True], ids=["infobatch", "stock"])
def test_asking_any_number_of_times_changes_nothing(stock: bool) -> None:
    trails = []
    for curious in (False, True):
        train_data = a_run()
        if stock:
            loader: Any = torch.utils.data.DataLoader(train_data, batch_size=7, sampler=train_data.sampler)
        else:
            loader = infobatch.DataLoader(train_data, batch_size=7)
        trail = []
        for epoch in range(6):
            for x, z in loader:
                if curious:
                    ask(train_data)
                    len(loader)
                trail.append((z.tolist(), train_data.update(x * 0.9**epoch).item()))
                if curious:
                    ask(train_data)
        trails.append((trail, train_data.scores.tolist(), train_data.history))
    assert trails[0] == trails[1]


def test_an_iterator_has_the_length_of_its_pass_where_workers_persist_and_samples_are_named() -> None:
    train_data = a_run()
    options: Any = {"num_workers": 1, "persistent_workers": True}
    loader = torch.utils.data.DataLoader(train_data, batch_size=7, sampler=train_data.sampler, **options)
    lengths = []
    for _ in range(6):
        batches = iter(loader)
        lengths.append(len(loader))
        for _ in range(lengths[-1]):
            x, z = next(batches)
            train_data.update(x, z)
    assert train_data.epoch == 6
    assert lengths == [-(-report.kept // 7) for report in train_data.history]
    assert len(set(lengths)) > 1


def test_a_training_leaves_global_random_state_alone() -> None:
    numpy = pytest.importorskip("numpy")
    train_data = a_run()
    before = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()
    for _ in range(6):
        for indices in train_data.plan().indices.split(9):
            train_data.update(skewed()[indices], indices)
        train_data.sampler.__iter__()
        ask(train_data)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    assert before[2] == numpy.random.get_state()[1].tolist()


def test_plans_do_not_read_global_random_state() -> None:
    plans = []
    for seed in (1, 2):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            train_data = a_run(seed=5)
            for x, _ in infobatch.DataLoader(train_data, batch_size=9):
                train_data.update(x)
            plans.append(train_data.plan().indices.tolist())
    assert plans[0] == plans[1]


# ---- scores hold still inside an epoch -----------------------------------------------------------------------


def test_scores_do_not_change_inside_an_epoch() -> None:
    train_data = a_run()
    loader = infobatch.DataLoader(train_data, batch_size=7)
    for epoch in range(6):
        before, plan = train_data.scores, train_data.plan()
        came = 0
        for x, _ in loader:
            assert torch.equal(train_data.scores.nan_to_num(-1), before.nan_to_num(-1))
            assert train_data.plan() is plan
            assert train_data.epoch == epoch
            train_data.update(x + epoch)
            came += int((train_data.batch_weights > 0).sum())
        assert came == plan.kept
        assert train_data.epoch == epoch + 1
        expected = torch.where(plan.table > 0, skewed() + epoch, before)
        assert torch.equal(train_data.scores, expected)


def test_a_score_is_recorded_in_place_of_the_loss() -> None:
    train_data = a_run()
    for x, z in infobatch.DataLoader(train_data, batch_size=7):
        loss = train_data.update(x, score=z.float())
        assert loss.item() == pytest.approx(x.mean().item())
    assert train_data.scores.tolist() == list(range(SIZE))


def test_scores_are_a_copy() -> None:
    train_data = a_run()
    train_data.scores.fill_(3.0)
    assert torch.isnan(train_data.scores).all()


# ---- inside torch.compile ------------------------------------------------------------------------------------


class CountCompiles:
    """aot_eager, counted."""

    def __init__(self) -> None:
        self.frames = 0

    def __call__(self, module: torch.fx.GraphModule, inputs: Any) -> Any:
        from torch._dynamo.backends.debugging import aot_eager

        self.frames += 1
        return aot_eager(module, inputs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("dynamic", [None, True], ids=["automatic", "dynamic"])
@pytest.mark.parametrize("loading", ["plan", "loader"])
def test_update_compiles_whole_and_not_again_and_again(dynamic: bool | None, loading: str) -> None:
    """Six epochs with a smaller last batch in each: at most one more compilation, for the other batch size."""
    torch._dynamo.reset()
    plain, compiled = a_run(), a_run()
    count = CountCompiles()
    weight = torch.nn.Parameter(torch.tensor(2.0))

    def step(x: Tensor, z: Tensor) -> Tensor:
        return compiled.update((x * weight).square(), z)

    fast = torch.compile(step, fullgraph=True, backend=count, dynamic=dynamic)
    for _ in range(6):
        if loading == "plan":
            batches = [(skewed()[z], z) for z in compiled.plan().indices.split(8)]
        else:
            batches = torch.utils.data.DataLoader(compiled, batch_size=8, sampler=compiled.sampler)  # type: ignore[assignment]
        assert torch.equal(compiled.plan().indices, plain.plan().indices)
        for x, z in batches:
            weight.grad = None
            loss = fast(x, z)
            loss.backward()
            short = share_of(z, plain)  # which one graph for all sizes does not see
            expected = plain.update((x * weight.detach()).square(), z)
            assert loss.item() * short == pytest.approx(expected.item(), rel=1e-6)
            assert weight.grad is not None
            assert weight.grad.item() == pytest.approx(loss.item(), rel=1e-5)  # d(w² c)/dw at w = 2 is the loss
        assert torch.equal(compiled.scores, plain.scores)
    assert compiled.epoch == plain.epoch == 6
    assert compiled.history[-1].saved_so_far > 0.1
    assert count.frames <= 2, f"compiled {count.frames} times"
    torch._dynamo.reset()


def test_named_samples_are_counted_without_asking_a_device() -> None:
    """Only a graph counts where Python does not see it; devices other than CUDA's have none to be asked for."""
    train_data = a_run()
    indices = train_data.plan().indices
    train_data._epoch.note_named(indices[:8], torch.ones(8), {}, may_read=False)
    assert train_data.progress[1] == 8
    assert int(train_data._scores.named_count) == 0


@pytest.mark.parametrize("compensate", ["loss", "none"])
@pytest.mark.parametrize("feeder", ["ours", "stock", "indices"])
def test_a_batch_can_be_weighed_again(feeder: str, compensate: Any) -> None:
    """With the weights that its update had, up to the last batch of an epoch and after it is closed."""
    train_data = a_run(compensate=compensate)
    with pytest.raises(infobatch.MisalignedError, match="had its update"):
        _ = train_data.batch_weights
    for _ in range(3):
        stock = torch.utils.data.DataLoader(train_data, batch_size=8, sampler=train_data.sampler)
        for x, z in infobatch.DataLoader(train_data, batch_size=8) if feeder == "ours" else stock:
            weights = train_data._scores.look_up(z) * share_of(z, train_data)
            mean = train_data.update(x, z) if feeder == "indices" else train_data.update(x)
            assert torch.equal(train_data.batch_weights, weights)
            assert mean.item() == pytest.approx(float((x * train_data.batch_weights).mean()), rel=1e-5)
        with torch.inference_mode():
            assert len(train_data.history) == train_data.epoch
        assert train_data._epoch.latest is not None
        assert train_data._epoch.latest[0].untyped_storage().nbytes() == 4 * len(x), "not the weights of all"
        held = x.clone().requires_grad_()
        (held * train_data.batch_weights).mean().backward()
        assert held.grad is not None
        assert torch.allclose(held.grad, weights / len(x))
    assert train_data.history[-1].saved > 0.1
    train_data.load_state_dict(train_data.state_dict())
    with pytest.raises(infobatch.MisalignedError, match="had its update"):
        _ = train_data.batch_weights


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_update_leaves_no_weights_behind() -> None:
    """Not those of an older batch either."""
    torch._dynamo.reset()
    train_data = a_run()
    fast = torch.compile(lambda x, z: train_data.update(x, z), backend="aot_eager")
    for step, z in enumerate(train_data.plan().indices.split(8)):
        if step == 0:
            train_data.update(skewed()[z], z)
            assert len(train_data.batch_weights) == 8
        else:
            fast(skewed()[z], z)
            with pytest.raises(infobatch.MisalignedError, match=r"outside of torch\.compile"):
                _ = train_data.batch_weights
    torch._dynamo.reset()


def test_lbfgs_goes_over_a_batch_as_often_as_it_likes() -> None:
    train_data, weight = a_run(), torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.LBFGS([weight], max_iter=4)
    for _ in range(6):
        for x, _ in infobatch.DataLoader(train_data, batch_size=8):
            first = True

            def closure(x: Tensor = x) -> Tensor:
                nonlocal first
                optimizer.zero_grad()
                losses = (weight - x).square()
                loss = train_data.update(losses) if first else (losses * train_data.batch_weights).mean()
                first = False
                loss.backward()
                return loss

            optimizer.step(closure)
    assert train_data.epoch == 6
    assert 0 < weight.item() < 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("dynamic", [None, False, True])
@pytest.mark.parametrize("ours", [True, False])
def test_a_compiled_step_without_indices(dynamic: bool | None, ours: bool) -> None:
    """Whose batch it is, is kept in Python, so the graph breaks there; the losses reach their samples."""
    torch._dynamo.reset()
    train_data = a_run()
    fast = torch.compile(lambda x: train_data.update(x), backend="aot_eager", dynamic=dynamic)
    for _ in range(4):
        stock = torch.utils.data.DataLoader(train_data, batch_size=8, sampler=train_data.sampler)
        for x, z in infobatch.DataLoader(train_data, batch_size=8) if ours else stock:
            weights = train_data._scores.look_up(z) * share_of(z, train_data)
            assert fast(x).item() == pytest.approx(float((x * weights).mean()), rel=1e-5)
    assert torch.equal(train_data.scores, skewed())
    assert train_data.epoch == 4
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_step_after_an_epoch_in_order() -> None:
    """Epoch 0 without indices, the rest with: the pass that is over must not stand in the way."""
    torch._dynamo.reset()
    train_data = a_run()
    for x, _ in infobatch.DataLoader(train_data, batch_size=8):
        train_data.update(x)
    fast = torch.compile(lambda x, z: train_data.update(x, z), fullgraph=True, backend="aot_eager")
    for z in train_data.plan().indices.split(8):
        fast(skewed()[z], z)
    assert train_data.epoch == 2
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_mean_is_told_from_its_neighbours_whatever_the_default_dtype(dtype: torch.dtype) -> None:
    """999 losses of 1 and one a little larger: the mean lies between two neighbours of float32."""
    losses, kept = torch.ones(1000), {}
    losses[0] = 1.00001
    torch.set_default_dtype(dtype)
    for method in (infobatch.methods.infobatch(), infobatch.methods.above_mean(), infobatch.methods.saving(0.3)):
        train_data = infobatch.Pruned(list(range(1000)), method, 8)
        train_data.update(losses, train_data.plan().indices.sort().values)
        kept[method.name] = train_data.plan().kept
    assert kept == {"infobatch": 501, "above_mean": 1000, "saving": 600}


def test_another_default_dtype_changes_nothing() -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        train_data = infobatch.InfoBatch(torch.utils.data.TensorDataset(torch.arange(40)), 3, delta=1.0)
        for _ in range(3):
            for (ids,) in infobatch.DataLoader(train_data, batch_size=8):
                train_data.update(ids.double())
        state = train_data.state_dict()
    finally:
        torch.set_default_dtype(before)
    assert state["scores"].dtype == torch.float32
    infobatch.InfoBatch(torch.utils.data.TensorDataset(torch.arange(40)), 3, delta=1.0).load_state_dict(state)
    assert torch.equal(train_data.scores, torch.arange(40).float())
