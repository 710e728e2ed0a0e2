#!/usr/bin/env python3
"""CIFAR speedruns at equal compute: full data, a shorter run, and rules that pass on part of each batch.

Every run gets a budget, counted in FLOPs: forward, backward and the cost of looking. The budget is
written in epochs of the large network on full data (``--budget 24`` = the FLOPs of 24 such epochs).
The learning rate follows the share of the budget that is spent, and the run stops when it is spent,
so two runs with the same budget cost the same, whatever their rules do.

rules
  full      every row of every batch. A smaller budget makes it the shorter run.
  random    a random share --keep of each batch (control: same steps, no look)
  hardest   a small proxy network sees the same augmented batch; the --keep share with the highest
            loss goes on to the large network at weight 1. The proxy trains on every 4th batch.
  lot       the proxy looks, and exactly k rows are drawn by lot: the chance p of a row rises with the
            norm of its residual (softmax minus target), at least a quarter of the mean chance;
            weight 1/p, so the step is unbiased.
  adaptive  hardest, but the number of rows follows a measurement. Every --measure batches the large
            network trains on the whole batch, which shows how much of the gradient the rows that the
            proxy ranks first really carry. The next batches keep the fewest rows that carry the share
            --tau of it (in steps of 1/8 of the batch, or only the --sizes given). Where that is all
            rows, the proxy does not look.
              --mass norm        gradient of a row = norm of its residual
              --mass projection  = projection of its last-layer gradient on that of the other rows
  adaptive-lot  the same number of rows, drawn by lot with weights 1/p

data: a folder per data set with train_x.npy, test_x.npy (uint8, N x 32 x 32 x 3), train_y.npy, test_y.npy

examples
  speedrun.py --data DIR --dataset cifar10 --rule full --budget 36.4 --seeds 0 1 2 3 4
  speedrun.py --data DIR --dataset cifar10 --rule full --budget 24                   # the shorter run
  speedrun.py --data DIR --dataset cifar10 --rule hardest --keep 0.5 --budget 24
  speedrun.py --data DIR --dataset cifar100 --rule adaptive --tau 0.85 --budget 24
  speedrun.py --data DIR --jobs jobs.txt         # one line of options per job; several processes may share it
  speedrun.py --synthetic --dataset cifar10 --widths 8 16 16 --proxy 4 8 8 --rule adaptive --budget 2  # CPU rehearsal
  speedrun.py --summary records/*.jsonl          # means, spread and differences from the shorter run

Choose settings with --holdout 5000 (scored on training samples set aside), report them without it.
One JSON line per run is appended to --records.
"""

import argparse
import copy
import glob
import json
import math
import os
import shlex
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

BATCH = 1024
SMOOTHING = 0.2
LEARNING_RATE = 9.0 / 1024  # per row of a summed loss, before the momentum correction below
WEIGHT_DECAY = 0.012
MOMENTUM = 0.85
BIAS_FACTOR = 64.0
PROXY_EVERY = 4
TRANSLATE, CUTOUT = 4, 12
SIZES = [i / 8 for i in range(2, 9)]


# ---------------------------------------------------------------- network


class Block(nn.Module):
    def __init__(self, c_in, c_out, depth):
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(c_in if i == 0 else c_out, c_out, 3, padding=1, bias=False) for i in range(depth)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(c_out, eps=1e-12, momentum=0.4) for _ in range(depth))

    def forward(self, x):
        x = F.gelu(self.norms[0](F.max_pool2d(self.convs[0](x), 2)))
        skip = x
        x = F.gelu(self.norms[1](self.convs[1](x)))
        if len(self.convs) == 3:
            x = F.gelu(self.norms[2](self.convs[2](x)) + skip)
        return x


class Net(nn.Module):
    """Whitened 2x2 patches, three blocks, max pooling, a linear head. Takes N x H x W x C."""

    def __init__(self, widths, depth, classes):
        super().__init__()
        self.whiten = nn.Conv2d(3, 24, 2)
        self.blocks = nn.Sequential(*(Block(a, b, depth) for a, b in zip([24, *widths[:-1]], widths, strict=False)))
        self.head = nn.Linear(widths[-1], classes, bias=False)

    def forward(self, x):
        x = F.gelu(self.whiten(x.permute(0, 3, 1, 2)))
        x = self.blocks(x)
        # not amax: compiled in half precision, its backward compares with a recomputed maximum, and divides by no match
        x = F.max_pool2d(x, x.shape[2:]).flatten(1)
        return self.head(x) / 9, x

    @torch.no_grad()
    def reset(self, images):
        """Fresh weights in place (compiled code stays valid); the first layer whitens patches of images."""
        for m in self.modules():
            if isinstance(m, (nn.Conv2d, nn.Linear, nn.BatchNorm2d)):
                m.reset_parameters()
            if isinstance(m, nn.Conv2d) and m is not self.whiten:
                nn.init.dirac_(m.weight[: m.in_channels])
            if isinstance(m, nn.BatchNorm2d):
                m.weight.requires_grad_(False)
        patches = images.double().permute(0, 3, 1, 2).unfold(2, 2, 1).unfold(3, 2, 1)
        patches = patches.permute(0, 2, 3, 1, 4, 5).reshape(-1, 12)
        # In double precision: the smallest eigenvalue is a few thousandths of the largest.
        values, vectors = torch.linalg.eigh((patches.T @ patches / len(patches)).cpu())
        filters = (vectors / (values + 5e-4).sqrt()).T.flip(0).float().reshape(12, 3, 2, 2)
        self.whiten.weight.copy_(torch.cat([filters, -filters]))
        self.whiten.weight.requires_grad_(False)
        self.whiten.bias.zero_()


def count_flops(net):
    """FLOPs per row of (forward, forward and backward)."""
    net = copy.deepcopy(net).cpu().float().train()
    x = torch.randn(2, 32, 32, 3)
    with FlopCounterMode(display=False) as forward, torch.no_grad():
        net(x)
    with FlopCounterMode(display=False) as both:
        net(x)[0].sum().backward()
    return forward.get_total_flops() / 2, both.get_total_flops() / 2


class Trainer:
    """A network with its compiled steps, optimizer and slow weights; reused by all runs of a process."""

    def __init__(self, widths, depth, classes, device, dtype, use_compile):
        self.net = Net(widths, depth, classes).to(device).to(memory_format=torch.channels_last)
        self.net.whiten.weight.requires_grad_(False)
        for m in self.net.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.weight.requires_grad_(False)
        self.flops_look, self.flops_step = count_flops(self.net)

        def cast():
            return torch.autocast(device.type, dtype, enabled=dtype != torch.float32)

        def losses(x, y, weight):
            with cast():
                logits, features = self.net(x)
            logits = logits.float()
            loss = F.cross_entropy(logits, y, reduction="none", label_smoothing=SMOOTHING)
            return (loss * weight).sum(), loss.detach(), logits.detach(), features.detach()

        def look(x, y):
            with cast():
                logits, _ = self.net(x)
            logits = logits.float()
            return F.cross_entropy(logits, y, reduction="none", label_smoothing=SMOOTHING), residual(logits, y).norm(
                dim=1
            )

        def predict(x):
            with cast():
                return self.net(x)[0].float()

        self.losses, self.look, self.predict = losses, look, predict
        if use_compile:
            self.losses, self.look = torch.compile(losses), torch.compile(look, dynamic=False)
        self.dynamic = use_compile
        self.fused = device.type == "cuda"

    def start(self, images, lookahead):
        self.net.reset(images)
        self.net.train()
        rate = LEARNING_RATE / (1 + 1 / (1 - MOMENTUM))
        decay = WEIGHT_DECAY / (1 + 1 / (1 - MOMENTUM))
        named = [(n, p) for n, p in self.net.named_parameters() if p.requires_grad]
        biases = [p for n, p in named if "norms" in n]
        others = [p for n, p in named if "norms" not in n]
        # The decay of a step is the same for both groups: torch multiplies it by the group's rate.
        self.optimizer = torch.optim.SGD(
            [
                {"params": others, "lr": rate, "weight_decay": decay / rate, "base": rate},
                {
                    "params": biases,
                    "lr": rate * BIAS_FACTOR,
                    "weight_decay": decay / rate / BIAS_FACTOR,
                    "base": rate * BIAS_FACTOR,
                },
            ],
            momentum=MOMENTUM,
            nesterov=True,
            fused=self.fused,
        )
        self.fast = [t for t in self.net.state_dict().values() if t.dtype.is_floating_point]
        self.slow = [t.detach().clone() for t in self.fast] if lookahead else None

    def step(self, x, y, weight, rate):
        for group in self.optimizer.param_groups:
            group["lr"] = group["base"] * rate
        if self.dynamic:
            for t in (x, y, weight):
                torch._dynamo.maybe_mark_dynamic(t, 0)
        total, *rest = self.losses(x, y, weight)
        total.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return rest

    @torch.no_grad()
    def pull(self, share):
        """Move the slow weights towards the fast ones by share, then restart the fast ones from there."""
        torch._foreach_lerp_(self.slow, self.fast, share)
        torch._foreach_copy_(self.fast, self.slow)


def schedule(t):
    """Learning-rate factor: from 0.2 up to 1 at 23 % of the budget, then down to 0.07."""
    return 0.2 + 0.8 * t / 0.23 if t < 0.23 else 1 + (0.07 - 1) * (t - 0.23) / 0.77


# ---------------------------------------------------------------- data


def pad(x, width):
    """Reflect the borders of N x H x W x C images."""
    n = x.shape[1]
    index = torch.arange(-width, n + width, device=x.device).abs()
    index = torch.where(index > n - 1, 2 * (n - 1) - index, index)
    return x[:, index][:, :, index]


class Data:
    def __init__(self, args, device, dtype):
        self.classes = 100 if args.dataset == "cifar100" else 10
        if args.synthetic:
            g = torch.Generator().manual_seed(7)
            means = torch.rand(self.classes, 4, 4, 3, generator=g) * 255
            y = torch.randint(self.classes, (5120,), generator=g)
            x = means[y].repeat_interleave(8, 1).repeat_interleave(8, 2) + 60 * torch.randn(
                5120, 32, 32, 3, generator=g
            )
            x = x.clamp(0, 255).byte()
            arrays = {"train_x": x[:4096], "train_y": y[:4096], "test_x": x[4096:], "test_y": y[4096:]}
        else:
            import numpy as np

            def load(n):
                return torch.from_numpy(np.load(os.path.join(args.data, args.dataset, n + ".npy")))

            arrays = {n: load(n) for n in ("train_x", "train_y", "test_x", "test_y")}
        if args.holdout:
            order = torch.randperm(len(arrays["train_x"]), generator=torch.Generator().manual_seed(1234))
            out, rest = order[: args.holdout], order[args.holdout :]
            arrays.update(
                test_x=arrays["train_x"][out],
                test_y=arrays["train_y"][out],
                train_x=arrays["train_x"][rest],
                train_y=arrays["train_y"][rest],
            )
        pixels = arrays["train_x"].float() / 255
        mean, std = pixels.mean((0, 1, 2)), pixels.std((0, 1, 2))

        def normal(x):
            return ((x.float() / 255 - mean) / std).to(device, dtype)

        self.x, self.test_x = normal(arrays["train_x"]), normal(arrays["test_x"])
        self.y, self.test_y = arrays["train_y"].long().to(device), arrays["test_y"].long().to(device)
        self.padded = pad(self.x, TRANSLATE)
        self.device = device

    def epochs(self, generator):
        """Yield batches for ever: shuffled, alternately flipped, shifted, with a square cut out."""
        n, device = len(self.x), self.device
        first = torch.rand(n, generator=generator, device=device) < 0.5
        span = torch.arange(32, device=device)
        epoch = 0
        while True:
            order = torch.randperm(n, generator=generator, device=device)
            shift = torch.randint(0, 2 * TRANSLATE + 1, (2, n, 1), generator=generator, device=device)
            corner = torch.randint(0, 32 - CUTOUT + 1, (2, n, 1), generator=generator, device=device)
            flip = first[order, None] ^ bool(epoch % 2)
            rows = shift[0] + span
            columns = shift[1] + torch.where(flip, 31 - span, span)
            images = self.padded[order[:, None, None], rows[:, :, None], columns[:, None, :]]
            inside = (span >= corner) & (span < corner + CUTOUT)
            images.masked_fill_((inside[0][:, :, None] & inside[1][:, None, :]).unsqueeze(-1), 0)
            labels = self.y[order]
            for i in range(n // BATCH):
                part = slice(i * BATCH, (i + 1) * BATCH)
                yield images[part], labels[part]
            epoch += 1


@torch.no_grad()
def evaluate(trainer, data):
    """Accuracy of plain images, and averaged over mirrored and shifted views, in percent."""
    trainer.net.eval()
    plain = views = 0
    for i in range(0, len(data.test_x), 2000):
        x, y = data.test_x[i : i + 2000], data.test_y[i : i + 2000]

        def both(v):
            return trainer.predict(v) + trainer.predict(v.flip(2))

        p = pad(x, 1)
        plain += (trainer.predict(x).argmax(1) == y).sum()
        mean = 0.5 * both(x) + 0.25 * both(p[:, :32, :32].contiguous()) + 0.25 * both(p[:, 2:, 2:].contiguous())
        views += (mean.argmax(1) == y).sum()
    trainer.net.train()
    n = len(data.test_x)
    return 100 * plain.item() / n, 100 * views.item() / n


@torch.no_grad()
def refresh_norms(trainer, batches, count=8):
    """Average BatchNorm statistics over whole batches: a run's last batches may hold hard rows only."""
    norms = [m for m in trainer.net.modules() if isinstance(m, nn.BatchNorm2d)]
    for m in norms:
        m.reset_running_stats()
        m.momentum = None
    for _ in range(count):
        trainer.predict(next(batches)[0])
    for m in norms:
        m.momentum = 0.4


# ---------------------------------------------------------------- rules


def residual(logits, y):
    """Gradient of the smoothed loss with respect to the logits, per row."""
    classes = logits.shape[1]
    return logits.softmax(1) - (SMOOTHING / classes + (1 - SMOOTHING) * F.one_hot(y, classes))


def draw_by_lot(score, k, generator):
    """Draw exactly k rows with chance p rising with score; return rows and weights 1/p."""
    n = len(score)
    floor = 0.25 * k / n
    p = score / score.sum() * k
    for _ in range(8):
        p = (p * (k / p.sum())).clamp(floor, 1)
    order = torch.randperm(n, generator=generator, device=score.device)
    steps = (p[order].cumsum(0) * (k / p.sum()) + torch.rand(1, generator=generator, device=score.device)).floor()
    taken = torch.diff(steps, prepend=steps.new_zeros(1)) > 0
    rows = order[torch.topk(taken.float(), k).indices]
    return rows, 1 / p[rows]


class Controller:
    """Fewest rows whose share of the measured gradient is at least tau."""

    def __init__(self, tau, sizes, mass, memory=0.7):
        self.tau, self.sizes, self.mass, self.memory = tau, sizes, mass, memory
        self.carried, self.rows = None, BATCH

    def measure(self, score, logits, features, y):
        """Update from a batch that both networks saw in whole. Reads one small tensor back from the device."""
        r = residual(logits, y)
        if self.mass == "norm":
            m = r.norm(dim=1)
        else:
            h = features.float()
            m = ((r @ (r.T @ h)) * h).sum(1) - r.square().sum(1) * h.square().sum(1)
        m = m[score.argsort(descending=True)].cumsum(0)[BATCH // 8 - 1 :: BATCH // 8]
        right = (logits.argmax(1) == y).float().mean()
        *carried, right = torch.cat([m, right[None]]).double().tolist()
        old = self.carried or carried
        self.carried = [self.memory * a + (1 - self.memory) * b for a, b in zip(old, carried, strict=False)]
        self.right = right
        share = self.share()
        enough = [k for k in self.sizes if share[k * 8 // BATCH - 1] >= self.tau]
        self.rows = min(enough) if enough else BATCH

    def share(self):
        return [c / self.carried[-1] if self.carried[-1] > 0 else (i + 1) / 8 for i, c in enumerate(self.carried)]


# ---------------------------------------------------------------- one run


def train(args, seed, data, model, proxy, say=print):
    device = data.device
    torch.manual_seed(seed)
    batch_source = torch.Generator(device).manual_seed(seed)
    lots = torch.Generator(device).manual_seed(seed + 10_000)
    sample = data.x[:5000]
    model.start(sample, lookahead=True)
    adaptive = args.rule.startswith("adaptive")
    looks = args.rule in ("hardest", "lot") or adaptive
    if looks:
        proxy.start(sample, lookahead=False)
    control = Controller(args.tau, [int(BATCH * s) for s in args.sizes], args.mass) if adaptive else None
    fixed = BATCH if args.rule == "full" else round(args.keep * BATCH)
    one = torch.ones(BATCH, device=device)

    unit = len(data.x) * model.flops_step  # one epoch of the large network on full data
    budget = args.budget * unit
    spent, step, passed_on, _right, trace = 0.0, 0, 0, None, []
    batches = data.epochs(batch_source)
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    while spent < budget:
        t = spent / budget
        rate = schedule(t)
        x, y = next(batches)
        finishing = t >= args.until
        measuring = adaptive and step % args.measure == 0 and not finishing
        k = BATCH if finishing or measuring else control.rows if adaptive else fixed
        loss = norm = None
        if looks and not finishing:
            if step % PROXY_EVERY == 0:
                loss, logits, _ = proxy.step(x, y, one, rate)
                spent += BATCH * proxy.flops_step
                if args.rule.endswith("lot"):
                    norm = residual(logits, y).norm(dim=1)
            elif k < BATCH or measuring:
                with torch.no_grad():
                    loss, norm = proxy.look(x, y)
                spent += BATCH * proxy.flops_look
        weight = one[:k]
        if k < BATCH:
            if args.rule in ("hardest", "adaptive"):
                rows = torch.topk(loss, k, sorted=False).indices
            elif args.rule == "random":
                rows = torch.randperm(BATCH, generator=lots, device=device)[:k]
                weight = weight * (BATCH / k if args.grow else 1)
            else:
                rows, weight = draw_by_lot(norm, k, lots)
            part_x, part_y = x[rows], y[rows]
        else:
            part_x, part_y = x, y
        _, logits, features = model.step(part_x, part_y, weight, rate)
        spent += k * model.flops_step
        passed_on += k
        if measuring:
            control.measure(loss, logits, features, y)
        if step % 5 == 4:
            model.pull(1 - 0.95**5 * t**3)
        if len(trace) <= 20 * t:
            if not logits.isfinite().all():
                sys.exit(
                    f"step {step}: logits are not finite; check the data, then try --no-compile or --dtype float32"
                )
            point = {"t": round(t, 3), "rows": k if not measuring else control.rows}
            if adaptive and control.carried:
                point.update(right=round(control.right, 3), share=[round(s, 3) for s in control.share()])
            elif args.rule == "full":
                point.update(right=round((logits.argmax(1) == y).float().mean().item(), 3))
            trace.append(point)
            if args.progress:
                say(f"  {100 * t:3.0f} % of the budget, step {step}, {point}", flush=True)
        step += 1
    with torch.no_grad():
        model.pull(0.0)
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    plain, views = evaluate(model, data)
    refresh_norms(model, batches)
    plain_norm, views_norm = evaluate(model, data)
    return {
        "dataset": ("synthetic-" if args.synthetic else "") + args.dataset,
        "rule": args.rule,
        "seed": seed,
        "label": label(args),
        "budget": args.budget,
        "keep": None if adaptive or args.rule == "full" else args.keep,
        "tau": args.tau if adaptive else None,
        "mass": args.mass if adaptive else None,
        "sizes": args.sizes if adaptive else None,
        "measure": args.measure if adaptive else None,
        "until": args.until,
        "grow": args.grow,
        "holdout": args.holdout,
        "widths": args.widths,
        "depth": 3,
        "proxy": args.proxy if looks else None,
        "proxy_depth": 2 if looks else None,
        "batch": BATCH,
        "steps": step,
        "epochs": round(step * BATCH / len(data.x), 2),
        "kept_share": round(passed_on / step / BATCH, 4),
        "accuracy": plain,
        "accuracy_tta": views,
        "accuracy_norm": plain_norm,
        "accuracy_tta_norm": views_norm,
        "flops": spent,
        "cost_epochs": round(spent / unit, 3),
        "seconds": round(seconds, 2),
        "alone": args.alone,
        "compiled": args.compile,
        "dtype": args.dtype,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "trace": trace,
    }


def label(args):
    name = args.rule
    if args.rule.startswith("adaptive"):
        name += f" {args.mass} tau={args.tau:g}" + (f" sizes={args.sizes}" if args.sizes != SIZES else "")
    elif args.rule != "full":
        name += f" keep={args.keep:g}" + (" grow" if args.grow else "")
    if args.until < 1:
        name += f" until={args.until:g}"
    if args.rule not in ("full", "random") and args.proxy != [64, 128, 128]:
        name += f" proxy={args.proxy[0]}"
    return name


# ---------------------------------------------------------------- summary


def interval(values):
    """Mean, standard deviation, half width of a 95 % interval of the mean (Student's t)."""
    n = len(values)
    mean = sum(values) / n
    if n < 2:
        return mean, float("nan"), float("nan")
    sd = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    quantile = {
        1: 12.71,
        2: 4.30,
        3: 3.18,
        4: 2.78,
        5: 2.57,
        6: 2.45,
        7: 2.36,
        8: 2.31,
        9: 2.26,
        10: 2.23,
        11: 2.20,
    }.get(n - 1, 2.1 if n < 20 else 2.05)
    return mean, sd, quantile * sd / math.sqrt(n)


def summarize(paths, field):
    records, seen = [], set()
    for path in paths:
        for line in Path(path).read_text().splitlines():
            r = json.loads(line)
            key = (r["dataset"], r["holdout"], r["budget"], r["label"], r["seed"], r.get("alone", False))
            if key not in seen and not r.get("alone"):
                seen.add(key)
                records.append(r)
    groups = {}
    for r in records:
        groups.setdefault((r["dataset"], r["holdout"], r["budget"], r["label"]), {})[r["seed"]] = r
    print(f"{field}; difference = paired by seed, from 'full' at the same budget")
    for key in sorted(groups, key=str):
        runs = groups[key]
        mean, sd, _half = interval([r[field] for r in runs.values()])
        cost, epochs = (sum(r[f] for r in runs.values()) / len(runs) for f in ("cost_epochs", "epochs"))
        keep = sum(r["kept_share"] for r in runs.values()) / len(runs)
        base = groups.get((*key[:3], "full"), {})
        pairs = [runs[s][field] - base[s][field] for s in runs if s in base]
        text = ""
        if key[3] != "full" and pairs:
            d, _, h = interval(pairs)
            text = f"  {d:+.2f} +- {h:.2f} (n={len(pairs)})"
        print(
            f"{key[0]:9s} holdout {key[1]:<5d} budget {key[2]:<5g} {key[3]:38s} {mean:6.2f} sd {sd:4.2f} "
            f"n={len(runs):<3d} cost {cost:5.2f} epochs {epochs:5.1f} kept {keep:.2f}{text}"
        )


# ---------------------------------------------------------------- command line


def parser():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", default="data", help="folder that holds cifar10/ and cifar100/")
    p.add_argument("--dataset", choices=["cifar10", "cifar100"], default="cifar10")
    p.add_argument("--rule", choices=["full", "random", "hardest", "lot", "adaptive", "adaptive-lot"], default="full")
    p.add_argument(
        "--budget",
        type=float,
        default=24.0,
        help="FLOPs of the run in epochs of full data (37 epochs without the last part of a batch: 36.4)",
    )
    p.add_argument("--seeds", type=int, nargs="+", default=[0])
    p.add_argument("--keep", type=float, default=0.5, help="share of a batch that goes on (hardest, lot, random)")
    p.add_argument(
        "--tau", type=float, default=0.85, help="share of the gradient that the kept rows must carry (adaptive)"
    )
    p.add_argument(
        "--mass",
        choices=["norm", "projection"],
        default="norm",
        help="how the gradient of a row is measured (adaptive)",
    )
    p.add_argument(
        "--sizes",
        type=float,
        nargs="+",
        default=SIZES,
        help="shares that adaptive may keep, multiples of 1/8",
    )
    p.add_argument(
        "--measure", type=int, default=16, help="train on a whole batch and measure every so many batches (adaptive)"
    )
    p.add_argument(
        "--until", type=float, default=1.0, help="look until this share of the budget is spent, then full batches"
    )
    p.add_argument("--grow", action="store_true", help="random: weight 1/keep instead of 1")
    p.add_argument("--proxy", type=int, nargs=3, default=[64, 128, 128], help="widths of the proxy (depth 2)")
    p.add_argument("--widths", type=int, nargs=3, default=[128, 384, 512], help="widths of the large network (depth 3)")
    p.add_argument(
        "--holdout", type=int, default=0, help="score on this many training samples set aside instead of the test set"
    )
    p.add_argument(
        "--dtype",
        choices=["float16", "bfloat16", "float32"],
        default="float16" if torch.cuda.is_available() else "float32",
    )
    p.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="torch.compile",
    )
    p.add_argument(
        "--alone",
        action="store_true",
        help="mark the record: nothing else ran on the GPU, so its seconds may be quoted",
    )
    p.add_argument("--progress", action="store_true", help="print twenty lines per run")
    p.add_argument("--records", default="records.jsonl")
    p.add_argument(
        "--jobs", help="file with one line of options per job; re-read until --jobs-end exists and all are claimed"
    )
    p.add_argument("--jobs-end", help="with --jobs: wait for more lines until this file exists")
    p.add_argument("--synthetic", action="store_true", help="4,096 made-up images instead of real data")
    p.add_argument("--summary", nargs="+", metavar="JSONL", help="print means and differences of records, and leave")
    p.add_argument(
        "--field",
        default="accuracy_tta",
        help="with --summary: accuracy, accuracy_tta, accuracy_norm, accuracy_tta_norm",
    )
    return p


def claim(path, n):
    """True for exactly one of the processes that share a job file."""
    try:
        os.close(os.open(f"{path}.{n}.claim", os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False


def jobs(args):
    """Yield parsed jobs: the command line itself, or lines of the job file nobody has claimed."""
    if not args.jobs:
        yield args
        return
    shared = list(sys.argv[1:])
    n = 0
    while True:
        lines = Path(args.jobs).read_text().splitlines() if os.path.exists(args.jobs) else []
        if n < len(lines):
            if lines[n].strip() and not lines[n].startswith("#") and claim(args.jobs, n):
                yield parser().parse_args(shared + shlex.split(lines[n]))
            n += 1
        elif not args.jobs_end or os.path.exists(args.jobs_end):
            return
        else:
            time.sleep(0.5)


def get_net(nets, job, widths, depth, classes, device):
    """The trainer of these settings, made once per process."""
    key = (*widths, depth, classes, job.dtype, job.compile)
    if key not in nets:
        nets[key] = Trainer(widths, depth, classes, device, getattr(torch, job.dtype), job.compile)
    return nets[key]


def main():
    args = parser().parse_args()
    if args.summary:
        return summarize([f for p in args.summary for f in sorted(glob.glob(p))], args.field)
    if not args.synthetic and not args.jobs and not os.path.isdir(os.path.join(args.data, args.dataset)):
        sys.exit(
            f"no data under {os.path.join(args.data, args.dataset)}: expected train_x.npy, train_y.npy, "
            "test_x.npy, test_y.npy; see --help"
        )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    sets, nets, warm = {}, {}, set()
    for job in jobs(args):
        if any(int(s * 8) != s * 8 or not 0 < s <= 1 for s in job.sizes):
            sys.exit(f"--sizes takes multiples of 1/8 in (0, 1], got {job.sizes}")
        dtype = getattr(torch, job.dtype)
        which = (job.dataset, job.holdout)
        if which not in sets:
            sets[which] = Data(job, device, dtype)
        data = sets[which]

        model = get_net(nets, job, job.widths, 3, data.classes, device)
        proxy = get_net(nets, job, job.proxy, 2, data.classes, device) if job.rule not in ("full", "random") else None
        looks = (id(model), id(proxy))
        sizes = (
            {BATCH}
            if job.rule == "full"
            else {BATCH, round(job.keep * BATCH)}
            if not job.rule.startswith("adaptive")
            else {BATCH, *(int(s * BATCH) for s in job.sizes)}
        )
        if job.compile:  # compile and pick kernels before the clock starts
            began = time.perf_counter()
            for k in sorted(sizes, reverse=True):
                if (*looks, k) not in warm:
                    model.start(data.x[:5000], True)
                    x, y, one = data.x[:BATCH], data.y[:BATCH], torch.ones(BATCH, device=device)
                    for _ in range(2):
                        if proxy:
                            proxy.start(data.x[:5000], False)
                            proxy.step(x, y, one, 0.1)
                            with torch.no_grad():
                                proxy.look(x.clone(), y.clone())  # clones: a step marks its tensors as dynamic
                        model.step(x[:k].clone(), y[:k].clone(), one[:k].clone(), 0.1)
                    warm.add((*looks, k))
            print(f"warm after {time.perf_counter() - began:.1f} s", flush=True)
        for seed in job.seeds:
            record = train(job, seed, data, model, proxy)
            with open(job.records, "a") as f:
                f.write(json.dumps(record) + "\n")
            r = record
            print(
                f"{r['dataset']} {r['label']:30s} seed {seed} holdout {r['holdout']} budget {r['budget']:g}: "
                f"{r['accuracy']:.2f} tta {r['accuracy_tta']:.2f} (norms refreshed {r['accuracy_norm']:.2f} "
                f"{r['accuracy_tta_norm']:.2f}) cost {r['cost_epochs']:.2f} epochs {r['epochs']:.1f} "
                f"kept {r['kept_share']:.2f} {r['seconds']:.1f} s",
                flush=True,
            )
    return None


if __name__ == "__main__":
    main()
