"""ESWP with both of its levels, against its rule written out literally for one sample at a time."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import infobatch
from infobatch.errors import InputError
from infobatch.sieve import Choice, Own, Proxy, Remembered, Seen, SieveMethod, es

B1, B2 = 0.2, 0.9
SIZE, BATCH, EPOCHS = 24, 8, 6


class Literal:
    """w_i(t) = b1 s_i(t-1) + (1-b1) l_i(t) and s_i(t) = b2 s_i(t-1) + (1-b2) l_i(t), from a given start."""

    def __init__(self, start: float | None) -> None:
        self.s: dict[int, float] = {}
        self.start = start

    def weight(self, sample: int, loss: float) -> float:
        return B1 * self.before(sample, loss) + (1 - B1) * loss

    def remember(self, sample: int, loss: float) -> None:
        self.s[sample] = B2 * self.before(sample, loss) + (1 - B2) * loss

    def before(self, sample: int, loss: float) -> float:
        return self.s.get(sample, loss if self.start is None else self.start)


class Training:
    """Two levels on a linear model, whose losses are computed once more by hand."""

    def __init__(self, b2: float = B2) -> None:
        torch.manual_seed(0)
        self.x, self.y = torch.randn(SIZE, 5), torch.arange(SIZE) % 3
        self.model, self.criterion = nn.Linear(5, 3), nn.CrossEntropyLoss(reduction="none")
        method = infobatch.methods.eswp(ratio=0.25, b1=B1, b2=b2)
        dataset = torch.utils.data.TensorDataset(torch.arange(SIZE))
        self.train = infobatch.Pruned(dataset, method, num_epochs=EPOCHS)
        own = Own(self.model, losses=lambda net, batch: self.criterion(net(self.x[batch]), self.y[batch]))
        look = Remembered(own, self.train, share=B1, column="slow")
        self.seen: list[Tensor] = []
        self.sieve = infobatch.Sieve(look, self.watched(es(keep=0.5)))

    def watched(self, method: SieveMethod) -> SieveMethod:
        """The method, of whose losses a copy is kept."""

        def rule(seen: Seen) -> Choice:
            self.seen.append(seen.losses)
            return method.rule(seen)

        return dataclasses.replace(method, rule=rule)

    def losses(self, batch: Tensor) -> Tensor:
        """By hand."""
        weight, bias = self.model.weight.detach().double(), self.model.bias.detach().double()
        logits = self.x[batch].double() @ weight.T + bias
        return logits.logsumexp(1) - logits[range(len(batch)), self.y[batch]]

    def slow(self) -> Tensor:
        return self.train._scores.memory["slow"]  # type: ignore[attr-defined]


def test_both_levels_follow_the_rule() -> None:
    training, literal = Training(), Literal(start=None)
    for _ in range(EPOCHS):
        planned = training.train.plan().indices
        came = []
        for (batch,) in infobatch.DataLoader(training.train, batch_size=BATCH):
            losses = training.losses(batch).tolist()
            samples = batch.tolist()
            rows, _ = training.sieve(batch)
            expected = [literal.weight(sample, loss) for sample, loss in zip(samples, losses, strict=True)]
            assert len(rows) == max(2, round(0.5 * len(batch)))
            if len(rows) < len(batch):
                assert training.seen.pop().tolist() == pytest.approx(expected, rel=1e-5)
            assert set(rows.tolist()) <= set(samples)

            of_rows = training.criterion(training.model(training.x[rows]), training.y[rows])
            per_sample, score = training.sieve.expand(of_rows)
            loss = training.train.update(per_sample, score=score)
            if len(batch) == BATCH:
                assert float(loss.detach()) == pytest.approx(float(of_rows.detach().mean()), rel=1e-5)
            loss.backward()
            with torch.no_grad():
                for parameter in training.model.parameters():
                    parameter -= 0.5 * parameter.grad
                    parameter.grad = None
            for sample, of_sample in zip(samples, losses, strict=True):
                literal.remember(sample, of_sample)
            came += samples
        assert sorted(came) == sorted(planned.tolist())
        training.train.plan()  # the epoch is over: the memory moves
        known = training.slow().tolist()
        assert {i: known[i] for i in literal.s} == pytest.approx(literal.s, rel=1e-5)
    assert training.train.history[1].kept == SIZE * 3 // 4


def test_the_start_at_the_first_loss_is_forgotten_as_the_card_says() -> None:
    ours, source = Literal(start=None), Literal(start=1 / SIZE)
    first = 1.7
    for t in range(1, 30):
        loss = first / t
        ours.remember(0, loss)
        source.remember(0, loss)
        assert ours.s[0] - source.s[0] == pytest.approx(B2**t * (first - 1 / SIZE))


def test_full_data_at_both_ends() -> None:
    x = torch.rand(8)
    sieve = infobatch.Sieve(lambda batch: batch, es(keep=0.5, begin=0.2, end=0.8), num_steps=10)
    assert [len(sieve(x)[0]) for _ in range(10)] == [8, 8, *[4] * 6, 8, 8]
    with pytest.raises(InputError, match="begin before end"):
        es(begin=0.5, end=0.5)


def test_a_look_that_learns_goes_on_learning_behind_a_memory() -> None:
    training = Training()
    small = nn.Linear(5, 3)
    proxy = Proxy(
        small, losses=lambda net, batch: training.criterion(net(training.x[batch]), training.y[batch]), every=2
    )
    sieve = infobatch.Sieve(Remembered(proxy, training.train, share=0.5), es(), num_steps=100)
    before = small.weight.clone()
    for (batch,) in infobatch.DataLoader(training.train, batch_size=BATCH):
        rows, _ = sieve(batch)
        loss, score = sieve.expand(training.criterion(training.model(training.x[rows]), training.y[rows]))
        assert int(score.isnan().sum()) == len(batch) - len(rows)  # a proxy's losses are not the model's
        training.train.update(loss, score=score).backward()
    assert not torch.equal(small.weight, before)


def remembers(**options: Any) -> infobatch.Pruned:
    return infobatch.Pruned(torch.utils.data.TensorDataset(torch.arange(8)), num_epochs=3, **options)


@pytest.mark.parametrize(
    ("train_data", "options", "expected"),
    [
        ([1, 2], {}, "InfoBatch"),
        (remembers(method=infobatch.methods.eswp()), {"column": "fast"}, r"remembers \(slow, weight\); got 'fast'"),
        (remembers(method=infobatch.methods.above_mean()), {"column": "slow"}, "it has none"),
        (remembers(method=infobatch.methods.eswp()), {"share": 1.5}, r"share in \(0, 1\]"),
    ],
)
def test_what_is_not_remembered_is_refused_at_once(train_data: Any, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        Remembered(Own(nn.Linear(1, 1), nn.MSELoss(reduction="none")), train_data, **{"share": 0.2, **options})


def test_a_fresh_look_of_another_shape_is_not_spread_over_the_batch() -> None:
    train = infobatch.InfoBatch(torch.utils.data.TensorDataset(torch.arange(SIZE)), num_epochs=EPOCHS)
    for change in (
        lambda loss: loss.mean(),
        lambda loss: loss[:1],
        lambda loss: loss[:, None],
        lambda loss: loss.long(),
    ):
        own = Own(nn.Linear(1, 1), losses=lambda net, batch: change(net(batch[0][:, None].float())[:, 0]))  # noqa: B023
        sieve = infobatch.Sieve(Remembered(own, train, share=0.5), es(keep=0.5))
        (batch,) = next(iter(infobatch.DataLoader(train, batch_size=BATCH)))
        with pytest.raises(InputError, match="loss per row"):
            sieve((batch,))
