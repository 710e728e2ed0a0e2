"""What the ideas of a run do to its loop: the loop asks at fixed places, and without ideas nothing happens there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from ...epoch.scores import ScoreBook
from ...errors import warn
from ..tasks.nets import batch_norms
from .ideas import combine, idle
from .settings import Settings


class Trial:
    """The ideas of one run, with what they keep."""

    def __init__(self, settings: Settings, model: nn.Module, device: torch.device) -> None:
        self.idea = combine(settings.ideas)
        self.settings = settings
        self.norms = weigh_norms(model) if self.idea.weigh_norms else []
        keep = self.idea.weight_average
        self.average = MovingAverage(model, keep) if keep else None
        self.mean_weight = torch.ones((), device=device)
        """Of the running epoch's samples. Where the rate grows, weights are 1 on average."""
        self.pruned = False
        """Whether the running epoch is."""
        if settings.method != "full":  # that one is trained beside others, with their ideas
            for why in idle(self.idea, batch_norms(model), settings):
                warn(f"{settings.method} with the ideas {settings.ideas}: part of them does nothing here ({why})")

    # ---- the places --------------------------------------------------------------------------------------

    def begin(self, growth: float, optimizer: Optimizer) -> None:
        """An epoch in which a sample stands for ``growth``."""
        self.mean_weight.fill_(growth if self.settings.grows == "loss" else 1.0)
        self.pruned = growth > 1
        if self.average is not None:
            self.average.keep = self.idea.weight_average**growth
        for group in optimizer.param_groups:
            if self.idea.grow_decay:
                group["weight_decay"] = self.settings.weight_decay * growth
            if self.idea.shrink_momentum and "momentum" in group:
                group["momentum"] = self.settings.momentum**growth

    def meet(self, book: ScoreBook, indices: Tensor | None) -> None:
        """A batch, before the net sees it."""
        for norm in self.norms:
            norm.weights = _known(book.weights, indices)

    def score(self, losses: Tensor, book: ScoreBook, indices: Tensor | None) -> Tensor | None:
        """What is to be recorded in place of the losses, if anything."""
        share = self.idea.score_average
        if not share:
            return None
        new, old = losses.detach(), _known(book.scores, indices)
        return torch.where(torch.isnan(old), new, share * old + (1 - share) * new)

    def loss(self, loss: Tensor, count: int, book: ScoreBook, indices: Tensor | None) -> Tensor:
        """The loss to go back from, of ``count`` samples."""
        if self.idea.whole_last and self.pruned:
            loss = loss * (self.settings.batch_size / count)
        return loss * self.mean_weight / _known(book.weights, indices).mean() if self.idea.normalise else loss

    def stepped(self, model: nn.Module) -> None:
        """The weights have moved."""
        if self.average is not None:
            self.average.update_parameters(model)

    def to_test(self, model: nn.Module) -> nn.Module:
        """The net that tests are made with."""
        return model if self.average is None else self.average.module

    def recalibrate(self, net: nn.Module, inputs: Iterable[Tensor]) -> None:
        """Batch norm's statistics, as the mean over these batches."""
        norms = batch_norms(net)
        for norm in self.norms:
            norm.weights = None  # those of the last batch
        held = [each.momentum for each in norms]
        for each in norms:
            each.reset_running_stats()
            each.momentum = None
        net.train()
        for some in inputs:
            net(some)
        for each, momentum in zip(norms, held, strict=True):
            each.momentum = momentum

    # ---- checkpoints -------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {} if self.average is None else {"average": self.average.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        if self.average is not None:
            self.average.load_state_dict(state["average"])


def _known(table: Tensor, indices: Tensor | None) -> Tensor:
    assert indices is not None  # such ideas have resident data
    return table.index_select(0, indices)


class MovingAverage(AveragedModel):
    """The net with a moving average of its weights and statistics."""

    def __init__(self, model: nn.Module, keep: float) -> None:
        super().__init__(model, multi_avg_fn=self._mix, use_buffers=True)
        self.keep = keep
        """What a step leaves of the average so far."""

    def _mix(self, averages: Sequence[Tensor], values: Sequence[Tensor], count: Any) -> None:
        del count
        for average, value in zip(averages, values, strict=True):
            if average.is_floating_point():
                average.lerp_(value, 1 - self.keep)
            else:
                average.copy_(value)


class WeightedNorm(nn.BatchNorm2d):
    """Batch norm by the statistics of a batch in which each sample counts as often as its weight says."""

    weights: Tensor | None
    """One a sample of the batch at hand; None counts each once."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.weights is None:
            return super().forward(x)
        share = (self.weights / self.weights.sum())[:, None]
        mean = (share * x.mean((2, 3))).sum(0)
        spread = (share * (x - mean[:, None, None]).square().mean((2, 3))).sum(0)
        self._track(mean.detach().float(), spread.detach().float(), x.numel() / x.shape[1])
        scale = torch.rsqrt(spread + self.eps) * (self.weight if self.affine else 1.0)
        shift = (self.bias if self.affine else 0.0) - mean * scale
        return x * scale[:, None, None] + shift[:, None, None]

    def _track(self, mean: Tensor, spread: Tensor, count: float) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        part = 1.0 / self.num_batches_tracked.float() if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, part)
        self.running_var.lerp_(spread * count / max(count - 1, 1), part)


def weigh_norms(model: nn.Module) -> list[WeightedNorm]:
    """Make each batch norm of a net for images a weighted one, in its place and with all that it knows."""
    found = []
    for each in model.modules():
        if type(each) is nn.BatchNorm2d:
            each.__class__ = WeightedNorm
            norm = cast(WeightedNorm, each)
            norm.weights = None
            found.append(norm)
    return found
