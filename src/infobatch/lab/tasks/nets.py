"""Nets by name. The ResNets are the variants for small images: a 3x3 stem of stride 1, no pooling before the blocks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...errors import InputError, message
from ..format import suggest
from .segmentation.pixel_nets import check_has_masks, is_mask, pyramid, upernet
from .task import Task

if TYPE_CHECKING:
    from ..train.settings import Settings


class Basic(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, inner: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*_conv(inner, width, 3, stride), nn.ReLU(inplace=True), *_conv(width, width, 3))
        self.short = _shortcut(inner, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.short(x), inplace=True)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 to four times the width, and a shortcut."""

    expansion = 4

    def __init__(self, inner: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(*_conv(inner, width, 1), nn.ReLU(inplace=True)),
            *(*_conv(width, width, 3, stride), nn.ReLU(inplace=True)),
            *_conv(width, 4 * width, 1),
        )
        self.short = _shortcut(inner, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.short(x), inplace=True)


def _conv(inner: int, outer: int, size: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(inner, outer, size, stride, size // 2, bias=False), nn.BatchNorm2d(outer)


def _shortcut(inner: int, outer: int, stride: int) -> nn.Module:
    return nn.Identity() if stride == 1 and inner == outer else nn.Sequential(*_conv(inner, outer, 1, stride))


def resnet(
    shape: tuple[int, ...], classes: int, *, block: type[Basic | Bottleneck], depths: tuple[int, ...], width: int = 64
) -> nn.Module:
    """Build a ResNet with stages of ``depths`` blocks; each stage halves the image and doubles the width."""
    layers: list[nn.Module] = [*_conv(_image(shape)[0], width, 3), nn.ReLU(inplace=True)]
    inner = width
    for stage, depth in enumerate(depths):
        for place in range(depth):
            outer = width * 2**stage
            layers.append(block(inner, outer, 2 if stage and not place else 1))
            inner = outer * block.expansion
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, classes))


def conv(shape: tuple[int, ...], classes: int, filters: int = 32) -> nn.Module:
    """Build a net for digits: two convolutions with batch norm, one pooling, one linear layer."""
    channels, height, width = _image(shape)
    return nn.Sequential(
        *(*_conv(channels, filters, 3), nn.ReLU(inplace=True)),
        *(*_conv(filters, 2 * filters, 3), nn.ReLU(inplace=True)),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2 * filters * (height // 2) * (width // 2), classes)),
    )


def mlp(shape: tuple[int, ...], classes: int, width: int = 256) -> nn.Module:
    """Build a net with two hidden layers."""
    inputs = int(torch.tensor(shape).prod())
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(inputs, width), nn.ReLU(inplace=True)),
        *(nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, classes)),
    )


NETS: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {
    "conv": conv,
    "conv8": partial(conv, filters=8),
    "fpn8": partial(pyramid, width=8),
    "fpn32": partial(pyramid, width=32),
    "mlp": mlp,
    "mlp16": partial(mlp, width=16),
    "mlp32": partial(mlp, width=32),
    "mlp64": partial(mlp, width=64),
    "resnet18": partial(resnet, block=Basic, depths=(2, 2, 2, 2)),
    "resnet50": partial(resnet, block=Bottleneck, depths=(3, 4, 6, 3)),
    "resnet8": partial(resnet, block=Basic, depths=(1, 1, 1), width=32),
    "resnet8w8": partial(resnet, block=Basic, depths=(1, 1, 1), width=8),
}

RELATIVES = {
    "conv": "conv8",
    "fpn32": "fpn8",
    "mlp": "mlp32",
    "mlp64": "mlp16",
    "resnet18": "resnet8",
    "resnet50": "resnet8",
    "resnet8": "resnet8w8",
}
"""A net of the same kind with about a tenth of the FLOPs."""


class Logits(nn.Module):
    """The logits of a model of ``transformers``, which returns more than them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x).logits
        return logits


def make_net(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build a net; its initial weights come from torch's global generator.

    Args:
        name: A net of the lab, timm:NAME or transformers:NAME.
        shape: The shape of one input.
        classes: The number of outputs.

    Raises:
        InputError: If the name is unknown, the shape does not fit, or a package is missing.
    """
    check_net(name)
    library, colon, inner = name.partition(":")
    if not colon:
        return NETS[name](shape, classes)
    return LIBRARIES[library](inner, shape, classes)


def check_net(name: str) -> None:
    """Raise InputError if there is no net of the lab of this name, or no such library."""
    library, colon, _ = name.partition(":")
    if not colon and name not in NETS:
        expected = "a net of the lab, timm:NAME or transformers:NAME"
        raise InputError(message(expected, repr(name), suggest(name, NETS)))
    if colon and library not in LIBRARIES:
        raise InputError(message("timm:NAME or transformers:NAME", repr(name), suggest(library, LIBRARIES)))


def default_net(task: Task) -> str:
    """Return the net used if none is named: the task's own, if it has one."""
    return "task" if task.make_model is not None else "conv"


def net_for(task: Task, settings: Settings) -> nn.Module:
    """Build the net of a run.

    Raises:
        InputError: If the net does not exist or does not fit the inputs.
    """
    return named_net(settings.model or default_net(task), task)


def named_net(name: str, task: Task) -> nn.Module:
    """Build a net by its name, or with the name "task" the task's own, for the inputs and classes of a task.

    Raises:
        InputError: If the net does not exist or does not fit the inputs.
    """
    if name == "task":
        if task.make_model is None:
            raise InputError(message("a task with its own net", task.name, "Name a model."))
        return task.make_model()
    first, target = cast(Any, task.train)[0]
    check_has_masks(name, target)
    if not isinstance(first, Tensor):
        has_own = task.make_model is not None
        remedy = "Leave the model out: the task has a make_model." if has_own else "Give the task a make_model."
        raise InputError(message(f"inputs as tensors, for the net {name}", type(first).__name__, remedy))
    return make_net(name, tuple(first.shape), max(len(task.classes), 1))


def name_relative(task: Task, settings: Settings) -> str:
    """Name a small net for the task of a run, of the same kind as its model if that is a net of the lab."""
    name = settings.model or default_net(task)
    first, target = cast(Any, task.train)[0]
    is_image = isinstance(first, Tensor) and first.dim() == 3
    if is_image and is_mask(target):
        return RELATIVES.get(name, "fpn8")
    return RELATIVES.get(name, "resnet8w8" if is_image else "mlp16")


def _timm(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    try:
        import timm
    except ImportError as error:
        raise InputError(message("timm installed, for models of timm", str(error), "pip install timm")) from error
    if name not in timm.list_models():
        raise InputError(message("a model of timm", repr(name), suggest(name, timm.list_models())))
    model: nn.Module = timm.create_model(name, pretrained=False, num_classes=classes, in_chans=_image(shape)[0])
    return model


def _transformers(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build an image classifier, or UperNet, with random weights from the library's default configuration."""
    if name == "upernet":
        return upernet(shape, classes)
    try:
        from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForImageClassification
    except ImportError as error:
        raise InputError(
            message("transformers installed, for its models", str(error), "pip install transformers")
        ) from error
    if name not in CONFIG_MAPPING:
        raise InputError(
            message("a model type of transformers, such as vit", repr(name), suggest(name, CONFIG_MAPPING))
        )
    channels, height, width = _image(shape)
    given: dict[str, Any] = {"num_labels": classes, "num_channels": channels}
    if height == width:
        given["image_size"] = height
        if height <= 64:
            given["patch_size"] = max(1, height // 8)
    make: Any = AutoModelForImageClassification.from_config
    return Logits(make(AutoConfig.for_model(name, **given)))


LIBRARIES: dict[str, Callable[[str, tuple[int, ...], int], nn.Module]] = {"timm": _timm, "transformers": _transformers}
"""What may stand before a colon in the name of a net."""


def _image(shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise InputError(message("images of shape (C, H, W) for this net", str(shape), "Use the model mlp."))
    return shape[0], shape[1], shape[2]


def fingerprint(model: nn.Module) -> str:
    """Identify a net by the names and shapes of its parameters and buffers, whatever their values.

    >>> fingerprint(nn.Linear(2, 3))
    '9 parameters, sha256:26b6dfd8aa15'
    """
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    described = "\n".join(f"{name} {list(each.shape)}" for name, each in tensors)
    count = sum(each.numel() for each in model.parameters())
    return f"{count:,} parameters, sha256:{hashlib.sha256(described.encode()).hexdigest()[:12]}"


def batch_norms(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """Return the batch norms of a net."""
    return [each for each in model.modules() if isinstance(each, nn.modules.batchnorm._BatchNorm)]


@contextmanager
def norms_for_one_sample(model: nn.Module) -> Iterator[None]:
    """Inside the block, a batch norm that would normalise a single value uses its running statistics instead."""
    changed: list[nn.Module] = []

    def use_running_statistics(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if layer.training and inputs[0].numel() == inputs[0].shape[1]:
            changed.append(layer.eval())

    hooks = [each.register_forward_pre_hook(use_running_statistics) for each in batch_norms(model)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for layer in changed:
            layer.train()
