"""Ideas on trial: each does what its words say, checked against another way to the same end."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from infobatch.epoch.scores import ScoreBook
from infobatch.errors import InfoBatchWarning, InputError
from infobatch.lab.tasks.nets import make_net
from infobatch.lab.tasks.task import Arrays, Task
from infobatch.lab.train import loop as training
from infobatch.lab.train.ideas import IDEAS
from infobatch.lab.train.settings import Settings, parse_method
from infobatch.lab.train.trial import WeightedNorm, weigh_norms
from infobatch.methods.when import Moment

QUICK: dict[str, Any] = {"epochs": 6, "batch_size": 16, "lr": 0.05, "threads": 1, "gallery": 0, "device": "cpu"}


def made() -> Task:
    """Small images whose class is where they are bright, some of them wrongly labelled."""
    draw = torch.Generator().manual_seed(1)
    labels = torch.randint(3, (150,), generator=draw)
    images = torch.randint(0, 120, (150, 1, 6, 6), generator=draw, dtype=torch.uint8)
    for label in range(3):
        images[labels == label, :, 2 * label : 2 * label + 2] += 60
    labels[:15] = 0
    return Task("made", Arrays(images, labels), Arrays(images, labels), ("a", "b", "c"), mean=(0.3,), std=(0.2,))


def trained(**given: Any) -> tuple[list[Tensor], dict[str, Any]]:
    """The weights after a run, and its end."""
    run = training.Training(Settings.of({**QUICK, **given}), made())
    while not run.over:
        run.epoch(lambda: False)
    return [parameter.detach().double() for parameter in run.model.parameters()], run.end()


def apart(one: list[Tensor], other: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


def test_a_growing_loss_with_a_growing_decay_is_a_growing_rate() -> None:
    """Without momentum lr (k g + k d w) is (k lr) (g + d w); without the idea the decay is left behind."""
    common = {"momentum": 0.0, "weight_decay": 0.05, "model": "mlp", "method": "infobatch"}
    rate, _ = trained(**common, compensate="lr")
    both, _ = trained(**common, compensate="loss", ideas="decay")
    loss, _ = trained(**common, compensate="loss")
    assert apart(rate, both) < 1e-5
    assert apart(rate, loss) > 1e-3


def test_momentum_forgets_as_much_over_as_many_data() -> None:
    run = training.Training(
        Settings.of({**QUICK, "method": "random:ratio=0.5", "ideas": "momentum", "epochs": 9}), made()
    )
    for _ in range(2):  # the first is of full data
        run.epoch(lambda: False)
    (group,) = run.optimizer.param_groups
    assert group["momentum"] == pytest.approx(0.9**2)  # half of the steps, each of which forgets twice
    while not run.over:
        run.epoch(lambda: False)
    assert group["momentum"] == pytest.approx(0.9)  # annealed: full data again


def test_a_moving_average_is_the_sum_of_all_weights_so_far_fading_in_step_with_data() -> None:
    """Beside the same run without it, step by step, with the sum written out."""
    common = {**QUICK, "method": "random:ratio=0.5", "model": "conv", "compensate": "lr"}
    plain = training.Training(Settings.of(common), made())
    average = training.Training(Settings.of({**common, "ideas": "ema"}), made())
    total, step = None, plain.step

    def noted(batch: Any) -> None:
        nonlocal total
        keep = 0.98 ** (2 if plain.train_data.epoch else 1)  # of six epochs the first is of full data
        step(batch)
        now = {name: value.double() for name, value in plain.model.state_dict().items()}
        total = now if total is None else {name: keep * total[name] + (1 - keep) * now[name] for name in now}

    plain.step = noted  # type: ignore[method-assign]
    while not plain.over:
        plain.epoch(lambda: False)
        average.epoch(lambda: False)
    assert total is not None
    assert average.trial.average is not None
    for name, value in average.trial.average.module.state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(value.double(), total[name], atol=1e-6, rtol=1e-5)
    for one, other in zip(plain.model.parameters(), average.model.parameters(), strict=True):
        assert torch.equal(one, other)  # it looks on, no more
    ours = average.test()
    average.model.load_state_dict(average.trial.average.module.state_dict())
    average.trial.average = None
    assert average.test() == ours != plain.test()


def test_a_moving_average_goes_on_after_a_pause() -> None:
    settings = Settings.of({**QUICK, "method": "infobatch", "model": "conv", "ideas": "ema"})
    whole, first = training.Training(settings, made()), training.Training(settings, made())
    while not whole.over:
        whole.epoch(lambda: False)
    steps = iter(range(100))
    first.epoch(lambda: next(steps) >= 5)
    second = training.Training(settings, made(), state=first.state())
    while not second.over:
        second.epoch(lambda: False)
    assert second.test() == whole.test()


@pytest.mark.parametrize("compensate", ["loss", "lr"])
def test_where_all_weights_are_alike_there_is_nothing_to_normalise(compensate: str) -> None:
    common = {"model": "mlp", "method": "random:ratio=0.4", "compensate": compensate}
    assert apart(trained(**common)[0], trained(**common, ideas="normalise")[0]) < 1e-5


def test_normalised_batches_step_equally_far() -> None:
    """Of InfoBatch the batches differ in their mean weight, so that it does something there."""
    common = {"model": "mlp", "method": "infobatch", "compensate": "lr"}
    assert apart(trained(**common)[0], trained(**common, ideas="normalise")[0]) > 1e-4


def test_a_weighted_norm_is_batch_norm_with_samples_as_often_as_they_weigh() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(6, 4, 5, 5, generator=draw, requires_grad=True)
    often = torch.tensor([1, 2, 1, 3, 1, 2])
    net = nn.Sequential(nn.BatchNorm2d(4))
    (norm,) = weigh_norms(net)
    plain = nn.BatchNorm2d(4)
    assert net[0] is norm
    with torch.no_grad():
        for each in (norm, plain):
            each.weight.copy_(torch.tensor([0.5, 1.0, 2.0, -1.0]))
            each.bias.copy_(torch.tensor([0.0, 1.0, -1.0, 3.0]))
    norm.weights = often.float()
    ours, first = norm(x), often.cumsum(0) - often
    theirs = plain(x.repeat_interleave(often, 0))[first]
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(norm.running_mean, plain.running_mean)
    torch.testing.assert_close(norm.running_var, plain.running_var, rtol=0.02, atol=0.0)  # n - 1 of other n
    toward = torch.randn(x.shape, generator=draw)
    torch.testing.assert_close(
        *(torch.autograd.grad((out * toward).sum(), x, retain_graph=True)[0] for out in (ours, theirs)),
        atol=1e-5,
        rtol=1e-5,
    )
    assert norm.num_batches_tracked == plain.num_batches_tracked == 1
    assert norm.running_mean is not None
    norm.weights, before = None, norm.running_mean.clone()
    torch.testing.assert_close(norm(x), nn.functional.batch_norm(x, None, None, norm.weight, norm.bias, True))
    assert not torch.equal(norm.running_mean, before)
    norm.eval()
    assert torch.equal(norm(x), nn.BatchNorm2d.forward(norm, x))


def test_every_norm_of_a_net_is_replaced_and_knows_what_the_old_one_knew() -> None:
    torch.manual_seed(0)
    plain = make_net("resnet8", (1, 8, 8), 3).double()
    x = torch.randn(5, 1, 8, 8).double()
    plain(x)
    before, known = plain.eval()(x), [id(each) for each in (*plain.parameters(), *plain.buffers())]
    count = sum(isinstance(each, nn.BatchNorm2d) for each in plain.modules())
    assert len(weigh_norms(plain)) == count > 5
    assert all(isinstance(each, WeightedNorm) for each in plain.modules() if isinstance(each, nn.BatchNorm2d))
    assert known == [id(each) for each in (*plain.parameters(), *plain.buffers())]  # as they were, and where
    torch.testing.assert_close(plain.eval()(x), before)


@pytest.mark.parametrize("given", [{"affine": False}, {"track_running_stats": False}, {"momentum": None}], ids=str)
def test_norms_of_every_kind_may_be_weighted(given: dict[str, Any]) -> None:
    net, plain = nn.Sequential(nn.BatchNorm2d(3, **given)), nn.BatchNorm2d(3, **given)
    (norm,) = weigh_norms(net)
    x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    norm.weights = torch.full((4,), 2.0)
    torch.testing.assert_close(norm(x), plain(x), atol=1e-5, rtol=1e-5)
    for ours, theirs in ((norm.running_mean, plain.running_mean), (norm.running_var, plain.running_var)):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("idea", IDEAS)
def test_every_idea_trains(idea: str) -> None:
    grows = "loss" if idea == "decay" else "lr"
    _, end = trained(model="conv", method="infobatch", compensate=grows, ideas=idea, epochs=10)
    assert end["metric"] > 60


@pytest.mark.parametrize(
    ("idea", "given", "why"),
    [
        ("sqrt_growth", {"compensate": "loss"}, "the learning rate does not grow"),
        ("no_growth", {"method": "ucb"}, "the learning rate does not grow"),
        ("weighted_norm", {"model": "mlp"}, "no BatchNorm2d"),
        ("recalibrate", {"model": "mlp"}, "no batch norm"),
        ("decay", {"compensate": "loss", "weight_decay": 0.0}, "no weight decay"),
        ("momentum", {"optimizer": "adamw"}, "no momentum of that kind"),
        ("momentum", {"momentum": 0.0}, "no momentum of that kind"),
    ],
    ids=str,
)
def test_ideas_that_do_nothing_say_so(idea: str, given: dict[str, Any], why: str) -> None:
    settings = Settings.of({**QUICK, "model": "conv", "method": "infobatch", **given, "ideas": idea})
    with pytest.warns(InfoBatchWarning, match=why):
        training.Training(settings, made())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training.Training(settings.but(method="full"), made())  # trained beside others, with their ideas


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        ("sqrt_growth+no_growth", "Drop no_growth"),
        ("momentum+momentum", "Drop momentum"),
        ("average+slow_average", "Drop slow_average"),
        ("+", "There are"),
        ("momentum+", "There are"),
        ("decay", "a growing loss, for the idea decay"),
    ],
)
def test_ideas_that_cannot_be_meant_are_refused(names: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        Settings.of({"method": "infobatch", "compensate": "lr", "ideas": names})


def test_statistics_weighed_in_training_may_be_taken_anew_for_a_test() -> None:
    both = trained(model="conv", method="infobatch", compensate="lr", ideas="weighted_norm+recalibrate", epochs=10)
    assert both[1]["metric"] > 60


@pytest.mark.parametrize("idea", ["average", "normalise", "recalibrate", "weighted_norm"])
def test_ideas_that_look_at_the_book_want_data_in_memory(idea: str) -> None:
    with pytest.raises(InputError, match=f"data in the device's memory, for {idea}"):
        trained(model="conv", ideas=idea, feed="loader")


def test_what_became_of_no_growth() -> None:
    """The library's own word for it trains the same net."""
    idea, own = (trained(method="author_tiers", **given)[1] for given in
                 ({"compensate": "lr", "ideas": "no_growth"}, {"compensate": "none"}))  # fmt: skip
    grown = trained(method="author_tiers", compensate="lr")[1]
    assert (own["test_loss"], own["saved"]) == (idea["test_loss"], idea["saved"])
    assert own["test_loss"] != grown["test_loss"]


def test_one_walk_keeps_as_many_of_each_kind_as_the_paper() -> None:
    book = ScoreBook(300)
    book.scores.copy_(torch.rand(300, generator=torch.Generator().manual_seed(0)))
    moment = Moment(1, 10)
    mine, paper = (parse_method(name).draw(book, moment, 3) for name in ("one_walk", "infobatch"))
    assert mine.kept == paper.kept
    assert float(mine.table.sum()) == pytest.approx(300)
    assert sorted(mine.table.unique().tolist()) == pytest.approx(sorted(paper.table.unique().tolist()))
