"""A look leaves no trace in the model, and a proxy has no parameter of the model."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from sieved_training import criterion, x_and_y
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

import infobatch
from infobatch import InputError, Sieve
from infobatch.sieve import Look, Own, Proxy, Reference, Remembered, adaptive, hardest

SIZE = 8


class Counter(nn.Module):
    """Its buffer changes with each batch in training mode, as in a network that measures its activations."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += x.detach().abs().mean()
        return x


def net() -> nn.Sequential:
    """Of every module that keeps something of a batch; some in training mode, some not."""
    norms = [nn.BatchNorm1d(6), nn.BatchNorm1d(6), nn.BatchNorm1d(6, track_running_stats=False)]
    synced = [nn.SyncBatchNorm(6), nn.SyncBatchNorm(6)]
    made = nn.Sequential(nn.Linear(4, 6), *norms, *synced, nn.Dropout(0.4), Counter(), Counter(), nn.Linear(6, 3))
    for norm in (*norms[:2], *synced):  # not what comes out of a batch normalized before
        norm.running_mean = torch.randn(6)
        norm.running_var = torch.rand(6) + 0.5
    made.train()
    for at in (1, 4, 8):
        made[at].eval()
    return made


def trace(module: nn.Module) -> dict[str, Any]:
    """All that a forward pass may change."""
    return {
        "values": {name: value.clone() for name, value in module.state_dict().items()},
        "places": {name: value.data_ptr() for name, value in module.state_dict().items()},
        "buffers": [sorted(one._buffers) for one in module.modules()],
        "modes": [one.training for one in module.modules()],
        "norms": [getattr(one, "track_running_stats", None) for one in module.modules()],
        "gradients": [(one.grad, one.requires_grad) for one in module.parameters()],
        "hooks": [(len(one._forward_hooks), len(one._forward_pre_hooks)) for one in module.modules()],
    }


def assert_untouched(module: nn.Module, before: dict[str, Any]) -> None:
    after = trace(module)
    values, old = after.pop("values"), before["values"]
    assert [name for name in old if not torch.equal(old[name], values[name])] == []
    assert after == {name: value for name, value in before.items() if name != "values"}


def losses_of(net: nn.Module, batch: Any) -> Tensor:
    return criterion(net(batch[0]), batch[1])


def failing(net: nn.Module, batch: Any) -> Tensor:
    losses_of(net, batch)
    raise ArithmeticError


LOOKS: dict[str, Callable[..., tuple[Look, list[nn.Module]]]] = {
    "own": lambda model, losses: (Own(model, losses=losses), [model]),
    "reference": lambda model, losses: (
        Reference(other := net(), losses=losses, of=Own(model, criterion)),
        [model, other],
    ),
    "reference of own": lambda model, losses: (
        Reference(other := net(), criterion, of=Own(model, losses=losses)),
        [model, other],
    ),
    "proxy": lambda model, losses: (Proxy(net(), losses=losses, every=2), [model]),
    "proxy that does not train": lambda model, losses: (
        Untrained(Proxy(small := net(), losses=losses)),
        [model, small],
    ),
}


class Untrained(Look):
    """A proxy on a batch that it does not learn from."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy

    def look(self, batch: Any) -> Tensor:
        losses = self.proxy.visit(batch, 1, None, is_needed=True)
        assert losses is not None
        return losses


@pytest.mark.parametrize("fails", [False, True], ids=["", "losses raise"])
@pytest.mark.parametrize("name", LOOKS)
def test_a_look_leaves_the_model_and_the_random_state_as_they_were(name: str, fails: bool) -> None:
    model = net()
    look, watched = LOOKS[name](model, failing if fails else losses_of)
    sieve, before = Sieve(look, hardest(0.5)), [trace(one) for one in watched]
    state = torch.get_rng_state()
    for step in range(3):
        if fails:
            with pytest.raises(ArithmeticError):
                sieve(*x_and_y(SIZE, step))
        else:
            sieve(*x_and_y(SIZE, step))
        assert torch.equal(torch.get_rng_state(), state)
        for one, old in zip(watched, before, strict=True):
            assert_untouched(one, old)


@pytest.mark.parametrize("name", [name for name in LOOKS if name != "proxy"])
def test_so_it_does_outside_of_a_sieve(name: str) -> None:
    model = net()
    look, watched = LOOKS[name](model, losses_of)
    before, state = [trace(one) for one in watched], torch.get_rng_state()
    losses = look.look(x_and_y(SIZE, 0))
    assert not losses.requires_grad
    assert torch.equal(torch.get_rng_state(), state)
    for one, old in zip(watched, before, strict=True):
        assert_untouched(one, old)


def test_while_it_looks_the_model_is_in_its_own_modes_and_a_reference_in_evaluation_mode() -> None:
    model, reference, seen = net(), net(), {}

    def noted(one: nn.Module, batch: Any) -> Tensor:
        seen[id(one)] = [module.training for module in one.modules() if not isinstance(module, nn.SyncBatchNorm)]
        return losses_of(one, batch)

    expected = [module.training for module in model.modules() if not isinstance(module, nn.SyncBatchNorm)]
    look = Reference(reference, losses=noted, of=Own(model, losses=noted))
    Sieve(look, hardest(0.5))(*x_and_y(SIZE, 0))
    assert seen[id(model)] == expected
    assert not any(seen[id(reference)])


def test_its_losses_are_those_of_the_step_that_follows() -> None:
    """A BatchNorm in training mode normalizes by the batch, one in evaluation mode by its statistics."""
    model, batch = net(), x_and_y(SIZE, 0)
    model[6].p = 0.0  # the masks of dropout would differ
    expected = losses_of(copy.deepcopy(model), batch)
    torch.testing.assert_close(Own(model, criterion).look(batch), expected.detach())


# ---- a function of the user ------------------------------------------------------------------------------------


def small_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3))


GLOBAL = small_net()


def by_global_name(batch: Any) -> Tensor:
    GLOBAL.eval()
    return losses_of(GLOBAL, batch)


def by_a_function_that_it_calls(batch: Any) -> Tensor:
    return by_global_name(batch)


class Owner:
    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def losses(self, batch: Any) -> Tensor:
        self.model.eval()
        return losses_of(self.model, batch)


class Holding(Look):
    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def look(self, batch: Any) -> Tensor:
        self.model.eval()
        return losses_of(self.model, batch)


def closure(model: nn.Module) -> Callable[[Any], Tensor]:
    def look(batch: Any) -> Tensor:
        assert not torch.is_grad_enabled()
        model.eval()
        return losses_of(model, batch)

    return look


USERS: dict[str, Callable[[nn.Module], Any]] = {
    "closure": closure,
    "default": lambda model: lambda batch, net=model: losses_of(net.eval(), batch),
    "global name": lambda model: by_global_name,
    "a function that it calls": lambda model: by_a_function_that_it_calls,
    "method": lambda model: Owner(model).losses,
    "object": lambda model: (lambda owner: lambda batch: owner.losses(batch))(Owner(model)),
    "partial": lambda model: functools.partial(lambda net, batch: losses_of(net.eval(), batch), model),
    "Look": Holding,
    "Reference of it": lambda model: Reference(nn.Linear(4, 3), criterion, of=Holding(model)),
}


@pytest.mark.parametrize("method", [hardest(0.5), adaptive()], ids=["part", "whole"])
@pytest.mark.parametrize("kind", USERS)
def test_a_function_leaves_the_modes_of_the_networks_it_refers_to(kind: str, method: Any) -> None:
    """``model.eval()`` before a look would otherwise be in force for the rest of the training."""
    model = GLOBAL if "global" in kind or "function" in kind else small_net()
    model.train()
    model[2].eval()
    sieve = Sieve(USERS[kind](model), method)
    for step in range(2):
        x, y, _ = sieve(*x_and_y(SIZE, step))
        assert [module.training for module in model.modules()] == [True, True, True, False, True]
        sieve.reduce(criterion(model(x), y))


def test_what_a_function_draws_and_the_statistics_of_its_networks() -> None:
    """It runs beside the random states, but BatchNorm statistics move: ``Own`` is there for the model."""
    model = small_net()
    look: Callable[[Any], Tensor] = lambda batch: losses_of(model, batch)  # noqa: E731
    state = torch.get_rng_state()
    Sieve(look, hardest(0.5))(*x_and_y(SIZE, 0))
    assert torch.equal(torch.get_rng_state(), state)
    assert int(model[1].num_batches_tracked) == 1
    before = trace(model)
    Sieve(Own(model, losses=lambda _, batch: look(batch)), hardest(0.5))(*x_and_y(SIZE, 0))
    assert_untouched(model, before)


def test_a_module_is_no_function() -> None:
    with pytest.raises(InputError, match=r"Own\(model, criterion\)"):
        Sieve(nn.Linear(4, 3), hardest(0.5))  # type: ignore[arg-type]


def test_a_function_that_reads_the_model_is_refused_beside_the_training_step() -> None:
    """On a GPU it would read weights while the optimizer changes them."""
    model, other = nn.Linear(4, 3), nn.Linear(4, 3)
    batches = [x_and_y(SIZE, step) for step in range(3)]
    refused = [
        lambda batch: losses_of(model, batch),
        lambda batch: criterion(batch[0] @ model.weight.detach().T, batch[1]),
        Holding(model),
        Reference(other, criterion, of=Holding(model)),
    ]
    for look in refused:
        sieve = Sieve(look, hardest(0.5))
        x, y, _ = next(sieve.ahead(batches))
        for call in (sieve.reduce, sieve.expand):
            with pytest.raises(InputError, match=r"reads parameters of the model.*instead of sieve\.ahead"):
                call(criterion(model(x), y))
        x, y, _ = Sieve(look, hardest(0.5))(*batches[0])
    both = Owner(other)
    both.trained = model  # type: ignore[attr-defined]
    welcome = [lambda batch: losses_of(other, batch), both.losses, lambda batch: both.losses(batch), Holding(other)]
    for look in (*welcome, Proxy(other, criterion)):
        sieve = Sieve(look, hardest(0.5))
        for x, y, _ in sieve.ahead(batches):
            sieve.reduce(criterion(model(x), y))
    sieve = Sieve(refused[0], hardest(0.5))
    for step in range(3):
        x, y, _ = sieve(*x_and_y(SIZE, step))
        sieve.reduce(criterion(model(x), y))


# ---- a proxy that is a part of the model -----------------------------------------------------------------------


def shared(how: str) -> tuple[nn.Module, Proxy]:
    """A model, and a proxy with something of it."""
    trunk, head = nn.Linear(4, 6), nn.Linear(6, 3)
    model = nn.Sequential(trunk, nn.ReLU(), head)
    if how == "the model":
        return model, Proxy(model, criterion)
    if how == "a layer":
        return model, Proxy(nn.Sequential(trunk, nn.Linear(6, 3)), criterion)
    if how == "a tied weight":
        small = nn.Linear(4, 6)
        small.weight = trunk.weight
        return model, Proxy(small, criterion)
    small = nn.Sequential(trunk, nn.Linear(6, 3))
    return model, Proxy(small, criterion, optimizer=torch.optim.SGD(small[1].parameters(), lr=0.1))


def inside(how: str, proxy: Proxy) -> Iterator[Look]:
    yield proxy
    yield Reference(nn.Linear(4, 3), criterion, of=proxy)
    if how == "the model":
        data = infobatch.InfoBatch(TensorDataset(*x_and_y(SIZE, 0)), num_epochs=8)
        next(iter(infobatch.DataLoader(data, batch_size=SIZE)))
        yield Remembered(proxy, data, share=0.2)


@pytest.mark.parametrize("method", [hardest(0.5), adaptive()], ids=["part", "whole"])
@pytest.mark.parametrize("call", ["reduce", "expand"])
@pytest.mark.parametrize("how", ["the model", "a layer", "a tied weight"])
def test_a_proxy_that_shares_parameters_with_the_model_is_refused(how: str, call: str, method: Any) -> None:
    model, proxy = shared(how)
    for look in inside(how, proxy):
        sieve = Sieve(look, method)
        x, y, _ = sieve(*x_and_y(SIZE, 0))
        for _ in range(2):  # also when it is tried again
            with pytest.raises(InputError, match="shares no parameters"):
                getattr(sieve, call)(criterion(model(x), y))


@pytest.mark.parametrize("call", ["reduce", "expand"])
def test_a_layer_of_the_model_that_the_proxy_does_not_train_is_welcome(call: str) -> None:
    model, proxy = shared("a layer that it does not train")
    sieve = Sieve(proxy, hardest(0.5))
    for step in range(3):
        x, y, _ = sieve(*x_and_y(SIZE, step))
        getattr(sieve, call)(criterion(model(x), y))


@pytest.mark.parametrize("call", ["reduce", "expand"])
def test_losses_without_a_graph_do_not_end_the_check(call: str) -> None:
    model, proxy = shared("the model")
    sieve = Sieve(proxy, hardest(0.5))
    x, y, _ = sieve(*x_and_y(SIZE, 0))
    getattr(sieve, call)(criterion(model(x), y).detach())
    with pytest.raises(InputError, match="shares no parameters"):
        getattr(sieve, call)(criterion(model(x), y))


# ---- a model that is sharded -----------------------------------------------------------------------------------


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_a_method_that_measures_is_refused_for_a_look_by_a_sharded_model() -> None:
    """Where one rank looks and another does not, the first would wait for weights."""
    model, data = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)), TensorDataset(*x_and_y(SIZE, 0))
    fully_shard(model[0], mesh=init_device_mesh("cpu", (1,)))
    train_data = infobatch.InfoBatch(data, num_epochs=8)
    next(iter(infobatch.DataLoader(train_data, batch_size=SIZE)))
    refused = [
        Own(model, criterion),
        Own(torch.compile(model, backend="eager"), criterion),
        Reference(nn.Linear(4, 3), criterion, of=Own(model, criterion)),
        Reference(model, criterion, of=Own(nn.Linear(4, 3), criterion)),
        Remembered(Own(model, criterion), train_data, share=0.2),
    ]
    for look in refused:
        sieve = Sieve(look, adaptive())
        with pytest.raises(InputError, match="FSDP"):
            sieve(*x_and_y(SIZE, 0))
        assert sieve.summary().batches == 0
    assert len(Sieve(Own(model, criterion), hardest(0.5))(*x_and_y(SIZE, 0))[0]) == SIZE // 2
    assert len(Sieve(Proxy(nn.Linear(4, 3), criterion), adaptive())(*x_and_y(SIZE, 0))[0]) == SIZE
