"""Segmentation: crops of images and masks together, the loss of both heads, the metric, and training with methods."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from made_masks import ade20k, plain
from torch import Tensor
from torch.nn import functional as F

from infobatch.errors import InputError
from infobatch.lab.metrics import MeanIoU
from infobatch.lab.tasks.catalogue import make_task
from infobatch.lab.tasks.nets import make_net, name_relative
from infobatch.lab.tasks.segmentation.crops import RandomCrops
from infobatch.lab.tasks.segmentation.mask_task import FullSizeIoU, heads_loss
from infobatch.lab.tasks.task import Task
from infobatch.lab.train.loop import run
from infobatch.lab.train.settings import Settings

# ---- crops -----------------------------------------------------------------------------------------------


def numbered(count: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Images whose pixels say where they come from: row and column; and masks of the row."""
    rows = torch.arange(height).float()[:, None].expand(-1, width)
    columns = torch.arange(width).float().expand(height, -1)
    images = torch.stack([rows, columns]).expand(count, -1, -1, -1).clone()
    return images, images[:, 0].to(torch.uint8)


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_at_scale_1_crops_are_slices_some_of_them_flipped() -> None:
    images, masks = numbered(60, 20, 30)
    crops, labels = RandomCrops(12, (1.0, 1.0))(images, masks, draw())
    seen = set()
    for crop, label in zip(crops, labels, strict=True):
        flipped = bool(crop[1, 0, 0] > crop[1, 0, 1])
        straight, straight_label = (crop.flip(2), label.flip(1)) if flipped else (crop, label)
        top, left = (round(each) for each in straight[:, 0, 0].tolist())
        assert torch.allclose(straight, images[0, :, top : top + 12, left : left + 12], atol=1e-3)
        assert torch.equal(straight_label, masks[0, top : top + 12, left : left + 12])
        seen.add((top, left, flipped))
    assert {flipped for *_, flipped in seen} == {True, False}
    assert {top for top, *_ in seen} == set(range(9))  # every place there is
    assert min(left for _, left, _ in seen) < 3
    assert max(left for _, left, _ in seen) > 15


def test_other_scales_enlarge_and_shrink_image_and_mask_alike() -> None:
    images, masks = numbered(1, 40, 40)
    large, large_mask = RandomCrops(16, (2.0, 2.0))(images, masks, draw())
    steps = (large[0, 0, 1:, 0] - large[0, 0, :-1, 0])[1:-1]
    assert torch.allclose(steps, torch.full_like(steps, 0.5), atol=1e-3)
    assert torch.all((large[0, 0] - large_mask[0]).abs() <= 0.5 + 1e-3)
    small, small_mask = RandomCrops(16, (0.5, 0.5))(images, masks, draw())
    assert torch.allclose(small[0, 0, 1:, 0] - small[0, 0, :-1, 0], torch.tensor(2.0), atol=1e-3)
    assert torch.all((small[0, 0] - small_mask[0]).abs() <= 0.5 + 1e-3)


def test_beyond_an_image_there_is_the_mean_and_nothing_counts() -> None:
    images, masks = numbered(30, 10, 10)
    crops, labels = RandomCrops(16, (1.0, 1.0))(images + 1, masks, draw())
    for crop, label in zip(crops, labels, strict=True):
        beyond = torch.ones(16, 16, dtype=torch.bool)
        beyond[:10, :10] = False
        beyond = beyond.flip(1) if bool(label[0, 0] == 255) else beyond
        assert torch.equal(label == 255, beyond)
        assert float(crop[:, beyond].abs().max()) < 1e-4
        assert float(crop[:, ~beyond].min()) > 0.9


def test_crops_lie_in_what_is_labeled() -> None:
    """A square around an image does not count; a crop that fits into the image shows none of it."""
    images, masks = numbered(200, 40, 60)
    masks[:, 24:] = 255
    masks[:, :, 31:] = 255
    _, labels = RandomCrops(20, (1.0, 1.0))(images, masks, draw())
    assert bool((labels != 255).all())
    assert {int(each) for each in labels[:, 0, 0]} == {0, 1, 2, 3, 4}


def test_only_the_generator_decides() -> None:
    images, masks = numbered(8, 20, 20)
    before = torch.get_rng_state()
    first, again, other = (RandomCrops(8)(images, masks, draw(seed)) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])


# ---- loss and metric -------------------------------------------------------------------------------------


def test_the_loss_is_mmsegmentation_s() -> None:
    """Each head's cross entropy over all pixels of the batch, those that do not count as 0; 1 and 0.4 times."""
    torch.manual_seed(0)
    heads = torch.randn(5, 4, 6, 6, requires_grad=True), torch.randn(5, 4, 3, 3, requires_grad=True)
    masks = torch.randint(0, 4, (5, 12, 12), dtype=torch.uint8)
    masks[0, :6], masks[1] = 255, 255
    expected = torch.zeros(())
    for head, weight in zip(heads, (1.0, 0.4), strict=True):
        logits = F.interpolate(head, size=(12, 12), mode="bilinear", align_corners=False)
        expected = expected + weight * F.cross_entropy(logits, masks.long(), ignore_index=255, reduction="none").mean()
    found = heads_loss(heads, masks, 0.0)
    assert torch.allclose(found.loss.mean(), expected)
    for ours, theirs in zip(
        torch.autograd.grad(found.loss.mean(), heads), torch.autograd.grad(expected, heads), strict=True
    ):
        assert torch.allclose(ours, theirs)
    assert found.score.isnan().tolist() == [False, True, False, False, False]


def test_what_the_loss_refuses() -> None:
    logits, masks = torch.randn(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.uint8)
    with pytest.raises(InputError, match=r"label_smoothing 0 .* got 0\.1"):
        heads_loss(logits, masks, 0.1)
    with pytest.raises(InputError, match="one or two heads; got 3"):
        heads_loss((logits,) * 3, masks, 0.0)
    with pytest.raises(InputError, match="logits of shape"):
        heads_loss(logits[:, :, 0, 0], masks, 0.0)


def test_the_metric_is_measured_at_the_size_of_the_masks() -> None:
    torch.manual_seed(0)
    logits, masks = torch.randn(3, 4, 5, 7), torch.randint(0, 4, (3, 10, 14), dtype=torch.uint8)
    ours, reference = FullSizeIoU(4), MeanIoU(4)
    ours.update((logits, torch.zeros(3, 4, 2, 2)), masks)
    reference.update(F.interpolate(logits, size=(10, 14), mode="bilinear", align_corners=False), masks)
    assert ours.compute() == reference.compute()


# ---- training --------------------------------------------------------------------------------------------

TINY: dict[str, Any] = {"model": "fpn8", "epochs": 4, "batch_size": 4, "threads": 1, "gallery": 2, "workers": 0}


def facts(task: Task, **given: Any) -> list[dict[str, Any]]:
    return list(run(Settings.of({**TINY, **given}, task.defaults), task=task))


@pytest.mark.parametrize("method", ["full", "infobatch", "author_tiers:delta=0.85", "sieve.hardest:keep=0.5,look=own"])
def test_methods_train_on_images_in_memory(tmp_path: Path, method: str) -> None:
    plain(tmp_path)
    end = facts(make_task("segmentation", str(tmp_path)), method=method)[-1]
    assert len(end["class_metric"]) == 3
    assert 0 <= end["metric"] <= 100
    assert (end["saved"] > 0) == (method != "full")


def test_a_small_proxy_is_the_default_of_a_sieve(tmp_path: Path) -> None:
    plain(tmp_path)
    told = facts(make_task("segmentation", str(tmp_path)), method="sieve.hardest:keep=0.5", model="fpn32")
    assert told[0]["sieve"]["net"] == "fpn8"
    assert 0.5 < told[-1]["compute"] < 0.75
    for model in ("transformers:upernet", "task"):
        assert name_relative(make_task("shapes", ""), Settings(model=model)) == "fpn8"


def test_a_shorter_run_stops_after_its_steps(tmp_path: Path) -> None:
    plain(tmp_path)
    end = facts(make_task("segmentation", str(tmp_path)), method="full", steps=5)[-1]
    assert (end["steps"], end["compute"]) == (5, pytest.approx(5 / 12, abs=0.02))


@pytest.mark.parametrize("method", ["infobatch", "kakurenbo"])
def test_images_of_several_sizes_are_trained_on_in_one_and_tested_in_their_own(tmp_path: Path, method: str) -> None:
    plain(tmp_path, size=(24, 16))
    plain(tmp_path, train=4, test=2, size=(20, 26))
    task = make_task("segmentation", str(tmp_path))
    if method == "kakurenbo":
        task = copy_with_confidence(task)
    end = facts(task, method=method, batch_size=2)[-1]
    assert 0 <= end["metric"] <= 100
    assert end["saved"] > 0


def copy_with_confidence(task: Task, sizes: list[int] | None = None) -> Task:
    """Return a copy for methods that need confidences; ``sizes`` gets those of the batches."""

    def confidence(outputs: tuple[Tensor, ...], masks: Tensor) -> Tensor:
        if sizes is not None:
            sizes.append(len(masks))
        return outputs[0].softmax(1).amax((1, 2, 3)).detach()

    task = copy.copy(task)
    object.__setattr__(task, "confidence", confidence)
    return task


class SizesIoU(FullSizeIoU):
    """Also notes the sizes of the batches, in a list that its copies share."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__(3)
        self.sizes = sizes

    def __deepcopy__(self, memo: dict[int, Any]) -> SizesIoU:
        return SizesIoU(self.sizes)

    def update(self, outputs: Any, targets: Tensor) -> None:
        self.sizes.append(len(targets))
        super().update(outputs, targets)


@pytest.mark.parametrize("feed", ["resident", "loader"])
def test_no_test_batch_is_larger_than_the_task_allows(feed: str) -> None:
    """And pruned samples, of which kakurenbo needs the losses, come in batches as large as those of training."""
    shapes, found, ends = make_task("shapes", ""), {}, []
    for bound in (0, 7):
        found[bound] = []
        trained: list[int] = []
        task = copy_with_confidence(shapes, trained)
        object.__setattr__(task, "test_batch", bound)
        object.__setattr__(task, "metric", SizesIoU(found[bound]))
        chosen: Any = "auto" if feed == "resident" else "loader"
        ends.append(facts(task, method="kakurenbo:ratio=0.5", epochs=3, batch_size=16, feed=chosen)[-1])
        assert ends[-1]["saved"] > 0
        assert (max(trained[1:]) == 16) == bool(bound)
    assert max(found[0]) == 80
    assert max(found[7]) == 7
    assert sum(found[7][1:]) == 3 * 80  # after the first few, which check the metric
    assert ends[0]["metric"] == pytest.approx(ends[1]["metric"], abs=0.1)


def test_a_run_of_crops_continues_where_it_stopped(tmp_path: Path) -> None:
    plain(tmp_path / "data")
    task = make_task("segmentation", str(tmp_path / "data"))
    settings = Settings.of({**TINY, "method": "infobatch"}, task.defaults)
    whole = list(run(settings, task=task))[-1]
    batches, path = iter(range(100)), tmp_path / "checkpoint.pt"
    list(run(settings, task=task, keep=path, stop=lambda: next(batches) == 4))
    continued = list(run(settings, task=task, keep=path, resume=True))
    assert continued[0]["kind"] == "resume"
    assert {key: continued[-1][key] for key in ("metric", "test_loss", "samples")} == {
        key: whole[key] for key in ("metric", "test_loss", "samples")
    }


def test_shapes_are_learned() -> None:
    """Better than to call everything ground, which reaches a third of its share."""
    task = make_task("shapes", "")
    told = facts(task, method="full", epochs=6, batch_size=16)
    share = (task.test.labels == 0).sum() / (task.test.labels != 255).sum()  # type: ignore[union-attr]
    assert told[-1]["metric"] > 100 * float(share) / 3 + 10


@pytest.mark.parametrize(("height", "width"), [(24, 24), (33, 50), (1, 2)])
def test_small_nets_take_images_of_any_size_and_mix_no_rows(height: int, width: int) -> None:
    torch.manual_seed(0)
    net, images = make_net("fpn8", (3, 24, 24), 5).eval(), torch.randn(3, 3, height, width)
    with torch.no_grad():
        together, alone = net(images), [net(image[None]) for image in images]
    assert [tuple(head.shape[:2]) for head in together] == [(3, 5), (3, 5)]
    assert tuple(together[0].shape[2:]) == (-(-height // 2), -(-width // 2))
    for at, head in enumerate(together):
        assert torch.allclose(head, torch.cat([each[at] for each in alone]), atol=1e-5)


def test_ade20k_with_upernet_takes_a_step_of_both_heads() -> None:
    """Both heads as in the model's own forward, which resizes them."""
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    net = make_net("transformers:upernet", (3, 64, 64), 150).eval()
    images, masks = torch.randn(2, 3, 64, 64), torch.randint(0, 150, (2, 64, 64), dtype=torch.uint8)
    with torch.no_grad():
        heads = net(images)
        theirs = net.model(images, labels=masks.long())
    assert [tuple(head.shape) for head in heads] == [(2, 150, 16, 16), (2, 150, 4, 4)]
    resized = F.interpolate(heads[0], size=(64, 64), mode="bilinear", align_corners=False)
    assert torch.allclose(resized, theirs.logits, atol=1e-5)
    ours = heads_loss(heads, masks, 0.0)
    assert torch.allclose(ours.loss.mean(), theirs.loss, rtol=1e-5)


@pytest.mark.slow
def test_ade20k_trains_in_its_layout(tmp_path: Path) -> None:
    ade20k(tmp_path, train=2, test=1)
    task = make_task("ade20k", str(tmp_path))
    assert task.defaults["model"] == "transformers:upernet"
    end = facts(task, method="infobatch", epochs=2, batch_size=2, eval_every=2)[-1]
    assert len(end["class_metric"]) == 150
    assert end["class_metric"][5] is None or end["class_metric"][5] == 0  # no ceiling is there


def test_nets_and_tasks_that_do_not_fit_say_so() -> None:
    shapes, digits = make_task("shapes", ""), make_task("digits", "")
    with pytest.raises(InputError, match=r"masks \[H, W\] as targets, for the net fpn8"):
        facts(digits)
    with pytest.raises(InputError, match="Choose a net that labels pixels"):
        facts(shapes, model="resnet8w8")
    with pytest.raises(InputError, match="test_batch"):
        Task("mine", digits.train, digits.test, digits.classes, test_batch=-1)
