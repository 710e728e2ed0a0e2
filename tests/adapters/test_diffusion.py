"""Losses of diffusion models per sample, and scores that do not show the timestep."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import plans
import pytest
import torch
from lots import lot
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import infobatch
from infobatch import InputError, StateError
from infobatch.adapters import TimestepNormalizer, diffusion_loss, min_snr_weight

PIXELS, LATENTS = (3, 8, 8), (4, 2, 2)
ALPHAS = (1 - torch.linspace(1e-4, 0.02, 1000)).cumprod(0)  # DDPM's


def ranks(values: Tensor) -> Tensor:
    return values.argsort().argsort().double()


def rank_correlation(one: Tensor, other: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([ranks(one), ranks(other)]))[0, 1])


def ratio(t: Tensor) -> Tensor:
    return ALPHAS[t] / (1 - ALPHAS[t])


def make_batch(shape: tuple[int, ...], size: int = 6, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return a prediction that wants a gradient, a target and timesteps."""
    generator = lot(seed)
    prediction, target = torch.randn(2, size, *shape, generator=generator)
    return prediction.clone().requires_grad_(), target, torch.randint(1000, (size,), generator=generator)


# ---- the loss --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [PIXELS, LATENTS, (5,)], ids=["pixels", "latents", "vectors"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_the_mean_is_the_loss_of_the_script(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    prediction, target, t = make_batch(shape)
    mine, other = (prediction.detach().to(dtype).requires_grad_() for _ in range(2))
    loss, score = diffusion_loss(mine, target, t, TimestepNormalizer(0, 1000))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    expected = F.mse_loss(other.to(wide), target.to(wide))
    torch.testing.assert_close(loss.mean(), expected, rtol=1e-6, atol=0)
    loss.mean().backward()
    expected.backward()
    assert mine.grad is not None
    assert other.grad is not None
    torch.testing.assert_close(mine.grad, other.grad, rtol=1e-2 if dtype == torch.bfloat16 else 1e-6, atol=0)
    assert loss.shape == score.shape == (6,)
    assert not score.requires_grad


@pytest.mark.parametrize("prediction_type", ["epsilon", "v_prediction"])
@pytest.mark.parametrize("shape", [PIXELS, LATENTS], ids=["pixels", "latents"])
def test_min_snr_is_that_of_the_script_to_the_bit(prediction_type: Any, shape: tuple[int, ...]) -> None:
    """Line by line as in train_text_to_image.py of diffusers."""
    prediction, target, t = make_batch(shape, 32)
    snr = ratio(t)
    weights = torch.stack([snr, 5.0 * torch.ones_like(t)], dim=1).min(dim=1)[0]
    weights = weights / snr if prediction_type == "epsilon" else weights / (snr + 1)
    expected = F.mse_loss(prediction.float(), target.float(), reduction="none")
    expected = expected.mean(dim=list(range(1, len(expected.shape)))) * weights

    weight = min_snr_weight(snr, 5.0, prediction_type)
    loss, score = diffusion_loss(prediction, target, t, None, weight=weight)
    assert torch.equal(weight, weights)
    assert torch.equal(loss, expected)
    assert torch.equal(loss.mean(), expected.mean())
    assert torch.equal(score, diffusion_loss(prediction, target, t, None).loss.detach())  # without the weight


def test_predicting_the_image_with_the_weight_of_the_script() -> None:
    """As in train_unconditional.py of diffusers: the whole ratio is the weight, which no gamma cuts."""
    prediction, target, t = make_batch(PIXELS)
    weights = ratio(t).reshape(-1, 1, 1, 1)
    expected = (weights * F.mse_loss(prediction, target, reduction="none")).mean()
    weight = min_snr_weight(ratio(t), 1e9, "sample")
    torch.testing.assert_close(diffusion_loss(prediction, target, t, None, weight=weight).loss.mean(), expected)


def test_a_ratio_of_zero_has_a_weight() -> None:
    """At the last timestep of a schedule with zero terminal SNR, where the script divides zero by zero."""
    snr = torch.tensor([0.0, 1e-3, 5.0, 50.0])
    assert min_snr_weight(snr).tolist() == [1, 1, 1, pytest.approx(0.1)]
    assert min_snr_weight(snr, prediction="v_prediction")[0] == 0


@pytest.mark.parametrize("prediction_type", ["epsilon", "v_prediction", "sample"])
def test_a_scheduler_and_a_network_of_diffusers(prediction_type: Any) -> None:
    diffusers = pytest.importorskip("diffusers")
    from diffusers.training_utils import compute_snr

    torch.manual_seed(0)
    net = diffusers.UNet2DModel(
        sample_size=8, in_channels=4, out_channels=4, block_out_channels=(8, 8), norm_num_groups=4,
        down_block_types=("DownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "UpBlock2D"), layers_per_block=1,
    )  # fmt: skip
    scheduler = diffusers.DDPMScheduler(prediction_type=prediction_type)
    clean, noise, t = torch.randn(4, 4, 8, 8), torch.randn(4, 4, 8, 8), torch.randint(1000, (4,))
    target = {"epsilon": noise, "v_prediction": scheduler.get_velocity(clean, noise, t), "sample": clean}
    mine, other = (net(scheduler.add_noise(clean, noise, t), t).sample for _ in range(2))
    snr = compute_snr(scheduler, t)
    torch.testing.assert_close(snr, ratio(t))

    loss = diffusion_loss(mine, target[prediction_type], t, TimestepNormalizer(0, 1000)).loss.mean()
    expected = F.mse_loss(other.float(), target[prediction_type].float(), reduction="mean")
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(plans.gradient(net, loss), plans.gradient(net, expected), rtol=1e-4, atol=1e-7)
    assert min_snr_weight(snr, prediction=prediction_type).isfinite().all()


# ---- the score -------------------------------------------------------------------------------------------------


class Literal:
    """The statistics of one bin, loss by loss."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.batches: list[list[float]] = []

    def moments(self) -> tuple[float, float, float]:
        """Return count, mean and spread: a loss counts less by 1 - 1/window for each that came in a later batch."""
        pairs = []
        for at, batch in enumerate(self.batches):
            later = sum(map(len, self.batches[at + 1 :]))
            pairs += [(loss, (1 - 1 / self.window) ** later) for loss in batch]
        count = math.fsum(weight for _, weight in pairs)
        if not count:
            return 0.0, 0.0, 0.0
        mean = math.fsum(loss * weight for loss, weight in pairs) / count
        squares = math.fsum((loss - mean) ** 2 * weight for loss, weight in pairs)
        return count, mean, math.sqrt(squares / count)


def find_bin(t: float, low: float, high: float, bins: int, log: bool) -> int:
    place = math.log(t / low) / math.log(high / low) if log else (t - low) / (high - low)
    return min(max(math.floor(place * bins), 0), bins - 1)


@pytest.mark.parametrize(
    ("low", "high", "log"), [(0, 1000, False), (0.0, 1.0, False), (0.01, 10.0, True)], ids=["ddpm", "flow", "sigma"]
)
def test_scores_and_statistics_as_counted_loss_by_loss(low: float, high: float, log: bool) -> None:
    generator, bins, warmup, window = lot(), 4, 5, 12
    normalizer = TimestepNormalizer(low, high, bins, log=log, warmup=warmup, window=window)
    literal = [Literal(window) for _ in range(bins)]
    unknown = 0
    for _ in range(12):
        if log:
            t = (torch.randn(8, generator=generator) * 1.2 - 1.2).exp()
        else:
            t = torch.rand(8, generator=generator) * high
            t = t.long() if high == 1000 else t
        losses = torch.rand(8, generator=generator) + t / high
        expected = []
        for value, loss in zip(t.tolist(), losses.tolist(), strict=True):
            count, mean, spread = literal[find_bin(value, low, high, bins, log)].moments()
            expected.append((loss - mean) / spread if count >= warmup else math.nan)
        for one in literal:
            one.batches.append([])
        for value, loss in zip(t.tolist(), losses.tolist(), strict=True):
            literal[find_bin(value, low, high, bins, log)].batches[-1].append(loss)
        score = normalizer(losses, t)
        unknown += int(score.isnan().sum())
        torch.testing.assert_close(score, torch.tensor(expected), rtol=1e-4, atol=1e-4, equal_nan=True)
    assert 4 * warmup <= unknown < 96
    count, mean, spread = zip(*(one.moments() for one in literal), strict=True)
    torch.testing.assert_close(normalizer.count, torch.tensor(count))
    torch.testing.assert_close(normalizer.mean, torch.tensor(mean))
    torch.testing.assert_close(normalizer.spread, torch.tensor(spread))


class Denoising:
    """A denoiser of vectors: one of four patterns plus noise of its own, whose size is how hard the sample is."""

    def __init__(self, size: int = 2000, width: int = 32) -> None:
        torch.manual_seed(0)
        self.difficulty = torch.rand(size)
        pattern = torch.randn(4, width)
        self.x = pattern[torch.arange(size) % 4] + self.difficulty[:, None] * torch.randn(size, width)
        self.net = nn.Sequential(
            nn.Linear(width + 2, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, width)
        )
        self.optimizer = torch.optim.Adam(self.net.parameters(), 3e-3)
        self.normalizer = TimestepNormalizer(0, 1000)

    def losses(self, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        t, noise = torch.randint(1000, (len(indices),)), torch.randn(len(indices), self.x.shape[1])
        signal, sigma = ALPHAS[t, None].sqrt(), (1 - ALPHAS[t, None]).sqrt()
        noisy = signal * self.x[indices] + sigma * noise
        loss, score = diffusion_loss(self.net(torch.cat([noisy, signal, sigma], 1)), noise, t, self.normalizer)
        return loss, score, t

    def step(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def test_the_loss_ranks_timesteps_and_the_score_ranks_samples() -> None:
    task = Denoising()
    raw, scores, timesteps = torch.zeros(3, 2000).unbind()
    for _ in range(6):
        for indices in torch.randperm(2000).split(100):
            loss, score, t = task.losses(indices)
            task.step(loss.mean())
            raw[indices], scores[indices], timesteps[indices] = loss.detach(), score, t.float()
    assert rank_correlation(raw, timesteps) < -0.7
    assert abs(rank_correlation(raw, task.difficulty)) < 0.2
    assert abs(rank_correlation(scores, timesteps)) < 0.1
    assert rank_correlation(scores, task.difficulty) > 0.35


def test_infobatch_prunes_easy_samples_instead_of_easy_timesteps() -> None:
    """Negative scores are legal: half of those below the mean are pruned, with weight 2 for the others."""
    task = Denoising()
    train = infobatch.InfoBatch(TensorDataset(torch.arange(2000)), 8, 0.5, 1.0)
    for _ in range(5):
        for (indices,) in infobatch.DataLoader(train, batch_size=100):
            loss, score, _ = task.losses(indices)
            task.step(train.update(loss, score=score))
    scores, plan = train.scores, train.plan()
    assert scores.isnan().sum() == 0
    low = scores < scores.mean()
    assert 0.4 < low.float().mean() < 0.8
    assert plan.kept == 2000 - int(low.sum()) + round(0.5 * int(low.sum()))
    assert float(plan.table.sum()) == pytest.approx(2000)
    assert task.difficulty[low].mean() < task.difficulty[~low].mean() - 0.1


@pytest.mark.parametrize("window", [64, 1_000_000], ids=["forgetting", "not forgetting"])
def test_early_and_late_losses_of_an_epoch_are_compared_with_their_time(window: int) -> None:
    """The loss falls to a third within the epoch, as in the first one of a run; with a window, the scores do not."""
    generator, normalizer = lot(), TimestepNormalizer(0, 1000, window=window)
    place = torch.arange(20_000)
    t = torch.randint(1000, (20_000,), generator=generator)
    level = torch.exp(-t / 300) * torch.exp(-place / 20_000 * math.log(3))
    losses = level * (1 + 0.3 * torch.randn(20_000, generator=generator))
    pairs = zip(losses.split(100), t.split(100), strict=True)
    scores = torch.cat([normalizer(*pair) for pair in pairs])
    known = ~scores.isnan()
    assert known.sum() > 19_500
    assert rank_correlation(losses[known], place[known]) < -0.25
    assert abs(rank_correlation(scores[known], t[known])) < 0.05
    gap = float(scores[known][:2000].mean() - scores[known][-2000:].mean())
    assert abs(gap) < 0.2 if window == 64 else gap > 0.7


def test_a_bin_that_is_rare_stays_unknown_until_it_knows_enough() -> None:
    normalizer = TimestepNormalizer(0, 1, 2, warmup=4)
    t = torch.tensor([0.1, 0.2, 0.3, 0.9])
    assert normalizer(torch.tensor([1.0, 2.0, 3.0, 1.0]), t).isnan().all()
    normalizer(torch.tensor([1.0, 2.0, 3.0, 1.0]), t)
    score = normalizer(torch.tensor([1.0, 2.0, 3.0, 1.0]), t)
    assert score.isnan().tolist() == [False, False, False, True]
    assert score[1].item() == pytest.approx(0, abs=1e-6)


def test_equal_losses_say_nothing() -> None:
    normalizer = TimestepNormalizer(0, 1, 1, warmup=2)
    for _ in range(3):
        score = normalizer(torch.full((50,), 0.1), torch.rand(50))
    assert score.isnan().all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
def test_a_loss_that_is_not_finite_teaches_nothing(bad: float) -> None:
    normalizer, other = (TimestepNormalizer(0, 1, 1, warmup=2) for _ in range(2))
    losses, t = torch.rand(6, generator=lot()), torch.rand(6, generator=lot(1))
    for one, size in ((normalizer, 6), (other, 5)):
        one(torch.cat([losses[:5], torch.tensor([bad])])[:size], t[:size])
    for name in ("count", "mean", "squares"):
        assert torch.equal(getattr(normalizer, name), getattr(other, name))
    assert normalizer(losses, t).isfinite().all()


def test_one_huge_loss_does_not_blind_its_bin() -> None:
    normalizer = TimestepNormalizer(0, 1, 1)
    losses, t = torch.rand(100, generator=lot()), torch.rand(100, generator=lot(1))
    normalizer(losses, t)
    huge = torch.cat([losses[:9], torch.tensor([1e9])])
    assert normalizer(huge, t[:10])[9] > 1e9
    assert 0.2 < normalizer.spread.item() < 1.0


def test_without_autograd_it_scores_but_does_not_learn() -> None:
    normalizer = TimestepNormalizer(0, 1, 1, warmup=2)
    losses, t = torch.rand(6, generator=lot()), torch.rand(6, generator=lot(1))
    normalizer(losses, t)
    before = normalizer.state_dict()
    with torch.no_grad():
        assert normalizer(10 * losses, t).isfinite().all()
    assert all(torch.equal(before[name], getattr(normalizer, name)) for name in ("count", "mean", "squares"))


# ---- saving and resuming ---------------------------------------------------------------------------------------


def test_a_resumed_run_has_the_same_scores_to_the_bit() -> None:
    generator = lot()
    batches = [(torch.rand(40, generator=generator), torch.rand(40, generator=generator)) for _ in range(20)]
    whole, first, second = (TimestepNormalizer(0, 1, 5) for _ in range(3))
    expected = [whole(*batch) for batch in batches]
    for batch in batches[:11]:
        first(*batch)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    for batch, scores in zip(batches[11:], expected[11:], strict=True):
        assert torch.equal(second(*batch), scores)
    assert not torch.cat(expected[11:]).isnan().any()
    for name, value in whole.state_dict().items():
        saved = second.state_dict()[name]
        assert torch.equal(saved, value) if isinstance(value, Tensor) else saved == value


def damage(name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda state: {**state, name: value}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda state: None,
        lambda state: [state],
        lambda state: {},
        lambda state: {name: value for name, value in state.items() if name != "mean"},
        damage("else", 1),
        damage("format", 2),
        damage("format", True),
        damage("window", 65),
        damage("warmup", "16"),
        damage("edges", torch.tensor([1.0])),
        damage("edges", torch.tensor([100.0, 200.0, 300.0])),
        damage("edges", None),
        damage("mean", torch.zeros(3)),
        damage("mean", torch.zeros(4, dtype=torch.float64)),
        damage("mean", [0.0] * 4),
        damage("mean", torch.zeros(4, device="meta")),
        damage("mean", torch.tensor([0.0, 0.0, torch.nan, 0.0])),
        damage("squares", torch.tensor([0.0, 0.0, torch.inf, 0.0])),
        damage("squares", torch.tensor([0.0, 0.0, -1.0, 0.0])),
        damage("count", torch.tensor([0.0, 0.0, -1.0, 0.0])),
    ],
)
def test_a_damaged_state_is_refused_and_nothing_is_loaded(spoil: Callable[[dict[str, Any]], Any]) -> None:
    normalizer, other = TimestepNormalizer(0, 1000, 4), TimestepNormalizer(0, 1000, 4)
    for one in (normalizer, other):
        one(torch.rand(9, generator=lot()), torch.arange(9) * 100)
    other(torch.rand(9), torch.arange(9) * 100)
    with pytest.raises(StateError, match="Nothing was loaded"):
        normalizer.load_state_dict(spoil(copy.deepcopy(other.state_dict())))
    again = TimestepNormalizer(0, 1000, 4)
    again(torch.rand(9, generator=lot()), torch.arange(9) * 100)
    assert all(torch.equal(getattr(again, name), getattr(normalizer, name)) for name in ("count", "mean", "squares"))


# ---- both engines ----------------------------------------------------------------------------------------------


def test_the_expected_gradient_over_all_plans_is_that_of_the_whole_batch() -> None:
    torch.manual_seed(0)
    net, x, noise = nn.Linear(4, 4), torch.randn(8, 4), torch.randn(8, 4)
    t = torch.randint(1000, (8,))
    normalizer = TimestepNormalizer(0, 1000, 1, warmup=2)
    weight = min_snr_weight(ratio(t))

    def losses_of(indices: Tensor, weights: Tensor) -> Tensor:
        loss, _ = diffusion_loss(net(x[indices]), noise[indices], t[indices], normalizer, weight=weight[indices])
        return loss

    losses_of(torch.arange(8), torch.ones(8))
    scores = diffusion_loss(net(x), noise, t, normalizer).score
    assert 0 < int((scores < 0).sum()) < 8
    expected = plans.gradient(net, losses_of(torch.arange(8), torch.ones(8)).mean())
    torch.testing.assert_close(plans.expected_gradient(net, losses_of, scores), expected)


def test_both_engines_at_once() -> None:
    torch.manual_seed(0)
    net, small = nn.Linear(4, 4), nn.Linear(4, 4)
    normalizer = TimestepNormalizer(0, 1000, 2, warmup=4)

    def losses(net: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        x, noise, t, _ = batch
        return diffusion_loss(net(x), noise, t, None).loss

    data = TensorDataset(torch.randn(64, 4), torch.arange(64))
    train = infobatch.InfoBatch(data, 8)
    sieve = infobatch.Sieve(infobatch.sieve.Proxy(small, losses=losses), infobatch.sieve.hardest(keep=0.5))
    for _ in range(4):
        for x, _ in infobatch.DataLoader(train, batch_size=16):
            size = len(x)
            parts = (x, torch.randn_like(x), torch.randint(1000, (size,)), torch.arange(size))
            (x, noise, t, rows), _ = sieve(parts)
            loss, score = diffusion_loss(net(x), noise, t, normalizer)
            loss, whole = sieve.expand(loss, score=score)
            expected = torch.full_like(whole, torch.nan).index_copy(0, rows, score)
            torch.testing.assert_close(whole, expected, rtol=0, atol=0, equal_nan=True)
            train.update(loss, score=whole).backward()
    assert net.weight.grad is not None
    assert bool(net.weight.grad.isfinite().all())
    assert 0 < int(train.scores.isnan().sum()) < 64  # left out, or seen in the warm-up only
    assert (train.scores < 0).any()


def test_it_compiles_into_one_graph() -> None:
    normalizer, other = (TimestepNormalizer(0, 1000, 3, warmup=4) for _ in range(2))

    def step(prediction: Tensor, target: Tensor, t: Tensor, normalizer: TimestepNormalizer) -> tuple[Tensor, Tensor]:
        loss, score = diffusion_loss(prediction, target, t, normalizer, weight=min_snr_weight(1000 / (t + 1)))
        return loss, score

    compiled = torch.compile(step, fullgraph=True, backend="eager")
    for seed in range(5):
        batch = make_batch(LATENTS, 16, seed)
        for mine, plain in zip(compiled(*batch, normalizer), step(*batch, other), strict=True):
            torch.testing.assert_close(mine, plain, equal_nan=True)
    assert torch.equal(normalizer.mean, other.mean)
    assert normalizer.count.min() > 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(dtype: torch.dtype) -> None:
    net, normalizer = nn.Conv2d(3, 3, 1), TimestepNormalizer(0, 1000, 1, warmup=2)
    x, t = torch.randn(4, *PIXELS), torch.arange(4) * 100
    for _ in range(2):
        with torch.autocast("cpu", dtype):
            loss, score = diffusion_loss(net(x), x, t, normalizer)
    assert loss.dtype == score.dtype == torch.float32
    assert score.isfinite().all()
    loss.mean().backward()
    assert net.weight.grad is not None
    assert net.weight.grad.isfinite().all()


# ---- bad input -------------------------------------------------------------------------------------------------

X, T = torch.zeros(4, 3, 2, 2), torch.zeros(4)


@pytest.mark.parametrize(
    ("prediction", "target", "t", "weight", "word"),
    [
        (X[:, :1], X, T, None, "target"),  # would be broadcast
        (torch.zeros(4, 6, 2, 2), X, T, None, "chunk"),
        (X[0, 0, 0], X[0, 0, 0], T, None, "prediction"),
        (X.long(), X, T, None, "prediction"),
        ({"sample": X}, X, T, None, "sample"),
        (X, None, T, None, "target"),
        (X, X, torch.tensor(3), None, "expand"),
        (X, X, 3, None, "expand"),
        (X, X, T[:1], None, "expand"),
        (X, X, T.reshape(4, 1, 1, 1), None, "timesteps"),
        (X, X, T, 2.0, "weight"),
        (X, X, T, T.reshape(4, 1, 1, 1), "weight"),
        (X, X, T, torch.zeros(4, device="meta"), "weight"),
        (X[:0], X[:0], T[:0], None, "empty"),
    ],
)
def test_wrong_arguments_are_refused(prediction: Any, target: Any, t: Any, weight: Any, word: str) -> None:
    with pytest.raises(InputError, match=word):
        diffusion_loss(prediction, target, t, TimestepNormalizer(0, 1000), weight=weight)


def test_timesteps_are_checked_without_a_normalizer_too() -> None:
    with pytest.raises(InputError, match="expand"):
        diffusion_loss(X, X, torch.tensor(3), None)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"low": 0, "high": 0}, "ascending"),
        ({"low": 0, "high": math.nan}, "ascending"),
        ({"low": 0, "high": 1, "log": True}, "positive"),
        ({"low": "0", "high": 1}, "ascending"),
        ({"low": 0, "high": 1, "bins": 0}, "bins"),
        ({"low": 0, "high": 1, "bins": 2.5}, "bins"),
        ({"low": 0, "high": 1, "warmup": 1}, "warmup"),
        ({"low": 0, "high": 1, "window": 20}, "twice"),
        ({"low": 0, "high": 1, "window": True}, "window"),
    ],
)
def test_a_normalizer_with_wrong_arguments_is_refused(arguments: Any, word: str) -> None:
    with pytest.raises(InputError, match=word):
        TimestepNormalizer(**arguments)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(([1.0],), "tensor"), ((T.long(),), "tensor"), ((T, 0.0), "gamma"), ((T, 5.0, "flow"), "prediction_type")],
)
def test_wrong_ratios_are_refused(arguments: Any, word: str) -> None:
    with pytest.raises(InputError, match=word):
        min_snr_weight(*arguments)
