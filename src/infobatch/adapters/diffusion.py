"""Diffusion and flow matching, on pixels or latents: losses per sample, and scores compared within a bin of timesteps.

The loss of a sample depends far more on the timestep that was drawn for it than on the sample. A method that ranked
samples by this loss would prune those that happened to draw an easy timestep. So a score says how the loss compares
with the usual loss at about the same timestep.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..checks import DTYPES, as_int, describe, describe_placed, is_count, is_number
from ..errors import InputError, message
from ..state_checks import is_plain, refuse, show
from .per_sample import PerSample, per_sample

FORMAT = 1
TABLES = ("count", "mean", "squares")
SETTINGS = ("warmup", "window")
OUTLIER = 10.0
"""A loss farther above the mean of its bin than so many spreads counts as one that is just so far above it."""
LARGEST = 1e15
"""Larger losses teach nothing: their squares leave float32."""
SMALLEST = 1e-6
"""A spread smaller than this share of the mean is rounding."""
DAMAGED = "It is damaged: load an older one."
Prediction = Literal["epsilon", "v_prediction", "sample"]


class TimestepNormalizer:
    """Running statistics of the loss by timestep, which turn a loss into a score: (loss - mean) / spread of its bin.

    A batch is scored with the statistics of the batches before it, then they learn from it; under ``torch.no_grad()``
    they do not learn. Old losses are forgotten as new ones of the same bin come, so the statistics follow a model that
    improves, and losses of early and late batches are compared with what was usual at their time. Until a bin has seen
    ``warmup`` losses its scores are NaN, so that its samples are unknown and kept. Save the normalizer's state beside
    that of the training data; without it, a resumed run warms up again.

    In a pruned epoch the statistics are those of the samples that remain. A score still has the noise of one timestep
    and one noise image in it, so it tells less about a sample than an average over epochs does.

    On several ranks each has its own statistics: they estimate the same numbers, so the ranks need not communicate, and
    the state of any rank can be loaded on all. Scores are around 0 and may be negative. Methods that compare scores
    with each other, as InfoBatch with their mean, take them as they are; one that draws in proportion to a loss, as
    ``eswp``, treats all negative ones alike.

    Args:
        low, high: The range of the timesteps: 0 and ``num_train_timesteps`` for a scheduler of diffusers, 0 and 1 for
            flow matching with t in [0, 1]. Timesteps outside belong to the first and the last bin.
        bins: The number of bins, of equal width.
        log: Whether they are of equal width in log t, as for a sigma drawn from a log-normal distribution.
        warmup: The number of losses a bin must have seen before its scores count.
        window: About how many of a bin's latest losses the statistics are made of; at least twice ``warmup``.

    Raises:
        InputError: If an argument is out of its range.

    >>> import torch, infobatch
    >>> normalizer = infobatch.adapters.TimestepNormalizer(0, 1000, bins=2, warmup=2)
    >>> t = torch.tensor([10, 20, 700, 800])
    >>> for losses in ([8.0, 12.0, 1.0, 3.0], [12.0, 8.0, 1.0, 3.0]):
    ...     score = normalizer(torch.tensor(losses), t)
    >>> score
    tensor([ 1., -1., -1.,  1.])
    """

    count: Tensor
    """How many losses of each bin are remembered, the forgotten part of each left out."""
    mean: Tensor
    """The mean loss of each bin."""
    squares: Tensor
    """The sum of squared distances from this mean, with the same forgetting."""

    def __init__(
        self, low: float, high: float, bins: int = 20, *, log: bool = False, warmup: int = 16, window: int = 64
    ) -> None:
        if not is_number(low) or not is_number(high) or not low < high or (log and low <= 0):
            positive = "positive and " if log else ""
            remedy = "For a scheduler of diffusers: 0 and its num_train_timesteps."
            raise InputError(message(f"low and high {positive}ascending", f"{low!r} and {high!r}", remedy))
        for name, value, least in (("bins", bins, 1), ("warmup", warmup, 2), ("window", window, 2)):
            if as_int(value) is None or not least <= value <= 1_000_000:
                remedy = "Leave it out for the default."
                raise InputError(message(f"{name} as an integer from {least} to 1,000,000", repr(value), remedy))
        if window < 2 * warmup:
            remedy = "Old losses are forgotten: with a smaller window the warm-up would never end."
            raise InputError(message(f"a window of at least {2 * warmup}, twice warmup", repr(window), remedy))
        self.warmup, self.window = int(warmup), int(window)
        ends = torch.tensor([low, high], dtype=torch.float64, device="cpu")
        low, high = (ends.log() if log else ends).tolist()
        edges = torch.linspace(low, high, int(bins) + 1, dtype=torch.float64, device="cpu")[1:-1]
        self.edges = (edges.exp() if log else edges).float()
        """The inner edges of the bins. A bin includes its lower edge."""
        self.count, self.mean, self.squares = torch.zeros(3, int(bins), dtype=torch.float32, device="cpu")
        self._numbers = torch.arange(int(bins), device="cpu")[:, None]

    @property
    def spread(self) -> Tensor:
        """The standard deviation of the losses in each bin; NaN where there were none."""
        return (self.squares / self.count).sqrt()

    def to(self, device: torch.device | str) -> TimestepNormalizer:
        """Move the statistics to a device, as the first call does; call this if that one is captured.

        Args:
            device: That of the losses.

        >>> import infobatch
        >>> normalizer = infobatch.adapters.TimestepNormalizer(0, 1000).to("cpu")
        """
        for name in ("edges", "_numbers", *TABLES):
            setattr(self, name, getattr(self, name).to(device))
        return self

    def __call__(self, losses: Tensor, timesteps: Tensor) -> Tensor:
        """Return the score of each loss, and learn from the losses. Nothing here waits for the device.

        Args:
            losses: One loss per sample, shape [batch]. A weight that depends on the timestep may be left out.
            timesteps: The timesteps, or the sigmas, of these samples, shape [batch].

        Returns:
            Scores in float32 without a gradient, shape [batch]; NaN where a bin does not know enough.

        Raises:
            InputError: If an argument has the wrong shape, type or device.
        """
        _check_vector("losses", losses, losses)
        _check_vector("timesteps", timesteps, losses)
        if self.count.device != losses.device:
            self.to(losses.device)
        losses, timesteps = losses.detach().float(), timesteps.detach().float()
        number = torch.bucketize(timesteps, self.edges, right=True)
        mean, spread, count = (table.index_select(0, number) for table in (self.mean, self.spread, self.count))
        is_known = (count >= self.warmup) & (spread > SMALLEST * mean.abs()) & timesteps.isfinite()
        if torch.is_grad_enabled():
            most = torch.where(count >= self.warmup, mean + OUTLIER * spread, LARGEST)
            can_teach = (losses.abs() < LARGEST) & timesteps.isfinite()
            self._learn(torch.minimum(losses, most), (number == self._numbers) & can_teach)
        return torch.where(is_known, (losses - mean) / spread, torch.nan)

    def _learn(self, losses: Tensor, members: Tensor) -> None:
        """Merge a batch into the statistics of its bins; ``members`` [bins, batch] says which loss is in which."""
        count = members.sum(1, dtype=torch.float32)
        mean = torch.where(members, losses, 0.0).sum(1) / count.clamp(min=1)
        squares = torch.where(members, losses - mean[:, None], 0.0).square().sum(1)
        remains = (1 - 1 / self.window) ** count
        old = self.count * remains
        share = count / (old + count).clamp(min=torch.finfo(torch.float32).tiny)
        difference = mean - self.mean
        self.squares.mul_(remains).add_(squares).add_(difference.square() * old * share)
        self.mean.add_(difference * share)
        self.count.copy_(old + count)

    # ---- saving and resuming -----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what the statistics are made of, on the CPU.

        >>> import infobatch
        >>> sorted(infobatch.adapters.TimestepNormalizer(0, 1000).state_dict())
        ['count', 'edges', 'format', 'mean', 'squares', 'warmup', 'window']
        """
        tensors = {name: getattr(self, name).detach().cpu().clone() for name in ("edges", *TABLES)}
        return {"format": FORMAT, **{name: getattr(self, name) for name in SETTINGS}, **tensors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state_dict`` was called; the normalizer must have been made with the same arguments.

        Args:
            state: What ``state_dict`` returned.

        Raises:
            StateError: If the state is damaged or of another normalizer. Nothing is loaded then.

        >>> import infobatch
        >>> normalizer = infobatch.adapters.TimestepNormalizer(0, 1000)
        >>> normalizer.load_state_dict(normalizer.state_dict())
        """
        self._check_state(state)
        for name in TABLES:
            getattr(self, name).copy_(state[name])

    def _check_state(self, state: Any) -> None:
        names = {"format", "edges", *SETTINGS, *TABLES}
        if not isinstance(state, Mapping) or set(state) != names:
            got = ", ".join(sorted(map(show, state))[:20]) or "nothing" if isinstance(state, Mapping) else show(state)
            raise refuse(f"a state with {', '.join(sorted(names))}", got, "Load what normalizer.state_dict() returned.")
        if not is_count(state["format"], 1) or state["format"] != FORMAT:
            remedy = "Load it with the version of infobatch that wrote it."
            raise refuse(f"format {FORMAT}", show(state["format"]), remedy)
        remedy = "Resume with the arguments that the run was started with."
        for name in SETTINGS:
            here = getattr(self, name)
            if not is_count(state[name], 1) or state[name] != here:
                raise refuse(f"{name} {here}", show(state[name]), remedy)
        edges = state["edges"]
        if not is_plain(edges, torch.float32) or not torch.equal(edges.cpu(), self.edges.cpu()):
            raise refuse(f"these {len(self.count)} bins", show(edges), remedy)
        for name in TABLES:
            table = state[name]
            is_good = is_plain(table, torch.float32, tuple(self.count.shape)) and bool(table.isfinite().all())
            if not is_good or (name != "mean" and bool((table < 0).any())):
                raise refuse(f"{name} of {len(self.count)} bins as finite float32 numbers", show(table), DAMAGED)


def diffusion_loss(
    prediction: Tensor,
    target: Tensor,
    timesteps: Tensor,
    normalizer: TimestepNormalizer | None,
    *,
    weight: Tensor | None = None,
) -> PerSample:
    """Return the squared error of each sample, averaged over channels and pixels, and a score free of the timestep.

    It replaces ``F.mse_loss(model_pred.float(), target.float())`` in a training script, whatever the model predicts:
    pass as target the noise, ``scheduler.get_velocity(...)``, the clean image, or the velocity of flow matching.
    Latents are tensors like images. ``loss.mean()`` is the loss of the script.

    Args:
        prediction: What the model predicted, shape [batch, ...].
        target: What it should have predicted, of the same shape.
        timesteps: The timestep, or the sigma, of each sample, shape [batch].
        normalizer: The normalizer, one for the whole run. None where the loss alone is used, as in a sieve; the score
            is the loss then, and shows the timestep more than the sample.
        weight: A factor per sample, shape [batch], such as ``min_snr_weight``; the score is without it.

    Returns:
        ``loss`` and ``score``, each of shape [batch] and at least float32.

    Raises:
        InputError: If shapes, types or devices do not fit.

    >>> import torch, infobatch
    >>> train_data = infobatch.InfoBatch(torch.utils.data.TensorDataset(torch.randn(64, 1, 8, 8)), num_epochs=8)
    >>> normalizer = infobatch.adapters.TimestepNormalizer(0, 1000)
    >>> model = torch.nn.Conv2d(1, 1, 3, padding=1)
    >>> for (x,) in infobatch.DataLoader(train_data, batch_size=16):
    ...     noise, t = torch.randn_like(x), torch.randint(1000, (len(x),))
    ...     alpha = (1 - t / 1000).reshape(-1, 1, 1, 1)
    ...     prediction = model(alpha.sqrt() * x + (1 - alpha).sqrt() * noise)
    ...     loss, score = infobatch.adapters.diffusion_loss(prediction, noise, t, normalizer)
    ...     train_data.update(loss, score=score).backward()
    """
    _check_pair(prediction, target)
    dtype = torch.promote_types(prediction.dtype, torch.float32)
    error = torch.nn.functional.mse_loss(prediction.to(dtype), target.to(dtype), reduction="none")
    loss = per_sample(error).loss
    _check_vector("timesteps", timesteps, loss)
    score = loss.detach() if normalizer is None else normalizer(loss, timesteps)
    if weight is not None:
        _check_vector("weight", weight, loss)
        loss = loss * weight
    return PerSample(loss, score)


def min_snr_weight(snr: Tensor, gamma: float = 5.0, prediction: Prediction = "epsilon") -> Tensor:
    """Return the min-SNR weight of each sample, for ``diffusion_loss(..., weight=...)``.

    Args:
        snr: The signal-to-noise ratio at each sample's timestep, alpha^2 / sigma^2, as from
            ``diffusers.training_utils.compute_snr(scheduler, timesteps)``.
        gamma: The largest ratio that counts.
        prediction: What the model predicts, named as in diffusers: "epsilon", "v_prediction" or "sample".

    Returns:
        min(snr, gamma), divided by snr for epsilon and by snr + 1 for v. A ratio of 0 has its limit as a weight.

    Raises:
        InputError: If an argument is out of its range.

    >>> import torch, infobatch
    >>> infobatch.adapters.min_snr_weight(torch.tensor([0.0, 1.0, 10.0]))
    tensor([1.0000, 1.0000, 0.5000])
    """
    if not isinstance(snr, Tensor) or not snr.is_floating_point():
        raise InputError(message("ratios as a floating-point tensor", describe(snr), "Pass compute_snr(...)."))
    if not is_number(gamma) or gamma <= 0:
        raise InputError(message("a positive gamma", repr(gamma), "5 is what its paper recommends."))
    if prediction not in get_args(Prediction):
        remedy = "Pass scheduler.config.prediction_type; others, such as flow matching, have no such weight."
        raise InputError(message(f"one of {', '.join(get_args(Prediction))}", repr(prediction), remedy))
    least = snr.clamp(max=gamma)
    if prediction == "sample":
        return least
    if prediction == "v_prediction":
        return least / (snr + 1)
    return torch.where(snr > 0, least / snr, 1.0)


# ---- checks ----------------------------------------------------------------------------------------------------


def _check_pair(prediction: Any, target: Any) -> None:
    for name, one in (("prediction", prediction), ("target", target)):
        if not isinstance(one, Tensor) or one.dtype not in DTYPES or one.ndim < 2:
            remedy = "Pass the tensor itself: model(...).sample with diffusers."
            raise InputError(message(f"{name} as floating-point numbers [batch, ...]", describe(one), remedy))
    if prediction.shape != target.shape or prediction.device != target.device:
        remedy = "Of a model that predicts a variance as well, pass the first half: prediction.chunk(2, dim=1)[0]."
        expected = f"a target as the prediction, {list(prediction.shape)} on {prediction.device}"
        raise InputError(message(expected, f"{list(target.shape)} on {target.device}", remedy))


def _check_vector(name: str, value: Any, losses: Any) -> None:
    is_vector = isinstance(value, Tensor) and value.ndim == 1 and value.dtype not in (torch.bool, torch.complex64)
    if name == "losses" and is_vector and value.is_floating_point():
        return
    if name == "losses" or not is_vector or value.shape != losses.shape or value.device != losses.device:
        where = f", shape {list(losses.shape)} on {losses.device}" if isinstance(losses, Tensor) else ""
        got = describe_placed(value)
        remedy = "One timestep for a whole batch: t.expand(len(x))." if name == "timesteps" else "Pass one per sample."
        raise InputError(message(f"{name}: one number per sample{where}", got, remedy))
