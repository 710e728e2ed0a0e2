"""Everything that is refused, where it is first visible: what was expected, what came, what to do."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, IterableDataset, TensorDataset

import infobatch
from infobatch import InfoBatch, InputError, MisalignedError, Pruned, methods
from infobatch.methods.method import after, until

NAN = math.nan
DATA = TensorDataset(torch.arange(20.0))


def refused(kind: type[Exception], pattern: str, call: Callable[[], Any]) -> None:
    """The call raises, and its message has all three parts."""
    with pytest.raises(kind, match=pattern) as caught:
        call()
    text = str(caught.value)
    assert text.startswith("expected ")
    assert "; got " in text
    remedy = text.split("; got ", 1)[1].split(". ", 1)
    assert len(remedy) == 2, f"no remedy: {text}"
    assert remedy[1].strip(), f"no remedy: {text}"
    assert isinstance(caught.value, infobatch.InfoBatchError)


def snapshot(train_data: Pruned) -> dict[str, Any]:
    """All that could change, as comparable values."""

    def plain(value: Any) -> Any:
        if isinstance(value, Tensor):
            return [str(number) for number in value.tolist()]
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items()}
        return value

    return {
        "state": plain(train_data.state_dict()),
        "progress": train_data.progress,
        "device": train_data.scores.device,
    }


# ---- losses --------------------------------------------------------------------------------------------------

LOSSES: list[tuple[Any, str]] = [
    (torch.tensor(1.0), r'shape \[\]\. Give the criterion reduction="none"'),
    (torch.ones(5, 3), r"shape \[5, 3\]\. Reduce every dimension but the first"),
    (torch.ones(5, 1), r"shape \[5, 1\]\. Reduce"),
    (torch.ones(5, dtype=torch.int64), r"torch\.int64"),
    (torch.ones(5, dtype=torch.bool), r"torch\.bool"),
    (torch.ones(5, dtype=torch.complex64), r"torch\.complex64"),
    (torch.ones(0), r"shape \[0\]"),
    ([1.0] * 5, "list"),
    (1.0, "float"),
    (None, "NoneType"),
    (torch.ones(5, device="meta"), "meta"),
]


@pytest.mark.parametrize(("loss", "pattern"), LOSSES)
@pytest.mark.parametrize("given", [False, True], ids=["", "indices"])
def test_a_wrong_loss(loss: Any, pattern: str, given: bool) -> None:
    train_data = InfoBatch(DATA, 3)
    batches = iter(infobatch.DataLoader(train_data, batch_size=5))
    next(batches)
    before = snapshot(train_data)
    indices = train_data.plan().indices[:5] if given else None
    refused(InputError, pattern, lambda: train_data.update(loss, indices))
    assert snapshot(train_data) == before
    train_data.update(torch.ones(5), indices)  # the batch still waits


@pytest.mark.parametrize("count", [1, 4, 6, 20])
def test_a_wrong_count_of_losses(count: int) -> None:
    """An update without indices brings the losses of a whole batch, or nothing changes."""
    train_data = InfoBatch(DATA, 3)
    batches = iter(infobatch.DataLoader(train_data, batch_size=5))
    next(batches)
    before = snapshot(train_data)
    refused(MisalignedError, f"all 5 losses.*got {count}", lambda: train_data.update(torch.ones(count)))
    assert snapshot(train_data) == before
    train_data.update(torch.ones(5))


def test_losses_without_a_batch() -> None:
    train_data = InfoBatch(DATA, 3)
    refused(MisalignedError, "got losses", lambda: train_data.update(torch.ones(5)))
    refused(MisalignedError, "got a skip", lambda: train_data.skip())


@pytest.mark.parametrize(
    "score", [torch.ones(4), torch.ones(5, 1), torch.ones(5).long(), 1.0, torch.ones(5, device="meta")]
)
def test_a_wrong_score(score: Any) -> None:
    train_data = InfoBatch(DATA, 3)
    batches = iter(infobatch.DataLoader(train_data, batch_size=5))
    next(batches)
    before = snapshot(train_data)
    refused(InputError, "one floating-point score per loss", lambda: train_data.update(torch.ones(5), score=score))
    assert snapshot(train_data) == before


# ---- indices -------------------------------------------------------------------------------------------------

INDICES: list[tuple[Any, str]] = [
    (torch.arange(5).int(), r"int64 tensor of shape \[5\].*torch\.int32"),
    (torch.arange(5).float(), r"torch\.float32"),
    (torch.arange(5).byte(), r"torch\.uint8"),
    (torch.arange(4), r"shape \[4\]"),
    (torch.arange(6), r"shape \[6\]"),
    (torch.arange(5)[:, None], r"shape \[5, 1\]"),
    ([0, 1, 2, 3, 4], "list"),
    (torch.arange(5, device="meta"), "indices on cpu, like the loss; got indices on meta"),
    (torch.arange(16, 21), "indices from 0 to 19; got 16 to 20"),
    (torch.arange(-1, 4), "indices from 0 to 19; got -1 to 3"),
]


@pytest.mark.parametrize(("indices", "pattern"), INDICES)
def test_wrong_indices(indices: Any, pattern: str) -> None:
    train_data = InfoBatch(DATA, 3)
    before = snapshot(train_data)
    refused(InputError, pattern, lambda: train_data.update(torch.ones(5), indices))
    assert snapshot(train_data) == before


def after_one_epoch() -> InfoBatch:
    train_data = InfoBatch(DATA, 3, compensate="loss")
    for (x,) in infobatch.DataLoader(train_data, batch_size=5):
        train_data.update(x)
    return train_data


def test_the_index_of_a_sample_that_was_left_out() -> None:
    train_data = after_one_epoch()
    out = (train_data.plan().table == 0).nonzero()[0]
    assert out.numel() == 1
    before = snapshot(train_data)
    refused(MisalignedError, "left out.*positions in the data set", lambda: train_data.update(torch.ones(1), out))
    assert snapshot(train_data) == before


def test_indices_with_some_updates_and_not_with_others() -> None:
    train_data = InfoBatch(DATA, 3)
    batches = iter(infobatch.DataLoader(train_data, batch_size=5))
    next(batches)
    train_data.update(torch.ones(5))
    next(batches)
    refused(MisalignedError, "both", lambda: train_data.update(torch.ones(5), torch.arange(5)))


def test_the_same_sample_twice_in_an_epoch() -> None:
    train_data = InfoBatch(DATA, 3)
    for indices in (torch.arange(10), torch.arange(5, 15)):
        train_data.update(torch.ones(10), indices)
    refused(MisalignedError, "20 losses for 15 samples in epoch 0", lambda: train_data.epoch)


# ---- what a run is made of -----------------------------------------------------------------------------------

no_ratio = [-0.1, 1.0, 1, 1.5, NAN, math.inf, True, False, "0.5", None, [0.5]]
no_delta = [-0.1, 1.1, NAN, math.inf, True, False, "0.5", None]
no_share = [0, 0.0, 1.0, 1, -0.4, 40, NAN, True, "0.4", None]
no_count = [-1, 1.0, 2.5, NAN, True, False, "3", None]
no_epochs = [-1, 0, 0.0, -8.0, 0.5, 8.5, NAN, math.inf, True, False, "3", None]


@pytest.mark.parametrize("ratio", no_ratio, ids=repr)
def test_ratio(ratio: Any) -> None:
    if ratio is not None:  # which means: the paper's
        refused(InputError, r"a ratio in \[0, 1\)", lambda: InfoBatch(DATA, 3, ratio))
    for maker in (methods.infobatch, methods.above_mean, methods.random, methods.random_star, methods.tiers):
        refused(InputError, r"a ratio in \[0, 1\)", lambda: maker(ratio))  # noqa: B023
    refused(InputError, r"a ratio in \[0, 1\)", lambda: methods.tiers(low_ratio=ratio))
    refused(InputError, r"a ratio in \[0, 1\)", lambda: methods.saving(0.4, ratio=ratio))


@pytest.mark.parametrize("delta", no_delta, ids=repr)
def test_delta(delta: Any) -> None:
    refused(InputError, r"delta in \[0, 1\]", lambda: until(delta))
    refused(InputError, r"delta in \[0, 1\]", lambda: InfoBatch(DATA, 3, 0.5, delta))
    refused(InputError, r"delta in \[0, 1\]", lambda: InfoBatch(DATA, 30, delta=delta, saving=0.2))
    for maker in (methods.infobatch, methods.above_mean, methods.random, methods.tiers, methods.author_tiers):
        refused(InputError, r"delta in \[0, 1\]", lambda: maker(delta=delta))  # noqa: B023


@pytest.mark.parametrize("share", no_share, ids=repr)
def test_saving_and_low_share(share: Any) -> None:
    if share is not None:  # which means: no saving asked for
        refused(InputError, r"saving in \(0, 1\)", lambda: InfoBatch(DATA, 30, saving=share))
    refused(InputError, r"saving in \(0, 1\)", lambda: methods.saving(share))
    refused(InputError, r"low_share in \(0, 1\)", lambda: methods.tiers(low_share=share))


def test_saving_that_cannot_be_had() -> None:
    refused(InputError, "a saving of at most 0.780.*got saving=0.8", lambda: InfoBatch(DATA, 30, saving=0.8))
    refused(InputError, "at most 0.000", lambda: InfoBatch(DATA, 1, saving=0.1))
    refused(InputError, "a ratio above 0", lambda: methods.saving(0.3, ratio=0))
    refused(InputError, "rescale=False", lambda: InfoBatch(DATA, 30, saving=0.3, rescale=False))
    refused(InputError, "rounding='paper'", lambda: InfoBatch(DATA, 30, saving=0.3, rounding="paper"))


@pytest.mark.parametrize("ratio", [0.5, 0.7, 0])
def test_saving_and_ratio_exclude_each_other(ratio: float) -> None:
    """Both say how much is pruned. Below the threshold of a saving the ratio is an argument of the method."""
    refused(InputError, "either .*ratio", lambda: InfoBatch(DATA, 30, ratio=ratio, saving=0.3))
    refused(InputError, "either .*ratio", lambda: InfoBatch(DATA, 30, ratio, saving=0.3))
    made = Pruned(DATA, methods.saving(0.3, ratio=0.7), 30)
    assert made.method.settings["ratio"] == 0.7
    assert repr(InfoBatch(DATA, 30, saving=0.3).method) == repr(methods.saving(0.3))


@pytest.mark.parametrize("count", no_count, ids=repr)
def test_counts(count: Any) -> None:
    refused(InputError, "seed as an integer of at least 0", lambda: InfoBatch(DATA, 3, seed=count))
    refused(InputError, "warmup as a number of epochs", lambda: InfoBatch(DATA, 3, warmup=count))
    refused(InputError, "warmup as a number of epochs", lambda: methods.saving(0.2, warmup=count))
    refused(InputError, "warmup as a number of epochs", lambda: after(count))


@pytest.mark.parametrize("kind", [np.int64, np.uint8, torch.tensor], ids=["int64", "uint8", "tensor"])
def test_whole_numbers_of_any_library_are_counts_and_kept_as_plain_ones(kind: Any, tmp_path: Path) -> None:
    for made in (InfoBatch(DATA, kind(3), seed=kind(5)), Pruned(DATA, methods.full(), kind(3), seed=kind(5))):
        assert [(value, type(value)) for value in (made.num_epochs, made.seed)] == [(3, int), (5, int)]
        infobatch.save(made.state_dict(), tmp_path / "state.pt")  # which a number of numpy could not be loaded from
        made.load_state_dict(infobatch.load(tmp_path / "state.pt"))


@pytest.mark.parametrize("epochs", no_epochs, ids=repr)
def test_no_number_of_epochs(epochs: Any) -> None:
    refused(InputError, "num_epochs", lambda: InfoBatch(DATA, epochs))
    refused(InputError, "num_epochs", lambda: Pruned(DATA, methods.full(), epochs))


@pytest.mark.parametrize("kind", [float, np.float64, np.float32], ids=lambda kind: kind.__name__)
def test_a_whole_float_is_a_number_of_epochs(kind: Any, tmp_path: Path) -> None:
    """The ``num_train_epochs`` of transformers is one."""
    for made in (InfoBatch(DATA, kind(8)), Pruned(DATA, methods.full(), kind(8))):
        assert (made.num_epochs, type(made.num_epochs)) == (8, int)
        infobatch.save(made.state_dict(), tmp_path / "state.pt")
        made.load_state_dict(infobatch.load(tmp_path / "state.pt"))


def test_the_remedy_for_swapped_arguments_is_their_order() -> None:
    refused(InputError, r"The order is InfoBatch\(data, num_epochs", lambda: InfoBatch(DATA, 0.5, 30))  # type: ignore[arg-type]
    refused(InputError, "whole number", lambda: InfoBatch(DATA, 8.5))


@pytest.mark.parametrize("compensate", ["Loss", "", None, True, "both", "auto", 1], ids=repr)
def test_compensate(compensate: Any) -> None:
    refused(InputError, 'compensate "none" or "loss"', lambda: InfoBatch(DATA, 3, compensate=compensate))


@pytest.mark.parametrize("rounding", ["int", None, True, 1], ids=repr)
def test_rounding(rounding: Any) -> None:
    refused(InputError, 'rounding "exact" or "paper"', lambda: InfoBatch(DATA, 3, rounding=rounding))


@pytest.mark.parametrize("rescale", ["no", None, 1, 0.5], ids=repr)
def test_rescale(rescale: Any) -> None:
    refused(InputError, "rescale as True or False", lambda: InfoBatch(DATA, 3, rescale=rescale))


@pytest.mark.parametrize("method", ["infobatch", None, methods.infobatch, until(0.5)])
def test_method(method: Any) -> None:
    refused(InputError, "a method", lambda: Pruned(DATA, method, 3))


# ---- data sets -----------------------------------------------------------------------------------------------


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


class NoLength:
    def __getitem__(self, index: int) -> int:
        return index


def test_data_sets() -> None:
    wrong: Any
    refused(InputError, "IterableDataset Stream", lambda: InfoBatch(Stream(), 3))
    for wrong in (NoLength(), {1, 2, 3}, 5, None, iter([1])):
        refused(InputError, "__len__ and __getitem__", lambda: InfoBatch(wrong, 3))  # noqa: B023
    refused(InputError, "at least one sample", lambda: InfoBatch(TensorDataset(torch.ones(0)), 3))
    refused(InputError, "at least one sample", lambda: InfoBatch([], 3))
    refused(InputError, "already wrapped", lambda: InfoBatch(InfoBatch(DATA, 3), 3))
    refused(InputError, "already wrapped", lambda: InfoBatch(InfoBatch(DATA, 3).full(), 3))


def test_loaders() -> None:
    train_data = InfoBatch(DATA, 3)
    loader: Any = infobatch.DataLoader
    refused(InputError, "TensorDataset.*torch.utils.data.DataLoader", lambda: loader(DATA))
    refused(InputError, "shuffle=True.*shuffled already", lambda: loader(train_data, shuffle=True))
    refused(InputError, "got list", lambda: loader(train_data, sampler=[0, 1]))
    refused(InputError, "got PlanSampler", lambda: loader(train_data, sampler=InfoBatch(DATA, 3).sampler))
    refused(
        InputError,
        "in_order=True where batch_size=None",
        lambda: loader(train_data, batch_size=None, num_workers=1, in_order=False),
    )


def test_a_batch_sampler_of_its_own_mind() -> None:
    train_data = InfoBatch(DATA, 3)
    batches = iter(infobatch.DataLoader(train_data, batch_sampler=[[0, 1], [2, 3]]))
    refused(MisalignedError, "draws from train_data.sampler", lambda: next(batches))


def test_more_epochs_than_promised() -> None:
    train_data = InfoBatch(DATA, 2)
    for _ in range(2):
        for (x,) in infobatch.DataLoader(train_data, batch_size=5):
            train_data.update(x)
    assert train_data.epoch == 2
    refused(infobatch.EpochError, "num_epochs=2", lambda: next(iter(infobatch.DataLoader(train_data))))


# ---- losses that are not finite ------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [NAN, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_loss_that_is_not_finite_never_becomes_a_score(bad: float, dtype: torch.dtype) -> None:
    train_data = InfoBatch(TensorDataset(torch.arange(1.0, 21.0), torch.arange(20)), 4, delta=1.0)
    seen = {}
    for epoch in range(4):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for x, z in infobatch.DataLoader(train_data, batch_size=5):
                losses = torch.where(z % 10 == 3, bad, x + epoch).to(dtype)
                train_data.update(losses)
                seen |= {i: value for i, value in zip(z.tolist(), losses.tolist(), strict=True) if math.isfinite(value)}
            assert train_data.epoch == epoch + 1
        came = train_data.history[-1].not_finite
        assert [str(warning.message) for warning in caught if "finite" in str(warning.message)] == (
            [f"epoch {epoch}: {came} of {train_data.history[-1].kept} losses were not finite; "
             "those samples keep their old scores"] if came else []
        )  # fmt: skip
    assert train_data.history[0].not_finite == 2
    scores = train_data.scores
    assert torch.isnan(scores[[3, 13]]).all()
    assert {i: value for i, value in enumerate(scores.tolist()) if not math.isnan(value)} == seen


def test_a_loss_that_stops_being_finite_keeps_its_last_score() -> None:
    train_data = InfoBatch(DATA, 3, ratio=0.0)
    for (x,) in infobatch.DataLoader(train_data, batch_size=5):
        train_data.update(x)
    for (x,) in infobatch.DataLoader(train_data, batch_size=5):
        train_data.update(torch.where(x == 7, NAN, x + 100))
    with pytest.warns(infobatch.InfoBatchWarning, match="1 of 20"):
        assert train_data.scores[7] == 7
    assert train_data.scores[8] == 108


def test_a_float64_loss_too_large_for_a_score_counts_as_not_finite() -> None:
    train_data = InfoBatch(DATA, 3)
    train_data.update(torch.full((20,), 1e300, dtype=torch.float64), torch.arange(20))
    with pytest.warns(infobatch.InfoBatchWarning, match="20 of 20"):
        assert torch.isnan(train_data.scores).all()


class Backwards(BatchSampler):
    """Batches whose samples are not in the plan's order."""

    def __iter__(self) -> Iterator[list[int]]:
        return (batch[::-1] for batch in super().__iter__())


ENDS = [torch.finfo(torch.float32).max, torch.finfo(torch.float32).min, torch.finfo(torch.bfloat16).max]


@pytest.mark.parametrize("bad", ENDS)
@pytest.mark.parametrize("way", ["place", "index", "name", "graph", "part"])
def test_a_loss_at_the_end_of_its_range_counts_as_not_finite(bad: float, way: str) -> None:
    """As nan_to_num makes of an infinite one. It is neither a sample that waits nor one that was skipped."""
    train_data = InfoBatch(DATA, 3, shard_scores=way == "part")
    update = torch.compile(train_data.update, backend="eager") if way == "graph" else train_data.update
    if way == "index":
        loader = infobatch.DataLoader(train_data, batch_sampler=Backwards(train_data.sampler, 5, False))
    else:
        loader = infobatch.DataLoader(train_data, 5)
    for (x,) in loader:
        losses = torch.where(x % 10 == 3, bad, x)
        update(losses, x.long()) if way in ("name", "graph") else update(losses)
    with pytest.warns(infobatch.InfoBatchWarning, match="2 of 20 losses"):
        assert train_data.epoch == 1
    scores = dict(zip(train_data.owned.tolist(), train_data.scores.tolist(), strict=True))
    assert {z for z, score in scores.items() if math.isnan(score)} == {3, 13}
    assert all(scores[z] == z for z in range(20) if z % 10 != 3)


# ---- what update returns -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("given", [False, True], ids=["", "indices"])
def test_the_returned_loss_can_be_called_backward_on(dtype: torch.dtype, given: bool) -> None:
    train_data = after_one_epoch()
    batches = iter(infobatch.DataLoader(train_data, batch_size=5))
    next(batches)
    indices = train_data.plan().indices[:5]
    loss = torch.rand(5, dtype=dtype, requires_grad=True)
    result = train_data.update(loss, indices if given else None)
    assert result.ndim == 0
    assert result.requires_grad
    assert result.is_floating_point()
    assert result.dtype == torch.promote_types(dtype, torch.float32)
    result.backward()
    assert loss.grad is not None
    torch.testing.assert_close(loss.grad.float() * 5, train_data.plan().weights[:5], rtol=1e-2, atol=0)


def test_without_grad_nothing_asks_for_it() -> None:
    train_data = InfoBatch(DATA, 3)
    assert not train_data.update(torch.ones(20), torch.arange(20)).requires_grad


def test_double_backward() -> None:
    """A gradient penalty, as it is written without us and with us."""
    train_data = after_one_epoch()
    plan = train_data.plan()
    indices = plan.indices[:6]
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))

    def penalty(weigh: Callable[[Tensor], Tensor]) -> Tensor:
        model = torch.nn.Linear(3, 1, bias=False)
        torch.nn.init.constant_(model.weight, 0.3)
        loss = weigh(model(x).squeeze(1).tanh().square())
        (first,) = torch.autograd.grad(loss, [model.weight], create_graph=True)
        first.square().sum().backward()
        assert model.weight.grad is not None
        return model.weight.grad

    by_hand = penalty(lambda loss: (loss * plan.weights[:6]).mean())
    torch.testing.assert_close(penalty(lambda loss: train_data.update(loss, indices)), by_hand)


def test_the_loss_given_is_not_changed() -> None:
    train_data = after_one_epoch()
    loss = torch.rand(5)
    before = loss.clone()
    train_data.update(loss, train_data.plan().indices[:5])
    assert torch.equal(loss, before)


def test_epochs_and_ratio_swapped() -> None:
    refused(InputError, "The order is InfoBatch", lambda: InfoBatch(DATA, 0.5, 8))  # type: ignore[arg-type]
