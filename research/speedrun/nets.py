"""The two networks of the speedrun, their optimizer and their compiled steps."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH = 1024
SMOOTHING = 0.2
LEARNING_RATE = 9.0 / 1024  # per row of a summed loss, before the correction for momentum below
WEIGHT_DECAY = 0.012
MOMENTUM = 0.85
BIAS_FACTOR = 64.0


class Block(nn.Module):
    def __init__(self, c_in: int, c_out: int, depth: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(c_in if i == 0 else c_out, c_out, 3, padding=1, bias=False) for i in range(depth)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(c_out, eps=1e-12, momentum=0.4) for _ in range(depth))
        for norm in self.norms:
            norm.num_batches_tracked = None  # the momentum is fixed: counting would be a kernel per norm and step

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.norms[0](F.max_pool2d(self.convs[0](x), 2)))
        skip = x
        x = F.gelu(self.norms[1](self.convs[1](x)))
        if len(self.convs) == 3:
            x = F.gelu(self.norms[2](self.convs[2](x)) + skip)
        return x


class Net(nn.Module):
    """Whitened 2x2 patches, three blocks, max pooling, a linear head. Takes images as N x H x W x C."""

    def __init__(self, widths: list[int], depth: int, classes: int) -> None:
        super().__init__()
        self.whiten = nn.Conv2d(3, 24, 2)
        self.blocks = nn.Sequential(*(Block(a, b, depth) for a, b in zip([24, *widths[:-1]], widths, strict=True)))
        self.head = nn.Linear(widths[-1], classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.whiten(x.permute(0, 3, 1, 2)))
        x = self.blocks(x)
        # not amax: compiled in half precision, its backward compares with a recomputed maximum, and divides by no match
        x = F.max_pool2d(x, x.shape[2:]).flatten(1)
        return self.head(x) / 9

    @torch.no_grad()
    def reset(self, images: Tensor) -> None:
        """Set fresh weights in place, so that compiled code stays valid; the first layer whitens patches of images."""
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                module.reset_parameters()
            if isinstance(module, nn.Conv2d) and module is not self.whiten:
                nn.init.dirac_(module.weight[: module.in_channels])
            if isinstance(module, nn.BatchNorm2d):
                module.weight.fill_(1).requires_grad_(False)
                module.bias.zero_()
                module.running_mean.zero_()
                module.running_var.fill_(1)
        patches = images.double().permute(0, 3, 1, 2).unfold(2, 2, 1).unfold(3, 2, 1)
        patches = patches.permute(0, 2, 3, 1, 4, 5).reshape(-1, 12)
        # In double precision: the smallest eigenvalue is a few thousandths of the largest.
        values, vectors = torch.linalg.eigh((patches.T @ patches / len(patches)).cpu())
        filters = (vectors / (values + 5e-4).sqrt()).T.flip(0).float().reshape(12, 3, 2, 2)
        self.whiten.weight.copy_(torch.cat([filters, -filters]))
        self.whiten.weight.requires_grad_(False)
        self.whiten.bias.zero_()


class Learner:
    """A network with its losses and its optimizer; a process uses it for many runs.

    Args:
        net: The network.
        device: Where it trains.
        dtype: The type of autocast; float32 for none.
        sizes: The batch sizes that come again and again, which are worth compiling and choosing kernels for.
        compiles: Whether to compile.
    """

    def __init__(self, net: Net, device: torch.device, dtype: torch.dtype, sizes: set[int], *, compiles: bool) -> None:
        self.net = net.to(device).to(memory_format=torch.channels_last)
        self.device, self.dtype = device, dtype
        self.sizes = sizes
        self._repeated: Any = torch.compile(self._losses, dynamic=False) if compiles else self._losses

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Return one loss per row."""
        return self._repeated(x, y) if len(y) in self.sizes else self._losses(x, y)

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return the logits."""
        with self._autocast():
            return self.net(x).float()

    def start(self, images: Tensor, rows: int = 1) -> torch.optim.Optimizer:
        """Return a fresh optimizer for fresh weights; its rate is for the sum of losses over ``rows`` rows."""
        self.net.reset(images)
        self.net.train()
        corrected = 1 + 1 / (1 - MOMENTUM)
        rate, decay = rows * LEARNING_RATE / corrected, WEIGHT_DECAY / corrected
        named = [(name, parameter) for name, parameter in self.net.named_parameters() if parameter.requires_grad]
        # The decay of a step is the same for both groups: torch multiplies it by the group's rate.
        groups = [
            {
                "params": [one for name, one in named if ("norms" in name) is is_bias],
                "lr": rate * factor,
                "initial_lr": rate * factor,
                "weight_decay": decay / rate / factor,
            }
            for is_bias, factor in ((False, 1.0), (True, BIAS_FACTOR))
        ]
        fused = self.device.type == "cuda"
        return torch.optim.SGD(groups, lr=rate, momentum=MOMENTUM, nesterov=True, fused=fused)

    def _losses(self, x: Tensor, y: Tensor) -> Tensor:
        with self._autocast():
            logits = self.net(x)
        return F.cross_entropy(logits.float(), y, reduction="none", label_smoothing=SMOOTHING)

    def _autocast(self) -> Any:
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)


class SlowWeights:
    """Weights that follow those of a network slowly, and from which it restarts now and then (lookahead)."""

    def __init__(self, net: nn.Module) -> None:
        self._fast = [one for one in net.state_dict().values() if one.dtype.is_floating_point]
        self._slow = [one.detach().clone() for one in self._fast]

    @torch.no_grad()
    def pull(self, share: float) -> None:
        """Move the slow weights towards the fast ones by this share, then restart the fast ones from there."""
        torch._foreach_lerp_(self._slow, self._fast, share)
        torch._foreach_copy_(self._fast, self._slow)


def set_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set the rate of every group to a multiple of its first one."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor


def schedule(progress: float) -> float:
    """Return the factor on the rate: from 0.2 up to 1 at 23 % of the run, then down to 0.07."""
    return 0.2 + 0.8 * progress / 0.23 if progress < 0.23 else 1 + (0.07 - 1) * (progress - 0.23) / 0.77
