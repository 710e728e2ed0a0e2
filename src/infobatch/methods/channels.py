"""Score channels: what a method may ask for with every loss, one number per sample.

A channel is a row of ``CHANNELS``. Adding one makes ``Pruned.update`` accept it as a keyword, check it, keep a column
for it, exchange it between ranks and save it in checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..checks import describe
from ..errors import InputError, message
from .method import Method


@dataclass(frozen=True)
class Channel:
    """One number per sample beside the loss: what it means, its range, and how to compute it."""

    meaning: str
    low: float
    high: float
    remedy: str

    def count_outside(self, values: Tensor) -> int:
        """Count the values outside the range. NaN means that nothing is known and is not counted."""
        return int(torch.count_nonzero((values < self.low) | (values > self.high)))


CHANNELS: dict[str, Channel] = {
    "confidence": Channel(
        "the probability of the right answer, from 0 to 1",
        0.0,
        1.0,
        "Pass confidence=logits.softmax(1).gather(1, targets[:, None]).squeeze(1).",
    ),
}


def check_channels(method: Method, loss: Tensor, given: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the channels that came with a loss, if all that the method needs are among them and none is unknown.

    Values are looked at on the CPU only: reading them from a device would wait for it.
    """
    for name in given:
        if name not in CHANNELS:
            known = ", ".join(["indices", "score", *CHANNELS])
            raise InputError(message(f"keywords of update() among {known}", repr(name), "Check the spelling."))
    for name in method.channels:
        channel, values = CHANNELS[name], given.get(name)
        if values is None:
            expected = f"the keyword {name}, which {method!r} needs: {channel.meaning}, one value per sample"
            raise InputError(message(expected, "none", channel.remedy))
        fits = isinstance(values, Tensor) and values.shape == loss.shape and values.is_floating_point()
        if not fits or values.device != loss.device:
            expected = f"{name} of shape {list(loss.shape)} on {loss.device}"
            raise InputError(message(expected, describe(values), channel.remedy))
        visible = values.device.type == "cpu" and not torch.compiler.is_compiling()
        if visible and channel.count_outside(values.detach()):
            low, high = (float(end) for end in values.detach().aminmax())
            expected = f"{name} from {channel.low:g} to {channel.high:g}"
            raise InputError(message(expected, f"values from {low:.3g} to {high:.3g}", channel.remedy))
    return {name: values for name, values in given.items() if values is not None}
