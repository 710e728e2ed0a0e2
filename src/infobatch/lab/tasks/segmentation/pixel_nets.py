"""Nets that label pixels: each returns the logits of a decode head and those of an auxiliary head, of any size."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from ....errors import InputError, message

HEAD_WEIGHTS = (1.0, 0.4)
"""Weights of the losses of both heads, as in mmsegmentation."""

Heads = tuple[Tensor, Tensor]


class Pyramid(nn.Module):
    """A small feature pyramid: four stages of two convolutions, added up from the coarsest to the finest.

    The decode head labels at half of the image's resolution, the auxiliary head from the third stage, at an eighth.

    Args:
        channels: Channels of the images.
        classes: The number of classes.
        width: Filters of the first stage; the next ones have 2, 4 and 4 times as many.
    """

    def __init__(self, channels: int, classes: int, width: int) -> None:
        super().__init__()
        widths = (width, 2 * width, 4 * width, 4 * width)
        self.stages = nn.ModuleList(
            nn.Sequential(*_conv(inner, outer, 3, 2), *_conv(outer, outer, 3))
            for inner, outer in zip((channels, *widths), widths, strict=False)
        )
        self.laterals = nn.ModuleList(nn.Conv2d(each, width, 1) for each in widths)
        self.decode_head = nn.Sequential(*_conv(width, width, 3), nn.Conv2d(width, classes, 1))
        self.auxiliary_head = nn.Sequential(*_conv(widths[2], width, 3), nn.Conv2d(width, classes, 1))

    def forward(self, x: Tensor) -> Heads:
        features = []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        merged = self.laterals[-1](features[-1])
        for at in (2, 1, 0):
            lateral = self.laterals[at](features[at])
            merged = lateral + F.interpolate(merged, size=lateral.shape[2:], mode="bilinear", align_corners=False)
        return self.decode_head(merged), self.auxiliary_head(features[2])


class UperNet(nn.Module):
    """An UperNet of transformers, with the logits of both heads: its own ``forward`` returns those of one."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Heads:
        features = self.model.backbone(x).feature_maps
        return self.model.decode_head(features), self.model.auxiliary_head(features)


def pyramid(shape: tuple[int, ...], classes: int, width: int = 32) -> nn.Module:
    """Build a ``Pyramid`` for images of this shape."""
    if len(shape) != 3:
        raise InputError(message("images of shape (C, H, W) for this net", str(shape), "Use a net for them."))
    return Pyramid(shape[0], classes, width)


def upernet(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build UperNet with a ResNet-50, as mmsegmentation sets it up, with random weights.

    Raises:
        InputError: If transformers is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        remedy = "pip install transformers, or use the net fpn32"
        raise InputError(message("transformers installed, for UperNet", str(error), remedy)) from error
    library: Any = transformers
    stages = [f"stage{number}" for number in range(1, 5)]
    backbone = library.ResNetConfig(num_channels=shape[0], out_features=stages)
    config = library.UperNetConfig(
        backbone_config=backbone,
        hidden_size=512,
        pool_scales=[1, 2, 3, 6],
        auxiliary_in_channels=backbone.hidden_sizes[2],
        auxiliary_channels=256,
        auxiliary_num_convs=1,
        num_labels=classes,
    )
    return UperNet(library.UperNetForSemanticSegmentation(config))


def labels_pixels(name: str) -> bool:
    """True for the lab's names of nets that label pixels.

    >>> labels_pixels("fpn8"), labels_pixels("resnet18")
    (True, False)
    """
    return name in ("fpn8", "fpn32", "transformers:upernet")


def check_has_masks(name: str, target: object) -> None:
    """Refuse a net that labels pixels for targets that are not masks.

    Raises:
        InputError: If the target of a sample is not an integer tensor [H, W].
    """
    if labels_pixels(name) and not is_mask(target):
        remedy = "Choose a net that classifies, such as resnet18, or a task of segmentation."
        raise InputError(message(f"masks [H, W] as targets, for the net {name}", "other targets", remedy))


def is_mask(target: object) -> bool:
    """True if the target of one sample is the class of each pixel."""
    return isinstance(target, Tensor) and target.dim() == 2 and not target.is_floating_point()


def _conv(inner: int, outer: int, size: int, stride: int = 1) -> tuple[nn.Module, ...]:
    return (
        nn.Conv2d(inner, outer, size, stride, size // 2, bias=False),
        nn.BatchNorm2d(outer),
        nn.ReLU(inplace=True),
    )
