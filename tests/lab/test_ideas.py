"""Ideas on trial: each does what its words say, checked against another way to the same end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from infobatch.errors import InputError
from infobatch.lab import training
from infobatch.lab.ideas import IDEAS, WeightedNorm, weigh_norms
from infobatch.lab.nets import make_net
from infobatch.lab.settings import Settings
from infobatch.lab.tasks import Arrays, Task

QUICK: dict[str, Any] = {"epochs": 6, "batch_size": 16, "lr": 0.05, "threads": 1, "gallery": 0, "device": "cpu"}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


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
    norm.weights, before = None, norm.running_mean.clone()
    torch.testing.assert_close(norm(x), nn.functional.batch_norm(x, None, None, norm.weight, norm.bias, True))
    assert not torch.equal(norm.running_mean, before)
    norm.eval()
    assert torch.equal(norm(x), nn.BatchNorm2d.forward(norm, x))


def test_every_norm_of_a_net_is_replaced_and_knows_what_the_old_one_knew() -> None:
    torch.manual_seed(0)
    plain = make_net("resnet8", (1, 8, 8), 3)
    x = torch.randn(5, 1, 8, 8)
    plain(x)
    before = plain.eval()(x)
    count = sum(isinstance(each, nn.BatchNorm2d) for each in plain.modules())
    assert len(weigh_norms(plain)) == count > 5
    assert all(isinstance(each, WeightedNorm) for each in plain.modules() if isinstance(each, nn.BatchNorm2d))
    torch.testing.assert_close(plain.eval()(x), before)


@pytest.mark.parametrize("idea", IDEAS)
def test_every_idea_trains(idea: str) -> None:
    _, end = trained(model="conv", method="infobatch", compensate="lr", ideas=idea, epochs=10)
    assert end["metric"] > 60


@pytest.mark.parametrize("idea", ["average", "normalise", "recalibrate", "weighted_norm"])
def test_ideas_that_look_at_the_book_want_data_in_memory(idea: str) -> None:
    with pytest.raises(InputError, match=f"data in the device's memory, for {idea}"):
        trained(model="conv", ideas=idea, feed="loader")
