"""What the proxy notes, against the model it was noted of; and what it leaves alone."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from infobatch import selection
from infobatch.errors import InputError
from infobatch.selection import Evidence, Progress, gather, proxy

N, K, D = 70, 3, 6


def blobs(count: int = N, seed: int = 0, spread: float = 0.5) -> TensorDataset:
    """Three groups that can be told apart."""
    lot = torch.Generator().manual_seed(seed)
    labels = torch.randint(K, (count,), generator=lot)
    return TensorDataset(F.one_hot(labels, D) * 2.0 + spread * torch.randn(count, D, generator=lot), labels)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(D, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, K))


class Listed(Dataset[Any]):
    """The same samples one by one, as any data set has them."""

    def __init__(self, data: TensorDataset, noise: bool = False) -> None:
        self.data, self.noise = data, noise

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x, y = self.data[index]
        if self.noise:
            x = x + random.random() + np.random.rand() + torch.rand(())
        return x, int(y)


def same(one: Evidence, other: Evidence) -> bool:
    return all(table.equal(other.tables()[name]) for name, table in one.tables().items())


def test_outputs_are_those_of_the_last_layer() -> None:
    data = blobs()
    evidence = gather(mlp, data, epochs=3, validation=blobs(20, seed=1))
    assert evidence.validation is not None
    for known in (evidence, evidence.validation):
        features, logits, head = known.need("features", "logits", "head")
        offset = logits - features @ head.T
        torch.testing.assert_close(offset, offset[:1].expand_as(offset))
        assert features.min() == 0  # behind the ReLU
        assert known.bias
    assert torch.equal(evidence.need("labels")[0], data.tensors[1])
    assert repr(evidence.validation) == "Evidence(20 samples: labels, features, logits, head)"


def test_history_of_a_model_that_stands_still() -> None:
    """At rate 0 every visit shows the model as it is, whatever the order of the batches."""
    net, data = nn.Linear(D, K), blobs()
    evidence = gather(net, data, epochs=4, lr=0.0, batch_size=16)
    x, y = data.tensors
    with torch.no_grad():
        logits = net(x)
    assert torch.equal(evidence.need("correct")[0], (logits.argmax(1) == y).expand(4, N))
    own = logits[range(N), y]
    others = torch.stack([logits[i, [k for k in range(K) if k != y[i]]].max() for i in range(N)])
    torch.testing.assert_close(evidence.need("aum")[0], own - others)
    errors = (logits.softmax(1) - F.one_hot(y, K)).norm(dim=1)
    torch.testing.assert_close(evidence.need("error_norms")[0], errors[None])


def test_history_follows_the_epochs() -> None:
    """Learning shows: the first visits are guesses, the last are right."""
    evidence = gather(mlp, blobs(), epochs=20, batch_size=16)
    right = evidence.need("correct")[0].float().mean(1)
    assert right.shape == (20,)
    assert right[0] < 0.7
    assert right[-5:].mean() > 0.9


def test_mislabelled_samples_stand_out() -> None:
    """The purpose of it all: what is noted tells wrong labels from right ones."""
    data = blobs(150)
    wrong = torch.arange(0, 150, 15)
    data.tensors[1][wrong] = (data.tensors[1][wrong] + 1) % K
    evidence = gather(mlp, data, epochs=12, runs=3, early=6, batch_size=16)
    for choose in (selection.el2n, selection.grand):
        chosen = choose(evidence, 0.2)
        assert len(set(wrong.tolist()) & set(chosen)) >= 8, choose.__name__
    correct, aum = evidence.need("correct", "aum")
    assert aum[wrong].mean() < -1 < 1 < aum.mean()
    assert correct[6:, wrong].float().mean() < 0.3 < 0.8 < correct[6:].float().mean()


def test_untrained_and_undecided() -> None:
    """Closed forms: with no opinion p = 1/K, so |p - y| = sqrt(1 - 1/K), and |g| is that times |(f, 1)|."""
    net = nn.Linear(D, K)
    nn.init.zeros_(net.weight)
    nn.init.zeros_(net.bias)
    data = blobs()
    evidence = gather(net, data, epochs=0)
    errors, gradients = evidence.need("error_norms", "grad_norms")
    torch.testing.assert_close(errors, torch.full((1, N), math.sqrt(1 - 1 / K)))
    torch.testing.assert_close(gradients, errors * (data.tensors[0].square().sum(1) + 1).sqrt())
    assert evidence.correct is None
    assert evidence.aum is None


def convolutional() -> nn.Module:
    """With batch norm, and a layer that does not train."""
    net = nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(),
        nn.Linear(8, 5), nn.Linear(5, K, bias=False),
    )  # fmt: skip
    net[5].requires_grad_(False)
    return net


@pytest.mark.parametrize("make", [mlp, convolutional])
@pytest.mark.parametrize("exact", [True, False])
def test_gradient_norms_are_those_of_autograd(
    make: Callable[[], nn.Module], exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "GRADIENTS", 300)  # a few samples at a time
    net, data = make(), blobs(20)
    evidence = gather(net, data, epochs=0, exact=exact)
    net.eval()
    head = list(net.children())[-1]
    weights = [weight for weight in (net if exact else head).parameters() if weight.requires_grad]
    expected = []
    for x, y in data:
        net.zero_grad()
        F.cross_entropy(net(x[None]), y[None]).backward()
        expected.append(torch.cat([weight.grad.flatten() for weight in weights if weight.grad is not None]).norm())
    torch.testing.assert_close(evidence.need("grad_norms")[0], torch.stack(expected)[None])
    assert evidence.bias is (make is mlp)


def test_same_seed_same_evidence() -> None:
    first = gather(mlp, blobs(), epochs=3, runs=2, seed=4)
    torch.rand(5)
    for four in (4, np.int64(4)):
        assert same(first, gather(mlp, blobs(), epochs=3, runs=2, seed=four))  # type: ignore[arg-type]
    assert not same(first, gather(mlp, blobs(), epochs=3, runs=2, seed=5))


@pytest.mark.parametrize("workers", [0, 2])
def test_any_data_set_gives_the_same(workers: int) -> None:
    plain = gather(mlp, blobs(), epochs=2, runs=2, batch_size=16, validation=blobs(9))
    listed = gather(mlp, Listed(blobs()), epochs=2, runs=2, batch_size=16, validation=Listed(blobs(9)), workers=workers)
    assert same(plain, listed)
    assert same(plain.validation, listed.validation)


def test_every_random_state_is_given_back_and_none_is_read() -> None:
    """With augmentation from three generators, dropout and initial weights."""

    def states() -> tuple[Any, ...]:
        return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()

    before = states()
    first = gather(mlp, Listed(blobs(), noise=True), epochs=2)
    assert states() == before
    random.random(), np.random.rand(), torch.rand(())
    assert same(first, gather(mlp, Listed(blobs(), noise=True), epochs=2))
    with pytest.raises(InputError):
        gather(mlp, TensorDataset(torch.full((4, D), float("nan")), torch.zeros(4).long()), epochs=2)


def test_states_come_back_after_an_error_too() -> None:
    before = torch.get_rng_state(), random.getstate()

    def stop(told: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gather(mlp, blobs(), epochs=2, progress=stop)
    assert torch.get_rng_state().equal(before[0])
    assert random.getstate() == before[1]


def test_the_model_is_left_as_it_was() -> None:
    net = nn.Sequential(nn.Linear(D, 4), nn.BatchNorm1d(4), nn.Linear(4, K)).train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    gather(net, blobs(), epochs=2)
    assert all(value.equal(before[name]) for name, value in net.state_dict().items())
    assert net.training
    assert all(weight.grad is None for weight in net.parameters())
    assert not any(module._forward_hooks for module in net.modules())


def test_runs_begin_differently_and_end_early() -> None:
    told: list[Progress] = []
    evidence = gather(mlp, blobs(), epochs=4, runs=3, early=1, progress=told.append)
    errors, correct = evidence.need("error_norms", "correct")
    assert errors.shape == (3, N)
    assert correct.shape == (4, N)
    assert not errors[0].allclose(errors[1])
    assert [(one.run, one.epoch) for one in told] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (2, 0)]
    assert [one.done for one in told] == [1, 2, 3, 4, 5, 6]
    assert {one.total for one in told} == {6}
    assert told[3].loss < told[0].loss


def test_early_is_when_it_says() -> None:
    at_the_end = gather(mlp, blobs(), epochs=3, early=3)
    torch.testing.assert_close(at_the_end.need("error_norms")[0][0], at_the_end.errors().norm(dim=1))
    at_first = gather(mlp, blobs(), epochs=3, early=0).need("error_norms")[0]
    assert at_first.equal(gather(mlp, blobs(), epochs=0).need("error_norms")[0])
    assert not at_first.allclose(at_the_end.need("error_norms")[0])


def test_a_look_does_not_disturb_the_training() -> None:
    looked, not_looked = (gather(mlp, blobs(), epochs=3, early=early) for early in (1, 3))
    assert torch.equal(looked.need("logits")[0], not_looked.need("logits")[0])


def test_visits_see_the_model_in_training_and_looks_do_not() -> None:
    """At rate 0 dropout alone can change a prediction between two epochs."""
    net = nn.Sequential(nn.Linear(D, 8), nn.Dropout(0.9), nn.Linear(8, K))
    evidence = gather(net, blobs(), epochs=6, lr=0.0)
    assert not evidence.need("correct")[0].eq(evidence.need("correct")[0][0]).all()
    assert evidence.need("error_norms")[0].equal(gather(net, blobs(), epochs=0).need("error_norms")[0])


def test_no_hook_stays_behind() -> None:
    head = nn.Linear(D, K)
    with proxy._recorded_calls([head]) as calls:
        head(torch.ones(2, D))
    head(torch.ones(2, D))
    assert len(calls) == 1
    assert not head._forward_hooks


def test_a_last_batch_of_one() -> None:
    net = nn.Sequential(nn.Linear(D, 4), nn.BatchNorm1d(4), nn.Linear(4, K))
    assert gather(net, blobs(33), epochs=1, batch_size=16).size == 33


class Backwards(nn.Module):
    """Registered in another order than called, with a second linear layer of the same width."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(7, K)
        self.side = nn.Linear(D, K)
        self.inner = nn.Linear(D, 7)

    def forward(self, x: Tensor) -> Tensor:
        self.side(x)
        made: Tensor = self.out(self.inner(x))
        self.side(x)
        return made


def test_finds_the_last_layer_by_what_it_makes() -> None:
    assert gather(Backwards(), blobs(), epochs=0).need("features")[0].shape == (N, 7)
    assert gather(Backwards(), blobs(), epochs=0, layer="out").need("features")[0].shape == (N, 7)


class Wrapped(nn.Module):
    def __init__(self, after: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.fc, self.after = nn.Linear(D, K), after

    def forward(self, x: Tensor) -> Any:
        return self.after(self.fc(x))


def test_a_named_layer_need_not_be_the_very_last() -> None:
    scaled = Wrapped(lambda z: z * 2)
    with pytest.raises(InputError, match="layer="):
        gather(scaled, blobs(), epochs=0)
    assert gather(scaled, blobs(), epochs=0, layer="fc").need("features")[0].equal(blobs().tensors[0])


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(blobs())

    def __len__(self) -> int:
        return N


@pytest.mark.parametrize(
    ("model", "data", "settings", "words"),
    [
        (mlp, blobs(), {"epochs": -1}, "epochs as an? "),
        (mlp, blobs(), {"epochs": None}, "epochs as an? "),
        (mlp, blobs(), {"batch_size": 0}, "batch_size as an? .*at least 1"),
        (mlp, blobs(), {"runs": 0}, "runs as an? .*at least 1"),
        (mlp, blobs(), {"lr": -1.0}, "lr of at least 0"),
        (mlp, blobs(), {"lr": float("nan")}, "lr of at least 0"),
        (mlp, blobs(), {"early": 3, "epochs": 2}, "early of at most 2"),
        (mlp, blobs(), {"early": 0.0}, "early as an? "),
        (mlp, blobs(), {"layer": "fc"}, "Linear layers here: 0, 3"),
        (mlp(), blobs(), {"runs": 2}, "a function that returns a model"),
        ("net", blobs(), {}, "a model, or a function"),
        (lambda: 3, blobs(), {}, "returns int"),
        (nn.Flatten(), blobs(), {"epochs": 0}, "a linear layer"),
        (Wrapped(lambda z: {"logits": z}), blobs(), {}, "got dict"),
        (Wrapped(lambda z: z[:, :, None]), blobs(), {}, r"shape \[2, 3, 1\]"),
        (nn.Linear(D, K).requires_grad_(False), blobs(), {}, "trainable weights"),
        (
            nn.Linear(D, K).requires_grad_(False),
            blobs(),
            {"epochs": 0, "exact": True},
            "trainable weights, .*Leave exact out",
        ),
        (mlp, Stream(), {}, "IterableDataset"),
        (mlp, TensorDataset(torch.ones(0, D), torch.ones(0).long()), {}, "empty"),
        (mlp, TensorDataset(torch.ones(4, D)), {}, "label"),
        (mlp, TensorDataset(torch.ones(4, D), torch.arange(4)), {}, "labels from 0 to 2; got 0 to 3"),
        (mlp, TensorDataset(torch.ones(4, D), torch.arange(4) - 1), {}, "got -1 to 2"),
        (mlp, TensorDataset(torch.ones(4, D), torch.ones(4)), {}, "integer label per sample"),
        (mlp, TensorDataset(torch.ones(4, D), torch.ones(4, 1).long()), {}, "integer label per sample"),
        (mlp, [{"x": torch.ones(D), "y": 1}], {}, "got dict"),
        (mlp, TensorDataset(torch.ones(4, D) * 1e30, torch.arange(4) % K), {"lr": 1e9, "epochs": 3}, "Lower lr"),
        (mlp, blobs(), {"validation": TensorDataset(torch.ones(4, D), torch.arange(4))}, "labels from 0 to 2"),
    ],
)
def test_refused(model: Any, data: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        gather(model, data, **({"epochs": 1} | settings))


@pytest.mark.gpu
@pytest.mark.parametrize("exact", [False, True])
def test_on_a_gpu(exact: bool) -> None:
    before = torch.cuda.get_rng_state()
    here = gather(nn.Linear(D, K), blobs(), epochs=3, exact=exact)
    net = nn.Linear(D, K)
    there = gather(net, Listed(blobs()), epochs=3, exact=exact, device="cuda", seed=0)
    assert there.device.type == "cuda"
    assert next(net.parameters()).device.type == "cpu"
    assert torch.cuda.get_rng_state().equal(before)
    assert here.tables().keys() == there.tables().keys()
    on_device = TensorDataset(*(table.cuda() for table in blobs().tensors))
    again = gather(net, on_device, epochs=3, exact=exact, device="cuda", seed=0)
    torch.testing.assert_close(again.need("logits")[0], there.need("logits")[0])


@pytest.mark.parametrize("exact", [False, True])
def test_double_precision_is_as_good(exact: bool) -> None:
    data = blobs(12)
    wide = TensorDataset(data.tensors[0].double(), data.tensors[1])
    single, double = (
        gather(net, each, epochs=0, exact=exact)
        for net, each in ((nn.Linear(D, K), data), (nn.Linear(D, K).double(), wide))
    )
    assert single.tables().keys() == double.tables().keys()
    assert all(table.dtype != torch.float64 for table in double.tables().values())


@pytest.mark.parametrize(("epochs", "words"), [(0, "finite features"), (1, "a proxy with finite losses")])
def test_broken_inputs_are_called_so(epochs: int, words: str) -> None:
    data = TensorDataset(torch.full((6, D), torch.nan), torch.arange(6) % K)
    with pytest.raises(InputError, match=words):
        gather(nn.Linear(D, K), data, epochs=epochs)
