"""What pruning costs on a GPU, compared with a training step.

    python benchmarks/gpu.py                     # a table, on the GPU at hand
    python benchmarks/gpu.py --json              # one JSON line per row
    python benchmarks/gpu.py --device cpu --tiny # a rehearsal without a GPU

Rows: planning an epoch; what lies between two of them; `update` with synchronisation forbidden; `update` inside
torch.compile and inside a captured CUDA graph; and the share of a ResNet-18 step (CIFAR, batch 128, bf16) that
`update` takes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import infobatch
from infobatch.epoch.scores import ScoreTable
from infobatch.lab.papers.microbench import in_turns
from infobatch.lab.tasks.nets import Basic, resnet


def waiting(device: torch.device) -> Callable[[], Any]:
    """Wait until the device has finished its queued work."""
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


def planning(device: torch.device, size: int, rounds: int) -> dict[str, float]:
    """Draw one plan of the default method at N = size, as `train_data.plan()` does."""
    method = infobatch.methods.infobatch()
    book = ScoreTable(size, device)
    book.scores.copy_(torch.randn(size, device=device).exp())
    moment = infobatch.methods.method.Moment(1, 100)

    def plan() -> None:
        book.begin(method.draw(book, moment, 0))

    works = {"plan": plan, "randperm": lambda: torch.randperm(size, device=device)}
    return in_turns(works, rounds, perf_counter, waiting(device))


def turning(device: torch.device, size: int, rounds: int) -> dict[str, float]:
    """Go from one epoch to the next as a training loop does: draw the plan, and merge losses into scores at the end."""
    train = fresh_set(size, 2 * rounds)
    train.to(device)
    wait = waiting(device)

    def seconds(work: Callable[[], Any]) -> float:
        wait()
        start = perf_counter()
        work()
        wait()
        return perf_counter() - start

    times: dict[str, list[float]] = {"plan": [], "close": []}
    for _ in range(rounds):
        times["plan"].append(seconds(train.plan))
        indices = train.plan().indices
        train.update(torch.rand(len(indices), device=device), indices)
        times["close"].append(seconds(lambda: train.history))
    return {name: statistics.median(values[3:]) for name, values in times.items()}


def fresh_set(size: int, epochs: int = 10) -> infobatch.InfoBatch:
    return infobatch.InfoBatch(TensorDataset(torch.arange(size)), epochs)


def without_sync(device: torch.device) -> str:
    """Call `update` for every way of loading, and step a paced scheduler, with synchronization forbidden.

    Losses are the indices, so the scores show whether each reached its sample.
    """
    size, batch = 1000, 64
    for feeder in ("stock", "own", "explicit"):
        train = fresh_set(size)
        loader: Any = (
            torch.utils.data.DataLoader(train, batch_size=batch, sampler=train.sampler)
            if feeder == "stock"
            else infobatch.DataLoader(train, batch_size=batch)
        )
        parameter = torch.nn.Parameter(torch.zeros(1, device=device))
        steps = infobatch.full_steps(train, batch)
        rates = torch.optim.lr_scheduler.LinearLR(torch.optim.SGD([parameter], lr=0.1), total_iters=10 * steps)
        paced = infobatch.pace(rates, train, steps)
        for _ in range(3):
            for at, (ids,) in enumerate(loader, 1):
                batches = len(loader)
                ids = ids.to(device)
                loss = ids.float()
                if device.type == "cuda":
                    torch.cuda.synchronize()
                    torch.cuda.set_sync_debug_mode("error")
                try:
                    train.update(loss, ids) if feeder == "explicit" else train.update(loss)
                    if at < batches:
                        paced.step()
                finally:
                    if device.type == "cuda":
                        torch.cuda.set_sync_debug_mode("default")
            paced.step()
        assert rates.last_epoch == 3 * steps, feeder
        assert torch.equal(train.scores.cpu(), torch.arange(size).float()), feeder
        assert train.scores.device.type == device.type
    return "passes: stock, own loader, explicit indices, each with pace"


def compiled(device: torch.device) -> str:
    """Compile a step with `update` inside: one graph, and no recompilation over epochs and last batches."""
    size, batch = 1000, 64
    train = fresh_set(size).to(device)
    graphs = 0

    def count(gm: Any, inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return torch._inductor.compile(gm, inputs) if device.type == "cuda" else gm

    weight = torch.ones((), device=device, requires_grad=True)

    @torch.compile(backend=count, fullgraph=True, dynamic=True)
    def step(loss: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return train.update(loss * weight, ids)

    for _ in range(4):
        for (ids,) in infobatch.DataLoader(train, batch_size=batch):
            ids = ids.to(device)
            step(ids.float(), ids).backward()
    assert torch.equal(train.scores.cpu(), torch.arange(size).float())
    return f"{graphs} graph(s) in 4 epochs with smaller last batches"


def captured(device: torch.device) -> str:
    """Replay a captured step over four epochs: the plan changes, the graph does not."""
    size, batch = 4096, 64
    train = fresh_set(size)
    ids = torch.zeros(batch, dtype=torch.int64, device=device)
    total = torch.zeros((), device=device)

    def step() -> None:
        total.add_(train.update(ids.float(), ids))

    stream = torch.cuda.Stream()
    plan = train.plan()
    ids.copy_(plan.indices[:batch])
    with torch.cuda.stream(stream):
        step()
    stream.synchronize()
    train.load_state_dict(infobatch.InfoBatch(train.dataset, 10).state_dict())
    plan = train.plan()
    graph = torch.cuda.CUDAGraph()
    ids.copy_(plan.indices[:batch])
    with torch.cuda.graph(graph):
        step()
    kept = []
    for epoch in range(4):
        assert train.epoch == epoch, (train.epoch, epoch)
        plan = train.plan()
        whole = plan.kept // batch * batch
        total.zero_()
        for at in range(0, whole, batch):
            ids.copy_(plan.indices[at : at + batch])
            graph.replay()
        weights = plan.table[plan.indices[:whole]]
        expected = (weights * plan.indices[:whole]).sum() / batch
        torch.testing.assert_close(total, expected, rtol=1e-4, atol=0.0)
        for at in range(whole, plan.kept):
            train.update(plan.indices[at : at + 1].float(), plan.indices[at : at + 1])
        kept.append(plan.kept)
    assert torch.equal(train.scores.cpu(), torch.arange(size).float())
    return f"one graph over four plans of {kept} samples"


def share_of_step(device: torch.device, batch: int, width: int, rounds: int, steps: int) -> dict[str, float]:
    """Compare a ResNet-18 step with `update` and with `loss.mean()`, eager and as one CUDA graph."""
    torch.backends.cudnn.benchmark = True
    model = resnet((3, 32, 32), 100, block=Basic, depths=(2, 2, 2, 2), width=width)
    model = model.to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    images = torch.randn(batch, 3, 32, 32, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(100, (batch,), device=device)
    train = infobatch.InfoBatch(TensorDataset(torch.arange(50_000)), 1000)
    ids = train.plan().indices[:batch].to(device)

    def body(pruned: bool) -> None:
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(images)
        loss = F.cross_entropy(logits.float(), labels, reduction="none")
        (train.update(loss, ids) if pruned else loss.mean()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    works: dict[str, Callable[[], Any]] = {}
    for name, pruned in (("mean", False), ("update", True)):
        works[f"eager {name}"] = lambda pruned=pruned: [body(pruned) for _ in range(steps)]
    if device.type == "cuda":
        for name, pruned in (("mean", False), ("update", True)):
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(3):
                    body(pruned)
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                body(pruned)
            works[f"graph {name}"] = lambda graph=graph: [graph.replay() for _ in range(steps)]
    medians = in_turns(works, rounds, perf_counter, waiting(device))
    return {name: seconds / steps for name, seconds in medians.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small sizes, for a trial run")
    parser.add_argument("--json", action="store_true", help="one JSON line per row")
    args = parser.parse_args()
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("no GPU here; rehearse with --device cpu --tiny")
    warnings.simplefilter("ignore", infobatch.InfoBatchWarning)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    base = {"device": name, "torch": torch.__version__, "python": sys.version.split()[0]}

    rows: list[dict[str, Any]] = []

    def row(what: str, result: Any, limit: str = "") -> None:
        rows.append({**base, "what": what, "result": result, "limit": limit})
        print(json.dumps(rows[-1]) if args.json else f"{what:58} {result!s:52} {limit}", flush=True)

    for size, limit in ((1_281_167, "2 ms"), (14_000_000, "10 ms")):
        size = size // 1000 if args.tiny else size
        taken = planning(device, size, 5 if args.tiny else 31)
        shown = {key: f"{value * 1e3:.3f} ms" for key, value in taken.items()}
        row(f"planning an epoch, N = {size:,}", shown, limit)
    size, rounds = (500, 6) if args.tiny else (50_000, 40)
    shown = {key: f"{value * 1e3:.3f} ms" for key, value in turning(device, size, rounds).items()}
    row(f"from one epoch to the next, N = {size:,}", shown, "0.1 % of an epoch")
    row("update() with set_sync_debug_mode('error')", without_sync(device), "passes")
    row("update() inside torch.compile(fullgraph=True)", compiled(device), "1 graph")
    if device.type == "cuda":
        row("update() inside a captured CUDA graph", captured(device), "passes")
    sizes = (8, 4, 3, 2) if args.tiny else (128, 64, 41, 25)
    taken = share_of_step(device, *sizes)
    shown = {key: f"{value * 1e6:.1f} us" for key, value in taken.items()}
    row("ResNet-18 step, batch 128, bf16", shown)
    for how in ("eager", "graph") if device.type == "cuda" else ("eager",):
        extra = taken[f"{how} update"] / taken[f"{how} mean"] - 1
        row(f"what update() adds to it, {how}", f"{extra:.2%}", "1 %")


if __name__ == "__main__":
    main()
