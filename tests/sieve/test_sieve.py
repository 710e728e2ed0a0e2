"""The sieve: what a look must not return, rows whose look is not finite, and whose losses come back."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sieved_training import criterion, x_and_y
from torch import Tensor, nn

from infobatch import InputError, MisalignedError, Sieve, per_sample
from infobatch.sieve import (
    Look,
    Own,
    Proxy,
    Reference,
    SieveMethod,
    adaptive,
    band,
    below_mean,
    es,
    hardest,
    lot,
    random_rows,
    rho_loss,
    selective_backprop,
    small_loss,
    tokens,
)
from infobatch.testing import _flatten, first_difference

SIZE = 8
ALWAYS = {"begin": 0.0, "end": 1.0}
METHODS: dict[str, Callable[[float], SieveMethod]] = {
    "hardest": lambda keep: hardest(keep),
    "class floor": lambda keep: hardest(
        keep, class_floor=min(0.2, keep), labels=lambda batch: torch.arange(len(batch)) % 2
    ),
    "lot": lambda keep: lot(keep),
    "band": lambda keep: band(keep, skip=0.1),
    "below_mean": lambda keep: below_mean(keep),
    "random_rows": lambda keep: random_rows(keep),
    "selective_backprop": lambda keep: selective_backprop(keep, whole_every=0, **ALWAYS),
    "rho_loss": lambda keep: rho_loss(keep),
    "es": lambda keep: es(keep),
    "small_loss": lambda keep: small_loss(keep, begin=0.0),
}


def look(batch: Tensor) -> Tensor:
    """The batch is its losses."""
    return batch


# ---- what a look must not return -------------------------------------------------------------------------------

WRONG: dict[str, Callable[[Tensor], Any]] = {
    "one number": lambda losses: losses.mean(),
    "integers": lambda losses: losses.round().long(),
    "truths": lambda losses: losses > 1,
    "nothing": lambda losses: None,
    "a list": lambda losses: losses.tolist(),
    "a column": lambda losses: losses[:, None],
    "complex numbers": lambda losses: losses.cfloat(),
}


class Given(Look):
    def __init__(self, change: Callable[[Tensor], Any]) -> None:
        self.change = change

    def look(self, batch: Any) -> Any:
        return self.change(criterion(batch[0][:, :3], batch[1]))


def looks_of(change: Callable[[Tensor], Any]) -> dict[str, Callable[[nn.Module], Any]]:
    """Looks whose losses are changed."""
    losses: Callable[[Any, Any], Any] = lambda net, batch: change(criterion(net(batch[0]), batch[1]))  # noqa: E731
    return {
        "function": lambda net: lambda batch: losses(net, batch),
        "Look": lambda net: Given(change),
        "Own": lambda net: Own(net, losses=losses),
        "Proxy": lambda net: Proxy(net, losses=losses, every=2),
        "Proxy that does not train now": lambda net: later(Proxy(net, losses=losses, every=2)),
        "Reference": lambda net: Reference(net, losses=losses, of=Given(lambda losses: losses)),
        "Reference of it": lambda net: Reference(net, criterion, of=Given(change)),
    }


def later(proxy: Proxy) -> Look:
    class Later(Look):
        def visit(self, batch: Any, step: int, progress: float | None, *, is_needed: bool) -> Tensor | None:
            return proxy.visit(batch, step + 1, progress, is_needed=is_needed)

    return Later()


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("kind", looks_of(lambda losses: losses))
@pytest.mark.parametrize("method", [hardest(0.5), adaptive()], ids=["part", "whole"])
def test_only_one_floating_point_loss_per_row_is_accepted(kind: str, wrong: str, method: SieveMethod) -> None:
    net, changes = nn.Linear(4, 3), [WRONG[wrong], lambda losses: losses]
    sieve = Sieve(looks_of(lambda losses: changes[0](losses))[kind](net), method)
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(InputError, match="loss per row"):
        sieve(*x_and_y(SIZE, 0))
    assert sieve.summary().batches == sieve.summary().rows == 0
    assert all(map(torch.equal, before.values(), net.state_dict().values()))
    changes.pop(0)
    assert len(sieve(*x_and_y(SIZE, 0))[0]) == SIZE * (0.5 if method.name == "hardest" else 1)


def test_a_proxy_that_trains_before_its_method_begins_is_checked_as_well() -> None:
    proxy = Proxy(nn.Linear(4, 3), losses=lambda net, batch: criterion(net(batch[0]), batch[1]).mean())
    with pytest.raises(InputError, match="loss per row"):
        Sieve(proxy, selective_backprop(begin=0.5), num_steps=9)(*x_and_y(SIZE, 0))


def test_a_proxy_needs_an_optimizer_that_trains_it() -> None:
    """One of other parameters would leave it as it is, without a word."""
    net, other = nn.Linear(4, 3), nn.Linear(4, 3)
    wrong = [torch.optim.SGD(other.parameters(), lr=0.1), torch.optim.LBFGS(net.parameters()), "adam", net]
    for optimizer in wrong:
        with pytest.raises(InputError, match="optimizer"):
            Proxy(net, criterion, optimizer=optimizer)  # type: ignore[arg-type]
    both = torch.optim.SGD([*other.parameters(), net.bias], lr=0.1)
    Sieve(Proxy(net, criterion, optimizer=both), hardest(0.5))(*x_and_y(SIZE, 0))


def test_criteria_losses_and_schedules_are_functions() -> None:
    net, wrong = nn.Linear(4, 3), "cross_entropy"
    with pytest.raises(InputError, match="schedule"):
        Proxy(net, criterion, schedule=0.1)  # type: ignore[arg-type]
    for make in (Proxy, Own):
        with pytest.raises(InputError, match="a function"):
            make(net, wrong)
        with pytest.raises(InputError, match="a function"):
            make(net, losses=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, 7, 9, 16])
@pytest.mark.parametrize("kind", ["Reference", "Reference of it"])
def test_a_reference_and_its_look_have_equally_many_losses(kind: str, count: int) -> None:
    """A difference with a single loss would be that of the other look alone."""
    sieve = Sieve(looks_of(lambda losses: losses.repeat(2)[:count])[kind](nn.Linear(4, 3)), rho_loss(0.5))
    with pytest.raises(InputError, match="loss"):
        sieve(*x_and_y(SIZE, 0))


class Wrapped(nn.Module):
    """A network that returns its logits in something else."""

    def __init__(self, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.wrap = nn.Linear(4, 3), wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.linear(x))


CRITERIA: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "cross-entropy": criterion,
    "squared error": lambda outputs, y: nn.MSELoss(reduction="none")(outputs, nn.functional.one_hot(y, 3).float()),
}


@pytest.mark.parametrize("name", CRITERIA)
@pytest.mark.parametrize("wrap", [lambda x: {"logits": x}, lambda x: (x, x), lambda x: None], ids=["dict", "tuple", ""])
def test_outputs_that_are_no_tensor_need_losses_as_a_function(wrap: Callable[[Tensor], Any], name: str) -> None:
    """What torch says of them names neither the look nor the network."""
    net, made = Wrapped(wrap), CRITERIA[name]
    looks = [Own(net, made), Proxy(net, made), Reference(net, made, of=Given(lambda losses: losses))]
    for look in looks:
        with pytest.raises(InputError, match=r"losses=function\(net, batch\)"):
            Sieve(look, hardest(0.5))(*x_and_y(SIZE, 0))
    logits = Own(
        Wrapped(lambda x: {"logits": x}), losses=lambda net, batch: criterion(net(batch[0])["logits"], batch[1])
    )
    assert len(Sieve(logits, hardest(0.5))(*x_and_y(SIZE, 0))[0]) == SIZE // 2


@pytest.mark.parametrize("error", [TypeError, AttributeError, ValueError])
def test_an_error_of_a_criterion_that_got_a_tensor_stays_as_it_is(error: type[Exception]) -> None:
    def broken(outputs: Tensor, targets: Tensor) -> Tensor:
        raise error("of the criterion")

    with pytest.raises(error, match="of the criterion"):
        Sieve(Own(nn.Linear(4, 3), broken), hardest(0.5))(*x_and_y(SIZE, 0))


TEXTS = [f"text {row}" for row in range(SIZE)]
UNEQUAL: dict[str, tuple[tuple[Any, ...], int]] = {
    "too few losses": (x_and_y(SIZE, 0), SIZE - 1),
    "too many losses": (x_and_y(SIZE, 0), SIZE + 1),
    "losses of half the rows": ((torch.rand(SIZE, 3),), SIZE // 2),
    "parts that disagree": ((torch.rand(SIZE, 3), torch.rand(SIZE - 1)), SIZE),
    "parts that disagree inside": (({"x": torch.rand(SIZE), "more": [torch.rand(SIZE + 2)]},), SIZE),
    "texts": ((TEXTS,), SIZE // 2),
    "texts in a dict": (({"text": TEXTS},), SIZE - 1),
    "texts as parts": ((TEXTS, TEXTS), SIZE + 1),
}


@pytest.mark.parametrize("name", UNEQUAL)
@pytest.mark.parametrize("method", [hardest(0.5), hardest(0.99), adaptive()], ids=["part", "nearly all", "whole"])
def test_a_look_has_as_many_losses_as_every_part_has_rows(name: str, method: SieveMethod) -> None:
    """Also where the batch passes whole, so that no row is selected from it."""
    batch, count = UNEQUAL[name]
    sieve = Sieve(lambda _: torch.rand(count), method)
    before = copy.deepcopy(sieve.state_dict())
    with pytest.raises(InputError, match="rows"):
        sieve(*batch)
    assert first_difference(_flatten(before), _flatten(sieve.state_dict())) is None


@pytest.mark.parametrize("batch", [torch.rand(0), (torch.rand(0, 4), torch.rand(0)), {"x": torch.rand(0, 2)}])
@pytest.mark.parametrize("method", [hardest(0.5), random_rows(0.5), adaptive()], ids=["hardest", "random", "adaptive"])
def test_an_empty_batch_is_refused(batch: Any, method: SieveMethod) -> None:
    sieve = Sieve(lambda _: torch.rand(0), method) if method.needs_look else Sieve(None, method)
    with pytest.raises(InputError, match="at least one row"):
        sieve(batch)
    with pytest.raises(InputError, match=r"sieve\(x, y\)"):
        sieve()


# ---- rows whose look is not finite -----------------------------------------------------------------------------

BAD = {"nan": torch.nan, "inf": torch.inf, "-inf": -torch.inf}


def with_bad(bad: float, places: list[int]) -> Tensor:
    losses = torch.tensor([0.5, 3.0, 0.1, 2.0, 0.7, 1.0, 0.2, 4.0])
    losses[places] = bad
    return losses


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", METHODS)
def test_they_are_never_chosen_while_enough_others_exist(name: str, bad: str) -> None:
    losses, places = with_bad(BAD[bad], [0, 3, 6]), {0, 3, 6}
    sieve = Sieve(look, METHODS[name](0.5), seed=3)
    for count in range(1, 9):  # some draw
        kept, weight = sieve(losses)
        rows = [losses.tolist().index(loss) for loss in kept.tolist()]
        assert len(rows) == 4
        assert not places & set(rows)
        assert bool((weight.isfinite() & (weight > 0)).all())
        assert sieve.summary().not_finite == 3 * count


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", METHODS)
def test_they_fill_up_at_weight_0(name: str, bad: str) -> None:
    losses, places = with_bad(BAD[bad], [0, 1, 3, 4, 6, 7]), {0, 1, 3, 4, 6, 7}
    numbers = torch.arange(SIZE)
    sieve = Sieve(lambda batch: losses if isinstance(batch, Tensor) else losses[: len(batch)], METHODS[name](0.5))
    rows, weight = sieve(numbers)
    assert len(rows) == 4
    assert {2, 5} <= set(rows.tolist())
    assert bool(weight.isfinite().all())
    assert {int(row) for row, one in zip(rows, weight, strict=True) if one == 0} == places & set(rows.tolist())
    assert sieve.summary().not_finite == 6

    losses_of_model = torch.where(weight == 0, torch.nan, 1.0).requires_grad_()  # as broken as the look
    loss = sieve.reduce(losses_of_model)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(float(weight.sum()) / SIZE)
    torch.testing.assert_close(losses_of_model.grad, weight / SIZE)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", METHODS)
def test_they_have_weight_0_also_where_a_share_of_few_rows_is_all_of_them(name: str, bad: str) -> None:
    """Two rows are always passed on, and 0.9 of four rows are all four."""
    for losses, keep in ((torch.tensor([BAD[bad], 1.0]), 0.5), (torch.tensor([1.0, 2.0, BAD[bad], 3.0]), 0.9)):
        sieve = Sieve(look, METHODS[name](keep))
        _, weight = sieve(losses)
        assert (weight > 0).tolist() == losses.isfinite().tolist()
        assert sieve.summary().not_finite == 1


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("is_own", [False, True])
def test_they_have_weight_0_in_a_batch_that_is_measured(bad: str, is_own: bool) -> None:
    model, (x, y) = nn.Linear(4, 3), x_and_y(SIZE, 0)
    x[2] = BAD[bad]
    sieve = Sieve(Own(model, criterion) if is_own else lambda batch: criterion(batch[0][:, :3], batch[1]), adaptive())
    x, y, weight = sieve(x, y)
    assert weight.tolist() == [1, 1, 0, 1, 1, 1, 1, 1]
    assert bool(sieve.reduce(criterion(model(x), y)).isfinite())


@pytest.mark.parametrize("bad", BAD)
def test_all_of_them_move_nothing(bad: str) -> None:
    for name in METHODS:
        sieve = Sieve(look, METHODS[name](0.5))
        kept, weight = sieve(torch.full((SIZE,), BAD[bad]))
        assert weight.tolist() == [0.0] * 4, name
        assert sieve.reduce(kept) == 0


@pytest.mark.parametrize("bad", BAD)
def test_tokens_whose_look_is_not_finite_get_weight_0(bad: str) -> None:
    losses = with_bad(BAD[bad], [1, 7]).view(2, 4)
    sieve = Sieve(look, tokens(lambda batch: torch.ones(2, 4), keep=0.5))
    _, weight = sieve(losses)
    assert weight.tolist() == [[0, 0, 0, 1], [1, 1, 0, 0]] or int(weight.sum()) == 4
    assert not weight[~losses.isfinite()].any()
    _, weight = Sieve(look, tokens(lambda batch: torch.ones(2, 4), keep=0.9))(losses)
    assert torch.equal(weight, losses.isfinite().float())
    assert sieve.summary().not_finite == 2


# ---- whose losses come back ------------------------------------------------------------------------------------


def test_a_method_that_measures_asks_for_the_losses_of_its_first_batch() -> None:
    sieve = Sieve(look, adaptive())
    sieve(torch.rand(SIZE))
    with pytest.raises(MisalignedError, match="previous batch"):
        sieve(torch.rand(SIZE))
    with pytest.raises(MisalignedError, match="previous batch"):
        next(sieve.ahead([torch.rand(SIZE)]))
    sieve.reduce(torch.rand(SIZE))
    for _ in range(40):  # from now on a batch may be left out
        kept, _ = sieve(torch.rand(SIZE))
    assert len(kept) <= SIZE


def test_expand_answers_as_well() -> None:
    sieve = Sieve(look, adaptive())
    for _ in range(3):
        kept, _ = sieve(torch.rand(SIZE))
        sieve.expand(kept)


@pytest.mark.parametrize("keep", [0.5, 1.0])
def test_expand_puts_scores_in_their_places(keep: float) -> None:
    losses, scores = torch.rand(SIZE), torch.randn(SIZE, dtype=torch.float64)
    sieve = Sieve(lambda batch: batch[0], hardest(keep))
    kept, of_kept, _ = sieve(losses, scores)
    found = sieve.expand(kept, score=of_kept)
    is_kept = found.loss != 0
    assert int(is_kept.sum()) == round(keep * SIZE)
    assert torch.equal(found.score[is_kept], scores[is_kept])
    assert bool(found.score[~is_kept].isnan().all())


def test_with_scores_of_ones_own_the_losses_of_the_look_are_no_scores() -> None:
    net = nn.Linear(3, 2)
    x, y = torch.randn(SIZE, 3), torch.randint(0, 2, (SIZE,))
    criterion = nn.CrossEntropyLoss(reduction="none")
    sieve = Sieve(Own(net, criterion), hardest(0.5))
    for own in (False, True):
        some, targets, _ = sieve(x, y)
        losses = criterion(net(some), targets)
        found = sieve.expand(losses, score=-losses.detach() if own else None)
        assert int(found.score.isnan().sum()) == (SIZE // 2 if own else 0)


@pytest.mark.parametrize("score", [torch.rand(3), torch.arange(SIZE // 2), 1.0])
def test_expand_refuses_scores_that_do_not_fit(score: Any) -> None:
    sieve = Sieve(look, hardest(0.5))
    kept, _ = sieve(torch.rand(SIZE))
    with pytest.raises(InputError, match="score per loss"):
        sieve.expand(kept, score=score)


def test_looking_ahead_asks_for_them_as_well() -> None:
    walk = Sieve(look, adaptive()).ahead([torch.rand(SIZE)] * 3)
    next(walk)
    with pytest.raises(MisalignedError, match="previous batch"):
        next(walk)


def test_own_losses_and_fixed_shares_ask_for_nothing() -> None:
    for sieve in (Sieve(Own(nn.Linear(4, 3), criterion), adaptive(every=2)), Sieve(Given(lambda one: one), lot(0.5))):
        for step in range(5):
            sieve(*x_and_y(SIZE, step))


def test_losses_without_a_batch_are_refused() -> None:
    sieve, state = Sieve(look, hardest(0.5)), Sieve(look, hardest(0.5)).state_dict()
    for call in (sieve.reduce, sieve.expand):
        with pytest.raises(MisalignedError, match="Call sieve"):
            call(torch.rand(4))
    sieve(torch.rand(SIZE))
    sieve.load_state_dict(state)  # what was passed on before belongs to another run
    with pytest.raises(MisalignedError, match="Call sieve"):
        sieve.reduce(torch.rand(4))


@pytest.mark.parametrize(
    "losses",
    [
        *(torch.ones(3), torch.ones(5), torch.ones(8), torch.ones(1), torch.ones(4, 1), torch.tensor(1.0)),
        *(torch.arange(4), torch.ones(4) > 0.5, [1.0] * 4, None, 1.0),
    ],
    ids=repr,
)
def test_other_losses_than_those_of_the_rows_are_refused(losses: Any) -> None:
    """Those of a single row would be broadcast to all."""
    sieve = Sieve(look, hardest(0.5))
    sieve(torch.rand(SIZE))
    for call in (sieve.reduce, sieve.expand):
        with pytest.raises(InputError, match=r"losses of shape \[4\]"):
            call(losses)


@pytest.mark.parametrize("shape", [(4, 32, 32), (4, 7), (4, 1)])
def test_losses_of_pixels_or_tokens_are_sent_to_per_sample(shape: tuple[int, ...]) -> None:
    sieve = Sieve(look, hardest(0.5))
    sieve(torch.rand(SIZE))
    losses = torch.rand(shape)
    for call in (sieve.reduce, sieve.expand):
        with pytest.raises(InputError, match=r"infobatch\.per_sample\(losses, mask\)"):
            call(losses)
        with pytest.raises(InputError, match=r"Pass its loss"):
            call(per_sample(losses))  # type: ignore[arg-type]
        call(per_sample(losses).loss)


def test_losses_may_come_twice_and_are_measured_once() -> None:
    sieve = Sieve(look, adaptive(every=2))
    sieve(torch.tensor([0.0, 1.0, 2.0, 3.0]))
    first = sieve.reduce(torch.tensor([0.0, 1.0, 2.0, 3.0]))
    pending = sieve.state_dict()["amount"]["pending"]
    assert sieve.reduce(torch.tensor([3.0, 2.0, 1.0, 0.0])) == first == 1.5
    assert sieve.state_dict()["amount"]["pending"] == pending


# ---- how many rows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("keep", [0.1, 0.25, 0.5, 0.7, 1.0])
def test_a_share_of_any_batch_is_rounded_but_at_least_two_rows(name: str, keep: float) -> None:
    sieve = Sieve(look, METHODS[name](keep) if name != "band" or keep < 1 else hardest(keep))
    total = 0
    for size in (1, 2, 3, 4, 7, 10, 33):
        kept, weight = sieve(torch.rand(size))
        assert len(kept) == len(weight) == min(size, max(2, round(keep * size)))
        total += len(kept)
        assert sieve.reduce(kept.requires_grad_()).isfinite()
    assert (sieve.summary().kept, sieve.summary().rows) == (total, 60)


@pytest.mark.parametrize("name", METHODS)
def test_a_batch_of_one_row_passes_with_weight_1(name: str) -> None:
    kept, weight = Sieve(look, METHODS[name](0.5))(torch.tensor([3.0]))
    assert kept.tolist() == [3.0]
    assert weight.tolist() == [1.0]


def test_the_same_seed_and_step_draw_the_same_rows() -> None:
    losses = torch.rand(64)
    draws = [[Sieve(look, lot(0.5), seed=seed)(losses)[0].tolist() for seed in (0, 1)] for _ in range(2)]
    assert draws[0] == draws[1]
    assert draws[0][0] != draws[0][1]
    sieve = Sieve(look, lot(0.5))
    assert sieve(losses)[0].tolist() != sieve(losses)[0].tolist()  # another step
