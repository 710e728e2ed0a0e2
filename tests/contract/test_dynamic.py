"""What every method of the registry promises, whoever wrote it."""

from __future__ import annotations

import pickle
from functools import cache
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import infobatch
from infobatch import variations
from infobatch.methods import CARDS, METHODS, Method
from infobatch.methods.method import Moment

SIZE, CLASSES, EPOCHS = 240, 4, 24
LABELS = torch.arange(SIZE) % CLASSES
pytestmark = pytest.mark.filterwarnings("ignore::infobatch.InfoBatchWarning")


def make(name: str) -> Method:
    given: dict[str, Any] = {"labels": LABELS} if name == "rcap" else {}
    if name == "dynamic_uncertainty":
        given["window"] = 3
    if name == "ies":
        given["bound"] = 0.02
    return METHODS[name](**given)


VARIANTS = {
    "as published": lambda method: method,
    "unbiased": variations.unbiased,
    "annealed": variations.annealed,
    "plain": variations.plain,
    "averaged": lambda method: variations.averaged(method, 0.4),
    "class floor": lambda method: variations.class_floor(method, LABELS, 0.6),
    "noise guard": lambda method: variations.noise_guard(method, 0.1, 3),
    "all": lambda method: variations.annealed(
        variations.unbiased(variations.class_floor(variations.noise_guard(variations.averaged(method)), LABELS, 0.3)),
        0.8,
    ),
}
COMMON = ("as published", "all")
both = pytest.mark.parametrize(
    "variant", [pytest.param(name, marks=() if name in COMMON else pytest.mark.slow) for name in VARIANTS]
)
some = pytest.mark.parametrize("variant", COMMON)
every = pytest.mark.parametrize("name", METHODS)


def answer(train: infobatch.Pruned, indices: torch.Tensor, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses and confidences that fall with time, each sample in its own way."""
    pace = 0.3 + 0.7 * ((indices * 7919) % SIZE) / SIZE
    wave = 0.05 * torch.sin(indices * 1.7 + epoch)
    confidence = (1 - torch.exp(-pace * (epoch + 1) / 4) + wave).clamp(0.01, 0.99)
    return -confidence.log(), confidence


def epoch_of(
    train: infobatch.Pruned,
    epoch: int,
    stop: int | None = None,
    batch: int = 40,
    without: torch.Tensor | None = None,
) -> None:
    """Losses for the epoch, or up to ``stop``; those ``without`` one have NaN."""
    indices = train.plan().indices
    done = train.progress[1]
    for at in range(done, len(indices) if stop is None else min(stop, len(indices) - batch), batch):
        some = indices[at : at + batch]
        loss, confidence = answer(train, some, epoch)
        if without is not None:
            loss = loss.masked_fill(without[some], torch.nan)
        train.update(loss, some, confidence=confidence)
    if stop is None and train.method.observes_hidden:
        for (some,), named in train.hidden(batch_size=64):
            assert torch.equal(some, named)
            loss, confidence = answer(train, named, epoch)
            train.observe(loss, named, confidence=confidence)


def fresh(name: str, variant: str, seed: int = 0) -> infobatch.Pruned:
    return infobatch.Pruned(TensorDataset(torch.arange(SIZE)), VARIANTS[variant](make(name)), EPOCHS, seed=seed)


@every
@both
def test_a_run_has_valid_plans_to_its_end(name: str, variant: str) -> None:
    train = fresh(name, variant)
    kept = []
    for epoch in range(EPOCHS):
        plan = train.plan()
        assert len(plan.indices.unique()) == plan.kept >= 1
        assert torch.equal(plan.table.nonzero().squeeze(1), plan.indices.sort().values)
        assert bool((plan.table[plan.indices] > 0).all())
        assert bool(torch.isfinite(plan.table).all())
        if plan.kept == SIZE and train.method.rescale:
            assert bool((plan.table == 1).all())
        if train.method.unbiased:
            assert float(plan.table.sum()) == pytest.approx(SIZE, rel=1e-5), "weights sum to N"
        if variant == "class floor" or (variant == "all" and epoch < 0.8 * EPOCHS):
            for label in range(CLASSES):
                share = (plan.table[label == LABELS] != 0).float().mean()
                assert share >= {"class floor": 0.6, "all": 0.3}[variant] - 1e-6
        kept.append(plan.kept)
        epoch_of(train, epoch)
    assert train.epoch == EPOCHS
    assert len(train.history) == EPOCHS
    if name != "full":
        assert min(kept) < SIZE, "it prunes at some time"
    if variant == "annealed" and name not in ("full",):
        assert kept[-1] == SIZE


@every
@pytest.mark.parametrize("variant", ["as published", "unbiased", pytest.param("all", marks=pytest.mark.slow)])
def test_who_claims_to_be_unbiased_is(name: str, variant: str) -> None:
    """Over many draws the weights of the hard and of the easy half of each class average to 1."""
    train = fresh(name, variant)
    if not train.method.unbiased:
        pytest.skip("claims nothing")
    for epoch in range(5):
        epoch_of(train, epoch)
    book, moment = train._scores, Moment(5, EPOCHS)
    tables = torch.stack([train.method.draw(book, moment, seed).table for seed in range(150)]).double()
    hard = book.scores.nan_to_num(9.0) > book.scores.nanmedian()
    for members in (side & (label == LABELS) for side in (hard, ~hard) for label in range(CLASSES)):
        means = tables[:, members].mean(1)
        assert float(means.mean()) == pytest.approx(1, abs=5 * float(means.std()) / 150**0.5 + 0.01)


BLIND = ("random_star", "rs2", "order_dp")
"""They draw who goes, or who may be looked at, without regard to scores."""


@every
@both
def test_who_has_no_score_stays(name: str, variant: str) -> None:
    """Also where a variation draws the lots again, and whoever would have had to go."""
    train, unknown = fresh(name, variant), torch.arange(SIZE) % 7 == 0
    for epoch in range(5):
        epoch_of(train, epoch, without=unknown)
    assert bool(torch.isnan(train.scores[unknown]).all())
    for seed in range(0 if name in BLIND else 40):
        plan = train.method.draw(train._scores, Moment(5, EPOCHS), seed)
        assert bool((plan.table[unknown] != 0).all())


@every
def test_budgets_are_exact(name: str) -> None:
    """Those with a ratio leave out exactly that share of all once everyone is known."""
    method = make(name)
    exact = {"random", "random_star", "rising", "epsilon_greedy", "ucb", "dynamic_uncertainty", "rs2", "rcap", "eswp"}
    if name not in exact:
        pytest.skip("its number follows from the scores")
    train = infobatch.Pruned(TensorDataset(torch.arange(SIZE)), method, EPOCHS)
    for epoch in range(12):
        epoch_of(train, epoch)
    assert train.plan().kept == SIZE - round(method.settings["ratio"] * SIZE)


@every
@some
def test_the_seed_decides(name: str, variant: str) -> None:
    def plans(seed: int) -> list[torch.Tensor]:
        train, seen = fresh(name, variant, seed), []
        for epoch in range(6):
            seen.append(train.plan().indices)
            epoch_of(train, epoch)
        return seen

    first, again, other = plans(3), plans(3), plans(4)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@cache
def undisturbed(name: str, variant: str) -> infobatch.Pruned:
    """A run at its end, to look at."""
    train = fresh(name, variant)
    for epoch in range(EPOCHS):
        epoch_of(train, epoch)
    return train


@every
@some
@pytest.mark.parametrize("stop", [pytest.param(0, marks=pytest.mark.slow), 80])
def test_a_run_resumes_bit_for_bit(name: str, variant: str, stop: int, tmp_path: Any) -> None:
    whole = undisturbed(name, variant)
    part = fresh(name, variant)
    for epoch in range(13):
        epoch_of(part, epoch)
    if stop:
        epoch_of(part, 13, stop)
    assert not stop or 0 < part.progress[1] < part.progress[2]
    infobatch.save(part.state_dict(), tmp_path / "state.pt")
    resumed = fresh(name, variant, seed=9)
    resumed.load_state_dict(infobatch.load(tmp_path / "state.pt"))
    for epoch in range(13, EPOCHS):
        epoch_of(resumed, epoch)
    assert torch.equal(resumed.scores, whole.scores)
    assert [report.kept for report in resumed.history] == [report.kept for report in whole.history]
    for key, column in whole.state_dict()["memory"].items():
        assert torch.equal(column.nan_to_num(-1), resumed.state_dict()["memory"][key].nan_to_num(-1)), key


@every
@both
def test_methods_travel(name: str, variant: str) -> None:
    method = VARIANTS[variant](make(name))
    copy = pickle.loads(pickle.dumps(method))
    assert repr(copy) == repr(method)
    book = infobatch.epoch.scores.ScoreTable(SIZE)
    book.make_columns(method.memory, method.channels)
    draws = [each.draw(book, Moment(0, EPOCHS), 1).indices for each in (method, copy)]
    assert torch.equal(*draws)


@every
def test_who_is_not_known_stays(name: str) -> None:
    if name in ("random_star", "rs2", "order_dp", "seta"):
        pytest.skip("looks at no score, or draws before it looks")
    method = make(name)
    book = infobatch.epoch.scores.ScoreTable(SIZE)
    book.make_columns(method.memory, ())
    known = torch.arange(SIZE) % 3 != 0
    book.scores[known] = torch.rand(int(known.sum()))
    for column in book.memory.values():
        column[known] = torch.rand(int(known.sum()))
    for epoch in (1, 5, 13):
        plan = method.draw(book, Moment(epoch, EPOCHS), 0)
        assert bool((plan.table[~known] != 0).all())


@pytest.mark.parametrize("name", [name for name in METHODS if make(name).channels])
def test_what_is_missing_is_named(name: str) -> None:
    train = fresh(name, "as published")
    with pytest.raises(infobatch.InputError, match="keyword confidence"):
        train.update(torch.rand(8), train.plan().indices[:8])
    with pytest.raises(infobatch.InputError, match="shape"):
        train.update(torch.rand(8), train.plan().indices[:8], confidence=torch.rand(7))


def test_every_method_has_a_card() -> None:
    assert set(CARDS) == set(METHODS)
    for name, card in CARDS.items():
        method = make(name)
        assert ("confidence" in card.needs) == ("confidence" in method.channels)
        assert ("pruned samples" in card.needs) == (method.observes_hidden)
        assert (card.weights == "all 1") == (not method.rescale or name == "full")


@every
@some
def test_plans_do_not_depend_on_the_default_dtype(name: str, variant: str) -> None:
    def history() -> list[tuple[torch.Tensor, torch.Tensor]]:
        train = fresh(name, variant)
        plans = []
        for epoch in range(8):
            plan = train.plan()
            plans.append((plan.indices, plan.table))
            for ids in plan.indices.split(40):
                loss = answers[epoch][ids]
                train.update(loss, ids, confidence=torch.exp(-loss))
            if train.method.observes_hidden:
                for _, ids in train.hidden(batch_size=64):
                    train.observe(answers[epoch][ids], ids, confidence=torch.exp(-answers[epoch][ids]))
        return plans

    answers = [answer(fresh(name, variant), torch.arange(SIZE), epoch)[0] for epoch in range(8)]
    expected = history()
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        torch.set_default_dtype(dtype)
        for mine, plain in zip(history(), expected, strict=True):
            assert all(map(torch.equal, mine, plain)), dtype


@every
@both
def test_a_method_says_whether_it_prunes_the_first_epoch(name: str, variant: str) -> None:
    method = VARIANTS[variant](make(name))
    pruned = infobatch.Pruned(TensorDataset(torch.arange(SIZE)), method, EPOCHS).plan().kept < SIZE
    assert pruned == method.prunes_first
